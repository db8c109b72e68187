"""Arrow tables by their buffers, and back."""

from __future__ import annotations

import math

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analysis._arrow import arrow_table, columns_of, numpy_column

_INTS = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=20)
_FLOATS = st.lists(st.none() | st.floats(allow_nan=False), max_size=20)
_TEXTS = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"])), max_size=20)


@settings(deadline=None)
@given(_INTS, _FLOATS, _TEXTS)
def test_values_come_back(
    ints: list[int | None], floats: list[float | None], texts: list[str | None]
) -> None:
    n = min(len(ints), len(floats), len(texts))
    numbers: dict[str, list[int | None] | list[float | None]] = {"i": ints[:n], "f": floats[:n]}
    given_ = {**numbers, "t": texts[:n]}
    schema = pa.schema([("i", pa.int64()), ("f", pa.float64()), ("t", pa.string())])
    made = arrow_table(given_, schema)
    made.validate(full=True)
    assert made.to_pydict() == given_
    for name, values in numbers.items():
        for value, found in zip(values, numpy_column(made[name]).tolist(), strict=True):
            # where some are missing, whole numbers are read as floats
            assert math.isnan(found) if value is None else found == pytest.approx(value)


@settings(deadline=None)
@given(_FLOATS, st.integers(0, 20), st.integers(0, 20))
def test_a_slice_is_read_from_its_place(
    values: list[float | None], start: int, length: int
) -> None:
    column = pa.chunked_array([pa.array(values, pa.float64()).slice(start, length)])
    expected = [math.nan if v is None else v for v in values[start : start + length]]
    assert numpy_column(column).tolist() == pytest.approx(expected, nan_ok=True)


def test_types_without_a_schema_are_those_of_the_values() -> None:
    made = arrow_table(
        {"i": [1, None], "f": [1, 2.5], "t": ["a", None], "n": np.array([1, 2]), "none": [None] * 2}
    )
    assert [str(t) for t in made.schema.types] == ["int64", "double", "string", "int64", "double"]


def test_what_does_not_fit_is_refused() -> None:
    for value, kind in ((1.5, pa.int64()), ("a", pa.float64()), (2**63, pa.int64())):
        with pytest.raises((TypeError, OverflowError)):
            arrow_table({"c": [value]}, pa.schema([("c", kind)]))
    with pytest.raises(OverflowError):
        arrow_table({"c": np.array([2**63], dtype=np.uint64)})


def test_rows_of_a_query_as_columns() -> None:
    with duckdb.connect() as con:
        found = columns_of(
            con.sql(
                "select * from (values (1, 'a', 1.5), (2, null, null), (3, 'é', 2.5)) as v(i, t, f)"
            )
        )
        empty = columns_of(con.sql("select null::double as f, null::varchar as t where false"))
    assert found["i"].tolist() == [1, 2, 3]
    assert found["t"].tolist() == ["a", None, "é"]
    assert [math.isnan(v) for v in found["f"]] == [False, True, False]
    assert len(empty["f"]) == len(empty["t"]) == 0
