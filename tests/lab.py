"""A source and a target database with a pipeline between them, driven step by step and without Spark.

What Spark does in production, putting a slice's changes on their way to the lanes, is done here by calling the
same two tasks directly; so a test can choose the plan, the path and the order of the lanes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from penstock import change as c
from penstock.apply.error_queue import ErrorEntry
from penstock.apply.lane import LaneResult, ServerConfig
from penstock.apply.ledger import LaneClaim, ProcessState
from penstock.apply.retry import RetryConfig, retry
from penstock.apply.target import TargetCatalog, TargetTable
from penstock.apply.task import (
    LANE,
    PACKED_SCHEMA,
    TaskContext,
    apply_lane,
    apply_large,
    apply_windows,
    pack,
    plan_batch,
    unpack,
)
from penstock.change import TableName
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.connection import connect
from penstock.dialects.postgres.source.access import PostgresSource
from penstock.dialects.postgres.source.change_log import PostgresChangeLog
from penstock.dialects.postgres.target.access import PostgresTarget
from penstock.dialects.postgres.target.error_queue import PostgresErrorQueue
from penstock.dialects.postgres.target.ledger import PostgresLedger
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline_file import parse
from penstock.position import Limit, Scn
from penstock.schema import Dictionary
from penstock.sources.trigger_queue.position import QueueSlice
from penstock.sources.trigger_queue.queue import QueueReader
from penstock.spark.job import large_transaction, read_in_commit_order
from penstock.wiring import open_pipeline

FILE = """\
version: 1
name: {name}
connections:
  shop: {{type: postgres, url: "${{env:SHOP_URL}}"}}
  copy: {{type: postgres, url: "${{env:COPY_URL}}"}}
capture:
  source: trigger_queue
  connection: shop
  tables: {tables}
  row_triggers: {row_triggers}
apply:
  connection: copy
