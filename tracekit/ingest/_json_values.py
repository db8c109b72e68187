"""Values out of OTLP/JSON: ids in hex or base64, 64-bit integers as strings, enums by name.

Collector files write ids in hex; a plain protobuf-to-JSON dump writes them in base64. Both are
told apart by their length. Fields that are null count as absent, unknown fields are ignored, as
protobuf's JSON mapping has it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from tracekit.ingest._attrs import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    MAX_DEPTH,
    BadItemError,
    finite,
    too_deep,
)
from tracekit.ingest._text import drop_text

_SHOWN_CHARS: Final = 80


def attributes_of(pairs: Any) -> dict[str, Any]:
    """Attributes of an item from its list of {key, value}; the last of two equal keys wins.

    BadItemError, TypeError or ValueError (and their kin, see `SHAPE_ERRORS`) if malformed.
    """
    out: dict[str, Any] = {}
    for pair in pairs or ():
        key = pair.get("key", "")
        value: Any = pair.get("value")
        if value:  # the two commonest kinds by hand, the others below
            plain = value.get("stringValue")
            if plain.__class__ is str:
                value = plain
            else:
                digits = value.get("intValue")
                if digits.__class__ is str and len(digits) < 19 and plain is None:
                    value = int(digits)
                else:
                    value = any_value(value, 0)
        else:
            value = None
        if key.__class__ is not str:
            raise TypeError("attribute key is not a string")
        out[key] = value
    return out


#: What walking JSON of the wrong shape raises.
SHAPE_ERRORS: Final = (AttributeError, TypeError, ValueError, KeyError, OverflowError)


def any_value(value: Any, depth: int) -> Any:
    """An AnyValue object as a plain value; see `SHAPE_ERRORS`."""
    if not value:
        return None
    for kind, item in value.items():
        if item is None:
            continue
        if kind == "stringValue":
            if item.__class__ is not str:
                raise TypeError("stringValue is not a string")
            return item
        if kind == "intValue":
            number = integer(item)
            if not INT64_MIN <= number <= INT64_MAX:
                raise BadItemError("int_out_of_range", f"intValue {show(item)}: not 64-bit")
            return number
        if kind == "doubleValue":
            return finite(double(item))
        if kind == "boolValue":
            if item.__class__ is not bool:
                raise TypeError("boolValue is not true or false")
            return item
        if kind == "bytesValue":
            return base64.b64encode(base64.b64decode(item, validate=True)).decode()
        if kind in ("arrayValue", "kvlistValue"):
            if depth >= MAX_DEPTH:
                raise too_deep()
            values = item.get("values") or ()
            if kind == "arrayValue":
                return [any_value(v, depth + 1) for v in values]
            pairs = {kv.get("key", ""): any_value(kv.get("value"), depth + 1) for kv in values}
            if not all(key.__class__ is str for key in pairs):
                raise TypeError("key of a kvlist is not a string")
            return pairs
    return None


def integer(value: Any) -> int:
    """An integer in any of its JSON forms: number, decimal string, integral float; null is 0."""
    if value.__class__ is str or value.__class__ is int:
        return int(value)
    if value is None:
        return 0
    if value.__class__ is float and value.is_integer():
        return int(value)
    raise TypeError("not an integer")


def double(value: Any) -> float:
    """A double: number or string (``NaN``, ``Infinity``, ``-Infinity`` included); null is 0."""
    if value is None:
        return 0.0
    if value.__class__ is bool or not isinstance(value, int | float | str):
        raise TypeError("not a number")
    return float(value)


def enum(value: Any, names: Mapping[str, int]) -> int:
    """An enum by number or by name; BadItemError if it is neither."""
    if value.__class__ is str:
        known = names.get(value)
        if known is not None:
            return known
    try:
        number = integer(value)
    except SHAPE_ERRORS:
        raise BadItemError("bad_enum", f"{show(value)} is no known enum value") from None
    if not INT32_MIN <= number <= INT32_MAX:
        raise BadItemError("bad_enum", f"{show(value)} is no 32-bit integer")
    return number


def identifier(value: Any, width: int, reason: str) -> bytes:
    """``width`` bytes from hex or padded base64; empty for none; BadItemError(reason) else.

    Base64 of 16 or 8 bytes always ends in ``=``, so that it cannot be mistaken for hex.
    """
    if not value:
        return b""
    if value.__class__ is str:
        decoded = b""
        try:
            if len(value) == 2 * width:
                decoded = bytes.fromhex(value)
            elif len(value) == 4 * -(-width // 3) and value[-1] == "=":
                decoded = base64.b64decode(value, validate=True)
        except (ValueError, binascii.Error):
            pass  # refused below, with its text
        if len(decoded) == width:  # fromhex skips blanks, base64 of fewer bytes is as long
            return decoded
    raise BadItemError(reason, f"{show(value)}: not {width} bytes in hex or base64")


def text(value: Any) -> str:
    """A string field; null is empty."""
    if value is None:
        return ""
    if value.__class__ is not str:
        raise TypeError("not a string")
    return str(value)


def show(value: Any) -> str:
    """A value for a message, cut short."""
    return repr(value)[:_SHOWN_CHARS]


def payload_attributes(pairs: Any) -> dict[str, Any]:
    """Attributes for a payload: never text, and those that cannot be read are left out."""
    out: dict[str, Any] = {}
    for pair in pairs if isinstance(pairs, list) else ():
        try:
            out |= attributes_of([pair])
        except (BadItemError, *SHAPE_ERRORS):
            continue
    return drop_text(out)
