"""The row collector of each signal."""

from __future__ import annotations

from typing import Final

from tracekit.ingest._log_rows import LogRows
from tracekit.ingest._metric_rows import MetricRows
from tracekit.ingest._rows import Rows
from tracekit.ingest._span_rows import SpanRows
from tracekit.ingest.batch import check_signal

_COLLECTORS: Final[dict[str, type[Rows]]] = {
    "traces": SpanRows,
    "metrics": MetricRows,
    "logs": LogRows,
}


def new_rows(signal: str, *, keep_text: bool = False) -> Rows:
    """An empty collector; messages of ``signal`` may be added to it one after another."""
    return _COLLECTORS[check_signal(signal)](keep_text=keep_text)
