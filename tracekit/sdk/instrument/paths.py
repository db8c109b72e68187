"""Which requests of plain HTTP clients are LLM calls: by their path, and by what they hold.

Owns the paths of the APIs that are known and the providers' hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tracekit.sdk.wire.chat import ChatCompletions, Completions
from tracekit.sdk.wire.facts import Wire
from tracekit.sdk.wire.messages import Messages
from tracekit.sdk.wire.ollama import OllamaChat, OllamaGenerate
from tracekit.sdk.wire.responses import Responses

#: Ends of paths -> what is spoken there, the fields without which it is something else, and
#: whose format it is. Longer ones come before their own ends.
_APIS: Final[tuple[tuple[str, Wire, tuple[str, ...], str], ...]] = (
    ("/chat/completions", ChatCompletions(), ("messages",), "openai"),
    ("/completions", Completions(), ("prompt",), "openai"),
    ("/v1/responses", Responses(), ("model", "input"), "openai"),
    ("/openai/responses", Responses(), ("model", "input"), "openai"),
    ("/v1/messages", Messages(), ("model", "messages", "max_tokens"), "anthropic"),
    ("/api/chat", OllamaChat(), ("model", "messages"), "ollama"),
    ("/api/generate", OllamaGenerate(), ("model", "prompt"), "ollama"),
)
#: The last parts of these paths: a first look that costs next to nothing.
_LAST: Final = frozenset(path.rpartition("/")[2].encode() for path, *_ in _APIS)

#: Ends of hosts -> the conventions' provider.
_HOSTS: Final = {
    "openai.azure.com": "azure.ai.openai",
    "cognitiveservices.azure.com": "azure.ai.openai",
    "services.ai.azure.com": "azure.ai.inference",
    "models.ai.azure.com": "azure.ai.inference",
    "openai.com": "openai",
    "anthropic.com": "anthropic",
    "deepseek.com": "deepseek",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "groq.com": "groq",
    "mistral.ai": "mistral_ai",
    "moonshot.ai": "moonshot_ai",
    "perplexity.ai": "perplexity",
    "x.ai": "x_ai",
    "cohere.com": "cohere",
    "cerebras.ai": "cerebras",
    "fireworks.ai": "fireworks",
    "together.xyz": "together",
    "openrouter.ai": "openrouter",
}


def may_be_call(raw_path: bytes) -> bool:
    """Whether a path, with its query, may be one of an LLM API's; most are told apart here."""
    return raw_path.partition(b"?")[0].rstrip(b"/").rpartition(b"/")[2] in _LAST


def what_is_called(
    host: str, path: str, body: Mapping[str, Any]
) -> tuple[Wire, Mapping[str, Any], str] | None:
    """(what is spoken, the request's body with its model, the provider); None for other traffic."""
    path = path.rstrip("/")
    for end, wire, needed, provider in _APIS:
        if not path.endswith(end):
            continue
        if any(name not in body for name in needed):
            return None
        if "model" not in body and (model := _deployment(path)) is not None:
            body = {**body, "model": model}
        return wire, body, provider_of(host) or provider
    return None


def provider_of(host: str) -> str | None:
    """The provider whose API answers at ``host``; None for one that is not known."""
    parts = host.lower().split(".")
    for at in range(len(parts) - 1):
        known = _HOSTS.get(".".join(parts[at:]))
        if known is not None:
            return known
    return None


def _deployment(path: str) -> str | None:
    """Azure names its model in the path."""
    _, found, after = path.partition("/deployments/")
    return after.partition("/")[0] or None if found else None
