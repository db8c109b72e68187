"""Engine versions that take longer than another for the same requests.

Owns the comparison of the cost model's cells that differ in nothing but the version. Each version
has an expectation of its own, so a deploy that made everything slower leaves no excess: it is seen
between the expectations, and only there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import duckdb

from tracekit.analysis.diagnosis import VersionPace
from tracekit.analysis.fit import PHASE_TERMS, Cell, PhaseFit

#: A version that takes so many times as long is another one; less may be its traffic.
_SLOWER: Final = 1.2
#: And by so many times what chance in the fits may be.
_SURE: Final = 3.0

_PHASES: Final = ("prefill", "decode")
#: Findings of these phases speak of a pace in the phase.
_SPEAKS_OF: Final = {"prefill": "prefill", "queue_or_prefill": "prefill", "decode": "decode"}

_SIZES: Final = """
    select model, engine, topology, 1 as one,
        median(uncached_tokens) as uncached_tokens,
        median(attended_tokens_sq) as attended_tokens_sq,
        median(steps) as steps, median(step_context) as step_context
    from request_facts where completed = 1
    group by model, engine, topology
"""

_SHAPED: Final = """
    select j.phase, j.cause, j.metric, f.model, f.engine, f.topology, f.engine_version,
        count(*) as n
    from judgements as j join request_facts as f on j.request_key = f.request_key
    where j.class = 'request_shape'
    group by j.phase, j.cause, j.metric, f.model, f.engine, f.topology, f.engine_version
    order by n desc, f.model, f.engine, f.topology, f.engine_version
"""

Group = tuple[str, str, str]


def version_paces(con: duckdb.DuckDBPyConnection, cells: Sequence[Cell]) -> tuple[VersionPace, ...]:
    """The versions that are slower than the quickest of their model, engine and topology."""
    groups: dict[Group, list[Cell]] = {}
    for cell in cells:
        if cell.engine_version:
            groups.setdefault((cell.model, cell.engine, cell.topology), []).append(cell)
    groups = {key: found for key, found in groups.items() if len(found) > 1}
    if not groups:
        return ()
    sizes = {
        (r["model"], r["engine"], r["topology"]): r
        for r in con.sql(_SIZES).to_arrow_table().to_pylist()
    }
    return tuple(
        pace
        for key in sorted(groups)
        if key in sizes
        for phase in _PHASES
        for pace in _slower(groups[key], phase, sizes[key])
    )


def _slower(cells: Sequence[Cell], phase: str, size: Mapping[str, Any]) -> Iterator[VersionPace]:
    known = []
    for cell in cells:
        fit = cell.fits.get(phase)
        # a borrowed fit is that of the other version
        if fit is not None and fit.level == "cell":
            ms = _expected(fit, phase, size)
            if ms is not None and ms > 0:
                known.append((ms, cell, fit))
    if len(known) < 2:
        return
    quick_ms, quick, quick_fit = min(known, key=lambda k: (k[0], k[1].engine_version))
    for ms, cell, fit in sorted(known, key=lambda k: k[1].engine_version):
        factor = ms / quick_ms
        chance = _SURE * (_chance(fit) + _chance(quick_fit))
        if factor > max(_SLOWER, 1 + chance):
            yield VersionPace(
                model=cell.model,
                engine=cell.engine,
                topology=cell.topology,
                phase=phase,
                slower=cell.engine_version,
                quicker=quick.engine_version,
                factor=factor,
                slower_ms=ms,
                quicker_ms=quick_ms,
                slower_n=fit.n,
                quicker_n=quick_fit.n,
            )


def _expected(fit: PhaseFit, phase: str, size: Mapping[str, Any]) -> float | None:
    values = [size[column] for _, column in PHASE_TERMS[phase]]
    if any(v is None for v in values):
        return None
    return float(sum(c * float(v) for c, v in zip(fit.coefficients, values, strict=True)))


def _chance(fit: PhaseFit) -> float:
    """How far off the level of a fit may be [1]."""
    return fit.error / math.sqrt(max(fit.n, 1))


def of_findings(
    con: duckdb.DuckDBPyConnection, paces: Sequence[VersionPace]
) -> Mapping[tuple[str, str, str], VersionPace]:
    """By phase, cause and metric of findings of the requests' size: the slower version, if most
    of their requests were served by one.
    """
    if not paces:
        return {}
    by_key = {(p.model, p.engine, p.topology, p.slower, p.phase): p for p in paces}
    total: dict[tuple[str, str, str], int] = {}
    found: dict[tuple[str, str, str], list[tuple[int, VersionPace]]] = {}
    for phase, cause, metric, model, engine, topology, version, n in con.execute(
        _SHAPED
    ).fetchall():
        key = (phase, cause, metric)
        total[key] = total.get(key, 0) + n
        pace = by_key.get((model, engine, topology, version, _SPEAKS_OF.get(phase, "")))
        if pace is not None:
            found.setdefault(key, []).append((n, pace))
    return {
        key: rows[0][1] for key, rows in found.items() if 2 * sum(n for n, _ in rows) > total[key]
    }
