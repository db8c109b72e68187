"""SQL that a person typed, run where it can only read: ``tracekit sql`` and the dashboard's page.

Owns what may run and for how long. A query must be one SELECT that changes nothing; then the
engine itself is locked: no file outside the store's table folders, no network, no extension, no
change of settings. Both are needed: the parser knows nothing of functions that open files, and
the engine would still write inside the folders it may read.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import polars as pl
import pyarrow as pa

from tracekit.analysis._duck import one
from tracekit.analysis.attribution import ATTRIBUTION
from tracekit.analysis.sqlfiles import METRIC_VIEWS
from tracekit.errors import UsageError
from tracekit.lake.duck import connect
from tracekit.lake.schema import TABLES

if TYPE_CHECKING:
    from tracekit.analysis.session import Session

DEFAULT_TIME_LIMIT_S: Final = 60.0
DEFAULT_ROW_LIMIT: Final = 10_000
_LONGEST_LIMIT_S: Final = 86_400

#: Every DuckDB file has this behind its checksum.
_DUCKDB_MAGIC: Final = b"DUCK"
_DUCKDB_MAGIC_AT: Final = 8

#: A file written so opens in every DuckDB from 1.5 on.
_STORAGE_VERSION: Final = "v1.5.0"
_BATCH_ROWS: Final = 8_192

#: What a person may read, in the order in which one follows from the other. What else lies in
#: the connection (the tail, the steps of the cut) is the analysis' own business.
_PUBLIC: Final = (
    *(name for name, table in TABLES.items() if table.kind == "raw"),
    *(name for name, table in TABLES.items() if table.kind == "derived"),
    "window_requests",
    "settings",
    "slo",
    "cost_model",
    *METRIC_VIEWS,
    *ATTRIBUTION,
)

#: Relations that no file and no schema describes.
_ABOUT: Final = {
    "spans": "one row per span, duplicates removed",
    "window_requests": "the rows of `requests` inside the window and filters",
    "settings": "one row: the window, the filters and the time of the query",
    "slo": "one row: the limits, NULL where none is set",
    "cost_model": "one row per cell of the fitted expectation",
}


@dataclass(frozen=True)
class SqlResult:
    """Rows of one query; ``truncated`` if there were more than the row limit allowed."""

    frame: pl.DataFrame
    truncated: bool
    elapsed_ms: float


class Workbench:
    """Runs a person's queries on ``session``, whose connection it locks for good.

    Not for several threads at once. ``time_limit_s`` and ``row_limit`` hold for each query.
    """

    def __init__(
        self,
        session: Session,
        *,
        time_limit_s: float = DEFAULT_TIME_LIMIT_S,
        row_limit: int | None = DEFAULT_ROW_LIMIT,
    ) -> None:
        if not 0 < time_limit_s <= _LONGEST_LIMIT_S:
            raise UsageError(
                f"the time limit must be above 0 s and at most {_LONGEST_LIMIT_S} s (a day), "
                f"not {time_limit_s:g}"
            )
        if row_limit is not None and row_limit <= 0:
            raise UsageError("the row limit must be above 0")
        self._con = session.con
        self._time_limit_s = time_limit_s
        self._row_limit = row_limit
        _lock(self._con, session.store.path)

    def run(self, query: str) -> SqlResult:
        """The rows of one SELECT. UsageError for anything else, for its errors and the limits."""
        check_select(query)
        began = time.monotonic()
        timed_out = threading.Event()

        def stop() -> None:
            timed_out.set()
            self._con.interrupt()

        timer = threading.Timer(self._time_limit_s, stop)
        timer.daemon = True
        timer.start()
        try:
            table, truncated = self._fetch(query)
        except duckdb.Error as error:
            if timed_out.is_set():
                raise UsageError(
                    f"the query took longer than {self._time_limit_s:g} s; "
                    "narrow it, or raise --time-limit"
                ) from None
            raise UsageError(_explain(error)) from None
        finally:
            timer.cancel()
            timer.join()
        elapsed_ms = (time.monotonic() - began) * 1e3
        return SqlResult(_frame(table), truncated, elapsed_ms)

    def _fetch(self, query: str) -> tuple[pa.Table, bool]:
        reader = self._con.sql(query.strip().rstrip(";")).to_arrow_reader(_BATCH_ROWS)
        limit = self._row_limit
        batches: list[pa.RecordBatch] = []
        rows = 0
        for batch in reader:
            batches.append(batch)
            rows += batch.num_rows
            if limit is not None and rows > limit:
                break
        table = pa.Table.from_batches(batches, schema=reader.schema)
        if limit is None or rows <= limit:
            return table, False
        return table.slice(0, limit), True


def check_select(query: str) -> None:
    """Raise UsageError unless ``query`` is exactly one SELECT that changes nothing."""
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise UsageError(_explain(error)) from None
    if len(statements) != 1:
        raise UsageError(f"one SELECT at a time, please: this is {len(statements)} statements")
    kind = statements[0].type
    if kind != duckdb.StatementType.SELECT:
        raise UsageError(f"only SELECT may run here, not {kind.name}")
    with connect() as parser:
        ((text,),) = parser.execute("select json_serialize_sql(?)", [query]).fetchall()
    tree = json.loads(text)
    if tree.get("error"):
        raise UsageError(f"only SELECT may run here: {tree.get('error_message', 'unknown text')}")
    changes = sorted({t for t in _types(tree) if t.endswith("_QUERY_NODE")})
    if changes:
        raise UsageError(f"only SELECT may run here, not {changes[0].partition('_')[0]}")


def export(
    session: Session,
    dest: Path,
    *,
    relations: tuple[str, ...] | None = None,
    overwrite: bool = False,
) -> dict[str, int]:
    """Write relations with their comments into one DuckDB file; rows per relation.

    The file holds copies, so compaction and retention of the store do not reach it. It appears
    whole or not at all. UsageError if it exists and may not be overwritten (only a DuckDB file
    ever is), or for an unknown relation.
    """
    known = relation_names(session)
    chosen = known if relations is None else relations
    for name in chosen:
        if name not in known:
            raise UsageError(f"no relation {name!r}; there are {', '.join(known)}")
    if dest.exists() or dest.is_symlink():
        if not _is_duckdb(dest):
            raise UsageError(f"{dest} exists and is no DuckDB file; name another file")
        if not overwrite:
            raise UsageError(f"{dest} exists; remove it or pass --overwrite")
    if not dest.parent.is_dir():
        raise UsageError(f"no such folder: {dest.parent}")
    with tempfile.TemporaryDirectory(dir=dest.parent, prefix=".tracekit-export-") as folder:
        part = Path(folder) / dest.name
        try:
            counts = _write_database(session, part, chosen)
        except duckdb.Error as error:
            raise UsageError(f"cannot export to {dest}: {_explain(error)}") from None
        part.replace(dest)
    return counts


def _write_database(session: Session, file: Path, relations: tuple[str, ...]) -> dict[str, int]:
    con = session.con
    counts: dict[str, int] = {}
    con.execute(
        f"attach {_text(str(file))} as tracekit_export (storage_version '{_STORAGE_VERSION}')"
    )
    try:
        for name in relations:
            target = f"tracekit_export.main.{_name(name)}"
            con.execute(f"create table {target} as from {_name(name)}")
            for statement in _comments(session, name, target):
                con.execute(statement)
            counts[name] = int(one(con, f"select count(*) from {target}")[0])
    finally:
        con.execute("detach tracekit_export")
    return counts


def _is_duckdb(path: Path) -> bool:
    """Whether the first bytes are those of a DuckDB database, which the exports here are, too."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(_DUCKDB_MAGIC_AT + len(_DUCKDB_MAGIC)).endswith(_DUCKDB_MAGIC)


