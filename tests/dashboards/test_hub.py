"""Viewers share sessions and frames; a frame is new when the store is, and not too often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tracekit.analysis.session import Session
from tracekit.analysis.slo import Slo
from tracekit.errors import UsageError
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store
from tracekit_dashboards import hub as hub_module
from tracekit_dashboards.hub import Attribution, Hub, Reader
from tracekit_dashboards.view import View

LIVE = View()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "store", create=True)
    add(store, "first", 3)
    return store


@pytest.fixture
def hub(store: Store) -> Iterator[Hub]:
    hub = Hub(store.path)
    yield hub
    hub.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time stands still but for what the test lets pass."""
    now = [time.monotonic()]

    class Clock:
        monotonic = staticmethod(lambda: now[0])
        time_ns = staticmethod(time.time_ns)

    def forward(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(hub_module, "time", Clock)
    return forward


def add(store: Store, name: str, count: int) -> None:
    """Import ``count`` requests."""
    path = store.path.parent / f"{name}.csv"
    rows = [
        f"{name}-{i},{1_795_982_400_000_000_000 + i},100,10,{100 + i},{500 + i},{name}"
        for i in range(count)
    ]
    header = "request_id,start_unix_ns,input_tokens,output_tokens,ttft_ms,e2e_ms,model"
    path.write_text("\n".join((header, *rows)) + "\n")
    import_paths(store, [str(path)])


def count(session: Session) -> int:
    return int(session.frame("select count(*) from window_requests").item())


def test_a_frame_is_computed_once(hub: Hub) -> None:
    calls: list[int] = []

    def compute(session: Session) -> int:
        calls.append(1)
        return count(session)

    assert [hub.frame(LIVE, "n", compute) for _ in range(3)] == [(3, None)] * 3
    assert len(calls) == 1
    # another name, another view: another frame
    hub.frame(LIVE, "m", compute)
    hub.frame(View(model="none"), "n", compute)
    assert len(calls) == 3


def test_views_do_not_mix(hub: Hub, store: Store, clock: Callable[[float], None]) -> None:
    add(store, "second", 2)
    clock(5)
    views = (View(), View(model="first"), View(model="second"), View(model="none"))
    for _ in range(2):
        assert [hub.frame(v, "n", count)[0] for v in views] == [5, 3, 2, 0]


def test_new_rows_are_shown(hub: Hub, store: Store, clock: Callable[[float], None]) -> None:
    reader = Reader(hub, LIVE)
    assert reader.frame("n", count) == 3
    clock(hub_module.LOOK_S)
    assert not reader.is_outdated()
    add(store, "second", 2)
    # between two looks nothing is asked of the store
    assert not reader.is_outdated()
    clock(hub_module.LOOK_S)
    assert reader.is_outdated()
    clock(2)
    assert Reader(hub, LIVE).frame("n", count) == 5


def test_a_costly_frame_is_kept_and_replaced_later(
    hub: Hub, store: Store, clock: Callable[[float], None]
) -> None:
    def slow(session: Session) -> int:
        clock(3)
        return count(session)

    assert Reader(hub, LIVE).frame("slow", slow) == 3
    add(store, "second", 2)
    clock(10)
    reader = Reader(hub, LIVE)
    assert reader.frame("slow", slow) == 3
    # the page knows that it shows something old, and when to ask again
    assert reader.stale_until is not None
    assert not reader.is_outdated()
    clock(20)
    assert reader.is_outdated()
    reader = Reader(hub, LIVE)
    assert reader.frame("slow", slow) == 5
    assert reader.stale_until is None
    assert not reader.is_outdated()


def test_a_pinned_view_stays(hub: Hub, store: Store, clock: Callable[[float], None]) -> None:
    pin = time.time_ns()
    add(store, "second", 2)
    clock(5)
    assert hub.frame(View(pinned_unix_ns=pin), "n", count)[0] == 3
    assert hub.frame(LIVE, "n", count)[0] == 5
    assert hub.run_sql(
        View(pinned_unix_ns=pin), "select count(*) as n from requests", attribution=False
    ).frame["n"].to_list() == [3]


def test_many_pins_leave_few_sessions(hub: Hub) -> None:
    now = time.time_ns()
    for i in range(8):
        assert hub.frame(View(pinned_unix_ns=now + i), "n", count)[0] == 3
    assert len(hub._pinned) == 3


def test_a_failure_is_not_kept(hub: Hub) -> None:
    def fail(session: Session) -> int:
        raise UsageError("no")

    with pytest.raises(UsageError):
        hub.frame(LIVE, "n", fail)
    assert hub.frame(LIVE, "n", count) == (3, None)


def test_attribution_is_defined_for_the_view_asked(hub: Hub) -> None:
    def slo(session: Session) -> float | None:
        value: float | None = session.frame("select ttft_ms from slo").item()
        return value

    strict = View(slo=Slo(ttft_ms=1))
    assert hub.frame(strict, "slo", slo, attribution=Attribution.NEEDED)[0] == 1
    assert hub.frame(LIVE, "slo", slo, attribution=Attribution.NEEDED)[0] is None
    assert hub.frame(strict, "slo again", slo, attribution=Attribution.NEEDED)[0] == 1


def test_sql_after_new_rows_and_with_attribution(
    hub: Hub, store: Store, clock: Callable[[float], None]
) -> None:
    """The locked connection still follows the store, its window and its objectives."""
    query = "select count(*) as n from window_requests"
    assert hub.run_sql(LIVE, query, attribution=False).frame["n"].to_list() == [3]
    add(store, "second", 2)
    clock(5)
    assert hub.run_sql(LIVE, query, attribution=False).frame["n"].to_list() == [5]
    only = View(model="second", slo=Slo(ttft_ms=100.5))
    result = hub.run_sql(only, "select count(*) as n from slow_requests", attribution=True)
    assert result.frame["n"].to_list() == [1]
    with pytest.raises(UsageError):
        hub.run_sql(LIVE, "copy requests to 'x.csv'", attribution=False)
    # what the workbench may not do, the pages' session still can
    assert hub.frame(LIVE, "n", count)[0] == 5


def test_many_viewers_at_once(hub: Hub, store: Store) -> None:
    """Threads, views and commits together: no error, and nobody gets another's frame."""
    expected = {View(): {3, 5}, View(model="first"): {3}, View(model="none"): {0}}
    wrong: list[object] = []
    until = time.monotonic() + 3

    def look(view: View) -> None:
        try:
            while time.monotonic() < until:
                value, _ = hub.frame(view, "n", count)
                if value not in expected[view]:
                    wrong.append((view, value))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=look, args=(view,)) for view in expected for _ in range(3)]
    for thread in threads:
        thread.start()
    add(store, "second", 2)
    for thread in threads:
        thread.join()
    assert not wrong
