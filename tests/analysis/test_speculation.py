"""Several tokens per step: when decode is measured in steps, and what is said of chunks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis import factory
from tests.analysis.factory import START_NS, Traffic
from tracekit.analysis.attribution import define_attribution
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.diagnosis import ChunkPace
from tracekit.analysis.slo import Slo, parse_slo
from tracekit.analysis.speculation import speculation
from tracekit.analysis.window import Window


def _speculative(n: int = 60, *, known: int | None = None) -> Traffic:
    """Every request accepts two tokens per step, or four: what decode takes follows the steps."""
    traffic = factory.clean(n)
    accepted = np.where(np.arange(n) % 2 == 0, 2.0, 4.0)
    traffic.phases["decode"] /= accepted
    values: list[float | None] = [float(a) for a in accepted]
    for i in range(n if known is None else known, n):
        values[i] = None
    traffic.columns["accepted_tokens_per_step"] = values
    traffic.columns["chunk_count"] = [100] * n
    return traffic


def _rule(traffic: Traffic, baseline: Window | None = None) -> dict[str, int]:
    (row,) = speculation(traffic.connect(), baseline=baseline).to_pylist()
    return dict(row)


def _steps(traffic: Traffic) -> list[float]:
    con = traffic.connect()
    define_attribution(con, Slo())
    rows = con.execute("select steps from request_facts order by request_key").fetchall()
    return [s for (s,) in rows]


def test_steps_count_where_nearly_all_tell() -> None:
    assert _rule(factory.clean(60)) == {"seen": 0, "counted": 0}
    assert _rule(_speculative()) == {"seen": 1, "counted": 1}
    assert _rule(_speculative(known=54)) == {"seen": 1, "counted": 1}
    assert _rule(_speculative(known=53)) == {"seen": 1, "counted": 0}
    tokens = np.array(_speculative().columns["output_tokens"], dtype=float) - 1
    accepted = np.where(np.arange(60) % 2 == 0, 2.0, 4.0)
    assert _steps(_speculative()) == pytest.approx(tokens / accepted)
    # steps of some and tokens of others are no common measure
    assert _steps(_speculative(known=53)) == pytest.approx(tokens)


def test_a_model_that_does_not_speculate_is_not_asked() -> None:
    traffic = _speculative(known=30)
    traffic.columns["model"] = ["a"] * 30 + ["b"] * 30
    assert _rule(traffic) == {"seen": 1, "counted": 1}


def test_the_baseline_must_tell_as_well() -> None:
    traffic = _speculative(known=54)
    starts = traffic.columns["start_unix_ns"]
    last = Window(int(starts[50]), None, "the last")
    # six of the ten there do not tell: 58 of 70 in all
    assert _rule(traffic, last) == {"seen": 1, "counted": 0}
    assert _rule(traffic, Window(START_NS, int(starts[50]), "the first")) == {
        "seen": 1,
        "counted": 1,
    }


def test_the_pace_of_chunks() -> None:
    traffic = _speculative()
    found = diagnose_connection(traffic.connect(), parse_slo("ttft=800ms"))
    tokens = np.array(traffic.columns["output_tokens"], dtype=float)
    tpot = traffic.phases["decode"] / (tokens - 1)
    accepted = np.where(np.arange(60) % 2 == 0, 2.0, 4.0)
    assert found.chunks is not None
    assert found.chunks.chunk_gap_ms == pytest.approx(np.median(tpot * accepted))
    assert found.chunks.token_gap_ms == pytest.approx(np.median(tpot))
    assert (found.chunks.tokens_per_chunk, found.chunks.n) == (3.0, 60)
    assert found.to_json()["chunks"]["n"] == 60


def test_no_pace_without_chunks_or_where_a_chunk_is_a_token() -> None:
    def pace(traffic: Traffic) -> ChunkPace | None:
        return diagnose_connection(traffic.connect(), parse_slo("ttft=800ms")).chunks

    assert pace(factory.clean(60)) is None
    assert pace(_speculative(29)) is None
    unseen = _speculative()
    unseen.columns["chunk_count"] = [None] * 60
    assert pace(unseen) is None
    hardly = _speculative()
    hardly.columns["accepted_tokens_per_step"] = [1.05] * 60
    assert pace(hardly) is None
