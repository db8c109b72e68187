"""The notes beside the numbers: said where they matter, in every view, with the same numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from tests.analysis import factory
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.diagnosis import CacheSavings, ChunkPace, Diagnosis
from tracekit.analysis.savings import UNJUDGED
from tracekit.analysis.slo import parse_slo
from tracekit.report import diagnosis_md, diagnosis_text, side_notes


def _text(found: Diagnosis) -> str:
    console = Console(width=200, record=True)
    console.print(diagnosis_text.render(found, width=200))
    return console.export_text()


def _ended() -> Diagnosis:
    traffic = factory.clean(80)
    for rows, status in (
        (range(0, 6), "aborted"),
        (range(6, 10), "error"),
        (range(10, 15), "timeout"),
        (range(15, 20), "open"),
    ):
        traffic.set("status", np.array(rows), status)
    return diagnose_connection(traffic.connect(), parse_slo("ttft=800ms"))


def test_the_share_that_completed_stands_beside_the_percentiles() -> None:
    found = _ended()
    # five of the eighty are still open: they have not ended in any way
    assert found.requests.ended == 75 and found.requests.completed == 60
    assert found.requests.completed_share == pytest.approx(0.8)
    assert found.to_json()["requests"]["completed_share"] == pytest.approx(0.8)
    note, *_ = side_notes.percentile_notes(found)
    assert note == (
        "80 % of the requests completed (60 of 75 that ended): percentiles leave the others out"
    )
    assert note in _text(found)
    assert f"- {note}" in diagnosis_md.render(found)


def test_nothing_is_said_where_all_completed() -> None:
    found = diagnose_connection(factory.clean(60).connect(), parse_slo("ttft=800ms"))
    assert found.requests.completed_share == 1.0
    assert not any("completed" in note for note in side_notes.percentile_notes(found))
    assert "completed (" not in _text(found)


def test_nothing_ended() -> None:
    traffic = factory.clean(40)
    traffic.set("status", np.arange(40), "open")
    found = diagnose_connection(traffic.connect(), parse_slo("ttft=800ms"))
    assert found.requests.completed_share is None
    assert not list(side_notes.percentile_notes(found))


def test_the_chunk_gap_is_told_from_the_gap_between_tokens() -> None:
    pace = ChunkPace(chunk_gap_ms=8.7, token_gap_ms=3.5328, tokens_per_chunk=2.4583, n=80)
    plain = diagnose_connection(factory.clean(60).connect(), parse_slo("ttft=800ms"))
    found = replace(plain, chunks=pace)
    note, *_ = side_notes.percentile_notes(found)
    assert note == (
        "TPOT and ITL are per token, 3.53 ms at the median; a chunk brings 2.5 tokens (as many are "
        "accepted per decode step), so the chunk gap is 8.70 ms (n = 80)"
    )
    assert note in _text(found) and f"- {note}" in diagnosis_md.render(found)


def test_without_chunk_times_itl_is_unknown_and_no_second_tpot() -> None:
    traffic = factory.clean(400)
    unknown = diagnose_connection(traffic.connect(), parse_slo("ttft=800ms"))
    assert (unknown.percentiles["itl_ms"].p50, unknown.percentiles["itl_ms"].n) == (None, 0)
    assert unknown.percentiles["itl_ms"].kind == "unknown: no chunk times"
    (note,) = side_notes.percentile_notes(unknown)
    assert note.startswith("ITL, the gap between single tokens, is unknown")
    assert note in _text(unknown) and f"- {note}" in diagnosis_md.render(unknown)
    assert not any(line.startswith("ITL  ") for line in _text(unknown).splitlines())

    # 40 of them tell: theirs is known, p95 and p99 want more of them
    traffic.columns["max_gap_ms"] = [80.0] * 40 + [None] * 360
    some = diagnose_connection(traffic.connect(), parse_slo("ttft=800ms"))
    itl = some.percentiles["itl_ms"]
    tpot = (traffic.e2e_ms - traffic.ttft_ms)[:40]
    tokens = np.asarray(traffic.columns["output_tokens"][:40], dtype=float)
    assert itl.n == 40 and itl.p95 is None
    assert itl.p50 == pytest.approx(np.median(tpot / (tokens - 1)))
    assert itl.p50 != some.percentiles["tpot_ms"].p50
    assert not list(side_notes.percentile_notes(some))

    traffic.columns["max_gap_ms"] = [80.0] * 400
    whole = diagnose_connection(traffic.connect(), parse_slo("ttft=800ms"))
    itl, of_requests = whole.percentiles["itl_ms"], whole.percentiles["tpot_ms"]
    assert (itl.p50, itl.n, itl.kind) == (of_requests.p50, 400, "mean of each request")


def test_what_the_cache_saved_is_told_in_seconds_and_as_a_share() -> None:
    plain = diagnose_connection(factory.clean(60).connect(), parse_slo("ttft=800ms"))
    assert plain.prefix_cache is None and not list(side_notes.phase_notes(plain))
    saved = CacheSavings(
        saved_s=11.24, saved_share=0.0414, hits=76, n=84, sampled=84, fit_error=0.06, unjudged={}
    )
    decode = next(p for p in plain.phases if p.phase == "decode")
    found = replace(plain, prefix_cache=saved)
    (note,) = side_notes.phase_notes(found)
    assert note == (
        "the prefix cache saved about 11.2 s of prefill by hits in 76 of 84 requests: 4.1 % of "
        f"the time that these 84, with a hit or without, would have taken without it; "
        f"most time goes to decode ({decode.share:.0%})"
    ).replace("%)", " %)")
    assert note in _text(found) and f"- {note}" in diagnosis_md.render(found)
    (sampled,) = side_notes.phase_notes(replace(plain, prefix_cache=replace(saved, sampled=50)))
    assert "without it (counted over 50 of them); most" in sampled
    left = replace(saved, unjudged={"unfitted": 30, "reach": 2})
    (partly,) = side_notes.phase_notes(replace(plain, prefix_cache=left))
    assert (
        "; 32 of 108 requests with a hit are not in this: 30 of a kind with too few requests to "
        "tell what a prompt takes, 2 where too few prompts as large were computed in full; most"
    ) in partly


@pytest.mark.parametrize("reason", UNJUDGED)
def test_every_reason_not_to_judge_a_hit_has_words(reason: str) -> None:
    plain = diagnose_connection(factory.clean(60).connect(), parse_slo("ttft=800ms"))
    saved = CacheSavings(1.0, 0.1, 5, 60, 60, 0.1, {reason: 1})
    (note,) = side_notes.phase_notes(replace(plain, prefix_cache=saved))
    assert "; 1 of 6 requests with a hit is not in this: 1 " in note
