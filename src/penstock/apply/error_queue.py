"""The error queue, for people: which transactions could not be applied, and what was done with them."""

from __future__ import annotations

import getpass
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from penstock.apply.apply_errors import (
    CHECK_VIOLATED,
    COLUMN_MISSING,
    CONFLICTS,
    DDL_NOT_CARRIED_OUT,
    MESSAGE_UNHANDLED,
    MORE_THAN_ONE_ROW,
    NOT_CAPTURED,
    NOT_INSTANTIATED,
    NULL_REFUSED,
    TABLE_MISSING,
    VALUE_MALFORMED,
    VALUE_MISSING,
    VALUE_TOO_LONG,
)
from penstock.apply.conflict_methods import Resolution
from penstock.apply.ledger import Failure
from penstock.apply.session import TargetSession
from penstock.apply.target import TargetCatalog, TargetTable
from penstock.change import Image, TableName, Transaction
from penstock.errors import OperatorError
from penstock.position import Scn
from penstock.schema import Dictionary
from penstock.text import printable


class ErrorType(StrEnum):
    """What kind of thing has to be put right before a transaction can be applied."""

    CONFLICT = "conflict"
    """The target's rows are not what the source's were."""
    VALUE = "value"
    """A column or a check of the target does not take a value."""
    DEFINITION = "definition"
    """A table or a column is missing, was never copied, or is of another type; or a handler of messages is missing."""
    GAP = "gap"
    """A change was not captured: it cannot be applied, only left out."""
    OTHER = "other"
    """Anything else that the target refuses."""

    @classmethod
    def of(cls, error_number: int) -> ErrorType:
        """The type of an error by its number; see `apply.conflicts`."""
        return _TYPES.get(error_number, cls.OTHER)


_TYPES = {
    **dict.fromkeys(CONFLICTS | {MORE_THAN_ONE_ROW}, ErrorType.CONFLICT),
    **dict.fromkeys((NULL_REFUSED, CHECK_VIOLATED, VALUE_TOO_LONG, VALUE_MALFORMED, VALUE_MISSING), ErrorType.VALUE),
    **dict.fromkeys((TABLE_MISSING, COLUMN_MISSING, NOT_INSTANTIATED, DDL_NOT_CARRIED_OUT), ErrorType.DEFINITION),
    MESSAGE_UNHANDLED: ErrorType.DEFINITION,
    NOT_CAPTURED: ErrorType.GAP,
}


@dataclass(frozen=True)
class EntryHold:
    """A person's decision that nobody applies or deletes an entry until it is released.

    Attributes:
        by: Who it was, to the server and as the client said.
        note: Why.
    """

    at: datetime
    by: str
    note: str


@dataclass(frozen=True)
class ErrorEntry:
    """A transaction in the error queue, without its changes.

    Attributes:
        id: Names the entry within its target, `<process>.<number>`.
        source: The source that committed it, as the process knows it.
        message_number: The change that failed, counted from 1; 0 when it was none of them.
        table, op: Table and operation of that change.
        found: The row that the target held instead, or that stood in the way.
        created_at: When it failed first.
        recipient: The role that could not apply it; None where that is not known.
        is_held: It was not tried, because it depends on an earlier transaction in the queue.
        behind: The first entry that it waits for; None where that is gone, and it goes on as soon as anyone applies.
        on_hold: By whom it was put on hold, and why; None where it was not. Has nothing to do with `is_held`.
    """

    id: str
    source: str
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
    recipient: str | None
    is_held: bool = False
    behind: str | None = None
    on_hold: EntryHold | None = None

    @property
    def place(self) -> EntryPlace:
        """Where it stands in commit order."""
        return EntryPlace(self.commit_scn, int(self.id.rpartition(".")[2]))

    @property
    def state(self) -> str:
        """Whether it failed, or what it waits for; and whether it is on hold."""
        waits = f"waits behind {self.behind}" if self.behind else "free to go on"
        return (waits if self.is_held else "failed") + (", on hold" if self.on_hold else "")

    @property
    def error_type(self) -> ErrorType | None:
        """What kind of thing has to be put right; None of one that waits."""
        return None if self.is_held else ErrorType.of(self.error_number)


@dataclass(frozen=True, order=True)
class EntryPlace:
    """A place in commit order: entries are listed before or behind it, and need not be counted to get there."""

    commit_scn: int
    number: int


