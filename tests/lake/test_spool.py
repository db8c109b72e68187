"""The spool: what is acknowledged survives, damage costs only what it touched, numbers are new."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tracekit.errors import SourceError, UsageError
from tracekit.lake.spool import Spool, SpoolFull

StartWorker = Callable[..., "subprocess.Popen[str]"]

_RECORDS = st.lists(st.binary(max_size=40), min_size=1, max_size=6)


@contextmanager
def _unsynced() -> Iterator[None]:
    """For tests that open hundreds of spools and do not ask whether bytes reach the disk."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda fd: None)
        yield


def _segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.spool"))


def test_records_come_back_in_order_across_segments_and_reopening(tmp_path: Path) -> None:
    records = [bytes([i]) * (i * 7) for i in range(50)]
    with Spool.open(tmp_path, segment_bytes=500) as spool:
        spool_id = spool.id
        assert list(spool.replay()) == []
        assert spool.append_many(records[:20]) == list(range(1, 21))
        for i in range(20, 50):
            assert spool.append_many([records[i]]) == [i + 1]
        assert spool.append_many([]) == []
        assert list(spool.replay()) == list(enumerate(records, 1))
        assert (spool.pending, spool.last_seq, spool.cut_through) == (50, 50, 0)
        assert spool.bytes_used == sum(p.stat().st_size for p in _segments(tmp_path))
    assert len(_segments(tmp_path)) > 10
    with Spool.open(tmp_path) as spool:
        assert spool.id == spool_id
        assert spool.torn_bytes == 0
        assert list(spool.replay()) == list(enumerate(records, 1))
        assert spool.append_many([b"next"]) == [51]


def test_cut_forgets_frees_and_is_remembered(tmp_path: Path) -> None:
    with Spool.open(tmp_path, segment_bytes=100) as spool:
        spool.append_many([b"x" * 60])
        spool.append_many([b"y" * 60])
        spool.append_many([b"z" * 60])
        spool.cut(2)
        assert list(spool.replay()) == [(3, b"z" * 60)]
        assert (spool.pending, len(_segments(tmp_path))) == (1, 1)
        spool.cut(1)  # already cut
        assert spool.cut_through == 2
        with pytest.raises(UsageError, match="last record is 3"):
            spool.cut(4)
    with Spool.open(tmp_path) as spool:
        assert list(spool.replay()) == [(3, b"z" * 60)]
        spool.cut(3)
        assert (spool.pending, spool.bytes_used, _segments(tmp_path)) == (0, 0, [])
    with Spool.open(tmp_path) as spool:  # no segment is left to tell which numbers were used
        assert spool.append_many([b"new"]) == [4]
        assert list(spool.replay()) == [(4, b"new")]


def test_cut_within_a_segment_keeps_the_rest(tmp_path: Path) -> None:
    with Spool.open(tmp_path) as spool:
        spool.append_many([b"a", b"b", b"c"])
        spool.cut(2)
        assert list(spool.replay()) == [(3, b"c")]
        assert spool.append_many([b"d"]) == [4]
    with Spool.open(tmp_path) as spool:
        assert list(spool.replay()) == [(3, b"c"), (4, b"d")]


def test_a_crash_between_remembering_a_cut_and_deleting_replays_nothing_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool.open(tmp_path)
    spool.append_many([b"a", b"b"])

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", crash)
        with pytest.raises(KeyboardInterrupt):
            spool.cut(2)
    os.close(spool._lock_fd)  # as death would, with nothing tidied
    with Spool.open(tmp_path) as again:
        assert list(again.replay()) == []
        assert _segments(tmp_path) == []
        assert again.append_many([b"c"])[0] >= 3


def test_replay_goes_on_while_records_are_cut_and_appended(tmp_path: Path) -> None:
    with Spool.open(tmp_path, segment_bytes=64) as spool:
        for i in range(6):
            spool.append_many([bytes([i]) * 50])
        seen = []
        for seq, _ in spool.replay():
            seen.append(seq)
            spool.append_many([b"later"])
            spool.cut(min(seq + 2, 6))
        assert seen == [1, 4]  # 2, 3, then 5, 6 were cut before their segment was read
        assert spool.pending == 2


# -- room --


def test_a_full_spool_refuses_whole_batches_until_it_is_cut(tmp_path: Path) -> None:
    with Spool.open(tmp_path, max_bytes=1000) as spool:
        taken = 0
        with pytest.raises(SpoolFull, match="of 1000 bytes"):
            while True:
                taken += len(spool.append_many([b"x" * 100, b"y" * 50]))
        assert taken == spool.pending == spool.last_seq == 10
        assert spool.bytes_used <= 1000
        assert len(list(spool.replay())) == 10
        spool.cut(10)
        assert spool.append_many([b"x" * 100]) == [11]
    with pytest.raises(SpoolFull), Spool.open(tmp_path / "other", max_bytes=50) as small:
        small.append_many([b"x" * 100])


