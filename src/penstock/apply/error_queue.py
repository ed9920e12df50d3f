"""The error queue, for people: see what could not be applied, mend the cause, retry (apply.md section 16)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from penstock.apply.conflicts import ApplyError
from penstock.apply.ledger import Failure
from penstock.apply.row_path import RowPath, TransactionError
from penstock.apply.target import RowWriter, TargetCatalog
from penstock.change import Image, TableName, Transaction
from penstock.errors import OperatorError
from penstock.position import Scn


@dataclass(frozen=True)
class ErrorEntry:
    """A transaction in the error queue, without its changes.

    Attributes:
        id: Names the entry within its target, `<process>.<number>` (A-135).
        message_number: The change that failed, counted from 1; 0 when it was none of them.
        table, op: Of that change.
        found: The row that the target held instead.
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


class ErrorQueue(Protocol):
    """The entries of one process."""

    def entries(self) -> Sequence[ErrorEntry]:
        """Return all entries, in commit order."""

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

    def transaction(self) -> AbstractContextManager[None]:
        """Begin; commit at the end of the block, or roll back if it raises."""

    def remove_entry(self, entry_id: str) -> bool:
        """Delete an entry inside the open transaction; False when somebody else has."""

    def catalog(self, transaction: Transaction) -> TargetCatalog:
        """Describe the tables that a transaction changes; one that was never copied counts as copied (A-137)."""


def retry(queue: ErrorQueue, entry_ids: Sequence[str], *, allow_duplicate_rows: bool) -> Iterator[str]:
    """Apply entries, in the order given, each in a target transaction that also removes it.

    Yields:
        Each entry, once it is applied.

    Raises:
        OperatorError: One failed again; it stays, with the new reason, and so do those after it (A-139).
    """
    with queue.retry_session() as session:
        for entry_id in entry_ids:
            _, whole = queue.load(entry_id)
            catalog = session.catalog(whole)
            # A table may have been copied since, with what the change did.
            changes = tuple(c for c in whole.changes if catalog.instantiated[c.table] < whole.commit_scn)
            transaction = replace(whole, changes=changes)
            rows = RowPath(session, catalog, allow_duplicate_rows=allow_duplicate_rows)
            try:
                with session.transaction():
                    if session.remove_entry(entry_id):
                        rows.apply(transaction)
            except (TransactionError, ApplyError) as exc:
                failure = exc.failure if isinstance(exc, TransactionError) else Failure(0, exc)
                if failure.message_number:
                    number = list(whole.changes).index(changes[failure.message_number - 1]) + 1
                    failure = replace(failure, message_number=number)
                queue.update_failure(entry_id, failure)
                number, count = failure.message_number, len(whole.changes)
                raise OperatorError(
                    f"transaction {entry_id} still cannot be applied: {failure.error}",
                    where=f"change {number} of {count}" if number else "at commit",
                    do=f"`penstock errors show {entry_id}` shows it whole",
                ) from exc
            yield entry_id
