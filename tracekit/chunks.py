"""Chunk arrival times of one stream as one short string.

Owns the text form that travels in span attributes, in ``request_log.chunk_times`` and in
``legs.chunk_times``. Standard library only: applications pack with it on their hot path.
It must not know what a stall or a gap is; that is the analysis.

The form, version 1::

    text    = "1:" + base64(words)           standard alphabet, padded
    words   = 16-bit little-endian words: count, flags, low * count, [excess], runs
    low     = the lower 16 bits of each delta
    excess  = n, (step, value) * n           the rest of the deltas that need more; with flag 2
    runs    = (tokens, chunks) *             tokens of each chunk, run-length coded

Count, flags, excess and runs are varints of 15-bit digits, lowest first, bit 15 set while
another digit follows. A delta is an offset less the one before it (the first counts from 0, the
request's start), in microseconds; flag 1 says that deltas are zig-zag coded, which only streams
whose times go backwards need. ``value << 16`` is added to the delta ``step`` places after the
last one that got any (the first counts from place 0). Nearly every gap is below 65.5 ms, so the
low words are nearly the whole stream and move at C speed in both directions, and a stall costs
four bytes more: 200 chunks take about 560 characters.

What comes out is never longer than what went in: every chunk costs a word of its own, and runs
must add up to the count exactly, so no text unpacks to more chunks than it has words.
"""

from __future__ import annotations

import binascii
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import sub
from typing import Final

from tracekit.errors import SourceError, UsageError

#: Prefix of the only version there is.
PREFIX: Final = "1:"

#: Largest magnitude of an offset in microseconds (285 years) and of a chunk's tokens.
MAX_OFFSET_US: Final = 1 << 53
MAX_TOKENS: Final = 1 << 31

_ZIGZAG: Final = 1
_EXCESS: Final = 2

_LOW: Final = 0xFFFF
_LOW_BITS: Final = 16

_DIGIT: Final = 0x7FFF
_MORE: Final = 0x8000
_DIGIT_BITS: Final = 15
#: A varint of more digits than this cannot be within the limits.
_MAX_DIGITS: Final = 4

_SWAP: Final = sys.byteorder == "big"


@dataclass(frozen=True)
class Chunks:
    """``offsets_us[i]``: [us] arrival of chunk i from the request's start; ``tokens[i]``: in it."""

    offsets_us: list[int]
    tokens: list[int]


def pack(offsets_us: Sequence[int], tokens: Sequence[int] | None = None) -> str:
    """Pack chunk offsets [us, from the request's start] and tokens per chunk into one string.

    ``tokens`` may be left out: one token a chunk. Raises `UsageError` if the lengths differ or
    a number is out of range (offsets within ±`MAX_OFFSET_US`, tokens 0 to `MAX_TOKENS`).
    """
    count = len(offsets_us)
    if tokens is not None and len(tokens) != count:
        raise UsageError(f"{count} chunk offsets but {len(tokens)} token counts")
    flags = 0
    low: list[int] = []
    tail: list[int] = []
    if count:
        low = list(map(sub, offsets_us, (0, *offsets_us[:-1])))
        if min(low) < 0:
            flags = _ZIGZAG
            low = [d << 1 if d >= 0 else ~(d << 1) for d in low]
        if _out_of_range(offsets_us, rising=not flags):
            raise UsageError("a chunk offset is out of range; offsets are microseconds")
        if max(low) > _LOW:
            flags |= _EXCESS
            tail = _take_excess(low)
        tail += (1, count) if tokens is None else _runs(tokens)
    words = array("H", _varints((count, flags)) + low + _varints(tail))
    if _SWAP:
        words.byteswap()
    return PREFIX + binascii.b2a_base64(words, newline=False).decode("ascii")


