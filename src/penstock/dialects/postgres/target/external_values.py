"""Values that an image does not hold, on their way into a row: in pieces, none of which is the whole value.

The pieces go into a table of the session's own, and the statement that writes the row puts them together. So only the
server ever holds a value whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from penstock.apply.apply_errors import TYPE_DIFFERS, VALUE_MISSING, VALUE_TOO_LONG, ApplyError
from penstock.apply.target import TargetTable
from penstock.change import Image
from penstock.dialects.postgres.casts import value_sql
from penstock.dialects.postgres.connection import Connection, quote
from penstock.dialects.postgres.target.row_sql import PARAMETER, mark_of
from penstock.errors import OperatorError
from penstock.external_values import ExternalValue, ValueStore
from penstock.schema import Column

MOST_BYTES = 1_000_000_000
"""PostgreSQL takes no value of 1 GiB, and no row that has as much to be written; this leaves room for its headers."""

_TABLE = "pg_temp.penstock_pieces"
_TEXTS = frozenset(("text", "character varying"))


class Pieces:
    """Brings values of a source's `ValueStore` to the server."""

    def __init__(self, connection: Connection, values: ValueStore | None) -> None:
        """Write through a connection; without a store every value that lies in one is refused."""
        self._connection = connection
        self._values = values

    def marks(
        self, table: TargetTable, values: Image, *, row: str = "t", is_insert: bool = False
    ) -> tuple[Mapping[str, str], Sequence[str | int | None]]:
        """Return SQL for the value of each column, with a zero byte for a parameter, and the parameters in order.

        What is elsewhere is brought to the server for it, until the next call.

        Args:
            row: What the statement calls the row that a value is appended to.
            is_insert: There is no row yet that a value could be appended to.

        Raises:
            ApplyError: The target does not take such a value in such a column; or `TargetSession` says of the row more.
            OperatorError: There is no store, or a value is not there any more.
            MalformedInputError: What is at its place is not the value.
        """
        marks, given, count = {}, list[str | int | None](), 0
        self._check_sizes(table, values)
        for name, value in values.items():
            column = table.schema.by_name[name]
            if not isinstance(value, ExternalValue):
                marks[name] = mark_of(column)
                given.append(value)
                continue
            if is_insert and value.is_appended:
                what = f"column {name!r} was appended to, and there is no row"
                raise ApplyError(VALUE_MISSING, what, where=_place(table))
            _check_type(column, value, table)
            if value.place is None:
                mark = mark_of(column)
                given.append(value.text)
            else:
                count += 1
                self._bring(value.place, count)
                mark = _joined(column)
                given.append(count)
            marks[name] = f"{row}.{quote(name)} || {mark}" if value.is_appended else mark
        return marks, given

    def _check_sizes(self, table: TargetTable, values: Image, held: Mapping[str, int] = MappingProxyType({})) -> None:
        sizes = {n: v.size_bytes + held.get(n, 0) for n, v in values.items() if isinstance(v, ExternalValue)}
        if sum(sizes.values()) > MOST_BYTES:
            name = max(sizes, key=sizes.__getitem__)
            what = (
                f"column {name!r} has {sizes[name]} bytes, and the large values of the row have {sum(sizes.values())}:"
                f" more than {MOST_BYTES} are not written"
            )
            raise ApplyError(VALUE_TOO_LONG, what, where=_place(table), column=name)

    def _bring(self, place: str, number: int) -> None:
        if self._values is None:
            raise OperatorError("a value lies where this command cannot look: the source that has it is not known here")
        if number == 1:
            self._connection.execute(
                f"CREATE TEMP TABLE IF NOT EXISTS {_TABLE.removeprefix('pg_temp.')}"
                " (value int4, number int4, piece bytea) ON COMMIT DELETE ROWS"
            )
            self._connection.execute(f"ALTER TABLE {_TABLE} ALTER piece SET STORAGE EXTERNAL")
            self._connection.execute(f"TRUNCATE {_TABLE}")
        with self._connection.cursor().copy(f"COPY {_TABLE} FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int4", "int4", "bytea"])
            for n, piece in enumerate(self._values.pieces(place)):
                copy.write_row((number, n, piece))

    def check_appended(self, table: TargetTable, values: Image, rows: str, given: Sequence[str | None]) -> None:
        """Make sure that the target has the values that others are appended to, and that they may become so large.

        Args:
            rows: SQL behind FROM that finds the rows, with a zero byte for a parameter; they are locked.
        """
        names = [name for name, value in values.items() if isinstance(value, ExternalValue) and value.is_appended]
        if not names:
            return
        for name, value in values.items():
            if isinstance(value, ExternalValue):
                _check_type(table.schema.by_name[name], value, table)
        refuse_external(given)
        # Counted without reading the values.
        sizes = ", ".join(f"pg_catalog.octet_length(t.{quote(name)})" for name in names)
        statement = f"SELECT {sizes} FROM {rows} FOR UPDATE"
        for row in self._connection.execute(statement.replace("%", "%%").replace(PARAMETER, "%s"), given):
            held = dict(zip(names, row, strict=True))
            for name, size in held.items():
                if size is None:
                    # What is appended to null is null.
                    what = f"column {name!r} was appended to, and is null at the target"
                    raise ApplyError(VALUE_MISSING, what, where=_place(table))
            self._check_sizes(table, values, held)


def refuse_external(values: Sequence[object]) -> None:
    """Refuse to compare what is told about a value, as if it were the value."""
    if any(isinstance(value, ExternalValue) for value in values):
        raise ApplyError(VALUE_MISSING, "a value that is too large for its change can be written, not compared")


def _joined(column: Column) -> str:
    nothing = "''::pg_catalog.bytea"
    # No piece at all is an empty value, not null.
    pieces = (
        f"(SELECT coalesce(pg_catalog.string_agg(piece, {nothing} ORDER BY number), {nothing}) FROM {_TABLE}"
        f" WHERE value = {PARAMETER})"
    )
    if column.base_type == "bytea":
        return pieces
    text = f"pg_catalog.convert_from({pieces}, 'UTF8')"
    return value_sql(column, f"{text}::{column.native.get('cast_type', 'text')}")


def _check_type(column: Column, value: ExternalValue, table: TargetTable) -> None:
    """Refuse what a column's type cannot be made of; behind a value of another type there is nothing to append."""
    if value.is_binary != (column.base_type == "bytea"):
        what = f"column {column.name!r} is {column.type}, and its large value is {_kind(value)}"
        raise ApplyError(TYPE_DIFFERS, what, where=_place(table))
    if value.is_appended and not value.is_binary and column.base_type not in _TEXTS:
        what = f"column {column.name!r} is {column.type}, which nothing is appended to"
        raise ApplyError(TYPE_DIFFERS, what, where=_place(table))


def _kind(value: ExternalValue) -> str:
    return "binary" if value.is_binary else "text"


def _place(table: TargetTable) -> str:
    return f"table {table.name}"
