"""Load and its price: the slices of time that load is counted in, and what load does to service.

Owns the fit of service against load (the relation ``contention``) and the comparison of workers
with their peers at equal load and shape (``worker_slices``). Load is no part of the expectation: it
is how a fault acts. It is looked at here, for the requests that lost time, to tell which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.analysis import sqlfiles
from tracekit.analysis._arrow import arrow_table, numpy_column
from tracekit.analysis._duck import defined, one
from tracekit.analysis.quantile import quantile_fit
from tracekit.analysis.sqlfiles import METRIC_VIEWS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
#: (n, lower quartile, its standard error) of actual / expected
_Level = tuple[int, float, float]

_SECOND_NS: Final = 1_000_000_000

#: Slices of load: a 1500th of the window, a minute at most unless the window is very long.
_LOAD_SLICES: Final = 1_500
_SLICES_MAX: Final = 20_000
#: Requests that load is counted from.
_LOAD_ROWS: Final = 250_000
_STEPS: Final = (1, 3, 7, 11, 13, 17, 23, 31, 43, 61, 89, 127, 181, 257, 367, 521, 743, 1_049)
_LOAD_MIN_NS: Final = _SECOND_NS // 4
_LOAD_MAX_NS: Final = 60 * _SECOND_NS
_LEAD_NS: Final = 3 * _SECOND_NS
#: Slices of scraped metrics are at least as long as the usual scrape interval.
_PRESSURE_MIN_NS: Final = 5 * _SECOND_NS
#: Slices in which workers are compared: a 12th of the window.
_WORKER_SLICES: Final = 12
_WORKER_MIN_NS: Final = 10 * _SECOND_NS
_WORKER_MAX_NS: Final = 3_600 * _SECOND_NS

#: Phases in which a worker serves, and with which service phases a waiting one is explained.
SERVED: Final = ("prefill", "queue_or_prefill", "decode")

#: The load that an expectation at a low quantile stands for.
_USUAL_LOAD: Final = 0.2

#: Requests a worker needs in a slice to be compared.
_SLICE_ROWS: Final = 6
#: Peers' requests that one of the worker is compared with, and how far from it in time they may be:
#: a part of the slice.
_NEAREST: Final = 3
_MARGIN: Final = 10
_FIT_ROWS: Final = 30
#: With more workers than this one slow one hardly moves the price of load.
_APART_MAX: Final = 24
#: Standard error of a median from the quartiles: 1.2533 / 1.349.
_ERROR: Final = 0.929
_ERROR_MIN: Final = 0.02


def time_slices(
    con: duckdb.DuckDBPyConnection, *, at_least_ns: int = _LOAD_MIN_NS
) -> tuple[pa.Table, pa.Table]:
    """(a row ``bin_ns, lead_ns, step``, rows ``bin_unix_ns``): slices from first arrival to end.

    ``step``: one request in so many is counted. A prime, so that rounded times do not matter.
    ``lead_ns``: whole slices, how long before a loss a backlog is looked for.
    """
    ((rows, first, last),) = con.execute(
        "select count(*), min(arrival_unix_ns), "
        "max(arrival_unix_ns + cast(ceil(coalesce(e2e_ms, 0.0) * 1e6) as bigint)) "
        "from request_facts where completed + censored > 0"
    ).fetchall()
    span = 0 if first is None or last is None else max(last - first, 0)
    bin_ns = max(min(span // _LOAD_SLICES, _LOAD_MAX_NS), span // _SLICES_MAX, at_least_ns)
    wanted = -(-int(rows) // _LOAD_ROWS)
    step = next((p for p in _STEPS if p >= wanted), _STEPS[-1])
    lead_ns = -(-_LEAD_NS // bin_ns) * bin_ns
    rules = arrow_table({"bin_ns": [bin_ns], "lead_ns": [lead_ns], "step": [step]})
    return rules, _times(first, last, bin_ns)


def pressure_slices(con: duckdb.DuckDBPyConnection) -> tuple[pa.Table, pa.Table]:
    """As `time_slices`, for samples that come seconds apart."""
    return time_slices(con, at_least_ns=_PRESSURE_MIN_NS)


def arrival_times(con: duckdb.DuckDBPyConnection, slice_ns: int) -> pa.Table:
    """Every slice of ``arrival_rules`` from the first arrival to the last (``bin_unix_ns``)."""
    ((first, last),) = con.execute(
        "select min(arrival_unix_ns), max(arrival_unix_ns) from request_facts"
    ).fetchall()
    return _times(first, last, slice_ns)


def _times(first: int | None, last: int | None, bin_ns: int) -> pa.Table:
    if first is None or last is None:
        return arrow_table({"bin_unix_ns": np.zeros(0, dtype=np.int64)})
    start = first - first % bin_ns
    return arrow_table({"bin_unix_ns": np.arange(start, last + 1, bin_ns, dtype=np.int64)})


_CONTENTION: Final = pa.schema(
    [
        ("model", pa.string()),
        ("phase", pa.string()),
        ("alone", pa.float64()),
        ("per_decoding", pa.float64()),
        ("per_prefilling", pa.float64()),
        ("usual_decoding", pa.float64()),
        ("usual_prefilling", pa.float64()),
        ("n", pa.int64()),
    ]
)

_WORKERS: Final = pa.schema(
    [
        ("model", pa.string()),
        ("phase", pa.string()),
        ("worker", pa.string()),
        ("slice_unix_ns", pa.int64()),
        ("n", pa.int64()),
        ("level", pa.float64()),
        ("peers", pa.int64()),
        ("peer_level", pa.float64()),
        ("own_level", pa.float64()),
        ("standard_error", pa.float64()),
    ]
)


def service(con: duckdb.DuckDBPyConnection) -> tuple[pa.Table, pa.Table, pa.Table]:
    """The relations ``contention``, ``worker_slices`` and the one-row ``slice_rules``.

    ``contention``: per model and phase, ``actual / expected = alone + per_decoding x decoding +
    per_prefilling x prefilling`` at the median, and the load that is usual. ``worker_slices``: per
    worker and slice of time the lower quartile of actual / expected (``level``, load taken out at
    the price that it has on its peers), the same of its peers at the same times (``peer_level``,
    NULL without peers) and of itself in its other slices (``own_level``), with the standard error
    of the difference from its peers.
    """
    rows = con.sql(
        f"""
        select s.model, s.phase, s.worker, s.is_control, s.start_unix_ns,
            s.start_unix_ns + (s.end_unix_ns - s.start_unix_ns) // 2 as middle_unix_ns,
            s.decoding, s.prefilling,
            -- a missed prefix is more to compute, not slower computing
            s.actual_ms / (s.expected_ms
                + case when s.phase = 'decode' then 0.0 else coalesce(k.cache_ms, 0.0) end) as ratio
        from suspect_load as s
        left join cache_losses as k on s.request_key = k.request_key
        where s.phase in ({", ".join(f"'{p}'" for p in SERVED)}) and s.expected_ms > 0
            and s.actual_ms > 0
        order by s.suspect_id
        """
    ).to_arrow_table()
    ((slow, ordinary),) = con.execute(
        "select (select count(distinct request_key) from slow_requests), "
        "(select coalesce(sum(completed), 0) from request_facts)"
    ).fetchall()
    at = numpy_column(rows["start_unix_ns"]).astype(np.int64)
    middle = numpy_column(rows["middle_unix_ns"]).astype(np.int64)
    span = int(at.max() - at.min()) if len(at) else 0
    slice_ns = min(max(span // _WORKER_SLICES, _WORKER_MIN_NS), _WORKER_MAX_NS)
    keys = {k: np.asarray(rows[k].to_pylist(), dtype=object) for k in ("model", "phase", "worker")}
    values = {
        k: numpy_column(rows[k]).astype(np.float64) for k in ("decoding", "prefilling", "ratio")
    }
    control = numpy_column(rows["is_control"]) == 1
    contention: dict[str, list[object]] = {f.name: [] for f in _CONTENTION}
    workers: dict[str, list[object]] = {f.name: [] for f in _WORKERS}
    for model, phase in sorted(set(zip(keys["model"], keys["phase"], strict=True))):
        here = (keys["model"] == model) & (keys["phase"] == phase)
        # controls stand for all ordinary requests
        count = max(int((here & control).sum()), 1)
        weights = np.where(control[here], max(int(ordinary) - int(slow), count) / count, 1.0)
        load = np.column_stack([values["decoding"][here], values["prefilling"][here]])
        ratio = values["ratio"][here]
        usual = np.array([_quantile(load[:, i], weights, _USUAL_LOAD) for i in range(2)])
        fit = _price(load, ratio, weights)
        # where most of the window is busy, the load at which requests take what is expected is less
        priced = float(fit[1:] @ usual)
        if fit[0] + priced > 1.0 and priced > 0:
            usual = usual * max(1.0 - float(fit[0]), 0.0) / priced
        for name, value in zip(
            _CONTENTION.names, (model, phase, *fit, *usual, int(here.sum())), strict=True
        ):
            contention[name].append(value)
        _compare(
            workers,
            (model, phase),
            keys["worker"][here],
            at[here],
            middle[here],
            slice_ns,
            load,
            ratio,
            weights,
        )
    workers["slice_unix_ns"] = [int(s) * slice_ns for s in workers["slice_unix_ns"]]  # type: ignore[call-overload]
    return (
        arrow_table(contention, _CONTENTION),
        arrow_table(workers, _WORKERS),
        arrow_table({"slice_ns": [slice_ns]}),
    )


def _quantile(values: Floats, weights: Floats, tau: float) -> float:
    order = np.argsort(values)
    heap = np.cumsum(weights[order])
    return float(values[order][min(int(np.searchsorted(heap, heap[-1] * tau)), len(values) - 1)])


def _price(load: Floats, ratio: Floats, weights: Floats) -> Floats:
    """``alone, per_decoding, per_prefilling`` at the median; load costs nothing if n is small."""
    if len(ratio) >= _FIT_ROWS:
        features = np.column_stack([np.ones(len(ratio)), load])
        fit = quantile_fit(features, ratio, tau=0.5, weights=weights)
        if fit.any():
            return fit
    return np.array([_quantile(ratio, weights, 0.5), 0.0, 0.0])


def _compare(
    out: dict[str, list[object]],
    key: tuple[str, str],
    worker: npt.NDArray[np.object_],
    at: Ints,
    middle: Ints,
    slice_ns: int,
    load: Floats,
    ratio: Floats,
    weights: Floats,
) -> None:
    """Append one row per worker with enough requests and slice in which it served.

    A slow worker gathers load. Priced with its own requests in, the load would explain all of it:
    so each worker is measured by what load costs on the others (with very many, on all).
    """
    names = sorted(set(worker))
    slices = at // slice_ns
    price = _price(load, ratio, weights) if len(names) > _APART_MAX or len(names) < 2 else None
    for name in names:
        mine = worker == name
        if mine.sum() < _SLICE_ROWS:
            continue
        fit = price if price is not None else _price(load[~mine], ratio[~mine], weights[~mine])
        level = ratio / np.maximum(fit[0] + load @ fit[1:], 1e-9)
        others = np.flatnonzero(~mine)[np.argsort(middle[~mine], kind="stable")]
        found: dict[int, _Level] = {}
        beside: dict[int, _Level] = {}
        for s in np.unique(slices[mine]).tolist():
            away = np.abs(slices - s)
            # a slice with too few requests takes in its neighbours
            here = np.flatnonzero(mine & (away <= np.sort(away[mine])[_SLICE_ROWS - 1]))
            found[s] = _lower(level[here])
            paired, peers = _paired(middle, here, others, slice_ns // _MARGIN)
            if len(paired) >= _SLICE_ROWS and len(set(peers.tolist())) >= _SLICE_ROWS:
                found[s] = _lower(level[paired])
                beside[s] = _lower(level[peers], _effective(peers))
        for s, (n, low, error) in found.items():
            own = [v[1] for t, v in found.items() if t != s]
            peer_low, peer_error = _peers(s, found, beside)
            row = (
                *(*key, name, s, n, low, 0 if peer_low is None else len(names) - 1),
                peer_low,
                float(np.median(own)) if own else None,
                float(np.hypot(error, peer_error)),
            )
            for column, value in zip(_WORKERS.names, row, strict=True):
                out[column].append(value)


def _paired(at: Ints, rows: Ints, others: Ints, margin_ns: int) -> tuple[Ints, Ints]:
    """(those of ``rows`` that have peers beside them, these peers): both at the same times.

    A slice may be longer than what happens in it. Peers that were counted over all of it would be
    compared at times at which this worker served nothing. Each row takes as many of the peers'
    rows (``others``, by time), the nearest, so a peer's row may come more than once.
    """
    reach = np.arange(-_NEAREST, _NEAREST)
    places = np.searchsorted(at[others], at[rows])[:, None] + reach
    inside = (places >= 0) & (places < len(others))
    near = others[np.clip(places, 0, max(len(others) - 1, 0))] if len(others) else places
    away = np.where(inside, np.abs(at[near] - at[rows][:, None]), margin_ns + 1)
    order = np.argsort(away, axis=1, kind="stable")[:, :_NEAREST]
    near, away = np.take_along_axis(near, order, 1), np.take_along_axis(away, order, 1)
    whole = (away <= margin_ns).all(axis=1)
    return rows[whole], near[whole].ravel()


def _effective(rows: Ints) -> float:
    """How many rows these are worth, of which some come more than once."""
    _, counts = np.unique(rows, return_counts=True)
    return float(counts.sum() ** 2 / (counts**2).sum())


def _peers(
    s: int, found: Mapping[int, _Level], beside: Mapping[int, _Level]
) -> tuple[float | None, float]:
    """Level of the peers in slice ``s`` and its error; None if nothing tells.

    Where they served too little then, what they do at other times tells, as far as this worker
    was slower than they at those times too: everything may have been slow in this slice.
    """
    if s in beside:
        return beside[s][1], beside[s][2]
    if not beside:
        return None, 0.0
    own = float(np.median([found[t][1] for t in beside]))
    peers = float(np.median([v[1] for v in beside.values()]))
    error = float(np.median([v[2] for v in beside.values()]))
    return max(peers, found[s][1] - max(own - peers, 0.0)), error


def _lower(level: Floats, worth: float | None = None) -> _Level:
    """(n, lower quartile, its standard error): a slow worker slows all that it serves, so its
    quickest quarter tells it from a worker that some long prompt held up.

    ``worth``: how many independent rows they are, if not all.
    """
    if not len(level):
        return 0, 0.0, 0.0
    n = len(level) if worth is None else worth
    rank = 100.0 * (0.25 * 0.75 / n) ** 0.5
    low, high = np.percentile(level, (25, 75))
    # where only a part of the rows is slow, the quartile leaps from one part to the other
    below, above = np.percentile(level, (max(25 - rank, 0), 25 + rank))
    error = max(_ERROR * (high - low) / n**0.5, (above - below) / 2, _ERROR_MIN)
    return len(level), float(low), float(error)


_SAMPLES: Final = pa.schema(
    [
        ("worker", pa.string()),
        ("at_unix_ns", pa.int64()),
        ("kv_usage", pa.float64()),
        ("preemptions", pa.float64()),
        ("transfer_s", pa.float64()),
        ("transfer_bytes", pa.float64()),
        ("sm_clock_hz", pa.float64()),
        ("is_throttled", pa.int64()),
    ]
)
_SAMPLED: Final = ("metric_samples", "gpu_samples")
_RAW: Final = (*_SAMPLED, "legs")


def worker_samples(con: duckdb.DuckDBPyConnection) -> pa.Table:
    """Rows of ``sql/sources/worker_samples.sql`` near the window; none without raw samples."""
    if not defined(con, _RAW):
        return arrow_table({name: [] for name in _SAMPLES.names}, _SAMPLES)
    if not any(one(con, f"select count(*) from (from {n} limit 1)")[0] for n in _SAMPLED):
        return arrow_table({name: [] for name in _SAMPLES.names}, _SAMPLES)
    # by their texts: a connection that attribution runs on need not have views of them
    metrics = ", ".join(f"{n} as ({sqlfiles.load('sources', n).body})" for n in METRIC_VIEWS)
    body = sqlfiles.load("sources", "worker_samples").body
    ((first, last),) = con.execute(
        "select min(arrival_unix_ns), max(arrival_unix_ns) from request_facts"
    ).fetchall()
    if first is None:
        return arrow_table({name: [] for name in _SAMPLES.names}, _SAMPLES)
    margin = 600 * _SECOND_NS
    rows: pa.Table = con.sql(
        f"with {metrics} select * from ({body}) "
        f"where at_unix_ns between {first - margin} and {last + margin}"
    ).to_arrow_table()
    return rows.cast(_SAMPLES)


_TRANSFERS: Final = pa.schema([("suspect_id", pa.int64()), ("size_ms", pa.float64())])
_TRANSFER_ROWS: Final = 12
#: Of transfers of one size nothing tells what grows with it.
_TRANSFER_SPREAD: Final = 1.5


def transfer_costs(con: duckdb.DuckDBPyConnection) -> pa.Table:
    """The relation ``transfer_costs``: what of a KV transfer's excess grows with its size.

    Fitted per model on the suspects themselves: ``excess = constant + per size x size`` at the
    median. A wait costs large and small alike, a slow link costs by size. ``size_ms`` [ms].
    """
    rows = con.sql(
        """
        select s.suspect_id, s.model, s.excess_ms,
            coalesce(cast(f.kv_bytes as double), f.input_tokens) as size
        from suspect_load as s join request_facts as f on s.request_key = f.request_key
        where s.phase = 'kv_transfer' and s.is_control = 0 and s.excess_ms > 0
            and coalesce(cast(f.kv_bytes as double), f.input_tokens) > 0
        order by s.suspect_id
        """
    ).to_arrow_table()
    models = np.asarray(rows["model"].to_pylist(), dtype=object)
    excess = numpy_column(rows["excess_ms"]).astype(np.float64)
    size = numpy_column(rows["size"]).astype(np.float64)
    grown = np.full(len(excess), np.nan)
    for model in sorted(set(models)):
        here = models == model
        low, high = np.percentile(size[here], (10, 90)) if here.any() else (0.0, 0.0)
        if here.sum() < _TRANSFER_ROWS or high < _TRANSFER_SPREAD * low:
            continue
        features = np.column_stack([np.ones(int(here.sum())), size[here]])
        _, per_size = quantile_fit(features, excess[here], tau=0.5)
        grown[here] = np.minimum(per_size * size[here], excess[here])
    known = ~np.isnan(grown)
    ids = numpy_column(rows["suspect_id"]).astype(np.int64)
    return arrow_table({"suspect_id": ids[known], "size_ms": grown[known]}, _TRANSFERS)
