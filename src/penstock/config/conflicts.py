"""The parts `conflicts` and `on_error` of a table in a pipeline file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field, field_validator, model_validator

from penstock.apply.conflict_methods import ConflictKind, ErrorAction, ErrorRule, Method, Resolver
from penstock.change import Op
from penstock.config.parts import ConfigPart

_VALUES_WIN = (Method.OVERWRITE, Method.DISCARD, Method.RECORD)
_COMPARED = (Method.MAXIMUM, Method.MINIMUM, Method.MAXIMUM_AND_EQUAL, Method.MINIMUM_AND_EQUAL)

_METHODS: Mapping[tuple[Op, ConflictKind], Sequence[Method]] = {
    (Op.INSERT, ConflictKind.EXISTS): (*_VALUES_WIN, *_COMPARED),
    (Op.UPDATE, ConflictKind.EXISTS): (*_VALUES_WIN, *_COMPARED, Method.DELTA),
    (Op.UPDATE, ConflictKind.MISSING): _VALUES_WIN,
    (Op.DELETE, ConflictKind.EXISTS): _VALUES_WIN,
    (Op.DELETE, ConflictKind.MISSING): (Method.DISCARD, Method.RECORD),
}
"""The methods that each kind of conflict may have."""


_LONGEST_OPEN_S = 240
"""Servers end a session of an apply server that does nothing in an open transaction for five minutes."""


class ConflictConfig(ConfigPart):
    """How one kind of conflict of a table is resolved, for a list of columns."""

    on: Literal["insert", "update", "delete"] = Field(description="The operation that meets the conflict")
    row: ConflictKind = Field(
        default=ConflictKind.EXISTS,
        description="exists: the row has other values, or, for an insert, a row has one of its unique keys; missing:"
        " there is no row with the key",
    )
    columns: list[str] | None = Field(
        default=None, min_length=1, description="The list of columns that is decided about; all of them if absent"
    )
    method: Literal[
        "overwrite",
        "discard",
        "ignore",
        "maximum",
        "minimum",
        "maximum_and_equal",
        "minimum_and_equal",
        "delta",
        "record",
    ] = Field(
        description="overwrite: the incoming values win; discard, or ignore: those at the target stay; maximum, minimum"
        " (_and_equal): whichever has the higher, or lower, value in `by`; delta: the difference is added; record: the"
        " change goes to the error queue by itself"
    )
    by: str | None = Field(default=None, min_length=1, description="maximum, minimum: the column that decides")

    @property
    def resolver(self) -> Resolver:
        """The same for apply."""
        method = Method.DISCARD if self.method == "ignore" else Method(self.method)
        columns = None if self.columns is None else tuple(self.columns)
        return Resolver(Op(self.on), self.row, method, columns, self.by)

    @model_validator(mode="after")
    def _fits_together(self) -> ConflictConfig:
        resolver = self.resolver
        methods = _METHODS.get((resolver.op, resolver.row))
        if methods is None:
            raise ValueError("an insert looks for no row that could be missing")
        if resolver.method not in methods:
            raise ValueError(f"of {self.on}, row {self.row}, method must be one of {', '.join(methods)}")
        if resolver.columns is not None and (
            resolver.op is Op.DELETE or resolver.row is ConflictKind.MISSING or resolver.method is Method.RECORD
        ):
            raise ValueError("this is decided about the whole row, so columns must not be given")
        if resolver.method.compares and self.by is None:
            raise ValueError(f"by is missing: the column whose values {self.method} compares")
        if not resolver.method.compares and self.by is not None:
            raise ValueError(f"by is for maximum and minimum; {self.method} compares nothing")
        if self.by is not None and not resolver.has(self.by):
            raise ValueError(f"by names {self.by!r}, which must be one of its columns")
        return self


class ErrorRuleConfig(ConfigPart):
    """What is done about an error that no resolver helps."""

    error: int | str = Field(
        description="A number of the error queue (26787), an SQLSTATE (23505), or any; the first rule that fits counts"
    )
    then: ErrorAction = Field(
        description="ignore: leave the change out; record: the change goes to the error queue by itself; retry: try"
        " the change again; retry_transaction: roll back, wait and try the transaction again; record_transaction: it"
        " goes to the error queue, as without a rule; abend: stop the run"
    )
    times: int = Field(default=3, strict=True, ge=1, description="retry, retry_transaction: how often")
    delay_s: float = Field(default=60, ge=0, le=86_400, description="How many seconds before each time")

    @field_validator("error")
    @classmethod
    def _is_an_error(cls, error: int | str) -> int | str:
        if not re.fullmatch(r"any|\d{1,5}|[0-9A-Z]{5}", str(error)):
            raise ValueError("must be a number of the error queue, an SQLSTATE of five characters, or any")
        return error

    @model_validator(mode="after")
    def _counts_what_is_tried(self) -> ErrorRuleConfig:
        if self.model_fields_set & {"times", "delay_s"} and self.then not in (
            ErrorAction.RETRY,
            ErrorAction.RETRY_TRANSACTION,
        ):
            raise ValueError("times and delay_s are for retry and retry_transaction")
        if self.then is ErrorAction.RETRY and self.delay_s > _LONGEST_OPEN_S:
            raise ValueError(
                f"retry waits inside the open transaction, for {_LONGEST_OPEN_S} s at most; retry_transaction waits"
                " outside of it"
            )
        return self

    @property
    def rule(self) -> ErrorRule:
        """The same for apply."""
        return ErrorRule(None if self.error == "any" else str(self.error), self.then, self.times, self.delay_s)
