"""Protobuf framing by hand, for the two questions that a parser cannot answer.

Which signal is a bare message (all three OTLP requests have the same outer shape), and which
items of a message that does not parse are still good. Sans-IO, never recursive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tracekit.errors import SourceError

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5

_WIDTH: Final = {FIXED64: 8, FIXED32: 4}


@dataclass(frozen=True, slots=True)
class Group:
    """The items under one resource and scope, all as raw bytes."""

    resource: bytes
    scope: bytes
    items: tuple[bytes, ...]


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, position after it); SourceError if it is cut or longer than 64 bits."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise SourceError("protobuf message is cut short", where=f"byte {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise SourceError("protobuf varint longer than 64 bits", where=f"byte {at}")


def fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(field number, wire type, bytes of the value) of one message; groups are refused."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        start = at
        if wire_type == LENGTH:
            length, start = read_varint(data, at)
            at = start + length
        elif wire_type == VARINT:
            _, at = read_varint(data, at)
        elif wire_type in _WIDTH:
            at += _WIDTH[wire_type]
        else:
            raise SourceError(f"protobuf wire type {wire_type}", where=f"byte {start}")
        if number == 0:
            raise SourceError("protobuf field number 0", where=f"byte {start}")
        if at > len(data):
            raise SourceError("protobuf message is cut short", where=f"byte {start}")
        yield number, wire_type, data[start:at]


def groups(data: bytes) -> Iterator[Group]:
    """Resources, scopes and raw items of an export request.

    Field 1 of the request is a resource block; in it field 1 is the resource and 2 a scope block;
    in that field 1 is the scope and 2 an item: the same numbers for traces, metrics and logs.
    """
    for block in _lengths(data, 1):
        resource = b"".join(_lengths(block, 1))  # parts of one message merge by concatenation
        for scope_block in _lengths(block, 2):
            yield Group(
                resource, b"".join(_lengths(scope_block, 1)), tuple(_lengths(scope_block, 2))
            )


def signal_of(data: bytes) -> str | None:
    """The signal of an export request by its first item's fields; None if it has no items.

    Only spans have fixed64 fields 7 and 8 (start, end), only log records 1 and 11 (times), and
    metrics have none at all.
    """
    for block in _lengths(data, 1):
        for scope in _lengths(block, 2):
            for item in _lengths(scope, 2):
                return _signal_of_item(item)
    return None


def _signal_of_item(item: bytes) -> str:
    seen = {(number, wire_type): len(value) for number, wire_type, value in fields(item)}
    if (7, FIXED64) in seen or (8, FIXED64) in seen:
        return "traces"
    if (1, FIXED64) in seen or (11, FIXED64) in seen:
        return "logs"
    # A span without times; anything else can only be a metric.
    return "traces" if seen.get((1, LENGTH)) == 16 and seen.get((2, LENGTH)) == 8 else "metrics"


def _lengths(data: bytes, wanted: int) -> Iterator[bytes]:
    for number, wire_type, value in fields(data):
        if number == wanted and wire_type == LENGTH:
            yield value
