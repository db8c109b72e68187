"""What an import did, for people: what was taken, what was not and why, what was mapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from tracekit.report import formats
from tracekit.words import verb

if TYPE_CHECKING:
    from tracekit.ingest.summary import FileSummary, ImportSummary, Refusal

#: Files listed one by one; of more, only those with something to say.
_FILES_SHOWN: Final = 12


def render(summary: ImportSummary) -> Group:
    """A block a file, then the totals."""
    shown = [f for f in summary.files if len(summary.files) <= _FILES_SHOWN or _speaks(f)]
    blocks: list[Text | Padding] = []
    # what files share is told once, at the first of them
    files_with = Counter(line.plain for file in shown for line in _remarks(file))
    told: set[str] = set()
    for file in shown:
        head = Text.assemble((Path(file.path).name, "bold"), f"  {file.format}  ")
        head.append(_counts(file))
        blocks.append(head)
        for line in _remarks(file):
            if (text := line.plain) in told:
                continue
            told.add(text)
            if (more := files_with[text] - 1) > 0:
                line.append(f" (the same for {formats.plural(more, 'more file')})")
            blocks.append(Padding(line, (0, 0, 0, 2), expand=False))
    silent = len(summary.files) - len(shown)
    if silent:
        blocks.append(Text(f"and {formats.plural(silent, 'more file')} without a remark"))
    blocks.append(_total(summary))
    return Group(*blocks)


def _speaks(file: FileSummary) -> bool:
    return bool(file.refused or file.notices or file.unmapped or file.differing)


def _counts(file: FileSummary) -> str:
    taken = ", ".join(f"{n:,} {table.replace('_', ' ')}" for table, n in file.tables.items() if n)
    parts = [taken or "nothing taken"]
    if file.duplicates:
        parts.append(f"{file.duplicates:,} there already")
    if file.differing:
        parts.append(f"{file.differing:,} there with other values")
    if file.refused_count:
        parts.append(f"{file.refused_count:,} refused")
    return ", ".join(parts)


def _remarks(file: FileSummary) -> Iterator[Text]:
    # A column under its own name needs no mention.
    foreign = [(t, o) for t, o in file.mapped.items() if t != o.partition(":")[0]]
    if foreign:
        yield Text("mapped: " + ", ".join(f"{theirs} -> {ours}" for theirs, ours in foreign))
    if file.unmapped:
        yield Text("kept as extra: " + ", ".join(file.unmapped))
    for refusal in sorted(file.refused, key=_first_row):
        text = Text.assemble(
            (f"refused {refusal.count:,}: {refusal.reason}", "red"), f" at {refusal.where}"
        )
        # the place is told already
        first = refusal.where.split(", ")[0]
        detail = refusal.detail.removeprefix(f"{first}: ")
        yield text.append(f" ({detail})") if detail else text
    if file.differs is not None:
        they = formats.plural(file.differing, "row")
        differ = verb(file.differing, "differs", "differ")
        yield Text(
            f"{they} {differ} from what is stored under the same id and start; the first is kept. "
            f"Example: {file.differs.file}:{file.differs.row}, {', '.join(file.differs.fields)}",
            style="yellow",
        )
    for notice in file.notices:
        # the file is named above
        yield Text(f"note: {notice.replace(f'; at {file.path}', '')}", style="yellow")


def _first_row(refusal: Refusal) -> int:
    """The row of a refusal's first place; those without one come first."""
    row = refusal.where.split(", ")[0].rpartition(":")[2]
    return int(row) if row.isascii() and row.isdigit() else 0


def _total(summary: ImportSummary) -> Text:
    parts = [f"{formats.plural(summary.taken, 'row')} taken"]
    parts.append(f"{summary.refused_count:,} refused")
    parts.append(f"{formats.plural(summary.duplicates, 'duplicate')}")
    if summary.differing:
        parts.append(f"{summary.differing:,} with other values than stored")
    return Text(", ".join(parts), style="bold")
