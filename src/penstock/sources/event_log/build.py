"""Events of rows: those of one object fold into few, and what the database holds now beats what was logged.

The rows of a poll are grouped by object. Each run of deletes of an object is one delete; what lies between two of them
is a *life*, which becomes one add and one modify at most. A row that asks for what the database holds now (types 5 to
8) takes the place of what was logged for the same field or object, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from penstock.change import TableName
from penstock.formats.xds.event import AttributeStep, Operation, Value, XdsAttribute, XdsEvent, XdsEventKind
from penstock.formats.xds.values import UnreadableError
from penstock.sources.event_log.classes import Child, ClassAttribute
from penstock.sources.event_log.rows import (
    FIELD_NOW,
    INSERTS,
    WHOLE_ROW_NOW,
    EventType,
    Object,
    RowOutcome,
    Settled,
    Usable,
)


@dataclass
class Wanted:
    """What is to be read of the rows that a table holds now.

    Attributes:
        objects: Whose rows, each once.
        attributes: Which columns, of the table and of its child tables, in the order in which they were asked for.
    """

    objects: list[Object] = field(default_factory=list)
    attributes: dict[ClassAttribute, None] = field(default_factory=dict)


class Current(NamedTuple):
    """What the database holds of an object.

    Attributes:
        values: The canonical texts of an attribute's values, NULL left out.
        faults: Why the object's rows in a child table cannot be read, or its own row, for None; as texts of an
            `UnreadableError`.
    """

    values: Mapping[ClassAttribute, Sequence[str]]
    faults: Mapping[Child | None, str] = MappingProxyType({})

    def refuse_faults(self, child: Child | None) -> None:
        """Make sure that the object's own row could be read, and its rows in a child table.

        Raises:
            UnreadableError: They could not.
        """
        why = self.faults.get(None) or self.faults.get(child)
        if why:
            raise UnreadableError(why)

    def texts(self, attribute: ClassAttribute) -> Sequence[str]:
        """Return the texts of an attribute's values; raises as `refuse_faults` does."""
        if self.faults:
            self.refuse_faults(attribute.child)
        return self.values.get(attribute, ())


class BuiltEvent(NamedTuple):
    """An event, the object it is about, the record_ids of the rows behind it, and when the first was logged."""

    event: XdsEvent
    object: Object
    record_ids: list[int]
    logged_at_us: int


class ObjectLife(NamedTuple):
    """Rows of one object between two deletes, or a run of deletes; `is_last` where no delete of it follows."""

    object: Object
    rows: list[Usable]
    is_delete: bool
    is_last: bool


def lives(rows: Iterable[Usable]) -> list[ObjectLife]:
    """Group rows by object, and cut the rows of each at its deletes."""
    by_object: dict[Object, list[Usable]] = {}
    for row in rows:
        by_object.setdefault(row.object, []).append(row)
    found: list[ObjectLife] = []
    for of, own in by_object.items():
        runs = [(is_delete, list(run)) for is_delete, run in groupby(own, lambda r: r.type is EventType.DELETE_ROW)]
        last_delete = max((at for at, (is_delete, _) in enumerate(runs) if is_delete), default=-1)
        found += [ObjectLife(of, run, is_delete, at > last_delete) for at, (is_delete, run) in enumerate(runs)]
    return found


def wanted(found: Iterable[ObjectLife]) -> dict[TableName, Wanted]:
    """Say what has to be read of what the database holds now, by table, before events are built."""
    by_table: dict[TableName, Wanted] = {}
    for life in found:
        now = [row for row in life.rows if row.type >= EventType.INSERT_ROW_NOW]
        if not now or not life.is_last:
            continue
        of = life.object.of
        asked = by_table.setdefault(of.name, Wanted())
        asked.objects.append(life.object)
        if any(row.attribute is None for row in now):
            asked.attributes.update(dict.fromkeys((*of.own_attributes, *of.child_attributes)))
        else:
            asked.attributes.update(dict.fromkeys(row.attribute for row in now if row.attribute is not None))
    return by_table


def build(
    found: Iterable[ObjectLife], current: Mapping[Object, Current], *, event_ids: bool = False
) -> tuple[list[BuiltEvent], dict[int, Settled]]:
    """Build the events of a poll.

    Args:
        current: What the database holds now of those objects of `wanted` that are there.
        event_ids: Have each event carry the smallest record_id behind it.

    Returns:
        The events in order, and what became of rows that have none, by record_id.
    """
    builder = _Builder(current, event_ids=event_ids)
    for life in found:
        builder.take(life)
    return [event for _, event in sorted(builder.events, key=lambda placed: placed[0])], builder.settled


class _Element:
    """An add or a modify in the making: its attributes by the place of their first row, and the rows it stands for."""

    def __init__(self) -> None:
        self.operations: dict[ClassAttribute, list[Operation]] = {}
        self.places: dict[ClassAttribute, int] = {}
        self.rows: list[Usable] = []

    def of(self, attribute: ClassAttribute, rows: Sequence[Usable]) -> list[Operation]:
        self.rows += rows
        found = self.operations.get(attribute)
        if found is None:
            found = self.operations[attribute] = []
            self.places[attribute] = rows[0].place
        return found

    def attributes(self) -> tuple[XdsAttribute, ...]:
        ordered = sorted(self.operations, key=lambda attribute: self.places[attribute])
        return tuple(
            XdsAttribute(attribute.name, tuple(self.operations[attribute]))
            for attribute in ordered
            if self.operations[attribute]
        )


