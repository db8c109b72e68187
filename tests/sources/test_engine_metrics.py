"""What engines' metrics tell of workers: the table of names, and recordings read by it.

Expected values are read by hand from the recorded texts. ``python tests/sources/test_engine_metrics
.py`` (with the repository on the path) writes the table of the documentation anew.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tracekit.analysis import sqlfiles
from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.session import Session
from tracekit.analysis.slo import Slo
from tracekit.ingest.importer import import_paths
from tracekit.lake.schema import METRIC_SAMPLES
from tracekit.lake.store import Store

DATA = Path(__file__).parents[1] / "data"
DOC = Path(__file__).parents[2] / "docs" / "sources" / "engine-metrics.md"
BEGIN, END = "<!-- table: written by tests/sources/test_engine_metrics.py -->", "<!-- /table -->"
AT = 1_795_988_357_000_000_000
SECOND = 1_000_000_000
Row = dict[str, Any]


def _table() -> list[Row]:
    with duckdb.connect() as con:
        rows = con.execute(sqlfiles.load("sources", "engine_metrics").body)
        names = [column[0] for column in rows.description or ()]
        return [dict(zip(names, row, strict=True)) for row in rows.fetchall()]


TABLE = _table()


# -- the table -------------------------------------------------------------------------------


def test_every_name_says_one_thing() -> None:
    """Unique over all systems: a sample does not say which it comes from."""
    keys = [(r["name"], r["only_label"], r["only_value"]) for r in TABLE]
    assert len(set(keys)) == len(keys)
    several = {r["name"] for r in TABLE if r["only_label"] is None}
    assert not several & {r["name"] for r in TABLE if r["only_label"] is not None}


@pytest.mark.parametrize("row", TABLE, ids=lambda r: f"{r['name']}-{r['only_value']}")
def test_a_row_is_whole(row: Row) -> None:
    # an unknown field or unit, or a unit of another dimension, leaves these empty
    assert row["factor"] is not None and row["base_unit"] and row["meaning"]
    assert row["rank_labels"] is not None, "a system that `systems` does not know"
    assert row["kind"] in ("gauge", "counter", "histogram")
    assert row["scope"] in ("engine", "process", "router")
    assert (row["only_label"] is None) == (row["only_value"] is None)
    # a name that says its unit is emitted in it
    for ending, unit in (("_seconds", "s"), ("_ms", "ms"), ("_us", "us"), ("_mb", "MiB")):
        assert not row["name"].endswith(ending) or row["unit"] == unit
    assert not row["name"].endswith(("_sum", "_count", "_bucket", "_created"))


def test_aliases_are_of_names_that_are_there() -> None:
    now = {r["name"]: r for r in TABLE if r["alias_of"] is None}
    for row in (r for r in TABLE if r["alias_of"] is not None):
        of = now[row["alias_of"]]
        assert (of["system"], of["field"], of["scope"]) == (
            row["system"],
            row["field"],
            row["scope"],
        )


def test_every_field_is_told_by_some_engine() -> None:
    text = sqlfiles.load("sources", "engine_metrics").text
    fields = re.search(r"with fields.*?\n\),", text, re.S)
    assert fields is not None
    assert set(re.findall(r"\n    \('(\w+)'", fields[0])) == {r["field"] for r in TABLE}


def _documented() -> str:
    """The table of the documentation."""
    lines = [BEGIN, ""]
    for system in dict.fromkeys(r["system"] for r in TABLE):
        rows = [r for r in TABLE if r["system"] == system]
        labels = {
            "worker": rows[0]["worker_label"],
            "part": rows[0]["part_label"],
            "role": rows[0]["role_label"],
            "ranks that tell the same": ", ".join(rows[0]["rank_labels"].split()),
        }
        told = "; ".join(f"{what}: `{label}`" for what, label in labels.items() if label)
        lines += [f"### {system}", "", f"Labels: {told or 'none'}.", ""]
        lines += ["| metric | field | kind, unit | notes |", "| --- | --- | --- | --- |"]
        for r in rows:
            only = f'{{{r["only_label"]}="{r["only_value"]}"}}' if r["only_label"] else ""
            notes = [
                f"now `{r['alias_of']}`" if r["alias_of"] else "",
                f"seen in {r['since']}" if r["since"] else "",
                f"gone by {r['gone_by']}" if r["gone_by"] else "",
                "" if r["scope"] == "engine" else r["scope"],
                r["note"] or "",
            ]
            told = "; ".join(filter(None, notes)).replace("|", "\\|")
            unit = r["unit"] if r["factor"] == 1 else f"{r['unit']} (x {r['factor']:.10g})"
            lines.append(f"| `{r['name']}{only}` | {r['field']} | {r['kind']}, {unit} | {told} |")
        lines.append("")
    return "\n".join([*lines, END])


def test_the_documentation_lists_the_table() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert _documented() in text, "write it anew: python tests/sources/test_engine_metrics.py"
    for field in {r["field"] for r in TABLE}:
        assert f"`{field}`" in text


def test_a_person_can_list_it(tmp_path: Path) -> None:
    from tracekit.analysis import workbench

    with Session.open(Store.open(tmp_path / "store", create=True)) as session:
        assert {"engine_metrics", "worker_metrics"} <= set(workbench.relation_names(session))
        for name in ("engine_metrics", "worker_metrics"):
            doc = workbench.describe(session, name)
            assert doc.grain and all(c.doc for c in doc.columns)
        assert session.frame("select * from engine_metrics").height == len(TABLE)
        assert session.frame("select * from worker_metrics").height == 0


# -- what it makes of samples ----------------------------------------------------------------


def _gz(name: str) -> str:
    return gzip.decompress((DATA / name).read_bytes()).decode()


def _scrape(at: int, text: str) -> str:
    return f"# SCRAPE {at} {at}\n{text}"


def _store(tmp_path: Path, *spans: str) -> Store:
    store = Store.open(tmp_path / "store", create=True)
    if spans:
        import_paths(store, [str(DATA / name) for name in spans])
    return store


def _add(store: Store, tmp_path: Path, text: str, service: str | None = None) -> None:
    path = tmp_path / "metrics.prom"
    path.write_text(text, encoding="utf-8")
    assert not import_paths(store, [str(path)], service=service).refused_count


def _told(store: Store, columns: str = "field, value") -> list[tuple[Any, ...]]:
    with Session.open(store) as session:
        return session.con.execute(f"select {columns} from worker_metrics order by all").fetchall()


def test_parts_that_serve_alone_are_workers(tmp_path: Path) -> None:
    """Two data-parallel ranks, 17 + 135 and 17 + 130 forward passes."""
    store = _store(tmp_path, "sglang/unified-dp2.otlp.jsonl.gz")
    _add(store, tmp_path, _gz("sglang/unified-dp2.metrics.prom.gz"), "sglang")
    told = {(w, f): v for w, f, v in _told(store, "worker, field, value")}
    assert (told["sglang/DP0", "steps"], told["sglang/DP1", "steps"]) == (147, 152)
    assert (told["sglang/DP0", "computed_tokens"], told["sglang/DP1", "computed_tokens"]) == (
        842,
        954,
    )
    # of the whole server: no rank is told
    assert told["sglang", "cached_tokens"] == 32


def test_ranks_that_compute_together_count_once(tmp_path: Path) -> None:
    """34 prefill and 149 decode passes; the second tensor-parallel rank tells the 149 again."""
    store = _store(tmp_path, "sglang/unified-tp2.otlp.jsonl.gz")
    _add(store, tmp_path, _gz("sglang/unified-tp2.metrics.prom.gz"), "sglang")
    told = {(w, f): v for w, f, v in _told(store, "worker, field, value")}
    assert {w for w, _ in told} == {"sglang"}
    assert told["sglang", "steps"] == 34 + 149
    assert told["sglang", "computed_tokens"] == 1_795


@pytest.mark.trap("sglang", 3)
def test_units_end_in_base_units(tmp_path: Path) -> None:
    store = _store(tmp_path)
    _add(store, tmp_path, _gz("sglang/pd-chunked.metrics_prefill.prom.gz"), "p")
    told = dict(_told(store))
    assert told["transfer_latency_s"] == pytest.approx(13.332236329005354)
    assert told["transfer_bytes"] == 230.1484375 * 2**20
    assert told["transfer_wait_s"] == pytest.approx(20.237424819997614 + 0.00039539200133731356)
    # the latency is of the last chunk: no bandwidth may be made of it
    assert "transfer_s" not in told


@pytest.mark.trap("sglang", 11)
def test_a_full_decode_pool_is_told(tmp_path: Path) -> None:
    store = _store(tmp_path)
    _add(store, tmp_path, _gz("sglang/pd-decode-full.metrics_decode.prom.gz"), "d")
    told = dict(_told(store))
    assert told["transfer_failures"] == 7
    assert told["transfer_wait_s"] == pytest.approx(185.96362196099653 + 0.04150520200255414)
    assert told["kv_usage"] == 0.08


@pytest.mark.trap("sglang", 5)
def test_a_retraction_is_a_preemption_from_the_first_on(tmp_path: Path) -> None:
    """The counter is not there before: SGLang shows it when it has something to count."""
    text = _gz("sglang/unified-retract.metrics.prom.gz")
    before = "".join(
        line for line in text.splitlines(keepends=True) if "num_retracted_requests" not in line
    )
    store = _store(tmp_path, "sglang/unified-retract.otlp.jsonl.gz")
    _add(store, tmp_path, _scrape(AT, before) + _scrape(AT + 5 * SECOND, text), "sglang")
    rows = _told(store, "field, at_unix_ns, worker, value, delta")
    assert [r for r in rows if r[0] == "preemptions"] == [
        ("preemptions", AT + 5 * SECOND, "sglang", 2, 2)
    ]
    # what was there at the first scrape has a past
    assert [r[4] for r in rows if r[0] == "computed_tokens"] == [None, 0]


def test_dynamos_workers_are_told_by_the_one_there_is_and_by_their_ids(tmp_path: Path) -> None:
    """One mocker with 10 preemptions; its id is 0x70cbaf0acaec221f here and decimal in spans."""
    worker = "dynamo-worker/8127782413409198623"
    assert int("70cbaf0acaec221f", 16) == 8_127_782_413_409_198_623
    text = _gz("dynamo/kv_pressure.metrics_worker.prom.gz")
    start = re.sub(r"(?m)^(vllm:num_preemptions_total\{.*\}) 10$", r"\1 0", text)
    assert start != text
    store = _store(tmp_path, "dynamo/kv_pressure.otlp.jsonl.gz")
    _add(store, tmp_path, _scrape(AT, start) + _scrape(AT + SECOND, text), "dynamo-worker")
    rows = _told(store, "field, worker, system, delta, value")
    assert ("preemptions", worker, "vllm", 10, 10) in rows
    # the mocker emits vLLM's old name beside the new one, and its housekeeping is no request
    assert len([r for r in rows if r[0] == "kv_usage"]) == 2
    assert {r[1] for r in rows} == {worker}

    # passed through by another process: only the label tells
    with Session.open(store) as session:
        ((one,),) = session.con.execute(
            "select count(distinct worker) from legs where role = 'engine'"
        ).fetchall()
    assert one == 1
    for label, at in (("70cbaf0acaec221f", 10), ("8127782413409198623", 20)):
        line = f'vllm:num_requests_waiting{{engine="0",worker_id="{label}"}} {at}\n'
        _add(
            store,
            tmp_path,
            _scrape(AT + at * SECOND, "# TYPE vllm:num_requests_waiting gauge\n" + line),
            "somewhere-else",
        )
    waiting = _told(store, "field, system, at_unix_ns, worker, value")
    assert ("waiting", "vllm", AT + 10 * SECOND, worker, 10) in waiting
    assert ("waiting", "vllm", AT + 20 * SECOND, worker, 20) in waiting


def test_a_routers_metrics_are_of_no_worker(tmp_path: Path) -> None:
    store = _store(tmp_path, "dynamo/pd_slow_kv.otlp.jsonl.gz")
    _add(store, tmp_path, _gz("dynamo/pd_slow_kv.metrics_frontend.prom.gz"), "dynamo-frontend")
    rows = _told(store, "distinct worker, scope, field, value")
    told = {f: v for _, _, f, v in rows}
    assert {(w, s) for w, s, _, _ in rows} == {("dynamo-frontend", "router")}
    assert told["transfer_latency_s"] == pytest.approx(5.992936756)
    assert told["waiting_router"] == 0


def test_llama_cpp(tmp_path: Path) -> None:
    store = _store(tmp_path)
    _add(store, tmp_path, _gz("llama_cpp/long-prompt.metrics.txt.gz"), "llama-server")
    rows = _told(store, "field, at_unix_ns, value, delta")
    steps = [r for r in rows if r[0] == "steps"]
    assert (len(steps), steps[0][2], steps[-1][2]) == (60, 1_397, 2_539)
    assert sum(r[3] for r in steps[1:]) == 2_539 - 1_397
    assert max(r[2] for r in rows if r[0] == "waiting") == 10


def test_counters_start_anew(tmp_path: Path) -> None:
    """Of a counter that fell nobody knows how far it had come; of each rank and part by itself."""
    head = "# TYPE vllm:num_preemptions_total counter\n"
    line = 'vllm:num_preemptions_total{{engine="{}"}} {}\n'
    values = [(0, 5), (0, 7), (1, 7), (4, 9)]
    text = "".join(
        _scrape(AT + i * SECOND, head + line.format(0, a) + line.format(1, b))
        for i, (a, b) in enumerate(values)
    )
    store = _store(tmp_path)
    text = text.replace("} 7\n# SCRAPE", "} 2\n# SCRAPE", 2).replace("} 2\n", "} 7\n", 1)
    _add(store, tmp_path, text, "v")
    assert [d for _, d in _told(store, "at_unix_ns, delta")] == [None, 2, 1, 10]


_NIXL = """\
# TYPE agent_rx_bytes_total counter
agent_rx_bytes_total {0}000
# TYPE agent_xfer_time_total counter
agent_xfer_time_total {0}
# TYPE agent_xfer_time gauge
agent_xfer_time 77
# TYPE agent_xfer_time_us histogram
agent_xfer_time_us_bucket{{le="+Inf"}} 1
agent_xfer_time_us_sum {0}
agent_xfer_time_us_count 1
"""
_VLLM = """\
# TYPE vllm:nixl_xfer_time_seconds histogram
vllm:nixl_xfer_time_seconds_sum{{engine="0"}} {0}
vllm:nixl_xfer_time_seconds_count{{engine="0"}} 1
# TYPE vllm:nixl_bytes_transferred histogram
vllm:nixl_bytes_transferred_sum{{engine="0"}} {0}00
vllm:nixl_bytes_transferred_count{{engine="0"}} 1
"""


def _samples(store: Store, columns: str) -> list[tuple[Any, ...]]:
    """Rows of `worker_samples` that tell something in these columns."""
    body = sqlfiles.load("sources", "worker_samples").body
    told = " or ".join(f"{c} is not null" for c in columns.split(", "))
    with Session.open(store) as session:
        return session.con.execute(
            f"select {columns} from ({body}) where {told} order by all"
        ).fetchall()


def _transfers(store: Store) -> list[tuple[Any, ...]]:
    return _samples(store, "transfer_s, transfer_bytes")


def test_a_library_speaks_where_its_engine_does_not(tmp_path: Path) -> None:
    """us, whether the name says so or not; and never both together."""
    alone, both = tmp_path / "alone", tmp_path / "both"
    for folder in (alone, both):
        folder.mkdir()
        store = _store(folder)
        for i, value in enumerate((2_000_000, 5_000_000)):
            _add(store, folder, _scrape(AT + i * SECOND, _NIXL.format(value)), "w")
            if folder is both:
                _add(store, folder, _scrape(AT + i * SECOND, _VLLM.format(i)), "w")
        # bytes over time of one teller
        expected = (1.0, 100.0) if folder is both else (3.0, 3_000_000_000.0)
        assert _transfers(store) == [expected]


def test_a_gauge_of_a_counters_name_is_another_thing(tmp_path: Path) -> None:
    """``agent_xfer_time`` is the last transfer's, though pipelines cut a counter's suffix."""
    store = _store(tmp_path)
    text = _NIXL.format(5_000_000).partition("# TYPE agent_xfer_time_us")[0]
    _add(store, tmp_path, _scrape(AT, text), "w")
    assert dict(_told(store))["transfer_s"] == 5.0


def test_what_is_no_number_tells_nothing(tmp_path: Path) -> None:
    store = _store(tmp_path)
    text = "# TYPE sglang:token_usage gauge\nsglang:token_usage {}\n"
    for i, value in enumerate(("0.5", "NaN", "+Inf")):
        _add(store, tmp_path, _scrape(AT + i * SECOND, text.format(value)), "w")
    assert _told(store) == [("kv_usage", 0.5)]
    assert _samples(store, "kv_usage") == [(0.5,)]


def test_a_pools_mean_is_no_workers_usage(tmp_path: Path) -> None:
    store = _store(tmp_path)
    text = "# TYPE {0} gauge\n{0} 0.97\n".format("inference_pool_average_kv_cache_utilization")
    _add(store, tmp_path, _scrape(AT, text), "w")
    assert _told(store, "scope, field, value") == [("router", "kv_usage", 0.97)]
    assert _samples(store, "kv_usage") == []


@pytest.mark.trap("sglang", 3)
def test_bytes_without_their_time_make_no_speed(tmp_path: Path) -> None:
    store = _store(tmp_path)
    text = _gz("sglang/pd-chunked.metrics_prefill.prom.gz")
    more = text.replace("} 230.1484375\n", "} 330.1484375\n")
    _add(store, tmp_path, _scrape(AT, text) + _scrape(AT + SECOND, more), "p")
    grown = [r for r in _told(store, "field, delta") if r[0] == "transfer_bytes"]
    assert ("transfer_bytes", 100 * 2**20) in grown
    assert _transfers(store) == []


def _append(store: Store, rows: list[Row]) -> None:
    """Samples as they come over OTLP."""
    whole = [
        {
            "name": "vllm:num_preemptions",
            "metric_type": "sum",
            "is_monotonic": 1,
            "temporality": "cumulative",
            "attributes": '{"engine":"0"}',
            "resource": "{}",
            "origin": "test",
            "ingested_unix_ns": AT,
            "date": "2026-11-29",
        }
        | row
        for row in rows
    ]
    store.append("metric_samples", pa.Table.from_pylist(whole, schema=METRIC_SAMPLES.schema))


def test_growth_that_was_sent_as_such_is_taken_as_such(tmp_path: Path) -> None:
    """OTLP may send deltas, and each sample's name without the suffix."""
    store = _store(tmp_path)
    _append(
        store,
        [
            {
                "service_name": "v",
                "temporality": "delta",
                "at_unix_ns": AT + i * SECOND,
                "value": value,
            }
            for i, value in enumerate((3.0, 1.0))
        ],
    )
    assert _told(store, "field, delta") == [("preemptions", 1.0), ("preemptions", 3.0)]


