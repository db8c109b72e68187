"""The path of one request, whatever transport brought it: decode, make durable, answer.

Owns admission (what may be taken now) and what the sender is told. Runs in the transport's
worker threads, so decoding never blocks an event loop. Does not touch the lake.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tracekit.errors import SourceError
from tracekit_collectors import answers
from tracekit_collectors.config import CollectConfig
from tracekit_collectors.entries import Request, decode, to_record
from tracekit_collectors.journal import Journal, Overloaded
from tracekit_collectors.stats import Stats

_LOG = logging.getLogger("tracekit.collect")


#: gRPC carries messages in trailers, which are small.
_MAX_MESSAGE_CHARS: Final = 500


class Refused(Exception):
    """A whole request is refused; nothing of it was stored.

    ``retry_after_s`` is set where the sender should come again.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        http_status: int,
        grpc_code: int,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message[:_MAX_MESSAGE_CHARS]
        self.http_status = http_status
        self.grpc_code = grpc_code
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Accepted:
    """The request is durable. ``rejected`` items of it went to quarantine; ``message`` says why."""

    rejected: int
    message: str


class Intake:
    """Takes requests; every method may be called from any thread."""

    def __init__(self, config: CollectConfig, journal: Journal, stats: Stats) -> None:
        self._config = config
        self._journal = journal
        self._stats = stats
        self._in_flight_lock = threading.Lock()
        self._in_flight_bytes = 0
        self._token = None if config.token is None else f"Bearer {config.token}".encode()

    @contextlib.contextmanager
    def in_flight(self) -> Iterator[InFlight]:
        """An account for the bytes of one request; whatever was taken is given back at the end."""
        account = InFlight(self)
        try:
            yield account
        finally:
            self._give(account.taken_bytes)

    def check_token(self, authorization: str | bytes | None) -> None:
        """Refuse a request that does not carry the token, where one is asked for."""
        if self._token is None:
            return
        if isinstance(authorization, str):
            authorization = authorization.encode()
        # Compared in constant time: the answer's delay must not spell the token out.
        if authorization is None or not hmac.compare_digest(authorization, self._token):
            raise self._refused(
                "unauthenticated",
                "this receiver asks for a token: send the header 'authorization: Bearer TOKEN' "
                "(OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20TOKEN)",
                http_status=401,
                grpc_code=answers.UNAUTHENTICATED,
            )

    def refuse_oversize(self, what: str) -> Refused:
        """The refusal of a body that is too large; sending it again cannot help."""
        limit = self._config.max_body_bytes
        return self._refused(
            "too_large",
            f"the {what} is larger than {limit} bytes (--max-body-bytes); send smaller batches "
            "(OTEL_BSP_MAX_EXPORT_BATCH_SIZE)",
            http_status=413,
            grpc_code=answers.INVALID_ARGUMENT,
        )

    def refuse_body(self, message: str) -> Refused:
        """The refusal of a body that is not what it claims to be."""
        return self._refused(
            "bad_body", message, http_status=400, grpc_code=answers.INVALID_ARGUMENT
        )

    def refuse_kind(self, reason: str, message: str, *, http_status: int) -> Refused:
        """The refusal of a request that has no place here (path, method, media type)."""
        return self._refused(
            reason, message, http_status=http_status, grpc_code=answers.UNIMPLEMENTED
        )

    def accept(self, signal: str, *, encoding: str, origin: str, body: bytes) -> Accepted:
        """Decode ``body`` and return once its bytes are synced to disk; raises :class:`Refused`."""
        request = Request(signal, encoding, origin, time.time_ns(), body)
        try:
            self._journal.admit(len(body))
            entry = decode(
                request,
                oldest_back_ns=self._config.oldest_back_ns,
                keep_text=self._config.keep_text,
            )
            if entry.rows or entry.quarantined is not None:
                self._journal.write(to_record(request), entry)
        except SourceError as error:
            raise self.refuse_body(str(error)) from error
        except Overloaded as error:
            raise self._overloaded(error.reason, str(error)) from error
        except Exception as error:
            # A fault of ours: the sender must hear of it, and so must the operator.
            _LOG.exception("a %s request of %d bytes could not be taken", signal, len(body))
            raise self._refused(
                "internal",
                f"the receiver failed: {type(error).__name__}; its log says more",
                http_status=500,
                grpc_code=answers.INTERNAL,
            ) from error
        rejected = entry.rejected
        count = sum(rejected.values())
        self._stats.accepted(
            signal,
            origin=origin,
            rows=entry.rows,
            rejected=rejected,
            services=entry.services(),
            now_unix_ns=request.received_unix_ns,
        )
        return Accepted(
            rejected=count,
            message=answers.rejection_text(
                signal,
                total=entry.rows + count,
                rejected=rejected,
                detail=entry.first_rejection[:_MAX_MESSAGE_CHARS],
            ),
        )

    def _take(self, size_bytes: int) -> None:
        with self._in_flight_lock:
            if self._in_flight_bytes + size_bytes <= self._config.max_in_flight_bytes:
                self._in_flight_bytes += size_bytes
                return
        raise self._overloaded(
            "in_flight",
            f"more than {self._config.max_in_flight_bytes} bytes are being received at once",
        )

    def _give(self, size_bytes: int) -> None:
        with self._in_flight_lock:
            self._in_flight_bytes -= size_bytes

    def _overloaded(self, reason: str, message: str) -> Refused:
        return self._refused(
            f"overload_{reason}",
            f"the receiver is overloaded: {message}",
            http_status=429,
            grpc_code=answers.RESOURCE_EXHAUSTED,
            retry_after_s=self._config.retry_after_s,
        )

    def _refused(
        self,
        reason: str,
        message: str,
        *,
        http_status: int,
        grpc_code: int,
        retry_after_s: int | None = None,
    ) -> Refused:
        self._stats.refused(reason)
        return Refused(
            reason,
            message,
            http_status=http_status,
            grpc_code=grpc_code,
            retry_after_s=retry_after_s,
        )


class InFlight:
    """Bytes of one request that count against ``max_in_flight_bytes``."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.taken_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Account for ``size_bytes`` more; raises :class:`Refused` if that is too much."""
        self._intake._take(size_bytes)
        self.taken_bytes += size_bytes
