"""Rows of `metric_samples`: one data point a row, whatever its kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tracekit.ingest._attrs import INT64_MAX, BadItemError, dump, finite
from tracekit.ingest._rows import Rows
from tracekit.ingest._text import drop_text

#: OTLP's enum: 1 delta, 2 cumulative; 0 is unspecified.
TEMPORALITY: dict[int, str | None] = {0: None, 1: "delta", 2: "cumulative"}


@dataclass(frozen=True, slots=True)
class Metric:
    """What all points of a metric share."""

    name: str
    unit: str | None
    metric_type: str
    is_monotonic: int | None
    temporality: str | None


class MetricRows(Rows):
    """Collects data points; see `tracekit.lake.schema.METRIC_SAMPLES` for the columns."""

    signal = "metrics"

    def add(
        self,
        metric: Metric,
        *,
        start_unix_ns: int,
        at_unix_ns: int,
        value: float | None,
        count: int | None,
        buckets: dict[str, Any] | None,
        attributes: dict[str, Any],
    ) -> None:
        """One point; BadItemError if it has no name, no time, or a number out of range.

        ``value`` is None for a point "without recorded value" and a histogram without sum.
        """
        if not metric.name:
            raise BadItemError("missing_name", "metric without a name")
        if at_unix_ns == 0:
            raise BadItemError("missing_time", f"{metric.name}: time_unix_nano is 0")
        if not (0 <= start_unix_ns <= INT64_MAX and 0 < at_unix_ns <= INT64_MAX):
            raise BadItemError(
                "time_out_of_range",
                f"{metric.name}: start {start_unix_ns}, time {at_unix_ns}: not 0 .. 2^63-1 ns",
            )
        if count is not None and not 0 <= count <= INT64_MAX:
            raise BadItemError("count_out_of_range", f"{metric.name}: count {count}")
        if not self.keep_text:
            attributes = drop_text(attributes)
        self._rows.append(
            (
                metric.name,
                metric.unit,
                metric.metric_type,
                metric.is_monotonic,
                metric.temporality,
                start_unix_ns or None,
                at_unix_ns,
                value,
                count,
                None if buckets is None else dump(buckets),
                dump(attributes),
            )
        )

    def _columns(
        self, columns: list[tuple[Any, ...]], shared: dict[str, pa.Array]
    ) -> dict[str, pa.Array]:
        return {
            "name": pa.array(columns[0], pa.string()),
            "unit": pa.array(columns[1], pa.string()),
            "metric_type": pa.array(columns[2], pa.string()),
            "is_monotonic": pa.array(columns[3], pa.int32()),
            "temporality": pa.array(columns[4], pa.string()),
            "start_unix_ns": pa.array(columns[5], pa.int64()),
            "at_unix_ns": pa.array(columns[6], pa.int64()),
            "value": pa.array(columns[7], pa.float64()),
            "count": pa.array(columns[8], pa.int64()),
            "buckets": pa.array(columns[9], pa.string()),
            "attributes": pa.array(columns[10], pa.string()),
        }


def histogram_buckets(
    name: str,
    bounds: list[float],
    counts: list[int],
    low: float | None,
    high: float | None,
) -> dict[str, Any]:
    """``{bounds, counts, min, max}``; BadItemError where bounds and counts do not fit."""
    if len(counts) != (len(bounds) + 1 if counts or bounds else 0):
        raise BadItemError("bad_buckets", f"{name}: {len(bounds)} bounds, {len(counts)} counts")
    return {"bounds": [finite(b) for b in bounds], "counts": _counts(name, counts)} | _range(
        low, high
    )


def exponential_buckets(
    name: str,
    scale: int,
    zero: tuple[int, float],
    positive: tuple[int, list[int]],
    negative: tuple[int, list[int]],
    low: float | None,
    high: float | None,
) -> dict[str, Any]:
    """``{scale, zero_count, zero_threshold, positive {offset, counts}, negative, min, max}``."""
    return {
        "scale": scale,
        "zero_count": _counts(name, [zero[0]])[0],
        "zero_threshold": finite(zero[1]),
        "positive": {"offset": positive[0], "counts": _counts(name, positive[1])},
        "negative": {"offset": negative[0], "counts": _counts(name, negative[1])},
    } | _range(low, high)


def summary_quantiles(quantiles: list[tuple[float, float]]) -> dict[str, Any]:
    """``{quantiles: [{quantile, value}]}``."""
    return {"quantiles": [{"quantile": finite(q), "value": finite(v)} for q, v in quantiles]}


def _counts(name: str, counts: list[int]) -> list[int]:
    for count in counts:
        if not 0 <= count <= INT64_MAX:
            raise BadItemError("count_out_of_range", f"{name}: bucket count {count}")
    return counts


def _range(low: float | None, high: float | None) -> dict[str, Any]:
    out = {}
    if low is not None:
        out["min"] = finite(low)
    if high is not None:
        out["max"] = finite(high)
    return out
