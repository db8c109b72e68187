"""What the simulator writes: readable by the importer, true to the stamps, silent on the fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attribution.emit import request_id, write_telemetry
from attribution.emit_state import gpu_samples, write_metrics
from attribution.faults import FAULTS, make
from attribution.judge import store_of
from attribution.truth import INJECTED, PHASES, phases_of
from attribution.world import World, make_world, replay

from tracekit.analysis.session import Session


def _world(topology: str, seed: int) -> World:
    return make_world(seed, topology, 150)


@pytest.mark.parametrize("topology", ["agg", "pd"])
@pytest.mark.parametrize("seed", [3, 4])
def test_nothing_names_the_fault_or_the_truth(topology: str, seed: int, tmp_path: Path) -> None:
    world = _world(topology, seed)
    fault = make(
        "long_prompts",
        3,
        system=world.system,
        mix=world.mix,
        seed=seed,
        requests=world.requests,
    )
    run = replay(world, (fault,))
    files = [*write_telemetry(run, tmp_path), *write_metrics(run, tmp_path)]
    text = "".join(f.read_text() for f in files) + json.dumps(gpu_samples(run).to_pylist())
    for word in (*FAULTS, *INJECTED.values(), "fault", "added", "truth", "injected", "inject"):
        assert word not in text, word
    # ids tell nothing either: what was added looks like the rest
    ids = [request_id(run, r.index) for r in run.requests]
    assert len(set(ids)) == len(ids)
    assert {len(i) for i in ids} == {16}


@pytest.mark.parametrize("topology", ["agg", "pd"])
@pytest.mark.parametrize("seed", [3, 4])
def test_what_is_read_back_is_what_happened(topology: str, seed: int, tmp_path: Path) -> None:
    world = _world(topology, seed)
    run = replay(world)
    store, _, _ = store_of(run, tmp_path)
    lost = {i for i in range(len(run.luck.lost)) if run.luck.lost[i]}
    with Session.open(store) as session:
        columns = ", ".join(f"{p}_ms" for p in PHASES)
        frame = session.frame(
            f"select request_id, status, ttft_ms, e2e_ms, input_tokens, output_tokens, "
            f"cached_tokens, {columns} from requests where merged_into is null"
        )
        assert frame.height == len(run.calls)
    rows = {r["request_id"]: r for r in frame.iter_rows(named=True)}
    # clocks of hosts differ: what crosses them is only as good as that
    slack_ms = 1.0 + 2e3 * max(abs(s) for s in world.system.skew_s)
    checked = 0
    for call in run.calls:
        row = rows[request_id(run, call.request.index)]
        assert row["status"] == ("ok" if call.state == "done" else "aborted")
        if call.state != "done" or call.request.index in lost:
            continue
        phases = phases_of(call, run) * 1e3
        assert row["e2e_ms"] == pytest.approx(phases.sum(), abs=0.01)
        assert row["ttft_ms"] == pytest.approx(phases[:7].sum(), abs=0.01)
        assert row["output_tokens"] == call.request.output_tokens
        assert row["cached_tokens"] == max(call.leg.cached, 0) if call.leg else False
        for name, value in zip(PHASES, phases, strict=True):
            assert (row[f"{name}_ms"] or 0.0) == pytest.approx(value, abs=slack_ms), name
        checked += 1
    assert checked > 100
