"""What two sides have in common: kinds of traffic, sizes, and phases that both know.

Owns the choice of what may be compared with what. Reads arrays, makes no difference of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.analysis.compare_rules import CompareRules
from tracekit.analysis.compare_side import Ints, SideData
from tracekit.analysis.compare_split import common_cache

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Sizes that a phase's cost grows with, beside a constant. Waits grow with none of the request's.
SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    "client_wait": (),
    "network": (),
    "route": (),
    "frontend": (),
    "queue": (),
    "prefill": ("uncached", "attended"),
    "queue_or_prefill": ("uncached", "attended"),
    "kv_transfer": ("kv_size",),
    "decode": ("decode_tokens", "decode_context"),
    # per token: what the context adds to each
    "tpot": ("context",),
    "rest_ttft": ("uncached",),
    "rest_e2e": ("uncached", "decode_tokens"),
}
#: Sizes that only long prompts show: prompts below this are computed in proportion to their length.
_LONG_TOKENS: Final = 8_000

#: The recorded number behind a size, to say what is missing and whether both sides overlap.
RECORDED: Final[Mapping[str, str]] = {
    "uncached": "input_tokens",
    "attended": "input_tokens",
    "kv_size": "input_tokens",
    "decode_tokens": "output_tokens",
    "decode_context": "output_tokens",
    "context": "input_tokens",
}


@dataclass(frozen=True)
class Kinds:
    """Kinds of traffic that both sides have, by row; -1 = the other side (almost) lacks it.

    ``labels`` holds (model, route) of each, None where it is not told apart.
    """

    a: Ints
    b: Ints
    labels: tuple[tuple[str | None, str | None], ...]
    pooled: bool

    @property
    def count(self) -> int:
        return len(self.labels)


def common_kinds(
    a: SideData, b: SideData, rows_a: Mask, rows_b: Mask, by: Sequence[str], rules: CompareRules
) -> Kinds:
    """Kinds with enough rows on both sides: by model and route, else the model's other routes.

    If nothing is in common, everything is one kind (``pooled``).
    """
    made_a, made_b = np.full(a.n, -1), np.full(b.n, -1)
    labels: list[tuple[str | None, str | None]] = []
    levels = [tuple(by)]
    if len(by) == 2:
        levels.append(("model",))
    elif not by:
        levels = [()]
    for level in levels:
        keys_a, keys_b = _keys(a, level), _keys(b, level)
        for key in sorted({*np.unique(keys_a), *np.unique(keys_b)}):
            in_a = (keys_a == key) & (made_a < 0) & rows_a
            in_b = (keys_b == key) & (made_b < 0) & rows_b
            if min(int(in_a.sum()), int(in_b.sum())) < rules.min_rows:
                continue
            made_a[in_a] = made_b[in_b] = len(labels)
            named = dict(zip(level, str(key).split("\0"), strict=False))
            labels.append((named.get("model"), named.get("route")))
    pooled = not labels
    if pooled:
        made_a, made_b = np.zeros(a.n, np.int64), np.zeros(b.n, np.int64)
        labels = [(None, None)]
    return Kinds(made_a.astype(np.int64), made_b.astype(np.int64), tuple(labels), pooled)


def _keys(side: SideData, columns: Sequence[str]) -> npt.NDArray[np.str_]:
    if not columns:
        return np.full(side.n, "", dtype=np.str_)
    key = np.zeros(side.n, dtype=np.int64)
    for name in columns:
        key = key * len(side.texts[name]) + side.codes[name]
    distinct, index = np.unique(key, return_inverse=True)
    texts = []
    for code in distinct.tolist():
        parts: list[str] = []
        for name in reversed(columns):
            code, at = divmod(code, len(side.texts[name]))
            parts.append(side.texts[name][at])
        texts.append("\0".join(reversed(parts)))
    return np.asarray(texts, dtype=np.str_)[index]


@dataclass(frozen=True)
class Sizes:
    """Sizes of both sides' rows, by name; ``known`` are those that can be used on both.

    ``z_*`` are the sizes had both sides the same cache hits. ``lacking``: (side, field) that keep a
    size from being used, ``cache_known`` whether both sides say what came from a cache.
    """

    x_a: Mapping[str, Floats]
    x_b: Mapping[str, Floats]
    z_a: Mapping[str, Floats]
    z_b: Mapping[str, Floats]
    known: frozenset[str]
    lacking: tuple[tuple[str, str], ...]
    cache_known: bool
    #: share of rows whose recorded number lies within what the other side shows, by field
    support: Mapping[str, float]


def sizes_of(
    a: SideData, b: SideData, rows_a: Mask, rows_b: Mask, kinds: Kinds, rules: CompareRules
) -> Sizes:
    """The sizes of the rows taken; what a few rows lack is filled with their side's mean."""
    sides, rows = (a, b), (rows_a, rows_b)
    lacking: list[tuple[str, str]] = []
    cache_known = True
    for side, mask in zip(sides, rows, strict=True):
        cached = float(side.numbers["cached_known"][mask].mean()) if mask.any() else 0.0
        cache_known &= cached >= rules.known_share
    prompts = [s.numbers["input_tokens"] for s in sides]
    uncached = [s.numbers["uncached_tokens"] for s in sides] if cache_known else list(prompts)
    levelled = list(uncached)
    if cache_known and any(
        bool((u[m] < p[m]).any()) for u, p, m in zip(uncached, prompts, rows, strict=True)
    ):
        whole = [m & ~np.isnan(p) for m, p in zip(rows, prompts, strict=True)]
        parts = common_cache(
            [p[m] for p, m in zip(prompts, whole, strict=True)],
            [u[m] for u, m in zip(uncached, whole, strict=True)],
            [k[m] for k, m in zip((kinds.a, kinds.b), whole, strict=True)],
            kinds.count,
        )
        levelled = []
        for u, m, part in zip(uncached, whole, parts, strict=True):
            filled = u.copy()
            filled[m] = part
            levelled.append(filled)
    by_bytes = all(
        _share_known(s.numbers["kv_bytes"], m) >= rules.known_share
        for s, m in zip(sides, rows, strict=True)
    )
    made = [_sizes(s, p, u, by_bytes) for s, p, u in zip(sides, prompts, uncached, strict=True)]
    level = [_sizes(s, p, u, by_bytes) for s, p, u in zip(sides, prompts, levelled, strict=True)]
    known: set[str] = set()
    for name in made[0]:
        poor = [
            s.info.name
            for s, x, m in zip(sides, made, rows, strict=True)
            if _share_known(x[name], m) < rules.known_share
        ]
        if poor:
            lacking.extend((side, RECORDED[name]) for side in poor)
        else:
            known.add(name)
    longest = max(
        (
            float(np.quantile(u[m & ~np.isnan(u)], 0.99))
            for u, m in zip(uncached, rows, strict=True)
            if (m & ~np.isnan(u)).any()
        ),
        default=0.0,
    )
    if longest < _LONG_TOKENS:
        known.discard("attended")
    for values in (*made, *level):
        for name in known:
            values[name] = _filled(values[name])
    support = {
        field: _support(a, b, field, rows_a, rows_b, kinds)
        for field in ("input_tokens", "output_tokens")
    }
    return Sizes(
        made[0], made[1], level[0], level[1],
        frozenset(known), tuple(dict.fromkeys(lacking)), cache_known, support,
    )  # fmt: skip


