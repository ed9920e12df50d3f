"""What every dialect speaks of: the steps by which a database is set up."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.errors import PenstockError, RetryableError


@dataclass(frozen=True)
class Step:
    """One thing that setup does: what it is, in a few words, and its SQL."""

    summary: str
    sql: str


@dataclass
class DatabasePlan:
    """What setup does in one database.

    Attributes:
        label: The database, named without secrets.
        steps: In the order they are carried out; all of them in one transaction.
        grants: SQL a superuser has to run first, because this user may not do some step.
        notes: What a person should know, though it stops nothing.
        faults: What keeps the pipeline from being set up.
        role: Who the objects have to belong to, where somebody else may carry the steps out.
    """

    label: str
    steps: list[Step] = field(default_factory=list)
    grants: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[PenstockError] = field(default_factory=list)
    role: str | None = None


class LockedError(RetryableError):
    """Others are at work on what a step changes; no step was taken."""
