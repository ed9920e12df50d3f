"""How tasks reach PostgreSQL: small values that travel, and sessions that stay in the worker they opened in."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from penstock.apply.ledger import LaneClaim, LaneLedger
from penstock.apply.target import TargetSession
from penstock.change import TableName
from penstock.dialects.postgres.change_log import ChangeLog
from penstock.dialects.postgres.copy import PostgresChunkReader
from penstock.dialects.postgres.lane_ledger import PostgresLaneLedger, lane_application_name
from penstock.dialects.postgres.session import PostgresSession
from penstock.snapshot.chunk import CopySource
from penstock.sources.trigger_queue.queue import QueueReader
from penstock.stream import TableVersion

_logs: dict[PostgresSource, ChangeLog] = {}
_sessions: dict[PostgresTarget, tuple[int, PostgresSession]] = {}


@dataclass(frozen=True)
class PostgresSource:
    """A capture set in a PostgreSQL database."""

    url: str = field(repr=False)
    set_name: str

    def log(self) -> ChangeLog:
        """Return this worker's log."""
        if self not in _logs:
            _logs[self] = ChangeLog(self.url, self.set_name)
        return _logs[self]

    def reader(self, source: str, tables: Sequence[TableVersion], *, follows: Collection[TableName]) -> QueueReader:
        """Return a reader of the log."""
        return QueueReader.of(source, self, tables, follows=follows)

    def chunk_reader(self, source: CopySource) -> PostgresChunkReader:
        """Return a reader of chunks."""
        return PostgresChunkReader(self.url, self.set_name, source)


@dataclass(frozen=True)
class PostgresTarget:
    """A PostgreSQL database that a process applies to."""

    url: str = field(repr=False)
    process: str

    def session(self, epoch: int) -> PostgresSession:
        """Return this worker's session for a run of the process; a new one where the last one broke.

        A new run has cut off the sessions of the one before it.
        """
        of_run, session = _sessions.get(self, (0, None))
        if session is None or of_run != epoch or not session.is_usable:
            if session is not None:
                session.close()
            session = PostgresSession(self.url, lane_application_name(self.process))
            _sessions[self] = epoch, session
        return session

    def loader(self, epoch: int) -> PostgresSession:
        """Return the same session, to copy chunks through."""
        return self.session(epoch)

    def lane_ledger(self, session: TargetSession, claim: LaneClaim) -> LaneLedger:
        """Return the ledger of one lane, writing through the session."""
        assert isinstance(session, PostgresSession)
        return PostgresLaneLedger(self.url, session.connection, claim)
