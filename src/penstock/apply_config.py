"""The part `apply` of a pipeline file: where changes go, and how they are applied."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from penstock.apply.ddl import DdlPolicy, DdlRules
from penstock.apply.handlers.settings import Function, HandlerSettings
from penstock.apply.parameters import INFINITE, MOST, CommitSerialization, OnBadRow, Parameters
from penstock.apply.resolve import ConflictKind, ConflictRules, ErrorAction, ErrorRule, Method, Resolver, TableRules
from penstock.apply.virtual_dependencies import ObjectDependency, ValueDependency, VirtualDependencies, find_circle
from penstock.change import Op, TableName
from penstock.config_parts import ConfigPart, Table, Tag, table_named
from penstock.handlers_config import (
    OperationHandlersConfig,
    TransactionHandlersConfig,
    check_operations,
    handlers_of,
)
from penstock.origins import DEFAULT_TAG
from penstock.position import Scn

Columns = Annotated[list[str], Field(min_length=1)]


def _within(least: int, most: int, value: object) -> object:
    """Say in one sentence what else would be said once for each type of the two."""
    if value == INFINITE or (type(value) is int and least <= value <= most):
        return value
    raise ValueError(f"must be an integer from {least} to {most}, or {INFINITE}")


_Limit = Annotated[
    Annotated[int, Field(ge=1, le=MOST)] | Literal["INFINITE"], BeforeValidator(partial(_within, 1, MOST))
]

_Seconds = Annotated[
    Annotated[int, Field(ge=0, le=MOST)] | Literal["INFINITE"], BeforeValidator(partial(_within, 0, MOST))
]


def _seconds(value: object) -> object:
    """Say in one sentence what else would be said once for each type of the two."""
    if value == INFINITE:
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST:
        return value
    raise ValueError(f"must be a number of seconds from 0 on, or {INFINITE}")


RetryS = Annotated[Annotated[float, Field(ge=0)] | Literal["INFINITE"], BeforeValidator(_seconds)]
"""How long to go on trying."""


def retry_limit(seconds: float | str) -> float | None:
    """The same for `apply.retry_policy`; None: without end."""
    return None if isinstance(seconds, str) else seconds


_Position = Annotated[
    Annotated[int, Field(ge=1, lt=2**63)] | Literal["INFINITE"], BeforeValidator(partial(_within, 1, 2**63 - 1))
]


def _finite(limit: int | str) -> int | None:
    return limit if isinstance(limit, int) else None


class TriggerFiring(StrEnum):
    """For whose changes a trigger of the target fires."""

    ALWAYS = "always"
    FIRE_ONCE = "fire_once"
    APPLY_ONLY = "apply_only"


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


class ApplyTableConfig(ConfigPart):
    """How changes of one table are applied; columns by their names at the target."""

    key: Columns | None = Field(
        default=None,
        description="Columns that its rows are found by, instead of its primary or unique key; they may hold NULL",
    )
    compare_old_values: dict[str, list[Literal["update", "delete"]]] = Field(
        default_factory=dict,
        description="By column, the operations that compare its old value with the row; * stands for all that are no"
        " part of the key and not named. Both operations compare a column that is not mentioned",
    )
    conflicts: list[ConflictConfig] = Field(default_factory=list, description="How conflicts are resolved")
    on_error: list[ErrorRuleConfig] = Field(
        default_factory=list, description="What is done about errors that no entry of `conflicts` resolves"
    )
    triggers: dict[str, TriggerFiring] = Field(
        default_factory=dict,
        description="By the trigger's name: always, for users and for apply; fire_once, for users only;"
        " apply_only, for apply only. setup sees to it",
    )

    handlers: dict[Literal["insert", "update", "delete", "default"], OperationHandlersConfig] = Field(
        default_factory=dict,
        description="By operation: SQL and functions that are called for changes; default: functions for operations"
        " that name none",
    )
    ddl: DdlPolicy | None = Field(
        default=None, description="What becomes of DDL of this table, where that is not as apply.ddl says"
    )

    @field_validator("handlers")
    @classmethod
    def _go_together(cls, handlers: dict[str, OperationHandlersConfig]) -> dict[str, OperationHandlersConfig]:
        check_operations(handlers)
        return handlers

    @field_validator("key")
    @classmethod
    def _are_different(cls, key: list[str] | None) -> list[str] | None:
        if key is not None and len(set(key)) < len(key):
            raise ValueError("names a column twice")
        return key

    @model_validator(mode="after")
    def _lists_are_apart(self) -> ApplyTableConfig:
        """A column is in one list at most of each kind of conflict."""
        seen: dict[tuple[str, str], list[list[str] | None]] = {}
        for one in self.conflicts:
            others = seen.setdefault((one.on, one.row), [])
            for columns in others:
                if columns is None or one.columns is None:
                    raise ValueError(
                        f"conflicts: two lists of {one.on}, row {one.row}, and one of them has all columns"
                    )
                shared = sorted(set(columns) & set(one.columns))
                if shared:
                    raise ValueError(f"conflicts: column {shared[0]!r} is in two lists of {one.on}, row {one.row}")
            if one.columns is not None and len(set(one.columns)) < len(one.columns):
                raise ValueError(f"conflicts: a list of {one.on} names a column twice")
            others.append(one.columns)
        return self

    @property
    def rules(self) -> TableRules:
        """The same for apply."""
        return TableRules(
            compared={name: frozenset(map(Op, ops)) for name, ops in self.compare_old_values.items()},
            resolvers=tuple(one.resolver for one in self.conflicts),
            on_error=tuple(one.rule for one in self.on_error),
        )


class ObjectDependencyConfig(ConfigPart):
    """A table whose changes follow those of another; names are those at the target."""

    table: Table = Field(description="A transaction that changes this table")
    after: Table = Field(description="waits for all earlier ones that change this one")


class DependenciesConfig(ConfigPart):
    """What depends on each other, though no constraint of the target tells; names are those at the target."""

    values: dict[str, dict[Table, Columns]] = Field(
        default_factory=dict,
        description="By a name of yours: columns of one table or more. Transactions with equal values in them keep"
        " their order",
    )
    objects: list[ObjectDependencyConfig] = Field(
        default_factory=list, description="Tables whose changes follow those of another, whatever their values are"
    )

    @field_validator("values")
    @classmethod
    def _line_up(cls, values: dict[str, dict[str, list[str]]]) -> dict[str, dict[str, list[str]]]:
        for name, members in values.items():
            if not members:
                raise ValueError(f"{name!r} names no table")
            if len({table_named(text) for text in members}) < len(members):
                raise ValueError(f"{name!r} names a table twice")
            for text, columns in members.items():
                if len(set(columns)) < len(columns):
                    raise ValueError(f"{name!r} names a column of {text} twice")
            if len({len(columns) for columns in members.values()}) > 1:
                raise ValueError(f"{name!r} names more columns of one table than of another; they line up")
        return values

    @field_validator("objects")
    @classmethod
    def _are_in_no_circle(cls, objects: list[ObjectDependencyConfig]) -> list[ObjectDependencyConfig]:
        circle = find_circle([_object_dependency(one) for one in objects])
        if circle is not None:
            raise ValueError(f"follow each other in a circle: {' after '.join(map(str, circle))}")
        return objects

    @property
    def virtual(self) -> VirtualDependencies:
        """The same as apply takes it."""
        return VirtualDependencies(
            values=tuple(
                ValueDependency(name, {table_named(text): tuple(columns) for text, columns in members.items()})
                for name, members in self.values.items()
            ),
            objects=tuple(map(_object_dependency, self.objects)),
        )


def _object_dependency(one: ObjectDependencyConfig) -> ObjectDependency:
    return ObjectDependency(table_named(one.table), table_named(one.after))


class ApplyConfig(ConfigPart):
    """Where changes go."""

    connection: str = Field(description="Name of the connection to apply to")
    parallelism: int = Field(
        default=2,
        strict=True,
        ge=1,
        le=64,
        description="Most apply servers at work side by side; how many are used is measured",
    )
    commit_serialization: CommitSerialization = Field(
        default=CommitSerialization.DEPENDENT_TRANSACTIONS,
        description="FULL: all transactions commit in the source's order",
    )
    disable_on_error: bool = Field(
        default=False, description="Stop after the first transaction that goes to the error queue"
    )
    hold_dependents: bool = Field(
        default=False,
        strict=True,
        description="Transactions that depend on one in the error queue wait behind it, and go on after it; otherwise"
        " they are applied, and often fail in turn",
    )
    ddl: DdlPolicy = Field(
        default=DdlPolicy.IGNORE,
        description="What becomes of DDL at the source. apply: tables of the target follow, and new ones are taken up;"
        " ignore: they are left as they are; stop: the run ends before it",
    )
    allow_duplicate_rows: bool = Field(
        default=True, description="Where several rows are equal in every column, change one of them"
    )
    first_copy: bool = Field(
        default=True,
        strict=True,
        description="false: what tables hold at the target is taken for their copy as of the first run; for databases"
        " that are equal already, and tables that several pipelines fill",
    )
    on_bad_row: OnBadRow = Field(
        default=OnBadRow.STOP,
        description="What becomes of a row of the first copy that the target refuses. stop: the run ends, and names its"
        " table, key columns and column; put_aside: it goes to the error queue, and the rest is copied",
    )
    tag: Tag | None = Field(
        default=DEFAULT_TAG,
        description="The origin mark that a capture at the target sees on what is applied; null: none, as users write",
    )
    conflict_log_days: _Limit = Field(
        default=90, description="Days that entries of the conflict log are kept, or INFINITE; a run deletes older ones"
    )
    retry_s: RetryS = Field(
        default=INFINITE,
        description="Seconds to go on trying while a server is out of reach, or INFINITE; 60 at most before the run has"
        " worked once",
    )
    compare_key_only: bool = Field(
        default=False, description="Compare no old values: rows are found by their key, whatever else they hold"
    )
    optimize_self_updates: bool = Field(
        default=True, description="Do not compare the old value of a column that an update sets to the value it had"
    )
    handle_collisions: bool = Field(
        default=False,
        description="While a copy catches up: an insert of a row that is there updates it, and an update or delete of a"
        " row that is missing does nothing",
    )
    conflict_granularity: Literal["column_list", "row"] = Field(
        default="column_list",
        description="Which lists a conflict resolves: column_list: those with a column in conflict; row: all of the"
        " table",
    )
    maximum_scn: _Position = Field(
        default=INFINITE, description="End before the first transaction at this position or behind it"
    )
    max_errors: _Limit = Field(
        default=INFINITE,
        description="Stop, with exit code 6, once the run has put so many transactions into the error queue",
    )
    time_limit: _Limit = Field(default=INFINITE, description="End after so many seconds")
    transaction_limit: _Limit = Field(
        default=INFINITE, description="End after so many transactions, those that went to the error queue included"
    )
    disable_on_limit: bool = Field(
        default=False,
        description="Whether time_limit and transaction_limit end the run; otherwise only their counts begin anew",
    )
    ignore_transaction: list[str] = Field(
        default_factory=list,
        description="Ids of transactions at the source that are not applied, and count as applied",
    )
    startup_seconds: _Seconds = Field(default=0, description="Seconds to wait for another run of the pipeline to end")
    trace_level: int = Field(default=0, strict=True, ge=0, le=MOST, description="From 1 on each batch is logged")
    txn_lcr_spill_threshold: _Limit = Field(
        default=200_000, description="A transaction of more changes is applied piece by piece, and not held in memory"
    )
    tables: dict[Table, ApplyTableConfig] = Field(
        default_factory=dict, description="By table, as it is called at the target: how its changes are applied"
    )
    dependencies: DependenciesConfig = Field(
        default_factory=DependenciesConfig,
        description="What depends on each other, though no constraint of the target tells",
    )

    handlers: TransactionHandlersConfig = Field(
        default_factory=TransactionHandlersConfig, description="Functions that are called for transactions"
    )

    @field_validator("tables")
    @classmethod
    def _are_named_once(cls, tables: dict[str, ApplyTableConfig]) -> dict[str, ApplyTableConfig]:
        if len({table_named(text) for text in tables}) < len(tables):
            raise ValueError("a table is named twice")
        return tables

    @model_validator(mode="after")
    def _has_ddl_for_its_handler(self) -> ApplyConfig:
        if self.handlers.ddl is not None and not self.ddl_rules.is_applied:
            raise ValueError("handlers.ddl is never called: set ddl to apply, here or for a table")
        return self

    @property
    def parameters(self) -> Parameters:
        """How to work, as apply takes it."""
        return Parameters(
            parallelism=self.parallelism,
            commit_serialization=self.commit_serialization,
            disable_on_error=self.disable_on_error,
            max_errors=_finite(self.max_errors),
            allow_duplicate_rows=self.allow_duplicate_rows,
            maximum_scn=None if isinstance(self.maximum_scn, str) else Scn(self.maximum_scn),
            time_limit=_finite(self.time_limit),
            transaction_limit=_finite(self.transaction_limit),
            disable_on_limit=self.disable_on_limit,
            ignore_transaction=frozenset(self.ignore_transaction),
            startup_seconds=_finite(self.startup_seconds),
            trace_level=self.trace_level,
            txn_lcr_spill_threshold=_finite(self.txn_lcr_spill_threshold),
        )

    @property
    def conflict_log_kept(self) -> timedelta | None:
        """How long entries of the conflict log are kept; None: for ever."""
        days = _finite(self.conflict_log_days)
        return None if days is None else timedelta(days=days)

    @property
    def keys(self) -> Mapping[TableName, tuple[str, ...]]:
        """The substitute keys, by table."""
        return {table_named(text): tuple(table.key) for text, table in self.tables.items() if table.key}

    @property
    def ddl_rules(self) -> DdlRules:
        """What becomes of DDL, for apply."""
        said = {table_named(text): table.ddl for text, table in self.tables.items() if table.ddl is not None}
        return DdlRules(self.ddl, said)

    @property
    def conflict_rules(self) -> ConflictRules:
        """What it says of conflicts, for apply."""
        return ConflictRules(
            compare_key_only=self.compare_key_only,
            optimize_self_updates=self.optimize_self_updates,
            handle_collisions=self.handle_collisions,
            resolves_rows=self.conflict_granularity == "row",
            tables={
                table_named(text): table.rules for text, table in self.tables.items() if table.rules != TableRules()
            },
        )

    def handler_settings(self, source: str, folder: Path) -> HandlerSettings:
        """The handlers, as apply takes them; their modules may lie in a folder."""
        said = self.handlers
        tables = {
            table_named(text): handlers_of(text, {str(op): one for op, one in table.handlers.items()}, folder)
            for text, table in self.tables.items()
            if table.handlers
        }

        precommit, ddl = said.precommit, said.ddl
        return HandlerSettings(
            tables=tables,
            precommit=None if precommit is None else Function(precommit, folder, "apply.handlers.precommit"),
            ddl=None if ddl is None else Function(ddl, folder, "apply.handlers.ddl"),
            source=source,
            timeout_s=said.timeout_s,
            message=None if said.message is None else Function(said.message, folder, "apply.handlers.message"),
        )
