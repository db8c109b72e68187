"""How close tracekit's times are to the client's own clock, on the bundled real captures.

Only the servers' spans are used (no client span, no client log); what tracekit derives from them
is held against the log of the load client, which stamped every chunk itself. Prints medians and
95th percentiles of |our TTFT - client TTFT| and |our decode - client's last minus first chunk|,
in ms, beside the medians measured when the captures were made.

    python benchmarks/accuracy.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa

from tracekit.analysis.session import Session
from tracekit.analysis.settle import settle_after_import
from tracekit.ingest.importer import import_paths
from tracekit.lake.schema import SPANS
from tracekit.lake.store import Store

_DATA = Path(__file__).resolve().parent.parent / "tracekit" / "demo_data"

#: |client - span| medians in ms (TTFT, decode) seen with the engine's own attributes
_SEEN = {
    "long-prompt": "TTFT 5.2, decode 1.3",
    "prefix-cache": "TTFT 5.3, decode 0.8",
    "queue": "TTFT 7.2, decode 0.1",
    "pd-nixl": "TTFT not directly comparable (proxy in between)",
}

_COMPARE = """
select
    count(*) as n,
    median(abs(l.ttft_ms - r.ttft_ms)) as ttft_p50,
    quantile_cont(abs(l.ttft_ms - r.ttft_ms), 0.95) as ttft_p95,
    median(abs(r.decode_ms - (l.e2e_ms - l.ttft_ms))) as decode_p50,
    quantile_cont(abs(r.decode_ms - (l.e2e_ms - l.ttft_ms)), 0.95) as decode_p95
from client as l join requests as r on l.trace_id = r.trace_id
"""


def _measure(scenario: str) -> tuple[int, float, float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        whole = Store.open(f"{folder}/whole", create=True)
        import_paths(
            whole,
            [str(_DATA / f"{scenario}.otlp.pb.gz"), str(_DATA / f"{scenario}.requests.jsonl.gz")],
            settle=False,
        )
        servers = Store.open(f"{folder}/servers", create=True)
        with Session.open(whole) as session:
            columns = ", ".join(f'"{c.name}"' for c in SPANS.columns)
            spans: pa.Table = session.con.sql(
                f"select {columns} from spans where service_name <> 'load-client'"
            ).to_arrow_table()
            client: pa.Table = session.con.sql(
                "select trace_id, ttft_ms, e2e_ms from request_log"
            ).to_arrow_table()
        servers.append("spans", spans.cast(SPANS.schema))
        settle_after_import(servers)
        with Session.open(servers) as session:
            session.con.register("client", client)
            n, *rest = session.con.execute(_COMPARE).fetchall()[0]
    return (n, *rest)


def main() -> None:
    """Print one line a scenario."""
    print(
        f"{'scenario':14}{'n':>5}{'|TTFT| p50':>12}{'p95':>8}{'|decode| p50':>14}{'p95':>8}   seen"
    )
    for scenario, seen in _SEEN.items():
        n, ttft_50, ttft_95, decode_50, decode_95 = _measure(scenario)
        print(
            f"{scenario:14}{n:>5}{ttft_50:>12.2f}{ttft_95:>8.1f}{decode_50:>14.2f}"
            f"{decode_95:>8.1f}   {seen}"
        )


if __name__ == "__main__":
    main()
