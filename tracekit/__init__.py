"""tracekit: why is this LLM request slow?

In an application two lines watch every call of its LLM client libraries::

    tracekit.configure("chat-app")
    tracekit.instrument()

The base package needs nothing but OpenTelemetry. The lake, SQL, importers and reports live behind
the ``analysis`` extra and are imported only by who needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tracekit.sdk.limits import intended_start, limiter
    from tracekit.sdk.request import current_request, request
    from tracekit.sdk.setup import configure, faults, instrument, uninstrument
    from tracekit.sdk.traced import traced

__version__ = "0.1.0"

#: Public name -> where it is; imported when it is first used, so that the command starts quickly.
_LAZY: Final = {
    "configure": "tracekit.sdk.setup",
    "current_request": "tracekit.sdk.request",
    "faults": "tracekit.sdk.setup",
    "instrument": "tracekit.sdk.setup",
    "intended_start": "tracekit.sdk.limits",
    "limiter": "tracekit.sdk.limits",
    "request": "tracekit.sdk.request",
    "traced": "tracekit.sdk.traced",
    "uninstrument": "tracekit.sdk.setup",
}

__all__ = [
    "__version__",
    "configure",
    "current_request",
    "faults",
    "instrument",
    "intended_start",
    "limiter",
    "request",
    "traced",
    "uninstrument",
]


def __getattr__(name: str) -> Any:
    where = _LAZY.get(name)
    if where is None:
        raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
    return getattr(import_module(where), name)
