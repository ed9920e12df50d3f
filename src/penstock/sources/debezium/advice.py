"""What a connector's events cannot tell of some columns, or tell so that a target may refuse it, with the way round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.formats.debezium.declared import MYSQL_FAMILY
from penstock.logical import Kind
from penstock.schema import Column, TableSchema


def column_advice(table: TableSchema, there: Mapping[str, Column], connector: str) -> Iterator[str]:
    """Say what a person should know of columns.

    Args:
        table: As its newest events tell of it.
        there: The columns that the target has by now.
        connector: Whose events they are.
    """

    def are(kind: Kind) -> list[Column]:
        return [column for column in table.columns if column.logical.kind is kind]

    def is_there(column: Column, kind: Kind) -> bool:
        return column.name not in there or there[column.name].logical.kind is kind

    if connector in MYSQL_FAMILY and (times := [one for one in are(Kind.TIME) if is_there(one, Kind.TIME)]):
        yield (
            f"{_named(table, times)}: a TIME of MySQL's may be below zero, or of more than a day, and a time of day at"
            " the target refuses such rows; make it a column of type interval there, which takes them"
        )
    if connector != "postgresql":
        return
    if varying := [one for one in are(Kind.BITS) if one.logical.length is None]:
        yield (
            f"{_named(table, varying)}: events do not tell zeros at the beginning of a bit varying, and they are lost;"
            " where they mean something, have the source keep it as bit(n) or text, or capture by triggers"
        )
    if open_ := [one for one in are(Kind.BITS) if one.logical.length is not None and _is_varying(there.get(one.name))]:
        types = ", ".join(f"{one.name}: 'bit varying'" for one in open_)
        write = f"write capture.debezium.columns: {{{table.name}: {{{types}}}}}"
        yield (
            f"{_named(table, open_)}: bit varying at the target, and events do not tell whether it is so at the source:"
            f" as bit(n), values get zeros at the beginning; else {write}"
        )


def _is_varying(there: Column | None) -> bool:
    return there is not None and there.logical.kind is Kind.BITS and there.logical.length is None


def _named(table: TableSchema, columns: Sequence[Column]) -> str:
    names = ", ".join(repr(column.name) for column in columns)
    return f"column{'s' * (len(columns) > 1)} {names} of {table.name}"
