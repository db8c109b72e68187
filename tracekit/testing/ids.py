"""Trace and span ids that are the same in every run."""

from __future__ import annotations

import itertools
from typing import Final

from opentelemetry.sdk.trace.id_generator import IdGenerator

_SEED_BITS: Final = 64


class CountingIds(IdGenerator):
    """Ids that count from 1, with ``seed`` in the upper half of spans and of traces.

    Give two processes of one test different seeds. A forked child counts on from where its parent
    was, so both make the same ids from there.
    """

    def __init__(self, seed: int = 1) -> None:
        if not 0 <= seed < 1 << _SEED_BITS:
            raise ValueError("the seed has 64 bits at most and is not negative")
        self._seed = seed
        # next() of a count is one step for every thread
        self._spans = itertools.count(1)
        self._traces = itertools.count(1)

    def generate_span_id(self) -> int:
        return (self._seed << 32 | next(self._spans)) & (1 << 64) - 1

    def generate_trace_id(self) -> int:
        return self._seed << _SEED_BITS | next(self._traces)
