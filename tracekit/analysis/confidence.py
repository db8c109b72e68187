"""How sure a verdict is: would the same phase win if ordinary variation had fallen differently?

Owns the redraws. The residuals of the fit are drawn (a whole request's at a time, so that phases
keep their correlation), scaled to each slow request, and taken off its excess; confidence is the
share of draws that give the same answer. Same data, same seed, same numbers.
"""

from __future__ import annotations

from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.analysis._arrow import arrow_table, numpy_column
from tracekit.analysis.fit import PHASES, RESIDUAL_CAP, CostModel
from tracekit.analysis.rules import Rules

_Matrix = npt.NDArray[np.float32]

_DRAWS_MAX: Final = 200
_DRAWS_MIN: Final = 32
_DRAWS_TOTAL: Final = 2_500_000
_CHUNK_ROWS: Final = 4_096
_SEED: Final = 20_260_610


def draws_for(rows: int) -> int:
    """Draws per request: 200, fewer (at least 32) where there are very many slow requests."""
    return max(_DRAWS_MIN, min(_DRAWS_MAX, _DRAWS_TOTAL // max(rows, 1)))


def winner_confidence(con: duckdb.DuckDBPyConnection, model: CostModel, rules: Rules) -> pa.Table:
    """The relation ``winner_confidence``: ``slow_id``, ``confidence`` [1].

    Only candidates ``attributed`` and ``request_shape`` get a row: the others claim nothing.
    """
    rows = _to_draw(con)
    slow_id, confidence = rows["slow_id"], _redraw(rows, model, rules)
    certain = con.sql(f"select w.slow_id from {_STANDING} where {_CERTAIN}").to_arrow_table()
    ids = pa.chunked_array([*slow_id.chunks, *certain["slow_id"].chunks], pa.int64())
    return arrow_table(
        {
            "slow_id": ids,
            "confidence": np.concatenate([confidence, np.ones(certain.num_rows)]),
        }
    )


_STANDING: Final = "winners as w join standing as d on w.slow_id = d.slow_id"

#: Winners that stay ahead even at their worst draw and the others' best: residuals are within 6
#: scales (of at least 1 ms), so these need no redraw. Most attributed requests are such.
_CERTAIN: Final = f"""
    d.candidate = 'attributed' and w.unjudged_ms = 0
    and w.excess_ms - coalesce(w.runner_up_excess_ms, 0.0) > {RESIDUAL_CAP} * (
        case when w.scale_ms > 1 then w.scale_ms else 1.0 end
        + case when w.widest_scale_ms > 1 then w.widest_scale_ms else 1.0 end)
"""


def _to_draw(con: duckdb.DuckDBPyConnection) -> pa.Table:
    """The other candidates, one row each, with excess and scale of every phase side by side."""
    wide = ", ".join(
        f"max(case when p.phase = '{p}' then {value} end) as {name}_{i}"
        for i, p in enumerate(PHASES)
        for name, value in (
            # a phase without an expectation competes with all of its time: the most it can be
            ("excess", "coalesce(p.excess_ms, p.actual_ms)"),
            ("scale", "p.scale_ms"),
        )
    )
    place = " ".join(f"when '{p}' then {i}" for i, p in enumerate(PHASES))
    return con.sql(
        f"""
        select w.slow_id, max(w.cell_index) as cell_index,
            max(case w.phase {place} end) as winner,
            max(case d.candidate when 'request_shape' then 1 else 0 end) as is_shape,
            max(w.expected_total_ms) as expected_ms, max(w.limit_ms) as limit_ms, {wide}
        from {_STANDING} join slow_phases as p on w.slow_id = p.slow_id
        where d.candidate in ('attributed', 'request_shape') and not coalesce({_CERTAIN}, false)
        group by w.slow_id
        order by w.slow_id
        """
    ).to_arrow_table()


def _redraw(rows: pa.Table, model: CostModel, rules: Rules) -> npt.NDArray[np.float64]:
    n = rows.num_rows
    seen = [i for i in range(len(PHASES)) if rows[f"excess_{i}"].null_count < n]
    column_of = np.zeros(len(PHASES), dtype=np.int64)
    column_of[seen] = np.arange(len(seen))
    excess = _matrix(rows, "excess", seen, -np.inf)
    # a scale under 1 ms was standardised as 1 ms when the residuals were made
    scale = np.maximum(_matrix(rows, "scale", seen, 0.0), 1.0)
    cell = numpy_column(rows["cell_index"])
    is_shape = numpy_column(rows["is_shape"]) == 1
    winner = column_of[numpy_column(rows["winner"])]
    expected = numpy_column(rows["expected_ms"]).astype(np.float32)
    limit = numpy_column(rows["limit_ms"]).astype(np.float32)
    out = np.empty(n)
    draws = draws_for(n)
    for index in np.unique(cell):
        noise = _draw(model.residuals[index][:, seen], draws, int(index))
        in_cell = np.flatnonzero(cell == index)
        # most shapes are quiet in every draw, even the one that takes least off
        gate = np.maximum(rules.min_excess_ms, rules.quiet_factor * scale[in_cell])
        quiet = (excess[in_cell] - noise.min(axis=0) * scale[in_cell] < gate).all(axis=1)
        out[in_cell[quiet & is_shape[in_cell]]] = 1.0
        for shapes in (False, True):
            left = in_cell[(is_shape[in_cell] == shapes) & ~(quiet & is_shape[in_cell])]
            for start in range(0, len(left), _CHUNK_ROWS):
                at = left[start : start + _CHUNK_ROWS]
                spread = noise[None, :, :] * scale[at][:, None, :]
                rest = excess[at][:, None, :] - spread
                if shapes:
                    same = _shape_holds(rest, spread, scale[at], expected[at], limit[at], rules)
                else:
                    same = rest.argmax(axis=2) == winner[at][:, None]
                out[at] = same.mean(axis=1)
    return out


def _shape_holds(
    rest: _Matrix,
    spread: _Matrix,
    scale: _Matrix,
    expected: _Matrix,
    limit: _Matrix,
    rules: Rules,
) -> npt.NDArray[np.bool_]:
    """Per row and draw: no phase stands out, or the shape alone is over the limit."""
    gate = np.maximum(rules.min_excess_ms, rules.quiet_factor * scale)
    quiet = (rest < gate[:, None, :]).all(axis=2)
    # out of scope: -inf stays -inf
    total = expected[:, None] + np.where(np.isfinite(rest), spread, 0.0).sum(axis=2)
    return np.asarray(quiet | ((total >= limit[:, None]) & (rest.max(axis=2) < expected[:, None])))


def _draw(pool: _Matrix, draws: int, seed: int) -> _Matrix:
    if not len(pool):
        return np.zeros((draws, pool.shape[1]), dtype=np.float32)
    rng = np.random.default_rng((_SEED, seed))
    return pool[rng.integers(0, len(pool), draws)]


def _matrix(rows: pa.Table, name: str, seen: list[int], missing: float) -> _Matrix:
    out = np.empty((rows.num_rows, len(seen)), dtype=np.float32)
    for column, i in enumerate(seen):
        out[:, column] = numpy_column(rows[f"{name}_{i}"])
    out[np.isnan(out)] = missing
    return out