"""


class Lab:
    """A pipeline between two databases."""

    def __init__(
        self,
        source_url: str,
        target_url: str,
        *,
        name: str = "lab",
        with_ddl: bool = False,
        with_messages: bool = False,
    ) -> None:
        self.with_ddl, self.with_messages = with_ddl, with_messages
        self.source_url = source_url
        self.target_url = target_url
        self.name = name
        self.row_triggers: list[str] = []
        # More of the section `capture`, as YAML that is indented by two.
        self.capture_settings = ""
        # More of the section `apply`, as YAML that is indented by two.
        self.apply_settings = ""
        self.set_name = f"penstock_{name}"
        self.source = psycopg.connect(source_url, autocommit=True)
        self.target = psycopg.connect(target_url, autocommit=True)
        self.log = PostgresChangeLog(source_url, self.set_name, with_ddl=with_ddl, with_messages=with_messages)
        self.ledger = PostgresLedger(target_url, name)
        self.state: ProcessState | None = None
        self._attempt = 0

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for closable in (self.source, self.target, self.log, self.ledger):
            closable.close()

    def pipeline(self, tables: Sequence[str] = ("public.*",)) -> Pipeline:
        text = FILE.format(name=self.name, tables=list(tables), row_triggers=self.row_triggers)
        text = text.replace("\napply:", f"\n{self.capture_settings}apply:")
        text += self.apply_settings
        environment = {"SHOP_URL": self.source_url, "COPY_URL": self.target_url}
        return open_pipeline(parse(text, name="pipeline.yaml", environment=environment))

    def setup(self, sql: str, tables: Sequence[str] = ("public.*",)) -> None:
        """Make tables at the source, and have them captured and made at the target; both sides empty or equal."""
        self.source.execute(sql)
        self.pipeline(tables).setup()
        self.start()

    def start(self, *, lanes: int = 4) -> None:
        """Begin a run of the apply process; every captured table counts as copied."""
        self.acquire(lanes=lanes)
        for captured in self.log.tables():
            self.target.execute(
                "INSERT INTO penstock.instantiation (process, schema_name, table_name, scn, snapshot, state)"
                " VALUES (%s, %s, %s, 0, '', 'READY') ON CONFLICT DO NOTHING",
                [self.name, captured.table.name.schema, captured.table.name.name],
            )

    def acquire(self, source: str = "shop", *, lanes: int = 4) -> None:
        """Become the one run of the process, as `ApplyProcess` does."""
        state = self.ledger.acquire(source, lanes=lanes)
        self.state = self.ledger.adopt(self.log.join(state.history))

    def changes(self, *, limit: Limit = Limit(), after: Scn | None = None) -> Iterator[dict[str, Any]]:
        """Deliver what the log holds, change by change, in commit order."""
        position = Scn(0) if after is None else after
        while (part := self.log.next_slice(position, limit)) is not None:
            rows = [row for batch in self.reader().read(part) for row in batch.to_pylist()]
            yield from sorted(rows, key=lambda row: (row[c.COMMIT_SCN], row[c.CHANGE_SEQ]))
            position = part.end

    def is_anyone_waiting(self) -> bool:
        """Whether a session at the source waits for a table, or for another that builds its capture."""
        row = self.source.execute(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype IN ('relation', 'advisory')"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
        ).fetchone()
        return bool(row and row[0])

    def reader(self) -> QueueReader:
        return QueueReader.of("shop", self.access().log, self.log.tables())

    def access(self) -> PostgresSource:
        return PostgresSource(self.source_url, self.set_name, self.with_ddl, self.with_messages)

    def context(self, config: ServerConfig) -> TaskContext:
        captured = self.log.tables()
        self.ledger.save_dictionary(captured)
        with connect(self.target_url, "lab") as connection:
            tables = read_tables(connection, {x.table.name for x in captured})
        instantiated, waiting = self.ledger.instantiated(), self.ledger.unfollowed()
        root_of = {x.table.name: x.root for x in captured}
        catalog = TargetCatalog(
            tables={
                name: TargetTable(table, unfollowed=waiting.get(root_of[name], ())) for name, table in tables.items()
            },
            instantiated=instantiated
            | {x.table.name: instantiated[x.root] for x in captured if x.root in instantiated},
        )
        return TaskContext(
            PostgresTarget(self.target_url, self.name), catalog, Dictionary(x.table for x in captured), config
        )

    def apply(
        self,
        *,
        lanes: int = 1,
        config: ServerConfig = ServerConfig(),
        limit: Limit = Limit(),
        shuffle: random.Random | None = None,
    ) -> list[LaneResult]:
        """Apply everything the log holds, and complete each batch; returns the results of all lanes."""
        results: list[LaneResult] = []
        while (part := self.next_slice(limit)) is not None:
            for batch_result in self.apply_slice(part, lanes=lanes, config=config, shuffle=shuffle):
                if batch_result.failure is not None:
                    raise batch_result.failure
                results.append(batch_result)
            self.ledger.complete(part.end, part.last_committed_at, part.anchor)
        return results

    def next_slice(self, limit: Limit = Limit()) -> QueueSlice | None:
        state = self.ledger.state()
        assert state is not None
        part = self.log.next_slice(state.low_watermark, limit, anchor=state.history.anchor)
        return None if part is None else part.until_ddl()

    def apply_slice(
        self,
        part: QueueSlice,
        *,
        lanes: int,
        config: ServerConfig = ServerConfig(),
        shuffle: random.Random | None = None,
    ) -> list[LaneResult]:
        """Apply one slice without completing it."""
        if len(part) == 0:
            return []
        context = self.context(config)
        if part.is_large:
            large = large_transaction(self.reader(), part)
            return [apply_large(large, self.claim(0, part, moves_watermark=True), context)]
        if lanes == 1:
            rows = read_in_commit_order(self.reader(), part, context)
            return [apply_windows(rows, self.claim(0, part, moves_watermark=True), context)]
        batches = self.reader().read(part, with_key=False)
        packed = pa.Table.from_batches(
            pack(plan_batch(batches, part.changes, part.commit_scns, lanes, context)), PACKED_SCHEMA
        )
        numbers = sorted(set(packed[LANE].to_pylist()))
        if shuffle is not None:
            shuffle.shuffle(numbers)
        results = []
        for lane in numbers:
            runs = packed.filter(pc.equal(packed[LANE], lane)).sort_by("number")
            claim = self.claim(lane, part, moves_watermark=False)
            results.append(apply_lane(unpack(runs.to_batches()), claim, context))
        return results

    def claim(self, lane: int, part: QueueSlice, *, moves_watermark: bool) -> LaneClaim:
        assert self.state is not None
        self._attempt += 1
        return LaneClaim(self.name, self.state.epoch, lane, self._attempt, moves_watermark, part.cut)

    def rows(self, table: str, *, side: str = "target") -> list[tuple[Any, ...]]:
        connection = self.target if side == "target" else self.source
        return sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)

    def assert_identical(self, *tables: str) -> None:
        for table in tables:
            assert self.rows(table) == self.rows(table, side="source"), table

    def assert_identical_text(self, *tables: str) -> None:
        """Compare what the rows look like, not only what the database calls equal: 1.0 is not 1.00 here."""
        for name in tables:
            query = f'SELECT whole FROM (SELECT r::text AS whole FROM {name} AS r) AS rows ORDER BY whole COLLATE "C"'
            assert self.target.execute(query).fetchall() == self.source.execute(query).fetchall(), name

    def errors(self) -> list[ErrorEntry]:
        return list(PostgresErrorQueue(self.target_url, self.name).entries())

    def retry(self, *entry_ids: str, **more: Any) -> list[str]:
        queue = PostgresErrorQueue(self.target_url, self.name)
        config = RetryConfig(allow_duplicate_rows=True, **more)
        return [retried.entry_id for retried in retry(queue, entry_ids, config)]

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection]:
        """A further session at the source, in a transaction of its own."""
        with psycopg.connect(self.source_url) as connection:
            yield connection


def table(name: str, schema: str = "public") -> TableName:
    return TableName(schema, name)


def images(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str | None, str | None]]:
    """What a story compares: operation, table, before and after."""
    return [(row[c.OP], row[c.TABLE_NAME], row[c.BEFORE], row[c.AFTER]) for row in rows]
