"""Raw rows of a request log to rows of the table ``request_log``, by a plan.

Owns conversion, checks and the few derivations that only the file's own numbers allow: a row is
either right or refused with its field and reason. It reads no file and decides no mapping.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import pyarrow as pa

from tracekit.ingest import _cells, _request_cells, _request_derive
from tracekit.ingest._cells import CellError
from tracekit.ingest._column_kinds import Column
from tracekit.ingest._request_derive import Bad, Rate, Values
from tracekit.ingest._request_files import Block, Refused, Row
from tracekit.ingest.batch import Rejected, cut_payload, unstamped_schema
from tracekit.ingest.columns import Plan
from tracekit.ingest.response_timings._lift import Lifter
from tracekit.names import TTFT_KINDS

SCHEMA: Final = unstamped_schema("request_log")

#: Longest text kept, in characters.
_LIMITS: Final = {"note": 2000, "error": 300}
_LIMIT: Final = 200
_INT32: Final = (1 << 31) - 1
_DAY_NS: Final = 86_400 * 10**9

#: A zero in these is a missing value: nothing takes no time.
_NEVER_ZERO: Final = ("ttft_ms", "ttfa_ms", "tpot_ms", "e2e_ms", "tokens_per_s")

#: A row with none of these says nothing about a request.
_SUBSTANCE: Final = frozenset(
    name
    for name in SCHEMA.names
    if name.endswith(("_ms", "_tokens", "_unix_ns")) or name in ("tokens_per_s", "chunk_times")
)

#: Why token counts of chunks are left out, and how to mend that.
_CHUNK_DOUBTS: Final[dict[str, str]] = {
    _request_derive.RUNNING: (
        "{source!r} counts the tokens so far (it ends at output_tokens), not those of each chunk: "
        "left out, the times are kept; to have them, record what each chunk adds"
    ),
    _request_derive.TOO_MANY: (
        "{source!r} adds up to more than output_tokens, so it does not count the tokens of each "
        "chunk: left out, the times are kept; to have them, record what each chunk adds"
    ),
}


@dataclass
class Tally:
    """What happened to cells over the whole file, told once at its end."""

    counts: Counter[str] = field(default_factory=Counter)
    zeros: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    clockless: Counter[str] = field(default_factory=Counter)
    zoneless: dict[str, None] = field(default_factory=dict)
    long_text: dict[str, None] = field(default_factory=dict)
    nested: dict[str, None] = field(default_factory=dict)

    def notices(self) -> list[str]:
        """One line for each thing that happened."""
        lines = [f"{text}: {count} row(s)" for text, count in self.counts.items()]
        lines += [
            f"0 in {name} is taken as missing: {count} row(s)" for name, count in self.zeros.items()
        ]
        lines += [
            f"{name!r} holds numbers that are no unix times (a monotonic clock?): {count} row(s) "
            "are kept without that time"
            for name, count in self.clockless.items()
        ]
        if self.zoneless:
            lines.append(f"times without a zone are taken as UTC: {', '.join(self.zoneless)}")
        if self.statuses:
            words = ", ".join(f"{word!r} ({n})" for word, n in self.statuses.most_common(5))
            lines.append(f"unknown status words, told from the row's other fields: {words}")
        if self.long_text:
            names = ", ".join(sorted(self.long_text))
            lines.append(f"long text is not kept: {names} (to keep it: --map NAME=note)")
        if self.nested:
            lines.append(f"lists and JSON in text are not kept: {', '.join(sorted(self.nested))}")
        return lines


@dataclass(frozen=True)
class Converted:
    """``table``: good rows; ``rejected``/``rejected_rows``: the others and their numbers."""

    table: pa.Table
    rejected: tuple[Rejected, ...]
    rejected_rows: tuple[int, ...]


class Converter:
    """Converts the blocks of one file; keeps what must stay the same over all of them."""

    def __init__(self, where: str, sha256: str, now_unix_ns: int) -> None:
        self.where = where
        self.sha256 = sha256
        self.now_unix_ns = now_unix_ns
        self.tally = Tally()
        self.lifter = Lifter()
        self.rate: Rate | None = None
        # chunk counts of a row so far, not of each chunk, were among the rows
        self.running = False

    def notices(self) -> list[str]:
        """What happened over the whole file, one line each."""
        return [*self.lifter.notices(), *self.tally.notices()]

    def convert(self, block: Block, plan: Plan) -> Converted:
        """Rows of ``block``; the first block with any decides what tokens/s means."""
        values, bad = self._read(block.rows, plan)
        self._set_aside(block, values, bad)
        if plan.cache_on_top:
            _request_derive.add_cache(values)
        self._drop_zeros(values)
        doubts = _request_derive.from_chunks(values, bad, running=self.running)
        self._note_doubts(doubts, plan)
        if plan.timings:
            self.lifter.lift(block.rows, values, bad, plan.timings, plan.columns)
        if self.rate is None and "tokens_per_s" in plan.columns:
            self.rate = _request_derive.what_rate(values, plan.columns["tokens_per_s"].source)
        originals, totals = _request_derive.settle_rate(values, self.rate)
        if totals:
            self.tally.counts["the total is taken from tokens/s where the row has none"] += totals
        self._settle_status(block.rows, values, plan)
        self._check(values, bad)
        extras = self._extras(block.rows, plan, originals)
        refused = [(block.numbers[i], self._rejected(block, i, plan, values, *bad[i])) for i in bad]
        refused += [(r.number, self._unreadable(r)) for r in block.refused]
        refused.sort(key=lambda item: item[0])
        return Converted(
            table=self._table(block, values, bad, extras, named=plan.named),
            rejected=tuple(item for _, item in refused),
            rejected_rows=tuple(number for number, _ in refused),
        )

    # -- cells ---------------------------------------------------------------------------------

    def _read(self, rows: Sequence[Row], plan: Plan) -> tuple[Values, Bad]:
        values: Values = {name: [None] * len(rows) for name in SCHEMA.names}
        values["chunk_offsets"] = [None] * len(rows)
        values["chunk_tokens"] = [None] * len(rows)
        values["cancelled"] = [None] * len(rows)
        bad: Bad = {}
        for column in plan.columns.values():
            read = self._reader(column, plan)
            target = "chunk_offsets" if column.kind == "offsets" else column.target
            out = values[target]
            source = column.source
            for i, row in enumerate(rows):
                cell = row.get(source)
                if cell is None or _cells.is_null(cell):
                    continue
                try:
                    out[i] = read(cell)
                except CellError as error:
                    bad.setdefault(i, (error.reason, f"{source}: {error}"))
        return values, bad

    def _reader(self, column: Column, plan: Plan) -> Callable[[object], Any]:
        comma, unit, kind = plan.comma_decimal, column.unit, column.kind
        if kind == "duration":
            return lambda cell: _cells.parse_duration(cell, unit=unit or "ms", comma_decimal=comma)
        if kind == "count":
            return lambda cell: _cells.parse_count(cell, comma_decimal=comma)
        if kind == "bytes":
            return lambda cell: _cells.parse_count(cell, comma_decimal=comma, unit=unit or "b")
        if kind == "small":
            return lambda cell: _small(_cells.parse_count(cell, comma_decimal=comma), cell)
        if kind in ("rate", "real"):
            factor = _cells.PER_S.get(unit or "", 1.0)
            return lambda cell: _cells.parse_real(cell, comma_decimal=comma, factor=factor)
        if kind == "time":
            return lambda cell: self._time(cell, column)
        if kind == "flag":
            return _cells.parse_flag
        if kind == "status":
            return lambda cell: self._status(cell, flag=unit == "flag")
        if kind == "offsets":
            return lambda cell: _request_cells.offsets_us(cell, _cells.MS_PER[unit or "ms"])
        if kind == "token_list":
            return _request_cells.token_list
        if kind == "packed":
            return _request_cells.packed
        if kind == "hashes":
            return _request_cells.hashes
        if column.target == "trace_id":
            return self._trace_id
        if column.target == "ttft_kind":
            return _ttft_kind
        if column.target in ("request_id", "response_id"):
            return self._request_id
        if column.target == "error":
            return _error
        limit = _LIMITS.get(column.target, _LIMIT)
        return lambda cell: _cells.parse_text(_first_if_list(cell), limit=limit)

    def _time(self, cell: object, column: Column) -> int | None:
        moment, zoned = _cells.parse_time(cell, unit=column.unit)
        if moment is None:
            self.tally.clockless[column.source] += 1
        elif not zoned:
            self.tally.zoneless[column.source] = None
        return moment

    def _status(self, cell: object, *, flag: bool) -> str | None:
        if flag:
            try:
                return "ok" if _cells.parse_flag(cell) else "error"
            except CellError:
                pass  # a word after all
        status = _cells.parse_status(cell)
        if status is None:
            self.tally.statuses[_cells.parse_text(cell, limit=30)] += 1
        return status

    def _trace_id(self, cell: object) -> str | None:
        text = str(cell).strip().lower()
        if text.count("-") == 3 and len(text) == 55:  # a traceparent
            text = text.split("-")[1]
        text = text.replace("-", "")
        if len(text) == 32 and set(text) <= _HEX and text.strip("0"):
            return text
        self.tally.counts["a trace id that is not 32 hex digits is left out"] += 1
        return None

    def _request_id(self, cell: object) -> str | None:
        text = _cells.parse_text(cell, limit=_LIMIT + 1)
        if len(text) <= _LIMIT:
            return text
        self.tally.counts["text too long for a request's name or id is not stored"] += 1
        return None

    # -- rows ----------------------------------------------------------------------------------

    def _set_aside(self, block: Block, values: Values, bad: Bad) -> None:
        """Refuses totals and text below the table, before their numbers count for anything.

        What has a start or a trace is a request, whatever its name.
        """
        for i in block.below:
            if values["start_unix_ns"][i] is None and values["trace_id"][i] is None:
                bad[i] = ("summary_row", "a total, average or text below the table, no request")
                for column in values.values():
                    column[i] = None

    def _drop_zeros(self, values: Values) -> None:
        for name in _NEVER_ZERO:
            column = values[name]
            for i, value in enumerate(column):
                if value == 0:
                    column[i] = None
                    self.tally.zeros[name] += 1

    def _note_doubts(self, dropped: Mapping[str, int], plan: Plan) -> None:
        """Notes token counts of chunks that were left out."""
        self.running |= _request_derive.RUNNING in dropped
        column = plan.columns.get("chunk_tokens") or plan.columns.get("chunk_times")
        for doubt, count in dropped.items():
            source = column.source if column is not None else "chunk_tokens"
            self.tally.counts[_CHUNK_DOUBTS[doubt].format(source=source)] += count

    def _settle_status(self, rows: Sequence[Row], values: Values, plan: Plan) -> None:
        """Fills in statuses; what a row tells of its end goes before what is only an HTTP code.

        A code below 400 says that the headers came: what follows may be an error, or be broken
        off. A word that says ok stays, and what contradicts it is counted.
        """
        ends = "finish_reason" in plan.columns
        status, cancelled = values["status"], values["cancelled"]
        column = plan.columns.get("status")
        for i in range(len(status)):
            told = _request_derive.told_status(values, i, has_finish=ends)
            if cancelled[i] == 1:
                told = "aborted"
            if status[i] == "ok" and column is not None and told != "ok":
                if _cells.is_http_code(rows[i].get(column.source)):
                    status[i] = told
                elif cancelled[i] == 1 or values["error"][i] is not None:
                    name = "cancelled" if cancelled[i] == 1 else "error"
                    says = "cancelled" if cancelled[i] == 1 else "an error"
                    self.tally.counts[
                        f"{plan.columns[name].source!r} says {says} but the status ok; ok is kept"
                    ] += 1
            if status[i] is None:
                status[i] = told

    def _check(self, values: Values, bad: Bad) -> None:
        names = [n for n in _SUBSTANCE if any(v is not None for v in values[n])]
        names.append("trace_id")  # spans may know the rest
        for i in range(len(values["status"])):
            if i in bad:
                continue
            start, end = values["start_unix_ns"][i], values["end_unix_ns"][i]
            ttft, total = values["ttft_ms"][i], _request_derive.total_ms(values, i)
            if start is not None:
                if end is not None and end < start:
                    bad[i] = ("end_before_start", f"end {end} is before start {start}")
                    continue
                if start > self.now_unix_ns + _DAY_NS:
                    self.tally.counts["starts more than a day from now (a wrong clock?)"] += 1
            if ttft is not None and total is not None:
                # Spreadsheets round; a row is wrong only where rounding cannot explain it.
                if ttft > total * 1.01 + 1.0:
                    detail = f"TTFT of {ttft:g} ms is longer than the total of {total:g} ms"
                    bad[i] = ("ttft_over_e2e", detail)
                    continue
                if values["streaming"][i] == 0 and ttft >= total * 0.99:
                    values["ttft_ms"][i] = values["ttft_kind"][i] = None
                    self.tally.counts["TTFT of a call without streaming is its total: unset"] += 1
            if all(values[name][i] is None for name in names):
                bad[i] = ("nothing_known", "no time, no duration and no token count in the row")

    def _extras(
        self, rows: Sequence[Row], plan: Plan, originals: dict[int, float]
    ) -> list[str | None]:
        """JSON of the unmapped columns, row by row: numbers, flags and short text only."""
        result: list[str | None] = []
        rate = plan.columns["tokens_per_s"].source if originals else ""
        for i, row in enumerate(rows):
            kept: dict[str, object] = {}
            for name in plan.extra:
                cell = row.get(name)
                if cell is None or _cells.is_null(cell):
                    continue
                if (scalar := _scalar(cell, _LIMIT)) is not None:
                    kept[name] = scalar
                else:
                    is_long = isinstance(cell, str) and not _holds_json(cell)
                    (self.tally.long_text if is_long else self.tally.nested)[name] = None
            if i in originals:
                kept[rate] = originals[i]
            text = orjson.dumps(kept, option=orjson.OPT_SORT_KEYS).decode() if kept else None
            result.append(text)
        return result

    def _rejected(
        self, block: Block, i: int, plan: Plan, values: Values, reason: str, detail: str
    ) -> Rejected:
        """A refused row, without the columns that may hold prompts."""
        limits = {c.source: _LIMIT if c.kind == "text" else 24 for c in plan.columns.values()}
        shown: dict[str, object] = {}
        for name in (*limits, *sorted(plan.extra)):
            cell = block.rows[i].get(name)
            scalar = None if _cells.is_null(cell) else _scalar(cell, limits.get(name, _LIMIT))
            if scalar is not None:
                shown[name] = scalar
        return Rejected(
            signal="request_log",
            reason=reason,
            detail=f"{self.where}:{block.numbers[i]}: {detail}",
            trace_id=values["trace_id"][i],
            span_id=None,
            service_name=None,
            payload=cut_payload(orjson.dumps(shown).decode()),
        )

    def _unreadable(self, refused: Refused) -> Rejected:
        """A line that is no row: its text may be anything, so none of it is kept."""
        return Rejected(
            signal="request_log",
            reason=refused.reason,
            detail=f"{self.where}:{refused.number}: {refused.detail}",
            trace_id=None,
            span_id=None,
            service_name=None,
            payload="{}",
        )

    def _table(
        self, block: Block, values: Values, bad: Bad, extras: list[str | None], *, named: bool
    ) -> pa.Table:
        count = len(block.rows)
        values["extra"] = extras
        values["source_row"] = list(block.numbers)
        values["source_file"] = [self.where] * count
        values["source_sha256"] = [self.sha256] * count
        values["log_key"] = [
            f"{request}@{start}"
            if request is not None and start is not None and not named
            else f"{self.sha256}:{number}"
            for request, start, number in zip(
                values["request_id"], values["start_unix_ns"], block.numbers, strict=True
            )
        ]
        keep = [i for i in range(count) if i not in bad]
        whole = len(keep) == count
        return pa.table(
            [
                pa.array(values[f.name] if whole else [values[f.name][i] for i in keep], f.type)
                for f in SCHEMA
            ],
            schema=SCHEMA,
        )


_HEX: Final = frozenset("0123456789abcdef")


def _scalar(cell: object, limit: int) -> object | None:
    """A number, a flag or a text of ``limit`` characters as JSON can hold it; else None."""
    if isinstance(cell, (list, dict, bytes)):
        return None
    if isinstance(cell, _cells.UnixNs):
        return int(cell)
    if isinstance(cell, (bool, float)) or (isinstance(cell, int) and abs(cell) < 1 << 63):
        return cell
    text = _cells.parse_text(cell, limit=limit + 1)
    return text if len(text) <= limit and not _holds_json(text) else None


def _holds_json(text: str) -> bool:
    """Whether a text is an object or a list, as JSON or Python writes it: anybody's words."""
    return text.lstrip().startswith(("{", "[{", '["', "['"))


def _small(number: int, cell: object) -> int:
    if number > _INT32:
        raise CellError("out_of_range", f"{_cells.show(cell)} is too large")
    return number


def _first_if_list(cell: object) -> object:
    """APIs give finish reasons as lists, one a choice."""
    return cell[0] if isinstance(cell, list) and cell and isinstance(cell[0], str) else cell


def _error(cell: object) -> str | None:
    """What went wrong; None for a cell that says that nothing did (false, 0, OK, 200)."""
    try:
        if not _cells.parse_flag(cell):
            return None
    except CellError:
        word = str(cell).strip().lower()
        if word in ("ok", "success") or (
            _cells.is_http_code(word) and _cells.parse_status(word) == "ok"
        ):
            return None
    return _cells.parse_text(_first_if_list(cell), limit=_LIMITS["error"])


def _ttft_kind(cell: object) -> str:
    kind = _cells.parse_text(cell, limit=_LIMIT).lower()
    if kind not in TTFT_KINDS:
        raise CellError("unknown_ttft_kind", f"{_cells.show(cell)} is not one of {TTFT_KINDS}")
    return kind
