"""What a pipeline file says, as values: each part with its settings, their types and what they mean."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import pydantic
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from penstock.apply.parameters import INFINITE, MOST, CommitSerialization, Parameters
from penstock.apply.resolve import ConflictRules, ErrorRule, Method, Resolver, RowIs, TableRules, Then
from penstock.apply.virtual_dependencies import ObjectDependency, ValueDependency, VirtualDependencies, find_circle
from penstock.beside import NAME
from penstock.change import Op, TableName
from penstock.errors import ConfigError
from penstock.origins import DEFAULT_TAG, EVERYTHING, USERS, Origins
from penstock.patterns import TablePattern, TableTemplate
from penstock.position import Scn
from penstock.storage import check_place

_PUBLISHING_TASKS = 2


Path_ = tuple[str | int, ...]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _checked(kind: type[TablePattern] | type[TableTemplate], text: str) -> str:
    try:
        kind.parse(text)
    except ConfigError as exc:
        raise ValueError(str(exc)) from exc
    return text


Pattern = Annotated[str, AfterValidator(partial(_checked, TablePattern))]


Template = Annotated[str, AfterValidator(partial(_checked, TableTemplate))]


Tag = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]+$", max_length=200)]
"""An origin mark."""


def table_named(text: str) -> TableName:
    """The table that a name in the file means.

    Raises:
        ValueError: It is no name of one table.
    """
    table = TablePattern.parse(_checked(TablePattern, text)).table
    if table is None:
        raise ValueError(f"{text!r} must name one table, schema.table, without * and ?")
    return table


def _names_a_table(text: str) -> str:
    table_named(text)
    return text


Table = Annotated[str, AfterValidator(_names_a_table)]


class ConnectionConfig(_Part):
    """A database."""

    type: Literal["postgres"] = Field(description="Kind of database")
    url: str = Field(description="libpq url or conninfo; secrets only as ${env:NAME} or ${file:path}", repr=False)


class KafkaConfig(_Part):
    """A Kafka cluster."""

    type: Literal["kafka"] = Field(description="Kind of connection")
    settings: dict[str, str | int | float | bool] = Field(
        description="librdkafka's own settings, bootstrap.servers at least; secrets only as ${env:NAME} or"
        " ${file:path}",
        repr=False,
    )

    @field_validator("settings")
    @classmethod
    def _has_servers(cls, settings: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        if not str(settings.get("bootstrap.servers", "")).strip():
            raise ValueError("bootstrap.servers is missing: host:port of one broker or more")
        return settings

    @property
    def client_settings(self) -> Mapping[str, str]:
        """The settings as the client takes them."""
        return {name: _plain(value) for name, value in self.settings.items()}


class SchemaRegistry(_Part):
    """A schema registry that speaks Confluent's HTTP API, for events in Avro."""

    url: str = Field(description="http(s)://host:port; user and password stand beside it")
    user: str | None = Field(default=None, min_length=1, description="Who asks, where the registry wants to know")
    password: str | None = Field(
        default=None, min_length=1, description="Of the user; only as ${env:NAME} or ${file:path}", repr=False
    )
    ca_file: str | None = Field(
        default=None,
        min_length=1,
        description="Certificates (PEM) of the authorities to trust instead of the system's; may lie below the folder"
        " of this file",
    )

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_sound = False
        if not is_sound:
            raise ValueError("is not http://host:port or https://host:port")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("holds more than a place; user and password are settings of their own")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _has_both(self) -> SchemaRegistry:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password go together")
        return self

    def below(self, folder: Path) -> SchemaRegistry:
        """The same registry, whose `ca_file` is taken from a folder."""
        if self.ca_file is None:
            return self
        return self.model_copy(update={"ca_file": _below(folder, self.ca_file)})


