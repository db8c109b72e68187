"""Whose column is whose: from a foreign header to the request record, with units.

Owns the mapping: ``--map`` rules, names, aliases, units, the choice between rivals. The words
live in `_column_names`, the reading of cells in `_cells`, units in `_column_units`.
It reads a sample of the rows and converts none. Nothing is guessed silently: what was decided
is in ``notices``, and what cannot be decided is a `UsageError` that says how to write it.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tracekit.errors import UsageError
from tracekit.ingest import _cells, _column_doubts
from tracekit.ingest._cells import CellError
from tracekit.ingest._column_kinds import KINDS, NUMERIC, UNITS_OF, Column
from tracekit.ingest._column_names import (
    ALIASES,
    NAMES_NOT_IDS,
    NEEDS_NUMBERS,
    NEEDS_TIMES,
    SUCCESS_FLAGS,
    holds_text,
    keys_of,
    words_of,
)
from tracekit.ingest._column_units import with_units
from tracekit.ingest._request_files import Double, Names
from tracekit.ingest.response_timings import Found, find_timings, tells_timings

#: Targets of ``--map`` that are no columns: keep a column unmapped, or drop it.
EXTRA: Final = "extra"
IGNORE: Final = "ignore"

#: Columns that make a table look like a request log; ids and texts alone do not.
_TELLING: Final = frozenset(
    c
    for c, kind in KINDS.items()
    if kind in NUMERIC and c not in ("attempt", "streaming", "cancelled")
) | {"chunk_offsets_ms", "chunk_times"}

_BY_KEY: Final[dict[str, tuple[str, int]]] = {
    key: (column, place) for column, keys in ALIASES.items() for place, key in enumerate(keys)
}
#: Anthropic's and Bedrock's counts: the input is what the cache did not give.
_ON_TOP: Final = frozenset(("cache_read_input_tokens", "usage_cache_read_input_tokens"))
_ON_TOP_INPUT: Final = frozenset(("input_tokens", "usage_input_tokens"))


@dataclass(frozen=True)
class Plan:
    """What becomes of every column of one file.

    ``columns``: ours -> theirs; ``extra``: kept as they are; ``dropped``: never stored;
    ``comma_decimal``: numbers are written 1,5; ``cache_on_top``: cached tokens are not part of
    the input tokens; ``named``: request ids are names that rows may share; ``timings``: where
    the rows hold what servers told of their own times.
    """

    columns: dict[str, Column]
    extra: frozenset[str]
    dropped: frozenset[str]
    comma_decimal: bool
    cache_on_top: bool
    named: bool
    notices: tuple[str, ...]
    timings: tuple[Found, ...] = ()

    @property
    def mapped(self) -> dict[str, str]:
        """Theirs -> ours, with the unit: ``{'TTFT': 'ttft_ms:s'}``."""
        return {column.source: column.shown for column in self.columns.values()}


def parse_mapping(mapping: Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    """``{their_name: 'our_name[:unit]'}`` checked: their name -> (our name, unit or None).

    Our name may be any column of the request record, one of its aliases, ``extra`` (keep the
    column, unmapped) or ``ignore``. Raises `UsageError` for names and units that do not exist.
    """
    return {theirs: _parse_rule(theirs, ours) for theirs, ours in mapping.items()}


def _parse_rule(theirs: str, ours: str) -> tuple[str, str | None]:
    name, _, unit_word = (part.strip() for part in ours.partition(":"))
    if name in (EXTRA, IGNORE):
        return name, None
    key = words_of(name)
    target = key if key in KINDS else _BY_KEY.get(key, (None, 0))[0]
    if target is None:
        targets = [*KINDS, EXTRA, IGNORE]
        near = difflib.get_close_matches(key, targets, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ";"
        others = ", ".join([*near, *(t for t in targets if t not in near)])
        raise UsageError(f"--map {theirs}={ours}: there is no column {name!r}{hint} ours: {others}")
    if not unit_word:
        return target, None
    units = UNITS_OF.get(KINDS[target], frozenset())
    unit = unit_word.lower() if unit_word.lower() in units else _cells.unit_of(unit_word)
    if unit not in units:
        raise UsageError(
            f"--map {theirs}={ours}: {target} cannot be in {unit_word!r}"
            + (f"; units: {', '.join(sorted(units))}" if units else "; it has no unit to give")
        )
    return target, unit


def names_known(rules: Mapping[str, tuple[str, str | None]]) -> Names:
    """What the readers of request logs need to know of column names."""

    def telling(name: str) -> bool:
        column = match_name(name, rules)
        return (column is not None and column.target in _TELLING) or tells_timings(name)

    def known(name: str) -> bool:
        return match_name(name, rules) is not None or tells_timings(name)

    return Names(known=known, telling=telling)


def may_hold_text(name: str) -> bool:
    """Whether an unmapped column of this name must not be stored."""
    return holds_text(name) or words_of(name) in NAMES_NOT_IDS


def match_name(name: str, rules: Mapping[str, tuple[str, str | None]]) -> Column | None:
    """What a header alone says: a rule, our own name, or an alias; None if nothing."""
    rule = rules.get(name)
    if rule is None:
        words = words_of(name)
        rule = next((r for theirs, r in rules.items() if words_of(theirs) == words), None)
    if rule is not None:
        return Column(name, rule[0], rule[1] or _header_unit(name, rule[0]), "", "map")
    for key, unit in keys_of(name):
        if key in NEEDS_NUMBERS:
            target, by, place = NEEDS_NUMBERS[key], "alias", 99
        elif key in KINDS:
            target, by, place = key, "name", 0
            unit = unit or _own_unit(name, key)
        elif key in _BY_KEY:
            (target, place), by = _BY_KEY[key], "alias"
        else:
            continue
        if key in SUCCESS_FLAGS:
            unit = "flag"
        if unit is None or unit in UNITS_OF.get(KINDS[target], ()):
            return Column(name, target, unit, key, by, place)
    return None


def _header_unit(name: str, target: str) -> str | None:
    """The unit that a header says, if ``target`` may be given in it: ``total (s)``."""
    units = UNITS_OF.get(KINDS.get(target, ""), frozenset())
    said = (unit for _, unit in keys_of(name) if unit in units)
    return _own_unit(name, target) or next(said, None)


def _own_unit(name: str, target: str) -> str | None:
    """The unit in our own names, where the file uses them: ``ttft_ms``, ``start_unix_ns``."""
    if words_of(name) != target:
        return None
    if KINDS.get(target) in ("duration", "offsets"):
        return "ms"
    return "ns" if KINDS.get(target) == "time" else None


def plan_columns(
    names: Sequence[str],
    cells_of: Callable[[str], Sequence[object]],
    *,
    rules: Mapping[str, tuple[str, str | None]],
    where: str,
    delimiter: str | None = None,
    complete: bool = True,
    doubles: Mapping[str, Double] | None = None,
) -> Plan:
    """Map the columns ``names`` of a file by name and by a sample of their cells.

    ``cells_of(name)`` gives the sample, one cell a row, the same rows for every name; ``where``
    names the file in messages; ``delimiter`` is that of a delimited file, None elsewhere.
    ``complete``: ``names`` are all there are, so that a rule for none of them is a mistake;
    ``doubles``: those of ``names`` that stand for a further column of one name.
    Raises `UsageError` where a rule names no column, or a unit cannot be told, or two columns of
    one name differ.
    """
    notices: list[str] = []
    _check_rules(names, rules, where, complete, notices)
    claims: dict[str, list[Column]] = {}
    timings = timings_among(names, rules)
    servers = {column for found in timings for column in found.columns.values()}
    extra = {n for n in servers - consumed(timings) if not may_hold_text(n)}
    dropped: set[str] = set()
    names = [name for name in names if name not in servers]
    for name in names:
        column = match_name(name, rules)
        if column is not None and column.target == IGNORE:
            dropped.add(name)
        elif column is not None and column.target == EXTRA:
            extra.add(name)
        elif column is not None and _fits(column, cells_of(name), delimiter, notices):
            claims.setdefault(column.target, []).append(column)
        elif may_hold_text(name):
            dropped.add(name)
        else:
            extra.add(name)
    if text := sorted(name for name in dropped if rules.get(name, ("", None))[0] != IGNORE):
        notices.append(
            f"not stored, as the names say they hold prompts or answers: {', '.join(text)}"
            f" (to keep one: --map {shlex.quote(text[0] + '=note')})"
        )

    claimed = {column.source for rivals in claims.values() for column in rivals}
    read_as = {
        name: _undecided(twin.first, name, rules) if twin.first in claimed else None
        for name, twin in (doubles or {}).items()
    }
    notices += _column_doubts.doubled(doubles or {}, read_as, cells_of, where)

    _name_by_answer(claims, cells_of)
    columns: dict[str, Column] = {}
    for target, rivals in claims.items():
        winner = _choose(target, rivals, cells_of)
        columns[target] = winner
        for loser in rivals:
            if loser is not winner:
                (dropped if may_hold_text(loser.source) else extra).add(loser.source)
                notices.append(
                    f"{winner.source!r} and {loser.source!r} both look like {target}; took "
                    f"{winner.source!r} (to change that: "
                    f"--map {shlex.quote(f'{loser.source}={target}')})"
                )
    comma_decimal = any(
        _cells.has_comma_decimal(cell, delimiter=delimiter)
        for column in columns.values()
        if column.kind in NUMERIC
        for cell in cells_of(column.source)
    )
    columns = with_units(columns, cells_of, comma_decimal, where, notices)
    notices += _column_doubts.unused_times(
        [n for n in names if n in extra and not match_name(n, rules) and n not in (doubles or {})],
        columns,
        cells_of,
    )
    named = "request_id" in columns and columns["request_id"].key in NAMES_NOT_IDS
    on_top = _cache_on_top(columns, notices)
    return Plan(
        columns=columns,
        extra=frozenset(extra),
        dropped=frozenset(dropped),
        comma_decimal=comma_decimal,
        cache_on_top=on_top,
        named=named,
        notices=tuple(notices),
        timings=timings,
    )


def timings_among(
    names: Iterable[str], rules: Mapping[str, tuple[str, str | None]]
) -> tuple[Found, ...]:
    """Servers' timings among columns; a rule for one of these makes it the log's own."""
    matched = ((name, match_name(name, rules)) for name in names)
    return find_timings(n for n, column in matched if column is None or column.by != "map")


def consumed(timings: Iterable[Found]) -> frozenset[str]:
    """Columns of servers' timings that are told by what becomes of them."""
    return frozenset(column for found in timings for column in found.consumed())


