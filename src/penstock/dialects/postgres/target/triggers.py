"""For whose changes triggers of the target fire: users' only, apply's only, or both."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.change import TableName
from penstock.config.apply import TriggerFiring
from penstock.database import DatabasePlan, SetupStep
from penstock.dialects.postgres.connection import Connection, quote
from penstock.patterns import TablePattern

_STATES = {
    # Apply's sessions run with session_replication_role = replica.
    TriggerFiring.ALWAYS: ("A", "ENABLE ALWAYS TRIGGER", "fires for users and for apply"),
    TriggerFiring.FIRE_ONCE: ("O", "ENABLE TRIGGER", "fires for users only"),
    TriggerFiring.APPLY_ONLY: ("R", "ENABLE REPLICA TRIGGER", "fires for apply only"),
}
"""What `pg_trigger.tgenabled` is then, the statement, and what it comes to."""


def plan_triggers(
    connection: Connection,
    plan: DatabasePlan,
    firing: Mapping[str, Mapping[str, TriggerFiring]],
    tables: Collection[TableName],
) -> None:
    """Plan what makes triggers fire as the pipeline file says; of each the first pattern counts that names it.

    Args:
        firing: By pattern of tables, and by the trigger's name.
        tables: Those of the pipeline.
    """
    wanted: dict[tuple[TableName, str], TriggerFiring] = {}
    for text, triggers in firing.items():
        pattern = TablePattern.parse(text)
        meant = [table for table in sorted(tables) if pattern.matches(table)]
        if not meant:
            plan.notes.append(f"apply.tables.{text}: no table of the pipeline is called so at the target")
        for table in meant:
            for name, how in triggers.items():
                wanted.setdefault((table, name), how)
    rows = connection.execute(
        "SELECT n.nspname, c.relname, t.tgname, t.tgenabled, pg_has_role(c.relowner, 'USAGE')"
        " FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " JOIN unnest(%s::text[], %s::text[], %s::text[]) w (schema, name, trigger)"
        " ON (n.nspname, c.relname, t.tgname) = (w.schema, w.name, w.trigger) WHERE NOT t.tgisinternal",
        [
            [table.schema for table, _ in wanted],
            [table.name for table, _ in wanted],
            [name for _, name in wanted],
        ],
    )
    found = {(TableName(schema, table), name): (state, is_own) for schema, table, name, state, is_own in rows}
    for (table, name), how in wanted.items():
        state, statement, comes_to = _STATES[how]
        sql = f"ALTER TABLE {quote(table.schema, table.name)} {statement} {quote(name)}"
        now, is_own = found.get((table, name), (None, False))
        if now is None:
            plan.notes.append(f"trigger {name!r} of table {table} is not there; once it is, run `penstock setup` again")
        elif now != state and is_own:
            # It locks the table, which is written to.
            plan.steps.append(
                SetupStep(f"trigger {name} of {table} {comes_to}", sql, is_apart=True, tables=frozenset({table}))
            )
        elif now != state:
            plan.notes.append(f"only the owner of {table} can see to it that trigger {name!r} {comes_to}: {sql}")
