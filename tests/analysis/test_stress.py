"""Two writers, a settler that compacts, three readers: no wrong count, no reader error."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tracekit.analysis.session import Session
from tracekit.analysis.settle import Settler
from tracekit.lake.store import Store

WORKER = Path(__file__).with_name("stress_worker.py")
SECONDS = 12.0
BATCH = 20


@pytest.mark.stress
def test_readers_never_see_a_wrong_count(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    gate = tmp_path / "gate"
    gate.mkdir()

    def start(role: str, number: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(WORKER), role, str(store.path), str(number), str(gate)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    settler = start("settler", 0)
    writers = [start("writer", n) for n in (1, 2)]
    readers = [start("reader", n) for n in range(3)]
    deadline = time.time() + 60
    while len(list(gate.iterdir())) < 6:
        assert time.time() < deadline, "the processes did not start"
        time.sleep(0.05)
    (gate / "starting").write_text(str(time.time() + SECONDS))
    (gate / "starting").rename(gate / "go")

    def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        result: dict[str, Any] = json.loads(out)
        return result

    written = [finish(w)["batches"] for w in writers]
    looked = [finish(r) for r in readers]
    settled = finish(settler)["settled"]
    assert all(n > 3 for n in written), written
    assert all(r["looks"] > 1 for r in looked), looked
    assert [w for r in looked for w in r["wrong"]] == []
    assert settled > 0
    assert not Settler(store, quiet_ns=0).run_pass().waiting
    with Session.open(store) as session:
        rows = session.con.execute(
            "select count(*), count(distinct request_key), count(settled_unix_ns) from requests"
        ).fetchall()
    expected = sum(written) * BATCH
    assert rows == [(expected, expected, expected)]
