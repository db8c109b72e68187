"""The lines of evidence under a finding: plain sentences, each with its numbers.

Owns the words; what they refer to is read by `evidence_support`. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tracekit.analysis.evidence_support import Row, Support, is_idle
from tracekit.analysis.finding_words import FindingWords
from tracekit.analysis.fit import WAITS
from tracekit.analysis.inferred import QUICKEST
from tracekit.analysis.sentence import NOBODY_NAMED
from tracekit.analysis.slo import GIVEN
from tracekit.analysis.wording import (
    METRIC_WORDS,
    PHASE_WORDS,
    format_about,
    format_ms,
    format_share,
    tokens,
)
from tracekit.words import plural, verb

#: So much slower than at other times is worth saying.
_SLOWER: Final = 0.3


def lines(
    row: Row,
    words: FindingWords,
    *,
    metric_misses: int,
    workers: Sequence[tuple[str, int]],
    support: Support,
) -> Iterator[str]:
    """The evidence of one row of ``findings``."""
    key = (row["class"], row["phase"], row["cause"], row["metric"])
    few = support.few.get(key)
    value = f"median {METRIC_WORDS[words.metric]} {format_ms(row['value_ms'])}"
    of = f"{row['n']:,} of {plural(metric_misses, 'request')}"
    if support.source == GIVEN:
        limit = f"that {verb(metric_misses, 'misses', 'miss')} the SLO"
    elif few is None:
        limit = "over the 95th percentile of the requests of the same model and route in the window"
    else:
        fewest, most = few
        limit = (
            f"that {verb(metric_misses, 'is', 'are')} among the slowest few of "
            f"{plural(most, 'request') if fewest == most else f'{fewest} to {most} requests'} of a "
            "model and route in the window (too few for a 95th percentile)"
        )
    against = "" if few is not None else f" against {format_ms(row['threshold_ms'])}"
    yield f"{of} {limit}: {value}{against}"
    for m in support.strata.get(key, ()):
        whose = "all of them are"
        if m.share != 1:
            whose = f"{format_share(m.share)} of them are"
        elif row["n"] == 1:
            whose = "it is"
        yield f"{whose} of {m.kind} {m.name}, which has {format_share(m.usual)} of all requests"
    phase = PHASE_WORDS[words.phase]
    yield (
        f"{phase} took {format_ms(words.expected_ms + words.excess_ms)} at the median, "
        f"{format_ms(words.expected_ms)} is expected for the shape of these requests"
    )
    yield from _merged_line(words, support)
    yield from _cause_lines(row, words, support)
    if row["censored"]:
        were = verb(row["censored"], "was", "were")
        yield f"{row['censored']:,} of them {were} killed: their times are lower bounds"
    looked_into, n = row["searched"], row["n"]
    if looked_into < n:
        yield (
            f"the cause was looked for in {looked_into:,} of these requests, drawn at random; "
            "they count for all"
        )
    if len(workers) > 1:
        top, there = workers[0]
        many = round(there * n / looked_into)
        yield f"{len(workers)} workers are affected; {top} has {many:,} of these requests"
    yield _expectation_line(words, support)


def _merged_line(words: FindingWords, support: Support) -> Iterator[str]:
    """What of a merged time is prefill, where the quickest requests of that size tell."""
    if (prefill_ms := words.prefill_at_most_ms) is None:
        return
    took_ms = words.expected_ms + words.excess_ms
    n = support.inferred["quick_requests"]
    # a transfer that was over before anybody saw the prefill worker's token is in there, too
    rest = f"at least {format_ms(took_ms - prefill_ms)} a wait"
    if words.disaggregated:
        rest = (
            f"the other {format_ms(took_ms - prefill_ms)} a wait, or a KV transfer that came "
            "before the prefill worker's token"
        )
    yield (
        f"inferred: at most {format_ms(prefill_ms)} of it is prefill (the quickest "
        f"{format_share(QUICKEST)} of {plural(n, 'request')} of that size take so long), and {rest}"
    )


def _cause_lines(row: Row, words: FindingWords, support: Support) -> Iterator[str]:
    if words.recompute_ms is not None and (loads := support.lost_loads) is not None:
        yield (
            f"a load brings {tokens(loads.tokens, 'prompt')} at the median; to compute "
            f"them again takes about {format_ms(words.recompute_ms)}; the break-even is at about "
            f"{format_about(loads.same_time_tokens)} tokens, if a larger load takes no longer"
        )
    if words.is_shape:
        if words.uncached_tokens is not None and words.phase in ("prefill", "queue_or_prefill"):
            size = tokens(words.uncached_tokens, "uncached prompt")
            yield f"these requests have {size} (median)"
            if support.cached_share is not None:
                cached = format_share(support.cached_share)
                yield f"over all requests {cached} of a prompt came from the cache"
        elif words.output_tokens is not None and words.phase == "decode":
            yield f"these requests have {tokens(words.output_tokens, 'output')} (median)"
        if words.phase == "kv_transfer":
            yield from _transfer_lines(support)
        return
    if words.phase == "kv_transfer" and support.from_baseline:
        yield from _transfer_lines(support)
    total = row["total_excess_ms"]
    facts = support.facts.get((words.phase, words.cause))
    if facts is not None:
        yield from _tested(words.cause, facts)
    if words.cause == "prefill_interference":
        usual = support.usual_overlap.get(words.phase, 0.0)
        yield (
            f"{format_ms(row['cause_ms'])} of {format_ms(total)} lost in {words.phase} lie under "
            "other requests' prefills on the same worker, "
            f"beyond the {format_share(usual)} that ordinary requests overlap"
        )
        if not words.culprits:
            yield NOBODY_NAMED
        sampled = row["searched"] < row["n"]
        whom = f"the {row['searched']:,} looked into" if sampled else "them"
        for c in list(words.culprits)[:3]:
            size = f" ({tokens(c.input_tokens, 'prompt')})" if c.input_tokens else ""
            yield (
                f"{c.request_id}{size} stalled {c.victims:,} of {whom} for "
                f"{format_ms(c.stall_ms)} in all, a lower bound"
            )
    elif words.cause == "slow_worker" and words.worker is not None:
        slow = support.workers.get((words.phase, words.worker))
        if slow is not None:
            yield (
                f"{words.worker} takes {1 + slow['excess_share']:.2f} times the expected "
                f"{words.phase} at the median, its {plural(slow['peers'], 'peer')} "
                f"{1 + slow['peer_excess_share']:.2f} times (n = {slow['n']:,})"
            )
    elif words.cause == "kv_transfer_wait":
        of = f"{format_ms(row['cause_ms'])} of {format_ms(total)} lost in KV transfer are"
        if facts is not None and facts["wire_ms"] is not None:
            wire = format_ms(facts["wire_ms"])
            yield f"{of} waiting: bytes moved for {wire} at the median, the rest of the time not"
        else:
            yield (
                f"{of} waiting on the decode server, an upper bound: nothing tells when bytes moved"
            )
    elif words.cause == "double_prefill":
        yield (
            f"{format_ms(row['cause_ms'])} of {format_ms(total)} lost in prefill are a second "
            "prefill on the decode server, which waited for no KV cache or took none"
        )
    elif words.phase == "queue" and words.cause == "unknown":
        yield from _waiting_lines(support)
    elif words.cause == "client_concurrency":
        yield (
            "the time passed between the intended and the actual sending, before any server saw "
            "the request"
        )


def _transfer_lines(support: Support) -> Iterator[str]:
    """What a transfer costs by its size, where one fit tells, and what the baseline's cost."""
    if support.transfer_cost is None:
        return
    here = support.transfer_here or support.transfer_cost
    said = (
        f"a transfer takes {format_ms(1e3 * here[1])} for 1,000 prompt tokens, and "
        f"{format_ms(here[0])} whatever its size"
    )
    if support.from_baseline:
        if support.transfer_here is None:
            return
        fixed_ms, token_ms = support.transfer_cost
        said += (
            f" (median); in the baseline window {format_ms(1e3 * token_ms)} and "
            f"{format_ms(fixed_ms)}"
        )
    yield said