class DebeziumConfig(_Part):
    """How Debezium's change events are read."""

    prefix: str | None = Field(
        default=None, min_length=1, description="The connector's topic.prefix: its topics begin with it and a dot"
    )
    topics: list[str] | None = Field(
        default=None, min_length=1, description="Patterns with * and ? of the topics, where they are called otherwise"
    )
    transaction_topic: str | None = Field(
        default=None, description="The topic of BEGIN and END; <prefix>.transaction if absent"
    )
    incomplete: Literal["wait", "stop", "put_aside"] = Field(
        default="stop",
        description="What to do when events of a transaction that has ended do not come in time: wait on, stop with an"
        " error, or leave the transaction out with a warning",
    )
    incomplete_after_s: float = Field(default=300, gt=0, description="How long that is, in seconds")
    settle_s: float = Field(
        default=5,
        gt=0,
        description="Without a transaction topic: for how many seconds no event may have come for the last transaction"
        " to count as complete",
    )
    on_malformed: Literal["stop", "skip"] = Field(
        default="stop", description="skip counts and logs a record that is no event, and goes on"
    )
    placeholder: str = Field(
        default="__debezium_unavailable_value",
        min_length=1,
        description="The connector's unavailable.value.placeholder",
    )
    before_image: Literal["auto", "full", "key"] = Field(
        default="auto",
        description="What of a row before a change is true: full where every PostgreSQL table has REPLICA IDENTITY"
        " FULL, and for other databases; key: no more than the key; auto: full, but for PostgreSQL's deletes",
    )
    decimals: Literal["precise", "double", "string"] = Field(
        default="precise", description="Events without schemas: the connector's decimal.handling.mode"
    )
    times: Literal["adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"] = (
        Field(default="adaptive", description="Events without schemas: the connector's time.precision.mode")
    )
    binary: Literal["bytes", "base64", "base64-url-safe", "hex"] = Field(
        default="bytes", description="Events without schemas: the connector's binary.handling.mode"
    )
    registry: SchemaRegistry | None = Field(
        default=None, description="Where the schemas of events in Avro are; without it events are JSON"
    )

    @property
    def transactions(self) -> str:
        """The name of the transaction topic."""
        return self.transaction_topic or f"{self.prefix}.transaction"


