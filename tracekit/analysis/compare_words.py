"""A comparison in one sentence.

Owns every phrase of the conclusion and which verdict it is. Makes no number. "No change" is said
only where a change that matters would have shown; otherwise the answer is what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracekit.analysis.compare_rules import CompareRules
from tracekit.analysis.comparison import (
    FASTER,
    FEWER_COMPLETED,
    MIXED,
    MORE_COMPLETED,
    NO_CHANGE,
    NOT_ENOUGH,
    OFFSET,
    SLOWER,
    Comparison,
    Effect,
    Metric,
    PhaseSplit,
    Statistic,
    Stratum,
)
from tracekit.analysis.wording import METRIC_WORDS, PHASE_WORDS, format_ms, format_share
from tracekit.words import plural

#: Which statistic speaks for a metric, if it changed.
_SPEAKERS: Final = ("p95", "mean", "p50", "p99")
#: Phases named in one sentence, kinds of traffic named one by one.
_NAMED: Final = 3
_REST: Final = "time outside the phases that both sides know"


def signed_ms(value: float) -> str:
    """``+420 ms``, ``-1.2 s``."""
    size = format_ms(abs(value))
    return "0 ms" if size == "0.0 ms" else f"{'-' if value < 0 else '+'}{size}"


def effect_ms(effect: Effect) -> str:
    """``+420 ms (95 % +310 ms to +450 ms)``."""
    return f"{signed_ms(effect.change)} (95 % {signed_ms(effect.low)} to {signed_ms(effect.high)})"


def metric_word(metric: str) -> str:
    """``ttft_ms`` as it reads in a sentence."""
    return "E2E" if metric == "e2e_ms" else METRIC_WORDS[metric.removesuffix("_ms")]


def phase_word(phase: str) -> str:
    """A phase, or the rest of a metric, as it reads in a sentence."""
    return PHASE_WORDS.get(phase, _REST)


def conclude(result: Comparison, rules: CompareRules) -> tuple[str, str]:
    """(verdict, sentence)."""
    few = [
        (side.name, side.text, side.requests)
        for side in (result.a, result.b)
        if side.requests.completed < rules.min_rows
    ]
    if few:
        lines = [
            f"{n} ({t}) has {c.completed} completed of {plural(c.total, 'request')}"
            for n, t, c in few
        ]
        return NOT_ENOUGH, (
            f"Not enough evidence: {' and '.join(lines)}; {rules.min_rows} are needed on each "
            "side: widen the window or collect for longer."
        )
    if all(m.not_compared for m in result.metrics):
        reasons = dict.fromkeys(
            f"{metric_word(m.metric)}: {m.not_compared}" for m in result.metrics
        )
        return NOT_ENOUGH, f"Not enough evidence: {'; '.join(reasons)}."
    verdict, latency = _latency(result, rules)
    ended = result.completed.effect
    if ended is None or not ended.is_change:
        return verdict, f"{latency}."
    share = f"{_percent(result.completed.a_share)} to {_percent(result.completed.b_share)}"
    points = f"{ended.change * 100:+.1f} points"
    sure = f"95 % {ended.low * 100:+.1f} to {ended.high * 100:+.1f}"
    if ended.change < 0:
        return FEWER_COMPLETED, (
            f"B completes fewer of its requests: {share} ({points}, {sure}), so its latencies, "
            f"which only completed requests have, flatter it{_floors(result, 'b')}. Of the "
            f"completed: {_lower(latency)}."
        )
    kept = verdict if verdict in (SLOWER, FASTER, MIXED) else MORE_COMPLETED
    return kept, (
        f"{latency}; B also completes more of its requests: {share} ({points}, {sure}), so A's "
        f"latencies, which only completed requests have, flatter A{_floors(result, 'a')}."
    )


def _lower(text: str) -> str:
    return text[0].lower() + text[1:] if text.startswith(("No ", "Not ")) else text


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"


def _floors(result: Comparison, side: str) -> str:
    """What the killed requests alone make certain, where it is more than the completed say."""
    for metric in result.metrics:
        for statistic in metric.statistics:
            seen = statistic.a_ms if side == "a" else statistic.b_ms
            floor = statistic.a_at_least_ms if side == "a" else statistic.b_at_least_ms
            wanted = statistic.statistic == "p95"
            if wanted and seen is not None and floor is not None and floor > 1.1 * seen:
                return (
                    f" ({metric_word(metric.metric)} p95 is at least {format_ms(floor)} with the "
                    f"killed ones in, {format_ms(seen)} without)"
                )
    return ""


def _latency(result: Comparison, rules: CompareRules) -> tuple[str, str]:
    changed = [(m, s) for m in result.metrics if (s := speaker(m)) is not None]
    if not changed:
        return _unchanged(result, rules)
    # the metric that moved most in proportion is the headline
    changed.sort(key=lambda pair: -abs(_relative(pair[1])))
    directions = {
        s.effect.change > 0
        for m, _ in changed
        for s in m.statistics
        if s.effect is not None and s.effect.is_change
    }
    verdict = MIXED if len(directions) > 1 else SLOWER if True in directions else FASTER
    word = {MIXED: "differs from", SLOWER: "is slower than", FASTER: "is faster than"}[verdict]
    metric, statistic = changed[0]
    parts = [
        f"B ({result.b.text}) {word} A ({result.a.text}): {_headline(metric, statistic)}",
        _drivers(result, metric),
    ]
    others = [
        f"{metric_word(m.metric)} {s.statistic} {signed_ms(s.effect.change)}"
        for m, s in changed[1:]
        if s.effect is not None
    ]
    if others:
        parts.append(f"also {', '.join(others)}")
    if result.simpson:
        parts.append(result.simpson)
    return verdict, "; ".join(p for p in parts if p)


def speaker(metric: Metric) -> Statistic | None:
    """The statistic that speaks for a metric; None if none changed."""
    changed = {
        s.statistic: s for s in metric.statistics if s.effect is not None and s.effect.is_change
    }
    return next((changed[name] for name in _SPEAKERS if name in changed), None)


def _relative(statistic: Statistic) -> float:
    change = statistic.effect.change if statistic.effect else 0.0
    return change / max(statistic.a_ms or 0.0, 1e-9)


def _headline(metric: Metric, statistic: Statistic) -> str:
    assert statistic.effect is not None
    out = (
        f"{metric_word(metric.metric)} {statistic.statistic} {effect_ms(statistic.effect)}, from "
        f"{_value(statistic.a_ms)} to {_value(statistic.b_ms)}, n = {metric.a_n:,} and "
        f"{metric.b_n:,}"
    )
    mean = metric.split.total if metric.split else None
    if statistic.statistic != "mean" and mean is not None:
        out += f"; mean {effect_ms(mean)}"
    return out


def _value(ms: float | None) -> str:
    return "-" if ms is None else format_ms(ms)


def _drivers(result: Comparison, metric: Metric) -> str:
    """Of the change of the mean: the phases at equal mix, the cache, the traffic."""
    split = metric.split
    assert split is not None
    parts = [
        f"{phase_word(p.phase)} at equal mix {effect_ms(p.split.cost)}{_where(result, metric, p)}"
        for p in sorted(metric.phases, key=lambda p: -abs(p.split.cost.change))
        if p.split.cost.is_change
    ]
    parts += [
        f"{phase_word(p.phase)} {effect_ms(p.split.total)} by mix or cost"
        for p in sorted(metric.phases, key=lambda p: -abs(p.split.total.change))
        if p.split.apart and p.split.total.is_change and len(metric.phases) > 1
    ]
    if split.cost.is_change and not parts:
        parts.append(f"cost at equal mix {effect_ms(split.cost)}, no single phase certain")
    elif len(parts) > _NAMED:
        parts = [*parts[:_NAMED], f"and {len(parts) - _NAMED} more"]
    elif not parts and not split.apart and not split.cache.is_change and not split.mix.is_change:
        most = max(metric.phases, key=lambda p: abs(p.split.cost.change))
        parts.append(
            f"its largest part at equal mix is {phase_word(most.phase)}, "
            f"{effect_ms(most.split.cost)}, not certain"
        )
    if split.cache.is_change:
        parts.append(f"prefix-cache hits {effect_ms(split.cache)}")
    if split.mix.is_change:
        parts.append(f"traffic mix {effect_ms(split.mix)}{_kind_of_mix(metric)}")
    elif split.mix.p_value is not None:
        parts.append(f"traffic mix {signed_ms(split.mix.change)}, not certain")
    elif split.apart:
        parts.append(
            f"what is traffic mix and what is cost cannot be told apart ({', '.join(split.apart)})"
        )
    return "; ".join(parts)


def _where(result: Comparison, metric: Metric, phase: PhaseSplit) -> str:
    named = [
        w for w in result.workers if w.named and (w.metric, w.phase) == (metric.metric, phase.phase)
    ]
    if not named:
        return ""
    workers = ", ".join(f"{w.worker} ({signed_ms(w.change_ms)})" for w in named[:_NAMED])
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f" on {'worker' if len(named) == 1 else 'workers'} {workers}{more} alone"


def _kind_of_mix(metric: Metric) -> str:
    split = metric.split
    assert split is not None
    terms = {
        "other shares of models and routes": split.models_routes_ms,
        "other request sizes": split.shapes_ms,
        "traffic that one side lacks": split.one_sided_ms,
    }
    word, most = max(terms.items(), key=lambda t: abs(t[1]))
    return f" from {word}" if abs(most) >= abs(split.mix.change) / 2 else ""


def _unchanged(result: Comparison, rules: CompareRules) -> tuple[str, str]:
    compared = [m for m in result.metrics if m.split is not None]
    hidden = [m for m in compared if m.split is not None and _moved(m)]
    looks = _looks(result)
    if hidden:
        metric = max(hidden, key=lambda m: abs(m.split.cost.change) if m.split else 0.0)
        assert metric.split is not None
        if looks:
            return NOT_ENOUGH, (
                f"{looks}; certain is, of the {metric_word(metric.metric)}: "
                f"{_drivers(result, metric)}"
            )
        word, sides = metric_word(metric.metric), f"A ({result.a.text}) to B ({result.b.text})"
        net = f"No net change from {sides} in {word}"
        if _blind(metric) > rules.blind_share:
            net = f"Whether {word} changed from {sides} cannot be told"
        text = (
            f"{net} (mean {effect_ms(metric.split.total)}, n = {metric.a_n:,} and "
            f"{metric.b_n:,}), but its parts moved: {_drivers(result, metric)}"
        )
        return OFFSET, f"{text}; {result.simpson}" if result.simpson else text
    if looks:
        return NOT_ENOUGH, looks
    return _no_change(result, compared, rules)


def _no_change(
    result: Comparison, compared: Sequence[Metric], rules: CompareRules
) -> tuple[str, str]:
    """Of which metrics the means say "no change", and of which they cannot tell.

    The requests took as long as before only if TTFT and E2E say so: TPOT alone is no answer.
    """
    blind = {m.metric: share for m in compared if (share := _blind(m)) > rules.blind_share}
    told = [m for m in compared if m.metric not in blind]
    sides = f"from A ({result.a.text}) to B ({result.b.text})"
    n = f"n = {result.a.requests.completed:,} and {result.b.requests.completed:,}"
    unseen = _listed([f"{metric_word(m)} by {format_share(share)}" for m, share in blind.items()])
    if not told or any(m != "tpot_ms" for m in blind):
        words = _listed([metric_word(m) for m in blind])
        rest = f"; no change: {', '.join(map(_mean, told))}" if told else ""
        return NOT_ENOUGH, (
            f"Not enough evidence: cannot tell whether {words} changed {sides}: a change of "
            f"{unseen} would not show with {n} "
            f"({', '.join(_mean(m) for m in compared if m.metric in blind)}): collect more{rest}"
        )
    every = len(told) == len(result.metrics)
    only = "" if every else f" in {_listed([metric_word(m.metric) for m in told])}"
    text = f"No change{only} {sides}: {', '.join(map(_mean, told))}; {n}"
    return NO_CHANGE, f"{text}; a change of {unseen} would not show" if blind else text


def _listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _mean(metric: Metric) -> str:
    """``TTFT mean +5 ms (95 % -3 ms to +12 ms)``."""
    assert metric.split is not None
    return f"{metric_word(metric.metric)} mean {effect_ms(metric.split.total)}"


def _looks(result: Comparison) -> str | None:
    """What looks like a change and is not quite certain; None if nothing does."""
    seen = [
        (metric, s.statistic, s.effect)
        for metric in result.metrics
        for name in _SPEAKERS
        for s in metric.statistics
        if s.statistic == name and s.effect and s.effect.confidence_label == "unsure"
    ]
    if not seen:
        return None
    metric, statistic, effect = min(seen, key=lambda x: x[2].p_value or 0.0)
    way = "slower" if effect.change > 0 else "faster"
    return (
        f"Not enough evidence: B ({result.b.text}) looks {way} than A ({result.a.text}) in "
        f"{metric_word(metric.metric)} ({statistic} {effect_ms(effect)}), which is not certain "
        f"with n = {metric.a_n:,} and {metric.b_n:,} in {result.a.slices} and {result.b.slices} "
        "slices of time: collect for longer"
    )


def _moved(metric: Metric) -> bool:
    split = metric.split
    effects = [e for p in metric.phases for e in (p.split.mix, p.split.cache, p.split.cost)]
    if split is not None:
        effects += [split.mix, split.cache, split.cost]
    return any(e.is_change for e in effects)


def _blind(metric: Metric) -> float:
    """The largest change of the mean that would not have shown, over A's mean."""
    mean = next(s for s in metric.statistics if s.statistic == "mean")
    if mean.effect is None or not mean.a_ms:
        return 0.0
    return mean.effect.unseen / mean.a_ms


