"""OTLP/JSON bytes to columns: HTTP clients that speak JSON, and the collector's files.

Sans-IO: any bytes become a `Decoded` or raise SourceError. Bytes that are not UTF-8 cost only the
items they are in.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from tracekit.errors import SourceError
from tracekit.ingest._collect import new_rows
from tracekit.ingest._json_walks import LEVELS, walk
from tracekit.ingest._rows import Rows
from tracekit.ingest.batch import Decoded


def decode_otlp_json(signal: str, data: bytes, *, keep_text: bool = False) -> Decoded:
    """Decodes one Export{Trace,Metrics,Logs}ServiceRequest in OTLP's JSON.

    ``signal`` is ``traces``, ``metrics`` or ``logs`` (UsageError otherwise). Without
    ``keep_text`` attributes, events and bodies that hold prompts or answers are left out.
    SourceError if the bytes are no JSON of that shape.
    """
    rows = new_rows(signal, keep_text=keep_text)
    add_json(rows, data)
    return rows.decoded()


def add_json(rows: Rows, data: bytes) -> None:
    """Adds the items of one export request to ``rows``; SourceError leaves ``rows`` as it was."""
    document, lenient = parse(data)
    add_document(rows, document, lenient=lenient)


def add_document(rows: Rows, document: object, *, lenient: bool = False) -> None:
    """As `add_json`, for JSON already parsed by `parse`."""
    if not isinstance(document, dict):
        raise SourceError("OTLP/JSON is one object a request", where="top level")
    wanted = LEVELS[rows.signal][0]
    if document and wanted not in document:
        found = signals_of(document)
        if found:
            raise SourceError(f"a request for {' and '.join(found)}, not {rows.signal}")
        raise SourceError(f"no {wanted} in the object", how="OTLP/JSON names are lowerCamelCase")
    with rows.message():
        walk(document, rows, lenient=lenient)


def signals_of(document: object) -> tuple[str, ...]:
    """The signals that a parsed JSON document carries, by its keys; usually one, may be none."""
    if not isinstance(document, dict):
        return ()
    return tuple(signal for signal, names in LEVELS.items() if names[0] in document)


def parse(data: bytes) -> tuple[Any, bool]:
    """(JSON value, True if some of its strings may not be Unicode); SourceError if it is none."""
    try:
        return orjson.loads(data), False
    except orjson.JSONDecodeError as error:
        if "UTF-8" not in str(error) and "surrogate" not in str(error):
            raise SourceError(f"not JSON: {error.msg}", where=f"character {error.pos}") from None
    # One bad string must not cost the whole message: read it with the bad bytes marked.
    try:
        return json.loads(data.decode("utf-8", "surrogateescape")), True
    except (ValueError, RecursionError) as error:
        raise SourceError(f"not JSON: {type(error).__name__}") from None
