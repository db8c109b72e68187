"""LiteLLM takes seconds to import: an application that does not use it must not wait for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_PACKAGE = {
    "__init__.py": """
from litellm.main import acompletion, completion

class CustomStreamWrapper:
    def __next__(self): ...
    async def __anext__(self): ...

class Router:
    def completion(self): ...
    async def acompletion(self): ...
""",
    "main.py": """
def completion(**kwargs): return {"id": "r", "choices": []}
async def acompletion(**kwargs): ...
""",
    "../litellm-1.99.0.dist-info/METADATA": """Metadata-Version: 2.1
Name: litellm
Version: 1.99.0
""",
    "litellm_core_utils/__init__.py": "",
    "litellm_core_utils/litellm_logging.py": """
class Logging:
    def post_call(self, original_response): ...
""",
}

_APP = """
import sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import tracekit

kept = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
tracekit.configure(tracer_provider=provider)
assert "litellm" in tracekit.instrument()
assert "litellm" not in sys.modules
if {leave}:
    tracekit.uninstrument()
import litellm
litellm.completion(model="m", messages=[])
assert tracekit.faults() == {{}}, tracekit.faults()
print([span.name for span in kept.get_finished_spans()])
"""


def _said(tmp_path: Path, *, leave: bool) -> str:
    for name, text in _PACKAGE.items():
        path = (tmp_path / "litellm" / name).resolve()
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    there = os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-c", _APP.format(leave=leave)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": there},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_is_watched_once_it_is_imported(tmp_path: Path) -> None:
    assert _said(tmp_path, leave=False) == "['chat m']"


def test_it_is_not_if_it_is_not_wanted_any_more(tmp_path: Path) -> None:
    assert _said(tmp_path, leave=True) == "[]"
