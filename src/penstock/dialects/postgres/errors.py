"""What a PostgreSQL error means to us: retry, stop, or an apply error of one transaction."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import Any

import psycopg

from penstock.apply import apply_errors
from penstock.apply.apply_errors import ApplyError
from penstock.database import LockedError
from penstock.errors import OperatorError, PenstockError, RetryableError

LOGICAL_ERRORS = {
    "23505": apply_errors.UNIQUE_VIOLATED,
    "23P01": apply_errors.UNIQUE_VIOLATED,
    "23503": apply_errors.FOREIGN_KEY_VIOLATED,
    "23502": apply_errors.NULL_REFUSED,
    "23514": apply_errors.CHECK_VIOLATED,
    "22001": apply_errors.VALUE_TOO_LONG,
    "22P02": apply_errors.VALUE_MALFORMED,
    "22P05": apply_errors.VALUE_MALFORMED,
    "22021": apply_errors.VALUE_MALFORMED,
    "22003": apply_errors.VALUE_MALFORMED,
    "22007": apply_errors.VALUE_MALFORMED,
    "22008": apply_errors.VALUE_MALFORMED,
    "42703": apply_errors.COLUMN_MISSING,
    "42P01": apply_errors.TABLE_MISSING,
}
"""SQLSTATE to the numbers that the error queue gives errors on every database."""

_DATA_CLASSES = {"22", "23", "42", "44", "P0", "21", "09", "27", "HV", "54", "2F", "38", "39"}

_REFUSALS = {"0A000", "55000", "3F000", "53400"}
"""What a table cannot do as it stands, or a value that names what is not there."""

_CONTENTION = {"40001", "40P01", "55P03", "57014"}
"""Another session was in the way, or cancelled the statement: the same work is tried again at once."""

_ENDED = {"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04"}
"""The session was ended, as is every one of class 08: it is tried again on a new connection."""

_OUT_OF_ORDER = {"53100", "58030", "25006"}
"""The server has no room, cannot reach its disk, or takes no writes: no statement of any change would do better."""

_NO_RIGHT = "42501"

_NO_CHARACTER = "22021"
"""Bytes that are no character of the database's encoding."""

_MORE_RETRIED = {"53200", "53300"}
"""Out of memory, or of connections: tried again where the work is the process's own."""


class FailureScope(Enum):
    """Whose failure an error is that came up while a change's statement ran."""

    CHANGE = "its transaction goes to the error queue"
    CONTENTION = "the transaction is tried again at once, a few times; then it goes to the error queue"
    PROCESS = "nothing else could be applied either: the connection is lost, or a person must act"


def whose(exc: Exception, *, is_connected: bool) -> FailureScope:
    """Whose failure an error is that the driver or the server raised while a change's statement ran.

    The one rule of apply (ADR 70): as long as the connection lives, it is the change's, whatever the SQLSTATE, and also
    without one. The exceptions are listed above, and none of them says anything of a value.

    Args:
        is_connected: The connection is still open.
    """
    if not isinstance(exc, psycopg.Error):
        # An adapter of the driver's, in Python: nothing was sent.
        return FailureScope.CHANGE
    if not is_connected or exc.diag.severity_nonlocalized in ("FATAL", "PANIC"):
        return FailureScope.PROCESS
    if exc.sqlstate in _CONTENTION:
        return FailureScope.CONTENTION
    # A right that lacks has no context; what a function raises is about the row that it was called for.
    lacks_right = exc.sqlstate == _NO_RIGHT and not exc.diag.context
    return FailureScope.PROCESS if lacks_right or exc.sqlstate in _OUT_OF_ORDER else FailureScope.CHANGE


def refused(exc: Exception) -> ApplyError:
    """The error of one change that an error of its statement stands for; never with a row value."""
    if isinstance(exc, psycopg.Error) and exc.sqlstate is not None:
        return ApplyError(
            LOGICAL_ERRORS.get(exc.sqlstate, apply_errors.OTHER),
            _HOLDS_NUL if _is_of_nul(exc.diag) else redacted_message(exc.diag),
            code=exc.sqlstate,
            column=exc.diag.column_name,
            constraint=exc.diag.constraint_name,
        )
    number, what = _unsent(exc)
    return ApplyError(number, what)


_HOLDS_NUL = "a text holds a zero byte (NUL), which PostgreSQL does not store"


def _is_of_nul(diag: Any) -> bool:
    """Whether the server was sent a zero byte in a text, as COPY does. Its message ends in the bytes it refuses."""
    return diag.sqlstate == _NO_CHARACTER and (diag.message_primary or "").endswith(": 0x00")


def _unsent(exc: Exception) -> tuple[int, str]:
    """Why the driver does not send a value. Its own text may repeat a part of it."""
    if isinstance(exc, psycopg.DataError) and "NUL" in str(exc):
        return apply_errors.VALUE_MALFORMED, _HOLDS_NUL
    if isinstance(exc, UnicodeError):
        return apply_errors.VALUE_MALFORMED, "a text holds half of a surrogate pair, which UTF-8 cannot write"
    if isinstance(exc, MemoryError | OverflowError):
        return apply_errors.VALUE_TOO_LONG, "a value is too large for the driver"
    return apply_errors.OTHER, f"the driver does not take a value of the change ({type(exc).__name__})"


def is_retried(sqlstate: str) -> bool:
    """Whether work of the process's own is tried again after an error."""
    listed = _CONTENTION | _ENDED | _OUT_OF_ORDER | _MORE_RETRIED
    return sqlstate in listed or sqlstate.startswith("08")


def is_data_error(sqlstate: str | None) -> bool:
    """Whether an error of reading is about the rows that were read, and no others."""
    if sqlstate is None or sqlstate == _NO_RIGHT:
        return False
    return sqlstate[:2] in _DATA_CLASSES or sqlstate in _REFUSALS


def translate(exc: psycopg.Error, *, doing: str, where: str) -> PenstockError:
    """Say what a database error means for the whole process, without repeating any value it mentions.

    Args:
        doing: What was being done, for example `read the change log`.
        where: The connection, see `connection.label`.
    """
    if exc.sqlstate is None and not isinstance(exc, psycopg.OperationalError):
        # The driver's own, on a connection that may well live: trying again would not help.
        return OperatorError(f"cannot {doing}: {_unsent(exc)[1]}", where=where)
    return from_sqlstate(exc.sqlstate, doing=doing, where=where, reason=redacted_reason(exc))


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
        case "55P03":
            return LockedError(what, where=where, do="try again when no transaction keeps the table for long")
        case _ if sqlstate[:2] == "22":
            return OperatorError(what, where=where, do="a value cannot be read as what it should be; fix it")
        case _ if is_retried(sqlstate):
            return RetryableError(what, where=where)
        case _:
            return OperatorError(what, where=where)


def redacted_reason(exc: psycopg.Error) -> str:
    """The server's primary message, or the driver's first line; DETAIL is left out because it holds row values."""
    if exc.sqlstate and exc.sqlstate[:2] == "22":
        # Such a message repeats the value.
        return condition(exc.sqlstate)
    text = exc.diag.message_primary or str(exc).strip()
    return text.splitlines()[0] if text else type(exc).__name__


def redacted_message(diag: Any) -> str:
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
    # Classes 42 and 3F, too: a value may be the name of a table or a type, or be parsed. XX is what extensions raise
    # that gave their errors no class.
    is_hidden = diag.sqlstate and diag.sqlstate[:2] in ("22", "42", "3F", "XX")
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
    # Some have the name of a class of the driver's, and end in an underline.
    return "".join(" " + c.lower() if c.isupper() else c for c in name).strip(" _")
