"""Bodies cut into events: wherever the pieces of a stream end, and within bounds."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sdk._fake import CHAT, MESSAGES, chunk, sse
from tracekit.sdk import bodies
from tracekit.sdk.bodies import Body
from tracekit.sdk.call import CHUNKS_MAX, Call
from tracekit.sdk.faults import FAULTS
from tracekit.sdk.wire.chat import ChatCompletions
from tracekit.sdk.wire.facts import Wire
from tracekit.sdk.wire.messages import Messages
from tracekit.sdk.wire.sse import Cutter, fields


class Ticks:
    """A clock that moves by one at every look."""

    def __init__(self) -> None:
        self.at = 0

    def perf_ns(self) -> int:
        self.at += 1
        return self.at

    def unix_ns(self) -> int:
        return 0


def _call(wire: Wire) -> Call:
    asked = wire.ask({"model": "m", "stream": True})
    return Call(wire, asked, clock=Ticks(), provider="p", on_end=lambda call: None)


def _body(wire: Wire, pieces: list[bytes], kind: str = "text/event-stream") -> Call:
    """A call whose body came in these pieces, the first at 100."""
    call = _call(wire)
    body = Body(call, {"content-type": kind}, "httpx")
    for at, piece in enumerate(pieces, 100):
        body.pieces.append(piece)
        body.times.append(at)
    body.finished()
    assert FAULTS.counts() == {}
    return call


@pytest.fixture(autouse=True)
def _no_faults() -> None:
    FAULTS.clear()


def test_events_are_stamped_by_the_piece_that_completes_them() -> None:
    whole = b"".join(CHAT)
    ends = [sum(map(len, CHAT[: i + 1])) for i in range(len(CHAT))]
    for size in (1, 2, 7, 50, 1000, len(whole)):
        pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
        call = _body(ChatCompletions(), pieces)
        # chunks 0 to 3 count: the role, and three tokens; by hand: where their last byte lies
        assert call.times_ns == [100 + (end - 1) // size for end in ends[:4]], size
        assert (call.first_content, call.first_answer) == (1, 1)
        assert call.answer.output_tokens == 3
        assert call.answer.finish_reasons == ["stop"]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 3, 64])
def test_line_ends(line_end: bytes, size: int) -> None:
    whole = b"".join(MESSAGES).replace(b"\n", line_end)
    pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
    call = _body(Messages(), pieces)
    assert len(call.times_ns) == 3 and call.answer.output_tokens == 3
    assert call.answer.input_tokens == 7


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"data: b", b"event: c"])))
def test_a_cut_loses_no_bytes_and_no_order(parts: list[bytes]) -> None:
    whole = b"".join(parts)
    cutter = Cutter(lines=False)
    blocks: list[bytes] = []
    times: list[int] = []
    for at, part in enumerate(parts):
        for block, time in cutter.cut([part], [at]):
            blocks.append(block)
            times.append(time)
    blocks.append(cutter.rest)
    assert times == sorted(times)
    # line ends apart, all is there
    assert b"".join(blocks).translate(None, b"\r\n") == whole.translate(None, b"\r\n")


def test_fields() -> None:
    assert fields(b"data: a") == (None, b"a")
    assert fields(b"event: x\ndata:a") == (b"x", b"a")
    assert fields(b": keep-alive") == (None, b"")
    assert fields(b"id: 7\nevent: x\nretry: 1\ndata: a\ndata: b") == (b"x", b"a\nb")


def test_a_stream_of_one_chunk_is_read_once() -> None:
    call = _body(ChatCompletions(), sse(chunk("a", finish_reason="stop"), done=True))
    assert call.answer.finish_reasons == ["stop"] and len(call.times_ns) == 1


def test_comments_are_no_chunks() -> None:
    pieces = [CHAT[0], b": keep-alive\n\n", *CHAT[1:3], b": ping\n\n", *CHAT[3:]]
    call = _body(ChatCompletions(), pieces)
    assert len(call.times_ns) == 4


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_bytes_are_read_without_a_fault(data: Any) -> None:
    whole = bytearray(b"".join(data.draw(st.sampled_from([CHAT, MESSAGES]))))
    seed = random.Random(data.draw(st.integers(0, 1 << 30)))
    for _ in range(seed.randrange(6)):
        at = seed.randrange(len(whole))
        match seed.randrange(3):
            case 0:
                whole[at] = seed.randrange(256)
            case 1:
                del whole[at : at + seed.randrange(60)]
            case _:
                whole[at:at] = seed.randbytes(3)
    pieces, at = [], 0
    while at < len(whole):
        size = seed.randrange(1, 400)
        pieces.append(bytes(whole[at : at + size]))
        at += size
    kind = seed.choice(["text/event-stream", "application/json", "application/x-ndjson", ""])
    wires: list[Wire] = [ChatCompletions(), Messages()]
    call = _body(seed.choice(wires), pieces, kind)
    assert call.ended and call.times_ns == sorted(call.times_ns)


def test_a_long_stream_is_read_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_FOLD_AT", 1000)
    call = _call(ChatCompletions())
    body = Body(call, {"content-type": "text/event-stream"}, "httpx")
    most = 0
    for _ in bodies._pass([*CHAT[:2], *[CHAT[2]] * 500, *CHAT[4:]], body):
        most = max(most, sum(map(len, body.pieces)))
    assert most < 1300
    assert len(call.times_ns) == 502 and call.answer.output_tokens == 3


def test_times_of_a_stream_without_end_are_bounded() -> None:
    call = _body(ChatCompletions(), sse(*[chunk("a")] * (CHUNKS_MAX + 10)))
    assert len(call.times_ns) == CHUNKS_MAX and call.dropped == 10


def test_too_long_an_event_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_FOLD_AT", 1000)
    monkeypatch.setattr(bodies, "_WHOLE_MAX", 5000)
    call = _call(ChatCompletions())
    body = Body(call, {"content-type": "text/event-stream"}, "httpx")
    for _ in bodies._pass([b"data: ", *[b"a" * 100] * 1000], body):
        assert len(body._cutter.rest) + sum(map(len, body.pieces)) < 7000
    assert call.status == "ok" and call.times_ns == []


def test_an_unknown_compression_leaves_a_call_without_facts() -> None:
    call = _call(ChatCompletions())
    body = Body(call, {"content-encoding": "newest"}, "nowhere")
    list(bodies._pass(CHAT, body))
    assert call.ended and call.status == "ok" and call.times_ns == []
    FAULTS.clear()
