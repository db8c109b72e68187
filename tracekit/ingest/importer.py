"""Imports files into the store: OTLP files and request logs, counted row by row.

Owns the order of things over all inputs: what is looked at before anything is written, which
file's trouble stops what. One file is `_import_file`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tracekit.errors import SourceError, UsageError
from tracekit.ingest._import_file import FileImport
from tracekit.ingest._import_run import Progress, Run
from tracekit.ingest._streams import Source, input_bytes, opened
from tracekit.ingest.engine_logs import ENGINE_LOG_FORMATS, Facts
from tracekit.ingest.files import (
    EMPTY,
    HEAD_BYTES,
    OTLP_FORMATS,
    REQUEST_LOG_FORMATS,
    detect,
    expand,
)
from tracekit.ingest.prometheus_text import PROMETHEUS_FORMATS
from tracekit.ingest.summary import FileSummary, ImportSummary
from tracekit.lake.store import Store
from tracekit.words import plural

__all__ = ["Progress", "import_paths"]

_UNKNOWN: Final = "unknown"
_MAP_UNUSED: Final = "--map is for request logs; there is none here, so it did nothing"
_SERVICE_UNUSED: Final = (
    "--service is for engines' logs and texts of /metrics; there is none here, so it did nothing"
)
_AT_UNUSED: Final = "--at is for texts of /metrics that do not tell their time; none here needed it"
_LOG_START_UNUSED: Final = (
    "--log-start is for logs whose times count from the start of the server; there is none here, "
    "so it did nothing"
)


def import_paths(
    store: Store | Callable[[], Store],
    paths: Sequence[str],
    *,
    mapping: Mapping[str, str] | None = None,
    source: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    settle: bool = True,
    note: Callable[[str], None] | None = None,
    done: Callable[[ImportSummary], None] | None = None,
    keep_text: bool = False,
    service: str | None = None,
    log_start_unix_ns: int | None = None,
    at_unix_ns: int | None = None,
    now_unix_ns: int | None = None,
) -> ImportSummary:
    """Imports files, folders and standard input (``-``) into ``store``.

    ``store`` may be a function that opens it, which is called when something is to be written.
    ``mapping`` is for request logs (their column to ours, ``name`` or ``name:unit``); ``source``
    forces a format of `files.OTLP_FORMATS`, `PROMETHEUS_FORMATS`, `ENGINE_LOG_FORMATS` or
    `files.REQUEST_LOG_FORMATS` on all inputs; ``service`` names the process whose log an engine's
    log or whose metrics a text of /metrics is, ``log_start_unix_ns`` is the zero of its clock where
    a log's lines have no date, and ``at_unix_ns`` the time of metrics where nothing in them tells;
    ``progress`` is called as bytes are read, ``note`` with each remark for the user as it comes
    up, ``done`` with the summary before an error at the end; ``now_unix_ns`` stands for the clock.
    Rows that the store holds already, and repetitions, are counted as duplicates. With ``settle``
    the derived tables are brought up to date at the end.

    UsageError for a missing path, an unknown ``source``, an empty ``service`` or a bad ``mapping``,
    before anything is written. A file that is nothing known or of no use stops no other: if it was
    named in ``paths`` or read in part, its error is raised at the end. Unknown files in folders are
    passed over with a note, unless there is no other.
    """
    formats = OTLP_FORMATS | PROMETHEUS_FORMATS | ENGINE_LOG_FORMATS | REQUEST_LOG_FORMATS
    if source is not None and source not in formats:
        known = ", ".join(formats)
        raise UsageError(f"unknown format {source!r}; one of {known}")
    if service is not None and not service.strip():
        raise UsageError("--service is empty; name the process whose log it is")
    inputs = expand(paths)
    if not inputs:
        raise SourceError("no files", where=", ".join(paths))
    run = Run(
        store,
        mapping=dict(mapping or {}),
        progress=progress or (lambda _: None),
        note=note or (lambda _: None),
        keep_text=keep_text,
        service=service,
        facts=Facts(log_start_unix_ns),
        at_unix_ns=at_unix_ns,
        now_unix_ns=now_unix_ns,
        bytes_total=_total([path for path, _ in inputs]),
    )
    unread: list[UsageError | SourceError] = []
    try:
        summary = _read_all(run, inputs, source, unread)
    finally:
        run.close()
    if settle and run.has_store:
        from tracekit.analysis.settle import settle_after_import

        settle_after_import(run.store)
    if done is not None:
        done(summary)
    if unread:
        # bad data goes before a wrong option
        first = next((e for e in unread if isinstance(e, SourceError)), unread[0])
        others = f"{plural(summary.taken, 'row')} of the other files taken"
        if there := summary.duplicates + summary.differing:
            others += f", {there:,} there already"
        more = f"; {len(unread) - 1} more could not be used" if len(unread) > 1 else ""
        raise type(first)(f"{first}{more} ({others})")
    return summary


def _total(paths: Sequence[str]) -> int | None:
    sizes = [input_bytes(path) for path in paths]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _read_all(
    run: Run,
    inputs: Sequence[tuple[str, bool]],
    source_format: str | None,
    unread: list[UsageError | SourceError],
) -> ImportSummary:
    """Imports every input; files named by the user are opened before any is written.

    Appends to ``unread`` what made a file useless that others stood beside.
    """
    for path, named in inputs:
        if named and input_bytes(path) is not None:
            with opened(path, advanced=lambda _: None) as source, suppress(SourceError):
                _format(run, source, source_format)
    files = []
    nothing_known: SourceError | None = None
    for path, named in inputs:
        with opened(path, advanced=run.advanced) as source:
            run.path = source.name
            try:
                file_format = _format(run, source, source_format)
            except SourceError as error:
                if len(inputs) == 1:
                    raise
                nothing_known = nothing_known or error
                if named:
                    unread.append(error)
                run.note(f"{path}: passed over, nothing known in it")
                files.append(_passed_over(path, error))
                continue
            try:
                files.append(_file(run, source, file_format, named))
            except (UsageError, SourceError) as error:
                # a unit that cannot be told, or damage, stops this file and not those beside it
                if len(inputs) == 1:
                    raise
                unread.append(error)
                run.note(f"{path}: not read: {error}")
                files.append(_passed_over(path, error))
    if nothing_known is not None and all(f.format == _UNKNOWN for f in files):
        raise nothing_known
    for unused in _unused_options(run, {f.format for f in files}):
        run.note(unused)
        files[0] = replace(files[0], notices=(*files[0].notices, unused))
    return ImportSummary(tuple(files))


def _unused_options(run: Run, formats: Set[str]) -> Iterator[str]:
    """What to say of options that did nothing, for no file was of a format that they are for."""
    if run.mapping and not formats & {*REQUEST_LOG_FORMATS, _UNKNOWN}:
        yield _MAP_UNUSED
    of_a_process = {*ENGINE_LOG_FORMATS, *PROMETHEUS_FORMATS, _UNKNOWN}
    if run.service is not None and not formats & of_a_process:
        yield _SERVICE_UNUSED
    if run.is_log_start_idle and _UNKNOWN not in formats:
        yield _LOG_START_UNUSED
    if run.is_at_idle and _UNKNOWN not in formats:
        yield _AT_UNUSED


def _format(run: Run, source: Source, source_format: str | None) -> str:
    if source_format is not None:
        return source_format
    head, complete = source.head(HEAD_BYTES)
    return detect(source.name, head, complete=complete, mapping=run.mapping)


def _file(run: Run, source: Source, file_format: str, named: bool) -> FileSummary:
    job = FileImport(run, source, source.sha256, named=named)
    if file_format in OTLP_FORMATS:
        job.read_otlp(file_format)
    elif file_format in PROMETHEUS_FORMATS:
        job.read_prometheus()
    elif file_format in ENGINE_LOG_FORMATS:
        job.read_engine_log(file_format)
    elif file_format != EMPTY:
        job.read_request_log(file_format)
    else:
        job.remark("the file is empty")
    return job.summary(file_format)


def _passed_over(path: str, error: SourceError | UsageError) -> FileSummary:
    return FileSummary(path, _UNKNOWN, 0, (), 0, notices=(str(error),))
