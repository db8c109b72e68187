"""Finds the files of ``sql/``, in load order, and reads what their header comments say.

Owns the list of relations and their documentation; runs nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from tracekit.errors import SourceError

#: Rows of raw tables → legs. Order does not matter: their rows are unioned by name.
SOURCES: Final[tuple[str, ...]] = (
    "vllm",
    "genai_client",
    "http_call",
    "tracekit_phase",
    "tracekit_request",
    "request_log",
    "tracekit_join",
    "dynamo",
    "dynamo_trace",
    "llama_cpp_log",
    "llm_d",
    "lmcache",
    "tensorrt_llm",
    "tgi",
    "triton",
    "triton_trace",
    "vllm_lifecycle",
    "sglang",
    "sglang_log",
    "sglang_router",
)

#: What metrics tell, each reading only those before it: no legs come of them.
METRIC_VIEWS: Final[tuple[str, ...]] = ("engine_metrics", "worker_metrics")

#: Legs → phases → requests, each reading only those before it.
CORE: Final[tuple[str, ...]] = (
    "request_points",
    "phase_parts",
    "claims",
    "phases_cut",
    "phases_sweep",
    "phases_split",
    "phases",
    "request_inside",
    "requests",
)

_COLUMN: Final = re.compile(r"^-- ([a-z][a-z0-9_]*): (.+)$")


@dataclass(frozen=True)
class SqlFile:
    """One file of ``sql/``: its layer, the relation it defines, its text and its header.

    ``when`` (sources only): a cheap condition on typed columns of the input that every row the
    file takes meets, so that a source nobody uses costs nothing.
    """

    layer: str
    name: str
    text: str
    purpose: str
    grain: str
    inputs: str
    columns: dict[str, str]
    when: str

    @property
    def body(self) -> str:
        """The statement without trailing blanks or semicolon, ready to be wrapped."""
        return self.text.strip().rstrip(";")


@cache
def sql_root() -> Path:
    """``sql/`` beside the package in a checkout, ``tracekit/sql`` in a wheel; else SourceError."""
    package = Path(str(files("tracekit")))
    checkout = package.parent / "sql"
    # In a checkout the editable install may leave a dead copy elsewhere: the live one wins.
    for candidate in (checkout, package / "sql"):
        if (candidate / "core").is_dir():
            return candidate
    raise SourceError(
        "the SQL files are missing", where=str(package / "sql"), how="reinstall tracekit-llm"
    )


def _header(text: str) -> tuple[str, str, str, dict[str, str], str]:
    purpose: list[str] = []
    grain = inputs = when = ""
    columns: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        if line.startswith("-- grain:"):
            grain = line.removeprefix("-- grain:").strip()
        elif line.startswith("-- inputs:"):
            inputs = line.removeprefix("-- inputs:").strip()
        elif line.startswith("-- when:"):
            when = line.removeprefix("-- when:").strip()
        elif (grain or inputs) and (match := _COLUMN.match(line)):
            columns[match.group(1)] = match.group(2).strip()
        else:
            purpose.append(line.removeprefix("--").strip())
    return " ".join(purpose), grain, inputs, columns, when


@cache
def load(layer: str, name: str) -> SqlFile:
    """One file; SourceError if it is not there."""
    path = sql_root() / layer / f"{name}.sql"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        raise SourceError("no such SQL file", where=f"sql/{layer}/{name}.sql") from None
    return SqlFile(layer, name, text, *_header(text))


def span_sources() -> dict[str, str]:
    """Source files over `spans` → their ``when`` (SQL)."""
    return {name: sql.when for name in SOURCES if (sql := load("sources", name)).inputs == "spans"}


def names(layer: str) -> tuple[str, ...]:
    """The relations of a layer, alphabetically (load order is SOURCES, CORE, ATTRIBUTION)."""
    return tuple(sorted(p.stem for p in (sql_root() / layer).glob("*.sql")))
