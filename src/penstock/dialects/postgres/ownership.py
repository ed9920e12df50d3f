"""Who owns what Penstock runs: a schema of ours that another role could put code into is refused (ADR 26).

A schema called `penstock` or `penstock_<name>` may have been made beforehand, by any role that may create schemas, with
tables, triggers and functions that look like ours and run with their user's rights. So before anything in it
is read or run, the catalogue says whose it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Literal

import psycopg

from penstock.change import TableName
from penstock.database import SetupStep
from penstock.dialects.postgres.catalog import catalog_names
from penstock.dialects.postgres.connection import Connection, label, literal, quote
from penstock.dialects.postgres.resources import sql_text
from penstock.errors import OperatorError, PenstockError

PINNED = "SET LOCAL search_path = pg_catalog, pg_temp"
"""No function or operator is looked up where others may create one."""

_MOST_SHOWN = 4

_MAY_READ = """
SELECT (
  SELECT coalesce(bool_and(c.oid IS NOT NULL AND has_table_privilege(o.oid, c.oid, 'SELECT') AND (NOT c.relrowsecurity
    OR o.rolbypassrls OR (pg_has_role(o.oid, c.relowner, 'USAGE') AND NOT c.relforcerowsecurity))), true)
  FROM unnest(%(tables)s::text[]) t (name) LEFT JOIN pg_class c ON c.oid = to_regclass(t.name)::oid
), coalesce((
  SELECT bool_and(has_schema_privilege(o.oid, n.oid, 'USAGE') AND CASE c.relkind WHEN 'S'
    THEN has_sequence_privilege(o.oid, c.oid, 'SELECT') ELSE has_table_privilege(o.oid, c.oid, 'SELECT') END)
  FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'v', 'S')
  WHERE n.nspname = %(schema)s
), false) FROM pg_roles o WHERE o.rolname = %(owner)s
"""
"""Whether a role may read whole tables, and everything in a schema of ours."""

_OTHERS_SEQUENCES = """
SELECT n.nspname, c.relname, r.rolname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner
WHERE c.relkind = 'S' AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[])) AND NOT r.rolsuper
  AND (SELECT u.rolsuper FROM pg_roles u WHERE u.rolname = session_user)
"""

_SEAL = """
DO $$
DECLARE
  given record;
