"""Transactions written by hand, and applied without any source."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from penstock import change as c
from penstock.apply.coordinator import Dependencies, plan_lanes
from penstock.apply.dependency_keys import find_dependencies
from penstock.apply.error_queue import Actor, ErrorEntry
from penstock.apply.lane import LaneResult, ServerConfig
from penstock.apply.ledger import LaneClaim
from penstock.apply.retry import Retried, RetryConfig, retry
from penstock.apply.target import TargetCatalog, TargetTable
from penstock.apply.task import LANE, TaskContext, apply_lane, in_commit_order, plan_batch
from penstock.apply.virtual_dependencies import NONE
from penstock.change import TableName
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.target.access import PostgresTarget
from penstock.dialects.postgres.target.error_queue import PostgresErrorQueue
from penstock.dialects.postgres.target.ledger import PostgresLedger
from penstock.dialects.postgres.target.ledger_version import ledger_steps
from penstock.position import Scn
from penstock.rules.stream import StreamRules
from penstock.schema import Dictionary
from penstock.stream import TableVersion
from penstock.values import encode_image

FIXTURE = """
CREATE TABLE dept(id INT PRIMARY KEY, name VARCHAR(20));
CREATE TABLE emp (id INT PRIMARY KEY, dept_id INT NULL REFERENCES dept(id), name VARCHAR(20),
                  job VARCHAR(10), sal NUMERIC(10,2), comm NUMERIC(10,2), ts TIMESTAMP);
