"""Writes what engines, proxies and clients write of a replay: OTLP spans and a request log.

Owns the formats: vLLM's flat `llm_request` spans (seconds as attributes, nothing for aborted
requests, no role, no cached tokens), a P/D proxy's HTTP spans around the two, GenAI client spans
with packed chunk times or a client's log instead. Sees the replay and the deployment, never the
fault: ids are hashes, names are neutral, and requests that a fault added look like all others.
Losses (a span exporter that overflowed) and clocks that disagree are applied here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from attribution.cluster import HOP_S, OUTPUT_S, Call, Replay
from attribution.engine import Leg
from tracekit.chunks import pack

#: When every run starts.
T0_UNIX_NS: Final = 1_795_990_000_000_000_000
MODEL: Final = "llama-8b"
PREFIX_BLOCK_TOKENS: Final = 128
_SPANS_PER_MESSAGE: Final = 400
_SPAN_TAIL_S: Final = 0.3e-3

Json = dict[str, Any]


def host(replay: Replay, engine: int) -> str:
    """Name of the machine that runs ``engine``; one GPU each."""
    return f"{replay.system.host_prefix}-{engine}"


def service(replay: Replay, engine: int) -> tuple[str, str]:
    """service.name and service.instance.id of ``engine``, as deployments name them."""
    system = replay.system
    if not system.prefill_engines:
        return "vllm", f"vllm-{engine}"
    if engine < system.prefill_engines:
        return "vllm-prefill", f"prefill-{engine}"
    return "vllm-decode", f"decode-{engine - system.prefill_engines}"


def write_telemetry(replay: Replay, folder: Path) -> list[Path]:
    """Write the files of one run into ``folder``; returns them, to be imported together."""
    writer = _Writer(replay)
    for call in replay.calls:
        writer.add(call)
    spans = folder / "spans.jsonl"
    with spans.open("wb") as out:
        for message in writer.messages():
            out.write(orjson.dumps(message) + b"\n")
    log = folder / "requests.jsonl"
    with log.open("wb") as out:
        for row in writer.rows:
            out.write(orjson.dumps(row) + b"\n")
    return [spans, log]


def request_id(replay: Replay, index: int) -> str:
    """The id under which client and engine know request ``index``."""
    return _hex(replay.system.seed, replay.system.topology, "r", index, digits=16)


def _ns(at_s: float, skew_s: float = 0.0) -> int:
    return T0_UNIX_NS + round((at_s + skew_s) * 1e9)


def _hex(*parts: object, digits: int) -> str:
    text = "|".join(map(str, parts))
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:digits]


def _attribute(key: str, value: object) -> Json:
    if isinstance(value, bool):
        return {"key": key, "value": {"boolValue": value}}
    if isinstance(value, int):
        return {"key": key, "value": {"intValue": str(value)}}
    if isinstance(value, float):
        return {"key": key, "value": {"doubleValue": value}}
    if isinstance(value, list):
        return {
            "key": key,
            "value": {"arrayValue": {"values": [{"stringValue": v} for v in value]}},
        }
    return {"key": key, "value": {"stringValue": value}}


def _attributes(values: Json) -> list[Json]:
    return [_attribute(k, v) for k, v in values.items()]


class _Writer:
    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.rows: list[Json] = []
        self._spans: dict[tuple[str, str, str, str], list[tuple[int, Json]]] = {}
        system = replay.system
        self._salt = (system.seed, system.topology)
        self._engines = [
            (*service(replay, i), host(replay, i), system.skew_s[i]) for i in range(system.engines)
        ]

    def add(self, call: Call) -> None:
        """All that is written of one request."""
        i = call.request.index
        if call.send_s < 0:
            return
        trace = _hex(*self._salt, "t", i, digits=32)
        rid = request_id(self.replay, i)
        client_span = _hex(*self._salt, "c", i, digits=16)
        lost = bool(self.replay.luck.lost[i])
        if self.replay.system.prefill_engines and call.arrive_s >= 0:
            self._proxy(call, trace, client_span)
        exported = self.replay.system.has_engine_spans
        # which of two spans an overflowing exporter dropped is chance too
        lost_leg = None if not lost else call.decode if i % 2 and call.decode else call.leg
        for leg, engine in ((call.leg, call.engine), (call.decode, call.decode_engine)):
            # an engine writes its span when the last token is out: never for what was cut
            if leg is None or leg.state != "done" or leg is lost_leg or not exported:
                continue
            prefills = engine < self.replay.system.prefill_engines
            if prefills or call.state == "done":
                above = client_span
                if self.replay.system.prefill_engines:
                    above = _hex(trace, "proxy-p" if prefills else "proxy-d", digits=16)
                self._engine_span(call, leg, engine, trace, above, rid)
        if self.replay.system.client_spans:
            self._client_span(call, trace, client_span, rid)
        self._log_row(call, trace, rid, whole=not self.replay.system.client_spans)

    def messages(self) -> Iterator[Json]:
        """Export requests, each of one process, in the order in which they were sent."""
        batches = []
        for (name, instance, host_name, scope), spans in self._spans.items():
            spans.sort(key=lambda item: item[0])
            for k in range(0, len(spans), _SPANS_PER_MESSAGE):
                part = spans[k : k + _SPANS_PER_MESSAGE]
                resource = {
                    "telemetry.sdk.language": "python",
                    "telemetry.sdk.name": "opentelemetry",
                    "service.name": name,
                    "service.instance.id": instance,
                    "host.name": host_name,
                }
                if scope.startswith("vllm"):
                    resource["vllm.instrumenting_module_name"] = "vllm.llm_engine"
                    resource["vllm.process_id"] = "1122"
                    resource["service.version"] = "0.32.0"
                block: Json = {"scope": {"name": scope}, "spans": [span for _, span in part]}
                message: Json = {
                    "resource": {"attributes": _attributes(resource)},
                    "scopeSpans": [block],
                }
                batches.append((part[-1][0], {"resourceSpans": [message]}))
        batches.sort(key=lambda item: item[0])
        for _, message in batches:
            yield message

    def _span(
        self,
        owner: tuple[str, str, str, str],
        *,
        trace: str,
        span: str,
        parent: str,
        name: str,
        kind: int,
        start_ns: int,
        end_ns: int,
        attributes: Json,
        error: str | None = None,
        events: list[Json] | None = None,
    ) -> None:
        body: Json = {
            "traceId": trace,
            "spanId": span,
            "name": name,
            "kind": kind,
            "startTimeUnixNano": str(start_ns),
            "endTimeUnixNano": str(end_ns),
            "attributes": _attributes(attributes),
            "status": {"code": 2, "message": error} if error else {},
            "flags": 768 if parent else 256,
        }
        if parent:
            body["parentSpanId"] = parent
        if events:
            body["events"] = events
        self._spans.setdefault(owner, []).append((end_ns, body))

    def _engine_span(
        self, call: Call, leg: Leg, engine: int, trace: str, parent: str, rid: str
    ) -> None:
        name, instance, host_name, skew = self._engines[engine]
        eng = self.replay.engines[engine]
        made = float(eng.step_ends[leg.first_step])
        last = float(eng.step_ends[leg.last_step])
        prefills = engine < self.replay.system.prefill_engines
        if not prefills:
            out_first, out_last = float(call.tokens[0]), float(call.tokens[-1])
        else:
            back = call.proxy_back_s
            out_first = out_last = back - HOP_S if back >= 0 else made + OUTPUT_S
        start = leg.recv_s
        self._span(
            (name, instance, host_name, "vllm.tracing.otel"),
            trace=trace,
            span=_hex(trace, instance, digits=16),
            parent=parent,
            name="llm_request",
            kind=2,
            start_ns=_ns(start, skew),
            end_ns=_ns(out_last + _SPAN_TAIL_S, skew),
            attributes={
                "gen_ai.latency.time_to_first_token": out_first - start,
                "gen_ai.latency.e2e": out_last - start,
                "gen_ai.latency.time_in_queue": leg.scheduled_s - leg.queued_s,
                "gen_ai.usage.prompt_tokens": leg.prompt,
                "gen_ai.usage.completion_tokens": leg.output,
                "gen_ai.latency.time_in_model_prefill": made - leg.scheduled_s,
                "gen_ai.latency.time_in_model_decode": last - made,
                "gen_ai.latency.time_in_model_inference": last - leg.scheduled_s,
                "gen_ai.request.id": f"chatcmpl-{rid}",
                "gen_ai.request.top_p": 0.95,
                "gen_ai.request.max_tokens": 1 if prefills else 2048,
                "gen_ai.request.temperature": 0.8,
                "gen_ai.request.n": 1,
            },
        )

    def _proxy(self, call: Call, trace: str, client_span: str) -> None:
        """The P/D proxy's spans: the request it got and the two it made."""
        skew = self.replay.system.skew_s[-1]
        owner = ("pd-proxy", "proxy-0", "edge-0", "pd-proxy")
        outer = _hex(trace, "proxy", digits=16)
        gone = call.aborted_s
        end = call.done_s - float(self.replay.luck.downlink_s[call.request.index])
        if call.state != "done":
            end = gone
        route = {"http.route": "/v1/chat/completions", "http.request.method": "POST"}
        self._span(
            owner, trace=trace, span=outer, parent=client_span, name="POST /v1/chat/completions",
            kind=2, start_ns=_ns(call.arrive_s, skew), end_ns=_ns(end, skew), attributes=route,
            error="client disconnected" if call.state != "done" else None,
        )  # fmt: skip
        if call.leg is None:
            return
        sent = call.leg.recv_s - HOP_S
        back = call.proxy_back_s if call.proxy_back_s >= 0 else end
        cut = call.proxy_back_s < 0
        self._span(
            owner, trace=trace, span=_hex(trace, "proxy-p", digits=16), parent=outer,
            name="prefill", kind=3, start_ns=_ns(sent, skew), end_ns=_ns(back, skew),
            attributes={"server.port": 8100}, error="cancelled" if cut else None,
        )  # fmt: skip
        if call.decode is not None:
            sent = call.decode.recv_s - HOP_S
            events = []
            if call.state == "done":
                at = _ns(float(call.tokens[0]) + HOP_S, skew)
                events = [{"timeUnixNano": str(at), "name": "first_byte"}]
            self._span(
                owner, trace=trace, span=_hex(trace, "proxy-d", digits=16), parent=outer,
                name="decode", kind=3, start_ns=_ns(sent, skew), end_ns=_ns(max(end, sent), skew),
                attributes={"server.port": 8200}, events=events,
                error="cancelled" if call.state != "done" else None,
            )  # fmt: skip

    # -- the client ----------------------------------------------------------------------------

    def _chunks(self, call: Call) -> tuple[list[int], list[int]]:
        """[us from sending] when the client had each chunk, and the tokens in it.

        Tokens that left the server together (it stood still) come in one chunk.
        """
        at = call.tokens + (call.done_s - float(call.tokens[-1])) - call.send_s
        us, counts = np.unique(np.round(at * 1e6).astype(np.int64), return_counts=True)
        return us.tolist(), counts.tolist()

    def _cached(self, call: Call) -> int:
        return max(call.leg.cached, 0) if call.leg is not None else 0

    def _client_span(self, call: Call, trace: str, span: str, rid: str) -> None:
        request = call.request
        done = call.state == "done"
        attributes: Json = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": MODEL,
            "gen_ai.request.stream": True,
            "tracekit.intended_start_unix_ns": _ns(request.intended_s),
            "tracekit.route": request.route,
            "tracekit.request_id": rid,
        }
        if done:
            offsets, counts = self._chunks(call)
            attributes |= {
                "gen_ai.response.id": f"chatcmpl-{rid}",
                "gen_ai.response.time_to_first_chunk": offsets[0] / 1e6,
                "gen_ai.usage.input_tokens": request.input_tokens,
                "gen_ai.usage.output_tokens": request.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": self._cached(call),
                "gen_ai.response.finish_reasons": ["stop"],
                "tracekit.chunks": pack(offsets, counts),
            }
        else:
            attributes["error.type"] = "cancelled"
        self._span(
            ("app", "app-0", "app-0", "tracekit"),
            trace=trace,
            span=span,
            parent="",
            name=f"chat {MODEL}",
            kind=3,
            start_ns=_ns(call.send_s),
            end_ns=_ns(call.done_s if done else call.aborted_s),
            attributes=attributes,
            error=None if done else "cancelled",
        )

    def _log_row(self, call: Call, trace: str, rid: str, *, whole: bool) -> None:
        request = call.request
        done = call.state == "done"
        end = call.done_s if done else call.aborted_s
        row: Json = {
            "request_id": rid,
            "trace_id": trace,
            "start_unix_ns": _ns(call.send_s),
            "intended_start_unix_ns": _ns(request.intended_s),
            "end_unix_ns": _ns(end),
            "model": MODEL,
            "route": request.route,
            "input_tokens": request.input_tokens,
            "status": "ok" if done else "aborted",
            "prefix_block_tokens": PREFIX_BLOCK_TOKENS,
            "prefix_hashes": self._prefix_hashes(call),
        }
        if done:
            wait = call.send_s - request.intended_s
            offsets, counts = self._chunks(call)
            row |= {
                "output_tokens": request.output_tokens,
                "ttft_ms": round(wait * 1e3 + offsets[0] / 1e3, 3),
                "ttft_kind": "first_chunk",
                "e2e_ms": round(wait * 1e3 + offsets[-1] / 1e3, 3),
                "finish_reason": "stop",
                "streaming": 1,
            }
            if whole:
                row |= {"cached_tokens": self._cached(call), "chunk_times": pack(offsets, counts)}
        self.rows.append(row)

    def _prefix_hashes(self, call: Call) -> list[str]:
        """Chained block hashes of the prompt: equal as far as the shared prefix goes."""
        r = call.request
        shared = r.prefix_tokens // PREFIX_BLOCK_TOKENS if r.group >= 0 else 0
        total = r.input_tokens // PREFIX_BLOCK_TOKENS
        own = int(_hex(*self._salt, "h", r.index, digits=12), 16)
        group = int(_hex(*self._salt, "g", r.group, digits=12), 16)
        return [
            f"{((group if k < shared else own) * (k + 1) * 0x9E3779B1) & 0xFFFFFFFFFFFF:012x}"
            for k in range(total)
        ]
