"""Seconds or milliseconds: which unit a column of durations is in, where nothing says so.

Owns the evidence and the decision over a sample of rows; knows no file and no header. Every
reading of every undecided column is tried against what is physically plausible for an LLM
request (a first token does not take 1 ms, one stream does not yield 30,000 tokens a second) and
against the row's other columns (TTFT <= total, tokens/s = output / total, ...). A reading that
contradicts more than a tenth of the rows is out (a third, if none would be left: short tables
have bad rows too). If exactly one is left it is taken, with the reason; if not, the caller must
ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tracekit.ingest._cells import MS_PER

Array = NDArray[np.float64]

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

    An empty tuple of readings means that no unit makes sense of the column.
    """

    units: dict[str, str]
    reasons: dict[str, str]
    unclear: dict[str, tuple[str, ...]]


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
    survivors, worst = _try_all(primary, columns, known, facts)
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
        left, reason = _part(name, columns[name], known, facts)
        if len(left) > 1 and len(family) == 1 and family <= set(left):
            left = tuple(family)
            reason = f"as the file's other durations without a unit are in {left[0]}"
        if len(left) == 1:
            units[name], reasons[name] = left[0], reason
        else:
            unclear[name] = left
    return Decision(units, reasons, unclear)


_Combination = tuple[str, ...]

#: How a reading contradicts the rows: the share of them, and in what.
_Contradiction = tuple[float, str]
_NONE: Final[_Contradiction] = (0.0, "")


def _try_all(
    names: list[str],
    columns: Mapping[str, Durations],
    known: Mapping[str, Array],
    facts: Mapping[str, Array],
) -> tuple[list[_Combination], dict[_Combination, _Contradiction]]:
    """Combinations of units that contradict few rows, and the worst contradiction of each."""
    worst: dict[_Combination, _Contradiction] = {}
    for readings in (_USUAL, _USUAL + _RARE):
        for combination in product(readings, repeat=len(names)):
            if combination not in worst:
                ms = dict(known)
                for name, unit in zip(names, combination, strict=True):
                    ms[name] = columns[name].in_ms(unit)
                worst[combination] = max(
                    _contradictions(ms, facts, frozenset(names)), default=_NONE
                )
        for tolerated in _TOLERATED:
            if survivors := [c for c, (share, _) in worst.items() if share <= tolerated]:
                return survivors, worst
    return [], worst


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


def _contradictions(
    ms: Mapping[str, Array], facts: Mapping[str, Array], names: frozenset[str]
) -> Iterator[_Contradiction]:
    """What is implausible in these milliseconds; only what involves one of ``names``."""
    for name in names:
        low, high = _RANGES_MS[name]
        text = f"{_short(name)} would lie outside {_duration(low)} to {_duration(high)}"
        yield _share((ms[name] >= low) & (ms[name] <= high), ms[name]), text
    for first, later in (("ttft_ms", "e2e_ms"), ("ttft_ms", "ttfa_ms"), ("ttfa_ms", "e2e_ms")):
        if not names.isdisjoint((first, later)) and first in ms and later in ms:
            text = f"{_short(first)} would exceed {_short(later)}"
            yield _share(_within(ms[first], ms[later]), ms[first], ms[later]), text

    output, e2e = facts.get("output_tokens"), ms.get("e2e_ms")
    ttft, tpot = ms.get("ttft_ms"), ms.get("tpot_ms")
    if e2e is not None and "e2e_ms" in names:
        if (span := facts.get("span_ms")) is not None:
            yield _share(_near(e2e, span), e2e, span), "the total would not be end less start"
        if output is not None:
            yield _output_rate(output, e2e)
    if e2e is not None and output is not None and not names.isdisjoint(("e2e_ms", "ttft_ms")):
        yield _given_rate(e2e, ttft, output, facts)
    if tpot is not None and output is not None and e2e is not None:
        if not names.isdisjoint(("tpot_ms", "e2e_ms")):
            after = e2e if ttft is None else e2e - np.nan_to_num(ttft)
            implied = after / np.where(output >= 8, output - 1, np.nan)
            fits = _near(tpot, implied) | _near(tpot, e2e / output)
            text = "the time per output token would not be total / output"
            yield _share(fits, tpot, implied), text
    if ttft is not None and "ttft_ms" in names:
        yield _prompt_rate(ttft, facts)


