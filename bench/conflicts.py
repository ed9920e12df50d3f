"""What conflicts and failing transactions cost: `python -m bench conflicts`.

The same backlog is applied by turns to three copies: one as it was left; one in which somebody has changed 1 % of all
rows that the changes meet, which the file resolves; and one in which somebody has changed as many as make 5 % of the
transactions fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from bench.systems import Ours, execute
from bench.workloads import MIXED
from penstock.demo.servers import EmbeddedPostgres

_RESOLVED = "[{on: update, method: overwrite}, {on: insert, method: overwrite}, {on: delete, method: overwrite}]"

RESOLVERS = f", tables: {{{', '.join(f'public.{table}: {{conflicts: {_RESOLVED}}}' for table in MIXED.tables)}}}"

_CHANGED = """
UPDATE customers SET balance = balance + 7, visits = visits + 7 WHERE id % {one_in} = 0;
UPDATE orders SET status = 'x', total = total + 7 WHERE id % {one_in} = 0;
UPDATE items SET quantity = quantity + 1 WHERE id % {one_in} = 0;
"""

_TAKEN = """
INSERT INTO {table} OVERRIDING SYSTEM VALUE
  SELECT n, {values} FROM generate_series({first}, {last}) n WHERE n % 100 = 0;
"""


def measure(
    source: EmbeddedPostgres, target: EmbeddedPostgres, rounds: int, share: float, checkpoint: Any
) -> Iterator[dict[str, Any]]:
    """Yield a result for each catch-up; the source is captured, and holds the tables of `mixed`."""
    for number in range(rounds):
        # New copies each time: what a failing transaction has not done would make later ones fail.
        systems = {
            "clean": Ours(source, target, label=f"clean_{number}_"),
            "1 % of changes in conflict": Ours(source, target, apply=RESOLVERS, label=f"conflicts_{number}_"),
            "5 % of transactions failing": Ours(source, target, label=f"failing_{number}_"),
        }
        for system in systems.values():
            system.prepare(MIXED)
        before = _last_ids(source)
        MIXED.write(source, MIXED.name, seed=number + 1, share=share)
        _spoil(target, systems, before, _last_ids(source))
        order = list(systems.items())
        for name, system in order if number % 2 == 0 else reversed(order):
            checkpoint()
            seconds = system.catch_up()
            with psycopg.connect(target.url(system.target_db)) as connection:
                row = connection.execute(
                    "SELECT sum(changes), sum(errors), sum(resolved) FROM penstock.lane"
                ).fetchone()
            assert row is not None
            yield {
                "workload": "conflicts",
                "system": name,
                "round": number,
                "seconds": seconds,
                "changes": int(row[0]),
                "errors": int(row[1]),
                "resolved": int(row[2]),
            }


def _last_ids(source: EmbeddedPostgres) -> Sequence[int]:
    with psycopg.connect(source.url(MIXED.name)) as connection:
        row = connection.execute("SELECT (SELECT max(id) FROM orders), (SELECT max(id) FROM items)").fetchone()
    assert row is not None
    return row


def _spoil(target: EmbeddedPostgres, systems: dict[str, Ours], before: Sequence[int], after: Sequence[int]) -> None:
    _, conflicting, failing = (target.url(system.target_db) for system in systems.values())
    tables = (("orders", "1, 'there', 1, now()"), ("items", "1, 'there', 1"))
    execute(
        conflicting,
        _CHANGED.format(one_in=100),
        *(
            _TAKEN.format(table=table, values=values, first=first + 1, last=last)
            for (table, values), first, last in zip(tables, before, after, strict=True)
        ),
    )
    # Five changes of a transaction meet rows.
    execute(failing, _CHANGED.format(one_in=143))
    for url in (conflicting, failing):
        execute(url, "VACUUM ANALYZE")
