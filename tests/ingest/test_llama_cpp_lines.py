"""llama.cpp's server log as a file to import: forms, levels, ends, restarts, damage, fuzz."""

from __future__ import annotations

import gzip
import io
import json
import random
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ingest.test_importer import count, run
from tracekit.errors import SourceError, UsageError
from tracekit.ingest.engine_logs import BadLine, Facts, Line, Record, detect_engine_log, llama_cpp
from tracekit.ingest.engine_logs._record import MAX_LINE_BYTES, lines_in
from tracekit.ingest.files import detect
from tracekit.lake.store import Store

DATA = Path(__file__).parents[1] / "data" / "llama_cpp"
BASE_FILE = DATA / "base.server-log.txt.gz"
BASE = gzip.open(BASE_FILE).read().splitlines()
TRACE = gzip.open(DATA / "trace.server-log.jsonl.gz").read().splitlines()
ZERO = 1_795_988_353_842_848_499
US = 1_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def facts() -> Facts:
    return Facts(log_start_unix_ns=ZERO)


def read(lines: list[bytes], known: Facts | None = None) -> list[tuple[int, Record | BadLine]]:
    """What a log brings, and with which line."""
    numbered = (Line(number, text) for number, text in enumerate(lines, 1))
    found = llama_cpp.LLAMA_CPP_LOG.read(numbered, known or facts())
    return [(number, item) for number, item in found if isinstance(item, Record | BadLine)]


def records(lines: list[bytes], known: Facts | None = None) -> list[Record]:
    return [item for _, item in read(lines, known) if isinstance(item, Record)]


def refused(lines: list[bytes]) -> list[tuple[int, BadLine]]:
    return [(number, item) for number, item in read(lines) if isinstance(item, BadLine)]


def stamp(at_us: int) -> str:
    minutes, rest = divmod(at_us, 60_000_000)
    return f"{minutes}.{rest // 1_000_000:02}.{rest // 1_000 % 1_000:03}.{rest % 1_000:03}"


def log(*lines: tuple[int, str]) -> list[bytes]:
    """Lines of a text log at these µs."""
    return [f"{stamp(at_us)} I {text}".encode() for at_us, text in lines]


def slot(name: str, task: int, text: str) -> str:
    return f"slot {name:>12}: id  1 | task {task} | {text}"


def timings(at_us: int, task: int, prompt: str, evaluation: str) -> tuple[tuple[int, str], ...]:
    per = "(    1.00 ms per token,  1000.00 tokens per second)"
    return (
        (at_us, slot("print_timing", task, f"prompt eval time = {prompt} {per}")),
        (at_us + 20, slot("print_timing", task, f"       eval time = {evaluation} {per}")),
        (at_us + 30, slot("print_timing", task, "      total time = 1.00 ms / 2 tokens")),
    )


# -- forms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", [BASE, TRACE])
def test_it_is_told_by_its_lines(lines: list[bytes]) -> None:
    assert detect_engine_log(b"\n".join(lines[:40])) == "llama-cpp-log"
    assert detect("x", b"\n".join(lines[50:90]), complete=False) == "llama-cpp-log"


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"request_id,start_unix_ns,ttft_ms\na,1,2\n",
        b'{"type":"log","level":"info","msg":"slot print_timing"}\n',
        b"0.00.001 I slot print_timing: id 1\n",
    ],
)
def test_other_files_are_none(head: bytes) -> None:
    assert detect_engine_log(head) is None


def test_text_and_json_say_the_same() -> None:
    text = []
    for line in TRACE:
        value = json.loads(line)
        if "time" in value:
            level = value["level"][0].upper()
            # a text log goes on in lines of their own where a message has several
            text += (
                f"{stamp(value['time'])} {level} {value['msg']}".rstrip("\n").encode().split(b"\n")
            )
    found, expected = records(text), records(TRACE)
    assert len(expected) == 40
    assert [(r.identity, r.start_unix_ns, r.end_unix_ns, r.attributes) for r in found] == [
        (r.identity, r.start_unix_ns, r.end_unix_ns, r.attributes) for r in expected
    ]


def test_the_log_tells_the_cached_tokens_that_are_inferred_without() -> None:
    # verbosity 4 and more have a line for it; `sql/sources` infers it from the others below that
    for record in records(TRACE):
        told = record.attributes
        inferred = told["n_tokens"] - told["prompt_n"] - told["predicted_n"] + 1
        assert told["cache_n"] == inferred
        assert told["n_prompt_tokens"] == told["prompt_n"] + told["cache_n"]


