"""The changes of an error queue entry beside the rows that the target holds now, as `penstock errors show` has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.apply.apply_errors import ApplyError, ContentionError
from penstock.apply.error_queue import RetrySession
from penstock.apply.target import TargetCatalog, TargetTable
from penstock.change import Change, Image, Op, TableName, Transaction


@dataclass(frozen=True)
class CurrentRow:
    """One change, and what it would find at the target.

    Attributes:
        has_table: Whether the target has the change's table at all.
        now: The row with the change's key; None where there is none, or where the change does not tell the key.
        differing: Columns in which that row is not what the change expects: an update or a delete its old values, an
            insert its new ones.
        in_the_way: By the names of unique keys of the target: a row that keeps the new values out.
    """

    change: Change
    has_table: bool = True
    now: Image | None = None
    differing: Sequence[str] = ()
    in_the_way: Mapping[str, Image] = field(default_factory=dict)

    @property
    def finds_no_row(self) -> bool:
        """Whether the change is one of a row, and the target has none with its key."""
        return self.now is None and self.has_table and self.change.op is not Op.MESSAGE

    @property
    def images(self) -> Mapping[str, Image]:
        """The images to be shown side by side, by the words over their columns: old, new, and the row now."""
        images = {"old": self.change.before, "new": self.change.after, "now": self.now}
        return {name: image for name, image in images.items() if image is not None}

    @property
    def columns(self) -> Sequence[str]:
        """The columns to be shown: those of the change, and then what else the row has now."""
        columns = {**(self.change.before or {}), **(self.change.after or {})}
        # A change that tells no column, as TRUNCATE does, is about no row.
        return list({**columns, **(self.now or {})}) if columns else []


def stand(
    session: RetrySession, transaction: Transaction, keys: Mapping[TableName, tuple[str, ...]]
) -> list[CurrentRow]:
    """Look up each change's row as it is now. Locks no row; changes of one transaction are not seen by each other.

    Args:
        transaction: The transaction, or as much of it as is to be shown: each change takes some queries.
        keys: Substitute keys of tables.
    """
    catalog = session.catalog(transaction).with_keys(keys)
    with session.transaction():
        return [_current_row(session, change, catalog) for change in transaction.changes]


def _current_row(session: RetrySession, change: Change, catalog: TargetCatalog) -> CurrentRow:
    if change.op is Op.MESSAGE:
        return CurrentRow(change)
    table = catalog.tables.get(change.table)
    if table is None:
        return CurrentRow(change, has_table=False)
    if change.op in (Op.TRUNCATE, Op.GAP, Op.DDL):
        return CurrentRow(change)
    try:
        # A value that is of another type at the target makes the query fail: a savepoint keeps the others.
        with session.transaction():
            return _looked_up(session, change, table)
    except (ApplyError, ContentionError):
        return CurrentRow(change)


def _looked_up(session: RetrySession, change: Change, table: TargetTable) -> CurrentRow:
    expected = change.after if change.before is None else change.before
    known = {name: value for name, value in (expected or {}).items() if name in table.schema.by_name}
    now = None
    if set(table.key.columns) <= set(known):
        rows = session.rows_now(table, {name: known[name] for name in table.key.columns})
        now = rows[0] if rows else None
    differing = [] if now is None else [name for name, value in known.items() if now[name] != value]
    # An update may find its own row; an insert may find none.
    own = None if change.op is Op.INSERT else now
    return CurrentRow(change, now=now, differing=differing, in_the_way=_in_the_way(session, change, table, own))


def _in_the_way(session: RetrySession, change: Change, table: TargetTable, own: Image | None) -> dict[str, Image]:
    if change.after is None:
        return {}
    whole = {**(change.before or {}), **change.after}
    image = {name: value for name, value in whole.items() if name in table.schema.by_name}
    found = {}
    for unique in table.schema.all_uniques:
        for row in session.rows_in_the_way(table, unique.name, image):
            if row != own:
                found[unique.name] = row
    return found
