"""Where a store's receiver listens, as the receiver itself noted it.

Owns the name of the note and how it is read. It says where to ask, not that anybody answers: a
receiver that was killed leaves it behind.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: In the store's directory while its receiver runs; the same JSON as ``collect --ready-file``.
RECEIVER_FILE: Final = ".receiver.json"
_MOST_BYTES: Final = 64 << 10
#: Addresses that mean "every interface of this machine" are asked on loopback.
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


@dataclass(frozen=True)
class Listening:
    """Host and ports of a receiver."""

    host: str
    grpc_port: int
    http_port: int


def read_listening(path: Path) -> Listening | None:
    """What a ready file says; None if it is not there or no receiver's."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
        host, grpc, http = found["grpc"]["host"], found["grpc"]["port"], found["http"]["port"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(host, str) or not all(
        type(p) is int and 0 < p < 65_536 for p in (grpc, http)
    ):
        return None
    return Listening(_ANY.get(host, host), grpc, http)
