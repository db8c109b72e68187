"""The timeline over legs made by hand: prefill and decode apart, hand-over, transfers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis._legs import leg
from tests.analysis._made import MS
from tests.analysis._made import client_leg as _client
from tests.analysis._made import known_phases as _known
from tests.analysis._made import one_record as _record


@pytest.mark.parametrize("force_sweep", [False, True])
def test_prefill_and_decode_servers_in_sequence(force_sweep: bool) -> None:
    record = _record(
        _client(intended_start=0, send=20 * MS),
        leg("gateway", recv=30 * MS, leg_end=898 * MS),
        leg(
            "prefill_engine",
            recv=40 * MS,
            queued=50 * MS,
            scheduled=80 * MS,
            first_token=200 * MS,
            leg_end=202 * MS,
            worker="p",
            engine="vllm",
            output_tokens=1,
        ),
        leg(
            "decode_engine",
            recv=230 * MS,
            queued=231 * MS,
            scheduled=300 * MS,
            first_token=330 * MS,
            last_token=890 * MS,
            leg_end=891 * MS,
            worker="d",
            engine="vllm",
            output_tokens=30,
        ),
        force_sweep=force_sweep,
    )
    assert record["path"] == ("sweep" if force_sweep else "cut")
    assert _known(record) == {
        "client_wait": 20,
        "network": 10 + 2,
        "route": 10 + 28 + 7,
        "frontend": 10 + 2 + 1 + 1,
        "queue": 30,
        "prefill": 120,
        "kv_transfer": 69 + 30,
        "decode": 560,
        "unexplained": 0,
    }
    assert record["kv_transfer_wait_ms"] == 69
    assert record["kv_transfer_recompute_ms"] == 30
    assert record["engine_step_wait_ms"] == 11
    assert (record["prefill_worker"], record["decode_worker"]) == ("p", "d")
    assert record["worker"] == "d"
    assert record["output_tokens"] == 30


#: A prefill server takes 120 ms for the prompt, the decode server 20 ms a step; it takes up at 230.
_P = {"recv": 40, "queued": 50, "scheduled": 80, "first_token": 200, "leg_end": 202}


def _handed_over(wait: float, prefill: float, *, force_sweep: bool = False, **more: Any) -> Any:
    """A decode server queues for ``wait`` ms, then calls ``prefill`` ms its prefill."""
    first = 231 + wait + prefill
    d = {"recv": 230, "queued": 231, "scheduled": 231 + wait, "first_token": first}
    d |= {"last_token": first + 580, "leg_end": first + 580}
    p_more = {k[2:]: v for k, v in more.items() if k.startswith("p_")}
    d_more = {"output_tokens": 30} | {k[2:]: v for k, v in more.items() if k.startswith("d_")}
    p_times = {k: v * MS for k, v in _P.items()}
    d_times = {k: round(v * MS) for k, v in d.items()}
    return _record(
        leg("prefill_engine", **(p_times | {"output_tokens": 1, "input_tokens": 900} | p_more)),
        leg("decode_engine", **(d_times | {"input_tokens": 900} | d_more)),
        force_sweep=force_sweep,
    )


def _parts(record: dict[str, Any]) -> tuple[Any, ...]:
    """How the decode server's queue and prefill time were read, in ms."""
    names = ("kv_transfer_ms", "kv_transfer_wait_ms", "kv_transfer_recompute_ms")
    return (*(record[n] for n in names), record["double_prefill_ms"])


@pytest.mark.parametrize("force_sweep", [False, True])
def test_a_decode_server_that_computes_the_prompt_again_prefills(force_sweep: bool) -> None:
    record = _handed_over(0.5, 110, force_sweep=force_sweep)
    assert record["path"] == ("sweep" if force_sweep else "cut")
    assert _parts(record) == (0, 0, 0, 110)
    assert record["prefill_ms"] == 120 + 110
    # what it waited for was no KV cache
    assert record["queue_ms"] == 30 + 0.5


@pytest.mark.parametrize("force_sweep", [False, True])
@pytest.mark.parametrize(
    ("wait", "prefill", "more", "parts"),
    [
        # a step, be it as long as the prompt took: short prompts
        (0.5, 39, {}, (39.5, 0.5, 39, 0)),
        (0.5, 70, {"d_output_tokens": 15}, (70.5, 0.5, 70, 0)),
        # clearly less than the prompt took
        (0.5, 59, {}, (59.5, 0.5, 59, 0)),
        # a KV cache may have come over while it waited, then the step is one of many requests
        (8, 79, {}, (87, 8, 79, 0)),
        # or it did not: nothing tells
        (8, 110, {}, (118, 8, None, None)),
        (0.5, 110, {"d_output_tokens": 1}, (110.5, 0.5, None, None)),
        (0.5, 110, {"p_scheduled": None}, (110.5, 0.5, None, None)),
        # unless bytes are told
        (0.5, 110, {"d_kv_bytes": 1_000}, (110.5, 0.5, 110, 0)),
        (8, 110, {"d_kv_bytes": 0}, (0, 0, 0, 110)),
        (8, 39, {"d_kv_bytes": 0}, (47, 8, 39, 0)),
        # or the tokens that it found; those of the prefill server tell nothing
        (0.5, 110, {"p_cached_tokens": 0, "d_cached_tokens": 899}, (110.5, 0.5, 110, 0)),
        (0.5, 110, {"p_cached_tokens": 640, "d_cached_tokens": 640}, (0, 0, 0, 110)),
        (0.5, 110, {"d_cached_tokens": 640}, (0, 0, 0, 110)),
    ],
)
def test_what_a_decode_server_calls_prefill(
    wait: float, prefill: float, more: dict[str, Any], parts: tuple[Any, ...], force_sweep: bool
) -> None:
    record = _handed_over(wait, prefill, force_sweep=force_sweep, **more)
    assert _parts(record) == parts
    assert record["unexplained_ms"] == 0


