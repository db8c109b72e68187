"""The packed form of chunk times: exact bytes, round trips, and garbage."""

from __future__ import annotations

import base64
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.chunks import MAX_OFFSET_US, MAX_TOKENS, Chunks, pack, unpack
from tracekit.errors import SourceError, UsageError


def words(*numbers: int) -> str:
    """A text of these raw 16-bit words."""
    return "1:" + base64.b64encode(struct.pack(f"<{len(numbers)}H", *numbers)).decode()


#: (offsets, tokens, words on the wire), used in both directions.
CASES = [
    ([], [], (0, 0)),
    ([5], [1], (1, 0, 5, 1, 1)),
    ([65_535], [2], (1, 0, 65_535, 2, 1)),
    ([65_536], [2], (1, 2, 0, 1, 0, 1, 2, 1)),
    # A first chunk after 80 ms (80,000 = 65,536 + 14,464), then gaps of 10.5 ms and none.
    ([80_000, 90_500, 90_500], [1, 1, 1], (3, 2, 14_464, 10_500, 0, 1, 0, 1, 1, 3)),
    # Stalls of 300 ms (4 * 65,536 + 37,856) in the second and fourth chunk.
    (
        [1, 300_001, 300_002, 600_002],
        [1, 1, 1, 1],
        (4, 2, 1, 37_856, 1, 37_856, 2, 1, 4, 2, 4, 1, 4),
    ),
    ([10, 20, 30, 40], [1, 4, 4, 0], (4, 0, 10, 10, 10, 10, 1, 1, 4, 2, 0, 1)),
    # Backwards: zig-zag, 10 -> 20, -3 -> 5.
    ([10, 7], [1, 1], (2, 1, 20, 5, 1, 2)),
    # 40,000 tokens: 40,000 - 32,768 = 7,232 in the first digit.
    ([-1], [40_000], (1, 1, 1, 32_768 | 7_232, 1, 1)),
    # A gap of 36 minutes: 2**31 us, an excess of 32,768: a varint of two digits.
    ([1 << 31], [1], (1, 2, 0, 1, 0, 32_768, 1, 1, 1)),
]


@pytest.mark.parametrize(("offsets", "tokens", "wire"), CASES)
def test_the_wire_form_is_this_and_no_other(
    offsets: list[int], tokens: list[int], wire: tuple[int, ...]
) -> None:
    assert pack(offsets, tokens) == words(*wire)
    assert unpack(words(*wire)) == Chunks(offsets, tokens)


def test_tokens_left_out_are_one_a_chunk() -> None:
    assert pack([3, 4]) == pack([3, 4], [1, 1])
    assert unpack(pack([])).offsets_us == []


_offsets = st.lists(st.integers(-MAX_OFFSET_US, MAX_OFFSET_US), max_size=300)
_rising = st.lists(st.integers(0, 400_000), max_size=300).map(
    lambda gaps: [sum(gaps[: i + 1]) for i in range(len(gaps))]
)
_tokens = st.one_of(st.integers(0, 4), st.integers(0, MAX_TOKENS))


@given(st.data(), st.one_of(_offsets, _rising))
def test_round_trip(data: st.DataObject, offsets: list[int]) -> None:
    tokens = data.draw(st.lists(_tokens, min_size=len(offsets), max_size=len(offsets)))
    assert unpack(pack(offsets, tokens)) == Chunks(offsets, tokens)


@given(st.one_of(st.text(), st.binary().map(lambda b: "1:" + base64.b64encode(b).decode())))
def test_any_text_unpacks_or_raises_source_error(text: str) -> None:
    try:
        chunks = unpack(text)
    except SourceError:
        return
    assert len(chunks.offsets_us) == len(chunks.tokens) <= len(text)
    assert unpack(pack(chunks.offsets_us, chunks.tokens)) == chunks


@given(st.lists(st.integers(0, 65535), max_size=40))
def test_any_words_unpack_or_raise_source_error(numbers: list[int]) -> None:
    try:
        chunks = unpack(words(*numbers))
    except SourceError:
        return
    assert unpack(pack(chunks.offsets_us, chunks.tokens)) == chunks


@given(_rising.filter(len), st.data())
def test_a_cut_or_changed_text_never_raises_anything_else(
    offsets: list[int], data: st.DataObject
) -> None:
    text = pack(offsets)
    at = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.characters(codec="ascii"))
    for bad in (text[:at], text[:at] + letter + text[at + 1 :]):
        try:
            unpack(bad)
        except SourceError:
            pass


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1:",
        "2:AAAA",
        "1:AAA",
        "1:A===",
        "1:AAAA\n",
        "1:AAAAé",
        words(0),  # no flags
        words(0, 4),  # a flag of the future
        words(0, 0, 1, 1),  # words after the end
        words(1, 0),  # one chunk promised, none there
        words(1, 0, 5),  # no tokens
        words(1, 0, 5, 1),  # half a run
        words(1, 0, 5, 1, 2),  # a run too long
        words(1, 0, 5, 1, 0, 1, 1),  # an empty run
        words(2, 0, 5, 5, 1, 1),  # a run too short
        words(1, 2, 5, 1, 0, 1),  # excess, no tokens
        words(1, 2, 5, 2, 0, 1, 0, 1, 1, 1),  # more long gaps than chunks
        words(2, 2, 5, 5, 1, 2, 1, 1, 2),  # a long gap past the end
        words(1, 0, 5, 1, 32768 | 1),  # ends inside a number
        words(32768, 32768, 32768, 32768, 0, 0),  # five digits
        words(1, 2, 0, 1, 0, 65535, 65535, 32767, 1, 1),  # 61 bits: an offset out of range
        words(1, 0, 5, 65535, 65535, 3, 1),  # tokens out of range
        words(32768, 32767, 0, 1, 1),  # a count of a billion
    ],
)
def test_bad_texts(text: str) -> None:
    with pytest.raises(SourceError):
        unpack(text)


def test_a_length_bomb_costs_nothing() -> None:
    billion = (32768 | 32767, 32767)
    bombs = [words(*billion, 0, 7, 1, *billion), words(1, 2, 7, *billion, 0, 1, 1, *billion)]
    tracemalloc.start()
    try:
        for bomb in bombs:
            with pytest.raises(SourceError):
                unpack(bomb)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("offsets", "tokens"),
    [
        ([1, 2], [1]),
        ([1], [-1]),
        ([1], [MAX_TOKENS + 1]),
        ([MAX_OFFSET_US + 1], [1]),
        ([-MAX_OFFSET_US - 1], [1]),
    ],
)
def test_pack_refuses_what_unpack_would_not_take(offsets: list[int], tokens: list[int]) -> None:
    with pytest.raises(UsageError):
        pack(offsets, tokens)


def test_two_hundred_chunks_stay_small() -> None:
    offsets = [80_000 + 11_000 * i for i in range(200)]
    assert len(pack(offsets, [1] * 200)) <= 560
