"""Work beside receiving: settling and maintenance, each in its own thread.

Owns when that work runs and that its failures never reach the receiver. What settling and
maintenance do is `tracekit.analysis.settle` and `tracekit.lake.maintain`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tracekit.lake.lock import settle_lock
from tracekit.lake.maintain import maintenance_pass
from tracekit.lake.store import Store, StoreReader
from tracekit_collectors.config import CollectConfig
from tracekit_collectors.stats import Stats

if TYPE_CHECKING:
    from tracekit.analysis.settle import Settler

_LOG = logging.getLogger("tracekit.collect")


class Loop:
    """Calls ``work`` every ``interval_s`` in a daemon thread; a failure is logged once per kind."""

    def __init__(
        self, name: str, interval_s: float, work: Callable[[], None], stats: Stats
    ) -> None:
        self._name = name
        self._interval_s = interval_s
        self._work = work
        self._stats = stats
        self._stopping = threading.Event()
        self._logged: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Begin no further pass."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the pass that is running."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            started = time.monotonic()
            try:
                self._work()
            except Exception as error:
                self._failed(error)
            else:
                self._stats.loop(
                    self._name,
                    last_pass_unix_ns=time.time_ns(),
                    last_pass_ms=round((time.monotonic() - started) * 1000, 3),
                    error=None,
                )

    def _failed(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        self._stats.loop(self._name, error=text, error_unix_ns=time.time_ns())
        # Once per kind and place: a message may hold a changing number.
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        if (type(error).__name__, place) not in self._logged:
            self._logged.add((type(error).__name__, place))
            _LOG.error("%s failed and will be tried again: %s", self._name, text, exc_info=error)


class Settling:
    """Settles requests while this process holds the store's settle lock (until :meth:`close`)."""

    def __init__(self, store: Store, stats: Stats, *, quiet_ns: int) -> None:
        self._store = store
        self._stats = stats
        self._quiet_ns = quiet_ns
        self._lock = contextlib.ExitStack()
        self._held = False
        self._told = False
        self._settler: Settler | None = None

    def run_pass(self) -> None:
        """One settle pass, if no other process is the one that settles."""
        if not self._held and not self._take_lock():
            return
        # Imported here: it pulls in DuckDB, which receiving does not need.
        from tracekit.analysis.settle import Settler

        settler = self._settler or Settler(self._store, quiet_ns=self._quiet_ns, stands_back=True)
        # A settler that failed half-way is not used again.
        self._settler = None
        settler.run_pass(time.time_ns())
        self._settler = settler

    def close(self) -> None:
        """Let another process settle."""
        self._held = False
        self._lock.close()

    def _take_lock(self) -> bool:
        with contextlib.ExitStack() as attempt:
            self._held = attempt.enter_context(settle_lock(self._store, blocking=False))
            if self._held:
                self._lock = attempt.pop_all()
        self._stats.loop("settle", holds_lock=self._held)
        if not self._held and not self._told:
            self._told = True
            _LOG.info("another process settles requests in this store; waiting for its lock")
        return self._held


class Loops:
    """Settling and maintenance of one receiver."""

    def __init__(self, config: CollectConfig, store: Store, stats: Stats) -> None:
        self._settling = Settling(store, stats, quiet_ns=int(config.quiet_s * 1e9))

        reader = StoreReader(store)  # used by the maintenance thread only

        def maintain() -> None:
            maintenance_pass(
                store, reader=reader, retain_ns=config.retain_ns, max_bytes=config.max_bytes
            )

        self._loops = (
            Loop("settle", config.settle_interval_s, self._settling.run_pass, stats),
            Loop("maintenance", config.maintenance_interval_s, maintain, stats),
        )

    def start(self) -> None:
        for loop in self._loops:
            loop.start()

    def ask_to_stop(self) -> None:
        """Begin no further pass."""
        for loop in self._loops:
            loop.ask_to_stop()

    def join(self) -> None:
        """End for good. A running pass is waited for: it must not be torn by the process's end."""
        for loop in self._loops:
            loop.join()
        self._settling.close()
