"""What a pipeline opens in a database, in the order of its life: to set it up, to watch it, to finish its copy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta

from penstock.change import TableName
from penstock.database import (
    CatalogDifference,
    LockWait,
    MissingObject,
    SequenceSetting,
    SequenceValue,
    SetupStep,
    WorkingSession,
)
from penstock.history import LogHold


class SetupSession(ABC):
    """A session in which setup or teardown changes a database."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Open a transaction; commits at the end of the block."""

    @abstractmethod
    def take(self, step: SetupStep) -> None:
        """Carry out a step, inside a transaction."""


class LockWatch(ABC):
    """Looks for sessions of a pipeline that work, or wait for a lock, in one database."""

    @abstractmethod
    def at_work(self) -> Sequence[WorkingSession]:
        """Return the sessions that are inside a transaction, the oldest first. Raises as `waits` does."""

    @abstractmethod
    def waits(self, longer_than_s: float) -> Sequence[LockWait]:
        """Return the sessions that wait for longer than some seconds; a PenstockError says that they cannot be seen."""

    @abstractmethod
    def close(self) -> None:
        """Close its session."""


class HoldWatch(ABC):
    """Looks at what the log at the source takes, from another thread than the run's."""

    @abstractmethod
    def look(self, older: timedelta) -> LogHold | None:
        """Say what the log takes, naming transactions open for longer than `older`; None if it was closed meanwhile.

        Raises:
            PenstockError: The database cannot be asked.
        """

    @abstractmethod
    def close(self) -> None:
        """End the look that another thread may be taking; there is none afterwards."""


class PostDataBuilder(ABC):
    """Makes what the target's tables lack, and keeps their sequences in step."""

    @abstractmethod
    def lacks(self) -> Sequence[MissingObject]:
        """Return what the copy lacks; with a reason where it goes on to lack it."""

    @abstractmethod
    def differences(self) -> Sequence[CatalogDifference]:
        """Return in what the copy is not what the source is, but for what is about to be made.

        Raises:
            OperatorError: An index of the copy is not valid, and is not about to be built anew.
        """

    @abstractmethod
    def build(self, copied: Collection[TableName], *, is_last: bool = False) -> Iterator[MissingObject]:
        """Make what is made once rows are copied, at last also all else; with a reason yields what is refused.

        Nobody is kept from writing while an index is built.
        """

    @abstractmethod
    def sequences_to_set(self, values: Mapping[TableName, SequenceValue]) -> Sequence[SequenceSetting]:
        """Say what sequences have to be set to, to go on where those of the source stand; never backwards."""

    @abstractmethod
    def set_sequences(self, values: Mapping[TableName, SequenceValue]) -> Sequence[SequenceSetting]:
        """Set them; returns how each stood and stands."""

    @abstractmethod
    def stop(self) -> None:
        """Have `build`, in another thread, end soon."""

    @abstractmethod
    def close(self) -> None:
        """Close the session; a later call opens another one."""


class SequenceReader(ABC):
    """Reads where sequences of the source stand."""

    @property
    @abstractmethod
    def hidden(self) -> Sequence[str]:
        """What a superuser has to run before all of them may be read."""

    @abstractmethod
    def read(self) -> Mapping[TableName, SequenceValue]:
        """Return where the sequences stand that may be read, by their names at the source."""

    @abstractmethod
    def close(self) -> None:
        """Close the session; a later call opens another one."""


class WriteFreeze(ABC):
    """Watches that nothing writes to tables of the source, or sees to it."""

    @abstractmethod
    def writers(self) -> Sequence[str]:
        """Describe the transactions that have written to the tables, and are not over."""

    @abstractmethod
    def lock(self, wait_s: float) -> None:
        """Have everything that would write wait until `close`; waits so long for transactions that are open."""

    @property
    @abstractmethod
    def is_locked(self) -> bool:
        """Whether the lock is held."""

    @abstractmethod
    def close(self) -> None:
        """Let writers go on."""
