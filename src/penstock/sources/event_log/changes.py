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
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.change import Change, Op
from penstock.formats.xds.event import Attribute as XdsAttribute
from penstock.formats.xds.event import Kind, Step, Value, XdsEvent
from penstock.formats.xds.table_key import Association
from penstock.formats.xds.values import UnreadableError, canonical
from penstock.schema import Column
from penstock.sources.event_log.build import BuiltEvent
from penstock.sources.event_log.classes import Attribute, Child, Classes, DatabaseClass
from penstock.sources.event_log.poll import Kept
from penstock.sources.event_log.rows import Object

_VERSION = 1
"""Of every table: the log does not say what a table was like when a row was logged."""


def as_changes(event: BuiltEvent) -> Kept:
    """Keep an event as changes; raises `UnreadableError` where it cannot be told so."""
    return Kept(event.record_ids, event.logged_at_us, changes=changes_of(event.event, event.object))


def changes_of(event: XdsEvent, of: Object) -> list[Change]:
    """Return the changes that an event says of an object, the object's own row first.

    Raises:
        UnreadableError: A value is none of its column's type, an attribute is unknown, or it says what no row change
            can: that a child table holds no rows of the object any more, whichever it held.
    """
    return list(_Telling(event, of).changes())


def object_of(event: XdsEvent, classes: Classes) -> Object:
    """Return the object that an event names.

    Raises:
        UnreadableError: There is no such class, or the association does not fit its key.
        MalformedInputError: The association cannot be read.
    """
    named = Association.parse(event.association)
    found = classes.find(named.table)
    if found is None or found[1] is not None:
        raise UnreadableError("the association means no table that is followed")
    return Object(found[0], found[0].bind(named.key))


class _Telling:
    def __init__(self, event: XdsEvent, of: Object) -> None:
        self._event = event
        self._class: DatabaseClass = of.of
        self._key: dict[str, str | None] = {
            column.name: _canonical(column, Value("string", text))
            for column, text in zip(of.of.key, of.key, strict=True)
        }
        self._count = 0

    def changes(self) -> Iterator[Change]:
        if self._event.kind is Kind.DELETE:
            yield self._change(Op.DELETE, None, self._key, None)
            return
        own: list[tuple[Attribute, XdsAttribute]] = []
        of_children: list[tuple[Attribute, Child, XdsAttribute]] = []
        for told in self._event.attributes:
            attribute = self._class.attribute(None, told.name)
            if attribute is None:
                raise UnreadableError("an attribute is no column of its class")
            if attribute.child is None:
                own.append((attribute, told))
            else:
                of_children.append((attribute, attribute.child, told))
        if self._event.kind is Kind.ADD:
            yield self._insert(own)
        elif own:
            yield self._update(own)
        for attribute, child, told in of_children:
            yield from self._rows(attribute, child, told)

    def _insert(self, told: list[tuple[Attribute, XdsAttribute]]) -> Change:
        row: dict[str, str | None] = {
            column.name: None for column in self._class.table.columns if column.is_nullable and not column.is_generated
        }
        row |= self._key
        for attribute, values in told:
            row[attribute.column.name] = _last(attribute.column, values)
        return self._change(Op.INSERT, None, None, row)

    def _update(self, told: list[tuple[Attribute, XdsAttribute]]) -> Change:
        before, after = dict(self._key), dict[str, str | None]()
        for attribute, values in told:
            name, first = attribute.column.name, values.operations[0]
            if first.step is Step.REMOVE_VALUE:
                before[name] = _canonical(attribute.column, first.values[0])
            elif first.step is Step.ADD_VALUE:
                before.setdefault(name, None)
            after[name] = _last(attribute.column, values)
        return self._change(Op.UPDATE, None, before, after)

    def _rows(self, attribute: Attribute, child: Child, told: XdsAttribute) -> Iterator[Change]:
        if len(child.columns) > 1:
            raise UnreadableError(
                f"child table {child.table.name} has several attributes, of which it cannot be told which form a row"
            )
        links = dict(zip(child.links, self._key.values(), strict=True))
        for operation in told.operations:
            if operation.step is Step.REMOVE_ALL_VALUES:
                raise UnreadableError(
                    f"all rows of child table {child.table.name} are replaced, whichever there were; apply needs each"
                    " row that goes: log those by type 2, with old_value"
                )
            for value in operation.values:
                row = {**links, attribute.column.name: _canonical(attribute.column, value)}
                if operation.step is Step.ADD_VALUE:
                    yield self._change(Op.INSERT, child, None, row)
                else:
                    yield self._change(Op.DELETE, child, row, None)

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
    return _canonical(column, last.values[-1]) if last.step is Step.ADD_VALUE else None


def _canonical(column: Column, value: Value) -> str:
    return canonical(column.logical, value)
