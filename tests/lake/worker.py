"""The other processes of the lake's tests: ``worker.py ROLE ARGS...`` (see each role).

A batch is ``ROWS`` rows of `token_gaps`: request_key = the writer, revision = the batch's
number, gap_index = 1..ROWS, spread over two dates. So a snapshot can be judged by itself.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tracekit.lake import maintain
from tracekit.lake.schema import TABLES
from tracekit.lake.spool import Spool
from tracekit.lake.store import Snapshot, Store, StoreReader

ROWS = 200
TABLE = "token_gaps"


def batch(writer: str, seq: int, rows: int = ROWS) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "request_key": [writer] * rows,
        "revision": [seq] * rows,
        "gap_index": list(range(1, rows + 1)),
        "start_unix_ns": [seq * 1000 + i for i in range(rows)],
        "date": [f"2026-11-0{1 + (i + seq) % 2}" for i in range(rows)],
    }
    return pa.table(
        {f.name: pa.array(columns.get(f.name, [None] * rows), f.type) for f in TABLES[TABLE].schema}
    )


def racer(store_path: str, me: str) -> None:
    """For each number on standard input, append it as a transaction; answer True or False."""
    store = Store.open(store_path)
    print("ready", flush=True)
    for line in sys.stdin:
        print(store.append(TABLE, batch(me, int(line)), txn=("race", int(line))), flush=True)


def writer(store_path: str, me: str, acks_path: str, seconds: str) -> None:
    """Append batches for some seconds, from where its acknowledgements end; resumable."""
    store = Store.open(store_path)
    acks = Path(acks_path)
    acked = acks.read_text().split() if acks.exists() else []
    seq = int(acked[-1]) + 1 if acked else 1
    end = time.monotonic() + float(seconds)
    with acks.open("a", buffering=1) as out:
        while time.monotonic() < end:
            store.append(TABLE, batch(me, seq), txn=(me, seq))
            out.write(f"{seq}\n")
            print(seq, flush=True)
            seq += 1


def janitor(store_path: str, seconds: str) -> None:
    """Compact, vacuum and clean the log without pause, with time running fast."""
    store = Store.open(store_path)
    reader = StoreReader(store)
    end = time.monotonic() + float(seconds)
    compacted = vacuumed = 0
    while time.monotonic() < end:
        report = maintain.maintenance_pass(
            store,
            reader=reader,
            retention_s=3,
            vacuum_every_s=0.5,
            target_bytes=100_000,
            max_small_files=6,
        )
        compacted += sum(r.files_before - r.files_after for r in report.compacted)
        vacuumed += sum(v.files for v in report.vacuumed)
        _age_log(store.table_path(TABLE) / "_delta_log")
    print(json.dumps({"compacted": compacted, "vacuumed": vacuumed}), flush=True)


def _age_log(log: Path) -> None:
    """Log entries live a minute at least; date the older ones back so that they are cleaned."""
    old = time.time() - 7200
    for entry in sorted(log.glob("*.json"))[:-40]:
        try:
            os.utime(entry, (old, old))
        except FileNotFoundError:
            continue


def reader(store_path: str, kind: str, acks_paths: str, seconds: str) -> None:
    """Judge snapshots for some seconds; print what was wrong with each bad one.

    ``kind``: ``held`` polls one StoreReader; ``slow`` keeps each snapshot a second before it
    reads it, and sleeps long enough to fall behind the log; ``fresh`` opens the log each time.
    """
    store = Store.open(store_path)
    held = StoreReader(store)
    acks = {Path(p).stem: Path(p) for p in acks_paths.split(",")}
    wrong: list[str] = []
    snapshots = 0
    end = time.monotonic() + float(seconds)
    with duckdb.connect(config={"threads": 1}) as con:
        while time.monotonic() < end:
            acked = {w: _last(path) for w, path in acks.items()}
            snapshot = store.snapshot(TABLE) if kind == "fresh" else held.snapshot(TABLE)
            if kind == "slow":
                time.sleep(random.uniform(0.5, 1.5))
            wrong += _judge(con, snapshot, acked)
            snapshots += 1
    print(json.dumps({"snapshots": snapshots, "wrong": wrong[:5]}), flush=True)


def _last(acks: Path) -> int:
    lines = acks.read_text().split("\n")[:-1] if acks.exists() else []
    return int(lines[-1]) if lines else 0


def _judge(
    con: duckdb.DuckDBPyConnection, snapshot: Snapshot, acked: dict[str, int]
) -> Iterator[str]:
    found = con.execute(
        "SELECT request_key, revision, count(*), count(DISTINCT gap_index) "
        f"FROM ({snapshot.scan_sql()}) GROUP BY ALL"
    ).fetchall()
    seen: dict[str, set[int]] = {w: set() for w in acked}
    for who, seq, count, distinct in found:
        if (count, distinct) != (ROWS, ROWS):
            yield f"{who}/{seq}: {count} rows, {distinct} distinct"
        seen[who].add(seq)
    for who, seqs in seen.items():
        highest = max(seqs, default=0)
        if len(seqs) != highest:
            yield f"{who}: {len(seqs)} batches of {highest}"
        if highest < acked[who]:
            yield f"{who}: acknowledged {acked[who]}, visible {highest}"


def spooler(directory: str) -> None:
    """Append ever larger records to a spool; print each number once it is acknowledged."""
    spool = Spool.open(Path(directory), segment_bytes=20_000)
    size = 1
    while True:
        records = [f"{spool.last_seq + 1 + i}:".encode().ljust(size, b".") for i in range(3)]
        for seq in spool.append_many(records):
            print(seq, flush=True)
        size = size * 3 % 5003


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