def _sizes(side: SideData, prompt: Floats, uncached: Floats, by_bytes: bool) -> dict[str, Floats]:
    tokens = side.numbers["decode_tokens"]
    with np.errstate(divide="ignore", invalid="ignore"):
        context = side.numbers["decode_context"] / tokens
    return {
        "uncached": uncached,
        "attended": uncached * (prompt - uncached + uncached / 2),
        "kv_size": side.numbers["kv_bytes"] if by_bytes else prompt,
        "decode_tokens": tokens,
        "decode_context": side.numbers["decode_context"],
        # an answer of one token has no decode, and no context it was decoded in
        "context": np.where(tokens > 0, context, prompt),
    }


def _share_known(values: Floats, rows: Mask) -> float:
    return float((~np.isnan(values[rows])).mean()) if rows.any() else 0.0


def _filled(values: Floats) -> Floats:
    lost = np.isnan(values)
    if not lost.any():
        return values
    out = values.copy()
    out[lost] = float(values[~lost].mean())
    return out


def _support(
    a: SideData, b: SideData, field: str, rows_a: Mask, rows_b: Mask, kinds: Kinds
) -> float:
    """The smaller share of one side's rows that lie within the other side's range, kind by kind."""
    shares: list[float] = []
    for one, other, rows, others, kind_of, kind_of_other in (
        (a, b, rows_a, rows_b, kinds.a, kinds.b),
        (b, a, rows_b, rows_a, kinds.b, kinds.a),
    ):
        inside = total = 0
        for kind in range(kinds.count):
            values = one.numbers[field][rows & (kind_of == kind)]
            range_ = other.numbers[field][others & (kind_of_other == kind)]
            values, range_ = values[~np.isnan(values)], range_[~np.isnan(range_)]
            total += len(values)
            if len(range_):
                inside += int(((values >= range_.min()) & (values <= range_.max())).sum())
        shares.append(inside / total if total else 1.0)
    return min(shares)


def phases_known(
    a: SideData, b: SideData, rows_a: Mask, rows_b: Mask, phases: Sequence[str], rules: CompareRules
) -> tuple[tuple[str, ...], tuple[tuple[str, str, float], ...]]:
    """Phases that both sides know, and (side, phase, share known) of those that only one does."""
    both: list[str] = []
    lacking: list[tuple[str, str, float]] = []
    for phase in phases:
        shares = [_share_known(s.numbers[f"{phase}_ms"], m) for s, m in ((a, rows_a), (b, rows_b))]
        if min(shares) >= rules.known_share:
            both.append(phase)
        elif max(shares) > 1 - rules.known_share:
            lacking.extend(
                (s.info.name, phase, share)
                for s, share in zip((a, b), shares, strict=True)
                if share < rules.known_share
            )
    return tuple(both), tuple(lacking)
