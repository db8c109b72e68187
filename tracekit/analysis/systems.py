"""The serving systems tracekit reads: what each phase is known by there, and how to turn it on.

One table for doctor, missing evidence, the README's support table and docs. Owns facts about
systems in words; computes nothing and knows no SQL. A phase is ``measured`` (stamped), ``reported``
(a duration that is placed), ``inferred`` (a model or a bound), ``merged`` (told with a neighbour
only), ``unknown`` or ``none`` (it cannot occur there).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

#: How well a phase can be known, best first.
KNOWN: Final = ("measured", "reported", "inferred", "merged", "unknown", "none")

#: Phases that the support table shows.
SHOWN_PHASES: Final = ("route", "queue", "prefill", "kv_transfer", "decode")


@dataclass(frozen=True)
class System:
    """One system.

    ``sources`` are the files of ``sql/sources`` that read it, ``engines`` the values of
    ``requests.engine``. ``phases`` holds per phase (how well, from what). ``turn_on`` holds per
    kind of evidence the flag or variable that sends it: ``spans``, ``split`` (queue apart from
    prefill), ``transfer`` (when), ``bytes`` (how much), ``wire`` (both), ``load``, ``cached``,
    ``preempted``, ``blocks`` (of the KV cache, how large), ``trace`` (that callers and servers
    share a trace or an id). ``knobs`` are its settings: ``chunk`` (prompt tokens a step),
    ``running`` (requests at once), ``kv_room``.
    """

    name: str
    label: str
    sources: tuple[str, ...]
    engines: tuple[str, ...]
    phases: dict[str, tuple[str, str]]
    turn_on: dict[str, str] = field(default_factory=dict)
    doc: str = ""
    knobs: dict[str, str] = field(default_factory=dict)


SYSTEMS: Final[tuple[System, ...]] = (
    System(
        "vllm",
        "vLLM",
        ("vllm", "vllm_lifecycle"),
        ("vllm",),
        {
            "route": ("unknown", "-"),
            "queue": ("reported", "time_in_queue"),
            "prefill": ("reported", "time_in_model_prefill"),
            "kv_transfer": ("inferred", "the decode server's time_in_queue under P/D"),
            "decode": ("reported", "time_in_model_decode, e2e"),
        },
        {
            "spans": "start vLLM with --otlp-traces-endpoint grpc://HOST:4317",
            "split": "vLLM: 0.10 or newer with the V1 engine reports both",
            "transfer": "turn on the spans of prefill and decode servers",
            "bytes": "look at vllm:nixl_bytes_transferred and vllm:nixl_xfer_time_seconds in "
            "the decode server's /metrics for this window",
            "load": "look at vllm:num_requests_waiting_by_reason and vllm:kv_cache_usage_perc in "
            "the engine's /metrics for this window",
            "cached": "vLLM: start with --enable-prompt-tokens-details and keep "
            "usage.prompt_tokens_details in the client's span or log",
            "wire": "record bytes and wire time of the transfer (vLLM: "
            "vllm:nixl_xfer_time_seconds on the decode server)",
            "preempted": "look at vllm:num_preemptions_total in the engine's /metrics for this "
            "window",
            "blocks": "look at block_size in its vllm:cache_config_info",
            "trace": "let the caller send its traceparent header",
        },
        "docs/sources/vllm.md",
        {
            "chunk": "--max-num-batched-tokens",
            "running": "--max-num-seqs",
            "kv_room": "--gpu-memory-utilization, a smaller --max-model-len, KV in 8 bits",
        },
    ),
    System(
        "sglang",
        "SGLang",
        ("sglang", "sglang_log", "request_log"),
        ("sglang",),
        {
            "route": ("unknown", "-"),
            "queue": ("measured", "api_server_dispatch to prefill_forward; decode_waiting"),
            "prefill": ("measured", "prefill_forward"),
            "kv_transfer": (
                "measured",
                "mooncake_worker_send, else prefill_forward's end to decode_transferred's",
            ),
            "decode": ("measured", "decode_forward"),
        },
        {
            "spans": "start SGLang with --enable-trace --otlp-traces-endpoint HOST:4317 on every "
            "server",
            "split": "SGLang: set SGLANG_TRACE_LEVEL=1 or more (3 adds retractions)",
            "transfer": "SGLang: --trace-modules request,mooncake on the prefill server tells when "
            "bytes moved",
            "bytes": "look at sglang:kv_transfer_total_mb in the prefill server's /metrics for "
            "this window",
            "load": "look at sglang:num_queue_reqs, sglang:token_usage and "
            "sglang:num_decode_prealloc_queue_reqs in /metrics for this window",
            "cached": "SGLang's root spans carry gen_ai.usage.cached_tokens; for clients start "
            "with --enable-cache-report",
            "wire": "trace the transfer engine, too (SGLang: --trace-modules request,mooncake on "
            "the prefill server)",
            "preempted": "look at sglang:num_retracted_requests_total in the engine's /metrics for "
            "this window",
            "trace": "send one traceparent to both servers, or the same rid; P/D servers meet by "
            "bootstrap_room",
        },
        "docs/sources/sglang.md",
        {
            "chunk": "--chunked-prefill-size",
            "running": "--max-running-requests",
            "kv_room": "--mem-fraction-static",
        },
    ),
    System(
        "sglang_router",
        "sglang-router (SMG)",
        ("sglang_router",),
        (),
        {
            "route": ("measured", "http_request until the workers' own spans"),
            "queue": ("none", "-"),
            "prefill": ("unknown", "-"),
            "kv_transfer": ("unknown", "-"),
            "decode": ("unknown", "-"),
        },
        {
            "spans": "start the router with --enable-trace --otlp-traces-endpoint HOST:4317",
            "trace": "the router starts a trace of its own: clients must send x-request-id",
        },
        "docs/sources/sglang.md",
    ),
    System(
        "dynamo",
        "NVIDIA Dynamo",
        ("dynamo", "dynamo_trace", "request_log"),
        ("dynamo",),
        {
            "route": ("measured", "http-request until handle_payload"),
            "queue": ("measured", "kv_router.schedule (the router's queue only)"),
            "prefill": ("merged", "queue_or_prefill, unless the engine's spans lie below"),
            "kv_transfer": ("inferred", "ttft_ms less the prefill worker's (request trace)"),
            "decode": ("reported", "ttft_ms to the end of http-request"),
        },
        {
            "spans": "set OTEL_EXPORT_ENABLED=1, DYN_LOGGING_JSONL=true and "
            "OTEL_EXPORTER_OTLP_ENDPOINT=http://HOST:4317 for frontend and workers",
            "split": "turn on the tracing of the workers' engine (vLLM: --otlp-traces-endpoint, "
            "SGLang: --enable-trace): its spans lie below handle_payload",
            "bytes": "look at the workers' own metrics (vllm:nixl_bytes_transferred, "
            "trtllm_kv_transfer_bytes) for this window",
            "load": "look at dynamo_frontend_router_queue_pending_requests and the workers' own "
            "metrics for this window",
            "transfer": "set DYN_REQUEST_TRACE=1 and import its JSON lines, or ask for nvext "
            "timing: without the prefill worker's own time the transfer is merged with queue and "
            "prefill",
            "cached": "the request trace (DYN_REQUEST_TRACE=1) tells cached_tokens",
            "trace": "set OTEL_TRACES_SAMPLER the same everywhere, and let clients send "
            "traceparent or x-request-id",
        },
        "docs/sources/dynamo.md",
    ),
    System(
        "llm_d",
        "llm-d",
        ("llm_d",),
        (),
        {
            "route": ("measured", "gateway.request, llm_d.pd_proxy.request"),
            "queue": ("measured", "gateway.request_orchestration, and the engine's own"),
            "prefill": ("merged", "llm_d.pd_proxy.prefill less the engine's queue"),
            "kv_transfer": ("inferred", "the decode engine's own spans"),
            "decode": ("unknown", "the engine's own spans"),
        },
        {
            "spans": "EPP: OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_TRACES_EXPORTER=otlp; sidecar: the "
            "same; engines: their own flags",
            "split": "turn on the engines' own tracing beside the sidecar's",
            "transfer": "the decode engine's spans tell it; coordinator_overhead_ms is proxy work",
            "trace": "OTEL_TRACES_SAMPLER=parentbased_traceidratio OTEL_TRACES_SAMPLER_ARG=1.0 for "
            "EPP and sidecar (both keep a tenth by default), and sample at the client",
        },
        "docs/sources/llm-d.md",
    ),
    System(
        "tensorrt_llm",
        "TensorRT-LLM",
        ("tensorrt_llm", "request_log"),
        ("tensorrt_llm",),
        {
            "route": ("measured", "the disaggregation server's span until its servers' own"),
            "queue": ("reported", "time_in_queue, /perf_metrics"),
            "prefill": ("reported", "time_to_first_token less the queue"),
            "kv_transfer": ("reported", "kv_cache_transfer_time or its events, in the queue"),
            "decode": ("reported", "e2e less time_to_first_token"),
        },
        {
            "spans": "start trtllm-serve with --otlp_traces_endpoint http://HOST:4317",
            "split": "return_perf_metrics: true tells it per request (GET /perf_metrics)",
            "transfer": "trace context and generation servers and the disaggregation server",
            "bytes": "look at trtllm_kv_transfer_bytes for this window",
            "load": "look at trtllm_num_requests_waiting and trtllm_kv_cache_utilization",
            "trace": "the disaggregation server passes traceparent on; clients must send one",
        },
        "docs/sources/tensorrt-llm.md",
    ),
    System(
        "triton",
        "Triton",
        ("triton", "triton_trace"),
        ("triton",),
        {
            "route": ("none", "-"),
            "queue": ("measured", "QUEUE_START to COMPUTE_START (the batcher's only)"),
            "prefill": ("merged", "COMPUTE_START to the first response, the engine's queue inside"),
            "kv_transfer": ("unknown", "-"),
            "decode": ("measured", "first to last response (streams over HTTP)"),
        },
        {
            "spans": "--trace-config mode=opentelemetry and level=TIMESTAMPS, or import its trace "
            "file (--trace-config triton,file=F)",
            "split": "trace the engine behind it: Triton's queue is its batcher's",
        },
        "docs/sources/triton.md",
    ),
    System(
        "tgi",
        "Hugging Face TGI",
        ("tgi", "request_log"),
        ("tgi",),
        {
            "route": ("unknown", "-"),
            "queue": ("reported", "queue_time"),
            "prefill": ("measured", "until the first send_generation"),
            "kv_transfer": ("none", "-"),
            "decode": ("reported", "the rest of inference_time"),
        },
        {
            "spans": "start TGI with --otlp-endpoint http://HOST:4317",
            "split": "the spans below the handler (send_generation) tell the first token",
            "trace": "let the caller send its traceparent header",
        },
        "docs/sources/tgi.md",
    ),
    System(
        "llama_cpp",
        "llama.cpp server",
        ("llama_cpp_log", "request_log"),
        ("llama.cpp",),
        {
            "route": ("none", "-"),
            "queue": ("measured", "headers less send (streams), or the log at level 5"),
            "prefill": ("reported", "timings.prompt_ms, or the log"),
            "kv_transfer": ("none", "-"),
            "decode": ("reported", "timings.predicted_ms, or the log"),
        },
        {
            "spans": "llama.cpp sends no spans: import its log, or responses with `timings`",
            "split": "record when the headers of a streamed answer came, or log with -lv 5",
            "load": "look at llamacpp:requests_processing and llamacpp:requests_deferred in "
            "/metrics (--metrics) for this window (the latter leaves out who came during the "
            "running batch)",
            "cached": "timings.cache_n and the log tell it",
            "trace": "llama.cpp ignores traceparent and x-request-id: records join by timings",
        },
        "docs/sources/llama-cpp.md",
        {"chunk": "--batch-size", "running": "--parallel", "kv_room": "--ctx-size"},
    ),
    System(
        "ollama",
        "Ollama",
        ("request_log",),
        ("ollama",),
        {
            "route": ("none", "-"),
            "queue": ("inferred", "total - prompt_eval - eval, load in it (an upper bound)"),
            "prefill": ("reported", "prompt_eval_duration"),
            "kv_transfer": ("none", "-"),
            "decode": ("reported", "eval_duration"),
        },
        {"spans": "Ollama sends no spans: import the final objects of its native API"},
        "docs/sources/ollama.md",
    ),
    System(
        "lmcache",
        "LMCache",
        ("lmcache",),
        (),
        {
            "route": ("none", "-"),
            "queue": ("none", "-"),
            "prefill": ("none", "-"),
            "kv_transfer": ("measured", "mp.retrieve, before the engine schedules"),
            "decode": ("none", "-"),
        },
        {
            "spans": "point the LMCache server's OTLP exporter at the receiver",
            "trace": "its session must be the engine's request id",
        },
        "docs/sources/lmcache.md",
    ),
)

#: Stands as an example where the engine is not known.
EXAMPLE: Final = "vllm"

BY_ENGINE: Final[dict[str, System]] = {e: s for s in SYSTEMS for e in s.engines}


def turn_on(engine: str | None, kind: str, otherwise: str | None = None) -> str | None:
    """How to make ``engine`` send evidence of ``kind``; ``otherwise`` where that is not known."""
    system = BY_ENGINE.get(engine or "")
    return otherwise if system is None else system.turn_on.get(kind, otherwise)


def knob(engine: str | None, kind: str) -> str:
    """The engine's setting in brackets, after a blank; nothing where that is not known.

    Of an engine that is not known, another's as an example: `` (vLLM --max-num-seqs)``.
    """
    system = BY_ENGINE.get(engine or EXAMPLE)
    setting = None if system is None else system.knobs.get(kind)
    return "" if system is None or setting is None else f" ({system.label} {setting})"


def support_table() -> str:
    """The README's table, as Markdown: system by phase, how well each is known and by what."""
    head = ["system", *SHOWN_PHASES]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for system in SYSTEMS:
        cells = [f"[{system.label}]({system.doc})" if system.doc else system.label]
        for phase in SHOWN_PHASES:
            known, field_ = system.phases[phase]
            cells.append(known if field_ == "-" else f"**{known}**: {field_}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
