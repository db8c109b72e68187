"""DuckDB connections as tracekit uses them: in memory, and silent."""

from __future__ import annotations

import duckdb


def connect() -> duckdb.DuckDBPyConnection:
    """A database in memory. DuckDB's own progress bar is off: it prints into standard output."""
    con = duckdb.connect()
    con.execute("set enable_progress_bar = false")
    return con