class TagList(_Part):
    """Whose changes are captured, by the origin marks of the apply processes that wrote them."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    only: list[Tag | None] | None = Field(
        default=None, min_length=1, description="The marks that are captured; null: changes without one, as users write"
    )
    without: list[Tag | None] | None = Field(
        default=None, min_length=1, description="The marks that are left out; null: changes without one"
    )

    @model_validator(mode="after")
    def _is_one(self) -> TagList:
        if (self.only is None) == (self.without is None):
            raise ValueError("is users, everything, or one list of marks: only or without")
        return self

    @property
    def origins(self) -> Origins:
        """The same as a value."""
        return Origins.without(self.without) if self.without is not None else Origins.only(self.only or [])


class CaptureConfig(_Part):
    """Where changes come from."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"source": {"const": "trigger_queue"}}},
            "then": {"required": ["connection"]},
            "else": {
                "if": {"properties": {"source": {"const": "debezium"}}},
                "then": {"anyOf": [{"required": ["connection"]}, {"required": ["path"]}]},
                "else": {"required": ["path"]},
            },
        }
    )

    source: str = Field(
        pattern=rf"^(trigger_queue|change_files|debezium|{NAME})$",
        description="How changes are captured: trigger_queue by triggers, change_files from an archive of another"
        " pipeline's, debezium from change events; module:name in Python is a source of your own",
        examples=["trigger_queue", "change_files", "debezium"],
    )
    connection: str | None = Field(
        default=None,
        description="trigger_queue: name of the connection to capture from; debezium: that of the Kafka cluster",
    )
    path: str | None = Field(
        default=None,
        description="change_files: folder of the archive, which may be below that of this file, or an url of an"
        " object store; debezium: a folder of files with events instead of a cluster; for a source of your own, the"
        " place that it reads",
    )
    debezium: DebeziumConfig | None = Field(default=None, description="debezium: which topics, and how they are read")
    tables: list[Pattern] = Field(
        min_length=1, description="Patterns schema.table with * and ?, names as they stand in the catalogue"
    )
    row_triggers: list[Pattern] = Field(
        default_factory=list,
        description="Patterns of those tables that are mostly written one row at a time: row triggers cost such a"
        " statement less, and one that writes many rows more",
    )
    changes_of: Annotated[
        Annotated[Literal["users", "everything"], pydantic.Tag("")] | Annotated[TagList, pydantic.Tag("marks")],
        Discriminator(lambda given: "marks" if isinstance(given, dict | TagList) else ""),
    ] = Field(
        default="users",
        description="trigger_queue: whose changes are captured: users, who are no apply process; everything; or what"
        " carries one of the origin marks in `only`, or none of those in `without`; null stands for no mark",
    )
    _named_at: str = PrivateAttr(default="capture.source: ")
    _folder: Path = PrivateAttr(default=Path())

    @property
    def is_own(self) -> bool:
        """Whether the source is Python of the user's own, by its name."""
        return ":" in self.source

    @property
    def place(self) -> str:
        """Where the source is named, as messages begin: `file:line: capture.source: `."""
        return self._named_at

    @property
    def folder(self) -> Path:
        """Where the pipeline file lies, and a module with a source beside it."""
        return self._folder

    def read_from(self, file: str, line: int, folder: Path) -> None:
        """Remember where the source is named; for `place`."""
        self._named_at, self._folder = f"{file}:{line}: {self._named_at}", folder

    @property
    def origins(self) -> Origins:
        """Whose changes are captured."""
        if isinstance(self.changes_of, TagList):
            return self.changes_of.origins
        return USERS if self.changes_of == "users" else EVERYTHING

    @property
    def name(self) -> str:
        """What the source is called, in the ledger and in the changes."""
        return self.connection or self.source

    @field_validator("path")
    @classmethod
    def _is_a_place(cls, path: str | None) -> str | None:
        return None if path is None else _place(path)


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


