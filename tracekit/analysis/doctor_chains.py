"""Where the chain from caller to server breaks: the doctor's remarks on ``sql/health/chains``.

Owns what is worth saying of a source whose spans have no counterpart, and the flag that mends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tracekit.analysis.systems import SYSTEMS
from tracekit.words import plural as _n

Row = Mapping[str, Any]

#: From this share of a source's requests on a missing counterpart is the rule, not an accident.
_MANY: Final = 0.05

_SYSTEM_OF: Final = {source: system for system in SYSTEMS for source in system.sources}
#: Sources of which nobody expects a gateway above or an engine below.
_ALONE: Final = frozenset({"genai_client", "http_call", "tracekit", "request_log"})


@dataclass(frozen=True)
class Remark:
    """One thing worth saying: ``topic`` groups, ``how`` mends it (None where nothing is to do)."""

    level: str
    topic: str
    text: str
    how: str | None = None


def chain_remarks(row: Row) -> Iterator[Remark]:
    """What is missing around one source's spans."""
    source, requests = row["source"], row["requests"]
    if source in _ALONE:
        return
    system = _SYSTEM_OF.get(source, _SYSTEM_OF.get(source.removesuffix("_log")))
    label = system.label if system is not None else source
    turn_on = system.turn_on if system is not None else {}
    if row["incomplete"]:
        yield Remark(
            "note",
            "joins",
            f"{label}: of {_n(row['incomplete'], 'request')} only stages came, and the span that "
            "they are stages of did not",
            "it comes last: they may be under way. If not, the exporter of that process dropped it "
            "or sends elsewhere",
        )
    if row["without_engine"] > _MANY * requests:
        yield Remark(
            "problem",
            "joins",
            f"{label}: {row['without_engine']:,} of {_n(requests, 'request')} passed the gateway, "
            "and no server told of them",
            _sampling(turn_on, "turn on the servers' own tracing"),
        )
    for missing, here in (("prefill", "decode"), ("decode", "prefill")):
        if row[f"without_{missing}"] > _MANY * requests:
            yield Remark(
                "problem",
                "joins",
                f"{label}: {row[f'without_{missing}']:,} of {_n(requests, 'request')} have a "
                f"{here} server's spans and none of their {missing} server",
                _sampling(turn_on, f"turn on the tracing of the {missing} servers too"),
            )


def _sampling(turn_on: Mapping[str, str], what: str) -> str:
    trace = turn_on.get("trace")
    same = "the same receiver, the same sampling everywhere (parent-based, decided by the caller)"
    return f"{what}; {same}" + (f"; {trace}" if trace else "")
