"""Numbers, times and sizes as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.report import formats, markdown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (math.nan, "-"),
        (0, "0 ms"),
        (0.0042, "4.2 us"),
        (0.00996, "10.0 us"),
        (-1e-9, "0 ms"),
        (0.5, "0.50 ms"),
        (9.949, "9.95 ms"),
        (12.34, "12.3 ms"),
        (99.6, "100 ms"),
        (812.4, "812 ms"),
        (999.6, "1.00 s"),
        (2345.6, "2.35 s"),
        (9_996, "10.0 s"),
        (59_940, "59.9 s"),
        (61_000, "1.0 min"),
        (7_200_000, "2.0 h"),
        (-250, "-250 ms"),
    ],
)
def test_durations_keep_three_digits(value: float | None, text: str) -> None:
    assert formats.ms(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "-"),
        (0.0, "0 %"),
        (0.0004, "<0.1 %"),
        (0.0123, "1.2 %"),
        (0.456, "46 %"),
        (0.9996, ">99.9 %"),
        (1.0, "100 %"),
    ],
)
def test_a_share_never_looks_like_none_or_all(share: float | None, text: str) -> None:
    assert formats.percent(share) == text


def test_sizes_times_and_counts() -> None:
    assert [formats.size(v) for v in (None, 0, 1023, 1536, 5 << 20, 3 << 40)] == [
        "-",
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]
    assert formats.time(1_790_000_000_123_456_789) == "2026-09-21 14:13:20.123 UTC"
    assert formats.time(None) == "-"
    assert formats.count(1_234_567) == "1,234,567"
    assert formats.plural(1, "request") == "1 request"
    assert formats.plural(2_000, "request") == "2,000 requests"
    assert [formats.age(s) for s in (None, 3, 119, 121, 7_300, 200_000)] == [
        "-",
        "3 s ago",
        "119 s ago",
        "2 min ago",
        "2 h ago",
        "2 d ago",
    ]


@given(st.text(), st.integers(min_value=1, max_value=60))
def test_cut_never_exceeds_its_width(text: str, width: int) -> None:
    cut = formats.cut(text, width)
    assert len(cut) <= width
    assert cut == text or len(text) > width


def test_cut_keeps_both_ends() -> None:
    cut = formats.cut("chatcmpl-0123456789-abcdef", 12)
    assert cut.startswith("chatcm") and cut.endswith("def")


def test_markdown_cells_cannot_break_the_table() -> None:
    text = markdown.table(("a", "b"), [("x|y", "two\nlines")], right=("b",))
    assert text.splitlines() == ["| a | b |", "| --- | ---: |", "| x\\|y | two lines |"]


def test_who_was_quicker_than_expected_lost_nothing() -> None:
    assert [formats.excess(v) for v in (-55_000.0, 0.0, 120.0, None)] == [
        "none", "0 ms", "120 ms", "-",
    ]  # fmt: skip
