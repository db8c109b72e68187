"""Hooking into a library, and out of it again: methods replaced where they are defined.

Owns what was replaced. What is done in a hook is each library's file's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from tracekit.sdk.agent import Agent

#: Marks what a hook put in place, for a library that goes by two names.
_OURS: Final = "__tracekit_hook__"


class Hooks:
    """Hooks of one library."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._agent: Agent | None = None

    @property
    def is_on(self) -> bool:
        return bool(self._undo)

    def on(self, agent: Agent) -> None:
        """Hook in; ImportError if the library is not there."""
        if self._undo:
            return
        self._agent = agent
        try:
            self.hook()
        except BaseException:
            self.off()
            raise

    def hook(self) -> None:
        """Replace what is to be watched."""
        raise NotImplementedError

    def off(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()
        self._agent = None

    def _replace(self, thing: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Wrap a function of a module, or a method where it is defined: classes may inherit it.

        What is not there is left alone, and so is what is wrapped already.
        """
        kinds = thing.__mro__ if isinstance(thing, type) else (thing,)
        owner = next((kind for kind in kinds if name in vars(kind)), None)
        if owner is None or hasattr(own := vars(owner)[name], _OURS):
            return
        wrapped = functools.wraps(own)(wrap(own))
        setattr(wrapped, _OURS, True)
        setattr(owner, name, wrapped)

        def undo() -> None:
            # another may have wrapped ours since: theirs stays, and ours watches nothing
            if vars(owner).get(name) is wrapped:
                setattr(owner, name, own)

        self._undo.append(undo)
