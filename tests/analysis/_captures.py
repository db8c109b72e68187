"""Recorded vLLM traffic as raw rows, through the decoders that users' data goes through.

Owns loading and the shortest way from raw rows to derived tables in memory; asserts nothing.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tracekit.analysis.derive import derive
from tracekit.ingest.batch import stamp, stamp_rows
from tracekit.ingest.otlp_json import decode_otlp_json
from tracekit.ingest.request_log import read_request_log
from tracekit.lake.schema import TABLES

DATA = Path(__file__).parents[1] / "data" / "vllm"
import os as _os

REQ = Path(_os.environ.get("H7DATA", str(DATA)))  # H7-DEV
INGESTED_NS = 1_796_000_000_000_000_000
REVISION = 5

SCENARIOS = ("baseline", "edge", "pd-nixl")


@cache
def spans(scenario: str) -> pa.Table:
    """Rows of the table `spans`, in the order they were received."""
    parts = []
    with gzip.open(DATA / f"{scenario}.otlp.jsonl.gz") as lines:
        for line in lines:
            decoded = decode_otlp_json("traces", line)
            assert not decoded.rejected
            rows, _ = stamp(
                decoded,
                origin="import",
                now_unix_ns=INGESTED_NS,
                oldest_unix_ns=None,
                newest_unix_ns=None,
            )
            parts.append(rows.select(TABLES["spans"].column_names))
    return pa.concat_tables(parts)


@cache
def log(scenario: str) -> pa.Table:
    """Rows of the table `request_log`: what the load client wrote down of the same traffic."""
    path = (
        DATA if (DATA / f"{scenario}.requests.jsonl.gz").exists() else REQ
    ) / f"{scenario}.requests.jsonl.gz"
    parts = []
    with gzip.open(path) as file:
        for batch in read_request_log(path.name, file, now_unix_ns=INGESTED_NS):  # type: ignore[arg-type]
            assert not batch.rejected
            rows = stamp_rows("request_log", batch.table, origin="import", now_unix_ns=INGESTED_NS)
            parts.append(rows.select(TABLES["request_log"].column_names))
    return pa.concat_tables(parts)


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
