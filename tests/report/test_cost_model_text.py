"""The cost model as tables: every fitted phase, its formula with units, what it rests on."""

from __future__ import annotations

from typing import Any

from tracekit.analysis.fit import PHASE_TERMS, reach_columns
from tracekit.report import cost_model_text


def _row(**given: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "model": "m", "engine": "vllm", "engine_version": "0.11", "topology": "aggregated",
        "level": "cell", "n": 1200, "tau": 0.25, "source": "window", "version": 1,
        "kv_transfer_per_byte": 0,
    }  # fmt: skip
    for phase, terms in PHASE_TERMS.items():
        row |= {f"{phase}_{name}": None for name, _ in terms}
        row |= {f"{phase}_{name}": None for name in ("s0", "s1", "error")}
        row |= {f"{phase}_n": 0, f"{phase}_borrowed": 0}
        row |= {f"{phase}_{name}": None for name in reach_columns(phase)}
    return row | given


def _fitted(phase: str, n: int = 900, **given: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"s0": 2.0, "s1": 0.0, "error": 0.125, "n": n, "borrowed": 0} | given
    return {f"{phase}_{name}": value for name, value in values.items()}


def test_a_phase_says_what_it_should_take_and_how_surely() -> None:
    (cell,) = cost_model_text.cells(
        [
            _row(
                **_fitted("queue", c0=0.0, s0=0.0),
                **_fitted("prefill", a0=20.0, a1=0.42, a2=0.0005, reach=64.0, context_reach=32.0),
                **_fitted(
                    "decode",
                    g0=11.7,
                    g1=0.0,
                    s0=0.0,
                    s1=0.3,
                    n=40,
                    borrowed=1,
                    reach=1083.0,
                    context_reach=93.6,
                ),
            )
        ]
    )
    assert cell.title == (
        "m, vllm 0.11, aggregated: 1,200 requests, 25th percentile of the window itself (version 1)"
    )
    assert cell.rows == (
        ("queue", "next to nothing", "0 ms", "12 %", "900"),
        (
            "prefill",
            "20.0 ms + 0.42 ms per uncached token + 0.0005 ms x uncached x (cached + uncached / 2)",
            "2.00 ms",
            "12 %",
            "900",
        ),
        ("decode", "11.7 ms per step", "30 % of it", "12 %", "40*"),
    )
    assert cell.up_to == ("prefill 64 tokens", "decode 1,083 steps, context 94")
    assert "KV transfer" in cell.unfitted and "decode" not in cell.unfitted


def test_a_transfer_is_per_byte_where_bytes_are_known_and_a_baseline_is_named() -> None:
    fit = _fitted("kv_transfer", k0=5.0, k1=2e-6, reach=1.0)
    of = {"source": "baseline", "tau": 0.5, "level": "model", "engine_version": ""}
    by_token, by_byte = cost_model_text.cells(
        [_row(**fit), _row(**fit, kv_transfer_per_byte=1, **of)]
    )
    assert by_token.rows[0][1] == "5.00 ms + 2e-06 ms per prompt token"
    assert by_byte.rows[0][1] == "5.00 ms + 2e-06 ms per byte"
    assert (*by_token.up_to, *by_byte.up_to) == (
        "KV transfer 1 prompt token",
        "KV transfer 1 byte",
    )
    assert by_byte.title == (
        "m, vllm, aggregated: 1,200 requests, median of the declared baseline; some fits borrow "
        "from the whole model (version 1)"
    )
