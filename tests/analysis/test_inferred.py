"""Phases that are told only as a whole, split by what other requests took."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tests.analysis.factory import PREFILL_MS, Traffic, clean
from tracekit.analysis.attribution import define_attribution
from tracekit.analysis.slo import Slo


def _parts(traffic: Traffic) -> pl.DataFrame:
    con = traffic.connect()
    define_attribution(con, Slo())
    parts: pl.DataFrame = con.sql("select * from inferred_parts order by request_key").pl()
    return parts


def _merged(waits_ms: np.ndarray) -> Traffic:
    """Requests whose queue is known to this test only."""
    traffic = clean(len(waits_ms), noise=0.02)
    traffic.phases["queue"] = waits_ms.copy()
    traffic.merge_queue_and_prefill(np.arange(traffic.n))
    return traffic


def test_waiting_is_what_the_quickest_of_a_size_did_not_take() -> None:
    """Nine of ten wait; the others tell what their prompts cost (and 4 ms of the front end)."""
    rng = np.random.default_rng(5)
    waits = np.where(rng.random(600) < 0.9, rng.uniform(200, 900, 600), 0.0)
    traffic = _merged(waits)
    parts = _parts(traffic)
    assert len(parts) == 600
    order = np.argsort(np.asarray(traffic.columns["request_key"]))
    off = np.abs(parts["queue_at_least_ms"].to_numpy() - waits[order])[waits[order] > 0]
    assert np.median(off) < 10
    tokens = np.asarray(traffic.columns["input_tokens"], dtype=np.float64)[order]
    cost = 4 + PREFILL_MS[0] + PREFILL_MS[1] * tokens
    told = parts["prefill_at_most_ms"].to_numpy()
    assert np.median(np.abs(told / cost - 1)) < 0.15
    whole = parts["prefill_at_most_ms"] + parts["queue_at_least_ms"]
    assert whole.to_numpy() == pytest.approx(parts["queue_or_prefill_ms"].to_numpy())
    assert parts["kv_transfer_fixed_ms"].null_count() == 600


def test_where_all_wait_alike_no_more_is_claimed_than_a_bound() -> None:
    parts = _parts(_merged(np.full(600, 500.0)))
    assert (parts["prefill_at_most_ms"] > 500).all()
    assert (parts["queue_at_least_ms"] < 100).all()


def test_two_engines_and_few_requests_infer_nothing() -> None:
    traffic = _merged(np.zeros(200))
    traffic.columns["engine"] = np.array(["vllm", "dynamo"] * 100, dtype=object)
    assert _parts(traffic).is_empty()
    assert _parts(_merged(np.zeros(29))).is_empty()


def test_a_known_prefill_is_not_inferred() -> None:
    assert _parts(clean(200)).is_empty()


def _slow_rendezvous(traffic: Traffic) -> Traffic:
    tokens = np.asarray(traffic.columns["input_tokens"], dtype=np.float64)
    traffic.phases["kv_transfer"] = 50.0 + 0.3 * tokens
    return traffic


def test_what_a_transfer_takes_whatever_its_size() -> None:
    traffic = _slow_rendezvous(clean(200, disaggregated=True))
    parts = _parts(traffic)
    assert len(parts) == 200
    assert parts["kv_transfer_fixed_ms"].to_numpy() == pytest.approx(50, abs=0.5)
    tokens = np.sort(np.asarray(traffic.columns["input_tokens"], dtype=np.float64))
    assert np.sort(parts["kv_transfer_sized_ms"].to_numpy()) == pytest.approx(0.3 * tokens, rel=0.1)


def test_transfers_of_one_size_do_not_tell_their_parts() -> None:
    traffic = clean(200, disaggregated=True)
    traffic.columns["input_tokens"] = np.random.default_rng(1).integers(1000, 1200, 200)
    assert _parts(_slow_rendezvous(traffic)).is_empty()


def test_a_transfer_whose_moving_is_told_is_not_split() -> None:
    traffic = _slow_rendezvous(clean(200, disaggregated=True))
    traffic.columns["kv_transfer_wire_ms"] = traffic.phases["kv_transfer"] - 20
    assert _parts(traffic).is_empty()
