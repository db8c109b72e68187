"""OTLP protobuf bytes to columns: the receiver's fast path.

Sans-IO: any bytes become a `Decoded` or raise SourceError. A message that does not parse as a
whole is taken apart and its good items kept; each bad item is a `Rejected` with its reason.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from tracekit.errors import SourceError
from tracekit.ingest import _wire
from tracekit.ingest._collect import new_rows
from tracekit.ingest._proto_values import parse_failure
from tracekit.ingest._proto_walks import LEVELS, open_group, walk
from tracekit.ingest._rows import Rows
from tracekit.ingest._schema import ITEM, REQUEST
from tracekit.ingest.batch import Decoded


def decode_otlp_protobuf(signal: str, data: bytes, *, keep_text: bool = False) -> Decoded:
    """Decodes one Export{Trace,Metrics,Logs}ServiceRequest.

    ``signal`` is ``traces``, ``metrics`` or ``logs`` (UsageError otherwise). Without
    ``keep_text`` attributes, events and bodies that hold prompts or answers are left out.
    SourceError if the bytes are no protobuf message of that shape.
    """
    rows = new_rows(signal, keep_text=keep_text)
    add_protobuf(rows, data)
    return rows.decoded()


def add_protobuf(rows: Rows, data: bytes) -> None:
    """Adds the items of one export request to ``rows``; SourceError leaves ``rows`` as it was."""
    with rows.message():
        try:
            request = REQUEST[rows.signal].FromString(data)
        except DecodeError:
            _salvage(rows, data)
        else:
            walk(request, rows)


def _salvage(rows: Rows, data: bytes) -> None:
    """Adds the good items of a message that does not parse as a whole, rejects the others."""
    blocks, scopes, items = LEVELS[rows.signal]
    for part in list(_wire.groups(data)):  # all of it first: SourceError if the frame is broken
        request = REQUEST[rows.signal]()
        block = getattr(request, blocks).add()
        scope = getattr(block, scopes).add()
        try:
            block.resource.MergeFromString(part.resource)
            scope.scope.MergeFromString(part.scope)
        except DecodeError as error:
            broken = parse_failure(error)
            block.ClearField("resource")
            scope.ClearField("scope")
            open_group(rows, block.resource, scope.scope)
            for item in part.items:
                rows.reject(broken.reason, f"resource: {broken.detail}", {"bytes": len(item)})
            continue
        open_group(rows, block.resource, scope.scope)
        for item in part.items:
            try:
                getattr(scope, items).append(ITEM[rows.signal].FromString(item))
            except DecodeError as error:
                broken = parse_failure(error)
                trace_id, span_id = _ids(rows.signal, item)
                # No more payload: what does not parse cannot be searched for text to leave out.
                payload = {"bytes": len(item)}
                rows.reject(
                    broken.reason, broken.detail, payload, trace_id=trace_id, span_id=span_id
                )
        walk(request, rows)


def _ids(signal: str, item: bytes) -> tuple[str | None, str | None]:
    """Trace and span id of an item that does not parse, as far as they can be read."""
    numbers = {"traces": (1, 2), "logs": (9, 10)}.get(signal)
    if numbers is None:
        return None, None
    found: dict[int, str] = {}
    try:
        for number, wire_type, value in _wire.fields(item):
            if number in numbers and wire_type == _wire.LENGTH and len(value) <= 32:
                found[number] = value.hex()
    except SourceError:
        pass  # the ids before the break are all there is
    return found.get(numbers[0]), found.get(numbers[1])
