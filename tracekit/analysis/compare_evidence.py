"""What a comparison could not compare, why, and what its reader must know first.

Owns the notes and the missing fields. Makes no number of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from tracekit.analysis.compare_metric import DrawnMetric
from tracekit.analysis.compare_rules import CompareRules
from tracekit.analysis.compare_side import SideData
from tracekit.analysis.comparison import Metric, SideInfo
from tracekit.analysis.diagnosis import MissingEvidence
from tracekit.analysis.wording import METRIC_WORDS, PHASE_WORDS, format_share
from tracekit.words import plural, verb

_ENGINE: Final = (
    "record the engine's spans on both sides (vLLM --otlp-traces-endpoint), or log queue_ms and "
    "prefill_ms"
)
_CLIENT: Final = (
    "trace the calling application on both sides (an OpenTelemetry GenAI client span per call), or "
    "log start_unix_ns, ttft_ms and e2e_ms where the client measures them"
)
_HOW: Final[Mapping[str, str]] = {
    "client_wait_ms": "log intended_start_unix_ns on both sides",
    "network_ms": _CLIENT,
    "route_ms": "trace the gateway or router on both sides, or log route_ms",
    "frontend_ms": _ENGINE,
    "queue_ms": _ENGINE,
    "prefill_ms": _ENGINE,
    "queue_or_prefill_ms": _ENGINE,
    "kv_transfer_ms": "record both engines' spans under P/D on both sides, or log kv_transfer_ms",
    "decode_ms": "record the end of the stream and the output tokens on both sides",
    "input_tokens": (
        "ask for usage when streaming (stream_options.include_usage) and record "
        "gen_ai.usage.input_tokens, or the log column input_tokens"
    ),
    "output_tokens": "record gen_ai.usage.output_tokens, or the log column output_tokens",
    "cached_tokens": (
        "start vLLM with --enable-prompt-tokens-details, or log the column cached_tokens"
    ),
    "ttft_ms": (
        "stream the answers and record gen_ai.response.time_to_first_chunk, or the log column "
        "ttft_ms"
    ),
    "tpot_ms": "stream the answers and record output tokens, or log the column tpot_ms",
    "e2e_ms": _CLIENT,
    "requests": "widen the window, or collect for longer",
}
#: Where a role's clock stands; what is server-side is alike for this purpose.
_PLACES: Final[Mapping[str, str]] = {
    "client": "the client",
    "gateway": "the gateway or router",
    "router": "the gateway or router",
}


def measured_apart(a: SideData, b: SideData) -> dict[str, str]:
    """Metrics that do not begin or end at the same place on both sides, and how they differ."""
    out: dict[str, str] = {}
    places = [_place(side) for side in (a, b)]
    if all(places) and places[0] != places[1]:
        text = f"A's wall time is taken at {places[0]}, B's at {places[1]}"
        out = {"ttft_ms": text, "e2e_ms": text}
    kinds = [_kind(side) for side in (a, b)]
    if all(kinds) and kinds[0] != kinds[1]:
        out["ttft_ms"] = f"A's first token is {kinds[0]!r}, B's is {kinds[1]!r}"
    return out


def _place(side: SideData) -> str:
    roles: dict[str, int] = {}
    counts = np.bincount(
        side.codes["leg_roles"][side.completed], minlength=len(side.texts["leg_roles"])
    )
    for text, n in zip(side.texts["leg_roles"], counts.tolist(), strict=True):
        if text:
            place = _PLACES.get(text.split(",")[0], "the server")
            roles[place] = roles.get(place, 0) + n
    return max(roles, key=lambda r: roles[r]) if any(roles.values()) else ""


def _kind(side: SideData) -> str:
    known = side.completed & ~np.isnan(side.numbers["ttft_ms"])
    counts = np.bincount(side.codes["ttft_kind"][known], minlength=len(side.texts["ttft_kind"]))
    return side.texts["ttft_kind"][int(counts.argmax())] if counts.any() else ""


def not_compared(
    metric: str, a_n: int, b_n: int, apart: Mapping[str, str], rules: CompareRules
) -> str:
    """Why a metric has no effect: too few rows, else nothing common that could stand for it."""
    few = [f"{n} on {side}" for side, n in (("A", a_n), ("B", b_n)) if n < rules.min_rows]
    if few:
        return (
            f"{' and '.join(few)} of the completed requests have it; "
            f"{rules.min_rows} are needed on each side"
        )
    return f"{apart.get(metric, 'it is measured differently')}, and they share no phase"


def missing(
    a: SideData,
    b: SideData,
    metrics: Sequence[Metric],
    drawn: Sequence[DrawnMetric],
    rules: CompareRules,
) -> tuple[MissingEvidence, ...]:
    """The fields that would have allowed more, the most limiting first."""
    out: dict[tuple[str, str], MissingEvidence] = {}

    def note(side: str, name: str, why: str) -> None:
        out.setdefault((side, name), MissingEvidence(name, f"{side}: {why}", _HOW[name]))

    few = False
    for side in (a, b):
        n = side.info.requests.completed
        if n < rules.min_rows:
            few = True
            note(
                side.info.name, "requests",
                f"{plural(n, 'completed request')}, {rules.min_rows} are needed on each side",
            )  # fmt: skip
    if few:
        return tuple(out.values())
    for metric in metrics:
        for side_name, n in (("A", metric.a_n), ("B", metric.b_n)):
            if metric.not_compared and n < rules.min_rows:
                note(
                    side_name,
                    metric.metric,
                    f"{plural(n, 'completed request')} {verb(n, 'has', 'have')} it",
                )
    for made in drawn:
        for side_name, phase, share in made.unknown_phases:
            known = f"known for {format_share(share)} of the requests" if share else "not known"
            note(
                side_name, f"{phase}_ms",
                f"{known}, so {PHASE_WORDS[phase]} is not compared",
            )  # fmt: skip
        for side_name, name in made.sizes.lacking:
            # a request without decode phases needs no output size here
            note(side_name, name, "not recorded, so other sizes and other costs look alike")
    if drawn and not drawn[0].sizes.cache_known:
        for side in (a, b):
            share = float(side.numbers["cached_known"][side.completed].mean())
            if share < rules.known_share:
                note(
                    side.info.name, "cached_tokens",
                    "not recorded, so other cache hits count as cost",
                )  # fmt: skip
    return _merged(list(out.values()))


def _merged(items: Sequence[MissingEvidence]) -> tuple[MissingEvidence, ...]:
    """What both sides lack alike is said once."""
    out: dict[tuple[str, str], MissingEvidence] = {}
    for item in items:
        side, _, why = item.why.partition(": ")
        first = out.get((item.field, why))
        named = f"{first.why.partition(': ')[0]} and {side}" if first else side
        out[(item.field, why)] = MissingEvidence(item.field, f"{named}: {why}", item.how)
    return tuple(out.values())


def notes(
    a: SideData,
    b: SideData,
    drawn: Sequence[DrawnMetric],
    apart: Mapping[str, str],
    by: Sequence[str],
    rules: CompareRules,
) -> tuple[str, ...]:
    """What a reader must know before trusting a number."""
    out: list[str] = []
    for side in (a, b):
        info = side.info
        if left := info.left_out_without_clock:
            out.append(
                f"{info.name}: {plural(left, 'request')} without a start time "
                f"{verb(left, 'lies', 'lie')} in no window and {verb(left, 'is', 'are')} left out"
            )
        if info.drawn is not None:
            out.append(
                f"{info.name}: statistics and intervals rest on {info.drawn:,} requests, drawn by "
                "a hash of their key"
            )
        if info.first_unix_ns is None and info.requests.completed:
            out.append(
                f"{info.name}: no start times, so requests were drawn one by one: if they came in "
                "bursts, the intervals are too narrow"
            )
    for made in drawn:
        if made.from_phases:
            word = METRIC_WORDS[made.metric.removesuffix("_ms")]
            out.append(
                f"{apart[made.metric]}: {word} here is the sum of the phases that both sides know"
            )
    rate = _rate(a.info, b.info, rules)
    if rate:
        out.append(rate)
    out += _versions(a, b)
    if drawn:
        first = drawn[-1]
        out += _kinds(first, by, rules)
        out += _sizes(first)
    return tuple(dict.fromkeys(out))


def rate_factor(a: SideInfo, b: SideInfo) -> float | None:
    """B's request rate over A's; None where it is not known."""
    if not a.requests_per_s or not b.requests_per_s:
        return None
    return b.requests_per_s / a.requests_per_s


def _rate(a: SideInfo, b: SideInfo, rules: CompareRules) -> str | None:
    factor = rate_factor(a, b)
    if factor is None or 1 / rules.rate_factor <= factor <= rules.rate_factor:
        return None
    return (
        f"load differs: {a.requests_per_s:.2f} requests/s on A, {b.requests_per_s:.2f} on B "
        f"({factor:.1f} times); waiting at equal mix includes what that does"
    )


def _versions(a: SideData, b: SideData) -> list[str]:
    seen = [sorted(side.seen("engine_version")) for side in (a, b)]
    if not all(seen) or seen[0] == seen[1]:
        return []
    return [f"engine versions differ: {', '.join(seen[0])} on A, {', '.join(seen[1])} on B"]


def _kinds(made: DrawnMetric, by: Sequence[str], rules: CompareRules) -> list[str]:
    if made.kinds.pooled:
        if not by:
            return []
        return [
            f"A and B have no {' and '.join(by)} in common with {rules.min_rows} requests on each "
            "side: all requests are compared as one kind, so a difference between them counts "
            "as cost"
        ]
    out: list[str] = []
    for name, kinds, rows in (("A", made.kinds.a, made.rows_a), ("B", made.kinds.b, made.rows_b)):
        share = float((kinds[rows] < 0).mean())
        if share >= rules.unmatched_share:
            out.append(
                f"{format_share(share)} of {name} is of a kind ({', '.join(by)}) that the other "
                "side (almost) lacks: it counts as traffic mix"
            )
    return out


def _sizes(made: DrawnMetric) -> list[str]:
    apart = dict.fromkeys(
        f for c in made.components for f in c.apart if f not in {x for _, x in made.sizes.lacking}
    )
    return [
        f"{name} of A and B hardly overlap ({format_share(made.sizes.support[name])} lie within "
        "the other side's range): what is mix and what is cost cannot be told apart"
        for name in apart
    ]
