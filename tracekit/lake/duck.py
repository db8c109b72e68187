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
    """Take half of the cores, for work that goes on beside the writers all day.

    Small statements on many threads mostly wait for each other. A locked connection keeps what it
    has.
    """
    ((locked,),) = con.execute("select current_setting('lock_configuration')").fetchall()
    if not locked:
        con.execute(f"set threads = {max((os.cpu_count() or 2) // 2, 1)}")


def connect() -> duckdb.DuckDBPyConnection:
    """A database in memory. DuckDB's own progress bar is off: it prints into standard output."""
    con = duckdb.connect()
    con.execute("set enable_progress_bar = false")
    return con