class ConflictConfig(_Part):
    """How one kind of conflict of a table is resolved, for a list of columns."""

    on: Literal["insert", "update", "delete"] = Field(description="The operation that meets the conflict")
    row: RowIs = Field(
        default=RowIs.EXISTS,
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
            resolver.op is Op.DELETE or resolver.row is RowIs.MISSING or resolver.method is Method.RECORD
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

_METHODS: Mapping[tuple[Op, RowIs], Sequence[Method]] = {
    (Op.INSERT, RowIs.EXISTS): (*_VALUES_WIN, *_COMPARED),
    (Op.UPDATE, RowIs.EXISTS): (*_VALUES_WIN, *_COMPARED, Method.DELTA),
    (Op.UPDATE, RowIs.MISSING): _VALUES_WIN,
    (Op.DELETE, RowIs.EXISTS): _VALUES_WIN,
    (Op.DELETE, RowIs.MISSING): (Method.DISCARD, Method.RECORD),
}
"""The methods that each kind of conflict may have."""


_LONGEST_OPEN_S = 240
"""Servers end a session of an apply server that does nothing in an open transaction for five minutes."""


class ErrorRuleConfig(_Part):
    """What is done about an error that no resolver helps."""

    error: int | str = Field(
        description="A number of the error queue (26787), an SQLSTATE (23505), or any; the first rule that fits counts"
    )
    then: Then = Field(
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
        if self.model_fields_set & {"times", "delay_s"} and self.then not in (Then.RETRY, Then.RETRY_TRANSACTION):
            raise ValueError("times and delay_s are for retry and retry_transaction")
        if self.then is Then.RETRY and self.delay_s > _LONGEST_OPEN_S:
            raise ValueError(
                f"retry waits inside the open transaction, for {_LONGEST_OPEN_S} s at most; retry_transaction waits"
                " outside of it"
            )
        return self

    @property
    def rule(self) -> ErrorRule:
        """The same for apply."""
        return ErrorRule(None if self.error == "any" else str(self.error), self.then, self.times, self.delay_s)


class ApplyTableConfig(_Part):
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


class ObjectDependencyConfig(_Part):
    """A table whose changes follow those of another; names are those at the target."""

    table: Table = Field(description="A transaction that changes this table")
    after: Table = Field(description="waits for all earlier ones that change this one")


class DependenciesConfig(_Part):
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


class ApplyConfig(_Part):
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
    allow_duplicate_rows: bool = Field(
        default=True, description="Where several rows are equal in every column, change one of them"
    )
    first_copy: bool = Field(
        default=True,
        strict=True,
        description="false: what tables hold at the target is taken for their copy as of the first run; for databases"
        " that are equal already, and tables that several pipelines fill",
    )
    tag: Tag | None = Field(
        default=DEFAULT_TAG,
        description="The origin mark that a capture at the target sees on what is applied; null: none, as users write",
    )
    retry_s: float = Field(default=60, ge=0, description="Seconds to go on trying while a server is out of reach")
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

    @field_validator("tables")
    @classmethod
    def _are_named_once(cls, tables: dict[str, ApplyTableConfig]) -> dict[str, ApplyTableConfig]:
        if len({table_named(text) for text in tables}) < len(tables):
            raise ValueError("a table is named twice")
        return tables

    @property
    def parameters(self) -> Parameters:
        """How to work, as apply takes it."""
        return Parameters(
            parallelism=self.parallelism,
            commit_serialization=self.commit_serialization,
            disable_on_error=self.disable_on_error,
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
    def keys(self) -> Mapping[TableName, tuple[str, ...]]:
        """The substitute keys, by table."""
        return {table_named(text): tuple(table.key) for text, table in self.tables.items() if table.key}

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


class PublishedEventsConfig(_Part):
    """How changes are told as Debezium's change events."""

    prefix: str = Field(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$",
        max_length=200,
        description="The connector's topic.prefix: topics and schemas begin with it and a dot",
    )
    connector: Literal["postgresql", "oracle", "mysql", "sqlserver", "db2"] = Field(
        default="postgresql", description="Whose source block the events have, and whose types and names of topics"
    )
    database: str | None = Field(
        default=None, min_length=1, description="What the source block calls the database; its own name if absent"
    )
    schemas: bool = Field(default=True, description="JSON: every key and value has its schema with it")
    tombstones_on_delete: bool = Field(
        default=True, description="A delete is followed by a record without a value, for compaction"
    )
    skipped_operations: list[Literal["c", "u", "d", "t"]] = Field(
        default_factory=list, description="Operations that are not published: create, update, delete, truncate"
    )
    transaction_metadata: bool = Field(
        default=True, description="Events say which transaction they are of, and a topic tells each BEGIN and END"
    )
    transaction_topic: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,249}$",
        description="The topic of BEGIN and END; <prefix>.transaction if absent",
    )
    decimals: Literal["precise", "string", "double"] = Field(
        default="precise", description="The connector's decimal.handling.mode"
    )
    intervals: Literal["numeric", "string"] = Field(
        default="numeric", description="The connector's interval.handling.mode"
    )
    registry: SchemaRegistry | None = Field(
        default=None, description="debezium-avro: where schemas are registered, as <topic>-key and <topic>-value"
    )
    partitions: int | None = Field(
        default=None, strict=True, ge=1, description="Of topics of tables that are made; the brokers' default if absent"
    )
    replication: int | None = Field(
        default=None, strict=True, ge=1, description="Replicas of topics that are made; the brokers' default if absent"
    )


class PublishConfig(_Part):
    """Where changes are published, instead of being applied."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"to": {"const": "kafka"}}},
            "then": {"required": ["connection", "debezium"]},
            "else": {
                "required": ["path"],
                "if": {"properties": {"format": {"const": "debezium-json"}}, "required": ["format"]},
                "then": {"required": ["debezium"]},
            },
        }
    )

    to: Literal["files", "kafka"] = Field(
        description="files: a folder of files, which any tool can read; kafka: topics, as change events"
    )
    path: str | None = Field(
        default=None,
        description="files: the folder, which may be below that of this file, or an url of an object store",
    )
    connection: str | None = Field(default=None, description="kafka: name of the connection to the cluster")
    format: Literal["changes", "parquet", "debezium-json", "debezium-avro"] | None = Field(
        default=None,
        description="files: changes (JSON lines, compressed), which is the default, parquet, or debezium-json; kafka:"
        " debezium-json, which is the default, or debezium-avro",
    )
    debezium: PublishedEventsConfig | None = Field(default=None, description="How changes are told as change events")
    max_age_s: float = Field(
        default=10,
        ge=0,
        le=3600,
        description="files: seconds that changes may wait for others that go into the same file",
    )
    retry_s: float = Field(default=60, ge=0, description="Seconds to go on trying while a place is out of reach")

    @property
    def form(self) -> str:
        """The format, where the file does not say it that of the place."""
        return self.format or ("changes" if self.to == "files" else "debezium-json")

    @field_validator("path")
    @classmethod
    def _is_a_place(cls, path: str | None) -> str | None:
        return None if path is None else _place(path)


class TableRuleConfig(_Part):
    """What becomes of the rows of a table, or of the tables that a pattern matches; in the order of the fields.

    Conditions and computed columns see the row as it is at the source.
    """

    rows: str | None = Field(
        default=None,
        min_length=1,
        description="Condition in SQL for the rows that are at the target. An update that moves a row in or out becomes"
        " an insert or a delete",
    )
    operations: list[Literal["insert", "update", "delete", "truncate"]] | None = Field(
        default=None, min_length=1, description="The changes that reach the target; all of them if absent"
    )
    keep: list[str] | None = Field(default=None, min_length=1, description="The only columns that are kept")
    drop: list[str] = Field(default_factory=list, description="Columns that are left out")
    rename: dict[str, str] = Field(default_factory=dict, description="Columns that are called otherwise at the target")
    add: dict[str, str] = Field(default_factory=dict, description="Further columns, each as an expression in SQL")
    to: Template | None = Field(
        default=None,
        description="What the table is called at the target, schema.table; a * stands for what it is at the source",
    )
    step: str | None = Field(
        default=None,
        pattern=rf"^{NAME}$",
        description="module:function in Python, which takes and returns the rows as an Arrow table of texts",
    )


class RulesConfig(_Part):
    """Which tables are processed, and what becomes of their rows; names are those at the source."""

    include: list[Pattern] | None = Field(
        default=None,
        description="Patterns of the tables to process; all that are captured if absent, none if the list is empty",
    )
    exclude: list[Pattern] = Field(default_factory=list, description="Patterns of the tables that are not processed")
    tables: dict[Pattern, TableRuleConfig] = Field(
        default_factory=dict,
        description="By table or pattern. Each setting is taken from the first that has it: the table's own, then the"
        " patterns in the order of the file",
    )
    _file: str = PrivateAttr(default="")
    _lines: Mapping[Path_, int] = PrivateAttr(default_factory=dict)

    def place(self, *path: str | int) -> str:
        """Where a setting below `rules` stands, as `file:line: rules.path: `; without a file, only the path."""
        named = f"{dotted(('rules', *path))}: "
        return f"{self._file}:{line_of(self._lines, path)}: {named}" if self._file else named

    @property
    def folder(self) -> Path:
        """Where the pipeline file lies, and modules with steps beside it."""
        return Path(self._file).parent

    def read_from(self, file: str, lines: Mapping[Path_, int]) -> None:
        """Remember the file, and the line of each setting by its path below `rules`; for `place`."""
        self._file, self._lines = file, lines


class PipelineConfig(_Part):
    """One pipeline."""

    version: Literal[1]
    name: str = Field(
        pattern=r"^[a-z][a-z0-9_]{0,35}$",
        description="Name of the pipeline: lower-case letters, digits and underscores, at most 36, a letter first",
    )
    connections: dict[str, Annotated[ConnectionConfig | KafkaConfig, Field(discriminator="type")]] = Field(min_length=1)
    capture: CaptureConfig
    rules: RulesConfig | None = Field(default=None, description="Which tables are processed, and how they are changed")
    apply: ApplyConfig | None = Field(default=None, description="Where changes are applied")
    publish: PublishConfig | None = Field(default=None, description="Instead of apply: where changes are published")
    spark: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="Spark's own settings, spark.*; master stands for spark.master"
    )

    @field_validator("spark")
    @classmethod
    def _are_spark_settings(cls, settings: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        for name in settings:
            if name != "master" and not name.startswith("spark."):
                raise ValueError(f"{name!r} is none of Spark's settings, whose names begin with 'spark.'")
        return settings

    def with_folder(self, folder: Path) -> PipelineConfig:
        """The same pipeline, whose files are kept below a folder unless their path says another place."""
        capture, publish = self.capture, self.publish
        if capture.path is not None:
            capture = capture.model_copy(update={"path": _below(folder, capture.path)})
        if capture.debezium is not None and capture.debezium.registry is not None:
            registry = capture.debezium.registry.below(folder)
            debezium = capture.debezium.model_copy(update={"registry": registry})
            capture = capture.model_copy(update={"debezium": debezium})
        if publish is not None and publish.path is not None:
            publish = publish.model_copy(update={"path": _below(folder, publish.path)})
        if publish is not None and publish.debezium is not None and publish.debezium.registry is not None:
            registry = publish.debezium.registry.below(folder)
            events = publish.debezium.model_copy(update={"registry": registry})
            publish = publish.model_copy(update={"debezium": events})
        return self.model_copy(update={"capture": capture, "publish": publish})

    def with_master(self, master: str) -> PipelineConfig:
        """The same pipeline with another master of Spark's."""
        others = {name: value for name, value in self.spark.items() if name not in ("master", "spark.master")}
        return self.model_copy(update={"spark": {**others, "master": master}})

    @property
    def parallelism(self) -> int:
        """How many tasks may be at work side by side."""
        return _PUBLISHING_TASKS if self.apply is None else self.apply.parallelism

    @property
    def application_name(self) -> str:
        """What Spark calls a run."""
        return f"penstock {self.name}"

    @property
    def spark_settings(self) -> Mapping[str, str]:
        """Spark's settings, as Spark names and writes them."""
        names = {"master": "spark.master"}
        return {names.get(name, name): _plain(value) for name, value in self.spark.items()}


def json_schema() -> str:
    """The JSON Schema of a pipeline file, for editors; published as docs/pipeline.schema.json."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:penstock:pipeline-file:1",
        **PipelineConfig.model_json_schema(),
    }
    return json.dumps(schema, indent=2) + "\n"


def _plain(value: str | float | bool) -> str:
    """A setting as text, booleans as most programs write them."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _place(path: str) -> str:
    if not path.strip():
        raise ValueError("is empty")
    try:
        check_place(path)
    except ConfigError as exc:
        raise ValueError(str(exc)) from exc
    return path


def _below(folder: Path, path: str) -> str:
    """A path as it is taken from the pipeline file's folder; an url stays what it is."""
    return path if "://" in path else str((folder / Path(path).expanduser()).absolute())


def line_of(lines: Mapping[Path_, int], path: Path_) -> int:
    """The line of a path, or of the nearest thing around it."""
    while path not in lines:
        path = path[:-1]
    return lines[path]


def dotted(path: Path_) -> str:
    """A path as messages name it."""
    return ".".join(str(part) for part in path)
