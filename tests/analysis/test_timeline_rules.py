"""The timeline over legs made by hand: what the rules say, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis._legs import leg, run_core
from tests.analysis._made import MS
from tests.analysis._made import client_leg as _client
from tests.analysis._made import engine_leg as _engine
from tests.analysis._made import known_phases as _known
from tests.analysis._made import one_record as _record


@pytest.mark.parametrize("force_sweep", [False, True])
def test_an_early_role_chunk_does_not_turn_queueing_into_decode(force_sweep: bool) -> None:
    record = _record(
        _client(first_token=5 * MS, ttft_kind="first_chunk"), _engine(), force_sweep=force_sweep
    )
    assert record["path"] == ("sweep" if force_sweep else "cut")
    assert _known(record) == {
        "network": 3 + 9,
        "frontend": 7 + 1,
        "queue": 490,
        "prefill": 100,
        "decode": 290,
        "unexplained": 0,
    }
    # nor is the role chunk the first token
    assert (record["ttft_ms"], record["ttft_kind"]) == (600, "server")
    assert record["tpot_ms"] == 290 / 29


@pytest.mark.parametrize("force_sweep", [False, True])
def test_a_clients_own_first_token_is_the_ttft(force_sweep: bool) -> None:
    record = _record(_client(), _engine(), force_sweep=force_sweep)
    assert (record["ttft_ms"], record["ttft_kind"]) == (605, "first_content")
    assert record["e2e_ms"] == 900
    assert record["tpot_ms"] == (900 - 605) / 29
    assert record["tokens_per_s"] == 30 / 0.9
    assert record["after_last_token_ms"] == 10


@pytest.mark.parametrize("force_sweep", [False, True])
def test_a_token_that_reached_the_client_after_the_engine_was_done_was_on_its_way(
    force_sweep: bool,
) -> None:
    one_token = {"first_token": 600 * MS, "last_token": 600 * MS, "leg_end": 601 * MS}
    record = _record(
        _client(first_token=640 * MS, last_token=640 * MS, output_tokens=1),
        _engine(**one_token, output_tokens=1),
        force_sweep=force_sweep,
    )
    assert record["ttft_ms"] == 640
    assert _known(record) == {
        "network": 3 + 39,
        "frontend": 7 + 1,
        "queue": 490,
        "prefill": 100,
        "decode": 0,
        "unexplained": 0,
    }


@pytest.mark.parametrize("force_sweep", [False, True])
def test_phases_that_no_leg_knows_are_null_not_zero(force_sweep: bool) -> None:
    alone = _record(_client(), force_sweep=force_sweep)
    assert _known(alone) == {"queue_or_prefill": 605, "decode": 295, "unexplained": 0}
    assert alone["coverage"] == 1
    # an engine that cannot tell queue from prefill
    merged = _record(
        _client(), _engine(queued=None, scheduled=None, engine="other"), force_sweep=force_sweep
    )
    assert _known(merged) == {
        "network": 3 + 9,
        "frontend": 1,
        "queue_or_prefill": 597,
        "decode": 290,
        "unexplained": 0,
    }
    # a known phase of no length is 0
    at_once = _record(_client(), _engine(queued=3 * MS, scheduled=3 * MS), force_sweep=force_sweep)
    assert _known(at_once) == {
        "network": 3 + 9,
        "frontend": 1,
        "queue": 0,
        "prefill": 597,
        "decode": 290,
        "unexplained": 0,
    }


@pytest.mark.parametrize("force_sweep", [False, True])
def test_time_that_no_boundary_covers_is_unexplained(force_sweep: bool) -> None:
    record = _record(_client(), _engine(queued=None), force_sweep=force_sweep)
    assert _known(record) == {
        "network": 3 + 9,
        "frontend": 1,
        "prefill": 100,
        "decode": 290,
        "unexplained": 497,
    }
    assert record["coverage"] == pytest.approx(1 - 497 / 900)
    # a call of which only start and end are known
    bare = _record(_client(first_token=None, last_token=None), force_sweep=force_sweep)
    assert _known(bare) == {"unexplained": 905}
    assert bare["coverage"] == 0


def test_a_client_that_gave_up_before_the_first_token_was_waiting() -> None:
    record = _record(
        _client(
            first_token=None, last_token=None, status="aborted", streaming=1, output_tokens=None
        )
    )
    assert _known(record) == {"queue_or_prefill": 905, "unexplained": 0}
    assert record["ttft_ms"] is None
    assert record["status"] == "aborted"


def test_where_claims_overlap_the_nearer_phase_wins() -> None:
    # a transfer that runs beside prefill is hidden by it; only what sticks out is kv_transfer
    record = _record(
        leg(
            "engine",
            recv=0,
            queued=0,
            scheduled=100 * MS,
            prefill_end=400 * MS,
            kv_start=200 * MS,
            kv_end=450 * MS,
            first_token=450 * MS,
            last_token=800 * MS,
        )
    )
    assert record["path"] == "sweep"
    assert _known(record) == {
        "frontend": 0,
        "queue": 100,
        "prefill": 300,
        "kv_transfer": 50,
        "decode": 350,
        "unexplained": 0,
    }


def test_a_client_that_saw_more_tokens_than_the_engine_told_of_goes_on_decoding() -> None:
    record = _record(_client(output_tokens=60, last_token=1500 * MS, leg_end=1500 * MS), _engine())
    assert record["decode_ms"] == 290 + 610
    assert record["output_tokens"] == 60


def test_boundaries_out_of_order_are_clipped_never_negative() -> None:
    # the engine's clock is 200 ms behind: it arrives before it was sent
    record = _record(_client(send=200 * MS), _engine())
    assert record["path"] == "sweep"
    assert record["e2e_ms"] == 700
    assert _known(record)["queue"] == 300
    # a last token before the first
    record = _record(_client(), _engine(last_token=550 * MS, leg_end=550 * MS))
    assert record["coverage"] <= 1


def test_each_interval_says_how_it_is_known() -> None:
    con = run_core({"r": [_client(), _engine(first_token_src="reported ttft")]})
    rows = con.execute(
        "select phase, provenance, field, role from phases order by start_unix_ns"
    ).fetchall()
    assert rows == [
        ("network", "measured", "server arrival", "client"),
        ("frontend", "inferred", "arrival until queued", "engine"),
        ("queue", "measured", "queued", "engine"),
        ("prefill", "reported", "ttft", "engine"),
        ("decode", "measured", "last_token", "engine"),
        ("frontend", "measured", "span end", "engine"),
        ("network", "measured", "last_token", "client"),
    ]


def _told(**more: Any) -> dict[str, Any]:
    """What a log row says of the phases, beside an engine's own leg."""
    times = {"queued": 2 * MS, "scheduled": 503 * MS, "first_token": 605 * MS} | more
    return leg("provider", source="request_log", **times)


