"""Which losses stand out from what this traffic does all the time: the relation ``outstanding``.

Some requests are always slower than their shape: they met a long prompt, or a busy slot. That is
no fault, and a limit that three in a hundred requests of healthy traffic miss must not make one
of it. A loss stands out if it is several times what the metric's phases should have taken, and
large beside the whole request; or if such losses gather on a worker, or in a stretch of time more
than the load of that time explains (the losses themselves, or they and requests within the limits
that lose as much in that phase); or if they gather where the load itself was other than usual; or
if they are a heap apart from what the other requests lose; or if the stream stood still for a
second and more, which no decode step does; or if they are more than in the window that the user
declared healthy. Where most losses of a kind stand out by themselves, those as large do, too.
Owns that test and nothing of why; `told_by_cause` adds those whose cause tells.

What the load of a time explains: losses come in waves without any fault, since a busy moment slows
all who are there. So requests are held against others under like pressure (`offered`), whenever
those came: the share of a stretch is what its requests would lose if pressure were all.
"""

from __future__ import annotations

from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from tracekit.analysis._arrow import arrow_table, numpy_column
from tracekit.analysis._excess_rows import draw_excess, unit_of
from tracekit.analysis.fit import PHASES
from tracekit.analysis.gathering import (
    Bools,
    Cells,
    Floats,
    Ints,
    binomial_tail,
    episodes,
    is_there,
    weights_of,
)
from tracekit.analysis.offered import DECODES, Texts, numbered
from tracekit.analysis.places import LEAST, Losses, Places
from tracekit.analysis.rules import Rules

_SCHEMA: Final = pa.schema([("slow_id", pa.int64()), ("reason", pa.string())])

#: A heap of losses: how far down nothing belongs to it, and how thin the stretch below must be, as
#: a share of the heap. A tail that falls off by a power of 1.5 has four times as many there as
#: beyond.
_NEARLY: Final = 0.8
_GAP: Final = 0.35
_GAP_SHARE: Final = 0.3
_HEAP_ROWS: Final = 5
_HEAP_SHARE: Final = 0.02
#: What happens to more of the requests is nothing apart.
_HEAP_MAX: Final = 0.4
#: Where most losses of a kind stand out by themselves, so does what is no smaller than this part of
#: their least.
_AS_MUCH: Final = 0.5


def outstanding(
    con: duckdb.DuckDBPyConnection,
    rules: Rules,
    *,
    baseline: str | None = None,
    drawn: float = 1.0,
) -> pa.Table:
    """The relation ``outstanding``: ``slow_id`` of attributed winners, ``reason`` why they stay.

    ``reason``: strong, time, worker, load, apart, frozen, baseline or most. Winners without a row
    are ordinary, unless their cause tells (`told_by_cause`).
    ``baseline`` names the relation of the facts of the declared healthy window; ``drawn`` [1] is
    the part of all requests that ``drawn_costs`` holds.
    """
    units = " ".join(f"when '{p}' then {unit_of(p, 'w.expected_ms')}" for p in PHASES)
    rows = con.sql(
        f"""
        select w.slow_id, w.request_key, w.metric, w.phase, w.excess_ms,
            -- a phase without an expectation should have taken all of its time, at the most
            w.expected_total_ms + w.unjudged_ms as expected_total_ms,
            w.excess_ms / case w.phase {units} end as far,
            -- where the whole is not known, the metric's own value stands for it
            coalesce(s.e2e_ms, s.value_ms) - w.excess_ms as rest_ms, s.arrival_unix_ns as at,
            case when w.phase in {DECODES} then coalesce(s.worker, '')
                else coalesce(s.prefill_worker, s.worker, '') end as worker
        from winners as w
        join slow_requests as s on w.slow_id = s.slow_id
        where w.candidate = 'attributed'
        order by w.slow_id
        """
    ).to_arrow_table()
    ids = numpy_column(rows["slow_id"]).astype(np.int64)
    excess, expected, rest, far = (
        numpy_column(rows[k]).astype(np.float64)
        for k in ("excess_ms", "expected_total_ms", "rest_ms", "far")
    )
    least = rules.strong_factor * np.maximum(np.nan_to_num(expected), rules.min_excess_ms)
    strong = (excess >= least) & (excess >= rules.strong_share * np.nan_to_num(rest))
    reason = np.where(strong, "strong", "").astype(object)
    kinds: list[Bools] = []
    if len(ids) and not strong.all():
        at = np.nan_to_num(numpy_column(rows["at"]).astype(np.float64), nan=-1.0).astype(np.int64)
        key, metric, phase, worker = (
            np.asarray(rows[k].to_pylist(), dtype=object)
            for k in ("request_key", "metric", "phase", "worker")
        )
        _, code = numbered(worker)
        places = Places.of(con, rules, drawn)
        losses = Losses(at, phase, worker, code, *places.pressed(con, key, phase))
        kinds = [
            (metric == m) & (phase == p) for m, p in sorted(set(zip(metric, phase, strict=True)))
        ]
        _gather(places, losses, kinds, far, reason)
        ordinary = draw_excess(con)
        healthy = draw_excess(con, baseline) if baseline else {}
        for kind in kinds:
            left = np.flatnonzero(kind & (reason == ""))
            if not len(left):
                continue
            name = str(phase[left[0]])
            heap, from_far = _apart(far[left], ordinary[name])
            if heap.any() and not places.are_pressed(name, from_far):
                reason[left[heap]] = "apart"
            if name in healthy:
                more = _more_than(far[left], ordinary[name], healthy[name], rules)
                reason[left[more]] = "baseline"
        left = reason == ""
        if (left & (phase == "decode")).any():
            reason[left & np.isin(ids, _frozen(con, rules))] = "frozen"
    for kind in kinds:
        alone = kind & np.isin(reason, ("strong", "apart"))
        if alone.sum() >= max(rules.min_told_rows, rules.cause_share * kind.sum()):
            # as much is as much, though it stands out less from a longer request
            much = np.minimum(least, _AS_MUCH * np.quantile(excess[alone], LEAST))
            reason[kind & (excess >= much) & (reason == "")] = "most"
    keep = reason != ""
    return arrow_table({"slow_id": ids[keep], "reason": list(reason[keep])}, _SCHEMA)


