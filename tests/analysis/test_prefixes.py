"""What prompts repeat, by block size, against the hits that are reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from tests.analysis import factory
from tests.analysis.factory import PREFILL_MS, Traffic
from tracekit.analysis import cache, prefixes
from tracekit.analysis._duck import one, put
from tracekit.analysis.attribution import define_attribution
from tracekit.analysis.cache import cache_due, usual_hits
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.diagnosis import Diagnosis, PrefixReuse
from tracekit.analysis.prefixes import Hashed, Prefixes
from tracekit.analysis.slo import parse_slo
from tracekit.analysis.speculation import speculation
from tracekit.analysis.sqlfiles import load
from tracekit.analysis.window import Window
from tracekit.lake.schema import TABLES
from tracekit.report import side_notes

_BLOCK = 16


def _traffic(n: int = 120, *, tokens: int = 784) -> Traffic:
    """Prompts of about ``tokens`` tokens, nothing cached."""
    traffic = factory.clean(n)
    size = np.random.default_rng(3).integers(tokens - 80, tokens + 80, n)
    traffic.columns["input_tokens"] = size.astype(object)
    traffic.columns["cached_tokens"] = np.zeros(n, dtype=np.int64).astype(object)
    _cost(traffic, size.astype(float), np.zeros(n))
    return traffic


def _cost(traffic: Traffic, size: np.ndarray, cached: np.ndarray) -> None:
    a0, a1, a2 = PREFILL_MS
    left = size - cached
    noise = np.exp(np.random.default_rng(4).normal(0, 0.05, traffic.n))
    traffic.phases["prefill"] = (a0 + a1 * left + a2 * left * (cached + left / 2)) * noise


def _connect(
    traffic: Traffic, shared: Callable[[int], Sequence[str]], *, block: int = _BLOCK
) -> duckdb.DuckDBPyConnection:
    """As `Traffic.connect`, with a log row of hashes for each request, the first ``shared``."""
    start = np.asarray(traffic.columns["start_unix_ns"], dtype=np.int64)
    traffic.columns["first_token_unix_ns"] = start + (traffic.ttft_ms * 1e6).astype(np.int64)
    con = traffic.connect()
    logs, legs = [], []
    for i, key in enumerate(traffic.columns["request_key"]):
        first = list(shared(i))
        own = int(traffic.columns["input_tokens"][i]) // block - len(first)
        hashes = first + [f"{i}-{k}" for k in range(own)]
        logs.append(
            {
                "log_key": f"log{i}",
                "prefix_block_tokens": block,
                "prefix_hashes": json.dumps(hashes),
            }
        )
        legs.append({"log_key": f"log{i}", "request_key": key})
    for table, rows in (("request_log", logs), ("legs", legs)):
        schema = TABLES[table].schema
        con.register("incoming", pa.Table.from_pylist(rows))
        names = [f.name for f in schema]
        chosen = [
            "substr(md5(log_key), 1, 24)" if n == "leg_id" and table == "legs"
            else n if n in rows[0]
            else "null"
            for n in names
        ]  # fmt: skip
        con.execute(f"insert into {table} select {', '.join(chosen)} from incoming")
        con.unregister("incoming")
    return con


def _diagnosis(con: duckdb.DuckDBPyConnection) -> Diagnosis:
    return diagnose_connection(con, parse_slo("ttft=60ms"))


def _reuse(con: duckdb.DuckDBPyConnection) -> PrefixReuse:
    found = _diagnosis(con).prefix_reuse
    assert found is not None
    return found


def _same(_: int) -> list[str]:
    return [f"s{k}" for k in range(15)]


def _fields(found: Diagnosis) -> list[str]:
    return [m.field for m in found.missing_evidence]


def test_what_repeats_is_counted_by_block_size() -> None:
    traffic = _traffic()
    con = _connect(traffic, _same)
    found = _diagnosis(con)
    reuse = found.prefix_reuse
    assert reuse is not None and reuse.is_missed and not reuse.is_impossible
    total = sum(traffic.columns["input_tokens"])
    # the first one repeats nothing; 240 tokens are 15 blocks of 16, 7 of 32, 3 of 64, 1 of 128
    shares = {b.block_tokens: b.share for b in reuse.blocks}
    for block, tokens in ((16, 240), (32, 224), (64, 192), (128, 128), (256, 0), (1024, 0)):
        assert shares[block] == pytest.approx(119 * tokens / total), block
    assert reuse.repeated_share == pytest.approx(119 * 240 / total)
    # of two workers each computes it once; who comes before the other is done is counted as none
    assert reuse.same_worker_share is not None
    assert 0.9 * reuse.repeated_share < reuse.same_worker_share < reuse.repeated_share
    assert (reuse.n, reuse.cached_share, reuse.longest_tokens) == (120, 0.0, 240)
    assert "KV block size" in _fields(found)
    assert found.to_json()["prefix_reuse"]["is_missed"] is True
    (note,) = side_notes.phase_notes(found)
    assert "30 % of the prompt tokens repeat" in note and "of 256 none" in note


def test_the_engines_block_is_looked_up() -> None:
    con = _connect(_traffic(), _same)
    con.execute(
        "create temp table metric_samples as select 'vllm:cache_config_info' as name, "
        """'{"block_size": "784"}' as attributes"""
    )
    found = _diagnosis(con)
    assert found.prefix_reuse is not None
    ((block, share),) = [(b.block_tokens, b.share) for b in found.prefix_reuse.engine_blocks]
    assert (block, share) == (784, 0.0)
    assert "KV block size" not in _fields(found)
    (note,) = side_notes.phase_notes(found)
    assert "in the engine's KV blocks of 784 tokens 0 % can be hit" in note


def _hits(traffic: Traffic, *, real: bool) -> None:
    """Every prompt but the first two has 240 cached tokens, which spare their work if ``real``."""
    size = np.array(traffic.columns["input_tokens"], dtype=float)
    cached = np.where(np.arange(traffic.n) < 2, 0.0, 240.0)
    traffic.columns["cached_tokens"] = cached.astype(np.int64).astype(object)
    _cost(traffic, size, cached if real else np.zeros(traffic.n))


def test_a_cache_that_gives_what_repeats_gets_no_word() -> None:
    traffic = _traffic()
    _hits(traffic, real=True)
    found = _diagnosis(_connect(traffic, _same))
    reuse = found.prefix_reuse
    assert reuse is not None and not reuse.is_missed and not reuse.is_impossible
    assert not any("repeat" in note for note in side_notes.phase_notes(found))
    assert not {"KV block size", "preemptions"} & set(_fields(found))


def test_prompts_that_do_not_repeat_get_no_word() -> None:
    found = _diagnosis(_connect(_traffic(), lambda _: []))
    reuse = found.prefix_reuse
    assert reuse is not None and not reuse.is_missed and not reuse.is_impossible
    assert not list(side_notes.phase_notes(found))


def _random_hits(traffic: Traffic, *, real: bool) -> None:
    size = np.array(traffic.columns["input_tokens"], dtype=float)
    cached = np.round(size * np.random.default_rng(7).uniform(0.1, 0.6, traffic.n))
    traffic.columns["cached_tokens"] = cached.astype(np.int64).astype(object)
    _cost(traffic, size, cached if real else np.zeros(traffic.n))


def test_hits_without_anything_that_repeats_and_without_any_gain_cannot_be() -> None:
    traffic = _traffic(tokens=1_500)
    _random_hits(traffic, real=False)
    traffic.columns["preemptions"] = np.array([1] * 90 + [0] * 30, dtype=object)
    found = _diagnosis(_connect(traffic, lambda _: []))
    reuse = found.prefix_reuse
    assert reuse is not None and reuse.is_impossible
    assert reuse.over_share == pytest.approx(reuse.cached_share) and reuse.cached_share > 0.3
    assert (reuse.preempted, reuse.preemptions) == (90, 90)
    assert found.prefix_cache is None
    # what is left of a prompt without such hits is no number either
    assert found.findings
    said = [line for f in found.findings for line in (f.sentence, *f.evidence)]
    assert not any("came from the cache" in s or "prompt tokens" in s for s in said)
    notes = list(side_notes.phase_notes(found))
    assert "cannot be" in notes[0] and "90 of them were preempted" in notes[0]
    assert "preemptions" not in _fields(found)
    none = replace(reuse, preempted=None, preemptions=None)
    assert "not known" in next(side_notes.phase_notes(replace(found, prefix_reuse=none)))


def test_who_does_not_say_that_it_was_preempted_is_asked() -> None:
    traffic = _traffic(tokens=1_500)
    _random_hits(traffic, real=False)
    assert "preemptions" in _fields(_diagnosis(_connect(traffic, lambda _: [])))


def test_hits_that_spare_their_work_come_from_requests_that_are_not_here() -> None:
    """A window cuts off what filled the cache: the hits are real all the same."""
    traffic = _traffic(tokens=1_500)
    _random_hits(traffic, real=True)
    found = _diagnosis(_connect(traffic, lambda _: []))
    reuse = found.prefix_reuse
    assert reuse is not None and reuse.over_share > 0.3 and not reuse.is_impossible
    assert found.prefix_cache is None or found.prefix_cache.hits
    assert not any("cannot be" in note for note in side_notes.phase_notes(found))


@pytest.mark.parametrize("noise", [0.2, 0.5])
def test_noise_alone_makes_no_hit_impossible(noise: float) -> None:
    traffic = _traffic(tokens=1_500)
    _random_hits(traffic, real=True)
    traffic.phases["prefill"] *= np.exp(np.random.default_rng(8).normal(0, noise, traffic.n))
    assert not _reuse(_connect(traffic, lambda _: [])).is_impossible


def test_without_hashes_or_with_few_there_is_nothing() -> None:
    assert _diagnosis(_traffic().connect()).prefix_reuse is None
    assert _diagnosis(_connect(_traffic(29), _same)).prefix_reuse is None
    unknown = _traffic()
    unknown.columns["cached_tokens"] = [None] * unknown.n
    assert _diagnosis(_connect(unknown, _same)).prefix_reuse is None


def test_of_very_many_the_first_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "_REUSE_MAX", 60)
    assert _reuse(_connect(_traffic(), _same)).n == 60


def test_what_hashes_say_goes_before_what_is_usual() -> None:
    traffic = factory.clean(100)
    traffic.columns["input_tokens"] = np.full(100, 1_000)
    hits = np.full(100, 400)
    hits[:2] = 0
    traffic.columns["cached_tokens"] = hits
    keys = [str(k) for k in traffic.columns["request_key"][:4]]
    con = traffic.connect()
    put(con, "speculation", speculation(con))
    put(con, "usual_hits", usual_hits(con))

    def due(prefixes: Prefixes) -> dict[str, float]:
        put(con, "cache_due", cache_due(prefixes))
        facts = load("attribution", "request_facts").body
        rows = con.sql(
            f"select request_key, input_tokens - due_uncached_tokens from ({facts}) "
            "where due_uncached_tokens < uncached_tokens"
        )
        return dict(rows.fetchall())

    assert due(Prefixes()) == {keys[0]: 400.0, keys[1]: 400.0}
    hashed = tuple(
        Hashed(key, "w", ("m", ""), i, i, 16, (), cached, 1_000, 0, 1.0)
        for i, (key, cached) in enumerate(zip(keys, (0, 0, 400, 400), strict=True))
        if i != 1
    )
    known = Prefixes(hashed, {keys[0]: 500, keys[2]: 400, keys[3]: 400})
    assert due(known) == {keys[0]: 500.0, keys[1]: 400.0}
    # nobody had computed its blocks before: its route's usual hit is not due to it
    new = replace(hashed[0], key=keys[1])
    assert due(Prefixes((*hashed, new), known.held_tokens)) == {keys[0]: 500.0}


@pytest.mark.parametrize("clock", [True, False])
def test_of_very_many_a_part_tells_what_is_usual(
    monkeypatch: pytest.MonkeyPatch, clock: bool
) -> None:
    """Conversations with first turns, a system prompt that is lost at times, and no cache."""
    rng = np.random.default_rng(5)
    turns, system, none = (
        factory.clean(n, seed=n, route=r) for n, r in ((3_000, "a"), (3_001, "b"), (3_002, "c"))
    )
    tokens = rng.integers(500, 4_000, 9_003)
    hits = np.zeros(9_003, dtype=np.int64)
    hits[:3_000] = np.where(rng.random(3_000) < 0.9, tokens[:3_000] // 2, 0)
    hits[3_000:6_001] = np.where(rng.random(3_001) < 0.99, 64, 0)
    traffic = factory.join(turns, system, none)
    traffic.columns["input_tokens"], traffic.columns["cached_tokens"] = tokens, hits
    con = traffic.connect()
    if not clock:
        con.execute("update requests set start_unix_ns = null")
    every = usual_hits(con).to_pylist()
    assert {u["route"]: u["least_share"] for u in every} == {"a": 0.5, "b": 0.0}
    monkeypatch.setattr(cache, "_DRAWN_MAX", 3_000)
    drawn = usual_hits(con, drawn_of=9_003)
    assert 1_500 < one(con, "select count(*) from _hits")[0] < 3_000
    assert usual_hits(con, drawn_of=9_003) == drawn
    for found, whole in zip(
        sorted(drawn.to_pylist(), key=lambda u: str(u["route"])),
        sorted(every, key=lambda u: str(u["route"])),
        strict=True,
    ):
        assert found["due_share"] == pytest.approx(whole["due_share"], abs=1e-3)
        assert {**found, "due_share": 0} == {**whole, "due_share": 0}


def test_what_is_usual_now_was_not_due_to_a_healthy_window_before() -> None:
    traffic = factory.clean(400)
    traffic.columns["input_tokens"] = np.full(400, 1_000)
    hits = np.where(np.arange(400) < 200, 0, 400)
    hits[300:302] = 0
    traffic.columns["cached_tokens"] = hits
    con = traffic.connect()
    start = np.asarray(traffic.columns["start_unix_ns"])
    assert (np.diff(start) > 0).all()
    con.execute(
        "create or replace temp view window_requests as "
        f"select * from requests where start_unix_ns >= {start[200]}"
    )
    healthy = Window(since_unix_ns=int(start[100]), until_unix_ns=int(start[350]))
    define_attribution(con, parse_slo("ttft=1s"), baseline=healthy)
    due = con.sql(
        "select request_key from baseline_facts where due_uncached_tokens < uncached_tokens"
    ).fetchall()
    assert {key for (key,) in due} == traffic.keys(np.arange(300, 302))
    assert one(con, "select count(*) from baseline_facts")[0] == 250
