"""Change files: how many changes two processes write, and read, in a second."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import change as c
from penstock.archive import Archive
from penstock.formats.change_file import Encoding
from penstock.position import START, Limit, Scn
from penstock.sinks.archive.files import ArchiveWriter, FileWriter, WrittenFiles, make_archive
from penstock.sources.change_files.reader import ArchiveSlice, FileReader
from penstock.sources.change_files.source import ChangeFiles
from penstock.storage import LocalStorage

_PROCESSES = 2
_CHANGES = 450_000
"""How many each process writes."""

_BATCH = 45_000
_PER_TRANSACTION = 9


def measure() -> Iterator[dict[str, Any]]:
    """Write and read archives of both formats; yields what was measured."""
    with ProcessPoolExecutor(_PROCESSES) as processes:
        # Let them import first.
        list(processes.map(changes, [1] * _PROCESSES))
        for encoding in Encoding:
            with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
                yield from _measure(LocalStorage(Path(folder)), encoding, processes.map)


def _measure(storage: LocalStorage, encoding: Encoding, each: Callable[..., Iterator[Any]]) -> Iterator[dict[str, Any]]:
    make_archive(storage, "bench", encoding)
    writer = ArchiveWriter(storage)
    files = FileWriter(storage, encoding, writer.acquire().epoch)
    written = WrittenFiles()
    seconds = 0.0
    for part, spent in each(partial(_write, files), range(_PROCESSES)):
        written = written.followed_by(part)
        seconds = max(seconds, spent)
    writer.commit(Scn(int(written.transactions.commit_scns[-1])), written)
    changes = _CHANGES * _PROCESSES
    size = sum(file.size_bytes for file in written.files) / changes
    yield _result("written", encoding, changes / seconds) | {"bytes_per_change": size}
    whole = ChangeFiles(Archive(storage)).next_slice(START, Limit(*[2**62] * 5))
    assert whole is not None
    found = list(each(partial(_read, storage), whole.split(_PROCESSES)))
    assert sum(count for count, _ in found) == changes
    yield _result("read", encoding, changes / max(spent for _, spent in found))


def _result(did: str, encoding: Encoding, rate: float) -> dict[str, Any]:
    return {"workload": "files", "system": f"{encoding.value} {did}", "rate": rate}


def _write(files: FileWriter, number: int) -> tuple[WrittenFiles, float]:
    first = number * _CHANGES // _PER_TRANSACTION + 1
    batches = [changes(first + n * _BATCH // _PER_TRANSACTION) for n in range(_CHANGES // _BATCH)]
    began = time.monotonic()
    return files.write_changes(batches), time.monotonic() - began


def _read(storage: LocalStorage, part: ArchiveSlice) -> tuple[int, float]:
    began = time.monotonic()
    count = sum(batch.num_rows for batch in FileReader(Archive(storage)).read(part))
    return count, time.monotonic() - began


def changes(first: int) -> pa.RecordBatch:
    """Updates as pgbench makes them: a filler that never changes, a balance that does."""
    drawn = np.random.default_rng(first)
    keys, old, new = (drawn.integers(0, 1_000_000, _BATCH).tolist() for _ in range(3))
    scns = np.repeat(np.arange(first, first + _BATCH // _PER_TRANSACTION), _PER_TRANSACTION)
    filler = " " * 84
    before = [
        f'{{"aid":"{key}","bid":"1","abalance":"{balance}","filler":"{filler}"}}'
        for key, balance in zip(keys, old, strict=True)
    ]
    columns: dict[str, Sequence[Any] | pa.Array] = {
        c.SOURCE: ["bench"] * _BATCH,
        c.TXN_ID: pa.array(scns + 1_000_000).cast(pa.string()),
        c.COMMIT_SCN: scns,
        c.CHANGE_SEQ: np.tile(np.arange(_PER_TRANSACTION), _BATCH // _PER_TRANSACTION),
        c.TXN_CHANGES: [_PER_TRANSACTION] * _BATCH,
        c.SCN: np.arange(_BATCH),
        c.COMMITTED_AT: [datetime.now(UTC)] * _BATCH,
        c.OP: ["update"] * _BATCH,
        c.SCHEMA_NAME: ["public"] * _BATCH,
        c.TABLE_NAME: ["pgbench_accounts"] * _BATCH,
        c.TABLE_VERSION: [1] * _BATCH,
        c.KEY: [f'{{"aid":"{key}"}}' for key in keys],
        c.BEFORE: before,
        c.AFTER: [f'{{"abalance":"{balance}"}}' for balance in new],
    }
    absent = {name: [None] * _BATCH for name in c.ARROW_SCHEMA.names if name not in columns}
    return pa.record_batch({**columns, **absent}).select(c.ARROW_SCHEMA.names).cast(c.ARROW_SCHEMA)
