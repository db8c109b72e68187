"""Who is looked into for the cause: those that stand out first, some of the others beside them."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

from tests.analysis import factory
from tracekit.analysis.causes import suspect_requests
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.slo import parse_slo


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    """200 slow decodes, of which 80 stand out."""
    traffic = factory.clean(1_200, every_ms=250, noise=0.02)
    bad = np.arange(600, 800)
    traffic.phases["decode"][bad] *= 3
    con = traffic.connect()
    diagnose_connection(con, parse_slo("tpot=20ms"))
    con.execute(
        "delete from winners where request_key not in (select request_key from winners "
        "where candidate = 'attributed' and phase = 'decode')"
    )
    con.execute(
        "delete from outstanding where slow_id not in (select slow_id from winners "
        "where request_key in (select request_key from winners order by 1 limit 80))"
    )
    return con


@pytest.mark.parametrize(
    ("at_most", "standing", "quiet"),
    [(1_000, 80, 120), (150, 80, 70), (80, 80, 10), (40, 40, 5), (4, 4, 1)],
)
def test_the_quiet_fill_what_is_left(
    con: duckdb.DuckDBPyConnection, at_most: int, standing: int, quiet: int
) -> None:
    rows = suspect_requests(con, at_most=at_most)
    con.register("looked", rows)
    found = con.execute(
        "select count(*) filter (o.request_key is not null), "
        "count(*) filter (o.request_key is null) from looked as l left join ("
        "select distinct w.request_key from winners as w join outstanding using (slow_id)) as o "
        "on l.request_key = o.request_key where l.is_control = 0"
    ).fetchall()
    con.unregister("looked")
    assert found == [(standing, quiet)]


def test_whom_somebody_asks_for_is_looked_into(con: duckdb.DuckDBPyConnection) -> None:
    for (key,) in con.execute("select distinct request_key from winners order by 1").fetchall():
        rows = suspect_requests(con, at_most=4, also=key)
        asked = [
            k
            for k, c in zip(
                rows["request_key"].to_pylist(), rows["is_control"].to_pylist(), strict=True
            )
            if c == 0
        ]
        assert key in asked
        assert len(asked) == 5
