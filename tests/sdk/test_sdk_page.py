"""What docs/sdk.md shows runs, in the order of the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tracekit.testing import FakeServer

ROOT = Path(__file__).parents[2]
_PYTHON = re.compile(r"(<!-- not run -->\n)?```python\n(.*?)```", re.S)


def test_the_code_of_the_page_runs(server: FakeServer, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "sdk.md").read_text()
    blocks = [code for skip, code in _PYTHON.findall(page) if not skip]
    assert len(blocks) >= 6
    path = tmp_path / "page.py"
    path.write_text("\n".join(blocks) + "\nassert tracekit.faults() == {}, tracekit.faults()\n")
    ran = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OPENAI_BASE_URL": server.openai_url,
            "OPENAI_API_KEY": "none",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_METRICS_EXPORTER": "none",
        },
    )
    assert ran.returncode == 0, ran.stderr
    # a stream and two whole responses; the kit's own server had the last
    assert [record.streaming for record in server.records()] == [True, False, False]
