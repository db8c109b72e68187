"""Text of the data inside Markdown: shown as it is, whatever characters it holds.

Owns escaping, the chip of a phase and the colour of a confidence. Names of models, requests and
files come from outside.
"""

from __future__ import annotations

import html
import re
from typing import Final, Literal

from tracekit.names import PHASE_COLOURS
from tracekit.report import formats
from tracekit.report.texts import phase_label

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|$:~])")
BadgeColour = Literal["green", "blue", "orange", "gray"]
_CONFIDENCE: Final[dict[str, BadgeColour]] = {
    "high": "green",
    "likely": "blue",
    "mixed": "orange",
}
_UNKNOWN_COLOUR: Final = "#8A8F98"


def plain(text: str) -> str:
    """``text`` for a Markdown element that must show it literally, on one line."""
    text = text.translate(dict.fromkeys(formats.DIRECTIONS))
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def confidence_colour(label: str) -> BadgeColour:
    """The colour of a confidence label, the same on every page."""
    return _CONFIDENCE.get(label, "gray")


def phase_chip(phase: str) -> str:
    """HTML of a phase's name on the phase's colour, as in every chart."""
    colour = PHASE_COLOURS.get(phase, _UNKNOWN_COLOUR)
    return (
        f'<span style="background:{colour};color:{_ink(colour)};border-radius:0.5rem;'
        'padding:0.15rem 0.6rem;font-size:0.875rem;white-space:nowrap">'
        f"{html.escape(phase_label(phase))}</span>"
    )


def _ink(colour: str) -> str:
    """Black or white, whichever reads better on ``#rrggbb`` (relative luminance, WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000" if luminance > 0.179 else "#fff"
