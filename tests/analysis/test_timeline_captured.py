"""The timeline over recorded traffic: exact to the nanosecond, cut or swept, with any source."""

from __future__ import annotations

import duckdb
import pyarrow.compute as pc
import pytest

from tests.analysis import _captures as captures
from tests.analysis._legs import check_timelines, rerun_core, timelines

ALL = sum(captures.CALLS.values())


def _derived(view: str) -> duckdb.DuckDBPyConnection:
    """All scenarios in one derivation; ``view`` says which raw rows there are."""
    spans, log = captures.spans(*captures.CALLS), captures.log(*captures.CALLS)
    if view == "engine spans":
        spans = spans.filter(pc.equal(spans["name"], "llm_request"))
    return captures.derived(
        None if view == "log" else spans, log if view in ("log", "spans and log") else None
    )


@pytest.mark.parametrize(
    ("view", "requests", "swept"),
    [
        # only calls with n = 3, whose choices end at their own times, need the sweep
        ("spans and log", ALL, 5),
        ("spans", ALL, 5),
        # aborted and refused calls leave no engine span
        ("engine spans", ALL - 10, 5),
        ("log", ALL, 0),
    ],
)
def test_captured_phases_tile_the_wall_time(view: str, requests: int, swept: int) -> None:
    derived = _derived(view)
    as_cut = rerun_core(derived, force_sweep=False)
    as_swept = rerun_core(derived, force_sweep=True)
    check_timelines(as_cut)
    check_timelines(as_swept)
    assert timelines(as_cut) == timelines(as_swept)
    # what a derivation leaves is what sql/core gives
    assert timelines(derived) == timelines(as_cut)
    assert len(timelines(as_cut)) == requests
    paths = dict(
        as_cut.execute("select path, count(*) from request_points group by path").fetchall()
    )
    assert paths.get("sweep", 0) == swept
    poor = "select request_id from requests where status = 'ok' and coverage < 0.999"
    assert as_cut.execute(poor).fetchall() == []
