"""Writes what scrapers and samplers saw of a replay: Prometheus metrics and GPU windows.

Owns the names (vLLM's, `docs` of the engine's metrics endpoint) and the sampling. Values are read
off the engines' own records at fixed times, as a scrape would; the GPU's clock is what an NVML
sampler on the machine would read.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from attribution.cluster import Replay
from attribution.emit import MODEL, T0_UNIX_NS, host, service
from attribution.engine import SAMPLE_FIELDS
from tracekit.lake.schema import GPU_SAMPLES

_SCRAPE_S: Final = 2.0
_GPU_WINDOW_S: Final = 1.0
_BASE_CLOCK_HZ: Final = 1_755_000_000
#: NVML clock event reasons: nothing, idle, SW thermal slowdown.
_NONE, _IDLE, _THERMAL = 0x0, 0x1, 0x20

Json = dict[str, Any]

#: metric -> (sample field, is a counter)
_SERIES: Final = {
    "vllm:num_requests_running": ("running", False),
    "vllm:num_preemptions_total": ("preemptions", True),
    "vllm:prefix_cache_hits_total": ("cached_tokens", True),
    "vllm:generation_tokens_total": ("generated_tokens", True),
}


def write_metrics(replay: Replay, folder: Path) -> list[Path]:
    """One OTLP metrics message an engine, scraped every two seconds."""
    path = folder / "metrics.jsonl"
    with path.open("wb") as out:
        for index in range(replay.system.engines):
            out.write(orjson.dumps(_engine_metrics(replay, index)) + b"\n")
    return [path]


def _engine_metrics(replay: Replay, index: int) -> Json:
    engine = replay.engines[index]
    times = np.arange(0.0, replay.end_s, _SCRAPE_S)
    starts = [s[0] for s in engine.samples]
    column = {name: i for i, name in enumerate(SAMPLE_FIELDS)}
    empty = (0.0,) * len(SAMPLE_FIELDS)
    seen = [
        engine.samples[k - 1] if (k := bisect_right(starts, float(t))) else empty for t in times
    ]
    points: dict[str, list[tuple[float, Json]]] = {}

    def add(name: str, values: list[float], **labels: str) -> None:
        attributes = {"engine": "0", "model_name": MODEL, **labels}
        points.setdefault(name, []).extend((v, attributes) for v in values)

    def field(name: str) -> list[float]:
        return [float(s[column[name]]) for s in seen]

    for name, (source, _) in _SERIES.items():
        add(name, field(source))
    waiting, loading = field("waiting"), field("loading")
    add("vllm:num_requests_waiting", [a + b for a, b in zip(waiting, loading, strict=True)])
    limit = [s[column["kv_limit"]] or 1 for s in seen]
    used = field("kv_tokens")
    add("vllm:kv_cache_usage_perc", [min(u / m, 1.0) for u, m in zip(used, limit, strict=True)])
    computed, hit, external = (
        field("prompt_tokens"),
        field("cached_tokens"),
        field("external_tokens"),
    )
    add("vllm:prefix_cache_queries_total", [a + b for a, b in zip(computed, hit, strict=True)])
    sources = (("local_compute", computed), ("local_cache_hit", hit))
    for source, values in (*sources, ("external_kv_transfer", external)):
        add("vllm:prompt_tokens_by_source_total", values, source=source)
    metrics = [
        _metric(name, times, rows, counter=name.endswith("_total")) for name, rows in points.items()
    ]
    if replay.system.prefill_engines and index >= replay.system.prefill_engines:
        metrics += _transfers(replay, index, times)
    name, instance = service(replay, index)
    resource = [
        {"key": k, "value": {"stringValue": v}}
        for k, v in (
            ("service.name", name),
            ("service.instance.id", instance),
            ("host.name", host(replay, index)),
        )
    ]
    scope = {"scope": {"name": "prometheus"}, "metrics": metrics}
    return {"resourceMetrics": [{"resource": {"attributes": resource}, "scopeMetrics": [scope]}]}


def _labels(labels: Json) -> list[Json]:
    return [{"key": k, "value": {"stringValue": v}} for k, v in labels.items()]


def _metric(name: str, times: np.ndarray, rows: list[tuple[float, Json]], *, counter: bool) -> Json:
    data = [
        {
            "timeUnixNano": str(T0_UNIX_NS + int(times[k % len(times)] * 1e9)),
            "asDouble": value,
            "attributes": _labels(labels),
        }
        for k, (value, labels) in enumerate(rows)
    ]
    if not counter:
        return {"name": name, "gauge": {"dataPoints": data}}
    return {"name": name, "sum": {"dataPoints": data, "aggregationTemporality": 2,
                                  "isMonotonic": True}}  # fmt: skip


def _transfers(replay: Replay, index: int, times: np.ndarray) -> list[Json]:
    """NIXL's histograms on the reading side: seconds and bytes of each transfer."""
    mine = sorted(
        (end, end - start, size) for e, start, end, size in replay.transfers if e == index
    )
    ends = np.array([m[0] for m in mine])
    out = []
    for name, column in (
        ("vllm:nixl_xfer_time_seconds", 1),
        ("vllm:nixl_bytes_transferred", 2),
    ):
        sums = np.concatenate([[0.0], np.cumsum([float(m[column]) for m in mine])])
        counts = np.searchsorted(ends, times, side="right")
        data = [
            {
                "timeUnixNano": str(T0_UNIX_NS + int(t * 1e9)),
                "count": str(int(n)),
                "sum": float(sums[n]),
                "bucketCounts": [str(int(n))],
                "explicitBounds": [],
                "attributes": _labels({"engine": "0", "model_name": MODEL}),
            }
            for t, n in zip(times, counts, strict=True)
        ]
        out.append({"name": name, "histogram": {"dataPoints": data, "aggregationTemporality": 2}})
    return out


