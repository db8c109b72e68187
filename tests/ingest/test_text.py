"""What users and models wrote is not stored unless asked, wherever a library puts it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tracekit.ingest import Decoded, _text, decode_otlp_json
from tracekit.ingest._text import is_text_key
from tracekit.ingest.batch import PAYLOAD_BYTES

TRACE = "0102030405060708090a0b0c0d0e0f10"
SPAN = "0102030405060708"
SECRET = "the user's own words"

#: As seen in recordings of the instrumentation libraries, or named by their documentation.
TEXT_KEYS = """
    gen_ai.prompt gen_ai.prompt.0.content gen_ai.completion gen_ai.completion.0.content
    gen_ai.completion.0.tool_calls.0.arguments gen_ai.input.messages gen_ai.output.messages
    gen_ai.system_instructions gen_ai.tool.definitions gen_ai.tool.call.arguments
    gen_ai.tool.call.result gen_ai.event.content gen_ai.content.prompt
    llm.input_messages.0.message.content llm.output_messages.12.message.content llm.prompts
    llm.prompts.0.content llm.completions.0.content llm.prompt_template.variables
    llm.request.functions.0.parameters llm.openai.messages llm.openai.choices
    llm.anthropic.system llm.tools.0.tool.json_schema traceloop.entity.input
    traceloop.entity.output input output prompt completion messages ai.prompt.messages
    ai.response.text ai.toolCall.args langfuse.observation.input langfuse.trace.output
    mlflow.spanInputs all_messages_events pydantic_ai.all_messages request_data response_data
    http.request.body retrieval.documents.0.document.content embedding.text message.content
    reranker.query tool.parameters prompt_token_ids generation
""".split()

HARMLESS_KEYS = """
    gen_ai.operation.name gen_ai.request.model gen_ai.request.max_tokens gen_ai.response.id
    gen_ai.response.finish_reasons gen_ai.usage.input_tokens gen_ai.usage.prompt_tokens
    gen_ai.usage.completion_tokens gen_ai.usage.cache_read.input_tokens
    gen_ai.latency.time_in_model_prefill gen_ai.output.type gen_ai.prompt.name
    gen_ai.prompt.0.role gen_ai.completion.0.finish_reason gen_ai.conversation.id
    gen_ai.tool.name gen_ai.tool.call.id gen_ai.token.type llm.token_count.prompt
    llm.token_count.completion llm.token_count.prompt_details.cache_read llm.model_name
    llm.usage.total_tokens llm.openai.usage llm.openai.id llm.request.type llm.is_streaming
    input.mime_type output.mime_type http.route url.path http.method request_id rid
    bootstrap_room tracekit.phase decode_ct code.function ai.response.id ai.usage.promptTokens
