"""Installing a capture set, and bringing it up to date: the SQL that a DBA can read before it runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping

import psycopg

from penstock.change import TableName
from penstock.database import CaptureBehind, SetupStep
from penstock.dialects.postgres.connection import CANONICAL_SETTINGS, Connection, label, literal, quote
from penstock.dialects.postgres.resources import sql_text
from penstock.dialects.postgres.source.history import history_script
from penstock.dialects.postgres.source.wake import wake_key
from penstock.errors import OperatorError

VERSION = 5
"""The version of capture sets that this program makes and reads. Sets from before there were numbers count as 1.

It grows when a set is not what it was: an earlier program must leave it alone then. Setup runs the scripts again for
every set of the same number or a lower one that they were not run for as they are now.
"""

_NOT_NEWER = """\
-- A later version may have been at work since this was planned.
DO $$ BEGIN
  IF (SELECT substring(obj_description(oid, 'pg_namespace') FROM '^penstock: capture ([0-9]+) ')::int
      FROM pg_namespace WHERE nspname = {name}) > {known} THEN
    RAISE EXCEPTION 'a later version of penstock has made the capture set anew; plan again with that version'
      USING ERRCODE = 'object_not_in_prerequisite_state';
  END IF;
END $$"""

_PINNED = (
    "datestyle",
    "intervalstyle",
    "timezone",
    "bytea_output",
    "extra_float_digits",
    "lc_monetary",
    "quote_all_identifiers",
    "standard_conforming_strings",
)
"""What the server's words for an expression depend on; whoever alters a table may have set them otherwise."""

_SCRIPTS = ("log", "images", "build", "follow", "versions", "messages")


def set_name(pipeline: str) -> str:
    """The schema that holds a pipeline's capture set; its triggers are named after it."""
    return f"penstock_{pipeline}"


def pipeline_of(name: str) -> str:
    """The pipeline whose set a schema holds; the other way round than `set_name`."""
    return name.removeprefix("penstock_")


def log_steps(name: str, *, is_upgrade: bool = False) -> list[SetupStep]:
    """The steps that make the log of a capture set, or bring it up to date; they lock writers out of a log that exists.

    Args:
        name: The set, see `set_name`.
        is_upgrade: The set is there, and not as this program makes it.
    """
    quoted, script = quote(name), _log_script(name)
    what = f"the log of capture set {name}, and the functions that fill it"
    if is_upgrade:
        what = f"bring up to date, to version {VERSION}: {what}"
    return [
        SetupStep(what, f"{_NOT_NEWER.format(name=literal(name), known=VERSION)};\n\n{script}"),
        SetupStep("a note of their version", f"COMMENT ON SCHEMA {quoted} IS {literal(stamp(script))}"),
        SetupStep(
            "the first tick",
            f"INSERT INTO {quoted}.tick (scn, snapshot, at) SELECT 0, pg_current_snapshot(), clock_timestamp()"
            f" WHERE NOT EXISTS (SELECT FROM {quoted}.tick)",
        ),
    ]


def table_steps(
    name: str, tables: Iterable[TableName], by_row: Collection[TableName], *, of_apply: bool
) -> list[SetupStep]:
    """The steps that have the log of a set filled from tables, each by itself. Taking them twice changes nothing.

    Args:
        name: The set, see `set_name`.
        tables: Roots and ordinary tables; partitions come with their root.
        by_row: Those of them that row triggers are wanted on.
        of_apply: What apply processes write to them is captured, too. Where it is already it stays so: others may read
            the set.
    """
    quoted = quote(name)
    steps = []
    for table in sorted(tables):
        regclass = f"{literal(quote(table.schema, table.name))}::regclass"
        if table in by_row:
            how, wanted = " by row triggers", f"INSERT INTO {quoted}.by_row VALUES ({regclass}) ON CONFLICT DO NOTHING"
        else:
            how, wanted = "", f"DELETE FROM {quoted}.by_row WHERE relid = {regclass}"
        if of_apply:
            how += ", also what apply processes write to it"
            wanted += f";\nINSERT INTO {quoted}.applied VALUES ({regclass}) ON CONFLICT DO NOTHING"
        one_at_a_time = f"SELECT pg_advisory_xact_lock({_changing_key(name)}, {regclass}::oid::int)"
        sql = f"{wanted};\n{one_at_a_time};\nSELECT {quoted}.capture_all({regclass})"
        steps.append(SetupStep(f"capture table {table}{how}", sql, is_apart=True, tables=frozenset({table})))
    return steps


