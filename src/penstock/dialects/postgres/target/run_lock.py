"""The advisory lock that makes a run the only one of its process: it is held as long as the run's session lives.

`ledger.PostgresLedger` takes it, and refuses a second run.
"""

from __future__ import annotations

import os
import platform
import re
from datetime import datetime
from typing import TypeAlias

from penstock.apply.ledger import RunPlace
from penstock.dialects.postgres.connection import Connection
from penstock.dialects.postgres.waits import describe_session

Session: TypeAlias = tuple[int, datetime]
"""A session by its server's process id, and when it began: an id may be taken anew."""

_LOCK = (
    "l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND l.classid::bigint = hashtext('penstock')::bigint & 4294967295"
    " AND l.objid::bigint = hashtext(%s)::bigint & 4294967295"
)


def take(connection: Connection, process: str) -> Session | None:
    """Take a process's lock, for as long as this session lives; return the session, or None if another one has it.

    From then on the session's application name ends in where its program runs; see `place`.
    """
    row = connection.execute(
        "SELECT pg_try_advisory_lock(hashtext('penstock'), hashtext(%s)), pid, backend_start"
        " FROM pg_stat_activity WHERE pid = pg_backend_pid()",
        [process],
    ).fetchone()
    if row is None or not row[0]:
        return None
    connection.execute(
        "SELECT set_config('application_name', concat(current_setting('application_name'), ' ', %s::text), false)",
        [f"{os.getpid()}@{platform.node()}"],
    )
    return row[1], row[2]


def is_free(connection: Connection, process: str) -> bool:
    """Whether no other session has a process's lock; it is this one's then until the transaction ends."""
    row = connection.execute(
        "SELECT pg_try_advisory_xact_lock(hashtext('penstock'), hashtext(%s))", [process]
    ).fetchone()
    return bool(row and row[0])


def is_taken(connection: Connection, process: str) -> bool:
    """Whether a session has a process's lock. Takes nothing."""
    row = connection.execute(f"SELECT EXISTS (SELECT FROM pg_locks l WHERE {_LOCK})", [process]).fetchone()
    return bool(row and row[0])


def place(connection: Connection, process: str) -> RunPlace | None:
    """Return where the program runs that has a process's lock; None if none has, or its session does not say so."""
    row = connection.execute(
        f"SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE {_LOCK}", [process]
    ).fetchone()
    found = re.search(r" (\d+)@(.+)$", row[0] or "") if row else None
    return None if found is None else RunPlace(found[2], int(found[1]))


def holder(connection: Connection, process: str) -> str:
    """Describe the session that has a process's lock, to end a message: any user who may connect can take it."""
    row = connection.execute(
        "SELECT l.pid, a.usename, a.application_name, a.state,"
        " extract(epoch FROM clock_timestamp() - a.xact_start)::float8"
        f" FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid) WHERE {_LOCK}",
        [process],
    ).fetchone()
    if row is None:
        return ""
    pid, *of_session = row
    return f": session {pid} ({describe_session(*of_session) or 'it cannot be seen'}) has its lock"


def end(connection: Connection, session: Session) -> None:
    """End a session that had the lock, unless it is this one."""
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid = %s AND backend_start = %s AND pid <> pg_backend_pid()",
        session,
    )
