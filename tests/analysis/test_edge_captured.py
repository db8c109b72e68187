"""The recorded edge cases: aborted, refused, n > 1, one token, no traceparent. None is lost.

The engine leaves no span for an aborted or refused call, and one span a choice for n > 1.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

from tests.analysis import _captures as captures

Row = dict[str, Any]

#: kind of call → how many, and the status each must get
KINDS = {
    "cancel-mid-decode": (6, "aborted"),
    "gone-before-first-token": (2, "aborted"),
    "n3": (4, "ok"),
    "n3-no-trace": (1, "ok"),
    "one-token": (4, "ok"),
    "completions-api": (4, "ok"),
    "no-traceparent": (4, "ok"),
    "too-long": (2, "error"),
}

VIEWS = ["spans and log", "spans", "log"]


@cache
def _records(view: str) -> list[Row]:
    spans = None if view == "log" else captures.spans("edge")
    log = None if view == "spans" else captures.log("edge")
    return captures.records(captures.derived(spans, log))


def _by_kind(view: str) -> dict[str, list[Row]]:
    """Kind of call → its requests, found through the client's log by trace or request id."""
    kinds = {}
    for row in captures.log("edge").to_pylist():
        kind = row["route"].removeprefix("edge/")
        kinds[row["request_id"]] = kind
        if row["trace_id"]:
            kinds[row["trace_id"]] = kind
    out: dict[str, list[Row]] = {}
    for record in _records(view):
        bare = (record["request_id"] or "").removeprefix("chatcmpl-")
        kind = kinds.get(record["trace_id"]) or kinds[bare]
        out.setdefault(kind, []).append(record)
    return out


@pytest.mark.parametrize("view", VIEWS)
def test_every_call_is_one_request_of_the_right_class(view: str) -> None:
    found = {
        kind: Counter(record["status"] for record in records)
        for kind, records in _by_kind(view).items()
    }
    assert found == {kind: Counter({status: n}) for kind, (n, status) in KINDS.items()}
    records = _records(view)
    assert len({record["request_key"] for record in records}) == 27
    assert Counter(record["status"] for record in records) == {"ok": 17, "aborted": 8, "error": 2}
    assert all(record["quarantine_reason"] is None for record in records)
    assert all(record["superseded_attempt"] == 0 for record in records)


@pytest.mark.parametrize("view", VIEWS)
def test_a_call_cut_in_decode_keeps_its_first_token(view: str) -> None:
    for record in _by_kind(view)["cancel-mid-decode"]:
        assert 0 < record["ttft_ms"] < record["e2e_ms"]
        assert record["queue_or_prefill_ms"] == pytest.approx(record["ttft_ms"], abs=0.3)
        assert record["decode_ms"] > 50
        # nothing says how the engine spent the time before the first token
        assert record["queue_ms"] is None
        assert record["prefill_ms"] is None


@pytest.mark.parametrize("view", VIEWS)
def test_a_call_given_up_before_the_first_token_was_all_waiting(view: str) -> None:
    for record in _by_kind(view)["gone-before-first-token"]:
        assert record["ttft_ms"] is None
        assert record["decode_ms"] is None
        assert record["e2e_ms"] > 400
        assert record["queue_or_prefill_ms"] == record["e2e_ms"]
        assert record["coverage"] == 1


@pytest.mark.parametrize("view", VIEWS)
def test_a_refused_call_has_an_end_and_no_token(view: str) -> None:
    for record in _by_kind(view)["too-long"]:
        assert record["ttft_ms"] is None
        assert record["tpot_ms"] is None
        assert record["tokens_per_s"] is None
        assert 0 < record["e2e_ms"] < 20
        assert record["error"]
        assert record["queue_or_prefill_ms"] is None


@pytest.mark.parametrize("view", VIEWS)
def test_choices_of_one_prompt_are_one_request_with_all_tokens(view: str) -> None:
    kinds = _by_kind(view)
    expected_choices = 1 if view == "log" else 3  # a log row does not say n
    for kind, tokens, score in (("n3", 72, 1.0), ("n3-no-trace", 24, 0.9)):
        for record in kinds[kind]:
            assert record["output_tokens"] == tokens
            assert record["choices"] == expected_choices
            if view == "spans":
                assert record["match_score"] == score
            if view != "log":
                # time per token of one choice, not of the three together
                assert record["tpot_ms"] == pytest.approx(
                    record["decode_ms"] / (tokens / 3 - 1), rel=0.1
                )
            assert 30 <= record["input_tokens"] <= 36


@pytest.mark.parametrize("view", VIEWS)
def test_one_token_outputs_have_no_time_per_token(view: str) -> None:
    for record in _by_kind(view)["one-token"]:
        assert record["output_tokens"] == 1
        assert record["tpot_ms"] is None
        assert record["ttft_ms"] == pytest.approx(record["e2e_ms"], abs=12)
        assert record["decode_ms"] < 12
        assert record["tokens_per_s"] == pytest.approx(1e3 / record["e2e_ms"])


def test_calls_without_traceparent_join_through_their_request_id() -> None:
    for record in _by_kind("spans and log")["no-traceparent"]:
        assert record["sources"] == "request_log,vllm"
        assert record["leg_roles"] == "client,engine"
        assert record["match_score"] == 0.95
        assert record["prefill_ms"] > 0
        assert record["network_ms"] > 0
    for record in _by_kind("spans")["no-traceparent"]:
        assert record["leg_roles"] == "engine"
        assert record["network_ms"] is None
        assert record["ttft_kind"] == "server"


def test_the_completions_api_joins_although_its_ids_end_in_the_prompt_index() -> None:
    for view in ("spans and log", "spans"):
        for record in _by_kind(view)["completions-api"]:
            assert record["leg_roles"] == "client,engine"
            assert record["match_score"] == 1


def test_every_span_and_row_is_used_once() -> None:
    con = captures.derived(captures.spans("edge"), captures.log("edge"))
    assert con.sql("select count(*), count(distinct leg_id) from legs").fetchall() == [(76, 76)]
    assert con.sql("select count(*) from leg_rows").fetchall() == [(76,)]
    assert con.sql("select sum(legs_count) from requests").fetchall() == [(76,)]
