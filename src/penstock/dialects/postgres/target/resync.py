"""What a process has copied and applied, forgotten for a new first copy, or told in positions of another source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.change import TableName
from penstock.database import Emptying
from penstock.dialects.postgres.connection import Connection, quote, set_tag
from penstock.source_switch import SwitchPosition

_COPIED = "SELECT schema_name, table_name FROM penstock.instantiation WHERE process"

_AT_ONCE = 200
"""How many tables one statement looks into; it locks them all."""

_PARTS = """
  SELECT r.relid AS root, coalesce(t.relid, r.relid) AS relid
  FROM unnest(%(roots)s::regclass[]) r (relid) LEFT JOIN LATERAL pg_partition_tree(r.relid) t ON true
"""


def plan_emptying(connection: Connection, process: str) -> Emptying:
    """Work out which tables of the target a new first copy has to find empty, and which stay as they are."""
    own = connection.execute(f"{_COPIED} = %s ORDER BY 1, 2", [process]).fetchall()
    found = [name for name in (TableName(*row) for row in own) if _exists(connection, name)]
    others = copied_by_others(connection, process, found)
    left = {name: f"process {other!r} copied it, too" for name, other in others.items()}
    errors = connection.execute("SELECT count(*) FROM penstock.error WHERE process = %s", [process]).fetchone()
    assert errors is not None
    return Emptying([name for name in found if name not in left], left, errors[0])


def copied_by_others(connection: Connection, process: str, tables: Sequence[TableName]) -> dict[TableName, str]:
    """Return those of the tables, all of which exist, that other processes have copied in whole or in part."""
    by_text = {quote(name.schema, name.name): name for name in tables}
    rows = connection.execute(
        f"WITH part AS ({_PARTS}) SELECT DISTINCT part.root::regclass::text, i.process FROM part"
        " JOIN pg_class c ON c.oid = part.relid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " JOIN penstock.instantiation i ON (i.schema_name, i.table_name) = (n.nspname, c.relname)"
        " WHERE i.process <> %(process)s",
        {"roots": list(by_text), "process": process},
    ).fetchall()
    names = _names(connection, list(by_text))
    return {by_text[names[root]]: other for root, other in rows}


def empty(connection: Connection, tables: Sequence[TableName], tag: str | None) -> None:
    """Delete every row of tables, inside an open transaction; of no other table, whatever refers to them.

    TRUNCATE is quick, but refuses where a table that stays refers to one that goes: those are emptied by DELETE.

    Args:
        tag: The origin mark that this carries.
    """
    connection.execute("SET LOCAL session_replication_role = replica")
    set_tag(connection, tag)
    texts = {quote(name.schema, name.name): name for name in tables}
    names = _names(connection, list(texts))
    references = connection.execute(
        f"WITH part AS ({_PARTS}) SELECT p.root::regclass::text, o.root::regclass::text FROM part p"
        " JOIN pg_constraint f ON f.contype = 'f' AND f.confrelid = p.relid"
        " LEFT JOIN part o ON o.relid = f.conrelid",
        {"roots": list(texts)},
    ).fetchall()
    quick = set(texts)
    while slow := {names[a] for a, b in references if names[a] in quick and (b is None or names[b] not in quick)}:
        quick -= slow
    if quick:
        connection.execute("TRUNCATE " + ", ".join(only(connection, text) for text in sorted(quick)))
    for text in sorted(set(texts) - quick):
        connection.execute(f"DELETE FROM {only(connection, text)}")


def forget(connection: Connection, process: str) -> None:
    """Forget what a process has followed, copied and put aside, inside an open transaction; its counters stay.

    Tables that were adopted and not copied yet stay adopted: they are not emptied, so the copy finds their rows.
    """
    connection.execute(
        "DELETE FROM penstock.adoption a WHERE process = %s AND EXISTS (SELECT FROM penstock.instantiation i"
        " WHERE (i.process, i.schema_name, i.table_name) = (a.process, a.schema_name, a.table_name))",
        [process],
    )
    for table in ("error", "dictionary", "emptied", "instantiation", "applied"):
        connection.execute(f"DELETE FROM penstock.{table} WHERE process = %s", [process])
    connection.execute("UPDATE penstock.lane SET cut_scn = NULL, cut_mark = NULL WHERE process = %s", [process])
    connection.execute(
        "UPDATE penstock.process SET consumer = gen_random_uuid(), set_id = NULL, set_place = NULL, anchor_scn = NULL,"
        " anchor_mark = NULL, low_watermark = 0, high_watermark = 0, consistent_at = NULL WHERE name = %s",
        [process],
    )


def switch(connection: Connection, process: str, source: str, taken: SwitchPosition) -> None:
    """Have a process follow another source, inside an open transaction: all positions are of that one from now on.

    What was copied stands for the copy that the other source tells of. The error queue is empty: its entries would name
    positions and versions of the former one.
    """
    for table in ("dictionary", "emptied", "applied"):
        connection.execute(f"DELETE FROM penstock.{table} WHERE process = %s", [process])
    connection.execute("UPDATE penstock.lane SET cut_scn = NULL, cut_mark = NULL WHERE process = %s", [process])
    found = taken.joined
    connection.execute(
        "UPDATE penstock.instantiation SET scn = %s, mark = NULL, snapshot = %s WHERE process = %s",
        [found.position, taken.copy, process],
    )
    if taken.applied:
        connection.execute(
            "INSERT INTO penstock.applied (process, highest_scn, commit_scns) VALUES (%s, %s, %s)",
            [process, taken.applied[-1], list(taken.applied)],
        )
    connection.execute(
        "UPDATE penstock.process SET source = %(source)s, set_id = %(set_id)s, set_place = %(place)s,"
        " anchor_scn = %(anchor)s, anchor_mark = %(mark)s, low_watermark = %(position)s, high_watermark = %(position)s"
        " WHERE name = %(process)s",
        {
            "source": source,
            "set_id": found.origin.set_id,
            "place": found.origin.place,
            "anchor": found.anchor.scn,
            "mark": found.anchor.mark,
            "position": found.position,
            "process": process,
        },
    )


def tables_with_rows(connection: Connection, names: Sequence[TableName]) -> list[TableName]:
    """Return the tables among `names` that hold rows; those of tables that inherit from them are theirs."""
    wanted = [(name, quote(name.schema, name.name)) for name in names]
    rows = connection.execute(
        "SELECT t FROM unnest(%s::text[]) t JOIN pg_class c ON c.oid = t::regclass WHERE c.relkind = 'p'",
        [[quoted for _, quoted in wanted]],
    )
    whole = {quoted for (quoted,) in rows}
    found: list[TableName] = []
    for first in range(0, len(wanted), _AT_ONCE):
        queries = [
            f"SELECT {place} WHERE EXISTS (SELECT FROM {quoted if quoted in whole else f'ONLY {quoted}'})"
            for place, (_, quoted) in enumerate(wanted[first : first + _AT_ONCE], first)
        ]
        found += [wanted[place][0] for (place,) in connection.execute(" UNION ALL ".join(queries))]
    return found


def only(connection: Connection, quoted: str) -> str:
    """Name a table in SQL without those that inherit from it; the partitions of a partitioned table are part of it."""
    row = connection.execute("SELECT relkind = 'p' FROM pg_class WHERE oid = %s::regclass", [quoted]).fetchone()
    return quoted if row is not None and row[0] else f"ONLY {quoted}"


def _exists(connection: Connection, name: TableName) -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [quote(name.schema, name.name)]).fetchone()
    return bool(row and row[0])


def _names(connection: Connection, texts: Sequence[str]) -> Mapping[str, str]:
    """How the server writes names, and how we do."""
    rows = connection.execute("SELECT t::regclass::text, t FROM unnest(%s::text[]) t", [list(texts)])
    return dict(rows.fetchall())
