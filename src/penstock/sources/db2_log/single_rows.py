"""Single row images: the values of one row as the data manager logs them, as canonical text.

A column whose value does not lie in the row is `OUT`: it comes from records of the LOB manager, or did not change.
`bulk_columns` reads many ordinary rows at once.
"""

from __future__ import annotations

import base64
import codecs
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NoReturn

from penstock.errors import OperatorError
from penstock.formats.debezium.numbers import float32_text, float_text
from penstock.sources.db2_log.catalog import GRAPHIC, Catalog, Db2Column, Db2Table

FORMATTED, VALUE_COMPRESSED = 0x01, 0x02


class ValuePlace(Enum):
    """Where a value is that is not text."""

    OUT = "out of row"


Value = str | None | ValuePlace

_DEFAULT, _NULL = 0x80, 0x01
INLINE_HEADER = 4
INLINE_MARK, EMPTY_MARK = 0x69, 0x80
_NUMBERS = ("SMALLINT", "INTEGER", "BIGINT", "REAL", "DOUBLE", "DECIMAL")
_CODES = {"SMALLINT": "h", "INTEGER": "i", "BIGINT": "q", "REAL": "f", "DOUBLE": "d", "BOOLEAN": "B"}


class RowError(Exception):
    """A row image breaks its format; the text names the column, and never a value."""


def holds_row(outer: int, inner: int) -> bool:
    """Whether an image holds a user's row, by its record type and its row type."""
    return (outer in (0x00, 0x10) or bool(outer & 0x04)) and bool(inner & 0x03)