def _gather(places: Places, losses: Losses, kinds: list[Bools], far: Floats, reason: Texts) -> None:
    """Set ``reason`` of the losses that gather; a kind is those of one metric and phase."""
    denser = places.rules.denser

    def scan(why: str, group: Bools, taken: Bools | None) -> tuple[Ints, Cells, Bools]:
        left = np.flatnonzero(group & (reason == ""))
        of = losses.of(left)
        weights = weights_of(of.at, of.code)
        cells = places.cells(why, of, weights)
        return left, cells, places.found(why, cells, weights, taken)

    # all losses together first: what goes wrong in several phases is seen sooner so
    taken: dict[tuple[str, int], Bools] = {}
    for why in ("time", "worker"):
        left, cells, found = scan(why, np.ones(len(reason), dtype=bool), None)
        for i, kind in enumerate(kinds):
            mine = kind[left]
            # what happens there to other phases is no fault of this one
            if mine.any() and is_there(cells, mine, found, denser=denser):
                reason[left[mine & found[cells.cell]]] = why
                taken[why, i] = found
    for i, kind in enumerate(kinds):
        for why in ("time", "worker"):
            left, cells, found = scan(why, kind, taken.get((why, i)))
            reason[left[found[cells.cell]]] = why
        left = np.flatnonzero(kind & (reason == ""))
        of = losses.of(left)
        reason[left[places.in_surge(of, of, weights_of(of.at, of.code))]] = "load"
    # those within the limits that lose as much tell, too, where a phase is at fault
    for kind in kinds:
        for why in ("time", "worker", "load"):
            left = np.flatnonzero(kind & (reason == ""))
            if not len(left):
                break
            of = losses.of(left)
            least = _NEARLY * float(np.quantile(far[left], LEAST))
            like, lasts_ns = places.like(str(of.phase[0]), least)
            weights = episodes(like.at, like.code, lasts_ns)
            if why == "load":
                reason[left[places.in_surge(of, like, weights)]] = why
                continue
            found = places.found(why, places.cells(why, like, weights), weights, None)
            theirs = places.cells(why, of, np.ones(len(left))).cell
            reason[left[found[theirs]]] = why


def _frozen(con: duckdb.DuckDBPyConnection, rules: Rules) -> Ints:
    """Losses of decode that lie, mostly, in a few gaps of a second and more of the token stream."""
    found = con.sql(
        f"""
        select w.slow_id
        from winners as w
        join (
            select request_key, sum(excess_ms) as frozen_ms
            from token_gaps
            where is_stall = 1 and excess_ms >= {rules.freeze_ms}
            group by request_key
        ) as g on w.request_key = g.request_key
        where w.candidate = 'attributed' and w.phase = 'decode'
            and g.frozen_ms >= {rules.cause_share} * w.excess_ms
        """
    ).to_arrow_table()
    return np.asarray(numpy_column(found["slow_id"]).astype(np.int64))


def _apart(losses: Floats, all_excess: Floats) -> tuple[Bools, float]:
    """Which losses lie behind a gap (hardly a request loses half as much), and what the least is.

    What is ordinary thins out towards its tail; what happens to some requests only (a missed
    prefix, a preemption) makes a heap of its own.
    """
    least = float(np.quantile(losses, LEAST))
    heap = int((all_excess >= _NEARLY * least).sum())
    gap = int(((all_excess >= least * _GAP) & (all_excess < _NEARLY * least)).sum())
    few, many = max(_HEAP_ROWS, _HEAP_SHARE * len(all_excess)), _HEAP_MAX * len(all_excess)
    if not few <= heap <= max(few, many) or gap > _GAP_SHARE * heap:
        return np.zeros(len(losses), dtype=bool), _NEARLY * least
    return losses >= _NEARLY * least, _NEARLY * least


def _more_than(losses: Floats, window: Floats, healthy: Floats, rules: Rules) -> Bools:
    """Which losses of this size are more frequent than they were when all was well."""
    least = float(np.quantile(losses, LEAST))
    share = (int((healthy >= least).sum()) + 1) / (len(healthy) + 1)
    k, n = int((window >= least).sum()), len(window)
    more = k >= rules.denser * share * n > 0 and binomial_tail(n, k, share) < rules.chance
    return np.full(len(losses), more)
