"""How prompts repeat each other's beginnings, from the hashes of their blocks.

Owns the walk over the requests in order of time, what of each prompt could come from a cache, and
what that says of the reported hits: too few for what repeats (blocks too large, another worker,
evictions), or more than can be. Reads no prompt text; hashes come with request logs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import duckdb
import numpy as np

from tracekit.analysis._duck import defined, one
from tracekit.analysis.diagnosis import BlockShare, PrefixReuse
from tracekit.analysis.settled import LOG_LEG_ID

_READS: Final = ("request_log", "legs", "window_requests")

#: Requests that tell how prompts repeat: the first of the window, so that none between is unseen.
_REUSE_MAX: Final = 50_000
_ROWS: Final = 30
#: Block sizes looked at: the recorded one times these.
_TIMES: Final = (1, 2, 4, 8, 16, 32, 64)
#: Reported hits are more than can be if they exceed what repeats by this share of the prompts.
_OVER: Final = 0.05
#: And prefill is no shorter for them: a cached token spares less than this share of one's cost,
#: three standard errors aside.
_SPARES: Final = 0.5
_ERRORS: Final = 3.0


@dataclass(frozen=True)
class Hashed:
    """One request whose prompt's blocks are known. ``hashes`` are those of its whole blocks."""

    key: str
    worker: str
    kind: tuple[str, str]
    start_unix_ns: int
    first_token_unix_ns: int | None
    block_tokens: int
    hashes: Sequence[str]
    cached_tokens: int | None
    input_tokens: int | None
    preemptions: int | None
    prefill_ms: float | None


@dataclass(frozen=True)
class Prefixes:
    """Requests in order of time, and by key the tokens that their worker had computed before."""

    requests: tuple[Hashed, ...] = ()
    held_tokens: dict[str, int] = field(default_factory=dict)

    @property
    def times_known(self) -> bool:
        """Whether any says when its prompt was computed: nothing is held before that."""
        return any(r.first_token_unix_ns is not None for r in self.requests)


def read_prefixes(con: duckdb.DuckDBPyConnection) -> Prefixes:
    """The window's requests with hashes; empty at the cost of one look where there are none."""
    if not defined(con, _READS):
        return Prefixes()
    (any_hashes,) = one(
        con,
        "select count(*) from (select 1 from request_log where prefix_hashes is not null limit 1)",
    )
    if not any_hashes:
        return Prefixes()
    rows = con.execute(
        f"""
        select r.request_key, coalesce(r.prefill_worker, r.worker, r.model, ''),
            coalesce(r.model, ''), coalesce(r.route, ''),
            coalesce(r.start_unix_ns, r.intended_start_unix_ns), r.first_token_unix_ns,
            g.prefix_block_tokens, from_json(g.prefix_hashes, '["VARCHAR"]'), r.cached_tokens,
            r.input_tokens, r.preemptions, r.prefill_ms
        from request_log as g
        join legs as l on l.leg_id = {LOG_LEG_ID.replace("log_key", "g.log_key")}
        join window_requests as r on r.request_key = l.request_key
        where g.prefix_hashes is not null and g.prefix_block_tokens > 0 and r.has_clock = 1
            and r.quarantine_reason is null
        order by 5, 1
        """
    ).fetchall()
    requests = tuple(
        Hashed(str(key), worker, (model, route), *rest) for key, worker, model, route, *rest in rows
    )
    return Prefixes(requests, dict(_held(requests)))


def _held(requests: Sequence[Hashed]) -> Iterator[tuple[str, int]]:
    """Tokens of the leading blocks that the same worker had computed before a request came."""
    ready = sorted(
        (r for r in requests if r.first_token_unix_ns is not None),
        key=lambda r: r.first_token_unix_ns or 0,
    )
    held: dict[str, set[str]] = defaultdict(set)
    at = 0
    for r in requests:
        while at < len(ready) and (ready[at].first_token_unix_ns or 0) <= r.start_unix_ns:
            held[ready[at].worker].update(ready[at].hashes)
            at += 1
        if blocks := _leading(r.hashes, held[r.worker]):
            yield r.key, blocks * r.block_tokens


