"""Real users' problems as acceptance tests: each folder is one, README.md says how to read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import _judge, make_cases

_FOLDER = Path(__file__).parent
_NAMES = sorted(p.parent.name for p in _FOLDER.glob("*/expected.json"))


@pytest.mark.parametrize("name", _NAMES)
def test_case(name: str, tmp_path: Path) -> None:
    folder = _FOLDER / name
    expected = _judge.load(folder)
    pending = expected.get("pending", {})
    found = _judge.failures(expected, _judge.ask(folder, tmp_path / "store", expected))
    new = {check: told for check, told in found.items() if check not in pending}
    mended = sorted(set(pending) - set(found))
    lines = [f"{expected['story']} ({expected['about']})"]
    lines += [f"  {check}: {told}" for check, told in new.items()]
    assert not new, "\n".join(lines)
    assert not mended, f"no longer pending, take them out of {name}/expected.json: {mended}"


def test_inputs_are_what_the_scenarios_make() -> None:
    cases = make_cases.make_all()
    assert [c.name for c in cases] == _NAMES
    for case in cases:
        folder = _FOLDER / case.name
        on_disk = {p.name: make_cases.read(p) for p in folder.iterdir()}
        expected = _judge.load(folder)
        pending = expected.pop("pending", None)
        assert expected == make_cases.expected(case), f"run make_cases: {case.name}/expected.json"
        assert pending is None or pending, "an empty pending is no pending"
        del on_disk["expected.json"]
        assert on_disk == make_cases.folder_files(case), f"run make_cases: {case.name}"


def test_the_folder_stays_small() -> None:
    size = sum(p.stat().st_size for p in _FOLDER.rglob("*") if p.is_file() and p.suffix != ".pyc")
    assert size < 1_500_000
