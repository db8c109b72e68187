"""OTLP/gRPC: the three Export methods, raw bytes in and out.

Owns the gRPC server and how a refusal looks there. Bodies are decoded by the intake, in the
server's own thread pool; gRPC itself undoes compression and bounds the size while doing so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn

import grpc

from tracekit.errors import UsageError
from tracekit_collectors import answers
from tracekit_collectors.config import CollectConfig
from tracekit_collectors.intake import Intake, Refused
from tracekit_collectors.sockets import check_free

_LOG = logging.getLogger("tracekit.collect")

_SERVICES: Final = {
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
}
#: More threads do not decode faster, but each may wait for the disk's sync.
_WORKERS: Final = 16
#: Calls that wait for a worker hold little more than their headers; past this gRPC refuses.
_MAX_CALLS: Final = 1024
#: How long calls that were cut off may take to notice.
_CUT_OFF_S: Final = 1.0
_STATUS: Final = {code.value[0]: code for code in grpc.StatusCode}


class GrpcServer:
    """The gRPC side of one receiver. ``port`` is set once it is bound."""

    def __init__(self, config: CollectConfig, intake: Intake) -> None:
        """Bind the port (UsageError if that fails); serve after :meth:`start`."""
        self._intake = intake
        self._stopped: threading.Event | None = None
        self._cut_at_s = 0.0
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="otlp-grpc")
        self._server = grpc.server(
            self._pool,
            options=[
                # Without this a second receiver on the same port would silently take half.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", config.max_body_bytes),
                ("grpc.max_concurrent_streams", 128),
            ],
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        self._server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(
                    service,
                    {"Export": grpc.unary_unary_rpc_method_handler(self._exporter(signal))},
                )
                for signal, service in _SERVICES.items()
            )
        )
        self.host = config.host
        self.port = self._bind(config)

    def _bind(self, config: CollectConfig) -> int:
        check_free(config.host, config.grpc_port, option="--grpc-port")
        host = f"[{config.host.strip('[]')}]" if ":" in config.host else config.host
        address = f"{host}:{config.grpc_port}"
        try:
            if config.tls_cert is None or config.tls_key is None:
                return int(self._server.add_insecure_port(address))
            try:
                pair = (config.tls_key.read_bytes(), config.tls_cert.read_bytes())
            except OSError as error:
                raise UsageError(f"a TLS file cannot be read: {error}") from error
            return int(self._server.add_secure_port(address, grpc.ssl_server_credentials([pair])))
        except RuntimeError as error:
            raise UsageError(
                f"OTLP/gRPC cannot listen on {address} ({error}); choose another --grpc-port"
            ) from error

    def start(self) -> None:
        self._server.start()

    def ask_to_stop(self, *, grace_s: float) -> None:
        """Take no more calls from now on; those in flight are cut off after ``grace_s``."""
        if self._stopped is None:
            self._cut_at_s = time.monotonic() + grace_s
            self._stopped = self._server.stop(grace_s)

    def stop(self, *, grace_s: float) -> None:
        """Take no more calls, let those in flight finish (at most ``grace_s`` from the asking)."""
        self.ask_to_stop(grace_s=grace_s)
        assert self._stopped is not None
        if not self._stopped.wait(max(0.0, self._cut_at_s - time.monotonic())):
            _LOG.warning(
                "OTLP/gRPC: a call or connection did not end within %g s and is cut off; what was "
                "not acknowledged its sender sends again",
                grace_s,
            )
            self._stopped.wait(_CUT_OFF_S)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _exporter(self, signal: str) -> Callable[[bytes, Any], bytes]:
        def export(body: bytes, context: Any) -> bytes:
            try:
                self._intake.check_token(_metadata(context, "authorization"))
                with self._intake.in_flight() as account:
                    account.take(len(body))
                    accepted = self._intake.accept(
                        signal, encoding="protobuf", origin="otlp_grpc", body=body
                    )
            except Refused as refused:
                _abort(context, refused)
            return answers.success_protobuf(
                signal, rejected=accepted.rejected, message=accepted.message
            )

        return export


def _metadata(context: Any, key: str) -> str | bytes | None:
    for name, value in context.invocation_metadata():
        if name == key:
            found: str | bytes = value
            return found
    return None


def _abort(context: Any, refused: Refused) -> NoReturn:
    """End the call with the refusal, its retry delay in the status details (RetryInfo)."""
    if refused.retry_after_s is not None:
        details = answers.error_protobuf(
            refused.grpc_code, refused.message, retry_after_s=refused.retry_after_s
        )
        context.set_trailing_metadata((("grpc-status-details-bin", details),))
    context.abort(_STATUS[refused.grpc_code], refused.message)
    raise AssertionError("context.abort returns never")
