"""DuckDB connections as tracekit uses them: in memory, and silent."""

from __future__ import annotations

import os
from typing import Final

import duckdb

#: Rows that one thread reads faster than two could share them out.
_FEW_ROWS: Final = 200_000


def suit(con: duckdb.DuckDBPyConnection, rows: int) -> None:
    """Take one core for little data: small statements on more threads wait for each other."""
    if rows < _FEW_ROWS:
        con.execute("set threads = 1")


def stand_back(con: duckdb.DuckDBPyConnection) -> None:
    """Take at most half of the cores: the machine may be the one that serves, or that writes.

    Two threads of one core hinder each other: the second one of a pair makes a diagnosis 10 %
    faster for a third more CPU. A locked connection keeps what it has.
    """
    ((locked, threads),) = con.execute(
        "select current_setting('lock_configuration'), current_setting('threads')"
    ).fetchall()
    half = max((os.cpu_count() or 2) // 2, 1)
    if not locked and threads > half:
        con.execute(f"set threads = {half}")


def connect() -> duckdb.DuckDBPyConnection:
    """A database in memory. DuckDB's own progress bar is off: it prints into standard output."""
    con = duckdb.connect()
    con.execute("set enable_progress_bar = false")
    return con
