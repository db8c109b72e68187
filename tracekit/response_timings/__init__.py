"""What serving systems and managed APIs tell of their own times in a response.

One module a system: its fields, their units, and what they mean. The importer of request logs and
the SDK read responses by the same ones. Adding a system is one module and its place in `SYSTEMS`;
those of managed APIs (`managed`) are read by the SDK alone, which knows where in a response they
stand.
"""

from __future__ import annotations

from typing import Final

from tracekit.response_timings import (
    dynamo,
    llama_cpp,
    ollama,
    sglang,
    tensorrt_llm,
    tgi,
)
from tracekit.response_timings.system import System

#: In the order in which a log's columns are looked through.
SYSTEMS: Final[tuple[System, ...]] = (
    llama_cpp.SYSTEM,
    ollama.SYSTEM,
    dynamo.SYSTEM,
    sglang.SYSTEM,
    tensorrt_llm.BOTH,
    tensorrt_llm.ONE,
    tgi.SYSTEM,
)
