"""Puts what responses tell of their timings into the columns that the log does not fill itself.

Owns who wins: what the log's own columns say stays. A column of durations or times that is the
log's own is never filled in from responses, so that it keeps one meaning; counts, ids and words
are, row by row. What was made of what, and how often, is told in `notices`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from tracekit.ingest import _request_derive
from tracekit.ingest._cells import CellError
from tracekit.ingest._request_derive import Bad, Values
from tracekit.ingest._request_files import Row
from tracekit.ingest.response_timings._found import Found
from tracekit.response_timings.system import Call, Fields, Lifted, Remark, Unset

_INT32: Final = (1 << 31) - 1
#: Our columns whose meaning depends on who measured them.
_ONE_MEANING: Final = ("_ms", "_unix_ns")
_COUNTED: Final = ("input_tokens", "output_tokens", "cached_tokens")


class Lifter:
    """Lifts timings row by row; keeps what is to be told at the file's end."""

    def __init__(self) -> None:
        self._told: Counter[str] = Counter()
        self._plain: set[tuple[str, str]] = set()

    def lift(
        self,
        rows: Sequence[Row],
        values: Values,
        bad: Bad,
        found: Sequence[Found],
        own: Collection[str],
    ) -> None:
        """Fills ``values`` where the rows' timings say more; marks ``bad`` rows whose cannot be
        read. ``own``: our columns that the log's own fill."""
        for i, row in enumerate(rows):
            if i in bad:
                continue
            try:
                told = _first(row, found)
            except CellError as error:
                bad[i] = (error.reason, str(error))
                continue
            if told is not None:
                self._fill(values, i, *told, own)

    def mapped(self, found: Sequence[Found]) -> dict[str, str]:
        """Their column -> ours, of each field that became one of ours as it is so far."""
        mapped: dict[str, str] = {}
        for place in found:
            label = place.system.label
            mapped |= place.mapped({target for of, target in self._plain if of == label})
        return mapped

    def notices(self) -> Iterator[str]:
        """One line for each thing that was made of several fields, or taken back."""
        for text, count in self._told.items():
            yield f"{text}: {count} row(s)"

    def _fill(
        self, values: Values, i: int, found: Found, fields: Fields, own: Collection[str]
    ) -> None:
        system = found.system
        total = _request_derive.total_ms(values, i)
        served = False
        for lifted in system.lift(fields, _call(values, i, total)):
            if isinstance(lifted, Remark):
                self._told[f"{system.label}: {lifted.text}"] += 1
                continue
            column = values[lifted.target]
            if isinstance(lifted, Unset):
                column[i] = None
                self._told[f"{system.label}: {lifted.target} is unset, {lifted.why}"] += 1
                continue
            target, value = lifted.target, lifted.value
            if (
                value is None
                or column[i] is not None
                or (target in own and target.endswith(_ONE_MEANING))
            ):
                continue
            if target == "e2e_ms" and total is not None:
                continue
            column[i] = min(value, _INT32) if target == "preemptions" else value
            served |= target in _COUNTED
            if target == "ttft_ms":
                values["ttft_kind"][i] = "server"
            self._tell(system.label, lifted)
        if values["engine"][i] is None:
            values["engine"][i] = system.engine
        if served and values["tokens_source"][i] is None:
            values["tokens_source"][i] = "server"

    def _tell(self, label: str, lifted: Lifted) -> None:
        if lifted.how is None:
            self._plain.add((label, lifted.target))
        else:
            self._told[f"{label}: {lifted.target} is {lifted.how}"] += 1


def _first(row: Row, found: Sequence[Found]) -> tuple[Found, Fields] | None:
    """The timings of a row: of the first place that has them, else of one that knows the row."""
    known: tuple[Found, Fields] | None = None
    for place in found:
        fields = place.fields(row)
        if place.system.marked(fields):
            return place, fields
        if known is None and place.system.knows(fields):
            known = place, fields
    return known


def _call(values: Values, i: int, total: float | None) -> Call:
    ttft = values["ttft_ms"][i]
    waited = _request_derive.waited_ms(values, i)
    streaming = values["streaming"][i]
    if values["ttft_kind"][i] not in (None, "first_chunk", "first_content"):
        ttft = None
    return Call(
        streaming=None if streaming is None else streaming == 1,
        ttft_ms=None if ttft is None else max(ttft - waited, 0.0),
        e2e_ms=None if total is None else max(total - waited, 0.0),
        start_unix_ns=values["start_unix_ns"][i],
        output_tokens=values["output_tokens"][i],
        choices=values["choices"][i],
        failed=values["status"][i] == "error" or values["error"][i] is not None,
    )
