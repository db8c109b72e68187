"""How fluid a stream was for its reader: the share of token deadlines that it met.

The index of Etalon (deadlines with carried slack): every token is due one limit after the one
before, what comes early earns time for what comes later, and a deadline that is missed by several
limits counts several times, after which the count starts anew. A stall that the reader had tokens
in hand for costs nothing; the same stall at the start does. Works on one stream; knows no store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fluidity:
    """``index`` [1] of the ``deadlines`` were met; ``late_ms`` [ms] is the latest of the others.

    A token is due ``limit_ms`` after the one before it.
    """

    index: float
    deadlines: int
    missed: int
    late_ms: float
    limit_ms: float


def fluidity(
    offsets_us: Sequence[int],
    tokens: Sequence[int],
    *,
    limit_ms: float,
    first_due_us: float | None = None,
) -> Fluidity | None:
    """The fluidity of a stream whose chunk ``i`` came at ``offsets_us[i]`` with ``tokens[i]``.

    ``limit_ms`` is what a token may take; ``first_due_us`` when the first one is due: None = when
    it came, so that the wait for it is not judged. None for a stream of fewer than two tokens.
    """
    limit_us = limit_ms * 1e3
    chunks = [(at, n) for at, n in sorted(zip(offsets_us, tokens, strict=True)) if n > 0]
    if sum(n for _, n in chunks) < 2 or limit_us <= 0:
        return None
    due = float(chunks[0][0]) if first_due_us is None else first_due_us
    met = missed = 0
    latest = 0.0
    for at, n in chunks:
        if at > due:
            missed += int((at - due) // limit_us) + 1
            latest = max(latest, at - due)
            # the late token is one of these deadlines; those that came with it are early
            met += n - 1
            due = at + n * limit_us
        else:
            met += n
            due += n * limit_us
    return Fluidity(met / (met + missed), met + missed, missed, latest / 1e3, limit_ms)
