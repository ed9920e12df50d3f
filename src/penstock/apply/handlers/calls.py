"""What handlers are called with, beside a change and the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock.apply.apply_errors import ApplyError


@dataclass(frozen=True)
class ErrorStack:
    """Why a change could not be applied: the errors, the last one first."""

    errors: Sequence[ApplyError]

    @property
    def depth(self) -> int:
        """How many errors there are."""
        return len(self.errors)

    @property
    def numbers(self) -> Sequence[int]:
        """Their numbers, as the error queue has them."""
        return [error.number for error in self.errors]

    @property
    def messages(self) -> Sequence[str]:
        """Their messages."""
        return [str(error) for error in self.errors]


@dataclass(frozen=True)
class HandledTransaction:
    """A transaction that is about to commit, as a precommit handler sees it.

    Attributes:
        commit_scn: Its position at the source.
        txn_id: The source's own id of it.
        committed_at: When it was committed at the source, where that is known.
        changes: How many changes it has.
    """

    source: str
    commit_scn: int
    txn_id: str
    committed_at: datetime | None
    changes: int
