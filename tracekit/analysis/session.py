"""One reader's view of a store: a DuckDB connection with every relation defined.

Owns how files become the raw relations, and the window; computes nothing itself (`current` defines
``requests`` and its kin). A session belongs to one thread. Frames leave as Polars.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from tracekit.analysis import sqlfiles
from tracekit.analysis.current import Current
from tracekit.analysis.derive import DERIVED
from tracekit.analysis.settled import Pinned
from tracekit.analysis.tail import Tail
from tracekit.analysis.window import ALL, Window
from tracekit.lake.duck import connect, stand_back, suit
from tracekit.lake.schema import TABLES
from tracekit.lake.stamping import WATERMARK_APP
from tracekit.lake.store import Store, StoreReader

if TYPE_CHECKING:
    import polars as pl

#: Identity of a span (design §4): what makes two raw rows one span.
_SPAN_IDENTITY: Final = (
    "trace_id, span_id, service_name, service_instance_id, process_id, process_rank"
)
_RAW_PLAIN: Final = ("gpu_samples", "metric_samples", "log_records", "quarantine")
_ORDER: Final = (
    "requests",
    "legs",
    "phases",
    "token_gaps",
    "clock_offsets",
    "spans",
    "request_log",
    *_RAW_PLAIN,
)


class Session:
    """Relations over one store; a context manager. ``con`` is for reading.

    ``window_requests`` holds the requests inside the window and filters; every other relation
    holds the whole store.
    """

    def __init__(
        self,
        store: Store,
        *,
        window: Window,
        model: str | None,
        route: str | None,
        ingested_through_unix_ns: int | None,
    ) -> None:
        """Use `Session.open`."""
        self.store = store
        self.window = window
        self.model = model
        self.route = route
        self._through = ingested_through_unix_ns
        self.con = connect()
        self.con.execute("set preserve_insertion_order = false")
        # nothing here outlives the process: checkpoints would only rewrite the tail
        self.con.execute("set checkpoint_threshold = '1TB'")
        self._reader = StoreReader(store)
        self._tail = Tail(self.con, ingested_through_unix_ns=ingested_through_unix_ns)
        self._watermark_unix_ns = 0
        self._requests_version: int | None = None
        self._defined: dict[str, int] = {}
        self._current = Current(self.con, ingested_through_unix_ns=ingested_through_unix_ns)
        self._live = False
        self.refresh()

    @classmethod
    def open(
        cls,
        store: Path | str | Store,
        *,
        window: Window | None = None,
        model: str | None = None,
        route: str | None = None,
        ingested_through_unix_ns: int | None = None,
    ) -> Self:
        """Open ``store`` for reading; UsageError if there is none.

        ``ingested_through_unix_ns`` pins a view: rows that came in later are left out.
        """
        return cls(
            store if isinstance(store, Store) else Store.open(store),
            window=window or ALL,
            model=model,
            route=route,
            ingested_through_unix_ns=ingested_through_unix_ns,
        )

    @property
    def watermark_unix_ns(self) -> int:
        """Raw rows prepared before this are settled."""
        return self._tail.watermark_unix_ns

    def refresh(self) -> bool:
        """Pick up new commits; True if any relation changed."""
        # The watermark before `requests`, and `requests` before the raw tables: whatever settles
        # in between is then seen twice and dropped once, never missed.
        version = self._reader.snapshot("requests").version
        if version != self._requests_version:
            self._watermark_unix_ns = self.store.txn_version("requests", WATERMARK_APP) or 0
        pinned = Pinned(self._reader, _ORDER)
        changed = self._tail.refresh(pinned, self._watermark_unix_ns)
        self._requests_version = pinned.snapshot("requests").version
        if not self._defined:
            suit(self.con, sum(pinned.snapshot(table).rows for table in _ORDER))
        elif not self._live:
            self._live = True
            stand_back(self.con)
        # binding a view costs more than a small refresh: only views over new files are made anew
        renewed = {t for t in _ORDER if self._defined.get(t) != pinned.snapshot(t).version}
        if not renewed and not changed:
            return False
        self._define(pinned, renewed)
        self._defined = {t: pinned.snapshot(t).version for t in _ORDER}
        return True

    def focus(
        self,
        *,
        window: Window | None = None,
        model: str | None = None,
        route: str | None = None,
    ) -> None:
        """Point ``window_requests`` and ``settings`` at another window and other filters.

        Cheap: no file is read. What was computed from the old window stays as it is.
        """
        self.window = window or ALL
        self.model = model
        self.route = route
        self._define_window()
        self._define_settings()

    def frame(
        self, query: str, params: Mapping[str, Any] | Sequence[Any] | None = None
    ) -> pl.DataFrame:
        """The result of one query as a Polars frame."""
        # through the relation: a DB-API result would copy every row once more
        relation = self.con.sql(query, params=params) if params else self.con.sql(query)
        frame: pl.DataFrame = relation.pl()
        return frame

    def close(self) -> None:
        self.con.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _define(self, snapshots: Pinned, renewed: AbstractSet[str]) -> None:
        self._define_raw(snapshots, renewed)
        if self._current.define(snapshots, anew=not renewed.isdisjoint(DERIVED)):
            self._define_window()
        if not self._defined:
            for name in sqlfiles.METRIC_VIEWS:
                self._view(name, sqlfiles.load("sources", name).body)
        self._define_settings()

    def _view(self, name: str, query: str) -> None:
        self.con.execute(f"create or replace view {name} as {query}")

    def document(self) -> None:
        """Put the schema's texts where SQL clients look: COMMENT ON every view and column."""
        for name, table in TABLES.items():
            self.con.execute(f"comment on view {name} is {_literal(table.doc)}")
            for column in table.columns:
                self.con.execute(
                    f'comment on column {name}."{column.name}" is {_literal(column.doc)}'
                )

    def _through_filter(self, column: str = "ingested_unix_ns") -> str:
        return "" if self._through is None else f" and {column} <= {self._through}"

    def _define_raw(self, snapshots: Pinned, renewed: AbstractSet[str]) -> None:
        once = "qualify row_number() over (partition by {} order by ingested_unix_ns) = 1"
        unique = {"spans": once.format(_SPAN_IDENTITY), "request_log": once.format("log_key")}
        for name in (*unique, *_RAW_PLAIN):
            if name in renewed:
                self._view(
                    name,
                    f"select * from ({snapshots.snapshot(name).scan_sql()}) "
                    f"where true{self._through_filter()} {unique.get(name, '')}",
                )

        if "clock_offsets" in renewed:
            self._view(
                "clock_offsets",
                f"select * from ({snapshots.snapshot('clock_offsets').scan_sql()}) "
                f"where true{self._through_filter('revision')}",
            )

    def _define_window(self) -> None:
        conditions = ["true"]
        if self.window.since_unix_ns is not None:
            conditions.append(f"r.start_unix_ns >= {self.window.since_unix_ns}")
        if self.window.until_unix_ns is not None:
            conditions.append(f"r.start_unix_ns < {self.window.until_unix_ns}")
        inside = " and ".join(conditions)
        filters = "".join(
            f" and r.{column} = {_literal(value)}"
            for column, value in (("model", self.model), ("route", self.route))
            if value is not None
        )
        self._view(
            "window_requests",
            f"select r.* from requests as r where (r.start_unix_ns is null or ({inside})){filters}",
        )

    def _define_settings(self) -> None:
        self.con.execute(
            """
            create or replace temp table settings as
            select $now::bigint as now_unix_ns, $since::bigint as since_unix_ns,
                $until::bigint as until_unix_ns, $through::bigint as ingested_through_unix_ns,
                $text::varchar as window_text, $model::varchar as model, $route::varchar as route
            """,
            {
                "now": time.time_ns(),
                "since": self.window.since_unix_ns,
                "until": self.window.until_unix_ns,
                "through": self._through,
                "text": self.window.text,
                "model": self.model,
                "route": self.route,
            },
        )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
