"""Portability lint: the SQL of ``sql/core`` and ``sql/attribution`` must mean the same everywhere.

DuckDB, Spark and ClickHouse agree on less SQL than they accept, and some of what differs differs
silently (a rounding cast, an approximate percentile, an integer division in floats). So functions
are allowed by name, not forbidden by name, and the constructs known to differ are refused with the
portable way to write them. Owns the rules only; whether a file runs is for the tests that run it.

Usage: ``python tests/lint_sql.py sql/core sql/attribution`` (files or folders); exit 1 on findings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

#: Functions measured to give the same rows on all three engines.
_ALLOWED: Final[tuple[type[exp.Expr], ...]] = (
    exp.Abs,
    exp.And,
    exp.Avg,
    exp.Case,
    exp.Cast,
    exp.Ceil,
    exp.Coalesce,
    exp.Corr,
    exp.Count,
    exp.Exists,
    exp.Floor,
    exp.If,
    exp.Lag,
    exp.Lead,
    exp.Max,
    exp.Min,
    exp.Nullif,
    exp.Or,
    exp.PercentileCont,
    exp.RowNumber,
    exp.Sqrt,
    exp.StddevSamp,
    exp.Sum,
    exp.VariancePop,
)

#: What to write instead, for the refusals people meet most; others get the general sentence.
_INSTEAD: Final[dict[type[exp.Expr], str]] = {
    exp.AnyValue: "any_value is not deterministic: use min or max, or row_number with a full order",
    exp.ApproxQuantile: "approximate quantile: write percentile_cont(p) within group (order by x)",
    exp.ArgMax: "arg_max/max_by have no rule for ties: use row_number with a full order",
    exp.ArgMin: "arg_min/min_by have no rule for ties: use row_number with a full order",
    exp.Concat: "concat: NULL rules differ; use || on columns",
    exp.DateTrunc: "timestamp function: times are integer nanoseconds; write x - x % k",
    exp.Greatest: "greatest skips or keeps NULLs by engine: use CASE",
    exp.GroupConcat: "string_agg is spelled differently everywhere: leave it to the reader",
    exp.IgnoreNulls: "ignore nulls: use a running max of an integer time",
    exp.Least: "least skips or keeps NULLs by engine: use CASE",
    exp.Length: "length counts bytes on ClickHouse",
    exp.Log: "log is for buckets: use a CASE ladder",
    exp.Median: "median: write percentile_cont(0.5) within group (order by x)",
    exp.Quantile: "quantile_cont: write percentile_cont(p) within group (order by x)",
    exp.Round: "round: halves differ by engine; use floor(x + 0.5)",
    exp.TimestampTrunc: "timestamp function: times are integer nanoseconds; write x - x % k",
    exp.TryCast: "try_cast: cast in sql/sources, where the engine is known",
}

#: Constructs that are not functions and mean different things, or exist on one engine only.
_CONSTRUCTS: Final[dict[type[exp.Expr], str]] = {
    exp.Array: "list literal",
    exp.Bracket: "list or map access: flat columns only",
    exp.Dot: "struct access: flat columns only",
    exp.Explode: "unnest: join a small table instead",
    exp.ILike: "ilike: use like",
    exp.IntDiv: "integer division // is a float division on ClickHouse: write (x - x % k)",
    exp.Interval: "interval: times are integer nanoseconds",
    exp.JSONExtract: "json access: open JSON in sql/sources",
    exp.JSONExtractScalar: "json access: open JSON in sql/sources",
    exp.Lambda: "lambda",
    exp.Lateral: "lateral join",
    exp.Map: "map literal",
    exp.Pivot: "pivot/unpivot: write UNION ALL or CASE",
    exp.Placeholder: "parameter: parameters come from one-row relations (settings, slo)",
    exp.Parameter: "parameter: parameters come from one-row relations (settings, slo)",
    exp.RegexpILike: "regular expression: match in sql/sources",
    exp.RegexpLike: "regular expression: match in sql/sources",
    exp.SimilarTo: "regular expression: match in sql/sources",
    exp.Struct: "struct literal",
    exp.Unnest: "unnest: join a small table instead",
}

_NO_FRAME: Final = (exp.RowNumber, exp.Lag, exp.Lead)
_BOOLEAN: Final = (
    exp.And,
    exp.Between,
    exp.Boolean,
    exp.EQ,
    exp.Exists,
    exp.GT,
    exp.GTE,
    exp.In,
    exp.Is,
    exp.LT,
    exp.LTE,
    exp.Like,
    exp.NEQ,
    exp.Not,
    exp.Or,
)
#: Casting these to an integer loses nothing, so every engine agrees.
_WHOLE: Final = (
    exp.Null,
    exp.Literal,
    exp.Floor,
    exp.Ceil,
    exp.Sum,
    exp.Count,
    exp.Coalesce,
    exp.Column,
    exp.Window,
    exp.Case,
    exp.Neg,
)


class _NullsSmall(DuckDB):
    """DuckDB's grammar with another default NULL order, to see which ORDER BY leaves it out."""

    NULL_ORDERING = "nulls_are_small"


