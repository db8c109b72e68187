"""What a header leaves open although its names are read: columns of one name, unknown times.

Owns two remarks of a plan. A column that is there twice is never chosen silently; times that no
known name gives are shown with the ``--map`` that would use them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tracekit.errors import UsageError
from tracekit.ingest import _cells
from tracekit.ingest._cells import CellError
from tracekit.ingest._column_kinds import Column
from tracekit.ingest._column_names import words_of
from tracekit.ingest._request_files import Double

CellsOf = Callable[[str], Sequence[object]]

#: Cells looked at to tell what a column holds.
_PROBED_CELLS: Final = 100
#: Columns named in one remark.
_SHOWN: Final = 8

#: Without one of these a request has no place in time, no TTFT or no total.
_WANTED: Final = ("start_unix_ns", "end_unix_ns", "ttft_ms", "e2e_ms")

_DURATION_WORDS: Final = frozenset(
    "time latency latencies duration delay elapsed wait took ttft ttlt rtt sec secs second seconds "
    "ms msec millis milliseconds us micros ns nanos s 시간 지연 초 밀리초".split()
)
_RATE_WORDS: Final = frozenset(("per", "rate", "throughput"))
_END_WORDS: Final = frozenset("end ended finish finished done complete completed last stop".split())
_START_WORDS: Final = frozenset(
    "start started begin began send sent submit submitted issue issued arrival arrived created "
    "received request".split()
)
_FIRST_WORDS: Final = frozenset("first ttft ttfb".split())
_TOTAL_WORDS: Final = frozenset("total e2e end ttlt overall whole request latency took".split())
#: What a server measured of itself. It may leave out its queue, and always the network: as the
#: client's TTFT or total it makes slow requests look fast.
_SERVER_WORDS: Final = frozenset(
    "server engine backend metrics worker scheduler model vllm sglang gpu".split()
)


def doubled(
    doubles: Mapping[str, Double],
    read_as: Mapping[str, str | None],
    cells_of: CellsOf,
    where: str,
) -> list[str]:
    """Remarks on further columns of one name, by the name they go by here.

    ``read_as``: what the name is read as; None where it is not, or ``--map`` decides. Raises
    `UsageError` if two columns are read as one of ours and differ.
    """
    remarks = []
    others = []
    for name, double in doubles.items():
        places = f"columns {double.first_place} and {double.place} are both {double.first!r}"
        if (target := read_as[name]) is None:
            others.append(name)
            continue
        first, second = cells_of(double.first), cells_of(name)
        if all(_text(one) == _text(other) for one, other in zip(first, second, strict=True)):
            remarks.append(f"{places} and hold the same; the first is taken")
            continue
        ways = " or ".join(f"--map {shlex.quote(f'{n}={target}')}" for n in (double.first, name))
        raise UsageError(
            f"{where}: {places} and differ, and both look like {target}; say which: {ways}"
        )
    if others:
        shown = ", ".join(others[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
        remarks.append(f"further columns of one name go by their number: {shown}")
    return remarks


def unused_times(
    names: Sequence[str], columns: Mapping[str, Column], cells_of: CellsOf
) -> list[str]:
    """A remark on the columns of ``names`` that look like times, if the plan lacks some.

    ``names``: columns under no known name; ``columns``: ours -> theirs.
    """
    missing = [target for target in _WANTED if target not in columns]
    for one, other in (("end_unix_ns", "e2e_ms"), ("e2e_ms", "end_unix_ns")):
        if one in missing and other in columns and "start_unix_ns" in columns:
            missing.remove(one)  # it follows
    if "chunk_offsets_ms" in columns or "chunk_times" in columns:
        missing = [target for target in missing if target == "start_unix_ns"]
    times = {name: kind for name in names if (kind := _time_kind(name, cells_of(name)))}
    times = {n: kind for n, kind in times.items() if kind != "duration" or not _of_server(n)}
    if not {"ttft_ms", "e2e_ms"}.intersection(missing):
        times = {name: kind for name, kind in times.items() if kind == "time"}
    if not times or not missing:
        return []
    shown = ", ".join(list(times)[:_SHOWN]) + (", ..." if len(times) > _SHOWN else "")
    ways = [
        f"--map {shlex.quote(f'{name}={target}')}" for name, target in _proposals(times, missing)
    ]
    example = " or ".join(ways or [f"--map 'THEIRS={missing[0]}'"])
    return [
        f"times under names that are not known are not used: {shown}; if one is what the file "
        f"lacks ({', '.join(missing)}): {example}"
    ]


def _proposals(times: Mapping[str, str], missing: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(their name, ours), each of ours once."""
    left = list(missing)
    for name, kind in times.items():
        words = set(words_of(name).split("_"))
        target = None
        if kind == "list" and "ttft_ms" in missing:
            yield name, "chunk_offsets_ms:ns"
        elif kind == "time":
            if words & _END_WORDS:
                target = "end_unix_ns"
            elif words & _START_WORDS:
                target = "start_unix_ns"
        elif words & _FIRST_WORDS:
            target = "ttft_ms"
        elif words & _TOTAL_WORDS:
            target = "e2e_ms"
        if target in left:
            left.remove(target)
            yield name, target


def _time_kind(name: str, cells: Sequence[object]) -> str | None:
    """``time`` for points in time, ``list`` for lists of them in nanoseconds, ``duration`` for
    what is named and written like one."""
    there = [cell for cell in cells if not _cells.is_null(cell)][:_PROBED_CELLS]
    if not there:
        return None
    if all(map(_is_time, there)):
        return "time"
    if all(isinstance(cell, list) and all(map(_is_ns, cell)) for cell in there):
        return "list"
    words = set(words_of(name).split("_"))
    if words & _DURATION_WORDS and not words & _RATE_WORDS and all(map(_is_duration, there)):
        return "duration"
    return None


def _of_server(name: str) -> bool:
    return not _SERVER_WORDS.isdisjoint(words_of(name).split("_"))


def _is_time(cell: object) -> bool:
    try:
        return _cells.parse_time(cell)[0] is not None
    except CellError:
        return False


def _is_ns(cell: object) -> bool:
    return isinstance(cell, int) and cell > _cells.FIRST_UNIX_NS


def _is_duration(cell: object) -> bool:
    try:
        _cells.raw_duration(cell)
    except CellError:
        return False
    return True


def _text(cell: object) -> str:
    return "" if _cells.is_null(cell) else str(cell).strip()
