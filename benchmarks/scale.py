"""Attribution at scale: ten million requests, and who stalled whom among a million.

Made rows of `requests` (and `phases`), in shape like `_traffic`, sixteen workers, four routes. One
has a system prompt that its cache lost now and then, one long conversations with first turns, two
have no cache. In processes of their own, so that the peak memory is theirs:

* **winners**: every completed request's expectation, excess and winning phase; who is slow, and by
  which phase (what a diagnosis does before it looks for causes), against the CPU of scanning the
  same columns. The fit is apart.
* **interference**: from the phases to named culprits, as a diagnosis does it: a sweep over slices
  of time; the plain range join would compare each suspect with each prefill of its worker.

Goals: winners at most 5x the scan's CPU and 2 GiB at 10,000,000 requests; interference under 20 s
at 1,000,000.

    python benchmarks/scale.py [REQUESTS]
"""

from __future__ import annotations

import multiprocessing as mp
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

from tracekit.analysis import attribution, sqlfiles
from tracekit.analysis.fit import fit_cost_model
from tracekit.analysis.judged import JUDGED_MAX
from tracekit.analysis.prefixes import read_prefixes
from tracekit.analysis.rules import Rules
from tracekit.analysis.session import Session
from tracekit.analysis.slo import Slo
from tracekit.lake.duck import connect, stand_back
from tracekit.lake.schema import TABLES
from tracekit.lake.store import Store

_CHUNK: Final = 500_000
_WORKERS: Final = 16
_T0_NS: Final = 1_795_990_000_000_000_000

#: One request in fifty waits in the queue three seconds longer than its size explains. Of one
#: route 99 % get a system prompt from the cache, of another 95 % half of what they send.
_MADE: Final = f"""
create or replace temp table made as
with a as (
    select i, random() as u, random() as v, random() as w,
        1 + floor(exp(6.6 + 1.1 * sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random())))::bigint
            as input_tokens,
        2 + floor(random() * 400)::bigint as output_tokens, random() as x, i // 16 % 4 as kind
    from range($first::bigint, $last::bigint) as g(i)
),
b as (
    select *, case when kind = 0 and x < 0.99 and input_tokens > 64 then 64
            when kind = 1 and x < 0.95 then input_tokens // 2 else 0 end as cached_tokens
    from a
)
select *, md5('r' || i)[:24] as key, 'w' || (i % {_WORKERS}) as worker,
    {_T0_NS} + i * 1000000 as start_ns,
    -ln(1 - u) * 20 + case when v < 0.02 then 3000 else 0 end as queue_ms,
    (8 + 0.05 * (input_tokens - cached_tokens)) * (0.95 + 0.3 * w) as prefill_ms,
    12.0 * (output_tokens - 1) * (0.95 + 0.3 * w) as decode_ms
from b
"""

_REQUESTS: Final = """
select key as request_key, 1 as revision, 'm' || (i % 3) as model, 'vllm' as engine,
    '0.11' as engine_version, 'route' || kind as route, worker, start_ns as start_unix_ns,
    start_ns + ((4 + queue_ms + prefill_ms + decode_ms) * 1e6)::bigint as end_unix_ns,
    1 as has_clock, 'ok' as status, input_tokens, cached_tokens, output_tokens,
    4.0 as frontend_ms, queue_ms, prefill_ms, decode_ms, 0.0 as unexplained_ms,
    4 + queue_ms + prefill_ms as ttft_ms, 'token' as ttft_kind,
    decode_ms / (output_tokens - 1) as tpot_ms, 4 + queue_ms + prefill_ms + decode_ms as e2e_ms,
    1.0 as coverage
from made
"""

_PHASES: Final = """
with cut as (
    select *, start_ns + 4000000 as queued_ns,
        start_ns + ((4 + queue_ms) * 1e6)::bigint as began_ns,
        start_ns + ((4 + queue_ms + prefill_ms) * 1e6)::bigint as first_ns,
        start_ns + ((4 + queue_ms + prefill_ms + decode_ms) * 1e6)::bigint as last_ns
    from made
)
select key as request_key, 1 as revision, worker, phase, starts as start_unix_ns,
    ends as end_unix_ns, (ends - starts) / 1e6 as duration_ms
from cut, lateral (values ('frontend', start_ns, queued_ns), ('queue', queued_ns, began_ns),
    ('prefill', began_ns, first_ns), ('decode', first_ns, last_ns)) as p(phase, starts, ends)
"""