class _NullsLarge(DuckDB):
    """The opposite default: an ORDER BY that both read alike says its NULL order itself."""

    NULL_ORDERING = "nulls_are_large"


def violations(sql: str) -> list[str]:
    """Every reason why ``sql`` is not one portable SELECT, sorted, without repeats."""
    try:
        statements = sqlglot.parse(sql, read=_NullsSmall)
        other = sqlglot.parse(sql, read=_NullsLarge)
    except sqlglot.errors.SqlglotError as error:
        return [f"cannot be parsed: {str(error).splitlines()[0]}"]
    roots = [s for s in statements if s is not None and not isinstance(s, exp.Semicolon)]
    if len(roots) != 1 or not isinstance(roots[0], exp.Query):
        return ["must be exactly one SELECT"]
    root = roots[0]
    found = set(_outermost(root))
    for node in root.walk():
        found.update(_node(node))
    found.update(_null_order(root, next(s for s in other if s is not None)))
    return sorted(found)


def _outermost(root: exp.Query) -> Iterator[str]:
    if root.args.get("order") or root.args.get("limit"):
        yield "outermost order by or limit: results are keyed and unordered"
    for select in _branches(root):
        for item in select.expressions:
            if not isinstance(item, exp.Column | exp.Alias | exp.Star):
                yield f"every result column needs an alias: {item.sql('duckdb')}"
            if isinstance(item.unalias(), _BOOLEAN):
                yield f"boolean result column (write CASE ... THEN 1 ELSE 0): {item.sql('duckdb')}"


def _branches(query: exp.Expr) -> Iterator[exp.Select]:
    if isinstance(query, exp.SetOperation):
        yield from _branches(query.left)
        yield from _branches(query.right)
    elif isinstance(query, exp.Subquery):
        yield from _branches(query.this)
    elif isinstance(query, exp.Select):
        yield query


def _node(node: exp.Expr) -> Iterator[str]:
    kind = type(node)
    if kind in _CONSTRUCTS:
        yield _CONSTRUCTS[kind]
    elif isinstance(node, exp.Substring):
        # ClickHouse counts bytes: dropping a known ASCII prefix is all that agrees.
        if node.args.get("length") or not isinstance(node.args.get("start"), exp.Literal):
            yield "substr other than dropping a fixed prefix: substr(x, 10)"
    elif isinstance(node, exp.Func) and not isinstance(node, _ALLOWED):
        name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
        yield _INSTEAD.get(kind, f"{name.lower()}() is not among the functions known to agree")
    elif kind in _INSTEAD:
        yield _INSTEAD[kind]

    if isinstance(node, exp.Lag | exp.Lead) and node.args.get("default") is None:
        yield "lag/lead without default: ClickHouse gives 0, not NULL"
    elif isinstance(node, exp.PercentileCont):
        if not isinstance(node.parent, exp.WithinGroup):
            yield "quantile_cont(x, p): write percentile_cont(p) within group (order by x)"
    elif isinstance(node, exp.Column):
        if node.args.get("db"):
            yield "struct access: flat columns only"
    elif isinstance(node, exp.Cast):
        yield from _cast(node)
    elif isinstance(node, exp.Div | exp.Mod):
        if not _guarded(node):
            yield f"unguarded division (CASE, or nullif(x, 0)): {node.sql('duckdb')}"
    elif isinstance(node, exp.Window):
        yield from _window(node)
    elif isinstance(node, exp.Join):
        yield from _join(node)
    elif isinstance(node, exp.Select):
        if any(e.is_star for e in node.expressions):
            yield "select *: name the columns"
    elif isinstance(node, exp.Group):
        if node.args.get("all"):
            yield "group by all: name the columns"
    elif isinstance(node, exp.SetOperation):
        if not (isinstance(node, exp.Union) and node.args.get("distinct") is False):
            yield "set operation other than UNION ALL"
        if node.args.get("by_name"):
            yield "union by name: order the columns"
    elif isinstance(node, exp.Not):
        if isinstance(node.this, exp.In) and node.this.args.get("query"):
            yield "not in (subquery): NULL rules differ; use not exists"
    elif isinstance(node, exp.With):
        if node.recursive:
            yield "recursive query"
    elif isinstance(node, exp.DPipe):
        if any(isinstance(side, exp.Cast) for side in (node.this, node.expression)):
            yield "|| with a cast: keep identifiers as text from sql/sources on"


