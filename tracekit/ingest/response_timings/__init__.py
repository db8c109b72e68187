"""Engines' own timings in the responses that a request log carries.

Servers tell their phases in the response: in the last chunk of a stream, in the body, in headers.
Logs keep that object as it came, whole or beside the client's own columns. What a system's fields
mean is `tracekit.response_timings`' business; `_lift` puts what they say into the columns of the
request record that the log does not fill itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tracekit.ingest.response_timings._found import Found, find, plain
from tracekit.response_timings import SYSTEMS
from tracekit.response_timings.system import System

__all__ = ["SYSTEMS", "Found", "System", "find_timings", "tells_timings"]

#: Ends of names that no other log has: they show a request log, without their paths too.
_TELLING: Final = (
    "predicted_ms",
    "prompt_eval_duration",
    "eval_duration",
    "prefill_wait_time_ms",
    "forward_entry_time",
    "request_received_ts",
    "first_scheduled_time",
    "x_inference_time",
)


def tells_timings(name: str) -> bool:
    """Whether a column of this name is found only in what a serving system tells of a request."""
    words = plain(name)
    return any(words == end or words.endswith("_" + end) for end in _TELLING)


def find_timings(names: Iterable[str]) -> tuple[Found, ...]:
    """Every system's timings among these columns; each column is one system's at most."""
    left = {name: plain(name) for name in names}
    found: list[Found] = []
    for system in SYSTEMS:
        places = find(system, left)
        found += places
        for place in places:
            for column in place.columns.values():
                left.pop(column, None)
    return tuple(found)