class _Builder:
    def __init__(self, current: Mapping[Object, Current], *, event_ids: bool) -> None:
        self._current = current
        self._event_ids = event_ids
        self.events: list[tuple[int, BuiltEvent]] = []
        self.settled: dict[int, Settled] = {}

    def take(self, life: ObjectLife) -> None:
        if life.is_delete:
            self._put(XdsEventKind.DELETE, life.object, life.rows, ())
            return
        current = self._current.get(life.object) if life.is_last else None
        if any(row.type in WHOLE_ROW_NOW for row in life.rows):
            self._whole(life, current)
        else:
            self._fields(life, current)

    def _whole(self, life: ObjectLife, current: Current | None) -> None:
        """Show the whole row as it is now."""
        if current is None:
            self._without_effect(life, life.rows)
            return
        is_add = any(row.type in INSERTS for row in life.rows)
        of = life.object.of
        try:
            current.refuse_faults(None)
            attributes = [
                XdsAttribute(attribute.name, operations)
                for attribute in (*of.own_attributes, *of.child_attributes)
                if (operations := _now(attribute, current, is_add=is_add))
            ]
        except UnreadableError as exc:
            self._settle(life.rows, RowOutcome.ERROR, f"the row holds a value that {exc}")
            return
        self._put(XdsEventKind.ADD if is_add else XdsEventKind.MODIFY, life.object, life.rows, tuple(attributes))

    def _fields(self, life: ObjectLife, current: Current | None) -> None:
        """Show fields, each as it is now or as it was logged."""
        by_attribute: dict[ClassAttribute, list[Usable]] = {}
        for row in life.rows:
            assert row.attribute is not None
            by_attribute.setdefault(row.attribute, []).append(row)
        add, modify = _Element(), _Element()
        asks = any(row.type in FIELD_NOW for row in life.rows)
        for attribute, rows in by_attribute.items():
            if not asks or not any(row.type in FIELD_NOW for row in rows):
                for row in rows:
                    self._logged(add if row.type is EventType.INSERT_FIELD else modify, attribute, row)
            elif current is None:
                self._without_effect(life, rows)
            else:
                is_add = any(row.type in INSERTS for row in rows)
                try:
                    operations = _now(attribute, current, is_add=is_add)
                except UnreadableError as exc:
                    self._settle(rows, RowOutcome.ERROR, f"the column holds a value that {exc}")
                else:
                    (add if is_add else modify).of(attribute, rows).extend(operations)
        if add.rows:
            self._put(XdsEventKind.ADD, life.object, add.rows, add.attributes())
        if modify.rows:
            self._put(XdsEventKind.MODIFY, life.object, modify.rows, modify.attributes())

    def _logged(self, element: _Element, attribute: ClassAttribute, row: Usable) -> None:
        """Add what one row has logged of a field."""
        new, old = row.row.new_value, row.row.old_value
        try:
            added = () if new is None else (attribute.convert(new),)
            removed = (attribute.convert(old),) if row.type is EventType.UPDATE_FIELD and old is not None else ()
        except UnreadableError as exc:
            self._settle([row], RowOutcome.ERROR, f"a logged value {exc}")
            return
        operations = element.of(attribute, [row])
        if row.type is EventType.INSERT_FIELD:
            before = operations[0].values if operations and attribute.child is not None else ()
            values = (*before, *added)
            operations[:] = [Operation(AttributeStep.ADD_VALUE, values)] if values else []
            return
        if row.type is EventType.REPLACE_FIELD:
            operations.append(Operation(AttributeStep.REMOVE_ALL_VALUES))
        elif removed:
            operations.append(Operation(AttributeStep.REMOVE_VALUE, removed))
        if added:
            operations.append(Operation(AttributeStep.ADD_VALUE, added))

    def _put(
        self, kind: XdsEventKind, of: Object, rows: Sequence[Usable], attributes: tuple[XdsAttribute, ...]
    ) -> None:
        if kind is XdsEventKind.MODIFY and not attributes:
            self._settle(rows, RowOutcome.SUCCESS, "")
            return
        record_ids = [row.row.record_id for row in rows]
        first = min(rows, key=lambda row: row.place)
        id_ = str(min(record_ids)) if self._event_ids else None
        event = XdsEvent(kind, of.of.name.name, of.association, attributes, id_)
        self.events.append((first.place, BuiltEvent(event, of, record_ids, first.row.logged_at_us)))

    def _without_effect(self, life: ObjectLife, rows: Iterable[Usable]) -> None:
        why = "the object does not exist any more" if life.is_last else "the object is deleted later in the same poll"
        self._settle(rows, RowOutcome.WARNING, why)

    def _settle(self, rows: Iterable[Usable], outcome: RowOutcome, reason: str) -> None:
        for row in rows:
            self.settled[row.row.record_id] = Settled(outcome, reason)


def _now(attribute: ClassAttribute, current: Current, *, is_add: bool) -> tuple[Operation, ...]:
    """What an attribute is now, as steps; nothing for an add without a value."""
    values = tuple(map(attribute.convert, current.texts(attribute)))
    if attribute.child is not None:
        values = tuple(sorted(values, key=_text))
    shown = (Operation(AttributeStep.ADD_VALUE, values),) if values else ()
    return shown if is_add else (_CLEARED, *shown)


_CLEARED = Operation(AttributeStep.REMOVE_ALL_VALUES)


def _text(value: Value) -> str:
    return value.text
