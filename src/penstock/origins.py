"""Origin marks: who wrote a change, and whose changes a capture takes.

Whatever an apply process writes carries its mark, which a capture at that database sees. So changes can go on to a
third database, or stay where they are instead of going back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

DEFAULT_TAG = "00"
"""The mark of an apply process whose pipeline file names none."""


@dataclass(frozen=True)
class Origins:
    """Whose changes a capture takes.

    Attributes:
        of_apply: Also changes that apply processes write, as far as their marks are taken.
        tags: The marks that are taken, or left out; None stands for the changes that carry none.
        is_without: `tags` are those that are left out.
    """

    of_apply: bool
    tags: frozenset[str | None] = frozenset()
    is_without: bool = True

    @classmethod
    def only(cls, tags: Collection[str | None]) -> Origins:
        """Take what carries one of these marks."""
        return cls(True, frozenset(tags), is_without=False)

    @classmethod
    def without(cls, tags: Collection[str | None]) -> Origins:
        """Take everything but what carries one of these marks."""
        return cls(True, frozenset(tags))

    def takes(self, tag: str | None, *, by_apply: bool) -> bool:
        """Whether a transaction is taken that carries a mark, or none, and that an apply process wrote, or a user."""
        if by_apply and not self.of_apply:
            return False
        return (tag in self.tags) != self.is_without


USERS = Origins(of_apply=False)
"""Only what no apply process wrote."""

EVERYTHING = Origins(of_apply=True)
