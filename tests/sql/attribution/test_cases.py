"""Small golden cases for single files of ``sql/attribution``.

A case file (``cases/*.case``) holds cases separated by ``====``. A case is: comment lines (why it
exists), ``given NAME`` tables, ``run NAME``, ``expect`` with the columns to compare. Tables are
lines of cells separated by ``|``, the first line naming the columns; ``-`` is NULL. Rows are
compared without order. Columns that a case does not give are NULL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.analysis import factory
from tracekit.analysis import causes, sqlfiles
from tracekit.analysis._duck import put
from tracekit.analysis.attribution import define_attribution
from tracekit.analysis.rules import Rules
from tracekit.analysis.slo import Slo

_CASES = Path(__file__).parent / "cases"


@dataclass(frozen=True)
class Case:
    """One golden case: relations in, one file run, rows out."""

    name: str
    given: dict[str, list[dict[str, Any]]]
    run: str
    expect: list[dict[str, Any]]


def _cell(text: str) -> Any:
    text = text.strip()
    if text == "-":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text.strip("'")


def _rows(lines: list[str]) -> list[dict[str, Any]]:
    header = [c.strip() for c in lines[0].split("|")]
    return [
        dict(zip(header, (_cell(c) for c in line.split("|")), strict=True)) for line in lines[1:]
    ]


def _cases() -> Iterator[Case]:
    for path in sorted(_CASES.glob("*.case")):
        for number, text in enumerate(path.read_text(encoding="utf-8").split("====\n"), start=1):
            blocks: list[tuple[str, list[str]]] = []
            for line in text.splitlines():
                if not line.strip() or line.startswith("#"):
                    continue
                if line.startswith(("given ", "run ", "expect")):
                    blocks.append((line.strip(), []))
                else:
                    blocks[-1][1].append(line)
            given_rows = {
                head.removeprefix("given "): _rows(lines)
                for head, lines in blocks
                if head.startswith("given ")
            }
            (run,) = (head.removeprefix("run ") for head, _ in blocks if head.startswith("run "))
            (expect,) = (_rows(lines) for head, lines in blocks if head == "expect")
            yield Case(f"{path.stem}-{number}", given_rows, run, expect)


@pytest.fixture(scope="module")
def shapes() -> dict[str, pa.Schema]:
    """The columns of every relation, as the real pipeline makes them."""
    con = factory.clean(60).connect()
    define_attribution(con, Slo())
    names = [
        n
        for (n,) in con.sql(
            "select table_name from duckdb_tables() union select view_name from duckdb_views() "
            "where not internal"
        ).fetchall()
    ]
    return {n: con.sql(f"select * from {n} limit 0").to_arrow_table().schema for n in names}


@pytest.mark.parametrize("case", list(_cases()), ids=lambda c: c.name)
def test_case(case: Case, shapes: dict[str, pa.Schema]) -> None:
    con = duckdb.connect()
    file = sqlfiles.load("attribution", case.run)
    relations = {name.strip() for name in file.inputs.split(",")}
    assert set(case.given) <= relations, "a case gives only what the file reads"
    for name in relations:
        rows = case.given.get(name, [])
        if name == "attribution_rules" and not rows:
            put(con, name, Rules().to_arrow())
            continue
        schema = shapes[name]
        unknown = {c for row in rows for c in row} - set(schema.names)
        assert not unknown, f"{name} has no {unknown}"
        full = [{c: row.get(c) for c in schema.names} for row in rows]
        put(con, name, pa.Table.from_pylist(full, schema=schema))
    columns = list(case.expect[0]) if case.expect else ["*"]
    got = con.sql(f"select {', '.join(columns)} from ({file.body})").fetchall()
    assert _sorted(got) == [
        tuple(pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for v in row)
        for row in _sorted([tuple(r[c] for c in columns) for r in case.expect])
    ]


def _sorted(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: [(v is None, str(type(v)), v) for v in _plain(row)])


def _plain(row: tuple[Any, ...]) -> list[Any]:
    return [float(v) if isinstance(v, int | float) else v for v in row]


_instants = st.integers(0, 200).map(lambda s: factory.START_NS + s * 1_000_000_000 // 3)
_lengths = st.sampled_from([1, 999_999_999, 10_000_000_000, 33_333_333_333, 90_000_000_001])
_intervals = st.lists(
    st.tuples(_instants, _lengths, st.sampled_from(["a", "b"])),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@example(
    [(factory.START_NS, 60_000_000_000, "a")], [(factory.START_NS + 5, 50_000_000_000, "a")] * 3
)
@given(_intervals, _intervals)
def test_binned_overlaps_equal_the_plain_range_join(
    suspects: list[tuple[int, int, str]], prefills: list[tuple[int, int, str]]
) -> None:
    con = duckdb.connect()
    rows: list[dict[str, Any]] = [
        {
            "suspect_id": i,
            "request_key": f"s{i}",
            "phase": "decode",
            "is_control": 0,
            "worker": w,
            "start_unix_ns": t,
            "end_unix_ns": t + d,
            "is_stall": 0,
        }
        for i, (t, d, w) in enumerate(suspects)
    ]
    put(con, "attribution_rules", Rules().to_arrow())
    put(con, "suspect_intervals", pa.Table.from_pylist(rows))
    # the first two are the suspects' own prefills: nobody stalls itself
    culprits: list[dict[str, Any]] = [
        {
            "request_key": f"s{i}" if i < 2 else f"p{i}",
            "worker": w,
            "start_unix_ns": t,
            "end_unix_ns": t + d,
        }
        for i, (t, d, w) in enumerate(prefills)
    ]
    put(con, "worker_prefills", pa.Table.from_pylist(culprits))
    rules, bins = causes.overlap_bins(con)
    put(con, "overlap_rules", rules)
    put(con, "bins", bins)
    body = sqlfiles.load("attribution", "overlap_segments").body
    got = con.sql(f"select suspect_id, culprit_key, start_unix_ns, end_unix_ns from ({body})")
    want = [
        (
            s["suspect_id"],
            p["request_key"],
            max(s["start_unix_ns"], p["start_unix_ns"]),
            min(s["end_unix_ns"], p["end_unix_ns"]),
        )
        for s in rows
        for p in culprits
        if s["worker"] == p["worker"]
        and s["request_key"] != p["request_key"]
        and s["start_unix_ns"] < p["end_unix_ns"]
        and p["start_unix_ns"] < s["end_unix_ns"]
    ]
    assert sorted(got.fetchall()) == sorted(want)


def test_no_interval_is_too_long_for_the_bins() -> None:
    con = duckdb.connect()
    day = 86_400_000_000_000
    start = factory.START_NS + 7
    long = {
        "suspect_id": 1,
        "request_key": "s",
        "phase": "decode",
        "is_control": 0,
        "worker": "w",
        "is_stall": 0,
    }
    long |= {"start_unix_ns": start, "end_unix_ns": start + 3 * day}
    put(con, "attribution_rules", Rules().to_arrow())
    put(con, "suspect_intervals", pa.Table.from_pylist([long]))
    ends = start + np.arange(1, 60) * (day // 20)
    prefills = pa.table(
        {
            "request_key": [f"p{i}" for i in range(59)],
            "worker": ["w"] * 59,
            "start_unix_ns": ends - 1_000_000_000,
            "end_unix_ns": ends,
        }
    )
    put(con, "worker_prefills", prefills)
    rules, bins = causes.overlap_bins(con)
    put(con, "overlap_rules", rules)
    put(con, "bins", bins)
    body = sqlfiles.load("attribution", "overlap_segments").body
    ((n, total),) = con.sql(
        f"select count(*), sum(end_unix_ns - start_unix_ns) from ({body})"
    ).fetchall()
    assert (n, total) == (59, 59 * 1_000_000_000)
