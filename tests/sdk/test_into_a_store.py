"""The spans as a receiver gets them, and the requests that an import makes of them."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource

from tests.sdk._calls import APIS, Clients
from tests.sdk._facts import end_ns, event_ns, start_ns
from tracekit.analysis.session import Session
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store
from tracekit.testing import Captured, Script, capture, chunks_of

CHAT = APIS["chat"]


@pytest.fixture
def named() -> Iterator[Captured]:
    """Captured spans of a service with a name."""
    with capture(resource=Resource({"service.name": "chat-app"})) as spans:
        yield spans


def _requests(spans: Captured, folder: Path, form: str = "pb") -> list[dict[str, Any]]:
    """Rows of `requests` after an import of what an exporter would send, by start."""
    message = encode_spans(list(spans))
    path = folder / f"spans.{form}"
    if form == "pb":
        path.write_bytes(message.SerializeToString())
    else:
        path.write_text(json.dumps(_with_hex_ids(MessageToDict(message))))
    store = Store.open(folder / "store", create=True)
    summary = import_paths(store, [str(path)])
    assert summary.refused_count == 0
    assert summary.taken == len(spans)
    with Session.open(store) as session:
        query = "select * from requests order by start_unix_ns"
        rows: list[dict[str, Any]] = session.frame(query).to_dicts()
        gaps = session.frame("select * from token_gaps order by gap_index").to_dicts()
    for row in rows:
        row["gaps"] = [gap for gap in gaps if gap["request_key"] == row["request_key"]]
    return rows


def _with_hex_ids(part: Any) -> Any:
    """OTLP's JSON has ids in hex, where Protobuf's own has them in base64."""
    if isinstance(part, list):
        return [_with_hex_ids(one) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        name: base64.b64decode(value).hex()
        if name in ("traceId", "spanId", "parentSpanId")
        else _with_hex_ids(value)
        for name, value in part.items()
    }


@pytest.mark.parametrize("form", ["pb", "json"])
def test_a_stream_becomes_a_request(
    clients: Clients, named: Captured, tmp_path: Path, form: str
) -> None:
    script = Script(
        queue_ms=30, prefill_ms=40, chunks=20, gap_ms=5, prompt_tokens=100, cached_tokens=64
    )
    model = clients.server.script("m", script)
    clients.call(CHAT, model, stream_options={"include_usage": True})
    (row,) = _requests(named, tmp_path, form)
    span = named.call()
    (record,) = clients.server.records()
    assert row["status"] == "ok"
    assert row["request_id"] == record.request_id
    assert (row["model"], row["provider"]) == ("m", "openai")
    assert row["streaming"] == 1
    assert row["finish_reason"] == "stop"
    assert (row["input_tokens"], row["cached_tokens"], row["output_tokens"]) == (100, 64, 20)
    assert row["tokens_source"] == "server"
    assert row["ttft_kind"] == "first_content"
    first_ns = event_ns(span, "first_token")
    assert row["ttft_ms"] == pytest.approx((first_ns - start_ns(span)) / 1e6, abs=0.01)
    assert row["ttft_ms"] >= 70
    # measured by hand: from the first to the last chunk that brought a token
    offsets = chunks_of(span).offsets_us
    assert row["decode_ms"] == pytest.approx((offsets[-1] - offsets[0]) / 1e3, abs=0.02)
    assert row["tpot_ms"] == pytest.approx((offsets[-1] - offsets[0]) / 1e3 / 19, abs=0.02)
    assert row["queue_or_prefill_ms"] == pytest.approx(row["ttft_ms"], abs=0.02)
    assert row["e2e_ms"] == pytest.approx((offsets[-1]) / 1e3, abs=0.02)
    assert row["chunk_count"] == 20
    gaps = [(b - a) / 1e3 for a, b in itertools.pairwise(offsets)]
    assert row["max_gap_ms"] == pytest.approx(max(gaps), abs=0.01)
    assert [gap["gap_ms"] for gap in row["gaps"]] == pytest.approx(gaps, abs=0.01)


def test_a_stall_is_told(clients: Clients, named: Captured, tmp_path: Path) -> None:
    gap_ms = [5.0] * 9 + [250.0] + [5.0] * 9
    clients.call(CHAT, clients.server.script("m", Script(chunks=20, gap_ms=gap_ms)))
    (row,) = _requests(named, tmp_path)
    assert row["stall_ms"] > 200
    assert row["max_gap_ms"] >= 245
    assert [gap["gap_index"] for gap in row["gaps"] if gap["gap_ms"] > 240] == [10]


def test_phases_that_the_provider_told(clients: Clients, named: Captured, tmp_path: Path) -> None:
    script = Script(queue_ms=60, prefill_ms=40, chunks=10, gap_ms=4, timings="vllm", usage="always")
    clients.call(CHAT, clients.server.script("m", script))
    (row,) = _requests(named, tmp_path)
    (record,) = clients.server.records()
    assert row["queue_ms"] == pytest.approx(record.queue_ms, abs=0.01)
    assert row["prefill_ms"] == pytest.approx(record.prefill_ms, abs=0.01)
    assert row["legs_count"] >= 1
    assert row["decode_ms"] > 30


def test_how_calls_ended(clients: Clients, named: Captured, tmp_path: Path) -> None:
    server = clients.server
    server.script("fails", Script(status=500))
    server.script("breaks", Script(cut_after=5))
    server.script("hangs", Script(hang_after=5))
    server.script("late", Script(headers_ms=20_000))
    server.script("long", Script(chunks=500, gap_ms=3))
    server.script("nothing", Script(empty=True))
    made: list[tuple[str, dict[str, Any]]] = [
        ("fails", {}),
        ("breaks", {}),
        ("hangs", {"client_options": {"timeout": 0.2}}),
        ("late", {"client_options": {"timeout": 0.1}}),
        ("long", {"take": 10}),
        ("nothing", {}),
    ]
    for model, options in made:
        try:
            clients.call(CHAT, model, **options)
        except Exception:
            assert model in ("fails", "breaks", "hangs", "late")
    rows = {row["model"]: row for row in _requests(named, tmp_path)}
    assert {model: row["status"] for model, row in rows.items()} == {
        "fails": "error",
        "breaks": "error",
        "hangs": "timeout",
        "late": "timeout",
        "long": "aborted",
        "nothing": "error",
    }
    assert rows["fails"]["error"] == "openai.InternalServerError"
    assert rows["nothing"]["error"] == "empty_stream"
    assert rows["long"]["error"] is None
    # what was known by then is kept, and nothing is made up
    for model in ("breaks", "hangs", "long"):
        assert rows[model]["ttft_ms"] is not None
        assert rows[model]["chunk_count"] in (5, 9)
        assert rows[model]["output_tokens"] is None
    for model in ("fails", "late", "nothing"):
        assert rows[model]["ttft_ms"] is None
        assert rows[model]["decode_ms"] is None


def test_attempts_supersede_one_another(clients: Clients, named: Captured, tmp_path: Path) -> None:
    script = Script(status=429, retry_after_s=0.05, fail_first=2)
    model = clients.server.script("m", script)
    clients.call(CHAT, model, client_options={"max_retries": 2})
    rows = _requests(named, tmp_path)
    assert [row["attempt"] or 1 for row in rows] == [1, 2, 3]
    assert len({row["request_id"] for row in rows}) == 1
    assert [row["status"] for row in rows] == ["error", "error", "ok"]
    assert [row["superseded_attempt"] or 0 for row in rows] == [1, 1, 0]
    # the caller has waited since the first
    assert rows[2]["intended_start_unix_ns"] == rows[0]["start_unix_ns"]


def test_reasoning_and_whole_responses(clients: Clients, named: Captured, tmp_path: Path) -> None:
    api = APIS["messages"]
    script = Script(reasoning_chunks=6, chunks=6, gap_ms=10, prompt_tokens=50, cached_tokens=20)
    model = clients.server.script("m", script)
    clients.call(api, model)
    clients.call(api, model, streaming=False)
    streamed, whole = _requests(named, tmp_path)
    assert streamed["ttfa_ms"] - streamed["ttft_ms"] > 55
    assert (streamed["input_tokens"], streamed["cached_tokens"]) == (50, 20)
    assert (whole["input_tokens"], whole["output_tokens"], whole["status"]) == (50, 12, "ok")
    assert whole["ttft_ms"] is None
    assert whole["streaming"] in (0, None)
    span = named.calls[1]
    assert whole["e2e_ms"] == pytest.approx((end_ns(span) - start_ns(span)) / 1e6, abs=0.01)


def test_a_call_within_anothers_span_is_one_request(
    clients: Clients, named: Captured, tmp_path: Path
) -> None:
    """Another instrumentation of the same call: its span wraps ours."""
    from opentelemetry.trace import SpanKind

    tracer = named.provider.get_tracer("opentelemetry.instrumentation.openai_v2")
    with tracer.start_as_current_span(
        "chat m",
        kind=SpanKind.CLIENT,
        attributes={
            "gen_ai.operation.name": "chat",
            "gen_ai.system": "openai",
            "gen_ai.request.model": "m",
        },
    ):
        clients.call(CHAT, clients.server.script("m", Script(chunks=5)))
    rows = _requests(named, tmp_path)
    assert len([row for row in rows if not row["merged_into"]]) == 1
