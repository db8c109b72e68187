"""What ``tracekit collect`` can be told, and which combinations are refused.

Owns defaults and their checks; opens no file and no socket.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracekit.errors import UsageError

_S: Final = 1_000_000_000

#: Spans may be dated this far ahead of the receiver's clock before they go to quarantine.
NEWEST_AHEAD_NS: Final = 86_400 * _S
#: No time of the receiver may be longer: what infinity was meant to be.
_LONGEST_S: Final = 365 * 86_400
_LARGEST_BODY_BYTES: Final = (1 << 31) - 1
#: Requests that are being received get this long at a shutdown, and half of it all at most.
_LONGEST_GRACE_S: Final = 5.0
#: How far back spans may be dated when nothing is ever deleted (``retain_ns`` is None).
OLDEST_BACK_NS: Final = 365 * 86_400 * _S


@dataclass(frozen=True, kw_only=True)
class CollectConfig:
    """Options of one receiver. Raises :class:`UsageError` for what cannot work.

    ``grpc_port`` and ``http_port`` 0 mean any free port. ``retain_ns`` and ``max_bytes`` bound
    the store (None: keep everything). ``token`` is required for any address but loopback.
    """

    store: Path
    host: str = "127.0.0.1"
    grpc_port: int = 4317
    http_port: int = 4318
    token: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    ready_file: Path | None = None
    #: Store the text of prompts and answers that senders put into attributes.
    keep_text: bool = False

    #: A commit is made this often, or sooner when ``flush_rows`` rows wait.
    flush_interval_s: float = 1.0
    flush_rows: int = 10_000

    #: Largest request, before and after decompression.
    max_body_bytes: int = 16 << 20
    #: Bodies being received, decoded or synced at one time, all connections together.
    max_in_flight_bytes: int = 128 << 20
    #: Acknowledged requests on disk that the lake does not hold yet.
    max_spool_bytes: int = 1 << 30
    #: Decoded rows in memory that the lake does not hold yet.
    max_buffer_rows: int = 200_000
    max_buffer_bytes: int = 256 << 20
    #: What a refused client is told to wait.
    retry_after_s: int = 2

    retain_ns: int | None = None
    max_bytes: int | None = None
    maintenance_interval_s: float = 60.0

    #: A request settles when its spans have been quiet this long.
    quiet_s: float = 60.0
    settle_interval_s: float = 10.0

    #: How long a shutdown may take: requests in flight, the last commit, the pass under way.
    shutdown_s: float = 20.0

    def __post_init__(self) -> None:
        for name in ("grpc_port", "http_port"):
            port = getattr(self, name)
            if not 0 <= port <= 65535:
                raise UsageError(f"{_option(name)} is {port}; ports are 0 (any free one) to 65535")
        if self.grpc_port == self.http_port != 0:
            raise UsageError(
                f"--grpc-port and --http-port are both {self.grpc_port}; give each its own"
            )
        for name in (
            "flush_interval_s",
            "flush_rows",
            "max_body_bytes",
            "max_in_flight_bytes",
            "max_spool_bytes",
            "max_buffer_rows",
            "max_buffer_bytes",
            "retry_after_s",
            "maintenance_interval_s",
            "settle_interval_s",
            "shutdown_s",
        ):
            if not getattr(self, name) > 0:
                raise UsageError(f"{_option(name)} must be above 0, not {getattr(self, name)}")
        for option, limit in (("--retain", self.retain_ns), ("--max-bytes", self.max_bytes)):
            if limit is not None and limit <= 0:
                raise UsageError(f"{option} must be above 0: it would delete every row")
        if not self.quiet_s >= 0:
            raise UsageError(f"--quiet-s must not be negative, not {self.quiet_s}")
        for name in (
            "flush_interval_s",
            "retry_after_s",
            "maintenance_interval_s",
            "quiet_s",
            "settle_interval_s",
            "shutdown_s",
        ):
            if not getattr(self, name) <= _LONGEST_S:
                raise UsageError(
                    f"{_option(name)} may be {_LONGEST_S} s (a year) at most, "
                    f"not {getattr(self, name)}"
                )
        if self.max_body_bytes > _LARGEST_BODY_BYTES:
            raise UsageError(
                f"--max-body-bytes may be {_LARGEST_BODY_BYTES} at most: gRPC takes no larger ones"
            )
        if self.max_in_flight_bytes < self.max_body_bytes:
            raise UsageError(
                f"--max-in-flight-bytes ({self.max_in_flight_bytes}) is smaller than one request "
                f"may be (--max-body-bytes {self.max_body_bytes})"
            )
        if self.max_spool_bytes <= self.max_body_bytes:
            raise UsageError(
                f"--max-spool-bytes ({self.max_spool_bytes}) must hold more than one request may "
                f"be (--max-body-bytes {self.max_body_bytes})"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("TLS needs both files: --tls-cert and --tls-key")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise UsageError("the token may hold printable ASCII characters only")
        if self.token == "":
            raise UsageError("the token is empty")
        if self.token is None and not is_loopback(self.host):
            raise UsageError(
                f"{self.host} is reachable from other machines: give a token (--token or "
                "TRACEKIT_TOKEN) that senders must show, or listen on 127.0.0.1"
            )

    @property
    def spool_dir(self) -> Path:
        """Where acknowledged bytes wait for their commit; one receiver per store."""
        return self.store / ".spool"

    @property
    def grace_s(self) -> float:
        """How long a shutdown waits for requests in flight; the rest is for the last commit."""
        return min(_LONGEST_GRACE_S, self.shutdown_s / 2)

    @property
    def oldest_back_ns(self) -> int:
        """How far before its receipt a row may be dated."""
        return OLDEST_BACK_NS if self.retain_ns is None else self.retain_ns


def is_loopback(host: str) -> bool:
    """True if only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
