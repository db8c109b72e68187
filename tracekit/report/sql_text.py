"""What ``tracekit sql --describe`` prints: relations, their columns, and the named queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from tracekit.analysis.workbench import RelationDoc
from tracekit.report.console import make_table

if TYPE_CHECKING:
    from tracekit.analysis.sqlfiles import SqlFile


def render_list(relations: Sequence[RelationDoc], queries: Sequence[SqlFile]) -> Group:
    """All relations with their grain, then the named queries with their purpose."""
    table = make_table("relation", "columns", "what", right=("columns",))
    for doc in relations:
        table.add_row(doc.name, str(len(doc.columns)), doc.grain or doc.purpose)
    named = make_table("named query", "what")
    for query in queries:
        named.add_row(query.name, query.purpose)
    return Group(
        table, Text(), named, Text(), Text("tracekit sql --describe RELATION   its columns")
    )


def render_relation(doc: RelationDoc) -> Group:
    """One relation: purpose, grain, then a line a column."""
    table = make_table("column", "type", "what")
    for column in doc.columns:
        table.add_row(column.name, column.type, column.doc)
    lines = [Text(doc.name, style="bold")]
    lines.extend(Text(line) for line in (doc.purpose, doc.grain) if line)
    return Group(*lines, Text(), table)


def list_json(relations: Sequence[RelationDoc], queries: Sequence[SqlFile]) -> dict[str, Any]:
    """The same for machines."""
    return {
        "relations": [relation_json(doc) for doc in relations],
        "queries": [
            {"name": q.name, "purpose": q.purpose, "grain": q.grain, "columns": q.columns}
            for q in queries
        ],
    }


def relation_json(doc: RelationDoc) -> dict[str, Any]:
    """One relation for machines."""
    return asdict(doc)
