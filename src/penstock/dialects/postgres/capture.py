"""Installing and removing a capture set: the SQL that a DBA can read before it runs."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

from penstock.change import TableName
from penstock.dialects.base import Step
from penstock.dialects.postgres.connection import Connection, literal, quote
from penstock.dialects.postgres.resources import sql_text
from penstock.dialects.postgres.wake import wake_key

_FUNCTIONS = [
    "describe",
    "draw_commit_seq",
    "install_marker",
    "quoted",
    "json_value",  # Of sets that were installed before `json_member` took its place.
    "json_member",
    "has_value",
    "changed_member",
    "image",
    "captured_root",
    "capture_mode",
    "trigger_names",
    "has_triggers",
    "essence",
    "capture",
    "capture_all",
    "capture_body",
    "in_lines",
    "on_ddl",
    "replaced",
    "stale",
]
_EVENT_TAGS = ("ALTER TABLE", "CREATE TABLE", "CREATE TRIGGER", "ALTER TRIGGER")


def set_name(pipeline: str) -> str:
    """The schema that holds a pipeline's capture set; its triggers are named after it."""
    return f"penstock_{pipeline}"


def log_steps(name: str) -> list[Step]:
    """The steps that make the log of a capture set, or bring it up to date; they lock writers out of a log that exists.

    Args:
        name: The set, see `set_name`.
    """
    quoted, script = quote(name), _log_script(name)
    return [
        Step(f"the log of capture set {name}, and the functions that fill it", script),
        Step("a note of their version", f"COMMENT ON SCHEMA {quoted} IS {literal(stamp(script))}"),
        Step(
            "the first tick",
            f"INSERT INTO {quoted}.tick (scn, snapshot, at) SELECT 0, pg_current_snapshot(), clock_timestamp()"
            f" WHERE NOT EXISTS (SELECT FROM {quoted}.tick)",
        ),
    ]


def table_steps(
    name: str, tables: Iterable[TableName], by_row: Collection[TableName], *, with_event_trigger: bool
) -> list[Step]:
    """The steps that have the log of a set filled from tables. Taking them twice changes nothing.

    Args:
        name: The set, see `set_name`.
        tables: Roots and ordinary tables; partitions come with their root.
        by_row: Those of them that row triggers are wanted on.
        with_event_trigger: Have DDL on captured tables rebuild their capture; takes a superuser.
    """
    quoted = quote(name)
    steps = []
    for table in sorted(tables):
        regclass = f"{literal(quote(table.schema, table.name))}::regclass"
        if table in by_row:
            how, wanted = " by row triggers", f"INSERT INTO {quoted}.by_row VALUES ({regclass}) ON CONFLICT DO NOTHING"
        else:
            how, wanted = "", f"DELETE FROM {quoted}.by_row WHERE relid = {regclass}"
        steps.append(Step(f"capture table {table}{how}", f"{wanted};\nSELECT {quoted}.capture_all({regclass})"))
    if with_event_trigger:
        tags = ", ".join(literal(tag) for tag in _EVENT_TAGS)
        steps += [
            Step("an older event trigger goes", f"DROP EVENT TRIGGER IF EXISTS {quoted}"),
            Step(
                "rebuild the capture of a table when its definition changes",
                f"CREATE EVENT TRIGGER {quoted} ON ddl_command_end WHEN TAG IN ({tags})"
                f" EXECUTE FUNCTION {quoted}.on_ddl()",
            ),
        ]
    return steps


def is_installed(connection: Connection, name: str) -> bool:
    """Whether there is a capture set of this name."""
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [f"{quote(name)}.captured"]).fetchone()
    return bool(row and row[0])


def has_function(connection: Connection, name: str, function: str) -> bool:
    """Whether the set as it is installed has a function, which an older version may lack."""
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
        " WHERE n.nspname = %s AND p.proname = %s)",
        [name, function],
    ).fetchone()
    return bool(row and row[0])


def has_current_log(connection: Connection, name: str) -> bool:
    """Whether `log_steps` would change nothing."""
    found = connection.execute(
        "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s", [name]
    ).fetchone()
    return found is not None and found[0] == stamp(_log_script(name))


def has_current_tables(
    connection: Connection, name: str, tables: Iterable[TableName], by_row: Collection[TableName]
) -> bool:
    """Whether `table_steps` would change nothing, where the log is current."""
    quoted = quote(name)
    wanted = {quote(table.schema, table.name): table in by_row for table in tables}
    row = connection.execute(
        f"SELECT count(*) = %s AND NOT EXISTS (SELECT FROM {quoted}.stale())"
        " FROM unnest(%s::regclass[], %s::bool[]) w (relid, by_row)"
        f" WHERE EXISTS (SELECT FROM {quoted}.captured c WHERE c.relid = w.relid AND c.mode <> 'detached')"
        f" AND w.by_row = EXISTS (SELECT FROM {quoted}.by_row r WHERE r.relid = w.relid)",
        [len(wanted), list(wanted), list(wanted.values())],
    ).fetchone()
    return bool(row and row[0])


def stamp(script: str) -> str:
    """What the comment on one of our schemas says: that it is ours, and which script made it."""
    return f"penstock: {hashlib.sha256(script.encode()).hexdigest()[:16]}"


def is_foreign(connection: Connection, schema: str) -> bool:
    """Whether a schema of this name exists that is not ours, or not only."""
    row = connection.execute(
        "SELECT coalesce(obj_description(oid, 'pg_namespace'), '') NOT LIKE 'penstock: %%' FROM pg_namespace"
        " WHERE nspname = %s",
        [schema],
    ).fetchone()
    return bool(row and row[0])


def uninstall_statements(connection: Connection, name: str) -> list[str]:
    """The SQL that removes a capture set and nothing else; empty when there is none."""
    quoted = quote(name)
    if not is_installed(connection, name):
        return []
    triggers = connection.execute(
        "SELECT t.tgname, n.nspname, c.relname FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid"
        " JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE p.pronamespace = %s::regnamespace AND t.tgparentid = 0 AND starts_with(t.tgname, %s) ORDER BY 2, 3, 1",
        [quoted, f"R_{name}_"],
    )
    drops = [f"DROP TRIGGER {quote(trigger)} ON {quote(schema, table)}" for trigger, schema, table in triggers]
    functions = connection.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = %s::regnamespace"
        r" AND (p.proname = ANY (%s) OR p.proname ~ '^capture_\d+_[riudt]$') ORDER BY p.proname",
        [quoted, _FUNCTIONS],
    )
    has_event_trigger = connection.execute("SELECT FROM pg_event_trigger WHERE evtname = %s", [name]).fetchone()
    return [
        *([f"DROP EVENT TRIGGER {quoted}"] if has_event_trigger is not None else []),
        *drops,
        f"DROP VIEW {quoted}.changes",
        *(f"DROP TABLE {quoted}.{table}" for table in ("marker", "log", "tick")),
        *(f"DROP FUNCTION {function}" for (function,) in functions),
        f"DROP TABLE {quoted}.captured",
        # Sets that were installed before there was one.
        f"DROP TABLE IF EXISTS {quoted}.by_row",
        f"DROP SEQUENCE {quoted}.change_seq",
        f"DROP SCHEMA {quoted}",
    ]


def _log_script(name: str) -> str:
    return sql_text("capture").format(
        set=quote(name),
        name=literal(name),
        bare=name,
        seq=literal(f"{name}.change_seq"),
        wake=wake_key(name),
        describe=sql_text("describe").rstrip(),
    )
