"""``import``: what was taken, what was not and why, and that nothing is taken twice."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from tests.cli import traffic
from tests.cli.conftest import Run, RunProcess


def test_summary_json(run: Run, tmp_path: Path) -> None:
    file = traffic.write(tmp_path / "t.jsonl", last=5)
    store = tmp_path / "store"
    first = json.loads(run("import", file, "--store", store, "--json").stdout)
    assert (first["taken"], first["refused"], first["duplicates"]) == (10, 0, 0)
    assert first["files"][0]["path"].endswith("t.jsonl")
    again = json.loads(run("import", file, "--store", store, "--json").stdout)
    assert (again["taken"], again["refused"], again["duplicates"]) == (0, 0, 10)
    assert len(run("requests", "--json", "--store", store).stdout.splitlines()) == 5


def test_bad_lines_are_counted_with_their_place(run: Run, tmp_path: Path) -> None:
    file = traffic.write(tmp_path / "t.jsonl", last=4)
    lines = file.read_text().splitlines()
    lines.insert(2, '{"resourceSpans": [truncated')
    file.write_text("\n".join(lines) + "\n")
    result = run("import", file, "--store", tmp_path / "store")
    assert result.exit_code == 0, result.output
    assert re.search(r"refused 1: .* at t\.jsonl:3|refused 1: .*t\.jsonl:3", result.stdout)
    assert "8 rows taken, 1 refused, 0 duplicates" in result.stdout


def test_the_articles_twenty_rows(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "ten-minutes.csv"
    file.write_text(traffic.TWENTY, encoding="utf-8")
    result = run("import", file, "--store", tmp_path / "store")
    assert result.exit_code == 0, result.output
    assert "20 rows taken, 0 refused, 0 duplicates" in result.stdout
    assert "TTFT -> ttft_ms:s" in result.stdout, "the unit that was read is said"
    assert "비고 -> note" in result.stdout
    row = json.loads(
        run("requests", "--json", "--store", tmp_path / "store").stdout.splitlines()[0]
    )
    assert row["ttft_ms"] is not None and row["start_unix_ns"] is None


def test_map_with_unit(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("request_id,start,lag=x\nr1,1790000000,2.5\n")
    result = run(
        "import",
        file,
        "--map",
        "lag=x=ttft_ms:s",
        "--map",
        "start=start_unix_ns:s",
        "--store",
        tmp_path / "store",
    )
    assert result.exit_code == 0, result.output
    row = json.loads(run("requests", "--json", "--store", tmp_path / "store").stdout)
    assert row["ttft_ms"] == 2500
    assert row["start_unix_ns"] == 1_790_000_000_000_000_000


@pytest.mark.parametrize("text", ["ttft", "=ttft_ms", "ttft=", "a=nonsense_column"])
def test_bad_map_is_a_usage_error(text: str, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("request_id,a\nr1,1\n")
    assert run("import", file, "--map", text, "--store", tmp_path / "store").exit_code == 2


def test_map_names_a_column_once(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("request_id,a\nr1,1\n")
    twice = ("--map", "a=ttft_ms", "--map", "a=e2e_ms")
    assert run("import", file, *twice, "--store", tmp_path / "store").exit_code == 2


def test_standard_input(run_process: RunProcess, tmp_path: Path) -> None:
    text = traffic.write(tmp_path / "t.jsonl", last=3).read_text()
    done = run_process("import", "-", "--store", tmp_path / "store", "--json", stdin=text)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["taken"] == 6


def test_missing_path_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    result = run("import", tmp_path / "nowhere", "--store", tmp_path / "store")
    assert result.exit_code == 2
    assert "nowhere" in result.output


def test_folder(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    traffic.write(folder / "a.jsonl", last=2)
    traffic.write(folder / "b.jsonl", first=2, last=5)
    result = json.loads(run("import", folder, "--store", tmp_path / "store", "--json").stdout)
    assert result["taken"] == 10
    assert len(result["files"]) == 2


def test_no_progress_bar_outside_a_terminal(run_process: RunProcess, tmp_path: Path) -> None:
    file = traffic.write(tmp_path / "t.jsonl", last=2)
    done = run_process("import", file, "--store", tmp_path / "store")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("notes.txt", b"just words\n", 3),
        ("cut.jsonl.gz", b"\x1f\x8b\x08\x00\x00", 3),
        ("empty.csv", b"", 0),
        ("unit.csv", b"request,TTFT\na,30\nb,45\n", 2),
        ("twice.csv", b"id,ttft_ms,ttft_ms\na,30,40\n", 2),
    ],
)
def test_a_file_of_no_use_leaves_no_store(
    name: str, data: bytes, code: int, run: Run, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    store = tmp_path / "new" / "store"
    result = run("import", tmp_path / name, "--store", store)
    assert result.exit_code == code, result.output
    assert not store.parent.exists()


def test_what_decodes_of_a_cut_file_is_taken(run: Run, tmp_path: Path) -> None:
    file = traffic.write(tmp_path / "t.jsonl", last=200)
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes())[:-2000])
    result = run("import", packed, "--store", tmp_path / "store")
    assert result.exit_code == 0, result.output
    assert re.search(
        r"refused 1: cut_short at t\.jsonl\.gz:\d+|refused 1: cut_short", result.stdout
    )
    assert "get the whole file again" in " ".join(result.stdout.split())
    taken = int(re.search(r"(\d+) rows taken", result.stdout)[1])  # type: ignore[index]
    assert 100 < taken < 400


@pytest.mark.parametrize("as_json", [False, True])
def test_an_unknown_file_is_named_and_the_others_are_taken(
    run: Run, tmp_path: Path, *, as_json: bool
) -> None:
    good, bad = traffic.write(tmp_path / "t.jsonl", last=4), tmp_path / "a.metrics.txt"
    bad.write_text("# TYPE vllm:num_requests_running gauge\n")
    store = tmp_path / "store"
    result = run("import", bad, good, "--store", store, *(["--json"] if as_json else []))
    assert result.exit_code == 3
    assert "nothing known in this file; at" in result.stderr and "a.metrics.txt" in result.stderr
    if as_json:
        assert json.loads(result.stdout)["taken"] == 8
    else:
        assert "a.metrics.txt  unknown  nothing taken" in result.stdout
        assert "8 rows taken" in result.stdout
    assert len(run("requests", "--json", "--store", store).stdout.splitlines()) == 4
