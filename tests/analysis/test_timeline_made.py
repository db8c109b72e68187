"""The timeline over legs made by hand and at random: phases tile the wall time, whatever the legs.

Sources and matching are left out: these are the rules of ``sql/core`` alone.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.analysis._legs import check_timelines, leg, run_core, timelines
from tracekit.names import BOUNDARIES, PHASES

MS = 1_000_000
ROLES = ("client", "gateway", "router", "engine", "prefill_engine", "decode_engine", "provider")

Legs = list[dict[str, Any]]

# ---------------------------------------------------------------------------------------------
# random requests
# ---------------------------------------------------------------------------------------------


def _attributes(rng: random.Random) -> dict[str, Any]:
    return {
        "status": rng.choice(["ok"] * 6 + ["aborted", "error", "timeout"]),
        "streaming": rng.choice([0, 1, None]),
        "engine": rng.choice(["vllm", "other", None]),
        "worker": rng.choice(["w0", "w1", None]),
        "output_tokens": rng.choice([None, 0, 1, 7, 7, 400]),
        "input_tokens": rng.choice([None, 12]),
        "ttft_kind": rng.choice(["first_chunk", "first_content", "server", None]),
        "leg_quarantine": rng.choice([None] * 9 + ["negative_duration:queue"]),
    }


def _src(rng: random.Random, name: str) -> str:
    return f"{rng.choice(['measured', 'reported', 'inferred'])} {name}"


def _sequence(rng: random.Random) -> Legs:
    """Legs as one call has them, in order; a few boundaries unknown, a few a little off."""
    missing = rng.choice([0.0, 0.0, 0.0, 0.1, 0.4])
    wobble = rng.choice([0, 0, 0, 0, 3, 400]) * MS
    at = 0

    def step() -> int:
        nonlocal at
        at += rng.choice([0, 1, rng.randrange(50 * MS), rng.randrange(900 * MS)])
        return at

    def keep(**times: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, time in times.items():
            if rng.random() >= missing:
                out[name] = max(0, time + rng.randint(-wobble, wobble))
                out[f"{name}_src"] = _src(rng, name)
        return out

    is_pd = rng.random() < 0.3
    with_kv = rng.random() < 0.3
    maker = rng.choice(["vllm", "other", None])
    client, gateway, prefill = {}, {}, {}
    client["intended_start"] = step()
    client["send"] = step()
    gateway["recv"] = step()
    if is_pd:
        prefill = {"recv": step(), "queued": step(), "scheduled": step(), "first_token": step()}
        prefill["last_token"] = prefill["first_token"]
        prefill["leg_end"] = step()
    engine = {"recv": step(), "queued": step(), "scheduled": step()}
    if with_kv:
        engine |= {"prefill_end": step(), "kv_start": step(), "kv_end": step()}
    wire: dict[str, int] = {}
    if is_pd and rng.random() < 0.6:  # bytes moved somewhere around the decode server's queue time
        reach = engine["scheduled"] - engine["queued"]
        low, high = sorted(rng.choice([0.0, 1.0, rng.uniform(-0.2, 1.2)]) for _ in range(2))
        wire = {"kv_start": engine["queued"] + round(low * reach)}
        wire["kv_end"] = engine["queued"] + round(high * reach)
        if not with_kv and rng.random() < 0.4:  # the decode server's own word
            engine |= wire
            wire = {}
    engine["first_token"] = step()
    early = rng.random() < 0.2
    client["first_token"] = client["send"] + 1 if early else step()
    engine["last_token"] = step()
    engine["leg_end"] = step()
    gateway["leg_end"] = step()
    client["last_token"] = step()
    client["leg_end"] = step()
    legs = []
    if rng.random() < 0.7:
        if rng.random() < 0.5:
            del client["intended_start"]
        legs.append(leg("client", **keep(**client), **_attributes(rng)))
        if rng.random() < 0.3:  # a log row beside the span
            legs.append(leg("client", **keep(**client), **_attributes(rng)))
    if rng.random() < 0.4:
        legs.append(leg("gateway", **keep(**gateway), **_attributes(rng)))
    if is_pd:
        legs.append(leg("prefill_engine", **keep(**prefill), **_attributes(rng)))
    if wire:  # a span of its own beside the servers'
        kv_bytes = rng.choice([None, None, 0, 9])
        legs.append(leg("provider", **keep(**wire), kv_bytes=kv_bytes, **_attributes(rng)))
    if not legs or rng.random() < 0.8:
        role = "decode_engine" if is_pd else "engine"
        known = keep(**engine)
        made = rng.random()
        if made < 0.2 and not is_pd:  # n > 1: the same points, but each choice ends at its own time
            later = known | ({"last_token": engine["last_token"] + 3 * MS} if made < 0.1 else {})
            legs += [leg(role, **known, **_attributes(rng)), leg(role, **later, **_attributes(rng))]
        elif made < 0.4:  # one leg a phase, as spans of phases give them
            engine.setdefault("prefill_end", engine["first_token"])
            for pair in (
                "queued scheduled",
                "scheduled prefill_end",
                "kv_start kv_end",
                "first_token last_token",
            ):
                part = {n: engine[n] for n in pair.split() if n in engine}
                if rng.random() > missing:
                    legs.append(leg(role, **part, **_attributes(rng)))
        else:
            legs.append(leg(role, **known, **_attributes(rng)))
    for row in legs:
        row["engine"] = maker
    rng.shuffle(legs)
    return legs


def _chaos(rng: random.Random) -> Legs:
    """Any roles, any boundaries, any order."""
    legs = []
    for _ in range(rng.randint(1, 5)):
        values: dict[str, Any] = {}
        for name in BOUNDARIES:
            if rng.random() < 0.6:
                values[name] = rng.choice([rng.randrange(9), rng.randrange(2000) * MS])
                values[f"{name}_src"] = _src(rng, name)
        legs.append(leg(rng.choice(ROLES), **values, **_attributes(rng)))
    return legs


def _many(seed: int, count: int) -> dict[str, Legs]:
    rng = random.Random(seed)
    return {f"r{i:05d}": (_chaos if rng.random() < 0.2 else _sequence)(rng) for i in range(count)}


@pytest.fixture(scope="module")
def many() -> dict[str, Legs]:
    return _many(20261129, 3000)


@pytest.fixture(scope="module")
def ran(many: dict[str, Legs]) -> duckdb.DuckDBPyConnection:
    return run_core(many)


@pytest.fixture(scope="module")
def swept(many: dict[str, Legs]) -> duckdb.DuckDBPyConnection:
    return run_core(many, force_sweep=True)


def _paths(con: duckdb.DuckDBPyConnection) -> dict[str, str]:
    return dict(con.execute("select request_key, path from request_points").fetchall())


def test_phases_tile_the_wall_time_of_any_legs(ran: duckdb.DuckDBPyConnection) -> None:
    paths = Counter(_paths(ran).values())
    assert min(paths[p] for p in ("cut", "client", "sweep")) > 60, paths
    check_timelines(ran)


def test_the_sweep_tiles_what_could_be_cut_too(swept: duckdb.DuckDBPyConnection) -> None:
    assert set(_paths(swept).values()) == {"sweep"}
    check_timelines(swept)


def test_cut_and_sweep_give_the_same_timeline(
    many: dict[str, Legs], ran: duckdb.DuckDBPyConnection, swept: duckdb.DuckDBPyConnection
) -> None:
    cut = [key for key, path in sorted(_paths(ran).items()) if path != "sweep"]
    one, other = timelines(ran), timelines(swept)
    assert len(cut) > 500
    for key in cut:
        assert other.get(key) == one.get(key), (key, many[key])
    phases = {interval[0] for key in cut for interval in one.get(key, [])}
    assert phases == set(PHASES)
    parts = Counter(interval[1] for key in cut for interval in one.get(key, []))
    for part in ("wait", "wire", "recompute"):
        assert parts[f"kv_transfer.{part}"] > 20, parts


def test_cut_and_sweep_name_the_same_legs(
    ran: duckdb.DuckDBPyConnection, swept: duckdb.DuckDBPyConnection
) -> None:
    query = """
        select request_key, phase, role, worker, sum(end_unix_ns - start_unix_ns)::bigint
        from phases where phase not in ('unexplained', 'network') and request_key in (
            select request_key from legs where role in ('engine', 'decode_engine')
            group by request_key having count(*) = 1)
        group by all order by all
    """
    cut = {key for key, path in _paths(ran).items() if path == "cut"}
    one, other = (
        [row for row in con.execute(query).fetchall() if row[0] in cut] for con in (ran, swept)
    )
    assert len(one) > 1000
    assert one == other


def test_no_request_with_an_arrival_is_lost(
    many: dict[str, Legs], ran: duckdb.DuckDBPyConnection
) -> None:
    arrivals = {"client": ("intended_start", "send"), "gateway": ("recv",), "router": ("recv",)}
    servers = ("recv", "queued", "scheduled", "kv_start", "prefill_end", "first_token")
    expected = {
        key
        for key, legs in many.items()
        for row in legs
        if row["role"] != "provider"
        and any(f"{b}_unix_ns" in row for b in arrivals.get(row["role"], servers))
    }
    keys = [key for (key,) in ran.execute("select request_key from requests").fetchall()]
    assert len(keys) == len(set(keys))
    assert expected <= set(keys)


_TIMES = st.none() | st.integers(0, 9) | st.integers(0, 5_000_000_000)
_SRC = st.sampled_from(["measured x", "reported x", "inferred x"])


@st.composite
def _any_leg(draw: st.DrawFn) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in BOUNDARIES:
        time = draw(_TIMES)
        if time is not None:
            values[name] = time
            values[f"{name}_src"] = draw(_SRC)
    return leg(
        draw(st.sampled_from(ROLES)),
        **values,
        status=draw(st.sampled_from(["ok", "aborted", "error"])),
        streaming=draw(st.sampled_from([0, 1, None])),
        engine=draw(st.sampled_from(["vllm", None])),
        output_tokens=draw(st.sampled_from([None, 0, 1, 7])),
        ttft_kind=draw(st.sampled_from(["first_chunk", "first_content", None])),
    )


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(_any_leg(), min_size=1, max_size=5), min_size=1, max_size=12))
def test_phases_tile_the_wall_time_of_legs_that_shrink(requests: list[Legs]) -> None:
    named = {f"r{i}": legs for i, legs in enumerate(requests)}
    con = run_core(named)
    check_timelines(con)
    one, other = timelines(con), timelines(run_core(named, force_sweep=True))
    for key, path in _paths(con).items():
        if path == "client" or (path == "cut" and len({r.get("engine") for r in named[key]}) == 1):
            assert other.get(key) == one.get(key)


# ---------------------------------------------------------------------------------------------
# what the rules say, one by one
# ---------------------------------------------------------------------------------------------


def _record(*legs: dict[str, Any], force_sweep: bool = False) -> dict[str, Any]:
    con = run_core({"r": legs}, force_sweep=force_sweep)
    check_timelines(con)
    row: dict[str, Any] = (
        con.sql(
            "select r.*, p.path from requests as r join request_points as p using (request_key)"
        )
        .to_arrow_table()
        .to_pylist()[0]
    )
    return row


def _known(record: dict[str, Any]) -> dict[str, float]:
    """The phases of a record that are known, in ms."""
    return {p: record[f"{p}_ms"] for p in PHASES if record[f"{p}_ms"] is not None}


def _engine(**more: Any) -> dict[str, Any]:
    times = {
        "recv": 3 * MS,
        "queued": 10 * MS,
        "scheduled": 500 * MS,
        "first_token": 600 * MS,
        "last_token": 890 * MS,
        "leg_end": 891 * MS,
    }
    return leg("engine", **(times | {"output_tokens": 30, "engine": "vllm"} | more))


def _client(**more: Any) -> dict[str, Any]:
    times = {"send": 0, "first_token": 605 * MS, "last_token": 900 * MS, "leg_end": 905 * MS}
    return leg("client", **(times | {"output_tokens": 30, "ttft_kind": "first_content"} | more))


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
