"""Calls of one trace that come and settle one by one: a late row changes its own request only.

Worlds of agents' traces (several calls each), their engines in the caller's trace or in traces of
their own, gateways, pairs, rows of logs; in parts, in any order, with settle passes and
compactions in between. A live session, a fresh one and the settled store must show what one
derivation of all rows gives.
"""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import START_NS, Row, chat, engine, http, log_row, span, table, trace
from tests.analysis._stores import (
    NOW_NS,
    Canonical,
    S,
    canonical,
    commit,
    differences,
    one_shot,
)
from tracekit.analysis.session import Session
from tracekit.analysis.settle import Settler
from tracekit.lake import maintain
from tracekit.lake.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def _seen(store: Store) -> Canonical:
    with Session.open(store) as session:
        return canonical(session.con)


def _agent(name: str = "a") -> Row:
    return span("invoke_agent", id=f"agent-{name}"[-8:], trace_name=name, start=-10, end=20000)


def _client(i: int, name: str = "a") -> Row:
    return chat(
        f"c{i}",
        100 + 1000 * i,
        400 + 1000 * i,
        trace_name=name,
        parent=f"agent-{name}"[-8:],
        gen_ai__response__id=f"chatcmpl-{i}",
    )


def _engine(i: int, *, own_trace: bool) -> Row:
    """The engine span of call ``i``: in a trace of its own, or below its client."""
    return engine(
        f"e{i}",
        105 + 1000 * i,
        trace_name=f"u{i}" if own_trace else "a",
        parent=None if own_trace else f"c{i}",
        request_id=f"chatcmpl-{i}",
    )


def _log(i: int) -> Row:
    return log_row(request_id=str(i), start=98 + 1000 * i, ttft_ms=60.0, e2e_ms=170.0)


_KINDS = ("below", "apart", "pair_apart", "pair_below", "client", "engine", "gateway", "log", "row")


def _world(rng: random.Random) -> tuple[list[Row], list[Row], list[Row]]:
    """(spans that only link others, spans, log rows)."""
    links: list[Row] = []
    spans: list[Row] = []
    logs: list[Row] = []
    for a in range(rng.randrange(2, 5)):
        t, agent = f"a{a}", f"ag{a}"
        links.append(span("invoke_agent", id=agent, trace_name=t, start=-10, end=20000))
        for i in range(rng.randrange(1, 4)):
            at = 100 + 1500 * i + 7 * a
            c, apart = f"c{a}{i}", f"u{a}{i}"
            own: Row = {"request_id": f"chatcmpl-{a}x{i}"}
            kind = rng.choice(_KINDS)
            if kind not in ("pair_below", "engine", "log", "row"):
                named = {} if kind == "client" else {"gen_ai__response__id": own["request_id"]}
                spans.append(chat(c, at, at + 300, trace_name=t, parent=agent, **named))
            if kind == "below":
                spans.append(engine(f"e{c}", at + 5, trace_name=t, parent=c, **own))
            elif kind == "gateway":
                gateway = http(f"g{c}", at + 2, at + 290, kind=2, trace_name=t, parent=c)
                spans += [gateway, engine(f"e{c}", at + 5, trace_name=t, parent=f"g{c}", **own)]
            elif kind in ("pair_apart", "pair_below"):
                below, parent = kind == "pair_below", None
                if below:
                    parent = f"h{c}"
                    spans.append(http(parent, at + 1, at + 299, kind=2, trace_name=t, parent=agent))
                prefill: Row = {"tokens": (50, 1), "decode": 0}
                decode: Row = {"service": "decode"}
                for x, later, more in (("p", 5, prefill), ("d", 60, decode)):
                    more |= own | {"trace_name": t if below else f"{x}{apart}", "parent": parent}
                    spans.append(engine(f"{x}{c}", at + later, **more))
            elif kind != "client":
                spans.append(engine(f"e{c}", at + 5, trace_name=apart, **own))
            if kind in ("log", "row") or (kind in ("below", "apart") and rng.random() < 0.3):
                by = {"trace_id": trace(apart)} if kind == "row" else {"request_id": f"{a}x{i}"}
                logs.append(log_row(**by, start=at - 3, ttft_ms=60.0, e2e_ms=170.0))
    return links, spans, logs


