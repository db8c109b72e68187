"""Seconds or milliseconds: which unit a column of durations is in, where nothing says so.

Owns the evidence and the decision over a sample of rows; knows no file and no header. Every
reading of every undecided column is tried against what is physically plausible for an LLM
request (a first token does not take 1 ms, one stream does not yield 30,000 tokens a second) and
against the row's other columns (TTFT <= total, tokens/s = output / total, ...). Rows that fit no
reading are bad rows and no evidence, as long as most rows are good. A reading that contradicts
more than a tenth of the good rows is out (a third, if none would be left). If exactly one is
left it is taken, with the reason; if not, the caller must ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from tracekit.ingest._cells import MS_PER

Array = NDArray[np.float64]
Rows = NDArray[np.bool_]

#: Durations that evidence can decide, most telling first.
PRIMARY: Final = ("e2e_ms", "ttft_ms", "ttfa_ms", "tpot_ms")

#: Readings that are tried first, and those tried only if none of the first fits.
_USUAL: Final = ("s", "ms")
_RARE: Final = ("us", "ns")

#: Share of rows a reading may contradict, since files have bad rows; the second only if no
#: reading passes the first.
_TOLERATED: Final = (0.1, 0.34)

#: [ms] what each duration of one request plausibly is.
_RANGES_MS: Final[dict[str, tuple[float, float]]] = {
    "e2e_ms": (5.0, 3.6e6),
    "ttft_ms": (3.0, 6e5),
    "ttfa_ms": (3.0, 3.6e6),
    "tpot_ms": (0.05, 1e4),
}
#: [tokens/s] of one request: output over total time; prompt over time to first token.
_OUTPUT_RATE: Final = (0.2, 2500.0)
_MAX_PROMPT_RATE: Final = 500_000.0
#: Two ways to know the same duration agree within this factor.
_FACTOR: Final = 3.0


@dataclass(frozen=True)
class Durations:
    """One column over the sample: ``raw`` without unit, ``fixed_ms`` where the cell said one.

    ``unit`` is given where header or caller said it. Missing cells are NaN in both.
    """

    raw: Array
    fixed_ms: Array
    unit: str | None

    @property
    def open(self) -> bool:
        """Whether there is anything to decide: a number other than zero without a unit."""
        return self.unit is None and bool(np.any(self.raw > 0))

    def in_ms(self, unit: str) -> Array:
        """[ms] all cells, those without a unit read in ``unit``; zero means missing here."""
        values = np.where(np.isnan(self.fixed_ms), self.raw * MS_PER[unit], self.fixed_ms)
        return np.where(values > 0, values, np.nan)


@dataclass(frozen=True)
class Decision:
    """``units``: decided columns; ``reasons``: why; ``unclear``: column -> readings left.

    An empty tuple of readings means that no unit makes sense of the column. ``good``: the rows
    that were evidence for ``unclear`` ones.
    """

    units: dict[str, str]
    reasons: dict[str, str]
    unclear: dict[str, tuple[str, ...]]
    good: dict[str, Rows]


def decide(columns: Mapping[str, Durations], facts: Mapping[str, Array]) -> Decision:
    """Decide the units of all open ``columns`` (ours -> sample).

    ``facts`` may hold ``input_tokens``, ``cached_tokens``, ``output_tokens``, ``tokens_per_s``
    and ``span_ms`` (end less start), NaN where missing.
    """
    units: dict[str, str] = {}
    reasons: dict[str, str] = {}
    unclear: dict[str, tuple[str, ...]] = {}
    known = {name: c.in_ms(c.unit or "ms") for name, c in columns.items() if not c.open}

    primary = [name for name in PRIMARY if name in columns and columns[name].open]
    survivors, worst, good = _try_all(primary, columns, known, facts)
    evidence = dict.fromkeys(primary, good)
    for i, name in enumerate(primary):
        left = tuple(dict.fromkeys(combination[i] for combination in survivors))
        if len(left) == 1:
            units[name] = left[0]
        else:
            unclear[name] = left
    for i, name in enumerate(primary):
        if name in units:
            reasons[name] = _reason(i, primary, survivors, worst)
            known[name] = columns[name].in_ms(units[name])

    family = {units[name] for name in primary if name in units}
    for name in columns:
        if name in _RANGES_MS or not columns[name].open:
            continue
        left, reason, evidence[name] = _part(name, columns[name], known, facts)
        if len(left) > 1 and len(family) == 1 and family <= set(left):
            left = tuple(family)
            reason = f"as the file's other durations without a unit are in {left[0]}"
        if len(left) == 1:
            units[name], reasons[name] = left[0], reason
        else:
            unclear[name] = left
    return Decision(units, reasons, unclear, {name: evidence[name] for name in unclear})


_Combination = tuple[str, ...]


@dataclass(frozen=True)
class _Check:
    """One thing that must hold: the rows that can show it, those that do not, and in words."""

    there: Rows
    broken: Rows
    text: str


#: How a reading contradicts the rows: the share of them, and in what.
_Contradiction = tuple[float, str]
_NONE: Final[_Contradiction] = (0.0, "")

_Reading = TypeVar("_Reading", str, _Combination)


def _judged(
    checks: Mapping[_Reading, Sequence[_Check]],
) -> tuple[dict[_Reading, _Contradiction], Rows]:
    """The worst contradiction of each reading over the good rows, and those rows.

    A row is good if it fits at least one reading. No reading is judged if most rows are bad.
    """
    broken = [_any_of([c.broken for c in found]) for found in checks.values()]
    bad = np.logical_and.reduce(broken)
    voters = _any_of([c.there for found in checks.values() for c in found])
    if 2 * int(np.sum(bad)) > int(np.sum(voters)):
        return {}, ~bad
    worst = {
        reading: max(((_share(c, ~bad), c.text) for c in found), default=_NONE)
        for reading, found in checks.items()
    }
    return worst, ~bad


def _any_of(rows: Sequence[Rows]) -> Rows | np.bool_:
    result: Rows | np.bool_ = np.logical_or.reduce(rows) if rows else np.bool_(False)
    return result


def _share(check: _Check, good: Rows) -> float:
    """Share of the good rows that can show it and do not; 0 if no row can."""
    rows = int((check.there & good).sum())
    return int((check.broken & good).sum()) / rows if rows else 0.0


def _try_all(
    names: list[str],
    columns: Mapping[str, Durations],
    known: Mapping[str, Array],
    facts: Mapping[str, Array],
) -> tuple[list[_Combination], dict[_Combination, _Contradiction], Rows]:
    """Combinations of units that contradict few good rows, the worst contradiction of each, and
    the good rows."""
    checks: dict[_Combination, list[_Check]] = {}
    for readings in (_USUAL, _USUAL + _RARE):
        for combination in product(readings, repeat=len(names)):
            if combination not in checks:
                ms = dict(known)
                for name, unit in zip(names, combination, strict=True):
                    ms[name] = columns[name].in_ms(unit)
                checks[combination] = list(_checks(ms, facts, frozenset(names)))
        worst, good = _judged(checks)
        for tolerated in _TOLERATED:
            if survivors := [c for c, (share, _) in worst.items() if share <= tolerated]:
                return survivors, worst, good
    return [], worst, good


def _reason(
    i: int,
    names: list[str],
    survivors: list[_Combination],
    worst: Mapping[_Combination, _Contradiction],
) -> str:
    """Why column ``i`` is not in the other usual unit."""
    chosen = survivors[0]
    for other in (*_USUAL, *_RARE):
        share, text = worst.get((*chosen[:i], other, *chosen[i + 1 :]), _NONE)
        if other != chosen[i] and text:
            return f"in {other} {text} ({share:.0%} of the rows)"
    return "no other unit fits"


def _checks(
    ms: Mapping[str, Array], facts: Mapping[str, Array], names: frozenset[str]
) -> Iterator[_Check]:
    """What is plausible for these milliseconds; only what involves one of ``names``."""
    for name in names:
        low, high = _RANGES_MS[name]
        text = f"{_short(name)} would lie outside {_duration(low)} to {_duration(high)}"
        yield _check((ms[name] >= low) & (ms[name] <= high), ms[name], text=text)
    for first, later in (("ttft_ms", "e2e_ms"), ("ttft_ms", "ttfa_ms"), ("ttfa_ms", "e2e_ms")):
        if not names.isdisjoint((first, later)) and first in ms and later in ms:
            text = f"{_short(first)} would exceed {_short(later)}"
            yield _check(_within(ms[first], ms[later]), ms[first], ms[later], text=text)

    output, e2e = facts.get("output_tokens"), ms.get("e2e_ms")
    ttft, tpot = ms.get("ttft_ms"), ms.get("tpot_ms")
    if e2e is not None and "e2e_ms" in names:
        if (span := facts.get("span_ms")) is not None:
            text = "the total would not be end less start"
            yield _check(_near(e2e, span), e2e, span, text=text)
        if output is not None:
            yield _output_rate(output, e2e)
    if e2e is not None and output is not None and not names.isdisjoint(("e2e_ms", "ttft_ms")):
        yield from _given_rate(e2e, ttft, output, facts)
    if tpot is not None and output is not None and e2e is not None:
        if not names.isdisjoint(("tpot_ms", "e2e_ms")):
            after = e2e if ttft is None else e2e - np.nan_to_num(ttft)
            implied = after / np.where(output >= 8, output - 1, np.nan)
            fits = _near(tpot, implied) | _near(tpot, e2e / output)
            text = "the time per output token would not be total / output"
            yield _check(fits, tpot, implied, text=text)
    if ttft is not None and "ttft_ms" in names:
        yield from _prompt_rate(ttft, facts)


def _output_rate(output: Array, duration_ms: Array) -> _Check:
    rate = np.where(output >= 8, output, np.nan) / (duration_ms / 1e3)
    low, high = _OUTPUT_RATE
    text = f"requests would generate {_typical(rate)} tokens/s"
    return _check((rate >= low) & (rate <= high), rate, text=text)


def _prompt_rate(duration_ms: Array, facts: Mapping[str, Array]) -> Iterator[_Check]:
    prompt = facts.get("input_tokens")
    if prompt is None:
        return
    fresh = prompt - np.nan_to_num(facts.get("cached_tokens", np.zeros_like(prompt)))
    rate = np.where(fresh >= 500, fresh, np.nan) / (duration_ms / 1e3)
    text = f"prompts would be computed at {_typical(rate)} tokens/s"
    yield _check(rate <= _MAX_PROMPT_RATE, rate, text=text)


def _given_rate(
    e2e: Array, ttft: Array | None, output: Array, facts: Mapping[str, Array]
) -> Iterator[_Check]:
    """tokens/s may be over the total, over the time after the first token, or with the prompt."""
    given = facts.get("tokens_per_s")
    if given is None:
        return
    given = np.where(given > 0, given, np.nan)
    implied = output / given * 1e3
    fits = _near(e2e, implied)
    if ttft is not None:
        fits |= _near(e2e - ttft, implied)
    if (prompt := facts.get("input_tokens")) is not None:
        fits |= _near(e2e, (output + prompt) / given * 1e3)
    yield _check(fits, e2e, implied, text="tokens/s would not be output tokens / total")


def _part(
    name: str, column: Durations, known: Mapping[str, Array], facts: Mapping[str, Array]
) -> tuple[tuple[str, ...], str, Rows]:
    """Units in which a phase fits into its request, why the others do not, and the good rows."""
    worst, good = _judged(
        {unit: list(_part_checks(name, column.in_ms(unit), known, facts)) for unit in _USUAL}
    )
    left = tuple(unit for unit, (share, _) in worst.items() if share <= _TOLERATED[0])
    for unit, (share, text) in worst.items():
        if unit not in left and text:
            return left, f"in {unit} {text} ({share:.0%} of the rows)", good
    return left, "no other unit fits", good


def _part_checks(
    name: str, ms: Array, known: Mapping[str, Array], facts: Mapping[str, Array]
) -> Iterator[_Check]:
    short = _short(name)
    e2e, ttft = known.get("e2e_ms"), known.get("ttft_ms")
    longest = _RANGES_MS["e2e_ms"][1]
    yield _check(ms <= longest, ms, text=f"{short} would be hours long")
    if e2e is not None:
        yield _check(_within(ms, e2e), ms, e2e, text=f"{short} would exceed the total")
    if name in ("queue_ms", "prefill_ms") and ttft is not None:
        yield _check(_within(ms, ttft), ms, ttft, text=f"{short} would exceed TTFT")
    if name == "prefill_ms":
        yield from _prompt_rate(ms, facts)
    if name == "decode_ms" and (output := facts.get("output_tokens")) is not None:
        yield _output_rate(output, ms)


def _check(holds: Rows, *needed: Array, text: str) -> _Check:
    """What must hold in the rows that have all ``needed``."""
    there = np.ones(holds.shape, dtype=bool)
    for values in needed:
        there &= ~np.isnan(values)
    return _Check(there, there & ~holds, text)


def _within(part: Array, whole: Array) -> Rows:
    result: Rows = part <= whole * 1.02 + 1.0
    return result


def _near(one: Array, other: Array) -> Rows:
    result: Rows = (one <= other * _FACTOR + 1.0) & (other <= one * _FACTOR + 1.0)
    return result


def _typical(rate: Array) -> str:
    known = rate[~np.isnan(rate)]
    median = float(np.median(known)) if known.size else 0.0
    return f"{float(f'{median:.2g}'):,.0f}" if median >= 10 else f"{median:.2g}"


def _duration(milliseconds: float) -> str:
    if milliseconds < 1e3:
        return f"{milliseconds:g} ms"
    return f"{milliseconds / 6e4:g} min"


def _short(name: str) -> str:
    return {"ttft_ms": "TTFT", "e2e_ms": "the total"}.get(name, name.removesuffix("_ms"))
