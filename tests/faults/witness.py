"""Somebody who looks at the target all the time, each look one snapshot, and must never see half a transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from tests.faults.loads import SEEDED
from tests.faults.watching import Watcher


@dataclass(frozen=True)
class Rule:
    """What holds in every state between two transactions of the loads.

    Attributes:
        query: Yields a number that is 0 where it holds.
        in_order_only: It holds only where transactions commit in the source's order.
    """

    name: str
    query: str
    in_order_only: bool = False


_RECENT = 20_000
"""Orders further back have been looked at often enough."""

RULES = (
    Rule(
        "TPC-B: accounts, tellers, branches and history have the same sum",
        "SELECT (a <> b)::int + (a <> t)::int + (a <> h)::int FROM"
        " (SELECT sum(abalance) AS a FROM pgbench_accounts) a, (SELECT sum(bbalance) AS b FROM pgbench_branches) b,"
        " (SELECT sum(tbalance) AS t FROM pgbench_tellers) t,"
        " (SELECT coalesce(sum(delta), 0) AS h FROM pgbench_history) h",
    ),
    Rule(
        "mixed: a new order has three items",
        f"WITH recent AS (SELECT greatest({SEEDED}, max(id) - {_RECENT}) AS after FROM orders)"
        " SELECT count(*) FROM (SELECT id FROM orders WHERE id > (SELECT after FROM recent)) o"
        " FULL JOIN (SELECT order_id, count(*) AS items FROM items WHERE order_id > (SELECT after FROM recent)"
        " GROUP BY order_id) i ON i.order_id = o.id WHERE o.id IS NULL OR items IS DISTINCT FROM 3",
    ),
    Rule(
        "mixed: what customers paid is in the orders twice, and each visit is an order",
        "SELECT (2 * paid <> total)::int + (visits <> placed)::int FROM"
        " (SELECT sum(balance) AS paid, sum(visits) AS visits FROM customers) c,"
        f" (SELECT sum(total) AS total, count(*) - {SEEDED} AS placed FROM orders) o",
    ),
    Rule(
        "sweep: all accounts were marked by the same one",
        "SELECT count(*) FROM (SELECT DISTINCT filler FROM pgbench_accounts OFFSET 1) others",
    ),
    Rule(
        "each transaction is in the journal",
        "SELECT abs((SELECT count(*) FROM journal) - (SELECT count(*) FROM pgbench_history)"
        f" - (SELECT count(*) FROM orders WHERE id > {SEEDED}))",
    ),
    Rule(
        "no writer is there with more transactions than it has written",
        "SELECT count(*) FROM (SELECT FROM journal GROUP BY writer HAVING count(*) > max(number)) writer",
    ),
    Rule(
        "FULL: no transaction of a writer is there before an earlier one",
        "SELECT count(*) FROM (SELECT FROM journal GROUP BY writer HAVING count(*) <> max(number)) writer",
        in_order_only=True,
    ),
)


def look(connection: psycopg.Connection, *, in_order: bool, rules: Sequence[Rule] = RULES) -> list[str]:
    """Look once; returns the rules that do not hold in this snapshot."""
    broken = []
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        for rule in rules:
            if in_order or not rule.in_order_only:
                row = connection.execute(rule.query).fetchone()
                if row is None or row[0] != 0:
                    broken.append(f"{rule.name}: off by {row and row[0]}")
    return broken


class Witness(Watcher):
    """Looks while the block runs, whatever becomes of the server in between."""

    def __init__(self, url: str, *, in_order: bool, rules: Sequence[Rule] = RULES) -> None:
        super().__init__("witness")
        self._url = url
        self._rules = rules
        self.in_order = in_order
        self.looks = 0
        self.torn: list[str] = []

    def assert_whole(self) -> None:
        """It has looked, and has never seen half a transaction."""
        assert self.failure is None, self.failure
        assert self.looks > 0
        assert not self.torn, self.torn[:5]

    def watch(self, ended: threading.Event) -> None:
        """Look, over a new connection where the last one broke."""
        while not ended.is_set():
            try:
                with psycopg.connect(self._url, autocommit=True, application_name="witness") as connection:
                    self._look_on(connection, ended)
            except psycopg.OperationalError:
                # The server is away; that is what these tests do to it.
                ended.wait(0.2)

    def _look_on(self, connection: psycopg.Connection, ended: threading.Event) -> None:
        while not ended.is_set():
            began = time.monotonic()
            self.torn += look(connection, in_order=self.in_order, rules=self._rules)
            self.looks += 1
            # The machine is to do something else as well.
            ended.wait(max(0.05, 2 * (time.monotonic() - began)))
