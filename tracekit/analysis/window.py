"""Windows of time as people write them: ISO times, unix ns, durations back from now, ``A..B``.

Owns parsing only; who applies a window decides what lies inside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tracekit.errors import UsageError

_UNIT_NS: Final[dict[str, int]] = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3_600 * 1_000_000_000,
    "d": 86_400 * 1_000_000_000,
    "w": 7 * 86_400 * 1_000_000_000,
}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h|d|w)")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_NS: Final = -62_135_596_800 * 10**9
_LAST_NS: Final = 253_402_300_800 * 10**9
_HOW: Final = (
    "write an ISO time (2026-11-29T10:00Z), unix ns, a duration back from now (15m) or A..B"
)


@dataclass(frozen=True)
class Window:
    """``since <= start < until`` in unix ns; ``None`` is open. ``text`` is for people."""

    since_unix_ns: int | None = None
    until_unix_ns: int | None = None
    text: str = "the whole store"


ALL: Final = Window()


def parse_duration_ns(text: str) -> int:
    """``15m``, ``1h30m``, ``250ms`` in nanoseconds; UsageError otherwise."""
    pos = 0
    total = 0.0
    for match in _DURATION.finditer(text):
        if match.start() != pos:
            break
        total += float(match.group(1)) * _UNIT_NS[match.group(2)]
        pos = match.end()
    if pos != len(text) or not text:
        raise UsageError(f"{text!r} is not a duration; write e.g. 15m, 1h30m, 250ms, 14d")
    if total >= 1 << 63:
        raise UsageError(f"{text[:40]!r} is too long; 64-bit nanoseconds reach 292 years")
    return int(total)


def parse_time_ns(text: str, *, now_unix_ns: int) -> int:
    """One point in time in unix ns: ISO (UTC if no zone is given), unix ns, or a duration ago.

    UsageError for text that is no time and for times that 64-bit unix ns cannot hold.
    """
    at = _time_ns(text.strip(), now_unix_ns)
    if not 0 <= at < 1 << 63:
        raise UsageError(f"{text.strip()!r} is out of range; times lie between 1970 and 2262")
    return at


def _time_ns(text: str, now_unix_ns: int) -> int:
    if text == "now":
        return now_unix_ns
    if re.fullmatch(r"\d{16,20}", text):
        return int(text)
    if _DURATION.fullmatch(text) or re.fullmatch(rf"(?:{_DURATION.pattern})+", text):
        return now_unix_ns - parse_duration_ns(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a time; {_HOW}") from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    delta = at - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000_000 + delta.microseconds * 1_000


def format_time(unix_ns: int) -> str:
    """``2026-11-29 10:00:00 UTC`` for people; seconds are floored."""
    if not _FIRST_NS <= unix_ns < _LAST_NS:
        raise UsageError(f"the time {unix_ns} ns lies outside the years 1 to 9999; {_HOW}")
    return datetime.fromtimestamp(unix_ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _window(since: int | None, until: int | None) -> Window:
    if since is not None and until is not None and since >= until:
        raise UsageError(
            f"the window is empty: it starts {format_time(since)} and ends {format_time(until)}"
        )
    if since is None and until is None:
        return ALL
    left = "the beginning" if since is None else format_time(since)
    right = "now" if until is None else format_time(until)
    return Window(since, until, f"{left} to {right}")


def parse_range(text: str, *, now_unix_ns: int) -> Window:
    """``A..B`` (either side may be empty), or one point: from it until now."""
    left, dots, right = text.partition("..")
    if not dots:
        return _window(parse_time_ns(left, now_unix_ns=now_unix_ns), None)
    since = parse_time_ns(left, now_unix_ns=now_unix_ns) if left.strip() else None
    until = parse_time_ns(right, now_unix_ns=now_unix_ns) if right.strip() else None
    return _window(since, until)


def parse_window(since: str | None, until: str | None, *, now_unix_ns: int) -> Window:
    """The window of ``--since`` and ``--until``; ``--since A..B`` alone is a range."""
    if since is not None and ".." in since:
        if until is not None:
            raise UsageError("--since A..B already names the end; leave --until out")
        return parse_range(since, now_unix_ns=now_unix_ns)
    return _window(
        None if since is None else parse_time_ns(since, now_unix_ns=now_unix_ns),
        None if until is None else parse_time_ns(until, now_unix_ns=now_unix_ns),
    )
