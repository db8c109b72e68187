"""LiteLLM: watching the calls of its completion functions, at its own level.

One call of ``completion`` or ``acompletion`` is one request. What it sends by a client library or
an HTTP client underneath are attempts at it, told by their hooks; a router makes several calls,
which are attempts too. Counts of tokens are taken only if the provider told them: LiteLLM fills in
estimates, and says nothing of it.

Owns these hooks. Its chunks are OpenAI's.
"""

from __future__ import annotations

import contextvars
import importlib
import re
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry import context as otel_context

from tracekit.sdk.agent import Agent, inside_call
from tracekit.sdk.call import ABORTED, CHUNKS_MAX, OK, Call, ending_of
from tracekit.sdk.faults import FAULTS, attempt
from tracekit.sdk.instrument.hooks import Hooks
from tracekit.sdk.instrument.way import Way, current
from tracekit.sdk.wire.chat import ChatCompletions, read_usage
from tracekit.sdk.wire.facts import Answered, get

#: Where a stream keeps who watches it.
_WATCH: Final = "_tracekit_watch"

#: LiteLLM's names of providers -> the conventions', where they differ.
_PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "azure_text": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "bedrock_converse": "aws.bedrock",
    "cohere_chat": "cohere",
    "gemini": "gcp.gemini",
    "vertex_ai": "gcp.vertex_ai",
    "vertex_ai_beta": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "ollama_chat": "ollama",
    "text-completion-openai": "openai",
    "watsonx": "ibm.watsonx.ai",
    "watsonx_text": "ibm.watsonx.ai",
    "xai": "x_ai",
}

#: Counts of tokens in a provider's own answer, by the names that providers give them.
_TOLD_USAGE: Final = re.compile(
    r'"(?:usage|usageMetadata|usage_metadata|billed_units|prompt_eval_count|eval_count'
    r'|inputTokenCount|prompt_token_count)"\s*:\s*[{0-9]'
)
_COUNTS: Final = (
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
)


class _Round:
    """Calls that a router makes for one request, one after another."""

    def __init__(self) -> None:
        self.context = otel_context.get_current()
        self.last: Call | None = None


_round: Final = contextvars.ContextVar["_Round | None"]("tracekit_round", default=None)


class _Chunks(ChatCompletions):
    """LiteLLM's form of an answer: OpenAI's, but for its counts, which may be its own."""

    def read(self, part: Any, into: Answered) -> None:
        super().read(_Countless(part), into)


