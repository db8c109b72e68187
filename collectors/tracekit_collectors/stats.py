"""What the receiver has seen and done, as counters that any thread may bump.

Owns the numbers behind ``GET /status`` (which ``tracekit doctor`` reads); decides nothing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

#: Version of the ``/status`` document.
STATUS_SCHEMA: Final = "tracekit.collect.status/1"

#: Names come from senders, so their number is bounded.
_MAX_SERVICES: Final = 1000
_MAX_NAME_CHARS: Final = 200


class Stats:
    """Counters of one receiver; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started_unix_ns = time.time_ns()
        self._signals: dict[str, Counter[str]] = {}
        self._rejected: dict[str, Counter[str]] = {}
        self._refused: Counter[str] = Counter()
        self._services: dict[str, dict[str, int]] = {}
        self._services_left_out = 0
        self._lake: dict[str, Any] = {
            "commits": 0,
            "rows": 0,
            "last_commit_unix_ns": None,
            "last_commit_rows": None,
            "late_commits": 0,
            "failures_in_a_row": 0,
            "last_error": None,
            "last_error_unix_ns": None,
        }
        self._loops: dict[str, dict[str, Any]] = {}
        self._hints: list[str] = []

    def accepted(
        self,
        signal: str,
        *,
        origin: str,
        rows: int,
        rejected: Mapping[str, int],
        services: Mapping[str, int],
        now_unix_ns: int,
    ) -> None:
        """A request was acknowledged: ``rows`` of it stored, ``rejected`` by reason not."""
        refused_rows = sum(rejected.values())
        with self._lock:
            counts = self._signals.setdefault(signal, Counter())
            counts["requests"] += 1
            counts[f"requests_{origin}"] += 1
            counts["received"] += rows + refused_rows
            counts["accepted"] += rows
            if rejected:
                self._rejected.setdefault(signal, Counter()).update(rejected)
            for name, count in services.items():
                self._see(name, signal, count, now_unix_ns)

    def _see(self, name: str, signal: str, count: int, now_unix_ns: int) -> None:
        name = name[:_MAX_NAME_CHARS]
        service = self._services.get(name)
        if service is None:
            if len(self._services) >= _MAX_SERVICES:
                self._services_left_out += 1
                return
            service = self._services[name] = {}
        service["last_seen_unix_ns"] = now_unix_ns
        service[signal] = service.get(signal, 0) + count

    def refused(self, reason: str) -> None:
        """A whole request was refused: bad body, overload, no token ..."""
        with self._lock:
            self._refused[reason] += 1

    def committed(self, *, rows: int, now_unix_ns: int, late: bool) -> None:
        """One table of the lake took ``rows``; ``late``: after so long that settling waited."""
        with self._lock:
            self._lake["commits"] += 1
            self._lake["rows"] += rows
            self._lake["late_commits"] += late
            self._lake["last_commit_unix_ns"] = now_unix_ns
            self._lake["last_commit_rows"] = rows

    def lake_ok(self) -> bool:
        """A whole flush went through; True if the one before it had failed."""
        with self._lock:
            failed = bool(self._lake["failures_in_a_row"])
            self._lake["failures_in_a_row"] = 0
            return failed

    def lake_failed(self, error: str, *, now_unix_ns: int) -> int:
        """A flush failed; returns how many have failed in a row."""
        with self._lock:
            self._lake["failures_in_a_row"] += 1
            self._lake["last_error"] = error
            self._lake["last_error_unix_ns"] = now_unix_ns
            return int(self._lake["failures_in_a_row"])

    def loop(self, name: str, **facts: Any) -> None:
        """A background loop (``settle``, ``maintenance``) says how it is doing."""
        with self._lock:
            self._loops.setdefault(name, {}).update(facts)

    def hint(self, text: str) -> bool:
        """Keep a hint for the operator; True the first time it is given."""
        with self._lock:
            if text in self._hints:
                return False
            self._hints.append(text)
            return True

    def to_json(self) -> dict[str, Any]:
        """A copy of everything, ready for JSON."""
        with self._lock:
            return {
                "schema": STATUS_SCHEMA,
                "started_unix_ns": self._started_unix_ns,
                "now_unix_ns": time.time_ns(),
                "signals": {
                    signal: {
                        **counts,
                        "rejected": dict(self._rejected.get(signal, {})),
                    }
                    for signal, counts in self._signals.items()
                },
                "refused_requests": dict(self._refused),
                "services": {name: dict(seen) for name, seen in self._services.items()},
                "services_left_out": self._services_left_out,
                "lake": dict(self._lake),
                "loops": {name: dict(facts) for name, facts in self._loops.items()},
                "hints": list(self._hints),
            }
