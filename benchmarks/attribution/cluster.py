"""The cluster: clients, network, router or P/D proxy, engines and the link, on one event clock.

Owns who is where when; what happens inside an engine is `engine`'s. The same requests under no
condition and under a fault's are two calls of `simulate`; they agree to the last bit until the
fault begins.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from attribution.engine import Engine, Leg, Shift
from attribution.faults import Condition
from attribution.system import DISAGGREGATED, KV_BYTES_PER_TOKEN, System
from attribution.traffic import Luck, Request

Floats = npt.NDArray[np.float64]

#: Request index -> its engine and its decode engine; -1: the router has not chosen one.
Placement = dict[int, tuple[int, int]]

OUTPUT_S: Final = 0.4e-3  # from a step's end to the API server's stamp
HOP_S: Final = 0.3e-3  # between proxy and engines, in one data centre


class Call:
    """One request on its way through the cluster: stamps in seconds, -1 = never."""

    __slots__ = (
        "aborted_s",
        "arrive_s",
        "decode",
        "decode_engine",
        "done_s",
        "engine",
        "leg",
        "proxy_back_s",
        "request",
        "send_s",
        "state",
        "tokens",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.send_s = self.arrive_s = self.done_s = self.proxy_back_s = self.aborted_s = -1.0
        self.engine = self.decode_engine = -1
        self.leg: Leg | None = None  # on the only engine, or on the prefill engine
        self.decode: Leg | None = None  # on the decode engine
        self.state = "waiting"
        self.tokens: Floats = np.zeros(0)  # at the API server that streams


@dataclass(frozen=True)
class Replay:
    """What happened: one call a request (same order as given), and the engines afterwards."""

    system: System
    requests: Sequence[Request]
    calls: list[Call]
    engines: list[Engine]
    luck: Luck
    conditions: tuple[Condition, ...]
    end_s: float
    transfers: list[tuple[int, float, float, int]]  # decode engine, start, end, bytes

    def placement(self) -> Placement:
        """Where the router sent every request."""
        return {c.request.index: (c.engine, c.decode_engine) for c in self.calls}


def simulate(
    system: System,
    requests: Sequence[Request],
    luck: Luck,
    groups: tuple[int, ...],
    conditions: tuple[Condition, ...] = (),
    placed: Placement | None = None,
) -> Replay:
    """Run every request to its end. Requests may come in any order; luck is by request index."""
    return _Cluster(system, requests, luck, groups, conditions, placed or {}).run()


class _Cluster:
    def __init__(
        self,
        system: System,
        requests: Sequence[Request],
        luck: Luck,
        groups: tuple[int, ...],
        conditions: tuple[Condition, ...],
        placed: Placement,
    ) -> None:
        self.system = system
        self._placed = placed
        self.luck = luck
        self._up_s, self._down_s = luck.uplink_s.tolist(), luck.downlink_s.tolist()
        self._tokenise_s, self._route_s = luck.tokenise_s.tolist(), luck.route_s.tolist()
        self.conditions = conditions
        self.requests = requests
        self.calls = [Call(r) for r in requests]
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._seq = 0
        self._now = 0.0
        self._in_flight = 0
        self._held: deque[Call] = deque()
        self._turn = [0, 0]
        self._link_free = [0.0] * system.engines
        self._by_leg: dict[Leg, Call] = {}
        self.transfers: list[tuple[int, float, float, int]] = []
        self._stalls = sorted(s for c in conditions for s in c.stalls)
        self._is_pd = system.topology == DISAGGREGATED
        self._chance = (
            np.random.default_rng((system.seed, 5)).uniform(size=(len(luck.lost), 2)).tolist()
        )
        self.engines = [self._engine(i, groups) for i in range(system.engines)]

    def _engine(self, index: int, groups: tuple[int, ...]) -> Engine:
        system = self.system
        prefill = index < system.prefill_engines
        decoder = self._is_pd and not prefill
        shifts = tuple(
            Shift(
                c.start_s,
                c.end_s,
                *c.slow.get(index, (1.0, 1.0)),
                kv_share=c.decode_kv_share if decoder else c.kv_share,
            )
            for c in self.conditions
        )

        def schedule(at_s: float, version: int) -> None:
            self._at(at_s, engine.run_ended, at_s, version)

        engine = Engine(
            cost=system.cost,
            limits=system.prefill_limits if prefill else system.limits,
            rng=np.random.default_rng((system.seed, 11, index)),
            groups=groups,
            shifts=shifts,
            schedule=schedule,
            done=self._prefilled if prefill else self._answered,
            wants_load=lambda leg, at_s: self._transfer(index, leg, at_s),
            is_prefill=prefill,
        )
        return engine

    def _at(self, at_s: float, call: Callable[..., None], *args: Any) -> None:
        self._seq += 1
        heapq.heappush(self._heap, (at_s, self._seq, call, args))

    def run(self) -> Replay:
        for call in self.calls:
            self._at(call.request.intended_s, self._intend, call)
        for c in self.conditions:
            if c.flush_every_s is not None:
                for at in np.arange(c.start_s, c.end_s, c.flush_every_s):
                    self._at(float(at), self._flush)
            # whatever was held back is let go
            self._at(c.end_s, self._let_go)
            self._at(c.end_s, self._wake_all)
        heap = self._heap
        while heap:
            self._now, _, what, args = heapq.heappop(heap)
            what(*args)
        return Replay(
            self.system, self.requests, self.calls, self.engines, self.luck, self.conditions,
            self._now, self.transfers,
        )  # fmt: skip

    def _flush(self) -> None:
        for engine in self.engines:
            engine.flush_cache()

    def _wake_all(self) -> None:
        for engine in self.engines:
            engine.wake(self._now)

    def _active(self) -> list[Condition]:
        return [c for c in self.conditions if c.start_s <= self._now < c.end_s]

    def _unstalled(self, at_s: float) -> float:
        """When an API server that may be standing still gets to what came at ``at_s``."""
        for start, end in self._stalls:
            if start <= at_s < end:
                at_s = end
        return at_s

    def _unstalled_all(self, at_s: Floats) -> Floats:
        out = at_s
        for start, end in self._stalls:
            out = np.where((out >= start) & (out < end), end, out)
        return out

    # -- the client ----------------------------------------------------------------------------

    def _client_limit(self) -> int:
        limits = [c.client_limit for c in self._active() if c.client_limit is not None]
        return min(limits, default=1 << 30)

    def _intend(self, call: Call) -> None:
        self._held.append(call)
        self._let_go()

    def _let_go(self) -> None:
        while self._held and self._in_flight < self._client_limit():
            call = self._held.popleft()
            self._in_flight += 1
            call.send_s = self._now
            call.state = "sent"
            i = call.request.index
            self._at(self._now + self._up_s[i], self._arrive, call)
            self._at(self._now + call.request.patience_s, self._give_up, call)

    def _finished(self, call: Call) -> None:
        if call.state == "aborted":
            return
        call.state = "done"
        call.done_s = self._now
        self._in_flight -= 1
        self._let_go()

    def _give_up(self, call: Call) -> None:
        if call.state == "done":
            return
        call.state = "aborted"
        call.aborted_s = self._now
        self._in_flight -= 1
        self._let_go()
        for leg, engine in ((call.leg, call.engine), (call.decode, call.decode_engine)):
            if leg is None or engine < 0:
                continue
            if leg.state == "done":
                if leg.kv:  # a prefill whose cache nobody will read
                    self.engines[engine].release(leg, self._now)
            else:
                self.engines[engine].leave(leg, self._now)

    # -- router and proxy ----------------------------------------------------------------------

    def _choose(self, call: Call, first: int, last: int, pool: int) -> int:
        """A worker in [first, last). Pool 1 are decode engines, 0 all others."""
        before = self._placed.get(call.request.index, (-1, -1))[pool]
        if before >= 0:
            return before
        for c in self._active():
            if self._chance[call.request.index][0] < c.stuck_share:
                return first + c.stuck_worker % (last - first)
        if self.system.router == "least_loaded":
            loads = [self.engines[k].load for k in range(first, last)]
            # ties go around, else the first worker gets all quiet traffic
            turn = self._turn[pool]
            self._turn[pool] += 1
            n = last - first
            return first + min(range(n), key=lambda k: (loads[k], (k - turn) % n))
        self._turn[pool] += 1
        return first + self._turn[pool] % (last - first)

    def _arrive(self, call: Call) -> None:
        if call.state == "aborted":
            return
        call.arrive_s = self._now
        system = self.system
        if not self._is_pd:
            call.engine = self._choose(call, 0, system.engines, 0)
            self._receive(call, call.engine, Leg(call.request, self._now,
                          output=call.request.output_tokens))  # fmt: skip
            return
        call.engine = self._choose(call, 0, system.prefill_engines, 0)
        at = self._now + self._route_s[call.request.index] + HOP_S
        self._at(at, self._receive, call, call.engine, Leg(call.request, at, output=1))

    def _receive(self, call: Call, engine: int, leg: Leg) -> None:
        """The API server of ``engine`` got the request; its engine gets it a little later."""
        if call.state == "aborted":
            return
        if call.leg is None:
            call.leg = leg
        else:
            call.decode = leg
        self._by_leg[leg] = call
        ready = self._unstalled(self._now) + self._tokenise_s[call.request.index]
        self._at(ready, self._submit, engine, leg)

    def _submit(self, engine: int, leg: Leg) -> None:
        if leg.alive:
            self.engines[engine].submit(leg, self._now)

    def _prefilled(self, leg: Leg, at_s: float) -> None:
        """A prefill engine is through: the proxy turns to a decode engine."""
        call = self._by_leg[leg]
        out = self._unstalled(at_s + OUTPUT_S)
        self._at(out + HOP_S, self._hand_over, call)

    def _hand_over(self, call: Call) -> None:
        if call.state == "aborted":
            return
        call.proxy_back_s = self._now
        first, last = self.system.prefill_engines, self.system.engines
        call.decode_engine = self._choose(call, first, last, 1)
        at = self._now + self._route_s[call.request.index] + HOP_S
        lost = any(
            self._chance[call.request.index][1] < c.double_prefill_share for c in self._active()
        )
        leg = Leg(
            call.request, at, output=call.request.output_tokens, source=None if lost else call.leg
        )
        if lost:
            self._at(at, self._drop_source, call)
        self._at(at, self._receive, call, call.decode_engine, leg)

    def _drop_source(self, call: Call) -> None:
        if call.leg is not None and call.leg.kv:
            self.engines[call.engine].release(call.leg, self._now)

    def _transfer(self, engine: int, leg: Leg, at_s: float) -> None:
        """Move a KV cache over the decode engine's link, one after the other."""
        call = self._by_leg[leg]
        bandwidth = self.system.link_bytes_per_s
        for c in self._active():
            bandwidth *= c.link_factor
        size = leg.prompt * KV_BYTES_PER_TOKEN
        ready = at_s + self.system.handover_s * (0.7 + 0.6 * self._chance[call.request.index][1])
        start = max(ready, self._link_free[engine])
        end = start + size / bandwidth
        self._link_free[engine] = end
        self.transfers.append((engine, start, end, size))
        self.engines[engine].external_tokens += leg.prompt
        self._at(end, self._transferred, engine, leg, call)

    def _transferred(self, engine: int, leg: Leg, call: Call) -> None:
        if call.leg is not None and call.leg.kv:
            self.engines[call.engine].release(call.leg, self._now)
        self.engines[engine].loaded(leg, self._now)

    def _answered(self, leg: Leg, at_s: float) -> None:
        """The last token: the client has it all a little later."""
        call = self._by_leg[leg]
        engine = self.engines[call.decode_engine if self._is_pd else call.engine]
        call.tokens = self._unstalled_all(engine.token_times(leg) + OUTPUT_S)
        down = self._down_s[call.request.index] + (HOP_S if self._is_pd else 0.0)
        self._at(max(float(call.tokens[-1]), at_s) + down, self._finished, call)