def test_no_word_of_prompt_or_answer_is_kept() -> None:
    assert sum(b"next token:" in line for line in TRACE) > 1_000
    for record in records(TRACE):
        kept = {k: v for k, v in record.attributes.items() if isinstance(v, str)}
        assert kept == {"model": "tiny.gguf", "build_info": "b0-unknown"}


def test_where_the_model_lies_is_not_kept() -> None:
    lines = log(
        (1, "srv    load_model: loading model '/home/anna/models/qwen3-8b-q4.gguf'"),
        (9, slot("launch_slot_", 0, "processing task, is_child = 0")),
        *timings(5_000_000, 0, "10.00 ms / 5 tokens", "20.00 ms / 3 tokens"),
        (5_000_100, slot("release", 0, "stop processing: n_tokens = 7, truncated = 0")),
    )
    (record,) = records(lines)
    assert record.attributes["model"] == "qwen3-8b-q4.gguf"
    assert record.attributes["prompt_ms"] == 10.0 and record.attributes["predicted_n"] == 3


# -- ends ------------------------------------------------------------------------------------------

ARRIVAL = (1_000_000, "que          post: new task, id = 7/1, front = 0")
LAUNCH = (2_000_000, slot("launch_slot_", 7, "processing task, is_child = 0"))
NEW_PROMPT = (
    3_000_000,
    slot("operator()", 7, "new prompt, n_ctx_slot = 2048, n_keep = 0, task.n_tokens = 55"),
)
CANCEL = (9_000_000, "srv          stop: cancel task, id_task = 7")
RELEASE = (9_500_000, slot("release", 7, "stop processing: n_tokens = 60, truncated = 0"))


def token(at_us: int, number: int) -> tuple[int, str]:
    text = f"n_gen = {number}, n_remaining = 45, next token:   920 ' secret'"
    return at_us, slot("process_toke", 7, text)


def test_cancelled_while_it_waits() -> None:
    (record,) = records(log(ARRIVAL, CANCEL))
    assert record.start_unix_ns == ZERO + 1_000_000 * US
    assert record.end_unix_ns == ZERO + 9_000_000 * US
    assert record.attributes["cancelled_us"] == 9_000_000
    # of no task that is waited for, where the log tells arrivals: one of the server's own
    other = (9_100_000, "srv          stop: cancel task, id_task = 8")
    assert len(records(log(ARRIVAL, CANCEL, other))) == 1
    assert len(records(log(other))) == 1


def test_cancelled_in_the_middle_of_its_answer() -> None:
    told = log(
        ARRIVAL, LAUNCH, NEW_PROMPT, token(5_000_000, 1), token(6_000_000, 2), CANCEL, RELEASE
    )
    (record,) = records(told)
    kept = record.attributes
    assert (kept["first_token_us"], kept["last_token_us"], kept["n_gen"]) == (
        5_000_000,
        6_000_000,
        2,
    )
    assert "secret" not in str(kept)
    assert record.end_unix_ns == ZERO + 9_000_000 * US


def test_tokens_of_which_the_first_was_cut_off_are_not_counted() -> None:
    (record,) = records(log(token(6_000_000, 17), LAUNCH, CANCEL, RELEASE))
    assert "n_gen" not in record.attributes and "first_token_us" not in record.attributes


def test_a_task_that_is_over_is_not_cancelled() -> None:
    done = timings(8_000_000, 7, "10.00 ms / 5 tokens", "20.00 ms / 3 tokens")
    early = (8_100_000, RELEASE[1])
    (record,) = records(log(LAUNCH, *done, early, CANCEL))
    assert "cancelled_us" not in record.attributes


