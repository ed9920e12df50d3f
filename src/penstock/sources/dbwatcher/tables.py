"""What is known of tables: CREATE and ALTER messages describe them, the pipeline file declares them, or the target has
them.

What the file declares counts first. Of a table that messages describe, each other description is a version more, which
counts from its message on; that of the first CREATE counts for what precedes it, too.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from penstock.change import TableName
from penstock.position import START, Scn
from penstock.schema import TableSchema
from penstock.stream import TableVersion

Describe = Callable[[], Mapping[TableName, TableSchema]]
"""Describes the tables that the target has by the names that messages use."""

LAST = Scn(2**63 - 1)
"""A position that all others lie before."""

_FIRST_CREATED = 2
"""The version of a first CREATE: 1 is what was known without one."""


@dataclass(frozen=True)
class TableBook:
    """Definitions by table and position; it travels to tasks.

    Attributes:
        fixed: Those that count at every position.
        created: By table, the positions of CREATE and ALTER messages, and what they describe.
    """

    fixed: Mapping[TableName, TableSchema] = field(default_factory=dict)
    created: Mapping[TableName, Sequence[tuple[Scn, TableSchema]]] = field(default_factory=dict)

    def at(self, table: TableName, position: Scn) -> TableSchema | None:
        """Return the definition of a table by which a message at a position is read; None: nothing is known of it."""
        found = self.created.get(table)
        if found is None:
            return self.fixed.get(table)
        at = bisect_right(found, position, key=lambda one: one[0])
        return found[max(at - 1, 0)][1]

    @property
    def keys(self) -> Mapping[TableName, Sequence[str]]:
        """The key columns of each table that has some, as it was described last."""
        last = {**self.fixed, **{name: found[-1][1] for name, found in self.created.items()}}
        return {name: table.primary_key.columns for name, table in last.items() if table.primary_key is not None}


class KnownTables:
    """What becomes known of tables while messages are read, in the driver."""

    def __init__(self, declared: Mapping[TableName, TableSchema], describe: Describe) -> None:
        """Know what the file declares; the target is asked when a table is first looked for."""
        self._declared = declared
        self._describe = describe
        self._at_target: Mapping[TableName, TableSchema] | None = None
        self._created: dict[TableName, list[tuple[Scn, TableSchema]]] = {}
        self._book: TableBook | None = None
        self._versions: Sequence[TableVersion] | None = None
        self._begins: dict[TableName, list[Scn]] = {}
        # As what a table that begins behind a position was created.
        self._began_as: dict[tuple[TableName, Scn], TableSchema] = {}
        self._ends: dict[TableName, list[Scn]] = {}
        self._put_off: dict[tuple[TableName, Scn], Scn] = {}

    @property
    def book(self) -> TableBook:
        """What is known by now."""
        if self._book is None:
            self._book = self._made()
        return self._book

    def _made(self) -> TableBook:
        if self._at_target is None:
            self._at_target = self._describe()
        fixed = {**self._at_target, **self._declared}
        created = {name: tuple(found) for name, found in self._created.items() if name not in self._declared}
        return TableBook(fixed, created)

    def create(self, table: TableSchema, position: Scn) -> None:
        """Take up what a CREATE message describes, where that is not what the one before it did."""
        found = self._created.setdefault(table.name, [])
        if not found or not _same_shape(found[-1][1], table):
            self._take_up(found, table, position)

    def alter(self, table: TableSchema, position: Scn) -> None:
        """Take up what an ALTER message describes; what precedes it is read as it was known before.

        It is a version more in any case: a column may have taken the place of another one of the same name and type.
        """
        before = self.last(table.name)
        found = self._created.setdefault(table.name, [] if before is None else [(START, before)])
        self._take_up(found, table, position)

    def forget(self, table: TableName, position: Scn) -> None:
        """Take back what the message at a position described."""
        self._created[table] = [one for one in self._created.get(table, []) if one[0] != position]
        if not self._created[table]:
            del self._created[table]
        self._book = self._versions = None

    def _take_up(self, found: list[tuple[Scn, TableSchema]], table: TableSchema, position: Scn) -> None:
        found.append((position, replace(table, version=_FIRST_CREATED + len(found))))
        self._book = self._versions = None

    def begin(self, table: TableName, after: Scn) -> None:
        """Note that a table begins, without rows, behind a position."""
        self._begins.setdefault(table, []).append(after)
        if (described := self.last(table)) is not None:
            self._began_as[table, after] = described
        # One that was dropped in the same transaction, whose end has not come.
        self._ends[table] = [min(end, after) for end in self._ends.get(table, [])]

    def end(self, table: TableName, position: Scn) -> None:
        """Note that a table was dropped at a position."""
        self._ends.setdefault(table, []).append(position)

    def is_dropped_at(self, table: TableName, position: Scn) -> bool:
        """Whether a table was dropped by a position, and has not begun anew."""
        ended = max((end for end in self._ends.get(table, []) if end <= position), default=None)
        return ended is not None and ended > (self.begin_at(table, position) or START)

    def standing_at(self, table: TableName, position: Scn) -> TableSchema | None:
        """Return what a table is like for a receiver that has all messages up to a position, and none behind it.

        A table that is not there at that position is as it is when it comes next.
        """
        begun = None if self.is_dropped_at(table, position) else self.begin_at(table, position)
        if begun is None:
            begun = min((scn for scn in self._begins.get(table, [START]) if scn > position), default=START)
        first = self._began_as.get((table, begun))
        found = self.book.created.get(table, ())
        passed = [one for scn, one in found if self._effect(table, scn) <= position and (first is None or scn > begun)]
        if passed:
            return passed[-1]
        if first is not None:
            return first
        return found[0][1] if found else self.book.fixed.get(table)

    def coming(self, table: TableName, position: Scn) -> Sequence[TableSchema]:
        """Return what a table is like at a position, and as what messages behind it describe it, oldest first."""
        now = self.standing_at(table, position)
        later = [one for scn, one in self.book.created.get(table, ()) if self._effect(table, scn) > position]
        return [*([] if now is None or now in later else [now]), *later]

    def put_off(self, table: TableName, position: Scn, until: Scn = LAST) -> None:
        """Note at which position the table becomes what the message at one describes: its transaction ends later."""
        self._put_off[table, position] = until

    def _effect(self, table: TableName, position: Scn) -> Scn:
        return self._put_off.get((table, position), position)

    def begin_at(self, table: TableName, position: Scn) -> Scn | None:
        """Return where a table that is there at a position has begun last; None where it begins behind it.

        A table of which changes came before a CREATE, or no CREATE at all, begins at the start.
        """
        begins = self._begins.get(table, [START])
        return max((scn for scn in begins if scn <= position), default=None)

    def first_begin(self, table: TableName) -> Scn:
        """Return where a table has begun first."""
        return min(self._begins.get(table, [START]))

    @property
    def begins(self) -> Set[Scn]:
        """The positions behind which tables begin: a slice goes no further."""
        return {scn for begins in self._begins.values() for scn in begins}

    def is_declared(self, table: TableName) -> bool:
        """Whether the pipeline file describes a table."""
        return table in self._declared

    def is_created(self, table: TableName) -> bool:
        """Whether a CREATE or ALTER message has described a table."""
        return table in self._created

    def versions(self) -> Sequence[TableVersion]:
        """Return every version of every table, oldest first."""
        if self._versions is None:
            self._versions = self._ordered(self.book)
        return self._versions

    @staticmethod
    def _ordered(book: TableBook) -> Sequence[TableVersion]:
        tables = [table for name, table in book.fixed.items() if name not in book.created]
        tables += [table for found in book.created.values() for _, table in found]
        ordered = sorted(tables, key=lambda table: (table.version, table.name))
        return [_version(table) for table in ordered]

    def last(self, table: TableName) -> TableSchema | None:
        """Return what a table was described as last."""
        return self.book.at(table, LAST)


def _version(table: TableSchema) -> TableVersion:
    return TableVersion(zlib.crc32(str(table.name).encode()), table, table.to_definition(), table.name)


def _same_shape(one: TableSchema, other: TableSchema) -> bool:
    """Whether two definitions say the same of a table's columns and its key."""

    def shape(table: TableSchema) -> Mapping[str, object]:
        key = table.primary_key
        return {
            "key": None if key is None else key.columns,
            **{c.name: (c.logical, c.is_nullable) for c in table.columns},
        }

    return shape(one) == shape(other)
