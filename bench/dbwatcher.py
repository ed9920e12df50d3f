"""DbWatcher messages: how many changes two processes write, and read, in a second: `python -m bench.dbwatcher`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.change import Change, Op, TableName
from penstock.formats.dbwatcher.changes import changes_of
from penstock.formats.dbwatcher.reader import read_message
from penstock.formats.dbwatcher.transactions import KeyedTransaction, TransactionWriter
from penstock.formats.dbwatcher.writer import write_message
from penstock.logical import LogicalType
from penstock.schema import Column, TableSchema

_PROCESSES = 2
_CHANGES = 90_000
"""How many each process writes, and reads."""

_PER_TRANSACTION = 9
_ROUNDS = 3

_NAMES = {
    "id": "integer(32)",
    "name": "string(40)",
    "amount": "decimal(12,3)",
    "ts": "timestamp",
    "flag": "boolean",
    "photo": "binary",
}
TABLE = TableSchema(
    TableName("public", "t"), tuple(Column.of(name, LogicalType.parse(type_)) for name, type_ in _NAMES.items())
)


def measure() -> Iterator[dict[str, Any]]:
    """Write messages and read them again; yields what was measured, the best of some rounds of each.

    `rate` is by the clock, `cpu_us` what a change takes of a processor, which other load changes less.
    """
    with ProcessPoolExecutor(_PROCESSES) as processes:
        list(processes.map(_run, [_PER_TRANSACTION] * _PROCESSES))
        rounds = [list(processes.map(_run, [_CHANGES] * _PROCESSES)) for _ in range(_ROUNDS)]
    for did, take in (("written", [0]), ("read", [1]), ("written and read", [0, 1])):
        spent = min(max(sum(one[n][0] for n in take) for one in found) for found in rounds)
        cpu = min(sum(one[n][1] for n in take for one in found) for found in rounds)
        changes = _CHANGES * _PROCESSES
        yield {"workload": "dbwatcher", "system": did, "rate": changes / spent, "cpu_us": cpu / changes * 1e6}


def _run(count: int) -> list[tuple[float, float]]:
    """Return what writing and reading took, each in seconds of the clock and of the processor."""
    made = list(transactions(count))
    moments = [(time.monotonic(), time.process_time())]
    messages = [(write_message(m), m.properties) for m in TransactionWriter(lambda *_: TABLE).messages(made)]
    moments.append((time.monotonic(), time.process_time()))
    tables = {TABLE.name: TABLE}
    found = sum(len(p.changes) for xml, said in messages for p in changes_of(read_message(xml, said), tables).parts)
    moments.append((time.monotonic(), time.process_time()))
    assert found == count
    return [(later[0] - one[0], later[1] - one[1]) for one, later in pairwise(moments)]


def transactions(count: int) -> Iterator[KeyedTransaction]:
    """A third each of inserts, updates and deletes, of six columns."""
    ids: Sequence[int] = np.random.default_rng(1).integers(0, 1_000_000, count).tolist()
    for first in range(0, count, _PER_TRANSACTION):
        keys = range(first, min(first + _PER_TRANSACTION, count))
        yield KeyedTransaction(str(7_000_000 + first), [_change(key - first, ids[key]) for key in keys], keys)


def _change(seq: int, id_: int) -> Change:
    row = {
        "id": str(id_),
        "name": f"customer number {id_}",
        "amount": f"{id_ % 10_000}.500",
        "ts": "2024-01-02T03:04:05.678000",
        "flag": "true",
        "photo": "AP8Q",
    }
    match seq % 3:
        case 0:
            return Change(seq, Op.INSERT, TABLE.name, 1, None, row)
        case 1:
            return Change(seq, Op.UPDATE, TABLE.name, 1, row, {"amount": "33.000"})
        case _:
            return Change(seq, Op.DELETE, TABLE.name, 1, row, None)


if __name__ == "__main__":
    for result in measure():
        print(json.dumps(result))
