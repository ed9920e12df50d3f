"""What can go wrong with one change at the target: conflicts and errors, by the numbers of the error queue."""

from __future__ import annotations

from collections.abc import Collection

from penstock.change import Image
from penstock.errors import PenstockError, RetryableError

OTHER = 0
UNIQUE_VIOLATED = 1
CONTENTION = 60
TABLE_MISSING = 942
NULL_REFUSED = 1400
MORE_THAN_ONE_ROW = 1422
VALUE_MALFORMED = 1722
CHECK_VIOLATED = 2290
FOREIGN_KEY_VIOLATED = 2291
CHILD_EXISTS = 2292
VALUE_TOO_LONG = 12899
ROW_DIFFERS = 26786
ROW_MISSING = 26787
NOT_INSTANTIATED = 26687
VALUE_MISSING = 26688
NOT_CAPTURED = 26690
DDL_NOT_CARRIED_OUT = 26691
MESSAGE_UNHANDLED = 26694
HANDLER_FAILED = 20000
HANDLER_LATE = 20001
STATEMENT_REFUSED = 20002
LCR_MALFORMED = 23605
LCR_COLUMN = 23607
COLUMN_MISSING = 26689
TYPE_DIFFERS = 26689

CONFLICTS = frozenset({UNIQUE_VIOLATED, FOREIGN_KEY_VIOLATED, CHILD_EXISTS, ROW_DIFFERS, ROW_MISSING})
"""Errors that mean the target's rows are not what the source's were."""


class ApplyError(PenstockError):
    """A change cannot be applied; its transaction goes to the error queue.

    Attributes:
        number: One of the numbers above, the same on every database.
        code: The database's own code, such as an SQLSTATE; None where we found it ourselves.
        found: The row as the target holds it, where one was found. For the error queue only, never for a log.
        column: The column whose value the target does not take, where the database named it.
        constraint: What the change breaks, where that has a name.
        differing: The columns of the row that was found that do not have the values they should.
    """

    def __init__(
        self,
        number: int,
        what: str,
        *,
        where: str = "",
        code: str | None = None,
        found: Image | None = None,
        column: str | None = None,
        constraint: str | None = None,
    ) -> None:
        super().__init__(what, where=where)
        self.number = number
        self.code = code
        self.found = found
        self.column = column
        self.constraint = constraint
        self.differing: tuple[str, ...] = ()

    @property
    def is_of_value(self) -> bool:
        """Whether a value is too long, out of range or not of its column's type, as the database or its driver says."""
        is_coded = self.code is not None and self.code.startswith("22")
        return is_coded or self.number in (VALUE_MALFORMED, VALUE_TOO_LONG)

    @property
    def may_be_of_value(self) -> bool:
        """Whether a value may be the cause, though nothing says so: a type's own function may raise anything."""
        return self.is_of_value or (self.number == OTHER and self.constraint is None)

    def with_found(self, found: Image) -> ApplyError:
        """Return the same error with the row that stands in the way."""
        return self._but(what=self.what, found=found, column=self.column)

    def with_differing(self, columns: Collection[str]) -> ApplyError:
        """Return the same error, with the columns of the row that was found that do not have the values they should."""
        made = self._but(what=self.what, found=self.found, column=self.column)
        made.differing = tuple(columns)
        return made

    def with_place(self, place: str) -> ApplyError:
        """Return the same error, saying where else it came up."""
        made = self._but(what=self.what, found=self.found, column=self.column)
        made.where = ", ".join(filter(None, [self.where, place]))
        made.args = (made.what, made.where, made.do)
        return made

    def with_cause(self, cause: ApplyError) -> ApplyError:
        """Return the same error, with the one that it came of below it."""
        return self._but(what=f"{self.what}; it was called for: {cause}", found=self.found, column=self.column)

    def with_column(self, column: str, type_: str) -> ApplyError:
        """Return the same error, saying which column of the target it is about, and of which type that is."""
        # A type's own code may refuse a text by any error; the column is known because it does.
        why = ", whose type does not take the value" if self.number == OTHER else ""
        what = f"{self.what}: column {column!r} is {type_} at the target{why}"
        return self._but(what=what, found=self.found, column=column)

    def _but(self, *, what: str, found: Image | None, column: str | None) -> ApplyError:
        made = ApplyError(
            self.number,
            what,
            where=self.where,
            code=self.code,
            found=found,
            column=column,
            constraint=self.constraint,
        )
        made.differing = self.differing
        return made


class ContentionError(RetryableError):
    """Another session was in the way; the same work may succeed at once.

    Attributes:
        message_number: The change that met it, counted from 1; 0 where none can be named.
        is_lock: A lock was waited for as long as was allowed.
    """

    message_number = 0
    is_lock = False


class SpeculationError(PenstockError):
    """The set path met something it may not decide; the row path must."""
