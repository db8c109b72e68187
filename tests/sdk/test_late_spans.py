"""A server's span and its phases may come in any order, and be settled in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

import tracekit
from tests.sdk._recorded import START_NS, Recorder
from tracekit.analysis.settle import Settler
from tracekit.ingest import decode_otlp_protobuf, stamp
from tracekit.lake.store import Store

S = 1_000_000_000


def _settled(folder: Path, parts: list[list[ReadableSpan]]) -> list[dict[str, Any]]:
    store = Store.open(folder, create=True)
    settler = Settler(store, quiet_ns=0, slack_ns=0)
    for i, spans in enumerate(parts):
        now = START_NS + (10 + i) * S
        decoded = decode_otlp_protobuf("traces", encode_spans(spans).SerializeToString())
        rows, _ = stamp(
            decoded, origin="sdk", now_unix_ns=now, oldest_unix_ns=None, newest_unix_ns=None
        )
        store.append("spans", rows)
        settler.run_pass(now + S // 2)
    columns = "request_key, queue_ms, prefill_ms, decode_ms, frontend_ms, output_tokens, leg_roles"
    rows = (
        duckdb.connect()
        .sql(
            f"select {columns}, merged_into from ({store.snapshot('requests').scan_sql()}) "
            "qualify row_number() over (partition by request_key order by revision desc) = 1"
        )
        .to_arrow_table()
        .to_pylist()
    )
    return [row for row in rows if row["merged_into"] is None]


@pytest.mark.parametrize("role", ["engine", "gateway"])
def test_any_order_settles_to_the_same(recorder: Recorder, tmp_path: Path, role: str) -> None:
    clock = recorder.clock
    with tracekit.request("chat", role=role, model="m") as r:
        clock.go(2)
        with r.phase("queue"):
            clock.go(30)
        with r.phase("prefill"):
            clock.go(40)
        for _ in range(3):
            r.token()
            clock.go(10)
    own = recorder.the_span()
    queue, *others = [s for s in recorder.spans() if s is not own]
    seen = []
    for i, order in enumerate(([[own], others, [queue]], [[queue], others, [own]])):
        (row,) = _settled(tmp_path / str(i), order)
        seen.append({k: v for k, v in row.items() if k != "request_key"})
    assert all(row == seen[0] for row in seen)
    assert (seen[0]["queue_ms"], seen[0]["output_tokens"]) == (30, 3)
    assert seen[0]["leg_roles"] == role
