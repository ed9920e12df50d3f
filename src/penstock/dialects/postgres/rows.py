"""The rows of a PostgreSQL table at one moment, as keys and digests that the server makes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.dialects.postgres.arrow import ArrowReader
from penstock.dialects.postgres.connection import literal, quote
from penstock.dialects.postgres.fit import told_as
from penstock.dialects.postgres.source.as_of import digest, row_counts_as_of, row_counts_now, rows_as_of, rows_now
from penstock.dialects.postgres.source.snapshots import Cut
from penstock.schema import Column, TableSchema
from penstock.snapshot.chunk import Chunk
from penstock.snapshot.rows import Checksum, RowsAside


@dataclass(frozen=True)
class RowsOrigin:
    """How a table's rows were at some position, as SQL.

    Attributes:
        rows: A query for the rows of a range; columns of canonical text.
        counts: A query for (digest, how many rows have it) of the whole table; for a table without primary key.
    """

    rows: Callable[[Sequence[Column], Chunk], str]
    counts: Callable[[Sequence[Column]], str]


def origin_now(table: TableSchema) -> RowsOrigin:
    """A table's rows as the session that asks sees them."""
    return RowsOrigin(
        rows=lambda columns, chunk: rows_now(table, columns, chunk),
        counts=lambda columns: row_counts_now(table, columns),
    )


def origin_as_of(table: TableSchema, set_name: str, cut: Cut) -> RowsOrigin:
    """A table's rows at an earlier position, put right from the log's images."""
    return RowsOrigin(
        rows=lambda columns, chunk: rows_as_of(table, columns, chunk, set_name, cut),
        counts=lambda columns: row_counts_as_of(table, columns, set_name, cut),
    )


@dataclass(frozen=True)
class PostgresRows:
    """Implements `snapshot.rows.TableRows`."""

    reader: ArrowReader
    table: TableSchema
    origin: RowsOrigin

    def key_order(self) -> str:
        """Return the collations of the table's key: besides its types, they decide its order."""
        assert self.table.primary_key is not None
        names = ", ".join(literal(name) for name in self.table.primary_key.columns)
        found = self._ask(
            "SELECT coalesce(string_agg(concat_ws('/', CASE c.collname WHEN 'default' THEN d.own ELSE concat_ws('/',"
            " c.collname, c.collprovider, c.collcollate, to_jsonb(c) ->> 'colllocale') END,"
            " pg_collation_actual_version(c.oid)), ',' ORDER BY a.attname), '') AS text"
            " FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation, LATERAL (SELECT concat_ws('/',"
            " datcollate, to_jsonb(d) ->> 'datlocprovider', to_jsonb(d) ->> 'datlocale') AS own"
            " FROM pg_database d WHERE datname = current_database()) d"
            f" WHERE a.attrelid = {literal(quote(self.table.name.schema, self.table.name.name))}::regclass"
            f" AND a.attname IN ({names})"
        )
        return f"postgres {found['text'][0].as_py()}"

    def checksum(self, columns: Sequence[str], chunk: Chunk) -> Checksum:
        """Return a checksum of the digests of the rows of a range."""
        row = self._ask(
            "SELECT count(*) AS n, md5(coalesce(string_agg(digest, '' ORDER BY digest COLLATE \"C\"), '')) AS checksum"
            f" FROM ({self._digests(columns, chunk)}) d"
        ).to_pylist()[0]
        return Checksum(row["n"], row["checksum"])

    def digests(self, columns: Sequence[str], chunk: Chunk) -> pa.Table:
        """Return the key of each row of a range, and its digest."""
        return self._ask(self._digests(columns, chunk))

    def bucket_checksums(self, columns: Sequence[str]) -> Mapping[str, Checksum]:
        """Return a checksum of all rows, by the first two digits of their digests."""
        rows = self._ask(
            "SELECT left(digest, 2) AS bucket, sum(n)::bigint AS n, md5(string_agg(digest || ':' || n, ','"
            f' ORDER BY digest COLLATE "C")) AS checksum FROM ({self._counts(columns)}) d GROUP BY 1'
        ).to_pylist()
        return {row["bucket"]: Checksum(row["n"], row["checksum"]) for row in rows}

    def digest_counts(self, columns: Sequence[str], buckets: Collection[str]) -> Mapping[str, int]:
        """Return how many rows have each digest of some buckets."""
        wanted = ", ".join(literal(bucket) for bucket in buckets)
        found = self._ask(f"SELECT digest, n FROM ({self._counts(columns)}) d WHERE left(digest, 2) IN ({wanted})")
        return {row["digest"]: row["n"] for row in found.to_pylist()}

    def read(self, columns: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range; columns of canonical text."""
        query = self.origin.rows(self._columns(columns), chunk)
        return self.reader.stream(query, doing=f"read table {self.table.name}")

    def read_with_digests(self, columns: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the same rows, each with its digest at the end."""
        named = self._columns(columns)
        query = f"SELECT r.*, {digest(named, 'r')} FROM ({self.origin.rows(named, chunk)}) r"
        return self.reader.stream(query, doing=f"read table {self.table.name}")

    def _digests(self, columns: Sequence[str], chunk: Chunk) -> str:
        assert self.table.primary_key is not None
        named = self._columns(columns)
        # By their numbers: a column may be called `digest`.
        keys = "".join(f"r.{quote(name)} AS k{n}, " for n, name in enumerate(self.table.primary_key.columns))
        return f"SELECT {keys}{digest(named, 'r')} AS digest FROM ({self.origin.rows(named, chunk)}) r"

    def _counts(self, columns: Sequence[str]) -> str:
        return self.origin.counts(self._columns(columns))

    def _columns(self, names: Sequence[str]) -> list[Column]:
        return [self.table.by_name[name] for name in names]

    def _ask(self, query: str) -> pa.Table:
        return self.reader.table(query, doing=f"compare table {self.table.name}")


class PostgresRowsAside(RowsAside):
    """A session that reads rows of the target."""

    def __init__(self, url: str, application_name: str) -> None:
        """Open a session."""
        self._reader = ArrowReader(url, application_name)

    def rows(self, table: TableSchema, like: TableSchema) -> PostgresRows:
        """The rows of a table as they are whenever they are asked for; values are written as `like` has its own."""
        table = told_as(table, like)
        return PostgresRows(self._reader, table, origin_now(table))

    def close(self) -> None:
        """Close the session."""
        self._reader.close()
