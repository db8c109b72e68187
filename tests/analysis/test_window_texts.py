"""Windows as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.analysis.window import (
    ALL,
    Window,
    parse_duration_ns,
    parse_range,
    parse_time_ns,
    parse_window,
)
from tracekit.errors import UsageError

S = 1_000_000_000
NOW = 1_795_982_400 * S  # 2026-11-29T20:00:00Z


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15m", 900 * S),
        ("1h30m", 5400 * S),
        ("250ms", S // 4),
        ("1.5s", 3 * S // 2),
        ("14d", 14 * 86_400 * S),
        ("2w", 14 * 86_400 * S),
        ("7us", 7_000),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert parse_duration_ns(text) == expected


@pytest.mark.parametrize("text", ["", "15", "m", "15 m", "-5m", "5y", "1h-30m", "m5"])
def test_no_durations(text: str) -> None:
    with pytest.raises(UsageError, match="duration"):
        parse_duration_ns(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("15m", NOW - 900 * S),
        ("2026-11-29T20:00:00Z", NOW),
        ("2026-11-29T20:00:00", NOW),  # without a zone it is UTC
        ("2026-11-29T21:00:00+01:00", NOW),
        ("2026-11-29T20:00:00.000250Z", NOW + 250_000),
        ("2026-11-29", NOW - 20 * 3600 * S),
        (str(NOW), NOW),
        (" now ", NOW),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert parse_time_ns(text, now_unix_ns=NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "29.11.2026", "12345", "2026-13-01"])
def test_no_times(text: str) -> None:
    with pytest.raises(UsageError):
        parse_time_ns(text, now_unix_ns=NOW)


@pytest.mark.parametrize(
    "text", ["999999w", "999999999999999w", "1" * 20, "0001-01-01", "9999-12-31T23:59:59Z"]
)
def test_times_that_unix_ns_cannot_hold(text: str) -> None:
    for parse in (parse_range, parse_time_ns):
        with pytest.raises(UsageError, match=r"out of range|too long"):
            parse(text, now_unix_ns=NOW)


def test_ranges() -> None:
    assert parse_range("30m..15m", now_unix_ns=NOW) == Window(
        NOW - 1800 * S, NOW - 900 * S, "2026-11-29 19:30:00 UTC to 2026-11-29 19:45:00 UTC"
    )
    assert parse_range("15m", now_unix_ns=NOW).until_unix_ns is None
    assert parse_range("..15m", now_unix_ns=NOW).since_unix_ns is None
    assert parse_range("15m..", now_unix_ns=NOW).until_unix_ns is None
    assert parse_range("..", now_unix_ns=NOW) == ALL
    for empty in ("15m..30m", "now..now"):
        with pytest.raises(UsageError, match="empty"):
            parse_range(empty, now_unix_ns=NOW)


def test_windows_of_options() -> None:
    assert parse_window(None, None, now_unix_ns=NOW) == ALL
    assert ALL.text == "the whole store"
    assert parse_window("30m..15m", None, now_unix_ns=NOW).until_unix_ns == NOW - 900 * S
    both = parse_window("30m", "15m", now_unix_ns=NOW)
    assert (both.since_unix_ns, both.until_unix_ns) == (NOW - 1800 * S, NOW - 900 * S)
    with pytest.raises(UsageError, match="--until"):
        parse_window("30m..15m", "now", now_unix_ns=NOW)


@given(st.text(max_size=24))
def test_any_text_parses_or_is_refused(text: str) -> None:
    for parse in (parse_range, parse_time_ns):
        try:
            parse(text, now_unix_ns=NOW)
        except UsageError:
            pass
