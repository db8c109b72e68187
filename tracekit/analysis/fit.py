"""What a phase should take, fitted from the traffic itself: the relation ``cost_model``.

Owns the cells, pooling, and the residuals that say how much a phase varies.
Applying the model is the job of ``sql/attribution/request_costs.sql``.

The expectation knows a request's *shape* only (tokens, cache, bytes), never concurrency or batch
size: those are how a fault acts, and conditioning on them would explain the fault away. It is a
low quantile, so it stays put while up to three quarters of the traffic are slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.analysis._arrow import arrow_table, numpy_column
from tracekit.analysis.modes import Modes, two_modes
from tracekit.analysis.quantile import quantile_fit
from tracekit.analysis.rules import Rules
from tracekit.analysis.swapped import Swapped, swapped_ranks

Floats = npt.NDArray[np.float64]

#: Version of the form of the model: raise it when formulas or columns change.
VERSION: Final = 2

#: Quantile of the fit: low on live traffic, the median on a reference window the user declared.
TAU_LIVE: Final = 0.25
TAU_BASELINE: Final = 0.5

#: Waits have no cost of their own: what counts is how short they are when nothing waits. Any
#: quantile of the traffic itself would call a queue ordinary as soon as enough requests queue.
WAITS: Final = frozenset({"client_wait", "queue"})

#: Rows a fit needs; below, it borrows from its model, then from everything, then there is none.
MIN_ROWS: Final = 30

#: Rows drawn per cell, and over all cells.
_CELL_ROWS: Final = 4_000
_TOTAL_ROWS: Final = 60_000
_CELL_ROWS_MIN: Final = 500

#: How wide normal noise is, from the absolute residuals near the fit (so that the slow part of the
#: traffic has no say): their quantile, the factor from it to one standard deviation, and how many
#: of those make three above the *median*, since the low fit lies 0.67 below it.
_SPREAD: Final[dict[float, tuple[float, float, float]]] = {
    TAU_LIVE: (0.25, 2.506, 3.67),
    TAU_BASELINE: (0.5, 1.483, 3.0),
}

#: What varies by more than this share of its expectation does so by load, and that is no excuse.
_SCALE_MAX: Final = 0.3

#: The same from the rows below the fit alone, for compute: half of them are within 0.476 deviations
#: of a lower quartile, within 0.674 of a median.
_BELOW: Final[dict[float, tuple[float, float, float]]] = {
    TAU_LIVE: (0.5, 2.101, 3.67),
    TAU_BASELINE: (0.5, 1.483, 3.0),
}

#: The quickest stretch of time holds at least one in so many requests.
_CALM_PARTS: Final = 10

#: A standardised residual larger than this is no ordinary variation.
RESIDUAL_CAP: Final = 6.0

#: Phases in column order, with the columns of the facts they grow with and their coefficients.
PHASE_TERMS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "client_wait": (("c0", "one"),),
    "network": (("c0", "one"),),
    "route": (("c0", "one"),),
    "frontend": (("c0", "one"),),
    "queue": (("c0", "one"),),
    "prefill": (("a0", "one"), ("a1", "uncached_tokens"), ("a2", "attended_tokens_sq")),
    "queue_or_prefill": (("a0", "one"), ("a1", "uncached_tokens"), ("a2", "attended_tokens_sq")),
    "kv_transfer": (("k0", "one"), ("k1", "kv_size")),
    "decode": (("g0", "steps"), ("g1", "step_context")),
}
PHASES: Final[tuple[str, ...]] = tuple(PHASE_TERMS)

#: Phases whose cost also grows with the context that each unit of their size attends to: the places
#: of the size and of size x context among their terms.
CONTEXT_TERMS: Final[dict[str, tuple[int, int]]] = {
    "prefill": (1, 2),
    "queue_or_prefill": (1, 2),
    "decode": (0, 1),
}

#: Phases that are held against their size, and may hide two kinds of requests.
_SERVICE: Final = ("prefill", "queue_or_prefill", "decode")

#: Phases whose zero means "not this request's way" and must not pull a fit down.
_SHAPED: Final = frozenset(p for p, terms in PHASE_TERMS.items() if len(terms) > 1)

#: Phases whose ordinary variation is told by the rows below the fit, since it is that of compute.
_JUDGED_BY_BELOW: Final = _SHAPED

_KEYS: Final = ("model", "engine", "engine_version", "topology")


@dataclass(frozen=True)
class PhaseFit:
    """Coefficients (in the order of PHASE_TERMS), scale ``s0 + s1 x expected``, and how it went.

    ``is_calm``: the median of the window's quickest stretch of time, not a low quantile of it all.
    ``reach`` is the largest size among the rows it was fitted on (uncached tokens, decode steps,
    or what a transfer moves), ``context_reach`` the largest mean context [tokens] that such a
    token or step attends to; None where the phase has no such size. Far beyond, it says nothing.
    """

    coefficients: tuple[float, ...]
    s0: float
    s1: float
    n: int
    level: str
    error: float
    is_calm: bool = False
    reach: float | None = None
    context_reach: float | None = None


@dataclass(frozen=True)
class Cell:
    """One cell of the cost model. ``level`` is the coarsest pool that one of its fits needed.

    ``modes`` are phases without a fit, since what they take falls into two groups.
    """

    model: str
    engine: str
    engine_version: str
    topology: str
    n: int
    level: str
    kv_per_byte: bool
    fits: Mapping[str, PhaseFit]
    modes: Mapping[str, Modes] = field(default_factory=dict)


@dataclass(frozen=True)
class CostModel:
    """All cells, and per cell the standardised residuals that confidence draws from.

    ``residuals[i]`` belongs to ``cells[i]``: rows x phases (order of PHASES), 0 where a phase was
    not seen, within ±6 scales. ``swapped`` are cells without a fit of prefill and decode,
    since each goes with the other's size.
    """

    cells: tuple[Cell, ...]
    tau: float
    source: str
    rows: int
    residuals: tuple[npt.NDArray[np.float32], ...] = field(repr=False, default=())
    swapped: tuple[Swapped, ...] = ()

    def to_arrow(self) -> pa.Table:
        """The relation ``cost_model``: one row per cell, a column per coefficient."""
        columns: dict[str, list[Any]] = {
            "cell_index": list(range(len(self.cells))),
            **{k: [getattr(c, k) for c in self.cells] for k in _KEYS},
            "level": [c.level for c in self.cells],
            "n": [c.n for c in self.cells],
            "tau": [self.tau for _ in self.cells],
            "source": [self.source for _ in self.cells],
            "version": [VERSION for _ in self.cells],
            "kv_transfer_per_byte": [int(c.kv_per_byte) for c in self.cells],
        }
        for phase, terms in PHASE_TERMS.items():
            fits = [c.fits.get(phase) for c in self.cells]
            for i, (name, _) in enumerate(terms):
                columns[f"{phase}_{name}"] = [f.coefficients[i] if f else None for f in fits]
            columns[f"{phase}_s0"] = [f.s0 if f else None for f in fits]
            columns[f"{phase}_s1"] = [f.s1 if f else None for f in fits]
            columns[f"{phase}_error"] = [f.error if f else None for f in fits]
            columns[f"{phase}_n"] = [f.n if f else 0 for f in fits]
            columns[f"{phase}_borrowed"] = [int(f.level != "cell") if f else 0 for f in fits]
            for name in reach_columns(phase):
                columns[f"{phase}_{name}"] = [getattr(f, name) if f else None for f in fits]
        return arrow_table(columns, COST_MODEL_SCHEMA)


def reach_columns(phase: str) -> tuple[str, ...]:
    """The columns that say up to which size a phase was fitted, without its name in front."""
    if phase not in _SHAPED:
        return ()
    return ("reach", "context_reach") if phase in CONTEXT_TERMS else ("reach",)


def _cost_model_schema() -> pa.Schema:
    fields = [pa.field("cell_index", pa.int64())]
    fields += [pa.field(k, pa.string()) for k in (*_KEYS, "level")]
    fields += [
        pa.field("n", pa.int64()),
        pa.field("tau", pa.float64()),
        pa.field("source", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("kv_transfer_per_byte", pa.int64()),
    ]
    for phase, terms in PHASE_TERMS.items():
        fields += [pa.field(f"{phase}_{name}", pa.float64()) for name, _ in terms]
        fields += [pa.field(f"{phase}_{c}", pa.float64()) for c in ("s0", "s1", "error")]
        fields += [pa.field(f"{phase}_{c}", pa.int64()) for c in ("n", "borrowed")]
        fields += [pa.field(f"{phase}_{c}", pa.float64()) for c in reach_columns(phase)]
    return pa.schema(fields)


#: Columns of ``cost_model``, the same whether or not there are cells.
COST_MODEL_SCHEMA: Final[pa.Schema] = _cost_model_schema()


def fit_phase(
    features: Floats, values: Floats, *, tau: float, weights: Floats, level: str
) -> PhaseFit:
    """Fit one phase twice: plainly, then with rows weighted by 1 / expected.

    The second pass lets short requests count as much as long ones (noise grows with size), so the
    constant is not left to chance. Waits (a lone constant) vary by amounts, compute by factors.
    """
    spread_tau, factor, reach = _SPREAD[tau]
    if features.shape[1] == 1:
        constant = _weighted_quantile(values, weights, tau)
        off = np.abs(values - constant)
        s0 = reach / 3 * factor * _weighted_quantile(off, weights, spread_tau)
        return PhaseFit((constant,), s0, 0.0, len(values), level, _error(off, values, weights))
    rough = features @ quantile_fit(features, values, tau=tau, weights=weights)
    floor = max(1.0, 0.1 * float(np.median(rough)))
    even = weights / (rough + floor)
    coefficients = quantile_fit(features, values, tau=tau, weights=even)
    expected = features @ coefficients
    s0, s1 = _shaped_scale(values, expected, even, tau)
    error = _error(np.abs(values - expected), values, weights)
    return PhaseFit(tuple(map(float, coefficients)), s0, s1, len(values), level, error)


def _shaped_scale(
    values: Floats, expected: Floats, weights: Floats, tau: float
) -> tuple[float, float]:
    """``s0, s1`` such that three scales above the fit are three deviations above the median.

    Compute time varies by factors, so the deviation is one of logarithms, plus a constant that
    matters for small requests only: ``deviation = b0 + b1 / expected``.
    """
    spread_tau, factor, reach = _BELOW[tau]
    # below the fit lies what no fault has slowed
    keep = (values > 0) & (expected > 0) & (values <= expected)
    if not keep.any():
        return 0.0, 0.0
    off = np.abs(np.log(values[keep] / expected[keep]))
    terms = np.column_stack([np.ones(len(off)), 1.0 / expected[keep]])
    b0, b1 = factor * quantile_fit(terms, off, tau=spread_tau, weights=weights[keep])
    wide = float(np.exp(min(reach * b0, 5.0)))
    return float(reach / 3 * b1 * wide), min((wide - 1) / 3, _SCALE_MAX)


def _sizes(phase: str, features: Floats) -> Floats:
    """Rows x one or two columns: how large each is, and the mean context of a unit of that size."""
    if phase not in CONTEXT_TERMS:
        return features[:, 1:]
    size, by_context = CONTEXT_TERMS[phase]
    unit = np.maximum(features[:, size], 1e-9)
    return np.column_stack([features[:, size], features[:, by_context] / unit])


def _with_reach(fit: PhaseFit, phase: str, features: Floats) -> PhaseFit:
    largest = [float(v) for v in _sizes(phase, features).max(axis=0)]
    return replace(
        fit, reach=largest[0], context_reach=largest[1] if phase in CONTEXT_TERMS else None
    )


def _calm(
    fit: PhaseFit,
    phase: str,
    features: Floats,
    values: Floats,
    weights: Floats,
    at: Floats,
    *,
    size_reach: float,
) -> PhaseFit:
    """The fit, or the median of the quickest stretch of time if that is lower still.

    A load that lasts for most of the window moves even its low quantile. In traffic whose stretches
    are alike the median of none lies below the quarter of all. A stretch without the large requests
    of the window tells nothing about them (and may be the quickest since they stayed away).
    """
    known = ~np.isnan(at)
    least = max(MIN_ROWS, -(-int(known.sum()) // _CALM_PARTS))
    if known.sum() < 4 * least:
        return fit
    expected = np.maximum(features @ np.array(fit.coefficients), 1e-9)
    edges = np.linspace(at[known].min(), at[known].max(), 2 * _CALM_PARTS + 1)
    place = np.where(known, np.clip(np.searchsorted(edges, at, side="right") - 1, 0, None), -1)
    place = np.minimum(place, 2 * _CALM_PARTS - 1)
    ratio = values / expected
    sizes = _sizes(phase, features)
    needed = sizes.max(axis=0) / size_reach
    best, calm = 1.0, None
    for low in range(2 * _CALM_PARTS):
        high = low + int(
            np.searchsorted(
                np.cumsum(np.bincount(place[known], minlength=2 * _CALM_PARTS)[low:]), least
            )
        )
        inside = (place >= low) & (place <= high)
        if inside.sum() < least:
            break
        if (sizes[inside].max(axis=0) < needed).any():
            continue
        middle = _weighted_quantile(ratio[inside], weights[inside], 0.5)
        if middle < best:
            best, calm = middle, inside
    if calm is None:
        return fit
    made = fit_phase(
        features[calm], values[calm], tau=TAU_BASELINE, weights=weights[calm], level=fit.level
    )
    return _with_reach(replace(made, is_calm=True), phase, features[calm])


def _fit_wait(values: Floats, level: str) -> PhaseFit:
    """The wait when nothing waits. How much waits vary is no measure of them: it is the queue."""
    return PhaseFit((float(values.min()),), 0.0, 0.0, len(values), level, 0.0)


def _error(off: Floats, values: Floats, weights: Floats) -> float:
    """Median absolute residual as a share of the median."""
    centre = _weighted_quantile(values, weights, 0.5)
    return _weighted_quantile(off, weights, 0.5) / centre if centre > 0 else 0.0


def _weighted_quantile(values: Floats, weights: Floats, tau: float) -> float:
    order = np.argsort(values)
    heap = np.cumsum(weights[order])
    return float(values[order][min(np.searchsorted(heap, tau * heap[-1]), len(values) - 1)])


def fit_cost_model(
    con: duckdb.DuckDBPyConnection,
    *,
    facts: str = "request_facts",
    reference: str = "request_facts",
    baseline: bool = False,
    size_reach: float = Rules.size_reach,
) -> CostModel:
    """Fit every cell seen in the relation ``facts`` on the completed rows of ``reference``.

    Reads at most some 60,000 rows, drawn by a hash of the key, so the same data give the same
    model. A cell none of whose phases can be fitted is absent. ``size_reach`` is how many times the
    largest size of a stretch of time its fit may speak of.
    """
    tau = TAU_BASELINE if baseline else TAU_LIVE
    counts = _cells(con, facts)
    sample = _draw(con, reference, counts if reference == facts else _cells(con, reference))
    keys = [tuple(str(row[k]) for k in _KEYS) for row in counts.to_pylist()]
    masks = [sample.where(_KEYS, key) for key in keys]
    swapped = tuple(_without_swapped(sample, counts, masks))
    made: list[Cell] = []
    pools: list[npt.NDArray[np.float32]] = []
    for key, in_cell, n in zip(keys, masks, counts["n"].to_pylist(), strict=True):
        cell, rows = _fit_cell(sample, key, in_cell, int(n), tau, size_reach)
        if cell is not None:
            cell = _refused(sample, cell, rows)
            made.append(cell)
            pools.append(_residuals(sample, cell, rows, tau))
    source = "baseline" if baseline else "window"
    return CostModel(tuple(made), tau, source, sample.n, tuple(pools), swapped)


def _without_swapped(
    sample: _Sample, counts: pa.Table, masks: Sequence[npt.NDArray[np.bool_]]
) -> Iterator[Swapped]:
    """Forget the prefill and decode of cells where they look swapped; what was forgotten.

    They are neither fitted nor lent to other cells.
    """
    names = ("prefill_ms", "decode_ms", "uncached_tokens", "steps")
    for row, rows in zip(counts.to_pylist(), masks, strict=True):
        found = swapped_ranks(*(sample.values[name][rows] for name in names))
        if found is not None:
            for name in names[:2]:
                sample.values[name][rows] = np.nan
            yield Swapped(row["engine"], row["engine_version"], int(row["n"]), *found)


@dataclass(frozen=True)
class _Sample:
    """Drawn rows as arrays: keys as text, everything else as float64 with NaN for missing."""

    n: int
    keys: Mapping[str, npt.NDArray[np.object_]]
    labels: Mapping[str, npt.NDArray[np.object_]]
    values: Mapping[str, Floats]
    weights: Floats

    def where(self, names: Sequence[str], key: Sequence[str]) -> npt.NDArray[np.bool_]:
        keep = np.ones(self.n, dtype=bool)
        for name, value in zip(names, key, strict=True):
            keep &= self.keys[name] == value
        return keep


_LABELS: Final = ("worker", "prefill_worker")
_TERMS: Final = ("uncached_tokens", "attended_tokens_sq", "steps", "step_context")


def _cells(con: duckdb.DuckDBPyConnection, relation: str) -> pa.Table:
    """Each cell of a relation, with all of its requests and those that are completed."""
    keys = ", ".join(_KEYS)
    return con.sql(
        f"select {keys}, cast(sum(completed + censored) as bigint) as n, "
        "cast(sum(completed) as bigint) as completed "
        f"from {relation} group by {keys} order by {keys}"
    ).to_arrow_table()


def _draw(con: duckdb.DuckDBPyConnection, relation: str, counts: pa.Table) -> _Sample:
    per_cell = max(_CELL_ROWS_MIN, min(_CELL_ROWS, _TOTAL_ROWS // max(1, counts.num_rows)))
    # powers of two: what one step draws, a smaller one draws too, so the smallest can go first
    steps = [1 << (max(0, n - 1) // per_cell).bit_length() for n in counts["completed"].to_pylist()]
    step = arrow_table({"step": steps}, pa.schema([("step", pa.int64())]))["step"]
    con.register("_steps", counts.append_column("step", step))
    # a prompt computed again on the decode server is never what its shape should cost
    again = {"prefill": "f.prefill_ms - coalesce(f.double_prefill_ms, 0.0) as prefill_ms"}
    phases = ", ".join(again.get(p, f"f.{p}_ms") for p in PHASES)
    on = " and ".join(f"f.{k} = c.{k}" for k in _KEYS)
    try:
        rows = con.sql(
            f"""
            select {", ".join(f"f.{k}" for k in _KEYS)}, {", ".join(f"f.{t}" for t in _TERMS)},
                {phases}, f.input_tokens, cast(f.kv_bytes as double) as kv_bytes,
                {", ".join(f"coalesce(f.{c}, '') as {c}" for c in _LABELS)}, f.arrival_unix_ns,
                cast(c.step as double) as weight
            from {relation} as f join _steps as c on {on}
            where f.completed = 1 and hash(f.request_key) % {min(steps, default=1)} = 0
                and hash(f.request_key) % c.step = 0
            order by f.request_key
            """
        ).to_arrow_table()
    finally:
        con.unregister("_steps")
    values = {
        name: numpy_column(rows[name]).astype(np.float64)
        for name in rows.column_names
        if name not in (*_KEYS, *_LABELS, "weight")
    }
    values["one"] = np.ones(rows.num_rows)
    texts = {k: np.asarray(rows[k].to_pylist(), dtype=object) for k in (*_KEYS, *_LABELS)}
    keys, labels = ({k: texts[k] for k in names} for names in (_KEYS, _LABELS))
    weights = numpy_column(rows["weight"]).astype(np.float64)
    return _Sample(rows.num_rows, keys, labels, values, weights)


def _fit_cell(
    sample: _Sample,
    key: tuple[str, ...],
    in_cell: npt.NDArray[np.bool_],
    n: int,
    tau: float,
    size_reach: float,
) -> tuple[Cell | None, npt.NDArray[np.bool_]]:
    pools = (
        ("cell", in_cell),
        ("model", sample.where(_KEYS[:1], key[:1])),
        ("all", np.ones(sample.n, dtype=bool)),
    )
    moved = in_cell & (np.nan_to_num(sample.values["kv_transfer_ms"]) > 0)
    per_byte = bool(moved.any() and not np.isnan(sample.values["kv_bytes"][moved]).any())
    fits: dict[str, PhaseFit] = {}
    enough = int(in_cell.sum()) >= MIN_ROWS
    for phase in PHASES:
        # a phase that a well-filled cell never shows has nothing to judge there: borrow no fit
        if enough and not _seen(sample, phase, in_cell):
            continue
        for level, pool in pools:
            features, values, weights, kept = _rows_of(sample, phase, pool, per_byte)
            if len(values) >= MIN_ROWS:
                if phase in WAITS and tau != TAU_BASELINE:
                    fits[phase] = _fit_wait(values, level)
                else:
                    fit = fit_phase(features, values, tau=tau, weights=weights, level=level)
                    if phase in _SHAPED:
                        fit = _with_reach(fit, phase, features)
                    if phase in _SHAPED and tau != TAU_BASELINE:
                        at = sample.values["arrival_unix_ns"][kept]
                        fit = _calm(
                            fit, phase, features, values, weights, at, size_reach=size_reach
                        )
                    fits[phase] = fit
                break
    if not fits:
        return None, in_cell
    levels = [f.level for f in fits.values()]
    level = next(lv for lv in ("all", "model", "cell") if lv in levels)
    own = in_cell if enough else pools[2][1]
    model, engine, engine_version, topology = key
    cell = Cell(model, engine, engine_version, topology, n, level, per_byte, fits)
    return cell, own


def _refused(sample: _Sample, cell: Cell, rows: npt.NDArray[np.bool_]) -> Cell:
    """The cell without the fits of phases that fall into two groups."""
    modes: dict[str, Modes] = {}
    for phase, fit in cell.fits.items():
        if phase not in _SERVICE or fit.level != "cell":
            continue
        expected = _features(sample, phase, cell.kv_per_byte) @ np.array(fit.coefficients)
        actual = sample.values[f"{phase}_ms"]
        seen = rows & (np.nan_to_num(actual) > 0) & (np.nan_to_num(expected) > 0)
        label = sample.labels["worker" if phase == "decode" else "prefill_worker"][seen]
        _, worker = np.unique(label.astype(str), return_inverse=True)
        at = sample.values["arrival_unix_ns"][seen]
        found = two_modes(actual[seen] / expected[seen], worker, at)
        if found is not None:
            modes[phase] = found
    if not modes:
        return cell
    fits = {phase: fit for phase, fit in cell.fits.items() if phase not in modes}
    return replace(cell, fits=fits, modes=modes)


def _seen(sample: _Sample, phase: str, rows: npt.NDArray[np.bool_]) -> bool:
    return bool((~np.isnan(sample.values[f"{phase}_ms"][rows])).any())


def _features(sample: _Sample, phase: str, per_byte: bool) -> Floats:
    size = "kv_bytes" if per_byte else "input_tokens"
    names = [size if column == "kv_size" else column for _, column in PHASE_TERMS[phase]]
    return np.column_stack([sample.values[name] for name in names])


def _rows_of(
    sample: _Sample, phase: str, pool: npt.NDArray[np.bool_], per_byte: bool
) -> tuple[Floats, Floats, Floats, npt.NDArray[np.bool_]]:
    values = sample.values[f"{phase}_ms"]
    features = _features(sample, phase, per_byte)
    keep = pool & ~np.isnan(values) & ~np.isnan(features).any(axis=1)
    if phase in _SHAPED:
        keep &= np.nan_to_num(values) > 0
    return features[keep], values[keep], sample.weights[keep], keep


def _residuals(
    sample: _Sample, cell: Cell, rows: npt.NDArray[np.bool_], tau: float
) -> npt.NDArray[np.float32]:
    out = np.zeros((int(rows.sum()), len(PHASES)), dtype=np.float32)
    for i, phase in enumerate(PHASES):
        fit = cell.fits.get(phase)
        if fit is None:
            continue
        expected = _features(sample, phase, cell.kv_per_byte)[rows] @ np.array(fit.coefficients)
        scale = np.maximum(fit.s0 + fit.s1 * expected, 1.0)
        off = (sample.values[f"{phase}_ms"][rows] - expected) / scale
        seen = ~np.isnan(off)
        if phase in _JUDGED_BY_BELOW:
            off[seen] = _ordinary(off[seen], TAU_BASELINE if fit.is_calm else tau)
        out[:, i] = np.clip(np.nan_to_num(off), -RESIDUAL_CAP, RESIDUAL_CAP)
    return out


def _ordinary(off: Floats, tau: float) -> Floats:
    """Standardised residuals with those above the healthy median as those below it, mirrored.

    Above it lies what faults have slowed too: drawn as ordinary variation, a fault that half of the
    traffic has would make it doubtful that it is one. Ranks stay, and so do what phases share.
    """
    *_, reach = _BELOW[tau]
    # three scales above the fit are three deviations above the median
    median = (reach - 3.0) * 3.0 / reach
    order = np.argsort(off, kind="stable")
    below = off[order][off[order] <= median]
    upper = order[len(below) :]
    if not len(below) or not len(upper):
        return off
    mirrored = 2.0 * median - np.quantile(below, np.linspace(1.0, 0.0, len(upper)))
    out = off.copy()
    out[upper] = np.minimum(off[upper], mirrored)
    return out
