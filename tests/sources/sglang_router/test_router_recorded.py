"""sglang-router alone, between stand-ins for workers: what its span tells and what it does not."""

from __future__ import annotations

from statistics import median

from tests.sources._recorded import client, recorded, sound


def test_six_calls_were_sent_on_and_a_probe_is_none() -> None:
    """Seven spans of eight calls were exported, one of them of /health; two calls were lost."""
    found = recorded("sglang_router/router_pd.otlp.jsonl.gz")
    assert sorted(found.by_id()) == [f"router_pd-000{n}" for n in (0, 3, 4, 5, 6, 7)]
    sound(found)


def test_a_client_sees_nothing_before_both_workers_have_answered() -> None:
    found = recorded("sglang_router/router_pd.otlp.jsonl.gz").by_id()
    calls = [c for c in client("sglang_router", "router_pd") if c["request_id"] in found]
    late_ms = [c["first_token_ms"] - found[c["request_id"]]["ttft_ms"] for c in calls]
    assert min(late_ms) > 0
    assert median(late_ms) < 2
    # the router's own word is no measurement of a token
    legs = recorded("sglang_router/router_pd.otlp.jsonl.gz").legs
    assert all(leg["first_token_src"].startswith("inferred") for leg in legs)
