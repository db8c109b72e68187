"""The notes beside the numbers: whom percentiles leave out, what a cache saved. For all views.

Puts numbers of the diagnosis into words; makes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from tracekit.analysis.finding_words import compare_command
from tracekit.analysis.missing import SWAPPED_FIELDS
from tracekit.analysis.wording import format_about
from tracekit.report import formats, texts
from tracekit.words import verb

if TYPE_CHECKING:
    from tracekit.analysis.diagnosis import BlockShare, Diagnosis, PrefixReuse, VersionPace

_COMPLETED: Final = (
    "{share} of the requests completed ({completed} of {ended} that ended): percentiles leave the "
    "others out"
)


_CHUNKS: Final = (
    "TPOT and ITL are per token, {token} at the median; a chunk brings {tokens} tokens (as many "
    "are accepted per decode step), so the chunk gap is {chunk} (n = {n})"
)


_SAVED: Final = (
    "the prefix cache saved about {saved} of prefill by hits in {hits} of {of}: {share} of the "
    "time that {all}, with a hit or without, would have taken without it"
)

#: Why nothing tells what a hit spared.
_UNJUDGED: Final[dict[str, str]] = {
    "preempted": "preempted, where engines count what they compute again as a hit",
    "untimed": "without a time of the prefill",
    "unfitted": "of a kind with too few requests to tell what a prompt takes",
    "spread": "where prompts of one size take too different times",
    "reach": "where too few prompts as large were computed in full",
}

LOOK_SWAPPED: Final = "prefill and decode look swapped: see the missing evidence"

_REPEATED: Final = (
    "{repeated} of the prompt tokens repeat what an earlier prompt began with ({same}"
    "most at most {longest} tokens), but {cached} came from the prefix cache: {blocks} "
    "(n = {n})"
)

_IMPOSSIBLE: Final = (
    "{cached} of the prompt tokens are reported as cached, which cannot be: {can} repeat an "
    "earlier prompt (n = {n}), and prefill takes as long as without any hit; {preempted}"
)

_LOADED: Final = (
    "{loads} loads of cached KV from elsewhere took {load} where to compute these tokens again "
    "takes about {again}: a load of {tokens} tokens takes {one} (medians), the break-even is at "
    "about {enough} tokens if a larger load takes no longer"
)


_PER: Final = {"decode": "per token", "prefill": "for a prefill"}

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
    yield from _versions(diagnosis)
    yield from _saved(diagnosis)
    yield from _loaded(diagnosis)
    yield from _repeated(diagnosis)


def _versions(diagnosis: Diagnosis) -> Iterator[str]:
    pairs: dict[tuple[str, str, str], list[VersionPace]] = {}
    for pace in diagnosis.engine_versions:
        pairs.setdefault((pace.model, pace.slower, pace.quicker), []).append(pace)
    for (model, slower, quicker), paces in pairs.items():
        what = " and ".join(
            f"{formats.number(p.factor)} times as long {_PER[p.phase]}"
            for p in sorted(paces, key=lambda p: -p.factor)
        )
        of = f" of {model}" if model else ""
        yield (
            f"engine version {slower}{of} takes {what} as {quicker} for the same requests: "
            f"{compare_command(paces[0])}"
        )


def _repeated(diagnosis: Diagnosis) -> Iterator[str]:
    reuse = diagnosis.prefix_reuse
    if reuse is None:
        return
    if reuse.is_impossible:
        yield _IMPOSSIBLE.format(
            cached=formats.percent(reuse.cached_share),
            can=formats.percent(reuse.repeated_share),
            n=formats.count(reuse.n),
            preempted=_preempted(reuse),
        )
    elif reuse.is_missed:
        here = reuse.same_worker_share
        yield _REPEATED.format(
            repeated=formats.percent(reuse.repeated_share),
            same=f"{formats.percent(here)} on the same worker; " if here is not None else "",
            cached=formats.percent(reuse.cached_share),
            longest=formats.count(reuse.longest_tokens),
            n=formats.count(reuse.n),
            blocks=_blocks(reuse),
        )


def _preempted(reuse: PrefixReuse) -> str:
    if reuse.preempted is None or reuse.preemptions is None:
        return "whether requests were preempted is not known"
    if not reuse.preempted:
        return "none was preempted: look at how the source counts hits"
    return (
        f"{formats.count(reuse.preempted)} of them were preempted "
        f"({formats.count(reuse.preemptions)} preemptions): engines may count what is computed "
        "again after one as a hit"
    )


def _blocks(reuse: PrefixReuse) -> str:
    """Where the share falls as blocks grow, and what is left at the engine's own size."""
    told = [b for b in reuse.blocks if b.share > 0]
    nothing = next((b for b in reuse.blocks if b.share <= 0), None)
    if reuse.engine_blocks:
        said = "; ".join(
            f"in the engine's KV blocks of {formats.count(b.block_tokens)} tokens "
            f"{formats.percent(b.share)} can be hit"
            for b in reuse.engine_blocks
        )
        return f"{said}; of blocks of {_sizes(told)}"
    rest = f", of {formats.count(nothing.block_tokens)} none" if nothing else ""
    return f"of KV blocks of {_sizes(told)}{rest}: compare the engine's block size"


def _sizes(blocks: Sequence[BlockShare]) -> str:
    # where a larger size changes nothing it is not worth a word
    kept = [b for i, b in enumerate(blocks) if i == 0 or b.share < 0.95 * blocks[i - 1].share]
    return ", ".join(
        f"{formats.count(b.block_tokens)} tokens {formats.percent(b.share)}"
        f"{'' if i else ' can be hit'}"
        for i, b in enumerate(kept)
    )


def over_limit_notes(diagnosis: Diagnosis) -> Iterator[str]:
    """What holds the time of misses without a finding, where the headline does not say it."""
    for over in diagnosis.over_limit:
        if over.sentence not in diagnosis.sentence:
            yield f"{over.sentence}; try: {over.action}"


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
        all="it" if cache.n == 1 else f"these {formats.count(cache.n)}",
    )
    if cache.sampled < cache.n:
        said += f" (counted over {formats.count(cache.sampled)} of them)"
    if left := sum(cache.unjudged.values()):
        why = ", ".join(
            f"{formats.count(n)} {_UNJUDGED[reason]}" for reason, n in cache.unjudged.items()
        )
        said += (
            f"; {formats.count(left)} of {formats.plural(left + cache.hits, 'request')} with a hit "
            f"{verb(left, 'is', 'are')} not in this: {why}"
        )
    top = max(diagnosis.phases, key=lambda p: p.share, default=None)
    if top is not None:
        said += f"; most time goes to {texts.phase_label(top.phase)} ({formats.percent(top.share)})"
    yield said
