"""``configure``, ``instrument`` and ``uninstrument``: the two lines in an application.

Owns the process's one agent, and where its spans go.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from tracekit.errors import UsageError
from tracekit.sdk.agent import Agent, Settings
from tracekit.sdk.clock import Clock, SystemClock
from tracekit.sdk.faults import FAULTS

#: Where `tracekit collect` listens, unless told otherwise.
_ENDPOINT: Final = "http://127.0.0.1:4318"

#: How long the last metrics may keep the process from ending where nobody takes them.
_METRICS_TIMEOUT_S: Final = 2

#: Spans for a local store: how many wait at most, are written at once, and for how long they wait.
_STORE_QUEUE: Final = 16_384
_STORE_BATCH: Final = 4_096
_STORE_DELAY_MS: Final = 1_000

_lock: Final = threading.RLock()
_agent: Agent | None = None
_provider: TracerProvider | None = None
_meter_provider: SdkMeterProvider | None = None


def configure(
    service_name: str | None = None,
    *,
    endpoint: str | None = None,
    headers: Mapping[str, str] | None = None,
    store: str | os.PathLike[str] | None = None,
    tracer_provider: Any = None,
    meter_provider: MeterProvider | None = None,
    exporter: SpanExporter | None = None,
    send_request_id: bool = True,
    clock: Clock | None = None,
) -> None:
    """Say where spans go. Call it once, before `instrument`; later calls replace the settings.

    Client metrics go to ``meter_provider``, else to the process's; where spans are sent by a
    provider of our own and there is none, they are sent too (unless OTEL_METRICS_EXPORTER is none).
    Without arguments the OTEL_ environment counts. A TracerProvider that the application has set
    is used as it is, and so is ``tracer_provider``: then ``service_name``, ``endpoint`` and
    ``headers`` are not looked at, and an ``exporter`` and a ``store`` are added to it.
    ``endpoint`` is the base URL of an OTLP/HTTP receiver (default: ``tracekit collect`` on this
    machine). ``store`` is the path of a local store that spans are written into, instead of being
    sent (unless an ``endpoint`` is given too); at the process's end it is settled, so that
    ``tracekit diagnose --store PATH`` finds them at once. It needs the ``analysis`` extra:
    UsageError where that is missing, or where ``store`` cannot be one. ``send_request_id`` sends
    an ``x-request-id`` with calls that have none.
    """
    global _agent, _provider
    with _lock:
        processors = [] if exporter is None else [BatchSpanProcessor(exporter)]
        if store is not None:
            processors.append(_store_processor(store))
        provider, sends = tracer_provider, False
        if provider is None:
            existing = trace.get_tracer_provider()
            if isinstance(existing, TracerProvider) and existing is not _provider:
                provider = existing
        if provider is None:
            if endpoint is not None or not processors:
                sender = _otlp(endpoint, headers)
                processors += [] if sender is None else [BatchSpanProcessor(sender)]
                sends = True
            provider = _own_provider(service_name)
            if sends and meter_provider is None:
                meter_provider = _own_meter_provider(provider.resource, endpoint, headers)
        for processor in processors:
            provider.add_span_processor(processor)
        _agent = Agent(
            tracer_provider=provider,
            meter_provider=meter_provider,
            settings=Settings(send_request_id=send_request_id),
            clock=clock,
        )


def _store_processor(store: str | os.PathLike[str]) -> BatchSpanProcessor:
    """Batches for a local store; UsageError where there can be none."""
    path = os.fspath(store)
    try:
        from tracekit.ingest.span_exporter import StoreExporter
        from tracekit.lake.store import Store
    except ModuleNotFoundError as error:
        raise UsageError(
            f"configure(store=...) needs {error.name}: pip install 'tracekit-llm[analysis]'"
        ) from None
    try:
        exporter = StoreExporter(Store.open(path, create=True))
    except OSError as error:
        raise UsageError(
            f"configure(store={path!r}): no store can be made there: {error}"
        ) from None
    # a commit costs as much as thousands of spans: few and large ones
    return BatchSpanProcessor(
        exporter,
        max_queue_size=_STORE_QUEUE,
        schedule_delay_millis=_STORE_DELAY_MS,
        max_export_batch_size=_STORE_BATCH,
    )


def _own_provider(service_name: str | None) -> TracerProvider:
    global _provider
    given = {} if service_name is None else {"service.name": service_name}
    provider = TracerProvider(resource=Resource.create(given))
    if _provider is None:
        trace.set_tracer_provider(provider)
    else:
        atexit.register(provider.shutdown)
    _provider = provider
    return provider


def _otlp(endpoint: str | None, headers: Mapping[str, str] | None) -> SpanExporter | None:
    """An OTLP/HTTP exporter; None where the environment wants no traces to leave."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "none":
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    url = _url(endpoint, "traces")
    return OTLPSpanExporter(endpoint=url, headers=dict(headers) if headers else None)


