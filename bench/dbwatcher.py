"""DbWatcher messages: how many changes two processes write, and read, in a second: `python -m bench.dbwatcher`.

The case `source` reads a folder of messages to its end, as a run does: this process looks through all of them, then two
processes read the slices.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from penstock.change import Change, Op, TableName
from penstock.formats.dbwatcher.changes import changes_of
from penstock.formats.dbwatcher.reader import read_message
from penstock.formats.dbwatcher.tables import Creation, create_message
from penstock.formats.dbwatcher.transactions import KeyedTransaction, TransactionWriter
from penstock.formats.dbwatcher.writer import write_message
from penstock.logical import LogicalType
from penstock.position import START
from penstock.schema import Column, TableSchema
from penstock.sources.dbwatcher.folder import FolderMessages
from penstock.sources.dbwatcher.reading import Reading
from penstock.sources.dbwatcher.source import MessageReader, Messages
from penstock.storage import LocalStorage
from penstock.stream import Slice

_PROCESSES = 2
_CHANGES = 90_000
"""How many each process writes, and reads."""

_PER_TRANSACTION = 9
_ROUNDS = 3

_SOURCE_CHANGES = 200_000
_FOLDERS = {"9 changes a message": (9, 1), "9 changes a message, 500 a file": (9, 500), "1,000 a message": (1_000, 1)}
"""How many changes a message has, and how many messages a file."""

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


def measure_source() -> Iterator[dict[str, Any]]:
    """Read folders of messages to their end; yields the best of some rounds of each.

    `rate` is by the clock. `index_us` and `read_us` are what a change takes of a processor: of this process to look
    through all messages, and of the two that read them then.
    """
    with ProcessPoolExecutor(_PROCESSES) as processes:
        list(processes.map(_run, [_PER_TRANSACTION] * _PROCESSES))
        for name, (changes, messages) in _FOLDERS.items():
            with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
                _write(Path(folder), changes, messages)
                rounds = [_read_folder(Path(folder), processes) for _ in range(_ROUNDS)]
            spent, index_us, read_us = (min(found) for found in zip(*rounds, strict=True))
            told = {"rate": _SOURCE_CHANGES / spent, "index_us": index_us, "read_us": read_us}
            yield {"workload": "dbwatcher source", "system": name, **told}


def _write(folder: Path, changes: int, messages: int) -> None:
    """Write a folder of messages of so many changes, in files of so many messages."""
    made = TransactionWriter(lambda *_: TABLE).messages(transactions(_SOURCE_CHANGES, changes))
    created = create_message(Creation(TABLE, 1, "0.1", 1))
    (folder / f"{0:020}.xml").write_bytes(write_message(created))
    number = 0
    while file := list(islice(made, messages)):
        number += 1
        (folder / f"{number:020}.xml").write_bytes(b"\n".join(map(write_message, file)))


def _read_folder(folder: Path, processes: ProcessPoolExecutor) -> tuple[float, float, float]:
    """Return the seconds of reading all, and microseconds of a processor for a change; see `measure_source`."""
    began, begun = time.monotonic(), time.process_time()
    messages = Messages(FolderMessages(LocalStorage(folder)), ["public.*"], Reading())
    end = messages.end()
    index_s = time.process_time() - begun
    parts, after = list[Slice](), START
    while after < end and (part := messages.next_slice(after)) is not None:
        parts += part.split(_PROCESSES)
        after = part.end
    found = list(processes.map(_count, [messages.readable] * len(parts), parts))
    spent = time.monotonic() - began
    assert sum(count for count, _ in found) == _SOURCE_CHANGES
    per_change = 1e6 / _SOURCE_CHANGES
    return spent, index_s * per_change, sum(seconds for _, seconds in found) * per_change


def _count(reader: MessageReader, part: Slice) -> tuple[int, float]:
    """Return how many changes a slice has, and what reading it took of a processor."""
    begun = time.process_time()
    return sum(batch.num_rows for batch in reader.read(part)), time.process_time() - begun


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


def transactions(count: int, size: int = _PER_TRANSACTION) -> Iterator[KeyedTransaction]:
    """A third each of inserts, updates and deletes, of six columns; `size` in a transaction."""
    ids: Sequence[int] = np.random.default_rng(1).integers(0, 1_000_000, count).tolist()
    for first in range(0, count, size):
        keys = range(first, min(first + size, count))
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
    for result in chain(measure(), measure_source()):
        print(json.dumps(result), flush=True)
