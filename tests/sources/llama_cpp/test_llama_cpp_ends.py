"""What becomes of llama.cpp's requests that did not end well, at each verbosity of its log.

The logs are written by hand after recorded lines; times are seconds of the log's clock.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.analysis._captures import INGESTED_NS, derived, records
from tests.sources.llama_cpp._llama_cpp import imported
from tracekit.ingest.importer import import_paths
from tracekit.lake.schema import TABLES
from tracekit.lake.store import Store

START_NS = 1_795_988_000_000_000_000

ARRIVAL = (1.0, "que          post: new task, id = 7/1, front = 0")
LAUNCH = (3.0, "slot launch_slot_: id  1 | task 7 | processing task, is_child = 0")
NEW_PROMPT = (
    4.0,
    "slot   operator(): id  1 | task 7 | new prompt, n_ctx_slot = 2048, n_keep = 0, "
    "task.n_tokens = 55",
)
CACHED = (4.0, "slot   operator(): id  1 | task 7 | cached n_tokens = 5, memory_seq_rm [5, end)")
TOKENS = (
    (6.0, "slot process_toke: id  1 | task 7 | n_gen = 1, n_remaining = 9, next token: 9 'a'"),
    (7.5, "slot process_toke: id  1 | task 7 | n_gen = 2, n_remaining = 8, next token: 9 'a'"),
)
CANCEL = (9.0, "srv          stop: cancel task, id_task = 7")
TOO_LONG = (
    4.25,
    "srv    send_error: task id = 7, error: request (2072 tokens) exceeds the available",
)
KV_FULL = (8.0, "srv    send_error: task id = 7, error: Context size has been exceeded.")
RELEASE = (9.5, "slot      release: id  1 | task 7 | stop processing: n_tokens = 56, truncated = 0")
PER = "(    1.00 ms per token,  1000.00 tokens per second)"
TIMINGS = (
    (
        9.0,
        f"slot print_timing: id  1 | task 7 | prompt eval time = 2000.00 ms /    50 tokens {PER}",
    ),
    (
        9.0,
        f"slot print_timing: id  1 | task 7 |        eval time = 2500.00 ms /     2 tokens {PER}",
    ),
)


def request(tmp_path: Path, *lines: tuple[float, str]) -> dict[str, Any]:
    """The one request of a log, and its leg (`leg`)."""
    file = tmp_path / "server.log"
    told = []
    for at, text in lines:
        us = round(at * 1e6)
        told.append(f"0.{us // 1_000_000:02}.{us // 1000 % 1000:03}.{us % 1000:03} I {text}\n")
    file.write_text("".join(told))
    store = Store.open(tmp_path / "store", create=True)
    import_paths(
        store, [str(file)], settle=False, now_unix_ns=INGESTED_NS, log_start_unix_ns=START_NS
    )
    rows = duckdb.connect().sql(store.snapshot("spans").scan_sql()).to_arrow_table()
    con = derived(rows.select(TABLES["spans"].column_names).cast(TABLES["spans"].schema))
    (found,) = records(con)
    (leg,) = con.sql("from legs").to_arrow_table().to_pylist()
    return found | {"leg": leg}


def seconds(found: dict[str, Any]) -> dict[str, float | None]:
    names = ("queue", "prefill", "decode", "unexplained", "e2e")
    return {n: None if (v := found[f"{n}_ms"]) is None else v / 1000 for n in names}


@pytest.mark.trap("llama_cpp", 2)
def test_done_at_level_5(tmp_path: Path) -> None:
    found = request(tmp_path, ARRIVAL, LAUNCH, NEW_PROMPT, CACHED, *TOKENS, *TIMINGS, RELEASE)
    # 9.0 s - 2.5 s - 2.0 s: the prompt began at 4.5 s, whatever the slot's launch and its line say
    assert seconds(found) == {
        "queue": 3.5,
        "prefill": 2.0,
        "decode": 2.5,
        "unexplained": 0.0,
        "e2e": 8.0,
    }
    assert (found["input_tokens"], found["cached_tokens"], found["output_tokens"]) == (55, 5, 2)
    assert found["start_unix_ns"] == START_NS + 10**9
    assert found["ttft_kind"] == "server"
    assert found["note"] == "task 7"


def test_done_at_level_3(tmp_path: Path) -> None:
    found = request(tmp_path, LAUNCH, *TIMINGS, RELEASE)
    assert seconds(found) == {
        "queue": None,
        "prefill": 2.0,
        "decode": 2.5,
        "unexplained": 0.0,
        "e2e": 4.5,
    }
    # 56 in the slot at its release, of which 50 + 2 - 1 were computed
    assert (found["input_tokens"], found["cached_tokens"]) == (55, 5)
    assert (found["ttft_ms"], found["ttft_kind"]) == (2000.0, "server_excl_queue")


def test_cached_tokens_of_a_prompt_that_was_cut_are_unknown(tmp_path: Path) -> None:
    cut = (RELEASE[0], RELEASE[1].replace("truncated = 0", "truncated = 1"))
    found = request(tmp_path, LAUNCH, *TIMINGS, cut)
    assert (found["input_tokens"], found["cached_tokens"]) == (None, None)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # level 5: in the queue, with a slot, in the prompt, in the answer
        ((ARRIVAL, CANCEL), (8.0, None, None, 0.0, 8.0)),
        ((ARRIVAL, LAUNCH, CANCEL, RELEASE), (8.0, None, None, 0.0, 8.0)),
        ((ARRIVAL, LAUNCH, NEW_PROMPT, CANCEL, RELEASE), (3.0, None, None, 5.0, 8.0)),
        (
            (ARRIVAL, LAUNCH, NEW_PROMPT, CACHED, *TOKENS, CANCEL, RELEASE),
            # to the last token that there was
            (3.0, 2.0, 1.5, 0.0, 6.5),
        ),
        # level 3: from the launch on, and nothing of what happened then
        ((LAUNCH, CANCEL, RELEASE), (None, None, None, 6.0, 6.0)),
    ],
)
def test_cancelled(
    tmp_path: Path,
    lines: tuple[tuple[float, str], ...],
    expected: tuple[float | None, ...],
) -> None:
    found = request(tmp_path, *lines)
    assert found["status"] == "aborted"
    assert tuple(seconds(found).values()) == expected
    assert found["quarantine_reason"] is None


def test_tokens_until_it_was_cancelled(tmp_path: Path) -> None:
    told = (ARRIVAL, LAUNCH, NEW_PROMPT, CACHED, *TOKENS, CANCEL, RELEASE)
    found = request(tmp_path, *told)
    assert (found["input_tokens"], found["output_tokens"]) == (55, 2)


@pytest.mark.trap("llama_cpp", 5)
def test_refused_after_its_time_in_the_queue(tmp_path: Path) -> None:
    # trap 5: it waits for a slot, is told no, and is "cancelled" at last
    found = request(tmp_path, ARRIVAL, LAUNCH, TOO_LONG, RELEASE, (9.6, CANCEL[1]))
    assert found["status"] == "error"
    assert found["error"].startswith("request (2072 tokens) exceeds")
    assert seconds(found)["queue"] == seconds(found)["e2e"] == 3.25


@pytest.mark.trap("llama_cpp", 6)
def test_a_full_kv_cache_fails_a_request_half_way(tmp_path: Path) -> None:
    # trap 6
    found = request(tmp_path, ARRIVAL, LAUNCH, NEW_PROMPT, *TOKENS, KV_FULL, RELEASE)
    assert (found["status"], found["error"]) == ("error", "Context size has been exceeded.")
    assert seconds(found)["prefill"] == 2.0
    assert seconds(found)["decode"] == 1.5


def test_cancelled_before_it_had_a_slot_at_level_3(tmp_path: Path) -> None:
    found = request(tmp_path, CANCEL)
    assert (found["status"], found["quarantine_reason"]) == ("aborted", "no_wall_time")
    assert found["start_unix_ns"] == START_NS + 9 * 10**9


def test_durations_longer_than_the_log_are_kept_and_set_nothing_before_it(tmp_path: Path) -> None:
    # the log was cut at its beginning: its first lines end a request that began before
    found = request(tmp_path, *((0.5, text) for _, text in TIMINGS), (0.6, RELEASE[1]))
    assert found["prefill_ms"] == 2000.0


@pytest.mark.parametrize(
    "lie",
    [
        {"log_start_unix_ns": 2**63 - 1},
        {"log_start_unix_ns": "soon"},
        {"print_timing_us": 2**63 - 1},
        {"posted_us": -(2**62)},
        {"prompt_ms": 1e300, "predicted_ms": -1.0},
        {"prompt_ms": "NaN"},
        {"predicted_n": 2**63 - 1, "n_tokens": -5, "n_children": 2**62},
        {"prompt_ms": [], "model": {"a": 1}, "error_us": "x"},
    ],
)
def test_spans_that_only_look_like_records_stop_nothing(lie: dict[str, Any]) -> None:
    rows = imported("base").slice(0, 5)
    told = [json.loads(text) | lie for text in rows.column("attributes").to_pylist()]
    place = rows.schema.get_field_index("attributes")
    lying = rows.set_column(
        place, "attributes", pa.array([json.dumps(a) for a in told], pa.string())
    )
    found = records(derived(lying))
    assert len(found) in (0, 5)
    for request in found:
        for name in ("prefill_ms", "decode_ms"):
            assert request[name] is None or 0 <= request[name] <= 864e5
