"""Small helpers over a DuckDB connection."""

from __future__ import annotations

from typing import Any

import duckdb


def one(con: duckdb.DuckDBPyConnection, query: str) -> tuple[Any, ...]:
    """The only row of ``query`` (fetched whole: an open result would block the connection)."""
    rows = con.execute(query).fetchall()
    return rows[0]


def normalised_id(column: str) -> str:
    """SQL: a request id without the engine's prefix (`chatcmpl-`) and prompt index (`cmpl-..-0`).

    The same rule as in ``sql/sources``: the id that client and server share.
    """
    bare = rf"regexp_replace({column}, '^cmpl-(.*)-\d+$', '\1')"
    return f"regexp_replace({bare}, '^(chatcmpl|cmpl)-', '')"
