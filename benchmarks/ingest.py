"""OTLP bytes to rows that are committed and readable in `spans`, spool included.

Three ways, interleaved in one process, medians of CPU time a span:

* floor: a bare protobuf walk into the same columns, and a plain zstd Parquet file of them;
* tracekit: what the receiver does with a request after the socket (decode, spool with a sync,
  buffer, stamp, Delta commit), flushed at 10,000 spans;
* decode only: the walk of tracekit without spool and commit.

Goal: tracekit within 1.25x of the floor, and at least 40,000 spans per CPU second.

    python benchmarks/ingest.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from _otlp import SPANS_PER_MESSAGE, message
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracekit.ingest.otlp_protobuf import decode_otlp_protobuf
from tracekit.lake.schema import SPANS
from tracekit.lake.spool import Spool
from tracekit.lake.store import Store
from tracekit_collectors.config import CollectConfig
from tracekit_collectors.intake import Intake
from tracekit_collectors.journal import Journal
from tracekit_collectors.stats import Stats
from tracekit_collectors.writer import Writer

_MESSAGES = 80
_FLUSH_ROWS = 10_000


def _value(value: object) -> object:
    kind = value.WhichOneof("value")  # type: ignore[attr-defined]
    return getattr(value, kind) if kind else None


_HOT = {
    "operation_name": "gen_ai.operation.name",
    "model": "gen_ai.request.model",
    "request_id": "gen_ai.request.id",
    "response_id": "gen_ai.response.id",
    "http_route": "http.route",
    "tracekit_phase": "tracekit.phase",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
}


def _bare_walk(data: bytes) -> pa.Table:
    """The floor: no checks, no rejects, no text policy; the same columns."""
    rows = []
    for block in ExportTraceServiceRequest.FromString(data).resource_spans:
        resource = {a.key: _value(a.value) for a in block.resource.attributes}
        resource_json = orjson.dumps(resource).decode()
        for scope in block.scope_spans:
            for span in scope.spans:
                attributes = {a.key: _value(a.value) for a in span.attributes}
                rows.append(
                    (
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex() or None,
                        span.name,
                        span.kind,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        span.status.code,
                        span.status.message or None,
                        span.flags,
                        resource.get("service.name"),
                        resource.get("service.instance.id"),
                        resource.get("host.name"),
                        None,
                        None,
                        scope.scope.name,
                        scope.scope.version,
                        *(attributes.get(key) for key in _HOT.values()),
                        orjson.dumps(attributes).decode(),
                        resource_json,
                        None,
                        None,
                        "otlp_grpc",
                        time.time_ns(),
                        "2026-11-29",
                    )
                )
    columns = zip(*rows, strict=True)
    return pa.Table.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, SPANS.schema, strict=True)],
        schema=SPANS.schema,
    )


def _floor(messages: list[bytes], folder: Path) -> None:
    held: list[pa.Table] = []
    rows = part = 0
    for data in messages:
        held.append(_bare_walk(data))
        rows += SPANS_PER_MESSAGE
        if rows >= _FLUSH_ROWS:
            part += 1
            pq.write_table(pa.concat_tables(held), folder / f"{part}.parquet", compression="zstd")
            held, rows = [], 0
    if held:
        pq.write_table(pa.concat_tables(held), folder / "last.parquet", compression="zstd")


def _tracekit(messages: list[bytes], folder: Path) -> int:
    config = CollectConfig(store=folder / "store", flush_interval_s=60.0, flush_rows=_FLUSH_ROWS)
    store = Store.open(config.store, create=True)
    stats = Stats()
    with Spool.open(config.spool_dir, max_bytes=config.max_spool_bytes) as spool:
        journal = Journal(
            spool,
            max_rows=config.max_buffer_rows,
            max_bytes=config.max_buffer_bytes,
            flush_rows=config.flush_rows,
        )
        writer = Writer(
            store,
            journal,
            stats,
            spool_id=spool.id,
            flush_interval_s=config.flush_interval_s,
            oldest_back_ns=config.oldest_back_ns,
            keep_text=False,
            set_aside_dir=store.path / ".spool-set-aside",
        )
        journal.start()
        writer.start()
        intake = Intake(config, journal, stats)
        for data in messages:
            intake.accept("traces", encoding="protobuf", origin="otlp_grpc", body=data)
        journal.close()
        writer.stop()
    return store.snapshot("spans").rows


def main() -> None:
    """Print the medians and the ratios."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    now = time.time_ns()
    messages = [message(seed, start_unix_ns=now) for seed in range(_MESSAGES)]
    spans = _MESSAGES * SPANS_PER_MESSAGE
    took: dict[str, list[float]] = {"floor": [], "tracekit": [], "decode only": []}
    for round_ in range(rounds + 1):
        for name in took:
            with tempfile.TemporaryDirectory() as folder:
                start = time.process_time()
                if name == "floor":
                    _floor(messages, Path(folder))
                elif name == "tracekit":
                    rows = _tracekit(messages, Path(folder))
                    assert rows == spans, f"{rows} rows readable of {spans}"
                else:
                    for data in messages:
                        decode_otlp_protobuf("traces", data)
                if round_:  # the first round warms up
                    took[name].append((time.process_time() - start) / spans)
    floor = statistics.median(took["floor"])
    size = sum(map(len, messages)) / spans
    print(f"{spans} spans a round, {size:.0f} bytes and 15 attributes a span, {rounds} rounds")
    for name, values in took.items():
        at = statistics.median(values)
        print(f"{name:12} {at * 1e6:7.2f} us/span {1 / at:9,.0f} spans/CPU s  {at / floor:5.2f}x")


if __name__ == "__main__":
    main()
