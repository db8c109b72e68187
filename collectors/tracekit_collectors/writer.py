"""The one thread that commits what the receiver took to the lake.

Owns flushes, their order and their retries. A flush commits each table with the application
transaction (spool id, last sequence number); rows that a table already holds (the process died
between two tables' commits, or a commit went through and its answer was lost) are left out by
their sequence number. Only then is the spool cut. Nothing here talks to senders.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Final

import pyarrow as pa

from tracekit.ingest.batch import Decoded, stamp
from tracekit.lake.stamping import stamping
from tracekit.lake.store import Store
from tracekit_collectors.entries import Entry, decode, from_record
from tracekit_collectors.journal import Journal, Numbered
from tracekit_collectors.stats import Stats

_LOG = logging.getLogger("tracekit.collect")

#: A commit that takes longer is counted and said: settling waits for it.
LATE_COMMIT_S: Final = 45.0
#: Spool records decoded again in one go.
_CHUNK_BYTES: Final = 8 << 20
_FIRST_RETRY_S: Final = 0.25
_LAST_RETRY_S: Final = 5.0


class Writer:
    """Commits the journal's rows until told to stop."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        stats: Stats,
        *,
        spool_id: str,
        flush_interval_s: float,
        oldest_back_ns: int,
        keep_text: bool,
        set_aside_dir: Path,
    ) -> None:
        self._store = store
        self._journal = journal
        self._stats = stats
        self._spool_id = spool_id
        self._flush_interval_s = flush_interval_s
        self._oldest_back_ns = oldest_back_ns
        self._keep_text = keep_text
        self._set_aside_dir = set_aside_dir
        #: Highest sequence number each table holds; forgotten when a commit fails.
        self._held_through: dict[str, int] = {}
        self._stopping = threading.Event()
        # No daemon: a commit under way is waited for at exit, not torn out of native code.
        self._thread = threading.Thread(target=self._loop, name="lake-writer")

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> bool:
        """Commit what is in memory and end; False if that did not work (it stays spooled).

        Waits for the commit under way however long it takes: who cannot wait ends the process.
        """
        self._stopping.set()
        self._journal.finish()
        self._thread.join()
        return not self._journal.to_json()["buffer_rows"]

    def _loop(self) -> None:
        while not self._stopping.is_set():
            self._journal.wait(interval_s=self._flush_interval_s)
            if not self._round():
                return
        # Senders are gone: what came in during the last round is committed as well. A backlog
        # that is in the spool only stays there for the next start.
        self._commit_taken(self._journal.take())

    def _round(self) -> bool:
        """One flush. False: given up, and nothing may be committed after what was given up."""
        if taken := self._journal.take():
            return self._commit_taken(taken)
        if chunk := self._journal.read_behind(max_bytes=_CHUNK_BYTES):
            return self._commit(self._decode_again(chunk), through_seq=chunk[-1][0], taken=[])
        return True

    def _commit_taken(self, taken: list[Numbered]) -> bool:
        return not taken or self._commit(taken, through_seq=taken[-1].seq, taken=taken)

    def _decode_again(self, chunk: list[tuple[int, bytes]]) -> list[Numbered]:
        out = []
        for seq, record in chunk:
            try:
                entry = decode(
                    from_record(record),
                    oldest_back_ns=self._oldest_back_ns,
                    keep_text=self._keep_text,
                )
            except MemoryError:
                raise  # says nothing about the record; it is still in the spool at the next start
            except Exception as error:
                # It decoded when it was acknowledged, so this version is at fault. It must
                # neither be lost nor stop what comes after it.
                path = self._set_aside(seq, record)
                _LOG.exception("spool record %d does not decode any more; kept as %s", seq, path)
                self._stats.hint(
                    f"a spool record could not be read and was kept as {path}: {error}"
                )
                continue
            out.append(Numbered(seq, entry))
        return out

    def _set_aside(self, seq: int, record: bytes) -> Path:
        self._set_aside_dir.mkdir(parents=True, exist_ok=True)
        path = self._set_aside_dir / f"{self._spool_id}-{seq}.record"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(record)
            file.flush()
            os.fsync(file.fileno())
        return path

    def _commit(self, numbered: list[Numbered], *, through_seq: int, taken: list[Numbered]) -> bool:
        """Flush until the lake takes it (True), or until stopped and refused once more (False)."""
        delay_s = _FIRST_RETRY_S
        while True:
            last_try = self._stopping.is_set()
            try:
                self._flush(numbered, through_seq)
                self._journal.committed(through_seq, taken)
            except Exception as error:
                self._held_through.clear()
                self._journal.lake_failed()
                text = f"{type(error).__name__}: {error}"
                if self._stats.lake_failed(text, now_unix_ns=time.time_ns()) == 1:
                    _LOG.error(
                        "the store takes no rows (%s); acknowledged data waits in the spool", text
                    )
                if last_try:
                    return False
                self._stopping.wait(delay_s)
                delay_s = min(delay_s * 2, _LAST_RETRY_S)
                continue
            if self._stats.lake_ok():
                _LOG.warning("the store takes rows again")
            return True

    def _flush(self, numbered: list[Numbered], through_seq: int) -> None:
        by_table: dict[str, list[Numbered]] = {}
        for one in numbered:
            if one.entry.rows:
                by_table.setdefault(one.entry.lake_table, []).append(one)
        for table, part in by_table.items():
            self._append(table, part, through_seq)
        if refused := [one for one in numbered if one.entry.quarantined is not None]:
            self._append("quarantine", refused, through_seq)

    def _append(self, table: str, numbered: list[Numbered], through_seq: int) -> None:
        if table not in self._held_through:
            held = self._store.txn_version(table, self._spool_id)
            self._held_through[table] = 0 if held is None else held
        entries = [one.entry for one in numbered if one.seq > self._held_through[table]]
        if not entries:
            return
        began_s = time.monotonic()
        # A new stamp at each try, held until the rows are there: nobody settles past it.
        with stamping(self._store) as stamped_unix_ns:
            rows = (
                _quarantine_rows(entries, stamped_unix_ns)
                if table == "quarantine"
                else _rows(entries, stamped_unix_ns)
            )
            self._store.append(table, rows, txn=(self._spool_id, through_seq))
        self._held_through[table] = through_seq
        took_s = time.monotonic() - began_s
        late = took_s > LATE_COMMIT_S
        if late:
            _LOG.warning("a commit to %s took %.0f s; nothing settled meanwhile", table, took_s)
        self._stats.committed(rows=rows.num_rows, now_unix_ns=time.time_ns(), late=late)


def _rows(entries: list[Entry], now_unix_ns: int) -> pa.Table:
    """The entries' rows (all of one signal) with their ingest columns, one table."""
    by_origin: dict[str, list[Entry]] = {}
    for entry in entries:
        by_origin.setdefault(entry.origin, []).append(entry)
    parts = []
    for origin, part in by_origin.items():
        decoded = Decoded(
            signal=part[0].signal,
            table=pa.concat_tables([entry.table for entry in part]),
            rejected=(),
        )
        # No range: what is out of range was taken out when the request was decoded.
        rows, _ = stamp(
            decoded,
            origin=origin,
            now_unix_ns=now_unix_ns,
            oldest_unix_ns=None,
            newest_unix_ns=None,
        )
        parts.append(rows)
    return pa.concat_tables(parts)


def _quarantine_rows(entries: list[Entry], now_unix_ns: int) -> pa.Table:
    rows = pa.concat_tables([entry.quarantined for entry in entries])
    index = rows.schema.get_field_index("ingested_unix_ns")
    now = pa.repeat(pa.scalar(now_unix_ns, pa.int64()), rows.num_rows)
    return rows.set_column(index, rows.schema.field(index), now)
