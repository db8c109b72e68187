"""Service level objectives: what a request was allowed to take.

Owns parsing ``ttft=800ms,tpot=50ms,e2e=10s`` and the one-row relation ``slo`` that the SQL of
``sql/attribution`` reads. Judges nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tracekit.analysis._arrow import arrow_table
from tracekit.errors import UsageError
from tracekit.names import SLO_METRICS

_UNIT_MS: Final[dict[str, float]] = {
    "": 1.0,
    "us": 1e-3,
    "ms": 1.0,
    "s": 1_000.0,
    "m": 60_000.0,
}
_VALUE: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(us|ms|s|m|)")
#: A bare number below this is no limit of milliseconds for a whole request: seconds are meant, most
#: likely.
_BARE_MS: Final = 10.0
_HOW: Final = "write e.g. ttft=800ms,tpot=50ms,e2e=10s"

#: Where the limits come from: the caller, or the slowest 5 % of each (model, route).
GIVEN: Final = "given"
SLOWEST: Final = "slowest_5_percent"


@dataclass(frozen=True)
class Slo:
    """Limits in milliseconds; ``None`` = this metric has no limit. All ``None`` = none given."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def source(self) -> str:
        """``given`` if any limit is set, else ``slowest_5_percent``."""
        return GIVEN if self.metrics else SLOWEST

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that have a limit, in display order."""
        return tuple(m for m in SLO_METRICS if self.limit_ms(m) is not None)

    def limit_ms(self, metric: str) -> float | None:
        """The limit of ``ttft``, ``tpot`` or ``e2e`` in ms."""
        limit: float | None = getattr(self, f"{metric}_ms")
        return limit

    def to_json(self) -> dict[str, Any]:
        return {
            "ttft_ms": self.ttft_ms,
            "tpot_ms": self.tpot_ms,
            "e2e_ms": self.e2e_ms,
            "source": self.source,
        }

    def to_arrow(self) -> pa.Table:
        """The one-row relation ``slo``: ``ttft_ms``, ``tpot_ms``, ``e2e_ms``, ``source``."""
        limits: dict[str, Any] = {f"{m}_ms": self.limit_ms(m) for m in SLO_METRICS}
        schema = pa.schema([*((name, pa.float64()) for name in limits), ("source", pa.string())])
        row = limits | {"source": self.source}
        return arrow_table({name: [value] for name, value in row.items()}, schema)


def parse_slo(text: str | None) -> Slo:
    """``ttft=800ms,tpot=50ms,e2e=10s`` as an `Slo`; a bare number is milliseconds.

    Except a small one for ttft or e2e, which may mean seconds: it must have a unit.

    ``None`` or an empty text is no SLO. Raises UsageError on an unknown or repeated metric, a
    value that is no duration, or one that is not above zero.
    """
    limits: dict[str, float] = {}
    for part in filter(None, (p.strip() for p in (text or "").split(","))):
        name, equals, value = (p.strip() for p in part.partition("="))
        if name not in SLO_METRICS:
            raise UsageError(
                f"unknown SLO metric {name!r}; known: {', '.join(SLO_METRICS)}; {_HOW}"
            )
        if name in limits:
            raise UsageError(f"SLO metric {name!r} is given twice")
        match = _VALUE.fullmatch(value)
        if not equals or match is None:
            raise UsageError(f"{part!r} is not an SLO; {_HOW}")
        limit = float(match.group(1)) * _UNIT_MS[match.group(2)]
        if not 0 < limit < math.inf:
            raise UsageError(f"the SLO for {name} must be above zero and finite")
        if name != "tpot" and not match.group(2) and limit < _BARE_MS:
            raise UsageError(f"{part!r} has no unit: write {value}s or {value}ms")
        limits[name] = limit
    return Slo(ttft_ms=limits.get("ttft"), tpot_ms=limits.get("tpot"), e2e_ms=limits.get("e2e"))
