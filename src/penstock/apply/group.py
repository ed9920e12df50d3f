"""Cutting a lane's stream into groups of whole transactions; one group is one target transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import change as c
from penstock.change import Change, Op, TableName, Transaction
from penstock.errors import PenstockError
from penstock.values import decode_image

COLUMNS = (
    c.COMMIT_SCN,
    c.CHANGE_SEQ,
    c.TXN_ID,
    c.COMMITTED_AT,
    c.OP,
    c.SCHEMA_NAME,
    c.TABLE_NAME,
    c.TABLE_VERSION,
    c.BEFORE,
    c.AFTER,
)
"""The columns of the change stream that apply needs."""

SCHEMA = pa.schema([c.ARROW_SCHEMA.field(name) for name in COLUMNS])


_MADE_VALUES = 1000


@dataclass(frozen=True)
class Group:
    """Consecutive transactions of one lane, in commit order.

    Attributes:
        rows: All their changes, in order, with `SCHEMA`.
        starts: For each transaction, the index of its first row; then the number of rows.
    """

    rows: pa.Table
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def commit_scns(self) -> NDArray[np.int64]:
        """The position of each transaction."""
        return np.asarray(self.rows[c.COMMIT_SCN].to_numpy()[self.starts[:-1]])

    @property
    def committed_at_us(self) -> NDArray[np.int64]:
        """When each transaction was committed at the source; 0 where that is not known."""
        times = self.rows[c.COMMITTED_AT].cast(pa.int64()).fill_null(0)
        return np.asarray(times.to_numpy()[self.starts[:-1]])

    @cached_property
    def tables(self) -> Sequence[tuple[TableName, int, NDArray[np.bool_]]]:
        """Each table version among the changes, and which of them are changes of it."""
        # Numbers for names: they are told apart in a fraction of the time.
        schemas, names = (_encoded(self.rows[name]) for name in (c.SCHEMA_NAME, c.TABLE_NAME))
        versions = self.rows[c.TABLE_VERSION].to_numpy().astype(np.int64)
        # One number per change for its table, then one for its table and version together.
        name_of = schemas.indices.to_numpy().astype(np.int64) * len(names.dictionary) + names.indices.to_numpy()
        found = _encoded(pa.array((name_of << 32) | versions))
        number_of = found.indices.to_numpy()
        tables = []
        for number, code in enumerate(found.dictionary.to_pylist()):
            schema, name = divmod(code >> 32, len(names.dictionary))
            table = TableName(schemas.dictionary[schema].as_py(), names.dictionary[name].as_py())
            tables.append((table, code & 0xFFFFFFFF, number_of == number))
        return tables

    @property
    def operations(self) -> tuple[Sequence[str], NDArray[np.int64]]:
        """The operations among the changes, and for each change the index of its one."""
        found = _encoded(self.rows[c.OP])
        return found.dictionary.to_pylist(), found.indices.to_numpy().astype(np.int64)

    def part(self, first: int, end: int) -> Group:
        """The transactions from `first` up to but not including `end`."""
        if first == 0 and end == len(self):
            return self
        low, high = int(self.starts[first]), int(self.starts[end])
        return Group(self.rows.slice(low, high - low), self.starts[first : end + 1] - low)

    def only(self, wanted: NDArray[np.bool_]) -> Group:
        """The transactions for which `wanted` is true."""
        if wanted.all():
            return self
        lengths = np.diff(self.starts)
        rows = self.rows.filter(pa.array(np.repeat(wanted, lengths)))
        return Group(rows, np.r_[0, np.cumsum(lengths[wanted])])

    @property
    def txn_of(self) -> NDArray[np.int64]:
        """For each change, the index of its transaction."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def changes(self, wanted: NDArray[np.bool_]) -> Group:
        """The changes for which `wanted` is true; transactions that keep none are gone."""
        if wanted.all():
            return self
        lengths = np.bincount(self.txn_of[wanted], minlength=len(self))
        return Group(self.rows.filter(pa.array(wanted)), np.r_[0, np.cumsum(lengths[lengths > 0])])

    def transactions(self) -> Iterator[Transaction]:
        """Yield the transactions one by one, as values."""
        first = 0
        while first < len(self):
            # Rows become values many at a time, which is quicker, and not all at a time, which would take memory.
            end = int(np.searchsorted(self.starts, self.starts[first] + _MADE_VALUES, side="right")) - 1
            part = self.part(first, max(end, first + 1))
            rows = part.rows.to_pylist()
            for (low, high), committed_at_us in zip(
                pairwise(part.starts.tolist()), part.committed_at_us.tolist(), strict=True
            ):
                yield _transaction(rows[low:high], committed_at_us or None)
            first += len(part)


