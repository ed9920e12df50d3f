"""Comparing ranges of tables in two PostgreSQL databases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from penstock.change import TableName
from penstock.dialects.postgres.arrow import ArrowReader
from penstock.dialects.postgres.as_of import digest, is_of, row_counts_as_of, rows_as_of, rows_now
from penstock.dialects.postgres.change_log import ChangeLog
from penstock.dialects.postgres.connection import literal, quote
from penstock.dialects.postgres.snapshots import Cut
from penstock.errors import RetryableError
from penstock.position import Scn
from penstock.schema import Column, TableSchema
from penstock.snapshot.chunk import Chunk
from penstock.verify.compare import MOST_KEYS, Difference, Range, RangeResult

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


@dataclass(frozen=True)
class PostgresComparer:
    """Implements `verify.compare.RangeComparer` between two PostgreSQL databases."""

    source_url: str = field(repr=False)
    set_name: str
    target_url: str = field(repr=False)
    process: str

    def compare(self, ranges: Sequence[Range]) -> list[RangeResult]:
        """Compare the rows of ranges, at what the target says is applied; all of them at one position."""
        with self._readers() as (at_source, at_target, cut):
            found = []
            for source, target, chunk in ranges:
                self._check_log(at_source, source.name, cut)
                found.append(self._compare(source, target, chunk, (at_source, at_target), cut))
            return found

    def _compare(
        self,
        source: TableSchema,
        target: TableSchema,
        chunk: Chunk,
        readers: tuple[ArrowReader, ArrowReader],
        cut: Cut,
    ) -> RangeResult:
        at_source, at_target = readers
        columns = [column for column in source.columns if column.name in target.by_name]
        pair = _Columns(columns, [target.by_name[column.name] for column in columns])
        if chunk.is_bounded and _collations(at_source, source) != _collations(at_target, target):
            # What lies between two keys is not the same on both sides.
            chunk = replace(chunk, is_by_text=True)
        now = rows_now(target, pair.target, chunk)
        if source.primary_key is None:
            before = row_counts_as_of(source, pair.source, self.set_name, cut)
            after = f"SELECT digest, count(*) AS n FROM ({_digests(now, pair.target, ())}) r GROUP BY digest"
            return _compare_counts(readers, (before, after), chunk)
        key = [source.by_name[name] for name in source.primary_key.columns]
        then = rows_as_of(source, pair.source, chunk, self.set_name, cut)
        queries = _digests(then, pair.source, key), _digests(now, pair.target, key)
        return _compare_rows(readers, queries, key, chunk)

    @contextmanager
    def _readers(self) -> Iterator[tuple[ArrowReader, ArrowReader, Cut]]:
        """Open a snapshot of each database; the cut says what the target's holds."""
        name = f"penstock {self.process} verify"
        plan = {"enable_nestloop": "off", "work_mem": "64MB"}
        at_target = ArrowReader(self.target_url, name, plan)
        at_source = ArrowReader(self.source_url, name)
        log = ChangeLog(self.source_url, self.set_name)
        try:
            at_target.execute(_BEGIN)
            name = literal(self.process)
            low, *applied = at_target.table(
                f"SELECT low_watermark AS scn FROM penstock.process WHERE name = {name}"
                f" UNION ALL SELECT unnest(commit_scns) FROM penstock.applied WHERE process = {name}",
                doing="read the ledger",
            )["scn"].to_pylist()
            cut = log.cut(Scn(low), [Scn(scn) for scn in applied if scn > low])
            at_source.execute(_BEGIN)
            yield at_source, at_target, cut
        finally:
            at_source.close()
            at_target.close()
            log.close()

    def _check_log(self, at_source: ArrowReader, table: TableName, cut: Cut) -> None:
        """Make sure that the session's snapshot holds all of the log behind the cut, and no truncate of the table."""
        log, captured, ticks = (f"{quote(self.set_name)}.{name}" for name in ("log", "captured", "tick"))
        is_ours = is_of(table, self.set_name)
        family = f"SELECT relid FROM {captured} WHERE root IN (SELECT root FROM {captured} WHERE {is_ours})"
        newest = f"SELECT max(version) FROM {captured} c WHERE c.relid = l.relid"
        row = at_source.table(
            f"SELECT EXISTS (SELECT FROM {ticks} WHERE snapshot::text = {literal(cut.snapshot.text)}) AS is_kept,"
            f" EXISTS (SELECT FROM {log} WHERE op IN ('T', '!') AND {cut.since()}"
            f" AND relid IN ({family})) AS is_emptied,"
            f" EXISTS (SELECT FROM {log} l WHERE {is_ours} AND {cut.since()} AND version < ({newest})) AS is_altered",
            doing="read the change log",
        ).to_pylist()[0]
        if not row["is_kept"]:
            raise RetryableError("the change log was freed while it was compared", do="verify again in a moment")
        if row["is_emptied"] or row["is_altered"]:
            done = "truncated" if row["is_emptied"] else "altered"
            raise RetryableError(
                f"changes from before table {table} was {done} are not applied yet",
                do="let `penstock run` apply them, then verify again",
            )


