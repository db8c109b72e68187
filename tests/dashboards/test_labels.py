"""Headings are words with units, not the names of columns."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.names import PHASES
from tracekit_dashboards import tables, texts

_UNITS = {"_ms": "[ms]", "_tokens": "[tokens]", "_w": "[W]", "_hz": "[Hz]", "_bytes": "[bytes]"}
_ALL = texts.COLUMNS | texts.HEALTH_COLUMNS | texts.GPU_COLUMNS


@pytest.mark.parametrize("name", _ALL)
def test_every_heading_is_in_words_and_says_its_unit(name: str) -> None:
    label = _ALL[name]
    assert "_" not in label
    for end, unit in _UNITS.items():
        if name.endswith(end):
            assert label.endswith(unit)


def test_every_phase_has_a_heading() -> None:
    assert {f"{phase}_ms" for phase in PHASES} <= set(texts.COLUMNS)


def test_a_share_is_shown_in_per_cent_and_exported_as_it_is() -> None:
    frame = pl.DataFrame({"coverage": [0.925], "match_share": [0.5]})
    config = tables.columns(frame, texts.COLUMNS)
    assert config["coverage"]["label"] == "explained [%]"
    assert config["coverage"]["type_config"]["format"] == "percent"
    assert config["match_share"]["type_config"]["format"] == "%.3f"
    # a query's own column of that name has no heading of ours: it is shown as it is
    plain = tables.columns(frame, {})
    assert plain["coverage"]["type_config"]["format"] == "%.2f"
    assert tables.to_csv(frame).splitlines()[1] == "0.925,0.5"