def group_sizes(most: int) -> Iterator[int]:
    """How many changes the first group is to hold, the second, and so on, up to `most`.

    The target is to have work soon, and larger groups cost it less per change.
    """
    size = max(2, most // 16)
    while size < most:
        yield size
        # While the target is at work on one group the next but one is read, which must not take longer.
        size = size * 3 // 2
    yield from repeat(most)


def cut_groups(batches: Iterable[pa.RecordBatch], sizes: Iterable[int], *, max_bytes: int) -> Iterator[Group]:
    """Cut a stream of changes, ordered by (commit_scn, change_seq), into groups.

    A group ends with the transaction that reaches its number of changes, or `max_bytes` of images; a transaction is
    never cut.

    Args:
        sizes: The number of changes for each group; enough of them.

    Raises:
        PenstockError: The stream is out of order.
    """
    wanted = iter(sizes)
    size = next(wanted)
    held: list[pa.RecordBatch] = []
    count = size_bytes = 0
    for batch in chain(batches, [None]):
        if batch is not None and batch.num_rows:
            held.append(batch.select(COLUMNS))
            count += batch.num_rows
            size_bytes += int(_image_bytes(held[-1]).sum())
        is_full = count > size or size_bytes > max_bytes
        if not held or not (is_full or batch is None):
            continue
        whole = whole_group(pa.Table.from_batches(held))
        # For each transaction, and once more for the end, the bytes of images before it.
        filled = np.r_[0, np.cumsum(_image_bytes(whole.rows))][whole.starts]
        first = 0
        while first < len(whole):
            by_changes = np.searchsorted(whole.starts, whole.starts[first] + size)
            by_bytes = np.searchsorted(filled, filled[first] + max_bytes)
            end = min(max(int(min(by_changes, by_bytes)), first + 1), len(whole))
            if end == len(whole) and batch is not None:
                # The last transaction may go on in the next batch.
                break
            yield whole.part(first, end)
            first, size = end, next(wanted)
        held = whole.part(first, len(whole)).rows.to_batches()
        count, size_bytes = int(whole.starts[-1] - whole.starts[first]), int(filled[-1] - filled[first])


def whole_group(rows: pa.Table) -> Group:
    """Make a group of changes, ordered by (commit_scn, change_seq), that are whole transactions.

    Raises:
        PenstockError: They are out of order.
    """
    scn, seq = rows[c.COMMIT_SCN].to_numpy(), rows[c.CHANGE_SEQ].to_numpy()
    # One entry per change: is it the first of its transaction?
    begins = np.r_[True, scn[1:] != scn[:-1]]
    if (np.diff(scn) < 0).any() or (np.diff(seq)[~begins[1:]] <= 0).any():
        raise PenstockError("changes reached apply out of order", where=f"commit_scn {scn[0]} to {scn[-1]}")
    return Group(rows, np.r_[np.flatnonzero(begins), len(rows)])


def _encoded(values: pa.Array | pa.ChunkedArray) -> pa.DictionaryArray:
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return whole.dictionary_encode()


def _image_bytes(rows: pa.Table | pa.RecordBatch) -> NDArray[np.int64]:
    """The size of each change's images."""
    before, after = (pc.fill_null(pc.binary_length(rows[name]), 0).to_numpy() for name in (c.BEFORE, c.AFTER))
    return np.asarray(before, np.int64) + np.asarray(after, np.int64)


def _transaction(rows: Sequence[Mapping[str, Any]], committed_at_us: int | None) -> Transaction:
    changes = tuple(
        Change(
            change_seq=row[c.CHANGE_SEQ],
            op=Op(row[c.OP]),
            table=TableName(row[c.SCHEMA_NAME], row[c.TABLE_NAME]),
            table_version=row[c.TABLE_VERSION],
            before=None if row[c.BEFORE] is None else decode_image(row[c.BEFORE]),
            after=None if row[c.AFTER] is None else decode_image(row[c.AFTER]),
        )
        for row in rows
    )
    return Transaction(rows[0][c.COMMIT_SCN], rows[0][c.TXN_ID], committed_at_us, changes)
