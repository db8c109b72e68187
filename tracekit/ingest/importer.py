"""Imports files into the store: OTLP files and request logs, counted row by row.

Owns batching, idempotency and the summary. A batch is cut by what the file holds and not by what
the store holds, so that the n-th batch of a file is the same rows whenever it is imported: its
Delta transaction is (hash of the file, n). Formats are `files`' business, rows the decoders'.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tracekit.errors import SourceError, UsageError
from tracekit.ingest._collect import new_rows
from tracekit.ingest._rows import Rows
from tracekit.ingest._seen import SeenRows
from tracekit.ingest._streams import Source, input_bytes, opened
from tracekit.ingest.batch import (
    TABLE_OF_SIGNAL,
    Rejected,
    quarantine_rows,
    stamp_rows,
)
from tracekit.ingest.files import (
    EMPTY,
    HEAD_BYTES,
    OTLP_FORMATS,
    REQUEST_LOG_FORMATS,
    Message,
    Unreadable,
    detect,
    expand,
    read_messages,
    signals,
)
from tracekit.ingest.otlp_json import add_document
from tracekit.ingest.otlp_protobuf import add_protobuf
from tracekit.ingest.request_log import LogBatch, read_request_log
from tracekit.ingest.summary import FileSummary, ImportSummary, Tally
from tracekit.lake.store import Store

#: Rows a commit: what Delta writes cheaply (a commit costs as much as some thousand rows).
BATCH_ROWS: Final = 10_000
#: Refused items that wait for their commit at most.
_REFUSED_ROWS: Final = 5_000
_ORIGIN: Final = "import"
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class Progress:
    """How far an import is. ``bytes_total`` is None while standard input is among the inputs."""

    path: str
    bytes_done: int
    bytes_total: int | None
    rows: int


def import_paths(
    store: Store,
    paths: Sequence[str],
    *,
    mapping: Mapping[str, str] | None = None,
    source: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    settle: bool = True,
    note: Callable[[str], None] | None = None,
    keep_text: bool = False,
    now_unix_ns: int | None = None,
) -> ImportSummary:
    """Imports files, folders and standard input (``-``) into ``store``.

    ``mapping`` is for request logs (their column to ours, ``name`` or ``name:unit``); ``source``
    forces a format of `files.OTLP_FORMATS` or `files.REQUEST_LOG_FORMATS` on all inputs;
    ``progress`` is called as bytes are read, ``note`` with each remark for the user as it comes
    up. Rows that the store holds already, and repetitions, are counted as duplicates. With
    ``settle`` the derived tables are brought up to date at the end.

    UsageError for a missing path or an unknown ``source``; SourceError for a file named in
    ``paths`` that is nothing known, before anything is written. Unknown files in folders are
    passed over with a note, unless there is no other.
    """
    if source is not None and source not in OTLP_FORMATS | REQUEST_LOG_FORMATS:
        known = ", ".join(OTLP_FORMATS | REQUEST_LOG_FORMATS)
        raise UsageError(f"unknown format {source!r}; one of {known}")
    inputs = expand(paths)
    if not inputs:
        raise SourceError("no files", where=", ".join(paths))
    run = _Run(
        store,
        mapping=dict(mapping or {}),
        source=source,
        progress=progress or (lambda _: None),
        note=note or (lambda _: None),
        keep_text=keep_text,
        now_unix_ns=now_unix_ns if now_unix_ns is not None else time.time_ns(),
        bytes_total=_total([path for path, _ in inputs]),
    )
    try:
        summary = run.all(inputs)
    finally:
        run.close()
    if settle:
        from tracekit.analysis.settle import settle_after_import

        settle_after_import(store)
    if run.unread:
        others = f" ({summary.taken:,} rows of the other files are in the store)"
        raise UsageError(f"{run.unread[0]}{others}")
    return summary


def _total(paths: Sequence[str]) -> int | None:
    sizes = [input_bytes(path) for path in paths]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


class _Run:
    """One import over all its inputs."""

    def __init__(
        self,
        store: Store,
        *,
        mapping: Mapping[str, str],
        source: str | None,
        progress: Callable[[Progress], None],
        note: Callable[[str], None],
        keep_text: bool,
        now_unix_ns: int,
        bytes_total: int | None,
    ) -> None:
        self.store = store
        self.mapping = mapping
        self.note = note
        self.keep_text = keep_text
        self.now_unix_ns = now_unix_ns
        self.seen = SeenRows(store)
        self._source = source
        self._progress = progress
        self._bytes_total = bytes_total
        self._bytes_done = 0
        self._rows = 0
        self._path = ""
        self.unread: list[UsageError] = []

    def close(self) -> None:
        self.seen.close()

    def all(self, inputs: Sequence[tuple[str, bool]]) -> ImportSummary:
        """Imports every input; files named by the user are looked at before any is written."""
        for path, named in inputs:
            if named and input_bytes(path) is not None:
                with opened(path, advanced=lambda _: None) as source:
                    self._format(source)
        files = []
        nothing_known: SourceError | None = None
        for path, named in inputs:
            with opened(path, advanced=self.advanced) as source:
                self._path = source.name
                try:
                    file_format = self._format(source)
                except SourceError as error:
                    if named:
                        raise
                    nothing_known = error
                    self.note(f"{path}: passed over, nothing known in it")
                    files.append(_passed_over(path, error))
                    continue
                try:
                    files.append(self._file(source, file_format, named))
                except UsageError as error:
                    # a unit that cannot be told stops this file, not the others beside it
                    if len(inputs) == 1:
                        raise
                    self.unread.append(error)
                    self.note(f"{path}: not read: {error}")
                    files.append(_passed_over(path, error))
        if nothing_known is not None and all(f.format == _UNKNOWN for f in files):
            raise nothing_known
        return ImportSummary(tuple(files))

    def taken(self, rows: int) -> None:
        """``rows`` more are in the store."""
        self._rows += rows
        self.advanced(0)

    def _format(self, source: Source) -> str:
        if self._source is not None:
            return self._source
        head, complete = source.head(HEAD_BYTES)
        return detect(source.name, head, complete=complete, mapping=self.mapping)

    def _file(self, source: Source, file_format: str, named: bool) -> FileSummary:
        job = _File(self, source, source.sha256, named=named)
        if file_format in OTLP_FORMATS:
            job.read_otlp(file_format)
        elif file_format != EMPTY:
            job.read_request_log()
        else:
            job.remark("the file is empty")
        return job.summary(file_format)

    def advanced(self, read_bytes: int) -> None:
        """``read_bytes`` more of the inputs are read."""
        self._bytes_done += read_bytes
        self._progress(Progress(self._path, self._bytes_done, self._bytes_total, self._rows))


def _passed_over(path: str, error: SourceError | UsageError) -> FileSummary:
    return FileSummary(path, _UNKNOWN, 0, (), 0, notices=(str(error),))


class _File:
    """One input on its way into the store."""

    def __init__(self, run: _Run, source: Source, sha256: str, *, named: bool) -> None:
        self._run = run
        self._source = source
        self._named = named
        self._sha256 = sha256
        self._tally = Tally()
        self._tables: dict[str, int] = {}
        self._duplicates = 0
        self._batches: dict[str, int] = {}
        self._pending: dict[str, Rows] = {}
        self._refused: list[Rejected] = []
        self._refused_rows: list[int | None] = []
        self._mapped: dict[str, str] = {}
        self._unmapped: dict[str, None] = {}
        self._notices: dict[str, None] = {}

    def summary(self, file_format: str) -> FileSummary:
        if self._duplicates and self._run.mapping and not any(self._tables.values()):
            self.remark(
                "every row is in the store already and stays as it was first read; --map changes "
                "nothing there: to read the file anew, import it into a fresh --store"
            )
        return FileSummary(
            path=self._source.name,
            format=file_format,
            taken=sum(self._tables.values()),
            refused=self._tally.refusals(),
            duplicates=self._duplicates,
            tables=dict(self._tables),
            mapped=dict(self._mapped),
            unmapped=tuple(self._unmapped),
            notices=tuple(self._notices),
        )

    def remark(self, text: str) -> None:
        """A notice for the summary and, the first time, for whoever watches."""
        if text not in self._notices:
            self._notices[text] = None
            self._run.note(f"{self._source.name}: {text}")

    # -- OTLP ----------------------------------------------------------------------------------

    def read_otlp(self, file_format: str) -> None:
        signal = "traces"  # an unreadable place is filed under the signal before it
        for message in read_messages(file_format, self._source.content()):
            if isinstance(message, Unreadable):
                self._refuse_place(signal, message)
                continue
            try:
                signal = self._add(message) or signal
            except SourceError as error:
                self._refuse_place(signal, Unreadable(message.row, "undecodable", str(error)))
        for signal in list(self._pending):
            self._flush(signal)
        self._flush_refused()

    def _add(self, message: Message) -> str | None:
        """Adds a message to the pending rows; its (last) signal. SourceError if it is none."""
        found, document, lenient = signals(message)
        for signal in found:
            rows = self._pending.get(signal)
            if rows is None:
                rows = self._pending[signal] = new_rows(signal, keep_text=self._run.keep_text)
            if message.encoding == "json":
                add_document(rows, document, lenient=lenient)
            else:
                add_protobuf(rows, message.data)
            for rejected in rows.rejected:
                self._refuse(rejected, message.row)
            rows.rejected.clear()
            if len(rows) >= BATCH_ROWS:
                self._flush(signal)
        return found[-1] if found else None

    def _flush(self, signal: str) -> None:
        decoded = self._pending.pop(signal).decoded()
        self._commit(TABLE_OF_SIGNAL[signal], decoded.table)

    # -- request logs --------------------------------------------------------------------------

    def read_request_log(self) -> None:
        for batch in self._log_batches():
            self._mapped |= batch.mapped
            self._unmapped |= dict.fromkeys(batch.unmapped)
            for notice in batch.notices:
                self.remark(notice)
            for rejected, row in zip(batch.rejected, batch.rejected_rows, strict=True):
                self._refuse(rejected, row)
            self._commit("request_log", batch.table)
        self._flush_refused()

    def _log_batches(self) -> Iterator[LogBatch]:
        """The batches of a request log. One found in a folder may turn out to be none: that is
        noted, and the other files are still read."""
        with ExitStack() as stack:
            batches: Iterator[LogBatch] | None = None
            while True:
                try:
                    if batches is None:
                        batches = read_request_log(
                            self._source.name,
                            stack.enter_context(self._source.seekable()),
                            mapping=self._run.mapping,
                            now_unix_ns=self._run.now_unix_ns,
                            progress=self._source.reached,
                        )
                    batch = next(batches)
                except StopIteration:
                    return
                except SourceError as error:
                    if self._named:
                        raise
                    self._tally.add("unreadable", self._source.name, str(error))
                    self.remark(str(error))
                    return
                yield batch

    # -- both ----------------------------------------------------------------------------------

    def _commit(self, table: str, rows: pa.Table) -> None:
        """Writes what is new of one batch, once, whoever else imports the same file."""
        number = self._batches[table] = self._batches.get(table, 0) + 1
        if not rows.num_rows:
            return
        run = self._run
        rows = stamp_rows(table, rows, origin=_ORIGIN, now_unix_ns=run.now_unix_ns)
        fresh = run.seen.fresh(table, rows)
        twins = run.seen.twins(fresh) if table == "request_log" else 0
        if twins:
            self.remark(
                f"{twins} rows without a start time equal rows imported from another file (or "
                "another state of this one) and are counted again, since nothing tells them "
                "apart: to replace a sheet, import it into a fresh --store, or add a start time"
            )
        if fresh.num_rows and not run.store.append(table, fresh, txn=(self._sha256, number)):
            # This batch of this file was committed before, yet its rows were not seen: another
            # import is at it right now, or they have aged out and are wanted again.
            fresh = run.seen.absent(table, fresh)
            if fresh.num_rows:
                run.store.append(table, fresh)
        self._duplicates += rows.num_rows - fresh.num_rows
        self._tables[table] = self._tables.get(table, 0) + fresh.num_rows
        run.taken(fresh.num_rows)

    def _refuse(self, rejected: Rejected, row: int | None) -> None:
        name = self._source.name
        where = name if row is None else f"{name}:{row}"
        self._tally.add(rejected.reason, where, rejected.detail)
        self._refused.append(rejected)
        self._refused_rows.append(row)
        if len(self._refused) >= _REFUSED_ROWS:
            self._flush_refused()

    def _refuse_place(self, signal: str, place: Unreadable) -> None:
        """A place that is no message: filed without payload, for what cannot be read cannot be
        searched for text either."""
        rejected = Rejected(signal, place.reason, place.detail, None, None, None, "")
        self._refuse(rejected, place.row)

    def _flush_refused(self) -> None:
        number = self._batches["quarantine"] = self._batches.get("quarantine", 0) + 1
        if not self._refused:
            return
        rows = quarantine_rows(
            self._refused,
            origin=_ORIGIN,
            now_unix_ns=self._run.now_unix_ns,
            source_file=self._source.name,
            source_rows=self._refused_rows,
        )
        self._run.store.append("quarantine", rows, txn=(self._sha256, number))
        self._refused = []
        self._refused_rows = []
