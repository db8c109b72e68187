"""What is suggested are settings and metrics of the engine at hand, of no other."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.doctor import health
from tracekit.analysis.finding_words import FindingWords, action_for
from tracekit.analysis.session import Session
from tracekit.analysis.slo import parse_slo
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store
from tracekit.names import CAUSES, PHASES, SLO_METRICS
from tracekit.report import diagnosis_md

_DATA = Path(__file__).parents[1] / "data"
#: Names that only vLLM knows.
_OF_VLLM = ("vllm:", "--max-num-", "--gpu-memory-utilization", "--enable-prompt-tokens-details")


def _actions(engine: str | None) -> str:
    said = []
    for phase, cause, metric, shape in itertools.product(PHASES, CAUSES, SLO_METRICS, (0, 1)):
        if phase == "unexplained":
            continue
        words = FindingWords(
            phase=phase,
            cause=cause,
            metric=metric,
            is_shape=bool(shape),
            excess_ms=900.0,
            expected_ms=100.0,
            uncached_tokens=500.0,
            output_tokens=50.0,
            worker="w",
            culprits=(),
            engine=engine,
        )
        said.append(action_for(words))
    return "\n".join(said)


@pytest.mark.parametrize("engine", ["sglang", "llama.cpp", "dynamo", "an-engine-of-tomorrow"])
def test_no_other_engines_settings(engine: str) -> None:
    said = _actions(engine)
    # Dynamo's workers may be vLLM's: their metrics are named beside others'
    names = _OF_VLLM[1:] if engine == "dynamo" else (*_OF_VLLM, "vLLM")
    assert [name for name in names if name in said] == []


def test_its_own_settings() -> None:
    own = _actions("sglang")
    for name in ("--chunked-prefill-size", "--max-running-requests", "--mem-fraction-static"):
        assert f"SGLang {name}" in own
    assert "sglang:num_queue_reqs" in own
    assert "llama.cpp server --parallel" in _actions("llama.cpp")
    assert "vLLM --max-num-seqs" in _actions("vllm")
    assert _actions(None) == _actions("vllm"), "an example where the engine is not known"


@pytest.mark.parametrize(
    ("files", "slo"),
    [
        (("llama_cpp/overload-trace.client.jsonl.gz",), "ttft=1s"),
        (("llama_cpp/long-prompt.client.jsonl.gz",), ""),
        (("sglang/unified-chunked.otlp.jsonl.gz", "sglang/unified-chunked.client.jsonl.gz"), ""),
        (("sglang/pd-decode-full.otlp.jsonl.gz",), "ttft=1s"),
    ],
)
def test_recorded_traffic_of_other_engines(
    tmp_path: Path, files: tuple[str, ...], slo: str
) -> None:
    store = Store.open(tmp_path / "store", create=True)
    import_paths(store, [str(_DATA / name) for name in files])
    with Session.open(store) as session:
        said = diagnosis_md.render(diagnose(session, parse_slo(slo)))
        remarks = "\n".join(f"{r.text} {r.how}" for r in health(session).remarks)
    assert "vllm" not in said.lower()
    assert "vllm" not in remarks.lower()
