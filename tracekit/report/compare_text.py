"""A comparison in the terminal: the sentence first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tracekit.report import formats, texts
from tracekit.report.console import make_table

if TYPE_CHECKING:
    from tracekit.analysis.comparison import (
        Comparison,
        Effect,
        Metric,
        SideInfo,
        Split,
        Statistic,
    )

STATISTICS: Final = ("metric", "A", "B", "change", "95 %", "sure", "n of A", "n of B")
SPLIT: Final = ("mean of", "A", "B", "change", "mix", "cache", "cost", "95 % of cost", "sure")
KINDS: Final = ("kind", "of A", "of B", "mean A", "mean B", "at equal mix")
#: Kinds of traffic and workers shown; the JSON has them all.
_SHOWN: Final = 10
#: Blanks between two columns.
_BETWEEN: Final = 3
#: Below this a time is rounding.
_NOTHING_MS: Final = 0.005


def render(comparison: Comparison, *, width: int = 80) -> Group:
    """The whole comparison; the columns that say least are left out where the width is short."""
    return Group(*_blocks(comparison, width))


def _blocks(comparison: Comparison, width: int) -> Iterator[RenderableType]:
    yield Text(comparison.sentence, style="bold")
    yield Text()
    for label, value in facts(comparison):
        yield Text.assemble((f"{label:<10}", "dim"), value)
    rows = list(statistic_rows(comparison))
    if rows:
        yield Text()
        yield _table(STATISTICS, rows, narrow=(("n of A", "n of B"), ("95 %",)), width=width)
        yield Text(sure_line(comparison), style="dim")
        for line in not_compared_lines(comparison):
            yield Text(line, style="dim")
    rows = list(split_rows(comparison))
    if rows:
        yield Text()
        yield Text("what the change of the mean is made of", style="bold")
        yield _table(SPLIT, rows, narrow=(("A", "B"), ("95 % of cost",)), width=width)
        for line in mix_lines(comparison):
            yield Text(line, style="dim")
    rows = list(kind_rows(comparison))
    if rows:
        yield Text()
        yield Text(f"kinds of traffic, {texts.METRICS[kinds_metric(comparison)][0]}", style="bold")
        yield _table(KINDS, rows, narrow=(), width=width)
    lines = list(worker_lines(comparison))
    if lines:
        yield Text()
        yield from (Text(line) for line in lines)
    if comparison.notes:
        yield Text()
        yield from (Text(f"note: {note}", style="dim") for note in comparison.notes)
    if comparison.missing_evidence:
        yield Text()
        yield Text("missing evidence", style="bold")
        for item in comparison.missing_evidence:
            yield Text(f"- {item.field}: {item.why}")
            yield Padding(Text(item.how, style="dim"), (0, 0, 0, 2), expand=False)


def _table(
    names: tuple[str, ...],
    rows: list[tuple[str, ...]],
    *,
    narrow: tuple[tuple[str, ...], ...],
    width: int,
) -> RenderableType:
    """``narrow``: columns that go where the width is short, those that say least first."""
    # every cell whole or not at all: a number without its unit says nothing
    widths = [max(map(len, column)) + _BETWEEN for column in zip(names, *rows, strict=True)]
    kept = list(range(len(names)))
    for group in narrow:
        if sum(widths[i] for i in kept) > width:
            kept = [i for i in kept if names[i] not in group]
    table = make_table(*(names[i] for i in kept), right=tuple(n for n in names[1:] if n != "sure"))
    for column in table.columns:
        column.no_wrap = column.header in ("metric", "mean of", "sure") or column.no_wrap
    for row in rows:
        table.add_row(*(Text(row[i]) for i in kept))
    return table


def facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """The lines above the tables, as (label, text): the two sides, and how their requests ended."""
    for side in (comparison.a, comparison.b):
        yield side.name, _side(side)
        yield "", _ended(side)
    completed = comparison.completed
    if completed.a_n and completed.b_n:
        yield (
            "completed",
            f"{formats.percent(completed.a_share)} and {formats.percent(completed.b_share)} of "
            f"the usable requests{_points(completed.effect, completed.a_share, comparison)}",
        )
    if comparison.goodput is not None and comparison.goodput.effect is not None:
        goodput = comparison.goodput
        limits = ", ".join(
            f"{texts.slo_label(name)} {formats.ms(limit)}"
            for name, limit in (
                ("ttft", comparison.slo.ttft_ms),
                ("tpot", comparison.slo.tpot_ms),
                ("e2e", comparison.slo.e2e_ms),
            )
            if limit is not None
        )
        yield (
            "goodput",
            f"{formats.percent(goodput.a_share)} and {formats.percent(goodput.b_share)} met every "
            f"limit ({limits}){_points(goodput.effect, goodput.a_share, comparison)}",
        )


def _side(side: SideInfo) -> str:
    span = ""
    if side.first_unix_ns is not None and side.last_unix_ns is not None:
        span = f", {formats.time(side.first_unix_ns)} to {formats.time(side.last_unix_ns)}"
    rate = ""
    if side.requests_per_s is not None:
        rate = f", {formats.number(side.requests_per_s, 2)} requests/s"
    where = "" if side.text.startswith(side.store) else f" in {side.store}"
    return f"{side.text}{where}{span}{rate}"


def _ended(side: SideInfo) -> str:
    counts = side.requests
    parts = [f"{counts.completed:,} of {formats.plural(counts.total, 'request')} completed"]
    parts += [
        f"{n:,} {word}"
        for word, n in (
            ("aborted", counts.aborted),
            ("failed", counts.errored),
            ("timed out", counts.timeout),
            ("open", counts.open),
            ("superseded by a later attempt", counts.superseded),
        )
        if n
    ]
    parts += [f"{n:,} quarantined ({reason})" for reason, n in counts.quarantined.items()]
    if side.input_tokens_p50 is not None or side.output_tokens_p50 is not None:
        cached = (
            "" if not side.cached_share else f", {formats.percent(side.cached_share)} of it cached"
        )
        parts.append(
            f"median prompt {formats.count(side.input_tokens_p50)} tokens{cached}, "
            f"median answer {formats.count(side.output_tokens_p50)}"
        )
    return ", ".join(parts)


def _points(effect: Effect | None, share: float | None, comparison: Comparison) -> str:
    if effect is None:
        return ""
    sure = sure_word(effect, share, _wide(comparison))
    return (
        f": {effect.change * 100:+.1f} points "
        f"(95 % {effect.low * 100:+.1f} to {effect.high * 100:+.1f}), {sure}"
    )


def sure_word(effect: Effect | None, base: float | None = None, wide: float = 0.0) -> str:
    """``high``, ``likely``, or why it is no change.

    No change is what an interval around 0 shows if it leaves out all changes of ``wide`` times
    ``base`` (the value of A); a wider one cannot tell.
    """
    if effect is None:
        return formats.UNKNOWN
    if effect.p_value is None:
        return "too few"
    if effect.is_change:
        return effect.confidence_label or formats.UNKNOWN
    if effect.confidence_label in ("high", "likely"):
        return "too small"
    if not effect.low <= 0 <= effect.high:
        return "not certain"
    seen = base is None or effect.unseen <= wide * base
    return "no change" if seen else "cannot tell"


def _wide(comparison: Comparison) -> float:
    return float(comparison.method["rules"]["blind_share"])


def not_compared_lines(comparison: Comparison) -> Iterator[str]:
    """Why a metric of the table has no change in any row."""
    for metric in comparison.metrics:
        has_values = any(s.a_ms is not None or s.b_ms is not None for s in metric.statistics)
        if metric.not_compared and has_values:
            yield f"{texts.METRICS[metric.metric][0]} is not compared: {metric.not_compared}"


def sure_line(comparison: Comparison) -> str:
    """What ``sure`` and the intervals mean."""
    tests = comparison.method["tests"]
    if not tests:
        return "too few requests for intervals"
    line = (
        f"intervals are 95 % each; sure is after correction for all {tests} things tested; cannot "
        f"tell: the interval holds 0, and changes of more than {formats.percent(_wide(comparison))}"
    )
    if any(row[STATISTICS.index("sure")] == "too few" for row in statistic_rows(comparison)):
        line += "; too few: what is at or above it comes from too few moments to be tested"
    return line


def signed(value: float | None) -> str:
    """A change in ms with its sign."""
    if value is None:
        return formats.UNKNOWN
    if abs(value) < _NOTHING_MS:
        return "0 ms"
    size = formats.ms(abs(value))
    return f"{'-' if value < 0 else '+'}{size}"


def span(effect: Effect | None) -> str:
    """An interval in ms."""
    if effect is None:
        return formats.UNKNOWN
    return f"{signed(effect.low)} to {signed(effect.high)}"


def statistic_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """Rows of STATISTICS; ``(>=x)`` is the value with killed requests in."""
    for metric in comparison.metrics:
        label = texts.METRICS[metric.metric][0]
        for s in metric.statistics:
            if s.a_ms is None and s.b_ms is None:
                continue
            yield (
                f"{label} {s.statistic}",
                _value(s, "a"),
                _value(s, "b"),
                signed(s.effect.change if s.effect else None),
                span(s.effect),
                sure_word(s.effect, s.a_ms, _wide(comparison)),
                formats.count(metric.a_n),
                formats.count(metric.b_n),
            )


def _value(statistic: Statistic, side: str) -> str:
    value = statistic.a_ms if side == "a" else statistic.b_ms
    floor = statistic.a_at_least_ms if side == "a" else statistic.b_at_least_ms
    text = formats.ms(value)
    if floor is not None and value is not None and floor > value * 1.01:
        text += f" (>={formats.ms(floor)})"
    return text


def split_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """Rows of SPLIT: each metric, and below the longest one its phases."""
    detailed = detailed_metric(comparison)
    for metric in comparison.metrics:
        if metric.split is None:
            continue
        label = texts.METRICS[metric.metric][0]
        a_ms, b_ms = (sum(getattr(p, k) for p in metric.phases) for k in ("a_ms", "b_ms"))
        yield _split_row(label, a_ms, b_ms, metric.split)
        if metric is detailed:
            for phase in metric.phases:
                if max(abs(phase.a_ms), abs(phase.b_ms)) < _NOTHING_MS:
                    continue
                name = (
                    "not in a phase of both"
                    if phase.phase == "rest"
                    else texts.phase_label(phase.phase)
                )
                yield _split_row(f"  {name}", phase.a_ms, phase.b_ms, phase.split)


def detailed_metric(comparison: Comparison) -> Metric | None:
    """The metric whose phases are listed: the one with the most of them."""
    split = [m for m in comparison.metrics if m.split is not None]
    return max(split, key=lambda m: len(m.phases), default=None)


def _split_row(label: str, a_ms: float, b_ms: float, split: Split) -> tuple[str, ...]:
    terms = (split.mix, split.cache, split.cost)
    if split.apart:
        total = sure_word(split.total) if split.total.is_change else formats.UNKNOWN
        unknown = (formats.UNKNOWN,) * 4
        row = (label, formats.ms(a_ms), formats.ms(b_ms), signed(split.total.change))
        return (*row, *unknown, total)
    sure = ", ".join(
        f"{name} {sure_word(e)}"
        for name, e in zip(("mix", "cache", "cost"), terms, strict=True)
        if e.is_change
    )
    return (
        label,
        formats.ms(a_ms),
        formats.ms(b_ms),
        signed(split.total.change),
        signed(split.mix.change),
        signed(split.cache.change),
        signed(split.cost.change),
        span(split.cost),
        sure or formats.UNKNOWN,
    )


def mix_lines(comparison: Comparison) -> Iterator[str]:
    """What a changed mix is made of."""
    for metric in comparison.metrics:
        split = metric.split
        if split is None or not split.mix.is_change:
            continue
        yield (
            f"traffic mix of {texts.METRICS[metric.metric][0]}: other shares of models and routes "
            f"{signed(split.models_routes_ms)}, other request sizes {signed(split.shapes_ms)}, "
            f"traffic that one side lacks {signed(split.one_sided_ms)}"
        )


def kinds_metric(comparison: Comparison) -> str:
    """The metric that kinds of traffic are listed for."""
    known = {name for s in comparison.strata for name in s.means}
    return next((m for m in ("ttft_ms", "e2e_ms", "tpot_ms") if m in known), "e2e_ms")


def kind_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """Rows of KINDS; none where all traffic is of one kind."""
    if len(comparison.strata) < 2:
        return
    metric = kinds_metric(comparison)
    for s in comparison.strata[:_SHOWN]:
        means = s.means.get(metric)
        yield (
            ", ".join(p for p in (s.model, s.route) if p) or "(unnamed)",
            formats.percent(s.a_share),
            formats.percent(s.b_share),
            formats.ms(means.a_ms if means else None),
            formats.ms(means.b_ms if means else None),
            signed(means.cost_ms if means else None),
        )


def worker_lines(comparison: Comparison) -> Iterator[str]:
    """Which workers a phase's cost change sits on, where it is few."""
    for metric in comparison.metrics:
        for phase in metric.phases:
            shifts = [
                w for w in comparison.workers if (w.metric, w.phase) == (metric.metric, phase.phase)
            ]
            if not any(w.named for w in shifts):
                continue
            listed = ", ".join(f"{w.worker} {signed(w.change_ms)}" for w in shifts[:_SHOWN])
            yield (
                f"{texts.METRICS[metric.metric][0]}, {texts.phase_label(phase.phase)} by worker, "
                f"same requests: {listed}"
            )
