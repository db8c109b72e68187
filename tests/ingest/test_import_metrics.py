"""`tracekit import` of /metrics texts: whose, when, once, and what is said of it."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tracekit.analysis.session import Session
from tracekit.errors import SourceError, UsageError
from tracekit.ingest.importer import import_paths
from tracekit.ingest.summary import FileSummary
from tracekit.lake.store import Store

LLAMA = Path(__file__).parents[1] / "data" / "llama_cpp" / "long-prompt.metrics.txt.gz"
TEXT = '# TYPE sglang:token_usage gauge\nsglang:token_usage{tp_rank="0"} 0.25\n'
AT = 1_795_988_357_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def _import(store: Store, *paths: Path, **options: Any) -> FileSummary:
    found = import_paths(store, [str(p) for p in paths], **options)
    return found.files[0]


def _rows(store: Store, what: str) -> list[tuple[object, ...]]:
    with Session.open(store) as session:
        return session.con.execute(f"select {what} from metric_samples").fetchall()


def _text(tmp_path: Path, text: str = TEXT, name: str = "m.prom") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(AT, AT))
    return path


def test_a_file_of_scrapes_is_taken_once(store: Store) -> None:
    """60 scrapes of 15 series: by their own count in the text."""
    file = _import(store, LLAMA, service="llama")
    assert (file.format, file.taken, file.refused_count) == ("prometheus-text", 900, 0)
    assert file.tables == {"metric_samples": 900}
    assert file.notices == ("60 scrapes, each at the end that its SCRAPE line tells",)
    again = _import(store, LLAMA, service="llama")
    assert (again.taken, again.duplicates) == (0, 900)
    ((service, scope, rows, first, last),) = _rows(
        store,
        "distinct service_name, scope_name, count(*) over (), min(at_unix_ns) over (), "
        "max(at_unix_ns) over ()",
    )
    assert (service, scope, rows) == ("llama", "tracekit.import.prometheus-text", 900)
    assert (first, last) == (1_795_988_417_470_923_783, 1_795_988_477_260_143_736)


def test_a_scrape_without_a_time_has_the_files_or_the_one_that_is_said(
    store: Store, tmp_path: Path
) -> None:
    path = _text(tmp_path)
    (told,) = (n for n in _import(store, path, service="s").notices if "taken at" in n)
    assert "2026-11-29T21:39:17Z, when the file was last written" in told and "--at" in told
    assert _rows(store, "at_unix_ns, value, service_name, attributes") == [
        (AT, 0.25, "s", '{"tp_rank":"0"}')
    ]
    file = _import(store, path, service="s", at_unix_ns=AT + 1_000_000_000)
    assert "taken at 2026-11-29T21:39:18Z, as --at says" in file.notices
    assert sorted(_rows(store, "at_unix_ns")) == [(AT,), (AT + 1_000_000_000,)]


def test_of_one_moment_there_is_one_scrape(store: Store, tmp_path: Path) -> None:
    first, second = _text(tmp_path), _text(tmp_path, TEXT.replace("0.25", "0.5"), "n.prom")
    with pytest.raises(UsageError, match=r"n\.prom: --at says when .*m\.prom was taken"):
        _import(store, first, second, service="s", at_unix_ns=AT)
    assert _rows(store, "value") == [(0.25,)]


def test_what_did_nothing_is_said(store: Store, tmp_path: Path) -> None:
    assert any("--service" in n for n in _import(store, _text(tmp_path)).notices)
    file = _import(store, LLAMA, at_unix_ns=AT)
    assert any("--at is for texts" in n for n in file.notices)


def test_bad_lines_are_refused_by_number(store: Store, tmp_path: Path) -> None:
    other = TEXT.replace("token_usage", "cache_hit_rate")
    path = _text(tmp_path, TEXT + "sglang:token_usage{tp_rank\nup 1\n" + other)
    file = _import(store, path, service="s")
    assert (file.taken, file.refused_count) == (3, 1)
    assert file.refused[0].reason == "undecodable" and file.refused[0].where.endswith("m.prom:3")
    with Session.open(store) as session:
        rows = session.con.execute("select signal, source_row from quarantine").fetchall()
    assert rows == [("metrics", 3)]


def test_a_text_without_a_sample_is_of_no_use(store: Store, tmp_path: Path) -> None:
    prose = _text(tmp_path, "No metrics here.\n")
    with pytest.raises(SourceError, match=r"no sample of a metric.*m\.prom"):
        _import(store, prose, source="prometheus-text")
    with pytest.raises(SourceError, match="nothing known"):
        _import(store, prose)
    # what is not told by its content can be said
    untyped = _text(tmp_path, "up 1\n")
    with pytest.raises(SourceError, match="nothing known"):
        _import(store, untyped)
    assert _import(store, untyped, source="prometheus-text").taken == 1


def test_standard_input_has_no_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    with pytest.raises(SourceError, match=r"nothing tells when.*standard input:2.*--at TIME"):
        import_paths(store, ["-"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert import_paths(store, ["-"], at_unix_ns=AT).taken == 1
