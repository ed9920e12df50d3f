"""Columns that get another type: whether the two types tell what becomes of their values.

`ALTER TABLE ... TYPE` converts values by the settings of the session that runs it, and those of the source's session
are not known here: its time zone makes another moment of a timestamp, its style another text of an interval.
"""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from penstock.change import TableName
from penstock.dialects.postgres.catalog import catalog_names
from penstock.dialects.postgres.connection import Connection, quote

# A cast by a function does as the function says; one by texts as the output function does. The server calls those of
# enums and arrays stable for what they look up in the catalogue, and those of bytea and floats immutable.
_BY_SETTINGS = """
SELECT w.name FROM unnest($1::text[], $2::text[], $3::text[]) w (name, was, is_now)
JOIN pg_type a ON a.oid = to_regtype(w.was) JOIN pg_type b ON b.oid = to_regtype(w.is_now)
JOIN pg_type c ON c.oid = coalesce(nullif(a.typbasetype, 0), a.oid)
JOIN pg_type d ON d.oid = coalesce(nullif(b.typbasetype, 0), b.oid)
CROSS JOIN LATERAL (SELECT c.typcategory = 'A' AND d.typcategory = 'A' AS are_arrays) x
JOIN pg_type e ON e.oid = CASE WHEN are_arrays THEN c.typelem ELSE c.oid END
JOIN pg_type f ON f.oid = CASE WHEN are_arrays THEN d.typelem ELSE d.oid END
LEFT JOIN pg_cast k ON (k.castsource, k.casttarget) = (e.oid, f.oid) LEFT JOIN pg_proc p ON p.oid = k.castfunc
JOIN pg_type g ON g.oid = CASE WHEN e.typcategory = 'A' THEN e.typelem ELSE e.oid END
JOIN pg_proc o ON o.oid = g.typoutput
WHERE e.oid <> f.oid AND CASE k.castmethod WHEN 'f' THEN p.provolatile <> 'i' WHEN 'b' THEN false
  ELSE (o.provolatile <> 'i' AND g.typtype <> 'e') OR g.oid IN ('bytea'::regtype, 'float4'::regtype, 'float8'::regtype)
END
"""


def converted_by_settings(
    connection: Connection, table: TableName, columns: Mapping[str, tuple[str, str]]
) -> list[str]:
    """Return those columns of a table that hold values whose conversion depends on the settings of a session.

    Args:
        columns: The type that each has, and the one that it is to get, as the server writes them.
    """
    if not columns:
        return []
    types = list(zip(*columns.values(), strict=True))
    with catalog_names(connection):
        asked = [list(columns), list(types[0]), list(types[1])]
        rows = psycopg.RawCursor(connection).execute(_BY_SETTINGS, asked).fetchall()
    named = quote(table.schema, table.name)
    # Where a column holds nothing, nothing is converted.
    return [
        name
        for (name,) in rows
        if connection.execute(f"SELECT FROM {named} WHERE {quote(name)} IS DISTINCT FROM NULL LIMIT 1").fetchone()
        is not None
    ]