def _leading(hashes: Sequence[str], seen: set[str]) -> int:
    blocks = 0
    for block in hashes:
        if block not in seen:
            break
        blocks += 1
    return blocks


def prefix_reuse(con: duckdb.DuckDBPyConnection, prefixes: Prefixes) -> PrefixReuse | None:
    """What repeats among the prompts and what was reported as cached; None without enough hashes.

    Of very many requests the first are looked at, all of them up to a moment.
    """
    sizes = [r.block_tokens for r in prefixes.requests[:_REUSE_MAX]]
    if len(sizes) < _ROWS:
        return None
    block = max(sorted(set(sizes)), key=sizes.count)
    seen: set[str] = set()
    counted: list[tuple[Hashed, int]] = []
    for r in prefixes.requests[:_REUSE_MAX]:
        if r.block_tokens != block:
            continue
        # by whom and when it was computed does not matter: more than this cannot repeat
        if r.input_tokens and r.cached_tokens is not None:
            counted.append((r, min(_leading(r.hashes, seen) * block, r.input_tokens)))
        seen.update(r.hashes)
    if len(counted) < _ROWS:
        return None
    prompt = sum(r.input_tokens or 0 for r, _ in counted)
    repeated = np.array([tokens for _, tokens in counted])

    def share(tokens: float) -> float:
        return float(tokens / prompt)

    def at(size: int) -> BlockShare:
        return BlockShare(size, share((repeated // size * size).sum()))

    cached = [min(r.cached_tokens or 0, r.input_tokens or 0) for r, _ in counted]
    over = sum(max(c - tokens, 0) for c, (_, tokens) in zip(cached, counted, strict=True))
    held = [min(prefixes.held_tokens.get(r.key, 0), r.input_tokens or 0) for r, _ in counted]
    preempted = [r.preemptions for r, _ in counted if r.preemptions is not None]
    reuse = PrefixReuse(
        n=len(counted),
        repeated_share=share(repeated.sum()),
        same_worker_share=share(sum(held)) if prefixes.times_known else None,
        cached_share=share(sum(cached)),
        over_share=share(over),
        longest_tokens=int(np.percentile(repeated[repeated > 0], 90)) if repeated.any() else 0,
        blocks=tuple(at(block * k) for k in _TIMES),
        engine_blocks=(),
        spares_nothing=share(over) > _OVER and _spares_nothing([r for r, _ in counted]),
        preempted=sum(p > 0 for p in preempted) if preempted else None,
        preemptions=sum(preempted) if preempted else None,
    )
    if reuse.is_missed:
        return replace(reuse, engine_blocks=tuple(at(size) for size in _engine_blocks(con)))
    return reuse


def _spares_nothing(requests: Sequence[Hashed]) -> bool:
    """Whether prefill took as long as if nothing had come from the cache: least squares."""
    rows = np.array(
        [
            (r.prefill_ms, r.input_tokens, r.cached_tokens)
            for r in requests
            if r.prefill_ms and r.input_tokens and r.cached_tokens is not None
        ],
        dtype=np.float64,
    )
    if len(rows) < _ROWS:
        return False
    took, tokens, cached = rows.T
    # noise grows with size: large prompts must not decide alone
    terms = np.column_stack([np.ones(len(rows)), tokens, cached]) / took[:, None]
    weights, _, rank, _ = np.linalg.lstsq(terms, np.ones(len(rows)))
    if rank < 3 or weights[1] <= 0:
        return False
    off = 1.0 - terms @ weights
    variance = float(off @ off) / (len(rows) - 3)
    error = float(np.sqrt(variance * np.linalg.inv(terms.T @ terms)[2, 2]))
    return bool(weights[2] - _ERRORS * error > -_SPARES * weights[1])


def _engine_blocks(con: duckdb.DuckDBPyConnection) -> list[int]:
    """Sizes of the engines' KV blocks, where their metrics are stored."""
    if not defined(con, ["metric_samples"]):
        return []
    rows = con.execute(
        "select distinct try_cast(json_extract_string(attributes, '$.block_size') as integer) as b "
        "from metric_samples where name like 'vllm:cache_config_info%' order by b"
    ).fetchall()
    return [int(b) for (b,) in rows if b]
