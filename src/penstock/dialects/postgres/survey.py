"""What a database says of itself and its tables, in a few queries of the catalogue; no row of a table is read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

import psycopg

from penstock.change import TableName
from penstock.dialects.postgres.catalog import catalog_names, current_user, list_tables, table_oids
from penstock.dialects.postgres.connection import Connection, label, plainly
from penstock.examination import ColumnFacts, DatabaseFacts, TableFacts

SHOWN_SETTINGS = (
    "default_toast_compression",
    "fsync",
    "full_page_writes",
    "max_connections",
    "max_locks_per_transaction",
    "max_prepared_transactions",
    "max_wal_size",
    "server_encoding",
    "shared_buffers",
    "synchronous_commit",
    "wal_level",
)
"""Settings of the server that a bug report needs; none of them is a name, a path or a secret."""

_TABLES = """
WITH RECURSIVE part (root, oid) AS (
  SELECT r, r FROM unnest($1::oid[]) r
  UNION ALL
  SELECT root, inhrelid FROM pg_inherits JOIN part ON inhparent = part.oid
  JOIN pg_class c ON c.oid = inhrelid AND c.relispartition),
sums AS (
  SELECT root, sum(CASE WHEN $2 THEN pg_table_size(p.oid)
      ELSE (k.relpages + coalesce((SELECT t.relpages FROM pg_class t WHERE t.oid = k.reltoastrelid), 0))
        * current_setting('block_size')::bigint END)::bigint AS size_bytes,
    bool_or(k.relpersistence = 'u') AS is_unlogged,
    CASE WHEN bool_or(k.reltuples < 0 AND k.relkind = 'r') THEN NULL
      ELSE sum(greatest(k.reltuples, 0)) FILTER (WHERE k.relkind = 'r') END::bigint AS estimate,
    count(*) FILTER (WHERE k.relkind = 'r' AND p.oid <> root) AS partitions
  FROM part p JOIN pg_class k ON k.oid = p.oid GROUP BY root)
SELECT n.nspname, c.relname, s.size_bytes, s.estimate, s.partitions, s.is_unlogged, c.relreplident::text,
  (SELECT array_agg(a.attname::text ORDER BY k.place) FROM (
      SELECT i.indrelid, i.indkey FROM pg_index i
      WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
        AND i.indexprs IS NULL
        AND NOT EXISTS (SELECT FROM unnest(i.indkey) WITH ORDINALITY u (num, nth)
          JOIN pg_attribute b ON b.attrelid = c.oid AND b.attnum = u.num
          WHERE u.nth <= i.indnkeyatts AND NOT b.attnotnull)
      ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid LIMIT 1) chosen,
    unnest(chosen.indkey) WITH ORDINALITY k (num, place)
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.num),
  ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum),
  ARRAY(SELECT format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
  ARRAY(SELECT NOT a.attnotnull FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum)
FROM sums s JOIN pg_class c ON c.oid = s.root JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY n.nspname, c.relname
"""


def survey(connection: Connection, url: str, names: Iterable[TableName] | None = None) -> DatabaseFacts:
    """Say what a database is, and what tables are like.

    Args:
        connection: A session of `connect`.
        names: The tables to describe; None: all that a pipeline could capture.
    """
    clock_off_s, answer_s = _clock(connection)
    if names is None:
        roots = list_tables(connection)
        names = [table for table, root in roots.items() if table == root]
    rows = connection.execute("SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", [list(SHOWN_SETTINGS)])
    return DatabaseFacts(
        label=label(url),
        version=f"PostgreSQL {connection.info.parameter_status('server_version')}",
        clock_off_s=clock_off_s,
        answer_s=answer_s,
        time_zone=_time_zone(url),
        collation=_collation(connection),
        user=current_user(connection),
        settings=dict(rows.fetchall()),
        tables=table_facts(connection, names),
    )


def table_facts(connection: Connection, names: Iterable[TableName]) -> list[TableFacts]:
    """Describe the ordinary and partitioned tables among `names` that exist, in order of their names."""
    oids = list(table_oids(connection, names).values())
    try:
        rows = _described(connection, oids, measured=True)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
        # To measure a table waits for a session that has locked it; what the last VACUUM found must do then.
        rows = _described(connection, oids, measured=False)
    return [
        TableFacts(
            TableName(schema, name),
            size_bytes,
            estimate,
            tuple(key or ()),
            tuple(map(ColumnFacts, columns, types, nullable)),
            partitions,
            is_unlogged,
            identity,
        )
        for schema, name, size_bytes, estimate, partitions, is_unlogged, identity, key, columns, types, nullable in rows
    ]


def _described(connection: Connection, oids: Sequence[int], *, measured: bool) -> list[tuple[Any, ...]]:
    with catalog_names(connection):
        return psycopg.RawCursor(connection).execute(_TABLES, [oids, measured]).fetchall()


def _clock(connection: Connection) -> tuple[float, float]:
    """How much the server's clock is ahead of ours, and how long it takes to answer; the quickest of three answers."""
    found = []
    for _ in range(3):
        before = time.time()
        row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        after = time.time()
        assert row is not None
        found.append((after - before, row[0] - (before + after) / 2))
    answer_s, off_s = min(found)
    return off_s, answer_s


def _time_zone(url: str) -> str:
    """The time zone of sessions that ask for none; ours ask for UTC."""
    try:
        with closing(plainly(url)) as connection:
            row = connection.execute("SELECT pg_catalog.current_setting('TimeZone')").fetchone()
            return str(row[0]) if row is not None else ""
    except psycopg.Error:
        # A role may have one connection left, or a pooler may refuse: the finding is not worth an error.
        return ""


def _collation(connection: Connection) -> str:
    row = connection.execute(
        "SELECT pg_encoding_to_char(encoding), datcollate, datctype, to_jsonb(d) ->> 'datlocprovider',"
        " coalesce(to_jsonb(d) ->> 'datlocale', to_jsonb(d) ->> 'daticulocale')"
        " FROM pg_database d WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    encoding, collate, ctype, provider, locale = row
    names = {"b": "builtin", "i": "icu"}
    of = names.get(provider or "", "libc")
    return f"{encoding}, {collate if collate == ctype else f'{collate}/{ctype}'}, {of}{f' {locale}' if locale else ''}"
