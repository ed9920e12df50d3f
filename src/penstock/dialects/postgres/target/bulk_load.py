"""Many rows written at once that need no check beyond the table's own, for copying and for repairs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from penstock.apply.target import TargetTable
from penstock.dialects.postgres.casts import equal_sql, same_text_sql, text_sql
from penstock.dialects.postgres.connection import quote
from penstock.dialects.postgres.target.row_sql import all_of, only, quoted
from penstock.dialects.postgres.target.staging import NO_COLUMNS, Staged, StagingTables, is_plain
from penstock.schema import Unique


def load(staging: StagingTables, table: TargetTable, rows: pa.Table) -> None:
    """Insert rows that need no check beyond the table's own."""
    writable = rows.select([n for n in rows.column_names if not table.schema.by_name[n].is_generated])
    if is_plain(table, writable):
        staging.copy(quoted(table), writable.column_names, writable)
        return
    staged = staging.stage(table, "l", NO_COLUMNS, writable)
    staging.insert_staged(staged)
    staging.connection.execute(f"TRUNCATE {staged.name}")


def replace(
    staging: StagingTables,
    table: TargetTable,
    gone: pa.Table,
    rows: pa.Table,
    *,
    clears_the_way: Collection[tuple[str, ...]],
) -> None:
    """Delete the rows that have the keys of `gone`, and insert rows; see `snapshot.rows.DifferenceWriter.replace`."""
    writable = rows.select([n for n in rows.column_names if not table.schema.by_name[n].is_generated])
    written = set(writable.column_names)
    own = [c.name for c in table.schema.columns if c.name not in written and not c.is_generated]
    deleted = staging.stage(table, "k", gone, NO_COLUMNS)
    staged = staging.stage(table, "l", NO_COLUMNS, writable)
    delete = f"DELETE FROM {only(table)} t USING {deleted.name} s WHERE {_has_key(table, deleted)}"
    kept = f"pg_temp.penstock_kept_{staging.made}"
    if own:
        numbered = ", ".join(f"t.{quote(n)} AS o{i}" for i, n in enumerate(own))
        keys = ", ".join(f"t.{quote(n)} AS k{i}" for i, n in enumerate(gone.column_names))
        staging.connection.execute(
            f"CREATE TEMP TABLE {kept} ON COMMIT DROP AS SELECT {keys}, {numbered} FROM {only(table)} t LIMIT 0"
        )
        staging.connection.execute(
            f"WITH gone AS ({delete} RETURNING {keys}, {numbered}) INSERT INTO {kept} SELECT * FROM gone"
        )
    else:
        staging.connection.execute(delete)
    for unique in table.schema.all_uniques:
        # Not if the table has columns that only the target fills: their values would go with the row.
        if unique.columns in clears_the_way and not own:
            same = all_of(_same_unique(unique, staged))
            staging.connection.execute(f"DELETE FROM {only(table)} t USING {staged.name} s WHERE {same}")
    if own:
        _insert_with_kept(staging, staged, kept, gone.column_names, own)
    else:
        staging.insert_staged(staged)
    staging.connection.execute(f"TRUNCATE {deleted.name}, {staged.name}")


def _same_unique(unique: Unique, s: Staged) -> Iterator[str]:
    """SQL for whether row `t` has a staged row's values of a unique key, also to the byte."""
    for name, operator in unique.equals.items():
        column, field, value = s.table.schema.by_name[name], f"t.{quote(name)}", s.new_value(name)
        yield equal_sql(field, operator, value)
        yield same_text_sql(column, field, value)


def _insert_with_kept(staging: StagingTables, s: Staged, kept: str, key: Sequence[str], own: Sequence[str]) -> None:
    """Insert staged rows with what the deleted ones of the same key had in columns of the target's own."""
    columns = [s.table.schema.by_name[name] for name in key]
    # 1.0 and 1.00 are the same row where the key says so.
    equals = s.table.key.equals
    same = all_of(
        equal_sql(s.new_value(c.name), equals[c.name], f"o.k{i}")
        if c.name in equals
        else f'{text_sql(c, s.new_value(c.name))} COLLATE "C" = {text_sql(c, f"o.k{i}")} COLLATE "C"'
        for i, c in enumerate(columns)
    )
    names, values = ", ".join(map(quote, s.new)), ", ".join(s.new_value(name) for name in s.new)
    into = f"INSERT INTO {quoted(s.table)} ({names}"
    more = ", ".join(map(quote, own))
    from_kept = ", ".join(f"o.o{i}" for i in range(len(own)))
    # A join of all with all, which only hashing spares.
    staging.connection.execute("SET LOCAL enable_hashjoin = on")
    again = staging.connection.execute(
        f"{into}, {more}) OVERRIDING SYSTEM VALUE SELECT {values}, {from_kept} FROM {s.name} s, {kept} o WHERE {same}"
    ).rowcount
    staging.expect(
        f"{into}) OVERRIDING SYSTEM VALUE SELECT {values} FROM {s.name} s"
        f" WHERE NOT EXISTS (SELECT FROM {kept} o WHERE {same})",
        s.count - again,
    )
    staging.connection.execute("SET LOCAL enable_hashjoin = off")
    staging.connection.execute(f"DROP TABLE {kept}")


def _has_key(table: TargetTable, s: Staged) -> str:
    """SQL for whether row `t` has the key of a staged row to the byte; an index on it may be used."""
    tests = []
    for name in s.old:
        column, field, value = table.schema.by_name[name], f"t.{quote(name)}", s.old_value(name)
        if name in table.key.equals or column.is_builtin:
            tests.append(equal_sql(field, table.key.equals.get(name, "="), value))
        if not (column.is_exact and column.is_builtin):
            tests.append(same_text_sql(column, field, value))
    return all_of(tests)
