"""Attribute values on their way into JSON text, and what a resource says about its process.

The one place that knows how an OTLP value looks in the lake: 64-bit integers as JSON integers,
bytes as base64, NaN and the infinities as strings (JSON has none), keys in sorted order so that
the same attributes are the same text whichever decoder read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tracekit.ingest._text import drop_text

#: Nested arrays and maps in one attribute. Far above what instrumentation sends, and below
#: protobuf's own limit of 100 messages, so that both decoders draw the line at the same value.
MAX_DEPTH: Final = 24

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
INT32_MAX: Final = 2**31 - 1
INT32_MIN: Final = -(2**31)

_SORTED: Final = orjson.OPT_SORT_KEYS


#: Longest JSON text of a resource, and longest value kept of one that is longer.
_RESOURCE_CHARS: Final = 32_768
_WORD_CHARS: Final = 512


class BadItemError(Exception):
    """One span, point or record cannot be stored; never leaves `tracekit.ingest`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


def too_deep() -> BadItemError:
    """The error for an attribute nested deeper than `MAX_DEPTH`."""
    return BadItemError("too_deep", f"attribute nested more than {MAX_DEPTH} levels")


def finite(value: float) -> float | str:
    """``value``, or its name where JSON has no number for it."""
    if value - value == 0.0:  # NaN and the infinities fail this
        return value
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def dump(value: object) -> str:
    """JSON text with sorted keys."""
    return orjson.dumps(value, option=_SORTED).decode()


@dataclass(frozen=True, slots=True)
class Resource:
    """What a resource says about the process that sent it; ``text`` is all of it as JSON."""

    text: str
    service_name: str | None
    service_instance_id: str | None
    host_name: str | None
    process_id: str | None
    process_rank: str | None


def resource_of(attributes: dict[str, Any], *, keep_text: bool) -> Resource:
    """Reads the identity of a process out of its resource attributes."""
    if not keep_text:
        attributes = drop_text(attributes)
    return Resource(
        text=_resource_text(attributes),
        service_name=_word(attributes.get("service.name")),
        service_instance_id=_word(attributes.get("service.instance.id")),
        host_name=_word(attributes.get("host.name")),
        process_id=_word(attributes.get("process.pid", attributes.get("vllm.process_id"))),
        process_rank=rank_of(attributes) or _vllm_rank(attributes),
    )


def _resource_text(attributes: dict[str, Any]) -> str:
    """JSON of a resource; long values are cut, since every row of the process repeats it.

    BadItemError if it is too large even so: a megabyte here would become one a span.
    """
    text = dump(attributes)
    if len(text) <= _RESOURCE_CHARS:
        return text
    cut = {}
    for key, value in attributes.items():
        written = dump(value)
        cut[key] = value if len(written) <= _WORD_CHARS else written[:_WORD_CHARS] + "... (cut)"
    text = dump(cut)
    if len(text) > _RESOURCE_CHARS:
        raise BadItemError("resource_too_large", f"{len(text)} characters of resource attributes")
    return text


def rank_of(attributes: Mapping[str, Any]) -> str | None:
    """Rank as SGLang's scheduler spans name it, e.g. ``TP0 DP1``; None without a tp_rank."""
    if "tp_rank" not in attributes:
        return None
    names = (("tp_rank", "TP"), ("pp_rank", "PP"), ("dp_rank", "DP"))
    return " ".join(f"{label}{attributes[key]}" for key, label in names if key in attributes)


def _vllm_rank(attributes: Mapping[str, Any]) -> str | None:
    # Workers are named Worker_0 or Worker_TP0; engine cores EngineCore or EngineCore_DP0.
    name = attributes.get("vllm.process_name")
    return (name.partition("_")[2] or None) if isinstance(name, str) else None


def _word(value: object) -> str | None:
    if value is None:
        return None
    return (value if isinstance(value, str) else dump(value))[:_WORD_CHARS]
