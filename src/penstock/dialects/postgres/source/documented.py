"""The documented tables beside a capture set: ITEMS, TABLES and what goes with them, under a prefix in any schema.

They are views and functions over the set (`sql/documented`), so the log stays as it is. What they have to remember lies
in tables of the set's own schema, where no other role can put code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from penstock.change import TableName
from penstock.database import DatabasePlan, SetupStep
from penstock.dialects.postgres.catalog import is_superuser, table_oids
from penstock.dialects.postgres.connection import Connection, label, literal, quote
from penstock.dialects.postgres.privileges import missing_schema_grants, plan_grants
from penstock.dialects.postgres.resources import sql_text
from penstock.dialects.postgres.source.capture import filled, is_installed
from penstock.dialects.postgres.source.history import set_place
from penstock.errors import OperatorError, PenstockError
from penstock.history import LogHold
from penstock.sources.trigger_queue.config import DocumentedConfig

_SCRIPTS = ("guard", "functions", "state", "kept", "items", "tables", "structure", "begin", "owner")

_VIEWS = ("items", "tables", "cols_view", "cols_table", "current_tables", "debug_table", "longs_table")
_FUNCTIONS = (
    "needs_prot",
    "col2xml",
    "col2xml_cdata",
    "col2xml_base64",
    "col2xml_null",
    "increment",
    "check_structure",
    "check_tables",
    "prepare_broadcast",
    "write_debug",
)
_SEQUENCE = "seq"

_INNER_VIEWS = ("unread", "unread_changes")
_INNER_TABLES = (
    "documented",
    "watched",
    "watch",
    "acknowledged",
    "acknowledging",
    "read_to",
    "announced",
    "cols_table",
    "current_tables",
    "debug_table",
    "longs_table",
    "xml_shape",
)
_INNER_FUNCTIONS = (
    "attribute",
    "output_text",
    "xml_image",
    "note_shape",
    "add_shape",
    "is_alteration",
    "acknowledge",
    "acknowledge_at_once",
    "refuse_written",
    "oldest_unread",
    "cut",
    "free_acknowledged",
    "on_acknowledged",
    "is_kept",
    "on_given_up",
    "on_log_emptied",
    "table_named",
    "watch_status",
    "may_watch",
    "close_watch",
    "open_watch",
    "change_watch",
    "announce",
    "announce_anew",
    "ask_for_copy",
    "begin_watch",
    "end_capture",
    "take_up",
    "check_watcher",
    "insert_watched",
    "delete_watched",
    "change_watched",
    "list_table",
    "copy_structure",
    "set_debugging",
    "hush",
    "on_table_made",
)

_OF_ROWS = ("insert_watched", "delete_watched")
"""Functions whose arguments are rows of TABLES."""

CONSUMER_ID = "documented"
"""The id under which the readers of ITEMS are a consumer of the set, as the scripts have it."""

_IS_KEPT = f"EXISTS (SELECT FROM {{set}}.consumer WHERE id = '{CONSUMER_ID}')"

_PREFIX = "penstock: documented tables of "
"""What the comment on each of them begins with; the name of the set follows."""

_CONFLICTS = """
SELECT c.relname, c.relkind::text, coalesce(obj_description(c.oid, 'pg_class'), ''),
  c.relowner = (SELECT relowner FROM pg_class WHERE oid = to_regclass(%(captured)s))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = ANY (%(relations)s)
