"""The timeline over legs made at random: phases tile the wall time, whatever the legs.

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
from tests.analysis._made import MS, Legs
from tracekit.names import BOUNDARIES, PHASES

ROLES = ("client", "gateway", "router", "engine", "prefill_engine", "decode_engine", "provider")


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