@dataclass(frozen=True)
class _Columns:
    source: Sequence[Column]
    target: Sequence[Column]


def _collations(reader: ArrowReader, table: TableSchema) -> str:
    """What decides the order of a table's key, apart from its types."""
    assert table.primary_key is not None
    names = ", ".join(literal(name) for name in table.primary_key.columns)
    found = reader.table(
        "SELECT coalesce(string_agg(concat_ws('/', CASE c.collname WHEN 'default' THEN d.own ELSE concat_ws('/',"
        " c.collname, c.collprovider, c.collcollate, to_jsonb(c) ->> 'colllocale') END,"
        " pg_collation_actual_version(c.oid)), ',' ORDER BY a.attname), '') AS text"
        " FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation, LATERAL (SELECT concat_ws('/', datcollate,"
        " to_jsonb(d) ->> 'datlocprovider', to_jsonb(d) ->> 'datlocale') AS own"
        " FROM pg_database d WHERE datname = current_database()) d"
        f" WHERE a.attrelid = {literal(quote(table.name.schema, table.name.name))}::regclass"
        f" AND a.attname IN ({names})",
        doing=f"compare table {table.name}",
    )
    return str(found["text"][0].as_py())


def _digests(rows: str, columns: Sequence[Column], key: Sequence[Column]) -> str:
    # By their numbers: a column may be called `digest`.
    keys = "".join(f"r.{quote(c.name)} AS k{n}, " for n, c in enumerate(key))
    return f"SELECT {keys}{digest(columns, 'r')} AS digest FROM ({rows}) r"


def _compare_rows(
    readers: tuple[ArrowReader, ArrowReader], queries: tuple[str, str], key: Sequence[Column], chunk: Chunk
) -> RangeResult:
    left, right = (
        reader.table(
            "SELECT count(*) AS n, md5(coalesce(string_agg(digest, '' ORDER BY digest COLLATE \"C\"), '')) AS checksum"
            f" FROM ({query}) d",
            doing=f"compare table {chunk.table}",
        ).to_pylist()[0]
        for reader, query in zip(readers, queries, strict=True)
    )
    if left == right:
        return RangeResult(chunk, left["n"], 0, [])
    names = [column.name for column in key]
    numbers = [f"k{n}" for n in range(len(key))]
    found, there = (
        _by_key(reader.table(query, doing=f"compare table {chunk.table}"), numbers)
        for reader, query in zip(readers, queries, strict=True)
    )
    differences = [
        Difference("missing" if k not in there else "different", dict(zip(names, k, strict=True)))
        for k, value in found.items()
        if there.get(k) != value
    ]
    differences += [Difference("extra", dict(zip(names, k, strict=True))) for k in there if k not in found]
    return RangeResult(chunk, left["n"], len(differences), differences[:MOST_KEYS])


def _compare_counts(readers: tuple[ArrowReader, ArrowReader], queries: tuple[str, str], chunk: Chunk) -> RangeResult:
    """Compare bucket by bucket how often each row occurs, then row by row where a bucket differs."""

    def buckets(reader: ArrowReader, query: str) -> dict[str, tuple[int, str]]:
        rows = reader.table(
            "SELECT left(digest, 2) AS bucket, sum(n)::bigint AS n, md5(string_agg(digest || ':' || n, ','"
            f' ORDER BY digest COLLATE "C")) AS checksum FROM ({query}) d GROUP BY 1',
            doing=f"compare table {chunk.table}",
        ).to_pylist()
        return {row["bucket"]: (row["n"], row["checksum"]) for row in rows}

    left, right = (buckets(reader, query) for reader, query in zip(readers, queries, strict=True))
    rows = sum(n for n, _ in left.values())
    differing = [bucket for bucket in left.keys() | right.keys() if left.get(bucket) != right.get(bucket)]
    if not differing:
        return RangeResult(chunk, rows, 0, [])
    wanted = ", ".join(f"'{bucket}'" for bucket in differing)

    def counts(reader: ArrowReader, query: str) -> dict[str, int]:
        found = reader.table(
            f"SELECT digest, n FROM ({query}) d WHERE left(digest, 2) IN ({wanted})",
            doing=f"compare table {chunk.table}",
        ).to_pylist()
        return {row["digest"]: row["n"] for row in found}

    found, there = (counts(reader, query) for reader, query in zip(readers, queries, strict=True))
    differences = []
    total = 0
    for row in found.keys() | there.keys():
        surplus = found.get(row, 0) - there.get(row, 0)
        if surplus:
            total += abs(surplus)
            differences.append(Difference("missing" if surplus > 0 else "extra", {"row": row}))
    return RangeResult(chunk, rows, total, differences[:MOST_KEYS])


def _by_key(rows: pa.Table, names: Sequence[str]) -> dict[tuple[str, ...], str]:
    keys = zip(*(rows[name].to_pylist() for name in names), strict=True)
    return dict(zip(keys, rows["digest"].to_pylist(), strict=True))
