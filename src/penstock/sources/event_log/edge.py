"""The edge of a full poll: which changes of rows it would cut, as some rows of theirs lie beyond it.

A writer tells of one change in several rows, one for each column, and other writers' rows come between. A poll that
took some of them would tell of half a row. So the rest of such a change is read with the poll that its first rows are
in. What is logged for the same object later is another change, and waits: told early, it would come before rows that
it may refer to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.sources.event_log.classes import Classes, DatabaseClass
from penstock.sources.event_log.rows import INSERTS, EventType, LogRow

_INSERTS = frozenset(str(type_) for type_ in INSERTS)
_DELETE = str(EventType.DELETE_ROW)


@dataclass
class OpenChange:
    """The last rows that a poll has of an object, of which there may be more beyond the edge.

    More rows belong to an insert if they are of an insert, too, and to an update if the same transaction has written
    them; both only before the first row of the object that is of another kind.

    Attributes:
        key: The object's `table_key`.
        is_insert: Whether they are of an insert; otherwise they are of an update.
        xmins: The transactions that have written them; None stands for one that the database does not tell.
        columns: What `column_name` says in them.
        spelled: What `table_name` says in them.
    """

    of: DatabaseClass
    key: str
    is_insert: bool
    xmins: set[int | None] = field(default_factory=set)
    columns: set[str | None] = field(default_factory=set)
    spelled: set[str] = field(default_factory=set)

    @property
    def table_names(self) -> Sequence[str]:
        """What rows of the object may call its table and its child tables, in lower case and without the schema.

        And what some have called it: a database may know of fewer letters which is the lower case of which.
        """
        known = (self.of.name.name, *(child.table.name.name for child in self.of.children))
        return sorted({*(name.lower() for name in known), *self.spelled})


class Edge:
    """What lies before the edge of a full poll."""

    def __init__(self, rows: Iterable[LogRow], last: LogRow, classes: Classes) -> None:
        """Find the open changes of a poll.

        Args:
            rows: Those that have a key of a row beyond the edge, in order.
            last: The poll's last row, one of them or not.
        """
        self._classes = classes
        self._tables: dict[str | None, DatabaseClass | None] = {None: None}
        self._open: dict[tuple[int, str], OpenChange] = {}
        for row in rows:
            self._take(row)
        self._last = self._named(last)

    @property
    def open(self) -> Sequence[OpenChange]:
        """The open changes, one for each object at most."""
        return list(self._open.values())

    @property
    def widest(self) -> int:
        """The most rows that one change of the last object has: one for each column."""
        change = self._open.get(self._last) if self._last is not None else None
        return 0 if change is None else len(change.of.own_attributes) + len(change.of.child_attributes)

    def following(self, rows: Iterable[LogRow]) -> list[int]:
        """Return the record_ids of the rows that go on with the last row's change, whoever has written them.

        Args:
            rows: Those directly beyond the edge, in order.
        """
        found: list[int] = []
        change = self._open.get(self._last) if self._last is not None else None
        if change is None:
            return found
        told = set(change.columns)
        for row in rows:
            type_ = str(row.event_type)
            is_same = self._named(row) == self._last and type_ != _DELETE and (type_ in _INSERTS) == change.is_insert
            if not is_same or row.column_name in told:
                break
            told.add(row.column_name)
            found.append(row.record_id)
        return found

    def _take(self, row: LogRow) -> None:
        named = self._named(row)
        if named is None:
            return
        type_ = str(row.event_type)
        if type_ == _DELETE:
            self._open.pop(named, None)
            return
        is_insert = type_ in _INSERTS
        change = self._open.get(named)
        if change is None or change.is_insert is not is_insert:
            of = self._tables[row.table_name]
            assert of is not None
            change = self._open[named] = OpenChange(of, named[1], is_insert)
        change.xmins.add(row.xmin)
        change.columns.add(row.column_name)
        if row.table_name is not None:
            change.spelled.add(row.table_name)

    def _named(self, row: LogRow) -> tuple[int, str] | None:
        """The object that a row is about, by its class and its key's text; None where it names none."""
        name = row.table_name
        if name not in self._tables:
            found = None if name is None else self._classes.find(name)
            self._tables[name] = None if found is None else found[0]
        of = self._tables[name]
        return None if of is None or row.table_key is None else (id(of), row.table_key)
