"""``tracekit store``: look at a store, keep it small, take data out of it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import _options as opt
from tracekit.cli import _output as out
from tracekit.cli._group import Group

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at a store, compact, clean and export it.",
)

_Tables = Annotated[
    list[str] | None, typer.Option("--table", help="Only this table (may be repeated).")
]


class ExportFormat(StrEnum):
    """File formats of an export."""

    parquet = "parquet"
    csv = "csv"


@app.command("info")
def info(store: opt.Store = None, as_json: opt.Json = False) -> None:
    """Rows, files, bytes and dates of every table."""
    from tracekit.lake import maintain
    from tracekit.lake.store import Store
    from tracekit.report import store_text

    found = maintain.info(Store.open(opt.store_path(store)))
    if as_json:
        out.write_json(found.to_json())
    else:
        out.show(store_text.render_info(found))


@app.command("compact")
def compact(
    store: opt.Store = None,
    table: _Tables = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also partitions with few small files.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Merge small files (a running receiver does it by itself)."""
    from tracekit.lake import maintain
    from tracekit.lake.store import Store
    from tracekit.report import store_text

    opened = Store.open(opt.store_path(store))
    if every:
        done = maintain.compact(opened, tables=table, max_small_files=1)
    else:
        done = maintain.compact(opened, tables=table)
    if as_json:
        document = {"path": str(opened.path), "compacted": store_text.rows_json(done)}
        out.write_json(document)
    else:
        out.show(store_text.render_compacted(done))


@app.command("vacuum")
def vacuum(
    store: opt.Store = None,
    table: _Tables = None,
    retention: Annotated[
        str,
        typer.Option(metavar="AGE", help="Keep replaced files this long: the longest query."),
    ] = "1h",
    retain: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="First delete rows received longer ago, e.g. 14d."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Delete files that no reader needs any more."""
    from tracekit.analysis.window import parse_duration_ns
    from tracekit.errors import UsageError
    from tracekit.lake import maintain
    from tracekit.lake.store import Store
    from tracekit.report import store_text

    if retain is not None and (dry_run or table):
        raise UsageError("--retain deletes rows of all tables; leave --dry-run and --table out")
    opened = Store.open(opt.store_path(store))
    dropped = [] if retain is None else maintain.retain(opened, parse_duration_ns(retain))
    done = maintain.vacuum(
        opened,
        tables=table,
        retention_s=parse_duration_ns(retention) // 1_000_000_000,
        dry_run=dry_run,
    )
    if as_json:
        out.write_json(
            {
                "path": str(opened.path),
                "dry_run": dry_run,
                "retained": store_text.rows_json(dropped),
                "vacuumed": store_text.rows_json(done),
            }
        )
    else:
        out.show(store_text.render_vacuumed(dropped, done, dry_run=dry_run))


@app.command("export")
def export(
    dest: Annotated[Path, typer.Argument(help="Folder to write to; new or empty.")],
    store: opt.Store = None,
    export_format: Annotated[
        ExportFormat, typer.Option("--format", help="File format.")
    ] = ExportFormat.parquet,
    table: _Tables = None,
    as_json: opt.Json = False,
) -> None:
    """Write each table into one Parquet or CSV file."""
    from tracekit.lake import maintain
    from tracekit.lake.store import Store
    from tracekit.report import store_text

    opened = Store.open(opt.store_path(store))
    done = maintain.export(opened, dest, format=export_format.value, tables=table)
    if as_json:
        out.write_json(
            {
                "path": str(opened.path),
                "folder": str(dest),
                "format": export_format.value,
                "exported": store_text.rows_json(done),
            }
        )
    else:
        out.show(store_text.render_exported(done))
