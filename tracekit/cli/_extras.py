"""Which extra of the distribution brings which module, and how to say that one is missing."""

from __future__ import annotations

from typing import Final

_EXTRA_OF: Final[dict[str, str]] = {
    "altair": "dashboard",
    "deltalake": "analysis",
    "duckdb": "analysis",
    "google": "analysis",
    "grpc": "collect",
    "numpy": "analysis",
    "opentelemetry": "analysis",
    "orjson": "analysis",
    "platformdirs": "analysis",
    "polars": "analysis",
    "pyarrow": "analysis",
    "pynvml": "collect",
    "rich": "analysis",
    "streamlit": "dashboard",
    "typer": "analysis",
    "uvicorn": "collect",
    "zstandard": "analysis",
}


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """One line naming what to install, or None if no extra brings the missing module."""
    module = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF.get(module)
    if extra is None:
        return None
    return f"this needs {module}: pip install 'tracekit-llm[{extra}]'"
