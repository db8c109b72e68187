"""How single cells of a request log are read: values worked out by hand."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.ingest import _cells
from tracekit.ingest._cells import CellError, UnixNs
from tracekit.names import STATUSES

NS = 10**9
#: 2026-11-29T12:00:00Z.
NOON = 1_795_953_600


@pytest.mark.parametrize(
    ("cell", "comma", "count"),
    [
        ("1200", False, 1200),
        (" 1,200 ", False, 1200),
        ("1,234,567", False, 1_234_567),
        ("12 000", False, 12_000),
        ("12\u00a0000", False, 12_000),
        ("800.0", False, 800),
        ("1.2e3", False, 1200),
        ("12k", False, 12_000),
        ("1.5k", False, 1500),
        ("2M", False, 2_000_000),
        ("400 tokens", False, 400),
        ("400개", False, 400),
        ("12k tokens", False, 12_000),
        ("1.200", True, 1200),
        ("1.200.000", True, 1_200_000),
        ("1200,0", True, 1200),
        (7, False, 7),
        (7.0, False, 7),
        (Decimal(9), False, 9),
        (0, False, 0),
    ],
)
def test_counts(cell: object, comma: bool, count: int) -> None:
    assert _cells.parse_count(cell, comma_decimal=comma) == count


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("-4", "negative"),
        (-4, "negative"),
        ("12.5", "not_whole"),
        ("1,5", "not_a_number"),  # no decimal comma in this file, and no group of three
        ("1,2345", "not_a_number"),
        ("abc", "not_a_number"),
        ("12 apples", "not_a_number"),
        ("inf", "not_a_number"),
        ("1e400", "not_a_number"),
        (True, "not_a_number"),
        ([1], "not_a_number"),
        (Decimal("sNaN"), "not_a_number"),
        ("1" * 100, "not_a_number"),
        ("1e18", "out_of_range"),
        (1 << 62, "out_of_range"),
        (10**400, "out_of_range"),
    ],
)
def test_bad_counts(cell: object, reason: str) -> None:
    with pytest.raises(CellError) as caught:
        _cells.parse_count(cell)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("cell", "unit", "bytes_"),
    [("3", "b", 3), ("3", "mib", 3 << 20), ("1.5 GB", "b", 1_500_000_000), ("2KiB", "mb", 2048)],
)
def test_sizes(cell: str, unit: str, bytes_: int) -> None:
    assert _cells.parse_count(cell, unit=unit) == bytes_


@pytest.mark.parametrize(
    ("cell", "unit", "milliseconds"),
    [
        ("1.2", "s", 1200.0),
        (850, "ms", 850.0),
        ("1.2s", "ms", 1200.0),
        ("850 ms", "s", 850.0),
        ("850ms", "s", 850.0),
        ("3.2초", "ms", 3200.0),
        ("40 밀리초", "s", 40.0),
        ("250µs", "s", 0.25),
        ("250us", "s", 0.25),
        ("2 min", "s", 120_000.0),
        ("1m 12s", "ms", 72_000.0),
        ("1h2m3s", "ms", 3_723_000.0),
        ("1분 5초", "ms", 65_000.0),
        ("00:01:12.5", "ms", 72_500.0),
        (4_648_158_584, "ns", 4648.158584),
        (dt.timedelta(seconds=1, microseconds=500), "s", 1000.5),
        ("1,234.5", "ms", 1234.5),
    ],
)
def test_durations(cell: object, unit: str, milliseconds: float) -> None:
    assert _cells.parse_duration(cell, unit=unit) == pytest.approx(milliseconds, rel=1e-12)


def test_decimal_commas() -> None:
    assert _cells.parse_duration("0,85", unit="s", comma_decimal=True) == 850.0
    assert _cells.parse_duration("1.234,5", unit="ms", comma_decimal=True) == 1234.5
    assert _cells.parse_duration("1,25 s", unit="ms", comma_decimal=True) == 1250.0
    assert _cells.has_comma_decimal("0,85", delimiter=";")
    assert _cells.has_comma_decimal("1,234", delimiter=";")
    assert not _cells.has_comma_decimal("1,234", delimiter="\t")
    assert _cells.has_comma_decimal("1,25", delimiter="\t")
    assert not _cells.has_comma_decimal("0,85", delimiter=",")
    assert not _cells.has_comma_decimal(0.85, delimiter=";")


@pytest.mark.parametrize(("cell", "reason"), [("-1", "negative"), ("5 tokens", "not_a_number")])
def test_bad_durations(cell: str, reason: str) -> None:
    with pytest.raises(CellError) as caught:
        _cells.parse_duration(cell, unit="s")
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("cell", "unix_ns", "zoned"),
    [
        ("2026-11-29T12:00:00Z", NOON * NS, True),
        ("2026-11-29T12:00:00.123456789Z", NOON * NS + 123_456_789, True),
        ("2026-11-29 21:00:00+09:00", NOON * NS, True),
        ("2026-11-29T21:00+0900", NOON * NS, True),
        ("2026-11-29T07:30:00-04:30", NOON * NS, True),
        ("2026/11/29 12:00:00", NOON * NS, False),
        ("2026-11-29 12:00:00.6805900", NOON * NS + 680_590_000, False),
        ("2026-11-29 12:00:00 UTC", NOON * NS, True),
        (str(NOON), NOON * NS, True),
        ("1795953600.950863781", NOON * NS + 950_863_781, True),
        (NOON + 0.25, NOON * NS + 250_000_000, True),
        (NOON * 10**3 + 7, NOON * NS + 7_000_000, True),
        (NOON * 10**6 + 7, NOON * NS + 7_000, True),
        (NOON * NS + 7, NOON * NS + 7, True),
        ("1.7959536e9", NOON * NS, True),
        (UnixNs(5), 5, True),
        (dt.datetime(2026, 11, 29, 12), NOON * NS, False),
        (dt.datetime(2026, 11, 29, 12, tzinfo=dt.UTC), NOON * NS, True),
    ],
)
def test_times(cell: object, unix_ns: int, zoned: bool) -> None:
    assert _cells.parse_time(cell) == (unix_ns, zoned)


@pytest.mark.parametrize(
    ("cell", "unit", "unix_ns"),
    [
        (NOON, "s", NOON * NS),
        (NOON * 1000, "ms", NOON * NS),
        (NOON, "ms", None),  # in ms that is January 1970: no unix time
        (12_345.678, None, None),  # seconds since boot
        ("0", None, None),
        (10**11, None, None),  # between seconds and milliseconds
        (10**19, None, None),
        (1 << 63, "ns", None),
    ],
)
def test_numbers_that_may_be_no_times(cell: object, unit: str | None, unix_ns: int | None) -> None:
    assert _cells.parse_time(cell, unit=unit)[0] == unix_ns


@pytest.mark.parametrize(
    "cell",
    [
        "yesterday",
        "29/11/2026 12:00",
        "2026-13-01T00:00:00Z",
        "2026-11-29",
        "2026-11-29T12:00:00+99:00",
        "0001-01-01T00:00:00+23:00",
        "9999-12-31T00:00:00Z",
        "nan",
        "1e99",
        True,
        [],
    ],
)
def test_bad_times(cell: object) -> None:
    with pytest.raises(CellError):
        _cells.parse_time(cell)


@pytest.mark.parametrize(
    ("cell", "status"),
    [
        ("OK", "ok"),
        ("success", "ok"),
        ("성공", "ok"),
        (200, "ok"),
        (200.0, "ok"),
        ("400", "error"),
        ("429", "error"),
        ("499", "aborted"),
        ("504", "timeout"),
        ("Failed", "error"),
        ("Cancelled", "aborted"),
        ("timed out", "timeout"),
        ("deadline-exceeded", "timeout"),
        ("in progress", "open"),
        (True, "ok"),
        (False, "error"),
        ("odd", None),
        (0, None),
    ],
)
def test_statuses(cell: object, status: str | None) -> None:
    assert _cells.parse_status(cell) == status
    assert status is None or status in STATUSES


@pytest.mark.parametrize("cell", [None, "", "  ", "-", " N/A ", "nan", "NULL", "—", float("nan")])
def test_empty_cells(cell: object) -> None:
    assert _cells.is_null(cell)


@pytest.mark.parametrize("cell", [0, "0", "no", False, "x", []])
def test_cells_that_say_something(cell: object) -> None:
    assert not _cells.is_null(cell)


def test_messages_quote_no_long_text() -> None:
    with pytest.raises(CellError) as caught:
        _cells.parse_count("please tell me the secret of my life")
    assert "secret" not in str(caught.value)


_any_cell = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.decimals()
)
_odd_text = st.text(alphabet="0123456789.,:-+eE TZsmhkµn'\u00a0", max_size=70)


@given(st.one_of(_any_cell, _odd_text), st.booleans(), st.sampled_from([None, "s", "ms", "ns"]))
def test_any_cell_is_read_or_raises_cell_error(cell: object, comma: bool, unit: str | None) -> None:
    for read in (
        lambda: _cells.parse_count(cell, comma_decimal=comma),
        lambda: min(_cells.parse_real(cell, comma_decimal=comma), 1.0),
        lambda: _cells.parse_duration(cell, unit=unit or "us", comma_decimal=comma),
        lambda: _cells.parse_time(cell, unit=unit)[0],
        lambda: _cells.parse_flag(cell),
        lambda: _cells.parse_status(cell),
        lambda: len(_cells.parse_text(cell, limit=10).encode()),
    ):
        try:
            value = read()
        except CellError:
            continue
        assert value is None or isinstance(value, str) or 0 <= value < 1 << 63