def simpson(result: Comparison) -> str | None:
    """Where every kind of traffic moved one way and the whole another, in words; else None."""
    for metric in result.metrics:
        kinds = [s for s in result.strata if metric.metric in s.means]
        split = metric.split
        if split is None or len(kinds) < 2 or not split.cost.is_change or not split.mix.is_change:
            continue
        moves = [s.means[metric.metric].b_ms - s.means[metric.metric].a_ms for s in kinds]
        down = all(m < 0 for m in moves)
        if not (down or all(m > 0 for m in moves)) or (split.cost.change < 0) != down:
            continue
        if (split.total.change < 0) == down and split.total.is_change:
            continue
        way = "faster" if down else "slower"
        whole = "rose" if split.total.change > 0 else "fell"
        moved = f"yet the mean {whole}" if split.total.is_change else "yet the mean did not change"
        return (
            f"every {_kind_word(kinds)} got {way} in {metric_word(metric.metric)} "
            f"({_list(kinds, metric.metric)}), {moved}: {_shift(kinds, metric.metric, down)}"
        )
    return None


def _kind_word(kinds: Sequence[Stratum]) -> str:
    if len({s.route for s in kinds}) == 1:
        return "model"
    return "route" if len({s.model for s in kinds}) == 1 else "model and route"


