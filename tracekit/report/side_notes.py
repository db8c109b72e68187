"""The notes beside the numbers: whom percentiles leave out, what a cache saved. For all views.

Puts numbers of the diagnosis into words; makes none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tracekit.analysis.missing import SWAPPED_FIELDS
from tracekit.analysis.sentence import format_about
from tracekit.report import formats, texts

if TYPE_CHECKING:
    from tracekit.analysis.diagnosis import Diagnosis

_COMPLETED: Final = (
    "{share} of the requests completed ({completed} of {ended} that ended): percentiles leave the "
    "others out"
)


_CHUNKS: Final = (
    "TPOT and ITL are per token, {token} at the median; a chunk brings {tokens} tokens (as many "
    "are accepted per decode step), so the chunk gap is {chunk} (n = {n})"
)


_SAVED: Final = (
    "the prefix cache saved about {saved} of prefill in {hits} of {of}: {share} of the "
    "time that they would have taken without it"
)

LOOK_SWAPPED: Final = "prefill and decode look swapped: see the missing evidence"

_LOADED: Final = (
    "{loads} loads of cached KV from elsewhere took {load} where to compute these tokens again "
    "takes about {again}: a load of {tokens} tokens takes {one} (medians), the break-even is at "
    "about {enough} tokens if a larger load takes no longer"
)


_NO_ITL: Final = (
    "ITL, the gap between single tokens, is unknown without the times of chunks; TPOT is each "
    "request's mean"
)


def percentile_notes(diagnosis: Diagnosis) -> Iterator[str]:
    """What the percentiles do not say by themselves."""
    counts = diagnosis.requests
    if counts.completed < counts.ended:
        yield _COMPLETED.format(
            share=formats.percent(counts.completed_share),
            completed=formats.count(counts.completed),
            ended=formats.count(counts.ended),
        )
    if (pace := diagnosis.chunks) is not None:
        yield _CHUNKS.format(
            token=formats.ms(pace.token_gap_ms),
            tokens=formats.number(pace.tokens_per_chunk),
            chunk=formats.ms(pace.chunk_gap_ms),
            n=formats.count(pace.n),
        )
    tpot, itl = (diagnosis.percentiles.get(name) for name in ("tpot_ms", "itl_ms"))
    if tpot is not None and tpot.n and (itl is None or not itl.n):
        yield _NO_ITL


def phase_notes(diagnosis: Diagnosis) -> Iterator[str]:
    """What the phases do not say by themselves: the time that was not taken, or need not be."""
    if any(m.field == SWAPPED_FIELDS for m in diagnosis.missing_evidence):
        yield LOOK_SWAPPED
    yield from _saved(diagnosis)
    yield from _loaded(diagnosis)


def _loaded(diagnosis: Diagnosis) -> Iterator[str]:
    loads = diagnosis.kv_loads
    if loads is None or not loads.is_loss:
        return
    said = _LOADED.format(
        loads=formats.count(loads.n),
        load=formats.seconds(loads.load_s),
        again=formats.seconds(loads.recompute_s),
        one=formats.ms(loads.load_ms),
        tokens=formats.count(loads.tokens),
        enough=format_about(loads.same_time_tokens),
    )
    if loads.sampled < loads.n:
        said += f" (counted over {formats.count(loads.sampled)} of them)"
    yield said


def _saved(diagnosis: Diagnosis) -> Iterator[str]:
    if (cache := diagnosis.prefix_cache) is None:
        return
    said = _SAVED.format(
        saved=formats.seconds(cache.saved_s),
        hits=formats.count(cache.hits),
        of=formats.plural(cache.n, "request"),
        share=formats.percent(cache.saved_share),
    )
    if cache.sampled < cache.n:
        said += f" (counted over {formats.count(cache.sampled)} of them)"
    top = max(diagnosis.phases, key=lambda p: p.share, default=None)
    if top is not None:
        said += f"; most time goes to {texts.phase_label(top.phase)} ({formats.percent(top.share)})"
    yield said
