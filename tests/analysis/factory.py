"""Synthetic requests whose costs follow their shape exactly, and faults put on top of them.

No queueing is simulated: a clean request takes what its tokens cost times a little noise, and a
fault adds known milliseconds to known requests. So a test knows the phase, the cause and the
amount. `Traffic.connect` gives a DuckDB connection with the relations that a session defines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.lake.schema import TABLES

START_NS = 1_795_982_400_000_000_000
PHASES = (
    "client_wait",
    "network",
    "route",
    "frontend",
    "queue",
    "prefill",
    "queue_or_prefill",
    "kv_transfer",
    "decode",
)
Floats = npt.NDArray[np.float64]

# what a clean request costs: the truth that fits are held against
FRONTEND_MS = 4.0
PREFILL_MS = (8.0, 0.05, 1e-6)
DECODE_MS = (9.0, 2e-4)
KV_MS = (6.0, 0.004)


@dataclass
class Traffic:
    """Requests as columns; the phases are arrays of ms, NaN where the source does not know."""

    n: int
    columns: dict[str, Any]
    phases: dict[str, Floats]
    gaps: list[dict[str, Any]] = field(default_factory=list)
    drop_clock: bool = False

    def keys(self, rows: npt.NDArray[Any]) -> set[str]:
        """The request keys of these rows (indices or a mask)."""
        return {str(k) for k in np.asarray(self.columns["request_key"])[rows]}

    def add(self, phase: str, rows: npt.NDArray[Any], extra_ms: float | Floats) -> None:
        """Put `extra_ms` on a phase of these rows."""
        self.phases[phase][rows] += extra_ms

    def set(self, column: str, rows: npt.NDArray[Any], value: Any) -> None:
        """Overwrite a column of these rows (None = missing)."""
        values = np.asarray(self.columns[column], dtype=object)
        values[rows] = value
        self.columns[column] = values

    def interval_ns(self, phase: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Start and end of a phase of every request, in unix ns."""
        before = PHASES[: PHASES.index(phase)]
        start = np.asarray(self.columns["start_unix_ns"], dtype=np.int64)
        for p in before:
            start = start + (np.nan_to_num(self.phases[p]) * 1e6).astype(np.int64)
        return start, start + (np.nan_to_num(self.phases[phase]) * 1e6).astype(np.int64)

    def stall_decodes(self, culprits: npt.NDArray[np.int64], *, gaps: bool = True) -> list[int]:
        """Stop every decode on a culprit's worker while it prefills; returns the victims' rows.

        With `gaps` each stop is also a token gap that the client saw.
        """
        worker = np.asarray(self.columns["worker"], dtype=object)
        prefill = self.interval_ns("prefill")
        decode = self.interval_ns("decode")
        victims: dict[int, float] = {}
        for q in culprits:
            low = np.maximum(decode[0], prefill[0][q])
            high = np.minimum(decode[1], prefill[1][q])
            for v in np.flatnonzero((worker == worker[q]) & (high > low)):
                if v == q:
                    continue
                ms = float(high[v] - low[v]) / 1e6
                victims[int(v)] = victims.get(int(v), 0.0) + ms
                if gaps:
                    self.gaps.append(
                        {
                            "request_key": self.columns["request_key"][v],
                            "revision": 1,
                            "gap_index": len(self.gaps) + 1,
                            "start_unix_ns": int(low[v]),
                            "end_unix_ns": int(high[v]),
                            "gap_ms": ms,
                            "tokens": 1,
                            "is_stall": 1,
                            "excess_ms": ms,
                        }
                    )
        for row, lost in victims.items():
            self.phases["decode"][row] += lost
        return sorted(victims)

    def merge_queue_and_prefill(self, rows: npt.NDArray[Any]) -> None:
        """Make these rows look as a client sees them: everything before the first token is one."""
        before = ["network", "route", "frontend", "queue", "prefill", "kv_transfer"]
        known = [np.nan_to_num(self.phases[p][rows]) for p in before]
        self.phases["queue_or_prefill"][rows] = np.sum(known, axis=0)
        for p in before:
            self.phases[p][rows] = np.nan

    @property
    def ttft_ms(self) -> Floats:
        total: Floats = np.sum([np.nan_to_num(self.phases[p]) for p in PHASES[:-1]], axis=0)
        return total

    @property
    def e2e_ms(self) -> Floats:
        return self.ttft_ms + np.nan_to_num(self.phases["decode"]) + self.unexplained_ms

    @property
    def unexplained_ms(self) -> Floats:
        return np.asarray(self.columns["unexplained_ms"], dtype=np.float64)

    def requests(self) -> pa.Table:
        """Rows of the table `requests`."""
        out = dict(self.columns)
        tokens = np.array([t or 0 for t in out["output_tokens"]], dtype=np.float64)
        decode = self.phases["decode"]
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = np.where(tokens > 1, decode / (tokens - 1), np.nan)
        start = np.asarray(out["start_unix_ns"], dtype=np.int64)
        derived: dict[str, Any] = {
            "ttft_ms": self.ttft_ms,
            "tpot_ms": tpot,
            "e2e_ms": self.e2e_ms,
            "end_unix_ns": start + (self.e2e_ms * 1e6).astype(np.int64),
            "coverage": 1 - self.unexplained_ms / np.maximum(self.e2e_ms, 1e-9),
            "has_clock": np.full(self.n, 0 if self.drop_clock else 1),
            "leg_roles": ["client,engine"] * self.n,
            "tokens_per_s": tokens / np.maximum(self.e2e_ms, 1e-9) * 1e3,
        }
        derived |= {f"{p}_ms": self.phases[p] for p in PHASES}
        for name, values in derived.items():
            out.setdefault(name, values)
        if self.drop_clock:
            for name in ("start_unix_ns", "end_unix_ns", "intended_start_unix_ns"):
                out[name] = [None] * self.n
        schema = TABLES["requests"].schema
        return pa.table([_column(out.get(f.name), f, self.n) for f in schema], schema=schema)

    def phase_rows(self) -> pa.Table:
        """Rows of the table `phases`: the phases one after another from the start."""
        schema = TABLES["phases"].schema
        parts: list[pa.Table] = []
        at = np.asarray(self.columns["start_unix_ns"], dtype=np.int64)
        for phase in PHASES:
            ms = self.phases[phase]
            known = ~np.isnan(ms)
            end = at + (np.nan_to_num(ms) * 1e6).astype(np.int64)
            rows = np.flatnonzero(known & (np.nan_to_num(ms) > 0))
            data = {
                "request_key": np.asarray(self.columns["request_key"])[rows],
                "revision": np.ones(len(rows), dtype=np.int64),
                "phase": [phase] * len(rows),
                "start_unix_ns": at[rows],
                "end_unix_ns": end[rows],
                "duration_ms": ms[rows],
                "provenance": ["measured"] * len(rows),
                "worker": np.asarray(self.columns["worker"], dtype=object)[rows],
            }
            parts.append(
                pa.table([_column(data.get(f.name), f, len(rows)) for f in schema], schema=schema)
            )
            at = end
        return pa.concat_tables(parts)

    def gap_rows(self) -> pa.Table:
        """Rows of the table `token_gaps`."""
        schema = TABLES["token_gaps"].schema
        return pa.Table.from_pylist(
            [{f.name: g.get(f.name) for f in schema} for g in self.gaps], schema=schema
        )

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A connection with the relations of a session; `legs` and `request_log` are empty."""
        con = duckdb.connect()
        for name, rows in (
            ("requests", self.requests()),
            ("phases", self.phase_rows()),
            ("token_gaps", self.gap_rows()),
            ("legs", TABLES["legs"].schema.empty_table()),
            ("request_log", TABLES["request_log"].schema.empty_table()),
        ):
            con.register("incoming", rows)
            con.execute(f"create temp table {name} as select * from incoming")
            con.unregister("incoming")
        con.execute("create temp view window_requests as select * from requests")
        return con


def _column(values: Any, field_: pa.Field, n: int) -> pa.Array:
    if values is None:
        return pa.nulls(n, field_.type)
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        values = pa.array(values, from_pandas=True)
        if pa.types.is_integer(field_.type):
            return values.cast(field_.type, safe=False)
        return values
    return pa.array(list(values) if isinstance(values, np.ndarray) else values, field_.type)


def clean(
    n: int = 600,
    *,
    seed: int = 1,
    model: str = "m8b",
    route: str = "chat",
    workers: int = 2,
    noise: float = 0.08,
    long_share: float = 0.0,
    long_tokens: int = 24_000,
    disaggregated: bool = False,
    cached_share: float = 0.0,
    every_ms: float = 400.0,
) -> Traffic:
    """Healthy traffic: costs follow the shape times log-normal noise; short queues and frontends.

    `long_share` of the prompts have about `long_tokens` tokens, the others some hundreds.
    """
    rng = np.random.default_rng(seed)
    tokens_in = np.exp(rng.normal(6.0, 0.7, n)).clip(16, 4_000).astype(np.int64)
    is_long = rng.random(n) < long_share
    tokens_in[is_long] = (long_tokens * rng.uniform(0.85, 1.15, is_long.sum())).astype(np.int64)
    cached = np.where(rng.random(n) < cached_share, tokens_in * 3 // 4, 0)
    tokens_out = np.exp(rng.normal(4.6, 0.5, n)).clip(2, 1_500).astype(np.int64)
    uncached = (tokens_in - cached).astype(np.float64)

    def wobble() -> Floats:
        return np.exp(rng.normal(0, noise, n))

    steps = tokens_out - 1.0
    a0, a1, a2 = PREFILL_MS
    prefill = (a0 + a1 * uncached + a2 * uncached * (cached + uncached / 2)) * wobble()
    g0, g1 = DECODE_MS
    decode = steps * (g0 + g1 * (tokens_in + tokens_out / 2)) * wobble()
    missing = np.full(n, np.nan)
    phases = {p: missing.copy() for p in PHASES}
    phases["frontend"] = FRONTEND_MS * wobble()
    phases["queue"] = rng.exponential(1.5, n)
    phases["prefill"] = prefill
    phases["decode"] = decode
    if disaggregated:
        phases["kv_transfer"] = (KV_MS[0] + KV_MS[1] * tokens_in) * wobble()
    worker = np.array([f"w{i % workers}" for i in range(n)], dtype=object)
    start = START_NS + (np.cumsum(rng.exponential(every_ms, n)) * 1e6).astype(np.int64)
    columns: dict[str, Any] = {
        "request_key": np.array([f"k{seed:02d}-{i:07d}" for i in range(n)], dtype=object),
        "revision": np.ones(n, dtype=np.int64),
        "request_id": np.array([f"req-{seed:02d}-{i:07d}" for i in range(n)], dtype=object),
        "trace_id": np.array([f"{seed:02d}{i:030d}" for i in range(n)], dtype=object),
        "superseded_attempt": np.zeros(n, dtype=np.int64),
        "choices": np.ones(n, dtype=np.int64),
        "start_unix_ns": start,
        "model": [model] * n,
        "engine": ["vllm"] * n,
        "route": [route] * n,
        "worker": worker,
        "prefill_worker": np.array(["p0"] * n, dtype=object) if disaggregated else None,
        "decode_worker": worker if disaggregated else None,
        "input_tokens": tokens_in.astype(object),
        "cached_tokens": cached.astype(object),
        "output_tokens": tokens_out.astype(object),
        "status": np.array(["ok"] * n, dtype=object),
        "ttft_kind": ["server"] * n,
        "unexplained_ms": np.zeros(n),
    }
    return Traffic(n, columns, phases)


def join(*parts: Traffic) -> Traffic:
    """Several traffics as one (their seeds must differ: the keys come from them)."""
    columns: dict[str, Any] = {}
    for name in parts[0].columns:
        columns[name] = np.concatenate(
            [
                np.asarray([None] * p.n if p.columns[name] is None else p.columns[name], object)
                for p in parts
            ]
        )
    phases = {p: np.concatenate([t.phases[p] for t in parts]) for p in PHASES}
    gaps = [g for p in parts for g in p.gaps]
    return Traffic(sum(p.n for p in parts), columns, phases, gaps)
