"""The share of token deadlines that a stream met: slack is carried, long stalls count more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.analysis.fluidity import Fluidity, fluidity


def _of(*at_ms: float, tokens: list[int] | None = None, limit_ms: float = 10.0) -> Fluidity:
    found = fluidity([int(a * 1e3) for a in at_ms], tokens or [1] * len(at_ms), limit_ms=limit_ms)
    assert found is not None
    return found


def test_a_stream_in_time_is_whole() -> None:
    found = _of(100, 110, 120, 130)
    assert found == Fluidity(index=1.0, deadlines=4, missed=0, late_ms=0.0, limit_ms=10.0)


def test_a_late_token_misses_a_deadline_for_each_limit() -> None:
    # due at 110, comes at 145: those of 110, 120, 130 and 140 are missed; from there anew
    found = _of(100, 145, 155)
    assert (found.missed, found.deadlines, found.late_ms) == (4, 6, 35.0)
    assert found.index == pytest.approx(2 / 6)
    # exactly at its deadline is in time, an instant later is not
    assert _of(100, 110).missed == 0
    assert _of(100, 110.001).missed == 1


def test_an_early_stall_hurts_and_a_late_one_is_absorbed() -> None:
    early = _of(100, 150, *(155 + 5 * i for i in range(20)))
    late = _of(*(100 + 5 * i for i in range(21)), 250)
    assert early.missed == 5 and late.missed == 0 and late.index == 1.0


def test_tokens_of_one_chunk_are_due_one_after_another() -> None:
    # four tokens at once: the next is due 40 ms later
    assert _of(100, 140, tokens=[4, 1]).missed == 0
    assert _of(100, 141, tokens=[4, 1]).missed == 1
    # of a late chunk one token is late, the others are early
    found = _of(100, 125, tokens=[1, 3])
    assert (found.missed, found.deadlines) == (2, 5)
    # a chunk without tokens is no token
    assert _of(90, 100, 110, tokens=[0, 1, 1]).deadlines == 2


def test_the_first_token_is_judged_if_it_has_a_deadline() -> None:
    found = fluidity([100_000, 110_000], [1, 1], limit_ms=10.0, first_due_us=85_000.0)
    assert found is not None and (found.missed, found.deadlines) == (2, 3)


@pytest.mark.parametrize(("at", "tokens"), [([], []), ([5], [1]), ([5, 9], [0, 1])])
def test_less_than_two_tokens_are_no_stream(at: list[int], tokens: list[int]) -> None:
    assert fluidity(at, tokens, limit_ms=10.0) is None


@given(
    gaps=st.lists(st.integers(0, 200_000), min_size=1, max_size=60), limit_ms=st.floats(1.0, 100.0)
)
def test_a_looser_limit_never_misses_more(gaps: list[int], limit_ms: float) -> None:
    at = [0]
    for gap in gaps:
        at.append(at[-1] + gap)
    tight = fluidity(at, [1] * len(at), limit_ms=limit_ms)
    loose = fluidity(at, [1] * len(at), limit_ms=2 * limit_ms)
    assert tight is not None and loose is not None
    assert loose.missed <= tight.missed and 0 < loose.index <= 1
    assert tight.deadlines - tight.missed <= len(at)
