"""One engine: continuous batching with chunked prefill, a prefix cache, KV memory, preemption.

Owns the scheduler and the clock of its steps. It follows vLLM's V1 scheduler: running sequences
first (one token each), then the chunks of running prefills, then waiting requests in order, as
long as the step's token budget, the slots and the KV memory allow. Arrivals are taken only between
steps. The last one that started is preempted when memory runs out, and computed again.

Runs of pure decode steps are drawn at once as an array and cut when something arrives, so the
cost of a simulation is that of its prefills, not of its tokens. Tokens are never objects: a leg
keeps the range of steps in which it got one, and the engine the end of every step.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from attribution.system import EngineLimits, StepCost
from attribution.traffic import BLOCK_TOKENS, Request

Floats = npt.NDArray[np.float64]

_JITTER_DRAWS: Final = 1 << 14
#: Longest run of steps drawn at once: how late a change of speed may be noticed.
_RUN_STEPS: Final = 48


class Leg:
    """One request on one engine: its stamps [s] and the steps in which it got tokens."""

    __slots__ = (
        "alive",
        "cached",
        "epoch",
        "finish_step",
        "first_step",
        "generated",
        "is_remote",
        "kv",
        "kv_step",
        "last_step",
        "left",
        "load_end_s",
        "load_start_s",
        "output",
        "preemptions",
        "prompt",
        "queued_s",
        "recv_s",
        "request",
        "scheduled_s",
        "segments",
        "source",
        "start_step",
        "state",
    )

    def __init__(
        self, request: Request, recv_s: float, *, output: int, source: Leg | None = None
    ) -> None:
        self.request = request
        self.recv_s = recv_s
        self.queued_s = self.scheduled_s = self.load_start_s = self.load_end_s = -1.0
        self.prompt = request.input_tokens
        self.output = output
        self.source = source  # the prefill leg whose KV cache this one loads
        self.is_remote = source is not None
        self.left = 0
        self.kv = 0
        self.kv_step = -1  # from this step on every step adds a token; -1: not decoding
        self.cached = -1
        self.generated = 0
        self.start_step = self.finish_step = self.first_step = self.last_step = -1
        self.segments: list[tuple[int, int]] = []
        self.preemptions = 0
        self.epoch = 0
        self.state = "inbox"
        self.alive = True


#: The engine between two steps: gauges, and counters since the start, as plain tuples.
Sample = tuple[float, int, int, int, int, int, int, int, int, int, int]
SAMPLE_FIELDS: Final = (
    "at_s",
    "running",
    "waiting",
    "loading",
    "kv_tokens",
    "kv_limit",
    "preemptions",
    "prompt_tokens",
    "cached_tokens",
    "external_tokens",
    "generated_tokens",
)


@dataclass(frozen=True)
class Shift:
    """A change of one engine between two times: factors on its costs and on its KV memory."""

    start_s: float
    end_s: float
    prefill_factor: float = 1.0
    decode_factor: float = 1.0
    kv_share: float = 1.0


class Engine:
    """``schedule(at_s, version)`` asks for a call of `run_ended`; ``done(leg, at_s)`` and
    ``wants_load(leg, at_s)`` tell of a leg that got its last token or needs its KV cache."""

    def __init__(
        self,
        *,
        cost: StepCost,
        limits: EngineLimits,
        rng: np.random.Generator,
        groups: tuple[int, ...],
        shifts: tuple[Shift, ...],
        schedule: Callable[[float, int], None],
        done: Callable[[Leg, float], None],
        wants_load: Callable[[Leg, float], None],
        is_prefill: bool = False,
    ) -> None:
        self.cost = cost
        self.limits = limits
        self.is_prefill = is_prefill
        self.shifts = shifts
        self._schedule, self._done, self._wants_load = schedule, done, wants_load
        jitter = rng.lognormal(0.0, cost.jitter, _JITTER_DRAWS)
        # a garbage collection, an interrupt: one step in two thousand takes much longer
        jitter += np.where(rng.uniform(size=_JITTER_DRAWS) < 5e-4, rng.exponential(2.0), 0.0)
        self._jitter = np.concatenate([jitter, jitter[:_RUN_STEPS]])
        self.step_ends = np.zeros(1 << 14)
        self.steps = 0
        self.version = 0
        self._busy = False
        self._run: Floats = np.zeros(0)
        self._chunks: list[tuple[Leg, int]] = []
        self._inbox: list[Leg] = []
        self._loaded: list[Leg] = []
        self._leaving: list[Leg] = []
        self.waiting: deque[Leg] = deque()
        self._remote: deque[Leg] = deque()
        self._loading = 0
        # insertion order = order of admission
        self._prefilling: dict[Leg, None] = {}
        self._decoding: dict[Leg, None] = {}
        self._finish: list[tuple[int, int, Leg, int]] = []
        self._seq = 0
        self.kv_used = 0
        self._prefilled = 0
        # warm at the start: a service that runs for long has seen its prefixes
        self._last_use = dict.fromkeys(range(len(groups)), 0)
        self.preempted = self.prompt_tokens = self.cached_tokens = 0
        self.external_tokens = self.generated_tokens = 0
        self.samples: list[Sample] = []

    # -- what the cluster calls ----------------------------------------------------------------

    @property
    def load(self) -> int:
        """Requests here in any state: what a least-loaded router compares."""
        return (
            len(self._inbox) + len(self.waiting) + len(self._remote) + len(self._loaded)
            + self._loading + len(self._prefilling) + len(self._decoding)
        )  # fmt: skip

    def submit(self, leg: Leg, now: float) -> None:
        """A request reaches the engine's socket."""
        self._inbox.append(leg)
        self._interrupt(now)

    def loaded(self, leg: Leg, now: float) -> None:
        """The KV cache that ``wants_load`` asked for is here."""
        leg.load_end_s = now
        self._loading -= 1
        self._loaded.append(leg)
        self._interrupt(now)

    def leave(self, leg: Leg, now: float) -> None:
        """The client is gone: forget the leg at the end of the step."""
        leg.alive = False
        self._leaving.append(leg)
        self._interrupt(now)

    def release(self, leg: Leg, now: float) -> None:
        """Free the KV cache that a finished prefill leg kept for its reader."""
        self.kv_used -= leg.kv
        leg.kv = 0
        self._interrupt(now)

    def wake(self, now: float) -> None:
        """Something changed outside: look again at what waits."""
        self._interrupt(now)

    def flush_cache(self) -> None:
        """Forget every cached prefix."""
        self._last_use.clear()

    def run_ended(self, now: float, version: int) -> None:
        """The end of the run of that version; older versions were cut."""
        if version != self.version or not self._busy:
            return
        self._busy = False
        self._commit()
        self._plan(now)

    def token_times(self, leg: Leg) -> Floats:
        """[s] when the engine had each token of ``leg``."""
        parts = [self.step_ends[a : b + 1] for a, b in leg.segments]
        return np.concatenate(parts) if parts else np.zeros(0)

    # -- steps ---------------------------------------------------------------------------------

    def _interrupt(self, now: float) -> None:
        if not self._busy:
            self._plan(now)
        elif not self._chunks and len(self._run) > 1:
            # the step in progress is the last of this run
            at = int(np.searchsorted(self._run, now))
            if at + 1 < len(self._run):
                self._run = self._run[: at + 1]
                self.version += 1
                self._schedule(float(self._run[-1]), self.version)

    def kv_limit(self, now: float) -> int:
        """[tokens] KV memory at ``now``."""
        limit = float(self.limits.kv_tokens)
        for shift in self.shifts:
            if shift.start_s <= now < shift.end_s:
                limit *= shift.kv_share
        return int(limit)

    def _plan(self, now: float) -> None:
        """Choose and start the next run of steps, if there is anything to do."""
        self._take(now)
        limit = self.kv_limit(now)
        if self._remote:
            self._admit_remote(now, limit)
        preempted = False
        while self._decoding and self.kv_used + len(self._decoding) > limit:
            self._preempt()
            preempted = True
        batch = len(self._decoding)
        chunks: list[tuple[Leg, int]] = []
        if self._prefilling or (self.waiting and not preempted):
            chunks = self._fill(now, limit - self.kv_used - batch, batch, preempted)
        if not chunks and not batch:
            self._sample(now, limit)
            return
        slow_p = slow_d = 1.0
        for shift in self.shifts:
            if shift.start_s <= now < shift.end_s:
                slow_p *= shift.prefill_factor
                slow_d *= shift.decode_factor
        c = self.cost
        fixed = c.base_s + c.sequence_s * batch + c.context_s_per_token * self.kv_used
        at = self.steps % _JITTER_DRAWS
        if chunks:
            work = 0.0
            for leg, tokens in chunks:
                seen = leg.kv if not leg.is_remote else leg.prompt - 1
                work += tokens * (
                    c.prefill_s_per_token + c.attention_s_per_pair * (seen + tokens / 2)
                )
            seconds = (fixed * slow_d + work * slow_p) * self._jitter[at]
            self._run = np.array([now + seconds])
        else:
            n = min(self._next_finish() - self.steps + 1, _RUN_STEPS)
            n = max(1, min(n, (limit - self.kv_used) // batch))
            steps = self._jitter[at : at + n] * slow_d
            grown = np.arange(n) * (c.context_s_per_token * batch) + fixed
            self._run = now + np.cumsum(steps * grown)
        self._chunks = chunks
        self._busy = True
        self.version += 1
        self._sample(now, limit)
        self._schedule(float(self._run[-1]), self.version)

    def _take(self, now: float) -> None:
        for leg in self._leaving:
            self._forget(leg)
        self._leaving.clear()
        for leg in self._inbox:
            if leg.alive:
                leg.queued_s = now
                leg.state = "remote" if leg.is_remote else "waiting"
                (self._remote if leg.is_remote else self.waiting).append(leg)
        self._inbox.clear()
        for leg in reversed(self._loaded):
            if leg.alive:
                leg.state = "waiting"
                leg.left = 1  # the last prompt token is computed again for its logits
                self.waiting.appendleft(leg)
            else:
                self.kv_used -= leg.kv
        self._loaded.clear()

    def _admit_remote(self, now: float, limit: int) -> None:
        while self._remote and self.kv_used + self._remote[0].prompt <= limit:
            leg = self._remote.popleft()
            leg.kv = leg.prompt
            self.kv_used += leg.kv
            leg.state = "loading"
            leg.load_start_s = now
            self._loading += 1
            self._wants_load(leg, now)

    def _fill(self, now: float, free: int, batch: int, preempted: bool) -> list[tuple[Leg, int]]:
        budget = self.limits.step_tokens - batch
        chunks = []
        for leg in self._prefilling:
            tokens = min(leg.left, budget, free)
            if tokens <= 0:
                break
            chunks.append((leg, tokens))
            budget -= tokens
            free -= tokens
        slots = self.limits.sequences - len(self._prefilling) - batch
        while self.waiting and slots > 0 and budget > 0 and not preempted:
            leg = self.waiting[0]
            if leg.is_remote and leg.kv:
                tokens, needs = 1, 0
            else:
                hit = self._cached(leg)
                leg.left = leg.prompt + leg.generated - hit
                tokens = min(leg.left, budget)
                needs = tokens + hit
                if needs > free:
                    break
                leg.kv = hit
                self.kv_used += hit
                self._use(leg, hit)
            self.waiting.popleft()
            if leg.scheduled_s < 0:
                leg.scheduled_s = now
            leg.state = "prefilling"
            self._prefilling[leg] = None
            chunks.append((leg, tokens))
            budget -= tokens
            free -= needs
            slots -= 1
        if not chunks and self._prefilling and not batch:
            # memory is full of half-done prefills: the last one must go
            self._preempt()
            return self._fill(now, self.kv_limit(now) - self.kv_used, 0, True)
        return chunks

    def _commit(self) -> None:
        """Account for the run that just ended."""
        n = len(self._run)
        while self.steps + n > len(self.step_ends):
            self.step_ends = np.concatenate([self.step_ends, np.zeros(len(self.step_ends))])
        self.step_ends[self.steps : self.steps + n] = self._run
        last = self.steps + n - 1
        self.steps += n
        self.kv_used += len(self._decoding) * n
        self.generated_tokens += len(self._decoding) * n
        now = float(self._run[-1])
        for leg, tokens in self._chunks:
            if not (leg.is_remote and leg.left == 1 and leg.kv >= leg.prompt):
                leg.kv += tokens
                self.kv_used += tokens
                self._prefilled += tokens
                self.prompt_tokens += tokens
            leg.left -= tokens
            if leg.left <= 0:
                self._first_token(leg, last, now)
        self._chunks = []
        while self._finish and self._finish[0][0] <= last:
            step, _, leg, epoch = heapq.heappop(self._finish)
            if epoch == leg.epoch and leg.state == "decoding":
                self._end(leg, step, now)

    def _first_token(self, leg: Leg, step: int, now: float) -> None:
        """The leg's prefill ended with this step, which also gave it a token."""
        del self._prefilling[leg]
        leg.is_remote = False
        if leg.first_step < 0:
            leg.first_step = step
        if leg.request.group >= 0:
            self._last_use[leg.request.group] = self._prefilled
        self.generated_tokens += 1
        leg.start_step = step
        leg.generated += 1
        left = leg.output - leg.generated
        leg.finish_step = step + left
        leg.state = "decoding"
        if left == 0:
            self._end(leg, step, now)
            return
        leg.kv_step = self.steps
        self._decoding[leg] = None
        self._seq += 1
        heapq.heappush(self._finish, (leg.finish_step, self._seq, leg, leg.epoch))

    def _end(self, leg: Leg, step: int, now: float) -> None:
        leg.segments.append((leg.start_step, step))
        leg.last_step = step
        leg.state = "done"
        if leg in self._decoding:
            del self._decoding[leg]
            leg.kv += step - leg.kv_step + 1
            # run lengths end with the first finish, so no step was counted beyond it
        leg.epoch += 1
        if not self.is_prefill:
            self.kv_used -= leg.kv
            leg.kv = 0
        self._done(leg, now)

    def _preempt(self) -> None:
        running = self._prefilling or self._decoding
        leg = next(reversed(running))
        self._stop(leg)
        leg.left = 0
        leg.preemptions += 1
        self.preempted += 1
        leg.state = "waiting"
        self.waiting.appendleft(leg)

    def _stop(self, leg: Leg) -> None:
        """Take a running leg off the engine, its memory too."""
        if leg.kv_step >= 0 and leg in self._decoding:
            steps = self.steps - leg.kv_step
            leg.kv += steps
            leg.generated += steps
            leg.segments.append((leg.start_step, self.steps - 1))
        self._prefilling.pop(leg, None)
        self._decoding.pop(leg, None)
        self.kv_used -= leg.kv
        leg.kv = 0
        leg.kv_step = -1
        leg.epoch += 1

    def _forget(self, leg: Leg) -> None:
        if leg.state in ("prefilling", "decoding"):
            self._stop(leg)
        elif leg.state == "waiting":
            self.waiting.remove(leg)
            self.kv_used -= leg.kv
            leg.kv = 0
        elif leg.state == "remote":
            self._remote.remove(leg)
        elif leg.state == "done":  # with the very step in which its client hung up
            self.kv_used -= leg.kv
            leg.kv = 0
        # one that loads is dropped when its transfer ends; one in the inbox when it is taken
        if leg.state not in ("loading", "inbox"):
            leg.state = "gone"

    # -- prefix cache and samples --------------------------------------------------------------

    def _cached(self, leg: Leg) -> int:
        """[tokens] whole blocks of the leg's prefix that are still cached.

        A prefix is kept until as many tokens as the cache holds were computed after its last use:
        the rule of least recently used blocks.
        """
        last = self._last_use.get(leg.request.group)
        if last is None or self._prefilled - last > self.limits.cache_tokens:
            return 0
        tokens = min(leg.request.prefix_tokens, leg.prompt - 1)
        return tokens // BLOCK_TOKENS * BLOCK_TOKENS

    def _use(self, leg: Leg, hit: int) -> None:
        if hit:
            self._last_use[leg.request.group] = self._prefilled
            self.cached_tokens += hit
        if leg.cached < 0:
            leg.cached = hit

    def _next_finish(self) -> int:
        while True:
            step, _, leg, epoch = self._finish[0]
            if epoch == leg.epoch and leg.state == "decoding":
                return step
            heapq.heappop(self._finish)

    def _sample(self, now: float, limit: int) -> None:
        running = len(self._prefilling) + len(self._decoding)
        waiting = len(self.waiting) + len(self._remote) + len(self._inbox)
        gauges = (now, running, waiting, self._loading, self.kv_used, limit)
        counters = (
            self.preempted,
            self.prompt_tokens,
            self.cached_tokens,
            self.external_tokens,
            self.generated_tokens,
        )
        self.samples.append((*gauges, *counters))