def _check_rules(
    names: Sequence[str],
    rules: Mapping[str, tuple[str, str | None]],
    where: str,
    complete: bool,
    notices: list[str],
) -> None:
    taken: dict[str, str] = {}
    present = set(names) | {words_of(name) for name in names}
    for theirs, (target, _) in rules.items():
        if theirs not in present and words_of(theirs) not in present:
            near = difflib.get_close_matches(theirs, names, n=3)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
            listed = ", ".join([*near, *(n for n in names if n not in near)])
            message = f"{where} has no column {theirs!r} (--map)"
            if complete:
                raise UsageError(f"{message}{hint} its columns: {listed}")
            notices.append(f"{message} in its first rows{hint} they have: {listed}")
        elif target not in (EXTRA, IGNORE):
            if target in taken:
                raise UsageError(f"--map: both {taken[target]!r} and {theirs!r} go to {target}")
            taken[target] = theirs


def _undecided(first: str, second: str, rules: Mapping[str, tuple[str, str | None]]) -> str | None:
    """What two columns of one name are read as, if no rule says which of them it is."""
    column = match_name(first, rules)
    decided = column is None or column.by == "map" or match_name(second, rules) is not None
    return None if decided or column is None else column.target


def _fits(
    column: Column, cells: Sequence[object], delimiter: str | None, notices: list[str]
) -> bool:
    """Whether cells bear out what an alias only suggests; rules and our own names are orders."""
    if column.by != "alias" or column.kind not in (*NUMERIC, "time", "text"):
        return True
    there = [cell for cell in cells if not _cells.is_null(cell)]
    good = sum(_readable(column, cell, delimiter) for cell in there)
    strict = column.key in NEEDS_TIMES or column.key in NEEDS_NUMBERS
    if good < len(there) * (0.9 if column.key in NEEDS_NUMBERS else 0.5):
        if column.key not in NEEDS_NUMBERS:
            notices.append(
                f"{column.source!r} is not used: it is named like {column.target} but its cells "
                f"are not (to use it: --map {shlex.quote(f'{column.source}={column.target}')})"
            )
        return False
    return bool(there) or not strict


