"""Tables as the dashboard shows them: units in the headings, right digits, CSV beneath.

Owns the columns' looks. A duration keeps its unit in its heading and one decimal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl
import streamlit as st

from tracekit_dashboards import texts

#: Shares of 1 that are shown in per cent; their CSV keeps the share.
_PERCENT: Final = frozenset({"coverage", "dram_bw_util", "sm_util", "gpu_time_util"})
_DIGITS: Final = {"ms": 1, "_s": 1, "_pct": 1, "_share": 3}


def show(
    frame: pl.DataFrame,
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    order: Sequence[str] | None = None,
    key: str | None = None,
    height: int | None = None,
) -> None:
    """A table and its CSV; ``name`` is the file's, ``labels`` headings by column.

    ``order`` says which columns are shown, and in which order; the CSV holds all of them.
    """
    st.dataframe(
        frame,
        hide_index=True,
        column_order=order,
        column_config=columns(frame, labels or {}),
        key=key,
        height="auto" if height is None else height,
        placeholder=texts.NO_ENTRY,
    )
    csv_button(frame, name)


def csv_button(frame: pl.DataFrame, name: str) -> None:
    """A button that downloads ``frame``; the CSV is made when it is pressed."""
    st.download_button(
        texts.DOWNLOAD_CSV,
        lambda: to_csv(frame).encode(),
        file_name=f"tracekit-{name}.csv",
        mime="text/csv",
        key=f"csv-{name}",
        help=texts.DOWNLOAD_HELP,
        icon=":material/download:",
        on_click="ignore",
        type="tertiary",
    )


def to_csv(frame: pl.DataFrame) -> str:
    """The frame as CSV; nested values as JSON text, times in ISO form."""
    nested = [name for name, kind in frame.schema.items() if kind.is_nested()]
    flat = frame.with_columns(
        pl.col(name).map_elements(_plain, return_dtype=pl.String) for name in nested
    )
    return flat.write_csv()


def columns(frame: pl.DataFrame, labels: Mapping[str, str]) -> dict[str, Any]:
    """Streamlit's column settings by the type and unit that a column's name says."""
    config: dict[str, Any] = {}
    for name, kind in frame.schema.items():
        label = labels.get(name, name)
        if isinstance(kind, pl.Datetime):
            config[name] = st.column_config.DatetimeColumn(
                label, format="YYYY-MM-DD HH:mm:ss", timezone="UTC"
            )
        elif kind.is_float() and label.endswith("[%]") and name in _PERCENT:
            config[name] = st.column_config.NumberColumn(label, format="percent")
        elif kind.is_float():
            digits = next((d for end, d in _DIGITS.items() if name.endswith(end)), 2)
            config[name] = st.column_config.NumberColumn(label, format=f"%.{digits}f")
        elif kind.is_integer():
            config[name] = st.column_config.NumberColumn(label, format="localized")
        else:
            config[name] = st.column_config.Column(label)
    return config


def _plain(value: Any) -> str:
    return str(value.to_list() if isinstance(value, pl.Series) else value)