CREATE TABLE acct(id INT PRIMARY KEY, code VARCHAR(10) NULL UNIQUE, bal NUMERIC(12,2));
CREATE TABLE nk  (a INT, b VARCHAR(10), c INT);
CREATE TABLE hist(emp_id INT, job VARCHAR(10), at VARCHAR(10));
INSERT INTO dept VALUES (10,'ENG'), (20,'OPS');
INSERT INTO emp VALUES (1,10,'ann','A',4400,NULL,'2024-01-01'), (2,20,'bob','B',4000,100,'2024-01-01');
INSERT INTO acct VALUES (1,'X',100), (2,'Y',200);
INSERT INTO nk VALUES (1,'p',1);
"""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Lcr:
    """One change by hand; values are written as they would be captured."""

    op: str
    table: str
    before: Row | None
    after: Row | None


def insert(table: str, **values: Any) -> Lcr:
    return Lcr("insert", table, None, values)


def update(table: str, old: Row, new: Row) -> Lcr:
    return Lcr("update", table, old, new)


def delete(table: str, **values: Any) -> Lcr:
    return Lcr("delete", table, values, None)


def truncate(table: str) -> Lcr:
    return Lcr("truncate", table, None, None)


@dataclass(frozen=True)
class Txn:
    """A captured transaction: its position and its changes."""

    scn: int
    changes: Sequence[Lcr]


def T(scn: int, *changes: Lcr) -> Txn:
    return Txn(scn, changes)


class Target:
    """A target database with a ledger, to which transactions are applied as the tasks would."""

    def __init__(self, url: str, sql: str = FIXTURE, *, instantiated: int | Mapping[str, int] = 10) -> None:
        self.url = url
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute(sql)
        for step in ledger_steps(self.connection):
            self.connection.execute(step.sql)
        self.ledger = PostgresLedger(url, "A1")
        self.state = self.ledger.acquire("DBS1", lanes=4)
        self._instantiated = instantiated
        self.copied_later: dict[str, int] = {}
        self.virtual = NONE
        self.keys: dict[TableName, tuple[str, ...]] = {}
        self.rules = StreamRules({})
        self._attempt = 0

    def close(self) -> None:
        self.connection.close()
        self.ledger.close()

    def context(self, config: ServerConfig = ServerConfig()) -> TaskContext:
        names = [
            TableName("public", row[0])
            for row in self.connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        ]
        tables = read_tables(self.connection, names)
        given = self._instantiated
        if isinstance(given, int):
            given = dict.fromkeys([name.name for name in names], given)
        given = {**given, **self.copied_later}
        instantiated = {TableName("public", name): Scn(scn) for name, scn in given.items()}
        catalog = TargetCatalog(
            tables={name: TargetTable(table) for name, table in tables.items()},
            instantiated=instantiated,
            virtual=self.virtual,
        ).with_keys(self.keys)
        # The source knows of none of the target's checks.
        dictionary = Dictionary(replace(table, checks=()) for table in tables.values())
        return TaskContext(PostgresTarget(self.url, "A1"), catalog, dictionary, config)

    def apply(
        self,
        *transactions: Txn,
        lanes: int = 1,
        config: ServerConfig = ServerConfig(),
        shuffle: random.Random | None = None,
        complete: bool = True,
    ) -> list[LaneResult]:
        """Apply transactions, given in commit order, as one batch."""
        context = self.context(config)
        batches = list(self.rules.apply([as_batch(transactions)]))
        if lanes == 1:
            rows = in_commit_order(batches, context.catalog.instantiated, config.ignored)
            results = [apply_lane(rows.to_batches(), self._claim(0, moves_watermark=True), context)]
        else:
            sizes = np.array([len(txn.changes) for txn in transactions])
            scns = np.array([txn.scn for txn in transactions])
            laid_out = list(plan_batch(batches, sizes, scns, lanes, context))
            results = []
            if laid_out:
                planned = pa.Table.from_batches(laid_out)
                numbers = sorted(set(planned[LANE].to_pylist()))
                if shuffle is not None:
                    shuffle.shuffle(numbers)
                for lane in numbers:
                    rows = planned.filter(pc.equal(planned[LANE], lane))
                    rows = rows.sort_by([(c.COMMIT_SCN, "ascending"), (c.CHANGE_SEQ, "ascending")])
                    results.append(apply_lane(rows.to_batches(), self._claim(lane, moves_watermark=False), context))
        for result in results:
            if result.failure is not None:
                raise result.failure
        if complete and not any(result.aborted_by for result in results):
            self.ledger.complete(Scn(transactions[-1].scn), None, None)
        return results

    def lanes(self, *transactions: Txn, lanes: int = 4) -> list[set[int]]:
        """Which transactions the plan puts together, as sets of positions."""
        context = self.context()
        batch = as_batch(transactions)
        txn_of = np.repeat(np.arange(len(transactions)), [len(t.changes) for t in transactions])
        catalog = context.catalog
        found: Dependencies = find_dependencies([batch], txn_of, catalog.tables, catalog.virtual)
        lane_of = plan_lanes(found, np.array([len(t.changes) for t in transactions]), lanes)
        groups: dict[int, set[int]] = {}
        for txn, lane in zip(transactions, lane_of.tolist(), strict=True):
            groups.setdefault(lane, set()).add(txn.scn)
        return list(groups.values())

    def _claim(self, lane: int, *, moves_watermark: bool) -> LaneClaim:
        self._attempt += 1
        return LaneClaim("A1", self.state.epoch, lane, self._attempt, moves_watermark)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query).fetchall()

    def one(self, query: str) -> Any:
        row = self.connection.execute(query).fetchone()
        return row[0] if row else None

    def watermarks(self) -> tuple[int, int]:
        state = self.ledger.state()
        assert state is not None
        return state.low_watermark, state.high_watermark

    def errors(self) -> list[ErrorEntry]:
        return list(PostgresErrorQueue(self.url, "A1").entries())

    def failed(self) -> list[tuple[int, int, int, int]]:
        """(position, error number, failing change, number of changes) of each entry."""
        return [(e.commit_scn, e.error_number, e.message_number, e.message_count) for e in self.errors()]

    def retry(self, *entry_ids: str, tell: Callable[[str], None] = lambda _: None, **config: Any) -> list[str]:
        """Apply entries again, all if none is named; returns those that left the queue."""
        retried = self.retried(*entry_ids, tell=tell, **config)
        return [one.entry_id for one in retried if not one.is_failed]

    def retried(self, *entry_ids: str, tell: Callable[[str], None] = lambda _: None, **config: Any) -> list[Retried]:
        """The same, with what came of each."""
        self.remember_versions()
        ids = entry_ids or [e.id for e in self.errors()]
        return list(retry(self.queue, ids, RetryConfig(allow_duplicate_rows=True, keys=self.keys, **config), tell=tell))

    def remember_versions(self) -> None:
        """Keep the versions of tables that a retry reads, as a run does."""
        self.ledger.save_dictionary(
            TableVersion(0, table.schema, table.schema.to_definition(), table.name)
            for table in self.context().catalog.tables.values()
        )

    @property
    def queue(self) -> PostgresErrorQueue:
        return PostgresErrorQueue(self.url, "A1", actor=Actor("ann", "desk"))


def as_batch(transactions: Sequence[Txn], *, version: int = 1) -> pa.RecordBatch:
    """The transactions as a batch of the change stream."""
    rows = []
    for txn in transactions:
        for seq, lcr in enumerate(txn.changes):
            row = dict.fromkeys(c.ARROW_SCHEMA.names)
            row |= {
                c.SOURCE: "DBS1",
                c.TXN_ID: str(txn.scn * 7),
                c.COMMIT_SCN: txn.scn,
                c.CHANGE_SEQ: seq,
                c.OP: lcr.op,
                c.SCHEMA_NAME: "public",
                c.TABLE_NAME: lcr.table,
                c.TABLE_VERSION: version,
                c.BEFORE: None if lcr.before is None else encode_image(_texts(lcr.before)),
                c.AFTER: None if lcr.after is None else encode_image(_texts(lcr.after)),
            }
            rows.append(row)
    return pa.RecordBatch.from_pylist(rows, schema=c.ARROW_SCHEMA)


def _texts(values: Row) -> dict[str, str | None]:
    # A text stays what it is: it may be one that tells of a value elsewhere.
    return {name: value if value is None or isinstance(value, str) else str(value) for name, value in values.items()}
