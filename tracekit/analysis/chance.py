"""How likely a share is by chance."""

from __future__ import annotations

import math


def chance_of(share: float, usual: float, n: int) -> float:
    """At most how likely it is that of ``n`` so large a ``share`` has what ``usual`` of all have.

    Chernoff's bound; shares [1], ``0 < usual < share <= 1``.
    """
    distance = share * math.log(share / usual)
    if share < 1:
        distance += (1 - share) * math.log((1 - share) / (1 - usual))
    return math.exp(-n * distance)
