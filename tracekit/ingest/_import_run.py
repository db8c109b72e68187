"""What the inputs of one import share: the store, what it holds, the mapping, progress, notes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from tracekit.errors import UsageError
from tracekit.ingest._seen import SeenRows
from tracekit.ingest.columns import names_known, parse_mapping
from tracekit.ingest.engine_logs import EngineLog, Facts
from tracekit.lake.stamping import stamping
from tracekit.lake.store import Store


@dataclass(frozen=True)
class Progress:
    """How far an import is. ``bytes_total`` is None while standard input is among the inputs."""

    path: str
    bytes_done: int
    bytes_total: int | None
    rows: int


class Run:
    """One import over all its inputs.

    The store is opened when something is written, so that files of which nothing can be used do
    not leave an empty one behind.
    """

    def __init__(
        self,
        store: Store | Callable[[], Store],
        *,
        mapping: Mapping[str, str],
        progress: Callable[[Progress], None],
        note: Callable[[str], None],
        keep_text: bool,
        service: str | None,
        facts: Facts,
        at_unix_ns: int | None,
        now_unix_ns: int | None,
        bytes_total: int | None,
    ) -> None:
        """UsageError for a bad ``mapping``."""
        self.mapping = mapping
        self.known = names_known(parse_mapping(mapping))
        self.note = note
        self.keep_text = keep_text
        self.service = service
        self._facts = facts
        self.at_unix_ns = at_unix_ns
        self._at_taken_by: str | None = None
        self._log_start_taken_by: str | None = None
        self.now_unix_ns = now_unix_ns if now_unix_ns is not None else time.time_ns()
        self.path = ""
        self._given = store
        self._stamp_unix_ns = now_unix_ns
        self._progress = progress
        self._bytes_total = bytes_total
        self._bytes_done = 0
        self._rows = 0

    @cached_property
    def store(self) -> Store:
        return self._given if isinstance(self._given, Store) else self._given()

    @property
    def has_store(self) -> bool:
        """Whether there is a store: it was given as one, or something was written."""
        return isinstance(self._given, Store) or "store" in self.__dict__

    @cached_property
    def seen(self) -> SeenRows:
        return SeenRows(self.store)

    def close(self) -> None:
        if "seen" in self.__dict__:
            self.seen.close()

    @contextmanager
    def stamping(self) -> Iterator[int]:
        """The ingest time of rows that are committed inside: a long import has many."""
        with stamping(self.store) as now_unix_ns:
            yield now_unix_ns if self._stamp_unix_ns is None else self._stamp_unix_ns

    def facts_of(self, name: str, log: EngineLog) -> Facts:
        """What the user said of the log ``name``.

        UsageError if its times count from a start that was said of another log of this import.
        """
        if log.counts_from_start and self._facts.log_start_unix_ns is not None:
            if self._log_start_taken_by is not None:
                raise UsageError(
                    f"{name}: --log-start says when the server of {self._log_start_taken_by} "
                    "started; import the log of each start by itself"
                )
            self._log_start_taken_by = name
        return replace(self._facts, remarks=Counter())

    @property
    def is_log_start_idle(self) -> bool:
        """Whether --log-start was given and no file needed it."""
        return self._facts.log_start_unix_ns is not None and self._log_start_taken_by is None

    def use_at(self, name: str) -> None:
        """The metrics ``name`` were taken when --at says.

        UsageError if others of this import were: two scrapes of one moment would be one.
        """
        if self._at_taken_by is not None:
            raise UsageError(
                f"{name}: --at says when {self._at_taken_by} was taken; import each scrape by "
                "itself"
            )
        self._at_taken_by = name

    @property
    def is_at_idle(self) -> bool:
        """Whether --at was given and no file needed it."""
        return self.at_unix_ns is not None and self._at_taken_by is None

    def taken(self, rows: int) -> None:
        """``rows`` more are in the store."""
        self._rows += rows
        self.advanced(0)

    def advanced(self, read_bytes: int) -> None:
        """``read_bytes`` more of the inputs are read."""
        self._bytes_done += read_bytes
        self._progress(Progress(self.path, self._bytes_done, self._bytes_total, self._rows))