@dataclass(frozen=True)
class EntrySelection:
    """Which entries are meant: those that fit everything that is said, in commit order.

    Attributes:
        tables: Names at the target; the entry changes one of them. None: any.
        errors: Error numbers, or codes of the database; the entry has one of them. Empty: any.
        since, until: The transaction failed first at this time, or later; at this time, or earlier.
        text: The error message holds it, in large or in small letters.
        on_hold: The entry is on hold, or is not; None: either.
        after, before: Only entries behind this place; before this place, and then the last of these.
        most: At most so many; None: all.
    """

    tables: Collection[TableName] | None = None
    errors: Collection[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    text: str = ""
    on_hold: bool | None = None
    after: EntryPlace | None = None
    before: EntryPlace | None = None
    most: int | None = None


EVERY_ENTRY = EntrySelection()


class NoEntryError(OperatorError):
    """The error queue has no such entry, or has it no more."""


class OnHoldError(OperatorError):
    """An entry that was named is on hold."""


def on_hold_error(entry_ids: Collection[str], *, where: str) -> OnHoldError:
    """Say which entries are on hold."""
    names = " ".join(sorted(entry_ids))
    return OnHoldError(
        f"nothing was applied or deleted, because what is named is on hold: {names}",
        where=where,
        do=f"see by whom and why with `penstock errors show`; `penstock errors release {names}` ends it",
    )


@dataclass(frozen=True)
class Emptied:
    """A table was truncated at a position: all of it, or only the partition that `part` names."""

    table: TableName
    part: TableName
    scn: Scn


@dataclass(frozen=True)
class Actor:
    """The person who acts, as this program knows them; the target notes its own user beside it."""

    os_user: str
    host: str

    @classmethod
    def here(cls) -> Actor:
        """The user of this process."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):
            # A container may run under a number that has no name.
            user = str(os.getuid())
        return cls(printable(user), printable(socket.gethostname()))


class EntryAction(StrEnum):
    """What a person did with an entry."""

    RETRY = "retry"
    EDIT = "edit"
    """A retry with other values, or with changes left out."""
    DELETE = "delete"
    DRY_RUN = "dry run"
    GO_ON = "go on"
    """What it waited for was retried or deleted, so it was applied; not by itself chosen by a person."""
    HOLD = "hold"
    RELEASE = "release"


class EntryOutcome(StrEnum):
    """What came of it."""

    APPLIED = "applied"
    FAILED = "failed"
    DELETED = "deleted"
    WOULD_APPLY = "would apply"
    WOULD_FAIL = "would fail"
    ON_HOLD = "on hold"
    """It is on hold now; or it was already, and so it was neither applied nor deleted, which is in no history."""
    RELEASED = "released"
    WAITS = "waits"
    """It waits for an entry that is still in the queue. Nothing was done, so it is in no history."""
    GONE = "gone"
    """Another session had applied or deleted the entry meanwhile. Nothing was done, so it is in no history."""


@dataclass(frozen=True)
class Note:
    """What is written down of a deed. Holds no row values.

    Attributes:
        role: Whose rights the changes were applied with; None for those of the connection.
        edits: Which values were edited, as `2.before.price`, and which changes were left out, as `2`.
        error: Why it failed.
        note: Why it was put on hold.
    """

    entry: ErrorEntry
    deed: EntryAction
    outcome: EntryOutcome
    role: str | None = None
    edits: Sequence[str] = ()
    error: str | None = None
    error_number: int | None = None
    note: str | None = None


@dataclass(frozen=True)
class PastAction:
    """A deed of the past; the entry may be gone.

    Attributes:
        db_user: Who it was to the server.
        os_user, host: Who it was on which machine, as the client said.
        note: Why it was put on hold.
    """

    at: datetime
    db_user: str
    os_user: str
    host: str
    action: EntryAction
    outcome: EntryOutcome
    entry_id: str
    txn_id: str
    commit_scn: Scn
    role: str | None
    edits: Sequence[str]
    error_number: int | None
    error_message: str | None
    note: str | None = None


class ErrorQueue(ABC):
    """The entries of one process."""

    @abstractmethod
    def entries(self, selection: EntrySelection = EVERY_ENTRY) -> Sequence[ErrorEntry]:
        """Return the entries that are meant, in commit order."""

    @abstractmethod
    def count(self, selection: EntrySelection = EVERY_ENTRY) -> int:
        """Return how many entries are meant, whatever `most` says."""

    @abstractmethod
    def tables(self) -> Collection[TableName]:
        """Return the tables that the entries change."""

    @abstractmethod
    def count_by_table(self, root_of: Mapping[TableName, TableName]) -> Mapping[TableName, int]:
        """Return how many transactions hold changes of each table, or of a partition that `root_of` finds it for."""

    @abstractmethod
    def find(self, entry_id: str) -> str:
        """Return an entry's id in full, which may be given without the name of the process. Raises as `load` does."""

    @abstractmethod
    def places(self, entry_ids: Collection[str]) -> Mapping[str, EntryPlace]:
        """Return where entries stand in commit order, by their ids in full; those that are not there have no place."""

    @abstractmethod
    def load(self, entry_id: str) -> tuple[ErrorEntry, Transaction]:
        """Return an entry and its changes.

        Raises:
            NoEntryError: There is no such entry.
        """

    @abstractmethod
    def delete(self, *entry_ids: str, skip_gone: bool = False) -> Sequence[str]:
        """Remove entries, all of them or none; nothing is applied, and no watermark moves. Raises as `load` does.

        Args:
            skip_gone: Skip those that are on hold, and those that another session has applied or deleted.

        Returns:
            The ids of those that were removed, in full.

        Raises:
            OnHoldError: One of them is on hold.
        """

    @abstractmethod
    def hold(self, *entry_ids: str, note: str, skip_gone: bool = False) -> Sequence[str]:
        """Put entries on hold, all of them or none, for a reason. Raises as `load` does.

        Args:
            skip_gone: Skip those that are on hold already, which otherwise get the new note, and those that are gone.

        Returns:
            The ids of those that were put on hold, in full.
        """

    @abstractmethod
    def release(self, *entry_ids: str, skip_gone: bool = False) -> Sequence[str]:
        """End the hold of entries, all of them or none. Raises as `load` does.

        Args:
            skip_gone: Skip those that are gone.

        Returns:
            The ids of those that were on hold until now, in full.
        """

    @abstractmethod
    def on_hold(self, entry_ids: Collection[str]) -> Collection[str]:
        """Return those of the entries that are on hold, by their ids in full."""

    @abstractmethod
    def note(self, *notes: Note) -> None:
        """Write down deeds that changed nothing."""

    @abstractmethod
    def note_failure(self, note: Note, failure: Failure) -> None:
        """Write down that an entry failed again, and in the entry, why."""

    @abstractmethod
    def mark(self, catalog: TargetCatalog) -> None:
        """Make the marks of entries that have none yet, or whose marks are of other keys than the catalogue's."""

    @abstractmethod
    def history(self, *, entry_id: str | None = None, most: int) -> Sequence[PastAction]:
        """Return the last deeds, of one entry or of all, the oldest of them first."""

    @abstractmethod
    def deleted(self, first: int, last: int) -> Set[int]:
        """Return the positions, from one to another, of transactions that were deleted from the queue."""

    @abstractmethod
    def retry_session(self) -> AbstractContextManager[RetrySession]:
        """Open a session to apply entries through."""


class RetrySession(TargetSession):
    """A target session that applies entries, each in a transaction of its own."""

    @abstractmethod
    def note_resolutions(self, transaction: Transaction, resolutions: Sequence[Resolution]) -> None:
        """Write down, inside the open transaction, how conflicts of an entry were resolved."""

    @abstractmethod
    def rehearsal(self) -> AbstractContextManager[None]:
        """Have all transactions in the block see what those before them did, and none of them stay."""

    @abstractmethod
    def acting_as(self, role: str | None) -> AbstractContextManager[None]:
        """Use the rights of a role, inside the open transaction; None for those of the connection.

        Raises:
            OperatorError: There is no such role, or the connection's user may not be it.
        """

    @abstractmethod
    def check_now(self) -> None:
        """Have the target check what it would check at commit."""

    @abstractmethod
    def waits_for(self, entry_id: str) -> str | None:
        """Return the first entry that a held one waits for; None where it may go on, or is not held."""

    @abstractmethod
    def next_to_go_on(self, after: tuple[int, int] = (-1, 0)) -> tuple[int, int] | None:
        """Return position and number of the first held entry that waits for nothing and is not on hold; None without.

        Args:
            after: Position and number of one behind which to look.
        """

    @abstractmethod
    def remove_entry(self, entry_id: str, *, even_on_hold: bool = False) -> EntryOutcome | None:
        """Delete an entry inside the open transaction; gone or on hold when that cannot be done."""

    @abstractmethod
    def note(self, note: Note) -> None:
        """Write down a deed inside the open transaction."""

    @abstractmethod
    def held(self, entry_id: str, tables: Collection[TableName]) -> Collection[TableName]:
        """Return those of the tables that hold already what an entry did to them: they were repaired since."""

    @abstractmethod
    def emptied(self, tables: Collection[TableName]) -> Sequence[Emptied]:
        """Return where each of these tables, or a partition of it, was truncated last."""

    @abstractmethod
    def dictionary(self, transaction: Transaction) -> Dictionary:
        """Return the versions that the changes of a transaction were captured under."""

    @abstractmethod
    def catalog(self, transaction: Transaction) -> TargetCatalog:
        """Describe the tables that a transaction changes; one that was never copied counts as copied."""

    @abstractmethod
    def rows_now(self, table: TargetTable, key: Image) -> Sequence[Image]:
        """Return up to two rows that have a key, without a lock."""
