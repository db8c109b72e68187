"""What other systems emit that means something else than it seems, and that each has a test.

A test that fails when tracekit takes such a thing at its word is marked
``@pytest.mark.trap("dynamo", 3)``. The marks are read from the source of the tests, so that this
file needs nothing collected beside it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]

#: System -> what its traps are, counted from 1.
TRAPS: Final = {
    "dynamo": (
        "prefill_time holds the engine's queue",
        "under P/D timing.ttft_ms is the prefill worker's token, not the client's",
        "a transfer estimate of 0.0 (bootstrap) stands for unknown",
        "prefill_time holds the transfer where the token comes with the stream's end",
        "a worker's span ends after its parent; a frontend's long after the last token",
        "housekeeping has spans of the same names",
        "latency_ms of `http response sent` lasts to the headers",
        "cached_tokens is the router's prediction, not the engine's count",
        "http-request begins up to 141 ms after the client sent",
    ),
    "sglang": (
        "decode_transferred holds the remote queue and prefill",
        "prefill_bootstrap is the wait for the decode server's KV space",
        "transfer latency is of the last chunk: no bandwidth comes of it",
        "time_in_model_prefill holds the queue (and the transfer)",
        "queue_time sums all waits over retractions",
        "clocks are calibrated: gaps may be negative",
        "an abort closes stages early; decode_forward without decode_loop is normal",
        "a retraction nests its stages in the first decode_forward",
        "before the scheduler's first stage a message waits, in no span",
        "ends of transfers are seen late, and in any order",
        "a full decode pool waits in both bootstraps, and in no queue",
        "not streamed, time_to_first_token is the end",
        "a decode step holds other requests' prefill chunks",
        "threads outlive their root; every rank repeats every stage; n > 1 has more roots",
    ),
    "llm_d": (
        "true_ttft_ms is when the decode call began",
        "the decode span hangs on the ended prefill span and has the request's summary",
        "durations in ms are cut to whole ones",
        "nine tenths of the traces are cut short by sampling",
        "a prefill span may end after the request",
        "after a failed prefill the decode server computes all, without a span of the sidecar",
    ),
    "llama_cpp": (
        "prompt_ms is wall time of batches that others share",
        "a slot's launch is not when its prefill begins",
        "with n = 2 usage and timings are of one choice; one token has filler times",
        "no timings of errors and of cancelled requests",
        "too long a prompt is refused only after its time in the queue",
        "a full KV cache fails requests after their status 200",
        "requests_deferred leaves out who waits; a scrape waits for the batch",
    ),
    "sglang_router": (
        "it begins a trace of its own: a client joins by x-request-id",
        "its span outlasts the call, by up to a minute",
    ),
}  # fmt: skip


def _marks(path: Path) -> Iterator[tuple[object, ...]]:
    """Arguments of the trap marks of a file's tests."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if "mark.trap(" in text else ():
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.trap":
                    yield tuple(ast.literal_eval(argument) for argument in mark.args)


@cache
def _marked() -> frozenset[tuple[object, ...]]:
    return frozenset(mark for path in TESTS.rglob("test_*.py") for mark in _marks(path))


NUMBERED: Final = [(s, n) for s, told in TRAPS.items() for n in range(1, len(told) + 1)]


@pytest.mark.parametrize(("system", "number"), NUMBERED)
def test_a_trap_has_a_test(system: str, number: int) -> None:
    assert (system, number) in _marked(), f"no test of: {TRAPS[system][number - 1]}"


def test_marks_name_traps_of_the_list() -> None:
    assert _marked() - set(NUMBERED) == set()