def _own_meter_provider(
    resource: Resource, endpoint: str | None, headers: Mapping[str, str] | None
) -> MeterProvider | None:
    """A provider that sends metrics to where spans go; None where another one is there, or none
    is wanted."""
    global _meter_provider
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if os.environ.get("OTEL_METRICS_EXPORTER", "otlp").strip().lower() != "otlp":
        return None
    existing = metrics.get_meter_provider()
    if isinstance(existing, SdkMeterProvider) and existing is not _meter_provider:
        return None
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    told = any(
        os.environ.get(name)
        for name in ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT")
    )
    exporter = OTLPMetricExporter(
        endpoint=_url(endpoint, "metrics"),
        headers=dict(headers) if headers else None,
        timeout=None if told else _METRICS_TIMEOUT_S,
    )
    before = _meter_provider
    _meter_provider = SdkMeterProvider([PeriodicExportingMetricReader(exporter)], resource)
    if before is None:
        metrics.set_meter_provider(_meter_provider)
    else:
        # its last export may take as long as an endpoint that does not answer
        threading.Thread(target=before.shutdown, name="tracekit-metrics-end", daemon=True).start()
    return _meter_provider


def _url(endpoint: str | None, signal: str) -> str | None:
    """Where a signal goes; None to leave it to the environment."""
    told = any(
        os.environ.get(name)
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    )
    where = endpoint if endpoint is not None else None if told else _ENDPOINT
    return None if where is None else f"{where.rstrip('/')}/v1/{signal}"


def replace_agent(new: Agent | None) -> Agent | None:
    """Put another agent (None: none yet) into the process's place; the one that was there."""
    global _agent
    with _lock:
        before, _agent = _agent, new
        return before


def agent() -> Agent:
    """The process's agent; one that follows the environment if `configure` was not called."""
    global _agent
    with _lock:
        if _agent is None:
            configure()
        assert _agent is not None
        return _agent


def clock() -> Clock:
    """The clock that calls are measured by; the machine's before there is an agent."""
    held = _agent
    return SystemClock() if held is None else held.clock


def instrument(only: Iterable[str] | None = None) -> list[str]:
    """Watch the LLM client libraries that are installed (or ``only`` these); their names.

    UsageError for a name that is none of `openai`, `anthropic`, `litellm` and `httpx` (which is
    httpx2 too): calls made with plain HTTP clients, of any API that is known.
    """
    from tracekit.sdk.instrument.registry import instrument as turn_on

    return turn_on(only, agent())


def uninstrument(only: Iterable[str] | None = None) -> None:
    """Leave the client libraries as they were."""
    from tracekit.sdk.instrument.registry import uninstrument as turn_off

    turn_off(only)


def faults() -> dict[str, int]:
    """What went wrong inside the SDK, and was swallowed: ``"place: Exception"`` → times."""
    return FAULTS.counts()
