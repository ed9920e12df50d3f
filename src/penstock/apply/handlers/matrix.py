"""Who is called for a change, and in which order: the control flow behind every combination of handlers.

Pure: what is done is a matter of the steps, which `runner` carries out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from penstock.apply.apply_errors import ApplyError

Done = TypeVar("Done")


class FailedError(Exception):
    """A step of a change failed.

    Attributes:
        error: What it met.
        resolvers_asked: The resolvers had their say, and could not decide; or it is no conflict, and none of theirs.
    """

    def __init__(self, error: ApplyError, *, resolvers_asked: bool) -> None:
        super().__init__(error)
        self.error = error
        self.resolvers_asked = resolvers_asked


class Steps(ABC):
    """What can be done with one change. Each step raises FailedError where the change cannot go on."""

    @property
    @abstractmethod
    def handlers(self) -> Sequence[Callable[[], None]]:
        """Its statement and procedure handlers, in any order; each call gives the handler its own copy of the change.

        One that returns has dealt with the change.
        """

    @property
    @abstractmethod
    def handle_error(self) -> Callable[[ApplyError], None] | None:
        """Its error handler, which is given the change as it came; raises FailedError where the handler does."""

    @abstractmethod
    def savepoint(self) -> AbstractContextManager[None]:
        """Undo what the block did at the target if it raises."""

    @abstractmethod
    def apply(self) -> None:
        """Apply the change as it came; resolvers are called."""

    @abstractmethod
    def resolve(self) -> bool:
        """Have resolvers decide about the change as it came; False, and nothing is done, where they cannot."""

    @abstractmethod
    def follow_rule(self, error: ApplyError) -> bool:
        """Do what the rules for errors say: True where the change is dealt with, False where no rule is about it.

        Raises:
            FailedError: A rule sends the whole transaction away.
        """


def process(steps: Steps) -> None:
    """Process a change that handlers are configured for.

    Raises:
        FailedError: Its transaction cannot be applied.
    """
    handle_error = steps.handle_error
    try:
        attempt(steps)
    except FailedError as exc:
        failed = exc
    else:
        return
    # Where a statement handler has applied the change without resolvers, an error handler alone does not take their
    # place: it is as if the change had been applied directly.
    if handle_error and not failed.resolvers_asked and steps.resolve():
        return
    if steps.follow_rule(failed.error):
        return
    if handle_error is None:
        raise failed
    handle_error(failed.error)


def attempt(steps: Steps) -> None:
    """Have the handlers of a change deal with it, or apply it where it has none; what fails leaves nothing behind.

    Raises:
        FailedError: It could not be done.
    """
    handlers = steps.handlers
    with steps.savepoint():
        if not handlers:
            steps.apply()
        for handler in handlers:
            handler()


def execute(apply: Callable[[], Done], resolve: Callable[[ApplyError], Done | None], *, with_resolvers: bool) -> Done:
    """Apply a change; where it meets a conflict, have resolvers decide if they may.

    Args:
        resolve: None where no resolver is for the error, or none can decide.

    Raises:
        FailedError: It could not be applied, and was not resolved.
    """
    try:
        return apply()
    except ApplyError as exc:
        done = resolve(exc) if with_resolvers else None
        if done is None:
            raise FailedError(exc, resolvers_asked=with_resolvers) from exc
        return done
