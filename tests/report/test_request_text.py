"""One request in the terminal: every phase is seen, in its order and about its length."""

from __future__ import annotations

import io
from dataclasses import replace

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


def test_how_it_ended_is_told() -> None:
    detail = _detail(())
    told = {"status": "error", "finish_reason": "abort", "error": "KV [red]transfer\n\x1b[1mfailed"}
    lines = _text(replace(detail, request=detail.request | told), 80).splitlines()
    assert lines[0].rstrip().endswith("status error  finish abort")
    assert "error: KV [red]transfer [1mfailed" in [line.rstrip() for line in lines]
    assert not {"error", "finish"} & set(_text(detail, 80).replace(":", " ").split())


_ADJACENT = st.lists(
    st.tuples(st.sampled_from(list(PHASES)), st.integers(0, 100_000)), min_size=1, max_size=30
)


@given(_ADJACENT, st.integers(20, 120))
def test_no_interval_is_off_by_a_cell(lengths: list[tuple[str, int]], cells: int) -> None:
    phases = _phases(lengths)
    widths = request_text.bar_widths(phases, cells)
    assert sum(widths) == cells
    total = sum(ms for _, ms in lengths)
    for (_, ms), width in zip(lengths, widths, strict=True):
        exact = ms / total * cells if total else cells / len(lengths)
        assert abs(width - exact) < 1


def test_bar_is_to_scale() -> None:
    phases = _phases([("queue", 500), ("prefill", 250), ("decode", 250)])
    assert request_text.bar_widths(phases, 40) == [20, 10, 10]


def test_many_tiny_phases_take_nothing_from_the_long_one() -> None:
    tiny = [("network", 1), ("route", 1), ("frontend", 1), ("queue", 1), ("kv_transfer", 1)]
    phases = _phases([*tiny, ("prefill", 4_995), ("decode", 5_000)])
    assert request_text.bar_widths(phases, 72) == [0, 0, 0, 0, 0, 36, 36]
    text = _text(_detail(phases), 200)
    assert "P" * 36 + "D" * 36 + "\n" in text.replace(" \n", "\n")
    beneath = next(line for line in text.splitlines() if line.startswith("too short to draw"))
    assert "(a cell is 139 ms)" in beneath
    for letter, phase in (("N", "network"), ("Q", "queue"), ("K", "KV transfer")):
        assert f"{letter} {phase} 1.00 ms" in beneath
    assert "prefill" not in beneath
    assert "too short" not in _text(_detail(_phases([("queue", 100), ("decode", 900)])), 200)


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


def test_time_without_progress_is_told_within_its_phase() -> None:
    lengths = [("queue", 100), *[("decode", 30), ("decode", 120)] * 20, ("network", 5)]
    parts = [
        replace(p, sub_phase="decode.stall", field="chunk_times", share=0.01)
        if p.ms == 120
        else replace(p, share=0.01)
        for p in _phases(lengths)
    ]
    parts[4] = replace(parts[4], sub_phase="decode.preempted")
    lines = _text(_detail(tuple(parts)), 100).splitlines()
    decode, preempted, stalls = (
        next(line.split() for line in lines if line.startswith(name))
        for name in ("D decode  ", "    of it preempted", "    of it stall")
    )
    assert decode[2:6] == ["100.0", "3,100.0", "3.00", "s"]
    assert stalls[2:7] == ["stall", "x19", "130.0", "3,100.0", "2.28"]
    assert preempted[2:7] == ["preempted", "280.0", "400.0", "120", "ms"]
    assert "chunk_times" in stalls
    assert "chunk_times" not in decode
    # the bar draws whole phases: none of the many parts is too short for it
    assert sum(line.startswith("D decode") for line in lines) == 1
    hidden = next(line for line in lines if line.startswith("too short to draw"))
    assert "decode" not in hidden
    # nothing but time without progress
    alone = [replace(p, sub_phase="decode.stall") for p in _phases([("decode", 100)])]
    assert "D decode (stall)" in _text(_detail(tuple(alone)), 100)


def test_request_without_phases_says_so() -> None:
    assert "no phases" in _text(_detail(()), 80)


def test_every_phase_has_its_own_letter() -> None:
    assert set(texts.PHASE_LETTERS) == set(PHASES)
    assert len(set(texts.PHASE_LETTERS.values())) == len(PHASES)
