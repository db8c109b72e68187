"""A unit for every column of durations: what header, caller or cells say, else by evidence.

Owns the sample that the evidence (`_units`) is taken from, and the question to the user where
it does not decide. Rows that will be refused and failed requests are no evidence: a call that is
turned away takes no plausible time.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tracekit.errors import UsageError
from tracekit.ingest import _cells, _units
from tracekit.ingest._cells import CellError
from tracekit.ingest._column_kinds import Column


def with_units(
    columns: dict[str, Column],
    cells_of: Callable[[str], Sequence[object]],
    comma_decimal: bool,
    where: str,
    notices: list[str],
) -> dict[str, Column]:
    """The columns with a unit for every duration; appends what was decided to ``notices``.

    Raises `UsageError` with the readings and the ``--map`` for each where a unit is unclear.
    """
    durations = {
        target: _sample(column, cells_of(column.source), comma_decimal)
        for target, column in columns.items()
        if column.kind == "duration"
    }
    durations = _of_good_rows(durations, columns, cells_of, comma_decimal)
    facts: dict[str, _units.Array] = {}
    for target in ("input_tokens", "cached_tokens", "output_tokens", "tokens_per_s"):
        if target in columns:
            cells = cells_of(columns[target].source)
            factor = _cells.PER_S.get(columns[target].unit or "", 1.0)
            facts[target] = np.array([_real(cell, comma_decimal, factor) for cell in cells])
    if "start_unix_ns" in columns and "end_unix_ns" in columns:
        facts["span_ms"] = _span_ms(columns, cells_of)
    with np.errstate(all="ignore"):  # rows with zeros and gaps
        decision = _units.decide(durations, facts)
    if decision.unclear:
        raise UsageError(_question(decision, columns, durations, where))
    result: dict[str, Column] = {}
    for target, column in columns.items():
        if column.kind == "offsets":
            column = replace(column, unit=column.unit or "ms")
        elif column.kind == "duration" and column.unit is None:
            unit = decision.units.get(target)
            if unit is not None:
                notices.append(
                    f"{column.source!r} is read as {unit}: {decision.reasons[target]} "
                    f"(to say otherwise: --map {shlex.quote(f'{column.source}={target}:UNIT')})"
                )
            column = replace(column, unit=unit or "ms")
        result[target] = column
    return result


def _sample(column: Column, cells: Sequence[object], comma_decimal: bool) -> _units.Durations:
    raw = np.full(len(cells), np.nan)
    fixed = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        if _cells.is_null(cell):
            continue
        try:
            number, milliseconds = _cells.raw_duration(cell, comma_decimal=comma_decimal)
        except CellError:
            continue  # refused with its row, later
        if milliseconds is not None:
            fixed[i] = milliseconds
        elif number is not None:
            raw[i] = number
    return _units.Durations(raw=raw, fixed_ms=fixed, unit=column.unit)


def _of_good_rows(
    durations: dict[str, _units.Durations],
    columns: Mapping[str, Column],
    cells_of: Callable[[str], Sequence[object]],
    comma_decimal: bool,
) -> dict[str, _units.Durations]:
    """The sample without rows that are no evidence; as it is, where nothing would be left."""
    bad = {
        i
        for column in columns.values()
        for i, cell in enumerate(cells_of(column.source))
        if not _cells.is_null(cell) and _is_bad(column, cell, comma_decimal)
    }
    if not bad:
        return durations
    rows = list(bad)
    result: dict[str, _units.Durations] = {}
    for target, sample in durations.items():
        raw, fixed = sample.raw.copy(), sample.fixed_ms.copy()
        raw[rows] = fixed[rows] = np.nan
        result[target] = replace(sample, raw=raw, fixed_ms=fixed)
        if sample.open and not result[target].open:
            return durations
    return result


def _is_bad(column: Column, cell: object, comma_decimal: bool) -> bool:
    """Whether this cell makes its row no evidence."""
    if column.target == "error":
        return True
    try:
        if column.kind == "duration":
            _cells.raw_duration(cell, comma_decimal=comma_decimal)
        elif column.kind == "count":
            _cells.parse_count(cell, comma_decimal=comma_decimal)
        elif column.kind == "status":
            if column.unit == "flag":
                return _cells.parse_flag(cell) == 0
            return _cells.parse_status(cell) == "error"
    except CellError:
        return column.kind != "status"
    return False


def _real(cell: object, comma_decimal: bool, factor: float) -> float:
    if _cells.is_null(cell):
        return np.nan
    try:
        return _cells.number_and_unit(cell, comma_decimal=comma_decimal)[0] * factor
    except CellError:
        return np.nan


def _span_ms(
    columns: Mapping[str, Column], cells_of: Callable[[str], Sequence[object]]
) -> _units.Array:
    start, end = columns["start_unix_ns"], columns["end_unix_ns"]
    spans = []
    for first, last in zip(cells_of(start.source), cells_of(end.source), strict=True):
        try:
            begin, _ = _cells.parse_time(first, unit=start.unit)
            finish, _ = _cells.parse_time(last, unit=end.unit)
        except CellError:
            begin = finish = None
        spans.append(np.nan if begin is None or finish is None else (finish - begin) / 1e6)
    return np.array(spans)


def _question(
    decision: _units.Decision,
    columns: Mapping[str, Column],
    durations: Mapping[str, _units.Durations],
    where: str,
) -> str:
    """What to ask the user: each unclear column with its readings and the --map for each."""
    lines = [f"{where}: the unit of {len(decision.unclear)} column(s) cannot be told"]
    for target, readings in decision.unclear.items():
        column = columns[target]
        raw = durations[target].raw
        good = raw[(raw > 0) & decision.good[target]]
        typical = float(np.median(good if good.size else raw[raw > 0]))
        if readings:
            meanings = " or ".join(_meaning(typical, unit) for unit in readings)
            lines.append(f"  {column.source!r}: its median {typical:g} could be {meanings}")
        else:
            lines.append(f"  {column.source!r}: its median {typical:g} fits in no unit")
        lines.append(
            "    say which: "
            + " or ".join(
                f"--map {shlex.quote(f'{column.source}={target}:{unit}')}"
                for unit in readings or ("s", "ms")
            )
        )
    return "\n".join(lines)


def _meaning(value: float, unit: str) -> str:
    """``30 s`` with what that is in the other usual unit."""
    milliseconds = value * _cells.MS_PER[unit]
    return f"{value:g} {unit}" + (f" ({milliseconds / 1e3:g} s)" if unit != "s" else "")
