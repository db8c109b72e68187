"""The frames behind the charts: what each holds, counted another way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl
import pytest

from tracekit import chunks
from tracekit.analysis import request_view as drawing
from tracekit.analysis import views
from tracekit.analysis.detail import request_detail
from tracekit.analysis.doctor import health
from tracekit.analysis.request_view import WHOLE, request_view
from tracekit.analysis.session import Session
from tracekit.analysis.views import MIN_P95_ROWS, MIN_ROWS, Overview
from tracekit.analysis.workbench import relation_names
from tracekit.errors import UsageError
from tracekit.names import PHASE_COLOURS, PHASES
from tracekit_dashboards import charts

Query = Callable[[str], pl.DataFrame]


@pytest.fixture(scope="module")
def session(demo_store: Path) -> Iterator[Session]:
    with Session.open(demo_store) as session:
        yield session


@pytest.fixture(scope="module")
def overview(session: Session) -> Overview:
    return views.overview(session)


def spec(chart: Any) -> dict[str, Any]:
    """The chart as Vega-Lite; Altair raises for what the schema does not allow."""
    found: dict[str, Any] = chart.to_dict()
    return found


def colours(found: Any) -> set[str]:
    """Every colour anywhere in a specification, in any scale or mark."""
    if isinstance(found, dict):
        return set().union(*(colours(v) for v in found.values()))
    if isinstance(found, list):
        return set().union(*(colours(v) for v in found))
    return {found} if isinstance(found, str) and found.startswith("#") else set()


def test_overview(overview: Overview, query: Query) -> None:
    assert views.bins_for(overview) == 332 // MIN_ROWS
    assert views.bins_for(overview, rows=10) == 33
    first, last = query("select min(start_unix_ns), max(start_unix_ns) from requests").row(0)
    assert overview == Overview(332, 332, 332, 332, first, last)


@pytest.mark.parametrize(
    ("span_s", "bins", "width_s"),
    [(0, 60, 1), (60, 60, 1), (61, 60, 2), (600, 11, 60), (86_400, 60, 1_800), (10**9, 8, 604_800)],
)
def test_widths_of_bins_are_round(span_s: int, bins: int, width_s: int) -> None:
    view = Overview(1, 1, 1, 1, 0, span_s * 10**9)
    assert views.bin_width_ns(view, bins=bins) == width_s * 10**9


@pytest.mark.parametrize("bins", [1, 11, 60])
def test_phases_over_time_stack_to_the_mean_wall_time(
    session: Session, overview: Overview, query: Query, bins: int
) -> None:
    frame = views.phases_over_time(session, overview, bins=bins)
    width = timedelta(microseconds=views.bin_width_ns(overview, bins=bins) / 1e3)
    assert set(frame["bin_end"] - frame["bin_start"]) == {width}
    assert frame["bin_start"][0].tzinfo is not None
    total = 0
    for (at,), rows in frame.group_by("bin_start"):
        low = int(at.astimezone(UTC).timestamp() * 1e9)
        mean, n = query(
            "select avg(e2e_ms), count(*) from requests"
            f" where start_unix_ns >= {low}"
            f" and start_unix_ns < {low} + {width.total_seconds()} * 1e9"
        ).row(0)
        assert set(rows["n"]) == {n}
        assert rows["mean_ms"].sum() == pytest.approx(mean, abs=1e-3)
        total += n
    assert total == 332
    # in the order of a request's life, so that the colours stack alike in every bin
    assert frame.sort("bin_start", "phase_order")["phase"].to_list() == frame["phase"].to_list()
    drawn = spec(charts.phases_over_time(frame, few=MIN_ROWS))
    assert {PHASE_COLOURS[p] for p in set(frame["phase"])} <= colours(drawn)


def test_no_percentile_that_lies(session: Session, overview: Overview) -> None:
    few = views.latency_over_time(session, overview, "ttft_ms", bins=60)
    assert (few.filter(pl.col("percentile") == "p95")["n"] >= MIN_P95_ROWS).all()
    whole = views.latency_over_time(session, overview, "ttft_ms", bins=1)
    p50, p95 = session.frame(
        "select quantile_cont(ttft_ms, 0.5), quantile_cont(ttft_ms, 0.95) from requests"
    ).row(0)
    if whole["bin_start"].n_unique() == 1:
        assert whole.sort("percentile")["ms"].to_list() == pytest.approx([p50, p95])
    with pytest.raises(UsageError, match="no metric"):
        views.latency_over_time(session, overview, "pwned_ms", bins=1)


def test_dots_are_all_requests_or_none(session: Session) -> None:
    dots = views.latency_dots(session, "e2e_ms", limit=332)
    assert dots is not None
    assert dots["request_key"].n_unique() == 332
    assert dots["start"].is_sorted()
    assert views.latency_dots(session, "e2e_ms", limit=331) is None
    for points in (dots, None):
        lines = views.latency_over_time(session, views.overview(session), "e2e_ms", bins=11)
        drawn = spec(charts.latency_over_time(lines, points, metric="E2E", limit_ms=1_000))
        assert len(drawn["layer"]) == 2


def test_coverage_and_funnel(session: Session, query: Query) -> None:
    frame = views.coverage_histogram(session)
    assert frame["n"].sum() == 332
    assert frame["to_share"].max() == 1.0
    steps = views.funnel(session, health(session))
    assert steps["spans"] == query("select count(*) from spans").item()
    assert steps["legs"] == query("select count(*) from legs").item()
    assert steps["requests"] == steps["joined"] == steps["completed"] == 332
    spec(charts.coverage(frame))


def test_everything_that_can_be_queried_is_described(session: Session) -> None:
    docs = {doc.name: doc for doc in views.relation_docs(session)}
    assert set(relation_names(session)) <= set(docs)
    for name in ("requests", "phases", "verdicts", "slow_requests"):
        assert docs[name].columns
        assert all(column.doc for column in docs[name].columns)


def test_queries_that_need_the_fit() -> None:
    assert views.needs_attribution("select * from Verdicts")
    assert views.needs_attribution('select * from "slow_requests" s')
    assert not views.needs_attribution("select my_verdicts from requests")


@pytest.mark.parametrize("which", ["pd-nixl-0028", "queue-0080"])
def test_lanes_of_one_request(session: Session, query: Query, which: str) -> None:
    drawn = request_view(session, request_detail(session, which))
    request = query(f"select * from requests where request_id = '{which}'").row(0, named=True)
    whole = drawn.phases.filter(pl.col("lane") == WHOLE)
    assert whole["ms"].sum() == pytest.approx(request["e2e_ms"], abs=1e-3)
    # every phase is in its leg's lane too
    legs = drawn.phases.filter(pl.col("lane") != WHOLE)
    assert legs["ms"].sum() == pytest.approx(request["e2e_ms"], abs=1e-3)
    assert drawn.lanes[0] == WHOLE
    roles = request["leg_roles"].split(",")
    assert [lane.split(" · ")[0].replace(" ", "_") for lane in drawn.lanes[1:]] == roles
    assert 0 <= drawn.extents["start_ms"].min() <= drawn.extents["end_ms"].max() <= drawn.end_ms  # type: ignore[operator]
    # chunks lie on the same axis: the first is the client's first token
    first = (request["first_token_unix_ns"] - drawn.origin_unix_ns) / 1e6
    assert drawn.chunks["at_ms"][0] == pytest.approx(first, abs=1.0)
    assert drawn.chunks["chunks"].sum() == request["chunk_count"]
    stalls = query(
        "select count(*) from token_gaps join requests using (request_key, revision)"
        f" where request_id = '{which}' and is_stall = 1"
    ).item()
    assert drawn.gaps["is_stall"].sum() == stalls
    found = spec(charts.waterfall(drawn))
    assert {PHASE_COLOURS[p] for p in set(whole["phase"])} <= colours(found)
    stalled = drawn.phases.filter(pl.col("sub_phase") == "decode.stall")
    assert (stalled.height > 0) == (stalls > 0)
    # where a phase got nowhere a line goes through it
    marked = [
        m for layer in found["layer"] for m in [layer["mark"]] if m.get("color") == charts._RED
    ]
    assert len(marked) == (stalls > 0)


def test_time_without_progress_is_marked(session: Session) -> None:
    (which,) = session.frame(
        "select request_id from requests join phases using (request_key, revision) "
        "where sub_phase = 'decode.stall' group by request_id order by request_id limit 1"
    )["request_id"]
    drawn = request_view(session, request_detail(session, which))
    found = spec(charts.waterfall(drawn))
    marks = [layer["mark"] for layer in found["layer"]]
    assert [m["type"] for m in marks if m.get("color") == charts._RED] == ["bar"]


def test_very_many_chunks_are_thinned_and_none_is_lost(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    detail = request_detail(session, "queue-0080")
    whole = request_view(session, detail).chunks
    monkeypatch.setattr(drawing, "_MARKS_MAX", 20)
    thin = request_view(session, detail).chunks
    assert whole.height > 20 >= thin.height - 1
    assert thin["chunks"].sum() == whole["chunks"].sum()
    assert thin["tokens"].sum() == whole["tokens"].sum()
    assert thin["at_ms"].is_sorted()


def test_chunks_unpack_as_detail_says(session: Session) -> None:
    detail = request_detail(session, "queue-0080")
    packed = session.frame(
        "select chunk_times from legs where request_key = $key and chunk_times is not null",
        {"key": detail.request["request_key"]},
    )["chunk_times"][0]
    assert chunks.unpack(packed).tokens == list(detail.chunk_tokens)


def test_every_phase_has_a_name_and_a_colour_in_charts() -> None:
    frame = pl.DataFrame({"phase": list(PHASES), "share": [0.1] * 10, "seconds": [1.0] * 10})
    frame = frame.with_columns(p50_ms=pl.lit(None, pl.Float64), p95_ms=pl.lit(None, pl.Float64))
    drawn = spec(charts.phase_totals(frame))
    assert set(PHASE_COLOURS.values()) <= colours(drawn)
    assert alt.theme.active == "tracekit"