@pytest.mark.parametrize("call", ["write", "fdatasync"])
@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, SpoolFull), (errno.EDQUOT, SpoolFull), (errno.EIO, OSError)]
)
def test_a_disk_that_fails_leaves_nothing_of_the_batch(
    call: str,
    code: int,
    error: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spool = Spool.open(tmp_path)
    spool.append_many([b"kept"])
    real = os.write

    def fail(fd: int, data: Any = b"") -> int:
        if call == "write" and len(data) > 20:
            return real(fd, data[:20])  # some of it gets there, then the disk is full
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(error):
            spool.append_many([b"lost" * 30, b"lost too"])
    assert list(spool.replay()) == [(1, b"kept")]
    (seq,) = spool.append_many([b"after"])
    expected = [(1, b"kept"), (seq, b"after")]
    assert list(spool.replay()) == expected
    spool.close()
    with Spool.open(tmp_path) as again:
        assert again.torn_bytes == 0
        assert list(again.replay()) == expected


def test_a_full_disk_refuses_a_new_segment_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool.open(tmp_path) as spool:

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "full")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(SpoolFull, match="no room on disk"):
                spool.append_many([b"a"])
        assert (spool.pending, spool.bytes_used) == (0, 0)
        assert spool.append_many([b"b"]) == [1]


def test_records_and_their_directory_are_synced_before_they_are_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []

    def recording(name: str) -> None:
        real = getattr(os, name)

        def call(fd: int, *args: Any) -> Any:
            events.append((name, Path(os.readlink(f"/proc/self/fd/{fd}")).name))
            return real(fd, *args)

        monkeypatch.setattr(os, name, call)

    with Spool.open(tmp_path) as spool:
        for name in ("write", "fsync", "fdatasync"):
            recording(name)
        spool.append_many([b"a", b"b"])
        (segment,) = _segments(tmp_path)
        assert events[-1] == ("fdatasync", segment.name)
        assert ("fsync", tmp_path.name) in events
        events.clear()
        spool.append_many([b"c", b"d", b"e"])
        assert events == [("write", segment.name), ("fdatasync", segment.name)]


# -- one owner --


def test_a_second_opener_is_told_who_holds_it(tmp_path: Path) -> None:
    with Spool.open(tmp_path) as spool:
        with pytest.raises(UsageError, match=f"open in process {os.getpid()}"):
            Spool.open(tmp_path)
        spool.append_many([b"a"])
    with pytest.raises(UsageError, match="closed"):
        spool.append_many([b"b"])
    spool.close()
    Spool.open(tmp_path).close()


def test_a_damaged_state_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with Spool.open(tmp_path) as spool:
        spool.append_many([b"a"])
        first_id = spool.id
    state = tmp_path / "spool.json"
    for text in ("", "[]", '{"id": "x", "cut_through": 0, "reserved": 1}'):
        state.write_text(text)
        with pytest.raises(SourceError, match="remove it"):
            Spool.open(tmp_path)
    state.unlink()
    with Spool.open(tmp_path) as spool:
        assert spool.id != first_id
        assert list(spool.replay()) == [(1, b"a")]


# -- damage --


def _filled(directory: Path, batches: list[list[bytes]], segment_bytes: int) -> list[bytes]:
    with Spool.open(directory, segment_bytes=segment_bytes) as spool:
        for batch in batches:
            spool.append_many(batch)
    return [record for batch in batches for record in batch]


