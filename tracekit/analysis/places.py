"""Where and when the requests of a window were, and under which pressure: where losses may gather.

Owns the places (stretches of time, workers, stretches in which load surged) and what each of them
is due. Whether more gathers there is `gathering`'s; which losses are asked about, `outstanding`'s.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np

from tracekit.analysis.gathering import (
    THERE,
    Bools,
    Cells,
    Floats,
    Ints,
    gathered,
    place_chance,
    stretches,
)
from tracekit.analysis.offered import (
    DECODES,
    Pressure,
    Texts,
    Traffic,
    numbered,
    read_slow,
    read_traffic,
)
from tracekit.analysis.rules import Rules
from tracekit.analysis.surges import FINE, Surge, surges

#: Stretches of time are made of twentieths of the window.
_PARTS: Final = 20
#: Many of the requests may have come in a stretch in which load gathers, but not all.
_SURGE_MAX: Final = 0.85
#: Pauses are cut until nothing changes, or so often.
_ROUNDS: Final = 100
#: A part beside it belongs to it if losses are this dense there, compared.
_AS_DENSE: Final = 0.5
#: The strata from this one on are under more pressure than seven eighths of the requests.
_PRESSED: Final = 3
#: What the smallest of some losses are.
LEAST: Final = 0.1


@dataclass(frozen=True)
class Losses:
    """Requests that lost time in a phase, row by row: when, where, under which pressure.

    ``at`` [unix ns], -1 without a clock; ``worker`` of that phase, ``code`` a number for it;
    ``stratum`` of like pressure, -1 where it is not known; ``size_ms`` what its worker should take.
    """

    at: Ints
    phase: Texts
    worker: Texts
    code: Ints
    stratum: Ints
    size_ms: Floats

    def of(self, rows: Ints) -> Losses:
        return Losses(**{name: column[rows] for name, column in vars(self).items()})


class Places:
    """Where and when the requests of the window were, and under which pressure."""

    def __init__(self, traffic: Traffic, rules: Rules) -> None:
        self.rules = rules
        self._traffic = traffic
        self._loaded = traffic.loaded()
        self._pressure = Pressure(self._loaded)
        at = self._loaded.at
        #: the time at each arrival, less what was long without any; too few requests have none
        self._busy = _busy_time(at) if len(at) >= _PARTS else np.zeros(len(at))
        self._has_times = bool(len(at) and self._busy[-1] > 0)
        self._part = self._part_of(at)
        self._surges: list[Surge] = []
        if self._has_times:
            fine = self._cut(at, _PARTS * FINE)
            self._surges = surges(self._loaded, fine, _PARTS, rules.chance)
        # role → worker → its share of the requests whose worker is known
        self._shares = [
            _shares(names[names != ""]) for names in (traffic.worker, traffic.prefill_worker)
        ]

    @classmethod
    def of(cls, con: duckdb.DuckDBPyConnection, rules: Rules, drawn: float) -> Places:
        return cls(read_traffic(con, drawn), rules)

    def pressed(
        self, con: duckdb.DuckDBPyConnection, key: Texts, phase: Texts
    ) -> tuple[Ints, Floats]:
        """The stratum of pressure of each loss, and its size (-1 and 0 where not known)."""
        stratum, size_ms = np.full(len(key), -1, dtype=np.int64), np.zeros(len(key))
        traffic, strata = self._loaded, self._pressure.strata
        for _ in range(2):
            row = {k: i for i, k in enumerate(traffic.key.tolist())}
            rows = np.array([row.get(k, -1) for k in key.tolist()], dtype=np.int64)
            for name in set(phase.tolist()):
                mine = (rows >= 0) & (phase == name)
                stratum[mine] = strata[name][rows[mine]]
                size_ms[mine] = traffic.size_ms(name)[rows[mine]]
            if self._traffic.part == 1 or (stratum >= 0).all():
                break
            # of very many requests only some were drawn
            traffic = read_slow(con).loaded()
            strata = self._pressure.strata_of(traffic)
        return stratum, size_ms

    def like(self, phase: str, least: float) -> tuple[Losses, int]:
        """Requests that went at least so far beyond what ``phase`` should take, slow or not.

        And how long [ns] the phase took them at the median.
        """
        traffic = self._loaded
        mine = np.flatnonzero(np.nan_to_num(traffic.lost[phase], nan=-np.inf) >= least)
        worker = traffic.server(phase)[mine]
        _, code = numbered(worker)
        lasts_ms = float(np.median(traffic.took_ms[phase][mine])) if len(mine) else 0.0
        same = np.full(len(mine), phase, dtype=object)
        stratum, size_ms = self._pressure.strata[phase][mine], traffic.size_ms(phase)[mine]
        like = Losses(traffic.at[mine], same, worker, code, stratum, size_ms)
        return like, int(lasts_ms * 1e6)

    def are_pressed(self, phase: str, least: float) -> bool:
        """Whether most that went so far beyond what ``phase`` should take were under pressure."""
        like, _ = self.like(phase, least)
        return bool(len(like.at) and np.median(like.stratum) >= _PRESSED)

    def found(self, why: str, cells: Cells, weights: Floats, taken: Bools | None) -> Bools:
        """In which cells losses gather."""
        chance = self.rules.chance if why == "time" else self.rules.worker_chance
        return gathered(cells, weights, taken, chance=chance, denser=self.rules.denser)

    def cells(self, why: str, losses: Losses, weights: Floats) -> Cells:
        """``why``: time or worker."""
        return self._times(losses, weights) if why == "time" else self._workers(losses)

    def in_surge(self, losses: Losses, told: Losses, weights: Floats) -> Bools:
        """Which ``losses`` are where load was other than usual, and where those that were ``told``
        (of one phase, with ``weights``) are denser than elsewhere, too."""
        out = np.zeros(len(losses.at), dtype=bool)
        for surge in self._surges if len(told.at) else ():
            server = self._loaded.server(str(told.phase[0]))
            share = float(self._inside(surge, self._loaded.at, server).mean())
            inside = self._inside(surge, told.at, told.worker)
            n, k = int(weights.sum()), int(weights[inside].sum())
            chance = place_chance(n, k, share, self.rules.denser, place_max=_SURGE_MAX)
            if chance < THERE:
                whole = self._widened(surge, told, weights, server)
                out |= self._inside(whole, losses.at, losses.worker)
        return out

    def _widened(self, surge: Surge, told: Losses, weights: Floats, server: Texts) -> Surge:
        """With the parts beside it in which losses are nearly as dense: what a surge began may end
        later."""
        here = np.ones(len(server), dtype=bool) if surge.worker is None else server == surge.worker
        mine = (
            np.ones(len(told.at), dtype=bool)
            if surge.worker is None
            else (told.worker == surge.worker)
        )
        of = np.bincount(self._part[here], minlength=_PARTS + 1)[1:]
        lost = np.bincount(self._part_of(told.at[mine]), weights[mine], minlength=_PARTS + 1)[1:]
        first, end = surge.first, surge.end
        dense = _AS_DENSE * lost[first:end].sum() / max(int(of[first:end].sum()), 1)
        while first > 0 and lost[first - 1] >= dense * of[first - 1] > 0:
            first -= 1
        while end < _PARTS and lost[end] >= dense * of[end] > 0:
            end += 1
        return Surge(first, end, surge.worker)

    def _inside(self, surge: Surge, at: Ints, worker: Texts) -> Bools:
        part = self._part_of(at) - 1
        inside = (part >= surge.first) & (part < surge.end)
        return inside if surge.worker is None else inside & (worker == surge.worker)

    def _part_of(self, at: Ints) -> Ints:
        """The part of the time (from 1), 0 without a clock."""
        if not self._has_times:
            return np.zeros(len(at), dtype=np.int64)
        return np.where(at >= 0, self._cut(at, _PARTS) + 1, 0)

    def _cut(self, at: Ints, parts: int) -> Ints:
        """In which of so many equal parts of the time (from 0)."""
        busy = np.interp(at, self._loaded.at, self._busy)
        part = np.minimum(busy / self._busy[-1] * parts, parts - 1)
        return np.asarray(part.astype(np.int64))

    def _times(self, losses: Losses, weights: Floats) -> Cells:
        """Stretches of time; each is due what its requests lose under like pressure anywhen."""
        world = np.concatenate([[-1], np.zeros(_PARTS, dtype=np.int64)])
        cell = self._part_of(losses.at)
        if not self._has_times:
            return Cells(cell, np.zeros(_PARTS + 1), world, [], 0)
        due = np.zeros(_PARTS + 1)
        for phase in set(losses.phase.tolist()):
            strata = self._pressure.strata[phase]
            mine = losses.phase == phase
            # short ones never miss a limit of the whole: they are due nothing
            large = self._loaded.size_ms(phase) >= np.quantile(losses.size_ms[mine], LEAST)
            for stratum in set(losses.stratum[mine].tolist()):
                alike = large if stratum < 0 else large & (strata == stratum)
                of = np.bincount(self._part[alike], minlength=_PARTS + 1)
                lost = float(weights[mine & (losses.stratum == stratum)].sum())
                due += lost * of / max(int(of.sum()), 1)
        share = due / max(float(due.sum()), 1e-9)
        places = [(i + 1, j + 1) for i, j in stretches(_PARTS)]
        # stretches overlap: there are hardly more independent ones than parts
        return Cells(cell, share, world, places, _PARTS)

    def _workers(self, losses: Losses) -> Cells:
        """Workers, each in its role."""
        decodes = np.isin(losses.phase, DECODES)
        cell = np.zeros(len(decodes), dtype=np.int64)
        share, world = [0.0], [-1]
        for role, here in enumerate((decodes, ~decodes)):
            shares = self._shares[role]
            if len(shares) < 2:
                continue
            place = {name: len(share) + i for i, name in enumerate(shares)}
            cell[here] = [place.get(name, 0) for name in losses.worker[here]]
            share += list(shares.values())
            world += [role] * len(shares)
        places = [(i, i + 1) for i in range(1, len(share))]
        return Cells(cell, np.asarray(share), np.asarray(world), places, len(places))


def _shares(names: Texts) -> dict[str, float]:
    return {name: n / len(names) for name, n in sorted(Counter(names.tolist()).items())}


def _busy_time(at: Ints) -> Floats:
    """[ns] the time at each arrival (in order), no pause without any longer than one part of it.

    A test yesterday, or one request that came hours late, must not take the parts of the time.
    """
    gaps = np.diff(at).astype(np.float64)
    longest = np.inf
    for _ in range(_ROUNDS):
        gaps = np.minimum(gaps, longest)
        part = float(gaps.sum()) / _PARTS
        if part >= longest * (1 - 1e-6):
            break
        longest = part
    return np.concatenate([[0.0], np.cumsum(gaps)])
