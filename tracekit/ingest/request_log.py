"""Request logs: CSV, JSON lines or Parquet files with one request a row.

Owns the way from a file to batches of the table ``request_log``. The file's columns are mapped
by name, alias or ``--map`` (`columns`), units by what the file says or, failing that, by what
is plausible; both are decided once, on the first `BLOCK_ROWS` rows, and told in ``notices``.
It appends nothing and knows no store.

What it promises:

- A row is taken with an id, a start or at least one measure; a bad cell refuses its row with
  ``file:line: field`` and never the rows around it.
- Prompts and answers are not stored: columns named like them are dropped, and so are long text
  and lists in columns that are not mapped.
- ``ttft_kind`` is what the row says; ``first_chunk`` or ``first_content`` where TTFT comes from
  the row's own chunk times; else NULL: the file does not say.
- ``status`` is told from error and finish reason where the row has none, and is ``ok`` if
  nothing speaks against it.
- ``tokens_per_s`` is output tokens / total. Where a file means something else by it, its number
  stays in ``extra``; where a file has no total, the total comes from it (a notice says so).
- ``log_key`` is the request id and start where both are known, else the hash of the file's
  content and the row; names that rows may share (the column ``request``) are no ids.
- Rows keep the file's order; ``source_row`` is the line (CSV, JSON lines) or the element
  (JSON array, Parquet), from 1.
"""

from __future__ import annotations

import codecs
import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Final

import pyarrow as pa

from tracekit.errors import SourceError, UsageError
from tracekit.ingest import _request_csv, _request_json, _request_parquet
from tracekit.ingest._request_end import with_end
from tracekit.ingest._request_files import BLOCK_ROWS, Block, Names, Row, flatten
from tracekit.ingest._request_rows import Converter
from tracekit.ingest._unpack import Damage
from tracekit.ingest.batch import Rejected
from tracekit.ingest.columns import (
    Plan,
    consumed,
    may_hold_text,
    names_known,
    parse_mapping,
    plan_columns,
    timings_among,
)

__all__ = ["BLOCK_ROWS", "LogBatch", "looks_like_request_log", "read_request_log"]

_HEAD_BYTES: Final = 1 << 16
_READ_BYTES: Final = 1 << 20
#: A file that cannot be read twice is kept in memory up to here, then on disk.
_SPOOL_BYTES: Final = 64 << 20
_PROBED_LINES: Final = 50

_JSON_KEY: Final = re.compile(rb'"((?:[^"\\]|\\.){1,100})"\s*:')

Rules = Mapping[str, tuple[str, str | None]]


@dataclass(frozen=True)
class LogBatch:
    """Up to about `BLOCK_ROWS` rows of one file.

    ``table``: schema of ``request_log`` without origin, ingested_unix_ns and date;
    ``rejected``: refused rows, ``rejected_rows`` their numbers, beside; ``mapped``: their
    column -> ours, as ``--map`` would say it; ``unmapped``: columns kept in ``extra``;
    ``notices``: what was decided (first batch) and what happened how often (last batch).
    """

    table: pa.Table
    rejected: tuple[Rejected, ...]
    rejected_rows: tuple[int, ...]
    mapped: dict[str, str]
    unmapped: tuple[str, ...]
    notices: tuple[str, ...]


def looks_like_request_log(
    name: str, head: bytes, *, mapping: Mapping[str, str] | None = None
) -> str | None:
    """``csv``, ``jsonl``, ``json`` (one array) or ``parquet``, or None if it is none of them.

    ``head``: the file's first bytes, some 64 KiB of them (all, if it is shorter). A text file
    must have a column that tells a request log (tokens, a latency), by its own name or by
    ``mapping``; a Parquet file is only known by its magic. ``name`` serves messages only.
    """
    return _form(head, names_known(parse_mapping(mapping or {})))