BEGIN
  FOR given IN
    SELECT DISTINCT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind, c.oid::regclass::text AS name,
      coalesce(quote_ident(r.rolname), 'PUBLIC') AS grantee
    FROM pg_class c, aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
    WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = {schema}) AND a.grantee <> c.relowner
      AND c.relkind IN ('r', 'v', 'S')
    UNION ALL
    SELECT DISTINCT 'SCHEMA', quote_ident(n.nspname), coalesce(quote_ident(r.rolname), 'PUBLIC')
    FROM pg_namespace n, aclexplode(n.nspacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
    WHERE n.nspname = {schema} AND a.grantee <> n.nspowner
  LOOP
    EXECUTE format('REVOKE ALL ON %s %s FROM %s', given.kind, given.name, given.grantee);
  END LOOP;
END $$"""


def schema_faults(connection: Connection, schema: str) -> list[PenstockError]:
    """Say which other roles could put code into a schema of ours; nothing where there is no such schema.

    Only the catalogue is asked. Where nothing is returned, no other role can do so later either.

    Args:
        connection: A session of the user who is about to use the schema.
        schema: The name of a capture set, or of the ledger.
    """
    with catalog_names(connection):
        found = psycopg.RawCursor(connection).execute(sql_text("owners"), [schema]).fetchall()
    return [_fault(schema, label(connection.info.dsn), role, what) for role, what in found]


class Doing(StrEnum):
    """What is done to tables, as a sentence about others' code goes on."""

    APPLYING = "changes are applied"
    COPYING = "tables are copied and verified"
    READING = "what tables and views hold is read"
    WRITING = "rows of the event log are read and get their status"


def hosted_code(connection: Connection, tables: Sequence[TableName], doing: Doing = Doing.APPLYING) -> list[str]:
    """Say which other roles' code runs, with the rights of the user, when the user does something to tables.

    Such code runs for every other user too, and may be what keeps the data right; so it is reported, not refused. What
    indexes call may run even where tables are only read, while the server plans.
    """
    is_read, is_ordinary = doing in (Doing.COPYING, Doing.READING), doing in (Doing.READING, Doing.WRITING)
    with catalog_names(connection):
        found = psycopg.RawCursor(connection).execute(
            sql_text("hosted"),
            [[table.schema for table in tables], [table.name for table in tables], is_read, is_ordinary],
        )
        return [
            f"code of role {role!r} runs with the rights of {connection.info.user!r} when {doing}: {_shown(what)};"
            f" if {role!r} is not trusted, {_INSTEAD.get(doing, 'set up and run')} as a user without further rights"
            for role, what in found.fetchall()
        ]


_INSTEAD = {Doing.APPLYING: "apply"}


def called_code(
    connection: Connection, calls: Iterable[tuple[str, TableName]], *, is_free: bool = False
) -> list[PenstockError]:
    """Say which other roles' code tables that are about to be made would call, with the rights of the user.

    Args:
        calls: Functions, operators and types by kind and name.
        is_free: They are called by checks or defaults, which the server lets call anything: also say what of whoever's
            is not known to be harmless.
    """
    wanted = sorted(set(calls))
    with catalog_names(connection):
        found = psycopg.RawCursor(connection).execute(
            sql_text("called"),
            [
                [kind for kind, _ in wanted],
                [name.schema for _, name in wanted],
                [name.name for _, name in wanted],
                is_free,
            ],
        )
        return [
            OperatorError(
                f"what is to be made or altered would run code of role {role!r} with your rights: {_shown(what)}",
                where=label(connection.info.dsn),
                do=f"give that to a role you trust, or drop it; or create the tables yourself if {role!r} is trusted",
            )
            if role is not None
            else OperatorError(
                f"it calls {_shown(what)}, which would run with the rights of whoever applies",
                where=label(connection.info.dsn),
                do="make it at the target yourself, if it may do there what it is told",
            )
            for role, what in found.fetchall()
        ]


def others_sequences(connection: Connection, names: Iterable[TableName]) -> dict[TableName, str]:
    """Say whose sequences these are that nobody has given the user, who as a superuser may move any."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    rows = connection.execute(_OTHERS_SEQUENCES, [[name.schema for name in wanted], [name.name for name in wanted]])
    return {TableName(schema, name): role for schema, name, role in rows.fetchall()}


def types_named(connection: Connection, types: Iterable[str]) -> list[tuple[str, TableName]]:
    """Return the types that this database knows by these names, as the server writes them, for `called_code`."""
    with catalog_names(connection):
        rows = psycopg.RawCursor(connection).execute(
            "SELECT DISTINCT n.nspname, t.typname FROM unnest($1::text[]) w (name) JOIN pg_type t"
            " ON t.oid = to_regtype(w.name) JOIN pg_namespace n ON n.oid = t.typnamespace",
            [sorted(set(types))],
        )
        return [("type", TableName(schema, name)) for schema, name in rows.fetchall()]


def unknown_names(connection: Connection, kind: Literal["type", "collation"], names: Iterable[str]) -> set[str]:
    """Return those texts that the server does not take for the name of a type, or collation, that it has.

    A source says what its columns' types are called, and statements are made of that: what is no name may be any SQL.
    """
    unknown = set()
    with catalog_names(connection):
        for name in sorted(set(names)):
            try:
                # Before version 16 a text that is no name is an error.
                with connection.transaction():
                    row = psycopg.RawCursor(connection).execute(f"SELECT to_reg{kind}($1) IS NULL", [name]).fetchone()
            except (psycopg.ProgrammingError, psycopg.DataError):
                row = (True,)
            if row == (True,):
                unknown.add(name)
    return unknown


def refuse_foreign(connection: Connection, schema: str) -> None:
    """Raise the faults of a schema of ours, before anything in it is used.

    Raises:
        OperatorError: Another role could put code into it.
    """
    faults = schema_faults(connection, schema)
    if faults:
        raise OperatorError("\n".join(map(str, faults)))


def preamble(schema: str) -> list[str]:
    """Return the start of a printed script, which keeps the user who runs it from running another role's code."""
    query = sql_text("owners").replace("$1", literal(schema)).rstrip()
    message = literal(
        f"schema {quote(schema)} is, or holds, what another role could put its code into (%); run it as that role"
    )
    return [
        PINNED,
        f"DO $penstock$\nDECLARE others text := (SELECT string_agg(role, ', ') FROM (\n{query}\n) f (role, what));\n"
        f"BEGIN IF others IS NOT NULL THEN RAISE EXCEPTION {message}, others; END IF; END $penstock$",
    ]


def refuse_superuser(role: str) -> str:
    """Return SQL for the start of a printed script of several transactions that make what a plain role is to own.

    The preamble of the second one refuses a superuser, since by then the role has a schema. So the first one does it,
    before anything is made.
    """
    message = literal(f"everything in this script is to belong to role {quote(role)}: log in as it, and run this")
    return (
        "DO $penstock$\nBEGIN IF EXISTS (SELECT FROM pg_roles s WHERE s.rolsuper"
        " AND pg_has_role(session_user, s.oid, 'MEMBER'))\n"
        f"THEN RAISE EXCEPTION USING MESSAGE = {message}; END IF; END $penstock$"
    )


def schema_steps(connection: Connection, schema: str) -> list[SetupStep]:
    """The step that makes a schema of ours; it fails if one was made since `schema_faults` looked."""
    if connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).fetchone() is not None:
        return []
    return [SetupStep(f"schema {schema}", f"CREATE SCHEMA {quote(schema)}")]


