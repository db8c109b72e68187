"""The simulator that verdicts are measured against: it must be right before anything else is."""

from __future__ import annotations

import numpy as np
import pytest
from attribution.cluster import Replay
from attribution.faults import FAULTS, Fault, exists_in, make
from attribution.truth import PHASES, Limits, outcome, phases_of, population
from attribution.world import World, make_world, replay

_REQUESTS = 220
_CASES = [(f, t) for f in FAULTS for t in ("agg", "pd") if exists_in(f, t)]


def _world(topology: str, seed: int = 3) -> World:
    return make_world(seed, topology, _REQUESTS)


def _fault(world: World, name: str, intensity: int = 3) -> Fault:
    return make(
        name,
        intensity,
        system=world.system,
        mix=world.mix,
        seed=world.seed,
        requests=world.requests,
    )


def _stamps(run: Replay) -> list[tuple[object, ...]]:
    return [
        (c.request.index, c.state, c.send_s, c.done_s, c.aborted_s, *c.tokens.tolist())
        for c in run.calls
    ]


@pytest.mark.parametrize("topology", ["agg", "pd"])
def test_a_seed_gives_one_run_and_another_seed_another(topology: str) -> None:
    world = _world(topology)
    assert _stamps(replay(world)) == _stamps(replay(world))
    assert _stamps(replay(world)) != _stamps(replay(_world(topology, seed=4)))


@pytest.mark.parametrize("topology", ["agg", "pd"])
def test_replays_agree_until_the_fault_begins(topology: str) -> None:
    world = _world(topology)
    fault = _fault(world, "slow_worker")
    clean, faulty = replay(world), replay(world, (fault,))
    over = [c.request.index for c in clean.calls if 0 <= c.done_s < fault.condition.start_s]
    assert len(over) > 20
    same = dict(zip((c.request.index for c in faulty.calls), faulty.calls, strict=True))
    for call in clean.calls:
        if call.request.index in over:
            assert same[call.request.index].tokens.tolist() == call.tokens.tolist()


def test_a_fault_that_changes_nothing_leaves_the_replay_as_it_was() -> None:
    world = _world("agg")
    fault = _fault(world, "slow_link")  # there is no link in this topology
    assert _stamps(replay(world)) == _stamps(replay(world, (fault,)))
    count = len(world.requests)
    a, b = outcome(replay(world), count), outcome(replay(world, (fault,)), count)
    assert population(a, b, Limits(1e-3, 1e-6, 1e-3), ("slow_link",)) == []


@pytest.mark.parametrize(("name", "topology"), _CASES)
def test_every_request_ends_once_and_nothing_stays_behind(name: str, topology: str) -> None:
    world = _world(topology)
    fault = _fault(world, name)
    run = replay(world, (fault,))
    assert sorted(c.request.index for c in run.calls) == list(range(_REQUESTS + len(fault.added)))
    assert {c.state for c in run.calls} <= {"done", "aborted"}
    for call in run.calls:
        assert (call.done_s >= 0) != (call.aborted_s >= 0)
        if call.state == "done":
            assert len(call.tokens) == call.request.output_tokens
            assert (np.diff(call.tokens) >= 0).all()
    for engine in run.engines:
        assert engine.load == 0
        assert engine.kv_used == 0
        assert (np.diff(engine.step_ends[: engine.steps]) > 0).all()


@pytest.mark.parametrize(("name", "topology"), _CASES)
def test_phases_are_exclusive_and_add_up_to_the_wall_time(name: str, topology: str) -> None:
    world = _world(topology)
    run = replay(world, (_fault(world, name),))
    checked = 0
    for call in run.calls:
        if call.state != "done":
            continue
        phases = phases_of(call, run)
        wall = call.done_s - call.request.intended_s
        assert phases.min() >= -1e-9, dict(zip(PHASES, phases, strict=True))
        assert phases.sum() == pytest.approx(wall, abs=1e-9)
        checked += 1
    assert checked > _REQUESTS / 2


def test_memory_and_slots_are_never_exceeded() -> None:
    world = _world("agg")
    run = replay(world, (_fault(world, "kv_pressure"), _fault(world, "burst")))
    for engine in run.engines:
        start = next(s.start_s for s in engine.shifts)
        assert sum(s[6] for s in engine.samples[-1:]) == engine.preempted
        for sample in engine.samples:
            at, running, kv, limit = sample[0], sample[1], sample[4], sample[5]
            assert running <= engine.limits.sequences
            if at < start:
                assert kv <= limit
    assert sum(e.preempted for e in run.engines) > 0


def test_a_step_takes_what_its_cost_says() -> None:
    world = _world("agg")
    run = replay(world)
    c = world.system.cost
    seen = 0
    for call in run.calls:
        leg = call.leg
        if call.state != "done" or leg is None or leg.preemptions:
            continue
        engine = run.engines[call.engine]
        took = engine.step_ends[leg.first_step] - leg.scheduled_s
        tokens = leg.prompt - leg.cached
        least = c.base_s + tokens * c.prefill_s_per_token
        assert took > 0.8 * least
        seen += 1
    assert seen > 100


def test_leaving_a_request_out_takes_only_that_one_away() -> None:
    world = _world("agg")
    fault = _fault(world, "long_prompts")
    gone = fault.added[0].index
    run = replay(world, (fault,), without=gone)
    indices = {c.request.index for c in run.calls}
    assert gone not in indices
    assert len(indices) == _REQUESTS + len(fault.added) - 1


def test_a_cached_prefix_saves_its_tokens_and_a_flush_costs_them() -> None:
    world = _world("agg")
    count = len(world.requests)
    clean = outcome(replay(world), count)
    flushed = outcome(replay(world, (_fault(world, "cache_flush"),)), count)
    assert clean.cached.sum() > 1.2 * flushed.cached.sum()
    by_index = {r.index: r for r in world.requests}
    assert all(clean.cached[i] <= by_index[i].prefix_tokens for i in range(count))
