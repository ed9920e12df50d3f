"""The errors Penstock raises on purpose, sorted by what the caller can do next.

Each one says what failed, where, and what to do. None of them ever holds a row value or a secret: a table, an
operation, a position and a constraint name are enough to find the rest. What others say is passed on by the functions
whose names begin with `redacted_`; docs/security.md lists them.
"""

from __future__ import annotations

import copyreg
import json
from typing import Any


class PenstockError(Exception):
    """Base of every error raised on purpose.

    Attributes:
        what: What could not be done, in lower case, without a full stop.
        where: The table, file, connection or position concerned; empty when `what` names it.
        do: What a person should do about it; empty when there is nothing but to wait.
    """

    exit_code = 3

    def __init__(self, what: str, *, where: str = "", do: str = "") -> None:
        super().__init__(what, where, do)
        self.what = what
        self.where = where
        self.do = do

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        said = f"{self.what}{place}"
        # One that asks "did you mean ...?" has its mark already.
        end = "" if said.endswith("?") else "."
        return f"{said}{end} {self.do[0].upper()}{self.do[1:]}" if self.do else said

    def __reduce__(self) -> tuple[Any, ...]:
        """Let pickle make it without `__init__`, whose parameters differ from class to class."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def to_json(self) -> str:
        """Return a text that `from_json` turns back into the same error, in another process.

        An error of a kind that is not defined here becomes the nearest one that is.
        """
        kind = next(base.__name__ for base in type(self).__mro__ if base.__name__ in _KINDS)
        fields: dict[str, object] = {"kind": kind, "what": self.what, "where": self.where, "do": self.do}
        if isinstance(self, TableError):
            fields["table"] = list(self.table)
        return json.dumps(fields)


class ConfigError(PenstockError):
    """The pipeline file or an option is wrong; nothing was touched."""

    exit_code = 2


class OperatorError(PenstockError):
    """A person must change something: a grant, a missing key, a full disk, a purged log."""


class TooManyErrorsError(OperatorError):
    """A run has put as many transactions into the error queue as it may."""

    exit_code = 6


class TableError(OperatorError):
    """Something is in the way of one table, and of no other.

    Attributes:
        table: Schema and name.
    """

    def __init__(self, what: str, *, where: str = "", do: str = "", table: tuple[str, str] = ("", "")) -> None:
        super().__init__(what, where=where, do=do)
        self.table = table

    @classmethod
    def of(cls, error: PenstockError, table: tuple[str, str]) -> TableError:
        """What an error means for the only table that it is about."""
        return cls(error.what, where=error.where, do=error.do, table=table)


class HandlerError(OperatorError):
    """A handler cannot be had, or did what it must not: the process stops, and no transaction fails for it."""


class RetryableError(PenstockError):
    """The same call may succeed later: a lost connection, a server that restarts, a deadlock victim."""

    exit_code = 4


class FencedError(PenstockError):
    """Another process or a newer attempt of the same task has taken over; this one must stop."""


class MalformedInputError(PenstockError):
    """Bytes or rows that were read break their own format."""


_KINDS = {
    kind.__name__: kind
    for kind in (
        PenstockError,
        ConfigError,
        OperatorError,
        TableError,
        TooManyErrorsError,
        HandlerError,
        RetryableError,
        FencedError,
        MalformedInputError,
    )
}


def from_json(text: str) -> PenstockError:
    """Rebuild the error that `PenstockError.to_json` wrote."""
    fields = json.loads(text)
    found = _KINDS[fields["kind"]](fields["what"], where=fields["where"], do=fields["do"])
    if isinstance(found, TableError):
        schema, name = fields["table"]
        found.table = schema, name
    return found
