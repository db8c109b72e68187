"""What each column of the request record holds, in which units it may be given, and whose it is.

Data only: `columns` decides, `_column_units` finds units, `_request_rows` reads cells by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tracekit.ingest import _cells
from tracekit.lake.schema import RECORD_COLUMNS

_TEXT: Final = frozenset(
    "request_id trace_id model provider engine route tenant worker prefill_worker decode_worker "
    "tokens_source status finish_reason error ttft_kind quarantine_reason note".split()
)
_SMALL: Final = frozenset(("attempt", "choices", "preemptions", "prefix_block_tokens"))


def _kind(column: str) -> str:
    if column in _TEXT:
        return "status" if column == "status" else "text"
    if column in _SMALL:
        return "small"
    if column == "kv_bytes":
        return "bytes"
    if column == "streaming":
        return "flag"
    if column == "tokens_per_s":
        return "rate"
    if column in ("accepted_tokens_per_step", "coverage"):
        return "real"
    if column.endswith("_unix_ns"):
        return "time"
    return "duration" if column.endswith("_ms") else "count"


#: Every column a log may bring -> its kind.
KINDS: Final[dict[str, str]] = {
    **{column: _kind(column) for column in RECORD_COLUMNS},
    "cancelled": "flag",
    "response_id": "text",
    "chunk_offsets_ms": "offsets",
    "chunk_tokens": "token_list",
    "chunk_times": "packed",
    "prefix_block_tokens": "small",
    "prefix_hashes": "hashes",
}

#: Units that a kind may be given in.
UNITS_OF: Final[dict[str, frozenset[str]]] = {
    "duration": frozenset(_cells.MS_PER),
    "offsets": frozenset(_cells.MS_PER),
    "time": frozenset(_cells.NS_PER),
    "bytes": frozenset(_cells.BYTES_PER),
    "rate": frozenset(_cells.PER_S),
    "status": frozenset(("flag",)),
}

#: Kinds whose cells are numbers.
NUMERIC: Final = frozenset(("duration", "count", "small", "bytes", "rate", "real", "flag"))


@dataclass(frozen=True)
class Column:
    """One column of the file that feeds one of ours.

    ``unit`` is set where it matters (durations always, times and sizes where said); ``key`` is
    the reading of the header that matched; ``by`` is ``map``, ``name`` or ``alias``.
    """

    source: str
    target: str
    unit: str | None
    key: str
    by: str
    place: int = 0

    @property
    def kind(self) -> str:
        return KINDS[self.target]

    @property
    def shown(self) -> str:
        """The right side of the ``--map`` that would say the same."""
        return f"{self.target}:{self.unit}" if self.unit else self.target
