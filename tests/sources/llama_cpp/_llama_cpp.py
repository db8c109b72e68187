"""Recorded traffic of llama.cpp's server: its logs as derived tables, and what the client saw.

Owns loading; asserts nothing.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tests.analysis._captures import INGESTED_NS, derived, records
from tests.sources import _recorded
from tracekit.ingest.importer import import_paths
from tracekit.lake.schema import TABLES
from tracekit.lake.store import Store

DATA = Path(__file__).parents[2] / "data" / "llama_cpp"
#: Zero of each log's clock.
LOG_START_NS = {"base": 1_795_988_353_842_848_499, "trace": 1_795_988_694_221_311_548}
FILES = {"base": DATA / "base.server-log.txt.gz", "trace": DATA / "trace.server-log.jsonl.gz"}
#: Scenarios of the log `base`, in the order in which they were run.
BASE = ("baseline", "long-prompt", "prefix-cache", "cancelled", "edge")


@cache
def imported(log: str) -> pa.Table:
    """Rows of `spans` of a log."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "store", create=True)
        import_paths(
            store,
            [str(FILES[log])],
            settle=False,
            now_unix_ns=INGESTED_NS,
            log_start_unix_ns=LOG_START_NS[log],
        )
        query = f"select * from ({store.snapshot('spans').scan_sql()}) order by trace_id"
        rows: pa.Table = duckdb.connect().sql(query).to_arrow_table()
    return rows.select(TABLES["spans"].column_names).cast(TABLES["spans"].schema)


@cache
def _derived(log: str) -> duckdb.DuckDBPyConnection:
    return derived(imported(log))


def requests(log: str) -> list[dict[str, Any]]:
    """Rows of `requests`, each with its engine leg's boundaries beside (`leg`)."""
    con = _derived(log)
    legs = {row["request_key"]: row for row in con.sql("from legs").to_arrow_table().to_pylist()}
    return [row | {"leg": legs[row["request_key"]]} for row in records(con)]


@cache
def client(scenario: str) -> list[dict[str, Any]]:
    """What the client wrote down, in order of sending."""
    return sorted(_recorded.client("llama_cpp", scenario), key=lambda row: int(row["send_unix_ns"]))


def of_scenario(scenario: str) -> list[dict[str, Any]]:
    """Requests of the log `base` that came while a scenario ran."""
    starts = [client(name)[0]["send_unix_ns"] for name in BASE]
    place = BASE.index(scenario)
    first = starts[place]
    last = starts[place + 1] if place + 1 < len(BASE) else 1 << 62
    # the load between `baseline` and the next one left no client record
    last = min(last, max(row["end_unix_ns"] for row in client(scenario)) + 2 * 10**9)
    return [r for r in requests("base") if first <= r["start_unix_ns"] < last]


def timings_of(row: dict[str, Any]) -> tuple[object, ...]:
    """prompt_n, prompt_ms, cache_n, predicted_n, predicted_ms of a client's row, as a log rounds
    them. Of a context that ran out the log does not tell what was cached."""
    told = row["timings"]
    known = row["kind"] != "context-runs-out"
    return (
        told["prompt_n"] if known else None,
        round(told["prompt_ms"], 2),
        told["cache_n"] if known else None,
        told["predicted_n"],
        round(told["predicted_ms"], 2),
    )