""".split()


def attribute(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def decode(signal: str, item: dict[str, Any], *, keep_text: bool = False) -> Decoded:
    names = {
        "traces": ("resourceSpans", "scopeSpans", "spans"),
        "logs": ("resourceLogs", "scopeLogs", "logRecords"),
    }
    blocks, scopes, items = names[signal]
    data = json.dumps({blocks: [{scopes: [{items: [item]}]}]}).encode()
    return decode_otlp_json(signal, data, keep_text=keep_text)


def span(**fields: Any) -> dict[str, Any]:
    times = {"startTimeUnixNano": "10", "endTimeUnixNano": "20"}
    return {"traceId": TRACE, "spanId": SPAN, "name": "chat"} | times | fields


def stored(signal: str, item: dict[str, Any], *, keep_text: bool = False) -> dict[str, Any]:
    decoded = decode(signal, item, keep_text=keep_text)
    assert decoded.rejected == ()
    (row,) = decoded.table.to_pylist()
    return dict(row)


@pytest.mark.parametrize("key", TEXT_KEYS)
def test_text_is_dropped_from_spans_events_links_and_payloads(key: str) -> None:
    text = attribute(key, SECRET)
    item = span(
        attributes=[text, attribute("kept", "k")],
        events=[{"name": "e", "timeUnixNano": "11", "attributes": [text]}],
        links=[{"traceId": TRACE, "spanId": SPAN, "attributes": [text]}],
    )
    row = stored("traces", item)
    assert SECRET not in json.dumps(row)
    assert json.loads(row["attributes"]) == {"kept": "k"}
    assert json.loads(row["events"])[0]["time_unix_ns"] == 11
    assert json.dumps(stored("traces", item, keep_text=True)).count(SECRET) == 3
    (rejected,) = decode("traces", item | {"endTimeUnixNano": "5"}).rejected
    assert json.loads(rejected.payload)["attributes"] == {"kept": "k"}


@pytest.mark.parametrize("key", HARMLESS_KEYS)
def test_facts_stay(key: str) -> None:
    assert not is_text_key(key)
    assert json.loads(stored("traces", span(attributes=[attribute(key, "v")]))["attributes"]) == {
        key: "v"
    }


@pytest.mark.parametrize("line", ["Input: ", "Output: ", "Token: "])
def test_a_log_line_that_became_an_events_name_loses_its_text(line: str) -> None:
    """TGI at LOG_LEVEL=debug: its tracing library names span events after log lines."""
    item = span(events=[{"name": line + SECRET, "timeUnixNano": "11"}])
    (event,) = json.loads(stored("traces", item)["events"])
    assert event["name"] == f"{line}[text dropped]"
    assert SECRET in stored("traces", item, keep_text=True)["events"]


def test_json_of_both_kinds_keeps_its_facts() -> None:
    answer = {
        "id": "chatcmpl-1",
        "model": "llama",
        "usage": {"prompt_tokens": 5, "note": SECRET, "details": {"cached_tokens": 2}},
        "choices": [{"message": {"content": SECRET}}],
    }
    given = {
        "stream": True,
        "max_tokens": 8,
        "stop": SECRET,
        "stream_options": {"include_usage": True},
    }
    row = stored(
        "traces",
        span(
            attributes=[
                attribute("output.value", json.dumps(answer)),
                attribute("llm.invocation_parameters", json.dumps(given)),
                attribute("input.value", SECRET),
            ]
        ),
    )
    attributes = json.loads(row["attributes"])
    assert SECRET not in row["attributes"]
    assert attributes.keys() == {"output.value", "llm.invocation_parameters"}
    assert json.loads(attributes["output.value"]) == {
        "id": "chatcmpl-1",
        "model": "llama",
        "usage": {"prompt_tokens": 5, "details": {"cached_tokens": 2}},
    }
    assert json.loads(attributes["llm.invocation_parameters"]) == {
        "stream": True,
        "max_tokens": 8,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    "value", ["[" * 2000, '{"usage":' * 600 + "1" + "}" * 600, '{"id": ["x"]}', "5"]
)
def test_odd_json_in_them_is_dropped_quietly(value: str) -> None:
    row = stored("traces", span(attributes=[attribute("output.value", value)]))
    assert len(row["attributes"]) < 80


def test_message_events_keep_only_their_facts() -> None:
    event = {
        "name": "gen_ai.choice",
        "timeUnixNano": "12",
        "attributes": [
            attribute("message", SECRET),
            attribute("finish_reason", "stop"),
            attribute("gen_ai.system", "openai"),
        ],
    }
    (kept,) = json.loads(stored("traces", span(events=[event]))["events"])
    assert kept == {
        "name": "gen_ai.choice",
        "time_unix_ns": 12,
        "attributes": {"finish_reason": "stop", "gen_ai.system": "openai"},
    }


def test_a_chunk_event_keeps_its_time() -> None:
    event = {"name": "gen_ai.content.completion.chunk", "timeUnixNano": "12"}
    (kept,) = json.loads(stored("traces", span(events=[event]))["events"])
    assert kept["time_unix_ns"] == 12


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("Received request r-1: prompt: 'the secret', params: x", "Received request r-1: prompt: "),
        ('{"level": "info", "messages": [{"content": "x"}]}', '{"level": "info", "messages": '),
        ("Request r-1 done, prompt_token_ids=[1, 2]", "Request r-1 done, prompt_token_ids="),
    ],
)
def test_log_lines_end_where_text_begins(line: str, kept: str) -> None:
    body = stored("logs", {"body": {"stringValue": line}})["body"]
    assert body == kept + "[text dropped]"
    assert stored("logs", {"body": {"stringValue": line}}, keep_text=True)["body"] == line


@pytest.mark.parametrize(
    "line",
    [
        "Avg prompt throughput: 12.0 tokens/s, Running: 3 reqs",
        "Received request r-1: prompt: None, prompt_token_ids: None",
        "ReqTimeStats(rid=1, input len=5, output len=6)",
    ],
)
def test_other_log_lines_stay_whole(line: str) -> None:
    assert stored("logs", {"body": {"stringValue": line}})["body"] == line


def test_message_logs_and_structured_bodies() -> None:
    body = {
        "kvlistValue": {
            "values": [
                attribute("content", SECRET),
                attribute("level", "info"),
                {"key": "index", "value": {"intValue": "0"}},
            ]
        }
    }
    assert json.loads(stored("logs", {"eventName": "gen_ai.choice", "body": body})["body"]) == {
        "index": 0
    }
    assert json.loads(stored("logs", {"body": body})["body"]) == {"index": 0, "level": "info"}
    by_attribute = {
        "attributes": [attribute("event.name", "gen_ai.user.message")],
        "body": {"stringValue": SECRET},
    }
    row = stored("logs", by_attribute)
    assert (row["event_name"], row["body"]) == ("gen_ai.user.message", None)


def test_keys_that_are_invented_for_ever_do_not_stay_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_text, "_safe_keys", set())
    for start in range(0, 20_000, 1000):
        names = [attribute(f"made.up.{start + n}", "v") for n in range(1000)]
        names.append(attribute("x" * 100_000, "v"))
        assert len(json.loads(stored("traces", span(attributes=names))["attributes"])) == 1001
        assert 0 < len(_text._safe_keys) <= _text._SAFE_KEYS_MAX
    assert max(map(len, _text._safe_keys)) <= _text._SAFE_KEY_CHARS


def test_a_payload_is_cut_on_a_character() -> None:
    item = span(endTimeUnixNano="5", attributes=[attribute("k", "é" * PAYLOAD_BYTES)])
    (rejected,) = decode("traces", item).rejected
    size = len(rejected.payload.encode())
    assert PAYLOAD_BYTES - 1 <= size <= PAYLOAD_BYTES
    assert rejected.payload.endswith("é")
