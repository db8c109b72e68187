"""Prefill and decode times that look swapped, as a release of an engine once wrote them.

Owns the test and where it looks. Prefill grows with the prompt tokens to compute, decode with the
tokens it makes; where both go with the other's size, the fields are in each other's place. Where a
row holds its TTFT too, the row itself says so, and ``sql/sources`` set it aside (SWAPPED).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt

from tracekit.analysis._duck import defined

Floats = npt.NDArray[np.float64]

#: Why ``sql/sources`` sets a request aside whose two times fit only in each other's place.
SWAPPED: Final = "swapped_durations:prefill<>decode"

_MEND: Final = (
    "mend what writes them (one release of vLLM had them in each other's place: upgrade it), or "
    "swap the columns of the log and import it anew"
)

_ROWS: Final = 30
#: More than so many rows tell nothing more.
_ENOUGH: Final = 1_000
_DRAWN: Final = 20_000
#: Each time must go with the other's size so well (rank correlation), and so much better than with
#: its own.
_GOES: Final = 0.6
_BETTER: Final = 0.3


@dataclass(frozen=True)
class Swapped:
    """``n`` requests of one (engine, version) whose prefill and decode look swapped.

    ``prefill_by_output`` and ``decode_by_prompt`` are the rank correlations that say so; None where
    the rows themselves do.
    """

    engine: str
    engine_version: str
    n: int
    prefill_by_output: float | None = None
    decode_by_prompt: float | None = None

    def words(self) -> tuple[str, str]:
        """Why the two times are not judged, and how to mend it."""
        name = " ".join(part for part in (self.engine, self.engine_version) if part)
        of = f"{self.n:,} requests{f' of {name}' if name else ''}"
        if self.prefill_by_output is None or self.decode_by_prompt is None:
            why = (
                f"prefill and decode times of {of} look swapped: prefill is longer than the time "
                "to the first token, and each fits in the other's place; they are set aside"
            )
        else:
            why = (
                f"prefill and decode times of {of} look swapped: prefill goes with the output "
                f"tokens (rank correlation {self.prefill_by_output:.2f}) and decode with the "
                f"prompt ({self.decode_by_prompt:.2f}); neither is judged, and a TTFT or TPOT made "
                "from them is wrong as well"
            )
        return why, _MEND


def swapped_ranks(
    prefill: Floats, decode: Floats, uncached: Floats, steps: Floats
) -> tuple[float, float] | None:
    """Rank correlations (prefill with steps, decode with uncached tokens) if they look swapped.

    Rows of one cell, NaN where unknown. Wants both: a busy engine may hide what a phase goes with,
    but it makes neither go with the other's size.
    """
    seen = np.flatnonzero((prefill > 0) & (decode > 0) & (uncached > 0) & (steps > 0))
    if len(seen) < _ROWS:
        return None
    seen = seen[:: 1 + len(seen) // _ENOUGH]
    p, d, u, s = (_ranks(values[seen]) for values in (prefill, decode, uncached, steps))
    by_output, by_prompt = _correlation(p, s), _correlation(d, u)
    if min(by_output, by_prompt) < _GOES:
        return None
    if by_output - _correlation(p, u) < _BETTER or by_prompt - _correlation(d, s) < _BETTER:
        return None
    return by_output, by_prompt


def set_aside(con: duckdb.DuckDBPyConnection, reasons: Mapping[str, int]) -> tuple[Swapped, ...]:
    """The engines whose rows say it themselves; looks only if ``reasons`` counts such requests."""
    if not reasons.get(SWAPPED) or not defined(con, ["window_requests"]):
        return ()
    rows = con.execute(
        "select coalesce(engine, ''), coalesce(engine_version, ''), count(*) from window_requests "
        "where quarantine_reason = $reason group by all order by 3 desc, 1, 2",
        {"reason": SWAPPED},
    ).fetchall()
    return tuple(Swapped(engine, version, n) for engine, version, n in rows)


def looks_swapped(con: duckdb.DuckDBPyConnection) -> tuple[Swapped, ...]:
    """All of them in ``window_requests``, from a sample; for whom no cost model is at hand."""
    ((said, n),) = con.execute(
        "select count(case when quarantine_reason = $reason then 1 end), "
        "count(case when quarantine_reason is null and prefill_ms > 0 and decode_ms > 0 then 1 "
        "end) from window_requests",
        {"reason": SWAPPED},
    ).fetchall()
    found = list(set_aside(con, {SWAPPED: said}))
    if n < _ROWS:
        return tuple(found)
    rows = con.sql(
        f"""
        select coalesce(model, '') as model, coalesce(engine, '') as engine,
            coalesce(engine_version, '') as engine_version, prefill_ms, decode_ms,
            cast(input_tokens - coalesce(cached_tokens, 0) as double) as uncached,
            cast(output_tokens - 1 as double) as steps
        from window_requests
        where quarantine_reason is null and prefill_ms > 0 and decode_ms > 0
            and input_tokens is not null and output_tokens is not null
            and hash(request_key) % {1 + n // _DRAWN} = 0
        order by 1, 2, 3, request_key
        """
    ).to_arrow_table()
    cells = list(zip(*(rows[k].to_pylist() for k in rows.column_names[:3]), strict=True))
    at = 0
    for (_, engine, version), group in groupby(cells):
        here = slice(at, at := at + len(list(group)))
        ranks = swapped_ranks(
            *(rows[k].to_numpy()[here] for k in ("prefill_ms", "decode_ms", "uncached", "steps"))
        )
        if ranks is not None:
            many = round((here.stop - here.start) * n / len(cells))
            found.append(Swapped(engine, version, many, *ranks))
    return tuple(found)


def _ranks(values: Floats) -> Floats:
    """Mean ranks: equal values share one."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[place]


def _correlation(a: Floats, b: Floats) -> float:
    """Of ranks; 0 where one of them never varies."""
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm > 0 else 0.0
