"""Stores that grow commit by commit, and a form of the derived tables that can be compared.

Requests are named by the legs they hold: keys and revisions depend on what came when, the
requests themselves must not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from tests.analysis import _captures as captures
from tests.analysis._spans import chat, engine, http, log_row, phase, span, table, trace
from tracekit import chunks
from tracekit.lake.schema import TABLES
from tracekit.lake.store import Store

S = 1_000_000_000
#: When the first commit is made: after everything that happened.
NOW_NS = captures.INGESTED_NS

#: Columns that tell when a row was written or how much was known then, not what it says.
_BOOK_KEEPING = (
    "clock_uncertainty_ms",
    "kv_transfer_uncertainty_ms",
    "uncertainty_ms",
    "request_key",
    "revision",
    "supersedes_revision",
    "settled_unix_ns",
    "ingested_unix_ns",
    "date",
)

Rows = dict[str, pa.Table]
#: leg ids of a request → its record, phases, gaps
Canonical = dict[frozenset[str], tuple[Any, ...]]


@cache
def made() -> tuple[pa.Table, pa.Table]:
    """Spans and log rows of calls whose parts may come in any order."""
    spans = [
        # an agent's trace of four calls, one after the other
        span("invoke_agent", id="agent", parent="endpoint", start=0, end=9000),
        http("endpoint", -5, 9000, kind=2, service="agent"),
        # retries below one inference span
        chat("r", 0, 900, trace_name="r", gen_ai__usage__output_tokens=11),
        http("rh0", 5, 20, kind=3, trace_name="r", parent="r", status=2),
        http("rh1", 300, 890, kind=3, trace_name="r", parent="r"),
        engine("re", 310, trace_name="r", parent="rh1", request_id="chatcmpl-r"),
        # phases of the SDK
        chat("p", 0, 300, trace_name="p", events=[("first_token", 110.0)]),
        phase("pq", "queue", 10, 40, trace_name="p", parent="p"),
        phase("pp", "prefill", 40, 70, trace_name="p", parent="p"),
        phase("pp2", "prefill", 85, 100, trace_name="p", parent="p"),
        phase("pd", "decode", 100, 290, trace_name="p", parent="p"),
        phase("px", "decode.preempted", 150, 180, trace_name="p", parent="pd"),
        # and what an engine tells below its own span
        phase("ex", "decode.preempted", 170, 200, parent="e0"),
        # prefill and decode servers without propagation, and the client in a third trace
        engine("dp", 0, trace_name="d1", request_id="chatcmpl-d", tokens=(50, 1), decode=0),
        engine("dd", 60, trace_name="d2", request_id="chatcmpl-d", service="decode"),
        chat("dc", -5, 260, trace_name="d3", gen_ai__response__id="chatcmpl-d"),
        # an engine that the client did not tell its id: it knows the call by the answer's
        engine("ans", 700, trace_name="ans", request_id="chatcmpl-given"),
        # no LLM call at all
        span("SELECT", id="sql", start=0, end=5, kind=3, trace_name="sql"),
    ]
    for i in range(4):
        start = 100 + 1000 * i
        spans.append(chat(f"c{i}", start, start + 300, parent="agent"))
        spans.append(engine(f"e{i}", start + 5, parent=f"c{i}", tokens=(50 + i, 11)))
    # n = 3 without propagation
    spans += [engine(f"n{i}", 0, trace_name=f"n{i}", request_id="chatcmpl-n") for i in range(3)]
    rows = [
        log_row(request_id="n", start=-4, ttft_ms=60.0, e2e_ms=170.0),
        log_row(request_id="d", start=-6, ttft_ms=130.0, e2e_ms=240.0),
        log_row(trace_id=trace("r"), start=1, ttft_ms=370.0, e2e_ms=880.0),
        log_row(
            request_id="alone", start=50, ttft_ms=30.0, e2e_ms=90.0, queue_ms=9.0, prefill_ms=9.0
        ),
        log_row(
            request_id="mine", response_id="chatcmpl-given", start=698, ttft_ms=60.0, e2e_ms=170.0
        ),
        log_row(source_row=5, ttft_ms=30.0, e2e_ms=90.0),
        log_row(
            request_id="stalled",
            start=60,
            ttft_ms=30.0,
            e2e_ms=290.0,
            chunk_times=chunks.pack([30_000, 40_000, 50_000, 250_000, 290_000], [1] * 5),
        ),
    ]
    return table("spans", spans), table("request_log", rows)


#: Spans that are no legs and only show the way from one to another.
_LINKS = ("invoke_agent", "prefill", "decode")


def split(
    rows: pa.Table, parts: int, rng: random.Random, *, links: Sequence[str] = _LINKS
) -> list[pa.Table]:
    """``rows`` in random order, cut into ``parts``; a tenth of the rows comes once more.

    Spans that only link others (``links``: how their names begin) come first: a link that is late
    by itself revises nothing.
    """
    order = list(range(rows.num_rows))
    rng.shuffle(order)
    names = rows["name"].to_pylist() if "name" in rows.column_names else [None] * len(order)
    first = [(name or "").startswith(tuple(links)) for name in names]
    part_of = [0 if first[i] else rng.randrange(parts) for i in range(len(order))]
    out = []
    for part in range(parts):
        indices = [i for i in order if part_of[i] == part]
        indices += [i for i in order if part_of[i] <= part and rng.random() < 0.1]
        out.append(rows.take(pa.array(indices, pa.int64())))
    return out


def commit(store: Store, name: str, rows: pa.Table, now_unix_ns: int) -> None:
    """Append rows as if they had been prepared at ``now_unix_ns``."""
    at = rows.schema.get_field_index("ingested_unix_ns")
    stamps = pa.repeat(pa.scalar(now_unix_ns, pa.int64()), rows.num_rows)
    store.append(name, rows.set_column(at, "ingested_unix_ns", stamps))


def canonical(con: duckdb.DuckDBPyConnection) -> Canonical:
    """The derived relations of ``con``, whole, each request named by its legs.

    Asserts that keys are unique, that no leg is in two requests and that the tables join.
    """
    legs: dict[tuple[str, int], set[str]] = {}
    for key, revision, leg in con.execute(
        "select request_key, revision, leg_id from legs"
    ).fetchall():
        members = legs.setdefault((key, revision), set())
        assert leg not in members, "a leg twice in one request"
        members.add(leg)
    every = [leg for members in legs.values() for leg in members]
    assert len(every) == len(set(every)), "a leg in two requests"
    phases = _grouped(con, "phases", "start_unix_ns")
    gaps = _grouped(con, "token_gaps", "gap_index")
    out: Canonical = {}
    names = [c for c in TABLES["requests"].column_names if c not in _BOOK_KEEPING]
    keys = set()
    for key, revision, *values in con.execute(
        f"select request_key, revision, {', '.join(names)} from requests"
    ).fetchall():
        assert key not in keys, "a request twice"
        keys.add(key)
        name = frozenset(legs.pop((key, revision)))
        record = tuple(zip(names, values, strict=True))
        out[name] = (record, phases.pop((key, revision), ()), gaps.pop((key, revision), ()))
    assert not legs, "legs without a request"
    assert not phases, "phases without a request"
    assert not gaps, "gaps without a request"
    return out


def _grouped(
    con: duckdb.DuckDBPyConnection, name: str, order: str
) -> dict[tuple[str, int], tuple[Any, ...]]:
    columns = [c for c in TABLES[name].column_names if c not in _BOOK_KEEPING]
    out: dict[tuple[str, int], tuple[Any, ...]] = {}
    for key, revision, *values in con.execute(
        f"select request_key, revision, {', '.join(columns)} from {name} "
        f"order by request_key, revision, {order}"
    ).fetchall():
        out[key, revision] = (*out.get((key, revision), ()), tuple(values))
    return out


def differences(found: Canonical, expected: Canonical) -> list[str]:
    """What differs, one line a request: empty if nothing does."""
    lines = []
    for name in sorted(found.keys() | expected.keys(), key=sorted):
        one, other = found.get(name), expected.get(name)
        if one == other:
            continue
        if one is None or other is None:
            what = dict((one or other or ((),))[0])
            which = "missing" if one is None else "too many"
            lines.append(f"{which}: {what['leg_roles']} {what['sources']} {what['request_id']}")
            continue
        wrong = [
            (column, a, b) for (column, a), (_, b) in zip(one[0], other[0], strict=True) if a != b
        ]
        lines.append(f"differs: {dict(one[0])['request_id']} {wrong or 'in phases or gaps'}")
    return lines


def one_shot(spans: Sequence[pa.Table], logs: Sequence[pa.Table]) -> Canonical:
    """What one derivation over all rows gives."""
    return canonical(captures.derived(pa.concat_tables(spans), pa.concat_tables(logs)))
