"""What documents say, as transactions: a document is one, so it is applied whole or not at all.

What cannot be told as a change is a gap in its transaction. So the document goes to the error queue with the reason,
and those beside it are applied.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.change import NO_VERSION, Change, Op, TableName, Transaction
from penstock.errors import MalformedInputError
from penstock.events import Event, tell
from penstock.formats.xds.event import XdsEvent
from penstock.formats.xds.reader import read_events
from penstock.formats.xds.table_key import Association
from penstock.formats.xds.values import UnreadableError
from penstock.patterns import TablePattern
from penstock.position import START, Scn
from penstock.schema import TableSchema
from penstock.sources.event_log.changes import changes_of, object_of
from penstock.sources.event_log.classes import Classes, one_named
from penstock.sources.event_log.poll import ChildRows
from penstock.text import printable


@dataclass(frozen=True)
class _Told:
    """Which rows of a child table an object has, as the documents up to one have told."""

    upto: Scn
    values: tuple[str, ...]


class DocumentTransactions:
    """Makes transactions of documents.

    That all values of a child table's attribute are removed says that rows go, and not which. Tables begin empty, so
    the target has the rows that documents have told of. These are kept as of each document behind the position that
    `begin` named last; such a document may be made again.
    """

    def __init__(self, tables: Iterable[TableSchema], patterns: Sequence[TablePattern], label: str) -> None:
        """Know tables, and by patterns the names that a document may mean; what it says of others is left out.

        Args:
            label: Where documents are, for the log.
        """
        self._tables = sorted(tables, key=lambda table: table.name)
        self._patterns = patterns
        schemas = {table.name.schema for table in self._tables}
        self._classes = {schema: Classes(self._tables, schema=schema) for schema in schemas}
        self._rows: dict[ChildRows, list[_Told]] = {}
        self._told_upto = self._kept_from = self._forgotten = START
        self._label = label
        self._left_out: set[TableName] = set()
        self._passed: set[str] = set()

    @property
    def has_children(self) -> bool:
        """Whether what a document means may depend on those before it."""
        return any(one.children for classes in self._classes.values() for one in classes.by_name.values())

    @property
    def told_upto(self) -> Scn:
        """The last document that was made, whose rows of child tables are known."""
        return self._told_upto

    def begin(self, after: Scn) -> None:
        """Have documents behind a position made next: what led to the rows of child tables there may be forgotten.

        Where that has been forgotten already, all documents have to be made again, see `told_upto`.
        """
        if after < self._forgotten:
            self._rows.clear()
            self._told_upto = self._forgotten = START
        self._kept_from = after

    def make(self, position: Scn, name: str, document: bytes, written_at_us: int) -> Transaction | None:
        """Make a transaction; None where the document says nothing of the tables that are followed.

        With child tables, a document is made after all of those before it.

        Args:
            written_at_us: When its file was written, microseconds since 1970: a document itself does not say.
        """
        changes: list[Change] = []
        # The rows of child tables that its events have left so far.
        rows: dict[ChildRows, list[str]] = {}
        try:
            events = read_events(document, passed=lambda tag: self._tell_passed(tag, name))
        except MalformedInputError as exc:
            events = []
            changes.append(self._gap(name, f"document {printable(name)}: {exc}"))
        for number, event in events:
            try:
                changes += self._changes(position, event, rows)
            except (MalformedInputError, UnreadableError) as exc:
                changes.append(self._gap(name, f"document {printable(name)}, event {number}: {exc}"))
        if position > self._told_upto:
            self._told_upto = position
            if any(change.op is Op.GAP for change in changes):
                # The document is put aside whole: the target gets none of its rows.
                rows = {}
            for key, values in rows.items():
                told = self._rows.setdefault(key, [])
                told.append(_Told(position, tuple(values)))
                while len(told) > 1 and told[1].upto <= self._kept_from:
                    del told[0]
                    self._forgotten = max(self._forgotten, told[0].upto)
        if not changes:
            return None
        numbered = [replace(change, change_seq=number) for number, change in enumerate(changes)]
        return Transaction(position, name, written_at_us, numbered)

    def _changes(self, position: Scn, event: XdsEvent, rows: dict[ChildRows, list[str]]) -> Sequence[Change]:
        named = Association.parse(event.association)
        schema = one_named(named.schema, self._classes)
        classes = None if schema is None else self._classes[schema]
        if classes is None or classes.find(named.table) is None:
            meant = TableName(schema or named.schema, named.table)
            if any(pattern.matches(meant) for pattern in self._patterns):
                raise UnreadableError(f"table {printable(str(meant))} is not among those that are followed")
            self._tell_left_out(meant)
            return ()
        of = object_of(event, classes)
        keys = {child.table.name: ChildRows(child.table.name, of.key) for child in of.of.children}
        held = {table: list(rows[key] if key in rows else self._before(position, key)) for table, key in keys.items()}
        changes = changes_of(event, of, held)
        for table, key in keys.items():
            if key in rows or held[table] != list(self._before(position, key)):
                rows[key] = held[table]
        return changes

    def _before(self, position: Scn, key: ChildRows) -> Sequence[str]:
        """The rows of an object as the documents before a position have left them."""
        return next((told.values for told in reversed(self._rows.get(key, ())) if told.upto < position), ())

    def _tell_left_out(self, table: TableName) -> None:
        if table not in self._left_out:
            self._left_out.add(table)
            tell(
                Event.NOTE,
                f"what documents say of table {table} is left out, which is not among those that are followed"
                f" ({self._label})",
                {"table": str(table)},
            )

    def _tell_passed(self, tag: str, name: str) -> None:
        if tag not in self._passed:
            self._passed.add(tag)
            tell(
                Event.NOTE,
                f"document {printable(name)} holds <{tag}>, which changes no row: elements of this kind are skipped"
                f" ({self._label})",
                {"file": name, "element": tag},
                level=logging.WARNING,
            )

    def _gap(self, name: str, reason: str) -> Change:
        # A change needs a table. Of a document that cannot be read it is any, and `document` has nobody shown it.
        image = {"reason": reason, "document": name}
        return Change(0, Op.GAP, self._tables[0].name, NO_VERSION, image, None)
