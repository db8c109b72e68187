"""Which losses stand out from what this traffic does all the time: the relation ``outstanding``.

Some requests are always slower than their shape: they met a long prompt, or a busy slot. That is
no fault, and a limit that three in a hundred requests of healthy traffic miss must not make one
of it. A loss stands out if it is several times what the metric's phases should have taken, and
large beside the whole request; or if such losses gather, in a stretch of time or on a worker,
beyond chance and beyond what they are elsewhere (the losses themselves, or they and requests
within the limits that lose as much in that phase); or if they are a heap apart from what the other
requests lose, or prompts of another kind than usual explain them; or if the stream stood still for
a second and more, which no decode step does; or if they are more than in the window that the user
declared healthy. Owns that test and nothing of why.

The gathering is a scan: for every stretch of time (and every worker) the number of losses inside
against the share of requests there, by the binomial tail, times the number of parts or workers.
One long engine step slows many streams: k losses within two seconds on one worker count as
sqrt(k).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import exp, lgamma, log, log1p
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.analysis._arrow import Columns, arrow_table, columns_of, numpy_column
from tracekit.analysis._excess_rows import draw_excess, unit_of
from tracekit.analysis.fit import PHASES
from tracekit.analysis.rules import Rules

_SCHEMA: Final = pa.schema([("slow_id", pa.int64()), ("reason", pa.string())])

#: Stretches of time are made of twentieths of the window.
_PARTS: Final = 20
_CLUSTER_NS: Final = 2_000_000_000
#: What holds more of the requests is no place where losses gather: the rest is one where they lack.
_PLACE_MAX: Final = 0.75
#: Where losses of all phases gather, those of one phase do too if so many would be there by chance
#: this seldom.
_THERE: Final = 0.1

#: A heap of losses: what its smallest are, how far down nothing belongs to it, and how thin the
#: stretch below must be, as a share of the heap. A tail that falls off by a power of 1.5 has four
#: times as many there as beyond.
_LEAST: Final = 0.1
_NEARLY: Final = 0.8
_GAP: Final = 0.35
_GAP_SHARE: Final = 0.3
_HEAP_ROWS: Final = 5
_HEAP_SHARE: Final = 0.02

#: More losses than this are not counted exactly.
_EXACT_MAX: Final = 2_000

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Cells:
    """Where losses may gather: the cell of each loss (0 is none), and what the cells are.

    ``share`` of the requests per cell; cells of one ``world`` (a role of workers, or the time) hold
    all of them together. ``places`` are ranges of cells (first, after the last), ``tests`` how many
    independent ones there are.
    """

    cell: Ints
    share: Floats
    world: Ints
    places: list[tuple[int, int]]
    tests: int


def outstanding(
    con: duckdb.DuckDBPyConnection, rules: Rules, *, baseline: str | None = None
) -> pa.Table:
    """The relation ``outstanding``: ``slow_id`` of attributed winners, ``reason`` why they stay.

    ``reason``: strong, apart, frozen, baseline, time or worker. Winners without a row are ordinary,
    unless `add_long_culprits` finds theirs.
    ``baseline`` names the relation of the facts of the declared healthy window.
    """
    units = " ".join(f"when '{p}' then {unit_of(p, 'w.expected_ms')}" for p in PHASES)
    rows = con.sql(
        f"""
        select w.slow_id, w.metric, w.phase, w.excess_ms,
            -- a phase without an expectation should have taken all of its time, at the most
            w.expected_total_ms + w.unjudged_ms as expected_total_ms,
            w.excess_ms / case w.phase {units} end as far,
            -- where the whole is not known, the metric's own value stands for it
            coalesce(s.e2e_ms, s.value_ms) - w.excess_ms as rest_ms, s.arrival_unix_ns as at,
            case when w.phase in ('decode', 'kv_transfer') then coalesce(s.worker, '')
                else coalesce(s.prefill_worker, s.worker, '') end as worker
        from winners as w
        join slow_requests as s on w.slow_id = s.slow_id
        where w.candidate = 'attributed'
        order by w.slow_id
        """
    ).to_arrow_table()
    ids = numpy_column(rows["slow_id"]).astype(np.int64)
    excess = numpy_column(rows["excess_ms"]).astype(np.float64)
    expected = np.nan_to_num(numpy_column(rows["expected_total_ms"]).astype(np.float64))
    rest = np.nan_to_num(numpy_column(rows["rest_ms"]).astype(np.float64))
    strong = excess >= rules.strong_factor * np.maximum(expected, rules.min_excess_ms)
    strong &= excess >= rules.strong_share * rest
    reason = np.where(strong, "strong", "").astype(object)
    if len(ids) and not strong.all():
        traffic = _Traffic.of(con)
        at = np.nan_to_num(numpy_column(rows["at"]).astype(np.float64), nan=-1.0).astype(np.int64)
        texts = {
            k: np.asarray(rows[k].to_pylist(), dtype=object) for k in ("metric", "phase", "worker")
        }
        _, codes = np.unique(texts["worker"].astype(str), return_inverse=True)
        kinds = [
            (texts["metric"] == metric) & (texts["phase"] == phase)
            for metric, phase in sorted(set(zip(texts["metric"], texts["phase"], strict=True)))
        ]

        def scan(why: str, group: Bools, taken: Bools | None) -> tuple[Ints, _Cells, Bools]:
            left = np.flatnonzero(group & (reason == ""))
            of = {k: texts[k][left] for k in ("phase", "worker")} | {"code": codes[left]}
            cells = traffic.cells(why, at[left], of["phase"], of["worker"])
            weights = _weights(at[left], of["code"])
            return left, cells, _gathered(cells, weights, taken, rules)

        # all losses together first: what goes wrong in several phases is seen sooner so
        taken: dict[tuple[str, int], Bools] = {}
        for why in ("time", "worker"):
            left, cells, found = scan(why, np.ones(len(ids), dtype=bool), None)
            for i, kind in enumerate(kinds):
                mine = kind[left]
                # what happens there to other phases is no fault of this one
                if mine.any() and _is_there(cells, mine, found, rules):
                    reason[left[mine & found[cells.cell]]] = why
                    taken[why, i] = found
        for i, kind in enumerate(kinds):
            for why in ("time", "worker"):
                left, cells, found = scan(why, kind, taken.get((why, i)))
                reason[left[found[cells.cell]]] = why
        far = numpy_column(rows["far"]).astype(np.float64)
        # those within the limits that lose as much tell, too, where a phase is at fault
        for kind in kinds:
            for why in ("time", "worker"):
                left = np.flatnonzero(kind & (reason == ""))
                if not len(left):
                    break
                phase = str(texts["phase"][left[0]])
                like = traffic.like(phase, _NEARLY * float(np.quantile(far[left], _LEAST)))
                cells = traffic.cells(why, like.at, like.phase, like.worker)
                weights = _episodes(like)
                found = _gathered(cells, weights, None, rules)
                mine = traffic.cells(why, at[left], texts["phase"][left], texts["worker"][left])
                reason[left[found[mine.cell]]] = why
        ordinary = draw_excess(con)
        healthy = draw_excess(con, baseline) if baseline else {}
        for kind in kinds:
            left = np.flatnonzero(kind & (reason == ""))
            if not len(left):
                continue
            phase = str(texts["phase"][left[0]])
            reason[left[_apart(far[left], ordinary[phase])]] = "apart"
            if phase in healthy:
                more = _more_than(far[left], ordinary[phase], healthy[phase], rules)
                reason[left[more]] = "baseline"
        left = reason == ""
        if (left & (texts["phase"] == "decode")).any():
            reason[left & np.isin(ids, _frozen(con, rules))] = "frozen"
    keep = reason != ""
    return arrow_table({"slow_id": ids[keep], "reason": list(reason[keep])}, _SCHEMA)


def prompt_kinds(con: duckdb.DuckDBPyConnection, rules: Rules) -> pa.Table:
    """The one-row relation ``prompt_kinds``: from what cost on a prompt is of the long kind.

    ``long_ms`` [ms] is the upper edge of the widest gap between the costs of prefills, NULL where
    they are of one kind: sizes that thin out leave no gap before the last few.
    """
    values = con.sql(
        """
        select prefill_cost_ms as ms from drawn_costs where prefill_cost_ms > 0
        """
    ).to_arrow_table()
    costs = np.sort(numpy_column(values["ms"]).astype(np.float64))
    upper = costs[len(costs) // 2 : max(len(costs) - _HEAP_ROWS + 1, 0)]
    ratios = upper[1:] / upper[:-1]
    long_ms = None
    if len(ratios) and ratios.max() >= rules.kind_gap:
        long_ms = float(upper[1:][ratios.argmax()])
    return arrow_table({"long_ms": [long_ms]}, pa.schema([("long_ms", pa.float64())]))


def add_long_culprits(con: duckdb.DuckDBPyConnection, rules: Rules) -> None:
    """Add to ``outstanding``, reason ``culprit``, what prompts of another kind explain."""
    con.execute(
        f"""
        insert into outstanding
        select w.slow_id, 'culprit'
        from winners as w
        join suspect_requests as s
            on w.request_key = s.request_key and w.phase = s.phase and s.is_control = 0
        join long_culprits as l on s.suspect_id = l.suspect_id
        where w.candidate = 'attributed' and l.long_ms >= {rules.cause_share} * w.excess_ms
            and w.slow_id not in (select slow_id from outstanding)
        """
    )


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


def _apart(losses: Floats, all_excess: Floats) -> Bools:
    """Which losses lie behind a gap: hardly a request loses half as much as they do.

    What is ordinary thins out towards its tail; what happens to some requests only (a missed
    prefix, a preemption) makes a heap of its own.
    """
    least = float(np.quantile(losses, _LEAST))
    heap = int((all_excess >= _NEARLY * least).sum())
    gap = int(((all_excess >= least * _GAP) & (all_excess < _NEARLY * least)).sum())
    if heap < max(_HEAP_ROWS, _HEAP_SHARE * len(all_excess)) or gap > _GAP_SHARE * heap:
        return np.zeros(len(losses), dtype=bool)
    return losses >= _NEARLY * least


def _more_than(losses: Floats, window: Floats, healthy: Floats, rules: Rules) -> Bools:
    """Which losses of this size are more frequent than they were when all was well."""
    least = float(np.quantile(losses, _LEAST))
    share = (int((healthy >= least).sum()) + 1) / (len(healthy) + 1)
    k, n = int((window >= least).sum()), len(window)
    more = k >= rules.denser * share * n > 0 and _binomial_tail(n, k, share) < rules.chance
    return np.full(len(losses), more)


@dataclass(frozen=True)
class _Like:
    """Requests that lost as much in one phase, slow or not: when, and on which worker.

    ``lasts_ns`` [ns] is how long the phase took them at the median.
    """

    at: Ints
    phase: npt.NDArray[np.object_]
    worker: npt.NDArray[np.object_]
    code: Ints
    lasts_ns: int


class _Traffic:
    """Where and when the completed requests of the window were, and what prompts they brought."""

    def __init__(
        self,
        at: Ints,
        names: dict[str, list[str]],
        tokens: Floats,
        far: Columns | None = None,
    ) -> None:
        self._at = at
        self._tokens = tokens
        self._far = far
        # role → worker → its share of the requests
        self._shares = {
            role: {name: n / len(found) for name, n in sorted(Counter(found).items())}
            for role, found in names.items()
        }

    @classmethod
    def of(cls, con: duckdb.DuckDBPyConnection) -> _Traffic:
        drawn = con.sql(
            """
            select arrival_unix_ns as at, coalesce(worker, '') as worker,
                coalesce(prefill_worker, worker, '') as prefill_worker,
                coalesce(due_uncached_tokens, 0.0) as tokens
            from drawn_facts where completed + censored > 0
            """
        ).to_arrow_table()
        at = np.nan_to_num(numpy_column(drawn["at"]).astype(np.float64), nan=-1.0)
        names = {k: drawn[k].to_pylist() for k in ("worker", "prefill_worker")}
        columns = ", ".join(
            f"({p}_ms - {p}_expected_ms) / {unit_of(p, f'{p}_expected_ms')} as {p}, {p}_ms"
            for p in PHASES
        )
        far = columns_of(
            con.sql(
                f"""
                select {columns}, coalesce(arrival_unix_ns, -1) as at,
                    coalesce(worker, '') as worker,
                    coalesce(prefill_worker, worker, '') as prefill_worker
                from drawn_costs where completed = 1
                """
            )
        )
        return cls(at.astype(np.int64), names, numpy_column(drawn["tokens"]), far)

    def like(self, phase: str, least: float) -> _Like:
        """The requests that went at least so far beyond what ``phase`` should take."""
        assert self._far is not None
        mine = self._far[phase].astype(np.float64) >= least
        at = self._far["at"][mine].astype(np.int64)
        name = "worker" if phase in ("decode", "kv_transfer") else "prefill_worker"
        worker = self._far[name][mine]
        _, code = np.unique(worker.astype(str), return_inverse=True)
        lasts_ms = np.median(self._far[f"{phase}_ms"][mine]) if len(at) else 0.0
        same = np.full(len(at), phase, dtype=object)
        return _Like(at, same, worker, code, int(lasts_ms * 1e6))

    def cells(
        self,
        why: str,
        at: Ints,
        phase: npt.NDArray[np.object_],
        worker: npt.NDArray[np.object_],
    ) -> _Cells:
        """``why``: time or worker. The others are of the losses."""
        return self._parts(at) if why == "time" else self._workers(phase, worker)

    def _workers(self, phase: npt.NDArray[np.object_], worker: npt.NDArray[np.object_]) -> _Cells:
        """Workers, each in its role."""
        decodes = np.isin(phase, ("decode", "kv_transfer"))
        cell = np.zeros(len(decodes), dtype=np.int64)
        share, world = [0.0], [-1]
        for role, (key, here) in enumerate((("worker", decodes), ("prefill_worker", ~decodes))):
            shares = self._shares[key]
            if len(shares) < 2:
                continue
            place = {name: len(share) + i for i, name in enumerate(shares)}
            cell[here] = [place.get(name, 0) for name in worker[here]]
            share += list(shares.values())
            world += [role] * len(shares)
        places = [(i, i + 1) for i in range(1, len(share))]
        return _Cells(cell, np.asarray(share), np.asarray(world), places, len(places))

    def _parts(self, at: Ints) -> _Cells:
        """Stretches of time, of parts of equal length."""
        known = self._at[self._at >= 0]
        world = np.zeros(_PARTS + 1, dtype=np.int64)
        world[0] = -1
        if len(known) < _PARTS:
            none = np.zeros(len(at), dtype=np.int64)
            return _Cells(none, np.zeros(_PARTS + 1), world, [], 0)
        edges = np.linspace(int(known.min()), int(known.max()) + 1, _PARTS + 1)
        cell = np.clip(np.searchsorted(edges, at, side="right"), 0, _PARTS)
        # in a busy time ordinary losses are denser too: by requests, or by prompt tokens
        place = np.clip(np.searchsorted(edges, known, side="right") - 1, 0, _PARTS - 1)
        requests = np.bincount(place, minlength=_PARTS) / len(known)
        tokens = np.bincount(place, self._tokens[self._at >= 0], minlength=_PARTS)
        busy = np.maximum(requests, tokens / max(float(tokens.sum()), 1.0))
        share = np.concatenate([[0.0], busy / busy.sum()])
        places = [
            (i + 1, j + 1)
            for i in range(_PARTS)
            for j in range(i + 1, _PARTS + 1)
            if j - i < _PARTS
        ]
        # stretches overlap: there are hardly more independent ones than parts
        return _Cells(cell, share, world, places, _PARTS)


def _gathered(cells: _Cells, weights: Floats, taken: Bools | None, rules: Rules) -> Bools:
    """In which cells losses gather; ``taken`` are cells whose losses have been found already.

    What was found leaves, with its share of the requests: a second burst is looked for in the rest
    of the time, and that the rest holds all other losses is no burst.
    """
    total = np.bincount(cells.cell, weights, minlength=len(cells.share))
    total[0] = 0.0
    found = np.zeros(len(total), dtype=bool)
    gone = found.copy() if taken is None else taken.copy()
    while True:
        left, share = np.where(gone, 0.0, total), np.where(gone, 0.0, cells.share)
        sums, shares = (np.concatenate([[0.0], np.cumsum(v)]).tolist() for v in (left, share))
        worlds = {
            w: (float(left[cells.world == w].sum()), float(share[cells.world == w].sum()))
            for w in set(cells.world[1:].tolist())
        }
        chances = []
        for low, high in cells.places:
            n, all_share = worlds[int(cells.world[low])]
            part = (shares[high] - shares[low]) / all_share if all_share > 0 else 0.0
            chances.append(_chance(int(n), int(sums[high] - sums[low]), part, rules))
        best = int(np.argmin(chances)) if chances else -1
        if best < 0 or chances[best] * cells.tests >= rules.chance:
            return found
        low, high = cells.places[best]
        found[low:high] |= ~gone[low:high]
        gone[low:high] = True


def _is_there(cells: _Cells, mine: Bools, found: Bools, rules: Rules) -> bool:
    """Whether these losses, too, are denser in the cells that were found for all of them."""
    inside = found[cells.cell]
    where = cells.world[cells.cell[mine & inside]]
    if not len(where):
        return False
    share = float(cells.share[found & (cells.world == where[0])].sum())
    return _chance(int(mine.sum()), int((mine & inside).sum()), share, rules) < _THERE


def _episodes(like: _Like) -> Floats:
    """What each of them counts: those on one worker as long as one lasts, one together."""
    span = max(_CLUSTER_NS, like.lasts_ns)
    each = like.at // span * (int(like.code.max(initial=0)) + 1) + like.code
    keys = np.where(like.at >= 0, each, -1 - np.arange(len(like.at)))
    _, group, count = np.unique(keys, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / count[group])


def _weights(at: Ints, worker: Ints) -> Floats:
    """What each loss counts: those within two seconds on one worker sqrt(k) together."""
    # without a clock every loss counts by itself
    each = at // _CLUSTER_NS * (int(worker.max(initial=0)) + 1) + worker
    keys = np.where(at >= 0, each, -1 - np.arange(len(at)))
    _, group, count = np.unique(keys, return_inverse=True, return_counts=True)
    return np.asarray(count[group] ** -0.5)


def _chance(n: int, k: int, share: float, rules: Rules) -> float:
    """How likely k of n losses fall into a place of this share; 1 if they are not much denser."""
    if not 0 < share <= _PLACE_MAX or k <= n * share:
        return 1.0
    outside = (n - k + 0.5) / (1 - share)
    if (k / share) < rules.denser * outside:
        return 1.0
    return _binomial_tail(n, k, share)


def _binomial_tail(n: int, k: int, p: float) -> float:
    """P(X >= k) of a binomial; for many, Chernoff's bound of it."""
    if n > _EXACT_MAX and 0 < p < k / n < 1:
        q = k / n
        return exp(-n * (q * log(q / p) + (1 - q) * log((1 - q) / (1 - p))))
    terms = (
        lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) + i * log(p) + (n - i) * log1p(-p)
        for i in range(k, n + 1)
    )
    return min(sum(exp(t) for t in terms), 1.0)