@dataclass(frozen=True)
class RowDecoder:
    """Reads the row images of one version of a table. What can be worked out once is worked out when it is made.

    Raises:
        OperatorError: A column has a type whose values are not known how to read.
    """

    table: Db2Table
    catalog: Catalog

    @cached_property
    def _numbers(self) -> dict[str, struct.Struct]:
        return {name: struct.Struct(self.catalog.form.endian + code) for name, code in _CODES.items()}

    @cached_property
    def texts(self) -> Sequence[Callable[[Any], str]]:
        """For each column, what makes canonical text of its bytes, or of a number that `struct` has read."""
        return [self._text(column) for column in self.table.columns]

    @cached_property
    def layouts(self) -> dict[int, tuple[struct.Struct, list[tuple[str, int, int, Callable[[Any], str], Db2Column]]]]:
        """For each length of the fixed part that a row may have: how it is read, and which field is which column.

        The fields of the struct are the columns in order, an offset and a length for a varying one, and a null byte
        behind each nullable one. A shorter row is older than the columns that it lacks.
        """
        found, codes, plan, field = {}, self.catalog.form.endian, [], 0
        for column, text in zip(self.table.columns, self.texts, strict=True):
            codes += self._code(column)
            at, field = field, field + (2 if column.is_varying else 1)
            null = -1
            if column.is_nullable:
                codes, null, field = codes + "B", field, field + 1
            plan.append((column.name, at, null, text, column))
            layout = struct.Struct(codes)
            found[layout.size] = (layout, list(plan))
        return found

    def width(self, column: Db2Column) -> int:
        """How many bytes of the fixed part a column has, without its null byte."""
        return struct.calcsize(self.catalog.form.endian + self._code(column))

    def is_utf8(self, column: Db2Column) -> bool:
        """Whether a column holds text in UTF-8."""
        is_text = column.type in ("CHAR", "VARCHAR", "CLOB") and not column.is_bit_data
        return is_text and codecs.lookup(self.catalog.encoding).name == "utf-8"

    def decode(self, image: memoryview) -> dict[str, Value]:
        """Return the values of a row by column, in the table's order.

        Args:
            image: From its record type to its end, by its own length.

        Raises:
            RowError: It does not lie as the catalogue says.
        """
        inner, size = image[4], struct.unpack_from(self.catalog.form.endian + "H", image, 6)[0]
        if inner & FORMATTED and inner & VALUE_COMPRESSED:
            raise RowError("the row says that it is stored both with and without VALUE COMPRESSION")
        return self._compressed(image, size) if inner & VALUE_COMPRESSED else self._formatted(image, size)

    def _formatted(self, image: memoryview, fixed: int) -> dict[str, Value]:
        base = image[8:]
        found = self.layouts.get(fixed)
        if found is None or fixed > len(base):
            what = (
                f"the fixed part of the row has {fixed} bytes, which is not a length that the catalogue's columns make"
            )
            raise RowError(what)
        layout, plan = found
        fields = layout.unpack_from(base)
        row: dict[str, Value] = {}
        for name, at, null, text, column in plan:
            # One bit is documented; what the others say is not.
            if null >= 0 and fields[null] & _NULL:
                row[name] = None
            elif column.is_varying:
                row[name] = self._varying(base, fixed, (fields[at], fields[at + 1]), column, text)
            else:
                row[name] = _read(text, fields[at], column)
        for column in self.table.columns[len(plan) :]:
            row[column.name] = _default(column)
        return row

    def _varying(
        self, base: memoryview, fixed: int, place: tuple[int, int], column: Db2Column, text: Callable[[Any], str]
    ) -> Value:
        offset, length = place
        if offset & 0x8000:
            if not column.is_lob and length != 24:
                raise RowError(f"column {column.name!r} is out of row, with a descriptor of {length} bytes, not of 24")
            return ValuePlace.OUT
        if length and (offset < fixed or offset + length > len(base)):
            raise RowError(f"the value of column {column.name!r} does not lie inside the row")
        data = base[offset : offset + length]
        if not column.is_lob:
            return _read(text, data, column)
        if length == 0:
            return ""
        # A value that is longer than what may be inline is a descriptor, whatever it begins with.
        inline = column.inline_length
        if inline is not None and length > inline:
            return ValuePlace.OUT
        if data[0] not in (INLINE_MARK, EMPTY_MARK):
            return ValuePlace.OUT
        if inline is None:
            raise RowError(f"column {column.name!r} may be inline or out of row: the catalogue lacks its inline_length")
        if data[0] == EMPTY_MARK:
            return ""
        if length < INLINE_HEADER:
            raise RowError(f"the inline value of column {column.name!r} is shorter than its header")
        return _read(text, data[INLINE_HEADER:], column)

    def _compressed(self, image: memoryview, count: int) -> dict[str, Value]:
        columns = self.table.columns
        if self.table.lob_numbers:
            raise RowError("the row is stored with VALUE COMPRESSION, and the table has LOBs: how these lie is unknown")
        if count > len(columns):
            raise RowError(f"the row has {count} columns, the catalogue {len(columns)}")
        if 8 + 2 * (count + 1) > len(image):
            raise RowError("the row ends inside its offsets")
        entries = struct.unpack_from(f"{self.catalog.form.endian}{count + 1}H", image, 8)
        starts = [(entry & 0x7FFF) - (entries[0] & 0x7FFF) for entry in entries]
        data = image[8 + 2 * (count + 1) :]
        if starts != sorted(starts) or starts[-1] != len(data):
            raise RowError("the offsets of the row do not end where it does")
        row: dict[str, Value] = {}
        for n, column in enumerate(columns[:count]):
            part = data[starts[n] : starts[n + 1]]
            if not entries[n] & 0x8000:
                row[column.name] = self._whole(column, part, n)
            elif column.is_varying and len(part) == 24:
                row[column.name] = ValuePlace.OUT
            elif len(part) == 1 and part[0] == _NULL and column.is_nullable:
                row[column.name] = None
            elif len(part) == 1 and part[0] == _DEFAULT:
                row[column.name] = self._system_default(column)
            else:
                raise RowError(f"column {column.name!r} has an attribute that is not known")
        for column in columns[count:]:
            row[column.name] = _default(column)
        return row

    def _whole(self, column: Db2Column, part: memoryview, n: int) -> str:
        if column.is_varying:
            return _read(self.texts[n], part, column)
        code = struct.Struct(self.catalog.form.endian + self._code(column))
        if code.size != len(part):
            raise RowError(f"column {column.name!r} has {len(part)} bytes, where its type has {code.size}")
        return _read(self.texts[n], code.unpack(part)[0], column)

    def _system_default(self, column: Db2Column) -> str:
        if column.type == "DECIMAL":
            return _decimal_text(0, column.scale)
        if column.type in _NUMBERS:
            return "0"
        if column.type == "CHAR" and not column.is_bit_data:
            return ""
        raise RowError(f"column {column.name!r} has a system default, which is not known for type {column.type}")

    def _code(self, column: Db2Column) -> str:
        if column.is_varying:
            return "HH"
        match column.type:
            case "DECIMAL":
                return f"{column.length // 2 + 1}s"
            case "CHAR" | "BINARY":
                return f"{column.length}s"
            case "GRAPHIC":
                return f"{2 * column.length}s"
            case "DATE":
                return "4s"
            case "TIME":
                return "3s"
            case "TIMESTAMP":
                return f"{7 + (column.scale + 1) // 2}s"
        return _CODES[column.type]

    def _text(self, column: Db2Column) -> Callable[[Any], str]:
        type_, catalog = column.type, self.catalog
        if type_ in GRAPHIC and catalog.graphic is None:
            self._refuse(column, "set `graphic` in the catalogue to utf-16-le or utf-16-be, once you have made sure")
        match type_:
            case "SMALLINT" | "INTEGER" | "BIGINT":
                return str
            case "REAL":
                return float32_text
            case "DOUBLE":
                return float_text
            case "BOOLEAN":
                return lambda number: "true" if number else "false"
            case "DECIMAL":
                return lambda data: packed_decimal(data, column.scale)
            case "DATE":
                return _date
            case "TIME":
                return _time
            case "TIMESTAMP":
                return lambda data: _timestamp(data, column.scale)
            case "BINARY" | "VARBINARY" | "BLOB":
                return _base64
            case "CHAR" | "VARCHAR" if column.is_bit_data:
                return _base64
            case "CHAR":
                return lambda data: str(data, catalog.encoding).rstrip(" ")
            case "VARCHAR" | "CLOB":
                return lambda data: str(data, catalog.encoding)
            case "GRAPHIC":
                return lambda data: str(data, catalog.graphic or "").rstrip(" \u3000")
            case "VARGRAPHIC" | "DBCLOB":
                return lambda data: str(data, catalog.graphic or "")
        return self._refuse(column, "leave the table out of the catalogue")

    def _refuse(self, column: Db2Column, do: str) -> NoReturn:
        raise OperatorError(
            f"cannot read {self.table.name}: how values of type {column.type} are logged, as in column"
            f" {column.name!r}, is not documented",
            do=do,
        )