@dataclass(frozen=True)
class ColumnDoc:
    """One column of a relation: ``doc`` starts with its unit in brackets where it has one."""

    name: str
    type: str
    doc: str


@dataclass(frozen=True)
class RelationDoc:
    """One relation that queries may read."""

    name: str
    purpose: str
    grain: str
    columns: tuple[ColumnDoc, ...]


def relation_names(session: Session) -> tuple[str, ...]:
    """The relations meant for reading that the session has now, in the order of the layers.

    Those of ``sql/attribution`` are there once attribution is defined.
    """
    rows = session.con.execute(
        "select view_name from duckdb_views() where not internal and schema_name = 'main'"
        " union select table_name from duckdb_tables() where not internal and schema_name = 'main'"
    ).fetchall()
    present = {name for (name,) in rows}
    return tuple(name for name in _PUBLIC if name in present)


def describe(session: Session, name: str) -> RelationDoc:
    """What a relation holds, from the table's schema or its SQL file; UsageError if unknown."""
    if name not in relation_names(session):
        raise UsageError(f"no relation {name!r}; `tracekit sql --describe` lists them")
    rows = session.con.execute(f"describe {_name(name)}").fetchall()
    purpose, grain, docs = _documentation(name)
    return RelationDoc(
        name,
        purpose,
        grain,
        tuple(ColumnDoc(row[0], row[1], docs.get(row[0], "")) for row in rows),
    )


