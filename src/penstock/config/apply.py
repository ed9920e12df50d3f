"""The part `apply` of a pipeline file: where changes go, and how they are applied."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from penstock.apply.conflict_methods import ConflictRules, TableRules
from penstock.apply.ddl import DdlPolicy, DdlRules
from penstock.apply.handlers.settings import Function, HandlerSettings
from penstock.apply.parameters import INFINITE, MOST, CommitSerialization, OnBadRow, Parameters
from penstock.change import Op, TableName
from penstock.config.conflicts import ConflictConfig, ErrorRuleConfig
from penstock.config.dependencies import DependenciesConfig
from penstock.config.handlers import OperationHandlersConfig, TransactionHandlersConfig, check_operations, handlers_of
from penstock.config.limits import Limit, Position, RetryS, Seconds, finite
from penstock.config.parts import Columns, ConfigPart, Table, Tag, table_named
from penstock.origins import DEFAULT_TAG
from penstock.position import Scn


class TriggerFiring(StrEnum):
    """For whose changes a trigger of the target fires."""

    ALWAYS = "always"
    FIRE_ONCE = "fire_once"
    APPLY_ONLY = "apply_only"


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
    conflict_log_days: Limit = Field(
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
    maximum_scn: Position = Field(
        default=INFINITE, description="End before the first transaction at this position or behind it"
    )
    max_errors: Limit = Field(
        default=INFINITE,
        description="Stop, with exit code 6, once the run has put so many transactions into the error queue",
    )
    time_limit: Limit = Field(default=INFINITE, description="End after so many seconds")
    transaction_limit: Limit = Field(
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
    startup_seconds: Seconds = Field(default=0, description="Seconds to wait for another run of the pipeline to end")
    trace_level: int = Field(default=0, strict=True, ge=0, le=MOST, description="From 1 on each batch is logged")
    txn_lcr_spill_threshold: Limit = Field(
        default=200_000,
        description="A transaction of more changes is large: it is applied piece by piece, and not held in memory",
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
            max_errors=finite(self.max_errors),
            allow_duplicate_rows=self.allow_duplicate_rows,
            maximum_scn=None if isinstance(self.maximum_scn, str) else Scn(self.maximum_scn),
            time_limit=finite(self.time_limit),
            transaction_limit=finite(self.transaction_limit),
            disable_on_limit=self.disable_on_limit,
            ignore_transaction=frozenset(self.ignore_transaction),
            startup_seconds=finite(self.startup_seconds),
            trace_level=self.trace_level,
            txn_lcr_spill_threshold=finite(self.txn_lcr_spill_threshold),
        )

    @property
    def conflict_log_kept(self) -> timedelta | None:
        """How long entries of the conflict log are kept; None: for ever."""
        days = finite(self.conflict_log_days)
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
