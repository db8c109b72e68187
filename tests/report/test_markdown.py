"""Names of the data inside Markdown."""

from __future__ import annotations

from tracekit.report.markdown import cell, table


def test_a_name_stays_on_its_line_and_is_no_markup() -> None:
    assert cell("a|b\n# H\t<img src=x>") == "a\\|b # H &lt;img src=x>"
    assert cell("x\u202ey\u2066z") == "xyz"


def test_a_table_keeps_its_columns() -> None:
    assert table(("id", "n"), [("a|b", "1")], right=("n",)).splitlines() == [
        "| id | n |",
        "| --- | ---: |",
        "| a\\|b | 1 |",
    ]
