"""Rows of `spans`: which spans may be stored, and which attributes get a column."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.ingest._attrs import INT64_MAX, BadItemError, dump, rank_of
from tracekit.ingest._rows import Rows, hex_ids, integers, strings
from tracekit.ingest._text import drop_text

_NO_TRACE: Final = bytes(16)
_NO_SPAN: Final = bytes(8)
#: Flags are a bit set of which OTLP defines ten bits; the column holds 31.
_FLAG_BITS: Final = 0x7FFF_FFFF


class SpanRows(Rows):
    """Collects spans; see `tracekit.lake.schema.SPANS` for the columns."""

    signal = "traces"

    def add(
        self,
        trace_id: bytes,
        span_id: bytes,
        parent_span_id: bytes,
        name: str,
        kind: int,
        start_unix_ns: int,
        end_unix_ns: int,
        status_code: int,
        status_message: str | None,
        flags: int,
        attributes: dict[str, Any],
        events: list[dict[str, Any]] | None,
        links: list[dict[str, Any]] | None,
    ) -> None:
        """One span; BadItemError if its identity or its times are unusable.

        ``events`` and ``links`` hold no text any more; ``attributes`` may. Positional, and one
        tuple a row: this runs once a span.
        """
        if parent_span_id == _NO_SPAN:  # some exporters write a missing parent as zeros
            parent_span_id = b""
        if (
            len(trace_id) != 16
            or len(span_id) != 8
            or not 0 < start_unix_ns <= end_unix_ns <= INT64_MAX
            or trace_id == _NO_TRACE
            or span_id == _NO_SPAN
            or (parent_span_id and len(parent_span_id) != 8)
        ):
            raise _why(trace_id, span_id, parent_span_id, start_unix_ns, end_unix_ns)
        if not self.keep_text:
            attributes = drop_text(attributes)
        get = attributes.get
        self._rows.append(
            (
                trace_id,
                span_id,
                parent_span_id,
                name,
                kind,
                start_unix_ns,
                end_unix_ns,
                status_code,
                status_message,
                flags & _FLAG_BITS,
                get("gen_ai.operation.name"),
                get("gen_ai.request.model"),
                get("gen_ai.request.id") or get("request_id") or get("rid"),
                get("gen_ai.response.id") or get("x_request_id") or get("bootstrap_room"),
                get("http.route") or get("url.path") or get("http.target"),
                get("tracekit.phase"),
                get("gen_ai.usage.input_tokens"),
                get("gen_ai.usage.output_tokens"),
                dump(attributes),
                dump(events) if events else None,
                dump(links) if links else None,
                rank_of(attributes) if "tp_rank" in attributes else None,
            )
        )

    def _columns(
        self, columns: list[tuple[Any, ...]], shared: dict[str, pa.Array]
    ) -> dict[str, pa.Array]:
        rank = shared["process_rank"]
        if any(columns[21]):  # a rank on the span is nearer the truth than one on its resource
            rank = pc.coalesce(pa.array(columns[21], pa.string()), rank)
        return {
            "trace_id": hex_ids(columns[0], 16),
            "span_id": hex_ids(columns[1], 8),
            "parent_span_id": hex_ids(columns[2], 8),
            "name": pa.array(columns[3], pa.string()),
            "kind": pa.array(columns[4], pa.int32()),
            "start_unix_ns": pa.array(columns[5], pa.int64()),
            "end_unix_ns": pa.array(columns[6], pa.int64()),
            "status_code": pa.array(columns[7], pa.int32()),
            "status_message": pa.array(columns[8], pa.string()),
            "flags": pa.array(columns[9], pa.int32()),
            "operation_name": strings(columns[10]),
            "model": strings(columns[11]),
            "request_id": strings(columns[12]),
            "response_id": strings(columns[13]),
            "http_route": strings(columns[14]),
            "tracekit_phase": strings(columns[15]),
            "input_tokens": integers(columns[16]),
            "output_tokens": integers(columns[17]),
            "attributes": pa.array(columns[18], pa.string()),
            "events": pa.array(columns[19], pa.string()),
            "links": pa.array(columns[20], pa.string()),
            "process_rank": rank,
        }


def _why(trace_id: bytes, span_id: bytes, parent: bytes, start: int, end: int) -> BadItemError:
    """The first rule that the span breaks."""
    return BadItemError(*_broken_rule(trace_id, span_id, parent, start, end))


def _broken_rule(
    trace_id: bytes, span_id: bytes, parent: bytes, start: int, end: int
) -> tuple[str, str]:
    if len(trace_id) != 16 or trace_id == _NO_TRACE:
        return "bad_trace_id", f"trace_id {_shown(trace_id)}: not 16 bytes other than zeros"
    if len(span_id) != 8 or span_id == _NO_SPAN:
        return "bad_span_id", f"span_id {_shown(span_id)}: not 8 bytes other than zeros"
    if parent and len(parent) != 8:
        return "bad_parent_span_id", f"parent_span_id {_shown(parent)}: not 8 bytes"
    if start == 0:
        return "missing_start", "start_time_unix_nano is 0"
    if end == 0:
        return "missing_end", "end_time_unix_nano is 0: the span did not end"
    if not (0 < start <= INT64_MAX and 0 < end <= INT64_MAX):
        return "time_out_of_range", f"start {start}, end {end}: not 1 .. 2^63-1 ns"
    return "end_before_start", f"end {end} is {start - end} ns before start {start}"


def _shown(value: bytes) -> str:
    return value[:32].hex() or "(empty)"
