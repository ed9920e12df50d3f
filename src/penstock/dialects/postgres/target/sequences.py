"""Sets sequences of the target to where those of the source stand; never backwards, unless they cycle.

One that counts in steps of its own, as where both databases give keys, keeps to its own values.

The course of it is in `pipeline.cutover` and, while changes are applied, in `pipeline.post_data`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.change import TableName
from penstock.database import SequenceSetting, SequenceValue
from penstock.dialects.postgres.catalog import current_user
from penstock.dialects.postgres.connection import Connection, quote
from penstock.dialects.postgres.post_data import SequenceLink
from penstock.dialects.postgres.sequences import (
    SequenceUse,
    drawn_by,
    furthest,
    in_own_steps,
    is_ahead,
    read_uses,
    read_values,
    setval,
)
from penstock.errors import OperatorError


def sequences_to_set(
    connection: Connection, links: Sequence[SequenceLink], values: Mapping[TableName, SequenceValue]
) -> list[tuple[SequenceUse, SequenceSetting | None]]:
    """Say what sequences of the target have to be set to; None for one that the user may not read.

    Args:
        links: Which sequence of the source each column goes on with.
        values: By the names of the source's sequences.
    """
    reached = {(link.table, link.column): values[link.source] for link in links if link.source in values}
    begun = {(link.table, link.column): link.start for link in links}
    found = read_links(connection, [link for link in links if link.source in values])
    uses: dict[TableName, SequenceUse] = {}
    wanted: dict[TableName, list[SequenceValue]] = {}
    starts: dict[TableName, set[int]] = {}
    for column, use in found.items():
        uses[use.name] = use
        wanted.setdefault(use.name, []).append(reached[column])
        starts.setdefault(use.name, set()).add(begun[column])
    now = read_values(connection, [name for name, use in uses.items() if use.may_read])
    settings: list[tuple[SequenceUse, SequenceSetting | None]] = [
        (use, None) for use in uses.values() if not use.may_read
    ]
    for name, before in now.items():
        use, after = uses[name], furthest(wanted[name], uses[name].increment)
        # One that setup has made as the source's is, and nobody has moved since, has no steps of its own.
        is_fresh = before == SequenceValue(use.start, is_called=False) and use.start in starts[name]
        if (after.last - before.last) % use.increment and not is_fresh:
            after = in_own_steps(after, before, use)
        if not (use.does_cycle or is_ahead(after, before, use.increment)):
            after = before
        settings.append((use, SequenceSetting(name, before, after)))
    return settings


def grants(connection: Connection, uses: Iterable[SequenceUse]) -> list[str]:
    """Return the SQL that lets the user set sequences."""
    user = quote(current_user(connection))
    names = sorted({use.name for use in uses})
    return [f"GRANT SELECT, UPDATE ON SEQUENCE {quote(name.schema, name.name)} TO {user}" for name in names]


def read_links(connection: Connection, links: Iterable[SequenceLink]) -> Mapping[tuple[TableName, str], SequenceUse]:
    """Return the target's sequence of each link; none where the target has no such column or sequence."""
    wanted = {(link.table, link.column) for link in links}
    tables = {table for table, column in wanted if column}
    schemas = {name.schema for name, column in wanted if not column}
    found = drawn_by(read_uses(connection, tables, free_in=schemas))
    return {column: use for column, use in found.items() if column in wanted}


def set_sequences(
    connection: Connection, settings: Sequence[tuple[SequenceUse, SequenceSetting | None]], *, where: str
) -> None:
    """Set those that have to be set.

    Args:
        settings: As `sequences_to_set` returns them.

    Raises:
        OperatorError: The user may not set one, or it does not go so far; all that can be set are set then.
    """
    needed = [(use, setting) for use, setting in settings if setting is not None and setting.is_needed]
    forbidden = [use for use, setting in settings if setting is None or (setting.is_needed and not use.may_set)]
    if forbidden:
        what = f"no right to move sequence {quote(forbidden[0].name.schema, forbidden[0].name.name)}"
        raise OperatorError(what, where=where, do="; ".join(grants(connection, forbidden)))
    fitting = [setting for use, setting in needed if use.least <= setting.after.last <= use.most]
    if fitting:
        calls = ", ".join(setval(setting.name, setting.after) for setting in fitting)
        connection.execute(f"SELECT {calls}")
    # One keeps none of the others back.
    for use, setting in needed:
        if setting not in fitting:
            name = quote(use.name.schema, use.name.name)
            what = f"sequence {use.name} ends at {use.most} and begins at {use.least}, and the source's is beyond that"
            do = f"give it the source's limits: ALTER SEQUENCE {name} AS bigint MINVALUE ... MAXVALUE ..."
            raise OperatorError(what, where=where, do=do)
