"""Arrow tables made from, and read into, Python values without pandas.

PyArrow imports pandas, where it is installed, as soon as it makes an array from a list or NumPy
values, a scalar, or a NumPy array from its own: 0.3 s of a diagnosis. Polars does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import polars as pl
import pyarrow as pa


def arrow_table(
    columns: Mapping[str, Sequence[Any] | npt.NDArray[Any] | pl.Series],
    schema: pa.Schema | None = None,
) -> pa.Table:
    """Columns of equal length as a table; types from ``schema``, else from the values."""
    if schema is None:
        return pl.DataFrame(dict(columns)).to_arrow()
    return pl.DataFrame(dict(columns), schema=pl.Schema(schema)).to_arrow().cast(schema)


def numpy_column(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """A column of numbers; NULL becomes NaN. Not for writing into."""
    return pl.Series(column).to_numpy()
