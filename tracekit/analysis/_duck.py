"""Small helpers over a DuckDB connection."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa


def one(con: duckdb.DuckDBPyConnection, query: str) -> tuple[Any, ...]:
    """The only row of ``query`` (fetched whole: an open result would block the connection)."""
    rows = con.execute(query).fetchall()
    return rows[0]


def run(
    con: duckdb.DuckDBPyConnection, query: str, params: Mapping[str, Any] | None = None
) -> None:
    """Run one statement whose text comes again and again: it is parsed once.

    Parsing is a third of what a statement over few rows costs. (Prepared statements save no more:
    DuckDB plans one over tables anew each time.)
    """
    statement = _parsed(threading.get_ident(), query)
    if params is None:
        con.execute(statement)
    else:
        con.execute(statement, params)


@lru_cache(maxsize=256)
def _parsed(thread: int, query: str) -> duckdb.Statement:
    """The statement for one thread: what runs in two at once would have to be shareable."""
    (statement,) = duckdb.extract_statements(query)
    return statement


def put(con: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    """Make `rows` the temporary table `name`."""
    con.register("_incoming", rows)
    try:
        con.execute(f"create or replace temp table {name} as select * from _incoming")
    finally:
        con.unregister("_incoming")


def replace(con: duckdb.DuckDBPyConnection, name: str, definition: str) -> None:
    """Make ``name`` anew by ``create temp DEFINITION``: a table or a view, whatever it was."""
    kinds = con.execute(
        "select 'view' from duckdb_views() where temporary and view_name = $name "
        "union all select 'table' from duckdb_tables() where temporary and table_name = $name",
        {"name": name},
    ).fetchall()
    for (kind,) in kinds:
        con.execute(f"drop {kind} {name}")
    con.execute(f"create temp {definition}")


def defined(con: duckdb.DuckDBPyConnection, names: Sequence[str]) -> bool:
    """Whether the connection has all of these tables or views."""
    wanted = ", ".join(f"'{n}'" for n in names)
    (found,) = one(
        con,
        "select count(distinct name) from (select table_name as name from duckdb_tables() "
        f"union all select view_name from duckdb_views()) where name in ({wanted})",
    )
    return bool(found == len(names))


def normalised_id(column: str) -> str:
    """SQL: a request id without the engine's prefix (`chatcmpl-`) and prompt index (`cmpl-..-0`).

    The same rule as in ``sql/sources``: the id that client and server share.
    """
    bare = rf"regexp_replace({column}, '^cmpl-(.*)-\d+$', '\1')"
    return f"regexp_replace({bare}, '^(chatcmpl|cmpl)-', '')"
