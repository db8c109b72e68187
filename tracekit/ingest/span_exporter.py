"""Finished spans of this process straight into a local store: ``tracekit.configure(store=...)``.

An OpenTelemetry exporter for whoever runs no receiver. Spans take the receiver's way: they are
encoded as OTLP and decoded as what arrives over the network is. Owns batches, their repetition and
what happens when the store takes none; a store that is broken, full or gone costs the application
its spans and nothing else.

Each batch is committed with the transaction (this exporter, its number), so that one that landed
without our knowing is not written twice. In the child of a fork the exporter starts anew under
another id; where the parent had written to the store before, the child cannot (Delta's runtime does
not survive a fork), and says so in `tracekit.faults()`.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from tracekit.ingest.batch import Decoded, stamp
from tracekit.ingest.otlp_protobuf import decode_otlp_protobuf
from tracekit.lake.stamping import stamping
from tracekit.lake.store import Store
from tracekit.sdk.faults import FAULTS

#: How rows came in: `origin` of the raw tables.
ORIGIN: Final = "sdk"

#: Spans that wait for a store that does not take them; the oldest go first.
WAITING_MAX: Final = 50_000
_FIRST_RETRY_S: Final = 0.5
_LAST_RETRY_S: Final = 15.0
#: Tries at the end, and the pause between them.
_LAST_TRIES: Final = 3
_LAST_PAUSE_S: Final = 0.3


class ForkedError(Exception):
    """The store was written to before this process was forked."""

    def __init__(self) -> None:
        super().__init__(
            "a process forked after its parent wrote to the store cannot write there itself: start "
            "it with the spawn or forkserver method, or send spans to `tracekit collect`"
        )


class StoreExporter(SpanExporter):
    """Writes spans into ``store``; settles them when it is shut down, if ``settle``."""

    def __init__(self, store: Store, *, settle: bool = True) -> None:
        # imported while somebody can still be told that something is missing
        from tracekit.analysis.settle import settle_after_import

        self._settle_all = settle_after_import
        self._store = store
        self._settles = settle
        self._begin()
        self._wrote_in: int | None = None
        self._lock = threading.Lock()
        forked = weakref.WeakMethod(self._forked)

        def begin_anew() -> None:
            if (method := forked()) is not None:
                method()

        os.register_at_fork(after_in_child=begin_anew)

    def _begin(self) -> None:
        self._id = f"sdk-{uuid.uuid4()}"
        self._number = 0
        self._waiting: deque[tuple[int, Decoded]] = deque()
        self._retry_s = 0.0
        self._retry_at_s = 0.0
        self._wrote = False
        self._ended = False

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._begin()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write ``spans``. A failure is counted, and they are tried again with the next."""
        try:
            data = encode_spans(spans).SerializeToString()
            decoded = decode_otlp_protobuf("traces", data)
        except Exception as error:
            FAULTS.swallow("reading spans for the store", error)
            return SpanExportResult.FAILURE
        with self._lock:
            if self._ended:
                return SpanExportResult.FAILURE
            self._number += 1
            self._waiting.append((self._number, decoded))
            self._drop_oldest()
            if time.monotonic() >= self._retry_at_s:
                self._commit_all()
            return SpanExportResult.FAILURE if self._waiting else SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Whether nothing waits any more."""
        with self._lock:
            return self._commit_all()

    def shutdown(self) -> None:
        """Write what is left, and settle, so that `tracekit diagnose` finds all of it."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            for again in range(_LAST_TRIES):
                if self._commit_all():
                    break
                if again < _LAST_TRIES - 1:
                    time.sleep(_LAST_PAUSE_S)
            if self._waiting:
                lost = sum(decoded.table.num_rows for _, decoded in self._waiting)
                FAULTS.swallow("storing spans", LostError(lost))
                self._waiting.clear()
            if self._wrote and self._settles:
                try:
                    self._settle_all(self._store)
                except BaseException as error:
                    _swallow("settling the store", error)

    def _commit_all(self) -> bool:
        """Write what waits, in order; False at the first batch that the store does not take."""
        while self._waiting:
            number, decoded = self._waiting[0]
            try:
                self._commit(number, decoded)
            except BaseException as error:
                _swallow("writing spans to the store", error)
                self._retry_s = min(max(self._retry_s * 2, _FIRST_RETRY_S), _LAST_RETRY_S)
                self._retry_at_s = time.monotonic() + self._retry_s
                return False
            self._waiting.popleft()
            self._retry_s = self._retry_at_s = 0.0
        return True

    def _commit(self, number: int, decoded: Decoded) -> None:
        pid = os.getpid()
        if self._wrote_in not in (None, pid):
            raise ForkedError
        self._wrote_in = pid
        with stamping(self._store) as now_unix_ns:
            rows, refused = stamp(
                decoded,
                origin=ORIGIN,
                now_unix_ns=now_unix_ns,
                oldest_unix_ns=None,
                newest_unix_ns=None,
            )
            txn = (self._id, number)
            if rows.num_rows:
                self._store.append("spans", rows, txn=txn)
                self._wrote = True
            if refused.num_rows:
                self._store.append("quarantine", refused, txn=txn)

    def _drop_oldest(self) -> None:
        waiting = sum(decoded.table.num_rows for _, decoded in self._waiting)
        while waiting > WAITING_MAX and len(self._waiting) > 1:
            _, gone = self._waiting.popleft()
            waiting -= gone.table.num_rows
            FAULTS.swallow("storing spans", LostError(gone.table.num_rows))


class LostError(Exception):
    """Spans that the store would not take."""

    def __init__(self, spans: int) -> None:
        super().__init__(f"{spans} spans were not written")


def _swallow(where: str, error: BaseException) -> None:
    """Count it; Rust's panics are no Exceptions, and still none of the application's business."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    FAULTS.swallow(where, error)