def _output_rate(output: Array, duration_ms: Array) -> _Contradiction:
    rate = np.where(output >= 8, output, np.nan) / (duration_ms / 1e3)
    low, high = _OUTPUT_RATE
    share = _share((rate >= low) & (rate <= high), rate)
    return share, f"requests would generate {_typical(rate)} tokens/s" if share else ""


def _prompt_rate(duration_ms: Array, facts: Mapping[str, Array]) -> _Contradiction:
    prompt = facts.get("input_tokens")
    if prompt is None:
        return _NONE
    fresh = prompt - np.nan_to_num(facts.get("cached_tokens", np.zeros_like(prompt)))
    rate = np.where(fresh >= 500, fresh, np.nan) / (duration_ms / 1e3)
    share = _share(rate <= _MAX_PROMPT_RATE, rate)
    return share, f"prompts would be computed at {_typical(rate)} tokens/s" if share else ""


def _given_rate(
    e2e: Array, ttft: Array | None, output: Array, facts: Mapping[str, Array]
) -> _Contradiction:
    """tokens/s may be over the total, over the time after the first token, or with the prompt."""
    given = facts.get("tokens_per_s")
    if given is None:
        return _NONE
    given = np.where(given > 0, given, np.nan)
    implied = output / given * 1e3
    fits = _near(e2e, implied)
    if ttft is not None:
        fits |= _near(e2e - ttft, implied)
    if (prompt := facts.get("input_tokens")) is not None:
        fits |= _near(e2e, (output + prompt) / given * 1e3)
    return _share(fits, e2e, implied), "tokens/s would not be output tokens / total"


def _part(
    name: str, column: Durations, known: Mapping[str, Array], facts: Mapping[str, Array]
) -> tuple[tuple[str, ...], str]:
    """Units in which a phase fits into its request, and why the others do not."""
    worst = {
        unit: max(_part_contradictions(name, column.in_ms(unit), known, facts), default=_NONE)
        for unit in _USUAL
    }
    left = tuple(unit for unit in _USUAL if worst[unit][0] <= _TOLERATED[0])
    for unit in _USUAL:
        share, text = worst[unit]
        if unit not in left and text:
            return left, f"in {unit} {text} ({share:.0%} of the rows)"
    return left, "no other unit fits"


def _part_contradictions(
    name: str, ms: Array, known: Mapping[str, Array], facts: Mapping[str, Array]
) -> Iterator[_Contradiction]:
    short = _short(name)
    e2e, ttft = known.get("e2e_ms"), known.get("ttft_ms")
    longest = _RANGES_MS["e2e_ms"][1]
    yield _share(ms <= longest, ms), f"{short} would be hours long"
    if e2e is not None:
        yield _share(_within(ms, e2e), ms, e2e), f"{short} would exceed the total"
    if name in ("queue_ms", "prefill_ms") and ttft is not None:
        yield _share(_within(ms, ttft), ms, ttft), f"{short} would exceed TTFT"
    if name == "prefill_ms":
        yield _prompt_rate(ms, facts)
    if name == "decode_ms" and (output := facts.get("output_tokens")) is not None:
        yield _output_rate(output, ms)


def _share(holds: NDArray[np.bool_], *needed: Array) -> float:
    """Share of the rows that have all ``needed`` and do not hold; 0 if no row has."""
    there = np.ones(holds.shape, dtype=bool)
    for values in needed:
        there &= ~np.isnan(values)
    rows = int(there.sum())
    return int((there & ~holds).sum()) / rows if rows else 0.0


def _within(part: Array, whole: Array) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] = part <= whole * 1.02 + 1.0
    return result


def _near(one: Array, other: Array) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] = (one <= other * _FACTOR + 1.0) & (other <= one * _FACTOR + 1.0)
    return result


def _typical(rate: Array) -> str:
    median = float(np.nanmedian(rate))
    return f"{float(f'{median:.2g}'):,.0f}" if median >= 10 else f"{median:.2g}"


def _duration(milliseconds: float) -> str:
    if milliseconds < 1e3:
        return f"{milliseconds:g} ms"
    return f"{milliseconds / 6e4:g} min"


def _short(name: str) -> str:
    return {"ttft_ms": "TTFT", "e2e_ms": "the total"}.get(name, name.removesuffix("_ms"))
