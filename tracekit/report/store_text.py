"""What ``tracekit store`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit.report import formats
from tracekit.report.console import make_table

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tracekit.lake.maintain import Exported, Rewritten, StoreInfo, Vacuumed


def rows_json(rows: Sequence[DataclassInstance]) -> list[dict[str, Any]]:
    """Reports of maintenance as plain objects."""
    return [asdict(row) for row in rows]


def render_info(info: StoreInfo) -> Group:
    """A line a table, then the sums."""
    head = Text.assemble(("store ", "bold"), info.path)
    if not info.tables:
        return Group(
            head,
            Text("empty: `tracekit import PATH` or `tracekit collect` brings something in"),
        )
    numbers = ("rows", "files", "small", "live", "on disk", "version")
    table = make_table("table", "kind", *numbers, "dates", right=numbers)
    for t in info.tables:
        dates = f"{t.first_date} .. {t.last_date}" if t.first_date else formats.UNKNOWN
        if t.first_date == t.last_date and t.first_date:
            dates = t.first_date
        table.add_row(
            t.table,
            t.kind,
            formats.count(t.rows),
            formats.count(t.files),
            formats.count(t.small_files),
            formats.size(t.size_bytes),
            formats.size(t.disk_bytes),
            str(t.version),
            dates,
        )
    foot = Text(
        f"{formats.plural(info.rows, 'row')} in {formats.plural(info.files, 'file')}, "
        f"{formats.size(info.size_bytes)} live, {formats.size(info.disk_bytes)} on disk"
    )
    return Group(head, table, foot)


def render_compacted(done: Sequence[Rewritten]) -> RenderableType:
    """Which tables were rewritten."""
    if not done:
        return Text("nothing to compact: no partition has many small files")
    return Group(
        *(
            Text(
                f"{r.table}: {formats.plural(r.files_before, 'file')}"
                f" -> {formats.plural(r.files_after, 'file')},"
                f" {formats.size(r.bytes_before)} -> {formats.size(r.bytes_after)}"
            )
            for r in done
        ),
        Text("the replaced files leave the disk with `tracekit store vacuum`", style="dim"),
    )


def render_vacuumed(
    dropped: Sequence[Rewritten], done: Sequence[Vacuumed], *, dry_run: bool
) -> RenderableType:
    """What retention dropped and vacuum deleted, or would delete."""
    lines = [Text(f"{r.table}: {formats.plural(r.rows_dropped, 'row')} deleted") for r in dropped]
    verb = "would be deleted" if dry_run else "deleted"
    lines.extend(
        Text(f"{v.table}: {formats.plural(v.files, 'file')} {verb}, {formats.size(v.size_bytes)}")
        for v in done
    )
    return Group(*lines) if lines else Text("nothing to delete")


def render_exported(done: Sequence[Exported]) -> RenderableType:
    """Which files were written."""
    if not done:
        return Text("nothing to export: the store is empty")
    return Group(*(Text(f"{e.path}: {formats.plural(e.rows, 'row')}") for e in done))
