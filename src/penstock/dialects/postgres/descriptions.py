"""Descriptions of tables, kept as long as nothing in the database is altered.

A run asks for the same tables several times before its first batch, and every 30 seconds after. Reading a table takes
about a millisecond; asking whether anything was altered takes that long for fifty.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from penstock.change import TableName
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.connection import Connection
from penstock.schema import TableSchema

_CATALOGS = (
    "pg_amop",
    "pg_attrdef",
    "pg_attribute",
    "pg_cast",
    "pg_class",
    "pg_collation",
    "pg_constraint",
    "pg_enum",
    "pg_index",
    "pg_inherits",
    "pg_namespace",
    "pg_opclass",
    "pg_operator",
    "pg_proc",
    "pg_range",
    "pg_trigger",
    "pg_type",
)
"""What `describe.sql` and the capture functions read of the catalogue."""


def catalog_fingerprint(connection: Connection, further: Sequence[str] = ()) -> str:
    """Return a text that is another one once a table, a type or a function of the database was altered.

    It tells the versions of the catalogue's rows apart, as `xmin` numbers them: every DDL leaves new ones. What
    autovacuum and ANALYZE note of tables is written in place, and leaves none.

    Args:
        further: Quoted names of ordinary tables whose rows count, too.
    """
    parts = (
        f"(SELECT concat_ws(' ', count(*), sum(hashint8extended(xmin::text::bigint, 0))) FROM {table})"
        for table in (*_CATALOGS, *further)
    )
    row = connection.execute(f"SELECT concat_ws(', ', {', '.join(parts)})").fetchone()
    assert row is not None
    return str(row[0])


class Descriptions:
    """What the tables of one database look like. Threads may share it."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._lock = threading.Lock()
        self._fingerprint = ""
        self._known: dict[TableName, TableSchema | None] = {}

    def read(self, connection: Connection, names: Iterable[TableName]) -> dict[TableName, TableSchema]:
        """Describe the tables among `names` that exist, as `read_tables` does."""
        wanted = list(dict.fromkeys(names))
        # Before the tables are read: what is altered in between makes the next call read them again.
        fingerprint = catalog_fingerprint(connection)
        with self._lock:
            if fingerprint != self._fingerprint:
                self._fingerprint, self._known = fingerprint, {}
            known = self._known
        missing = [name for name in wanted if name not in known]
        if missing:
            found = read_tables(connection, missing)
            # Another thread may have found another fingerprint by now; then these go to what is thrown away.
            known.update((name, found.get(name)) for name in missing)
        return {name: table for name in wanted if (table := known[name]) is not None}