def event_trigger_step(name: str) -> SetupStep:
    """The step that has DDL on captured tables rebuild their capture at once; takes a superuser."""
    return SetupStep("rebuild the capture of a table when its definition changes", _ddl_script(name))


def has_event_triggers(connection: Connection, name: str) -> bool:
    """Whether `event_trigger_step` would change nothing, where the log is current."""
    row = connection.execute(
        "SELECT count(*) = 2 FROM pg_event_trigger WHERE evtname = ANY (%s) AND evtenabled = 'A'",
        [[name, drop_trigger_name(name)]],
    ).fetchone()
    return bool(row and row[0])


def is_installed(connection: Connection, name: str) -> bool:
    """Whether there is a capture set of this name."""
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [f"{quote(name)}.captured"]).fetchone()
    return bool(row and row[0])


def has_current_log(connection: Connection, name: str) -> bool:
    """Whether `log_steps` would change nothing."""
    found = connection.execute(
        "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s", [name]
    ).fetchone()
    return found is not None and found[0] == stamp(_log_script(name))


def tables_not_current(
    connection: Connection, name: str, tables: Iterable[TableName], by_row: Collection[TableName], *, of_apply: bool
) -> list[TableName]:
    """The tables that `table_steps` would change something for, where the log is current."""
    quoted, wanted = quote(name), sorted(tables)
    rows = connection.execute(
        f"WITH behind AS MATERIALIZED (SELECT b AS relid FROM {quoted}.behind() b)"
        " SELECT w.place FROM unnest(%s::regclass[], %s::bool[]) WITH ORDINALITY w (relid, by_row, place)"
        " WHERE w.relid IN (SELECT relid FROM behind)"
        f" OR NOT EXISTS (SELECT FROM {quoted}.captured_now c WHERE c.relid = w.relid AND c.mode <> 'detached')"
        f" OR w.by_row <> EXISTS (SELECT FROM {quoted}.by_row r WHERE r.relid = w.relid)"
        f" OR %s AND NOT EXISTS (SELECT FROM {quoted}.applied a WHERE a.relid = w.relid) ORDER BY w.place",
        [[quote(table.schema, table.name) for table in wanted], [table in by_row for table in wanted], of_apply],
    )
    return [wanted[place - 1] for (place,) in rows]


def replaced_tables(connection: Connection, name: str) -> list[TableName]:
    """Tables that were made anew, or renamed, under a captured name, and are not captured yet."""
    # Not the rows of `captured_now`: also a name that the captured table had before.
    captured = f"{quote(name)}.captured"
    rows = connection.execute(
        "SELECT n.nspname, k.relname FROM pg_class k JOIN pg_namespace n ON n.oid = k.relnamespace"
        f" WHERE (n.nspname, k.relname) IN (SELECT definition ->> 'schema', definition ->> 'name' FROM {captured}"
        "   WHERE mode NOT LIKE 'partition%' AND mode <> 'detached') AND k.relkind IN ('r', 'p')"
        f" AND NOT EXISTS (SELECT FROM {captured} c WHERE c.relid = k.oid AND c.mode <> 'detached') ORDER BY 1, 2"
    )
    return [TableName(schema, table) for schema, table in rows]


def captured_of_apply(connection: Connection, name: str) -> set[int]:
    """The oids of tables of which what apply processes write is captured; none in a set of an earlier version."""
    table = f"{quote(name)}.applied"
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [table]).fetchone()
    if not (row and row[0]):
        return set()
    return {relid for (relid,) in connection.execute(f"SELECT relid::bigint FROM {table}")}


def tables(connection: Connection, name: str) -> list[TableName]:
    """The captured tables that there are, by their names now; partitions go with their root."""
    rows = connection.execute(
        f"SELECT n.nspname, k.relname FROM {quote(name)}.captured_now c JOIN pg_class k ON k.oid = c.relid"
        " JOIN pg_namespace n ON n.oid = k.relnamespace WHERE c.mode <> 'detached' AND c.root = c.relid ORDER BY 1, 2"
    )
    return [TableName(schema, table) for schema, table in rows]


def state_tables(name: str) -> list[str]:
    """The tables of a set that say what is captured, and what its triggers looked like; their names quoted."""
    return [quote(name, table) for table in ("captured", "installed", "by_row", "applied")]