def kind_name(stratum: Stratum) -> str:
    """``model, route`` as far as they are known."""
    return ", ".join(p for p in (stratum.model, stratum.route) if p) or "(unnamed)"


def _short(stratum: Stratum, kinds: Sequence[Stratum]) -> str:
    if len({s.route for s in kinds}) == 1 and stratum.model:
        return stratum.model
    if len({s.model for s in kinds}) == 1 and stratum.route:
        return stratum.route
    return kind_name(stratum)


def _list(kinds: Sequence[Stratum], metric: str) -> str:
    shown = [
        f"{_short(s, kinds)} {signed_ms(s.means[metric].b_ms - s.means[metric].a_ms)}"
        for s in kinds[:_NAMED]
    ]
    more = f" and {len(kinds) - _NAMED} more" if len(kinds) > _NAMED else ""
    return ", ".join(shown) + more


def _shift(kinds: Sequence[Stratum], metric: str, down: bool) -> str:
    top = max(kinds, key=lambda s: abs(s.b_share - s.a_share) * s.means[metric].a_ms)
    goes = "more" if top.b_share > top.a_share else "fewer"
    return (
        f"{goes} requests go to {_short(top, kinds)} "
        f"({format_share(top.a_share)} of them on A, {format_share(top.b_share)} on B)"
    )
