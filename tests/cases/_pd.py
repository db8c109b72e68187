"""Calls through a prefill/decode proxy, as vLLM with a pull connector shows them.

Owns one shape of trace: the application's span, the proxy's server span, the proxy's two client
spans and the two engines' ``llm_request`` spans, both with the caller's request id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.cases._world import (
    Call,
    Row,
    Span,
    World,
    client_span,
    engine_span,
    phase_span,
    prefill_ms,
    span,
    trace_id,
)


@dataclass
class Handover:
    """One call and what lies between its two engines (ms).

    ``wait`` is the decode server's queue time without ``wire``, the part in which bytes moved;
    ``recompute`` its one-step prefill; ``between`` the proxy's way from one engine to the other.
    """

    call: Call
    p_frontend: float
    p_queue: float
    between: float
    wait: float
    wire: float
    recompute: float
    kv_bytes: int
    more: Row = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.call.id

    @property
    def p_recv(self) -> float:
        return self.call.send + self.call.network + 1.0

    @property
    def p_first(self) -> float:
        return self.p_recv + self.p_frontend + self.p_queue + self.call.prefill

    @property
    def d_recv(self) -> float:
        return self.p_first + 1.0 + self.between

    @property
    def d_queued(self) -> float:
        return self.d_recv + self.call.frontend

    @property
    def d_scheduled(self) -> float:
        return self.d_queued + self.wait + self.wire

    @property
    def d_first(self) -> float:
        return self.d_scheduled + self.recompute

    @property
    def d_ttft(self) -> float:
        """What the decode server alone would call its TTFT."""
        return self.d_first - self.d_recv

    @property
    def p_ttft(self) -> float:
        return self.p_first - self.p_recv

    @property
    def last(self) -> float:
        return self.d_first + self.call.decode

    @property
    def ttft(self) -> float:
        return self.d_first + self.call.back - self.call.at

    @property
    def handover(self) -> float:
        """From the last prefilled token to the first one decoded."""
        return self.d_first - self.p_first


def handovers(
    world: World,
    calls: list[Call],
    *,
    wait: float = 20.0,
    gb_per_s: float = 10.0,
    recompute: float = 12.0,
    bytes_per_token: int = 131_072,
    spread: float = 0.15,
) -> list[Handover]:
    """Put a hand-off on clean calls; ``wait`` and ``recompute`` vary by ``spread``."""
    out = []
    for c in calls:
        draw = world.rng.lognormvariate
        size = c.input * bytes_per_token
        out.append(
            Handover(
                call=c,
                p_frontend=3.0 + world.rng.expovariate(0.7),
                p_queue=0.05 + world.rng.expovariate(1.5),
                between=5.0 + world.rng.expovariate(0.3),
                wait=wait * draw(0, spread),
                wire=size / gb_per_s / 1e6 * draw(0, 0.08),
                recompute=recompute * draw(0, spread),
                kv_bytes=size,
            )
        )
    return out


def pd_spans(
    h: Handover, *, wire_span: bool = False, decode_side: bool = True, gave_up: float | None = None
) -> list[Span]:
    """The trace of one call. ``gave_up``: the client ended the call then, without an answer."""
    c = h.call
    shown = Call(**(vars(c) | {"prefill": 0.0, "frontend": 0.0, "queue": 0.0}))
    # the client's first token is the decode server's
    shown.network = h.d_first - c.send
    end = h.last + c.back if gave_up is None else gave_up
    root = client_span(shown, end=end)
    failed = "timeout" if gave_up is not None else None
    proxy = _proxy(
        c, "POST /v1/chat/completions", 2, c.send + c.network, end - c.back / 2, root.id, failed
    )
    to_p = _proxy(c, "prefill", 3, h.p_recv - 0.5, h.p_first + 1.0, proxy.id)
    to_d = _proxy(c, "decode", 3, h.d_recv - 0.5, end - c.back / 2 - 0.1, proxy.id, failed)
    p = Call(
        id=c.id,
        at=h.p_recv,
        input=c.input,
        output=1,
        worker=c.more.get("prefill_worker", "prefill-0"),
        network=0.0,
        frontend=h.p_frontend,
        queue=h.p_queue,
        prefill=c.prefill,
        version=c.version,
    )
    d = Call(
        id=c.id,
        at=h.d_recv,
        input=c.input,
        output=c.output,
        worker=c.more.get("decode_worker", "decode-0"),
        network=0.0,
        frontend=c.frontend,
        queue=h.wait + h.wire,
        prefill=h.recompute,
        gaps=c.gaps,
        version=c.version,
    )
    trace: Any = trace_id(c)
    spans = [
        root,
        proxy,
        to_p,
        engine_span(p, parent=to_p.id, trace=trace, service="vllm-prefill"),
        to_d,
    ]
    if decode_side:
        spans.append(engine_span(d, parent=to_d.id, trace=trace, service="vllm-decode"))
    if wire_span:
        spans.append(
            phase_span(
                d,
                "kv_transfer",
                h.d_scheduled - h.wire,
                h.d_scheduled,
                parent=to_d.id,
                tracekit__kv_bytes=h.kv_bytes,
            )
        )
    return spans


def _proxy(
    c: Call,
    name: str,
    kind: int,
    start: float,
    end: float,
    parent: str,
    error: str | None = None,
) -> Span:
    attributes: Row = {"http.response.status_code": 504 if error else 200}
    if name.startswith("POST"):
        attributes = {"http.route": "/v1/chat/completions"} | attributes
    return span(
        name,
        key=f"proxy {name} {c.id}",
        trace=trace_id(c),
        start=start,
        end=end,
        kind=kind,
        parent=parent,
        resource={"service.name": "pd-proxy", "service.instance.id": "proxy-0"},
        scope="pd-proxy",
        error=error,
        attributes=attributes,
    )


def double_prefill(h: Handover) -> None:
    """No KV came over: the decode server waits for nothing and computes the whole prompt again."""
    h.wait, h.wire, h.kv_bytes = 0.4, 0.0, 0
    h.recompute = prefill_ms(h.call.input) * 1.02
