"""One received request: its record in the spool, and what decoding made of it.

Owns the record's layout and the split of a body into rows that will be stored and rows that go
to quarantine. The split depends on the body, the time of receipt and the retention only, so a
replay after a crash repeats exactly what the sender was told. Does no I/O.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import SourceError
from tracekit.ingest.batch import DECODED_SCHEMA, TABLE_OF_SIGNAL, TIME_COLUMN, stamp
from tracekit.ingest.otlp_json import decode_otlp_json
from tracekit.ingest.otlp_protobuf import decode_otlp_protobuf
from tracekit_collectors.config import NEWEST_AHEAD_NS

#: (origin, encoding, signal) of each record tag. Tags are on disk: add, never renumber.
_OF_TAG: Final = {
    1: ("otlp_grpc", "protobuf", "traces"),
    2: ("otlp_grpc", "protobuf", "metrics"),
    3: ("otlp_grpc", "protobuf", "logs"),
    4: ("otlp_http", "protobuf", "traces"),
    5: ("otlp_http", "protobuf", "metrics"),
    6: ("otlp_http", "protobuf", "logs"),
    7: ("otlp_http", "json", "traces"),
    8: ("otlp_http", "json", "metrics"),
    9: ("otlp_http", "json", "logs"),
}
_TAG_OF: Final = {what: tag for tag, what in _OF_TAG.items()}
_HEADER: Final = struct.Struct(">Bq")


@dataclass(frozen=True, slots=True)
class Request:
    """The bytes of one export request, decompressed, and how they came."""

    signal: str
    encoding: str
    origin: str
    received_unix_ns: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A decoded request. ``table`` has the raw columns of its signal without the ingest ones.

    ``quarantined`` holds complete rows of the ``quarantine`` table (their ingest time is set
    again at the commit), None where nothing was refused.
    """

    signal: str
    origin: str
    received_unix_ns: int
    table: pa.Table
    quarantined: pa.Table | None
    size_bytes: int

    @property
    def lake_table(self) -> str:
        """The table of the lake that takes the rows."""
        return TABLE_OF_SIGNAL[self.signal]

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    @property
    def rejected(self) -> Counter[str]:
        """Refused items by reason."""
        if self.quarantined is None:
            return Counter()
        return Counter(self.quarantined["reason"].to_pylist())

    @property
    def first_rejection(self) -> str:
        """What was wrong with the first refused item, in words."""
        if self.quarantined is None:
            return ""
        return str(self.quarantined["detail"][0].as_py() or "")

    def services(self) -> dict[str, int]:
        """Stored rows by service name."""
        counts = pc.value_counts(self.table["service_name"])
        names, numbers = counts.field("values"), counts.field("counts")
        return {
            str(name or "(no service.name)"): int(number)
            for name, number in zip(names.to_pylist(), numbers.to_pylist(), strict=True)
        }


def to_record(request: Request) -> bytes:
    """The spool record: tag, time of receipt, body."""
    tag = _TAG_OF[request.origin, request.encoding, request.signal]
    return _HEADER.pack(tag, request.received_unix_ns) + request.body


def from_record(record: bytes) -> Request:
    """Undo :func:`to_record`; SourceError for a record of a kind this version does not know."""
    if len(record) < _HEADER.size:
        raise SourceError("a spool record is too short", where=f"{len(record)} bytes")
    tag, received_unix_ns = _HEADER.unpack_from(record)
    if tag not in _OF_TAG:
        raise SourceError(
            f"a spool record has the unknown kind {tag}",
            how="a newer tracekit may have written it; start that version on this store",
        )
    origin, encoding, signal = _OF_TAG[tag]
    return Request(signal, encoding, origin, received_unix_ns, record[_HEADER.size :])


def decode(request: Request, *, oldest_back_ns: int, keep_text: bool) -> Entry:
    """Rows to store and rows to quarantine. SourceError if the body as a whole is unreadable."""
    if request.encoding == "json":
        decoded = decode_otlp_json(request.signal, request.body, keep_text=keep_text)
    else:
        decoded = decode_otlp_protobuf(request.signal, request.body, keep_text=keep_text)
    if not decoded.table.schema.equals(DECODED_SCHEMA[request.signal]):
        # Found out now, it costs one request; found out at the commit, it would block them all.
        raise TypeError(f"decoded {request.signal} have other columns than the store")
    oldest = request.received_unix_ns - oldest_back_ns
    newest = request.received_unix_ns + NEWEST_AHEAD_NS
    table, quarantined = decoded.table, None
    times = table[TIME_COLUMN[TABLE_OF_SIGNAL[request.signal]]]
    if decoded.rejected or not _all_within(times, oldest, newest):
        stamped, quarantined = stamp(
            decoded,
            origin=request.origin,
            now_unix_ns=request.received_unix_ns,
            oldest_unix_ns=oldest,
            newest_unix_ns=newest,
        )
        table = stamped.select(table.column_names)
        if quarantined.num_rows == 0:
            quarantined = None
    size_bytes = table.nbytes + (0 if quarantined is None else quarantined.nbytes)
    return Entry(
        signal=request.signal,
        origin=request.origin,
        received_unix_ns=request.received_unix_ns,
        table=table,
        quarantined=quarantined,
        size_bytes=size_bytes,
    )


def _all_within(times: pa.ChunkedArray, oldest: int, newest: int) -> bool:
    bounds = pc.min_max(times)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    return low is None or (oldest <= low and high <= newest)
