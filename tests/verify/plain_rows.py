"""A source that is no database, as the source of a comparison: lists of canonical texts, digested in Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from penstock.change import TableName
from penstock.position import Scn
from penstock.schema import TableSchema
from penstock.snapshot.chunk import Chunk, KeyValues
from penstock.snapshot.rows import Checksum, checksum_of, digest_of
from penstock.verify.task import TargetState

Row = Mapping[str, str | None]


@dataclass(frozen=True)
class PlainRows:
    """Implements `snapshot.rows.TableRows`."""

    table: TableSchema
    all_rows: Sequence[Row]

    def key_order(self) -> str:
        return "code points"

    def checksum(self, columns: Sequence[str], chunk: Chunk) -> Checksum:
        digests = sorted(digest_of(texts) for texts in self._texts(columns, chunk))
        return Checksum(len(digests), checksum_of(digests))

    def digests(self, columns: Sequence[str], chunk: Chunk) -> pa.Table:
        rows = list(self._in_range(chunk))
        keys = [pa.array([row[name] for row in rows], pa.string()) for name in self._key]
        digests = pa.array([digest_of(row[name] for name in columns) for row in rows], pa.string())
        return pa.table([*keys, digests], [*(f"k{n}" for n in range(len(keys))), "digest"])

    def bucket_checksums(self, columns: Sequence[str]) -> Mapping[str, Checksum]:
        counts = self._counts(columns)
        by_bucket: dict[str, list[str]] = {}
        for digest in sorted(counts):
            by_bucket.setdefault(digest[:2], []).append(digest)
        return {
            bucket: Checksum(sum(counts[d] for d in digests), checksum_of((f"{d}:{counts[d]}" for d in digests), ","))
            for bucket, digests in by_bucket.items()
        }

    def digest_counts(self, columns: Sequence[str], buckets: Collection[str]) -> Mapping[str, int]:
        return {digest: n for digest, n in self._counts(columns).items() if digest[:2] in buckets}

    def read(self, columns: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        texts = pa.schema([(name, pa.string()) for name in columns])
        yield pa.RecordBatch.from_pylist([{n: row[n] for n in columns} for row in self._in_range(chunk)], texts)

    def read_with_digests(self, columns: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        digests = [digest_of(texts) for texts in self._texts(columns, chunk)]
        for batch in self.read(columns, chunk):
            yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(digests, pa.string())], [*columns, "digest"])

    @property
    def _key(self) -> Sequence[str]:
        return self.table.primary_key.columns if self.table.primary_key is not None else ()

    def _in_range(self, chunk: Chunk) -> Iterator[Row]:
        # It knows no order but that of texts; the other side has been told so.
        assert chunk.is_by_text or not chunk.is_bounded
        for row in self.all_rows:
            key = [row[name] or "" for name in self._key]
            if (chunk.after is None or key > _texts(chunk.after)) and (chunk.upto is None or key <= _texts(chunk.upto)):
                yield row

    def _texts(self, columns: Sequence[str], chunk: Chunk) -> Iterator[list[str | None]]:
        return ([row[name] for name in columns] for row in self._in_range(chunk))

    def _counts(self, columns: Sequence[str]) -> Mapping[str, int]:
        return Counter(digest_of(row[name] for name in columns) for row in self.all_rows)


@dataclass(frozen=True)
class PlainSource:
    """Implements `verify.task.ComparedSource` and `SourceReading`: what it holds never changes."""

    tables: Mapping[TableName, Sequence[Row]]

    @contextmanager
    def reading(self, purpose: str, *, lock_timeout_ms: int | None) -> Iterator[PlainSource]:
        yield self

    def begin(self, held: TargetState) -> None: ...

    def rows(self, table: TableSchema, held: Scn) -> PlainRows:
        return PlainRows(table, self.tables[table.name])


def _texts(key: KeyValues) -> list[str]:
    return [str(value) for value in key]
