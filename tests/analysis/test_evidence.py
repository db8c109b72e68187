"""What the lines of evidence count, from fits made by hand."""

from __future__ import annotations

import itertools

import pytest

from tracekit.analysis.evidence_support import fitted
from tracekit.analysis.fit import Cell, PhaseFit


def _cell(name: str, n: int, *, level: str = "cell", fit_n: int | None = None) -> Cell:
    error = 0.5 if level != "cell" else n / 1_000
    fit = PhaseFit((1.0,), 0.0, 0.0, n if fit_n is None else fit_n, level, error)
    return Cell(name, "", "", "unified", n, level, False, {"queue": fit})


def test_a_pool_does_not_count_its_cells_again_whatever_the_order() -> None:
    small = _cell("small", 7, level="all", fit_n=467)
    cells = (_cell("a", 200), small, _cell("b", 260))
    for order in itertools.permutations(cells):
        # all 467, not 467 and those of a cell that came after
        assert fitted(order) == {"queue": (467.0, 0.5)}
    n, error = fitted(c for c in cells if c is not small)["queue"]
    assert n == 460
    assert error == pytest.approx((200 * 0.2 + 260 * 0.26) / 460)
    # a pool of less than the cells together says nothing about them
    part = _cell("part", 7, level="model", fit_n=207)
    assert fitted((part, *cells[::2]))["queue"] == pytest.approx((460.0, error))
    assert fitted(()) == {}
