"""Who may import whom (ARCHITECTURE.md), and what the bare install must do without."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: Rooms from the ground up; a room imports itself and those before it.
ORDER = ("base", "lake", "ingest", "analysis", "report", "cli", "collectors", "dashboards")
#: Imports against the order that are made inside a function, on purpose.
LAZY = {
    ("base", "ingest"),  # the SDK writes into a local store where it is asked to
    ("base", "lake"),
    ("ingest", "analysis"),  # an import settles its rows at the end
    ("cli", "collectors"),
    ("cli", "dashboards"),
}


def _room(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] == "tracekit_collectors":
        return "collectors"
    if parts[0] == "tracekit_dashboards":
        return "dashboards"
    if parts[0] != "tracekit":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ORDER else "base"


def _imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """(module, True if imported at the top of the file)."""
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, id(node) in top


def _files() -> list[Path]:
    folders = ("tracekit", "collectors/tracekit_collectors", "dashboards/tracekit_dashboards")
    # tracekit/__main__.py is the command itself
    found = (p for f in folders for p in (ROOT / f).rglob("*.py"))
    return sorted(p for p in found if p != ROOT / "tracekit" / "__main__.py")


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    relative = path.relative_to(ROOT)
    parts = relative.with_suffix("").parts
    module = ".".join(parts[1:] if parts[0] in ("collectors", "dashboards") else parts)
    own = _room(module)
    assert own is not None
    for imported, at_top in _imports(ast.parse(path.read_text(encoding="utf-8"))):
        room = _room(imported)
        if room is None or ORDER.index(room) <= ORDER.index(own):
            # collectors and dashboards stand side by side
            assert (own, room) != ("dashboards", "collectors"), f"{relative} imports {imported}"
            continue
        assert not at_top and (own, room) in LAZY, f"{relative} imports {imported}"


def test_the_bare_package_needs_only_opentelemetry() -> None:
    heavy = "duckdb polars pyarrow deltalake numpy scipy orjson typer rich streamlit altair grpc"
    code = (
        "import sys\n"
        f"blocked = set({heavy.split()!r})\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in blocked:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import tracekit, tracekit.chunks, tracekit.names, tracekit.errors, tracekit.testing\n"
        "import tracekit.cli\n"
        "sys.argv = ['tracekit', 'diagnose']\n"
        "try:\n"
        "    code = tracekit.cli.main()\n"
        "except SystemExit as stop:\n"
        "    code = stop.code\n"
        "assert code == 2, code\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1 and "tracekit-llm[analysis]" in done.stderr
