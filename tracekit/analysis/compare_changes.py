"""What counts as a change: every test of a comparison, corrected for how many there are.

Owns the gates of `CompareRules` at work. Draws nothing and says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tracekit.analysis.compare_metric import REST, STATISTICS, DrawnMetric
from tracekit.analysis.compare_rules import CompareRules
from tracekit.analysis.compare_split import Drawn, Floats
from tracekit.analysis.compare_stats import holm, interval
from tracekit.analysis.comparison import Effect

#: What is tested: a metric and its statistic; a metric, its phase (``split`` = all) and a term.
Key = tuple[str, ...]
#: Key, change, low, high, p-value, whether it matters.
Tested = tuple[Key, float, float, float, float, bool]
#: Last words of the keys that say whether anything changed.
_FIRST: Final = frozenset({"mean", "completed", "goodput"})


@dataclass
class Tests:
    """Everything that is tested, and after `settle` what each came to."""

    rules: CompareRules
    freedom: int
    tested: list[Tested] = field(default_factory=list)
    effects: dict[Key, Effect] = field(default_factory=dict)
    same: dict[Key, Key] = field(default_factory=dict)

    def add(self, key: Key, drawn: Floats, *, base: float, tested: bool = True) -> None:
        """``base`` is A's value of the metric's statistic or phase: what a change is held to."""
        material = self._matters(key[0], float(drawn[0]), base)
        low, high, p = interval(drawn, level=self.rules.interval, freedom=self.freedom)
        if tested:
            self.tested.append((key, float(drawn[0]), low, high, p, material))
        else:
            self.effects[key] = Effect(float(drawn[0]), low, high, None, False, None)

    def share(self, key: Key, drawn: Floats) -> None:
        """A share of requests."""
        low, high, p = interval(drawn, level=self.rules.interval, freedom=self.freedom)
        material = abs(float(drawn[0])) >= self.rules.min_share_change
        self.tested.append((key, float(drawn[0]), low, high, p, material))

    def settle(self) -> None:
        """Correct for how many there are: first whether anything changed, then what."""
        first = [t for t in self.tested if t[0][-1] in _FIRST]
        rest = [t for t in self.tested if t[0][-1] not in _FIRST]
        changed = self._settle(first, share=0.5)
        self._settle(rest, share=1.0 if changed else 0.5)
        for key, source in self.same.items():
            self.effects[key] = self.effects[source]

    def _settle(self, tested: Sequence[Tested], *, share: float) -> bool:
        """Effects of one family with ``share`` of alpha; whether any of it is certain."""
        any_certain = False
        for t, corrected in zip(tested, holm([t[4] for t in tested]), strict=True):
            key, change, low, high, _, material = t
            p = min(1.0, corrected / share)
            apart = low > 0 or high < 0
            certain = apart and p < self.rules.alpha
            any_certain |= certain
            label = "high" if p < self.rules.high_p else "likely"
            if not certain:
                label = "unsure" if apart and material and p < self.rules.unsure_p else ""
            self.effects[key] = Effect(change, low, high, p, certain and material, label or None)
        return any_certain

    def _matters(self, metric: str, change: float, base: float) -> bool:
        rules, size = self.rules, abs(change)
        if metric == "tpot_ms":
            return size >= max(rules.min_tpot_change_ms, rules.min_change_share * abs(base))
        plainly = size >= max(rules.min_change_ms, rules.min_change_share * abs(base))
        much = size >= max(rules.small_change_ms, rules.large_change_share * abs(base))
        return plainly or much


def add_metric(tests: Tests, metric: DrawnMetric, shorter: DrawnMetric | None) -> None:
    """Everything that is asked of one metric.

    ``shorter`` is a metric already added: phases of it over the same requests are not asked twice.
    """
    rules, name = tests.rules, metric.metric
    for statistic in STATISTICS:
        if min(metric.a_n, metric.b_n) < rules.needed(statistic):
            continue
        tests.add(
            (name, statistic),
            metric.differences[statistic],
            base=metric.a_values[statistic],
            tested=metric.tails.get(statistic, np.inf) >= rules.min_tail_slices,
        )
    whole = metric.whole
    large = [c for c in metric.components if could_matter(c.drawn, name, rules)]
    separable = not any(c.apart for c in large)
    _test_split(tests, (name, "split"), whole, separable, whole.a_mean)
    asked = _phases_of(shorter, metric)
    for component in metric.components:
        if component.phase in asked and shorter is not None:
            for term in ("mix", "cache", "cost", "total"):
                key = (component.phase, term)
                tests.same[(name, *key)] = (shorter.metric, *key)
            continue
        # a phase this short on both sides cannot have a change worth telling: it is not tested.
        # The only phase of a metric is the metric.
        worth = component in large and len(metric.components) > 1
        _test_split(
            tests, (name, component.phase), component.drawn,
            worth and not component.apart, component.drawn.a_mean,
            whole=worth and bool(component.apart),
        )  # fmt: skip


def _phases_of(shorter: DrawnMetric | None, metric: DrawnMetric) -> set[str]:
    if shorter is None or len(shorter.components) < 2:
        return set()
    same = np.array_equal(shorter.rows_a, metric.rows_a)
    same &= np.array_equal(shorter.rows_b, metric.rows_b)
    return {c.phase for c in shorter.components if c.phase != REST} if same else set()


def could_matter(drawn: Drawn, metric: str, rules: CompareRules) -> bool:
    """Whether a phase takes long enough, on either side, for its change to be worth telling."""
    least = rules.min_tpot_change_ms if metric == "tpot_ms" else rules.small_change_ms
    return max(abs(drawn.a_mean), abs(drawn.b_mean)) >= least


def _test_split(
    tests: Tests, key: Key, drawn: Drawn, tested: bool, base: float, *, whole: bool = False
) -> None:
    for term in ("mix", "cache", "cost"):
        values: Floats = getattr(drawn, term)
        # a term that is nothing in every draw (one kind, no sizes, no cache) is no question
        tests.add((*key, term), values, base=base, tested=tested and bool(np.any(values)))
    tests.add((*key, "total"), drawn.total, base=base, tested=whole)
