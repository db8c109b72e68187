"""How numbers, times and sizes look to people. One place, so that text and Markdown agree."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

from tracekit.words import plural as plural

#: Code points that turn the direction of what follows: no part of a name that a person reads.
DIRECTIONS: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))

#: Shown where a value is not known. Never 0: an unknown time is not a short one.
UNKNOWN: Final = "-"


def ms(value: float | None) -> str:
    """A duration given in milliseconds, in the unit that keeps three digits."""
    if value is None or math.isnan(value):
        return UNKNOWN
    size = abs(value)
    if size >= 3_600_000:
        return f"{value / 3_600_000:.1f} h"
    if size >= 60_000:
        return f"{value / 60_000:.1f} min"
    if size >= 999.5:
        return f"{value / 1000:.2f} s" if size < 9_995 else f"{value / 1000:.1f} s"
    if size >= 99.5:
        return f"{value:.0f} ms"
    if size >= 9.95:
        return f"{value:.1f} ms"
    if size >= 0.01 or size == 0:
        return f"{value:.2f} ms".replace("0.00 ms", "0 ms")
    return f"{value * 1000:.1f} us" if size >= 5e-5 else "0 ms"


def excess(value: float | None) -> str:
    """What was lost, as a duration; who was quicker than expected lost nothing."""
    return "none" if value is not None and value < 0 else ms(value)


def seconds(value: float | None) -> str:
    """A duration given in seconds."""
    return ms(None if value is None else value * 1000)


def count(value: float | None) -> str:
    """A whole number with thousands separated."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def number(value: float | None, digits: int = 1) -> str:
    """A number with a fixed number of decimals, thousands separated."""
    if value is None or math.isnan(value):
        return UNKNOWN
    return f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    """A share of one as a percentage; a share that is neither none nor all never looks so."""
    if share is None or math.isnan(share):
        return UNKNOWN
    value = share * 100
    if 0 < value < 0.1:
        return "<0.1 %"
    if 99.9 < value < 100:
        return ">99.9 %"
    return f"{value:.0f} %" if value in (0, 100) or value >= 10 else f"{value:.1f} %"


def size(value: float | None) -> str:
    """Bytes in binary units."""
    if value is None:
        return UNKNOWN
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def time(unix_ns: int | None) -> str:
    """A point in time, UTC, with milliseconds."""
    if unix_ns is None:
        return UNKNOWN
    second, rest = divmod(unix_ns, 1_000_000_000)
    text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{rest // 1_000_000:03d} UTC"


def age(seconds_ago: float | None) -> str:
    """How long ago something was."""
    if seconds_ago is None:
        return UNKNOWN
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds_ago >= 2 * length:
            return f"{seconds_ago / length:.0f} {unit} ago"
    return f"{max(seconds_ago, 0):.0f} s ago"


def cut(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters, its middle left out where it is longer."""
    if len(text) <= width:
        return text
    if width < 5:
        return text[:width]
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"