def unpack(text: str) -> Chunks:
    """Unpack what `pack` made. Any other text raises `SourceError`, and nothing else does."""
    if not text.startswith(PREFIX):
        raise SourceError(
            f"chunk times of an unknown version: {text[:8]!r}",
            how=f"expected text that starts with {PREFIX!r}",
        )
    try:
        raw = binascii.a2b_base64(text[len(PREFIX) :].encode("ascii"), strict_mode=True)
        packed = array("H", raw)
    except ValueError as error:  # bad base64, not ASCII, half a word
        raise SourceError(f"chunk times are not base64 of 16-bit words: {error}") from None
    if _SWAP:
        packed.byteswap()
    words = packed.tolist()
    count, at = _varint(words, 0)
    flags, at = _varint(words, at)
    if flags & ~(_ZIGZAG | _EXCESS):
        raise SourceError(f"chunk times with unknown flags {flags:#x}")
    if count > len(words) - at:
        raise SourceError(f"chunk times promise {count} chunks and hold {len(words) - at} words")
    deltas = words[at : at + count]
    at += count
    if flags & _EXCESS:
        at = _add_excess(words, at, deltas)
    if flags & _ZIGZAG:
        deltas = [(d >> 1) ^ -(d & 1) for d in deltas]
    offsets = list(accumulate(deltas))
    if _out_of_range(offsets, rising=not flags & _ZIGZAG):
        raise SourceError("a chunk offset is out of range")
    tokens, at = _expand(words, at, count)
    if tokens and max(tokens) > MAX_TOKENS:
        raise SourceError("tokens of a chunk are out of range")
    if at != len(words):
        raise SourceError(f"chunk times go on for {len(words) - at} words after their end")
    return Chunks(offsets, tokens)


def _out_of_range(offsets_us: Sequence[int], *, rising: bool) -> bool:
    if not offsets_us:
        return False
    low, high = (offsets_us[0], offsets_us[-1]) if rising else (min(offsets_us), max(offsets_us))
    return low < -MAX_OFFSET_US or high > MAX_OFFSET_US


def _take_excess(deltas: list[int]) -> list[int]:
    """Cut ``deltas`` to their lower 16 bits in place; what was cut, as numbers to pack."""
    places = [i for i, delta in enumerate(deltas) if delta > _LOW]
    numbers = [len(places)]
    last = 0
    for place in places:
        numbers += (place - last, deltas[place] >> _LOW_BITS)
        deltas[place] &= _LOW
        last = place
    return numbers


def _add_excess(words: Sequence[int], at: int, deltas: list[int]) -> int:
    """The opposite of `_take_excess` over varints at ``at``; returns where they end."""
    number, at = _varint(words, at)
    if number > len(deltas):
        raise SourceError(f"chunk times promise {number} long gaps in {len(deltas)} chunks")
    place = 0
    for _ in range(number):
        step, at = _varint(words, at)
        value, at = _varint(words, at)
        place += step
        if place >= len(deltas):
            raise SourceError(f"a long gap of chunk times lies past their {len(deltas)} chunks")
        deltas[place] += value << _LOW_BITS
    return at


def _runs(tokens: Sequence[int]) -> list[int]:
    """(tokens, chunks) of each run, flat."""
    pairs: list[int] = []
    if tokens.count(tokens[0]) == len(tokens):  # nearly every stream: one token a chunk
        pairs += (tokens[0], len(tokens))
    else:
        for value, run in groupby(tokens):
            pairs += (value, len(list(run)))
    if min(pairs[0::2]) < 0 or max(pairs[0::2]) > MAX_TOKENS:
        raise UsageError(f"tokens of a chunk must lie between 0 and {MAX_TOKENS}")
    return pairs


def _expand(words: Sequence[int], at: int, count: int) -> tuple[list[int], int]:
    """The opposite of `_runs` over varints at ``at``: ``count`` values, and where they end."""
    values: list[int] = []
    while len(values) < count:
        value, at = _varint(words, at)
        length, at = _varint(words, at)
        if not 0 < length <= count - len(values):
            raise SourceError(f"runs of chunk times do not add up to {count} chunks")
        values += [value] * length
    return values, at


def _varints(numbers: Iterable[int]) -> list[int]:
    words: list[int] = []
    for number in numbers:
        while number > _DIGIT:
            words.append(number & _DIGIT | _MORE)
            number >>= _DIGIT_BITS
        words.append(number)
    return words


def _varint(words: Sequence[int], at: int) -> tuple[int, int]:
    """The varint at ``at`` and where it ends."""
    number = 0
    for digit, word in enumerate(words[at : at + _MAX_DIGITS]):
        number |= (word & _DIGIT) << (_DIGIT_BITS * digit)
        if word < _MORE:
            return number, at + digit + 1
    raise SourceError("chunk times end inside a number, or a number has too many digits")
