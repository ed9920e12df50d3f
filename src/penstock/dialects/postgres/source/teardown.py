"""What teardown does at the source: the SQL that removes a capture set and nothing else."""

from __future__ import annotations

from penstock.dialects.postgres.connection import Connection, quote
from penstock.dialects.postgres.source import documented
from penstock.dialects.postgres.source.capture import drop_trigger_name, function_names, is_installed
from penstock.dialects.postgres.source.history import history_teardown


def teardown_statements(connection: Connection, name: str) -> list[str]:
    """The SQL that removes a capture set and nothing else; empty when there is none."""
    quoted = quote(name)
    if not is_installed(connection, name):
        return []
    triggers = connection.execute(
        "SELECT t.tgname, n.nspname, c.relname, pg_has_role(c.relowner, 'USAGE')"
        " FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid"
        " JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE p.pronamespace = %s::regnamespace AND t.tgparentid = 0 AND starts_with(t.tgname, %s) ORDER BY 2, 3, 1",
        [quoted, f"R_{name}_"],
    ).fetchall()
    drops = [
        f"DROP TRIGGER {quote(trigger)} ON {quote(schema, table)}"
        for trigger, schema, table, is_owner in triggers
        if is_owner
    ]
    # Only a table's owner may drop its triggers; but a role that may drop a function may drop those that call it.
    with_triggers = "" if len(drops) == len(triggers) else " CASCADE"
    functions = connection.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc p"
        " WHERE p.pronamespace = %s::regnamespace AND (p.proname = ANY (%s) OR p.proname ~ '^capture_[0-9]+_[a-z]+$')"
        " ORDER BY 1",
        [quoted, function_names(name)],
    )
    event_triggers = connection.execute(
        "SELECT evtname FROM pg_event_trigger WHERE evtname = ANY (%s) ORDER BY evtname",
        [[name, drop_trigger_name(name)]],
    )
    return [
        *documented.removal(connection, name),
        *(f"DROP EVENT TRIGGER {quote(trigger)}" for (trigger,) in event_triggers),
        *drops,
        *(f"DROP VIEW IF EXISTS {quoted}.{view}" for view in ("changes", "captured_now", "built_now")),
        *(f"DROP TABLE {quoted}.{table}" for table in ("marker", "log", "tick")),
        *history_teardown(name),
        f"DROP TRIGGER IF EXISTS note_version ON {quoted}.captured",
        *(f"DROP FUNCTION {function}{with_triggers}" for (function,) in functions),
        f"DROP TABLE {quoted}.captured",
        # Sets that were installed before there were these.
        *(f"DROP TABLE IF EXISTS {quoted}.{table}" for table in ("by_row", "applied", "installed")),
        *(f"DROP SEQUENCE IF EXISTS {quoted}.{sequence}" for sequence in ("change_seq", "version_seq")),
        f"DROP SCHEMA {quoted}",
    ]
