"""Who gets the credit where several together make the difference: exact Shapley values.

Owns the counting of coalitions and their weights, on plain arrays. What a player is, and what makes
a miss vanish, is the business of `tracekit.analysis.fleet`.

A miss vanishes if the coalition saves at least what is needed. The Shapley value of a player is the
share of misses that vanish as it joins, averaged over all orders of joining; the values add up to
the share that vanishes with everybody in.
"""

from __future__ import annotations

from math import factorial
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

_CHUNK_ROWS: Final = 4_096


def coalition_counts(saved: Floats, needed: Floats) -> Counts:
    """How many rows each coalition of players makes vanish: ``2 ** players`` counts.

    ``saved`` is rows x players, none negative; ``needed`` is one value a row. Bit i of a
    coalition's index is player i.
    """
    rows, players = saved.shape
    counts = np.zeros(1 << players, dtype=np.int64)
    for start in range(0, rows, _CHUNK_ROWS):
        part = saved[start : start + _CHUNK_ROWS].T
        # built up player by player: so a larger coalition never saves less, not even by rounding
        sums = np.zeros((1 << players, part.shape[1]))
        for i in range(players):
            np.add(sums[: 1 << i], part[i], out=sums[1 << i : 2 << i])
        counts += np.count_nonzero(sums >= needed[start : start + _CHUNK_ROWS], axis=1)
    return counts


def shapley_weights(players: int) -> Floats:
    """Coalitions x players: the value of a game times this is its Shapley value."""
    coalitions = np.arange(1 << players)
    size = sum(((coalitions >> i) & 1 for i in range(players)), np.zeros_like(coalitions))
    orders = [factorial(k) * factorial(players - k - 1) for k in range(players)]
    share = np.array([*orders, 0.0]) / factorial(players)
    out = np.empty((len(coalitions), players))
    for i in range(players):
        is_in = (coalitions >> i) & 1 == 1
        out[:, i] = np.where(is_in, share[size - 1], -share[size])
    return out
