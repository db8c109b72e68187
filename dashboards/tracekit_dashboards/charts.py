"""The dashboard's charts: one theme, one colour a phase, a unit on every axis.

Owns how frames are drawn. Takes frames of :mod:`tracekit.analysis` as they are; the frame's
columns are said where a chart wants them. Ink and background are Streamlit's, which knows whether
the reader's theme is dark; everything drawn here reads on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, cast

import altair as alt
import polars as pl
from altair.typing import ChartType

from tracekit.analysis.request_view import RequestView
from tracekit.names import IDLE_SUB_PHASES, PHASE_COLOURS, PHASES, PROVENANCES
from tracekit.report.texts import phase_label
from tracekit_dashboards import texts

_ACCENT: Final = "#3B82C4"
_RED: Final = "#D64545"
_GREY: Final = "#8A8F98"
_PALE: Final = 0.45
_LANE_PX: Final = 40
_MS: Final = ",.1~f"
_MAX_LABEL_PX: Final = 260


@alt.theme.register("tracekit", enable=True)
def _theme() -> alt.theme.ThemeConfig:
    return alt.theme.ThemeConfig(
        config={
            "axis": {"labelFontSize": 12, "titleFontSize": 12, "titlePadding": 8, "grid": True},
            "axisX": {"grid": False},
            "legend": {"labelFontSize": 12, "titleFontSize": 12, "symbolType": "square"},
            "view": {"stroke": None},
            "range": {"category": list(PHASE_COLOURS.values())},
        }
    )


def named_phases(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with ``phase_name``: its phases as people read them."""
    names = {phase: phase_label(phase) for phase in PHASES}
    return frame.with_columns(
        pl.col("phase").replace_strict(names, default=pl.col("phase")).alias("phase_name")
    )


def _phase_scale(frame: pl.DataFrame) -> alt.Scale:
    present = [phase for phase in PHASES if phase in set(frame["phase"])]
    return alt.Scale(
        domain=[phase_label(phase) for phase in present],
        range=[PHASE_COLOURS[phase] for phase in present],
    )


def phases_over_time(frame: pl.DataFrame, *, few: int) -> ChartType:
    """Stacked mean phase times with the number of requests beneath (`views.phases_over_time`)."""
    data = named_phases(frame)
    tooltip = [
        alt.Tooltip("phase_name:N", title=texts.PHASE),
        alt.Tooltip("mean_ms:Q", title=texts.UNIT_MS.format(what="mean"), format=_MS),
        alt.Tooltip("n:Q", title=texts.N_REQUESTS),
        _time_tooltip(),
    ]
    stack = (
        alt.Chart(data)
        .transform_stack(
            stack="mean_ms",
            as_=["from_ms", "to_ms"],
            groupby=["bin_start"],
            sort=[alt.SortField("phase_order", order="ascending")],
        )
        .mark_bar(stroke=None)
        .encode(
            x=_time_axis(data, "bin_start", title=None, labels=False),
            x2="bin_end:T",
            y=alt.Y("from_ms:Q", title=texts.UNIT_MS.format(what="mean per request")),
            y2="to_ms:Q",
            color=alt.Color(
                "phase_name:N",
                title=None,
                scale=_phase_scale(frame),
                legend=alt.Legend(orient="top", columns=0, symbolLimit=0),
            ),
            opacity=alt.condition(f"datum.n < {few}", alt.value(_PALE), alt.value(1.0)),
            tooltip=tooltip,
        )
        .properties(height=260, width="container")
    )
    counts = data.unique("bin_start").sort("bin_start").select("bin_start", "bin_end", "n")
    strip = (
        alt.Chart(counts)
        .mark_bar(color=_GREY)
        .encode(
            x=_time_axis(counts, "bin_start", title=texts.START_UTC),
            x2="bin_end:T",
            y=alt.Y(
                "n:Q",
                title=texts.N_REQUESTS,
                axis=alt.Axis(
                    tickCount=2,
                    tickMinStep=1,
                    format=",d",
                    titleAngle=0,
                    titleAlign="left",
                    titleAnchor="end",
                    titleY=-6,
                    titleX=0,
                ),
            ),
            y2=alt.datum(0),
            tooltip=[alt.Tooltip("n:Q", title=texts.N_REQUESTS), _time_tooltip()],
        )
        .properties(height=50, width="container")
    )
    return cast(ChartType, alt.vconcat(stack, strip, spacing=22).resolve_scale(x="shared"))


