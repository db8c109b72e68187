"""Rows of `log_records`."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from tracekit.ingest._attrs import INT64_MAX, BadItemError, dump
from tracekit.ingest._rows import Rows, hex_ids
from tracekit.ingest._text import drop_body_text, drop_event_text

_NO_TRACE: Final = bytes(16)
_NO_SPAN: Final = bytes(8)


class LogRows(Rows):
    """Collects log records; see `tracekit.lake.schema.LOG_RECORDS` for the columns."""

    signal = "logs"

    def add(
        self,
        *,
        at_unix_ns: int,
        observed_unix_ns: int,
        severity_number: int,
        severity_text: str,
        event_name: str,
        body: Any,
        attributes: dict[str, Any],
        trace_id: bytes,
        span_id: bytes,
    ) -> None:
        """One record; BadItemError if its time is out of range.

        A record may come without a time (NULL) and without a trace; a malformed id counts as
        none, as OTLP asks of receivers.
        """
        at = at_unix_ns or observed_unix_ns
        if not 0 <= at <= INT64_MAX:
            raise BadItemError("time_out_of_range", f"time {at}: not 0 .. 2^63-1 ns")
        if not event_name:
            named = attributes.get("event.name")
            event_name = named if isinstance(named, str) else ""
        if not self.keep_text:
            attributes = drop_event_text(event_name, attributes)
            body = drop_body_text(event_name, body)
        self._rows.append(
            (
                at or None,
                severity_number,
                severity_text or None,
                event_name or None,
                body if body is None or isinstance(body, str) else dump(body),
                dump(attributes),
                trace_id if len(trace_id) == 16 and trace_id != _NO_TRACE else b"",
                span_id if len(span_id) == 8 and span_id != _NO_SPAN else b"",
            )
        )

    def _columns(
        self, columns: list[tuple[Any, ...]], shared: dict[str, pa.Array]
    ) -> dict[str, pa.Array]:
        return {
            "at_unix_ns": pa.array(columns[0], pa.int64()),
            "severity_number": pa.array(columns[1], pa.int32()),
            "severity_text": pa.array(columns[2], pa.string()),
            "event_name": pa.array(columns[3], pa.string()),
            "body": pa.array(columns[4], pa.string()),
            "attributes": pa.array(columns[5], pa.string()),
            "trace_id": hex_ids(columns[6], 16),
            "span_id": hex_ids(columns[7], 8),
        }
