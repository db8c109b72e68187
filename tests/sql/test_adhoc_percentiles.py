"""The named queries print no high percentile of a handful of requests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis import factory
from tracekit.analysis import sqlfiles


def _rows(name: str, n: int) -> list[dict[str, Any]]:
    con = factory.clean(n, workers=1, every_ms=10).connect()
    rows: list[dict[str, Any]] = (
        con.sql(sqlfiles.load("adhoc", name).body).to_arrow_table().to_pylist()
    )
    return rows


@pytest.mark.parametrize(
    ("name", "n", "columns"),
    [
        ("p99_by_minute", 300, ("ttft_p99_ms", "e2e_p99_ms")),
        ("p99_by_minute", 60, ("ttft_p95_ms", "e2e_p95_ms")),
        ("tokens_per_s_by_worker", 60, ("tpot_p95_ms",)),
        ("phase_seconds", 60, ("p95_ms",)),
    ],
)
def test_high_percentiles_need_rows(name: str, n: int, columns: tuple[str, ...]) -> None:
    for rows, known in ((_rows(name, n - 1), False), (_rows(name, n), True)):
        assert rows
        for row in rows:
            assert [row[c] is not None for c in columns] == [known] * len(columns)
