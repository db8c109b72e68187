"""Which attributes carry the text of prompts and answers, so that it is never stored unasked.

Instrumentation libraries put messages into spans by default (OpenInference, OpenLLMetry, OpenLIT,
LiteLLM ...). Names, counts, ids and timings stay; what a user or a model wrote goes. A few
attributes hold JSON of both kinds: those keep their known harmless fields.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

_TEXT_KEY: Final = re.compile(
    r"""
      gen_ai\.(?:prompt|completion)(?:\.(?!(?:\d+\.)?(?:role|finish_reason|name|id|version)$).*)?
    | gen_ai\.(?:input|output|request|response)\.(?:messages?|text|content|prompt)(?:\..*)?
    | gen_ai\.(?:system_instructions|event\.content|content|reasoning|thinking)(?:\..*)?
    | gen_ai\.tool\.(?:definitions|parameters|message|call\.(?:arguments|result))(?:\..*)?
    | gen_ai\.(?:input|output)
    | gen_ai\.(?:retrieval|embeddings?|documents?|memory)\.(?:.*\.)?
          (?:query|text|documents?|content|records?)(?:\..*)?
    | llm\.(?:input_messages|output_messages|prompts?|completions?|choices|tools|functions
          |function_call|prompt_template\.(?:template|variables)|request\.functions)(?:\..*)?
    | llm\.(?!token_count\.|usage\.|cost\.)[a-z0-9_-]+\.(?:messages|prompts?|inputs?
          |instructions|system|contents?|choices|output|outputs|candidates|completion|response|tools|functions|text|suffix)
          (?:\..*)?
    | (?:input|output)(?:\.(?:messages?|text|content)(?:\..*)?)?
    | (?:prompts?|completions?|messages|content|input_text|output_text|generated_text|generation
          |prompt_token_ids|input_ids|token_ids)
    | message\.(?:contents?|tool_calls|function_call_.*)(?:\..*)?
    | (?:tool\.parameters|tool_call\.function\.arguments|embedding\.text|document\.content
          |retrieval\.documents|retrieval\.query|reranker\.(?:query|input_documents
          |output_documents))(?:\..*)?
    | embedding\.embeddings\..*
    | traceloop\.(?:entity\.(?:input|output)|prompt\.template.*)
    | ai\.(?:prompt|response\.(?:text|toolCalls|object|reasoning|files)|toolCall\.(?:args|result
          |input|output)|values?|embeddings?)(?:\..*)?
    | langfuse\.(?:.*\.)?(?:input|output|prompt)(?:\..*)?
    | mlflow\.(?:spanInputs|spanOutputs|chat\.(?:messages|tools))
    | (?:pydantic_ai\.)?(?:all_messages|all_messages_events|final_result|tool_arguments
          |tool_response|new_messages)
    | request_data | response_data
    | http\.(?:request|response)\.body(?:\.(?:text|content|value))?
    """,
    re.VERBOSE | re.DOTALL,
)

#: Attributes whose JSON holds text beside facts that analysis needs (ids, usage, stream flag).
_MIXED: Final = frozenset({"input.value", "output.value", "llm.invocation_parameters"})
_HARMLESS: Final = frozenset(
    "id model object created stream stream_options max_tokens max_completion_tokens "
    "max_output_tokens temperature top_p top_k n seed usage service_tier finish_reason status "
    "frequency_penalty presence_penalty".split()
)

#: Keys already found harmless; bounded, so that a peer that invents keys cannot grow it for ever.
_safe_keys: set[str] = set()
_SAFE_KEYS_MAX: Final = 8192
_SAFE_KEY_CHARS: Final = 128

#: Events that are a message: their attributes and bodies are text, save the named facts.
_MESSAGE_EVENT: Final = re.compile(r"gen_ai\.(?:.*\.)?(?:message|choice|prompt|completion|details)")
_EVENT_FACTS: Final = frozenset({"index", "id", "role", "finish_reason"})
_FACT_DEPTH: Final = 3

#: Rust's tracing makes a log line the name of an event; these lines of TGI go on with text.
_TEXT_IN_NAME: Final = re.compile(r"(?:Input|Output|Token): ")

#: In a log line, what follows one of these words is what a user or a model wrote.
_TEXT_IN_LINE: Final = re.compile(
    r"""\b(?:prompt(?:_token_ids|_text|_embeds)?|input_ids|input_text|output_text|messages
        |completion|generated_text|text|content)["']?\s*[:=]\s*(?=["'\[{(])""",
    re.VERBOSE | re.IGNORECASE,
)
_DROPPED: Final = "[text dropped]"


def is_text_key(key: str) -> bool:
    """True if an attribute of this name holds prompt or answer text."""
    return _TEXT_KEY.fullmatch(key) is not None


def drop_text(attributes: dict[str, Any]) -> dict[str, Any]:
    """``attributes`` without prompt and answer text; the same object where there was none."""
    if _safe_keys.issuperset(attributes):  # one C loop in the usual case
        return attributes
    kept = {}
    for key, value in attributes.items():
        if key in _safe_keys:
            kept[key] = value
        elif key in _MIXED:
            facts = _facts(value)
            if facts:
                kept[key] = facts
        elif not is_text_key(key):
            kept[key] = value
            if len(key) <= _SAFE_KEY_CHARS:
                if len(_safe_keys) >= _SAFE_KEYS_MAX:
                    _safe_keys.clear()
                _safe_keys.add(key)
    return kept


def drop_name_text(name: str) -> str:
    """The name of an event without what a user or a model wrote."""
    match = _TEXT_IN_NAME.match(name)
    return name if match is None else match.group() + _DROPPED


def drop_event_text(name: str, attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes of an event without text; a GenAI message event keeps its facts only."""
    kept = drop_text(attributes)
    if _MESSAGE_EVENT.fullmatch(name) and not name.endswith(".details"):
        return {k: v for k, v in kept.items() if k in _EVENT_FACTS or k.startswith("gen_ai.")}
    return kept


def drop_body_text(name: str | None, body: Any) -> Any:
    """A log body without text: None for GenAI message events, their facts where structured."""
    if name is not None and _MESSAGE_EVENT.fullmatch(name):
        return _numbers(body, _FACT_DEPTH) if isinstance(body, dict) else None
    if isinstance(body, str):
        match = _TEXT_IN_LINE.search(body)
        return body if match is None else body[: match.end()] + _DROPPED
    return _without_text(body)


def _without_text(value: Any) -> Any:
    # Bounded by the depth that the decoders allow.
    if isinstance(value, dict):
        return {k: _without_text(v) for k, v in value.items() if not is_text_key(k)}
    if isinstance(value, list):
        return [_without_text(v) for v in value]
    return value


def _numbers(value: dict[str, Any], depth: int) -> dict[str, Any]:
    """Numbers and named facts of nested JSON, ``depth`` levels of it: text has no place there."""
    kept: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            if depth:
                kept[key] = _numbers(item, depth - 1)
        elif key in _EVENT_FACTS or isinstance(item, bool | int | float):
            if not isinstance(item, list):
                kept[key] = item
    return kept


def _facts(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        fields = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None  # plain text: all of it is what somebody wrote
    if not isinstance(fields, dict):
        return None
    kept: dict[str, Any] = {}
    for key, item in fields.items():
        if key not in _HARMLESS or isinstance(item, list):
            continue
        kept[key] = _numbers(item, _FACT_DEPTH) if isinstance(item, dict) else item
    return orjson.dumps(kept).decode() if kept else None
