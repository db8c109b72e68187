"""Sizes as people write them: ``512MiB``, ``20GB``, plain bytes."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from tracekit.errors import UsageError

_UNITS: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "t": 1 << 40,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_LARGEST: Final = (1 << 63) - 1
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")


def parse_size(text: str, *, option: str) -> int:
    """Bytes of ``512MiB``; UsageError naming ``option`` for what is no size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match.group(2).lower() not in _UNITS:
        raise UsageError(f"{option}: {text!r} is not a size; write e.g. 512MiB, 20GB, 1048576")
    size = int(Fraction(match.group(1)) * _UNITS[match.group(2).lower()])
    if size > _LARGEST:
        raise UsageError(f"{option}: {text[:40]!r} is larger than any disk")
    return size
