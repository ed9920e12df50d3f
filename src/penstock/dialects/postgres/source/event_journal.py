"""The journal of an event log in PostgreSQL: small enough to travel to tasks, which read changes from it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import psycopg
import pyarrow as pa

from penstock import change as c
from penstock.dialects.postgres.arrow import ArrowReader
from penstock.dialects.postgres.connection import Connection, connect, label, quote, speaking
from penstock.dialects.postgres.ownership import PINNED, refuse_foreign
from penstock.dialects.postgres.source.event_log import PostgresEventLog
from penstock.dialects.postgres.source.event_log_rows import journal_schema
from penstock.dialects.postgres.source.event_log_setup import (
    has_journal,
    journal_id,
    journal_step,
    refuse_second_journal,
)
from penstock.errors import OperatorError
from penstock.history import HistoryError
from penstock.position import Scn
from penstock.sources.event_log.classes import Classes
from penstock.sources.event_log.elements import batch_of
from penstock.sources.event_log.settings import EventLogSettings
from penstock.sources.event_log.source import Journal
from penstock.stream import Backlog, Slice, TableVersion

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_READ = """
SELECT ''::text AS source, e.position::text AS txn_id, e.position AS commit_scn, h.change_seq, e.changes::bigint AS
  txn_changes, e.position AS scn, to_timestamp(0) + e.logged_at_us * interval '1 microsecond' AS committed_at, h.op,
  h.schema_name, h.table_name, 1 AS table_version, h.key, h.before, h.after, NULL::text AS ddl, NULL::text AS tag,
  NULL::text AS meta
FROM {events} e JOIN {changes} h ON h.position = e.position
WHERE e.position > {after} AND e.position <= {end} ORDER BY e.position, h.change_seq"""

_PROOF = "SELECT md5(ROW(record_ids, logged_at_us, changes, size_bytes)::text) FROM {} WHERE position = %s"


@dataclass(frozen=True)
class PostgresJournal(Journal):
    """The journal of an event log; it travels to tasks, and holds no connection."""

    url: str = field(repr=False)
    pipeline: str
    settings: EventLogSettings
    patterns: tuple[str, ...]

    @property
    def label(self) -> str:
        """The log and its database, named without secrets."""
        return f"event log {self.settings.table}, {label(self.url)}"

    @property
    def id(self) -> str:
        """The id that was drawn when setup made it."""
        with self._connection() as connection:
            try:
                return journal_id(connection, self.pipeline)
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as exc:
                raise OperatorError("there is no journal", where=self.label, do="run `penstock setup`") from exc

    def open_log(self) -> PostgresEventLog:
        """Open the log that it belongs to."""
        return PostgresEventLog(self.url, self.pipeline, self.settings, self.patterns)

    def tables(self) -> Sequence[TableVersion]:
        """Return the tables of all classes that the log may name, each as it is now."""
        with closing(self.open_log()) as log:
            known = log.tables()
        classes = Classes(known, schema=self.settings.schema, keys=self.settings.keys)
        return [
            TableVersion(zlib.crc32(table.name.name.encode()), table, table.to_definition(), table.name)
            for table in known
            if classes.find(table.name.name) is not None
        ]

    def end(self) -> Scn:
        """Return the position of the last event that was ever kept."""
        with closing(self.open_log()) as log, log.transaction() as transaction:
            return transaction.position()

    def next_slice(self, after: Scn) -> Slice | None:
        """Return the events that follow a position; None when there are none."""
        query = (
            f"SELECT position, changes, size_bytes, logged_at_us FROM {self._table('event')} WHERE position > %s"
            " ORDER BY position"
        )
        with self._connection() as connection:
            rows = connection.execute(query, [after]).fetchall()
        if not rows:
            return None
        positions, changes, size_bytes, logged_at_us = np.array(rows, np.int64).T
        return Slice(
            after=after,
            end=Scn(int(positions[-1])),
            commit_scns=positions,
            changes=changes,
            size_bytes=size_bytes,
            committed_at_us=logged_at_us,
        )

    def proof_at(self, position: Scn) -> str:
        """Return a digest of the event at a position; empty where it is not kept any more."""
        with self._connection() as connection:
            row = connection.execute(_PROOF.format(self._table("event")), [position]).fetchone()
        return "" if row is None else str(row[0])

    def hold_against(self, proof: str, position: Scn) -> None:
        """Make sure that the event at a position is the one that was read; one that is not kept any more may be.

        Raises:
            HistoryError: It is another one: the database was restored, and went on.
        """
        if (found := self.proof_at(position)) and found != proof:
            raise HistoryError(
                f"the journal holds another event at position {position} than was read", where=self.label
            )

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice in order."""
        after = int(part.commit_scns[0]) - 1
        query = _READ.format(
            events=self._table("event"), changes=self._table("change"), after=after, end=int(part.commit_scns[-1])
        )
        with closing(ArrowReader(self.url, f"penstock {self.pipeline} event log")) as reader:
            for batch in reader.stream(query, doing="read the journal"):
                columns = [batch[wanted.name].cast(wanted.type) for wanted in c.ARROW_SCHEMA]
                yield pa.RecordBatch.from_arrays(columns, schema=c.ARROW_SCHEMA)

    def make(self) -> None:
        """Make it where there is none; the log has to be there."""
        with closing(self.open_log()) as log:
            log.refuse_unfit()
        with self._connection() as connection, connection.transaction():
            refuse_foreign(connection, journal_schema(self.pipeline))
            refuse_second_journal(connection, self.pipeline, self.settings.table, where=self.label)
            if not has_journal(connection, self.pipeline):
                connection.execute(PINNED)
                connection.execute(journal_step(self.pipeline, self.settings.table).sql)

    def elements(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the events of a slice in order, each as its XDS element."""
        query = (
            f"SELECT position, record_ids, logged_at_us, element FROM {self._table('event')}"
            " WHERE position BETWEEN %s AND %s ORDER BY position"
        )
        bounds = [int(part.commit_scns[0]), int(part.commit_scns[-1])]
        with self._connection() as connection:
            rows = connection.execute(query, bounds).fetchall()
        if len(rows) != len(part) or any(element is None for *_, element in rows):
            raise OperatorError(
                "the journal does not hold these events as XDS elements",
                where=self.label,
                do="read it in the format in which it was polled; or begin anew, with another journal",
            )
        yield batch_of(rows)

    def waiting(self) -> Backlog:
        """Count the rows of the log that are due."""
        with closing(self.open_log()) as log, log.transaction(is_alone=False) as transaction:
            rows, oldest_us = transaction.count_due()
        oldest = None if oldest_us is None else _EPOCH + timedelta(microseconds=oldest_us)
        return Backlog(rows, oldest, 0)

    def _table(self, name: str) -> str:
        return quote(journal_schema(self.pipeline), name)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """Open a session for one question."""
        with (
            speaking("read the journal", self.url),
            closing(connect(self.url, f"penstock {self.pipeline} event log")) as connection,
        ):
            yield connection