def test_of_several_processes_none_is_taken_for_the_worker(tmp_path: Path) -> None:
    """Spans came of one replica only; metrics come of two, and which is which nobody says."""
    store = _store(tmp_path, "dynamo/kv_pressure.otlp.jsonl.gz")
    rows = [
        {
            "service_name": "dynamo-worker",
            "service_instance_id": instance,
            "at_unix_ns": AT,
            "value": 1.0,
        }
        for instance in ("a:1", "b:1")
    ]
    _append(store, rows[:1])
    assert _told(store, "worker") == [("dynamo-worker/8127782413409198623",)]
    _append(store, rows[1:])
    assert _told(store, "worker") == [("dynamo-worker/a:1",), ("dynamo-worker/b:1",)]


def test_a_text_of_metrics_makes_the_verdict(tmp_path: Path) -> None:
    """As scraped OTLP does: the queue of `kv-pressure` comes of a full KV cache."""
    store = _store(
        tmp_path,
        "vllm_metrics/kv-pressure.otlp.pb.gz",
        "vllm_metrics/kv-pressure.requests.jsonl.gz",
    )
    file = str(DATA / "vllm_metrics" / "kv-pressure.metrics.txt.gz")
    import_paths(store, [file], service="vllm-server")
    with Session.open(store) as session:
        found = diagnose(session, Slo(ttft_ms=2_000.0))
        ((seen,),) = session.con.execute("select sum(preemptions) from worker_samples").fetchall()
    assert seen == 63
    assert {f.cause for f in found.findings} == {"kv_capacity"}


if __name__ == "__main__":
    text = DOC.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    DOC.write_text(before + _documented() + rest.partition(END)[2], encoding="utf-8")
