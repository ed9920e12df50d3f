"""Row images in bulk: many rows of one version of a table, column by column, without a Python object per row.

`single_rows.RowDecoder` says what a row's values are. Here they are read only where it is certain that it would say the
same; every other row is named as odd and left to it, whatever is unusual or wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.sources.db2_log.catalog import Db2Column
from penstock.sources.db2_log.single_rows import EMPTY_MARK, INLINE_HEADER, INLINE_MARK, VALUE_COMPRESSED, RowDecoder

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_CODES = {"SMALLINT": "i2", "INTEGER": "i4", "BIGINT": "i8", "REAL": "f4", "DOUBLE": "f8", "BOOLEAN": "u1"}
_MOST_DIGITS = 18
"""A decimal of so many digits fits into 64 bits."""

_HEADERS = 8

_LONG = 200
"""Pieces of more bytes, on average, are copied one by one: an index for each byte costs more."""


@dataclass(frozen=True)
class ColumnValues:
    """Values of rows, an entry for each row in every array.

    Attributes:
        values: String arrays by column, in the table's order; null is SQL NULL, and what `rows` calls `OUT`.
        is_out: For each LOB, whether its value lies out of the row.
        is_odd: Whether a row is left to `RowDecoder`; its values mean nothing.
    """

    values: Mapping[str, pa.Array]
    is_out: Mapping[str, Bools]
    is_odd: Bools


@dataclass(frozen=True)
class ColumnDecoder:
    """Reads row images of one version of a table."""

    rows: RowDecoder

    @cached_property
    def _fixed(self) -> int:
        """The length of the fixed part of a row that has all columns."""
        return max(self.rows.layouts)

    def decode(self, data: Bytes, starts: Ints) -> ColumnValues | None:
        """Return the values of rows; None where a text is not in the database's code page, or a value cannot be read.

        Args:
            data: What the images lie in.
            starts: Where each begins, with its record type; by its own length, it lies inside `data`.
        """
        endian, fixed = self.rows.catalog.form.endian, self._fixed
        # One line for each row: the record's header and the row's, four bytes each.
        heads = lines(data, starts, _HEADERS)
        sizes = _numbers(heads, 2, endian + "u2") - _HEADERS
        is_odd = (heads[:, 4] & VALUE_COMPRESSED != 0) | (_numbers(heads, 6, endian + "u2") != fixed) | (sizes < fixed)
        # An odd row is read where a sound one lies, so that nothing is read behind the end.
        if is_odd.all():
            return None
        starts = np.where(is_odd, starts[~is_odd][0], starts) + _HEADERS
        sizes = np.where(is_odd, sizes[~is_odd][0], sizes)
        block = lines(data, starts, fixed)
        read = _Read(self.rows, data, starts, sizes, block, is_odd)
        values, at = {}, 0
        try:
            for number, column in enumerate(self.rows.table.columns):
                width = self.rows.width(column)
                is_null = np.zeros(len(starts), np.bool_)
                if column.is_nullable:
                    is_null = block[:, at + width] & 1 != 0
                values[column.name] = read.column(column, self.rows.texts[number], at, width, is_null)
                at += width + column.is_nullable
        except (pa.ArrowInvalid, ValueError, LookupError):
            return None
        return ColumnValues(values, read.is_out, read.is_odd)


def lines(data: Bytes, starts: Ints, width: int) -> Bytes:
    """Copy so many bytes from each of the starts on, a line for each."""
    return np.lib.stride_tricks.sliding_window_view(data, width)[starts]


@dataclass
class _Read:
    """Rows as they lie in `data`: where each begins behind its headers, how long it is, and its fixed part."""

    rows: RowDecoder
    data: Bytes
    starts: Ints
    sizes: Ints
    block: Bytes
    is_odd: Bools
    is_out: dict[str, Bools] = field(default_factory=dict)

    def column(self, column: Db2Column, text: Callable[[Any], str], at: int, width: int, is_null: Bools) -> pa.Array:
        """Return the texts of a column that lies at an offset of the fixed part."""
        if column.is_varying:
            return self._varying(column, text, at, is_null)
        part, mask = self.block[:, at : at + width], pa.array(is_null)
        match column.type:
            case "SMALLINT" | "INTEGER" | "BIGINT":
                numbers = _numbers(part, 0, self.rows.catalog.form.endian + _CODES[column.type])
                texts = pa.array(numbers).cast(pa.string())
            case "DECIMAL" if 2 * width - 1 <= _MOST_DIGITS:
                texts = self._packed_decimals(part, column.scale, is_null)
            case "DATE" | "TIME" | "TIMESTAMP":
                texts = self._time(part, column, is_null)
            case "CHAR" if self.rows.is_utf8(column):
                whole = pa.Array.from_buffers(
                    pa.binary(width), len(part), [None, pa.py_buffer(np.ascontiguousarray(part))]
                )
                texts = pc.utf8_rtrim(_as_text(whole.cast(pa.binary()), is_null | self.is_odd), " ")
            case "REAL" | "DOUBLE" | "BOOLEAN":
                numbers = _numbers(part, 0, self.rows.catalog.form.endian + _CODES[column.type], np.float64)
                texts = _each(text, numbers.tolist(), is_null | self.is_odd)
            case _:
                texts = _each(text, [bytes(one) for one in part], is_null | self.is_odd)
        return pc.if_else(mask, pa.scalar(None, pa.string()), texts)

    def _varying(self, column: Db2Column, text: Callable[[Any], str], at: int, is_null: Bools) -> pa.Array:
        code = self.rows.catalog.form.endian + "u2"
        offsets, sizes = _numbers(self.block, at, code), _numbers(self.block, at + 2, code)
        fixed, is_there = self.block.shape[1], ~is_null
        is_out = is_there & (offsets & 0x8000 != 0)
        is_there &= ~is_out & (sizes > 0)
        is_wrong = is_there & ((offsets < fixed) | (offsets + sizes > self.sizes))
        is_there &= ~is_wrong
        if column.is_lob:
            marks = self.data[np.where(is_there, self.starts + offsets, 0)]
            is_longer = is_there & (sizes > (column.inline_length if column.inline_length is not None else 1 << 16))
            is_external = is_there & (is_longer | ((marks != INLINE_MARK) & (marks != EMPTY_MARK)))
            is_inline = is_there & ~is_external & (marks == INLINE_MARK) & (sizes >= INLINE_HEADER)
            is_inline &= column.inline_length is not None
            is_wrong |= is_there & ~is_external & ~is_inline
            is_out |= is_external
            self.is_out[column.name] = is_out
            is_there, offsets, sizes = is_inline, offsets + INLINE_HEADER, sizes - INLINE_HEADER
        else:
            is_wrong |= is_out
        self.is_odd |= is_wrong
        sizes = np.where(is_there & ~self.is_odd, sizes, 0)
        gathered = _slices(self.data, np.where(sizes > 0, self.starts + offsets, 0), sizes)
        is_none = is_null | is_out
        if self.rows.is_utf8(column):
            return _as_text(gathered, is_none)
        return _each(text, gathered.to_pylist(), is_none)

    def _packed_decimals(self, part: Bytes, scale: int, is_null: Bools) -> pa.Array:
        """Read packed decimals; `single_rows.packed_decimal` reads one, and must say the same."""
        # Two digits a byte, the last one is the sign.
        nibbles = _nibbles(part)
        sign, digits = nibbles[:, -1], nibbles[:, :-1]
        self.is_odd |= ~is_null & ((digits > 9).any(axis=1) | (sign < 10))
        powers = 10 ** np.arange(digits.shape[1] - 1, -1, -1, dtype=np.int64)
        unscaled = digits.astype(np.int64) @ powers
        is_below = ((sign == 0xB) | (sign == 0xD)) & (unscaled != 0)
        signs = pc.if_else(pa.array(is_below), "-", "")
        if not scale:
            return pc.binary_join_element_wise(signs, pa.array(unscaled).cast(pa.string()), "")
        whole = pa.array(unscaled // 10**scale).cast(pa.string())
        rest = pc.utf8_lpad(pa.array(unscaled % 10**scale).cast(pa.string()), scale, "0")
        return pc.binary_join_element_wise(pc.binary_join_element_wise(signs, whole, ""), rest, ".")

    def _time(self, part: Bytes, column: Db2Column, is_null: Bools) -> pa.Array:
        # Two digits a byte: YYYYMMDD, hhmmss, or both and a fraction.
        digits = _nibbles(part)
        is_wrong = (digits > 9).any(axis=1)
        pairs = 10 * digits[:, 0::2].astype(np.int64) + digits[:, 1::2]
        template, width = b"", 0
        if column.type != "TIME":
            month, day = pairs[:, 2], pairs[:, 3]
            is_wrong |= (month < 1) | (month > 12) | (day < 1) | (day > 31)
            template, width = b"0123-45-67", 8
        if column.type != "DATE":
            hour, minute, second = (pairs[:, width // 2 + n] for n in range(3))
            is_wrong |= (minute > 59) | (second > 59) | ((hour * 100 + minute) * 100 + second > 240000)
            template += (b"T" if template else b"") + b"hh:mm:ss." + b"f" * max(6, column.scale)
        self.is_odd |= ~is_null & is_wrong
        made = np.tile(np.frombuffer(template, np.uint8), (len(part), 1))
        places = [n for n, byte in enumerate(template) if chr(byte).isalnum() and byte != ord("T")]
        given = digits[:, : width + (0 if column.type == "DATE" else 6 + column.scale)]
        made[:, places] = ord("0")
        made[:, places[: given.shape[1]]] = given + ord("0")
        offsets = np.arange(0, (len(part) + 1) * len(template), len(template), dtype=np.int32)
        return pa.Array.from_buffers(pa.string(), len(part), [None, pa.py_buffer(offsets), pa.py_buffer(made)])


def _numbers(part: Bytes, at: int, code: str, to: type = np.int64) -> NDArray[Any]:
    """What lies at an offset of each line, as numbers."""
    size = np.dtype(code).itemsize
    return np.ascontiguousarray(part[:, at : at + size]).view(code)[:, 0].astype(to)


def _nibbles(part: Bytes) -> Bytes:
    made = np.empty((len(part), 2 * part.shape[1]), np.uint8)
    made[:, 0::2], made[:, 1::2] = part >> 4, part & 15
    return made


def _slices(data: Bytes, starts: Ints, sizes: Ints) -> pa.Array:
    """Return pieces of bytes as a binary array."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    if ends[-1] >= 1 << 31:
        raise ValueError
    if ends[-1] > _LONG * len(sizes):
        whole = memoryview(data.data)
        content: Any = b"".join(
            [whole[at : at + size] for at, size in zip(starts.tolist(), sizes.tolist(), strict=True)]
        )
    else:
        # For each byte of the result where it comes from: its own place, moved by as much as its piece is.
        content = data[np.repeat(starts - ends[:-1], sizes) + np.arange(ends[-1])]
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


def _as_text(values: pa.Array, is_none: Bools) -> pa.Array:
    """Return bytes as text; what is none may be anything. Raises `pa.ArrowInvalid` where they are not UTF-8."""
    return pc.if_else(pa.array(is_none), pa.scalar(None, pa.binary()), values).cast(pa.string())


def _each(text: Callable[[Any], str], values: list[Any], is_none: Bools) -> pa.Array:
    found = [None if none else text(value) for value, none in zip(values, is_none.tolist(), strict=True)]
    return pa.array(found, pa.string())
