"""What the runs say together: the measures that the bars are about.

Definitions (the bars rest on them):

* a row is a (request, violated metric) of the population (`truth`); rows whose engine spans were
  lost on purpose are scored apart;
* **top-1 phase**: the verdict is `attributed` and its phase is the true one; abstaining (any other
  class) and a missing verdict count as wrong. Macro: the mean over faults of their accuracy;
* **cause**: over rows whose true excess is at least 20 ms, the verdict's cause is a true one;
  `cause_strict` counts the injected cause only;
* **calibration error**: over attributed rows, ten equal bins of confidence, mean absolute
  difference of confidence and accuracy, weighted by rows;
* **abstention**: of the rows with confidence at or above a threshold, how many are right;
* **culprit precision@1**: `culprits`;
* **false verdicts**: attributed verdicts among all verdict rows of clean runs; clean runs with a
  finding of high confidence that is not about size;
* **share error**: mean absolute difference between the share of misses that the findings blame on
  a phase (less the placebo) and the share that vanishes in the replay, over phases with either;
  only runs to which the fault added no requests, since those have no replay without it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from attribution.faults import FAULTS
from attribution.naive import RULES, SCOPED_RULES
from attribution.truth import METRICS, PHASES

Run = dict[str, Any]
ABSTAINED: Final = ("request_shape", "mixed", "unexplained", "insufficient_evidence", "no verdict")
THRESHOLDS: Final = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
_BINS: Final = 10
_MIN_MISSES: Final = 20


def share(right: int, n: int) -> float | None:
    """right / n, None of nothing."""
    return right / n if n else None


def said_phase(verdict: dict[str, Any] | None) -> str:
    """The phase that a verdict blames, or how it abstains."""
    if verdict is None:
        return "no verdict"
    return str(verdict["phase"] if verdict["class"] == "attributed" else verdict["class"])


def rows_of(runs: Iterable[Run], variant: str) -> list[dict[str, Any]]:
    """One flat record a scored row."""
    out = []
    for run in runs:
        v = run["variants"][variant]
        for row, said, naive in zip(run["rows"], v["said"], v["naive"], strict=True):
            out.append(
                row
                | {
                    "fault": "+".join(run["faults"]),
                    "topology": run["topology"],
                    "intensity": run["intensity"],
                    "seed": run["seed"],
                    "removed": run["removed"],
                    "said": said,
                    "says": said_phase(said),
                    "naive": naive,
                }
            )
    return out


def summarize(runs: Sequence[Run], variant: str) -> dict[str, Any]:
    """All measures of one variant (`own` traffic as reference, or a declared `baseline`)."""
    runs = [r for r in runs if variant in r["variants"]]
    faulty = [r for r in runs if r["kind"] == "fault"]
    rows = rows_of(faulty, variant)
    read = [r for r in rows if not r["lost"]]
    return {
        "rows": len(read),
        "phase": _phase(read),
        "cause": _cause(read),
        "confusion": _confusion(read),
        "by_metric": {m: _accuracy([r for r in read if r["metric"] == m]) for m in METRICS},
        "abstention": _abstention(read),
        "calibration": calibration(read),
        "naive": {rule: _naive(read, rule) for rule in (*RULES, *SCOPED_RULES)},
        "culprits": _culprits(faulty, variant),
        "clean": _clean([r for r in runs if r["kind"] == "clean"], variant),
        "shares": _shares(faulty, variant),
        "two": _two(rows_of([r for r in runs if r["kind"] == "two"], variant)),
        "removed": _removed(rows_of([r for r in runs if r["kind"] == "removed"], variant)),
        "lost": _lost([r for r in rows if r["lost"]]),
    }


def _accuracy(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    right = sum(r["says"] == r["phase"] for r in rows)
    answered = sum(r["says"] not in ABSTAINED for r in rows)
    return {
        "n": len(rows),
        "accuracy": share(right, len(rows)),
        "answered": share(answered, len(rows)),
        "precision": share(right, answered),
    }


def _macro(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _phase(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    by_fault = {}
    for fault in FAULTS:
        mine = [r for r in rows if r["fault"] == fault]
        if not mine:
            continue
        by_fault[fault] = _accuracy(mine) | {
            t: _accuracy([r for r in mine if r["topology"] == t])["accuracy"] for t in ("agg", "pd")
        } | {
            f"level_{k}": _accuracy([r for r in mine if r["intensity"] == k])["accuracy"]
            for k in (1, 2, 3)
        }  # fmt: skip
    macro = {"macro": _macro(f["accuracy"] for f in by_fault.values())}
    for topology in ("agg", "pd"):
        macro[f"macro_{topology}"] = _macro(f[topology] for f in by_fault.values())
    # a marginal row grew by less than a tenth of its limit in all: chance decides there too
    large = [r for r in rows if r["excess_ms"] >= 0.1 * _scope_ms(r)]
    macro["macro_large"] = _macro(
        _accuracy([r for r in large if r["fault"] == f])["accuracy"] for f in by_fault
    )
    return macro | {"pooled": _accuracy(rows)["accuracy"], "faults": by_fault}


def _scope_ms(row: dict[str, Any]) -> float:
    """[ms] what the metric measured, as time (TPOT is a rate: its growth is compared by rate)."""
    if row["metric"] == "tpot":
        grown = row["value_ms"] - row["clean_ms"]
        return float(row["excess_ms"] * row["value_ms"] / max(grown, 1e-9))
    return float(row["value_ms"])


def _cause(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    known = [r for r in rows if r["causes"]]

    def one(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        said = [r["said"]["cause"] if r["said"] else None for r in rows]
        right = sum(c in r["causes"] for c, r in zip(said, rows, strict=True))
        strict = sum(c in r["injected"] for c, r in zip(said, rows, strict=True))
        top = Counter(str(c) for c, r in zip(said, rows, strict=True) if c not in r["causes"])
        return {
            "n": len(rows),
            "accuracy": share(right, len(rows)),
            "strict": share(strict, len(rows)),
            "wrong": top.most_common(3),
        }

    by_fault = {f: one([r for r in known if r["fault"] == f]) for f in FAULTS}
    by_fault = {f: v for f, v in by_fault.items() if v["n"]}
    return {
        "macro": _macro(v["accuracy"] for v in by_fault.values()),
        "macro_strict": _macro(v["strict"] for v in by_fault.values()),
        "pooled": one(known)["accuracy"],
        "faults": by_fault,
    }


def _confusion(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for r in rows:
        table[r["phase"]][r["says"]] += 1
    return {p: dict(table[p]) for p in PHASES if p in table}


def _abstention(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for threshold in THRESHOLDS:
        kept = [
            r
            for r in rows
            if r["says"] not in ABSTAINED and (r["said"]["confidence"] or 0.0) >= threshold
        ]
        right = sum(r["says"] == r["phase"] for r in kept)
        out.append(
            {
                "threshold": threshold,
                "answered": share(len(kept), len(rows)),
                "accuracy": share(right, len(kept)),
            }
        )
    return out


def calibration(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Expected calibration error over attributed rows, and its ten bins."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(_BINS)]
    for r in rows:
        if r["says"] in ABSTAINED or r["said"]["confidence"] is None:
            continue
        confidence = float(r["said"]["confidence"])
        at = min(int(confidence * _BINS), _BINS - 1)
        bins[at].append((confidence, r["says"] == r["phase"]))
    n = sum(map(len, bins))
    error = 0.0
    table = []
    for k, held in enumerate(bins):
        if not held:
            continue
        mean = sum(c for c, _ in held) / len(held)
        right = sum(ok for _, ok in held) / len(held)
        error += abs(mean - right) * len(held) / n
        table.append({"bin": k, "n": len(held), "confidence": mean, "accuracy": right})
    return {"ece": error if n else None, "n": n, "bins": table}


def _naive(rows: Sequence[dict[str, Any]], rule: str) -> dict[str, Any]:
    by_fault = {}
    for fault in FAULTS:
        mine = [r for r in rows if r["fault"] == fault]
        if mine:
            by_fault[fault] = share(sum(r["naive"][rule] == r["phase"] for r in mine), len(mine))
    return {"macro": _macro(by_fault.values()), "faults": by_fault}


def _culprits(runs: Sequence[Run], variant: str) -> dict[str, Any]:
    records = [
        c | {"topology": r["topology"]}
        for r in runs
        for c in r["variants"][variant].get("culprits", ())
    ]
    named = [c for c in records if c["named"]]
    return {
        "victims": len(records),
        "named": len(named),
        "precision": share(sum(c["right"] for c in named), len(named)),
        **{
            t: share(
                sum(c["right"] for c in named if c["topology"] == t),
                sum(c["topology"] == t for c in named),
            )
            for t in ("agg", "pd")
        },
    }


def _clean(runs: Sequence[Run], variant: str) -> dict[str, Any]:
    verdicts = [v for r in runs for v in r["variants"][variant]["verdicts"]]
    false = [v for v in verdicts if v["class"] == "attributed"]
    loud = [
        r["seed"]
        for r in runs
        if any(
            f["is_attributed"] and f["confidence_label"] == "high"
            for f in r["variants"][variant]["findings"]
        )
    ]
    requests = sum(r["requests"] for r in runs)
    return {
        "runs": len(runs),
        "slow": len(verdicts),
        "false": len(false),
        "rate": share(len(false), len(verdicts)),
        "rate_of_requests": share(len(false), requests * len(METRICS)),
        "mixed": sum(v["class"] == "mixed" for v in verdicts),
        "runs_with_high_finding": len(loud),
        "kinds": Counter(f"{v['metric']}: {v['phase']} ({v['cause']})" for v in false).most_common(
            6
        ),
    }


def _shares(runs: Sequence[Run], variant: str) -> dict[str, Any]:
    errors, biases = [], []
    for run in runs:
        if run["added"]:
            continue
        for metric in METRICS:
            misses = run["misses"][metric]
            if misses < _MIN_MISSES:
                continue
            truth: Counter[str] = Counter(r["phase"] for r in run["rows"] if r["metric"] == metric)
            blamed: dict[str, float] = defaultdict(float)
            for f in run["variants"][variant]["findings"]:
                if f["metric"] == metric and f["is_attributed"]:
                    blamed[f["phase"]] += f["share_of_misses"] - (f["placebo_share"] or 0.0)
            for phase in PHASES:
                true, said = truth[phase] / misses, blamed[phase]
                if max(true, said) >= 0.01:
                    errors.append(abs(said - true))
                    biases.append(said - true)
    n = len(errors)
    return {
        "n": n,
        "mean_absolute_error": sum(errors) / n if n else None,
        "bias": sum(biases) / n if n else None,
        "worst": max(errors, default=None),
    }


def _two(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    read = [r for r in rows if not r["lost"]]
    known = [r for r in read if r["causes"]]
    right = sum(bool(r["said"]) and r["said"]["cause"] in r["causes"] for r in known)
    pairs = sorted({r["fault"] for r in read})
    return _accuracy(read) | {
        "cause": share(right, len(known)),
        "pairs": {p: _accuracy([r for r in read if r["fault"] == p]) for p in pairs},
    }


#: What may be said where a field is missing: anything else would be made up.
_HONEST: Final[dict[str, frozenset[str]]] = {
    "gpu_samples": frozenset(("unknown", "slow_worker")),
    "metrics": frozenset(("unknown",)),
}


def _removed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    out = {}
    for what in sorted({r["removed"] for r in rows}):
        mine = [r for r in rows if r["removed"] == what and not r["lost"]]
        if what == "engine_spans":
            ok = sum(r["says"] in (*ABSTAINED, "queue_or_prefill", r["phase"]) for r in mine)
        else:
            mine = [r for r in mine if r["says"] == r["phase"]]
            ok = sum(r["said"]["cause"] in _HONEST[what] for r in mine)
        out[what] = {"n": len(mine), "honest": share(ok, len(mine))}
    return out


def _lost(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    wrong = sum(r["says"] not in (*ABSTAINED, "queue_or_prefill", r["phase"]) for r in rows)
    return {"n": len(rows), "wrong_phase": share(wrong, len(rows))}