@pytest.mark.parametrize("force_sweep", [False, True])
@pytest.mark.parametrize(
    ("own", "told", "queue", "unexplained"),
    [
        # as long as was told, up to when the engine's own leg says that it was scheduled
        ({"recv": None}, {"queued": 10 * MS}, 493, 7),
        # a queue before the sending began with it
        ({"recv": None}, {"queued": -200 * MS}, 500, 0),
        # or with the arrival, if it began before that by no more than a busy machine adds
        ({}, {}, 497, 0),
        # what began before the server was reached was another queue
        ({"recv": 100 * MS}, {}, None, 400),
        # the engine's own word stands
        ({"recv": None, "queued": 10 * MS}, {}, 490, 10),
    ],
)
def test_a_queue_that_only_the_caller_tells_is_known(
    own: dict[str, Any], told: dict[str, Any], queue: float, unexplained: float, force_sweep: bool
) -> None:
    engine = _engine(**({"queued": None, "engine": "llama.cpp", "leg_end": 890 * MS} | own))
    record = _record(_client(), engine, _told(**told), force_sweep=force_sweep)
    known = _known(record)
    assert known.get("queue") == queue
    assert (known["prefill"], known["decode"]) == (100, 290)
    # and 10 ms on the way back, of an engine whose arrival nobody told
    beside = 0 if own.get("recv", 1) else 10
    assert known["unexplained"] == unexplained + beside


