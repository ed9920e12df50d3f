"""What may keep a PostgreSQL database from being a source or a target, beyond what `plan` and `status` know."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg

from penstock.change import TableName
from penstock.dialects.postgres.catalog import current_user, list_tables
from penstock.dialects.postgres.connection import Connection, connect, label, literal, quote, speaking
from penstock.dialects.postgres.survey import survey
from penstock.dialects.postgres.waits import describe_session
from penstock.examination import DatabaseFacts, Examination, Finding, Severity, disk_finding
from penstock.patterns import TablePattern
from penstock.text import count, duration, size

_OPEN_FOR_S = 15 * 60
"""Transactions that are open for longer are named, as `status` does."""

_PREPARED_FOR_S = 60
_WAITS_FOR_S = 5
_HELD_BYTES = 1 << 30
"""Write-ahead log that a slot may keep without being named."""

_OLDEST_XID = 1_500_000_000
"""Of the two thousand million transactions after which a server refuses to write."""

_HERE = ("", "localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class ExaminedPart:
    """What a database is examined for.

    Attributes:
        patterns: Of the tables that are looked at; none: no table is.
        is_source: Users' changes are captured here.
        sessions: How many connections a run opens here.
    """

    patterns: tuple[str, ...] = ()
    is_source: bool = False
    sessions: int = 1


def examine(url: str, asked: ExaminedPart) -> Examination:
    """Look at a database; nothing is changed, and no row of a table is read.

    Raises:
        PenstockError: It cannot be connected to, or asked.
    """
    with closing(connect(url, "penstock doctor")) as connection, speaking("examine the database", url):
        # Whatever is in the way, the looks go on.
        connection.execute("SET statement_timeout = '4s'; SET lock_timeout = '1s'")
        facts = survey(connection, url, _meant(connection, asked.patterns))
        look = _Look(connection, label(url), asked)
        return Examination(facts, [_server(facts), *look.all()])


def _meant(connection: Connection, patterns: tuple[str, ...]) -> list[TableName]:
    wanted = [TablePattern.parse(pattern) for pattern in patterns]
    roots = list_tables(connection)
    found = {table for table in roots if any(pattern.matches(table) for pattern in wanted)}
    return sorted(table for table in found if roots[table] == table or roots[table] not in found)


def _server(facts: DatabaseFacts) -> Finding:
    answer = f"answers in {facts.answer_s * 1000:.0f} ms"
    return Finding(Severity.OK, "connection", f"{facts.version} {answer}", facts.label)


@dataclass(frozen=True)
class _Look:
    """One session of a database that is looked at."""

    connection: Connection
    where: str
    asked: ExaminedPart

    def all(self) -> Iterator[Finding]:
        looks: list[Callable[[], Iterator[Finding]]] = [
            self._writable,
            self._connections,
            self._open_transactions,
            self._prepared_transactions,
            self._locks,
            self._slots,
            self._identities,
            self._collation,
            self._durability,
            self._wraparound,
            self._disk,
        ]
        if self.asked.is_source:
            looks.append(self._silent_triggers)
        for look in looks:
            try:
                yield from list(look())
            except psycopg.Error as exc:
                if self.connection.closed:
                    raise
                name = look.__name__.strip("_").replace("_", " ")
                what = f"cannot look at {name}: SQLSTATE {exc.sqlstate}"
                yield self._found(Severity.WARNING, "rights", what, f"GRANT pg_monitor TO {self._user};")

    def _found(self, severity: Severity, look: str, what: str, do: str = "") -> Finding:
        return Finding(severity, look, what, self.where, do)

    @property
    def _user(self) -> str:
        return quote(current_user(self.connection))

    @property
    def _database(self) -> str:
        return quote(self.connection.info.dbname)

    def _writable(self) -> Iterator[Finding]:
        row = self.connection.execute("SELECT pg_is_in_recovery()").fetchone()
        if row is not None and row[0]:
            what = "the server is a standby, and takes no writes"
            yield self._found(Severity.FAULT, "standby", what, "name the primary in the connection's url")

    def _connections(self) -> Iterator[Finding]:
        row = self.connection.execute(
            "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
            " - coalesce(nullif(current_setting('reserved_connections', true), ''), '0')::int"
            " - (SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database)::int,"
            " (SELECT CASE WHEN rolconnlimit >= 0 THEN rolconnlimit"
            "   - (SELECT count(*) FROM pg_stat_activity WHERE usename = rolname)::int END"
            "   FROM pg_roles WHERE rolname = current_user),"
            " (SELECT CASE WHEN datconnlimit >= 0 THEN datconnlimit"
            "   - (SELECT count(*) FROM pg_stat_activity a WHERE a.datname = d.datname)::int END"
            "   FROM pg_database d WHERE datname = current_database())"
        ).fetchone()
        assert row is not None
        needed = self.asked.sessions
        limits = (
            (row[0], "the server", "raise max_connections, or end sessions that nobody needs"),
            (row[1], f"role {self._user}", f"ALTER ROLE {self._user} CONNECTION LIMIT -1;"),
            (row[2], f"database {self._database}", f"ALTER DATABASE {self._database} CONNECTION LIMIT -1;"),
        )
        for left, of, do in limits:
            if left is not None and left < needed:
                what = f"{of} has {count(max(0, left), 'connection')} left, and a run opens up to {needed}"
                yield self._found(Severity.WARNING, "connections", what, do)

    def _open_transactions(self) -> Iterator[Finding]:
        rows = self.connection.execute(
            "SELECT pid, usename, application_name, state, extract(epoch FROM now() - xact_start)::float8"
            " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND xact_start < now() - make_interval(secs => %s) ORDER BY xact_start LIMIT 5",
            [_OPEN_FOR_S],
        )
        for pid, user, program, state, open_s in rows.fetchall():
            described = describe_session(user, program, state, None)
            what = f"session {pid} ({described}) has had a transaction open for {duration(open_s)}"
            do = f"SELECT pg_terminate_backend({pid});"
            if state is not None and state.startswith("idle in transaction"):
                limit = f"ALTER DATABASE {self._database} SET idle_in_transaction_session_timeout = '{_OPEN_FOR_S}s';"
                do = f"{do} and so that none stays open: {limit}"
            yield self._found(Severity.WARNING, "transactions", what, do)

    def _prepared_transactions(self) -> Iterator[Finding]:
        rows = self.connection.execute(
            "SELECT gid, extract(epoch FROM now() - prepared)::float8 FROM pg_prepared_xacts"
            " WHERE database = current_database() AND prepared < now() - make_interval(secs => %s)"
            " ORDER BY prepared LIMIT 5",
            [_PREPARED_FOR_S],
        )
        for gid, age_s in rows.fetchall():
            what = f"prepared transaction {gid!r} has waited for {duration(age_s)}, and holds its locks"
            do = f"COMMIT PREPARED {literal(gid)}; or ROLLBACK PREPARED {literal(gid)};"
            yield self._found(Severity.WARNING, "prepared", what, do)

    def _locks(self) -> Iterator[Finding]:
        rows = self.connection.execute(
            "SELECT n.nspname, c.relname, count(DISTINCT l.pid),"
            " extract(epoch FROM now() - min(l.waitstart))::float8, min(b.pid)"
            " FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace"
            " LEFT JOIN LATERAL unnest(pg_blocking_pids(l.pid)) b (pid) ON true"
            " WHERE NOT l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND l.waitstart < now() - make_interval(secs => %s) GROUP BY 1, 2 ORDER BY 4 DESC LIMIT 5",
            [_WAITS_FOR_S],
        )
        for schema, name, waiting, wait_s, holder in rows.fetchall():
            by = f"session {holder} holds" if holder else "a prepared transaction holds"
            what = (
                f"{by} a lock on {TableName(schema, name)}: {count(waiting, 'session')} waiting for {duration(wait_s)}"
            )
            do = (
                f"SELECT pg_terminate_backend({holder});" if holder else "SELECT gid FROM pg_prepared_xacts; and end it"
            )
            yield self._found(Severity.WARNING, "locks", what, do)

    def _slots(self) -> Iterator[Finding]:
        rows = self.connection.execute(
            "SELECT slot_name, active, wal_status = 'lost', pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery()"
            " THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn)::bigint"
            " FROM pg_replication_slots ORDER BY 4 DESC NULLS LAST"
        )
        for name, is_active, is_lost, held in rows.fetchall():
            drop = f"SELECT pg_drop_replication_slot({literal(name)});"
            if is_lost:
                yield self._found(Severity.WARNING, "wal", f"replication slot {name!r} has lost its log", drop)
            elif held is not None and held > _HELD_BYTES:
                idle = "" if is_active else ", and nobody reads it"
                what = f"replication slot {name!r} keeps {size(held)} of write-ahead log{idle}"
                do = f"start its reader, or {drop}" if not is_active else "see why its reader is behind"
                yield self._found(Severity.WARNING, "wal", what, do)

    def _identities(self) -> Iterator[Finding]:
        rows = self.connection.execute(
            "SELECT n.nspname, c.relname, min(p.pubname) FROM pg_publication_tables t"
            " JOIN pg_publication p ON p.pubname = t.pubname AND (p.pubupdate OR p.pubdelete)"
            " JOIN pg_namespace n ON n.nspname = t.schemaname"
            " JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename"
            " WHERE c.relkind = 'r' AND (c.relreplident = 'n' OR c.relreplident = 'd' AND NOT EXISTS"
            "   (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)"
            " OR c.relreplident = 'i' AND NOT EXISTS"
            "   (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident)) GROUP BY 1, 2 ORDER BY 1, 2"
        )
        for schema, name, publication in rows.fetchall():
            what = (
                f"{TableName(schema, name)} has no replica identity, and publication {publication!r} has it: UPDATE and"
                " DELETE fail"
            )
            do = f"ALTER TABLE {quote(schema, name)} REPLICA IDENTITY FULL;"
            yield self._found(Severity.FAULT, "replica_identity", what, do)

    def _collation(self) -> Iterator[Finding]:
        if self.connection.info.server_version < 150000:
            return
        row = self.connection.execute(
            "SELECT datcollversion, pg_database_collation_actual_version(oid) FROM pg_database"
            " WHERE datname = current_database()"
        ).fetchone()
        if row is not None and row[0] is not None and row[1] is not None and row[0] != row[1]:
            what = f"indexes of texts were built with collation version {row[0]}, and the system has {row[1]}"
            do = f"REINDEX DATABASE {self._database}; ALTER DATABASE {self._database} REFRESH COLLATION VERSION;"
            yield self._found(Severity.WARNING, "collation", what, do)

    def _durability(self) -> Iterator[Finding]:
        rows = self.connection.execute(
            "SELECT name FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off' ORDER BY 1"
        )
        for (name,) in rows.fetchall():
            what = f"{name} is off: a crash of the machine may destroy the database"
            do = f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();"
            yield self._found(Severity.WARNING, "durability", what, do)

    def _wraparound(self) -> Iterator[Finding]:
        row = self.connection.execute(
            "SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()"
        ).fetchone()
        if row is not None and row[0] > _OLDEST_XID:
            what = f"{row[0]:,} transactions since the last freeze; the server refuses to write after 2,147 million"
            yield self._found(Severity.WARNING, "wraparound", what, "VACUUM (FREEZE);")

    def _silent_triggers(self) -> Iterator[Finding]:
        rows = self.connection.execute(
            "SELECT d.datname, r.rolname FROM pg_db_role_setting s LEFT JOIN pg_database d ON d.oid = s.setdatabase"
            " LEFT JOIN pg_roles r ON r.oid = s.setrole WHERE (s.setdatabase = 0 OR d.datname = current_database())"
            " AND EXISTS (SELECT FROM unnest(s.setconfig) c WHERE c = 'session_replication_role=replica')"
        )
        for database, role in rows.fetchall():
            of = f"ROLE {quote(role)}" if role else f"DATABASE {quote(database)}"
            within = f" IN DATABASE {quote(database)}" if role and database else ""
            whose = f"role {role!r}" if role else f"database {database!r}"
            what = f"{whose} has session_replication_role replica: no capture trigger fires for its changes"
            do = f"ALTER {of}{within} RESET session_replication_role;"
            yield self._found(Severity.FAULT, "triggers", what, do)

    def _disk(self) -> Iterator[Finding]:
        host = self.connection.info.host or ""
        row = self.connection.execute(
            "SELECT CASE WHEN pg_has_role('pg_read_all_settings', 'USAGE') THEN current_setting('data_directory') END"
        ).fetchone()
        folder = row[0] if row is not None else None
        is_here = host in _HERE or host.startswith("/")
        if folder is None or not is_here:
            return
        try:
            usage = shutil.disk_usage(Path(folder))
        except OSError:
            # The server is in a container, or on another machine behind a tunnel.
            return
        yield disk_finding("disk of the data folder", usage.free, usage.total, self.where)
