"""Carrying out what setup, teardown or resync plans, in both databases, without making writers wait."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

from penstock.change import TableName
from penstock.database import DatabasePlan, LockedError, SetupStep
from penstock.dialects.sessions import SetupSession
from penstock.errors import OperatorError, PenstockError
from penstock.pipeline.locks import Holders
from penstock.pipeline.plan import Plan

_PATIENCE_S = 10.0
_PAUSE_S = 0.5
"""How long to come back for tables that others hold, and how long to let them work in between."""

_Work: TypeAlias = tuple[DatabasePlan, SetupSession, SetupStep]


def carry_out(
    plan: Plan,
    target: AbstractContextManager[SetupSession],
    source: AbstractContextManager[SetupSession],
    holders: Holders,
) -> dict[TableName, list[PenstockError]]:
    """Take all steps of a plan that belong together, or none; then one by one those that are apart.

    Tries steps that wait for other sessions' locks again, for ten seconds.

    Returns:
        Tables that a step was refused for, and that are left out; the others have all they need. Their steps are gone
        from the plan.

    Raises:
        LockedError: Other sessions still hold a lock; `holders` names them. All else is in place.
        OperatorError: A step is refused that all tables need; or no table is left.
    """
    deadline = time.monotonic() + _PATIENCE_S
    # One session for all: the server compiles the functions that a step calls once in each.
    with target as at_target, source as at_source:
        both = _Both([(plan.target, at_target), (plan.source, at_source)], holders, deadline, list(plan.tables))
        both.take_together()
        # First what must not be missed.
        both.take_apart(reversed(both.sides))
    return both.left_out


class _UndoneError(Exception):
    """Rolls a transaction back that was only to find out what is refused."""


@dataclass(frozen=True)
class _Both:
    sides: Sequence[tuple[DatabasePlan, SetupSession]]
    holders: Holders
    deadline: float
    tables: Sequence[str]
    left_out: dict[TableName, list[PenstockError]] = field(default_factory=dict)

    def take_together(self) -> None:
        """Take what belongs together, of both sides or of none."""
        while steps := [work for work in self._steps() if not work[2].is_apart]:
            try:
                refused = self._together(steps)
            except LockedError as exc:
                self._let_work(exc.what, exc.do, [exc.where], exc)
            except OperatorError:
                # Tried once more, step by step: so nothing is paid for it where all is well.
                if not self._leave_out_refused(steps):
                    raise
            else:
                for database, note in refused:
                    database.notes.append(note)
                return

    def take_apart(self, sides: Iterable[tuple[DatabasePlan, SetupSession]]) -> None:
        """Take each step that is apart in a transaction of its own; steps that met a lock, once more after the rest."""
        waiting: list[_Work] = [
            (database, session, step) for database, session in sides for step in database.steps if step.is_apart
        ]
        while waiting:
            locked: list[_Work] = []
            cause: LockedError | None = None
            for database, session, step in waiting:
                if step not in database.steps:
                    continue
                if any(step.refers in other.tables for _, _, other in locked):
                    # Whether that table is captured is not known yet.
                    locked.append((database, session, step))
                    continue
                try:
                    with session.transaction():
                        note = _taken(session, step)
                    if note is not None:
                        database.notes.append(note)
                except LockedError as exc:
                    locked.append((database, session, step))
                    self.holders.look()
                    cause = exc
                except OperatorError as exc:
                    self._leave_out(step, exc)
            waiting = locked
            if cause is not None:
                names = ", ".join(step.summary for _, _, step in waiting)
                what = f"cannot take these steps: {names}: another session holds a lock"
                do = "everything else is in place; try again when no transaction keeps the table for long"
                places = list(dict.fromkeys(database.label for database, _, _ in waiting))
                self._let_work(what, do, places, cause)

    def _steps(self) -> list[_Work]:
        return [(database, session, step) for database, session in self.sides for step in database.steps]

    def _together(self, steps: Sequence[_Work]) -> list[tuple[DatabasePlan, str]]:
        """Take steps in one transaction of each side; returns why some are left out that may be."""
        with ExitStack() as transactions:
            for _, session in self.sides:
                transactions.enter_context(session.transaction())
            return [
                (database, note) for database, session, step in steps if (note := _taken(session, step)) is not None
            ]

    def _leave_out_refused(self, steps: Sequence[_Work]) -> bool:
        """Find the tables that a step is refused for, and leave them out; returns whether that helps.

        Raises:
            OperatorError: A step is refused that all tables need.
        """
        refused: list[tuple[SetupStep, OperatorError]] = []
        bad: set[TableName] = set()
        try:
            with ExitStack() as transactions:
                for _, session in self.sides:
                    transactions.enter_context(session.transaction())
                for _, session, step in steps:
                    if step.tables and step.tables <= bad:
                        continue
                    try:
                        with session.transaction():
                            _taken(session, step)
                    except OperatorError as exc:
                        if not step.tables:
                            raise
                        refused.append((step, exc))
                        bad |= step.tables
                raise _UndoneError
        except _UndoneError:
            pass
        if not bad or set(self.tables) - {str(table) for table in self.left_out} <= {str(table) for table in bad}:
            return False
        for step, error in refused:
            self._leave_out(step, error)
        return True

    def _leave_out(self, step: SetupStep, error: PenstockError) -> None:
        """Take no more steps for the tables that a refused one is for.

        Raises:
            PenstockError: It is for none in particular.
        """
        if not step.tables:
            raise error
        for table in step.tables:
            self.left_out.setdefault(table, []).append(error)
        for database, _ in self.sides:
            database.leave_out(self.left_out)

    def _let_work(self, what: str, do: str, places: Sequence[str], cause: LockedError) -> None:
        """Give the sessions that hold locks a moment; raise if time is up."""
        if time.monotonic() <= self.deadline:
            self.holders.look()
            time.sleep(_PAUSE_S)
            return
        where = ", ".join(places)
        wait = next((found for found in map(self.holders.of, places) if found is not None), None)
        if wait is not None:
            what, do = f"{what}: {wait.held_by}", f"{do}; {wait.remedy}"
        if self.left_out:
            what = f"{what}; and left out is {', '.join(map(str, sorted(self.left_out)))}"
        raise LockedError(what, where=where, do=do) from cause


def _taken(session: SetupSession, step: SetupStep) -> str | None:
    """Take a step; returns why it is left out, if it is one that may be."""
    try:
        session.take(step)
    except OperatorError as exc:
        if not step.is_optional:
            raise
        return f"{step.summary} is left out: {exc.what}"
    return None


class _NoSession(SetupSession):
    """Stands for a place in which there is nothing to be done."""

    def transaction(self) -> nullcontext[None]:
        return nullcontext()

    def take(self, step: SetupStep) -> NoReturn:
        raise AssertionError(step.summary)


def nothing_to_set_up() -> AbstractContextManager[SetupSession]:
    """The session for a side that no step is taken at."""
    return nullcontext(_NoSession())
