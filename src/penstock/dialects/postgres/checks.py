"""What keeps either database from being set up."""

from __future__ import annotations

from penstock.dialects.postgres import ownership
from penstock.dialects.postgres.connection import Connection, label
from penstock.dialects.postgres.source import capture
from penstock.errors import OperatorError, PenstockError

_OLDEST = 14


def faults_of(connection: Connection, url: str, schema: str) -> list[PenstockError]:
    """What is wrong with a database as a whole."""
    faults: list[PenstockError] = []
    if connection.info.server_version < _OLDEST * 10_000:
        found = connection.info.parameter_status("server_version")
        what = f"PostgreSQL {found} is too old"
        faults.append(OperatorError(what, where=label(url), do=f"use PostgreSQL {_OLDEST} or later"))
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        what = "the database's encoding is SQL_ASCII, which does not say what its bytes mean"
        faults.append(OperatorError(what, where=label(url), do="use a database with a real encoding, best UTF8"))
    if capture.is_foreign(connection, schema):
        what = f"schema {schema!r} exists, and is not Penstock's"
        faults.append(OperatorError(what, where=label(url), do="rename it: Penstock keeps its own objects there"))
    else:
        faults += ownership.schema_faults(connection, schema)
    return faults
