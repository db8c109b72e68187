"""One input read by its kind: OTLP, an engine's log, text of `/metrics`, a request log.

Formats are `files`' business, rows the decoders', and what is written `_file_writes`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import pyarrow as pa

from tracekit.errors import SourceError, UsageError
from tracekit.ingest._attrs import BadItemError, resource_of
from tracekit.ingest._collect import new_rows
from tracekit.ingest._file_writes import FileWrites
from tracekit.ingest._import_run import Run
from tracekit.ingest._messages import Message, Unreadable, read_messages, signals
from tracekit.ingest._metric_rows import Metric, MetricRows
from tracekit.ingest._request_files import flatten
from tracekit.ingest._request_json import parse_json
from tracekit.ingest._rows import Rows
from tracekit.ingest._span_rows import SpanRows
from tracekit.ingest._streams import Source
from tracekit.ingest.batch import (
    TABLE_OF_SIGNAL,
)
from tracekit.ingest.engine_logs import (
    BY_FORMAT,
    SCOPE,
    BadLine,
    EngineLog,
    Sample,
    ids_of,
    lines_in,
)
from tracekit.ingest.otlp_json import add_document
from tracekit.ingest.otlp_protobuf import add_protobuf
from tracekit.ingest.prometheus_text import FORMAT, metric_times, read_scrapes
from tracekit.ingest.request_log import LogBatch, read_request_log
from tracekit.words import plural, verb

#: Rows a commit: what Delta writes cheaply (a commit costs as much as some thousand rows).
BATCH_ROWS: Final = 10_000


class FileImport(FileWrites):
    """Reads one input into the store and counts; `summary` at the end."""

    def __init__(self, run: Run, source: Source, sha256: str, *, named: bool) -> None:
        super().__init__(run, source, sha256, named=named)
        self._pending: dict[str, Rows] = {}

    # -- OTLP ----------------------------------------------------------------------------------

    def read_otlp(self, file_format: str) -> None:
        """Reads an OTLP file. SourceError if it is damaged and nothing in it can be used."""
        signal = "traces"  # an unreadable place is filed under the signal before it
        stream = self._source.content()
        for message in read_messages(file_format, stream, damage=lambda: self._source.damage):
            if isinstance(message, Unreadable):
                self._refuse_place(signal, message)
                continue
            try:
                signal = self._add(message) or signal
            except SourceError as error:
                self._refuse_place(signal, self._why_unreadable(message, file_format, error))
        for signal in list(self._pending):
            self._flush(signal)
        self._check_usable()
        self._flush_refused()

    def _why_unreadable(self, message: Message, file_format: str, error: SourceError) -> Unreadable:
        """A message that is no export request may be a row of a request log."""
        if message.encoding == "json":
            try:
                value = parse_json(message.data)
            except ValueError:
                value = None
            row = flatten(value) if isinstance(value, dict) else None
            if row is not None and self._run.known.tell(row):
                log_format = file_format.removeprefix("otlp-")
                detail = (
                    "a row of a request log among OTLP: to take such rows too, import the file "
                    f"once more with --source {log_format}"
                )
                return Unreadable(message.row, "request_log_in_otlp", detail)
        return Unreadable(message.row, "undecodable", str(error))

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

    # -- engines' logs -------------------------------------------------------------------------

    def read_engine_log(self, file_format: str) -> None:
        """Reads an engine's log. SourceError if nothing in it can be used."""
        log = BY_FORMAT[file_format]
        rows = SpanRows(keep_text=self._run.keep_text)
        resource = resource_of(
            {"service.name": self._run.service or log.service}, keep_text=self._run.keep_text
        )
        rows.group(resource, SCOPE + log.format, None)
        samples = MetricRows(keep_text=self._run.keep_text)
        samples.group(resource, SCOPE + log.format, None)
        skipped = read = number = 0
        facts = self._run.facts_of(self._source.name, log)
        lines = lines_in(self._source.content(), is_cut=lambda: self._source.damage is not None)
        for number, found in log.read(lines, facts):
            if found is None:
                skipped += 1
                continue
            read += 1
            if isinstance(found, BadLine):
                self._refuse_place("traces", Unreadable(number, found.reason, found.detail))
                continue
            if isinstance(found, list):
                self._add_samples(samples, found, number)
                if len(samples) >= BATCH_ROWS:
                    self._commit("metric_samples", samples.decoded().table)
                    samples = MetricRows(keep_text=self._run.keep_text)
                    samples.group(resource, SCOPE + log.format, None)
                continue
            trace_id, span_id, parent = ids_of(log, found)
            try:
                rows.add(
                    trace_id, span_id, parent, found.name, 1, found.start_unix_ns,
                    found.end_unix_ns, 0, None, 0, found.attributes, None, None,
                )  # fmt: skip
            except BadItemError as error:
                self._refuse_place("traces", Unreadable(number, error.reason, error.detail))
            if len(rows) >= BATCH_ROWS:
                self._commit_records(log, rows.decoded().table)
                rows = SpanRows(keep_text=self._run.keep_text)
                rows.group(resource, SCOPE + log.format, None)
        self._commit_records(log, rows.decoded().table)
        self._commit("metric_samples", samples.decoded().table)
        if (damage := self._source.damage) is not None:
            self._refuse_place("traces", Unreadable(number, damage.reason, damage.detail))
        if not read:
            raise SourceError(
                f"{log.wants} was looked for in {plural(skipped, 'line')}, and none is there"
                + "".join(f"; {notice}" for notice in facts.notices()),
                where=self._source.name,
                how=f"is it a log of another kind? --source {file_format} was taken for it",
            )
        if skipped:
            self.remark(f"{plural(skipped, 'line')} about no request passed over")
        for notice in facts.notices():
            self.remark(notice)
        self._check_usable()
        self._flush_refused()

    def _add_samples(self, rows: MetricRows, samples: list[Sample], number: int) -> None:
        for sample in samples:
            try:
                rows.add(
                    Metric(sample.name, sample.unit, "gauge", None, None),
                    start_unix_ns=0,
                    at_unix_ns=sample.at_unix_ns,
                    value=sample.value,
                    count=None,
                    buckets=None,
                    attributes=sample.attributes,
                )
            except BadItemError as error:
                self._refuse_place("metrics", Unreadable(number, error.reason, error.detail))

    def _commit_records(self, log: EngineLog, rows: pa.Table) -> None:
        if log.counts_from_start and rows.num_rows:
            moved = self._run.seen.moved(rows)
            if moved:
                raise UsageError(
                    f"{self._source.name}: {plural(moved, 'request')} of this log "
                    f"{verb(moved, 'is', 'are')} in the store at another time already: to place "
                    "them with another --log-start, import the log into a fresh --store"
                )
        self._commit("spans", rows)

    # -- metrics -------------------------------------------------------------------------------

    def read_prometheus(self) -> None:
        """Reads Prometheus text. SourceError if nothing in it can be used, or nothing tells when
        its samples were."""
        run = self._run
        rows = MetricRows(keep_text=run.keep_text)
        named = {"service.name": run.service} if run.service else {}
        resource = resource_of(named, keep_text=run.keep_text)
        rows.group(resource, SCOPE + FORMAT, None)
        at = run.at_unix_ns or self._source.modified_unix_ns
        scrapes = dated = marked = samples = line = 0
        for scrape in read_scrapes(self._source.content(), at, where=self._source.name):
            if not scrape.is_dated and run.at_unix_ns is not None:
                run.use_at(self._source.name)
            scrapes += 1
            dated += scrape.is_dated
            marked += scrape.is_marked
            samples += len(scrape.points)
            for line, bad in scrape.bad:
                self._refuse_place("metrics", Unreadable(line, bad.reason, bad.detail))
            for point in scrape.points:
                line = point.line
                try:
                    point.add_to(rows)
                except BadItemError as error:
                    self._refuse_place("metrics", Unreadable(line, error.reason, error.detail))
            if len(rows) >= BATCH_ROWS:
                self._commit("metric_samples", rows.decoded().table)
                rows = MetricRows(keep_text=run.keep_text)
                rows.group(resource, SCOPE + FORMAT, None)
        self._commit("metric_samples", rows.decoded().table)
        if (damage := self._source.damage) is not None:
            self._refuse_place("metrics", Unreadable(line, damage.reason, damage.detail))
        if not samples:
            raise SourceError(
                "no sample of a metric can be read",
                where=self._source.name,
                how=f"is it another kind of file? --source {FORMAT} was taken for it",
            )
        self.remark(metric_times(scrapes, dated, marked, at, is_told=run.at_unix_ns is not None))
        if not run.service:
            self.remark(
                "only a label can tell whose metrics these are: name the process as its spans do, "
                "with --service NAME"
            )
        self._check_usable()
        self._flush_refused()

    # -- request logs --------------------------------------------------------------------------

    def read_request_log(self, file_format: str) -> None:
        """Reads a request log. SourceError if nothing in it can be used."""
        for batch in self._log_batches(file_format):
            self._mapped |= batch.mapped
            self._unmapped |= dict.fromkeys(batch.unmapped)
            for notice in batch.notices:
                self.remark(notice)
            for rejected, row in zip(batch.rejected, batch.rejected_rows, strict=True):
                self._refuse(rejected, row)
            self._commit("request_log", batch.table)
        self._check_usable()
        self._flush_refused()

    def _log_batches(self, file_format: str) -> Iterator[LogBatch]:
        """The batches of a request log. One found in a folder may turn out to be none, and one
        may turn out to be damaged half way: that is noted, and what is good is kept."""
        with ExitStack() as stack:
            batches: Iterator[LogBatch] | None = None
            while True:
                try:
                    if batches is None:
                        data = stack.enter_context(self._source.seekable())
                        batches = read_request_log(
                            self._source.name,
                            data,
                            file_format=file_format,
                            mapping=self._run.mapping,
                            now_unix_ns=self._run.now_unix_ns,
                            progress=self._source.reached,
                            damage=self._source.damage,
                        )
                    batch = next(batches)
                except StopIteration:
                    return
                except SourceError as error:
                    damage = self._source.damage  # the cause of whatever is wrong, if there is one
                    cause = error if damage is None else self._source.unusable(damage)
                    if self._named and not self._in_store:
                        raise cause from None
                    self._tally.add("unreadable", self._source.name, str(cause))
                    self.remark(str(cause))
                    return
                yield batch