def _waiting_lines(support: Support) -> Iterator[str]:
    """What is known of a queue whose cause is open."""
    waits = support.waits("queue", "unknown")
    if waits is not None and waits.alloc_ms is not None:
        yield _alloc_line(waits.alloc_ms)
    if waits is not None and waits.kv_usage is not None and waits.full_share is not None:
        yield (
            f"the KV cache was {format_share(waits.kv_usage)} full on average and at its limit in "
            f"{format_share(waits.full_share)} of the samples"
        )
    if support.pressure:
        p = support.pressure[0]
        service = p["service_ratio"]
        at = "" if service is None else f"; service takes {service:.2f} times the expected"
        of = "" if len(support.pressure) == 1 else f" of {p['model']}, the busiest model,"
        yield (
            f"most arrivals{of} wait in {format_share(p['waiting_share'])} of {p['bins']:,} "
            f"slices of time, {plural(round(p['usual_arrivals']), 'arrival')} in a usual one{at}"
        )


def _alloc_line(alloc_ms: float) -> str:
    return (
        f"{format_ms(alloc_ms)} of their queue, at the median, is the wait for KV space on the "
        "decode server"
    )


def _slow_everywhere(f: Row) -> bool:
    """Whether workers were slow for a time, none of them more than its peers."""
    own, apart = f["own_share"], f["slow_share"]
    return own is not None and apart is not None and own > _SLOWER and apart < 0.5 * own


