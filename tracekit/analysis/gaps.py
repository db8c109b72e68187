"""Token gaps of a stream: which are stalls, which are the longest, and their summary.

Works on the packed chunk string of one leg (`tracekit.chunks`); knows nothing of phases.
A stall is a gap over max(4 x the stream's median gap, 50 ms); its excess is the part over the
median (Etalon's and our own facts, design §2).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tracekit.chunks import unpack
from tracekit.errors import SourceError

#: Gaps kept per request beside the stalls.
LONGEST_KEPT: Final = 32
_STALL_FACTOR: Final = 4
_STALL_FLOOR_US: Final = 50_000
#: Streams that go on for longer than a year are not believed: their times would not fit unix ns.
_LONGEST_US: Final = 366 * 86_400 * 1_000_000


@dataclass(frozen=True)
class Gap:
    """One gap between chunk ``index`` and the next; offsets in µs from the request's send."""

    index: int
    start_us: int
    end_us: int
    tokens: int
    is_stall: bool
    excess_us: int


@dataclass(frozen=True)
class GapSummary:
    """All of one stream: ``kept`` holds every stall and the longest gaps, in time order.

    ``tokens_per_chunk`` is the mean over the chunks after the first that bring any and end no stall
    (what piles up behind a stall comes in one chunk); None where no chunk brings several: then it
    is 1, or not known.
    """

    chunk_count: int
    tokens: int
    median_us: int
    max_gap_us: int | None
    stall_us: int
    kept: tuple[Gap, ...]
    tokens_per_chunk: float | None = None


def _median(sorted_values: list[int]) -> int:
    n = len(sorted_values)
    mid = n // 2
    return sorted_values[mid] if n % 2 else (sorted_values[mid - 1] + sorted_values[mid]) // 2


def summarize(text: str) -> GapSummary | None:
    """The gaps of a packed stream; ``None`` if it cannot be believed (the row is still good)."""
    try:
        chunks = unpack(text)
    except SourceError:
        return None
    at = chunks.offsets_us
    n = len(at)
    if at and (max(at) > _LONGEST_US or min(at) < -_LONGEST_US):
        return None
    if n < 2:
        return GapSummary(n, sum(chunks.tokens), 0, None, 0, ())
    gaps = [b - a for a, b in pairwise(at)]
    ordered = sorted(gaps)
    median = _median(ordered)
    limit = max(_STALL_FACTOR * median, _STALL_FLOOR_US)
    # sorted() is stable: of equal gaps the earlier ones are kept
    longest = set(sorted(range(len(gaps)), key=lambda i: -gaps[i])[:LONGEST_KEPT])
    kept = []
    stall_us = 0
    for i, gap in enumerate(gaps):
        is_stall = gap > limit
        if is_stall:
            stall_us += gap - median
        elif i not in longest:
            continue
        kept.append(Gap(i + 1, at[i], at[i + 1], chunks.tokens[i + 1], is_stall, gap - median))
    return GapSummary(
        n,
        sum(chunks.tokens),
        median,
        ordered[-1],
        stall_us,
        tuple(kept),
        _tokens_per_chunk(chunks.tokens, gaps, limit),
    )


def _tokens_per_chunk(tokens: list[int], gaps: list[int], limit: int) -> float | None:
    if max(tokens) <= 1:
        return None
    first = next(i for i, n in enumerate(tokens) if n)
    after = [
        n for n, gap in zip(tokens[first + 1 :], gaps[first:], strict=True) if n and gap <= limit
    ]
    return sum(after) / len(after) if after and max(after) > 1 else None
