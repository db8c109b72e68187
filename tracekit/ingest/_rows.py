"""Columns under construction: what all three signals share.

A decoder walks a message and calls ``add`` of one of the row collectors; the collector validates,
drops text, and builds the Arrow table at the end. Nothing here knows a wire format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tracekit.errors import SourceError
from tracekit.ingest._attrs import INT64_MAX, INT64_MIN, Resource, dump
from tracekit.ingest.batch import DECODED_SCHEMA, Decoded, Rejected, cut_payload

_DETAIL_CHARS: Final = 300
_SEAL_ROWS: Final = 2048

#: Refused items kept of one message; each holds a payload.
_MAX_BAD_ITEMS: Final = 10_000


class Rows:
    """Rows of one signal, with the resource and scope they came under.

    Call `group` before the rows of each (resource, scope), the subclass's ``add`` for each item,
    `reject` for each that it (or the walk) would not have, `decoded` once at the end.
    """

    signal: str

    def __init__(self, *, keep_text: bool) -> None:
        self.keep_text = keep_text
        self.rejected: list[Rejected] = []
        self._rows: list[tuple[Any, ...]] = []
        self._groups: list[tuple[Resource, str | None, str | None]] = []
        self._group_starts: list[int] = []
        self._service: str | None = None
        self._sealed: list[pa.Table] = []
        self._sealed_rows = 0
        self._bad_in_message = 0

    def __len__(self) -> int:
        return self._sealed_rows + len(self._rows)

    def group(self, resource: Resource, scope_name: str | None, scope_version: str | None) -> None:
        """All items added from here on came from this resource and scope."""
        self._groups.append((resource, scope_name, scope_version))
        self._group_starts.append(len(self._rows))
        self._service = resource.service_name

    def reject(
        self,
        reason: str,
        detail: str,
        payload: dict[str, Any],
        *,
        trace_id: str | None = None,
        span_id: str | None = None,
    ) -> None:
        """Counts one item as refused; ``payload`` must hold no text already.

        SourceError once a single message has more bad items than any sender makes by mistake.
        """
        self._bad_in_message += 1
        if self._bad_in_message > _MAX_BAD_ITEMS:
            raise SourceError(
                f"more than {_MAX_BAD_ITEMS:,} bad items in one message", how="send it in parts"
            )
        try:
            text = dump(payload)
        except (TypeError, ValueError):  # a string that is not Unicode, an integer over 64 bits
            text = dump({"note": "the item cannot be written as JSON"})
        self.rejected.append(
            Rejected(
                signal=self.signal,
                reason=reason,
                detail=clean(detail)[:_DETAIL_CHARS],
                trace_id=clean_or_none(trace_id),
                span_id=clean_or_none(span_id),
                service_name=self._service,
                payload=cut_payload(text),
            )
        )

    @contextmanager
    def message(self) -> Iterator[None]:
        """The items of one message are added inside; a SourceError takes them all back.

        Afterwards rows become columns if they are many enough: Python objects of a few thousand
        rows still sit in the processor's cache; those of a whole commit do not, and cost twice as
        much to turn into columns.
        """
        held: tuple[list[Any], ...] = (self._rows, self.rejected, self._groups, self._group_starts)
        sizes = [len(part) for part in held]
        service = self._service
        self._bad_in_message = 0
        try:
            yield
        except SourceError:
            for part, size in zip(held, sizes, strict=True):
                del part[size:]
            self._service = service
            raise
        if len(self._rows) >= _SEAL_ROWS:
            self._seal()

    def decoded(self) -> Decoded:
        """The table and the refused items so far."""
        self._seal()
        tables = self._sealed or [DECODED_SCHEMA[self.signal].empty_table()]
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        return Decoded(self.signal, table, tuple(self.rejected))

    def _seal(self) -> None:
        if self._rows:
            schema = DECODED_SCHEMA[self.signal]
            shared = self._group_columns()
            columns = shared | self._columns(list(zip(*self._rows, strict=True)), shared)
            table = pa.table([columns[name] for name in schema.names], schema=schema)
            self._sealed.append(table)
            self._sealed_rows += table.num_rows
            self._rows.clear()
        self._groups.clear()
        self._group_starts.clear()

    def _columns(
        self, columns: list[tuple[Any, ...]], shared: dict[str, pa.Array]
    ) -> dict[str, pa.Array]:
        """Arrow columns of what ``add`` collected; may replace one of ``shared``."""
        raise NotImplementedError

    def _group_columns(self) -> dict[str, pa.Array]:
        starts = np.array([*self._group_starts, len(self._rows)])
        index = pa.array(np.repeat(np.arange(len(self._groups)), np.diff(starts)))
        resources = [g[0] for g in self._groups]
        values: dict[str, list[str | None]] = {
            "resource": [r.text for r in resources],
            "service_name": [r.service_name for r in resources],
            "service_instance_id": [r.service_instance_id for r in resources],
            "host_name": [r.host_name for r in resources],
            "process_id": [r.process_id for r in resources],
            "process_rank": [r.process_rank for r in resources],
            "scope_name": [g[1] for g in self._groups],
            "scope_version": [g[2] for g in self._groups],
        }
        return {name: strings(column).take(index) for name, column in values.items()}


def clean(text: str) -> str:
    """``text`` as valid Unicode: what is not becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def clean_or_none(text: str | None) -> str | None:
    return None if not text else clean(text)


def strings(values: Sequence[Any]) -> pa.Array:
    """VARCHAR column; a value that is no string becomes its JSON text."""
    try:
        return pa.array(values, pa.string())
    except pa.ArrowTypeError:
        texts = [v if v is None or isinstance(v, str) else dump(v) for v in values]
        return pa.array(texts, pa.string())


def integers(values: Sequence[Any]) -> pa.Array:
    """BIGINT column; what is no 64-bit integer (in whatever dress) becomes NULL: the value as
    sent is still in the attributes."""
    try:
        return pa.array(values, pa.int64())
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return pa.array([_integer(v) for v in values], pa.int64())


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    elif isinstance(value, str):
        text = value.strip()
        digits = text[1:] if text[:1] == "-" else text
        value = int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
    if isinstance(value, int) and INT64_MIN <= value <= INT64_MAX:
        return value
    return None


def hex_ids(ids: Sequence[bytes], width: int) -> pa.Array:
    """VARCHAR column of hex digits; every id is ``width`` bytes, or empty for NULL.

    One hex() over all ids instead of one a row.
    """
    count = len(ids)
    data = pa.py_buffer(b"".join(ids).hex().encode())
    digits = 2 * width
    if len(data) == count * digits:
        offsets = np.arange(0, len(data) + 1, digits, dtype=np.int32)
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), data)
    lengths = np.fromiter(map(len, ids), np.int32, count)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(2 * lengths, out=offsets[1:])
    valid = pa.array(lengths > 0)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), data, valid.buffers()[1])


def holds_bad_unicode(value: Any) -> bool:
    """True if a string anywhere in parsed JSON is not valid Unicode (keys included)."""
    pending = [value]  # no recursion: the value may be as deep as its sender liked
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError:
                return True
        elif isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return False
