"""Carrying out what setup, teardown or resync plans, in both databases, without making writers wait."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import NoReturn

from penstock.dialects.base import DatabasePlan, LockedError, Step
from penstock.errors import OperatorError
from penstock.pipeline.locks import Holders
from penstock.pipeline.plan import Plan
from penstock.pipeline.sides import SetupSession

_PATIENCE_S = 10.0
_PAUSE_S = 0.5
"""How long to come back for tables that others hold, and how long to let them work in between."""


def carry_out(
    plan: Plan,
    target: AbstractContextManager[SetupSession],
    source: AbstractContextManager[SetupSession],
    holders: Holders,
) -> None:
    """Take all steps of a plan that belong together, or none; then one by one those that are apart.

    Tries steps that wait for other sessions' locks again, for ten seconds.

    Raises:
        LockedError: Other sessions still hold a lock; `holders` names them.
    """
    deadline = time.monotonic() + _PATIENCE_S
    # One session for all: the server compiles the functions that a step calls once in each.
    with target as at_target, source as at_source:
        both = _Both([(plan.target, at_target), (plan.source, at_source)], holders, deadline)
        both.take_together()
        # First what must not be missed.
        both.take_apart(reversed(both.sides))


@dataclass(frozen=True)
class _Both:
    sides: Sequence[tuple[DatabasePlan, SetupSession]]
    holders: Holders
    deadline: float

    def take_together(self) -> None:
        """Take what belongs together, of both sides or of none."""
        steps = [
            (database, session, step)
            for database, session in self.sides
            for step in database.steps
            if not step.is_apart
        ]
        while steps:
            try:
                with ExitStack() as transactions:
                    for _, session in self.sides:
                        transactions.enter_context(session.transaction())
                    refused = [
                        (database, note)
                        for database, session, step in steps
                        if (note := _taken(session, step)) is not None
                    ]
            except LockedError as exc:
                self._let_work(exc.what, exc.do, [exc.where], exc)
            else:
                for database, note in refused:
                    database.notes.append(note)
                return

    def take_apart(self, sides: Iterable[tuple[DatabasePlan, SetupSession]]) -> None:
        """Take each step that is apart in a transaction of its own; steps that met a lock, once more after the rest."""
        waiting = [(database, session, step) for database, session in sides for step in database.steps if step.is_apart]
        while waiting:
            locked: list[tuple[DatabasePlan, SetupSession, Step]] = []
            for database, session, step in waiting:
                try:
                    with session.transaction():
                        note = _taken(session, step)
                    if note is not None:
                        database.notes.append(note)
                except LockedError as exc:
                    locked.append((database, session, step))
                    self.holders.look()
                    cause = exc
            waiting = locked
            if waiting:
                names = ", ".join(step.summary for _, _, step in waiting)
                what = f"cannot take these steps: {names}: another session holds a lock"
                do = "everything else is in place; try again when no transaction keeps the table for long"
                places = list(dict.fromkeys(database.label for database, _, _ in waiting))
                self._let_work(what, do, places, cause)

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
        raise LockedError(what, where=where, do=do) from cause


def _taken(session: SetupSession, step: Step) -> str | None:
    """Take a step; returns why it is left out, if it is one that may be."""
    try:
        session.take(step)
    except OperatorError as exc:
        if not step.is_optional:
            raise
        return f"{step.summary} is left out: {exc.what}"
    return None


class _NoSession:
    """Stands for a place in which there is nothing to be done."""

    def transaction(self) -> nullcontext[None]:
        return nullcontext()

    def take(self, step: Step) -> NoReturn:
        raise AssertionError(step.summary)


def nothing_to_set_up() -> AbstractContextManager[SetupSession]:
    """The session for a side that no step is taken at."""
    return nullcontext(_NoSession())
