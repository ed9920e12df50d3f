"""Buffers of Db2's log: how many row records are indexed, and read, in a second: `python -m bench.db2_log`.

Read by two processes, and by the Spark data source with two cores, which hands every row on to Spark.
"""

from __future__ import annotations

import argparse
import json
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from tests.sources.db2.encoder import Log, Varying, image

from penstock.sources.db2_log.buffers import Buffers
from penstock.sources.db2_log.source import Db2Log
from penstock.spark.session import start_session
from penstock.storage import LocalStorage
from penstock.wiring import register_sources

_PROCESSES = 2
_FILES = 8
_TXN_ROWS = 9
_TXNS = 11_000
"""How many transactions a file has."""

_TABLE = {
    "schema": "SHOP",
    "table": "ORDERS",
    "tablespace_id": 3,
    "table_id": 22,
    "columns": [
        {"name": "ID", "type": "BIGINT", "key_seq": 1},
        {"name": "CUSTOMER", "type": "INTEGER"},
        {"name": "STATE", "type": "CHARACTER", "length": 10},
        {"name": "NOTE", "type": "VARCHAR", "length": 100},
        {"name": "AMOUNT", "type": "DECIMAL", "length": 11, "scale": 2},
        {"name": "CREATED", "type": "TIMESTAMP", "scale": 6},
        {"name": "DUE", "type": "DATE"},
    ],
}


def measure(rounds: int = 3) -> Iterator[dict[str, Any]]:
    """Write buffers, and read them; yields what was measured, medians of so many rounds."""
    with tempfile.TemporaryDirectory() as folder:
        rows = _write(Path(folder))
        size = sum(file.stat().st_size for file in Path(folder).glob("*.db2log"))
        with ProcessPoolExecutor(_PROCESSES) as processes:
            # Let them import first.
            list(processes.map(_opened, [folder] * _PROCESSES))
            for what, work in (("indexed, one process", _index), ("read, two processes", _read)):
                rates = [rows / _spent(processes, work, folder) for _ in range(rounds)]
                yield {"workload": "db2_log", "system": what, "rate": median(rates), "bytes_per_row": size / rows}
        rates = [rows / spent for spent in _through_spark(folder, rounds)]
        yield {"workload": "db2_log", "system": "through Spark", "rate": median(rates), "bytes_per_row": size / rows}


def _through_spark(folder: str, rounds: int) -> Iterator[float]:
    spark = start_session("bench", lanes=_PROCESSES)
    register_sources(spark)
    frame = spark.read.format("penstock.db2_log").option("path", folder).load()
    # Not the first round: workers have to begin.
    for number in range(rounds + 1):
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        if number:
            yield time.perf_counter() - began


def _spent(processes: ProcessPoolExecutor, work: Callable[[str, int], int], folder: str) -> float:
    began = time.perf_counter()
    if work is _index:
        work(folder, 0)
    else:
        list(processes.map(work, [folder] * _PROCESSES, range(_PROCESSES)))
    return time.perf_counter() - began


def _opened(folder: str) -> Db2Log:
    return Db2Log(Buffers(LocalStorage(Path(folder))))


def _index(folder: str, _: int) -> int:
    """Look through all files, as the driver does for those that are new."""
    for file in Path(folder).glob("index/*/*.npz"):
        file.unlink()
    return len(_opened(folder).buffers.indexed())


def _read(folder: str, which: int) -> int:
    """Make batches of the change stream of every other file, as a task does of its slice."""
    log, count, after = _opened(folder), 0, 0
    number = 0
    while (part := log.next_slice(after)) is not None:
        after = part.end
        if number % _PROCESSES == which:
            count += sum(batch.num_rows for batch in log.read(part))
            assert count
        number += 1
    return count


def _write(folder: Path) -> int:
    """Write a catalogue and buffers: of nine rows six are inserted, two updated, and one deleted."""
    (folder / "catalog.json").write_text(json.dumps({"id": "BENCH"}) + json.dumps(_TABLE))
    log, rid = Log(), 0
    for number in range(1, _FILES + 1):
        log.records = []
        for txn in range(number * _TXNS, (number + 1) * _TXNS):
            for step in range(_TXN_ROWS):
                rid += 1
                row = _row(rid, b"packed    ")
                if step < 6:
                    log.insert(txn, rid, row)
                elif step < 8:
                    log.update(txn, rid, row, _row(rid, b"shipped   "))
                else:
                    log.delete(txn, rid, row)
            log.commit(txn)
        (folder / f"{number:09}.db2log").write_bytes(b"".join(log.records))
    return _FILES * _TXNS * _TXN_ROWS


def _row(number: int, state: bytes) -> bytes:
    amount = bytes.fromhex(f"{number % 10**11:011}c")
    note = b"left at the back door " * (1 + number % 3)
    created = bytes.fromhex(
        f"20261126{number % 86_400 // 3600:02}{number // 60 % 60:02}{number % 60:02}{number % 10**6:06}"
    )
    fixed = [struct.pack("<q", number), struct.pack("<i", number % 997), state, Varying(note), amount, created]
    return image([*fixed, bytes.fromhex("20261224")])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    for result in measure(parser.parse_args().rounds):
        print(f"{result['system']}: {result['rate']:,.0f} row records/s ({result['bytes_per_row']:.0f} bytes each)")
