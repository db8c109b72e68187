"""The load that the traffic itself brings, and how hard it pressed on each request.

Requests that meet others are slower than their shape: that is no fault, and it comes in waves,
because a busy moment slows everybody who is there. What would have been met can be told from the
arrivals alone, had everybody been served as long as expected: the prefills and the running streams
and their contexts beside a decode, the prompts before and during a prefill. Nothing of it is
measured service, so no fault of an engine hides in it. How much each of it costs (``pressure``) is
fitted to what the requests lost, with no term below zero.

Owns the load and its price per request; what does not stand out against it is `outstanding`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt

from tracekit.analysis import sqlfiles
from tracekit.analysis._arrow import Columns, columns_of
from tracekit.analysis._excess_rows import unit_of
from tracekit.analysis.fit import PHASES

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Texts = npt.NDArray[np.object_]

#: Phases that the worker that decodes serves; the others are those of the one that prefills.
DECODES: Final = ("decode", "kv_transfer")
#: Phases that no other request's load reaches.
_ALONE: Final = ("client_wait", "network", "route")
#: Requests below which no price of load is fitted, and the losses above which none counts more.
_FIT_ROWS: Final = 30
_FIT_MOST: Final = 0.99
#: A worker with more work than this share of its time is no single engine: nothing is behind it.
_BUSY_MAX: Final = 0.9
#: The lower half by pressure is one stratum, then half of the rest each, while so many are left.
_STRATUM_ROWS: Final = 12
_TEXTS: Final = ("request_key", "worker", "prefill_worker")
_NEAR_NS: Final = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Traffic:
    """Drawn requests (all columns alike long), NULL as NaN, '' or -1, and ``part`` of all [1].

    ``at`` [unix ns] of arrival; ``prefill_ms``, ``decode_ms`` [ms] what service should take;
    ``context`` [tokens] that a stream holds half-way; ``lost`` per phase: how far beyond its
    expectation, as `unit_of` (NaN where it did not end well); ``took_ms`` per phase; ``missed``
    where a prompt found less in the cache than was due, of those with ``hit_known``.
    """

    key: Texts
    at: Ints
    worker: Texts
    prefill_worker: Texts
    prefill_ms: Floats
    decode_ms: Floats
    context: Floats
    missed: npt.NDArray[np.bool_]
    hit_known: npt.NDArray[np.bool_]
    lost: dict[str, Floats]
    took_ms: dict[str, Floats]
    part: float

    def server(self, phase: str) -> Texts:
        """The workers that serve ``phase``."""
        return self.worker if phase in DECODES else self.prefill_worker

    def size_ms(self, phase: str) -> Floats:
        """[ms] what the worker that serves ``phase`` should take for them."""
        return self.decode_ms if phase in DECODES else self.prefill_ms

    def loaded(self) -> Traffic:
        """Those with a clock, by time: what load is counted from."""
        order = np.argsort(self.at, kind="stable")
        return self._of(order[self.at[order] >= 0])

    def _of(self, rows: Ints) -> Traffic:
        return Traffic(
            key=self.key[rows],
            at=self.at[rows],
            worker=self.worker[rows],
            prefill_worker=self.prefill_worker[rows],
            prefill_ms=self.prefill_ms[rows],
            decode_ms=self.decode_ms[rows],
            context=self.context[rows],
            missed=self.missed[rows],
            hit_known=self.hit_known[rows],
            lost={p: v[rows] for p, v in self.lost.items()},
            took_ms={p: v[rows] for p, v in self.took_ms.items()},
            part=self.part,
        )


def read_traffic(con: duckdb.DuckDBPyConnection, part: float) -> Traffic:
    """The drawn requests (``part`` [1] of all of them), once ``drawn_costs`` exists."""
    return _traffic(columns_of(con.sql(_query("drawn_costs", "drawn_facts"))), part)


def read_slow(con: duckdb.DuckDBPyConnection) -> Traffic:
    """The slow requests that lost time in one phase, drawn or not, once ``winners`` exists."""
    facts = "(select * from temp.request_facts where request_key in (select request_key from slow))"
    costs = sqlfiles.load("attribution", "request_costs").body
    # the same SELECT over a few rows: a name in WITH hides the relation of that name
    query = f"""
        with slow as (select distinct request_key from winners where candidate = 'attributed'),
        request_facts as not materialized {facts},
        costs as ({costs})
        {_query("costs", "request_facts")}
        """
    return _traffic(columns_of(con.sql(query)), 1.0)


def _query(costs: str, facts: str) -> str:
    lost = ", ".join(
        f"case when c.completed = 1 then (c.{p}_ms - c.{p}_expected_ms) / "
        f"{unit_of(p, f'c.{p}_expected_ms')} end as {p}, c.{p}_ms"
        for p in PHASES
    )
    return f"""
        select c.request_key, coalesce(c.arrival_unix_ns, -1) as at,
            coalesce(c.worker, '') as worker,
            coalesce(c.prefill_worker, c.worker, '') as prefill_worker,
            coalesce(c.prefill_cost_ms, c.queue_or_prefill_expected_ms, 0.0) as cost_ms,
            coalesce(c.decode_expected_ms, 0.0) as decoding_ms,
            coalesce(f.input_tokens, 0.0) + coalesce(f.steps, 0.0) / 2.0 as context,
            -- more than what differs from prompt to prompt
            case when f.uncached_tokens > 1.1 * f.due_uncached_tokens + 64.0 then 1 else 0 end
                as missed,
            c.cached_known as hit_known,
            {lost}
        from {costs} as c
        join {facts} as f on c.request_key = f.request_key
        """


def _traffic(rows: Columns, part: float) -> Traffic:
    number = {name: rows[name].astype(np.float64) for name in rows if name not in _TEXTS}
    text = {name: rows[name].astype(object) for name in _TEXTS}
    return Traffic(
        key=text["request_key"],
        at=rows["at"].astype(np.int64),
        worker=text["worker"],
        prefill_worker=text["prefill_worker"],
        prefill_ms=number["cost_ms"],
        decode_ms=number["decoding_ms"],
        context=number["context"],
        missed=(number["missed"] == 1) & (number["hit_known"] == 1),
        hit_known=number["hit_known"] == 1,
        lost={p: number[p] for p in PHASES},
        took_ms={p: number[f"{p}_ms"] for p in PHASES},
        part=part,
    )


class Pressure:
    """What the load of ``sources`` (with a clock, by time) costs a request, phase by phase."""

    def __init__(self, sources: Traffic) -> None:
        self._prices: dict[str, Floats] = {}
        #: phase → the strata of like pressure: their upper edges
        self._edges: dict[str, Floats] = {}
        self._met = _Met(sources)
        met = self._met.by(sources)
        #: phase → stratum of each source
        self.strata: dict[str, Ints] = {}
        for phase in PHASES:
            columns = met[_role(phase)]
            self._prices[phase] = _price(phase, columns, sources.lost[phase])
            pressure = columns @ self._prices[phase]
            self._edges[phase] = _edges(pressure)
            self.strata[phase] = self._stratum(phase, pressure)

    def strata_of(self, others: Traffic) -> dict[str, Ints]:
        """Phase → in which stratum of pressure these requests are."""
        met = self._met.by(others)
        return {p: self._stratum(p, met[_role(p)] @ self._prices[p]) for p in PHASES}

    def _stratum(self, phase: str, pressure: Floats) -> Ints:
        return np.searchsorted(self._edges[phase], pressure, side="left").astype(np.int64)


def _role(phase: str) -> str:
    return "decode" if phase in DECODES else "prefill"


def _price(phase: str, met: Floats, lost: Floats) -> Floats:
    """What each kind of load adds to the loss: nonnegative least squares, large losses clipped."""
    known = ~np.isnan(lost)
    if phase in _ALONE or known.sum() < _FIT_ROWS:
        return np.zeros(met.shape[1])
    y = lost[known]
    y = np.clip(y, 0.0, np.quantile(y, _FIT_MOST))
    scale = np.maximum(met[known].std(axis=0), 1e-9)
    return np.asarray(_nonnegative(met[known] / scale, y) / scale)


def _nonnegative(columns: Floats, y: Floats) -> Floats:
    """Slopes of the least squares fit that has no negative one: that of the best subset."""
    centred, y = columns - columns.mean(axis=0), y - y.mean()
    best, most = np.zeros(columns.shape[1]), 0.0
    for k in range(1, columns.shape[1] + 1):
        for subset in map(list, combinations(range(columns.shape[1]), k)):
            slopes, *_ = np.linalg.lstsq(centred[:, subset], y, rcond=None)
            # what the fit explains of the sum of squares
            gain = float(slopes @ (centred[:, subset].T @ y))
            if (slopes >= 0).all() and gain > most:
                best, most = np.zeros(columns.shape[1]), gain
                best[subset] = slopes
    return best


def _edges(pressure: Floats) -> Floats:
    low, edges = 0.5, [0.5]
    while (1 - low) / 2 * len(pressure) >= _STRATUM_ROWS:
        low = 1 - (1 - low) / 2
        edges.append(low)
    return np.quantile(pressure, edges) if len(pressure) else np.zeros(1)


class _Met:
    """What requests meet on their workers. ``by`` gives columns per role [requests x 3]."""

    def __init__(self, sources: Traffic) -> None:
        at_ms = _ms(sources.at)
        end_ms = at_ms + sources.prefill_ms + np.maximum(sources.decode_ms, 1.0)
        self._streams = {
            w: _Streams(at_ms[m] + sources.prefill_ms[m], end_ms[m], sources.context[m])
            for w, m in _each(sources.worker)
        }
        decoders = set(self._streams)
        self._prompts = {}
        for w, m in _each(sources.prefill_worker):
            last_ms = end_ms if w in decoders else at_ms + sources.prefill_ms
            cost_ms = sources.prefill_ms[m] / sources.part
            self._prompts[w] = _Prompts(at_ms[m], cost_ms, last_ms[m])

    def by(self, of: Traffic) -> dict[str, Floats]:
        """For phases of the decoding and of the prefilling worker, what each of these met."""
        at_ms = _ms(of.at)
        decode, prefill = np.zeros((len(at_ms), 3)), np.zeros((len(at_ms), 3))
        for w, m in _each(of.worker):
            first = at_ms[m] + of.prefill_ms[m]
            lasts = np.maximum(of.decode_ms[m], 1.0)
            if w in self._prompts:
                decode[m, 0] = self._prompts[w].between(first, first + lasts) / lasts
            if w in self._streams:
                decode[m, 1:] = self._streams[w].beside(first, lasts)
        for w, m in _each(of.prefill_worker):
            if w in self._prompts:
                prefill[m] = self._prompts[w].before(at_ms[m], of.prefill_ms[m])
        return {"decode": decode, "prefill": prefill}


class _Prompts:
    """The prefills on one worker: when each came, what it costs and when its request is done."""

    def __init__(self, at_ms: Floats, cost_ms: Floats, done_ms: Floats) -> None:
        self._at, self._done = at_ms, np.sort(done_ms)
        self._sum = np.concatenate([[0.0], np.cumsum(cost_ms)])
        # one engine, first come first served (Lindley): the work that is left at each arrival
        work = self._sum[:-1] - at_ms
        left = work - np.minimum.accumulate(work) + cost_ms
        span = float(at_ms[-1] - at_ms[0])
        self._left = left if self._sum[-1] <= _BUSY_MAX * span else np.zeros(len(left))

    def between(self, first: Floats, last: Floats) -> Floats:
        """[ms] of the prefills that come after ``first`` and until ``last``."""
        low, high = (np.searchsorted(self._at, t, side="right") for t in (first, last))
        return np.asarray(self._sum[high] - self._sum[low])

    def before(self, at: Floats, cost_ms: Floats) -> Floats:
        """What a prompt met: work in front [ms], what came during its own, how many were there."""
        n = np.searchsorted(self._at, at, side="left")
        since = at - self._at[np.maximum(n - 1, 0)]
        front = np.where(n > 0, np.maximum(self._left[np.maximum(n - 1, 0)] - since, 0.0), 0.0)
        during = self.between(at, at + front + cost_ms)
        there = n - np.searchsorted(self._done, at, side="left")
        return np.column_stack([front, during, there])


class _Streams:
    """The streams that decode on one worker: from when until when, and the tokens they hold."""

    def __init__(self, first: Floats, last: Floats, context: Floats) -> None:
        both = ((first, 1.0), (last, -1.0))
        self._sides = [self._side(times, sign, context) for times, sign in both]

    @staticmethod
    def _side(times: Floats, sign: float, context: Floats) -> tuple[Floats, list[Floats]]:
        order = np.argsort(times, kind="stable")
        times = times[order]
        sums = []
        for weights in (np.ones(len(times)), context[order]):
            sums += [sign * np.cumsum(weights), sign * np.cumsum(weights * times)]
        return times, [np.concatenate([[0.0], s]) for s in sums]

    def beside(self, first: Floats, lasts: Floats) -> Floats:
        """On the average over [first, first + lasts): streams, and tokens of context."""
        grown = self._until(first + lasts) - self._until(first)
        return np.asarray(grown / lasts[:, None])

    def _until(self, at: Floats) -> Floats:
        """The integrals up to ``at``."""
        out = np.zeros((len(at), 2))
        for times, (count, moment, tokens, token_moment) in self._sides:
            n = np.searchsorted(times, at, side="right")
            out[:, 0] += at * count[n] - moment[n]
            out[:, 1] += at * tokens[n] - token_moment[n]
        return out


def _ms(at: Ints) -> Floats:
    """[ms] since some day near: of 1970 a float would hold no microseconds."""
    return np.asarray((at - _NEAR_NS) / 1e6)


def _each(names: Texts) -> Iterator[tuple[str, Ints]]:
    """Each name, and the rows that have it."""
    known, code = numbered(names)
    for i, name in enumerate(known):
        yield name, np.flatnonzero(code == i)


def numbered(names: Texts) -> tuple[list[str], Ints]:
    """The names, and the number of each row's; a sort of texts would be slower."""
    texts = names.tolist()
    known = {name: i for i, name in enumerate(dict.fromkeys(texts))}
    return list(known), np.fromiter((known[t] for t in texts), dtype=np.int64, count=len(texts))
