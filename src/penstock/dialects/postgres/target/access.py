"""How tasks reach a PostgreSQL target: a small value that travels, and sessions that stay in their worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.dialects.postgres.last_used import LastUsed
from penstock.dialects.postgres.target.error_queue import PostgresErrorQueue
from penstock.dialects.postgres.target.lane_ledger import lane_application_name
from penstock.dialects.postgres.target.session import PostgresSession
from penstock.external_values import ValueStore
from penstock.origins import DEFAULT_TAG
from penstock.snapshot.task import TargetAccess

_sessions: LastUsed[PostgresTarget, tuple[int, PostgresSession]] = LastUsed(lambda kept: kept[1].close())


@dataclass(frozen=True)
class PostgresTarget(TargetAccess):
    """A PostgreSQL database that a process applies to.

    Attributes:
        values: Where values are that are too large for their changes.
    """

    url: str = field(repr=False)
    process: str
    tag: str | None = DEFAULT_TAG
    values: ValueStore | None = field(default=None, compare=False)

    def session(self, epoch: int) -> PostgresSession:
        """Return this worker's session for a run of the process; a new one where the last one broke.

        A new run has cut off the sessions of the one before it.
        """
        kept = _sessions.get(self)
        if kept is None or kept[0] != epoch or not kept[1].is_usable:
            if kept is not None:
                kept[1].close()
            name = lane_application_name(self.process)
            kept = _sessions.put(self, (epoch, PostgresSession(self.url, name, self.tag, self.process, self.values)))
        return kept[1]

    def loader(self, epoch: int) -> PostgresSession:
        """Return the same session, to copy chunks through."""
        return self.session(epoch)

    def error_queue(self) -> PostgresErrorQueue:
        """Return the error queue."""
        return PostgresErrorQueue(self.url, self.process, self.tag, values=self.values)
