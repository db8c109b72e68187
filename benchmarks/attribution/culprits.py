"""Who really stalled whom: leave one request out, replay, and see whose victims are spared.

Owns the truth of culprits. Candidates are the long prompts that the fault added and whatever
request a verdict named first; each is left out of a replay of its own, in which the luck of all
others stays the same: they also go to the same engines. A router that takes turns would send every
later request elsewhere, and leaving out anybody at all would "save" whoever gets a quieter engine.
A named culprit is right if leaving it out saves the victim at least half of what leaving out the
best candidate saves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np

from attribution.cluster import Replay
from attribution.faults import Fault
from attribution.truth import MIN_EXCESS_S, PHASES, Outcome, Truth, outcome
from attribution.world import World, replay

_RIGHT_SHARE: Final = 0.5


def savings(
    world: World,
    fault: Fault,
    faulty: Outcome,
    rows: Sequence[Truth],
    candidates: Collection[int],
    run: Replay,
) -> dict[int, list[float]]:
    """Candidate -> [s] what leaving it out of ``run`` saves in the blamed phase, for each row."""
    index = np.array([t.index for t in rows], dtype=np.int64)
    phase = np.array([PHASES.index(t.phase) for t in rows], dtype=np.int64)
    before = faulty.phases[index, phase]
    placed = run.placement()
    out = {}
    for candidate in sorted(candidates):
        other = replay(world, (fault,), without=candidate, placed=placed)
        spared = outcome(other, len(world.requests))
        saved = before - spared.phases[index, phase]
        # one that leaves itself out, or is cut short in the other replay, tells nothing
        saved[(index == candidate) | ~spared.answered[index]] = 0.0
        out[candidate] = saved.tolist()
    return out


def judge_culprits(
    rows: Sequence[Truth], named: Sequence[int | None], saved: dict[int, list[float]]
) -> list[dict[str, Any]]:
    """One record a row with a named culprit whose best candidate saves at least 20 ms."""
    out = []
    for k, (row, name) in enumerate(zip(rows, named, strict=True)):
        best = max((s[k] for s in saved.values()), default=0.0)
        if best < MIN_EXCESS_S:
            continue
        got = None if name is None else saved[name][k] if name in saved else 0.0
        out.append(
            {
                "index": row.index,
                "metric": row.metric,
                "phase": row.phase,
                "named": name is not None,
                "best_ms": round(best * 1e3, 2),
                "saved_ms": None if got is None else round(got * 1e3, 2),
                "right": got is not None and got >= _RIGHT_SHARE * best,
            }
        )
    return out
