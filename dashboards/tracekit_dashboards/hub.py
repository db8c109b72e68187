"""One process's way to the store: sessions, their locks, and frames that viewers share.

Owns who may use a DuckDB connection (one thread at a time) and how long a frame may be shown
after the store has changed. Computes nothing: it is given functions of a session.

A frame is computed again when its view is asked for after a commit, but never so often that it
takes more than a tenth of the time: with 5,000 spans a second the store changes every second, and
a diagnosis of a million requests must not be computed as often. A view knows when one of its
frames is older than the store (`Reader.stale_until`) and asks again then.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

import duckdb

from tracekit.analysis.attribution import define_attribution
from tracekit.analysis.session import Session
from tracekit.analysis.workbench import SqlResult, Workbench
from tracekit.lake.store import Store
from tracekit_dashboards.view import View

T = TypeVar("T")


class Attribution(Enum):
    """What a computation has to do with the relations of ``sql/attribution``."""

    UNUSED = "unused"
    #: they must be there, for the objectives of the view
    NEEDED = "needed"
    #: it defines them itself, for the objectives of the view
    DEFINES = "defines"


Focus = tuple[Any, ...]

#: Seconds between two looks at the store for new commits.
LOOK_S: Final = 1.0
#: A frame may take at most one part in this many of the time, and lives this long at least.
_COST_FACTOR: Final = 10.0
_LIFE_S: Final = 2.0
_FRAMES_MAX: Final = 256
#: Views pinned to an ingest time have a session each; the least used are let go.
_PINNED_MAX: Final = 3

SQL_TIME_LIMIT_S: Final = 20.0
SQL_ROW_LIMIT: Final = 5_000


@dataclass
class _Frame:
    value: Any
    revision: int
    made_s: float
    cost_s: float

    @property
    def expires_s(self) -> float:
        return self.made_s + max(_LIFE_S, _COST_FACTOR * self.cost_s)


class _Source:
    """One session with its lock, what it is focused on, and which change it has seen."""

    def __init__(self, store: Store, pinned_unix_ns: int | None) -> None:
        self.lock = threading.RLock()
        self.session = Session.open(store, ingested_through_unix_ns=pinned_unix_ns)
        self.revision = 1
        self._looked_s = time.monotonic()
        self._focus: Focus | None = None
        self._attribution: Focus | None = None

    def look(self) -> int:
        """The number of the newest change, after looking for one if the last look is old.

        Does not wait for a computation of another viewer: what was seen last is good enough then.
        """
        if time.monotonic() - self._looked_s >= LOOK_S and self.lock.acquire(blocking=False):
            try:
                self._refresh()
            finally:
                self.lock.release()
        return self.revision

    def run(self, view: View, compute: Callable[[Session], T], attribution: Attribution) -> T:
        """``compute`` on the session, focused on ``view``."""
        with self.lock:
            try:
                return self._run(view, compute, attribution)
            except duckdb.IOException:
                # a file of the snapshot was compacted away and vacuumed: look again, once
                self._refresh()
                return self._run(view, compute, attribution)

    def close(self) -> None:
        with self.lock:
            self.session.close()

    def _refresh(self) -> None:
        if self.session.refresh():
            self.revision += 1
        self._looked_s = time.monotonic()

    def _run(self, view: View, compute: Callable[[Session], T], attribution: Attribution) -> T:
        # the minute: what is told as an age must not stand still
        focus: Focus = (view.window, view.model, view.route, time.time_ns() // 60_000_000_000)
        if focus != self._focus:
            self.session.focus(window=view.window, model=view.model, route=view.route)
            self._focus = focus
        wanted: Focus = (view.window, view.model, view.route, view.slo, self.revision)
        if attribution is Attribution.NEEDED and wanted != self._attribution:
            self._attribution = None
            define_attribution(self.session.con, view.slo)
            self._attribution = wanted
        if attribution is Attribution.DEFINES:
            self._attribution = None
        value = compute(self.session)
        if attribution is Attribution.DEFINES:
            self._attribution = wanted
        return value


class Hub:
    """Shared by all viewers of one store; every method may be called from any thread."""

    def __init__(self, path: Path | str) -> None:
        """Open the store at ``path``; UsageError if there is none."""
        self._store = Store.open(path)
        self._lock = threading.Lock()
        self._live = _Source(self._store, None)
        self._pinned: OrderedDict[int, _Source] = OrderedDict()
        self._frames: OrderedDict[Hashable, _Frame] = OrderedDict()
        self._bench: tuple[int | None, _Source, Workbench] | None = None

    @property
    def path(self) -> Path:
        return self._store.path

    def revision(self, view: View) -> int:
        """A number that changes when the store shows something new to ``view``."""
        return self._source(view).look()

    def frame(
        self,
        view: View,
        name: Hashable,
        compute: Callable[[Session], T],
        *,
        attribution: Attribution = Attribution.UNUSED,
    ) -> tuple[T, float | None]:
        """What ``compute`` gives for ``view``, and when (monotonic s) it may be newer, if known.

        ``name`` tells frames of one view apart and must hold every argument of ``compute``.
        """
        source = self._source(view)
        revision = source.look()
        key = (view, name)
        frame = self._kept(key, revision)
        if frame is None:
            with source.lock:
                # another viewer may have made it while this one waited
                frame = self._kept(key, source.revision)
                if frame is None:
                    began = time.monotonic()
                    value = source.run(view, compute, attribution)
                    now = time.monotonic()
                    frame = _Frame(value, source.revision, now, now - began)
                    self._keep(key, frame)
        value = frame.value
        return value, frame.expires_s if frame.revision != source.revision else None

    def run_sql(self, view: View, query: str, *, attribution: bool) -> SqlResult:
        """A person's query, in a session of its own that can only read; UsageError if refused.

        ``attribution``: whether the query reads relations of ``sql/attribution``.
        """
        pinned = view.pinned_unix_ns
        with self._lock:
            if self._bench is None or self._bench[0] != pinned:
                source = _Source(self._store, pinned)
                bench = Workbench(
                    source.session, time_limit_s=SQL_TIME_LIMIT_S, row_limit=SQL_ROW_LIMIT
                )
                self._bench = pinned, source, bench
            _, source, bench = self._bench
        source.look()
        wanted = Attribution.NEEDED if attribution else Attribution.UNUSED
        return source.run(view, lambda _: bench.run(query), wanted)

    def close(self) -> None:
        """Close every session; the hub must not be used any more."""
        with ExitStack() as stack:
            for source in (self._live, *self._pinned.values()):
                stack.callback(source.close)
            if self._bench is not None:
                stack.callback(self._bench[1].close)

    def _source(self, view: View) -> _Source:
        pinned = view.pinned_unix_ns
        if pinned is None:
            return self._live
        with self._lock:
            if pinned not in self._pinned:
                self._pinned[pinned] = _Source(self._store, pinned)
                if len(self._pinned) > _PINNED_MAX:
                    # whoever still reads it keeps it alive until done
                    self._pinned.popitem(last=False)
            self._pinned.move_to_end(pinned)
            return self._pinned[pinned]

    def _kept(self, key: Hashable, revision: int) -> _Frame | None:
        with self._lock:
            frame = self._frames.get(key)
            if frame is None:
                return None
            if frame.revision != revision and time.monotonic() >= frame.expires_s:
                return None
            self._frames.move_to_end(key)
            return frame

    def _keep(self, key: Hashable, frame: _Frame) -> None:
        with self._lock:
            self._frames[key] = frame
            self._frames.move_to_end(key)
            while len(self._frames) > _FRAMES_MAX:
                self._frames.popitem(last=False)


class Reader:
    """The hub as one run of a page sees it: one view, and how fresh what it was given is."""

    def __init__(self, hub: Hub, view: View) -> None:
        self.hub = hub
        self.view = view
        self.revision = hub.revision(view)
        self.stale_until: float | None = None

    def frame(
        self,
        name: Hashable,
        compute: Callable[[Session], T],
        *,
        attribution: Attribution = Attribution.UNUSED,
    ) -> T:
        """As `Hub.frame`, for this view."""
        value, newer_s = self.hub.frame(self.view, name, compute, attribution=attribution)
        if newer_s is not None:
            self.stale_until = min(newer_s, self.stale_until or newer_s)
        return value

    def is_outdated(self) -> bool:
        """Whether another run would show something newer."""
        if self.hub.revision(self.view) != self.revision:
            return True
        return self.stale_until is not None and time.monotonic() >= self.stale_until
