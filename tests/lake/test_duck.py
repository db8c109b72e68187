"""What tracekit prints to standard output is its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracekit
from tracekit.lake.duck import connect, stand_back, suit


def test_duckdb_shows_no_progress_bar() -> None:
    with connect() as con:
        assert con.sql("select current_setting('enable_progress_bar')").fetchall() == [(False,)]


def test_every_connection_is_made_so() -> None:
    root = Path(tracekit.__file__).parent.parent
    packages = ("tracekit", "collectors", "dashboards")
    files = [path for package in packages for path in (root / package).rglob("*.py")]
    assert len(files) > 100
    others = {path.name for path in files if "duckdb.connect(" in path.read_text()}
    assert others == {"duck.py"}


def test_little_data_takes_one_core() -> None:
    def threads(rows: int) -> int:
        with connect() as con:
            con.execute("set threads = 4")
            suit(con, rows)
            ((count,),) = con.sql("select current_setting('threads')").fetchall()
        return int(count)

    assert threads(20_000) == 1
    assert threads(5_000_000) == 4


def test_standing_back_takes_half_of_the_cores_and_never_more_than_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)

    def threads(before: int) -> int:
        with connect() as con:
            con.execute(f"set threads = {before}")
            stand_back(con)
            ((count,),) = con.sql("select current_setting('threads')").fetchall()
        return int(count)

    assert threads(8) == 4
    assert threads(1) == 1
