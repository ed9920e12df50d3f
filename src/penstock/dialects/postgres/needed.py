"""What must be at the target before tables can be made there, and is no table and no type: collations and code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from penstock.change import TableName
from penstock.dialects.postgres.catalog import catalog_names
from penstock.dialects.postgres.connection import Connection, quote
from penstock.dialects.postgres.resources import sql_text
from penstock.errors import OperatorError


@dataclass(frozen=True)
class Needed:
    """One of them; see sql/needed.sql.

    Attributes:
        root: The table that needs it.
        signature: What tells those of one name apart: arguments, or the index method of an operator class.
        statement: What makes it; None where that is not known.
        extension: The extension that it belongs to.
    """

    root: TableName
    kind: str
    name: TableName
    signature: str
    statement: str | None
    extension: str | None

    def __str__(self) -> str:
        what = f"{self.kind} {self.name}"
        if self.kind == "operator class":
            return f"{what} for {self.signature}"
        return f"{what}({self.signature})" if self.signature else what


def read_needed(connection: Connection, tables: Mapping[int, TableName]) -> Sequence[Needed]:
    """Read what tables need, which are given by their oids."""
    with catalog_names(connection):
        rows = psycopg.RawCursor(connection).execute(sql_text("needed"), [list(tables)]).fetchall()
    return [
        Needed(tables[root], kind, TableName(schema, name), signature, statement, extension)
        for root, kind, schema, name, signature, statement, extension in rows
    ]


def missing_needs(connection: Connection, needed: Sequence[Needed], *, where: str) -> Iterator[OperatorError]:
    """Say what of it the target lacks, and how it comes there."""
    if not needed:
        return
    there = _names_there(connection)
    schemas = {row[0] for row in connection.execute("SELECT nspname FROM pg_namespace")}
    asked: set[object] = set()
    for one in needed:
        if (one.kind, one.name) in there or str(one) in asked:
            continue
        asked.add(str(one))
        if one.extension is not None:
            do = f"install the extension it belongs to: CREATE EXTENSION {quote(one.extension)}"
            if one.extension in asked:
                continue
            asked.add(one.extension)
        elif one.statement is not None:
            schema = one.name.schema
            first = "" if schema in schemas else f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}; "
            do = f"create it there: {first}{one.statement}"
        elif one.kind == "function":
            do = "create it there: `penstock plan --detail` prints the SQL"
        else:
            do = "create it there: `pg_dump --schema-only` of the source has it"
        yield OperatorError(f"{one} is missing at the target", where=where, do=do)


def _names_there(connection: Connection) -> set[tuple[str, TableName]]:
    """What the target has by its name: what arguments are called differs between versions of a server."""
    rows = connection.execute(
        "SELECT kind, nspname, name FROM (SELECT 'collation' AS kind, collname AS name, collnamespace AS namespace"
        " FROM pg_collation UNION ALL SELECT 'operator class', opcname, opcnamespace FROM pg_opclass"
        " UNION ALL SELECT 'function', proname, pronamespace FROM pg_proc"
        " UNION ALL SELECT 'operator', oprname, oprnamespace FROM pg_operator) o"
        " JOIN pg_namespace n ON n.oid = namespace WHERE nspname <> 'pg_catalog'"
    ).fetchall()
    return {(kind, TableName(schema, name)) for kind, schema, name in rows}