class _Countless:
    """An answer without its counts."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return None if name == "usage" else get(self._part, name)


class LiteLLM(Hooks):
    """Hooks of the package."""

    wire: Final = _Chunks()

    def hook(self) -> None:
        package = importlib.import_module("litellm")
        main = importlib.import_module("litellm.main")
        for module in (package, main):
            self._replace(module, "completion", self._completion)
            self._replace(module, "acompletion", self._acompletion)
        stream = package.CustomStreamWrapper
        for name, wrap in (
            ("__next__", _next),
            ("__anext__", _anext),
            ("close", _close),
            ("aclose", _aclose),
        ):
            if name in vars(stream):
                self._replace(stream, name, wrap)
        logging = importlib.import_module("litellm.litellm_core_utils.litellm_logging")
        self._replace(logging.Logging, "post_call", _post_call)
        for name, wrap in (("completion", _routed), ("acompletion", _routed_async)):
            self._replace(_home(package.Router, name), name, wrap)

    def _start(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _LiteWay | None:
        agent = self._agent
        # within a call of its own, and what is asked to be async comes by the other function
        if agent is None or current.get() is not None or kwargs.get("acompletion"):
            return None
        try:
            return _started(agent, self.wire, args, kwargs)
        except Exception as error:
            FAULTS.swallow("reading a request", error)
            return None

    def _completion(self, original: Any) -> Any:
        def completion(*args: Any, **kwargs: Any) -> Any:
            way = self._start(args, kwargs)
            if way is None:
                return original(*args, **kwargs)
            with _on(way):
                result = original(*args, **kwargs)
            attempt("reading a response", way.returned, result)
            return result

        return completion

    def _acompletion(self, original: Any) -> Any:
        async def acompletion(*args: Any, **kwargs: Any) -> Any:
            way = self._start(args, kwargs)
            if way is None:
                return await original(*args, **kwargs)
            with _on(way):
                result = await original(*args, **kwargs)
            attempt("reading a response", way.returned, result)
            return result

        return acompletion


def _home(kind: type, name: str) -> Any:
    """The class that a method is of: newer routers hand their calls to a core of theirs."""
    method = getattr(kind, name)
    module = sys.modules.get(method.__module__)
    return getattr(module, method.__qualname__.rpartition(".")[0], kind)


def _started(
    agent: Agent, wire: _Chunks, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> _LiteWay | None:
    named = kwargs.get("model", args[0] if args else None)
    base = kwargs.get("api_base") or kwargs.get("base_url")
    model, provider = named, kwargs.get("custom_llm_provider")
    try:
        model, provider, _, base = importlib.import_module("litellm").get_llm_provider(
            model=named, custom_llm_provider=provider, api_base=base
        )
    except Exception:
        pass  # a name that LiteLLM does not know: it will say so to the caller
    server = _server(base)
    provider = _PROVIDERS.get(str(provider), str(provider)) if provider else "litellm"
    body = {**kwargs, "model": model}
    routed = _round.get()
    before = None if routed is None else routed.last
    if routed is not None and before is not None and before.ended and before.status != OK:
        call = agent.again(
            before, routed.context, asked=wire.ask(body), provider=provider, server=server
        )
    else:
        call = agent.start(wire, body, provider=provider, server=server)
    return None if call is None else _LiteWay(agent, call, routed)


def _server(base: Any) -> tuple[str, int | None] | None:
    if not isinstance(base, str):
        return None
    url = urlsplit(base)
    return (url.hostname, url.port) if url.hostname else None


@contextmanager
def _on(way: _LiteWay) -> Iterator[None]:
    """What is sent in here is part of ``way``; what is raised ends it."""
    tokens = current.set(way), inside_call.set(True)
    try:
        yield
    except BaseException as error:
        attempt("ending a call", way.raised, error)
        raise
    finally:
        inside_call.reset(tokens[1])
        current.reset(tokens[0])


class _LiteWay(Way):
    """A call of LiteLLM on its way."""

    takes_http = True

    __slots__ = ("_round", "has_told_usage")

    def __init__(self, agent: Agent, call: Call, routed: _Round | None) -> None:
        super().__init__(agent, call)
        self._round = routed
        #: the provider's own answer holds counts
        self.has_told_usage = False

    def raised(self, error: BaseException) -> None:
        """The caller gets an error."""
        call = self._over()
        if call is None:
            return
        status = getattr(error, "status_code", None)
        if call.http_status is None and isinstance(status, int) and self.sent:
            call.http_status = status
        call.end(ending_of(error), error)

    def returned(self, result: Any) -> None:
        """The caller gets an answer, or a stream of it."""
        call = self.call
        if call is None:
            return
        hidden = getattr(result, "_hidden_params", None)
        if isinstance(hidden, Mapping) and hidden.get("cache_hit") is True:
            # no model was asked: LiteLLM kept an earlier answer
            call.span.set_attribute("tracekit.response_cache_hit", True)
        if hasattr(type(result), "__anext__") and hasattr(result, "completion_stream"):
            if self._round is not None:
                self._round.last = call
            watch = _Watch(self, result)
            setattr(result, _WATCH, watch)
            weakref.finalize(result, watch.left)
            return
        self._over()
        call.wire.read(result, call.answer)
        if self.has_told_usage:
            read_usage(get(result, "usage"), call.answer)
        call.end()

    def _over(self) -> Call | None:
        self.is_over = True
        call = self.call
        if self._round is not None:
            self._round.last = call
        return call


class _Watch:
    """Watches a stream that the caller pulls, as `streams` does with those that can be wrapped."""

    def __init__(self, way: _LiteWay, stream: Any) -> None:
        self.way = way
        #: within a step of the stream: it may close itself there
        self.stepping = False
        self._kept: Any = stream.chunks
        self._looking = True
        self._tail: tuple[Any, ...] = ()

    @contextmanager
    def step(self) -> Iterator[None]:
        """One pull of the caller's."""
        call = self.way.call
        # a stream may send its request only when it is read
        waiting = call is not None and not call.times_ns
        tokens = (current.set(self.way), inside_call.set(True)) if waiting else None
        self.stepping = True
        try:
            yield
        except (StopIteration, StopAsyncIteration):
            self.end(None)
            raise
        except BaseException as error:
            self.end(error)
            raise
        finally:
            self.stepping = False
            if tokens is not None:
                inside_call.reset(tokens[1])
                current.reset(tokens[0])

    def saw(self, chunk: Any) -> None:
        """The caller gets ``chunk``."""
        call = self.way.call
        if call is None or call.ended:
            return
        self.way.is_over = True  # its headers are long there
        if len(call.times_ns) > CHUNKS_MAX:
            call.dropped += 1
        else:
            call.times_ns.append(call.clock.perf_ns())
        self._tail = (*self._tail[-2:], chunk)
        if self._looking:
            self._looking = not call.look(chunk)

    def end(self, error: BaseException | None) -> None:
        """There is no more of it."""
        self._finish(OK if error is None else ending_of(error), error)

    def closed(self) -> None:
        """The caller wants no more of it."""
        if not self.stepping:
            self._finish(ABORTED, "GeneratorExit")

    def left(self) -> None:
        """Nobody has it any more."""
        call = self.way.call
        if call is not None and not call.ended:
            known = call.times_ns[-1] if call.times_ns else call.headers_ns
            self._finish(ABORTED, "GeneratorExit", known)

    def _finish(
        self, status: str, error: BaseException | str | None, at_ns: int | None = None
    ) -> None:
        call = self.way._over()
        if call is None or call.ended:
            return
        at_ns = call.clock.perf_ns() if at_ns is None else at_ns
        attempt("reading counts", _read_counts, self._kept, call.answer)
        call.tail.extend(self._tail)
        self._tail, self._kept = (), ()
        call.end(status, error, at_ns=at_ns)


