"""Several processes on one store for a bounded time: no wrong count, no error, nothing torn."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracekit.lake import maintain
from tracekit.lake.store import Snapshot, Store

Query = Callable[[Snapshot, str], list[tuple[Any, ...]]]
StartWorker = Callable[..., "subprocess.Popen[str]"]

_SECONDS = 10
_ROWS = 200  # of a batch, as worker.py makes it


def _batches(query: Query, snapshot: Snapshot) -> dict[str, list[int]]:
    """Numbers of the batches by writer, after checking that each is whole."""
    found: dict[str, list[int]] = {}
    for who, seq, count, distinct in query(
        snapshot, "request_key, revision, count(*), count(DISTINCT gap_index) GROUP BY 1, 2"
    ):
        assert (count, distinct) == (_ROWS, _ROWS), (who, seq)
        found.setdefault(who, []).append(seq)
    return {who: sorted(seqs) for who, seqs in found.items()}


@pytest.mark.stress
def test_writers_compactor_and_readers_at_once(
    store: Store, tmp_path: Path, start_worker: StartWorker, query: Query
) -> None:
    acks = {name: tmp_path / f"{name}.acks" for name in ("a", "b")}
    joined = ",".join(map(str, acks.values()))
    writers = [start_worker("writer", store.path, n, p, _SECONDS) for n, p in acks.items()]
    janitor = start_worker("janitor", store.path, _SECONDS)
    readers = [
        start_worker("reader", store.path, kind, joined, _SECONDS)
        for kind in ("held", "slow", "fresh")
    ]
    outputs = {}
    for process in (*writers, janitor, *readers):
        out, _ = process.communicate(timeout=_SECONDS + 60)
        assert process.returncode == 0, process.args
        outputs[process] = out.splitlines()[-1]
    for reader in readers:
        report = json.loads(outputs[reader])
        assert report["wrong"] == []
        assert report["snapshots"] >= 5
    work = json.loads(outputs[janitor])
    assert work["compacted"] > 20
    assert work["vacuumed"] > 20
    found = _batches(query, store.snapshot("token_gaps"))
    for name, path in acks.items():
        assert found[name] == [int(line) for line in path.read_text().split()]
        assert len(found[name]) > 20


@pytest.mark.stress
def test_kill_9_of_a_writer_tears_nothing_and_its_retries_land_once(
    store: Store, tmp_path: Path, start_worker: StartWorker, query: Query
) -> None:
    acks = tmp_path / "w.acks"
    for kill_after in (1, 2, 3, 5, 8, 13):
        writer = start_worker("writer", store.path, "w", acks, 60)
        assert writer.stdout is not None
        for _ in range(kill_after):
            assert writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        acked = [int(line) for line in acks.read_text().split()]
        (landed,) = _batches(query, store.snapshot("token_gaps")).values()
        assert landed == list(range(1, len(landed) + 1))
        # The next life starts after its last acknowledgement and so repeats what landed unseen.
        assert acked == landed[: len(acked)]
        assert len(landed) <= len(acked) + 1
    maintain.compact(store, max_small_files=1)
    assert _batches(query, store.snapshot("token_gaps")) == {"w": landed}
