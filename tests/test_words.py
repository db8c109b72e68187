"""Numbers and nouns agree, in the helper and in the texts that use it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracekit.analysis.diagnosis import Culprit
from tracekit.analysis.finding_words import FindingWords, action_for, cause_phrase
from tracekit.analysis.wording import tokens
from tracekit.words import plural, verb


def test_one_and_many() -> None:
    assert [plural(n, "row") for n in (0, 1, 2, 1_000)] == [
        "0 rows",
        "1 row",
        "2 rows",
        "1,000 rows",
    ]
    assert (
        plural(1, "query", "queries") == "1 query" and plural(2, "query", "queries") == "2 queries"
    )
    assert (verb(1, "is", "are"), verb(0, "is", "are")) == ("is", "are")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1, "1 prompt token"),
        (0.4, "0 prompt tokens"),
        (1.2, "1 prompt token"),
        (31_000, "31k prompt tokens"),
    ],
)
def test_tokens(value: float, said: str) -> None:
    assert tokens(value, "prompt") == said


@pytest.mark.parametrize(
    ("size", "named"), [(24_113, " (24k prompt tokens)"), (1, " (1 prompt token)"), (None, "")]
)
def test_a_culprits_size_is_named_only_if_known(size: int | None, named: str) -> None:
    words = FindingWords(
        phase="decode", cause="prefill_interference", metric="tpot", is_shape=False,
        excess_ms=900.0, expected_ms=10.0, uncached_tokens=None, output_tokens=None, worker="w",
        culprits=(Culprit("r-7", size, victims=3, stall_ms=50.0),),
    )  # fmt: skip
    assert cause_phrase(words).endswith(f"first of all r-7{named}")
    said = action_for(words)
    assert ("prompts of" in said) is (size is not None)
    assert "None" not in said and "1 tokens" not in said
    assert "long prompts" in action_for(replace(words, culprits=()))
