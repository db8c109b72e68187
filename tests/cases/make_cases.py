"""Writes the case folders: ``python -m tests.cases.make_cases`` from the repository's root.

Owns which cases there are and how they lie on disk. Same code, same bytes: every case has its own
seeded generator. A key ``pending`` of an ``expected.json`` is kept as it stands: it is written by
whoever runs the cases, not by the scenario.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any, Final

from tests.cases import _abstain, _cache, _causes, _decode, _dirty, _front, _transfer
from tests.cases._case import Case

FOLDER: Final = Path(__file__).parent

#: A larger file is written with gzip.
PLAIN_BYTES: Final = 24_000

_SCENARIOS: Final = (
    *_decode.CASES,
    *_front.CASES,
    *_cache.CASES,
    *_transfer.CASES,
    *_causes.CASES,
    *_abstain.CASES,
    *_dirty.CASES,
)


def make_all() -> list[Case]:
    """Every case, in the order of its name."""
    return sorted((make() for make in _SCENARIOS), key=lambda c: c.name)


def folder_files(case: Case) -> dict[str, bytes]:
    """Name on disk to content before compression (``.gz`` in the name: to be compressed)."""
    files = {}
    for name, text in case.files.items():
        data = text.encode()
        files[name + ".gz" if len(data) > PLAIN_BYTES else name] = data
    return files


def expected(case: Case, pending: dict[str, str] | None = None) -> dict[str, Any]:
    """The content of ``expected.json``."""
    out: dict[str, Any] = {"about": case.about, "story": case.story, **case.expect}
    if pending:
        out["pending"] = pending
    return out


def read(path: Path) -> bytes:
    """A file's content, decompressed: how well gzip packs is no matter of ours."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def write(case: Case, folder: Path) -> None:
    """Write one case below ``folder``; files of before that it no longer has are removed."""
    target = folder / case.name
    target.mkdir(parents=True, exist_ok=True)
    note = target / "expected.json"
    pending = json.loads(note.read_text()).get("pending") if note.exists() else None
    files = folder_files(case)
    for old in target.iterdir():
        if old.name not in files and old != note:
            old.unlink()
    for name, data in files.items():
        path = target / name
        if not path.exists() or read(path) != data:
            path.write_bytes(gzip.compress(data, 9, mtime=0) if name.endswith(".gz") else data)
    note.write_text(
        json.dumps(expected(case, pending), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def main() -> None:
    wanted = set(sys.argv[1:])
    for case in make_all():
        if not wanted or case.name in wanted:
            write(case, FOLDER)
            print(case.name)


if __name__ == "__main__":
    main()
