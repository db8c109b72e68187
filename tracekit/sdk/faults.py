"""What goes wrong inside the SDK stays there: swallowed, counted, logged once a kind.

The application is never harmed by being watched.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

_log: Final = logging.getLogger("tracekit")
_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Kinds of faults that are told apart; a stream of new ones must not fill the memory.
_KINDS_MAX: Final = 100


class Faults:
    """Counts by (place, exception class)."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def swallow(self, where: str, error: BaseException) -> None:
        """Count ``error``, and log it the first time that it happens ``where``."""
        kind = (where, type(error).__name__)
        with self._lock:
            if kind not in self._counts and len(self._counts) >= _KINDS_MAX:
                kind = ("other", "")
            self._counts[kind] += 1
            first = self._counts[kind] == 1
        if first:
            try:
                _log.warning(
                    "tracekit: %s failed (%s: %s); the call goes on, its span may lack something. "
                    "Further ones are counted, not logged.",
                    where,
                    type(error).__name__,
                    error,
                    exc_info=_log.isEnabledFor(logging.DEBUG),
                )
            except Exception:
                pass  # a broken log handler is not the application's trouble either

    def counts(self) -> dict[str, int]:
        """How often each kind of fault happened: ``"place: Exception"`` → times."""
        with self._lock:
            return {f"{where}: {name}": n for (where, name), n in self._counts.items()}

    def clear(self) -> None:
        with self._lock:
            self._counts.clear()


FAULTS: Final = Faults()


def guarded(where: str, function: Callable[_P, _R]) -> Callable[_P, _R | None]:
    """``function`` whose exceptions are swallowed: it returns None then."""

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            FAULTS.swallow(where, error)
            return None

    return call


def attempt(where: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function``; None and a counted fault if it raises."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        FAULTS.swallow(where, error)
        return None
