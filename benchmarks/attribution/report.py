"""The committed table and chart: what `score` measured, in Markdown and as one small SVG.

Owns presentation only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from attribution.naive import RULES, SCOPED_RULES
from attribution.score import ABSTAINED
from attribution.truth import INJECTED, PHASES

#: The bars of the benchmark: measure -> (bar, how the value compares).
_BARS: Final = (
    ("macro top-1 phase accuracy", 0.95, "at least"),
    ("worst fault, n >= 30", 0.85, "at least"),
    ("cause accuracy (macro)", 0.90, "at least"),
    ("culprit precision@1", 0.95, "at least"),
    ("false verdicts on clean traffic", 0.02, "below"),
    ("expected calibration error", 0.10, "below"),
)
_NAIVE_NAMES: Final = {
    "share": "largest share",
    "z": "largest z",
    "median": "plain median",
}
Summary = dict[str, Any]


def _f(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return [*lines, *("| " + " | ".join(r) + " |" for r in rows), ""]


def _worst(summary: Summary) -> float | None:
    return min(
        (v["accuracy"] for v in summary["phase"]["faults"].values() if v["n"] >= 30), default=None
    )


def bar_values(summary: Summary) -> list[tuple[str, float | None, float, bool | None]]:
    """(measure, value, bar, met) of each bar."""
    values = (
        summary["phase"]["macro"],
        _worst(summary),
        summary["cause"]["macro"],
        summary["culprits"]["precision"],
        summary["clean"]["rate"],
        summary["calibration"]["ece"],
    )
    out = []
    for (name, bar, how), value in zip(_BARS, values, strict=True):
        met = None if value is None else value >= bar if how == "at least" else value < bar
        out.append((name, value, bar, met))
    return out


def markdown(summaries: dict[str, Summary], about: dict[str, Any]) -> str:
    """The report. ``summaries`` by variant (own, baseline), ``about`` how it was run."""
    own, base = summaries["own"], summaries["baseline"]
    lines = [
        "# Attribution against known truth",
        "",
        f"{about['runs']} simulated runs ({about['fault_runs']} with one fault, "
        f"{about['two_runs']} with two, {about['clean_runs']} clean) of {about['requests']:,} "
        f"requests each, seeds {about['seeds']}; {own['rows']:,} scored rows. "
        f"Made by `{about['command']}` in {about['minutes']:.1f} minutes "
        f"({about['cpu_minutes']:.1f} CPU minutes). What each measure means is said in `score.py`, "
        "what is true in `truth.py`.",
        "",
        "`own`: expectations come from the traffic itself, faults included. `baseline`: the time "
        "before the fault was declared healthy (`--baseline`); asked at the middle intensity only.",
        "",
        "## Bars",
        "",
    ]
    rows = []
    for (name, value, bar, met), (_, other, _, _) in zip(
        bar_values(own), bar_values(base), strict=True
    ):
        how = next(h for n, _, h in _BARS if n == name)
        verdict = "-" if met is None else "met" if met else "**not met**"
        rows.append((name, _f(value), _f(other), f"{how} {bar:g}", verdict))
    lines += _table(("measure", "own", "baseline", "bar", "own against the bar"), rows)
    lines += _naive_table(own)
    lines += _fault_table(own, base)
    lines += _cause_table(own)
    lines += _confusion_table(own)
    lines += _rest(own, base)
    return "\n".join(lines).rstrip() + "\n"


def _naive_table(own: Summary) -> list[str]:
    lines = ["## Beside the naive rules", "", "Macro top-1 phase accuracy on the same observed "
             "phases; `scoped`: only among the violated metric's phases, which is part of our "
             "method.", ""]  # fmt: skip
    naive = own["naive"]
    rows = [("tracekit", _f(own["phase"]["macro"]), _f(own["phase"]["macro"]))]
    for rule in RULES:
        rows.append(
            (_NAIVE_NAMES[rule], _f(naive[rule]["macro"]), _f(naive[f"{rule}_scoped"]["macro"]))
        )
    return lines + _table(("rule", "all phases", "scoped"), rows)


def _fault_table(own: Summary, base: Summary) -> list[str]:
    head = ("fault", "n", "own", "agg", "P/D", "level 1 / 2 / 3", "answered", "baseline",
            *(f"{_NAIVE_NAMES[r]} (scoped)" for r in RULES))  # fmt: skip
    rows = []
    for fault, v in own["phase"]["faults"].items():
        levels = " / ".join(_f(v[f"level_{k}"], 2) for k in (1, 2, 3))
        rows.append(
            (
                fault,
                f"{v['n']:,}",
                _f(v["accuracy"]),
                _f(v["agg"], 2),
                _f(v["pd"], 2),
                levels,
                _f(v["answered"], 2),
                _f(base["phase"]["faults"][fault]["accuracy"]),
                *(_f(own["naive"][r]["faults"][fault], 2) for r in SCOPED_RULES),
            )
        )
    p = own["phase"]
    return [
        "## Recall by fault (top-1 phase)",
        "",
        *_table(head, rows),
        f"Macro: aggregated {_f(p['macro_agg'])}, P/D {_f(p['macro_pd'])}; all rows pooled "
        f"{_f(p['pooled'])}; without marginal rows (that grew by less than a tenth) "
        f"{_f(p['macro_large'])}. By metric: "
        + ", ".join(f"{m} {_f(v['accuracy'])} (n {v['n']:,})" for m, v in own["by_metric"].items())
        + ".",
        "",
    ]


def _cause_table(own: Summary) -> list[str]:
    c = own["cause"]
    rows = [
        (
            fault,
            f"`{INJECTED[fault]}`",
            f"{v['n']:,}",
            _f(v["accuracy"]),
            _f(v["strict"]),
            ", ".join(f"{name} {count:,}" for name, count in v["wrong"]),
        )
        for fault, v in c["faults"].items()
    ]
    return [
        "## Causes (rows whose true excess is at least 20 ms)",
        "",
        f"Macro {_f(c['macro'])} (any true cause), {_f(c['macro_strict'])} (the injected one "
        "only).",
        "",
        *_table(("fault", "injected", "n", "true", "injected only", "most often wrong"), rows),
    ]


def _confusion_table(own: Summary) -> list[str]:
    says = [*PHASES, "queue_or_prefill", *ABSTAINED]
    seen = [s for s in says if any(s in row for row in own["confusion"].values())]
    rows = [
        (f"**{truth}**", *(f"{row.get(s, 0):,}" if row.get(s) else "" for s in seen))
        for truth, row in own["confusion"].items()
    ]
    return ["## Confusion (true phase, down; said, across)", "", *_table(("", *seen), rows)]


def _rest(own: Summary, base: Summary) -> list[str]:
    lines = ["## Confidence", ""]
    rows = [
        (f"{a['threshold']:g}", _f(a["answered"]), _f(a["accuracy"])) for a in own["abstention"]
    ]
    lines += _table(("confidence at least", "answered", "right of those"), rows)
    bins = [
        (f"{b['bin'] / 10:.1f}-{b['bin'] / 10 + 0.1:.1f}", f"{b['n']:,}", _f(b["confidence"]),
         _f(b["accuracy"]))
        for b in own["calibration"]["bins"]
    ]  # fmt: skip
    lines += [f"Expected calibration error {_f(own['calibration']['ece'])}.", ""]
    lines += _table(("bin", "n", "mean confidence", "right"), bins)
    c, k, s = own["culprits"], own["clean"], own["shares"]
    lines += [
        "## The rest",
        "",
        f"- **Culprits** (several prompts of 5,000 to 16,000 tokens): {c['named']:,} of "
        f"{c['victims']:,} victims had one named; precision@1 {_f(c['precision'])} (aggregated "
        f"{_f(c['agg'])}, P/D {_f(c['pd'])}); with a baseline {_f(base['culprits']['precision'])}.",
        f"- **Clean traffic**: {k['false']:,} of {k['slow']:,} slow rows got a phase blamed "
        f"({_f(k['rate'])}; {_f(k['rate_of_requests'], 4)} of all requests and metrics), "
        f"{k['mixed']:,} were called mixed; {k['runs_with_high_finding']} of {k['runs']} runs had "
        f"a finding of high confidence. With a baseline: {_f(base['clean']['rate'])}, "
        f"{base['clean']['runs_with_high_finding']} runs.",
        *(f"    - {name}: {count}" for name, count in k["kinds"]),
        f"- **Fleet shares**: mean absolute error {_f(s['mean_absolute_error'])}, bias "
        f"{_f(s['bias'])}, worst {_f(s['worst'])} over {s['n']} (run, metric, phase); with a "
        f"baseline {_f(base['shares']['mean_absolute_error'])}.",
        f"- **Two faults at once**: phase {_f(own['two']['accuracy'])} (n {own['two']['n']:,}), "
        f"cause {_f(own['two']['cause'])}.",
        *(
            f"    - {pair}: phase {_f(v['accuracy'])} (n {v['n']:,})"
            for pair, v in own["two"]["pairs"].items()
        ),
        "- **Fields removed on purpose** (share that claims nothing it cannot know): "
        + "; ".join(f"{w} {_f(v['honest'])} (n {v['n']:,})" for w, v in own["removed"].items())
        + ".",
        f"- **Engine span lost**: {own['lost']['n']:,} rows, a wrong phase blamed in "
        f"{_f(own['lost']['wrong_phase'])}.",
        "",
    ]
    return lines


_COLOURS: Final = ("#0072B2", "#E69F00", "#CC79A7", "#999999")


def svg(own: Summary) -> str:
    """Bars of top-1 accuracy by fault: tracekit beside the three naive rules (scoped)."""
    faults = list(own["phase"]["faults"])
    names = ["tracekit", *(f"{_NAIVE_NAMES[r]} (scoped)" for r in RULES)]
    left, width, bar, gap = 130, 420, 6, 10
    height = 50 + len(faults) * (4 * bar + gap) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 60}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="10" y="16" font-size="13">Top-1 phase accuracy by fault</text>',
    ]
    for k, name in enumerate(names):
        x = 10 + k * 148
        out.append(f'<rect x="{x}" y="26" width="10" height="10" fill="{_COLOURS[k]}"/>')
        out.append(f'<text x="{x + 14}" y="35">{escape(name)}</text>')
    top = 50
    bottom = top + len(faults) * (4 * bar + gap)
    for tick in range(0, 11, 2):
        at = left + width * tick / 10
        out.append(f'<line x1="{at}" y1="{top}" x2="{at}" y2="{bottom}" stroke="#ddd"/>')
        out.append(f'<text x="{at}" y="{bottom + 14}" text-anchor="middle">{tick / 10:.1f}</text>')
    goal = left + width * 0.85
    out.append(
        f'<line x1="{goal}" y1="{top}" x2="{goal}" y2="{bottom}" stroke="#555" '
        'stroke-dasharray="3 3"/>'
    )
    for i, fault in enumerate(faults):
        y = top + i * (4 * bar + gap)
        out.append(
            f'<text x="{left - 6}" y="{y + 2 * bar + 4}" text-anchor="end">{escape(fault)}</text>'
        )
        values = [own["phase"]["faults"][fault]["accuracy"]]
        values += [own["naive"][r]["faults"][fault] for r in SCOPED_RULES]
        for k, value in enumerate(values):
            out.append(
                f'<rect x="{left}" y="{y + k * bar}" width="{width * (value or 0):.1f}" '
                f'height="{bar - 1}" fill="{_COLOURS[k]}"/>'
            )
    return "\n".join([*out, "</svg>"]) + "\n"
