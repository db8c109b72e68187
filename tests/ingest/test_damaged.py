"""Files that are cut or damaged: what decodes is kept, the damage is counted with its place."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tracekit.errors import SourceError
from tracekit.ingest.importer import import_paths
from tracekit.ingest.summary import FileSummary
from tracekit.lake.store import Store

DATA = Path(__file__).parents[1] / "data" / "vllm"
START = 1_795_953_600_000_000_000
NOW = START + 86_400 * 10**9
ROWS = 6000


def rows() -> list[dict[str, Any]]:
    chance = random.Random(7)
    return [
        {
            "request_id": f"r{i}-{chance.getrandbits(64):x}",
            "start_unix_ns": START + i * 10**9,
            "input_tokens": chance.randint(100, 9000),
            "ttft_ms": chance.randint(50, 900),
            "note": f"{chance.getrandbits(96):x}",
        }
        for i in range(ROWS)
    ]


def csv() -> bytes:
    found = rows()
    return "".join(
        ",".join(map(str, line)) + "\n" for line in (found[0], *(r.values() for r in found))
    ).encode()


CONTENTS: dict[str, bytes] = {
    "csv": csv(),
    "jsonl": b"".join(json.dumps(r).encode() + b"\n" for r in rows()),
    "json": json.dumps(rows()).encode(),
    "otlp-jsonl": gzip.decompress((DATA / "baseline.otlp.jsonl.gz").read_bytes()),
    "otlp-protobuf-delimited": gzip.decompress((DATA / "baseline.otlp.pb.gz").read_bytes()),
}
#: Blocks as small as zstd makes them, as a block decodes whole or not at all.
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(level=1, write_checksum=True).compress,
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def take(store: Store, path: Path, data: bytes) -> FileSummary:
    path.write_bytes(data)
    (file,) = import_paths(store, [str(path)], settle=False, now_unix_ns=NOW).files
    return file


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("how", COMPRESS)
def test_a_cut_file_keeps_its_whole_records(
    content: str, how: str, store: Store, tmp_path: Path
) -> None:
    whole = COMPRESS[how](CONTENTS[content])
    if how == "zstd" and content.startswith("otlp"):
        whole = COMPRESS[how](CONTENTS[content][:40_000]) + whole  # a frame for each flush
    path = tmp_path / "cut"
    file = take(store, path, whole[: int(len(whole) * 0.8)])
    assert file.format == content
    (refusal,) = file.refused
    assert (refusal.reason, refusal.count) == ("cut_short", 1)
    assert refusal.detail.endswith("ends too early; get the whole file again and import that")
    number = int(refusal.where.removeprefix(f"{path}:"))
    if content.startswith("otlp"):
        assert file.taken > 5
        return
    assert file.taken > ROWS // 3
    assert number == file.taken + (2 if content == "csv" else 1), "the place behind the last row"
    # The whole file afterwards: what is in counts once.
    again = take(store, tmp_path / "whole", whole)
    assert (again.taken, again.duplicates) == (ROWS - file.taken, file.taken)


@pytest.mark.parametrize("content", ["csv", "jsonl", "otlp-jsonl", "otlp-protobuf-delimited"])
@pytest.mark.parametrize("how", COMPRESS)
def test_a_wrong_checksum_loses_nothing_and_is_told(
    content: str, how: str, store: Store, tmp_path: Path
) -> None:
    whole = COMPRESS[how](
        CONTENTS[content].rstrip(b"\n")
        if content != "otlp-protobuf-delimited"
        else CONTENTS[content]
    )
    good = take(store, tmp_path / "good", whole)
    other = Store.open(tmp_path / "other", create=True)
    at = len(whole) - (6 if how == "gzip" else 2)
    bad = take(other, tmp_path / "bad", whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert bad.tables == good.tables and bad.taken > 20
    assert [(r.reason, r.count) for r in bad.refused] == [("damaged_compression", 1)]
    assert "some of the rows before this may be wrong" in bad.refused[0].detail


@pytest.mark.parametrize("how", COMPRESS)
def test_a_row_that_is_cut_is_never_taken_for_a_short_one(
    how: str, store: Store, tmp_path: Path
) -> None:
    # Cut in a number: every field is there, but the last one is only its beginning.
    text = CONTENTS["csv"][:100_000].rpartition(b",")[0]
    whole = COMPRESS[how](text)
    cut = whole[:-4] if how == "zstd" else whole[:-8]
    file = take(store, tmp_path / "cut", cut)
    assert file.taken == text.count(b"\n") - 1
    assert [r.where.rpartition(":")[2] for r in file.refused] == [str(text.count(b"\n") + 1)]


def test_a_plain_csv_that_ends_in_a_row(store: Store, tmp_path: Path) -> None:
    text = b"request_id,start,ttft_ms,note\na,1795953600,5,x\nb,1795953600,6,\nc,17959"
    file = take(store, tmp_path / "cut", text)
    assert (file.taken, [(r.reason, r.where) for r in file.refused]) == (
        2,
        [("cut_short", f"{tmp_path / 'cut'}:4")],
    )
    # Short rows are this file's way, so the last one is a row.
    file = take(store, tmp_path / "short", b"request_id,ttft_ms,note\nd,5\ne,6")
    assert (file.taken, file.refused) == (2, ())


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("keep", [12, 40])
def test_nothing_to_keep_is_one_error_and_no_store(content: str, keep: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(CONTENTS[content])[:keep])
    with pytest.raises(SourceError, match=r"cut\.gz"):
        import_paths(lambda: Store.open(tmp_path / "new", create=True), [str(path)])
    assert not (tmp_path / "new").exists()


def test_a_useless_file_does_not_stop_those_beside_it(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.jsonl.gz"
    good.write_bytes(CONTENTS["csv"])
    # Enough of the first line to tell the format, and no line.
    bad.write_bytes(gzip.compress(b'{"resourceSpans":[{"scopeSpans":[' + b" " * 5000)[:-9])
    folder = tmp_path / "new"
    with pytest.raises(SourceError, match=r"bad\.jsonl\.gz.*\(6,000 rows of the other files"):
        import_paths(lambda: Store.open(folder, create=True), [str(bad), str(good)], settle=False)
    assert Store.open(folder).snapshot("request_log").rows == ROWS


def test_a_cut_parquet_file_cannot_be_read_and_says_why(store: Store, tmp_path: Path) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows()), sink)
    cut = gzip.compress(sink.getvalue())[:-1000]
    with pytest.raises(SourceError, match="damaged gzip data: the gzip data ends too early"):
        take(store, tmp_path / "cut", cut)