@_unsynced()
@settings(deadline=None)
@given(batches=st.lists(_RECORDS, min_size=1, max_size=4), data=st.data())
def test_a_truncated_spool_replays_exactly_a_prefix(
    batches: list[list[bytes]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("spool")
    records = _filled(directory, batches, 1 << 20)
    (path,) = _segments(directory)
    whole = path.stat().st_size
    kept = data.draw(st.integers(0, whole))
    os.truncate(path, kept)
    with Spool.open(directory) as spool:
        replayed = list(spool.replay())
        assert replayed == list(enumerate(records, 1))[: len(replayed)]
        frame_ends = [20]
        for record in records:
            frame_ends.append(frame_ends[-1] + 8 + len(record))
        assert len(replayed) == max(sum(end <= kept for end in frame_ends) - 1, 0)
        good = frame_ends[len(replayed)] if kept >= 20 else 0
        assert spool.torn_bytes == kept - good
        after = spool.append_many([b"after"])
    with Spool.open(directory) as spool:
        assert spool.torn_bytes == 0
        assert list(spool.replay()) == [*replayed, (after[0], b"after")]


@_unsynced()
@settings(deadline=None)
@given(batches=st.lists(_RECORDS, min_size=1, max_size=6), data=st.data())
def test_damage_never_yields_wrong_bytes_and_never_reuses_a_number(
    batches: list[list[bytes]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("spool")
    records = _filled(directory, batches, data.draw(st.sampled_from([60, 1 << 20])))
    paths = _segments(directory)
    hit = data.draw(st.sampled_from(paths))
    content = bytearray(hit.read_bytes())
    damage = data.draw(st.sampled_from(["flip", "zero", "garbage", "swap"]))
    at = data.draw(st.integers(0, len(content) - 1))
    if damage == "flip":
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    elif damage == "zero":
        content[at:] = bytes(len(content) - at)
    elif damage == "garbage":
        content[at:] = data.draw(st.binary(min_size=1, max_size=60))
    else:  # another segment's bytes under this one's name
        content = bytearray(data.draw(st.sampled_from(paths)).read_bytes())
    hit.write_bytes(content)
    truth = list(enumerate(records, 1))
    starts = [int(p.stem) for p in paths] + [len(records) + 1]
    with Spool.open(directory) as spool:
        replayed = list(spool.replay())
        for path, first, end in zip(paths, starts[:-1], starts[1:], strict=True):
            mine = [(seq, record) for seq, record in replayed if first <= seq < end]
            expected = truth[first - 1 : end - 1]
            assert mine == (expected[: len(mine)] if path == hit else expected)
        assert len(replayed) == len(records) or spool.torn_bytes > 0
    with Spool.open(directory) as spool:  # again: the cut tail must not be forgotten
        assert list(spool.replay()) == replayed
        assert spool.append_many([b"after"])[0] > len(records)


class _Model(RuleBasedStateMachine):
    """Any order of appends, cuts and reopenings against a plain list."""

    directory: Path

    def __init__(self) -> None:
        super().__init__()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.spool = Spool.open(self.directory, segment_bytes=80, max_bytes=600)
        self.kept: list[tuple[int, bytes]] = []

    @rule(records=_RECORDS)
    def append(self, records: list[bytes]) -> None:
        try:
            seqs = self.spool.append_many(records)
        except SpoolFull:
            assert self.spool.bytes_used + sum(map(len, records)) + 8 * len(records) > 580
            return
        assert seqs == list(range(seqs[0], seqs[0] + len(records)))
        assert not self.kept or seqs[0] > self.kept[-1][0]
        self.kept += zip(seqs, records, strict=True)

    @precondition(lambda self: bool(self.kept))
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        through = data.draw(st.sampled_from([seq for seq, _ in self.kept]))
        self.spool.cut(through)
        self.kept = [(seq, record) for seq, record in self.kept if seq > through]

    @rule()
    def reopen(self) -> None:
        last, spool_id = self.spool.last_seq, self.spool.id
        self.spool.close()
        self.spool = Spool.open(self.directory, segment_bytes=80, max_bytes=600)
        assert (self.spool.last_seq, self.spool.id, self.spool.torn_bytes) == (last, spool_id, 0)

    @invariant()
    def holds_what_was_appended_and_not_cut(self) -> None:
        assert list(self.spool.replay()) == self.kept
        assert self.spool.pending == len(self.kept)
        assert self.spool.bytes_used <= 600
        on_disk = sum(p.stat().st_size for p in _segments(self.directory))
        assert self.spool.bytes_used == on_disk

    def teardown(self) -> None:
        self.spool.close()


def test_any_order_of_operations_matches_a_list(tmp_path: Path) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    model = type("Model", (_Model,), {"directory": tmp_path / "spool"})
    with _unsynced():
        run_state_machine_as_test(
            model, settings=settings(max_examples=60, stateful_step_count=25, deadline=None)
        )


def test_kill_9_loses_no_acknowledged_record(tmp_path: Path, start_worker: StartWorker) -> None:
    acknowledged: list[int] = []
    for kill_after in (5, 40, 150, 301):
        worker = start_worker("spooler", tmp_path)
        assert worker.stdout is not None
        for line in worker.stdout:
            acknowledged.append(int(line))
            kill_after -= 1
            if not kill_after:
                worker.send_signal(signal.SIGKILL)
                break
        rest = worker.stdout.read().split("\n")[:-1]  # what it still had said before it died
        acknowledged += map(int, rest)
        worker.wait()
        with Spool.open(tmp_path, segment_bytes=20_000) as spool:
            replayed = list(spool.replay())
            seqs = [seq for seq, _ in replayed]
            assert seqs == sorted(set(seqs))
            assert set(acknowledged) <= set(seqs)
            for seq, record in replayed:
                assert record.startswith(f"{seq}:".encode()[: len(record)])
                assert not record.lstrip(f"{seq}:".encode()).strip(b".")
