"""``sql``: it answers, it describes itself, it exports, and it only reads."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from tests.cli import traffic
from tests.cli.conftest import Run, RunProcess
from tracekit.analysis import sqlfiles
from tracekit.analysis.session import Session
from tracekit.analysis.workbench import Workbench, check_select
from tracekit.errors import UsageError
from tracekit.lake.schema import TABLES

ADHOC = sqlfiles.names("adhoc")


def test_json_is_an_array_of_objects(run: Run) -> None:
    result = run("sql", "select count(*) as n, sum(input_tokens) as t from requests", "--json")
    total = sum(traffic.input_tokens(n) for n in range(traffic.REQUESTS))
    assert json.loads(result.output) == [{"n": 60, "t": total}]
    assert json.loads(run("sql", "select 1 as x where false", "--json").output) == []


def test_json_values(run: Run) -> None:
    query = """
        select 1::hugeint << 70 as big, 0.5::decimal(4, 2) as exact, 'nan'::double as nan,
            date '2026-01-02' as day, [1, 2] as list, {'a': 'b'} as struct, '\\xAB'::blob as bytes,
            null as nothing, interval 90 seconds as wait
    """
    (row,) = json.loads(run("sql", query, "--json").output)
    assert row["big"] == str(1 << 70)
    assert row["exact"] == 0.5
    assert row["nan"] is None and row["nothing"] is None
    assert row["day"] == "2026-01-02"
    assert row["list"] == [1, 2] and row["struct"] == {"a": "b"}
    assert row["bytes"] == "ab"


def test_table_csv_and_repeated_names(run: Run) -> None:
    text = run("sql", "select model, count(*) as n from requests group by model").output
    assert traffic.MODEL in text and "(1 row)" in text
    rows = run("sql", "select 1 as a, 2 as a, [3] as b", "--format", "csv").output
    assert list(csv.reader(io.StringIO(rows))) == [["a", "a_2", "b"], ["1", "2", "[3]"]]


def test_wide_rows_become_blocks(run: Run) -> None:
    text = run("sql", "select * from requests limit 1").output
    assert text.startswith("-- row 1 ")
    assert "queue_ms" in text
    assert max(map(len, text.splitlines())) <= 120


def test_order_of_the_query_is_kept(run: Run) -> None:
    rows = json.loads(
        run("sql", "select range as r from range(50000) order by r desc", "--json").stdout
    )
    assert [r["r"] for r in rows] == list(range(49_999, 39_999, -1)), "and the row limit holds"


def test_row_limit_is_said(run: Run) -> None:
    result = run("sql", "select * from range(20)", "--limit", 3, "--json")
    assert len(json.loads(result.stdout)) == 3
    assert "only the first 3 rows" in result.stderr
    assert len(json.loads(run("sql", "from range(10001)", "--limit", 0, "--json").stdout)) == 10_001


def test_time_limit(run: Run) -> None:
    query = "select count(*) from range(1000000000000) as a, range(1000000) as b"
    result = run("sql", query, "--time-limit", 0.3)
    assert result.exit_code == 2
    assert "longer than 0.3 s" in result.output


def test_query_from_file_and_standard_input(run_process: RunProcess, tmp_path: Path) -> None:
    file = tmp_path / "query.sql"
    file.write_text("-- a comment\nselect 7 as n;\n")
    assert json.loads(run_process("sql", "-f", file, "--json").stdout) == [{"n": 7}]
    done = run_process("sql", "-f", "-", "--json", stdin="select 8 as n")
    assert json.loads(done.stdout) == [{"n": 8}]
    assert run_process("sql", "-f", tmp_path / "none.sql").returncode == 2


@pytest.mark.parametrize("name", ADHOC)
def test_named_query_runs_and_its_columns_are_described(name: str, run: Run) -> None:
    result = run("sql", name, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    file = sqlfiles.load("adhoc", name)
    assert file.purpose and file.grain and file.inputs
    for row in rows:
        assert list(row) == list(file.columns)


def test_named_queries_find_something(run: Run) -> None:
    """On traffic without quarantine, stalls and caches these must still have rows."""
    for name in ("p99_by_minute", "phase_seconds", "slowest_requests", "spans_by_service"):
        assert json.loads(run("sql", name, "--json").stdout), name
    slowest = json.loads(run("sql", "slowest_requests", "--json").stdout)[0]
    assert slowest["request_id"].endswith("slow-queue")


def test_unknown_name_lists_the_known(run: Run) -> None:
    result = run("sql", "p98_by_minute")
    assert result.exit_code == 2
    assert "p99_by_minute" in result.output


def test_window_and_filters_reach_window_requests(run: Run) -> None:
    query = "select count(*) as n from window_requests"
    until = str(traffic.START_UNIX_NS + 10_000_000_000)
    assert json.loads(run("sql", query, "--until", until, "--json").stdout) == [{"n": 5}]
    assert json.loads(run("sql", query, "--model", "x", "--json").stdout) == [{"n": 0}]


def test_attribution_relations_are_there(run: Run) -> None:
    query = "select request_id from verdicts where metric = 'ttft'"
    rows = json.loads(run("sql", query, "--slo", "ttft=2s", "--json").stdout)
    assert [r["request_id"] for r in rows] == ["chatcmpl-slow-queue"]


def test_describe_lists_relations_and_queries(run: Run) -> None:
    listed = json.loads(run("sql", "--describe", "--json").output)
    names = {r["name"] for r in listed["relations"]}
    assert set(TABLES) | {"window_requests", "verdicts", "cost_model", "slo"} <= names
    assert {q["name"] for q in listed["queries"]} == set(ADHOC)
    assert all(r["grain"] or r["purpose"] for r in listed["relations"])
    text = run("sql", "--describe").output
    assert "window_requests" in text and "p99_by_minute" in text


@pytest.mark.parametrize("name", [*TABLES, "window_requests", "verdicts"])
def test_describe_explains_every_column(name: str, run: Run) -> None:
    doc = json.loads(run("sql", "--describe", name, "--json").output)
    undescribed = [c["name"] for c in doc["columns"] if not c["doc"]]
    assert not undescribed
    for column in doc["columns"]:
        if column["name"].endswith("_ms"):
            assert column["doc"].startswith("[ms]"), column
    assert run("sql", "--describe", name).exit_code == 0


def test_describe_of_nothing_known(run: Run) -> None:
    assert run("sql", "--describe", "nope").exit_code == 2


def test_export_opens_in_plain_duckdb(run: Run, tmp_path: Path) -> None:
    dest = tmp_path / "analysis.duckdb"
    result = run("sql", "--export", dest, "--json")
    assert result.exit_code == 0, result.output
    counts = json.loads(result.output)["rows"]
    assert counts["requests"] == 60 and counts["spans"] == 120
    with duckdb.connect(str(dest), read_only=True) as con:
        assert con.execute("select count(*) from verdicts").fetchall() == [(counts["verdicts"],)]
        comments = con.execute(
            "select comment from duckdb_columns()"
            " where table_name = 'requests' and column_name = 'queue_ms'"
        ).fetchall()
        assert comments == [("[ms] phase queue",)]
        missing = con.execute(
            "select count(*) from duckdb_columns() where table_name = 'legs' and comment is null"
        ).fetchall()
        assert missing == [(0,)]
    # the shell people can install reads storage versions 64 to 68 only
    assert 64 <= int.from_bytes(dest.read_bytes()[12:20], "little") <= 68
    assert [p.name for p in tmp_path.iterdir()] == ["analysis.duckdb"], "no leftovers"

    assert run("sql", "--export", dest).exit_code == 2, "never overwritten by accident"
    again = run("sql", "--export", dest, "--overwrite", "--relation", "slo", "--json")
    assert json.loads(again.output)["rows"] == {"slo": 1}


@pytest.mark.parametrize("content", [b"", b"my only notes\n", b"12345678DUC", b"x" * 4096])
def test_export_replaces_duckdb_files_only(content: bytes, run: Run, tmp_path: Path) -> None:
    notes = tmp_path / "notes.duckdb"
    notes.write_bytes(content)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("notes.duckdb", "folder", "link"):
        result = run("sql", "--export", tmp_path / name, "--overwrite", "--relation", "slo")
        assert result.exit_code == 2, result.output
        assert "is no DuckDB file" in result.output
    assert notes.read_bytes() == content
    assert run("store", "export", notes).exit_code == 2
    assert notes.read_bytes() == content
    left = {"notes.duckdb", "folder", "link"}
    assert {p.name for p in tmp_path.iterdir()} == left

    theirs = tmp_path / "theirs.duckdb"
    with duckdb.connect(str(theirs)) as con:
        con.execute("create table t as select 1 as n")
    (tmp_path / ".theirs.duckdb.part").write_text("somebody's")
    result = run("sql", "--export", theirs, "--overwrite", "--relation", "slo")
    assert result.exit_code == 0, result.output
    assert (tmp_path / ".theirs.duckdb.part").read_text() == "somebody's"
    with duckdb.connect(str(theirs), read_only=True) as con:
        assert con.execute("show tables").fetchall() == [("slo",)]


def test_export_refuses_what_it_cannot_do(run: Run, tmp_path: Path) -> None:
    assert run("sql", "--export", tmp_path / "no" / "x.duckdb").exit_code == 2
    result = run("sql", "--export", tmp_path / "x.duckdb", "--relation", "nope")
    assert result.exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("select 1", "--file", "x"),
        ("--describe", "--file", "x"),
        ("select 1", "--overwrite"),
        ("select 1", "--time-limit", "0"),
    ],
)
def test_contradictions_are_usage_errors(arguments: tuple[str, ...], run: Run) -> None:
    assert run("sql", *arguments).exit_code == 2


CHANGES = [
    "insert into t values (1)",
    "update settings set model = 'x'",
    "delete from settings",
    "create table x as select 1",
    "create temp view x as select 1",
    "drop view spans",
    "alter table settings rename to s",
    "copy (select 1) to '{store}/spans/x.csv'",
    "copy settings from '{store}/x.csv'",
    "export database '{store}'",
    "import database '{store}'",
    "attach '{store}/x.duckdb'",
    "set memory_limit = '1GB'",
    "reset memory_limit",
    "pragma database_list",
    "call pragma_version()",
    "install httpfs",
    "load httpfs",
    "vacuum",
    "checkpoint",
    "begin",
    "prepare p as select 1",
    "execute p",
    "explain analyze select 1",
    "use main",
    "with w as (insert into settings select * from settings returning *) select * from w",
    "with w as (delete from settings returning *) select * from w",
    "select * from (with w as (update settings set model = '' returning *) select * from w)",
    "select 1; select 2",
    "select 1; drop view spans",
    "",
    "-- nothing",
]


@pytest.mark.parametrize("statement", CHANGES)
def test_only_one_select_is_accepted(statement: str, store: Path) -> None:
    with pytest.raises(UsageError):
        check_select(statement.format(store=store))


@pytest.mark.parametrize(
    "query",
    [
        "select 1",
        "from settings",
        "select 1;",
        "values (1)",
        "(select 1) union all (select 2)",
        "with recursive r(k) as (select 1 union all select k + 1 from r where k < 3) from r",
        "select 'INSERT_QUERY_NODE' as type",
        "describe settings",
        "summarize settings",
        "show tables",
        "/* insert */ select 1 -- ; drop",
    ],
)
def test_reading_statements_pass(query: str) -> None:
    check_select(query)


OUTSIDE = [
    "select * from read_csv('{outside}')",
    "select * from '{outside}'",
    "select * from read_text('{outside}')",
    "select * from read_blob('{outside}')",
    "select * from read_json('{outside}')",
    "select * from read_parquet('{outside}')",
    "select * from parquet_metadata('{outside}')",
    "select * from sniff_csv('{outside}')",
    "select * from glob('{folder}/*')",
    "select * from read_text('{store}/spans/../../secret.csv')",
    "select * from read_text('{store}/spans/link')",
    "select * from read_text('{store}/tracekit-store.json')",
    "select * from query('select * from read_text(''{outside}'')')",
    "select * from read_csv('http://127.0.0.1:9/x.csv')",
    "select * from enable_logging(storage => 'file', storage_path => '{folder}')",
    "select * from enable_profiling(save_location => '{folder}/p.json')",
    "select * from a_python_variable",
]


@pytest.mark.parametrize("query", OUTSIDE)
def test_no_file_network_or_setting_is_reached(query: str, tmp_path: Path) -> None:
    """Each of these parses as a SELECT: the engine itself must refuse it."""
    store = _store_with_rows(tmp_path)
    outside = tmp_path / "secret.csv"
    outside.write_text("a,b\n1,2\n")
    (store / "spans" / "link").symlink_to(outside)
    a_python_variable = pa.table({"s": ["secret"]})
    assert a_python_variable.num_rows == 1
    text = query.format(store=store, outside=outside, folder=tmp_path)
    check_select(text)
    before = sorted(p for p in tmp_path.rglob("*"))
    with Session.open(store) as session:
        bench = Workbench(session)
        with pytest.raises(UsageError):
            bench.run(text)
        assert bench.run("select count(*) as n from spans").frame["n"].to_list() == [6]
    assert sorted(p for p in tmp_path.rglob("*")) == before


def test_settings_stay_locked(tmp_path: Path) -> None:
    with Session.open(_store_with_rows(tmp_path)) as session:
        Workbench(session)
        with pytest.raises(duckdb.Error, match="locked"):
            session.con.execute("set enable_external_access = true")


def test_a_stopped_query_leaves_the_workbench_usable(tmp_path: Path) -> None:
    with Session.open(_store_with_rows(tmp_path)) as session:
        bench = Workbench(session, time_limit_s=0.2)
        with pytest.raises(UsageError, match="longer than"):
            bench.run("select count(*) from range(1000000000000) as a, range(1000000) as b")
        assert bench.run("select 1 as n").frame["n"].to_list() == [1]


def _store_with_rows(folder: Path) -> Path:
    from typer.testing import CliRunner

    from tracekit.cli._app import app

    file = traffic.write(folder / "traffic.jsonl", last=3)
    result = CliRunner().invoke(app, ["import", str(file), "--store", str(folder / "store")])
    assert result.exit_code == 0, result.output
    return folder / "store"