def read_request_log(
    name: str,
    data: BinaryIO,
    *,
    mapping: Mapping[str, str] | None = None,
    now_unix_ns: int,
    progress: Callable[[int], None] | None = None,
    file_format: str | None = None,
    damage: Damage | None = None,
) -> Iterator[LogBatch]:
    """Reads the request log ``data`` from where it stands; at least one batch, in file order.

    ``name``: as given by the user, for messages and ``source_file``; ``mapping``: their name ->
    ``our_name[:unit]``; ``now_unix_ns``: to tell starts in the future; ``progress`` is called
    with the bytes read so far; ``file_format``: ``csv``, ``jsonl``, ``json`` or ``parquet``,
    where that is known; ``damage``: why ``data`` ends before its file does, which is
    told as a refusal at its end. ``data`` is read twice (its hash is part of the rows' identity):
    a stream that cannot seek is spooled. Memory does not grow with the file.

    Raises `UsageError` for a bad mapping (at once) or a unit that cannot be told, and
    `SourceError` if the file is no request log or cannot be read at all.
    """
    rules = parse_mapping(mapping or {})
    return _read(name, data, rules, now_unix_ns, progress, file_format, damage)


def _read(
    name: str,
    data: BinaryIO,
    rules: Rules,
    now_unix_ns: int,
    progress: Callable[[int], None] | None,
    file_format: str | None,
    damage: Damage | None,
) -> Iterator[LogBatch]:
    seekable = _can_seek(data)
    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as spool:
        start = data.tell() if seekable else 0
        sha256, utf8, size = _scan(data, None if seekable else spool)
        if not size:
            raise SourceError("the file is empty", where=name)
        file: BinaryIO = data if seekable else spool  # type: ignore[assignment]
        file.seek(start)
        head = file.read(_HEAD_BYTES)
        file.seek(start)
        converter = Converter(name, sha256, now_unix_ns)
        planner = _Planner(name, rules)
        waiting: LogBatch | None = None
        cut = damage is not None and damage.inside
        known = names_known(rules)
        form = file_format or _form(head, known)
        blocks = _blocks(name, file, form, known, utf8=utf8, cut=cut)
        for block in with_end(blocks, damage):
            plan, notices = planner.plan(block)
            rate = converter.rate
            converted = converter.convert(block, plan)
            if converter.rate is not rate and converter.rate and converter.rate.notice:
                notices = [*notices, converter.rate.notice]
            if waiting is not None:
                yield waiting
            waiting = LogBatch(
                table=converted.table,
                rejected=converted.rejected,
                rejected_rows=converted.rejected_rows,
                mapped=plan.mapped | converter.lifter.mapped(plan.timings),
                unmapped=tuple(n for n in block.names if n in plan.extra),
                notices=tuple(dict.fromkeys(notices)),
            )
            if progress is not None:
                progress(min(file.tell() - start, size))
        assert waiting is not None  # readers give at least one block
        yield replace(waiting, notices=(*waiting.notices, *converter.notices()))


class _Planner:
    """The plan of a file, made on its first rows; JSON may bring new columns later."""

    def __init__(self, name: str, rules: Rules) -> None:
        self._name = name
        self._rules = rules
        self._plan: Plan | None = None
        self._seen: set[str] = set()

    def plan(self, block: Block) -> tuple[Plan, list[str]]:
        """The plan for ``block`` and what is new to tell about it."""
        notices = list(block.notices)
        if self._plan is None:
            self._plan = self._make(block, block.names, complete=block.complete)
            notices += self._plan.notices
        elif new := [name for name in block.names if name not in self._seen]:
            notices += self._grow(block, new)
        self._seen.update(block.names)
        return self._plan, notices

    def _make(self, block: Block, names: Sequence[str], *, complete: bool) -> Plan:
        below = frozenset(block.below)
        rows = [row for i, row in enumerate(block.rows) if i not in below]
        return plan_columns(
            names,
            lambda name: [row.get(name) for row in rows],
            rules=self._rules if names is block.names else self._rules_for(names),
            where=self._name,
            delimiter=block.delimiter,
            complete=complete,
            doubles=block.doubles,
        )

    def _rules_for(self, names: Sequence[str]) -> Rules:
        return {theirs: rule for theirs, rule in self._rules.items() if theirs in names}

    def _grow(self, block: Block, names: Sequence[str]) -> list[str]:
        """Columns first seen after the first rows: mapped if nothing about them is unclear."""
        assert self._plan is not None
        old = self._plan
        try:
            new = self._make(block, names, complete=False)
        except UsageError as error:
            text = {name for name in names if may_hold_text(name)}
            kept = [name for name in names if name not in text]
            self._plan = replace(old, extra=old.extra | set(kept), dropped=old.dropped | text)
            first = str(error).splitlines()[-1].strip()
            return [f"columns first seen late stay unmapped: {', '.join(kept)}; {first}"]
        late = {t: c for t, c in new.columns.items() if t not in old.columns}
        # a server's fields may stand among columns that came before: they are not one's own
        own = {column.source for column in old.columns.values()}
        timings = timings_among([n for n in block.names if n not in own], self._rules)
        others = {c.source for t, c in new.columns.items() if t in old.columns}
        self._plan = replace(
            old,
            columns={**old.columns, **late},
            extra=(old.extra | new.extra | others) - consumed(timings),
            dropped=old.dropped | new.dropped,
            timings=timings,
        )
        notices = list(new.notices)
        if others:
            notices.append(
                f"first seen late, not used as others took their place: {', '.join(sorted(others))}"
            )
        return notices


