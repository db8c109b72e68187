"""What is not recorded, what that keeps from being said, and how to record it.

Owns the rules from counted fields to `MissingEvidence`. Names the exact flag, attribute or column;
lists only what matters for the traffic at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.analysis.diagnosis import MissingEvidence, PrefixReuse
from tracekit.analysis.rules import Rules
from tracekit.analysis.systems import EXAMPLE, turn_on
from tracekit.words import plural, reach_text, verb

if TYPE_CHECKING:
    from tracekit.analysis.evidence_support import Waits
    from tracekit.analysis.fit import Cell
    from tracekit.analysis.modes import Modes
    from tracekit.analysis.swapped import Swapped

#: A field is missing when fewer than this share of the requests have it.
_ENOUGH: Final = 0.5
_NEARLY_ALL: Final = 0.9
#: A contradiction in fewer than this share is an exception.
_SOME: Final = 0.05

_OTHER_PHASES: Final = (
    "or send spans with the attribute tracekit.phase, or log the columns queue_ms and prefill_ms"
)
_ENGINE_SPANS: Final = (
    "start vLLM with --otlp-traces-endpoint grpc://HOST:4317 and let the caller send its "
    f"traceparent header ({_OTHER_PHASES})"
)
_CACHED: Final = "record cached prompt tokens as gen_ai.usage.cache_read.input_tokens"
_CACHED_OF_VLLM: Final = (
    "start vLLM with --enable-prompt-tokens-details and record "
    "usage.prompt_tokens_details.cached_tokens as gen_ai.usage.cache_read.input_tokens, "
    "or as the log column cached_tokens"
)

#: The field of a note on requests of two kinds under one name.
KIND: Final = "kind of request"

#: The field of a note on hosts whose clocks are not known well enough.
CLOCKS_FIELD: Final = "host clocks"

#: The field of a note on requests far larger than what the expectation was fitted on.
REACH_FIELD: Final = "large requests"

#: The field of a note on prefill and decode in each other's place.
SWAPPED_FIELDS: Final = "prefill_ms, decode_ms"

_CLIENT_SPANS: Final = (
    "trace the calling application (an OpenTelemetry GenAI client span per call, with its "
    "traceparent passed on), or log start_unix_ns, ttft_ms and e2e_ms per request"
)


#: The field of a note that nothing but the window itself says what is ordinary.
HEALTHY_FIELD: Final = "baseline"


@dataclass(frozen=True)
class Beyond:
    """Slow requests of one cell that are far larger in a phase than what it was fitted on."""

    phase: str
    cell_index: int
    requests: int


def missing_evidence(
    fields: Mapping[str, Any],
    *,
    completed: int,
    reasons: Mapping[str, int],
    queue_cause_open: bool,
    cells: Sequence[Cell] = (),
    swapped: Sequence[Swapped] = (),
    reuse: PrefixReuse | None = None,
    clocks_wanted: bool = False,
    beyond: Beyond | None = None,
    waits: Waits | None = None,
    metrics_stored: bool = False,
    rules: Rules,
) -> tuple[MissingEvidence, ...]:
    """From the row of ``field_coverage`` to what would help, the most limiting first.

    ``reasons`` counts why verdicts abstained; ``queue_cause_open`` = queueing was found, not why;
    ``waits`` what is told of it, ``metrics_stored`` whether any metrics of engines are;
    ``cells`` of the cost model say where one name hides two kinds of requests; ``swapped`` whose
    prefill and decode are in each other's place; ``reuse`` how prompts repeat;
    ``clocks_wanted``: requests were slow after an idle time, and no GPU sample says more;
    ``beyond``: which of the slow ones are too large for the expectation.
    """
    out: list[MissingEvidence] = []

    def note(field: str, why: str, how: str) -> None:
        out.append(MissingEvidence(field, why, how))

    n = int(fields["n"] or 0)
    for found in swapped:
        note(SWAPPED_FIELDS, *found.words())
    if completed < rules.min_rows:
        note(
            "requests",
            f"{plural(completed, 'completed request')}; percentiles and verdicts need "
            f"{rules.min_rows}",
            "collect for longer, or widen --since; `tracekit table` works from 8 rows on",
        )
    if not n:
        return tuple(out)

    engine = fields["engine"]
    spans = turn_on(engine, "spans")
    engine_spans = _ENGINE_SPANS if spans is None else f"{spans}; {_OTHER_PHASES}"

    def lacks(name: str, enough: float = _ENOUGH) -> bool:
        return float(fields[name] or 0) < enough * n

    def share(name: str) -> str:
        return f"{100 * (n - int(fields[name] or 0)) / n:.0f} % of the requests"

    for cell in sorted(cells, key=lambda c: -c.n):
        for phase, modes in cell.modes.items():
            note(KIND, *_two_kinds(cell, phase, modes, cached_known=not lacks("with_cached")))
    if lacks("with_input", _NEARLY_ALL):
        note(
            "input_tokens",
            f"{share('with_input')} have no prompt size, so long prompts and faults look alike",
            "ask for usage when streaming (stream_options.include_usage) and record "
            "gen_ai.usage.input_tokens, or the log column input_tokens",
        )
    if lacks("with_output", _NEARLY_ALL):
        note(
            "output_tokens",
            f"{share('with_output')} have no output size, so decode cannot be judged",
            "record gen_ai.usage.output_tokens, or the log column output_tokens",
        )
    if lacks("with_ttft"):
        note(
            "ttft_ms",
            f"{share('with_ttft')} have no time to first token",
            "stream the answers and record gen_ai.response.time_to_first_chunk, or the log "
            "column ttft_ms",
        )
    merged = int(fields["with_merged_phase"] or 0)
    if merged >= (1 - _NEARLY_ALL) * n:
        note(
            "queue_ms, prefill_ms",
            f"{100 * merged / n:.0f} % of the requests know only the time before the first token "
            "as a whole, so waiting and computing cannot be told apart",
            turn_on(engine, "split") or engine_spans,
        )
    elif lacks("with_server_phases") and not merged:
        note(
            "queue_ms, prefill_ms",
            f"{share('with_server_phases')} have no phases at all",
            engine_spans,
        )
    moved_unseen = int(fields["with_merged_transfer"] or 0)
    if moved_unseen >= (1 - _NEARLY_ALL) * n:
        note(
            "kv_transfer_ms",
            f"{100 * moved_unseen / n:.0f} % of the requests were handed to another worker, and "
            "nothing tells when their prefill was done: the KV transfer is in the time before the "
            "first token",
            turn_on(engine, "transfer")
            or "send the prefill server's spans, or log the column kv_transfer_ms",
        )
    if lacks("with_coverage", _NEARLY_ALL) or reasons.get("coverage"):
        dark = share("with_coverage")
        if dark.startswith("0 %"):
            dark = plural(reasons["coverage"], "slow request")
        note(
            "coverage",
            f"more than a tenth of the time is covered by no boundary in {dark}",
            # where every phase is told and most of the time is, nothing need be turned on
            "; ".join(
                (
                    *(
                        ["`tracekit show ID` says which part: the spans around it are missing"]
                        if not (lacks("with_server_phases", _NEARLY_ALL) or lacks("with_coverage"))
                        else [engine_spans]
                    ),
                    *([_CLIENT_SPANS] if lacks("with_client", _NEARLY_ALL) else []),
                )
            ),
        )
    if reasons.get("clock"):
        note(
            CLOCKS_FIELD,
            f"KV transfers of {plural(reasons['clock'], 'slow request')} are shorter than the "
            "difference of the hosts' clocks is known, so they may be nothing at all",
            "keep the hosts' clocks together (chrony or PTP), or record the transfer's own start "
            "and end on one host (columns kv_transfer_ms, kv_hidden_ms; spans with "
            "tracekit.phase = kv_transfer)",
        )
    if beyond is not None:
        note(REACH_FIELD, *_too_large(cells[beyond.cell_index], beyond, rules))
    if lacks("with_cached"):
        note(
            "cached_tokens",
            f"{share('with_cached')} do not say how much of the prompt came from the prefix cache, "
            "so a cache miss looks like a slow prefill",
            _CACHED_OF_VLLM
            if engine in (None, "", "vllm")
            else f"{turn_on(engine, 'cached', _CACHED)}; or log the column cached_tokens",
        )
    elif int(fields["with_whole_cached"] or 0) > _SOME * n:
        whole = int(fields["with_whole_cached"])
        note(
            "input_tokens",
            f"{100 * whole / n:.0f} % of the requests have as many cached tokens as prompt tokens "
            "or more; at least the last one is always computed",
            "count cached tokens into input_tokens (some APIs report them apart)",
        )
    if reuse is not None and reuse.is_impossible and reuse.preempted is None:
        note(
            "preemptions",
            "more hits are reported than can be; engines count as one what a preempted request "
            "computes again, and who was preempted is not known",
            "log the column preemptions, or "
            + (
                turn_on(engine or EXAMPLE, "preempted")
                or "look at the engine's metrics of preemptions for this window"
            ),
        )
    if reuse is not None and reuse.is_missed and not reuse.engine_blocks:
        note(
            "KV block size",
            "prompts repeat more than the prefix cache gives, and only whole blocks of the "
            "engine's KV cache can be hit: how large they are is not known",
            "let the receiver have the engine's metrics, or "
            + (
                turn_on(engine or EXAMPLE, "blocks")
                or "look at the block (or page) size of its KV cache in its settings"
            ),
        )
    if lacks("with_clock"):
        note(
            "start_unix_ns",
            f"{share('with_clock')} have no start time, so nothing can be said about load, "
            "overlap or change over time",
            "log start_unix_ns (unix nanoseconds when the request was sent)",
        )
    if lacks("with_client") and not lacks("with_clock"):
        note(
            "client span",
            f"{share('with_client')} have no client side, so what happened before the server saw "
            "them is not in any number here",
            f"{_CLIENT_SPANS}; intended_start_unix_ns where the client limits its concurrency",
        )
    if lacks("with_gaps"):
        note(
            "chunk times",
            f"{share('with_gaps')} have no times of single chunks: their ITL is unknown, and "
            "stalls are invisible",
            "record when each chunk arrives (log columns chunk_offsets_ms[] and chunk_tokens[])",
        )
    if lacks("with_model"):
        note(
            "model",
            f"{share('with_model')} name no model: all are held to one cost, whatever serves them",
            "record gen_ai.request.model, or the log column model",
        )
    if lacks("with_worker"):
        note(
            "worker",
            f"{share('with_worker')} name no worker, so neither a slow worker nor interference "
            "can be found",
            "set service.instance.id per server (OTEL_RESOURCE_ATTRIBUTES), or log the column "
            "worker",
        )
    moved = int(fields["with_transfer"] or 0)
    if moved and int(fields["with_transfer_bytes"] or 0) < _ENOUGH * moved:
        note(
            "kv_bytes",
            "the size of KV transfers is not known, so a slow link and a long wait look alike",
            "log the column kv_bytes, or "
            + (turn_on(engine, "bytes") or "look at the transfer engine's metrics"),
        )
    if clocks_wanted:
        note(
            "GPU clocks",
            "prefill is slow after an idle time, and nothing tells whether the GPU slept: no "
            "clocks of it are stored for that time",
            "look at `nvidia-smi --query-gpu=pstate,clocks.sm,clocks.mem --format=csv -lms 200` "
            "while such a request comes",
        )
    if queue_cause_open:
        note("engine metrics", *_open_queue(engine, waits, metrics_stored=metrics_stored))
    return tuple(out)


def _open_queue(
    engine: str | None, waits: Waits | None, *, metrics_stored: bool
) -> tuple[str, str]:
    """Why the cause of a queue is open, and what would tell it."""
    load = turn_on(engine, "load") or (
        "look at the engine's metrics for waiting requests and KV usage in this window"
    )
    if waits is not None and waits.kv_usage is not None:
        return (
            f"requests wait in the queue beside a KV cache that is {100 * waits.kv_usage:.0f} % "
            "full on average, which does not tell whether they wait for a slot or for memory",
            load,
        )
    why = "requests wait in the queue, and nothing tells whether for a slot or for KV memory"
    if waits is not None and waits.alloc_ms is not None:
        why = (
            "requests wait in the queue, not for KV space of the decode server, which is told "
            "apart; whether for a slot or for the server's own KV memory nothing tells"
        )
    if metrics_stored:
        return (
            f"{why}: metrics are stored, but no KV usage of these requests' worker at that time",
            "let the receiver scrape the engine while it serves (tracekit collect --scrape URL); "
            "of a file name the process as its spans do (tracekit import --service NAME) and, for "
            "one scrape, its time (--at TIME)",
        )
    return why, load


def healthy_window(*, limits_given: bool) -> MissingEvidence:
    """That the window is its own measure, which hides what lasts all of it, and how to mend it."""
    if limits_given:
        return MissingEvidence(
            HEALTHY_FIELD,
            "what is ordinary is known from this window alone: a fault that lasts all of it looks "
            "ordinary",
            "name a healthy window with --baseline START..END",
        )
    return MissingEvidence(
        f"slo, {HEALTHY_FIELD}",
        "no limit is given, so slow is the slowest 5 % of this window, and ordinary is what the "
        "window itself shows: a fault that lasts all of it is in both",
        "give the limits that users need (--slo ttft=800ms,tpot=50ms), or name a healthy window "
        "with --baseline START..END",
    )


def _too_large(cell: Cell, beyond: Beyond, rules: Rules) -> tuple[str, str]:
    """Why the largest requests are not judged, and how to mend it."""
    fit = cell.fits[beyond.phase]
    what = {
        "queue_or_prefill": "the time before the first token",
        "kv_transfer": "KV transfer",
    }.get(beyond.phase, beyond.phase)
    n = beyond.requests
    most = reach_text(beyond.phase, fit.reach or 0.0, fit.context_reach, per_byte=cell.kv_per_byte)
    why = (
        f"{plural(n, 'slow request')} {verb(n, 'is', 'are')} more than {rules.size_reach:.0f} "
        f"times as large as any that {what} was fitted on (at most {most}), so what "
        f"{verb(n, 'it', 'they')} should take is not known"
    )
    return why, "name a window that has requests of that size with --baseline"


def _two_kinds(cell: Cell, phase: str, modes: Modes, *, cached_known: bool) -> tuple[str, str]:
    """Why a phase of a cell is not judged, and how to mend it."""
    name = " ".join(part for part in (cell.model, cell.engine_version) if part)
    what = {"queue_or_prefill": "the time before the first token"}.get(phase, phase)
    share, times = 100 * modes.slow_share, modes.slow / modes.quick
    why = (
        f"{what} of the requests{f' of {name}' if name else ''} has two speeds (bimodal): for the "
        f"same size {share:.0f} % take {times:.1f} times as long as the others, and neither "
        "worker nor time tells which they are, so neither is judged by the other"
    )
    hints = "the model's variant, the pool or the GPU type as model, route or worker"
    if phase != "decode" and not cached_known:
        hints = f"cached_tokens (a hit is quick), or {hints}"
    elif phase == "decode":
        hints += ", or accepted_tokens_per_step where speculation is on for some"
    return (
        why,
        f"record what tells them apart: {hints}; or look at one kind with --model or --route",
    )
