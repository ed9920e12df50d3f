"""Which columns tell the rows of a target table apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.change import TableName
from penstock.schema import TableSchema, Unique


@dataclass(frozen=True)
class RowKey:
    """The columns by which a changed row is found.

    Attributes:
        is_unique: The database admits no two rows with equal values of them.
        is_declared: They are a primary or unique key, or the user has named them; otherwise they are all columns that
            can be compared.
        is_deferrable: Two rows may have equal values of them until the transaction ends.
        equals: For each column whose type may have an operator of its own, the one that the key's index uses. Where no
            index has a column that the user has named, and its type is not built in, it is compared as text.
    """

    columns: tuple[str, ...]
    is_unique: bool
    is_declared: bool
    is_deferrable: bool = False
    equals: Mapping[str, str] = field(default_factory=dict, compare=False)


def row_key(table: TableSchema, substitute: Sequence[str] = ()) -> RowKey:
    """Choose the row key: the primary key, else the smallest unique key with a NOT NULL column, else all columns.

    Args:
        substitute: Columns that the user has named; they come before all others.
    """
    if substitute:
        return _substitute_key(table, tuple(substitute))
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


def key_faults(keys: Mapping[TableName, Sequence[str]], tables: Mapping[TableName, TableSchema]) -> Iterator[str]:
    """Yield what keeps columns from being the substitute keys of tables: a sentence for each."""
    for name, columns in keys.items():
        if name not in tables:
            yield f"key of {name}: the table does not exist"
            continue
        for column_name in columns:
            column = tables[name].by_name.get(column_name)
            if column is None:
                yield f"key of {name}: there is no column {column_name!r}"
            elif not column.is_key_usable:
                yield f"key of {name}: column {column_name!r} is {column.type}, which cannot be part of a key"


def _substitute_key(table: TableSchema, columns: tuple[str, ...]) -> RowKey:
    # One that holds all columns of a key of the database is as unique as that.
    within = [unique for unique in table.all_uniques if unique.columns and set(unique.columns) <= set(columns)]
    sure = [u for u in within if u.nulls_are_equal or not any(table.by_name[name].is_nullable for name in u.columns)]
    equals = {column.name: "=" for column in table.columns if column.name in columns and column.is_builtin}
    for unique in within:
        equals |= unique.equals
    return RowKey(
        columns,
        is_unique=bool(sure),
        is_declared=True,
        is_deferrable=bool(sure) and all(unique.is_deferrable for unique in sure),
        equals=equals,
    )


def _has_not_null(table: TableSchema, unique: Unique) -> bool:
    return any(not table.by_name[name].is_nullable for name in unique.columns)
