"""What the reader looks at: window, filters, objectives and pin, and how they live in the URL.

Owns the names of the query parameters and their parsing; the widgets that set them are in
:mod:`tracekit_dashboards.sidebar`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tracekit.analysis.slo import Slo, parse_slo
from tracekit.analysis.window import ALL, Window, parse_range
from tracekit.errors import UsageError

#: Query parameters that every page keeps.
WINDOW: Final = "window"
MODEL: Final = "model"
ROUTE: Final = "route"
SLO: Final = "slo"
PINNED: Final = "at"
SHARED: Final = (WINDOW, MODEL, ROUTE, SLO, PINNED)

#: Query parameters of single pages.
REQUEST: Final = "request"
TOKEN: Final = "token"

NO_SLO: Final = Slo()
#: BIGINT ends here.
_TIMES_END: Final = 2**63
_MINUTE_NS: Final = 60_000_000_000


@dataclass(frozen=True)
class View:
    """One view of the store. Two readers with the same view are given the same frames.

    ``pinned_unix_ns``: rows received later are left out, so that a shared link shows the same.
    """

    window: Window = ALL
    model: str | None = None
    route: str | None = None
    slo: Slo = NO_SLO
    pinned_unix_ns: int | None = None


@dataclass(frozen=True)
class Parsed:
    """A view, and what is wrong with each parameter that could not be read (and was left out)."""

    view: View
    errors: Mapping[str, str]


def parse_view(params: Mapping[str, str], *, now_unix_ns: int) -> Parsed:
    """The view that query parameters mean; never raises.

    Durations count back from the last full minute, so that frames are shared for a minute.
    """
    errors: dict[str, str] = {}
    window, slo, pinned = ALL, NO_SLO, None
    if text := params.get(WINDOW, "").strip():
        try:
            window = parse_range(text, now_unix_ns=now_unix_ns // _MINUTE_NS * _MINUTE_NS)
        except UsageError as error:
            errors[WINDOW] = str(error)
    try:
        slo = parse_slo(params.get(SLO))
    except UsageError as error:
        errors[SLO] = str(error)
    if text := params.get(PINNED, "").strip():
        if text.isascii() and text.isdigit() and len(text) < 20 and int(text) < _TIMES_END:
            pinned = int(text)
        else:
            errors[PINNED] = f"{text!r} is not a time in unix nanoseconds"
    view = View(
        window=window,
        model=params.get(MODEL) or None,
        route=params.get(ROUTE) or None,
        slo=slo,
        pinned_unix_ns=pinned,
    )
    return Parsed(view, errors)


def link(params: Mapping[str, str], **changes: str | None) -> dict[str, str]:
    """Query parameters of a link to another page: the view of ``params``, and ``changes``."""
    found: dict[str, str | None] = {k: params.get(k) for k in SHARED}
    found |= changes
    return {k: v for k, v in found.items() if v}