def _blocks(
    name: str, file: BinaryIO, form: str | None, known: Names, *, utf8: bool, cut: bool
) -> Iterator[Block]:
    if form == "parquet":
        blocks = _request_parquet.read_parquet(file, name)
    elif form == "json":
        blocks = _request_json.read_json_array(file)
    elif form == "jsonl":
        blocks = _request_json.read_json_lines(file)
    else:  # not known by its head: the reader says what it saw there
        yield from _request_csv.read_delimited(file, name, known=known, utf8=utf8, cut=cut)
        return
    checked = False
    for block in blocks:
        if not checked and (block.rows or block.complete):
            _check_names(block.names, known, name)
            checked = True
        yield block
    if not checked:
        _check_names([], known, name)


def _check_names(names: Sequence[str], known: Names, where: str) -> None:
    if not known.tell(names):
        raise SourceError(
            f"no column of a request log is known among {', '.join(names[:20])!r}",
            where=where,
            how="name columns with --map their_name=our_name[:unit]",
        )


def _form(head: bytes, known: Names) -> str | None:
    if head.startswith(b"PAR1"):
        return "parquet"
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if start[:1] == b"[":
        return "json" if known.tell(_json_keys(start)) else None
    if start[:1] == b"{" or b'{"' in start[:_HEAD_BYTES]:
        if any(known.tell(row) for row in json_rows(start)):
            return "jsonl"
        if start[:1] == b"{":
            # The first line may be longer than the head.
            whole = b"\n" in start or len(head) < _HEAD_BYTES
            return "jsonl" if not whole and known.tell(_json_keys(start)) else None
    return "csv" if _request_csv.is_delimited_log(head, known) else None


def json_rows(head: bytes) -> Iterator[Row]:
    """The first lines that are JSON objects, flattened."""
    for line in head.splitlines()[:_PROBED_LINES]:
        try:
            value = _request_json.parse_json(line)
        except ValueError:
            continue
        row = flatten(value) if isinstance(value, dict) else None
        if row is not None:
            yield row


def _json_keys(text: bytes) -> list[str]:
    """Keys of JSON text that may be cut anywhere, without their paths."""
    return [key.decode("utf-8", "replace") for key in _JSON_KEY.findall(text)[:2000]]


def _can_seek(data: BinaryIO) -> bool:
    seekable = getattr(data, "seekable", None)
    return bool(seekable is not None and seekable())


def _scan(
    data: BinaryIO, spool: tempfile.SpooledTemporaryFile[bytes] | None
) -> tuple[str, bool, int]:
    """(SHA-256, whether it is UTF-8, bytes) of the content; copied to ``spool`` if given."""
    digest = hashlib.sha256()
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    utf8 = True
    size = 0
    while part := data.read(_READ_BYTES):
        digest.update(part)
        size += len(part)
        if spool is not None:
            spool.write(part)
        if utf8:
            try:
                decoder.decode(part)
            except UnicodeDecodeError:
                utf8 = False
    if utf8:
        try:
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            utf8 = False
    return digest.hexdigest(), utf8, size