def gpu_samples(replay: Replay) -> pa.Table:
    """Rows of `gpu_samples`: one GPU a worker, one window a second, without the ingest columns."""
    rng = np.random.default_rng((replay.system.seed, 21))
    rows: list[Json] = []
    for index, engine in enumerate(replay.engines):
        uuid = f"GPU-{index:08d}"
        edges = np.arange(0.0, replay.end_s, _GPU_WINDOW_S)
        ends = engine.step_ends[: engine.steps]
        # a window in which no step ended was idle
        busy = np.diff(np.searchsorted(ends, np.append(edges, edges[-1] + _GPU_WINDOW_S)))
        noise = rng.normal(0.0, 0.006, len(edges))
        for k, at in enumerate(edges):
            share = 1.0
            for c in replay.conditions:
                if c.start_s <= at < c.end_s:
                    share = min(share, c.clock.get(index, 1.0))
            is_busy = busy[k] > 0
            reasons = _THERMAL if share < 1.0 else _NONE if is_busy else _IDLE
            rows.append(
                {
                    "host": host(replay, index),
                    "gpu_uuid": uuid,
                    "gpu_index": 0,
                    "win_start_unix_ns": T0_UNIX_NS + int(at * 1e9),
                    "win_end_unix_ns": T0_UNIX_NS + int((at + _GPU_WINDOW_S) * 1e9),
                    "gpu_time_util": 0.97 if is_busy else 0.0,
                    "sm_clock_hz": int(_BASE_CLOCK_HZ * share * (1 + noise[k])),
                    "mem_clock_hz": 2_619_000_000,
                    "power_w": (520.0 * share + 90.0) if is_busy else 85.0,
                    "clock_reasons": reasons,
                    "throttled_ns": int(1e9) if share < 1.0 else 0,
                    "temp_c": 87.0 if share < 1.0 else 61.0,
                    "status": "ok",
                }
            )
    schema = pa.schema(
        [f for f in GPU_SAMPLES.schema if f.name not in ("origin", "ingested_unix_ns", "date")]
    )
    return pa.Table.from_pylist(rows, schema=schema)
