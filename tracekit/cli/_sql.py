"""``tracekit sql``: a query, a file or a named starting point, on read-only relations."""

from __future__ import annotations

import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import _options as opt
from tracekit.cli import _output as out
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.analysis.session import Session
    from tracekit.analysis.workbench import SqlResult


class RowFormat(StrEnum):
    """How rows are printed."""

    table = "table"
    json = "json"
    csv = "csv"


def sql(
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUERY|NAME]",
            show_default=False,
            help="A SELECT, or the name of a query in sql/adhoc; a relation with --describe.",
        ),
    ] = None,
    store: opt.Store = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Read the query from this file (- is standard input)."),
    ] = None,
    describe: Annotated[
        bool,
        typer.Option("--describe", help="List relations and named queries, or one's columns."),
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option("--export", help="Write the relations into this DuckDB file."),
    ] = None,
    relation: Annotated[
        list[str] | None,
        typer.Option("--relation", help="Only this relation with --export (may be repeated)."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing --export file.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print an array of objects (same as --format json).")
    ] = False,
    row_format: Annotated[RowFormat, typer.Option("--format", help="How to print rows.")] = (
        RowFormat.table
    ),
    limit: Annotated[int, typer.Option(min=0, help="Most rows to print; 0 is no limit.")] = 10_000,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time a query may take.")
    ] = 60.0,
    since: opt.Since = None,
    until: opt.Until = None,
    model: opt.Model = None,
    route: opt.Route = None,
    slo: opt.SloText = None,
) -> None:
    """Query the store: every relation, read-only.

    tracekit sql "select model, count(*) as n from window_requests group by model"

    tracekit sql p99_by_minute        a named query; --describe lists them

    tracekit sql --describe requests  what a relation's columns mean

    The window and filters apply to window_requests and to all that follows from it.
    """
    if sum([query is not None and not describe, file is not None, export is not None]) > 1:
        raise UsageError("give one of: a query, --file, --export")
    if describe and (file is not None or export is not None):
        raise UsageError("--describe goes with a relation's name only")
    if not describe and export is None and query is None and file is None:
        raise UsageError("no query; write one, or see --describe for relations and named queries")
    if (relation or overwrite) and export is None:
        raise UsageError("--relation and --overwrite belong to --export")
    text = None if describe or export is not None else _query_text(query, file)

    from tracekit.analysis.attribution import define_attribution
    from tracekit.analysis.session import Session
    from tracekit.analysis.slo import parse_slo

    limits = parse_slo(slo)
    with Session.open(
        opt.store_path(store), window=opt.window(since, until), model=model, route=route
    ) as session:
        if text is None or _mentions_attribution(text):
            define_attribution(session.con, limits)
        if describe:
            _describe(session, query, as_json=as_json)
        elif export is not None:
            _export(session, export, relation, overwrite=overwrite, as_json=as_json)
        else:
            assert text is not None
            from tracekit.analysis.workbench import Workbench

            bench = Workbench(session, time_limit_s=time_limit, row_limit=limit or None)
            _print_rows(bench.run(text), RowFormat.json if as_json else row_format, limit=limit)


def _query_text(query: str | None, file: Path | None) -> str:
    if file is not None:
        if str(file) == "-":
            return sys.stdin.read()
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the query file {file}: {error}") from None
    assert query is not None
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", query):
        return query
    from tracekit.analysis import sqlfiles

    names = sqlfiles.names("adhoc")
    if query not in names:
        raise UsageError(f"no named query {query!r}; there are {', '.join(names)}")
    return sqlfiles.load("adhoc", query).text


def _mentions_attribution(text: str) -> bool:
    """Whether a query may read what needs the expectation fitted; most do not, and it costs."""
    from tracekit.analysis import sqlfiles

    names = {*sqlfiles.names("attribution"), "cost_model", "slo"}
    words = set(re.findall(r"\w+", text.lower()))
    catalogue = {"duckdb_views", "duckdb_tables", "duckdb_columns", "tables", "information_schema"}
    return bool(words & (names | catalogue))


def _print_rows(result: SqlResult, row_format: RowFormat, *, limit: int) -> None:
    if row_format is RowFormat.json:
        _print_array(result)
    elif row_format is RowFormat.csv:
        out.write(out.csv_text(result.frame))
    else:
        from tracekit.report import rows_text

        console = out.console()
        console.print(rows_text.render(result.frame, width=console.width))
    if result.truncated:
        out.notice(f"only the first {limit:,} rows; --limit 0 prints all")


def _print_array(result: SqlResult) -> None:
    """An array with one object a line: still one document, yet readable line by line."""
    out.write("[")
    last = result.frame.height - 1
    for number, row in enumerate(result.frame.iter_rows(named=True)):
        out.write("  " + out.dump_json(row) + ("," if number < last else ""))
    out.write("]")


def _describe(session: Session, name: str | None, *, as_json: bool) -> None:
    from tracekit.analysis import sqlfiles, workbench
    from tracekit.report import sql_text

    if name is None:
        relations = [workbench.describe(session, n) for n in workbench.relation_names(session)]
        queries = [sqlfiles.load("adhoc", n) for n in sqlfiles.names("adhoc")]
        if as_json:
            out.write_json(sql_text.list_json(relations, queries))
        else:
            out.show(sql_text.render_list(relations, queries))
    else:
        doc = workbench.describe(session, name)
        if as_json:
            out.write_json(sql_text.relation_json(doc))
        else:
            out.show(sql_text.render_relation(doc))


def _export(
    session: Session, dest: Path, relations: list[str] | None, *, overwrite: bool, as_json: bool
) -> None:
    from tracekit.analysis import workbench

    counts = workbench.export(
        session, dest, relations=tuple(relations) if relations else None, overwrite=overwrite
    )
    if as_json:
        out.write_json({"file": str(dest), "rows": counts})
    else:
        total = sum(counts.values())
        out.write(f"{dest}: {len(counts)} relations, {total:,} rows; open it with: duckdb {dest}")
