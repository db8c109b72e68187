"""One request far over its like, among requests of ordinary size: it is not denied."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.cli.conftest import Run

_SLO = ("--slo", "ttft=2s")


def _log(path: Path) -> Path:
    rng = random.Random(3)
    rows = []
    for i in range(61):
        size, out = rng.randint(100, 1_500), rng.randint(600, 900)
        ttft = (30 + 0.4 * size) * rng.lognormvariate(0, 0.08)
        if i == 30:  # its like take 0.35 s; its answer takes longer than that loss
            size, ttft = 800, 2_840
        rows.append(
            {
                "request_id": f"r{i}",
                "model": "m",
                "start_unix_ns": 1_790_000_000_000_000_000 + i * 4_000_000_000,
                "input_tokens": size,
                "output_tokens": out,
                "ttft_ms": ttft,
                "e2e_ms": ttft + out * 12 * rng.lognormvariate(0, 0.05),
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_an_outlier_is_said_to_be_one(run: Run, tmp_path: Path) -> None:
    store = ("--store", tmp_path / "store")
    assert run("import", _log(tmp_path / "log.jsonl"), *store).exit_code == 0
    document = json.loads(run("diagnose", "--json", *_SLO, *store).output)
    assert document["findings"] == []
    assert document["unexplained_reasons"] == {"usual": 1}
    assert "1 request that misses the SLO took longer than its size" in document["sentence"]
    said = " ".join(run("diagnose", *_SLO, *store).output.split())
    assert (
        "no finding; of the requests that miss the SLO (each counted once a metric) 1 took" in said
    )
    assert "nothing exceeds" not in said
    show = " ".join(run("show", "r30", *_SLO, *store).output.split())
    assert "coverage 100 %" in show and "no boundary" not in show
    assert "all the time" not in show
    assert show.count("longer than its size explains") == 1
    assert "TTFT 2.8 s, 840 ms over 2.0 s, the SLO" in show