def test_what_is_under_way_at_the_end_comes_with_the_next_import(
    store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "server.log"
    whole = b"\n".join(BASE) + b"\n"
    cut_at = whole.index(b"\n", len(whole) // 2) + 1
    file.write_bytes(whole[:cut_at])
    first = run(store, file, log_start_unix_ns=ZERO)
    assert 0 < first.taken < 322 and first.refused_count == 0
    notice = next(n for n in first.files[0].notices if "under way" in n)
    assert "left out: " in notice and "import it again" in notice
    file.write_bytes(whole)
    second = run(store, file, log_start_unix_ns=ZERO)
    assert (second.taken, second.duplicates) == (322 - first.taken, first.taken)
    assert count(store, "spans", "count(distinct trace_id)") == 322
    # as one import of the whole says it
    other = Store.open(tmp_path / "other", create=True)
    run(other, BASE_FILE, log_start_unix_ns=ZERO)
    same = "md5(string_agg(trace_id || attributes, '|' order by trace_id))"
    assert count(store, "spans", same) == count(other, "spans", same)


def test_a_log_that_tells_no_arrivals_says_what_would() -> None:
    known = facts()
    read(BASE, known)
    assert llama_cpp.NO_ARRIVALS.replace("{n}", "322") in known.notices()
    known = facts()
    read(TRACE, known)
    assert known.notices() == []


def test_embeddings_are_no_generations() -> None:
    known = facts()
    assert read(log(LAUNCH, RELEASE), known) == []
    assert known.notices() == [llama_cpp.NO_TIMINGS.replace("{n}", "1")]


def test_a_child_waits_for_its_call_and_the_other_way_round() -> None:
    child = (2_000_000, slot("launch_slot_", 8, "processing task, is_child = 1"))
    own = (2_000_010, slot("launch_slot_", 7, "processing task, is_child = 0"))
    done = [
        (
            *timings(at, task, "10.00 ms / 5 tokens", f"20.00 ms / {n} tokens"),
            (at + 90, slot("release", task, "stop processing: n_tokens = 9, truncated = 0")),
        )
        for at, task, n in ((5_000_000, 7, 3), (6_000_000, 8, 4))
    ]
    for order in (done, done[::-1]):
        later = [(5_000_000 + i, text) for i, (_, text) in enumerate(chain.from_iterable(order))]
        (record,) = records(log(child, own, *later))
        kept = record.attributes
        assert (kept["id_task"], kept["predicted_n"], kept["n_children"]) == (7, 3, 1)
        assert kept["children_predicted_n"] == 4
        ends = [at for at, text in later if "prompt eval" in text]
        assert record.end_unix_ns == ZERO + max(ends) * US
    # one sequence that has not ended keeps the call open
    known = facts()
    assert read(log(child, own, *done[0]), known) == []
    assert known.notices() == [llama_cpp.NOT_OVER.replace("{n}", "1")]


def test_a_server_that_was_started_again() -> None:
    again = log((1_000, "srv          init: initializing ..."))
    ((line, why),) = refused([*BASE[:120], *again, *BASE])
    assert (line, why.reason) == (121, "log_restarted")
    assert "--log-start" in why.detail
    assert records([*BASE[:120], *again, *BASE]) == records(BASE[:120])
    # the line that says so may have been cut off
    jumped = [*BASE[13:400], *BASE[13:]]
    ((line, why),) = refused(jumped)
    assert (line, why.reason) == (388, "log_restarted")
    # threads write it: a little out of order is no restart
    (record,) = records(log(LAUNCH, CANCEL, (8_999_000, RELEASE[1])))
    assert record.attributes["released_us"] == 8_999_000


def test_a_damaged_timing_line_is_refused_with_its_place(store: Store, tmp_path: Path) -> None:
    at = next(i for i, line in enumerate(BASE) if b"task 6 | prompt eval" in line)
    lines = list(BASE)
    lines[at] = lines[at].replace(b"    13 tokens", b"    1")
    file = tmp_path / "x.log"
    file.write_bytes(b"\n".join(lines))
    summary = run(store, file, log_start_unix_ns=ZERO)
    assert summary.taken == 321
    (refusal,) = summary.files[0].refused
    assert (refusal.reason, refusal.where) == ("cut_line", f"{file}:{at + 1}")
    assert "task 6" in refusal.detail
    assert not [n for n in summary.files[0].notices if "embeddings" in n]
    assert count(store, "quarantine", "any_value(payload)") == ""


# -- the import ------------------------------------------------------------------------------------


def test_twice_is_once(store: Store) -> None:
    first = run(store, BASE_FILE, log_start_unix_ns=ZERO)
    assert (first.files[0].format, first.taken) == ("llama-cpp-log", 322)
    assert "991 lines about no request passed over" in first.files[0].notices
    again = run(store, BASE_FILE, log_start_unix_ns=ZERO)
    assert (again.taken, again.duplicates) == (0, 322)
    assert count(store, "spans", "any_value(service_name)") == "llama.cpp"
    assert count(store, "spans", "any_value(scope_name)") == "tracekit.import.llama-cpp-log"


def test_without_its_start_nothing_is_taken(tmp_path: Path) -> None:
    def no_store() -> Store:
        raise AssertionError("a store was opened")

    with pytest.raises(SourceError, match=r"counts from the server's start.*--log-start"):
        run(no_store, BASE_FILE)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--service is empty"):
        run(no_store, BASE_FILE, service=" ", log_start_unix_ns=ZERO)  # type: ignore[arg-type]


def test_one_start_is_that_of_one_log(store: Store) -> None:
    with pytest.raises(UsageError, match=r"trace.*server of .*base\.server-log.*by itself"):
        run(store, BASE_FILE, DATA / "trace.server-log.jsonl.gz", log_start_unix_ns=ZERO)
    assert count(store, "spans") == 322


def test_another_start_is_no_second_set_of_requests(store: Store) -> None:
    run(store, BASE_FILE, log_start_unix_ns=ZERO)
    with pytest.raises(UsageError, match=r"322 requests .* at another time already.*fresh --store"):
        run(store, BASE_FILE, log_start_unix_ns=ZERO + 86_400 * 10**9)
    assert count(store, "spans") == 322


def test_options_for_logs_that_are_not_there(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("request_id,start_unix_ns,ttft_ms\na,1795990000000000000,5\n")
    summary = run(store, file, service="a", log_start_unix_ns=ZERO)
    assert [n.split(" is for ")[0] for n in summary.files[0].notices][-2:] == [
        "--service",
        "--log-start",
    ]
    named = run(store, BASE_FILE, service="node-3", log_start_unix_ns=ZERO)
    assert not [n for n in named.files[0].notices if "did nothing" in n]
    assert count(store, "spans", "any_value(service_name)") == "node-3"


def test_a_log_without_requests_is_of_no_use(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_bytes(b"\n".join(BASE[:12]))
    with pytest.raises(SourceError, match=r"in 12 lines, and none is there; at .*x\.log"):
        run(store, file, log_start_unix_ns=ZERO)
    file.write_bytes(b"\n".join(line.partition(b" ")[2] for line in BASE))
    with pytest.raises(SourceError, match="--log-timestamps"):
        run(store, file, log_start_unix_ns=ZERO)


def test_a_compressed_log_that_is_cut_keeps_what_came_before(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "x.log.gz"
    file.write_bytes(BASE_FILE.read_bytes()[:20_000])
    summary = run(store, file, log_start_unix_ns=ZERO)
    assert 100 < summary.taken < 322
    assert [r.reason for r in summary.files[0].refused] == ["cut_short"]


@pytest.mark.parametrize("is_cut", [False, True])
def test_half_a_line_is_none_where_the_file_was_cut(is_cut: bool) -> None:
    found = list(lines_in(io.BytesIO(b"a\n\nb\r\nhalf"), is_cut=lambda: is_cut))
    assert found == [(1, b"a"), (2, b""), (3, b"b"), *([] if is_cut else [(4, b"half")])]


def test_a_line_that_is_too_long_is_about_no_request() -> None:
    long = b"x" * (MAX_LINE_BYTES + 10)
    found = lines_in(io.BytesIO(long + b"\na\n"), is_cut=lambda: False)
    assert list(found) == [(1, b""), (2, b"a")]


def test_times_that_none_can_be_are_refused(store: Store) -> None:
    far = 7_258_118_400_000_000_000 - 10**9
    summary = run(store, BASE_FILE, log_start_unix_ns=far)
    assert (summary.taken, summary.refused_count) == (0, 322)
    assert "--log-start" in summary.files[0].refused[0].detail


# -- any input -------------------------------------------------------------------------------------

_LINES = [line for line in BASE + TRACE if b"task" in line]


@given(st.integers(0, 2**32), st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_damaged_and_shuffled_logs_give_records_or_refusals(seed: int, size: int) -> None:
    chance = random.Random(seed)
    start = chance.randrange(len(_LINES))
    lines = _LINES[start : start + size]
    for _ in range(chance.randrange(4)):
        kind = chance.randrange(5)
        at = chance.randrange(len(lines))
        if kind == 0:
            lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]
        elif kind == 1:
            chance.shuffle(lines)
        elif kind == 2:
            lines[at:at] = chance.sample(_LINES, 5)
        elif kind == 3:
            place = chance.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:place] + chance.randbytes(3) + lines[at][place:]
        else:
            lines[at:at] = [b"", b"{", b'{"type":"log","time":-1,"msg":7}', b"\xff\xfe", b"[1]"]
    check(lines)


@given(st.lists(st.binary(max_size=120), max_size=20))
@settings(max_examples=100, deadline=None)
def test_any_bytes_give_records_or_refusals(lines: list[bytes]) -> None:
    check(lines)


def check(lines: list[bytes]) -> None:
    for number, item in read(lines):
        assert 1 <= number <= len(lines)
        if isinstance(item, BadLine):
            continue
        told: dict[str, Any] = item.attributes
        assert 0 < item.start_unix_ns <= item.end_unix_ns
        # every number was in the log: nothing is made up for what is missing
        if "prompt_ms" in told:
            assert any(f"{told['prompt_ms']:.2f} ms" in str(line) for line in lines)
        assert {"print_timing_us", "error_us", "cancelled_us"} & told.keys()
