"""The target of a comparison, and of a repair: its rows, and what the ledger says that they hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from penstock.change import TableName
from penstock.dialects.postgres.arrow import ArrowReader
from penstock.dialects.postgres.connection import label, speaking
from penstock.dialects.postgres.fit import told_as
from penstock.dialects.postgres.rows import PostgresRows, origin_now
from penstock.dialects.postgres.target.error_queue import note_held
from penstock.dialects.postgres.target.ledger_entries import LOCK_LANES, applied_query, copied_query
from penstock.dialects.postgres.target.session import PostgresSession
from penstock.origins import DEFAULT_TAG
from penstock.position import Scn
from penstock.schema import TableSchema
from penstock.verify.task import ComparedTarget, Repair, TargetReading, TargetState

_SETTINGS = {"enable_nestloop": "off", "work_mem": "64MB"}


@dataclass(frozen=True)
class PostgresComparedTarget(ComparedTarget):
    """A database that is compared, by the ledger of a process."""

    url: str = field(repr=False)
    process: str
    tag: str | None = DEFAULT_TAG

    @property
    def label(self) -> str:
        """The database, named without secrets."""
        return label(self.url)

    @contextmanager
    def reading(self, purpose: str) -> Iterator[PostgresTargetReading]:
        """Open a session that sees one moment of the target."""
        with closing(ArrowReader(self.url, f"penstock {self.process} {purpose}", _SETTINGS)) as reader:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield PostgresTargetReading(reader, self.process)

    @contextmanager
    def repairing(self, *, lock_timeout_ms: int) -> Iterator[PostgresRepair]:
        """Open a transaction that holds the ledger's lanes, and a session beside it that reads."""
        name = f"penstock {self.process} repair"
        settings = {**_SETTINGS, "lock_timeout": f"{lock_timeout_ms}ms"}
        with (
            closing(PostgresSession(self.url, name, self.tag)) as session,
            closing(ArrowReader(self.url, name, settings)) as reader,
            session.transaction(),
            speaking("write the ledger", self.url),
        ):
            # Every transaction of an apply server begins by writing its row: none is under way now, and none begins.
            session.connection.execute(LOCK_LANES, [self.process])
            # They wait for us from here on, so we do not wait for others.
            session.connection.execute(f"SET LOCAL lock_timeout = {lock_timeout_ms}")
            yield PostgresRepair(reader, self.process, session)


class PostgresTargetReading(TargetReading):
    """A session that reads rows, and what the ledger says of them."""

    def __init__(self, reader: ArrowReader, process: str) -> None:
        """Read by `reader`, and the ledger of a process."""
        self._reader = reader
        self._process = process

    def held(self) -> TargetState:
        """Read what the ledger says is applied."""
        doing = "read the ledger"
        low, *ahead = self._reader.table(applied_query(self._process), doing=doing)["scn"].to_pylist()
        copied = self._reader.table(copied_query(self._process, low), doing=doing).to_pylist()
        tables = {TableName(row["schema_name"], row["table_name"]): Scn(row["scn"]) for row in copied}
        return TargetState(tables, [Scn(scn) for scn in ahead])

    def rows(self, table: TableSchema, like: TableSchema) -> PostgresRows:
        """The rows of a table as the session sees them; values are written as `like` has its own."""
        table = told_as(table, like)
        return PostgresRows(self._reader, table, origin_now(table))


class PostgresRepair(PostgresTargetReading, Repair):
    """The same beside a session in whose open transaction rows are written."""

    def __init__(self, reader: ArrowReader, process: str, session: PostgresSession) -> None:
        """Write by `session`, in its open transaction."""
        super().__init__(reader, process)
        self._session = session

    @property
    def writer(self) -> PostgresSession:
        """What writes in that transaction."""
        return self._session

    def note_brought(self, table: TableName) -> None:
        """Note that a table holds what each transaction in the queue did to it."""
        note_held(self._session.connection, self._process, table)
