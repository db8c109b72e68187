"""The journal alone, on a real spool: one sync for all that wait, order, and what it holds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collectors.receiving import spans, until
from tracekit.lake import spool as spool_module
from tracekit.lake.spool import Spool
from tracekit_collectors.entries import Entry, Request, decode, to_record
from tracekit_collectors.journal import Journal, Overloaded


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with Spool.open(tmp_path / "spool", max_bytes=1 << 20) as one:
        yield one


@pytest.fixture
def journal(spool: Spool) -> Iterator[Journal]:
    one = Journal(spool, max_rows=50, max_bytes=1 << 30, flush_rows=1000)
    one.start()
    yield one
    one.close()


def _write(journal: Journal, rows: int = 1) -> bytes:
    record, entry = _made(rows)
    journal.write(record, entry)
    return record


def _made(rows: int) -> tuple[bytes, Entry]:
    body = spans(rows).SerializeToString()
    request = Request("traces", "protobuf", "otlp_grpc", 1_700_000_000_000_000_000, body)
    return to_record(request), decode(request, oldest_back_ns=2**62, keep_text=False)


def test_one_sync_serves_all_that_wait(
    journal: Journal, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncing, go_on = threading.Event(), threading.Event()
    sync = spool_module._sync_data
    syncs = []

    def slow_sync(fd: int) -> None:
        syncs.append(1)
        syncing.set()
        assert go_on.wait(30)
        sync(fd)

    monkeypatch.setattr(spool_module, "_sync_data", slow_sync)
    senders = [threading.Thread(target=_write, args=(journal,)) for _ in range(9)]
    senders[0].start()
    assert syncing.wait(30)
    for sender in senders[1:]:
        sender.start()
    until(lambda: len(journal._queue) == 8)
    assert all(sender.is_alive() for sender in senders)  # nobody was told before the sync
    go_on.set()
    for sender in senders:
        sender.join(30)
    assert len(syncs) == 2
    taken = journal.take()
    assert [one.seq for one in taken] == list(range(1, 10))


def test_memory_and_spool_agree_on_what_is_where(journal: Journal, spool: Spool) -> None:
    records = [_write(journal, 20) for _ in range(3)]  # 60 rows: memory is full now
    with pytest.raises(Overloaded, match="rows wait"):
        journal.admit(100)
    journal.lake_failed()
    journal.admit(100)
    records += [_write(journal, 20) for _ in range(3)]  # these go to the spool only
    assert journal.to_json()["behind"]
    assert journal.read_behind(max_bytes=1) == []  # older ones are in memory still
    taken = journal.take()
    assert [one.seq for one in taken] == [1, 2, 3]
    journal.committed(3, taken)
    assert journal.read_behind(max_bytes=1) == [(4, records[3])]
    journal.committed(4, [])
    assert journal.to_json()["behind"]
    assert journal.read_behind(max_bytes=1 << 20) == [(5, records[4]), (6, records[5])]
    # Caught up: from now on requests are held in memory again, behind what was just read.
    assert not journal.to_json()["behind"]
    _write(journal)
    journal.committed(6, [])
    assert [one.seq for one in journal.take()] == [7]
    assert spool.pending == 1


def test_a_full_spool_and_a_closed_journal_refuse(spool: Spool) -> None:
    journal = Journal(spool, max_rows=10**6, max_bytes=1 << 30, flush_rows=1000)
    journal.start()
    record, entry = _made(1)
    with pytest.raises(Overloaded, match="--max-spool-bytes"):
        journal.write(record + bytes(2 << 20), entry)
    with pytest.raises(Overloaded, match="--max-spool-bytes"):
        journal.admit(2 << 20)
    journal.write(record, entry)
    journal.close()
    with pytest.raises(Overloaded, match="shutting down"):
        journal.write(record, entry)