@pytest.mark.parametrize("force_sweep", [False, True])
@pytest.mark.parametrize("role", ["provider", "decode_engine"])
@pytest.mark.parametrize(
    ("start", "end", "wait", "wire"),
    [
        (261, 280, 30 + 20, 19),
        # all of the wait is wire, or none is
        (231, 300, 0, 69),
        (250, 250, 69, None),
    ],
)
def test_while_bytes_move_a_transfer_does_not_wait(
    start: int, end: int, wait: int, wire: int | None, role: str, force_sweep: bool
) -> None:
    record = _moved(start, end, role=role, force_sweep=force_sweep)
    assert record["path"] == (
        "sweep" if force_sweep or (wire is None and role != "provider") else "cut"
    )
    assert (record["kv_transfer_wait_ms"], record["kv_transfer_wire_ms"]) == (wait, wire)
    assert record["kv_transfer_ms"] == 69 + 30


@pytest.mark.parametrize("force_sweep", [False, True])
@pytest.mark.parametrize(
    ("start", "end", "wait", "wire"),
    [
        # what runs beside the prefill is hidden; another clock cannot move time from one phase
        (150, 280, 20, 49),
        (261, 500, 30, 39),
        # out of all reach: the wait is an upper bound as ever
        (900, 950, 69, None),
    ],
)
def test_a_stated_transfer_is_cut_to_the_decode_servers_queue_time(
    start: int, end: int, wait: int, wire: int | None, force_sweep: bool
) -> None:
    record = _moved(start, end, role="provider", force_sweep=force_sweep)
    assert (record["kv_transfer_wait_ms"], record["kv_transfer_wire_ms"]) == (wait, wire)
    assert record["kv_transfer_ms"] == 69 + 30
    assert record["frontend_ms"] == 10 + 2 + 1


def _moved(start: int, end: int, *, role: str, force_sweep: bool) -> dict[str, Any]:
    """As `_handed_over`: a wait of 69 ms, a step of 30 ms; bytes moved from ``start`` ms."""
    kv = {"kv_start": start * MS, "kv_end": end * MS}
    p = leg("prefill_engine", **{k: v * MS for k, v in _P.items()}, output_tokens=1)
    d_times = {"recv": 230, "queued": 231, "scheduled": 300, "first_token": 330}
    d_times |= {"last_token": 910, "leg_end": 910}
    d = {k: v * MS for k, v in d_times.items()} | (kv if role == "decode_engine" else {})
    beside = [leg(role, **kv)] if role == "provider" else []
    return _record(p, leg("decode_engine", **d, output_tokens=30), *beside, force_sweep=force_sweep)


@pytest.mark.parametrize("status", ["timeout", "error"])
def test_a_request_that_was_handed_over_and_never_heard_of_had_no_first_token(status: str) -> None:
    p = leg("prefill_engine", **{k: v * MS for k, v in _P.items()}, output_tokens=1, worker="p")
    client = {"send": 0, "leg_end": 9_000 * MS, "status": status, "streaming": 1}
    record = _record(
        leg("client", **client), leg("gateway", recv=30 * MS, leg_end=8_999 * MS, status=status), p
    )
    assert record["ttft_ms"] is None
    assert record["first_token_unix_ns"] is None
    assert (record["status"], record["e2e_ms"]) == (status, 9_000)
    assert _known(record) == {
        "network": 30,
        "route": 10,
        "frontend": 10 + 2,
        "queue": 30,
        "prefill": 120,
        "kv_transfer": 9_000 - 202,
        "unexplained": 0,
    }
    assert (record["kv_transfer_wait_ms"], record["kv_transfer_wire_ms"]) == (9_000 - 202, None)
    assert record["kv_transfer_recompute_ms"] is None
    assert (record["prefill_worker"], record["decode_worker"]) == ("p", None)


def test_what_a_caller_broke_off_may_have_had_tokens() -> None:
    p = leg("prefill_engine", **{k: v * MS for k, v in _P.items()}, output_tokens=1, worker="p")
    record = _record(leg("client", send=0, leg_end=9_000 * MS, status="aborted", streaming=1), p)
    assert record["ttft_ms"] is None
    assert not record["kv_transfer_ms"]
    assert record["unexplained_ms"] > 8_000


def test_a_decode_server_waiting_for_a_remote_prefill_is_not_a_transfer() -> None:
    record = _record(
        leg(
            "prefill_engine",
            recv=0,
            queued=0,
            scheduled=100 * MS,
            first_token=400 * MS,
            leg_end=400 * MS,
        ),
        leg(
            "decode_engine",
            recv=0,
            queued=0,
            scheduled=450 * MS,
            first_token=470 * MS,
            last_token=900 * MS,
            output_tokens=9,
        ),
    )
    assert record["path"] == "sweep"
    assert _known(record) == {
        "route": 0,
        "frontend": 0,
        "queue": 100,
        "prefill": 300,
        "kv_transfer": 70,
        "decode": 430,
        "unexplained": 0,
    }
