"""The settle lock: one holder, and none left behind."""

from __future__ import annotations

import threading

import pytest

from tracekit.lake.lock import settle_lock
from tracekit.lake.store import Store


def test_one_holder_at_a_time(store: Store) -> None:
    with settle_lock(store, blocking=False) as first:
        assert first
        with settle_lock(Store.open(store.path), blocking=False) as second:
            assert not second
    with settle_lock(store, blocking=False) as third:
        assert third


def test_blocking_waits_for_the_holder(store: Store) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        with settle_lock(store, blocking=True) as held:
            order.append(f"waiter {held}")

    with settle_lock(store, blocking=True):
        thread = threading.Thread(target=wait)
        thread.start()
        assert waiting.wait(10)
        order.append("holder")
    thread.join(10)
    assert order == ["holder", "waiter True"]


def test_an_error_under_the_lock_releases_it(store: Store) -> None:
    with pytest.raises(ValueError, match="boom"), settle_lock(store, blocking=False):
        raise ValueError("boom")
    with settle_lock(store, blocking=False) as held:
        assert held