def seal_step(schema: str) -> SetupStep:
    """The step that takes back what `ALTER DEFAULT PRIVILEGES` has given others on the objects of a schema of ours."""
    return SetupStep("nobody else has a right on it", _SEAL.format(schema=literal(schema)))


def dump_steps(connection: Connection, schema: str, tables: Sequence[TableName], *, is_new: bool) -> list[SetupStep]:
    """The steps after which the database's owner can still dump the database, and reads no row that it could not.

    pg_dump reads every table, so it works for an owner who may read every table; such an owner may read our copies of
    their rows too. From any other owner they are kept.

    Args:
        connection: A session of the user who sets up.
        schema: The name of a capture set, or of the ledger.
        tables: Those whose rows may be in it.
        is_new: The steps before these make it, or bring it up to date.
    """
    row = connection.execute(
        "SELECT r.rolname FROM pg_database d JOIN pg_roles r ON r.oid = d.datdba"
        " WHERE d.datname = current_database() AND NOT r.rolsuper AND r.rolname <> current_user"
    ).fetchone()
    if row is None:
        return []
    owner, quoted = row[0], quote(schema)
    values = {"owner": owner, "schema": schema, "tables": [quote(table.schema, table.name) for table in tables]}
    answers = connection.execute(_MAY_READ, values).fetchone()
    assert answers is not None
    may_read, granted = answers
    everything = [f"ALL TABLES IN SCHEMA {quoted}", f"ALL SEQUENCES IN SCHEMA {quoted}"]
    if may_read and (is_new or not granted):
        grants = [f"GRANT USAGE ON SCHEMA {quoted} TO {quote(owner)}"]
        grants += [f"GRANT SELECT ON {them} TO {quote(owner)}" for them in everything]
        return [SetupStep("the database's owner, who may read all that is captured, may dump it", ";\n".join(grants))]
    if granted and not may_read:
        revokes = [f"REVOKE SELECT ON {them} FROM {quote(owner)}" for them in everything]
        return [
            SetupStep(
                "the database's owner, who may not read all that is captured, may not read it", ";\n".join(revokes)
            )
        ]
    return []


def _fault(schema: str, where: str, role: str, found: Sequence[str]) -> PenstockError:
    return OperatorError(
        f"role {role!r} could put code into schema {schema!r} that would run with your rights: it has {_shown(found)}",
        where=where,
        do=f"if {role!r} set Penstock up, run this as that role; if not, take away what it has, or drop the schema",
    )


def _shown(found: Sequence[str]) -> str:
    return ", ".join(found[:_MOST_SHOWN]) + (", ..." if len(found) > _MOST_SHOWN else "")
