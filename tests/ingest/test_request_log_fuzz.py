"""Any bytes: rows, refusals, `SourceError` or `UsageError`, and nothing else."""

from __future__ import annotations

import io
import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.chunks import unpack
from tracekit.errors import SourceError, UsageError
from tracekit.ingest._column_kinds import KINDS
from tracekit.ingest._column_names import ALIASES
from tracekit.ingest.batch import unstamped_schema
from tracekit.ingest.request_log import looks_like_request_log, read_request_log
from tracekit.names import STATUSES

SCHEMA = unstamped_schema("request_log")


def take(data: bytes) -> tuple[int, int] | None:
    """(rows, refusals), or None if the file was refused; checks what any row must keep to."""
    head = looks_like_request_log("x", data[:65536])
    assert head in (None, "csv", "json", "jsonl", "parquet")
    taken = refused = 0
    try:
        for batch in read_request_log("x", io.BytesIO(data), now_unix_ns=1_796_000_000 * 10**9):
            assert batch.table.schema == SCHEMA
            batch.table.validate(full=True)
            taken += batch.table.num_rows
            refused += len(batch.rejected)
            assert len(batch.rejected) == len(batch.rejected_rows)
            for row in batch.table.to_pylist():
                check(row)
            for item in batch.rejected:
                json.loads(item.payload)
    except (SourceError, UsageError):
        return None
    return taken, refused


def check(row: dict[str, object]) -> None:
    assert row["status"] in STATUSES
    for name, value in row.items():
        if name.endswith(("_ms", "_tokens", "_per_s")) and value is not None:
            assert isinstance(value, (int, float)) and value >= 0 and math.isfinite(value), name
    ttft, e2e = row["ttft_ms"], row["e2e_ms"]
    if isinstance(ttft, float) and isinstance(e2e, float):
        assert ttft <= e2e * 1.01 + 1.0
    start, end = row["start_unix_ns"], row["end_unix_ns"]
    if isinstance(start, int) and isinstance(end, int):
        assert start <= end
    if row["chunk_times"] is not None:
        unpack(str(row["chunk_times"]))
    if row["extra"] is not None:
        assert isinstance(json.loads(str(row["extra"])), dict)
    assert row["log_key"] and row["source_row"]


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    take(data)


_names = st.sampled_from(
    [*KINDS, *(key for keys in ALIASES.values() for key in keys), "TTFT (s)", "prompt", "odd"]
)
_texts = st.one_of(
    st.text(max_size=10),
    st.sampled_from(["1", "0", "-1", "1.5", "3s", "850 ms", "1,234", "N/A", "true", "ok", "[1,2]"]),
    st.sampled_from(["2026-11-29T12:00:00Z", "1795953600", "1795953600000000000", "1:AAA="]),
)
_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(_names, inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.lists(st.dictionaries(_names, _values, max_size=8), min_size=1, max_size=6), st.booleans()
)
def test_any_json_rows(rows: list[dict[str, object]], array: bool) -> None:
    rows[0]["ttft_ms"] = 5
    text = json.dumps(rows) if array else "\n".join(map(json.dumps, rows))
    result = take(text.encode())
    assert result is None or sum(result) == len(rows)


@given(
    st.lists(_names, min_size=1, max_size=8),
    st.lists(st.lists(_texts, max_size=9), max_size=6),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_any_table(names: list[str], rows: list[list[str]], mark: str, encoding: str) -> None:
    text = "\n".join(mark.join(row) for row in (["ttft_ms", *names], *rows))
    take(text.encode(encoding, "replace"))


def _samples() -> list[bytes]:
    rows = [
        {"id": f"r{i}", "start": 1795953600 + i, "ttft_ms": 5.5, "chunk_offsets_ms": [5.5, 7]}
        for i in range(20)
    ]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return [
        'id,TTFT,latency,비고\nr1,0.5,2.5,"a, b"\nr2,0.6,3.5,x\n'.encode(),
        "\n".join(map(json.dumps, rows)).encode(),
        json.dumps(rows).encode(),
        buffer.getvalue(),
    ]


@settings(max_examples=200)
@given(st.sampled_from(_samples()), st.data())
def test_spoiled_files(sample: bytes, data: st.DataObject) -> None:
    spoiled = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(spoiled) - 1))
        spoiled[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(spoiled))))
    take(bytes(spoiled[:cut]))
