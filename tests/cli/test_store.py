"""``store``: info, compact, vacuum, export."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli import traffic
from tests.cli.conftest import Run


@pytest.fixture
def own_store(run: Run, tmp_path: Path) -> Path:
    """A store of several imports, to be changed by the test."""
    path = tmp_path / "store"
    for first in range(0, 9, 3):
        file = traffic.write(tmp_path / f"t{first}.jsonl", first=first, last=first + 3)
        assert run("import", file, "--store", path).exit_code == 0
    return path


def _info(run: Run, path: Path) -> dict[str, dict[str, object]]:
    tables = json.loads(run("store", "info", "--store", path, "--json").stdout)["tables"]
    return {t["table"]: t for t in tables}


def test_info_for_people(run: Run, own_store: Path, empty_store: Path) -> None:
    text = run("store", "info", "--store", own_store).stdout
    assert "spans" in text and "raw" in text and "derived" in text
    assert "18" in text
    assert "empty" in run("store", "info", "--store", empty_store).stdout


def test_compact_and_vacuum(run: Run, own_store: Path) -> None:
    assert _info(run, own_store)["spans"]["files"] == 3
    assert "nothing to compact" in run("store", "compact", "--store", own_store).stdout
    done = json.loads(run("store", "compact", "--all", "--store", own_store, "--json").stdout)
    assert list(done) == ["path", "compacted"] and done["path"] == str(own_store)
    spans = next(d for d in done["compacted"] if d["table"] == "spans")
    assert (spans["files_before"], spans["files_after"]) == (3, 1)
    assert _info(run, own_store)["spans"]["files"] == 1
    assert _info(run, own_store)["spans"]["rows"] == 18

    dry = run("store", "vacuum", "--dry-run", "--store", own_store)
    assert "nothing to delete" in dry.stdout, "replaced files stay for an hour"
    assert run("store", "vacuum", "--retention", "soon", "--store", own_store).exit_code == 2
    assert len(run("requests", "--json", "--store", own_store).stdout.splitlines()) == 9


def test_vacuum_retain_deletes_rows(run: Run, own_store: Path) -> None:
    kept = run("store", "vacuum", "--retain", "14d", "--store", own_store, "--json")
    assert json.loads(kept.stdout)["retained"] == [], "everything came in just now"
    both = run("store", "vacuum", "--retain", "14d", "--dry-run", "--store", own_store)
    assert both.exit_code == 2


def test_export(run: Run, own_store: Path, tmp_path: Path) -> None:
    arguments = ("store", "export", tmp_path / "out", "--store", own_store)
    done = json.loads(run(*arguments, "--json").stdout)
    assert list(done) == ["path", "folder", "format", "exported"]
    assert (done["folder"], done["format"]) == (str(tmp_path / "out"), "parquet")
    assert {d["table"]: d["rows"] for d in done["exported"]}["spans"] == 18
    assert pq.read_table(tmp_path / "out" / "spans.parquet").num_rows == 18
    assert run(*arguments).exit_code == 2, "only into a new folder"
    text = run(
        *("store", "export", tmp_path / "csv", "--format", "csv", "--table", "requests"),
        *("--store", own_store),
    ).stdout
    assert "requests.csv: 9 rows" in " ".join(text.split())
    unknown = run("store", "export", tmp_path / "x", "--table", "nope", "--store", own_store)
    assert unknown.exit_code == 2
