"""What a log row says without writing it: totals, TTFT, tokens/s, status.

Owns the derivations that need nothing but the file's own numbers. Each is stated: in a notice,
in ``ttft_kind``, or by keeping the file's own number in ``extra``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from operator import le
from typing import Any, Final

from tracekit import chunks
from tracekit.ingest._cells import FIRST_UNIX_NS

Values = dict[str, list[Any]]
Bad = dict[int, tuple[str, str]]

#: Two numbers for one rate agree within this: tables are rounded.
_SAME: Final = 0.05

#: Chunk offsets from here on count from 1970.
_FIRST_UNIX_US: Final = FIRST_UNIX_NS // 1000

#: What is wrong with the token counts of a row's chunks.
RUNNING: Final = "running"
TOO_MANY: Final = "too_many"

_ABORT_WORDS: Final = ("cancel", "abort", "disconnect", "interrupt", "closed by client")
_TIMEOUT_WORDS: Final = ("timeout", "timed out", "timed_out", "deadline", "시간초과", "시간 초과")


@dataclass(frozen=True)
class Rate:
    """What the file's tokens/s is over: ``total``, ``decode`` (the time after the first token),
    ``all`` (the total, prompt tokens too) or ``unclear``; ``notice`` where that matters."""

    over: str
    notice: str | None


def add_cache(values: Values) -> None:
    """Input tokens that come without the cached ones, as the sum."""
    prompt = values["input_tokens"]
    both = zip(values["cached_tokens"], values["cache_write_tokens"], strict=True)
    for i, (cached, written) in enumerate(both):
        if prompt[i] is not None:
            prompt[i] += (cached or 0) + (written or 0)


def from_chunks(values: Values, bad: Bad, *, running: bool = False) -> Counter[str]:
    """Packs chunk times; TTFT and total from them where the row gives none.

    Offsets that count from 1970 are made to count from the row's start. TTFT is the first chunk
    that holds a token: ``first_content`` if empty chunks came before it, else ``first_chunk``.
    Offsets count from the sending, TTFT and total from the intended start.

    Token counts that cannot be those of single chunks are not kept: their times are. Returns in
    how many rows, by what was wrong (`RUNNING`, `TOO_MANY`). ``running``: rows before these had
    counts of the first kind.
    """
    dropped: Counter[str] = Counter()
    counts = zip(values["chunk_tokens"], values["output_tokens"], strict=True)
    running = running or any(_doubt(t, output) == RUNNING for t, output in counts if t)
    for i, offsets in enumerate(values["chunk_offsets"]):
        tokens: list[int] | None = values["chunk_tokens"][i]
        packed = values["chunk_times"][i]
        if packed is not None:
            both = chunks.unpack(packed)
            offsets, tokens = both.offsets_us, both.tokens
        if not offsets:
            continue
        if packed is None and offsets[0] >= _FIRST_UNIX_US:
            start = values["start_unix_ns"][i]
            if start is None:
                bad.setdefault(i, ("no_start", "chunk times are points in time, without a start"))
                continue
            offsets = [offset - round(start / 1000) for offset in offsets]
            if offsets[0] < 0:
                bad.setdefault(i, ("chunk_before_start", "the first chunk is before the start"))
                continue
        if tokens is not None and len(tokens) != len(offsets):
            detail = f"{len(offsets)} chunk offsets but {len(tokens)} chunk tokens"
            bad.setdefault(i, ("chunks_differ", detail))
            continue
        doubt = _doubt(tokens, values["output_tokens"][i], running=running) if tokens else None
        if doubt is not None:
            dropped[doubt] += 1
        if packed is None or doubt is not None:
            values["chunk_times"][i] = chunks.pack(offsets, None if doubt else tokens)
        if values["streaming"][i] is None:
            values["streaming"][i] = 1
        first = next((k for k, count in enumerate(tokens) if count), 0) if tokens else 0
        if values["ttft_ms"][i] is None and offsets[first] > 0:
            values["ttft_ms"][i] = waited_ms(values, i) + offsets[first] / 1e3
            values["ttft_kind"][i] = "first_content" if first else "first_chunk"
        if values["e2e_ms"][i] is None and offsets[-1] > 0:
            values["e2e_ms"][i] = waited_ms(values, i) + offsets[-1] / 1e3
    return dropped


def _doubt(tokens: list[int], output: int | None, *, running: bool = False) -> str | None:
    """Why ``tokens`` are not those of each chunk; None if they may be.

    Counts so far never fall and end at the row's ``output`` tokens. A row without that number is
    told by the others of its file: ``running`` = such were among them. One token in every chunk
    is what goes without saying: there is nothing to leave out.
    """
    if max(tokens) == 1 == min(tokens):
        return None
    never_falls = len(tokens) > 1 and all(map(le, tokens, tokens[1:]))
    if output is None:
        return RUNNING if running and never_falls else None
    if sum(tokens) <= output:
        return None
    return RUNNING if never_falls and tokens[-1] == output else TOO_MANY


def waited_ms(values: Values, i: int) -> float:
    """[ms] from the intended start to the sending; 0 if the row tells neither."""
    start, intended = values["start_unix_ns"][i], values["intended_start_unix_ns"][i]
    if start is not None and intended is not None:
        return float(max(start - intended, 0)) / 1e6
    return float(max(values["client_wait_ms"][i] or 0.0, 0.0))


def total_ms(values: Values, i: int) -> float | None:
    """[ms] the row's total: as given, else end less start."""
    given: float | None = values["e2e_ms"][i]
    start, end = values["start_unix_ns"][i], values["end_unix_ns"][i]
    if given is None and start is not None and end is not None and end > start:
        return float(end - start) / 1e6
    return given