def _tested(cause: str, f: Row) -> Iterator[str]:
    """What the test for one cause saw, at the median over its requests."""
    if cause in ("unknown", "gpu_asleep") and is_idle(f):
        yield (
            f"{f['idle']:,} of the {f['looked_into']:,} looked into came after their worker had "
            f"been idle, for {format_ms(f['idle_ms'])} at the median; "
            f"{format_share(f['idle_usual'])} of the ordinary requests came after so long"
        )
    if cause in ("arrival_burst", "capacity") and f["recent"] is not None:
        usual = round(f["usual"])
        yield (
            f"{plural(round(f['recent']), 'request')} came in within "
            f"{format_ms(f['stretch_ns'] / 1e6)} before that; "
            f"{usual:,} {verb(usual, 'is', 'are')} usual"
        )
    elif cause == "unknown" and _slow_everywhere(f):
        yield (
            f"workers took {1 + f['own_share']:.1f} times as long as at other times, all alike: "
            "look at what they share (a deploy, power, the model's storage)"
        )
    elif cause == "router_imbalance" and f["arrivals"] is not None:
        yield (
            f"the worker got {plural(round(f['arrivals']), 'request')} where a peer got "
            f"{f['peer_arrivals']:.0f}; {f['busy']:.1f} were in service on it, "
            f"{f['peer_busy']:.1f} on the least loaded peer"
        )
    elif (
        cause == "kv_capacity"
        and f["alloc_ms"] is not None
        # samples are of the server that the prompt waited on, and its KV cache is not what was full
        and (f["full_share"] is None or f["is_decode_servers"])
    ):
        yield _alloc_line(f["alloc_ms"])
    elif cause == "kv_capacity" and f["full_share"] is not None:
        known = f["worker_preemptions"] is not None
        many = round(f["worker_preemptions"]) if known else 0
        preempted = f"; up to {plural(many, 'preemption')}" if known else ""
        yield (
            f"the KV cache was {format_share(f['kv_usage'] or 0.0)} full on average and at its "
            f"limit in {format_share(f['full_share'])} of the samples{preempted}"
        )
    elif cause == "cache_miss" and f["missed_tokens"] is not None:
        yield (
            f"{tokens(f['missed_tokens'], 'prompt')} of each were due from the cache "
            "(computed there before, or what requests of its route usually get), and were computed"
        )
    elif cause in ("gpu_throttled", "gpu_asleep") and f["clock_share"] is not None:
        yield f"its clock ran at {format_share(f['clock_share'])} of what such GPUs reach"
    elif cause == "kv_transfer_bandwidth":
        if f["wire_ms"] is not None:
            yield f"bytes moved for {format_ms(f['wire_ms'])} at the median: the time is the wire's"
        if f["transfer_share"] is not None:
            yield f"transfers ran at {format_share(f['transfer_share'])} of their usual bandwidth"
    elif cause == "preemption":
        if f["preempted"]:
            yield (
                f"{f['preempted']:,} of these requests were preempted, "
                f"{f['preemptions']:,.0f} preemptions in all"
            )
        elif f["worker_preemptions"]:
            yield f"their worker preempted {f['worker_preemptions']:.0f} requests meanwhile"
    elif cause == "slow_worker" and f["slow_share"] is not None:
        yield (
            f"at equal shape and load the worker took {format_share(f['slow_share'])} longer than "
            "its peers in the same stretch of time"
        )


def _expectation_line(words: FindingWords, support: Support) -> str:
    n, error = support.errors.get(words.phase, (0.0, 0.0))
    if words.phase in WAITS and not support.from_baseline:
        return (
            f"expected = the wait when nothing waits (the shortest of {n:,.0f} requests of this "
            "traffic)"
        )
    where = "the baseline window" if support.from_baseline else "this traffic"
    what = "median" if support.from_baseline else f"{support.tau * 100:.0f}th percentile"
    if words.phase in support.calm:
        where, what = "this traffic's quickest stretch of time", "median"
    return (
        f"expected = the {what} for the shape, fitted on {n:,.0f} requests of {where}; "
        f"half of them lie within {format_share(error)} of it"
    )
