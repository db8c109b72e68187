"""Engines' logs as inputs: one module a system, each giving record spans.

A new system is one module here and one line in `ENGINE_LOGS`; what its fields mean is its file in
``sql/sources``.
"""

from __future__ import annotations

from typing import Final

from tracekit.ingest.engine_logs._record import (
    MADE_UP,
    SCOPE,
    BadLine,
    EngineLog,
    Facts,
    Line,
    Record,
    Sample,
    ids_of,
    lines_in,
    lines_of,
)
from tracekit.ingest.engine_logs.dynamo import DYNAMO_REQUEST_TRACE
from tracekit.ingest.engine_logs.dynamo_log import DYNAMO_LOG
from tracekit.ingest.engine_logs.llama_cpp import LLAMA_CPP_LOG
from tracekit.ingest.engine_logs.lmcache import LMCACHE_LOG
from tracekit.ingest.engine_logs.sglang import SGLANG_LOG
from tracekit.ingest.engine_logs.triton import TRITON_TRACE
from tracekit.ingest.engine_logs.vllm import VLLM_LOG

ENGINE_LOGS: Final[tuple[EngineLog, ...]] = (
    DYNAMO_REQUEST_TRACE,
    DYNAMO_LOG,
    SGLANG_LOG,
    LLAMA_CPP_LOG,
    LMCACHE_LOG,
    VLLM_LOG,
    TRITON_TRACE,
)

BY_FORMAT: Final[dict[str, EngineLog]] = {log.format: log for log in ENGINE_LOGS}

ENGINE_LOG_FORMATS: Final[dict[str, str]] = {log.format: log.label for log in ENGINE_LOGS}


def detect_engine_log(head: bytes) -> str | None:
    """The format of a log by its first bytes, None if it is none of these."""
    return next((log.format for log in ENGINE_LOGS if log.looks_like(head)), None)


__all__ = [
    "BY_FORMAT",
    "ENGINE_LOGS",
    "ENGINE_LOG_FORMATS",
    "MADE_UP",
    "SCOPE",
    "BadLine",
    "EngineLog",
    "Facts",
    "Line",
    "Record",
    "Sample",
    "detect_engine_log",
    "ids_of",
    "lines_in",
    "lines_of",
]
