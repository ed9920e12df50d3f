"""Rows of a log: which of them can be used, and what object and attribute each is about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from penstock.change import TableName
from penstock.errors import MalformedInputError
from penstock.formats.xds.table_key import parse_key
from penstock.formats.xds.values import UnreadableError
from penstock.sources.event_log.classes import Child, ClassAttribute, Classes, DatabaseClass
from penstock.text import printable

_LONGEST_NAME = 63


class LogRow(NamedTuple):
    """A row as the log has it.

    `has_time` is False where `event_time` is NULL; `logged_at_us` is that time, microseconds since 1970 in UTC, and 0
    where it is NULL or infinite. `xmin` is the transaction that has written the row, None where that is not known.
    `is_alone` is False where another new row has the same `record_id`.
    """

    record_id: int
    event_type: object
    has_time: bool
    logged_at_us: int
    table_name: str | None
    table_key: str | None
    column_name: str | None
    old_value: str | None
    new_value: str | None
    xmin: int | None = None
    is_alone: bool = True


class EventType:
    """What a row says of its object; plain numbers, as members of an enum take long to be looked up by the million."""

    INSERT_FIELD = 1
    UPDATE_FIELD = 2
    REPLACE_FIELD = 3
    DELETE_ROW = 4
    INSERT_ROW_NOW = 5
    UPDATE_ROW_NOW = 6
    INSERT_FIELD_NOW = 7
    UPDATE_FIELD_NOW = 8


INSERTS = frozenset((EventType.INSERT_FIELD, EventType.INSERT_ROW_NOW, EventType.INSERT_FIELD_NOW))
WHOLE_ROW_NOW = frozenset((EventType.INSERT_ROW_NOW, EventType.UPDATE_ROW_NOW))
FIELD_NOW = frozenset((EventType.INSERT_FIELD_NOW, EventType.UPDATE_FIELD_NOW))
_OF_A_ROW = WHOLE_ROW_NOW | {EventType.DELETE_ROW}


class RowOutcome(StrEnum):
    """What is written to a row's status."""

    SUCCESS = "S"
    WARNING = "W"
    ERROR = "E"
    FATAL = "F"


@dataclass(frozen=True)
class Settled:
    """The outcome of a row, and why, without anything that the row holds; no reason where all went well."""

    outcome: RowOutcome
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Object:
    """One row of a class's table, by the values of its key; there is one of these for each in a poll."""

    of: DatabaseClass
    key: tuple[str, ...]

    @cached_property
    def association(self) -> str:
        """What names it in events."""
        return self.of.association(self.key)


class Usable(NamedTuple):
    """A row that can be used; `place` is its place among the rows of the poll, `attribute` None for types 4 to 6."""

    place: int
    row: LogRow
    type: int
    object: Object
    attribute: ClassAttribute | None


def check(rows: Sequence[LogRow], classes: Classes, *, needs_time: bool) -> tuple[list[Usable], dict[int, Settled]]:
    """Sort out the rows that cannot be used.

    Args:
        needs_time: Rows without a time cannot be used.

    Returns:
        The usable rows in order, and what became of the others, by record_id.
    """
    checker = _Checker(classes, needs_time=needs_time)
    usable: list[Usable] = []
    unusable: dict[int, Settled] = {}
    for place, row in enumerate(rows):
        try:
            usable.append(checker.check(place, row))
        except UnreadableError as exc:
            unusable[row.record_id] = Settled(RowOutcome.ERROR, str(exc))
    return usable, unusable


class _Checker:
    """Checks rows one by one, and remembers what their texts mean: most are said many times."""

    def __init__(self, classes: Classes, *, needs_time: bool) -> None:
        self._classes = classes
        self._needs_time = needs_time
        self._tables: dict[str, tuple[DatabaseClass, Child | None] | None] = {}
        # By the class as such, of which there is one in a poll: its name takes longer to look up.
        self._objects: dict[tuple[int, str], Object | UnreadableError] = {}
        self._same: dict[tuple[TableName, tuple[str, ...]], Object] = {}

    def check(self, place: int, row: LogRow) -> Usable:
        if not row.is_alone:
            raise UnreadableError("another new row has its record_id, so that neither can get a status alone")
        if self._needs_time and not row.has_time:
            raise UnreadableError("event_time is NULL")
        type_ = _TYPES.get(str(row.event_type))
        if type_ is None:
            raise UnreadableError("event_type is not a number from 1 to 8")
        found = self._table(row.table_name)
        if found is None:
            name = printable(str(row.table_name)[:_LONGEST_NAME])
            raise UnreadableError(f"table {name!r} is not among those followed, with a key or a foreign key to one")
        class_, child = found
        if child is not None and type_ in _OF_A_ROW:
            raise UnreadableError("event_type is one of a whole row, and table_name means a child table")
        of = self._object(class_, row.table_key)
        if type_ in _OF_A_ROW:
            return Usable(place, row, type_, of, None)
        attribute = None if row.column_name is None else class_.attribute(child, row.column_name)
        if attribute is None:
            raise UnreadableError("column_name is not a column of the table, or is one by which a child refers to it")
        return Usable(place, row, type_, of, attribute)

    def _table(self, text: str | None) -> tuple[DatabaseClass, Child | None] | None:
        if text is None:
            return None
        if text not in self._tables:
            self._tables[text] = self._classes.find(text)
        return self._tables[text]

    def _object(self, class_: DatabaseClass, text: str | None) -> Object:
        if text is None:
            raise UnreadableError("table_key is NULL")
        said = (id(class_), text)
        found = self._objects.get(said)
        if found is None:
            try:
                key = class_.bind(parse_key(text))
                found = self._same.setdefault((class_.name, key), Object(class_, key))
            except MalformedInputError as exc:
                found = UnreadableError(str(exc))
            except UnreadableError as exc:
                found = exc
            self._objects[said] = found
        if isinstance(found, UnreadableError):
            raise UnreadableError(str(found))
        return found


_TYPES = {str(type_): type_ for type_ in range(EventType.INSERT_FIELD, EventType.UPDATE_FIELD_NOW + 1)}


def reasons(settled: Iterable[tuple[int, Settled]]) -> dict[tuple[RowOutcome, str], list[int]]:
    """Return the record_ids by outcome and reason, of those that have one."""
    found: dict[tuple[RowOutcome, str], list[int]] = {}
    for record_id, one in settled:
        if one.reason:
            found.setdefault((one.outcome, one.reason), []).append(record_id)
    return found