def _readable(column: Column, cell: object, delimiter: str | None) -> bool:
    kind = column.kind
    try:
        if kind == "time":
            moment, _ = _cells.parse_time(cell, unit=column.unit)
            return moment is not None or column.key not in NEEDS_TIMES
        if kind == "duration":
            _cells.raw_duration(cell, comma_decimal=delimiter == ";")
        elif kind == "flag":
            _cells.parse_flag(cell)
        elif kind == "text":
            return not isinstance(cell, (dict, list))
        else:
            _cells.number_and_unit(cell, comma_decimal=delimiter == ";")
    except CellError as error:
        return error.reason == "negative"  # the right column with a bad row
    return True


def _name_by_answer(
    claims: dict[str, list[Column]], cells_of: Callable[[str], Sequence[object]]
) -> None:
    """Where a log has no ids of its own but names, the ids of the answers are its requests' ids."""

    def is_id(column: Column) -> bool:
        named = column.key in NAMES_NOT_IDS
        return column.by == "map" or not (named or _is_empty(column, cells_of))

    ids, answers = claims.get("request_id", []), claims.get("response_id", [])
    if not any(map(is_id, ids)) and not any(column.by == "map" for column in answers) and answers:
        claims["request_id"] = [*(replace(c, target="request_id") for c in answers), *ids]
        del claims["response_id"]


def _choose(
    target: str, rivals: Sequence[Column], cells_of: Callable[[str], Sequence[object]]
) -> Column:
    if len(rivals) == 1:
        return rivals[0]
    order = {"map": 0, "name": 1, "alias": 2}

    def rank(column: Column) -> tuple[bool, int, int]:
        return _is_empty(column, cells_of) and column.by != "map", order[column.by], column.place

    return min(rivals, key=rank)


def _is_empty(column: Column, cells_of: Callable[[str], Sequence[object]]) -> bool:
    return all(_cells.is_null(cell) for cell in cells_of(column.source))


def _cache_on_top(columns: Mapping[str, Column], notices: list[str]) -> bool:
    cached, prompt = columns.get("cached_tokens"), columns.get("input_tokens")
    if cached is None or prompt is None:
        return False
    if cached.key not in _ON_TOP or prompt.key not in _ON_TOP_INPUT or prompt.by == "map":
        return False
    notices.append(
        f"{cached.source!r} beside {prompt.source!r} is the way of an API that counts cached "
        f"tokens on top of the input: input_tokens is their sum (if they are part of it: "
        f"--map {shlex.quote(f'{cached.source}=cached_tokens')})"
    )
    return True
