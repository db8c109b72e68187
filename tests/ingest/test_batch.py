"""Dating rows and setting aside what must not become data."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracekit.errors import UsageError
from tracekit.ingest import Decoded, Rejected, decode_otlp_json, stamp
from tracekit.ingest.batch import PAYLOAD_BYTES, TABLE_OF_SIGNAL, cut_payload, stamp_rows
from tracekit.lake.schema import TABLES

SLOW_IS_FINE = [HealthCheck.too_slow]  # the machine may be busy
DAY_NS = 86_400 * 10**9
NOW = 1_795_982_589_773_017_088  # 2026-11-29
BAD = Rejected("traces", "bad_span_id", "why", "ab", None, "vllm", "{}")


def spans(*starts: int) -> Decoded:
    items = [
        {
            "traceId": "ab" * 16,
            "spanId": f"{number:016x}",
            "name": "chat",
            "startTimeUnixNano": start,
            "endTimeUnixNano": start + 1,
        }
        for number, start in enumerate(starts, 1)
    ]
    document = {"resourceSpans": [{"scopeSpans": [{"spans": items}]}]}
    decoded = decode_otlp_json("traces", json.dumps(document).encode())
    assert decoded.rejected == ()
    return decoded


def stamped(decoded: Decoded, **options: Any) -> tuple[pa.Table, pa.Table]:
    defaults = {"oldest_unix_ns": None, "newest_unix_ns": None}
    return stamp(decoded, origin="otlp_grpc", now_unix_ns=NOW, **(defaults | options))


def test_rows_get_origin_ingest_time_and_their_own_day() -> None:
    rows, quarantine = stamped(spans(1, DAY_NS - 1, DAY_NS, NOW))
    assert rows.schema == TABLES["spans"].schema
    assert rows["date"].to_pylist() == ["1970-01-01", "1970-01-01", "1970-01-02", "2026-11-29"]
    assert set(rows["origin"].to_pylist()) == {"otlp_grpc"}
    assert set(rows["ingested_unix_ns"].to_pylist()) == {NOW}
    assert quarantine.num_rows == 0 and quarantine.schema == TABLES["quarantine"].schema


@given(st.lists(st.integers(1, 2**63 - 2), min_size=1, max_size=5))
@settings(deadline=None, suppress_health_check=SLOW_IS_FINE)
def test_every_day_is_the_utc_day(starts: list[int]) -> None:
    rows, _ = stamped(spans(*starts))
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert rows["date"].to_pylist() == [
        (epoch + dt.timedelta(microseconds=start // 1000)).date().isoformat() for start in starts
    ]


def test_rows_out_of_range_go_to_quarantine_under_the_ingest_day() -> None:
    rows, quarantine = stamped(
        spans(NOW - 10, NOW - 11, NOW + 10, NOW + 11, 2**62),
        oldest_unix_ns=NOW - 10,
        newest_unix_ns=NOW + 10,
    )
    assert rows["start_unix_ns"].to_pylist() == [NOW - 10, NOW + 10]
    assert quarantine["reason"].to_pylist() == ["start_out_of_range"] * 3
    assert quarantine["date"].to_pylist() == ["2026-11-29"] * 3
    first = quarantine.to_pylist()[0]
    assert (first["trace_id"], first["span_id"]) == ("ab" * 16, f"{2:016x}")
    assert str(NOW - 11) in first["detail"] and str(NOW - 10) in first["detail"]
    assert json.loads(first["payload"])["start_unix_ns"] == NOW - 11


def test_one_sided_ranges() -> None:
    rows, _ = stamped(spans(5, NOW), oldest_unix_ns=6)
    assert rows["start_unix_ns"].to_pylist() == [NOW]
    rows, _ = stamped(spans(5, NOW), newest_unix_ns=6)
    assert rows["start_unix_ns"].to_pylist() == [5]


def test_refused_items_become_quarantine_rows() -> None:
    decoded = Decoded("traces", spans(NOW).table, (BAD,))
    _, quarantine = stamped(decoded, source_file="a.jsonl", source_row=7)
    assert quarantine.to_pylist() == [
        {
            "signal": "traces",
            "reason": "bad_span_id",
            "detail": "why",
            "trace_id": "ab",
            "span_id": None,
            "service_name": "vllm",
            "payload": "{}",
            "source_file": "a.jsonl",
            "source_row": 7,
            "origin": "otlp_grpc",
            "ingested_unix_ns": NOW,
            "date": "2026-11-29",
        }
    ]


def test_rows_without_a_time_get_the_ingest_day_and_are_in_range() -> None:
    document = {
        "resourceLogs": [
            {"scopeLogs": [{"logRecords": [{"timeUnixNano": "5"}, {"body": {"intValue": "1"}}]}]}
        ]
    }
    decoded = decode_otlp_json("logs", json.dumps(document).encode())
    rows, quarantine = stamped(decoded, oldest_unix_ns=NOW - 1, newest_unix_ns=NOW + 1)
    assert rows["date"].to_pylist() == ["2026-11-29"]
    assert quarantine.num_rows == 1
    rows, _ = stamped(decoded)
    assert rows["date"].to_pylist() == ["1970-01-01", "2026-11-29"]


@pytest.mark.parametrize("signal", TABLE_OF_SIGNAL)
def test_no_rows(signal: str) -> None:
    name = TABLE_OF_SIGNAL[signal]
    schema = [f for f in TABLES[name].schema][:-3]
    empty = Decoded(signal, pa.schema(schema).empty_table(), ())
    rows, quarantine = stamped(empty, oldest_unix_ns=1, newest_unix_ns=2)
    assert rows.schema == TABLES[name].schema
    assert rows.num_rows == quarantine.num_rows == 0


def test_request_log_rows_are_dated_too() -> None:
    schema = pa.schema([f for f in TABLES["request_log"].schema][:-3])
    rows = pa.table({n: [None, None] for n in schema.names}, schema=schema)
    rows = rows.set_column(
        rows.column_names.index("start_unix_ns"), "start_unix_ns", pa.array([None, 5], pa.int64())
    )
    stamped_rows = stamp_rows("request_log", rows, origin="import", now_unix_ns=NOW)
    assert stamped_rows.schema == TABLES["request_log"].schema
    assert stamped_rows["date"].to_pylist() == ["2026-11-29", "1970-01-01"]


def test_an_unknown_signal_is_the_callers_fault() -> None:
    with pytest.raises(UsageError):
        stamped(Decoded("profiles", pa.table({}), ()))


@given(st.text())
@settings(deadline=None, suppress_health_check=SLOW_IS_FINE)
def test_a_cut_payload_is_short_valid_and_a_beginning(text: str) -> None:
    long = text * (PAYLOAD_BYTES // max(len(text), 1) + 1) if text else "x" * (PAYLOAD_BYTES * 2)
    cut = cut_payload(long)
    assert len(cut.encode()) <= PAYLOAD_BYTES
    assert long.startswith(cut)
    assert cut_payload("short") == "short"