def _cast(node: exp.Cast) -> Iterator[str]:
    to = node.to
    if to.is_type("bigint", "int", "smallint", "tinyint"):
        inner = node.this.unnest()
        if not isinstance(inner, _WHOLE):
            yield f"cast to integer rounds or cuts by engine: floor() first: {node.sql('duckdb')}"
        if not to.is_type("bigint"):
            yield "integers are BIGINT"
    elif not to.is_type("double"):
        yield f"cast to {to.sql('duckdb').lower()}: only bigint and double agree"


def _guarded(node: exp.Div | exp.Mod) -> bool:
    divisor = node.expression.unnest()
    while isinstance(divisor, exp.Cast):
        divisor = divisor.this.unnest()
    if isinstance(divisor, exp.Nullif):
        return True
    if isinstance(divisor, exp.Literal):
        return float(divisor.this) != 0
    return node.find_ancestor(exp.Case) is not None


def _window(node: exp.Window) -> Iterator[str]:
    if isinstance(node.this, _NO_FRAME):
        if not node.args.get("order") and not node.args.get("alias"):
            yield "row_number/lag/lead without an order"
        return
    spec = node.args.get("spec")
    kind = (spec.args.get("kind") or "").upper() if spec is not None else ""
    if kind not in ("", "ROWS"):
        yield "window frame other than ROWS"
    if not kind and node.args.get("order"):
        yield "ordered window without an explicit ROWS frame"


def _join(node: exp.Join) -> Iterator[str]:
    if (node.args.get("method") or "").upper() in ("ASOF", "NATURAL", "POSITIONAL"):
        yield f"{node.args['method'].lower()} join"
    if node.args.get("using"):
        yield "join using: write ON"
    side = (node.args.get("side") or "").upper()
    kind = (node.args.get("kind") or "").upper()
    if kind in ("SEMI", "ANTI"):
        yield "semi/anti join: write IN or NOT EXISTS"
    on = node.args.get("on")
    if side in ("LEFT", "RIGHT", "FULL") and (on is None or on.find(exp.EQ) is None):
        yield "outer join without an equality"
    if not side and kind != "CROSS" and not node.args.get("using"):
        if on is None:
            yield "join without ON (write CROSS JOIN for a one-row table)"
        elif on.find(exp.EQ) is None:
            yield "inner join without an equality is quadratic: bin it or sweep it"


def _null_order(one: exp.Expr, other: exp.Expr) -> Iterator[str]:
    for left, right in zip(one.find_all(exp.Ordered), other.find_all(exp.Ordered), strict=True):
        if isinstance(left.parent and left.parent.parent, exp.WithinGroup):
            continue  # aggregates skip NULLs
        if left.args.get("nulls_first") != right.args.get("nulls_first"):
            yield f"order by without nulls first/last: {left.this.sql('duckdb')}"


def main(arguments: list[str]) -> int:
    """Lint files and folders; one line per finding, 1 if there is any."""
    files: list[Path] = []
    for argument in arguments:
        path = Path(argument)
        files.extend(sorted(path.rglob("*.sql")) if path.is_dir() else [path])
    findings = 0
    for file in files:
        for finding in violations(file.read_text(encoding="utf-8")):
            findings += 1
            print(f"{file}: {finding}")
    print(f"portable SQL: {len(files)} files, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