def behind(connection: Connection, name: str) -> dict[int, TableName]:
    """The captured tables, by oid, whose capture has to be built anew, since they were altered; notes those dropped."""
    quoted = quote(name)
    connection.execute(f"SELECT {quoted}.note_drops(NULL)")
    rows = connection.execute(
        f"SELECT b, n.nspname, c.relname FROM {quoted}.behind() b JOIN pg_class c ON c.oid = b"
        " JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY 2, 3"
    )
    return {relid: TableName(schema, table) for relid, schema, table in rows}


def rebuild(connection: Connection, name: str, tables: Mapping[int, TableName]) -> list[CaptureBehind]:
    """Build the capture of tables anew, by their oids; what others hold is left for the next time.

    Returns:
        The tables that it cannot be done for.
    """
    quoted = quote(name)
    left = []
    for relid, table in tables.items():
        try:
            with connection.transaction():
                connection.execute("SET LOCAL lock_timeout = '100ms'; SET LOCAL penstock.rebuilding = 'on'")
                connection.execute(
                    f"SELECT {quoted}.capture_all(%s::oid) WHERE pg_try_advisory_xact_lock(%s, %s::oid::int)",
                    [relid, _changing_key(name), relid],
                )
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            continue
        except psycopg.errors.InsufficientPrivilege:
            reason = "this user may not build its triggers anew; `penstock plan` names the missing grants"
            left.append(CaptureBehind(table, reason))
    return left


def stamp(script: str) -> str:
    """What the comment on a set's schema says: that it is ours, of which version, and which script made it."""
    return f"penstock: capture {VERSION} {hashlib.sha256(script.encode()).hexdigest()[:16]}"


def newer_fault(connection: Connection, name: str) -> OperatorError | None:
    """Say that a set is of a version that this program does not know, if it is. Reads the catalogue only."""
    row = connection.execute(
        "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s", [name]
    ).fetchone()
    numbered = re.match(r"penstock: capture (\d+) ", (row and row[0]) or "")
    if numbered is None or int(numbered[1]) <= VERSION:
        return None
    return OperatorError(
        f"capture set {name} is of version {numbered[1]}, and this penstock knows versions up to {VERSION}",
        where=label(connection.info.dsn),
        do="install the version of penstock that made it, or a later one",
    )


def refuse_newer(connection: Connection, name: str) -> None:
    """Make sure that a set, if there is one, is of a version that this program knows.

    Raises:
        OperatorError: A later version of Penstock made it.
    """
    fault = newer_fault(connection, name)
    if fault is not None:
        raise fault


def is_foreign(connection: Connection, schema: str) -> bool:
    """Whether a schema of this name exists that is not ours, or not only."""
    row = connection.execute(
        "SELECT coalesce(obj_description(oid, 'pg_namespace'), '') NOT LIKE 'penstock: %%' FROM pg_namespace"
        " WHERE nspname = %s",
        [schema],
    ).fetchone()
    return bool(row and row[0])


def drop_trigger_name(name: str) -> str:
    """The event trigger that notes dropped objects."""
    return f"{name} drop"


def function_names(name: str) -> list[str]:
    """Functions that the scripts of this version make; and those that older versions made."""
    made = re.findall(r"CREATE OR REPLACE FUNCTION \S+?\.(\w+)\(", _log_script(name) + _ddl_script(name))
    older = ["install_marker", "json_value", "trigger_names", "stale", "replaced"]
    return sorted({*made, *older})


def filled(text: str, name: str, more: Mapping[str, str] = {}) -> str:
    """Fill the placeholders of a script with the names of a set, and with `more`."""
    return text.format(
        set=quote(name),
        name=literal(name),
        drop=quote(drop_trigger_name(name)),
        seq=literal(f"{name}.change_seq"),
        version_seq=literal(f"{name}.version_seq"),
        wake=wake_key(name),
        noted=f"penstock.noted_{wake_key(name) & 0xFFFFFFFF:08x}",
        changing=_changing_key(name),
        describe=sql_text("describe").rstrip(),
        pinned=" ".join(f"SET {setting} = {literal(CANONICAL_SETTINGS[setting])}" for setting in _PINNED),
        **more,
    )


def _changing_key(name: str) -> int:
    """First half of the advisory lock for building a table's capture; the second is the table's oid."""
    return int.from_bytes(hashlib.sha256(f"changing {name}".encode()).digest()[:4], "big", signed=True)


def _log_script(name: str) -> str:
    return "\n".join([*(filled(sql_text(f"capture/{part}"), name) for part in _SCRIPTS), history_script(name)])


def _ddl_script(name: str) -> str:
    return filled(sql_text("capture/ddl"), name)