@pytest.mark.parametrize("force_sweep", [False, True])
def test_a_caller_splits_what_an_engine_cannot(force_sweep: bool) -> None:
    engine = _engine(queued=None, scheduled=None, engine="other")
    assert _known(_record(_client(), engine, force_sweep=force_sweep))["queue_or_prefill"] == 597
    known = _known(_record(_client(), engine, _told(queued=5 * MS), force_sweep=force_sweep))
    # told: 498 ms queued up to 503; the engine's first token ends the prefill
    assert (known["frontend"], known["queue"], known["prefill"]) == (2 + 1, 498, 97)
    assert "queue_or_prefill" not in known
    # a prefill that is to begin after the first token is none
    late = _told(queued=None, scheduled=700 * MS)
    known = _known(_record(_client(), engine, late, force_sweep=force_sweep))
    assert known["queue_or_prefill"] == 597


@pytest.mark.parametrize("force_sweep", [False, True])
def test_arrivals_that_only_the_caller_tells_are_known(force_sweep: bool) -> None:
    engine = _engine(recv=None, queued=None, engine="other", leg_end=890 * MS)
    told = _told(recv=1 * MS, queued=6 * MS)
    known = _known(_record(_client(), engine, told, force_sweep=force_sweep))
    # 5 ms before the 497 of the queue, which end when the engine was scheduled
    assert known["queue"] == 497
    assert (known["frontend"], known["unexplained"]) == (3, 0)
    assert known["network"] == 10


@pytest.mark.parametrize("force_sweep", [False, True])
def test_a_wait_that_is_not_told_apart_begins_when_the_caller_says(force_sweep: bool) -> None:
    engine = _engine(queued=None, scheduled=None, engine="other")
    told = _told(queued=20 * MS, scheduled=None)
    known = _known(_record(_client(), engine, told, force_sweep=force_sweep))
    assert (known["frontend"], known["queue_or_prefill"]) == (17 + 1, 580)


def test_a_gateway_that_tells_no_end_leaves_it_unknown() -> None:
    """sglang-router's span outlasts the answer by many seconds."""
    router = leg("gateway", recv=0)
    alone = _record(router)
    assert (alone["e2e_ms"], alone["quarantine_reason"], alone["status"]) == (None, None, "ok")
    assert _record(_client(), router)["e2e_ms"] == 900
    assert _record(router, _engine())["e2e_ms"] == 890
    assert _record(leg("gateway", recv=0, leg_end=20_000 * MS))["e2e_ms"] == 20_000


@pytest.mark.parametrize("gateway", [(), (leg("gateway", recv=0),)])
def test_a_prefill_server_is_done_before_the_answer_begins(gateway: tuple[dict[str, Any]]) -> None:
    prefill = _engine(output_tokens=1) | {"role": "prefill_engine"}
    unknown = _record(*gateway, prefill)
    for name in ("e2e_ms", "end_unix_ns", "tokens_per_s", "decode_ms", "quarantine_reason"):
        assert unknown[name] is None, name
    assert (unknown["queue_ms"], unknown["prefill_ms"]) == (490, 100)
    # with a client, or a gateway that tells when it was over, the end is known; nor does an answer
    # follow a prefill that failed
    assert _record(_client(), *gateway, prefill)["e2e_ms"] == 900
    assert _record(leg("gateway", recv=0, leg_end=2_000 * MS), prefill)["e2e_ms"] == 2_000
    assert _record(*gateway, prefill | {"status": "error"})["e2e_ms"] is not None
