"""Recorded vLLM traffic as raw rows, through the importer that users' files go through.

Owns loading and the shortest way from raw rows to derived tables in memory; asserts nothing.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tracekit.analysis.derive import derive
from tracekit.ingest.importer import import_paths
from tracekit.lake.schema import TABLES
from tracekit.lake.store import Store

INGESTED_NS = 1_796_000_000_000_000_000
REVISION = 5

#: Scenario → how many calls its client made.
CALLS = {
    "baseline": 48,
    "edge": 27,
    "long-prompt": 72,
    "pd-nixl": 60,
    "prefix-cache": 80,
    "queue": 120,
}

#: Where recordings lie: those of the demo are in the package.
_FOLDERS = (Path(__file__).parents[1] / "data" / "vllm", Path(str(files("tracekit"))) / "demo_data")


def _file(scenario: str, *endings: str) -> str:
    for ending in endings:
        for folder in _FOLDERS:
            path = folder / f"{scenario}.{ending}"
            if path.exists():
                return str(path)
    raise FileNotFoundError(f"{scenario}.{endings[0]}")


@cache
def _imported(scenario: str, table: str) -> pa.Table:
    path = (
        _file(scenario, "otlp.jsonl.gz", "otlp.pb.gz")
        if table == "spans"
        else _file(scenario, "requests.jsonl.gz")
    )
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "store", create=True)
        import_paths(store, [path], settle=False, now_unix_ns=INGESTED_NS)
        order = "trace_id, span_id, process_id" if table == "spans" else "log_key"
        query = f"select * from ({store.snapshot(table).scan_sql()}) order by {order}"
        rows: pa.Table = duckdb.connect().sql(query).to_arrow_table()
    return rows.select(TABLES[table].column_names).cast(TABLES[table].schema)


def spans(*scenarios: str) -> pa.Table:
    """Rows of the table `spans`."""
    return pa.concat_tables([_imported(scenario, "spans") for scenario in scenarios])


def log(*scenarios: str) -> pa.Table:
    """Rows of the table `request_log`: what the load client wrote down of the same traffic."""
    return pa.concat_tables([_imported(scenario, "request_log") for scenario in scenarios])


def empty(table: str) -> pa.Table:
    """No rows of a table."""
    return TABLES[table].schema.empty_table()


def derived(
    span_rows: pa.Table | None = None, log_rows: pa.Table | None = None
) -> duckdb.DuckDBPyConnection:
    """A connection with the derived tables of these raw rows (either may be left out)."""
    con = duckdb.connect()
    for name, rows in (("spans", span_rows), ("request_log", log_rows)):
        con.register("incoming", empty(name) if rows is None else rows)
        con.execute(f"create table {name} as select * from incoming")
        con.unregister("incoming")
    derive(con, revision=REVISION)
    return con


def records(con: duckdb.DuckDBPyConnection, where: str = "true") -> list[dict[str, Any]]:
    """Rows of `requests` as dicts, in order of their start."""
    rows: list[dict[str, Any]] = (
        con.sql(
            f"select * from requests where {where} order by start_unix_ns, request_id, request_key"
        )
        .to_arrow_table()
        .to_pylist()
    )
    return rows


def attributes(row: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a span row."""
    found: dict[str, Any] = json.loads(row["attributes"])
    return found
