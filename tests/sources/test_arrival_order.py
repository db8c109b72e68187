"""Spans of other systems in any order and in pieces: live, settled and at once are the same."""

from __future__ import annotations

import random
import tempfile
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from tests.analysis import _captures as captures
from tests.analysis._stores import NOW_NS, Canonical, S, canonical, commit, differences, split
from tests.sources._recorded import DATA
from tracekit.analysis.session import Session
from tracekit.analysis.settle import Settler
from tracekit.analysis.settled import SPAN_LEG_ID, may_be_leg
from tracekit.ingest.importer import import_paths
from tracekit.lake.schema import TABLES
from tracekit.lake.store import Store

RECORDINGS = {
    "dynamo": ("dynamo/pd_slow_kv.otlp.jsonl.gz", "dynamo/pd_slow_kv.request_trace.jsonl.gz"),
    "sglang": ("sglang/unified-edge.otlp.jsonl.gz", "sglang/unified-retract.otlp.jsonl.gz"),
    "sglang_pd": (
        "sglang/pd-decode-full.otlp.jsonl.gz",
        "sglang/pd-decode-full.log_prefill.txt.gz",
        "sglang/pd-decode-full.log_decode.txt.gz",
    ),
}
#: Spans that are no legs and only show the way from one to another.
LINKS = ("kv_router.select", "kv_router.route", "tokenize")


@cache
def _rows(name: str) -> pa.Table:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "s", create=True)
        import_paths(store, [str(DATA / f) for f in RECORDINGS[name]], settle=False)
        query = f"select * from ({store.snapshot('spans').scan_sql()}) order by trace_id, span_id"
        rows: pa.Table = duckdb.connect().sql(query).to_arrow_table()
    return rows.select(TABLES["spans"].column_names).cast(TABLES["spans"].schema)


@cache
def _truth(name: str) -> Canonical:
    return canonical(captures.derived(_rows(name)))


@pytest.mark.parametrize("name", RECORDINGS)
def test_in_pieces_as_at_once(name: str, tmp_path: Path) -> None:
    """Seen live after each piece, then settled piece by piece with the watermark far past."""
    rng = random.Random(11)
    live = Store.open(tmp_path / "live", create=True)
    with Session.open(live) as session:
        for number, part in enumerate(split(_rows(name), 3, rng, links=LINKS)):
            commit(live, "spans", part, NOW_NS + number)
            assert session.refresh()
            canonical(session.con)
        assert differences(canonical(session.con), _truth(name)) == []
    settled = Store.open(tmp_path / "settled", create=True)
    now, revised = NOW_NS, 0
    for part in split(_rows(name), 3, rng, links=LINKS):
        commit(settled, "spans", part, now)
        revised += Settler(settled, quiet_ns=0).run_pass(now + 1).revised
        now += 1000 * S
    with Session.open(settled) as session:
        assert differences(canonical(session.con), _truth(name)) == []
    assert revised > 5


@pytest.mark.parametrize("name", RECORDINGS)
def test_settled_rows_are_told_by_the_same_ids_and_marks_as_the_sources_give(name: str) -> None:
    con = captures.derived(_rows(name))
    told = con.execute(f"select {SPAN_LEG_ID}, {may_be_leg()} from spans").fetchall()
    may_be = {leg for leg, is_leg in told if is_leg}
    legs = {leg for (leg,) in con.execute("select leg_id from leg_rows").fetchall()}
    assert {leg.partition("-")[0] for leg in legs} <= may_be
