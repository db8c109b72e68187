"""One segment file of the spool: its bytes, how they are written and how they are believed.

::

    segment = header record*
    header  = "TKSPOOL1" first_seq:u64 crc32(the 16 bytes before):u32
    record  = length:u32 crc32(seq:u64 length:u32 payload):u32 payload

All little-endian. A record's checksum covers its sequence number, so that bytes in the wrong
place (an old block, a copied file) are not taken for the record that belongs there. Reading
stops at the first record that does not check; nothing after it is trusted, since lengths lead
from one record to the next. Must not decide what to do about it: that is the spool's.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

_MAGIC: Final = b"TKSPOOL1"
_HEAD: Final = struct.Struct("<8sQ")
_CRC: Final = struct.Struct("<I")
_RECORD: Final = struct.Struct("<II")
_BOUND: Final = struct.Struct("<QI")

HEADER_BYTES: Final = _HEAD.size + _CRC.size
RECORD_OVERHEAD_BYTES: Final = _RECORD.size
MAX_RECORD_BYTES: Final = 0xFFFF_FFFF

_SUFFIX: Final = ".spool"


@dataclass
class Segment:
    """A segment's place and extent; ``size_bytes`` counts only what checks."""

    path: Path
    first_seq: int
    records: int
    size_bytes: int

    @property
    def next_seq(self) -> int:
        return self.first_seq + self.records


def segment_path(directory: Path, first_seq: int) -> Path:
    return directory / f"{first_seq:020d}{_SUFFIX}"


def segment_paths(directory: Path) -> list[tuple[int, Path]]:
    """(first sequence number by its name, path) of every segment file, in order."""
    found = []
    for path in directory.glob(f"*{_SUFFIX}"):
        if path.stem.isdigit():
            found.append((int(path.stem), path))
    return sorted(found)


def header(first_seq: int) -> bytes:
    head = _HEAD.pack(_MAGIC, first_seq)
    return head + _CRC.pack(zlib.crc32(head))


def frame(first_seq: int, payloads: Sequence[bytes]) -> bytes:
    """The bytes of consecutive records starting at ``first_seq``."""
    parts = []
    for seq, payload in enumerate(payloads, first_seq):
        parts.append(_RECORD.pack(len(payload), _checksum(seq, payload)))
        parts.append(payload)
    return b"".join(parts)


def framed_bytes(payloads: Sequence[bytes]) -> int:
    """How many bytes `frame` will make of them."""
    return sum(map(len, payloads)) + RECORD_OVERHEAD_BYTES * len(payloads)


def scan(first_seq: int, path: Path) -> Segment | None:
    """Check a segment to its end or its first bad byte; None if not even its header checks."""
    with path.open("rb") as file:
        if not _header_checks(file, first_seq):
            return None
        segment = Segment(path, first_seq, 0, HEADER_BYTES)
        for payload in _payloads(file, first_seq):
            segment.records += 1
            segment.size_bytes += RECORD_OVERHEAD_BYTES + len(payload)
    return segment


def read(segment: Segment, from_seq: int) -> Iterator[tuple[int, bytes]]:
    """(sequence number, payload) of the segment's records from ``from_seq`` on.

    Yields at most the records ``segment`` counted when the reading began, so a record that is
    being appended meanwhile is never seen half.
    """
    records = segment.records
    with segment.path.open("rb") as file:
        if not _header_checks(file, segment.first_seq):
            return
        payloads = _payloads(file, segment.first_seq)
        for seq in range(segment.first_seq, segment.first_seq + records):
            payload = next(payloads, None)
            if payload is None:
                return
            if seq >= from_seq:
                yield seq, payload


def _header_checks(file: BinaryIO, first_seq: int) -> bool:
    return file.read(HEADER_BYTES) == header(first_seq)


def _payloads(file: BinaryIO, first_seq: int) -> Iterator[bytes]:
    end = os.fstat(file.fileno()).st_size
    at = HEADER_BYTES
    seq = first_seq
    while at + RECORD_OVERHEAD_BYTES <= end:
        length, crc = _RECORD.unpack(file.read(RECORD_OVERHEAD_BYTES))
        at += RECORD_OVERHEAD_BYTES + length
        if at > end:
            return  # a length that leads past the end: torn, or not a length at all
        payload = file.read(length)
        if len(payload) != length or _checksum(seq, payload) != crc:
            return
        yield payload
        seq += 1


def _checksum(seq: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_BOUND.pack(seq, len(payload))))
