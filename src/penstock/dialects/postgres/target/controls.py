"""What is said to an apply process through its ledger: parameters that were set, and that it is to stop."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.apply.ledger import StopRequest
from penstock.dialects.postgres.connection import Connection


def parameters(connection: Connection, process: str) -> Mapping[str, str]:
    """Return what was set, by name."""
    return dict(connection.execute("SELECT name, value FROM penstock.parameter WHERE process = %s", [process]))


def set_parameter(connection: Connection, process: str, name: str, value: str | None) -> None:
    """Keep the value of a parameter; None forgets it."""
    if value is None:
        connection.execute("DELETE FROM penstock.parameter WHERE (process, name) = (%s, %s)", [process, name])
        return
    connection.execute(
        "INSERT INTO penstock.parameter (process, name, value) VALUES (%s, %s, %s)"
        " ON CONFLICT (process, name) DO UPDATE SET value = excluded.value, set_by = current_user, set_at = now()",
        [process, name, value],
    )


def ask_to_stop(connection: Connection, process: str, request: StopRequest | None) -> None:
    """Ask the process to stop; None takes it back."""
    if request is None:
        connection.execute("DELETE FROM penstock.stop_request WHERE process = %s", [process])
        return
    connection.execute(
        "INSERT INTO penstock.stop_request (process, request) VALUES (%s, %s)"
        " ON CONFLICT (process) DO UPDATE SET request = excluded.request",
        [process, request],
    )


def stop_request(connection: Connection, process: str) -> StopRequest | None:
    """Return how the process is asked to stop, if it is."""
    row = connection.execute("SELECT request FROM penstock.stop_request WHERE process = %s", [process]).fetchone()
    return StopRequest(row[0]) if row is not None else None