def latency_over_time(
    lines: pl.DataFrame, dots: pl.DataFrame | None, *, metric: str, limit_ms: float | None
) -> ChartType:
    """One metric by start: every request as a dot, or percentiles per bin where there are many.

    ``lines`` is `views.latency_over_time`, ``dots`` `views.latency_dots` or None.
    """
    axis = alt.Y("ms:Q", title=texts.UNIT_MS.format(what=metric), scale=alt.Scale(zero=True))
    if dots is not None:
        marks = (
            alt.Chart(dots)
            .mark_circle(size=34, opacity=0.6, color=_ACCENT)
            .encode(
                x=_time_axis(dots, "start", title=texts.START_UTC),
                y=axis,
                tooltip=[
                    alt.Tooltip("request_id:N", title=texts.REQUEST),
                    alt.Tooltip("ms:Q", title=texts.UNIT_MS.format(what=metric), format=_MS),
                    alt.Tooltip("input_tokens:Q", title=texts.INPUT_TOKENS, format=","),
                    alt.Tooltip("output_tokens:Q", title=texts.OUTPUT_TOKENS, format=","),
                    _time_tooltip("start"),
                ],
            )
        )
    else:
        marks = (
            alt.Chart(lines)
            .mark_line(point=alt.OverlayMarkDef(size=30), interpolate="linear")
            .encode(
                x=_time_axis(lines, "bin_start", title=texts.START_UTC),
                y=axis,
                color=alt.Color(
                    "percentile:N",
                    title=None,
                    scale=alt.Scale(domain=["p50", "p95"], range=[_ACCENT, _RED]),
                    legend=alt.Legend(orient="top"),
                ),
                tooltip=[
                    alt.Tooltip("percentile:N", title=texts.PERCENTILE),
                    alt.Tooltip("ms:Q", title=texts.UNIT_MS.format(what=metric), format=_MS),
                    alt.Tooltip("n:Q", title=texts.N_REQUESTS),
                    _time_tooltip(),
                ],
            )
        )
    layers = [marks]
    if limit_ms is not None:
        rule = alt.Chart(pl.DataFrame({"ms": [limit_ms]})).mark_rule(
            color=_RED, strokeDash=[6, 4], size=1.5
        )
        layers.append(rule.encode(y="ms:Q"))
    return alt.layer(*layers).properties(height=260)


def phase_totals(frame: pl.DataFrame) -> ChartType:
    """Share of all time by phase: ``phase``, ``share`` [1], ``seconds``, ``p50_ms``, ``p95_ms``."""
    data = named_phases(frame)
    order = [phase_label(p) for p in PHASES if p in set(frame["phase"])]
    base = alt.Chart(data).encode(
        y=alt.Y("phase_name:N", title=None, sort=order, axis=_names_axis()),
        x=alt.X(
            "share:Q",
            title=texts.SHARE_AXIS,
            axis=alt.Axis(format=".0%", tickCount=5),
            scale=_room(frame["share"]),
        ),
        tooltip=[
            alt.Tooltip("phase_name:N", title=texts.PHASE),
            alt.Tooltip("share:Q", title=texts.SHARE, format=".1%"),
            alt.Tooltip("seconds:Q", title=texts.UNIT_S.format(what="sum"), format=",.1f"),
            alt.Tooltip("p50_ms:Q", title=texts.UNIT_MS.format(what="p50"), format=_MS),
            alt.Tooltip("p95_ms:Q", title=texts.UNIT_MS.format(what="p95"), format=_MS),
        ],
    )
    bars = base.mark_bar(height=16).encode(
        color=alt.Color("phase_name:N", scale=_phase_scale(frame), legend=None)
    )
    labels = base.mark_text(align="left", dx=4, color=_GREY, fontSize=12).encode(
        text=alt.Text("share:Q", format=".1%")
    )
    return alt.layer(bars, labels).properties(height=alt.Step(26))


