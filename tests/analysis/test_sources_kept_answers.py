"""Answers that a gateway library kept from before are no requests: no model was asked."""

from __future__ import annotations

from tests.analysis import _captures as captures
from tests.analysis._spans import chat, table


def test_a_kept_answer_is_no_request() -> None:
    asked = chat("a", 0, 200, trace_name="a", gen_ai__response__id="r")
    kept = chat(
        "b",
        300,
        301,
        trace_name="b",
        gen_ai__response__id="r",
        tracekit__response_cache_hit=True,
    )
    (record,) = captures.records(captures.derived(table("spans", [asked, kept]), None))
    assert record["e2e_ms"] == 200
