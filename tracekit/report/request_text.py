"""One request in the terminal: facts, a timeline bar, its phases, gaps and verdict.

The bar shows each phase by a letter and, where the terminal can, by the phase's colour. It is to
scale: a phase too short for a cell gets none and is named beneath, with its time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit.analysis.detail import PhaseInterval, RequestDetail
from tracekit.analysis.verdicts import REASONS
from tracekit.analysis.wording import format_confidence
from tracekit.names import IDLE_SUB_PHASES, PHASE_COLOURS
from tracekit.report import formats, texts
from tracekit.report.console import make_table
from tracekit.report.inferred_text import inferred_lines

_BAR_WIDTH: Final = 72
#: Gaps listed; the rest is counted.
_GAPS_SHOWN: Final = 8


def render(detail: RequestDetail, *, width: int = 80) -> Group:
    """The whole request; ``width`` is the console's."""
    return Group(*_blocks(detail, width))


def _blocks(detail: RequestDetail, width: int) -> Iterator[RenderableType]:
    yield _title(detail.request)
    yield _facts(detail.request)
    if detail.request.get("error"):
        yield Text(f"error: {' '.join(str(detail.request['error']).split())}", style="red")
    if detail.request.get("quarantine_reason"):
        yield Text(
            f"quarantined: {detail.request['quarantine_reason']} (in no statistic)",
            style="bold red",
        )
    yield Text()
    if detail.phases:
        yield from _timeline(detail, max(20, min(width - 2, _BAR_WIDTH)))
        yield Text()
        yield _phase_table(detail.phases)
    else:
        yield Text("no phases: the source gave no usable boundary")
    yield from _gap_block(detail)
    if (smooth := detail.fluidity) is not None:
        late = ""
        if smooth.missed:
            late = (
                f", the latest token by {formats.ms(smooth.late_ms)} (a token misses one deadline, "
                "and one more for each further limit that it is late)"
            )
        yield Text(
            f"fluidity {smooth.index:.3f}: {smooth.missed:,} of "
            f"{formats.plural(smooth.deadlines, 'deadline')} missed, one token due every "
            f"{formats.ms(smooth.limit_ms)}{late}; time that early tokens saved counts"
        )
    for line in inferred_lines(detail.inferred):
        yield Text(line)
    yield Text()
    yield _verdict(detail)
    if detail.gpu:
        yield Text()
        yield _gpu_table(detail.gpu)


def _title(request: dict[str, Any]) -> Text:
    name = request.get("request_id") or request.get("trace_id") or request["request_key"]
    text = Text("request ", style="bold")
    text.append(str(name), style="bold cyan")
    for key in ("model", "engine", "route", "status"):
        if request.get(key):
            text.append(f"  {key} {request[key]}")
    if request.get("finish_reason"):
        text.append(f"  finish {request['finish_reason']}")
    return text


def _facts(request: dict[str, Any]) -> Text:
    tokens = f"input {formats.count(request.get('input_tokens'))}"
    if request.get("cached_tokens"):
        tokens += f" ({formats.count(request['cached_tokens'])} cached)"
    tokens += f", output {formats.count(request.get('output_tokens'))} tokens"
    kind = f" ({request['ttft_kind']})" if request.get("ttft_kind") else ""
    where = [
        f"{label} {request[key]}"
        for key, label in (("prefill_worker", "prefill on"), ("decode_worker", "decode on"))
        if request.get(key)
    ]
    if not where and request.get("worker"):
        where = [f"worker {request['worker']}"]
    if request.get("preemptions"):
        where.append(f"preempted {formats.plural(request['preemptions'], 'time')}")
    lines = (
        (f"start {formats.time(request.get('start_unix_ns'))}", tokens),
        (
            f"TTFT {formats.ms(request.get('ttft_ms'))}{kind}",
            f"TPOT {formats.ms(request.get('tpot_ms'))}",
            f"E2E {formats.ms(request.get('e2e_ms'))}",
            f"coverage {formats.percent(request.get('coverage'))}",
        ),
        where,
    )
    return Text("\n".join("  ".join(line) for line in lines if line))