def _read(text: Callable[[Any], str], data: Any, column: Db2Column) -> str:
    try:
        return text(data)
    except (ValueError, LookupError) as exc:
        # Not what the exception says, which may repeat the value.
        raise RowError(f"what is logged of column {column.name!r} is no {column.type}") from exc


def _base64(data: Any) -> str:
    return base64.b64encode(data).decode("ascii")


def packed_decimal(data: bytes, scale: int) -> str:
    """Read a packed decimal; `bulk_columns` has `_packed_decimals` for many."""
    digits = data.hex()
    sign, digits = digits[-1], digits[:-1]
    if sign not in "abcdef" or not digits.isdecimal():
        raise ValueError
    return _decimal_text(-int(digits) if sign in "bd" else int(digits), scale)


def _decimal_text(unscaled: int, scale: int) -> str:
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    sign = "-" if unscaled < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


def _date(data: bytes) -> str:
    digits = data.hex()
    if not digits.isdecimal() or not 1 <= int(digits[4:6]) <= 12 or not 1 <= int(digits[6:]) <= 31:
        raise ValueError
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:]}"


def _time(data: bytes) -> str:
    digits = data.hex()
    if not digits.isdecimal() or digits > "240000" or digits[2:4] > "59" or digits[4:] > "59":
        raise ValueError
    return f"{digits[:2]}:{digits[2:4]}:{digits[4:]}.000000"


def _timestamp(data: bytes, scale: int) -> str:
    fraction = data[7:].hex()
    if fraction and not fraction.isdecimal():
        raise ValueError
    part = fraction[:scale].ljust(6, "0")
    return f"{_date(data[:4])}T{_time(data[4:7])[:8]}.{part}"


def _default(column: Db2Column) -> str | None:
    """What a row holds that is older than a column."""
    said = column.default
    if said is None or said.strip().upper() == "NULL":
        if column.is_nullable:
            return None
    elif column.type in ("SMALLINT", "INTEGER", "BIGINT") and said.strip().lstrip("-").isdecimal():
        return str(int(said))
    elif column.type in ("CHAR", "VARCHAR", "CLOB") and not column.is_bit_data and said[:1] == said[-1:] == "'" != said:
        text = said[1:-1].replace("''", "'")
        return text.rstrip(" ") if column.type == "CHAR" else text
    raise RowError(f"the row is older than column {column.name!r}, whose default is not known to be of that time")
