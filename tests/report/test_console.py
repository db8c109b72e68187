"""Consoles: colour only for terminals that want it, and a width that holds."""

from __future__ import annotations

import io

import polars as pl
import pytest
from rich.text import Text

from tracekit.ingest.summary import FileSummary, ImportSummary, Refusal
from tracekit.report import import_text, rows_text
from tracekit.report.console import make_console, make_table


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _print(stream: io.StringIO) -> str:
    make_console(stream).print(Text("x", style="red"))
    return stream.getvalue()


def test_colour_only_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in _print(_Terminal())
    assert "\x1b" not in _print(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in _print(_Terminal())


def test_width_outside_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    assert make_console(io.StringIO()).width == 77
    monkeypatch.delenv("COLUMNS")
    assert make_console(io.StringIO()).width == 110
    monkeypatch.setenv("COLUMNS", "3")
    assert make_console(io.StringIO()).width == 40


def test_tables_fold_text_and_keep_numbers_whole() -> None:
    stream = io.StringIO()
    table = make_table("name", "n", right=("n",))
    table.add_row("a very long name that does not fit at all " * 3, "1,234,567")
    make_console(stream, width=40).print(table)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    assert any("1,234,567" in line for line in lines)


def test_rows_as_table_or_blocks() -> None:
    frame = pl.DataFrame({"name": ["a", None], "value": [1.5, 12_345_678.9]})
    stream = io.StringIO()
    make_console(stream, width=80).print(rows_text.render(frame, width=80))
    text = stream.getvalue()
    assert "NULL" in text and "12345678.9" in text and "(2 rows)" in text

    wide = pl.DataFrame({f"a_long_column_name_{n}": ["x"] for n in range(9)})
    stream = io.StringIO()
    make_console(stream, width=80).print(rows_text.render(wide, width=80))
    assert "-- row 1" in stream.getvalue()
    assert "(1 row)" in stream.getvalue()


def test_import_summary_says_what_was_refused_and_why() -> None:
    summary = ImportSummary(
        (
            FileSummary(
                "/data/log.csv",
                "csv",
                17,
                (Refusal("no_id_and_no_start", "log.csv:4, log.csv:9", 2, "row is empty"),),
                1,
                tables={"request_log": 17},
                mapped={"TTFT": "ttft_ms:s", "model": "model", "start_unix_ns": "start_unix_ns:ns"},
                unmapped=("colour",),
                notices=("'TTFT' is read as s",),
            ),
            *(FileSummary(f"/data/{n}.jsonl", "otlp-jsonl", 1, (), 0) for n in range(20)),
        )
    )
    stream = io.StringIO()
    make_console(stream, width=100).print(import_text.render(summary))
    text = " ".join(stream.getvalue().split())
    assert "17 request log, 1 there already, 2 refused" in text
    assert "refused 2: no_id_and_no_start at log.csv:4, log.csv:9 (row is empty)" in text
    assert "mapped: TTFT -> ttft_ms:s kept as extra: colour" in text, "own names go without saying"
    assert "note: 'TTFT' is read as s" in text
    assert "and 20 more files without a remark" in text
    assert text.endswith("37 rows taken, 2 refused, 1 duplicate")


def test_what_files_share_is_told_once_and_refusals_are_in_line_order() -> None:
    def log(name: str) -> FileSummary:
        refused = (
            Refusal("negative", f"/d/{name}:9, /d/{name}:12", 2, f"/d/{name}:9: '-1' is negative"),
            Refusal("nothing_known", f"/d/{name}:3", 1, f"/d/{name}:3: no time"),
        )
        notices = ("both look like route", f"nothing known; at /d/{name}; tried: CSV")
        return FileSummary(f"/d/{name}", "csv", 1, refused, 0, notices=notices)

    stream = io.StringIO()
    files = tuple(log(f"{n}.csv") for n in range(3))
    make_console(stream, width=100).print(import_text.render(ImportSummary(files)))
    text = stream.getvalue()
    assert text.count("both look like route (the same for 2 more files)\n") == 1
    assert text.count("both look") == 1
    assert text.count("nothing known; tried: CSV (the same for 2 more files)\n") == 1
    assert [text.count(f"/d/{n}.csv:9") for n in range(3)] == [1, 1, 1]
    assert text.index("0.csv:3 (no time)") < text.index("0.csv:9, /d/0.csv:12 ('-1' is negative)")


def test_names_do_not_steer_the_terminal() -> None:
    stream = io.StringIO()
    make_console(stream).print("a\u202eb\x1b[31mc\u2069")
    assert stream.getvalue() == "ab[31mc\n"
