"""Which history a capture set is, and its consumers: its tables `identity` and `consumer`, see sql/history.sql."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from penstock.dialects.postgres.connection import Connection, at_once, literal, quote
from penstock.dialects.postgres.resources import sql_text
from penstock.dialects.postgres.source.ticks import Ticks
from penstock.history import CaptureOrigin, Consumer, ConsumerState, History, LogHold, OpenTransaction, SourceFacts
from penstock.position import Anchor, Scn
from penstock.text import printable

DATABASE_PLACE = (
    "SELECT pg_catalog.concat_ws('/', c.system_identifier, d.oid)"
    " FROM pg_catalog.pg_control_system() c, pg_catalog.pg_database d"
    " WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()"
)
"""A query for what tells a database from all others: a copy of it on another server, or beside it, has another place.

A standby has the place of the server that it takes over from.
"""

_COPIED_COLUMNS = "id, name, target, target_place"


def history_script(name: str) -> str:
    """SQL that makes the tables of a capture set, or brings them up to date."""
    return sql_text("history").format(set=quote(name), name=literal(name), place=f"({set_place(name)})")


def history_teardown(name: str) -> list[str]:
    """SQL that removes them; sets that an earlier version installed have none."""
    return [f"DROP TABLE IF EXISTS {quote(name)}.{table}" for table in ("consumer", "identity")]


def read_facts(session: Connection, set_name: str, ticks: Ticks, history: History) -> SourceFacts:
    """Read what a set holds of a process's history."""
    found = session.execute(
        f"SELECT set_id::text, place, ({set_place(set_name)}) FROM {quote(set_name)}.identity"
    ).fetchone()
    assert found is not None
    base, behind = ticks.at_or_before(history.position), ticks.behind(history.position)
    consumer = history.consumer
    earlier = session.execute(
        f"SELECT {_COPIED_COLUMNS} FROM {quote(set_name)}.consumer"
        " WHERE name = %s AND target_place = %s AND id <> %s LIMIT 1",
        [consumer.name, consumer.target_place, consumer.id],
    ).fetchone()
    return SourceFacts(
        origin=CaptureOrigin(found[0], found[1]),
        place=found[2],
        first=ticks.first().anchor,
        last=ticks.last().anchor,
        base=base.anchor if base is not None else None,
        is_readable=base is not None and (behind is not None or base.scn == history.position),
        has_newest=history.newest is not None and ticks.has(history.newest),
        earlier=Consumer(*earlier) if earlier is not None else None,
    )


def register(session: Connection, set_name: str, consumer: Consumer, position: Scn, base: Anchor) -> bool:
    """Have the log kept for a consumer from a position on; False when its `base` was freed in the meantime."""
    quoted = quote(set_name)
    values = [consumer.id, consumer.name, consumer.target, consumer.target_place]
    texts = ", ".join("NULL" if value is None else literal(value) for value in values)
    # No session frees the log meanwhile, see `ChangeLog.free`.
    _, registered = at_once(
        session,
        f"LOCK TABLE {quoted}.consumer IN SHARE ROW EXCLUSIVE MODE",
        f"INSERT INTO {quoted}.consumer ({_COPIED_COLUMNS}, scn) SELECT {texts}, {position}"
        f" WHERE EXISTS (SELECT FROM {quoted}.tick WHERE scn = {base.scn} AND mark = {literal(base.mark)})"
        " ON CONFLICT (id) DO UPDATE SET name = excluded.name, target = excluded.target,"
        " target_place = excluded.target_place, scn = excluded.scn, seen_at = pg_catalog.clock_timestamp()",
    )
    return registered == 1


def move(session: Connection, set_name: str, consumer: str, position: Scn) -> bool:
    """Note that a consumer needs nothing at or before a position any more; False when there is no such consumer."""
    return session.execute(moving(set_name, consumer, position)).rowcount == 1


def moving(set_name: str, consumer: str, position: Scn) -> str:
    """SQL for `move`."""
    return (
        f"UPDATE {quote(set_name)}.consumer SET scn = {position}, seen_at = pg_catalog.clock_timestamp()"
        f" WHERE id = {literal(consumer)}"
    )


def touch(session: Connection, set_name: str, consumer: str) -> None:
    """Note that a consumer is there."""
    session.execute(
        f"UPDATE {quote(set_name)}.consumer SET seen_at = pg_catalog.clock_timestamp() WHERE id = %s", [consumer]
    )


def places(session: Connection, set_name: str, consumer: str) -> tuple[Scn | None, Scn | None]:
    """Return the position of a consumer, and of the other that is furthest behind; None where there is none."""
    row = session.execute(
        f"SELECT min(scn) FILTER (WHERE id = %(id)s), min(scn) FILTER (WHERE id <> %(id)s)"
        f" FROM {quote(set_name)}.consumer",
        {"id": consumer},
    ).fetchone()
    assert row is not None
    own, others = (None if scn is None else Scn(scn) for scn in row)
    return own, others