def bar_widths(phases: Sequence[PhaseInterval], cells: int) -> list[int]:
    """How many of ``cells`` cells each interval has: its share, rounded by the largest remainder.

    None is off by a cell or more; the widths add up to ``cells``.
    """
    lengths = [max(p.end_unix_ns - p.start_unix_ns, 0) for p in phases]
    total = sum(lengths)
    if total == 0:  # nothing took any time: no interval is longer than another
        lengths, total = [1] * len(phases), len(phases)
    # whole numbers: shares of nanoseconds would lose digits
    widths = [length * cells // total for length in lengths]
    rests = [length * cells % total for length in lengths]
    for i in sorted(range(len(phases)), key=lambda i: -rests[i])[: cells - sum(widths)]:
        widths[i] += 1
    return widths


def _wholes(phases: Sequence[PhaseInterval]) -> list[list[PhaseInterval]]:
    """Intervals with those that time without progress cut out of them, in order."""
    return [
        list(parts)
        for _, parts in groupby(
            phases,
            key=lambda p: (
                p.phase,
                None if p.sub_phase in IDLE_SUB_PHASES else p.sub_phase,
                p.role,
                p.worker,
            ),
        )
    ]


def _as_one(parts: Sequence[PhaseInterval]) -> PhaseInterval:
    """The interval that these are the parts of, known as its part without a name is."""
    if len(parts) == 1:
        return parts[0]
    idle = replace(parts[0], sub_phase=None)
    plain = next((p for p in parts if p.sub_phase not in IDLE_SUB_PHASES), idle)
    shares = [p.share for p in parts if p.share is not None]
    return replace(
        plain,
        start_unix_ns=parts[0].start_unix_ns,
        end_unix_ns=parts[-1].end_unix_ns,
        ms=sum(p.ms for p in parts),
        share=sum(shares) if shares else None,
    )


def _timeline(detail: RequestDetail, cells: int) -> Iterator[Text]:
    phases = [_as_one(parts) for parts in _wholes(detail.phases)]
    widths = bar_widths(phases, cells)
    names = [p.phase for p, w in zip(phases, widths, strict=True) for _ in range(w)]
    bar = Text(no_wrap=True, overflow="crop")
    for name in names:
        letter = texts.PHASE_LETTERS.get(name, "?")
        bar.append(letter, style=f"#000000 on {PHASE_COLOURS.get(name, '#C8C8C8')}")
    yield bar
    start, end = detail.phases[0].start_unix_ns, detail.phases[-1].end_unix_ns
    stalls = _stall_marks(detail, len(names), start, end)
    if stalls:
        yield Text(stalls, style="red", no_wrap=True, overflow="crop")
    right = formats.ms((end - start) / 1e6)
    yield Text("0".ljust(max(len(names) - len(right), 1)) + right, style="dim")
    seen = dict.fromkeys(names)
    legend = Text()
    for name in texts.PHASE_LETTERS:
        if name in seen:
            legend.append(f"{texts.PHASE_LETTERS[name]}", style=f"bold {PHASE_COLOURS[name]}")
            legend.append(f" {texts.phase_label(name)}   ")
    if stalls:
        legend.append("!", style="red")
        legend.append(" stall")
    yield legend
    hidden: dict[str, float] = {}
    for p, w in zip(phases, widths, strict=True):
        if not w:
            hidden[p.phase] = hidden.get(p.phase, 0.0) + p.ms
    if hidden:
        said = ", ".join(
            f"{texts.PHASE_LETTERS.get(name, '?')} {texts.phase_label(name)} {formats.ms(took)}"
            for name, took in hidden.items()
        )
        cell = formats.ms((end - start) / 1e6 / len(names))
        yield Text(f"too short to draw (a cell is {cell}): {said}", style="dim")


def _stall_marks(detail: RequestDetail, cells: int, start: int, end: int) -> str:
    marks = [" "] * cells
    for gap in detail.gaps:
        if gap.is_stall and end > start:
            at = (gap.start_unix_ns - start) * cells // (end - start)
            marks[min(max(at, 0), cells - 1)] = "!"
    return "".join(marks).rstrip()


def _phase_table(phases: Sequence[PhaseInterval]) -> RenderableType:
    table = make_table(
        "phase",
        "from ms",
        "to ms",
        "took",
        "share",
        "how",
        "field",
        right=("from ms", "to ms", "took", "share"),
    )
    start = phases[0].start_unix_ns
    for parts in _wholes(phases):
        whole = _as_one(parts)
        name = texts.phase_label(whole.phase)
        if whole.sub_phase:
            name += f" ({_sub_label(whole.sub_phase)})"
        table.add_row(
            Text(
                f"{texts.PHASE_LETTERS.get(whole.phase, '?')} ",
                style=PHASE_COLOURS.get(whole.phase, ""),
            )
            + Text(name, style="default"),
            formats.number((whole.start_unix_ns - start) / 1e6),
            formats.number((whole.end_unix_ns - start) / 1e6),
            *_row_end(whole),
        )
        if len(parts) == 1:
            continue
        for sub in IDLE_SUB_PHASES:
            inside = [p for p in parts if p.sub_phase == sub]
            if inside:
                one = _as_one(inside)
                name = _sub_label(sub)
                times = f" x{len(inside)}" if len(inside) > 1 else ""
                table.add_row(
                    Text(f"    of it {name}{times}"),
                    formats.number((one.start_unix_ns - start) / 1e6),
                    formats.number((one.end_unix_ns - start) / 1e6),
                    *_row_end(one),
                )
    return table


def _sub_label(sub_phase: str) -> str:
    return sub_phase.partition(".")[2].replace("_", " ")


def _row_end(p: PhaseInterval) -> tuple[str, str, str, str]:
    return (
        formats.ms(p.ms),
        formats.percent(p.share),
        p.provenance or formats.UNKNOWN,
        " ".join(filter(None, (p.field, f"[{p.role}]" if p.role else None))),
    )


def _gap_block(detail: RequestDetail) -> Iterator[RenderableType]:
    if not detail.gaps:
        return
    stalls = sum(g.is_stall for g in detail.gaps)
    yield Text()
    yield Text(
        f"token gaps: longest {formats.ms(max(g.ms for g in detail.gaps))}, "
        f"{formats.plural(stalls, 'stall')}"
        f" of {formats.ms(detail.request.get('stall_ms'))} in all"
    )
    table = make_table(
        "gap", "at", "took", "over median", "", right=("gap", "at", "took", "over median")
    )
    start = detail.phases[0].start_unix_ns if detail.phases else detail.gaps[0].start_unix_ns
    longest = sorted(detail.gaps, key=lambda g: -g.ms)[:_GAPS_SHOWN]
    for gap in sorted(longest, key=lambda g: g.index):
        table.add_row(
            f"#{gap.index}",
            formats.ms((gap.start_unix_ns - start) / 1e6),
            formats.ms(gap.ms),
            formats.ms(gap.excess_ms),
            "stall" if gap.is_stall else "",
        )
    yield table
    if len(detail.gaps) > len(longest):
        yield Text(f"({len(detail.gaps) - len(longest)} shorter gaps: --json)", style="dim")


def _verdict(detail: RequestDetail) -> Text:
    verdict = detail.verdict
    text = Text("verdict ", style="bold")
    if verdict is None:
        text.append(detail.verdict_reason or "none")
        return text
    text.append(str(verdict["class"]), style="bold")
    if verdict.get("phase"):
        text.append(f": {texts.phase_label(verdict['phase'])}")
    if verdict.get("cause"):
        text.append(f", {texts.cause_label(verdict['cause'])}")
    if verdict.get("metric"):
        text.append(f" ({texts.slo_label(verdict['metric'])})")
    if verdict.get("excess_ms") is not None:
        excess = formats.excess(verdict["excess_ms"])
        expected = formats.ms(verdict.get("expected_ms"))
        text.append(
            f"; {expected} is expected for its shape"
            + ("" if excess == "none" else f", {excess} on top decides nothing")
            if verdict["class"] == "request_shape"
            else f"; {excess} over the {expected} its shape explains"
        )
    if verdict.get("confidence") is not None:
        text.append(f"; confidence {format_confidence(verdict['confidence'])}")
    if verdict.get("reason") not in REASONS:  # else the last line of the evidence says it
        text.append(f"\n  {texts.CLASSES.get(verdict['class'], '')}", style="dim")
    for line in verdict.get("evidence") or ():
        text.append(f"\n  - {line}")
    if verdict.get("culprits"):
        text.append("\n  culprits: " + ", ".join(map(str, verdict["culprits"])))
    return text


def _gpu_table(gpu: Sequence[dict[str, Any]]) -> RenderableType:
    table = make_table(
        "GPU",
        "host",
        "windows",
        "DRAM",
        "busy",
        "power",
        right=("windows", "DRAM", "busy", "power"),
    )
    for row in gpu:
        table.add_row(
            str(row.get("mig_uuid") or row.get("gpu_uuid")),
            str(row.get("host") or formats.UNKNOWN),
            formats.count(row.get("windows")),
            formats.percent(row.get("dram_bw_util")),
            formats.percent(row.get("gpu_time_util")),
            f"{formats.number(row.get('power_w'), 0)} W",
        )
    return table
