"""What a PostgreSQL error means to us: retry, stop, or an apply error of one transaction."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import psycopg

from penstock.apply import conflicts
from penstock.errors import OperatorError, PenstockError, RetryableError

LOGICAL_ERRORS = {
    "23505": conflicts.UNIQUE_VIOLATED,
    "23P01": conflicts.UNIQUE_VIOLATED,
    "23503": conflicts.FOREIGN_KEY_VIOLATED,
    "23502": conflicts.NULL_REFUSED,
    "23514": conflicts.CHECK_VIOLATED,
    "22001": conflicts.VALUE_TOO_LONG,
    "22P02": conflicts.VALUE_MALFORMED,
    "22003": conflicts.VALUE_MALFORMED,
    "22007": conflicts.VALUE_MALFORMED,
    "22008": conflicts.VALUE_MALFORMED,
    "42703": conflicts.COLUMN_MISSING,
    "42P01": conflicts.TABLE_MISSING,
}
"""SQLSTATE to the numbers that the error queue gives errors on every database."""

_CONTENTION = {"40P01", "55P03", "40001"}
_LOST = {"57P01", "57P02", "57P03", "57P04", "57P05", "57014", "25P03", "25P04", "25006"}
_REFUSALS = {"0A000", "55000", "3F000", "53400"}
"""The table as it stands takes no such change: it is published without a replica identity, or foreign and without a
way there; or a value names what the target has not."""

_DATA_CLASSES = {"22", "23", "42", "44", "P0", "21", "09", "27", "HV", "54", "2F", "38", "39"}


def is_contention(sqlstate: str | None) -> bool:
    """Whether another session was in the way, so that the same work may succeed at once."""
    return sqlstate in _CONTENTION


def is_data_error(sqlstate: str | None) -> bool:
    """Whether the transaction itself cannot be applied as the target stands: an error-queue entry."""
    if sqlstate is None or sqlstate == "42501":
        return False
    return sqlstate[:2] in _DATA_CLASSES or sqlstate in _REFUSALS


def translate(exc: psycopg.Error, *, doing: str, where: str) -> PenstockError:
    """Say what a database error means for the whole process, without repeating any value it mentions.

    Args:
        doing: What was being done, for example `read the change log`.
        where: The connection, see `connection.label`.
    """
    return from_sqlstate(exc.sqlstate, doing=doing, where=where, reason=reason(exc))


def from_sqlstate(sqlstate: str | None, *, doing: str, where: str, reason: str) -> PenstockError:
    """`translate` for drivers other than psycopg."""
    what = f"cannot {doing}: {reason}"
    match sqlstate:
        case None:
            return RetryableError(what, where=where, do="check that the server is up and reachable")
        case "28P01" | "28000":
            return OperatorError(what, where=where, do="check the user and the password in the connection's url")
        case "3D000":
            return OperatorError(what, where=where, do="create the database, or correct the url")
        case "42501":
            return OperatorError(what, where=where, do="`penstock plan --print-sql` prints the grants that are needed")
        case "53300":
            return RetryableError(what, where=where, do="close other sessions, or raise the limit")
        case "53100" | "53200" | "58030":
            return RetryableError(what, where=where, do="free space or memory on the database server")
        case "42P01" | "42703" | "42883" | "3F000":
            return OperatorError(what, where=where, do="run `penstock setup`")
        case _ if sqlstate[:2] == "22":
            return OperatorError(what, where=where, do="a value cannot be read as what it should be; mend it")
        case _ if sqlstate in _LOST or sqlstate in _CONTENTION or sqlstate.startswith("08"):
            return RetryableError(what, where=where)
        case _:
            return OperatorError(what, where=where)


def reason(exc: psycopg.Error) -> str:
    """The server's primary message, or the driver's first line; DETAIL is left out because it holds row values."""
    if exc.sqlstate and exc.sqlstate[:2] == "22":
        # Such a message repeats the value.
        return condition(exc.sqlstate)
    text = exc.diag.message_primary or str(exc).strip()
    return text.splitlines()[0] if text else type(exc).__name__


def safe_message(diag: Any) -> str:
    """An error queue's message: primary text with the constraint, column or type it names, never a row value.

    PostgreSQL puts the offending text itself into the primary message of some errors, so for those the condition's
    name stands in.
    """
    parts = [
        f"{kind} {name!r}"
        for kind, name in (
            ("table", f"{diag.schema_name}.{diag.table_name}" if diag.table_name else None),
            ("column", diag.column_name),
            ("constraint", diag.constraint_name),
            ("type", diag.datatype_name),
        )
        if name
    ]
    words = condition(diag.sqlstate) if diag.sqlstate else "error"
    # Classes 42 and 3F, too: a value may be the name of a table or a type, or be parsed.
    is_hidden = diag.sqlstate and diag.sqlstate[:2] in ("22", "42", "3F")
    text = words if is_hidden else diag.message_primary or words
    if diag.sqlstate == "42703":
        text += ": the table was altered at the target while this was applied"
    return f"{text} ({', '.join(parts)})" if parts else text


def copied_column(diag: Any, names: Iterable[str]) -> str | None:
    """Which of the columns a COPY failed at; None where the server does not say so, or not in English.

    Its context goes on with the value, so nothing but a name that is known may be taken from it.
    """
    for place in re.findall(r"^COPY .*?, line \d+, column (.*)", diag.context or "", re.MULTILINE):
        # A name may begin as another one does, and hold a colon.
        for name in sorted(names, key=len, reverse=True):
            # In a staging table it has a prefix.
            if f"{place}:".startswith((f"{name}:", f"n_{name}:")):
                return name
    return None


def condition(sqlstate: str) -> str:
    """The name of an error condition, in words."""
    try:
        name = psycopg.errors.lookup(sqlstate).__name__
    except KeyError:
        return f"SQLSTATE {sqlstate}"
    return "".join(" " + c.lower() if c.isupper() else c for c in name).strip()