def consumers(session: Connection, set_name: str) -> Sequence[ConsumerState]:
    """Return the consumers of a set, and what each holds back, the furthest behind first."""
    quoted = quote(set_name)
    # A position inside an interval counts as the cut before it: what is kept is whole intervals.
    rows = session.execute(
        "SELECT c.id, c.name, c.target, c.target_place, c.scn, l.transactions, l.size_bytes, l.oldest_at, c.seen_at"
        f" FROM {quoted}.consumer c CROSS JOIN LATERAL (SELECT coalesce((SELECT t.snapshot FROM {quoted}.tick t"
        " WHERE t.scn <= c.scn ORDER BY t.scn DESC LIMIT 1), '1:1:') AS snapshot) t"
        " CROSS JOIN LATERAL (SELECT count(DISTINCT xid) AS transactions,"
        " coalesce(sum(coalesce(pg_column_size(before), 0) + coalesce(pg_column_size(after), 0) + 64), 0)::bigint"
        f" AS size_bytes, min(at) AS oldest_at FROM {quoted}.log"
        " WHERE xid >= pg_snapshot_xmin(t.snapshot) AND NOT pg_visible_in_snapshot(xid, t.snapshot)) l"
        " ORDER BY c.scn, c.name, c.id"
    )
    return [
        ConsumerState(Consumer(id_, name, target, place), Scn(scn), *state)
        for id_, name, target, place, scn, *state in rows
    ]


_OPEN = """
SELECT 'session ' || pid || concat(' of ' || usename, ', ' || NULLIF(application_name, '')), xact_start
FROM pg_catalog.pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
  AND xact_start < clock_timestamp() - %(age)s::interval
UNION ALL
SELECT concat('prepared transaction ', quote_literal(gid), ' of ', owner), prepared
FROM pg_catalog.pg_prepared_xacts
WHERE database = current_database() AND prepared < clock_timestamp() - %(age)s::interval
UNION ALL
SELECT concat('replication slot ', slot_name), NULL FROM pg_catalog.pg_replication_slots
WHERE xmin IS NOT NULL AND NOT active
ORDER BY 2, 1
"""
"""What keeps freed rows on disk: sessions, whose age only their own role and pg_read_all_stats see, and others."""

_SIZE = """
SELECT pg_catalog.pg_total_relation_size(c.oid),
  (pg_catalog.pg_total_relation_size(c.oid) * pg_catalog.pg_stat_get_dead_tuples(c.oid)::float8
    / greatest(pg_catalog.pg_stat_get_dead_tuples(c.oid) + pg_catalog.pg_stat_get_live_tuples(c.oid), 1))::bigint
FROM pg_catalog.pg_class c WHERE c.oid = %s::regclass
"""


def log_hold(session: Connection, set_name: str, older: timedelta) -> LogHold:
    """Say what disk the log takes, and for whom; names transactions that are open for longer than `older`."""
    row = session.execute(_SIZE, [f"{quote(set_name)}.log"]).fetchone()
    assert row is not None
    size, dead = row
    open_ = [
        OpenTransaction(printable(holder), since, dead)
        for holder, since in session.execute(_OPEN, {"age": older}).fetchall()
    ]
    return LogHold(size, consumers(session, set_name), open_)


def removal(set_name: str, consumer: Consumer) -> str:
    """SQL that removes a consumer, also under ids that it had before its ledger was lost; see `is_same`."""
    same = f"id = {literal(consumer.id)}"
    if consumer.target_place is not None:
        same += f" OR name = {literal(consumer.name)} AND target_place = {literal(consumer.target_place)}"
    return f"DELETE FROM {quote(set_name)}.consumer WHERE {same}"


def is_same(one: Consumer, other: Consumer) -> bool:
    """Whether two are the same process of the same target, now or before its ledger was lost."""
    is_placed = one.target_place is not None
    return one.id == other.id or (is_placed and (one.name, one.target_place) == (other.name, other.target_place))


def has_history(session: Connection, set_name: str) -> bool:
    """Whether the set is of a version that has these tables."""
    row = session.execute("SELECT to_regclass(%s) IS NOT NULL", [f"{quote(set_name)}.consumer"]).fetchone()
    return bool(row and row[0])


def is_in_place(session: Connection, set_name: str) -> bool:
    """Whether the set is where it was made, and not a copy of it."""
    row = session.execute(f"SELECT place = ({set_place(set_name)}) FROM {quote(set_name)}.identity").fetchone()
    return bool(row and row[0])


def set_of(session: Connection, origin: CaptureOrigin) -> str | None:
    """Return the schema that a set was made in, whatever it is called; None where it is not in this database."""
    row = session.execute(
        f"SELECT n.nspname FROM pg_catalog.pg_namespace n WHERE concat_ws('/', ({DATABASE_PLACE}), n.oid) = %s",
        [origin.place],
    ).fetchone()
    return str(row[0]) if row else None


def set_place(name: str) -> str:
    """A query for where a set is: its database, and its schema, which a dump that is read in again makes anew."""
    return (
        f"SELECT pg_catalog.concat_ws('/', ({DATABASE_PLACE}), n.oid) FROM pg_catalog.pg_namespace n"
        f" WHERE n.nspname OPERATOR(pg_catalog.=) {literal(name)}"
    )