def waterfall(drawn: RequestView) -> ChartType:
    """One request across its legs, tokens beneath."""
    rows = list(drawn.lanes)
    if drawn.chunks.height:
        rows.append(texts.LANE_TOKENS)
    if drawn.gaps.height:
        rows.append(texts.LANE_GAPS)
    y = alt.Y(
        "lane:N",
        sort=rows,
        title=None,
        scale=alt.Scale(domain=rows, padding=0.25),
        axis=_names_axis(),
    )
    x = alt.X(
        "start_ms:Q",
        title=texts.UNIT_MS.format(what=texts.SINCE_START),
        scale=alt.Scale(domain=[0, max(drawn.end_ms, 1e-3)], nice=False),
        axis=alt.Axis(grid=True, tickCount=10),
    )
    layers: list[alt.Chart] = []
    if drawn.extents.height:
        layers.append(
            alt.Chart(drawn.extents)
            .mark_bar(height=alt.RelativeBandSize(0.18), color=_GREY, opacity=0.35)
            .encode(x=x, x2="end_ms:Q", y=y)
        )
    layers.append(_phase_bars(drawn.phases, x, y))
    idle = drawn.phases.filter(pl.col("sub_phase").is_in(IDLE_SUB_PHASES))
    if idle.height:
        layers.append(_idle_bars(idle, x, y))
    if drawn.boundaries.height:
        layers.append(
            alt.Chart(drawn.boundaries)
            .mark_tick(thickness=1.5, size=_LANE_PX * 0.75, color=_GREY)
            .encode(
                x=_x_at(x),
                y=y,
                tooltip=[
                    alt.Tooltip("name:N", title=texts.BOUNDARY),
                    alt.Tooltip(
                        "at_ms:Q", title=texts.UNIT_MS.format(what=texts.SINCE_START), format=_MS
                    ),
                    alt.Tooltip("provenance:N", title=texts.PROVENANCE),
                    alt.Tooltip("field:N", title=texts.FIELD),
                    alt.Tooltip("source:N", title=texts.SOURCE),
                ],
            )
        )
    layers += _token_layers(drawn.chunks, drawn.gaps, x, y)
    return alt.layer(*layers).properties(height=alt.Step(_LANE_PX))


def _x_at(x: alt.X) -> alt.X:
    """The same axis for a column of moments."""
    moment = x.copy()
    moment.shorthand = "at_ms:Q"
    return moment


def _phase_bars(phases: pl.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    """Phases by colour; how they are known by outline and fill."""
    names = [phase for phase in PHASES if phase in set(phases["phase"])]
    known = [p for p in PROVENANCES if p in set(phases["provenance"])]
    dashes: dict[str, list[float]] = {"measured": [1, 0], "reported": [5, 2], "inferred": [1, 2]}
    shown: list[Sequence[float]] = [dashes[p] for p in known]
    fill = {"measured": 1.0, "reported": 0.75, "inferred": 0.35}
    chart: alt.Chart = (
        alt.Chart(named_phases(phases))
        .mark_bar(strokeWidth=1.5, height=alt.RelativeBandSize(0.8))
        .encode(
            x=x,
            x2="end_ms:Q",
            y=y,
            color=alt.Color(
                "phase_name:N",
                title=None,
                scale=_phase_scale(phases),
                legend=alt.Legend(orient="top", columns=0, symbolLimit=0),
            ),
            # another field than the fill's, or their legends would be merged
            stroke=alt.Stroke(
                "phase:N",
                scale=alt.Scale(domain=names, range=[PHASE_COLOURS[p] for p in names]),
                legend=None,
            ),
            strokeDash=alt.StrokeDash(
                "provenance:O", scale=alt.Scale(domain=known, range=shown), legend=None
            ),
            fillOpacity=alt.FillOpacity(
                "provenance:O",
                scale=alt.Scale(domain=known, range=[fill[p] for p in known]),
                legend=None,
            ),
            tooltip=_interval_tooltip(),
        )
    )
    return chart


def _idle_bars(idle: pl.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    """A line through a phase where it got nowhere."""
    chart: alt.Chart = (
        alt.Chart(named_phases(idle))
        .mark_bar(color=_RED, height=alt.RelativeBandSize(0.2))
        .encode(x=x, x2="end_ms:Q", y=y, tooltip=_interval_tooltip())
    )
    return chart


def _interval_tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("phase_name:N", title=texts.PHASE),
        alt.Tooltip("sub_phase:N", title=texts.SUB_PHASE),
        alt.Tooltip("ms:Q", title=texts.UNIT_MS.format(what=texts.TOOK), format=_MS),
        alt.Tooltip("share:Q", title=texts.SHARE, format=".1%"),
        alt.Tooltip("provenance:N", title=texts.PROVENANCE),
        alt.Tooltip("field:N", title=texts.FIELD),
        alt.Tooltip("role:N", title=texts.LEG),
        alt.Tooltip("worker:N", title=texts.WORKER),
    ]


def _token_layers(chunks: pl.DataFrame, gaps: pl.DataFrame, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    layers = []
    if chunks.height:
        layers.append(
            alt.Chart(chunks.with_columns(pl.lit(texts.LANE_TOKENS).alias("lane")))
            .mark_tick(thickness=1.5, size=_LANE_PX * 0.6, color=_ACCENT)
            .encode(
                x=_x_at(x),
                y=y,
                tooltip=[
                    alt.Tooltip(
                        "at_ms:Q", title=texts.UNIT_MS.format(what=texts.SINCE_START), format=_MS
                    ),
                    alt.Tooltip("tokens:Q", title=texts.TOKENS),
                    alt.Tooltip("chunks:Q", title=texts.CHUNKS),
                ],
            )
        )
    if gaps.height:
        layers.append(
            alt.Chart(gaps.with_columns(pl.lit(texts.LANE_GAPS).alias("lane")))
            .mark_bar(height=alt.RelativeBandSize(0.6))
            .encode(
                x=x,
                x2="end_ms:Q",
                y=y,
                color=alt.condition("datum.is_stall", alt.value(_RED), alt.value(_GREY)),
                opacity=alt.condition("datum.is_stall", alt.value(0.95), alt.value(0.4)),
                tooltip=[
                    alt.Tooltip("index:Q", title=texts.GAP_INDEX),
                    alt.Tooltip("ms:Q", title=texts.UNIT_MS.format(what=texts.TOOK), format=_MS),
                    alt.Tooltip(
                        "excess_ms:Q",
                        title=texts.UNIT_MS.format(what=texts.OVER_MEDIAN),
                        format=_MS,
                    ),
                    alt.Tooltip("is_stall:N", title=texts.STALL),
                    alt.Tooltip("tokens:Q", title=texts.TOKENS),
                ],
            )
        )
    return layers


def funnel(frame: pl.DataFrame) -> ChartType:
    """Counts in order: ``step`` (as shown), ``n``."""
    base = alt.Chart(frame).encode(
        y=alt.Y("step:N", sort=frame["step"].to_list(), title=None, axis=_names_axis()),
        x=alt.X(
            "n:Q",
            title=texts.COUNT_AXIS,
            axis=alt.Axis(format=",d", tickCount=4, tickMinStep=1),
            scale=_room(frame["n"]),
        ),
        tooltip=[
            alt.Tooltip("step:N", title=texts.STEP),
            alt.Tooltip("n:Q", title=texts.COUNT_AXIS, format=","),
        ],
    )
    bars = base.mark_bar(height=16, color=_ACCENT)
    labels = base.mark_text(align="left", dx=4, color=_GREY, fontSize=12).encode(
        text=alt.Text("n:Q", format=",")
    )
    return alt.layer(bars, labels).properties(height=alt.Step(26))


def coverage(frame: pl.DataFrame) -> ChartType:
    """Requests by how much of them is explained (`views.coverage_histogram`)."""
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_bar(color=_ACCENT, stroke=None)
        .encode(
            x=alt.X(
                "from_share:Q",
                title=texts.COVERAGE_AXIS,
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format=".0%", tickCount=10),
            ),
            x2="to_share:Q",
            y=alt.Y(
                "n:Q",
                title=texts.N_REQUESTS,
                axis=alt.Axis(format=",d", tickCount=4, tickMinStep=1),
            ),
            y2=alt.datum(0),
            tooltip=[
                alt.Tooltip("from_share:Q", title=texts.FROM, format=".0%"),
                alt.Tooltip("to_share:Q", title=texts.TO, format=".0%"),
                alt.Tooltip("n:Q", title=texts.N_REQUESTS, format=","),
            ],
        )
        .properties(height=210)
    )
    return chart


