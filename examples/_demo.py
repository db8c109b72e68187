"""What the examples share: a place for their spans, and the diagnosis at the end.

Nothing of this is needed in an application: there, spans are stored when the process ends, and
`tracekit diagnose` is a command to be typed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider


def arguments(about: str) -> argparse.Namespace:
    """``--store``, ``--demo``, ``--model`` and what to ask."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--store", type=Path, required=True, help="a folder for the spans")
    parser.add_argument("--demo", action="store_true", help="against a fake server, no network")
    parser.add_argument("--model", default="gpt-4o-mini", help="model of the real API")
    parser.add_argument("questions", nargs="*", default=["Why is the sky blue?"])
    return parser.parse_args()


def diagnose(store: Path, slo: str) -> int:
    """Write what still waits, and run ``tracekit diagnose``; its exit status."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.shutdown()
    command = ["tracekit", "diagnose", "--store", str(store), "--slo", slo]
    print("$", *command, flush=True)
    return subprocess.run([sys.executable, "-m", *command], check=False).returncode
