"""The set path: net changes by COPY into staging tables, then one statement per table and kind of change.

Every count is checked and every constraint that the session does not enforce is looked at. Anything that is not
exactly as expected raises `SpeculationError`; the caller rolls back and lets the row path find out why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apply.apply_errors import SpeculationError
from penstock.apply.net import NetChange
from penstock.apply.target import Unexpected
from penstock.dialects.postgres.casts import (
    equal_sql,
    refers_sql,
    same_text_sql,
)
from penstock.dialects.postgres.connection import Connection, quote
from penstock.dialects.postgres.target.row_sql import all_of, only, quoted
from penstock.dialects.postgres.target.staging import NO_COLUMNS, NUMBER, Staged, StagingTables, is_plain
from penstock.schema import ForeignKey, Unique


class SetPath(StagingTables):
    """Writes groups through one connection, inside the transaction that is open on it."""

    def __init__(self, connection: Connection) -> None:
        """Use `connection`."""
        super().__init__(connection)
        self._searched: list[_NetStatements] = []

    def keep_new_tables(self) -> None:
        """The transaction was committed, and the staging tables it made with it."""
        super().keep_new_tables()
        self._searched = []

    def forget_new_tables(self) -> None:
        """The transaction was rolled back, and the staging tables it made with it."""
        super().forget_new_tables()
        self._searched = []

    def apply(self, nets: Sequence[NetChange], *, unchecked: Collection[ForeignKey]) -> None:
        """Write the net changes: all deletes, then all updates, then what is put in place, then inserts; then check.

        Raises:
            SpeculationError: Rows or references were not as expected.
            psycopg.Error: A statement failed.
        """
        self.empty()
        self._write([_NetStatements(net, self) for net in nets], unchecked=unchecked)

    def apply_found(self, left_out: Sequence[NDArray[np.int64]], *, unchecked: Collection[ForeignKey]) -> None:
        """Write what `find_conflicts` has staged, but for some rows; see `TargetSession.apply_found`."""
        searched, self._searched = self._searched, []
        for statements, firsts in zip(searched, left_out, strict=True):
            statements.leave_out(firsts)
        self._write(searched, unchecked=unchecked)

    def _write(self, staged: Sequence[_NetStatements], *, unchecked: Collection[ForeignKey]) -> None:
        for statements in staged:
            statements.delete()
        for statements in staged:
            statements.update()
        for statements in staged:
            statements.put()
        for statements in staged:
            statements.insert()
        for statements in staged:
            statements.check_uniques()
            statements.check_probes()
            statements.check_references(unchecked)

    def find_conflicts(self, nets: Sequence[NetChange]) -> list[Unexpected]:
        """Look for rows that are not as the net changes expect; see `TargetSession.find_conflicts`."""
        self.empty()
        self._searched = [_NetStatements(net, self) for net in nets]
        found = []
        for statements in self._searched:
            parts = list(statements.conflicts())
            changes = np.concatenate([np.zeros(0, np.int64), *(part.changes for part in parts)])
            found.append(Unexpected(changes, np.concatenate([np.zeros(0, bool), *(part.is_there for part in parts)])))
        return found

    def unexpected(self, s: Staged, by: NDArray[np.int64], condition: str, is_there: str) -> Unexpected:
        """Find numbered rows for which a test holds; `by` has the change of each."""
        rows = self.connection.execute(f"SELECT s.{NUMBER}, {is_there} FROM {s.name} s WHERE {condition}").fetchall()
        numbers, are_there = ([row[n] for row in rows] for n in range(2))
        return Unexpected(by[np.array(numbers, np.int64)], np.array(are_there, bool))


class _NetStatements:
    """The statements for the net change of one table."""

    def __init__(self, net: NetChange, path: SetPath) -> None:
        self._net = net
        self._path = path
        self._table = net.table
        self._by_name = net.table.schema.by_name
        self._target = only(net.table)
        self._staged: dict[tuple[str, int], Staged] = {}
        self._left_out = np.zeros(0, np.int64)
        self._deleted: list[Staged] = []
        self._updated: list[Staged] = []
        self._inserted: list[Staged] = []
        self._put: list[Staged] = []
        self._probed: list[Staged] = []

    def conflicts(self) -> Iterator[Unexpected]:
        """Yield the changes whose rows are missing, have other values, or have a unique key that is taken."""
        net = self._net
        for n, by in enumerate(net.deleted_by):
            yield self._unmatched(self._part("d", n, is_numbered=True), by)
        for n, by in enumerate(net.updated_by):
            yield self._unmatched(self._part("u", n, is_numbered=True), by)
        uniques = [u for u in self._table.schema.all_uniques if u.columns and not u.is_deferrable]
        for n, (rows, by) in enumerate(zip(net.inserts, net.inserted_by, strict=True)):
            told = [unique for unique in uniques if set(unique.columns) <= set(rows.column_names)]
            if not told:
                continue
            names = sorted({name for unique in told for name in unique.columns})
            writable = self._writable(rows)
            if self._can_copy(rows.select(writable)) or not set(names) <= set(writable):
                # These are not staged for the statements, or not with all columns that are looked at here.
                s = self._path.stage(self._table, f"c{n}", NO_COLUMNS, rows.select(names), is_numbered=True)
            else:
                s = self._part("i", n, is_numbered=True)
            tests = (
                all_of(equal_sql(f"t.{quote(c)}", equals, s.new_value(c)) for c, equals in unique.equals.items())
                for unique in told
            )
            taken = " OR ".join(f"EXISTS (SELECT FROM {self._target} t WHERE {test})" for test in tests)
            is_there = self._has_key(s, s.new_value) if set(self._table.key.columns) <= set(names) else "false"
            yield self._path.unexpected(s, by, taken, is_there)

    def leave_out(self, firsts: NDArray[np.int64]) -> None:
        """Write all but the rows with these first changes."""
        self._left_out = firsts
        for (kind, n), s in self._staged.items():
            numbers = np.flatnonzero(np.isin(self._by(kind, n), firsts))
            if len(numbers):
                self._path.unstage(s, numbers)
                self._staged[kind, n] = replace(s, count=s.count - len(numbers))

    def _by(self, kind: str, n: int) -> NDArray[np.int64]:
        net = self._net
        return {"d": net.deleted_by, "u": net.updated_by, "i": net.inserted_by}[kind][n]

    def _part(self, kind: str, n: int, *, is_numbered: bool = False) -> Staged:
        """The rows of a part of the deletes, updates or inserts in their staging table, where they are put once."""
        if (kind, n) not in self._staged:
            net = self._net
            match kind:
                case "d":
                    old, new = net.deletes[n], NO_COLUMNS
                case "u":
                    old, new = net.updates[n].old, net.updates[n].new
                case _:
                    old, new = NO_COLUMNS, net.inserts[n]
            old, new = self._kept(old, kind, n), self._kept(new.select(self._writable(new)), kind, n)
            self._staged[kind, n] = self._path.stage(self._table, f"{kind}{n}", old, new, is_numbered=is_numbered)
        return self._staged[kind, n]

    def _kept(self, rows: pa.Table, kind: str, n: int) -> pa.Table:
        """The rows that are not left out."""
        if not len(self._left_out) or not rows.column_names:
            return rows if rows.column_names else NO_COLUMNS
        return rows.filter(pa.array(~np.isin(self._by(kind, n), self._left_out)))

    def _unmatched(self, s: Staged, by: NDArray[np.int64]) -> Unexpected:
        missing = f"NOT EXISTS (SELECT FROM {self._target} t WHERE {self._matches(s)})"
        return self._path.unexpected(s, by, missing, self._has_key(s, s.old_value))

    def _has_key(self, s: Staged, value: Callable[[str], str]) -> str:
        """SQL for whether a row has the key of a staged one."""
        key = self._table.key
        if not key.is_declared or not key.is_unique:
            return "false"
        same = all_of(
            _same(f"t.{quote(n)}", key.equals[n], value(n), may_be_null=self._by_name[n].is_nullable)
            if n in key.equals
            else same_text_sql(self._by_name[n], f"t.{quote(n)}", value(n))
            for n in key.columns
        )
        # Not EXISTS: the planner may then hash all the keys of the table.
        return f"coalesce((SELECT true FROM {self._target} t WHERE {same} LIMIT 1), false)"

    def delete(self) -> None:
        for n in range(len(self._net.deletes)):
            s = self._part("d", n)
            self._path.expect(f"DELETE FROM {self._target} t USING {s.name} s WHERE {self._matches(s)}", s.count)
            self._deleted.append(s)

    def update(self) -> None:
        for n in range(len(self._net.updates)):
            s = self._part("u", n)
            if s.new:
                settings = ", ".join(f"{quote(name)} = {s.new_value(name)}" for name in s.new)
                statement = f"UPDATE {self._target} t SET {settings} FROM {s.name} s WHERE {self._matches(s)}"
            else:
                statement = f"SELECT FROM {self._target} t, {s.name} s WHERE {self._matches(s)}"
            self._path.expect(statement, s.count)
            self._updated.append(s)

    def insert(self) -> None:
        for n, whole in enumerate(self._net.inserts):
            rows = whole.select(self._writable(whole))
            if self._can_copy(rows):
                self._path.copy(quoted(self._table), rows.column_names, self._kept(rows, "i", n))
                continue
            s = self._part("i", n)
            self._path.insert_staged(s)
            self._inserted.append(s)

    def put(self) -> None:
        """Rows that may be there already: what differs of them is set, and those that are missing are inserted."""
        for n, whole in enumerate(self._net.puts):
            s = self._path.stage(self._table, f"s{n}", NO_COLUMNS, whole.select(self._writable(whole)))
            key = self._table.key
            own = all_of(
                _same(f"t.{quote(n)}", key.equals[n], s.new_value(n), may_be_null=self._by_name[n].is_nullable)
                if n in key.equals
                else same_text_sql(self._by_name[n], f"t.{quote(n)}", s.new_value(n))
                for n in key.columns
            )
            # A key that is equal may still be written in another way, as 1.0 and 1.00.
            others = [n for n in s.new if n not in key.columns or not self._by_name[n].is_exact]
            there = self._path.count(f"{self._target} t, {s.name} s WHERE {own}")
            if there and others:
                settings = ", ".join(f"{quote(n)} = {s.new_value(n)}" for n in others)
                same = all_of(same_text_sql(self._by_name[n], f"t.{quote(n)}", s.new_value(n)) for n in others)
                self._path.execute(
                    f"UPDATE {self._target} t SET {settings} FROM {s.name} s WHERE {own} AND NOT ({same})"
                )
            if there < s.count:
                names, values = ", ".join(map(quote, s.new)), ", ".join(s.new_value(n) for n in s.new)
                self._path.expect(
                    f"INSERT INTO {quoted(self._table)} ({names}) OVERRIDING SYSTEM VALUE SELECT {values}"
                    f" FROM {s.name} s WHERE NOT EXISTS (SELECT FROM {self._target} t WHERE {own})",
                    s.count - there,
                )
            self._put.append(s)

    def check_uniques(self) -> None:
        """Deferrable unique keys: no two rows may hold a value that was just written."""
        for unique in self._table.schema.all_uniques:
            if not unique.is_deferrable:
                continue
            for s in (*self._written(unique.columns), *self._put):
                values = self._values(s, unique.columns)
                is_given = (
                    "true" if unique.nulls_are_equal else all_of(f"v.{quote(n)} IS NOT NULL" for n in unique.columns)
                )
                same = all_of(
                    _same(f"t.{quote(n)}", equals, f"v.{quote(n)}", may_be_null=self._may_be_null(unique, n))
                    for n, equals in unique.equals.items()
                )
                self._path.expect_none(
                    f"SELECT FROM {values} v WHERE {is_given} AND 1 <"
                    f" (SELECT count(*) FROM (SELECT FROM {self._target} t WHERE {same} LIMIT 2) found)"
                )

    def check_references(self, unchecked: Collection[ForeignKey]) -> None:
        """Foreign keys, but for some: what was written must have a parent, what was removed must have no child.

        A parent that a probe refers to may rightly be gone by now; then the row path decides.
        """
        for foreign_key in self._table.schema.foreign_keys:
            if foreign_key not in unchecked:
                for s in (*self._written(foreign_key.columns), *self._probed):
                    self._expect_parents(s, foreign_key)
        for foreign_key in self._table.schema.referenced_by:
            if foreign_key not in unchecked:
                for s in self._removed(foreign_key.parent_columns):
                    self._expect_no_children(s, foreign_key)

    def check_probes(self) -> None:
        """Images that are gone again: they had to be legal while they were there."""
        probes = self._net.probes
        if not len(probes):
            return
        rows = probes.select(self._writable(probes))
        flags = pa.table({"is_absent": self._net.are_probes_absent})
        present = rows.filter(pa.compute.invert(flags["is_absent"]))
        absent = rows.filter(flags["is_absent"])
        key = self._table.key.columns
        for kind, images in (("p", present), ("a", absent)):
            if not len(images):
                continue
            s = self._path.stage(self._table, kind, NO_COLUMNS, images)
            self._expect_checks(s)
            if kind == "a":
                self._expect_absent(s, self._table.key.equals)
            for unique in self._table.schema.all_uniques:
                if set(unique.columns) != set(key):
                    if not unique.columns:
                        raise SpeculationError("an index on expressions cannot be probed")
                    self._expect_absent(s, unique.equals)
            if self._table.schema.exclusions:
                raise SpeculationError("an exclusion constraint cannot be probed")
            self._probed.append(s)

    def _expect_absent(self, s: Staged, equals: Mapping[str, str]) -> None:
        key = self._table.key.equals
        same = all_of(equal_sql(f"t.{quote(n)}", operator, s.new_value(n)) for n, operator in equals.items())
        own = all_of(equal_sql(f"t.{quote(n)}", operator, s.new_value(n)) for n, operator in key.items())
        is_other = "true" if equals == key else f"NOT ({own})"
        self._path.expect_none(
            f"SELECT FROM {s.name} s WHERE EXISTS (SELECT FROM {self._target} t WHERE {same} AND {is_other})"
        )

    def _expect_checks(self, s: Staged) -> None:
        schema = self._table.schema
        refused = [f"({check}) IS FALSE" for check in schema.checks]
        refused += [
            f"{quote(n)} IS NULL"
            for n in s.new
            if not self._by_name[n].is_nullable and not self._by_name[n].is_generated
        ]
        if not refused:
            return
        if schema.checks and set(s.new) != {c.name for c in schema.columns}:
            raise SpeculationError("a check cannot be probed without all columns")
        row = ", ".join(f"{s.new_value(n)} AS {quote(n)}" for n in s.new)
        self._path.expect_none(f"SELECT FROM (SELECT {row} FROM {s.name} s) r WHERE {' OR '.join(refused)}")

    def _expect_parents(self, s: Staged, foreign_key: ForeignKey) -> None:
        values = self._values(s, foreign_key.columns)
        given = [f"v.{quote(name)} IS NOT NULL" for name in foreign_key.columns]
        same = refers_sql(foreign_key, _fields("p", foreign_key.parent_columns), _fields("v", foreign_key.columns))
        if foreign_key.is_match_full and len(given) > 1:
            self._path.expect_none(f"SELECT FROM {values} v WHERE ({' OR '.join(given)}) AND NOT ({all_of(given)})")
        parent = quote(foreign_key.parent.schema, foreign_key.parent.name)
        self._path.expect_none(
            f"SELECT FROM {values} v WHERE {all_of(given)}"
            f" AND NOT EXISTS (SELECT FROM {parent} p WHERE {same} FOR KEY SHARE)"
        )

    def _expect_no_children(self, s: Staged, foreign_key: ForeignKey) -> None:
        removed = [s.old_value(name) for name in foreign_key.parent_columns]
        kept = refers_sql(foreign_key, _fields("t", foreign_key.parent_columns), removed)
        refers = refers_sql(foreign_key, removed, _fields("c", foreign_key.columns))
        child = quote(foreign_key.child.schema, foreign_key.child.name)
        self._path.expect_none(
            f"SELECT FROM {s.name} s WHERE NOT EXISTS (SELECT FROM {self._target} t WHERE {kept})"
            f" AND EXISTS (SELECT FROM {child} c WHERE {refers})"
        )

    def _may_be_null(self, unique: Unique, column: str) -> bool:
        return unique.nulls_are_equal and self._by_name[column].is_nullable

    def _written(self, columns: tuple[str, ...]) -> Iterator[Staged]:
        """Staged rows that give any of these columns a new value."""
        yield from self._inserted
        for s in self._updated:
            if set(columns) & set(s.new):
                yield s

    def _removed(self, columns: tuple[str, ...]) -> Iterator[Staged]:
        """Staged rows that take the old value of any of these columns away.

        Raises:
            SpeculationError: Only the rows at the target know it.
        """
        updated = (s for s in self._updated if set(columns) & set(s.new))
        for s in (*self._deleted, *updated):
            if not set(columns) <= set(s.old):
                raise SpeculationError("what others refer to is not known")
            yield s

    def _values(self, s: Staged, columns: tuple[str, ...]) -> str:
        """A subquery of the distinct values that the staged rows have in these columns now.

        Raises:
            SpeculationError: Only the rows at the target know them.
        """
        if not set(columns) <= {*s.new, *s.old}:
            raise SpeculationError("what a key looks at is not known")
        values = (s.new_value(name) if name in s.new else s.old_value(name) for name in columns)
        named = ", ".join(f"{value} AS {quote(name)}" for value, name in zip(values, columns, strict=True))
        return f"(SELECT DISTINCT {named} FROM {s.name} s)"

    def _matches(self, s: Staged) -> str:
        tests = []
        for name in s.old:
            column, field, value = self._by_name[name], f"t.{quote(name)}", s.old_value(name)
            is_key = name in self._table.key.equals
            if is_key:
                tests.append(_same(field, self._table.key.equals[name], value, may_be_null=column.is_nullable))
            elif column.is_exact and column.is_builtin:
                tests.append(f"{field} {'IS NOT DISTINCT FROM' if column.is_nullable else '='} {value}")
            # A cast that an enum's owner made may leave it open which `=` is meant; compare the text too.
            if not (is_key and (column.is_exact or not self._net.compares_key_text)) and not (
                column.is_exact and column.is_builtin
            ):
                tests.append(same_text_sql(column, field, value))
        return all_of(tests)

    def _writable(self, rows: pa.Table) -> list[str]:
        return [name for name in rows.column_names if not self._by_name[name].is_generated]

    def _can_copy(self, rows: pa.Table) -> bool:
        """Whether rows can go straight into the table, with nothing to check afterwards."""
        schema = self._table.schema
        has_checks = schema.foreign_keys or any(unique.is_deferrable for unique in schema.all_uniques)
        return not has_checks and is_plain(self._table, rows)


_BUILT_IN = ("=", "OPERATOR(pg_catalog.=)")
"""The operators that IS DISTINCT FROM finds too, since sessions look operators up in pg_catalog alone."""


def _same(left: str, equals: str, right: str, *, may_be_null: bool) -> str:
    """SQL for whether two values are equal to an index, or both null where that may be."""
    if not may_be_null:
        return equal_sql(left, equals, right)
    if equals in _BUILT_IN:
        return f"{left} IS NOT DISTINCT FROM {right}"
    same = equal_sql(left, equals, right)
    return f"({same} OR {left} IS NOT DISTINCT FROM NULL AND {right} IS NOT DISTINCT FROM NULL)"


def _fields(row: str, columns: Sequence[str]) -> list[str]:
    return [f"{row}.{quote(name)}" for name in columns]
