"""Recordings from which one process's spans are taken away: what doctor and phases then say."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sources._recorded import DATA
from tracekit.analysis.doctor import Health, health
from tracekit.analysis.session import Session
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store

Keep = Callable[[str, dict[str, Any]], bool]


def _without(name: str, keep: Keep) -> tuple[Health, list[dict[str, Any]]]:
    """Health and requests of a recording with only the spans for which ``keep`` (service, span)."""
    lines = []
    with gzip.open(DATA / name, "rt") as recorded:
        for line in recorded:
            message = json.loads(line)
            for block in message["resourceSpans"]:
                (service,) = [
                    a["value"]["stringValue"]
                    for a in block["resource"]["attributes"]
                    if a["key"] == "service.name"
                ]
                for scope in block["scopeSpans"]:
                    scope["spans"] = [s for s in scope["spans"] if keep(service, s)]
            lines.append(json.dumps(message))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cut.jsonl"
        path.write_text("\n".join(lines))
        store = Store.open(Path(folder) / "s", create=True)
        import_paths(store, [str(path)])
        with Session.open(store) as session:
            return health(session), session.frame("select * from requests").to_dicts()


def _said(found: Health) -> list[str]:
    return [r.text for r in found.remarks if r.topic == "joins"]


def test_without_the_prefill_server_nothing_is_called_a_transfer() -> None:
    found, requests = _without(
        "sglang/pd-baseline.otlp.jsonl.gz", lambda service, _: service != "sglang-prefill"
    )
    assert any(
        t == "SGLang: 40 of 40 requests have a decode server's spans and none of their prefill "
        "server"
        for t in _said(found)
    )
    assert len(requests) == 40
    for request in requests:
        assert request["kv_transfer_ms"] is None
        assert request["prefill_ms"] is None
        assert request["queue_or_prefill_ms"] > 0


def test_without_the_decode_server_no_token_is_known() -> None:
    found, requests = _without(
        "sglang/pd-baseline.otlp.jsonl.gz", lambda service, _: service != "sglang-decode"
    )
    assert any("none of their decode server" in t for t in _said(found))
    assert all(r["decode_ms"] is None for r in requests)
    assert all(r["prefill_ms"] > 0 for r in requests)
    # nor when it was over: a prefill server is done before the answer begins
    assert all(r["e2e_ms"] is None for r in requests)


def test_without_workers_a_gateway_tells_of_no_server() -> None:
    found, requests = _without(
        "dynamo/agg_baseline.otlp.jsonl.gz", lambda service, _: service == "dynamo-frontend"
    )
    assert any("passed the gateway, and no server told of them" in t for t in _said(found))
    how = [r.how for r in found.remarks if "no server told" in r.text]
    assert "OTEL_TRACES_SAMPLER" in (how[0] or "")
    for request in requests:
        assert request["ttft_ms"] is not None
        assert request["queue_or_prefill_ms"] > 0


@pytest.mark.parametrize("name", ["unified-baseline", "pd-baseline"])
def test_stages_without_their_root_are_counted_and_in_no_statistic(name: str) -> None:
    found, requests = _without(
        f"sglang/{name}.otlp.jsonl.gz", lambda service, s: " Req " not in s["name"]
    )
    assert any("only stages came" in t for t in _said(found))
    cut = [r for r in requests if r["quarantine_reason"] == "incomplete_trace"]
    assert len(cut) >= 40
    (chain,) = [c for c in found.chains if c["source"] == "sglang"]
    assert chain["incomplete"] == len([r for r in cut if "sglang" in r["sources"].split(",")])


def test_without_the_prefill_workers_span_nothing_before_the_decode_worker_is_routing() -> None:
    def keep(_: str, span: dict[str, Any]) -> bool:
        named = {a["key"]: a["value"].get("stringValue") for a in span.get("attributes", ())}
        return bool(span["name"] != "handle_payload" or named["component"] != "prefill")

    _, requests = _without("dynamo/pd_slow_kv.otlp.jsonl.gz", keep)
    assert len(requests) == 40
    for request in requests:
        assert request["leg_roles"] == "gateway,router,decode_engine"
        assert request["route_ms"] is None
        assert request["kv_transfer_ms"] is None
        # the frontend's own word of the first token; the router's queue is measured before it
        before = request["queue_ms"] + request["queue_or_prefill_ms"]
        assert before == pytest.approx(request["ttft_ms"])
        assert request["unexplained_ms"] == pytest.approx(0)