def _time_axis(
    frame: pl.DataFrame, column: str, *, title: str | None, labels: bool = True
) -> alt.X:
    """Times in UTC on a 24-hour clock, as fine as the span of ``frame`` asks for."""
    first, last = frame[column].min(), frame[column].max()
    span = last - first if isinstance(first, datetime) and isinstance(last, datetime) else None
    fine = "%H:%M:%S" if span is None or span < timedelta(minutes=8) else "%H:%M"
    return alt.X(
        f"{column}:T",
        title=title,
        scale=alt.Scale(type="utc"),
        axis=alt.Axis(
            labels=labels,
            ticks=labels,
            tickCount=8,
            format=fine if span is None or span < timedelta(hours=36) else "%m-%d %H:%M",
        ),
    )


def _time_tooltip(column: str = "bin_start") -> alt.Tooltip:
    # without a time unit a tooltip would be in the reader's zone
    return alt.Tooltip(
        f"utcyearmonthdatehoursminutesseconds({column}):T",
        title=texts.START_UTC,
        format="%Y-%m-%d %H:%M:%S",
    )


def _room(values: pl.Series) -> alt.Scale:
    """From zero, with room for the number at the end of the longest bar."""
    largest = values.max()
    most = float(largest) if isinstance(largest, int | float) and largest > 0 else 1.0
    return alt.Scale(domain=[0, most * 1.18], nice=False)


def _names_axis() -> alt.Axis:
    return alt.Axis(grid=False, ticks=False, domain=False, labelLimit=_MAX_LABEL_PX, labelPadding=8)
