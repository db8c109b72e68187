"""Telling formats by their content, and reading messages out of each."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracekit.errors import SourceError, UsageError
from tracekit.ingest import _messages, files
from tracekit.ingest._json_split import split_objects
from tracekit.ingest._messages import Message, Unreadable, read_messages, signals
from tracekit.ingest._streams import opened
from tracekit.ingest._wire import signal_of
from tracekit.ingest.files import detect, expand

SLOW_IS_FINE = [HealthCheck.too_slow]  # the machine may be busy
DATA = Path(__file__).parents[1] / "data" / "vllm"
LINES = gzip.decompress((DATA / "edge.otlp.jsonl.gz").read_bytes()).splitlines()
METRICS = b'{"resourceMetrics":[{"scopeMetrics":[{"metrics":[]}]}]}'


def protobuf(number: int = 1) -> bytes:
    message = ExportTraceServiceRequest()
    span = message.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id = bytes([number]) * 16, bytes([number]) * 8
    span.start_time_unix_nano, span.end_time_unix_nano = 10**18, 10**18 + 1
    span.name = "chat"
    return bytes(message.SerializeToString())


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def delimited(*messages: bytes) -> bytes:
    return b"".join(varint(len(m)) + m for m in messages)


def framed(*messages: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(m)) + m for m in messages)


def read(file_format: str, data: bytes) -> list[Message | Unreadable]:
    return list(read_messages(file_format, io.BufferedReader(io.BytesIO(data))))


CONTENTS: dict[str, tuple[str, bytes]] = {
    "lines": ("otlp-jsonl", b"\n".join(LINES) + b"\n"),
    "one line without end": ("otlp-jsonl", LINES[0]),
    "first line bad": ("otlp-jsonl", b"oops {\n" + LINES[0] + b"\n"),
    "byte order mark": ("otlp-jsonl", b"\xef\xbb\xbf" + LINES[0] + b"\n"),
    "metrics lines": ("otlp-jsonl", METRICS + b"\n"),
    "pretty": ("otlp-json", json.dumps(json.loads(LINES[0]), indent=2).encode()),
    "array": ("otlp-json", b"[" + b",\n".join(LINES) + b"]"),
    "pretty array": (
        "otlp-json",
        json.dumps([json.loads(line) for line in LINES], indent=1).encode(),
    ),
    "delimited": ("otlp-protobuf-delimited", delimited(protobuf(1), protobuf(2))),
    "framed": ("otlp-protobuf-framed", framed(protobuf(1), protobuf(2))),
    "framed zstd": (
        "otlp-protobuf-framed",
        framed(zstandard.compress(protobuf(1)), zstandard.compress(LINES[0])),
    ),
    "bare": ("otlp-protobuf", protobuf()),
    "empty": ("empty", b""),
    "blank": ("empty", b"\n \n"),
    "csv": ("csv", b"request_id,input_tokens,output_tokens,ttft_ms\na,1,2,3\n"),
    "log lines": ("jsonl", b'{"request_id": "a", "input_tokens": 1, "output_tokens": 2}\n'),
}
MESSAGES = {
    "lines": len(LINES),
    "one line without end": 1,
    "first line bad": 2,
    "byte order mark": 1,
    "metrics lines": 1,
    "pretty": 1,
    "array": len(LINES),
    "pretty array": len(LINES),
    "delimited": 2,
    "framed": 2,
    "framed zstd": 2,
    "bare": 1,
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("name", ["x.csv", "-", "trace.pb"])
def test_the_format_is_told_by_content_and_not_by_name(content: str, name: str) -> None:
    expected, data = CONTENTS[content]
    assert detect(name, data, complete=True) == expected


def test_the_signal_of_a_protobuf_message_is_told_by_its_first_item() -> None:
    message = ExportTraceServiceRequest()
    scope = message.resource_spans.add().scope_spans.add()
    scope.spans.add(trace_id=b"bad id", start_time_unix_nano=5, end_time_unix_nano=6)
    assert signal_of(message.SerializeToString()) == "traces"
    scope.spans[0].ClearField("start_time_unix_nano")
    scope.spans[0].ClearField("end_time_unix_nano")
    scope.spans[0].trace_id, scope.spans[0].span_id = bytes(16), bytes(8)
    assert signal_of(message.SerializeToString()) == "traces"
    records = ExportLogsServiceRequest()
    record = records.resource_logs.add().scope_logs.add().log_records.add()
    record.observed_time_unix_nano = 5
    assert signal_of(records.SerializeToString()) == "logs"
    record.Clear()
    record.time_unix_nano = 5
    assert signal_of(records.SerializeToString()) == "logs"
    samples = ExportMetricsServiceRequest()
    metric = samples.resource_metrics.add().scope_metrics.add().metrics.add(name="x" * 16)
    metric.gauge.data_points.add(time_unix_nano=5)
    assert signal_of(samples.SerializeToString()) == "metrics"
    assert signal_of(b"") is None
    empty = ExportTraceServiceRequest()
    empty.resource_spans.add()
    assert signal_of(empty.SerializeToString()) is None


@pytest.mark.parametrize("content", ["lines", "delimited", "framed", "bare", "array", "pretty"])
def test_the_beginning_is_enough(content: str) -> None:
    expected, data = CONTENTS[content]
    if content in ("lines", "array"):
        data = data[: len(LINES[0]) // 2]
        expected = "otlp-json" if content == "array" else expected
    assert detect("x", data[:-5], complete=False) == expected


@pytest.mark.parametrize("content", MESSAGES)
def test_every_message_of_every_format(content: str) -> None:
    file_format, data = CONTENTS[content]
    found = read(file_format, data)
    assert len(found) == MESSAGES[content]
    good = 0
    for message in found:
        assert isinstance(message, Message)
        if content == "first line bad" and message.row == 1:
            with pytest.raises(SourceError):
                signals(message)
            continue
        kinds, _, _ = signals(message)
        assert kinds == (("metrics",) if content == "metrics lines" else ("traces",))
        good += 1
    assert good >= MESSAGES[content] - 1


@pytest.mark.parametrize(
    "data",
    [
        b"# A readme\n\nSome words.\n",
        b"\x7fELF\x02\x01\x01" + bytes(100),
        b"PK\x03\x04" + bytes(range(200)),
        b"# HELP vllm:x\n# TYPE vllm:x gauge\nno sample of it\n",
        bytes(1000),
        b"\n\n\n\nhello\n" * 50,
        bytes((i * 37 + 11) % 256 for i in range(5000)),
    ],
)
def test_nothing_known_says_what_was_tried(data: bytes) -> None:
    with pytest.raises(SourceError) as caught:
        detect("notes.txt", data, complete=True)
    text = str(caught.value)
    assert "notes.txt" in text
    for word in ("collector file exporter", "varint", "4 bytes", "CSV", "Parquet", "gzip"):
        assert word in text


@pytest.mark.parametrize("data", [b'{"some": "json", "lag": 3}\n', b"some,lag\njson,3\n"])
def test_an_unknown_table_is_told_by_its_columns(data: bytes) -> None:
    with pytest.raises(SourceError, match=r"nothing known: 'some', 'lag'; at notes.*--map lag="):
        detect("notes", data, complete=True)
    wrong = r"--map names 'lags', which is not among them \(did you mean 'lag'\?\)"
    with pytest.raises(SourceError, match=wrong):
        detect("notes", data, complete=True, mapping={"lags": "ttft_ms:ms"})


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=200, deadline=None, suppress_health_check=SLOW_IS_FINE)
def test_any_bytes_have_a_format_or_one_error(data: bytes, complete: bool) -> None:
    try:
        found = detect("x", data, complete=complete)
    except SourceError:
        return
    if found in files.OTLP_FORMATS:
        for message in read(found, data):
            if isinstance(message, Message):
                try:
                    signals(message)
                except SourceError:
                    continue


# -- broken files ------------------------------------------------------------------------------


def test_a_bad_line_in_the_middle_has_its_number() -> None:
    data = LINES[0] + b"\n\n{broken\n" + LINES[1] + b"\n"
    found = read("otlp-jsonl", data)
    assert [m.row for m in found] == [1, 3, 4]
    with pytest.raises(SourceError, match="not JSON"):
        signals(found[1])  # type: ignore[arg-type]


def test_a_line_that_is_too_long_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_messages, "MAX_MESSAGE_BYTES", 100)
    found = read("otlp-jsonl", b"a\n" + b"x" * 1000 + b"\nb\n" + b"y" * 100 + b"\n" + b"z" * 101)
    assert [(m.row, type(m)) for m in found] == [
        (1, Message),
        (2, Unreadable),
        (3, Message),
        (4, Message),
        (5, Unreadable),
    ]


@pytest.mark.parametrize("make", [delimited, framed])
def test_cut_frames_keep_what_came_before(make: Any) -> None:
    file_format = "otlp-protobuf-framed" if make is framed else "otlp-protobuf-delimited"
    data = make(protobuf(1), protobuf(2))
    first = len(make(protobuf(1)))
    for cut in range(first + 1, len(data)):
        good, bad = read(file_format, data[:cut])
        assert isinstance(good, Message) and good.data == protobuf(1)
        assert isinstance(bad, Unreadable) and (bad.row, bad.reason) == (2, "cut_short")
    assert len(read(file_format, data[:first])) == 1


def test_an_impossible_length_ends_the_file() -> None:
    good, bad = read("otlp-protobuf-delimited", delimited(protobuf()) + varint(1 << 40) + b"rest")
    assert isinstance(good, Message)
    assert isinstance(bad, Unreadable) and bad.reason == "bad_length"


def test_a_bad_frame_among_compressed_ones() -> None:
    whole = zstandard.compress(protobuf(1))
    found = read("otlp-protobuf-framed", framed(whole, whole[:4] + b"garbage", whole))
    assert [type(m) for m in found] == [Message, Unreadable, Message]


def test_pretty_documents_in_a_row_with_junk_between() -> None:
    pretty = json.dumps(json.loads(LINES[0]), indent=2).encode()
    found = read(
        "otlp-json", pretty + b"\njunk here\n" + pretty + b"\n" + pretty[: len(pretty) // 2]
    )
    lines = pretty.count(b"\n") + 1
    assert [m.row for m in found] == [1, lines + 1, lines + 2, 2 * lines + 2]
    kinds = []
    for message in found:
        try:
            kinds.append(signals(message)[0])  # type: ignore[arg-type]
        except SourceError:
            kinds.append(())
    assert kinds == [("traces",), (), ("traces",), ()]


JSON_VALUES = st.recursive(
    st.one_of(
        st.none(), st.integers(), st.text(max_size=8), st.sampled_from(['"', "\\", "{", "]}"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(
    st.lists(st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=3), max_size=5),
    st.integers(1, 40),
    st.sampled_from([None, 2]),
    st.booleans(),
)
@settings(max_examples=150, deadline=None, suppress_health_check=SLOW_IS_FINE)
def test_objects_are_cut_out_whatever_the_chunks(
    objects: list[Any], chunk: int, indent: int | None, as_array: bool
) -> None:
    if as_array:
        text = json.dumps(objects, indent=indent)
    else:
        text = "\n".join(json.dumps(o, indent=indent) for o in objects)
    found = list(split_objects(io.BytesIO(text.encode()), limit_bytes=1 << 20, chunk_bytes=chunk))
    assert [json.loads(data or b"") for _, data in found] == objects
    for line, data in found:
        assert text.splitlines()[line - 1].lstrip(" [,").startswith((data or b"").decode()[:1])


def test_an_object_over_the_limit_is_skipped() -> None:
    big = json.dumps({"a": "x" * 500}).encode()
    found = list(
        split_objects(
            io.BytesIO(b'{"b":1}\n' + big + b'\n{"c":2}'), limit_bytes=100, chunk_bytes=64
        )
    )
    assert found == [(1, b'{"b":1}'), (2, None), (3, b'{"c":2}')]


# -- opening -----------------------------------------------------------------------------------


def content_of(path: Path) -> bytes:
    with opened(str(path), advanced=lambda _: None) as source:
        return source.content().read()


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "gzip in parts": lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:]),
    "zstd": zstandard.compress,
    "zstd in frames": lambda data: zstandard.compress(data[:9]) + zstandard.compress(data[9:]),
}


@pytest.mark.parametrize("how", COMPRESS)
@pytest.mark.parametrize("size", [10, 1_000_000])
def test_compression_is_told_by_content(how: str, size: int, tmp_path: Path) -> None:
    data = (b"0123456789" * size)[:size]
    path = tmp_path / "file"
    path.write_bytes(COMPRESS[how](data))
    counted: list[int] = []
    with opened(str(path), advanced=counted.append) as source:
        assert source.head(5) == (data[:5], False)
        assert source.head(size + 1) == (data, True)
        assert source.content().read() == data
        assert source.compression == (None if how == "plain" else how.split()[0])
        with source.seekable() as file:
            file.seek(3)
            assert file.read(4) == data[3:7]
    assert sum(counted) == path.stat().st_size  # every byte once, however often it was read


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_cut_compressed_data_keeps_what_can_be_read(how: str, tmp_path: Path) -> None:
    lines = [
        b'{"resourceSpans":[],"n":"%s"}' % os.urandom(30_000).hex().encode() for _ in range(20)
    ]
    whole = COMPRESS[how](b"\n".join(lines))
    path = tmp_path / "cut"
    path.write_bytes(whole[: len(whole) // 2])
    with opened(str(path), advanced=lambda _: None) as source:
        found = list(read_messages("otlp-jsonl", source.content(), damage=lambda: source.damage))
    *good, bad = found
    assert isinstance(bad, Unreadable) and bad.reason == "cut_short"
    assert bad.row == len(good) + 1, "the line that is there in part is not another refusal"
    assert len(good) >= 5
    assert [m.data for m in good if isinstance(m, Message)] == lines[: len(good)]


def zstd_with_checksum(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def flipped(data: bytes, at: int) -> bytes:
    """``data`` with the byte at ``at`` changed."""
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


TEXT = b"".join(b"%d,%s\n" % (i, os.urandom(8).hex().encode()) for i in range(20_000))

DAMAGES: dict[str, tuple[bytes, str, bool]] = {
    "gzip checksum": (flipped(gzip.compress(TEXT), -6), "damaged_compression", False),
    "gzip length": (flipped(gzip.compress(TEXT), -2), "damaged_compression", False),
    "zstd checksum": (flipped(zstd_with_checksum(TEXT), -2), "damaged_compression", False),
    "gzip, then junk": (gzip.compress(TEXT) + b"junk", "damaged_compression", True),
    "zstd, then junk": (zstandard.compress(TEXT) + b"junk and more", "damaged_compression", True),
    "no gzip trailer": (gzip.compress(TEXT)[:-8], "cut_short", True),
    "half a gzip trailer": (gzip.compress(TEXT)[:-3], "cut_short", True),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_after_the_content_loses_none_of_it(damage: str, tmp_path: Path) -> None:
    data, reason, inside = DAMAGES[damage]
    path = tmp_path / "damaged"
    path.write_bytes(data)
    with opened(str(path), advanced=lambda _: None) as source:
        assert source.content().read() == TEXT
        assert source.damage is not None
        assert (source.damage.reason, source.damage.inside) == (reason, inside)
        with source.seekable() as file:
            assert file.read() == TEXT
        assert source.head(len(TEXT) + 1) == (TEXT, False)


@pytest.mark.parametrize("compress", [gzip.compress, COMPRESS["gzip in parts"], zstd_with_checksum])
def test_damage_in_the_middle_ends_the_content_there(
    compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    data = compress(TEXT)
    path = tmp_path / "damaged"
    for at in (len(data) // 3, len(data) // 2):
        path.write_bytes(data[:at] + bytes(4000) + data[at + 4000 :])
        with opened(str(path), advanced=lambda _: None) as source:
            found = source.content().read()
            assert source.damage is not None and source.damage.reason == "damaged_compression"
        assert len(found) > len(TEXT) // 10 and TEXT.startswith(found[: len(TEXT) // 10])


@pytest.mark.parametrize("how", ["gzip", "gzip in parts"])
def test_zeros_behind_gzip_are_padding(how: str, tmp_path: Path) -> None:
    path = tmp_path / "padded"
    path.write_bytes(COMPRESS[how](b"0123456789" * 9) + bytes(10_000))
    with opened(str(path), advanced=lambda _: None) as source:
        assert source.content().read() == b"0123456789" * 9
        assert source.damage is None


def test_damage_from_the_first_byte_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    for data in (b"\x1f\x8bgarbage", b"\x28\xb5\x2f\xfdgarbage"):
        path.write_bytes(data)
        with opened(str(path), advanced=lambda _: None) as source:
            with pytest.raises(SourceError, match="damaged"):
                source.head(10)


def test_a_zstd_bomb_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    with zstandard.open(path, "wb") as file:
        for _ in range(256):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 100_000
    with opened(str(path), advanced=lambda _: None) as source:
        stream = source.content()
        assert len(stream.read(1 << 20)) == 1 << 20  # and not 256 MiB at once


def test_folders_are_read_in_order_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", ".hidden", "sub/c.json", ".git/d.json", "sub/.e"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = expand([str(tmp_path), str(tmp_path / "b.json"), "-"])
    assert [(os.path.relpath(p, tmp_path) if p != "-" else p, named) for p, named in found] == [
        ("a.json", False),
        ("b.json", False),
        (os.path.join("sub", "c.json"), False),
        ("b.json", True),
        ("-", True),
    ]


def test_a_path_that_is_not_there_is_the_callers_fault(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        expand([str(tmp_path / "missing")])


@pytest.mark.parametrize("over", range(10))
def test_a_checksum_that_two_reads_part_costs_no_content(over: int, tmp_path: Path) -> None:
    """Files are read in pieces of 2 KiB; a few bytes of the checksum may come with the next."""
    text = next(
        text
        for text in (b"%d\n" % n + TEXT[: 9_000 + n] for n in range(4_000))
        if len(gzip.compress(text)) % 2048 == over
    )
    path = tmp_path / "damaged"
    path.write_bytes(flipped(gzip.compress(text), -6))
    with opened(str(path), advanced=lambda _: None) as source:
        assert source.content().read() == text
        assert source.damage is not None