@pytest.mark.parametrize("seed", [*range(6), 125, 307])
def test_rows_in_any_order_end_as_one_derivation(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    links, spans, logs = _world(rng)
    truth = one_shot([table("spans", links + spans)], [table("request_log", logs)])
    parts = rng.randrange(1, 5)
    spans_of: list[list[Row]] = [list(links), *([] for _ in range(parts - 1))]
    logs_of: list[list[Row]] = [[] for _ in range(parts)]
    for row in spans:
        for _ in range(1 + (rng.random() < 0.15)):  # some are sent twice
            rng.choice(spans_of).append(row)
    for row in logs:
        rng.choice(logs_of).append(row)
    now = NOW_NS
    with Session.open(store) as live:
        for a, b in zip(spans_of, logs_of, strict=True):
            if a:
                commit(store, "spans", table("spans", a), now)
            if b:
                commit(store, "request_log", table("request_log", b), now)
            for _ in range(rng.randrange(3)):
                act = rng.choice(("refresh", "settle", "compact"))
                if act == "refresh":
                    live.refresh()
                elif act == "settle":
                    slack_ns = rng.choice((0, 60 * S))
                    Settler(store, quiet_ns=0, slack_ns=slack_ns).run_pass(now + 1)
                else:
                    maintain.compact(store, max_small_files=1)
            live.refresh()
            assert differences(canonical(live.con), _seen(store)) == []
            # later, or so much later that the watermark has passed what came
            now += rng.choice((1, 1000)) * S
        assert differences(canonical(live.con), truth) == []
        Settler(store, quiet_ns=0).run_pass(now + 1000 * S)
        live.refresh()
        assert differences(canonical(live.con), truth) == []
    assert differences(_seen(store), truth) == []


@pytest.mark.parametrize("own_trace", [False, True])
@pytest.mark.parametrize("later_s", [90, 4000])
def test_a_late_log_row_does_not_double_the_other_calls_of_its_trace(
    store: Store, own_trace: bool, later_s: int
) -> None:
    spans = [_agent()]
    for i in range(3):
        spans += [_client(i), _engine(i, own_trace=own_trace)]
    commit(store, "spans", table("spans", spans), NOW_NS)
    assert Settler(store).run_pass(NOW_NS + 70 * S).settled == 3
    commit(store, "request_log", table("request_log", [_log(0)]), NOW_NS + later_s * S)
    truth = one_shot([table("spans", spans)], [table("request_log", [_log(0)])])
    assert sorted(map(len, truth)) == [2, 2, 3]
    assert differences(_seen(store), truth) == []
    report = Settler(store).run_pass(NOW_NS + (later_s + 100) * S)
    assert (report.settled, report.revised, report.waiting) == (1, 1, 0)
    assert differences(_seen(store), truth) == []


def test_a_log_row_without_a_clock_finds_its_call_after_that_has_settled(store: Store) -> None:
    spans = [_agent()]
    for i in range(2):
        spans += [_client(i), _engine(i, own_trace=False)]
    row = [log_row(request_id="0", ttft_ms=60.0, e2e_ms=170.0)]
    truth = one_shot([table("spans", spans)], [table("request_log", row)])
    assert sorted(map(len, truth)) == [2, 3]
    commit(store, "spans", table("spans", spans), NOW_NS)
    Settler(store).run_pass(NOW_NS + 70 * S)
    commit(store, "request_log", table("request_log", row), NOW_NS + 4000 * S)
    assert differences(_seen(store), truth) == []
    Settler(store).run_pass(NOW_NS + 4100 * S)
    assert differences(_seen(store), truth) == []


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_late_engine_leaves_the_engines_of_other_calls_where_they_are(
    store: Store, which: int
) -> None:
    """Engines in traces of their own; the one of call ``which`` comes 90 s late."""
    rows = [_agent(), *(_client(i) for i in range(3))]
    rows += [_engine(i, own_trace=True) for i in range(3) if i != which]
    late = [_engine(which, own_trace=True)]
    none = [captures.empty("request_log")]
    truth = one_shot([table("spans", rows + late)], none)
    assert sorted(map(len, truth)) == [2, 2, 2]
    commit(store, "spans", table("spans", rows), NOW_NS)
    Settler(store).run_pass(NOW_NS + 70 * S)
    with Session.open(store) as live:
        commit(store, "spans", table("spans", late), NOW_NS + 90 * S)
        live.refresh()
        assert differences(canonical(live.con), truth) == []
        Settler(store).run_pass(NOW_NS + 200 * S)
        live.refresh()
        assert differences(canonical(live.con), truth) == []
    assert differences(_seen(store), truth) == []


def test_a_live_session_keeps_the_engines_of_calls_beside_one_that_gets_a_span(
    store: Store,
) -> None:
    parts = [
        [_agent(), _client(0), _client(1), _engine(1, own_trace=True)],
        [_engine(0, own_trace=True)],
        [_client(2)],
        [_engine(2, own_trace=True)],
    ]
    with Session.open(store) as live:
        for number, rows in enumerate(parts):
            commit(store, "spans", table("spans", rows), NOW_NS + number * S)
            live.refresh()
            so_far = table("spans", [row for part in parts[: number + 1] for row in part])
            truth = one_shot([so_far], [captures.empty("request_log")])
            assert differences(canonical(live.con), truth) == []


def test_a_live_session_goes_on_from_settled_rows_to_rows_that_it_holds(store: Store) -> None:
    """A span meets a settled trace, whose call has got a row that has not settled yet."""
    first = [_agent(), _client(0), _client(1), _engine(1, own_trace=True)]
    then = [_engine(0, own_trace=True)]
    last = [http("g0", 102, 390, kind=2, trace_name="a", parent="c0", service="gw")]
    commit(store, "spans", table("spans", first), NOW_NS)
    Settler(store).run_pass(NOW_NS + 500 * S)
    with Session.open(store) as live:
        for number, rows in enumerate((then, last)):
            commit(store, "spans", table("spans", rows), NOW_NS + (500 + number) * S)
            live.refresh()
        truth = one_shot([table("spans", first + then + last)], [captures.empty("request_log")])
        assert differences(canonical(live.con), _seen(store)) == []
        assert differences(canonical(live.con), truth) == []
        Settler(store).run_pass(NOW_NS + 900 * S)
        live.refresh()
        assert differences(canonical(live.con), truth) == []


@pytest.mark.parametrize("own_trace", [False, True])
def test_a_long_run_of_an_agent_settles_call_by_call(store: Store, own_trace: bool) -> None:
    """A call every 40 s for six minutes, settled and read while it runs."""
    every: list[pa.Table] = []
    with Session.open(store) as live:
        for i in range(10):
            begun = 40_000 * i
            call = chat(
                f"c{i}",
                begun,
                begun + 300,
                trace_name="a",
                parent="agent",
                gen_ai__response__id=f"chatcmpl-{i}",
            )
            served = engine(
                f"e{i}",
                begun + 5,
                trace_name=f"u{i}" if own_trace else "a",
                parent=None if own_trace else f"c{i}",
                request_id=f"chatcmpl-{i}",
            )
            now = START_NS + (40 * i + 1) * S
            for rows in ([served], [call]):
                every.append(table("spans", rows))
                commit(store, "spans", every[-1], now)
                live.refresh()
                now += S
            Settler(store).run_pass(now + 10 * S)
            live.refresh()
            if i % 5 == 4:
                truth = one_shot(every, [captures.empty("request_log")])
                assert differences(canonical(live.con), truth) == []
                assert differences(_seen(store), truth) == []
    settled = store.snapshot("requests").scan_sql()
    ((count, keys),) = (
        duckdb.connect().execute(f"select count(*), count(distinct request_key) from ({settled})")
    ).fetchall()
    # nothing was settled twice
    assert count == keys > 6