def _read_counts(chunks: Any, into: Answered) -> None:
    """The counts in the chunks that the provider sent, which tell one part or another of them."""
    for chunk in chunks:
        usage = get(chunk, "usage")
        if usage is None:
            continue
        told = Answered()
        read_usage(usage, told)
        for name in _COUNTS:
            value = getattr(told, name)
            if value or (value == 0 and getattr(into, name) is None):
                setattr(into, name, value)
        into.timings.update(told.timings)


def _next(original: Any) -> Any:
    def step(stream: Any) -> Any:
        watch = stream.__dict__.get(_WATCH)
        if watch is None:
            return original(stream)
        with watch.step():
            chunk = original(stream)
        attempt("seeing a chunk", watch.saw, chunk)
        return chunk

    return step


def _anext(original: Any) -> Any:
    async def step(stream: Any) -> Any:
        watch = stream.__dict__.get(_WATCH)
        if watch is None:
            return await original(stream)
        with watch.step():
            chunk = await original(stream)
        attempt("seeing a chunk", watch.saw, chunk)
        return chunk

    return step


def _close(original: Any) -> Any:
    def close(stream: Any) -> Any:
        if (watch := stream.__dict__.get(_WATCH)) is not None:
            attempt("closing a stream", watch.closed)
        return original(stream)

    return close


def _aclose(original: Any) -> Any:
    async def aclose(stream: Any) -> Any:
        if (watch := stream.__dict__.get(_WATCH)) is not None:
            attempt("closing a stream", watch.closed)
        return await original(stream)

    return aclose


def _post_call(original: Any) -> Any:
    def post_call(logging: Any, original_response: Any = None, *args: Any, **kwargs: Any) -> Any:
        way = current.get()
        if isinstance(way, _LiteWay):
            attempt("reading an answer", _see_answer, way, original_response)
        return original(logging, original_response, *args, **kwargs)

    return post_call


def _see_answer(way: _LiteWay, answer: Any) -> None:
    """The provider's own answer, as text or parsed; anything else is no answer."""
    if isinstance(answer, Mapping):
        way.has_told_usage = way.has_told_usage or answer.get("usage") is not None
    elif isinstance(answer, str):
        way.has_told_usage = way.has_told_usage or _TOLD_USAGE.search(answer) is not None


@contextmanager
def _rounds() -> Iterator[None]:
    """Calls in here are attempts at one request."""
    if _round.get() is not None:
        yield
        return
    token = _round.set(_Round())
    try:
        yield
    finally:
        _round.reset(token)


def _routed(original: Any) -> Any:
    def completion(router: Any, *args: Any, **kwargs: Any) -> Any:
        with _rounds():
            return original(router, *args, **kwargs)

    return completion


def _routed_async(original: Any) -> Any:
    async def acompletion(router: Any, *args: Any, **kwargs: Any) -> Any:
        with _rounds():
            return await original(router, *args, **kwargs)

    return acompletion
