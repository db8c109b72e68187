"""One request in the terminal: every phase is seen, in its order and about its length."""

from __future__ import annotations

import io
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from tracekit.analysis.detail import Gap, PhaseInterval, RequestDetail
from tracekit.names import PHASES
from tracekit.report import request_text, texts
from tracekit.report.console import make_console

_MS = 1_000_000


def _phases(lengths_ms: list[tuple[str, int]]) -> tuple[PhaseInterval, ...]:
    out, at = [], 1_790_000_000_000_000_000
    for phase, ms in lengths_ms:
        end = at + ms * _MS
        out.append(PhaseInterval(phase, None, at, end, ms, None, "measured", "f", "engine", "w"))
        at = end
    return tuple(out)


def _detail(phases: tuple[PhaseInterval, ...], gaps: tuple[Gap, ...] = ()) -> RequestDetail:
    request = {"request_key": "k", "request_id": "[bold]r1", "model": "m", "e2e_ms": 1.0}
    return RequestDetail(request, (), phases, gaps, (), (), None, "none: it is fast", ())


def _text(detail: RequestDetail, width: int) -> str:
    stream = io.StringIO()
    make_console(stream, width=width).print(request_text.render(detail, width=width))
    return stream.getvalue()


_ADJACENT = st.lists(
    st.tuples(st.sampled_from(list(PHASES)), st.integers(0, 100_000)), min_size=1, max_size=30
)


@given(_ADJACENT, st.integers(20, 120))
def test_bar_shows_every_interval_in_order(lengths: list[tuple[str, int]], cells: int) -> None:
    phases = _phases(lengths)
    bar = request_text.bar_cells(phases, cells)
    assert len(bar) == max(cells, len(phases))
    assert [k for k, _ in groupby(bar)] == [k for k, _ in groupby(p.phase for p in phases)]


def test_bar_is_to_scale() -> None:
    bar = request_text.bar_cells(_phases([("queue", 500), ("prefill", 250), ("decode", 250)]), 40)
    assert [bar.count(p) for p in ("queue", "prefill", "decode")] == [20, 10, 10]


def test_text_fits_any_width_and_keeps_markup_literal() -> None:
    phases = _phases([("network", 3), ("queue", 100), ("decode", 900)])
    for width in (40, 60, 80, 200):
        text = _text(_detail(phases), width)
        assert max(map(len, text.splitlines())) <= width
        assert "[bold]r1" in text, "an id is data, not markup"
        assert "none: it is fast" in " ".join(text.split())


def test_stalls_stand_under_the_bar_where_they_happened() -> None:
    phases = _phases([("queue", 100), ("decode", 900)])
    start = phases[0].start_unix_ns
    gap = Gap(7, start + 500 * _MS, start + 800 * _MS, 300.0, 1, True, 290.0)
    lines = _text(_detail(phases, (gap,)), 74).splitlines()
    bar = next(i for i, line in enumerate(lines) if line.startswith("QQ"))
    assert lines[bar + 1].index("!") == len(lines[bar].rstrip()) // 2
    assert any("#7" in line and "300 ms" in line for line in lines)


def test_request_without_phases_says_so() -> None:
    assert "no phases" in _text(_detail(()), 80)


def test_every_phase_has_its_own_letter() -> None:
    assert set(texts.PHASE_LETTERS) == set(PHASES)
    assert len(set(texts.PHASE_LETTERS.values())) == len(PHASES)
