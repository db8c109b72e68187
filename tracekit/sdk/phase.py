"""One phase of a request that is told as it runs."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from tracekit.sdk.faults import attempt
from tracekit.sdk.told import TOLD_PHASES

if TYPE_CHECKING:
    from tracekit.sdk.request import Request


class Phase:
    """One phase of a request while it runs."""

    def __init__(self, request: Request, name: str) -> None:
        self.name = name
        self.start_ns: int | None = None
        self._request = request

    def start(self) -> Phase:
        """It begins."""
        request = self._request
        if self.start_ns is None and not request.ended:
            if self.name in TOLD_PHASES:
                self.start_ns = request.opened(self)
            else:
                attempt("telling a phase", request.add_phase, self.name, 0, 0, "measured")
        return self

    def stop(self) -> None:
        """It is over."""
        request, start_ns = self._request, self.start_ns
        now = None if start_ns is None else request.closed(self)
        if start_ns is not None and now is not None:
            attempt("telling a phase", request.add_phase, self.name, start_ns, now, "measured")

    def __enter__(self) -> Phase:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Phase:
        return self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
