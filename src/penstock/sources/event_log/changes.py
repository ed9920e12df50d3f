"""Events as row changes, which apply takes.

| in the event | in the change |
| --- | --- |
| add | insert; a column without a value is NULL, unless it may not be: then it is left to its default |
| modify, a value removed | the row is expected to hold it |
| modify, no value removed | the row is expected to hold NULL |
| modify, all values removed | whatever the row holds is replaced |
| modify, a value added | the new value; NULL if none was |
| delete | delete, by the key alone |
| a value of a child table added, removed | a row of the child table inserted, deleted |
| all values of a child table removed | each row deleted that events have told of so far; also before a delete |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.change import Change, Op, TableName
from penstock.formats.xds.event import AttributeStep, Value, XdsAttribute, XdsEvent, XdsEventKind
from penstock.formats.xds.table_key import Association
from penstock.formats.xds.values import UnreadableError, canonical
from penstock.schema import Column
from penstock.sources.event_log.build import BuiltEvent
from penstock.sources.event_log.classes import Child, ClassAttribute, Classes, DatabaseClass
from penstock.sources.event_log.poll import ChildRows, JournalEvent, LogTransaction
from penstock.sources.event_log.rows import Object
from penstock.text import printable

_VERSION = 1
"""Of every table: the log does not say what a table was like when a row was logged."""


class AsChanges:
    """Implements `poll.EventForm`: events as changes.

    No row change says that all values of an attribute are removed, whichever there were. So the journal knows which
    rows of child tables events have told of: they are those that the target has, as its tables began empty.
    """

    def __init__(self) -> None:
        """Begin a poll."""
        self._rows: dict[ChildRows, list[str]] = {}

    def prepare(self, log: LogTransaction, events: Sequence[BuiltEvent]) -> None:
        """Read the rows of child tables that were told of, of the objects of these events."""
        asked = {
            ChildRows(child.table.name, event.object.key) for event in events for child in event.object.of.children
        }
        self._rows = log.child_rows(asked) if asked else {}

    def make(self, event: BuiltEvent) -> JournalEvent:
        """Keep an event as changes; raises `UnreadableError` where it cannot be told so."""
        rows = {
            child.table.name: list(self._rows[ChildRows(child.table.name, event.object.key)])
            for child in event.object.of.children
        }
        changes = changes_of(event.event, event.object, rows)
        self._rows |= {ChildRows(table, event.object.key): values for table, values in rows.items()}
        return JournalEvent(event.record_ids, event.logged_at_us, changes=changes)

    def finish(self, log: LogTransaction) -> None:
        """Write down the rows that there are now."""
        if self._rows:
            log.keep_child_rows(self._rows)


def changes_of(event: XdsEvent, of: Object, rows: dict[TableName, list[str]] | None = None) -> list[Change]:
    """Return the changes that an event says of an object, its own row before those of child tables.

    In a delete it is the other way round.

    Args:
        rows: The values of the object's rows in each child table, as canonical text, which are brought up to date.

    Raises:
        UnreadableError: A value is none of its column's type, an attribute is unknown, or it says what no row change
            can: that a child table holds no rows of the object any more, and `rows` are not given.
    """
    return list(_Telling(event, of, rows).changes())


def object_of(event: XdsEvent, classes: Classes) -> Object:
    """Return the object that an event names.

    Raises:
        UnreadableError: There is no such class, or the association does not fit its key.
        MalformedInputError: The association cannot be read.
    """
    named = Association.parse(event.association)
    found = classes.find(named.table)
    if found is None or found[1] is not None:
        raise UnreadableError(f"table {printable(named.table)!r} is not among those that are followed")
    return Object(found[0], found[0].bind(named.key))


class _Telling:
    def __init__(self, event: XdsEvent, of: Object, rows: dict[TableName, list[str]] | None) -> None:
        self._event = event
        self._held = rows
        self._class: DatabaseClass = of.of
        self._key: dict[str, str | None] = {
            column.name: _canonical(column, Value("string", text))
            for column, text in zip(of.of.key, of.key, strict=True)
        }
        self._count = 0

    def changes(self) -> Iterator[Change]:
        if self._event.kind is XdsEventKind.DELETE:
            for child in self._class.children if self._held is not None else ():
                if len(child.columns) == 1:
                    yield from self._remove_all(child, child.columns[0])
            yield self._change(Op.DELETE, None, self._key, None)
            return
        own: list[tuple[ClassAttribute, XdsAttribute]] = []
        of_children: list[tuple[ClassAttribute, Child, XdsAttribute]] = []
        for told in self._event.attributes:
            attribute = self._class.attribute(None, told.name)
            if attribute is None:
                raise UnreadableError("an attribute is not a column of its class")
            if attribute.child is None:
                own.append((attribute, told))
            else:
                of_children.append((attribute, attribute.child, told))
        if self._event.kind is XdsEventKind.ADD:
            yield self._insert(own)
        elif own:
            yield self._update(own)
        for attribute, child, told in of_children:
            yield from self._rows(attribute, child, told)

    def _insert(self, told: list[tuple[ClassAttribute, XdsAttribute]]) -> Change:
        row: dict[str, str | None] = {
            column.name: None for column in self._class.table.columns if column.is_nullable and not column.is_generated
        }
        row |= self._key
        for attribute, values in told:
            row[attribute.column.name] = _last(attribute.column, values)
        return self._change(Op.INSERT, None, None, row)

    def _update(self, told: list[tuple[ClassAttribute, XdsAttribute]]) -> Change:
        before, after = dict(self._key), dict[str, str | None]()
        for attribute, values in told:
            name, first = attribute.column.name, values.operations[0]
            if first.step is AttributeStep.REMOVE_VALUE:
                before[name] = _canonical(attribute.column, first.values[0])
            elif first.step is AttributeStep.ADD_VALUE:
                before.setdefault(name, None)
            after[name] = _last(attribute.column, values)
        return self._change(Op.UPDATE, None, before, after)

    def _rows(self, attribute: ClassAttribute, child: Child, told: XdsAttribute) -> Iterator[Change]:
        if len(child.columns) > 1:
            raise UnreadableError(
                f"child table {child.table.name} has several attributes, and nothing says which of them form a row"
            )
        held = [] if self._held is None else self._held[child.table.name]
        for operation in told.operations:
            if operation.step is AttributeStep.REMOVE_ALL_VALUES:
                yield from self._remove_all(child, attribute.column)
            for value in operation.values:
                text = _canonical(attribute.column, value)
                if operation.step is AttributeStep.ADD_VALUE:
                    held.append(text)
                    yield self._change(Op.INSERT, child, None, self._row(child, attribute.column, text))
                else:
                    if text in held:
                        held.remove(text)
                    yield self._change(Op.DELETE, child, self._row(child, attribute.column, text), None)

    def _remove_all(self, child: Child, column: Column) -> Iterator[Change]:
        if self._held is None:
            raise UnreadableError(f"all rows of child table {child.table.name} are removed, whichever there were")
        held = self._held[child.table.name]
        for text in held:
            yield self._change(Op.DELETE, child, self._row(child, column, text), None)
        held.clear()

    def _row(self, child: Child, column: Column, text: str) -> dict[str, str | None]:
        return {**dict(zip(child.links, self._key.values(), strict=True)), column.name: text}

    def _change(
        self, op: Op, child: Child | None, before: dict[str, str | None] | None, after: dict[str, str | None] | None
    ) -> Change:
        table = self._class.name if child is None else child.table.name
        change = Change(self._count, op, table, _VERSION, before, after)
        self._count += 1
        return change


def _last(column: Column, told: XdsAttribute) -> str | None:
    """The value that an attribute has in the end; None without one."""
    last = told.operations[-1]
    return _canonical(column, last.values[-1]) if last.step is AttributeStep.ADD_VALUE else None


def _canonical(column: Column, value: Value) -> str:
    return canonical(column.logical, value)