def what_rate(values: Values, source: str) -> Rate | None:
    """What the column ``source`` is over, by its first rows; None if they cannot show it."""
    fits = {"total": 0, "decode": 0, "all": 0}
    with_total = without_total = over_first = 0
    for i, rate in enumerate(values["tokens_per_s"]):
        output = values["output_tokens"][i]
        if not rate or not output:
            continue
        total, ttft = total_ms(values, i), values["ttft_ms"][i]
        if total is None:
            without_total += 1
            over_first += ttft is not None and ttft > output / rate * 1e3 * 1.01 + 1.0
            continue
        with_total += 1
        fits["total"] += _same(rate, output / total * 1e3)
        if ttft is not None and ttft < total:
            fits["decode"] += _same(rate, output / (total - ttft) * 1e3)
        fits["all"] += _same(rate, (output + (values["input_tokens"][i] or 0)) / total * 1e3)
    if with_total:
        over = next((o for o in fits if fits[o] >= 0.8 * with_total), "unclear")
        return Rate(over, _MEANINGS[over].format(source=source) if over in _MEANINGS else None)
    if not without_total:
        return None
    if over_first > 0.1 * without_total:
        return Rate(
            "decode",
            f"the file has no total; {source!r} must be over the time after the first token (over "
            "the total, TTFT would exceed it), so total = TTFT + output tokens / that",
        )
    return Rate("total", f"the file has no total; taken as output tokens / {source!r}")


_MEANINGS: Final[Mapping[str, str]] = {
    "decode": "{source!r} is over the time after the first token; tokens_per_s is over the total, "
    "the file's number stays in extra",
    "all": "{source!r} counts prompt tokens too; tokens_per_s is output tokens / total, the "
    "file's number stays in extra",
    "unclear": "{source!r} is not output tokens / total in many rows; tokens_per_s is, and where "
    "they differ the file's number stays in extra",
}


def settle_rate(values: Values, rate: Rate | None) -> tuple[dict[int, float], int]:
    """Makes ``tokens_per_s`` output tokens / total, and the total from it where it is missing.

    Returns the file's own numbers where they meant something else (row -> tokens/s) and the
    number of totals made.
    """
    originals: dict[int, float] = {}
    totals = 0
    given = values["tokens_per_s"]
    for i, per_s in enumerate(given):
        output = values["output_tokens"][i]
        if not per_s or not output:
            continue
        total = total_ms(values, i)
        if total is None:
            ttft = values["ttft_ms"][i]
            if rate is None or rate.over not in ("total", "decode"):
                continue
            if rate.over == "decode" and ttft is None:
                continue
            total = output / per_s * 1e3 + (ttft if rate.over == "decode" else 0.0)
            values["e2e_ms"][i] = total
            totals += 1
        over_total = output / total * 1e3
        if not _same(per_s, over_total):
            originals[i] = per_s
            given[i] = over_total
    return originals, totals


def _same(given: float, computed: float) -> bool:
    return abs(given - computed) <= _SAME * computed


def told_status(values: Values, i: int, *, has_finish: bool) -> str:
    """Status of a row that does not state one.

    An error makes it error, timeout or aborted by its words; so does a finish reason. A stream
    that has neither finish reason nor output count, in a file that records them, was aborted.
    """
    error, finish = values["error"][i], values["finish_reason"][i]
    if error is not None:
        return _by_words(error) or "error"
    if finish is not None:
        return _by_words(finish) or ("error" if "error" in finish.lower() else "ok")
    if has_finish and values["streaming"][i] == 1 and values["output_tokens"][i] is None:
        return "aborted"
    return "ok"


def _by_words(text: str) -> str | None:
    text = text.lower()
    if any(word in text for word in _TIMEOUT_WORDS):
        return "timeout"
    return "aborted" if any(word in text for word in _ABORT_WORDS) else None
