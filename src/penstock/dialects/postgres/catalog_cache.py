"""What was read of a database's catalogue, kept as long as nothing in the database is altered.

A run asks for the same tables several times before its first batch, and every 30 seconds after. Reading a table takes
about a millisecond; asking whether anything was altered takes as long for fifty.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from penstock.dialects.postgres.connection import Connection

_CATALOGS = (
    "pg_amop",
    "pg_attrdef",
    "pg_attribute",
    "pg_auth_members",
    "pg_cast",
    "pg_class",
    "pg_collation",
    "pg_constraint",
    "pg_description",
    "pg_enum",
    "pg_index",
    "pg_inherits",
    "pg_namespace",
    "pg_opclass",
    "pg_operator",
    "pg_policy",
    "pg_proc",
    "pg_range",
    "pg_rewrite",
    "pg_sequence",
    "pg_statistic_ext",
    "pg_trigger",
    "pg_type",
)
"""The catalogues that say what tables look like, what they have besides their columns, and who may read them."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def catalog_fingerprint(connection: Connection, further: Sequence[str] = ()) -> str:
    """Return a text that is another one once a table, a type or a function of the database was altered.

    It is made of the numbers of the transactions that wrote the catalogue's rows (`xmin`): every DDL statement leaves
    new ones. What autovacuum and ANALYZE note of tables is written in place, and leaves none.

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


class CatalogCache(Generic[Key, Value]):
    """What was read of one database's catalogue. Threads may share it."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._lock = threading.Lock()
        self._fingerprint = ""
        self._known: dict[Key, Value | None] = {}

    def read(
        self, connection: Connection, keys: Iterable[Key], read: Callable[[Sequence[Key]], Mapping[Key, Value]]
    ) -> dict[Key, Value]:
        """Return what there is for keys; `read` looks for those that are not known."""
        wanted = list(dict.fromkeys(keys))
        with self._lock:
            # Before anything is read: what is altered in between makes the next call read it again.
            fingerprint = catalog_fingerprint(connection)
            if fingerprint != self._fingerprint:
                self._fingerprint, self._known = fingerprint, {}
            missing = [key for key in wanted if key not in self._known]
            if missing:
                found = read(missing)
                self._known.update((key, found.get(key)) for key in missing)
            return {key: value for key in wanted if (value := self._known[key]) is not None}
