"""What people did with entries of the error queue, as a PostgreSQL ledger keeps it."""

from __future__ import annotations

from psycopg.rows import dict_row

from penstock.apply.error_queue import Actor, EntryAction, EntryOutcome, Note, PastAction
from penstock.dialects.postgres.connection import Connection


def write_action(connection: Connection, process: str, actor: Actor, note: Note) -> None:
    """Write down a deed, inside the open transaction if there is one."""
    entry = note.entry
    connection.execute(
        "INSERT INTO penstock.error_action (process, os_user, host, action, outcome, error_id, txn_id, commit_scn,"
        " role, edits, error_number, error_message, note) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [
            process,
            actor.os_user,
            actor.host,
            note.deed,
            note.outcome,
            int(entry.id.rpartition(".")[2]),
            entry.txn_id,
            entry.commit_scn,
            note.role,
            list(note.edits),
            note.error_number,
            note.error,
            note.note,
        ],
    )


def read_actions(connection: Connection, process: str, error_id: int | None, most: int) -> list[PastAction]:
    """Return the last deeds of a process, the oldest of them first; those with one entry if `error_id` names it."""
    rows = connection.cursor(row_factory=dict_row).execute(
        "SELECT at, db_user, os_user, host, action, outcome, error_id, txn_id, commit_scn, role, edits, error_number,"
        " error_message, note FROM penstock.error_action WHERE process = %(process)s"
        " AND (error_id = %(entry)s OR %(entry)s::bigint IS NULL) ORDER BY id DESC LIMIT %(most)s",
        {"process": process, "entry": error_id, "most": most},
    )
    found = [
        PastAction(
            **{name: value for name, value in row.items() if name not in ("error_id", "action", "outcome")},
            entry_id=f"{process}.{row['error_id']}",
            action=EntryAction(row["action"]),
            outcome=EntryOutcome(row["outcome"]),
        )
        for row in rows
    ]
    return found[::-1]


def read_deleted(connection: Connection, process: str, first: int, last: int) -> set[int]:
    """Return the positions, from one to another, of transactions that were deleted from the queue of a process."""
    rows = connection.execute(
        "SELECT DISTINCT commit_scn FROM penstock.error_action"
        " WHERE process = %s AND outcome = %s AND commit_scn BETWEEN %s AND %s",
        [process, EntryOutcome.DELETED, first, last],
    )
    return {commit_scn for (commit_scn,) in rows}
