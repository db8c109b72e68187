"""Makes the bundled demo data and test request logs from a folder of recorded vLLM captures.

    python benchmarks/prepare_demo.py CAPTURES_FOLDER

CAPTURES_FOLDER holds, per scenario, ``<scenario>.otlp.jsonl.gz``, ``<scenario>.otlp.pb.gz`` (the
same OTLP messages; the smaller one is bundled) and ``<scenario>.client.jsonl.gz`` (one line a
request from the load client), which becomes a request log with the columns of the request
record. Never needed at run time: what it writes is committed. The same captures and zlib give the
same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
DEMO_DATA: Final = ROOT / "tracekit" / "demo_data"
TEST_DATA: Final = ROOT / "tests" / "data" / "vllm"
METRICS_DATA: Final = ROOT / "tests" / "data" / "vllm_metrics"

#: Scenarios of the demo: each shows one cause.
DEMO: Final = ("long-prompt", "queue", "prefix-cache", "pd-nixl")
#: Scenarios whose request logs only tests need.
TESTS: Final = ("baseline", "edge")
#: Those with engine metrics beside them.
MEASURED: Final = ("kv-pressure",)
#: Scrapes of engine metrics that only tests need, and what is kept of them.
SCRAPES: Final = {
    "kv-pressure.metrics.txt.gz": (
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
    ),
    "pd-nixl.decode.metrics.txt.gz": ("vllm:nixl_xfer_time_seconds", "vllm:nixl_bytes_transferred"),
}

MODEL: Final = "tiny-llama"
MAX_BUNDLE_BYTES: Final = 1_000_000


def record(client: dict[str, Any]) -> dict[str, Any]:
    """One line of the load client as one row of the request record, without empty columns."""
    sent: int = client["send_time_unix_ns"]
    times: list[int] = client["chunk_times_unix_ns"]
    counts: list[int] = client["chunk_completion_tokens"]
    row: dict[str, Any] = {
        "request_id": client["request_id"],
        "trace_id": client["trace_id"],
        "start_unix_ns": sent,
        "end_unix_ns": client["end_time_unix_ns"],
        "model": MODEL,
        "route": f"{client['scenario']}/{client['kind']}",
        "input_tokens": client["prompt_tokens"],
        "cached_tokens": client["cached_tokens"],
        "output_tokens": client["completion_tokens"],
        "streaming": 1,
        "status": status(client),
        "finish_reason": client["finish_reason"],
        "error": error(client),
    }
    if times:
        row["ttft_ms"] = ms(times[0] - sent)
        # The client noted only chunks that carried text or a token.
        row["ttft_kind"] = "first_content"
        row["e2e_ms"] = ms(times[-1] - sent)
        row["chunk_offsets_ms"] = [ms(time - sent) for time in times]
        if client["n"] == 1:  # else the counts are per choice, and which one is not noted
            row["chunk_tokens"] = [b - a for a, b in zip([0, *counts], counts, strict=False)]
    return {name: value for name, value in row.items() if value is not None}


def status(client: dict[str, Any]) -> str:
    if client["cancelled_by_client"]:
        return "aborted"
    failed = client["error"] is not None or (client["http_status"] or 0) >= 400
    return "error" if failed else "ok"


def error(client: dict[str, Any]) -> str | None:
    """The class of the error; the server's text quotes numbers of this one prompt."""
    if client["http_status"] is not None and client["http_status"] >= 400:
        return f"HTTP {client['http_status']}"
    return None if client["error"] is None else str(client["error"])[:80]


def ms(nanoseconds: int) -> float:
    """Milliseconds to the microsecond, which is what chunk times are stored in."""
    return round(nanoseconds / 1e6, 3)


def request_log(captures: Path, scenario: str) -> bytes:
    """JSON lines, gzipped, in the order of sending."""
    rows = [record(client) for client in _lines(captures / f"{scenario}.client.jsonl.gz")]
    rows.sort(key=lambda row: (row["start_unix_ns"], row["request_id"]))
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as packed:
        packed.write(text.encode())
    return buffer.getvalue()


def scrapes(path: Path, metrics: tuple[str, ...]) -> bytes:
    """The scrapes of a recording: metrics by the start of their names, without buckets."""
    kept = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            name = line.split()[2] if line.startswith("# ") else line
            if line.startswith("# SCRAPE") or (name.startswith(metrics) and "_bucket{" not in name):
                kept.append(line)
    return gzip.compress("".join(kept).encode(), mtime=0)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("captures", type=Path, help="folder of the recorded vLLM captures")
    parser.add_argument("--demo-data", type=Path, default=DEMO_DATA)
    parser.add_argument("--test-data", type=Path, default=TEST_DATA)
    arguments = parser.parse_args()
    for folder in (arguments.demo_data, arguments.test_data):
        folder.mkdir(parents=True, exist_ok=True)
    total = 0
    for scenario in DEMO:
        forms = [arguments.captures / f"{scenario}.otlp.{form}.gz" for form in ("pb", "jsonl")]
        spans = min(forms, key=lambda path: path.stat().st_size)
        files = {
            spans.name: spans.read_bytes(),
            f"{scenario}.requests.jsonl.gz": request_log(arguments.captures, scenario),
        }
        for name, data in files.items():
            (arguments.demo_data / name).write_bytes(data)
            total += len(data)
            print(f"{name} {len(data)}")
    for scenario in TESTS:
        data = request_log(arguments.captures, scenario)
        (arguments.test_data / f"{scenario}.requests.jsonl.gz").write_bytes(data)
    for name, metrics in SCRAPES.items():
        (METRICS_DATA / name).write_bytes(scrapes(arguments.captures / name, metrics))
    for scenario in MEASURED:
        data = request_log(arguments.captures, scenario)
        (METRICS_DATA / f"{scenario}.requests.jsonl.gz").write_bytes(data)
    print(f"bundle {total} bytes")
    if total > MAX_BUNDLE_BYTES:
        raise SystemExit(f"the bundle is larger than {MAX_BUNDLE_BYTES} bytes")


if __name__ == "__main__":
    main()
