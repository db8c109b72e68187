"""Numbers into words: the sentence of a finding, and the sentence of a diagnosis.

Makes no number and reads no table. Causes and actions are `finding_words`'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tracekit.analysis.diagnosis import (
    Finding,
    MissingEvidence,
    OverLimit,
    RequestCounts,
    SloInfo,
)
from tracekit.analysis.finding_words import FindingWords, cause_phrase
from tracekit.analysis.missing import CLOCKS_FIELD, KIND, REACH_FIELD, SWAPPED_FIELDS
from tracekit.analysis.slo import GIVEN
from tracekit.analysis.timeless import TIMES_FIELD
from tracekit.analysis.wording import (
    METRIC_WORDS,
    PHASE_WORDS,
    format_confidence,
    format_ms,
    format_share,
    format_tokens,
    tokens,
)
from tracekit.words import plural, verb

#: A finding that holds less than this of its metric's misses is no headline where most of the
#: misses are without an explanation.
HEADLINE_SHARE: Final = 0.2

#: And with this part of its share that may be ordinary it says so.
_NEARLY_ALL: Final = 0.8

#: Where this share of the requests is over a given limit, which phase holds their time is the
#: answer, if there is no other.
_MANY: Final = 0.2

#: The field of a note on requests that were killed before their first token.
GIVEN_UP_FIELD: Final = "requests that ended early"

#: Interference without culprits.
NOBODY_NAMED: Final = (
    "no single request is named: where so many wait on a worker, each holds up all behind it"
)

#: Causes of findings on the requests' own size.
SHAPE_CAUSES: Final = frozenset({"long_prompt", "kv_transfer_size", "fixed_overhead"})

#: An expectation below this is no number worth printing.
_NEXT_TO_NOTHING_MS: Final = 1.0


def finding_sentence(
    words: FindingWords,
    *,
    share: float,
    n: int,
    looked_into: int,
    confidence: float,
    label: str,
    source: str,
) -> str:
    """One finding in one sentence, without its action.

    ``n`` is about so many where fewer were ``looked_into``.
    """
    subject = misses_of(words.metric, source)
    # the confidence is about the phase: whether it is the one, not why
    sure = f"confidence in the phase {label} ({format_confidence(confidence)}), n = "
    sure += f"{n:,}" if looked_into >= n else f"about {n:,} ({looked_into:,} looked into)"
    if words.is_shape and (pace := words.slower_version) is not None:
        return (
            f"{format_share(share)} of {subject}: as slow as their size makes them with engine "
            f"version {pace.slower}, which takes {pace.factor:.1f} times as long as "
            f"{pace.quicker} ({_shape_cost(words)}); {sure}"
        )
    if words.is_shape:
        if words.from_baseline:
            size = f"as slow as their size makes them, no fault ({_shape_cost(words)}); {sure}"
        elif words.most_miss:
            size = (
                f"as slow as all of their size are in this window ({_shape_cost(words)}); {sure}; "
                "whether that is a fault which lasts all of it, a --baseline window tells"
            )
        else:
            size = (
                "as slow as their size makes them here, no fault of their own "
                f"({_shape_cost(words)}); {sure}; a fault of the whole window would look the same, "
                "a --baseline window tells"
            )
        return f"{format_share(share)} of {subject}: {size}"
    why = cause_phrase(words)
    # what the evidence suggests is not as sure as the phase, which is measured
    if not why.startswith(";"):
        why = f"; most likely {why}" if why.startswith("because") else f" {why}"
    return (
        f"{format_share(share)} of {subject} lost their time in {PHASE_WORDS[words.phase]} "
        f"(+{format_ms(words.excess_ms)}, {_ordinary(words)}; {sure}){why}"
    )


def _ordinary(words: FindingWords) -> str:
    if words.expected_ms < _NEXT_TO_NOTHING_MS:
        return "where next to nothing is ordinary"
    return f"over the {format_ms(words.expected_ms)} expected for this shape"


def _shape_cost(words: FindingWords) -> str:
    phase = PHASE_WORDS[words.phase]
    cost = format_ms(words.expected_ms)
    if words.phase == "decode" and words.output_tokens is not None:
        size, take = tokens(words.output_tokens, "output"), _take(words.output_tokens)
        return f"{size} {take} {cost} of decode here"
    if words.uncached_tokens is not None and words.phase in ("prefill", "queue_or_prefill"):
        size, take = tokens(words.uncached_tokens, "prompt"), _take(words.uncached_tokens)
        return f"{size} {take} {cost} of {phase} here"
    if words.recompute_ms is not None:
        again = format_ms(words.recompute_ms)
        return f"loading KV takes {cost}, computing the same tokens again about {again}"
    return f"{phase} takes {cost} for this shape"


def _take(value: float) -> str:
    return "takes" if format_tokens(value) == "1" else "take"


def misses_of(metric: str, source: str) -> str:
    """What the share is a share of: the requests that miss the SLO, or the slowest ones."""
    word = METRIC_WORDS[metric]
    if source == GIVEN:
        return f"the requests that miss the {word} SLO"
    return f"the requests with the slowest {word}"


def diagnosis_sentence(
    *,
    findings: Sequence[Finding],
    requests: RequestCounts,
    slo: SloInfo,
    misses: int,
    unexplained_share: float | None,
    reasons: Mapping[str, int],
    missing: Sequence[MissingEvidence],
    min_rows: int,
    window_text: str,
    elsewhere: str | None = None,
    limits_known: bool = True,
    known_from_baseline: bool = False,
    over_limit: Sequence[OverLimit] = (),
    min_told_rows: int = 0,
) -> str:
    """The one line: the headline finding with its action, or what is missing to have one.

    ``reasons`` counts what no finding accounts for by what decided, most first.
    ``limits_known``: whether there is any limit, given or from enough requests.
    ``known_from_baseline``: whether a baseline says what is ordinary. ``over_limit``: given limits
    that are missed mostly without a finding. Where no limit is given, a finding of fewer than
    ``min_told_rows`` is no headline: somebody is always the slowest.
    """
    if requests.total == 0 and elsewhere is not None:
        return (
            f"Not enough evidence: no request lies in {window_text} with these filters; "
            f"{elsewhere}; widen --since or change the filters."
        )
    mended = next((m for m in missing if m.field in (SWAPPED_FIELDS, TIMES_FIELD)), None)
    if requests.completed < min_rows and not findings and mended is not None:
        return f"Not enough evidence: {mended.why}; {mended.how}."
    early = _ended_early(missing, window_text)
    if requests.completed < min_rows and not findings and early is not None:
        return early
    if requests.completed < min_rows and not findings:
        if (many := _missed_by_many(over_limit)) is not None:
            return (
                f"In {window_text}, {many.sentence}. Next: collect more or widen the window, and "
                "read `tracekit table` meanwhile."
            )
        missed = "".join(
            f"; {o.misses:,} of {o.requests:,} {verb(o.misses, 'misses', 'miss')} the "
            f"{METRIC_WORDS[o.metric]} SLO"
            for o in over_limit
        )
        return (
            f"Not enough evidence: {plural(requests.completed, 'completed request')} in "
            f"{window_text}, "
            f"{min_rows} are needed to say what is ordinary{missed}; collect more or widen the "
            "window, and read `tracekit table` meanwhile."
        )
    if not misses and slo.source == GIVEN:
        return (
            f"No request missed the SLO in {window_text} "
            f"({requests.completed:,} completed, {_limits(slo)})."
        )
    if not misses:
        return _none_slow(requests, window_text, min_rows, limits_known)
    over = _told_by_many(over_limit)
    if not findings or (
        findings[0].share_of_misses < HEADLINE_SHARE and (unexplained_share or 0.0) >= 0.5
    ):
        if over is not None and _ended_early(missing, window_text) is None:
            return f"In {window_text}, {over.sentence}. Next: {over.action}."
        return _not_enough(reasons, missing, window_text, slo)
    top = findings[0]
    if over is not None and top.metric != over.metric and top.cause in SHAPE_CAUSES:
        # that these are as slow as their size is no answer to what misses the other limit
        return f"In {window_text}, {over.sentence}. Next: {over.action}."
    if slo.source != GIVEN and top.n < min_told_rows:
        return _too_few_stand_out(top, window_text, known_from_baseline)
    rest = _may_be_ordinary(top, known_from_baseline)
    if unexplained_share:
        share = format_share(unexplained_share)
        slow = "requests that miss the SLO" if slo.source == GIVEN else "slow requests"
        rest += f"; for {share} of the {slow} no single phase can be named"
    if over is not None and (top.metric, top.phase) != (over.metric, over.phase):
        rest += f"; also, {over.sentence}"
    aside = sum(requests.quarantined.values())
    if aside >= _ASIDE * requests.total:
        of = plural(requests.total, "request")
        rest += f"; {aside:,} of {of} {verb(aside, 'is', 'are')} set aside and not judged"
    return f"In {window_text}, {top.sentence}{rest}. Next: {top.action}."


def _missed_by_many(over_limit: Sequence[OverLimit]) -> OverLimit | None:
    """The limit that most requests are over without a finding, where that are many."""
    many = [o for o in over_limit if o.misses >= _MANY * o.requests]
    return max(many, key=lambda o: (o.phase is not None, o.misses), default=None)


def _told_by_many(over_limit: Sequence[OverLimit]) -> OverLimit | None:
    """As `_missed_by_many`, if a phase holds their time: else what is missing says more."""
    return _missed_by_many([o for o in over_limit if o.phase is not None])


def _ended_early(missing: Sequence[MissingEvidence], window_text: str) -> str | None:
    """Where most of the slow ones were killed before their first token: that, and what to do."""
    early = next((m for m in missing if m.field == GIVEN_UP_FIELD), None)
    if early is None:
        return None
    return f"Not enough evidence: in {window_text} {early.why}; {early.how}."


def _none_slow(requests: RequestCounts, window_text: str, min_rows: int, limits_known: bool) -> str:
    """Why no request counts as slow, where no SLO was given."""
    of = f"none of the {plural(requests.completed, 'completed request')} in {window_text}"
    if not limits_known:
        return (
            f"Not enough evidence: {of} can be called slow: without an SLO that takes {min_rows} "
            "requests with a TTFT, TPOT or total time; record one of them, or give --slo."
        )
    return (
        f"Not enough evidence: {of} is slow: without an SLO that is one above the 95th percentile "
        "of its model and route, and here so many take equally long that none is above it; give "
        "--slo."
    )


def _too_few_stand_out(top: Finding, window_text: str, known_from_baseline: bool) -> str:
    """Where no limit is given and hardly one of the slowest requests stands out."""
    which = plural(top.n, "request")
    its = verb(top.n, "its", "their")
    if top.cause in SHAPE_CAUSES:
        what = (
            f"no more than {which} of the slowest {verb(top.n, 'has', 'have')} an explanation, "
            f"{its} size"
        )
    else:
        what = (
            f"no more than {which} of the slowest {verb(top.n, 'stands', 'stand')} out (in "
            f"{PHASE_WORDS[top.phase]}, {format_ms(top.excess_ms)} longer than {its} size explains)"
        )
    healthy = "" if known_from_baseline else ", or name a healthy window with --baseline"
    return (
        f"Not enough evidence: in {window_text} {what}: too few to tell a fault from chance; look "
        f"at {verb(top.n, 'it', 'them')} with `tracekit show`, give --slo{healthy}."
    )


def _may_be_ordinary(top: Finding, known_from_baseline: bool) -> str:
    """What the headline says where nearly all of its share may be no fault."""
    if not top.placebo_share or top.placebo_share < _NEARLY_ALL * top.share_of_misses:
        return ""
    share = format_share(top.placebo_share)
    if known_from_baseline:
        return f"; {share} are what the baseline shows too"
    return f"; up to {share} may be ordinary variation, a --baseline window tells"


def _not_enough(
    reasons: Mapping[str, int],
    missing: Sequence[MissingEvidence],
    window_text: str,
    slo: SloInfo,
) -> str:
    if (early := _ended_early(missing, window_text)) is not None:
        return early
    reason = next(iter(reasons), None)
    # two kinds of requests under one name may be behind any reason
    fields = (*_REASON_FIELDS.get(reason or "", ()), KIND)
    entry = next((m for m in missing if m.field in fields), None)
    if entry is not None:
        return f"Not enough evidence: {entry.field}: {entry.why}; {entry.how}."
    if reason in ("spread", "excess"):
        return (
            f"Not enough evidence: in {window_text} the excess of the slow requests is spread over "
            "several phases; look at single ones with `tracekit show`, or narrow the window."
        )
    if reason == "usual":
        n = reasons[reason]
        many = plural(n, "slow request")
        if slo.source == GIVEN:
            many = f"{plural(n, 'request')} that {verb(n, 'misses', 'miss')} the SLO"
        return (
            f"Not enough evidence: in {window_text} {many} {abstained(reason, n)}; look at "
            f"{verb(n, 'it', 'single ones')} with `tracekit show`, or name a healthy window with "
            "--baseline."
        )
    return (
        f"Not enough evidence: in {window_text} no phase of the slow requests takes clearly longer "
        "than is ordinary here; if all of it is slow, name a healthy window with --baseline."
    )


#: Why no finding accounts for some requests, by what decided, as the words after their number.
_ABSTAINED: Final[dict[str, str]] = {
    "excess": "took longer than {its} size explains, but which phase is to blame may be chance",
    "shape": "may owe {its} time to {its} size alone, which is not sure",
    "spread": "lost time in several phases, in none of them most of it",
    "usual": (
        "took longer than {its} size explains, but such losses are too few, too scattered over "
        "time and workers, or too much what the load of their time explains, to tell a fault from "
        "chance"
    ),
    "ordinary": "took no longer in any phase than ordinary variation allows",
    "loose": (
        "may owe {its} time to {its} size, but what such requests should take is known too loosely"
    ),
    "coverage": "spent too much time where no boundary tells the phase",
    "clock": (
        "lost {its} time in a KV transfer shorter than the difference of the hosts' clocks is known"
    ),
    "size": "came without token counts: what {its} size should take is not known",
    "reach": (
        "had a size far beyond the requests that the expectation was fitted on: what {its} size "
        "should take is not known"
    ),
    "phases": "had no phase that could be compared with an expectation",
    "rows": "came in a kind of traffic with too few requests to say what is ordinary",
}


def abstained(reason: str, n: int) -> str:
    """Why ``n`` requests have no finding: ``took longer than its size explains, but ...``."""
    its = verb(n, "its", "their")
    if reason == "usual" and n == 1:
        return f"took longer than {its} size explains: one alone does not tell a fault from chance"
    return _ABSTAINED.get(reason, "could not be judged").format(its=its)


#: Requests that are set aside are part of the answer from this share on.
_ASIDE: Final = 0.1

#: Why verdicts abstain, and the fields that would have changed that.
_REASON_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "coverage": ("coverage", "queue_ms, prefill_ms", "client span"),
    "clock": (CLOCKS_FIELD,),
    "size": (SWAPPED_FIELDS, "input_tokens", "output_tokens"),
    "reach": (REACH_FIELD,),
    "phases": ("queue_ms, prefill_ms", "ttft_ms"),
    "rows": ("requests",),
}


def _limits(slo: SloInfo) -> str:
    given = {"ttft": slo.ttft_ms, "tpot": slo.tpot_ms, "e2e": slo.e2e_ms}
    return ", ".join(
        f"{METRIC_WORDS[m]} at most {format_ms(limit)}" for m, limit in given.items() if limit
    )
