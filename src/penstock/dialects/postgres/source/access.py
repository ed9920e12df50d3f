"""How tasks reach a PostgreSQL source: a small value that travels, and sessions that stay in their worker."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from penstock.change import TableName
from penstock.dialects.postgres.last_used import LastUsed
from penstock.dialects.postgres.source.change_log import PostgresChangeLog
from penstock.dialects.postgres.source.copy import PostgresChunkReader
from penstock.snapshot.chunk import CopySource
from penstock.sources.trigger_queue.queue import QueueReader
from penstock.stream import TableVersion

_logs: LastUsed[PostgresSource, PostgresChangeLog] = LastUsed(PostgresChangeLog.close)


@dataclass(frozen=True)
class PostgresSource:
    """A capture set in a PostgreSQL database.

    Attributes:
        with_ddl: That a table was altered is a change, too.
        with_messages: So are messages.
    """

    url: str = field(repr=False)
    set_name: str
    with_ddl: bool = False
    with_messages: bool = False

    def log(self) -> PostgresChangeLog:
        """Return this worker's log."""
        return _logs.get(self) or _logs.put(
            self, PostgresChangeLog(self.url, self.set_name, with_ddl=self.with_ddl, with_messages=self.with_messages)
        )

    def reader(self, source: str, tables: Sequence[TableVersion], *, follows: Collection[TableName]) -> QueueReader:
        """Return a reader of the log."""
        return QueueReader.of(source, self.log, tables, follows=follows)

    def chunk_reader(self, source: CopySource) -> PostgresChunkReader:
        """Return a reader of chunks."""
        return PostgresChunkReader(self.url, self.set_name, source)
