"""Staging tables: rows put beside a table of the target by COPY, for statements that take all of them at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from penstock.apply.apply_errors import SpeculationError
from penstock.apply.target import TargetTable
from penstock.dialects.postgres.casts import is_copied_as_text, staging_type, value_sql
from penstock.dialects.postgres.connection import Connection, quote
from penstock.dialects.postgres.target.row_sql import quoted

MOST_STAGED_COLUMNS = 799
"""A staging table holds each column twice and a number, and a table has at most 1,600."""

NUMBER = "number"
"""The column of a staging table that counts its rows, where they are counted; all others begin with `o_` or `n_`."""

NO_COLUMNS = pa.table({})

_CSV = pacsv.WriteOptions(include_header=False)


@dataclass(frozen=True)
class Staged:
    """Rows of one kind in a staging table; its column `o_x` or `n_x` holds an old or a new value of column x."""

    table: TargetTable
    name: str
    old: tuple[str, ...]
    new: tuple[str, ...]
    count: int

    def old_value(self, column: str) -> str:
        """SQL for the old value of a column, in rows `s` of the staging table."""
        return value_sql(self.table.schema.by_name[column], f"s.{quote('o_' + column)}")

    def new_value(self, column: str) -> str:
        """SQL for the new value of a column, in rows `s` of the staging table."""
        return value_sql(self.table.schema.by_name[column], f"s.{quote('n_' + column)}")


class _CopyFile:
    """A COPY as what Arrow takes for a file: the text of a whole group need not be held at once."""

    closed = False

    def __init__(self, copy: psycopg.Copy) -> None:
        self._copy = copy

    def write(self, data: pa.Buffer | bytes) -> None:
        self._copy.write(memoryview(data))

    def flush(self) -> None: ...

    def close(self) -> None: ...


class StagingTables:
    """The staging tables of one connection, and statements that read them.

    They are made once per table and kind, and live as long as the connection does; each transaction finds them empty.
    """

    def __init__(self, connection: Connection) -> None:
        """Use `connection`, inside the transaction that is open on it."""
        self.connection = connection
        self._tables: dict[Hashable, str] = {}
        self._new_tables: list[Hashable] = []
        self._filled: set[str] = set()
        self.made = 0

    def keep_new_tables(self) -> None:
        """The transaction was committed, and the staging tables it made with it."""
        self._new_tables.clear()
        self._filled.clear()

    @property
    def new_tables(self) -> int:
        """How many staging tables the open transaction has made."""
        return len(self._new_tables)

    def forget_new_tables(self) -> None:
        """The transaction was rolled back, and the staging tables it made with it."""
        self.forget_tables_since(0)
        self._filled.clear()

    def forget_tables_since(self, count: int) -> None:
        """A savepoint was rolled back to, before which the open transaction had made so many staging tables."""
        for key in self._new_tables[count:]:
            self._filled.discard(self._tables.pop(key))
        del self._new_tables[count:]

    def stage(
        self, table: TargetTable, kind: str, old: pa.Table, new: pa.Table, *, is_numbered: bool = False
    ) -> Staged:
        """Copy rows into the staging table of a target table and kind of change.

        Args:
            is_numbered: Number them from 0. The server may put a row before earlier ones, where a page has room for it.
        """
        key = (kind, table.name, tuple((column.name, staging_type(column)) for column in table.schema.columns))
        if key not in self._tables:
            self.made += 1
            self._tables[key] = f"pg_temp.penstock_{kind}_{self.made}"
            self._new_tables.append(key)
            self._create(self._tables[key], table)
        self._filled.add(self._tables[key])
        names = [f"o_{column}" for column in old.column_names] + [f"n_{column}" for column in new.column_names]
        count = max(len(old), len(new))
        columns = [*old.columns, *new.columns]
        if is_numbered:
            names, columns = [NUMBER, *names], [pa.array(np.arange(count)), *columns]
        self.copy(self._tables[key], names, pa.Table.from_arrays(columns, names=names))
        return Staged(table, self._tables[key], tuple(old.column_names), tuple(new.column_names), count)

    def insert_staged(self, s: Staged) -> None:
        """Insert all rows of a staging table."""
        names = ", ".join(quote(name) for name in s.new)
        values = ", ".join(s.new_value(name) for name in s.new)
        self.expect(
            f"INSERT INTO {quoted(s.table)} ({names}) OVERRIDING SYSTEM VALUE SELECT {values} FROM {s.name} s", s.count
        )

    def copy(self, into: str, columns: Sequence[str], rows: pa.Table) -> None:
        """Copy canonical text into columns of a table."""
        # Arrow writes uninitialised memory for an empty batch that comes first.
        filled = pa.Table.from_batches([batch for batch in rows.to_batches() if batch.num_rows], rows.schema)
        names = ", ".join(quote(column) for column in columns)
        with self.connection.cursor().copy(f"COPY {into} ({names}) FROM STDIN (FORMAT csv)") as copy:
            if filled.num_rows:
                pacsv.write_csv(filled, pa.PythonFile(_CopyFile(copy), "w"), _CSV)

    def unstage(self, s: Staged, numbers: NDArray[np.int64]) -> None:
        """Take numbered rows out of a staging table."""
        self.connection.execute(f"DELETE FROM {s.name} WHERE {NUMBER} = ANY (%s)", [numbers.tolist()])

    def execute(self, statement: str) -> None:
        """Run a statement that may concern any number of rows."""
        self.connection.execute(statement)

    def count(self, rows: str) -> int:
        """Count what is found FROM this."""
        row = self.connection.execute(f"SELECT count(*) FROM {rows}").fetchone()
        assert row is not None
        return int(row[0])

    def expect(self, statement: str, count: int) -> None:
        """Run a statement that must concern exactly `count` rows."""
        found = self.connection.execute(statement).rowcount
        if found != count:
            raise SpeculationError(f"a statement concerns {found} rows, not {count}")

    def expect_none(self, query: str) -> None:
        """Run a query that must find nothing."""
        if self.connection.execute(f"{query} LIMIT 1").fetchone() is not None:
            raise SpeculationError("a constraint may be broken")

    def empty(self) -> None:
        """Staging tables empty themselves at the end of a transaction; this may be a later piece of the same one."""
        if self._filled:
            self.connection.execute(f"TRUNCATE {', '.join(sorted(self._filled))}")
            self._filled.clear()

    def _create(self, quoted: str, table: TargetTable) -> None:
        columns = ", ".join(
            f"{quote(side + column.name)} {staging_type(column)}"
            for side in ("o_", "n_")
            for column in table.schema.columns
        )
        self.connection.execute(f"CREATE TEMP TABLE {quoted} ({NUMBER} int, {columns}) ON COMMIT DELETE ROWS")


def is_plain(table: TargetTable, rows: pa.Table) -> bool:
    """Whether canonical text of these columns is what the table's own columns read."""
    return all(is_copied_as_text(table.schema.by_name[name]) for name in rows.column_names)
