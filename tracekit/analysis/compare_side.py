"""One side of a comparison: how people write it, and its rows as arrays.

Owns the words for a side (a store, a window, labels) and the reading of ``sql/compare``. Compares
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analysis import sqlfiles
from tracekit.analysis.cache import NOTHING_DUE
from tracekit.analysis.compare_rules import CompareRules
from tracekit.analysis.comparison import SideInfo
from tracekit.analysis.diagnosis import RequestCounts
from tracekit.analysis.window import Window, parse_range
from tracekit.errors import UsageError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Columns of ``requests`` that a label may name. ``worker`` is any worker that took part.
LABELS: Final[tuple[str, ...]] = (
    "model",
    "route",
    "engine",
    "engine_version",
    "provider",
    "tenant",
    "worker",
    "prefill_worker",
    "decode_worker",
)
_WORKERS: Final = ("worker", "prefill_worker", "decode_worker")
_HOW: Final = (
    "write a window (1h, 2h..1h, 2026-11-29T10:00Z..2026-11-29T11:00Z), a label (model=NAME), "
    "a store (PATH), or PATH@WINDOW,LABEL"
)
_TEXTS: Final = ("model", "route", "engine_version", "worker", "prefill_worker")
_CODES: Final = (*_TEXTS, "leg_roles", "ttft_kind")


@dataclass(frozen=True)
class SideSpec:
    """A side as asked for; ``store`` and ``window`` are None where it names none."""

    text: str
    store: Path | None
    window: Window | None
    labels: tuple[tuple[str, str], ...]


def parse_side(text: str, *, now_unix_ns: int) -> SideSpec:
    """``[STORE@]PART[,PART...]``, a PART being a window or ``column=value``; or a STORE alone.

    What reads as a window is one; a folder of that name is written ``./15m``. UsageError with what
    can be written.
    """
    whole = text.strip()
    before, at, after = whole.partition("@")
    if at and "=" not in before:
        parsed = _parts(after, now_unix_ns) if after.strip() else SideSpec("", None, None, ())
        return replace(parsed, text=whole, store=Path(before) if before else None)
    try:
        return replace(_parts(whole, now_unix_ns), text=whole)
    except UsageError as error:
        if "=" in whole or "," in whole or not whole:
            raise
        if Path(whole).is_dir() or Path(whole).name != whole:
            return SideSpec(whole, Path(whole), None, ())
        raise UsageError(f"{whole!r} is no window, label or folder; {_HOW}") from error


def _parts(text: str, now_unix_ns: int) -> SideSpec:
    window: Window | None = None
    labels: list[tuple[str, str]] = []
    for part in (p.strip() for p in text.split(",")):
        name, equals, value = part.partition("=")
        if equals:
            if name.strip() not in LABELS:
                raise UsageError(f"unknown label {name.strip()!r}; known: {', '.join(LABELS)}")
            if name.strip() in dict(labels):
                raise UsageError(f"{text!r} names {name.strip()} twice")
            labels.append((name.strip(), value.strip()))
        elif window is not None:
            raise UsageError(f"{text!r} names two windows; {_HOW}")
        elif not part:
            raise UsageError(f"{text!r} is no side; {_HOW}")
        else:
            window = parse_range(part, now_unix_ns=now_unix_ns)
    return SideSpec(text, None, window, tuple(labels))


def condition(labels: tuple[tuple[str, str], ...]) -> str:
    """The labels as a condition on ``window_requests``."""
    return " and ".join(_condition(*label) for label in labels) or "true"


def known_values(column: str) -> str:
    """A query for the values (``v``) that a label has in ``requests``, a row for each use."""
    return " union all ".join(
        f"select {c} as v from requests where {c} is not null" for c in _columns(column)
    )


def _columns(label: str) -> tuple[str, ...]:
    return _WORKERS if label == "worker" else (label,)


def _condition(column: str, value: str) -> str:
    literal = "'" + value.replace("'", "''") + "'"
    columns = _columns(column)
    return "(" + " or ".join(f"coalesce({c} = {literal}, false)" for c in columns) + ")"


@dataclass(frozen=True)
class SideData:
    """The usable rows of one side as arrays of one length; NaN = unknown.

    ``codes[name]`` are indices into ``texts[name]``. ``completed`` rows count in statistics, the
    others were killed and only bound them from below.
    """

    info: SideInfo
    completed: npt.NDArray[np.bool_]
    numbers: Mapping[str, Floats]
    codes: Mapping[str, Ints]
    texts: Mapping[str, tuple[str, ...]]

    @property
    def n(self) -> int:
        return len(self.completed)

    def main_text(self, name: str) -> tuple[str, float]:
        """The most frequent text of a column among completed rows, and its share."""
        counts = np.bincount(self.codes[name][self.completed], minlength=len(self.texts[name]))
        total = int(counts.sum())
        if not total:
            return "", 0.0
        top = int(counts.argmax())
        return self.texts[name][top], float(counts[top]) / total

    def seen(self, name: str) -> set[str]:
        """The texts of a column among completed rows, '' left out."""
        used = np.unique(self.codes[name][self.completed])
        return {self.texts[name][i] for i in used} - {""}


def read_side(
    con: duckdb.DuckDBPyConnection,
    *,
    name: str,
    text: str,
    store: str,
    where: str,
    needs_clock: bool,
    rules: CompareRules,
) -> SideData:
    """The rows of ``window_requests`` that meet ``where``.

    ``needs_clock``: the side is a window, so requests without a start time are in neither side.
    Leaves the temporary table ``compare_{name}``.
    """
    table = f"compare_{name.lower()}"
    con.execute(
        f"create or replace temp view _compare_all as select * from window_requests where {where}"
    )
    clock = "start_unix_ns is not null" if needs_clock else "true"
    con.execute(
        f"create or replace temp view _compare_side as select * from _compare_all where {clock}"
    )
    # names in WITH hide the relations of those names; which cache hit was due is no question here,
    # and decode is measured in tokens
    facts = (
        "with window_requests as (select * from _compare_side), "
        f"{', '.join(f'{n} as ({query})' for n, query in NOTHING_DUE.items())}, "
        "speculation as (select 0 as seen, 0 as counted), "
        f"request_facts as ({sqlfiles.load('attribution', 'request_facts').body})"
    )
    body = sqlfiles.load("compare", "compare_facts").body
    con.execute(f"create or replace temp table {table} as {facts} select * from ({body})")
    outcomes = con.sql(
        f"{facts} select status, quarantine_reason, superseded_attempt, count(*) as n, "
        "count(*) - count(arrival_unix_ns) as without_clock, "
        "min(arrival_unix_ns) as first_unix_ns, max(arrival_unix_ns) as last_unix_ns "
        "from request_facts group by status, quarantine_reason, superseded_attempt"
    ).pl()
    ((left_out,),) = con.execute(
        f"select count(*) from _compare_all where not ({clock})"
    ).fetchall()
    ((rows,),) = con.execute(f"select count(*) from {table}").fetchall()
    step = 1 << (max(0, int(rows) - 1) // rules.max_rows).bit_length()
    frame = con.sql(f"select * from {table} where hash(request_key) % {step} = 0").pl()
    counts = _counts(outcomes)
    first, last = _extreme(outcomes, "first_unix_ns", min), _extreme(outcomes, "last_unix_ns", max)
    made = _arrays(frame.sort("request_key"))
    done = made.completed
    info = SideInfo(
        name=name,
        text=text,
        store=store,
        requests=counts,
        first_unix_ns=first,
        last_unix_ns=last,
        requests_per_s=(rows - 1) * 1e9 / (last - first)
        if first is not None and last is not None and last > first
        else None,
        input_tokens_p50=_median(made.numbers["input_tokens"][done]),
        output_tokens_p50=_median(made.numbers["output_tokens"][done]),
        cached_share=_cached_share(made),
        left_out_without_clock=int(left_out),
        drawn=frame.height if step > 1 else None,
        slices=0,
    )
    return replace(made, info=info)


def _counts(outcomes: pl.DataFrame) -> RequestCounts:
    usable: dict[str, int] = {}
    quarantined: dict[str, int] = {}
    superseded = 0
    for row in outcomes.iter_rows(named=True):
        n = int(row["n"])
        if row["quarantine_reason"] is not None:
            quarantined[row["quarantine_reason"]] = quarantined.get(row["quarantine_reason"], 0) + n
        elif row["superseded_attempt"]:
            superseded += n
        else:
            usable[row["status"]] = usable.get(row["status"], 0) + n
    return RequestCounts(
        total=int(outcomes["n"].sum()),
        completed=usable.get("ok", 0),
        aborted=usable.get("aborted", 0),
        errored=usable.get("error", 0),
        timeout=usable.get("timeout", 0),
        open=usable.get("open", 0),
        superseded=superseded,
        quarantined=dict(sorted(quarantined.items())),
        without_clock=int(outcomes["without_clock"].sum()),
    )


def _extreme(outcomes: pl.DataFrame, column: str, pick: Callable[[list[int]], int]) -> int | None:
    values = [v for v in outcomes[column].to_list() if v is not None]
    return pick(values) if values else None


def _arrays(frame: pl.DataFrame) -> SideData:
    codes: dict[str, Ints] = {}
    texts: dict[str, tuple[str, ...]] = {}
    for name in _CODES:
        distinct = frame[name].unique().sort()
        index = pl.Series(range(len(distinct)), dtype=pl.Int64)
        codes[name] = frame[name].replace_strict(distinct, index).to_numpy().astype(np.int64)
        texts[name] = tuple(distinct.to_list())
    numbers = {
        name: frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        for name in frame.columns
        if name not in _CODES and name not in ("request_key", "completed")
    }
    completed = frame["completed"].to_numpy() == 1
    nothing = SideInfo(
        "", "", "", _counts_of_nothing(), None, None, None, None, None, None, 0, None, 0
    )
    return SideData(nothing, completed, numbers, codes, texts)


def _counts_of_nothing() -> RequestCounts:
    return RequestCounts(0, 0, 0, 0, 0, 0, 0, {}, 0)


def _median(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None


def _cached_share(side: SideData) -> float | None:
    """Prompt tokens read from a cache, over those of the requests that say; None if none does."""
    known = side.completed & (side.numbers["cached_known"] == 1)
    known &= ~np.isnan(side.numbers["input_tokens"])
    total = float(side.numbers["input_tokens"][known].sum())
    if total <= 0:
        return None
    return 1 - float(side.numbers["uncached_tokens"][known].sum()) / total