def _documentation(name: str) -> tuple[str, str, dict[str, str]]:
    from tracekit.analysis import sqlfiles
    from tracekit.analysis.cost_model_docs import column_docs

    purpose = grain = ""
    docs: dict[str, str] = {}
    for layer in ("core", "attribution", "sources"):
        # a file of `sources` may be called as a raw table
        if name in sqlfiles.names(layer) and (layer != "sources" or name in METRIC_VIEWS):
            file = sqlfiles.load(layer, name)
            purpose, grain, docs = file.purpose, file.grain, dict(file.columns)
    if name in TABLES:
        table = TABLES[name]
        grain = grain or _ABOUT.get(name, table.doc)
        docs = {c.name: c.doc for c in table.columns} | docs
    elif name == "window_requests":
        docs = {c.name: c.doc for c in TABLES["requests"].columns}
    elif name == "cost_model":
        docs = column_docs()
    grain = grain or _ABOUT.get(name, "")
    return purpose, grain, docs


def _comments(session: Session, name: str, target: str) -> Iterator[str]:
    doc = describe(session, name)
    about = ". ".join(filter(None, (doc.purpose.rstrip("."), doc.grain)))
    if about:
        yield f"comment on table {target} is {_text(about)}"
    for column in doc.columns:
        if column.doc:
            yield f"comment on column {target}.{_name(column.name)} is {_text(column.doc)}"


def _lock(con: duckdb.DuckDBPyConnection, store: Path) -> None:
    folders = ", ".join(_text(str(store / table)) for table in TABLES)
    for setting in (
        "set python_enable_replacements = false",
        "set autoinstall_known_extensions = false",
        "set autoload_known_extensions = false",
        f"set allowed_directories = [{folders}]",
        "set enable_external_access = false",
        "set lock_configuration = true",
    ):
        con.execute(setting)


def _frame(table: pa.Table) -> pl.DataFrame:
    """Polars wants unique names; a query may repeat them: the second ``n`` becomes ``n_2``."""
    seen: dict[str, int] = {}
    series: list[pl.Series] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        seen[name] = seen.get(name, 0) + 1
        series.append(_series(name if seen[name] == 1 else f"{name}_{seen[name]}", column))
    return pl.DataFrame(series)


def _series(name: str, column: pa.ChunkedArray) -> pl.Series:
    """One column; a type that Polars has no word for (an interval) becomes text."""
    try:
        return pl.Series(name, column)
    except pl.exceptions.PolarsError:
        texts = [None if value is None else str(value) for value in column.to_pylist()]
        return pl.Series(name, texts, pl.String)


def _types(tree: Any) -> Iterator[str]:
    """Every ``type`` of a parsed query; without recursion, for a query may be nested deeply."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            kind = node.get("type")
            if isinstance(kind, str):
                yield kind
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _explain(error: duckdb.Error) -> str:
    """DuckDB's message in one line, without the drawing of the place."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return " ".join(lines)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'
