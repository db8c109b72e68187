"""Attribute values out of raw protobuf: the loop in which the receiver spends its time."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import lru_cache
from struct import Struct
from typing import Any, Final

from google.protobuf.message import DecodeError

from tracekit.ingest._attrs import MAX_DEPTH, BadItemError, Resource, finite, resource_of, too_deep
from tracekit.ingest._schema import AnyValue, ResourceMessage
from tracekit.ingest._text import drop_text

_double: Final = Struct("<d").unpack_from

#: Raw AnyValue to its value, for short scalars that come again and again (model names, counts).
_scalars: dict[bytes, str | int | float | bool] = {}
_SCALARS_MAX: Final = 16_384
_SCALAR_BYTES: Final = 24

#: Resources kept parsed: so many, and none larger than this.
_RESOURCES_CACHED: Final = 256
_RESOURCE_BYTES: Final = 1 << 14


def parse_failure(error: DecodeError) -> BadItemError:
    """Why protobuf would not parse, in our words."""
    text = str(error)
    if "UTF-8" in text:
        return BadItemError("invalid_utf8", "a string is not UTF-8")
    if "MaxDepth" in text:
        return BadItemError("too_deep", "nested deeper than protobuf allows")
    return BadItemError("malformed", "protobuf does not parse")


def failure(error: BadItemError | UnicodeDecodeError) -> tuple[str, str]:
    """(reason, detail) of an item that raised ``error``."""
    if isinstance(error, UnicodeDecodeError):
        return "invalid_utf8", "an attribute value is not UTF-8"
    return error.reason, error.detail


def attributes_of(raw_attributes: Mapping[str, bytes]) -> dict[str, Any]:
    """Attributes of an item; scalars are read by hand.

    BadItemError or UnicodeDecodeError if one of them cannot be stored.
    """
    out: dict[str, Any] = {}
    known = _scalars.get
    for key in raw_attributes:
        raw = raw_attributes[key]
        value: Any = known(raw)
        if value is None:
            size = len(raw)
            if size == 9 and raw[0] == 0x21:  # double_value
                value = finite(_double(raw, 1)[0])
            elif 2 < size < 130 and raw[0] == 0x0A and raw[1] == size - 2:  # string_value
                value = raw[2:].decode()
                if size <= _SCALAR_BYTES:
                    _remember(raw, value)
            else:
                value = _value(raw)
        out[key] = value
    return out


def _remember(raw: bytes, value: str | int | float | bool) -> None:
    if len(_scalars) >= _SCALARS_MAX:
        _scalars.clear()
    _scalars[raw] = value


def _value(raw: bytes) -> Any:
    try:
        value = any_value(AnyValue.FromString(raw), 0)
    except DecodeError as error:
        raise parse_failure(error) from None
    if len(raw) <= _SCALAR_BYTES and isinstance(value, str | int | float):
        _remember(raw, value)
    return value


def any_value(value: Any, depth: int) -> Any:
    kind = value.WhichOneof("value")
    if kind == "int_value":
        return value.int_value
    if kind == "string_value":
        return value.string_value
    if kind == "bool_value":
        return value.bool_value
    if kind == "double_value":
        return finite(value.double_value)
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    if kind in ("array_value", "kvlist_value"):
        if depth >= MAX_DEPTH:
            raise too_deep()
        if kind == "array_value":
            return [any_value(v, depth + 1) for v in value.array_value.values]
        return {kv.key: any_value(kv.value, depth + 1) for kv in value.kvlist_value.values}
    return None


def resource_from(raw: bytes, keep_text: bool) -> Resource:
    """The resource behind these bytes; one process sends the same ones every time.

    BadItemError or UnicodeDecodeError if one of its attributes cannot be stored.
    """
    if len(raw) > _RESOURCE_BYTES:
        return _parsed_resource(raw, keep_text)
    return _known_resource(raw, keep_text)


def _parsed_resource(raw: bytes, keep_text: bool) -> Resource:
    attributes = attributes_of(ResourceMessage.FromString(raw).attributes)
    return resource_of(attributes, keep_text=keep_text)


_known_resource = lru_cache(maxsize=_RESOURCES_CACHED)(_parsed_resource)


def payload_attributes(raw_attributes: Mapping[str, bytes]) -> dict[str, Any]:
    """Attributes for a payload: never text, and those that cannot be read are left out."""
    out: dict[str, Any] = {}
    for key in raw_attributes:
        try:
            out |= attributes_of({key: raw_attributes[key]})
        except (BadItemError, UnicodeDecodeError):
            out[key] = None
    return drop_text(out)
