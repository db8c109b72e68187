"""Pairs that `tracekit join` found, as a table for people."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit.analysis.likely import CHANCE_MAX, Pair, Proposal
from tracekit.report import formats
from tracekit.report.console import make_table

#: Pairs listed unless all are asked for.
_SHOWN: Final = 10
_NUMBERS: Final = ("score", "in", "out", "call", "outside engine")


def render(found: Proposal, *, every: bool = False) -> RenderableType:
    """Counts, the least sure pairs first (they are worth a look), and what holds of the rest."""
    lines: list[RenderableType] = [
        Text(
            f"{formats.plural(found.calls, 'call')} without an engine, "
            f"{formats.plural(found.served, 'request')} of engines without a client: "
            f"{formats.plural(len(found.pairs), 'pair')} by time and token counts"
        )
    ]
    shown = list(reversed(found.pairs))
    if not every:
        shown = shown[:_SHOWN]
    if shown:
        lines.append(_table(shown))
    if len(shown) < len(found.pairs):
        more = len(found.pairs) - len(shown)
        lines.append(Text(f"(and {more:,} surer; --all lists them)", style="dim"))
    rest = min(found.calls, found.served) - len(found.pairs)
    if rest > 0:
        lines.append(
            Text(
                f"{rest:,} could be paired at most and are not: several fit, another of the same "
                f"token counts could lie there by accident (chance over {CHANCE_MAX:.0%}), the "
                f"clocks differ by more than {found.slack_ms:g} ms, they failed, or are not settled"
                " yet",
                style="dim",
            )
        )
    return Group(*lines)


def _table(pairs: list[Pair]) -> RenderableType:
    table = make_table("score", "client", "engine", "in", "out", "call", "outside engine",
                       right=_NUMBERS)  # fmt: skip
    for pair in pairs:
        table.add_row(
            f"{pair.score:.3f}",
            formats.cut(pair.client_request_id or pair.client_key, 28),
            formats.cut(pair.server_request_id or pair.server_key, 28),
            f"{pair.input_tokens:,}",
            f"{pair.output_tokens:,}",
            formats.ms(pair.call_ms),
            formats.ms(pair.outside_ms),
        )
    return table
