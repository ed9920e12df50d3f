"""What apply writes down at the target, in the same transactions as the rows: the truth about what is applied.

Everything at or below the low watermark is applied; above it only what the applied set names; nothing above the
high watermark is. A transaction that went to the error queue, or waits behind it, counts as applied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from penstock.apply.apply_errors import ApplyError
from penstock.apply.blocked_keys import BlockedKeyIndex, BlockedKeys
from penstock.apply.conflict_methods import Resolution
from penstock.change import TableName, Transaction
from penstock.history import History
from penstock.position import Anchor, Scn


@dataclass(frozen=True)
class LaneClaim:
    """The right of one task to apply one lane.

    A later claim of the same lane, or a later epoch of the process, ends it: the next transaction of
    the task that held it fails before it writes anything.

    Attributes:
        process: Name of the apply process.
        epoch: Counts the runs of the process.
        lane: Number of the lane.
        attempt: Grows with every attempt at the same work within an epoch.
        moves_watermark: The batch is in this lane alone, so each commit of it moves the low watermark.
        cut: The source's cut behind what the lane applies; None where the source has no cuts.
    """

    process: str
    epoch: int
    lane: int
    attempt: int
    moves_watermark: bool
    cut: Anchor | None = None


@dataclass(frozen=True)
class Failure:
    """Why a transaction could not be applied.

    `message_number` counts its changes from 1; 0 when the failure belongs to none of them.
    """

    message_number: int
    error: ApplyError


@dataclass(frozen=True)
class Failed:
    """A transaction that is to go to the error queue.

    Attributes:
        marks: By what it keeps others back; None where none are to wait.
        is_whole: Otherwise these are some of its changes, and the others are applied.
    """

    transaction: Transaction
    failure: Failure
    marks: BlockedKeys | None = None
    is_whole: bool = True


class LaneLedger(ABC):
    """The lane's entries; PostgreSQL's are `PostgresLaneLedger`.

    Every method runs inside an open transaction of the lane's session.
    """

    @abstractmethod
    def claim(self) -> NDArray[np.int64]:
        """Take the lane over from earlier attempts, waiting for what they are committing.

        Returns:
            The low watermark, then the positions above it that are applied already.

        Raises:
            FencedError: A later attempt or another process holds it.
        """

    @abstractmethod
    def record(self, commit_scns: NDArray[np.int64], *, changes: int) -> None:
        """Write down that these transactions are applied; the first statement of a transaction.

        Raises:
            FencedError: The claim does not hold any more.
        """

    @abstractmethod
    def put_errors(self, failed: Sequence[Failed]) -> None:
        """Put transactions, which were recorded before, into the error queue, and do not count them as applied.

        Args:
            failed: In commit order.
        """

    @abstractmethod
    def put_held(self, transactions: Sequence[Transaction], marks: BlockedKeys) -> None:
        """Put transactions, which were recorded before, behind others in the error queue; they do not count as applied.

        Args:
            marks: Of all of them, numbered as they come.
        """

    @abstractmethod
    def queued(self, marked_by: int) -> BlockedKeyIndex:
        """Return the marks of all that the error queue holds.

        Args:
            marked_by: The keys that marks are made by now, see `dependency_keys.fingerprint`.
        """

    @abstractmethod
    def note_resolutions(self, resolved: Sequence[tuple[Transaction, Sequence[Resolution]]]) -> None:
        """Write down how conflicts of transactions were resolved."""

    @abstractmethod
    def note_emptied(self, tables: Collection[TableName], commit_scn: int) -> None:
        """Write down that a transaction truncates tables: a retry of an earlier one must not undo that."""


class ProcessStatus(StrEnum):
    """How an apply process was left."""

    ENABLED = "ENABLED"
    """A run began, and has not said that it ended."""
    DISABLED = "DISABLED"
    """No run has begun yet, or the last one ended."""
    ABORTED = "ABORTED"
    """It stopped at an error, as it was told to."""


class StopRequest(StrEnum):
    """How a run is asked to stop."""

    FINISH = "FINISH"
    """What it has begun to apply is finished first, so that nothing is applied behind what is not."""
    FORCE = "FORCE"
    """At once; what is not finished is rolled back, and applied by the next run."""


@dataclass(frozen=True)
class ProcessState:
    """Where an apply process stands.

    Attributes:
        status_at: When it was started or stopped last.
        error: The error that it stopped at.
        reason: Why it stopped.
        consistent_at: Source commit time up to which everything is applied.
        errors: Transactions in the error queue that failed.
        held: Transactions that wait behind these.
        on_hold: How many of both a person has put on hold.
        ddl: How often DDL of the source was carried out here.
        conflicts: Those that sent a transaction to the error queue.
        resolved: Entries of the conflict log that were ever written.
        history: The history of the source that it has followed.
    """

    name: str
    epoch: int
    status: ProcessStatus
    status_at: datetime
    error: str | None
    reason: str | None
    low_watermark: Scn
    high_watermark: Scn
    consistent_at: datetime | None
    transactions: int
    changes: int
    errors: int
    conflicts: int
    resolved: int
    history: History
    held: int = 0
    on_hold: int = 0
    ddl: int = 0


@dataclass(frozen=True)
class RunPlace:
    """Where the program of a run is: its machine, and its process id there."""

    host: str
    pid: int


@dataclass(frozen=True)
class QueueState:
    """What the error queue of a process holds.

    Attributes:
        failed: Transactions that could not be applied.
        held: Transactions that wait behind others.
        may_go_on: One of the held waits for nothing any more.
    """

    failed: int = 0
    held: int = 0
    may_go_on: bool = False

    @property
    def total(self) -> int:
        """How many transactions there are."""
        return self.failed + self.held
