"""The source of a comparison: rows of captured tables as of what a target holds, while they are changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from penstock.change import TableName
from penstock.dialects.postgres.arrow import ArrowReader
from penstock.dialects.postgres.connection import literal, quote
from penstock.dialects.postgres.rows import PostgresRows, origin_as_of
from penstock.dialects.postgres.source.as_of import is_of
from penstock.dialects.postgres.source.change_log import PostgresChangeLog
from penstock.dialects.postgres.source.snapshots import Cut
from penstock.errors import RetryableError
from penstock.position import Scn
from penstock.schema import TableSchema
from penstock.verify.task import TargetState

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


@dataclass(frozen=True)
class PostgresComparedSource:
    """Implements `verify.task.ComparedSource`."""

    url: str = field(repr=False)
    set_name: str
    process: str

    @contextmanager
    def reading(self, purpose: str, *, lock_timeout_ms: int | None) -> Iterator[PostgresSourceReading]:
        """Open a session at the source."""
        settings = {} if lock_timeout_ms is None else {"lock_timeout": f"{lock_timeout_ms}ms"}
        with closing(ArrowReader(self.url, f"penstock {self.process} {purpose}", settings)) as reader:
            yield PostgresSourceReading(self.url, self.set_name, reader)


class PostgresSourceReading:
    """Implements `verify.task.SourceReading`."""

    def __init__(self, url: str, set_name: str, reader: ArrowReader) -> None:
        """Read by `reader`, and the log of the named set in the database at `url`."""
        self._url = url
        self._set_name = set_name
        self._reader = reader
        self._cuts: Mapping[Scn, Cut] = {}

    def begin(self, held: TargetState) -> None:
        """Find the cut of the log at each position, and begin a snapshot, which is later."""
        with closing(PostgresChangeLog(self._url, self._set_name)) as log:
            self._cuts = {
                scn: log.cut(scn, [other for other in held.ahead if other > scn]) for scn in set(held.tables.values())
            }
        self._reader.execute(_BEGIN)

    def rows(self, table: TableSchema, held: Scn) -> PostgresRows:
        """The rows of a table as of a cut."""
        cut = self._cuts[held]
        self._check(table.name, cut)
        return PostgresRows(self._reader, table, origin_as_of(table, self._set_name, cut))

    def _check(self, table: TableName, cut: Cut) -> None:
        """Make sure that the session's snapshot holds all of the log behind the cut, and no truncate of the table."""
        log, captured, ticks = (f"{quote(self._set_name)}.{name}" for name in ("log", "captured", "tick"))
        is_ours = is_of(table, self._set_name)
        family = f"SELECT relid FROM {captured} WHERE root IN (SELECT root FROM {captured} WHERE {is_ours})"
        newest = f"SELECT max(version) FROM {captured} c WHERE c.relid = l.relid"
        row = self._reader.table(
            f"SELECT EXISTS (SELECT FROM {ticks} WHERE snapshot::text = {literal(cut.snapshot.text)}) AS is_kept,"
            f" EXISTS (SELECT FROM {log} WHERE op = 'T' AND {cut.since()} AND relid IN ({family})) AS is_emptied,"
            f" EXISTS (SELECT FROM {log} WHERE op = '!' AND {cut.since()} AND relid IN ({family})) AS has_gap,"
            f" EXISTS (SELECT FROM {log} l WHERE {is_ours} AND {cut.since()} AND version < ({newest})) AS is_altered",
            doing="read the change log",
        ).to_pylist()[0]
        if not row["is_kept"]:
            raise RetryableError("the change log was freed while it was compared", do="verify again in a moment")
        done = [
            what
            for name, what in (
                ("is_emptied", "truncated"),
                ("has_gap", "changed in a way that is not captured"),
                ("is_altered", "altered"),
            )
            if row[name]
        ]
        if done:
            raise RetryableError(
                f"changes from before table {table} was {done[0]} are not applied yet",
                do="let `penstock run` apply them, then verify again",
            )
