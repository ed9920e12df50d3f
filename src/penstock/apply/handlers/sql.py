"""What a handler may do at the target besides executing changes, and what that needs of a session."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from penstock.apply.apply_errors import STATEMENT_REFUSED, ApplyError
from penstock.apply.handlers.statement import Statement, refusal
from penstock.change import TableName
from penstock.errors import PenstockError
from penstock.schema import Column, TableSchema


@dataclass(frozen=True)
class SqlResult:
    """What a statement of a handler came to.

    Attributes:
        rows: What it returned; none where it returns nothing.
        count: How many rows it changed or returned.
    """

    rows: Sequence[tuple[Any, ...]]
    count: int


class SqlRunner(ABC):
    """The part of a target session that handlers need, inside its open transaction."""

    @abstractmethod
    def describe(self, table: TableName) -> TableSchema | None:
        """Describe a table of the target, whether or not changes come for it."""

    @abstractmethod
    def run_statement(self, statement: Statement, values: Sequence[tuple[Column | None, str | None]]) -> None:
        """Run the SQL of a statement handler; each value is canonical text of the column that it is of, if any."""

    @abstractmethod
    def query(self, statement: str, values: Sequence[Any]) -> SqlResult:
        """Run a statement of a user's own, with `%s` for values."""

    @abstractmethod
    def set_savepoint(self, name: str) -> None:
        """Begin what `roll_back_to` undoes; names are of the caller's making."""

    @abstractmethod
    def release(self, name: str) -> None:
        """Keep what was done since a savepoint."""

    @abstractmethod
    def roll_back_to(self, name: str) -> None:
        """Undo what was done since a savepoint."""

    @abstractmethod
    def prepare_bar(self) -> None:
        """Make what `bar_commit` needs, once in a session."""

    @abstractmethod
    def bar_commit(self) -> None:
        """Have the server refuse to commit the open transaction, whoever asks for it, until `unbar_commit`."""

    @abstractmethod
    def unbar_commit(self) -> bool:
        """Allow it again; False where the transaction that was barred is no more."""

    @abstractmethod
    def cancel(self) -> None:
        """End the statement that the session is at, from another thread."""


class Gate:
    """Lets one function at a time at a session, and none any more once its time is over.

    Whoever is inside uses the session alone; so once it is shut the function can never do anything to it.
    """

    def __init__(self, session: SqlRunner) -> None:
        """Guard a session."""
        self._session = session
        self._lock = threading.RLock()
        self._is_shut = False
        self._savepoints = 0
        self.stopped_by: PenstockError | None = None
        """What is not about the change, as a lost connection, and so must not be lost if the function catches it."""

    @property
    def is_shut(self) -> bool:
        """Whether nobody comes in any more."""
        return self._is_shut

    @contextmanager
    def enter(self) -> Iterator[SqlRunner]:
        """Use the session.

        Raises:
            ApplyError: The time is over.
        """
        with self._lock:
            if self._is_shut:
                raise ApplyError(STATEMENT_REFUSED, "the call that this belongs to is over")
            try:
                yield self._session
            except ApplyError:
                raise
            except PenstockError as exc:
                self.stopped_by = self.stopped_by or exc
                raise

    def shut(self) -> bool:
        """Let nobody in any more; False while a statement is under way, which is ended so that it soon succeeds."""
        if not self._lock.acquire(blocking=False):
            self._session.cancel()
            return False
        self._is_shut = True
        self._lock.release()
        return True

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what the block did if it raises. The session is free for other calls meanwhile."""
        with self.enter() as session:
            self._savepoints += 1
            name = f"penstock_handler_{self._savepoints}"
            session.set_savepoint(name)
        try:
            yield
        except BaseException:
            # Once the time is over, or the session is lost, what is around undoes it all.
            if self.stopped_by is None:
                with suppress(ApplyError), self.enter() as session:
                    session.roll_back_to(name)
            raise
        with self.enter() as session:
            session.release(name)


class HandlerSql:
    """The target, as a handler sees it: SQL inside the transaction that it takes part in, and no way to end that."""

    def __init__(self, gate: Gate, savepoint: Callable[[], AbstractContextManager[None]]) -> None:
        """Run SQL inside `gate`; `savepoint` also undoes what changes that were executed have left to do."""
        self._gate = gate
        self._savepoint = savepoint

    def execute(self, statement: str, values: Sequence[Any] = ()) -> SqlResult:
        """Run one statement; what it does is undone if it fails, and what was done before stays.

        Tables are written with their schema. Foreign keys are not checked, and ordinary triggers do not fire; what
        `RowLcr.execute` does is checked.

        Args:
            statement: With `%s` for each value, and `%%` for a percent sign where there are values.

        Raises:
            ApplyError: The target refuses it; or it would begin, commit or roll back a transaction.
        """
        reason = refusal(statement)
        if reason is not None:
            raise ApplyError(STATEMENT_REFUSED, f"a handler may not run this statement: {reason}")
        with self._gate.savepoint(), self._gate.enter() as session:
            return session.query(statement, values)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what the block did at the target if it raises, executed changes included."""
        with self._savepoint():
            yield
