"""Processes that die at a call: before it, or when it is done and nobody has heard of it yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any


class Died(BaseException):
    """The process is gone."""


class Mortal:
    """Counts the calls of a process, and ends it."""

    def __init__(self, lives_for: int = 1_000_000, *, is_heard: bool = False) -> None:
        """Let so many calls be; with `is_heard` the next one is carried out, too."""
        self._left, self._is_heard = lives_for, is_heard

    @classmethod
    def nth(cls, death: int) -> Mortal:
        """Die later from time to time, by turns before a call and behind it."""
        return cls(death, is_heard=death % 2 == 1)

    def step(self, do: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left < 0 and not self._is_heard:
            raise Died
        found = do()
        if self._left < 0:
            raise Died
        return found

    @contextmanager
    def transaction(self, inner: AbstractContextManager[Any]) -> Iterator[None]:
        """A transaction, whose end is a call of its own: it is committed, and nobody may hear of it."""
        with inner:
            yield
            self.step(lambda: None)
        self.step(lambda: None)


class Dying:
    """Something whose calls are those of a mortal process."""

    def __init__(self, inner: Any, mortal: Mortal) -> None:
        self.inner, self._mortal = inner, mortal

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found
        if name == "transaction":
            return lambda: self._mortal.transaction(found())
        return lambda *args, **kwargs: self._mortal.step(lambda: found(*args, **kwargs))
