"""Which columns tell the rows of a target table apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.schema import TableSchema, Unique


@dataclass(frozen=True)
class RowKey:
    """The columns by which a changed row is found.

    Attributes:
        is_unique: The database admits no two rows with equal values of them.
        is_declared: They are a primary or unique key; otherwise they are all columns that can be compared.
        is_deferrable: Two rows may have equal values of them until the transaction ends.
        equals: For each column whose type may have an operator of its own, the one that the key's index uses.
    """

    columns: tuple[str, ...]
    is_unique: bool
    is_declared: bool
    is_deferrable: bool = False
    equals: Mapping[str, str] = field(default_factory=dict, compare=False)


def row_key(table: TableSchema) -> RowKey:
    """Choose the row key: the primary key, else the smallest unique key with a NOT NULL column, else all columns."""
    if table.primary_key is not None:
        key = table.primary_key
        return RowKey(key.columns, is_unique=True, is_declared=True, is_deferrable=key.is_deferrable, equals=key.equals)
    usable = [unique for unique in table.uniques if unique.columns and _has_not_null(table, unique)]
    if usable:
        unique = min(usable, key=lambda u: (len(u.columns), u.name))
        is_unique = unique.nulls_are_equal or not any(table.by_name[name].is_nullable for name in unique.columns)
        return RowKey(
            unique.columns,
            is_unique=is_unique,
            is_declared=True,
            is_deferrable=unique.is_deferrable,
            equals=unique.equals,
        )
    columns = tuple(column.name for column in table.columns if column.is_key_usable)
    return RowKey(columns, is_unique=False, is_declared=False)


def _has_not_null(table: TableSchema, unique: Unique) -> bool:
    return any(not table.by_name[name].is_nullable for name in unique.columns)
