"""The error queue, for people: see what could not be applied, mend the cause, retry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from penstock.apply.conflicts import ApplyError
from penstock.apply.ledger import Failure
from penstock.apply.row_path import RowPath, TransactionError
from penstock.apply.target import RowWriter, TargetCatalog
from penstock.change import Change, Image, Op, TableName, Transaction
from penstock.errors import OperatorError
from penstock.position import Scn
from penstock.schema import Dictionary
from penstock.text import count, were

_NO_KEYS: Mapping[TableName, tuple[str, ...]] = {}


@dataclass(frozen=True)
class ErrorEntry:
    """A transaction in the error queue, without its changes.

    Attributes:
        id: Names the entry within its target, `<process>.<number>`.
        message_number: The change that failed, counted from 1; 0 when it was none of them.
        table, op: Table and operation of that change.
        found: The row that the target held instead, or that stood in the way.
    """

    id: str
    txn_id: str
    commit_scn: Scn
    committed_at: datetime | None
    message_number: int
    message_count: int
    error_number: int
    error_code: str | None
    error_message: str
    found: Image | None
    table: TableName | None
    op: str | None
    created_at: datetime


@dataclass(frozen=True)
class Emptied:
    """A table was truncated at a position: all of it, or only the partition that `part` names."""

    table: TableName
    part: TableName
    scn: Scn


class ErrorQueue(Protocol):
    """The entries of one process."""

    def entries(self) -> Sequence[ErrorEntry]:
        """Return all entries, in commit order."""

    def count_by_table(self, root_of: Mapping[TableName, TableName]) -> Mapping[TableName, int]:
        """Return how many transactions hold changes of each table, or of a partition that `root_of` finds it for."""

    def load(self, entry_id: str) -> tuple[ErrorEntry, Transaction]:
        """Return an entry and its changes.

        Raises:
            OperatorError: There is no such entry.
        """

    def delete(self, entry_id: str) -> None:
        """Remove an entry; nothing is applied. Raises as `load` does."""

    def update_failure(self, entry_id: str, failure: Failure) -> None:
        """Note why an entry failed again."""

    def retry_session(self) -> AbstractContextManager[RetrySession]:
        """Open a session to apply entries through."""


class RetrySession(RowWriter, Protocol):
    """A target session that applies entries, each in a transaction of its own."""

    def remove_entry(self, entry_id: str) -> bool:
        """Delete an entry inside the open transaction; False when another session has."""

    def held(self, entry_id: str, tables: Collection[TableName]) -> Collection[TableName]:
        """Return those of the tables that hold already what an entry did to them: they were repaired since."""

    def emptied(self, tables: Collection[TableName]) -> Sequence[Emptied]:
        """Return where each of these tables, or a partition of it, was truncated last."""

    def dictionary(self, transaction: Transaction) -> Dictionary:
        """Return the versions that the changes of a transaction were captured under."""

    def catalog(self, transaction: Transaction) -> TargetCatalog:
        """Describe the tables that a transaction changes; one that was never copied counts as copied."""


def retry(
    queue: ErrorQueue,
    entry_ids: Sequence[str],
    *,
    allow_duplicate_rows: bool,
    keys: Mapping[TableName, tuple[str, ...]] = _NO_KEYS,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[str]:
    """Apply entries, in the order given, each in a target transaction that also removes it.

    Changes of a table that was copied, or truncated, after them are left out: they would undo it.

    Args:
        keys: Substitute keys of tables.
        tell: Called with a sentence for each transaction of which changes were left out, or hold no old values to
            compare.

    Yields:
        Each entry, once it is applied.

    Raises:
        OperatorError: One failed again; it stays, with the new reason, and so do those after it.
    """
    with queue.retry_session() as session:
        for entry_id in entry_ids:
            _, whole = queue.load(entry_id)
            catalog = session.catalog(whole).with_keys(keys)
            # A table may have been copied since, with what the change did.
            held = session.held(entry_id, {change.table for change in whole.changes})
            late = [
                c for c in whole.changes if catalog.instantiated[c.table] < whole.commit_scn and c.table not in held
            ]
            emptied = _emptied_since(session.emptied({change.table for change in late}), entry_id, whole)
            changes = tuple(c for c in late if c.table not in emptied)
            if len(changes) < len(whole.changes):
                number = len(whole.changes) - len(changes)
                left_out = {c.table for c in whole.changes} - {c.table for c in changes}
                names = ", ".join(sorted(map(str, left_out)))
                tell(
                    f"{entry_id}: {number} of its changes {'is' if number == 1 else 'are'} left out: {names}"
                    f" {were(len(left_out))} copied, repaired or truncated later"
                )
            blind = sum(_is_blind(change, catalog) for change in changes)
            if blind:
                tell(
                    f"{entry_id}: {count(blind, 'change')} of {len(changes)} told nothing of an old row but its key:"
                    " what later transactions have set in these rows is overwritten"
                )
            transaction = replace(whole, changes=changes)
            rows = RowPath(session, catalog, session.dictionary(whole), allow_duplicate_rows=allow_duplicate_rows)
            try:
                with session.transaction():
                    if session.remove_entry(entry_id):
                        rows.apply(transaction)
            except (TransactionError, ApplyError) as exc:
                failure = exc.failure if isinstance(exc, TransactionError) else Failure(0, exc)
                failure = rows.explain(transaction, failure)
                if failure.message_number:
                    number = list(whole.changes).index(changes[failure.message_number - 1]) + 1
                    failure = replace(failure, message_number=number)
                queue.update_failure(entry_id, failure)
                number, most = failure.message_number, len(whole.changes)
                raise OperatorError(
                    f"transaction {entry_id} still cannot be applied: {failure.error}",
                    where=f"change {number} of {most}" if number else "at commit",
                    do=f"`penstock errors show {entry_id}` shows it whole",
                ) from exc
            yield entry_id


def _is_blind(change: Change, catalog: TargetCatalog) -> bool:
    """Whether a change holds nothing that would show that its row was changed since."""
    table = catalog.tables.get(change.table)
    if table is None or change.op not in (Op.UPDATE, Op.DELETE, Op.SNAPSHOT):
        return False
    others = set(table.schema.column_names) - set(table.key.columns)
    return bool(others) and others.isdisjoint(change.before or ())


def _emptied_since(found: Sequence[Emptied], entry_id: str, transaction: Transaction) -> set[TableName]:
    """Tables that were truncated after a transaction.

    Raises:
        OperatorError: Only a partition was, and it cannot be told whether a row of the transaction was in it.
    """
    since = [one for one in found if one.scn > transaction.commit_scn]
    whole = {one.table for one in since if one.part == one.table}
    partly = [one for one in since if one.table not in whole]
    if partly:
        raise OperatorError(
            f"partition {partly[0].part} of {partly[0].table} was truncated after transaction {entry_id}, whose rows"
            " may have been in it",
            do=f"see `penstock errors show {entry_id}`, put right by hand what is missing, and delete the entry",
        )
    return whole
