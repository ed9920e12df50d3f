"""Sequences, and the columns that draw their values from them: which there are, and where they stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from penstock.change import TableName
from penstock.database import SequenceValue
from penstock.dialects.postgres.catalog import catalog_names, table_oids
from penstock.dialects.postgres.connection import Connection, literal, quote
from penstock.dialects.postgres.resources import sql_text

_AT_ONCE = 500
"""How many sequences one query looks at."""


@dataclass(frozen=True)
class SequenceUse:
    """A sequence, and a column that draws its values from it or owns it.

    Attributes:
        name: The sequence's own name.
        table: The column's table; the sequence's own name where no column uses it.
        column: Empty where no column uses it.
        how: `identity`, `owned`, `default`, or `free` where no column uses it.
        options: `AS bigint INCREMENT BY 1 ...`, as `CREATE SEQUENCE` takes them.
        increment: What it is moved by; below 0 it descends.
        does_cycle: After its last value it begins again.
        start: Its first value.
        least: The lowest value that it takes.
        most: The highest.
        may_read: Whether the user may see where it stands.
        may_set: Whether the user may set it.
    """

    name: TableName
    table: TableName
    column: str
    how: str
    options: str
    increment: int
    does_cycle: bool
    may_read: bool
    may_set: bool
    start: int
    least: int
    most: int


def read_uses(connection: Connection, tables: Iterable[TableName], *, free_in: Iterable[str] = ()) -> list[SequenceUse]:
    """Return the sequences of tables, once for each column and way in which they are used.

    Args:
        free_in: Schemas, whose sequences that no column uses are returned as well.
    """
    with catalog_names(connection):
        by_oid = {oid: name for name, oid in table_oids(connection, tables).items()}
        rows = psycopg.RawCursor(connection).execute(sql_text("sequences"), [list(by_oid), list(free_in)]).fetchall()
    return [
        SequenceUse(
            TableName(schema, name),
            by_oid.get(root, TableName(schema, name)),
            column,
            how,
            f"AS {type_} INCREMENT BY {increment} MINVALUE {least} MAXVALUE {most} START WITH {start} CACHE {cache}"
            f" {'CYCLE' if does_cycle else 'NO CYCLE'}",
            increment,
            does_cycle,
            may_read,
            may_set,
            start,
            least,
            most,
        )
        for (
            schema,
            name,
            root,
            column,
            how,
            type_,
            increment,
            least,
            most,
            start,
            cache,
            does_cycle,
            may_read,
            may_set,
        ) in rows
    ]


def read_values(connection: Connection, names: Sequence[TableName]) -> dict[TableName, SequenceValue]:
    """Return where sequences stand, by a session that refuses views. All of them exist, and may be read."""
    values: dict[TableName, SequenceValue] = {}
    for first in range(0, len(names), _AT_ONCE):
        part = names[first : first + _AT_ONCE]
        # pg_sequences would tell nothing of one that was set, and not drawn from yet.
        query = " UNION ALL ".join(
            f"SELECT {number}, last_value, is_called FROM {quote(name.schema, name.name)}"
            for number, name in enumerate(part)
        )
        for number, last, is_called in psycopg.RawCursor(connection).execute(query).fetchall():
            values[part[number]] = SequenceValue(last, is_called)
    return values


def is_ahead(one: SequenceValue, other: SequenceValue, increment: int) -> bool:
    """Whether a sequence that stands at `one` gives values that it would not have given before it came to `other`."""
    sign = 1 if increment > 0 else -1
    return (sign * one.last, one.is_called) > (sign * other.last, other.is_called)


def in_own_steps(reached: SequenceValue, before: SequenceValue, use: SequenceUse) -> SequenceValue:
    """Return where a sequence that stands at `before` gives the first of its own values behind those of another.

    Two that count by twos, one from 1 and the other from 2, never give the same value; moved to where the other stands,
    they would.
    """
    sign, step = (1 if use.increment > 0 else -1), abs(use.increment)
    # As if it ascended: the first value that is not given yet, and the first of its own that is not below.
    free = sign * reached.last + (1 if reached.is_called else 0)
    following = free + (sign * before.last - free) % step
    last = sign * (following - step)
    if use.least <= last <= use.most:
        return SequenceValue(last, is_called=True)
    return SequenceValue(sign * following, is_called=False)


def setval(name: TableName, value: SequenceValue) -> str:
    """The expression that sets a sequence; `target.sequences` executes it."""
    sequence = literal(quote(name.schema, name.name))
    return f"setval({sequence}::regclass, {value.last}, {'true' if value.is_called else 'false'})"


def furthest(values: Iterable[SequenceValue], increment: int) -> SequenceValue:
    """Return the value that is ahead of all others; there is at least one."""
    found: SequenceValue | None = None
    for value in values:
        if found is None or is_ahead(value, found, increment):
            found = value
    assert found is not None
    return found


def drawn_by(uses: Sequence[SequenceUse]) -> Mapping[tuple[TableName, str], SequenceUse]:
    """Return the one sequence of each column: that which it draws from, or else the one that it owns."""
    found: dict[tuple[TableName, str], SequenceUse] = {}
    for use in sorted(uses, key=lambda use: use.how == "default"):
        found[use.table, use.column] = use
    return found
