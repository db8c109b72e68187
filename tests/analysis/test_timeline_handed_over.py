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


def _untraced_decode(*more: dict[str, Any], **gateway: Any) -> dict[str, Any]:
    """A prefill server's leg below a gateway that ends at 1,000 ms; no decode server told a thing.

    The gateway's first token is when the headers came, as a router infers it.
    """
    p = leg("prefill_engine", **{k: v * MS for k, v in _P.items()}, output_tokens=1, worker="p")
    times = {"recv": 30 * MS, "leg_end": 1_000 * MS, "first_token_src": "inferred headers"}
    return _record(leg("gateway", **(times | gateway)), p, *more)


@pytest.mark.parametrize("headers", [None, 300, 990])
def test_what_an_untraced_decode_server_did_is_no_transfer_and_no_routing(
    headers: int | None,
) -> None:
    """Headers come before the first token of a stream, and after the last one otherwise."""
    record = _untraced_decode(first_token=None if headers is None else headers * MS)
    assert record["kv_transfer_ms"] is None
    assert record["decode_ms"] is None
    assert record["unexplained_ms"] == 1_000 - 202
    assert record["route_ms"] == 10
    assert record["e2e_ms"] == 970


def test_a_first_token_that_a_gateway_saw_bounds_the_transfer() -> None:
    record = _untraced_decode(first_token=300 * MS, first_token_src="reported ttft_ms")
    assert record["kv_transfer_ms"] == 300 - 200
    # and where it tells the last one too, it saw a stream, whatever its word for the first
    record = _untraced_decode(first_token=300 * MS, last_token=900 * MS)
    assert (record["kv_transfer_ms"], record["decode_ms"]) == (300 - 200, 600)
    assert record["unexplained_ms"] == 0


def test_a_client_of_an_untraced_decode_server_decodes_and_is_no_network() -> None:
    client = _client(send=20 * MS, first_token=300 * MS, last_token=1_010 * MS, leg_end=1_010 * MS)
    record = _untraced_decode(client)
    assert record["decode_ms"] == 1_010 - 300
    assert record["network_ms"] == 10
    assert record["unexplained_ms"] == 300 - 202
    assert record["kv_transfer_ms"] is None
    # an early chunk without a token tells nothing
    client = _client(send=20 * MS, first_token=100 * MS, last_token=1_010 * MS, leg_end=1_010 * MS)
    assert _untraced_decode(client)["unexplained_ms"] == 1_010 - 202


@pytest.mark.parametrize("status", ["ok", "error", "timeout"])
def test_only_a_stream_that_failed_was_all_waiting(status: str) -> None:
    """The answer to a call that is not streamed may have been on its way."""
    client = leg("client", send=20 * MS, leg_end=1_010 * MS, status=status, streaming=0)
    record = _untraced_decode(client)
    assert record["kv_transfer_ms"] is None
    assert record["unexplained_ms"] == 1_010 - 202


def _untold_prefill(*more: dict[str, Any], **decode: Any) -> dict[str, Any]:
    """A decode server's leg from 500 ms on; the prefill server before it told nothing."""
    times = {"recv": 500, "first_token": 600, "last_token": 900, "leg_end": 900}
    d = {k: v * MS for k, v in (times | decode).items()}
    return _record(leg("decode_engine", **d, output_tokens=30, worker="d"), *more)


@pytest.mark.parametrize("engine", [{}, {"queued": 510, "scheduled": 580}])
def test_before_a_decode_server_whose_prefill_server_told_nothing(engine: dict[str, int]) -> None:
    gateway = leg("gateway", recv=30 * MS, leg_end=910 * MS)
    client = leg("client", send=0, last_token=920 * MS, leg_end=920 * MS)
    for more, network in (([gateway], None), ([gateway, client], 30 + 10), ([client], 20)):
        record = _untold_prefill(*more, **engine)
        assert record["path"] == "sweep"
        first = 0 if network == 20 else 30
        transfer = 90 if engine else None
        assert record["queue_or_prefill_ms"] == (500 if engine else 600) - first
        assert record["kv_transfer_ms"] == (transfer or 0)
        assert record["decode_ms"] == 300
        assert record["network_ms"] == network
        assert record["unexplained_ms"] == 0


def test_a_decode_server_called_beside_the_prefill_server_was_routed_to() -> None:
    """It tells when the KV cache had come and not since when: it was there before the prefill."""
    gateway = leg("gateway", recv=0, leg_end=910 * MS)
    record = _untold_prefill(gateway, recv=5, kv_end=590)
    assert record["route_ms"] == 5
    assert record["queue_or_prefill_ms"] == 600 - 5


@pytest.mark.parametrize("force_sweep", [False, True])
def test_an_answer_does_not_end_before_a_gateway_passes_on_its_first_token(
    force_sweep: bool,
) -> None:
    """Of a call that is not streamed the headers come after the engine's last token."""
    p = leg("prefill_engine", **{k: v * MS for k, v in _P.items()}, output_tokens=1)
    d_times = {"recv": 230, "queued": 231, "scheduled": 300, "first_token": 330}
    d_times |= {"last_token": 900, "leg_end": 901}
    d = leg("decode_engine", **{k: v * MS for k, v in d_times.items()}, output_tokens=30)
    record = _record(
        leg("gateway", recv=0, first_token=905 * MS, leg_end=907 * MS,
            first_token_src="inferred headers"),
        p, d, force_sweep=force_sweep,
    )  # fmt: skip
    assert (record["ttft_ms"], record["e2e_ms"]) == (905, 905)
    assert record["decode_ms"] == 570
    assert record["route_ms"] == 40 + 28 + 4
    assert record["unexplained_ms"] == 0
