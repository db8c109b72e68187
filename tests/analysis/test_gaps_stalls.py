"""Token gaps: which are stalls, which are kept, against a plain reckoning of the same."""

from __future__ import annotations

from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.analysis.gaps import LONGEST_KEPT, summarize
from tracekit.chunks import MAX_OFFSET_US, pack


def _at(gaps: list[int]) -> list[int]:
    out = [1000]
    for gap in gaps:
        out.append(out[-1] + gap)
    return out


@given(st.lists(st.integers(0, 400_000), min_size=1, max_size=120))
def test_stalls_and_the_longest_gaps_are_kept(gaps: list[int]) -> None:
    at = _at(gaps)
    summary = summarize(pack(at))
    assert summary is not None
    ordered = sorted(gaps)
    n = len(gaps)
    median = ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) // 2
    assert median_low(gaps) <= median
    limit = max(4 * median, 50_000)
    stalls = [i for i, gap in enumerate(gaps) if gap > limit]
    assert (summary.chunk_count, summary.median_us) == (n + 1, median)
    assert summary.max_gap_us == max(gaps)
    assert summary.stall_us == sum(gaps[i] - median for i in stalls)
    kept = {gap.index - 1: gap for gap in summary.kept}
    assert list(kept) == sorted(kept)
    assert {i for i, gap in kept.items() if gap.is_stall} == set(stalls)
    assert len(kept) == max(min(n, LONGEST_KEPT), len(stalls))
    # nothing left out is longer than something kept
    left = [gaps[i] for i in range(n) if i not in kept]
    assert max(left, default=0) <= min(gaps[i] for i in kept)
    for i, gap in kept.items():
        assert (gap.start_us, gap.end_us) == (at[i], at[i + 1])
        assert (gap.tokens, gap.excess_us) == (1, gaps[i] - median)


def test_more_stalls_than_room_are_all_kept() -> None:
    gaps = [1_000] * 100 + [60_000] * 50
    summary = summarize(pack(_at(gaps)))
    assert summary is not None
    assert sum(gap.is_stall for gap in summary.kept) == len(summary.kept) == 50
    assert summary.stall_us == 50 * 59_000


@pytest.mark.parametrize("offsets", [[], [5]])
def test_a_stream_of_one_chunk_has_no_gaps(offsets: list[int]) -> None:
    summary = summarize(pack(offsets))
    assert summary is not None
    assert (summary.chunk_count, summary.max_gap_us, summary.stall_us) == (len(offsets), None, 0)
    assert summary.kept == ()


def test_tokens_of_a_gap_are_those_of_the_chunk_that_ended_it() -> None:
    summary = summarize(pack([0, 10, 30], [1, 2, 5]))
    assert summary is not None
    assert [gap.tokens for gap in summary.kept] == [2, 5]
    assert summary.tokens == 8


@pytest.mark.parametrize(
    "text",
    ["", "garbage", "1:%%%", "2:AAAA", "1:", pack([0, MAX_OFFSET_US]), pack([-MAX_OFFSET_US, 0])],
)
def test_text_that_is_no_stream_gives_nothing(text: str) -> None:
    assert summarize(text) is None


@pytest.mark.parametrize(
    ("tokens", "per_chunk"),
    [
        # the first chunk is prefill's; 2 + 3 + 1 in three steps
        ([1, 2, 3, 1], 2.0),
        # chunks that bring none (a role before the first token, usage after the last) are no steps
        ([0, 1, 2, 4, 0], 3.0),
        ([3, 1, 1], None),
        ([1, 1, 1], None),
        ([1, 0, 0], None),
        ([0, 0, 0], None),
        ([5], None),
    ],
)
def test_tokens_per_chunk(tokens: list[int], per_chunk: float | None) -> None:
    summary = summarize(pack(_at([8_000] * (len(tokens) - 1)), tokens))
    assert summary is not None
    assert summary.tokens_per_chunk == per_chunk


def test_what_piled_up_behind_a_stall_is_no_step() -> None:
    gaps = [8_000] * 9 + [900_000]
    summary = summarize(pack(_at(gaps), [1, *[2] * 9, 100]))
    assert summary is not None
    assert (summary.tokens_per_chunk, summary.stall_us) == (2.0, 892_000)
