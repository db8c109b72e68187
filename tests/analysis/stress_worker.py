"""One process of the session stress test: writer, settler or reader. Run by test_stress."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from tracekit.analysis.session import Session
from tracekit.analysis.settle import Settler
from tracekit.lake.lock import settle_lock
from tracekit.lake.maintain import maintenance_pass
from tracekit.lake.schema import SPANS
from tracekit.lake.store import Store

BATCH = 20


def rows(writer: int, batch: int) -> pa.Table:
    """Client and engine span of BATCH requests; request ids say writer and running number."""
    now = time.time_ns()
    columns: dict[str, list[Any]] = {c.name: [] for c in SPANS.columns}
    for i in range(batch * BATCH, (batch + 1) * BATCH):
        trace_id = f"{writer:08x}{i:024x}"
        shared = {
            "trace_id": trace_id,
            "start_unix_ns": now - 1_000_000_000,
            "end_unix_ns": now - 100_000_000,
            "status_code": 0,
            "origin": "otlp_grpc",
            "ingested_unix_ns": now,
            "date": time.strftime("%Y-%m-%d", time.gmtime((now - 1_000_000_000) // 10**9)),
            "resource": "{}",
        }
        latency = {
            "gen_ai.latency.time_in_queue": 0.01,
            "gen_ai.latency.time_in_model_prefill": 0.05,
            "gen_ai.latency.time_to_first_token": 0.07,
            "gen_ai.latency.e2e": 0.8,
            "gen_ai.usage.prompt_tokens": 10,
            "gen_ai.usage.completion_tokens": 5,
        }
        engine = {
            "span_id": f"{2 * i + 1:016x}",
            "parent_span_id": f"{2 * i:016x}",
            "name": "llm_request",
            "kind": 2,
            "service_name": "vllm",
            "request_id": f"chatcmpl-{writer}-{i}",
            "attributes": json.dumps(latency),
        }
        client = {
            "span_id": f"{2 * i:016x}",
            "name": "chat m",
            "kind": 3,
            "service_name": "app",
            "operation_name": "chat",
            "model": "m",
            "response_id": f"chatcmpl-{writer}-{i}",
            "attributes": "{}",
        }
        for span in (client, engine):
            for name, values in columns.items():
                values.append(span.get(name, shared.get(name)))
    return pa.table(columns, schema=SPANS.schema)


def write(store: Store, writer: int, until_s: float) -> int:
    """Append batches until the time is up (on a busy machine: a few at least); how many."""
    batch = 0
    while time.time() < until_s or batch < 5:
        table = rows(writer, batch)
        assert store.append("spans", table, txn=(f"writer-{writer}", batch))
        if batch % 5 == 0:
            # an acknowledged batch that is sent again: under another transaction it lands twice
            assert store.append("spans", table, txn=(f"again-{writer}", batch))
        batch += 1
    return batch


def settle(store: Store, until_s: float) -> int:
    """Settle and maintain until the time is up; how many requests settled."""
    done = 0
    with settle_lock(store, blocking=True):
        settler = Settler(store, quiet_ns=500_000_000)
        while time.time() < until_s:
            done += settler.run_pass().settled
            maintenance_pass(store)
    return done


def read(store: Store, until_s: float) -> tuple[int, list[str]]:
    """Refresh and check until the time is up; how often, and what was wrong."""
    wrong: list[str] = []
    looks = 0
    with Session.open(store) as session:
        while time.time() < until_s:
            session.refresh()
            looks += 1
            wrong += check(session)
    return looks, wrong


def check(session: Session) -> list[str]:
    """Each writer's requests must be there once each, without a hole, in whole batches."""
    found = session.con.execute(
        """
        select split_part(request_id, '-', 1) as writer, count(*) as n,
            count(distinct request_id) as distinct_n,
            max(split_part(request_id, '-', 2)::bigint) + 1 as top,
            count(*) filter (where legs_count <> 2 or abs(e2e_ms - 900) > 1e-6) as torn
        from (select regexp_replace(request_id, '^chatcmpl-', '') as request_id, legs_count, e2e_ms
            from requests)
        group by all
        """
    ).fetchall()
    return [
        f"writer {writer}: {n} rows, {distinct_n} distinct, top {top}, torn {torn}"
        for writer, n, distinct_n, top, torn in found
        if not (n == distinct_n == top and top % BATCH == 0 and torn == 0)
    ]


def main() -> None:
    role, path, number, gate = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    store = Store.open(path)
    # everybody starts together, once all have loaded their libraries
    (gate / f"ready-{role}-{number}").touch()
    while not (gate / "go").exists():
        time.sleep(0.01)
    until = float((gate / "go").read_text()) + (0.0 if role == "writer" else 2.0)
    out: dict[str, Any]
    if role == "writer":
        out = {"batches": write(store, number, until)}
    elif role == "settler":
        out = {"settled": settle(store, until)}
    else:
        looks, wrong = read(store, until)
        out = {"looks": looks, "wrong": wrong[:5]}
    print(json.dumps(out))


if __name__ == "__main__":
    main()