UNION ALL
SELECT p.proname, 'f', coalesce(obj_description(p.oid, 'pg_proc'), ''),
  p.proowner = (SELECT relowner FROM pg_class WHERE oid = to_regclass(%(captured)s))
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = %(schema)s AND p.proname = ANY (%(functions)s)
ORDER BY 1
"""


def faults_of(connection: Connection, url: str, name: str, wanted: DocumentedConfig) -> list[PenstockError]:
    """Say what keeps the documented tables of set `name` from being made where they are wanted."""
    where = f"capture.documented, {label(url)}"
    if connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [wanted.schema_name]).fetchone() is None:
        what = f"schema {wanted.schema_name!r} does not exist"
        return [OperatorError(what, where=where, do="create it, or name another one in capture.documented.schema")]
    is_ours = place(connection, name) == (wanted.schema_name, wanted.names_prefix)
    values = {
        "captured": f"{quote(name)}.captured",
        "schema": wanted.schema_name,
        "relations": [wanted.names_prefix + one for one in (*_VIEWS, _SEQUENCE)],
        "functions": [wanted.names_prefix + one for one in _FUNCTIONS],
    }
    for found, kind, comment, has_owner in connection.execute(_CONFLICTS, values):
        if is_ours and has_owner and comment == _PREFIX + name:
            continue
        there = f"{wanted.schema_name}.{found}"
        if comment.startswith(_PREFIX) and comment != _PREFIX + name:
            other = comment.removeprefix(_PREFIX)
            what, do = f"capture set {other} has the prefix {wanted.prefix!r}: {there} is one of its tables", ""
        elif kind == "r":
            what = f"table {there} exists, as in a set that xmlBlaster made with the prefix {wanted.prefix!r}"
            do = "; or stop its DbWatcher when its queue is empty, and run its cleanup script (replication.cleanupFile)"
        else:
            what, do = f"{there} exists, and is not Penstock's", "; or rename what is there"
        return [OperatorError(what, where=where, do=f"name another prefix in capture.documented{do}")]
    return []


def add_to(plan: DatabasePlan, connection: Connection, name: str, wanted: DocumentedConfig | None) -> bool:
    """Add to the plan of a source what makes the documented tables of set `name`, or removes those that are not wanted.

    Returns:
        Whether there is anything to do.
    """
    superuser = is_superuser(connection)
    found = _steps(connection, name, wanted, is_superuser=superuser)
    plan.steps += found
    if wanted is not None:
        plan.notes += wanted.notes
        if _is_given_up(connection, name):
            plan.notes.append(
                f"the log is kept for readers of {wanted.names_prefix}items no more: its rows begin anew at the present"
                " position, with a CREATE for each table; bring what the tables contain to all receivers again"
            )
        if not superuser:
            plan_grants(plan, missing_schema_grants(connection, wanted.schema_name))
    return bool(found)


def place(connection: Connection, name: str) -> tuple[str, str] | None:
    """Return the schema and prefix of the documented tables that a set has; None for a set without any."""
    if not _has_them(connection, name):
        return None
    found = connection.execute(f"SELECT schema_name, prefix FROM {quote(name)}.documented").fetchone()
    return None if found is None else (found[0], found[1])


def told_of_readers(connection: Connection, name: str, hold: LogHold) -> LogHold:
    """Add what a set knows of the readers of its ITEMS: the rows that no log holds, and that they were given up."""
    there = place(connection, name)
    if there is None:
        return hold
    quoted, (schema, prefix) = quote(name), there
    if _is_given_up(connection, name):
        row = connection.execute(f"SELECT to_jsonb(r) ->> 'given_up_at' FROM {quoted}.read_to r").fetchone()
        since = datetime.fromisoformat(row[0]).astimezone(UTC) if row is not None and row[0] else None
        at = "" if since is None else f" since {since:%Y-%m-%d %H:%M:%S} UTC"
        what = (
            f"the log is kept for readers of {schema}.{prefix}items no more{at}, and they are refused: `penstock setup`"
            " begins them anew, with a CREATE for each table; then bring what the tables contain to all receivers again"
        )
        return replace(hold, attention=[*hold.attention, what])
    row = connection.execute(
        f"SELECT count(*) FROM {quoted}.announced a"
        f" WHERE NOT EXISTS (SELECT FROM {quoted}.acknowledged k WHERE k.repl_key = a.seq * 64)"
    ).fetchone()
    announced = 0 if row is None else row[0]
    return replace(
        hold,
        consumers=[
            replace(one, announced=announced) if one.consumer.id == CONSUMER_ID else one for one in hold.consumers
        ],
    )


def copies_asked(connection: Connection, name: str) -> Mapping[int, int]:
    """Return the numbers of the tables that TABLES asks to be sent anew, and which time of asking that is.

    None in a set without TABLES, or in which no later `setup` has made the column.
    """
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'copy_asked')",
        [f"{quote(name)}.watched"],
    ).fetchone()
    if row is None or not row[0]:
        return {}
    rows = connection.execute(
        f"SELECT relid::bigint, copy_asked FROM {quote(name)}.watched"
        " WHERE copy_asked IS NOT NULL AND relid IS NOT NULL"
    )
    return dict(rows.fetchall())


def forget_asked(connection: Connection, name: str, asked: Mapping[int, int]) -> None:
    """Note that a run knows what `copies_asked` has returned; who has asked again since has asked for one more."""
    connection.execute(
        f"UPDATE {quote(name)}.watched w SET copy_asked = NULL"
        " FROM unnest(%s::bigint[], %s::bigint[]) a (relid, number)"
        " WHERE w.relid::bigint = a.relid AND w.copy_asked = a.number",
        [list(asked), list(asked.values())],
    )


def list_steps(connection: Connection, name: str, tables: Iterable[TableName]) -> list[SetupStep]:
    """The steps that list captured tables in TABLES, each by itself, behind the step that captures it."""
    quoted = quote(name)
    known: set[int] = set()
    if place(connection, name) is not None:
        rows = connection.execute(f"SELECT relid::bigint FROM {quoted}.watched WHERE NOT is_captured_here")
        known = {relid for (relid,) in rows}
    wanted = sorted(tables)
    oids = table_oids(connection, wanted)
    found = []
    for table in wanted:
        regclass = f"{literal(quote(table.schema, table.name))}::regclass"
        if oids.get(table) not in known:
            sql = f"SELECT {quoted}.list_table({regclass})"
            found.append(SetupStep(f"list {table} in TABLES", sql, is_apart=True, tables=frozenset({table})))
    return found


def removal(connection: Connection, name: str) -> list[str]:
    """SQL that removes the documented tables of a set; empty where it has none. Reads the catalogue only."""
    return [*_code_removal(connection, name), *_state_removal(name)] if _has_them(connection, name) else []


def event_trigger_name(name: str) -> str:
    """The event trigger that takes up tables that are made."""
    return f"{name} tables"


def _steps(
    connection: Connection, name: str, wanted: DocumentedConfig | None, *, is_superuser: bool
) -> list[SetupStep]:
    """The steps that make the documented tables, bring them up to date, or remove those that are not wanted."""
    there = place(connection, name)
    found: list[SetupStep] = []
    if there is not None and (wanted is None or there != (wanted.schema_name, wanted.names_prefix)):
        statements = _code_removal(connection, name)
        if wanted is None:
            statements += _state_removal(name)
        summary = f"remove the documented tables {there[0]}.{there[1]}*, which the pipeline file does not ask for"
        found.append(SetupStep(summary, ";\n".join(statements)))
    if wanted is None:
        return found
    script = _script(name, wanted)
    if not _is_current(connection, name, wanted, _stamp(script)):
        summary = f"the documented tables {wanted.schema_name}.{wanted.names_prefix}*"
        note = (
            f"INSERT INTO {quote(name)}.documented (schema_name, prefix, stamp) VALUES ({literal(wanted.schema_name)},"
            f" {literal(wanted.names_prefix)}, {literal(_stamp(script))}) ON CONFLICT (is_only) DO UPDATE SET"
            " schema_name = excluded.schema_name, prefix = excluded.prefix, stamp = excluded.stamp"
        )
        found.append(SetupStep(summary, f"{script}\n{note}"))
    if is_superuser and not _has_event_trigger(connection, name):
        script = _filled("ddl", name, wanted)
        found.append(SetupStep("watch a table that TABLES names from the statement that makes it", script))
    return found


def _code_removal(connection: Connection, name: str) -> list[str]:
    """SQL that drops views, functions and the sequence; what another role has put in the place of one stays.

    They are found by their comments and their owner: only the catalogue is read, and no table of the set, since another
    role may have put a view in its place.
    """
    ours = {
        "set": name,
        "comment": _PREFIX + name,
        "inner": list(_INNER_FUNCTIONS),
        "captured": f"{quote(name)}.captured",
    }
    owner = "(SELECT relowner FROM pg_class WHERE oid = to_regclass(%(captured)s))"
    relations = connection.execute(
        "SELECT c.relkind::text, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind IN ('v', 'S') AND obj_description(c.oid, 'pg_class') = %(comment)s"
        f" AND c.relowner = {owner} ORDER BY 2, 3",
        ours,
    ).fetchall()
    functions = connection.execute(
        "SELECT p.oid::regprocedure::text, p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
        " WHERE n.nspname = %(set)s AND p.proname = ANY (%(inner)s)"
        f" OR obj_description(p.oid, 'pg_proc') = %(comment)s AND p.proowner = {owner} ORDER BY 1",
        ours,
    ).fetchall()
    triggers = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE t.tgname = %s AND pg_has_role(c.relowner, 'USAGE')",
        [_debug_name(name)],
    ).fetchall()
    views = [quote(schema, one) for kind, schema, one in relations if kind == "v"]
    views += [f"{quote(name)}.{view}" for view in _INNER_VIEWS]
    # Views and functions use each other, some as their arguments: each statement drops what no later one needs.
    return [
        f"DROP EVENT TRIGGER IF EXISTS {quote(event_trigger_name(name))}",
        *(f"DROP TRIGGER {quote(_debug_name(name))} ON {quote(*table)}" for table in triggers),
        *_drop_functions([one for one, function in functions if function in _OF_ROWS]),
        f"DROP VIEW IF EXISTS {', '.join(views)}",
        *_drop_functions([one for one, function in functions if function not in _OF_ROWS]),
        *(f"DROP SEQUENCE {quote(schema, one)}" for kind, schema, one in relations if kind == "S"),
    ]


def _drop_functions(functions: Sequence[str]) -> list[str]:
    """With the triggers that call them: only the owner of a table may drop its triggers."""
    return [f"DROP FUNCTION {', '.join(functions)} CASCADE"] if functions else []


def _has_them(connection: Connection, name: str) -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [f"{quote(name)}.documented"]).fetchone()
    return bool(row and row[0])


def _is_given_up(connection: Connection, name: str) -> bool:
    """Whether there are documented tables whose readers are no consumer any more."""
    if place(connection, name) is None:
        return False
    row = connection.execute(f"SELECT {_IS_KEPT.format(set=quote(name))}").fetchone()
    return not (row and row[0])


def _state_removal(name: str) -> list[str]:
    quoted = quote(name)
    return [
        f"DROP INDEX IF EXISTS {quoted}.log_trans_key",
        *(f"DROP TABLE IF EXISTS {quoted}.{table}" for table in _INNER_TABLES),
        f"DELETE FROM {quoted}.consumer WHERE id = {literal(CONSUMER_ID)}",
    ]


def _is_current(connection: Connection, name: str, wanted: DocumentedConfig, stamp: str) -> bool:
    """Whether the script would change nothing: nobody has dropped any of what it makes, either."""
    if not is_installed(connection, name) or place(connection, name) != (wanted.schema_name, wanted.names_prefix):
        return False
    row = connection.execute(
        f"SELECT d.stamp = %(stamp)s"
        " AND (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        "   WHERE n.nspname = %(schema)s AND c.relname = ANY (%(relations)s)) = %(n_relations)s"
        " AND (SELECT count(DISTINCT p.proname) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
        "   WHERE n.nspname = %(schema)s AND p.proname = ANY (%(functions)s)) = %(n_functions)s"
        " AND (SELECT count(*) FROM pg_trigger t WHERE t.tgrelid = ANY (%(triggered)s::regclass[])) = 6"
        " AND (SELECT count(*) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid"
        "   WHERE p.pronamespace = to_regnamespace(%(set)s) AND p.proname = ANY (%(keeping)s)) = 2"
        f" AND {_IS_KEPT.format(set=quote(name))}"
        f" FROM {quote(name)}.documented d",
        {
            "stamp": stamp,
            "schema": wanted.schema_name,
            "relations": [wanted.names_prefix + one for one in (*_VIEWS, _SEQUENCE)],
            "n_relations": len(_VIEWS) + 1,
            "functions": [wanted.names_prefix + one for one in _FUNCTIONS],
            "n_functions": len(_FUNCTIONS),
            "triggered": _existing(connection, wanted, ("items", "tables")),
            "set": quote(name),
            "keeping": ["on_given_up", "on_log_emptied"],
        },
    ).fetchone()
    return bool(row and row[0])


def _existing(connection: Connection, wanted: DocumentedConfig, names: Sequence[str]) -> list[str]:
    places = [quote(wanted.schema_name, wanted.names_prefix + one) for one in names]
    rows = connection.execute("SELECT p FROM unnest(%s::text[]) p WHERE to_regclass(p) IS NOT NULL", [places])
    return [one for (one,) in rows]


def _has_event_trigger(connection: Connection, name: str) -> bool:
    row = connection.execute(
        "SELECT FROM pg_event_trigger WHERE evtname = %s AND evtenabled = 'A'", [event_trigger_name(name)]
    ).fetchone()
    return row is not None


def _stamp(script: str) -> str:
    return hashlib.sha256(script.encode()).hexdigest()[:16]


def _script(name: str, wanted: DocumentedConfig) -> str:
    return "\n".join(_filled(part, name, wanted) for part in _SCRIPTS)


def _filled(part: str, name: str, wanted: DocumentedConfig) -> str:
    return filled(sql_text(f"documented/{part}"), name, _names(name, wanted))


def _names(name: str, wanted: DocumentedConfig) -> Mapping[str, str]:
    """What the scripts call the documented objects: each by its name without the prefix."""
    outer = {one: quote(wanted.schema_name, wanted.names_prefix + one) for one in (*_VIEWS, *_FUNCTIONS)}
    sequence = quote(wanted.schema_name, wanted.names_prefix + _SEQUENCE)
    return {
        **outer,
        "sequence": sequence,
        "sequence_name": f"{literal(sequence)}::regclass",
        "tables_name": literal(wanted.names_prefix + "tables"),
        "items_name": literal(wanted.names_prefix + "items"),
        "schema_name": literal(wanted.schema_name),
        "relations": _array(wanted.names_prefix + one for one in (*_VIEWS, _SEQUENCE)),
        "functions": _array(wanted.names_prefix + one for one in _FUNCTIONS),
        "inner_relations": _array((*_INNER_VIEWS, *_INNER_TABLES)),
        "inner_functions": _array(_INNER_FUNCTIONS),
        "prefix": literal(wanted.names_prefix),
        "version": literal(wanted.version),
        "place": f"({set_place(name)})",
        "comment": literal(_PREFIX + name),
        "made": quote(event_trigger_name(name)),
        "write_debug_name": literal(_debug_name(name)),
    }


def _debug_name(name: str) -> str:
    """The trigger on tables whose DEBUG is 1."""
    return f"penstock debug {name}"[:63]


def _array(names: Iterable[str]) -> str:
    return f"ARRAY[{', '.join(map(literal, names))}]"