def _make(path: str, requests: int, tables: dict[str, str]) -> None:
    store = Store.open(path, create=True)
    con = connect()
    con.execute("select setseed(0.42)").fetchall()
    for first in range(0, requests, _CHUNK):
        con.execute(_MADE, {"first": first, "last": min(first + _CHUNK, requests)})
        for name, query in tables.items():
            schema = TABLES[name]
            shape = ", ".join(f'null::{c.type} as "{c.name}"' for c in schema.columns)
            rows = con.sql(
                f"select * replace (strftime(make_timestamp(start_unix_ns // 1000), '%Y-%m-%d') "
                f"as date) from ((select {shape} where false) union all by name ({query}))"
            ).to_arrow_table()
            store.append(name, rows.cast(schema.schema))


def _timed(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _winners(path: str) -> None:
    with Session.open(path) as session:
        con = session.con
        stand_back(con)
        scanned = [
            *("request_key", "model", "engine", "engine_version", "route", "worker"),
            *("prefill_worker", "decode_worker", "start_unix_ns", "status", "quarantine_reason"),
            *("input_tokens", "cached_tokens", "output_tokens", "ttft_ms", "tpot_ms", "e2e_ms"),
            *("frontend_ms", "queue_ms", "prefill_ms", "decode_ms", "kv_transfer_ms"),
        ]
        columns = ", ".join(f"max({name})" for name in scanned)
        excess = [f"{p}_ms - {p}_expected_ms" for p in ("frontend", "queue", "prefill", "decode")]

        def scan() -> float:
            return _timed(lambda: con.execute(f"select {columns} from window_requests").fetchall())

        # between the others: a shared machine's speed moves
        scans = [scan()]
        whole = _timed(
            lambda: attribution.define_winners(
                con, Slo(), Rules(), prefixes=read_prefixes(con), judged_max=JUDGED_MAX
            )
        )
        scans.append(scan())
        # the same fit once more, to know its part
        fit = _timed(lambda: fit_cost_model(con))
        every = _timed(
            lambda: con.execute(
                f"select count(*), sum(greatest({', '.join(excess)})) from request_costs"
            ).fetchall()
        )
        scans.append(scan())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    applied, once = whole - fit, statistics.median(scans)
    print(
        f"winners: scan of {len(scanned)} columns {once:.1f} CPU s; limits, slow requests and "
        f"their phases {applied:.1f} s ({applied / once:.1f}x), every request's expectation, "
        f"excess and winner {every:.1f} s ({every / once:.1f}x), together "
        f"{(applied + every) / once:.1f}x; the fit {fit:.1f} s; peak {peak:.2f} GiB"
    )


def _interference(path: str) -> None:
    names = (
        *("marked_requests", "stall_phases", "suspect_intervals", "worker_prefills"),
        *("overlap_segments", "suspect_overlaps", "overlap_pairs", "stalls_explained"),
    )
    with Session.open(path) as session:
        con = session.con
        stand_back(con)
        attribution.define_attribution(con, Slo(), judged_max=JUDGED_MAX)
        cpu, start = time.process_time(), time.perf_counter()
        for name in (*names, "interference"):
            body = sqlfiles.load("attribution", name).body
            con.execute(f"create or replace temp table {name} as {body}")
        cpu, wall = time.process_time() - cpu, time.perf_counter() - start
        (counts,) = con.execute(
            "select count(*), count(distinct request_key), count(distinct culprit_key), "
            "(select count(*) from suspect_requests where is_control = 0) from interference"
        ).fetchall()
    print(
        f"interference: {wall:.1f} s, {cpu:.1f} CPU s; {counts[3]:,} suspects looked into, "
        f"{counts[1]:,} stalled by {counts[2]:,} culprits in {counts[0]:,} pairs"
    )


def _apart(work: Callable[..., None], *args: Any) -> None:
    """In a process of its own: a child's peak memory counts from what its parent held."""
    process = mp.get_context("spawn").Process(target=work, args=args)
    process.start()
    process.join()
    assert process.exitcode == 0


def main() -> None:
    """Run and print."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        _apart(_make, f"{folder}/many", requests, {"requests": _REQUESTS})
        print(f"{requests:,} requests, {_WORKERS} workers", flush=True)
        _apart(_winners, f"{folder}/many")
    with tempfile.TemporaryDirectory() as folder:
        fewer = max(requests // 10, 1)
        _apart(_make, f"{folder}/some", fewer, {"requests": _REQUESTS, "phases": _PHASES})
        print(f"{fewer:,} requests, {_WORKERS} workers", flush=True)
        _apart(_interference, f"{folder}/some")


if __name__ == "__main__":
    main()
