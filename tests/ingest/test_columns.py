"""Whose column is whose, and in which unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.errors import UsageError
from tracekit.ingest._column_kinds import KINDS, UNITS_OF
from tracekit.ingest._column_names import (
    ALIASES,
    NAMES_NOT_IDS,
    NEEDS_NUMBERS,
    NEEDS_TIMES,
    SUCCESS_FLAGS,
    holds_text,
    words_of,
)
from tracekit.ingest.columns import Plan, match_name, parse_mapping, plan_columns
from tracekit.lake.schema import RECORD_COLUMNS, REQUEST_LOG

Cells = Mapping[str, Sequence[object]]


def plan(cells: Cells, *, delimiter: str | None = ",", **rules: str) -> Plan:
    """The plan for these columns; ``rules`` are ``--map`` (names without spaces)."""
    return plan_columns(
        list(cells),
        cells.__getitem__,
        rules=parse_mapping(rules),
        where="log.csv",
        delimiter=delimiter,
    )


def units(cells: Cells) -> dict[str, str | None]:
    """Our column -> unit, of the durations."""
    found = plan(cells).columns
    return {target: c.unit for target, c in found.items() if c.kind == "duration"}


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "target", "unit"),
    [
        # The article's own.
        ("request", "request_id", None),
        ("input_tokens", "input_tokens", None),
        ("output_tokens", "output_tokens", None),
        ("TTFT", "ttft_ms", None),
        ("total_latency", "e2e_ms", None),
        ("tokens/sec", "tokens_per_s", None),
        ("비고", "note", None),
        # Units in the header.
        ("ttft_ms", "ttft_ms", "ms"),
        ("TTFT (s)", "ttft_ms", "s"),
        ("TTFT(ms)", "ttft_ms", "ms"),
        ("latency[ms]", "e2e_ms", "ms"),
        ("ttft_seconds", "ttft_ms", "s"),
        ("ttftMs", "ttft_ms", "ms"),
        ("ttft_us", "ttft_ms", "us"),
        ("duration_ns", "e2e_ms", "ns"),
        ("Total latency (sec)", "e2e_ms", "s"),
        ("첫 토큰 시간(초)", "ttft_ms", "s"),
        ("총 지연 (밀리초)", "e2e_ms", "ms"),
        ("TTFT (first chunk)", "ttft_ms", None),
        # Others' names.
        ("prompt_tokens", "input_tokens", None),
        ("promptTokens", "input_tokens", None),
        ("usage.prompt_tokens", "input_tokens", None),
        ("usage.prompt_tokens_details.cached_tokens", "cached_tokens", None),
        ("Completion Tokens", "output_tokens", None),
        ("ContextTokens", "input_tokens", None),
        ("GeneratedTokens", "output_tokens", None),
        ("입력 토큰 수", "input_tokens", None),
        ("출력토큰", "output_tokens", None),
        ("latency", "e2e_ms", None),
        ("Output tokens per second", "tokens_per_s", None),
        ("tok/s", "tokens_per_s", None),
        ("토큰/초", "tokens_per_s", None),
        ("TIMESTAMP", "start_unix_ns", None),
        ("timestamp_ms", "start_unix_ns", "ms"),
        ("startTime", "start_unix_ns", None),
        ("start_unix_ns", "start_unix_ns", "ns"),
        ("queue time (ms)", "queue_ms", "ms"),
        ("success", "status", "flag"),
        ("stop_reason", "finish_reason", None),
        ("kv_bytes", "kv_bytes", None),
        ("kv_transfer_bytes (MiB)", "kv_bytes", "mib"),
        ("\ufeffrequest_id", "request_id", None),
        ("send_time_unix_ns", "start_unix_ns", "ns"),
        ("end_time_unix_ms", "end_unix_ns", "ms"),
        # Others' words for what went into the cache.
        ("created_cache_tokens", "cache_write_tokens", None),
        ("usage.prompt_tokens_details.created_cache_tokens", "cache_write_tokens", None),
        ("usage.prompt_tokens_details.cache_write_tokens", "cache_write_tokens", None),
        ("usage.cache_creation_input_tokens", "cache_write_tokens", None),
        ("cacheWriteInputTokens", "cache_write_tokens", None),
        ("usage.cacheWriteInputTokens", "cache_write_tokens", None),
        ("cache tokens written", "cache_write_tokens", None),
        ("input_cache_creation", "cache_write_tokens", None),
        ("캐시 쓰기 토큰", "cache_write_tokens", None),
    ],
)
def test_headers(header: str, target: str, unit: str | None) -> None:
    column = match_name(header, {})
    assert column is not None
    assert (column.target, column.unit) == (target, unit)


@pytest.mark.parametrize(
    "header", ["total", "region", "total_tokens", "max_tokens", "gpu", "ttft_p99", "", "🙂", "토큰"]
)
def test_headers_that_say_nothing(header: str) -> None:
    assert match_name(header, {}) is None


@pytest.mark.parametrize("name", RECORD_COLUMNS)
def test_every_column_of_the_record_goes_by_its_own_name(name: str) -> None:
    column = match_name(name, {})
    assert column is not None and column.target == name
    assert column.unit == ("ns" if name.endswith("_unix_ns") else "ms") or column.kind not in (
        "time",
        "duration",
    )


def test_the_alias_table_is_sound() -> None:
    keys = [key for words in ALIASES.values() for key in words]
    assert len(keys) == len(set(keys)), "one key, two columns"
    assert [key for key in keys if words_of(key) != key] == [], "no header reads like this"
    assert (
        set(ALIASES)
        <= set(KINDS)
        <= set(REQUEST_LOG.column_names)
        | {
            "cancelled",
            "chunk_offsets_ms",
            "chunk_tokens",
        }
    )
    assert NEEDS_TIMES | NAMES_NOT_IDS | SUCCESS_FLAGS <= set(keys)
    assert set(NEEDS_NUMBERS).isdisjoint(keys)


@pytest.mark.parametrize(
    "name",
    [
        "prompt",
        "messages",
        "Response",
        "user_query",
        "final answer",
        "request.messages",
        "promptText",
        "choices.text",
        "질문",
        "chat_history",
        "system_prompt",
        "completion",
        "prompt_details",
        "response_info",
        "details.prompt",
        "prompt_start",
        "usage.prompt_tokens_details.text",
    ],
)
def test_columns_of_text(name: str) -> None:
    assert holds_text(name)


@pytest.mark.parametrize(
    "name",
    [
        "prompt_id",
        "response_time",
        "region",
        "content_type",
        "context_length",
        "user.id",
        "usage.prompt_tokens_details",
        "usage.prompt_tokens_details.audio_tokens",
        "usage.completion_tokens_details.unheard_of_tokens",
        "input_throughput",
        "response_sent_ts",
        "output_speed",
        "prompt_cost",
    ],
)
def test_columns_without_text(name: str) -> None:
    assert not holds_text(name)


# --- rules ------------------------------------------------------------------------------------


def test_rules() -> None:
    assert parse_mapping({"a": "ttft_ms:s", "b": "ttft:ms", "c": "start_unix_ns:ms"}) == {
        "a": ("ttft_ms", "s"),
        "b": ("ttft_ms", "ms"),
        "c": ("start_unix_ns", "ms"),
    }
    assert parse_mapping({"a": "extra", "b": "ignore", "c": "kv_bytes:MiB", "d": "e2e:초"}) == {
        "a": ("extra", None),
        "b": ("ignore", None),
        "c": ("kv_bytes", "mib"),
        "d": ("e2e_ms", "s"),
    }


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("ttft_mss", r"did you mean ttft_ms.*\? ours: ttft_ms, .*request_id, trace_id.*, ignore"),
        ("zzz", "there is no column 'zzz'; ours: request_id, trace_id.*, extra, ignore"),
        ("", "there is no column"),
        ("ttft_ms:parsec", "cannot be in 'parsec'; units: h, min, ms, ns, s, us"),
        ("input_tokens:s", "it has no unit to give"),
        ("start_unix_ns:h", "units: ms, ns, s, us"),
    ],
)
def test_bad_rules(rule: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_mapping({"x": rule})


def test_a_rule_beats_names_and_units() -> None:
    made = plan({"ttft_ms": ["1"], "wait": ["2"]}, wait="ttft_ms:s")
    assert made.mapped == {"wait": "ttft_ms:s"}
    assert made.extra == {"ttft_ms"}
    assert any("both look like ttft_ms" in notice for notice in made.notices)


def test_a_rule_for_no_column_is_a_mistake() -> None:
    with pytest.raises(UsageError, match=r"has no column 'Ttft2'.*its columns: TTFT, x"):
        plan({"TTFT": ["0.5"], "x": ["1"]}, Ttft2="ttft_ms")


def test_a_rule_for_no_column_lists_the_nearest_first() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'Delay'\? its columns: Delay, x"):
        plan({"x": ["1"], "Delay": ["0.5"]}, Dellay="ttft_ms")


def test_a_rule_without_a_unit_takes_that_of_the_header() -> None:
    cells = {"total (s)": [300], "wait [ms]": [200]}
    rules = {"total (s)": "e2e_ms", "wait [ms]": "queue_ms"}
    made = plan_columns(
        list(cells), cells.__getitem__, rules=parse_mapping(rules), where="x", delimiter=","
    )
    assert made.mapped == {"total (s)": "e2e_ms:s", "wait [ms]": "queue_ms:ms"}


@pytest.mark.parametrize(
    ("cells", "hint"),
    [
        ({"sent": ["2026-11-29T12:00:00Z"]}, "--map sent=start_unix_ns"),
        ({"gone_out": [1795953600]}, "gone_out; if one is what the file lacks"),
        ({"closed_end": [1795953600123]}, "--map closed_end=end_unix_ns"),
        ({"first_byte_ms": [5.0]}, "--map first_byte_ms=ttft_ms"),
        ({"request_took": ["3.2s"]}, "--map request_took=e2e_ms"),
        ({"bits": [[1795953600123456789, 1795953600223456789]]}, "--map bits=chunk_offsets_ms:ns"),
        ({"speed": [5.0]}, None),
        # an engine's own measure leaves out its queue and the network
        ({"server_metrics.time_to_first_token_ms": [75.0]}, None),
        ({"engine.total_time_ms": [75.0]}, None),
        ({"tokens_per_second_peak": [5.0]}, None),
        ({"seed": [1234]}, None),
    ],
)
def test_times_under_unknown_names_are_pointed_at(cells: Cells, hint: str | None) -> None:
    made = plan({"input_tokens": [5], **cells})
    found = [n for n in made.notices if n.startswith("times under names")]
    assert len(found) == (hint is not None)
    assert hint is None or hint in found[0]
    server = {"server_metrics.time_to_first_token_ms": [75.0]}
    beside = [n for n in plan({"input_tokens": [5], **server, **cells}).notices if hint]
    assert not any("server_metrics" in n for n in beside)
    name = next(iter(cells))
    assert not plan({"input_tokens": [5], **cells}, **{name: "extra"}).notices


def test_times_are_not_pointed_at_where_none_is_missing() -> None:
    known: Cells = {"start_unix_ns": [1795953600 * 10**9], "ttft_ms": [5], "e2e_ms": [50]}
    assert not plan({**known, "headers_ms": [4], "sent": ["2026-11-29T12:00:00Z"]}).notices


def test_a_rule_matches_a_header_written_otherwise() -> None:
    assert plan({"First Tok": ["1"]}, first_tok="ttft_ms:s").mapped == {"First Tok": "ttft_ms:s"}


def test_two_rules_for_one_column() -> None:
    with pytest.raises(UsageError, match="both 'a' and 'b' go to ttft_ms"):
        plan({"a": ["1"], "b": ["1"]}, a="ttft_ms:s", b="ttft:s")


def test_ignored_and_extra_columns() -> None:
    made = plan(
        {"ttft_ms": ["1"], "latency": ["x"], "prompt": ["x"]}, latency="ignore", prompt="note"
    )
    assert made.dropped == {"latency"}
    assert made.mapped == {"ttft_ms": "ttft_ms:ms", "prompt": "note"}
    assert plan({"ttft_ms": ["1"], "latency": ["2"]}, latency="extra").extra == {"latency"}


# --- rivals and doubtful names ----------------------------------------------------------------


def test_the_better_name_wins_and_the_other_is_kept() -> None:
    made = plan({"duration_ms": ["9"], "total_latency_ms": ["8"], "id": ["a"], "request_id": ["b"]})
    assert made.mapped == {"total_latency_ms": "e2e_ms:ms", "request_id": "request_id"}
    assert made.extra == {"duration_ms", "id"}


def test_an_empty_column_does_not_win() -> None:
    made = plan({"request_id": ["", "-"], "id": ["a", "b"], "ttft_ms": ["1", "2"]})
    assert made.columns["request_id"].source == "id"


def test_the_servers_id_of_an_answer_names_the_request_only_if_nothing_else_does() -> None:
    made = plan({"response_id": ["s"], "id": ["a"], "ttft_ms": ["1"]})
    assert (made.columns["request_id"].source, made.columns["response_id"].source) == (
        "id",
        "response_id",
    )
    assert not made.notices
    for other in ({}, {"request_id": [""]}, {"request": ["my question"]}):
        made = plan({"response_id": ["s"], **other, "ttft_ms": ["1"]})
        assert made.columns["request_id"].source == "response_id"
        assert "response_id" not in made.columns and not made.named
    made = plan({"rid": ["s"], "ttft_ms": ["1"]}, rid="response_id")
    assert made.columns["response_id"].source == "rid" and "request_id" not in made.columns


def test_the_name_of_a_request_beside_its_id_is_not_kept() -> None:
    made = plan({"request": ["my question"], "request_id": ["a"], "ttft_ms": ["1"]})
    assert made.columns["request_id"].source == "request_id"
    assert made.dropped == {"request"} and not made.named
    assert plan({"request": ["a"], "ttft_ms": ["1"]}).named


@pytest.mark.parametrize(
    ("cells", "target"),
    [
        (["2026-11-29T12:00:00Z"], "start_unix_ns"),
        (["1795953600"], "start_unix_ns"),
        (["3.2"], None),
        ([""], None),
    ],
)
def test_a_column_called_time_is_a_time_only_if_it_looks_like_one(
    cells: list[object], target: str | None
) -> None:
    made = plan({"time": cells, "ttft_ms": ["1"]})
    assert made.mapped.get("time", "").partition(":")[0] == (target or "")


def test_input_and_output_are_tokens_only_as_numbers() -> None:
    assert plan({"input": [12000, 400], "output": [800, 120]}).mapped == {
        "input": "input_tokens",
        "output": "output_tokens",
    }
    made = plan({"input": ["Hello, who are you?"], "ttft_ms": [1]})
    assert made.dropped == {"input"}


def test_an_alias_whose_cells_are_something_else_is_not_used() -> None:
    made = plan({"latency": ["good", "bad"], "ttft_ms": ["1", "2"]})
    assert "e2e_ms" not in made.columns and made.extra == {"latency"}
    assert any("'latency' is not used" in notice for notice in made.notices)


def test_counts_of_an_api_that_leaves_the_cache_out() -> None:
    usage = {"usage.input_tokens": [10], "usage.cache_read_input_tokens": [90]}
    assert plan(usage).cache_on_top
    assert not plan({"input_tokens": [100], "cached_tokens": [90]}).cache_on_top
    assert not plan({"prompt_tokens": [100], "cache_read_input_tokens": [90]}).cache_on_top


# --- units ------------------------------------------------------------------------------------

#: Columns of a file -> units that must come out, and the evidence that must decide.
DECIDED: list[tuple[str, Cells, dict[str, str]]] = [
    (
        "a first token does not come after 0.4 ms",
        {"TTFT": [0.4, 1.2, 3.0, 0.8], "input_tokens": [10, 20, 30, 40]},
        {"ttft_ms": "s"},
    ),
    (
        "nor after a quarter of an hour, nearly always",
        {"TTFT": [900, 1500, 2400, 780]},
        {"ttft_ms": "ms"},
    ),
    (
        "TTFT is less than the total",
        {"TTFT": [45, 60, 95], "latency_ms": [900, 2000, 1500]},
        {"ttft_ms": "ms", "e2e_ms": "ms"},
    ),
    (
        "a TTFT in ms beside a total in s",
        {"TTFT": [350, 420, 610], "total_latency": [12.5, 9.0, 30.1], "output_tokens": [400] * 3},
        {"ttft_ms": "ms", "e2e_ms": "s"},
    ),
    (
        "tokens/s is output / total",
        {
            "total_latency": [20, 30, 40],
            "output_tokens": [40, 60, 80],
            "tokens/sec": [2.0, 2.0, 2.0],
        },
        {"e2e_ms": "s"},
    ),
    (
        "the same, in ms: a chip as fast as 2,000 tokens/s",
        {"total_latency": [20, 30, 40], "output_tokens": [40, 60, 80], "tokens/sec": [2000] * 3},
        {"e2e_ms": "ms"},
    ),
    (
        "tokens/s over the time after the first token, a long prompt",
        {
            "TTFT": [20.0, 20.0],
            "total_latency": [22.0, 22.0],
            "output_tokens": [40, 40],
            "tokens/sec": [20, 20],
        },
        {"ttft_ms": "s", "e2e_ms": "s"},
    ),
    (
        "one stream does not generate 27,000 tokens/s",
        {"latency": [30, 60], "output_tokens": [800, 1600]},
        {"e2e_ms": "s"},
    ),
    (
        "a prompt is not computed at 1.5 million tokens/s",
        {"TTFT": [8, 10], "input_tokens": [12_000, 15_000]},
        {"ttft_ms": "s"},
    ),
    (
        "... unless it came from the cache",
        {
            "TTFT": [8, 10],
            "latency_ms": [4000, 5000],
            "input_tokens": [12_000, 15_000],
            "cached_tokens": [11_900, 14_900],
        },
        {"ttft_ms": "ms", "e2e_ms": "ms"},
    ),
    (
        "end less start",
        {
            "start": ["2026-11-29T12:00:00Z"] * 2,
            "end": ["2026-11-29T12:00:30Z", "2026-11-29T12:00:40Z"],
            "latency": [30, 40],
        },
        {"e2e_ms": "s"},
    ),
    (
        "nanoseconds, if nothing usual fits",
        {"total_duration": [4_648_158_584, 2_148_158_584]},
        {"e2e_ms": "ns"},
    ),
    (
        "microseconds, likewise",
        {"latency": [4_648_158, 900_000_000], "output_tokens": [200, 40_000]},
        {"e2e_ms": "us"},
    ),
    (
        "time per output token from total and output",
        {"tpot": [5, 6], "latency_ms": [1000, 1200], "output_tokens": [200, 200]},
        {"tpot_ms": "ms", "e2e_ms": "ms"},
    ),
    (
        "a phase in the unit of its file's other bare durations",
        {"TTFT": [0.4, 1.2], "latency": [2.5, 3.5], "queue": [0.05, 0.2]},
        {"ttft_ms": "s", "e2e_ms": "s", "queue_ms": "s"},
    ),
    (
        "a queue is shorter than its TTFT",
        {"ttft_ms": [400, 600], "queue": [120, 300]},
        {"ttft_ms": "ms", "queue_ms": "ms"},
    ),
    (
        "cells that say their unit help the others of the row",
        {"TTFT": [30, 40], "latency": ["2.5s", "900 ms"]},
        {"ttft_ms": "ms", "e2e_ms": "ms"},
    ),
    (
        "one bad row in ten does not matter",
        {"TTFT": [0.5] * 9 + [500], "latency": [2.0] * 9 + [1.0]},
        {"ttft_ms": "s", "e2e_ms": "s"},
    ),
    (
        "nor does one in five of a short table",
        {"TTFT": [0.5, 0.5, 0.4, 9.0], "latency": [2.0, 3.0, 2.0, 2.0]},
        {"ttft_ms": "s", "e2e_ms": "s"},
    ),
    (
        "bad rows are no evidence, if most are good",
        {"TTFT": [0.5, 0.5, 0.4, 9e9, 8e9], "latency": [2.0, 3.0, 2.0, 2.0, 3.0]},
        {"ttft_ms": "s", "e2e_ms": "s"},
    ),
    (
        "nor are calls that were turned away",
        {
            "TTFT": [0.45, 0.61, 0.001, 0.002, 0.001],
            "total_latency": [5.2, 4.8, 0.001, 0.002, 0.001],
            "http_status": [200, 200, 429, 429, 503],
        },
        {"ttft_ms": "s", "e2e_ms": "s"},
    ),
    (
        "nor are failed ones",
        {
            "latency": [300, 400, 0.2, 0.3, 0.1],
            "output_tokens": [50, 60, "", "", ""],
            "error": ["", "", "busy", "busy", "busy"],
        },
        {"e2e_ms": "ms"},
    ),
    (
        "nor are rows that will be refused",
        {"latency": [3.2, 4.1, 2e9, 3e9, 4e9], "output_tokens": [150, 160, "x", -5, 0.5]},
        {"e2e_ms": "s"},
    ),
    ("zeros and gaps have any unit", {"TTFT": [0, "", None], "queue": ["-", 0, 0]}, {}),
]


@pytest.mark.parametrize(
    ("cells", "expected"), [case[1:] for case in DECIDED], ids=[c[0] for c in DECIDED]
)
def test_units_by_evidence(cells: Cells, expected: dict[str, str]) -> None:
    found = units(cells)
    assert {target: found[target] for target in expected} == expected
    if not expected:
        assert set(found.values()) == {"ms"}


def test_the_decision_is_told() -> None:
    made = plan({"TTFT": [0.4, 1.2], "latency_ms": [1000, 2000]})
    (notice,) = made.notices
    assert notice.startswith("'TTFT' is read as s: in ms TTFT would lie outside 3 ms to 10 min")
    assert "--map TTFT=ttft_ms:UNIT" in notice
    assert made.mapped == {"TTFT": "ttft_ms:s", "latency_ms": "e2e_ms:ms"}


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (
            {"TTFT": [30, 40, 50]},
            [
                "'TTFT': its median 40 could be 40 s or 40 ms (0.04 s)",
                "--map TTFT=ttft_ms:s or --map TTFT=ttft_ms:ms",
            ],
        ),
        (
            {"TTFT": [30, 40], "total latency": [60, 80]},
            ["2 column(s)", "--map 'total latency=e2e_ms:s' or --map 'total latency=e2e_ms:ms'"],
        ),
        ({"ttft_ms": [400, 600], "queue": [0.05, 0.2]}, ["'queue': its median 0.125 could be"]),
        ({"queue": [5, 6]}, ["'queue'"]),
        ({"latency": [1e-9, 1e30]}, ["fits in no unit", "--map latency=e2e_ms:s or"]),
        # Most rows are good for nothing: that is not decided by the few others.
        ({"latency": [2.0, 1e30, 1e29, 1e28]}, ["fits in no unit"]),
        # The typical value is one of a good row.
        ({"TTFT": [30, 40, 50, 1e30, -7]}, ["'TTFT': its median 40 could be 40 s or 40 ms"]),
    ],
)
def test_what_cannot_be_told_is_asked(cells: Cells, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        plan(cells)
    for word in ["log.csv", *words]:
        assert word in str(caught.value)


def test_the_evidence_is_told_in_plain_numbers() -> None:
    (notice,) = plan({"TTFT": [8, 10], "input_tokens": [12_000, 15_000]}).notices
    assert "in ms prompts would be computed at 1,500,000 tokens/s (100% of the rows)" in notice


def test_a_rule_answers_the_question() -> None:
    made = plan({"TTFT": [30, 40, 50]}, TTFT="ttft_ms:s")
    assert made.mapped == {"TTFT": "ttft_ms:s"} and made.notices == ()


_header = st.one_of(
    st.text(max_size=12),
    st.sampled_from([key for keys in ALIASES.values() for key in keys] + list(KINDS)),
)
_cell = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["1,5", "3s", "0"])
)


@given(
    st.dictionaries(_header, st.lists(_cell, min_size=3, max_size=3), max_size=8),
    st.sampled_from([None, ",", ";", "\t"]),
)
def test_any_table_gets_a_plan_or_a_usage_error(
    cells: dict[str, list[object]], delimiter: str | None
) -> None:
    try:
        made = plan_columns(
            list(cells), cells.__getitem__, rules={}, where="x", delimiter=delimiter
        )
    except UsageError:
        return
    sources = {column.source for column in made.columns.values()}
    assert sources | made.extra | made.dropped == set(cells)
    assert sources.isdisjoint(made.extra | made.dropped)
    assert set(made.columns) <= set(KINDS)
    for column in made.columns.values():
        if column.kind == "duration":
            assert column.unit in UNITS_OF["duration"]
