"""How many changes per second rules take, on one core: `python -m bench.rules`."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock import change as c
from penstock.change import TableName
from penstock.config.rules import RulesConfig
from penstock.rules.ruleset import RuleSet
from penstock.rules.stream import StreamRules
from penstock.schema import Column, TableSchema, Unique

NAME = TableName("public", "orders")
TYPES = {
    "id": "bigint",
    "customer": "integer",
    "region": "text",
    "name": "text",
    "net": "numeric(12,2)",
    "tax": "numeric(12,2)",
    "placed_at": "timestamp with time zone",
    "note": "text",
}
RULES: Mapping[str, Mapping[str, Any]] = {
    "rename": {"rename": {"name": "full_name"}},
    "rename and rows": {"rename": {"name": "full_name"}, "rows": "region <> 'US'"},
    "rename, rows, add": {"rename": {"name": "full_name"}, "rows": "region <> 'US'", "add": {"total": "net + tax"}},
    "keep three": {"keep": ["id", "region", "net"]},
}


def table() -> TableSchema:
    """A table of eight columns."""
    columns = (Column(name, kind, kind.partition("(")[0]) for name, kind in TYPES.items())
    return TableSchema(NAME, tuple(columns), primary_key=Unique("orders_pkey", ("id",), ("id",)))


def stream(count: int, *, size: int = 10_000) -> list[pa.RecordBatch]:
    """A mixed workload: half updates, a third inserts, the rest deletes; one row in ten is outside the filter."""
    drawn = random.Random(7)
    rows: dict[str, list[Any]] = {name: [] for name in (c.OP, c.BEFORE, c.AFTER)}
    for number in range(count):
        row = {
            "id": str(number),
            "customer": str(drawn.randrange(10_000)),
            "region": "US" if number % 10 == 0 else "EU",
            "name": f"customer {number}",
            "net": f"{drawn.randrange(100_000) / 100:.2f}",
            "tax": f"{drawn.randrange(10_000) / 100:.2f}",
            "placed_at": "2024-01-02T03:04:05.678000+00:00",
            "note": "as it was agreed on the telephone",
        }
        op = ("update", "insert", "update", "insert", "update", "delete")[number % 6]
        rows[c.OP].append(op)
        rows[c.BEFORE].append(None if op == "insert" else json.dumps(row, separators=(",", ":")))
        new = row if op == "insert" else {"net": "1.00", "note": "changed"} if op == "update" else None
        rows[c.AFTER].append(None if new is None else json.dumps(new, separators=(",", ":")))
    columns = {
        c.SOURCE: pa.repeat("bench", count),
        c.TXN_ID: pa.repeat("1", count),
        c.COMMIT_SCN: pa.array(range(count), pa.int64()),
        c.CHANGE_SEQ: pa.repeat(pa.scalar(0, pa.int64()), count),
        c.SCHEMA_NAME: pa.repeat(NAME.schema, count),
        c.TABLE_NAME: pa.repeat(NAME.name, count),
        c.TABLE_VERSION: pa.repeat(pa.scalar(1, pa.int32()), count),
        **{name: pa.array(values, pa.string()) for name, values in rows.items()},
    }
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in c.ARROW_SCHEMA]
    return list(pa.Table.from_arrays(arrays, schema=c.ARROW_SCHEMA).to_batches(max_chunksize=size))


def main(count: int = 200_000) -> None:
    """Print a line for each set of rules."""
    changes = stream(count)
    for name, rules in RULES.items():
        config = RulesConfig.model_validate({"tables": {str(NAME): rules}})
        rule = RuleSet.of(config, ["public.*"], Path()).rule(table(), table())
        assert rule is not None
        put_through = StreamRules({(NAME, 1): rule})
        for _ in put_through.apply(changes[:1]):
            pass
        begun = time.perf_counter()
        made = sum(batch.num_rows for batch in put_through.apply(changes))
        took = time.perf_counter() - begun
        print(f"{name:20} {count / took:>12,.0f} changes/s  {made:,} of {count:,} came out")


if __name__ == "__main__":
    pa.set_cpu_count(1)
    main()
