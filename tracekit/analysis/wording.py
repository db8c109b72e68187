"""Words for phases and metrics, and numbers as a sentence has them. Knows no finding."""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal
from typing import Final

#: Phases as they read in a sentence.
PHASE_WORDS: Final[dict[str, str]] = {
    "client_wait": "waiting in the client",
    "network": "the network",
    "route": "the gateway or router",
    "frontend": "the engine's front end",
    "queue": "the queue",
    "prefill": "prefill",
    "queue_or_prefill": "the time before the first token (queue or prefill)",
    "kv_transfer": "KV transfer",
    "decode": "decode",
    "unexplained": "time that no boundary covers",
}

METRIC_WORDS: Final[dict[str, str]] = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "total time"}


def format_ms(value: float) -> str:
    """Milliseconds with the unit that reads best: ``0.4 ms``, ``812 ms``, ``1.9 s``."""
    size = abs(value)
    if size >= 120_000:
        return f"{value / 60_000:.1f} min"
    if size >= 1_000:
        return f"{value / 1_000:.1f} s" if size < 99_950 else f"{value / 1_000:.0f} s"
    if size >= 10:
        return f"{value:.0f} ms"
    return f"{value:.1f} ms"


def format_share(value: float) -> str:
    """A share of 1 in per cent; never rounded to 0 or 100 unless it is."""
    if 0 < value < 0.01:
        return "under 1 %"
    if 0.99 < value < 1:
        return "over 99 %"
    return f"{value * 100:.0f} %"


def format_confidence(value: float) -> str:
    """A confidence with two digits, rounded down: 0.897 is not yet the 0.90 of "high"."""
    return str(Decimal(repr(float(value))).quantize(Decimal("0.01"), ROUND_FLOOR))


def format_tokens(value: float) -> str:
    """Tokens: exact below ten thousand, else in thousands (``31k``)."""
    return f"{value:,.0f}" if value < 10_000 else f"{value / 1_000:.0f}k"


def tokens(value: float, kind: str = "") -> str:
    """``31k prompt tokens``, ``1 token``."""
    noun = "token" if format_tokens(value) == "1" else "tokens"
    return " ".join(filter(None, (format_tokens(value), kind, noun)))


def format_about(value: float) -> str:
    """A number that is not known better than to two digits: ``3,500``."""
    return f"{float(f'{value:.2g}'):,.0f}"
