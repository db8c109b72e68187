"""Writing results: JSON for machines on stdout, rich text for people, notices on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console, RenderableType


def console() -> Console:
    """A console for text output on stdout."""
    from tracekit.report.console import make_console

    return make_console(sys.stdout)


def show(*renderables: RenderableType) -> None:
    """Print text for people."""
    out = console()
    for renderable in renderables:
        out.print(renderable)


def notice(text: str) -> None:
    """One line on stderr that is not a result: it must never end up in a pipe."""
    print(f"tracekit: {text}", file=sys.stderr)


def write(text: str) -> None:
    """Text as it stands, with a newline at its end."""
    sys.stdout.write(text.rstrip("\n") + "\n")


def write_json(value: Any) -> None:
    """One JSON document, indented."""
    write(dump_json(value, indent=True))


def write_json_lines(rows: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object a line."""
    for row in rows:
        sys.stdout.write(dump_json(row) + "\n")


def csv_text(frame: pl.DataFrame) -> str:
    """CSV with a header; nested values as JSON text."""
    import polars as pl

    nested = [n for n, t in frame.schema.items() if t.is_nested()]
    if nested:
        frame = frame.with_columns(
            pl.Series(
                n, [None if v is None else dump_json(v) for v in frame[n].to_list()], pl.String
            )
            for n in nested
        )
    return frame.write_csv()


def dump_json(value: Any, *, indent: bool = False) -> str:
    """JSON text; NaN and infinities become null, dates ISO text, bytes hex."""
    import orjson

    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    if indent:
        options |= orjson.OPT_INDENT_2
    return orjson.dumps(_plain(value), default=_fallback, option=options).decode()


def _plain(value: Any) -> Any:
    """Whole numbers beyond 64 bits (HUGEINT sums) as text: JSON readers would round them."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return str(value)
    return value


def _fallback(value: object) -> object:
    if isinstance(value, Decimal):
        if not value.is_finite():
            return None
        return _plain(int(value)) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    return str(value)
