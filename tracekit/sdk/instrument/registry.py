"""The libraries that can be watched, and turning them on and off together.

Each is an OpenTelemetry instrumentor too, so that ``opentelemetry-instrument`` finds it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)
from wrapt import register_post_import_hook

from tracekit.errors import UsageError
from tracekit.sdk.agent import Agent
from tracekit.sdk.faults import FAULTS
from tracekit.sdk.instrument.hooks import Hooks
from tracekit.sdk.instrument.http import HttpClients
from tracekit.sdk.instrument.litellm import LiteLLM
from tracekit.sdk.instrument.stainless import Library
from tracekit.sdk.wire.chat import ChatCompletions, Completions
from tracekit.sdk.wire.facts import Wire
from tracekit.sdk.wire.messages import Messages
from tracekit.sdk.wire.responses import Responses

_OPENAI_WIRES: Final[dict[str, Wire]] = {
    "/chat/completions": ChatCompletions(),
    "/completions": Completions(),
    "/responses": Responses(),
}


class _Instrumentor(BaseInstrumentor):  # type: ignore[misc]
    """One library; a singleton, as OpenTelemetry's instrumentors are."""

    #: distribution and the least version that is known to work
    needs: str
    make: Callable[[], Hooks]

    def __init__(self) -> None:
        super().__init__()
        if not hasattr(self, "library"):
            self.library = type(self).make()
            self.agent: Agent | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        return [self.needs]

    def _instrument(self, **kwargs: Any) -> None:
        self.agent = kwargs.get("agent") or Agent(tracer_provider=kwargs.get("tracer_provider"))
        self.library.on(self.agent)

    def _uninstrument(self, **kwargs: Any) -> None:
        self.library.off()


class OpenAIInstrumentor(_Instrumentor):
    """The ``openai`` client: chat completions, completions and responses, sync and async."""

    needs = "openai >= 1.40"
    make = staticmethod(lambda: Library("openai", _OPENAI_WIRES, "openai"))


class AnthropicInstrumentor(_Instrumentor):
    """The ``anthropic`` client: messages, sync and async."""

    needs = "anthropic >= 0.40"
    make = staticmethod(lambda: Library("anthropic", {"/messages": Messages()}, "anthropic"))


class HTTPXInstrumentor(_Instrumentor):
    """``httpx`` clients: calls of any OpenAI-compatible, Anthropic or Ollama API made with them."""

    needs = "httpx >= 0.23"
    make = staticmethod(lambda: HttpClients("httpx"))


class HTTPX2Instrumentor(_Instrumentor):
    """``httpx2`` clients, as `HTTPXInstrumentor`."""

    needs = "httpx2 >= 2.0"
    make = staticmethod(lambda: HttpClients("httpx2"))


class LiteLLMInstrumentor(_Instrumentor):
    """``litellm``: its completion functions and its router, sync and async."""

    needs = "litellm >= 1.60"
    make = staticmethod(LiteLLM)


INSTRUMENTORS: Final[dict[str, type[_Instrumentor]]] = {
    "openai": OpenAIInstrumentor,
    "anthropic": AnthropicInstrumentor,
    "litellm": LiteLLMInstrumentor,
    "httpx": HTTPXInstrumentor,
    "httpx2": HTTPX2Instrumentor,
}

#: Takes seconds to import: an application that only has it installed must not wait for it.
_SLOW: Final = frozenset({"litellm"})
#: Libraries that are turned on when they are imported, and for whom.
_waiting: Final[dict[str, Agent]] = {}
_hooked: Final[set[str]] = set()

#: Libraries that are meant too where the other is named: the one follows the other.
_WITH: Final = {"httpx": ("httpx", "httpx2")}


def _named(only: Iterable[str] | None) -> list[str]:
    """The instrumentors that are meant by ``only`` (None: all)."""
    if only is None:
        return list(INSTRUMENTORS)
    return list(dict.fromkeys(name for given in only for name in _WITH.get(given, (given,))))


def instrument(only: Iterable[str] | None, agent: Agent) -> list[str]:
    """Turn on the libraries that are installed (of ``only``); their names.

    UsageError for a name that is none. A library that cannot be hooked into is left as it is.
    """
    names = _named(only)
    unknown = [name for name in names if name not in INSTRUMENTORS]
    if unknown:
        known = ", ".join(INSTRUMENTORS)
        raise UsageError(f"cannot instrument {unknown[0]!r}; one of {known}")
    done = []
    for name in names:
        if importlib.util.find_spec(name) is None:
            continue
        if name in _SLOW and only is None and name not in sys.modules:
            _wait_for(name, agent)
            done.append(name)
        elif _turn_on(name, agent):
            done.append(name)
    return done


def put_back(before: Mapping[str, Agent]) -> None:
    """Watch what `watched` told earlier."""
    for name, agent in before.items():
        if name in _SLOW and name not in sys.modules:
            _wait_for(name, agent)
        else:
            _turn_on(name, agent)


def watched() -> dict[str, Agent]:
    """The libraries that are watched now, or will be when they are imported, and by whom."""
    found = {name: kind() for name, kind in INSTRUMENTORS.items()}
    return _waiting | {
        name: one.agent
        for name, one in found.items()
        if one.is_instrumented_by_opentelemetry and one.agent is not None
    }


def _turn_on(name: str, agent: Agent) -> bool:
    try:
        found = INSTRUMENTORS[name]()
        found.instrument(agent=agent)
        return found.library.is_on
    except Exception as error:
        FAULTS.swallow(f"instrumenting {name}", error)
        return False


def _wait_for(name: str, agent: Agent) -> None:
    """Turn a library on when the application imports it."""
    _waiting[name] = agent
    if name in _hooked:
        return
    _hooked.add(name)

    def imported(module: Any) -> None:
        if (wanted := _waiting.pop(name, None)) is not None:
            _turn_on(name, wanted)

    register_post_import_hook(imported, name)


def uninstrument(only: Iterable[str] | None = None) -> None:
    """Turn libraries off again: everything is as it was."""
    for name in _named(only):
        _waiting.pop(name, None)
        kind = INSTRUMENTORS.get(name)
        if kind is None:
            continue
        try:
            found = kind()
            if found.is_instrumented_by_opentelemetry:
                found.uninstrument()
        except Exception as error:
            FAULTS.swallow(f"uninstrumenting {name}", error)
