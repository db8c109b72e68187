"""Arrow tables made from, and read into, Python values by their buffers.

PyArrow imports pandas, where it is installed, as soon as it makes an array from a list or NumPy
values, a scalar, or a NumPy array from its own: 0.3 s of a diagnosis. Buffers need no such help,
and no other library of data frames (0.15 s).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: Rows of a query, column by column. NULL is NaN in numbers, None in texts.
Columns: TypeAlias = dict[str, npt.NDArray[Any]]

_INT, _FLOAT, _TEXT = pa.int64(), pa.float64(), pa.string()
_NUMBERS: Final[dict[pa.DataType, type[np.generic]]] = {
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.uint8(): np.uint8,
    pa.uint16(): np.uint16,
    pa.uint32(): np.uint32,
    pa.uint64(): np.uint64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}


def arrow_table(
    columns: Mapping[str, Sequence[Any] | npt.NDArray[Any] | pa.ChunkedArray],
    schema: pa.Schema | None = None,
) -> pa.Table:
    """Columns of equal length as a table; types (int64, float64, string) from ``schema``, else
    from the values. None is NULL. Raises TypeError for a value of another type.
    """
    if schema is None:
        made = [_array(values, _type_of(values)) for values in columns.values()]
        return pa.Table.from_arrays(made, list(columns))
    made = [_array(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(made, schema=schema)


def numpy_column(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """A column of numbers; NULL becomes NaN. Not for writing into."""
    parts = [_numbers(chunk) for chunk in column.chunks]
    if not parts:
        return np.zeros(0, dtype=_NUMBERS[column.type])
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def columns_of(rows: duckdb.DuckDBPyRelation) -> Columns:
    """The rows of a query as NumPy columns: NULL is NaN in numbers, None in texts."""
    return {name: _filled(values) for name, values in rows.fetchnumpy().items()}


def _filled(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if values.dtype == object:
        texts = np.array(values.data, dtype=object)
        texts[np.ma.getmaskarray(values)] = None
        return texts
    return np.where(np.ma.getmaskarray(values), np.nan, values.data)


def _numbers(chunk: pa.Array) -> npt.NDArray[Any]:
    dtype = np.dtype(_NUMBERS[chunk.type])
    valid, data = chunk.buffers()
    start, stop = chunk.offset, chunk.offset + len(chunk)
    values = np.frombuffer(data, dtype)[start:stop] if len(chunk) else np.zeros(0, dtype)
    if not chunk.null_count:
        return values
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[start:stop]
    return np.where(bits == 1, values, np.nan)


def _type_of(values: Sequence[Any] | npt.NDArray[Any] | pa.ChunkedArray) -> pa.DataType:
    if isinstance(values, pa.ChunkedArray):
        return values.type
    if isinstance(values, np.ndarray) and values.dtype != object:
        return _INT if values.dtype.kind in "iu" else _FLOAT
    known = [v for v in values if v is not None]
    if any(isinstance(v, str) for v in known):
        return _TEXT
    return _INT if known and all(isinstance(v, int | np.integer) for v in known) else _FLOAT


def _array(
    values: Sequence[Any] | npt.NDArray[Any] | pa.ChunkedArray, kind: pa.DataType
) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.ChunkedArray):
        return values
    if isinstance(values, np.ndarray) and values.dtype != object:
        if values.dtype.kind == "u" and values.size and values.max() > np.iinfo(np.int64).max:
            raise OverflowError(f"{values.max()} is too large for a column of {kind}")
        whole = np.ascontiguousarray(values.astype(_NUMBERS[kind], casting="same_kind"))
        return pa.Array.from_buffers(kind, len(whole), [None, pa.py_buffer(whole)])
    valid = np.fromiter((v is not None for v in values), np.bool_, len(values))
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    if kind == _TEXT:
        texts = [b"" if v is None else v.encode() for v in values]
        ends = np.zeros(len(texts) + 1, dtype=np.int32)
        np.cumsum([len(t) for t in texts], out=ends[1:])
        return pa.Array.from_buffers(
            kind, len(texts), [bits, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
        )
    if kind not in (_INT, _FLOAT):
        raise TypeError(f"no column of {kind} is made from Python values")
    numbers = array("q" if kind == _INT else "d", [0 if v is None else v for v in values])
    return pa.Array.from_buffers(kind, len(numbers), [bits, pa.py_buffer(numbers)])
