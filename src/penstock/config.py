"""What a pipeline file says, as values: each part with its settings, their types and what they mean."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import pydantic
from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from penstock.apply.handlers.settings import NO_HANDLERS, HandlerSettings
from penstock.apply_config import ApplyConfig, RetryS
from penstock.config_parts import ConfigPart, Pattern, Tag, Template
from penstock.errors import ConfigError
from penstock.event_log_config import EventLogConfig
from penstock.origins import EVERYTHING, USERS, Origins
from penstock.storage import check_place
from penstock.user_code import NAME

_PUBLISHING_TASKS = 2


Path_ = tuple[str | int, ...]


class ConnectionConfig(ConfigPart):
    """A database."""

    type: Literal["postgres"] = Field(description="Kind of database")
    url: str = Field(description="libpq url or conninfo; secrets only as ${env:NAME} or ${file:path}", repr=False)


class KafkaConfig(ConfigPart):
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


class SchemaRegistry(ConfigPart):
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


class DebeziumConfig(ConfigPart):
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
    times: (
        Literal["adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"] | None
    ) = Field(
        default=None,
        description="Events without schemas: the connector's time.precision.mode; absent: its own default",
    )
    binary: Literal["bytes", "base64", "base64-url-safe", "hex"] = Field(
        default="bytes", description="Events without schemas: the connector's binary.handling.mode"
    )
    columns: dict[Pattern, dict[str, str]] = Field(
        default_factory=dict,
        description="Events without schemas: by pattern of the table and name of the column, the type that the source's"
        " column has: decimal(10,2), datetime(3), or a name of a schema, io.debezium.time.MicroTimestamp. With schemas:"
        " what they leave out, bigint unsigned",
    )
    schema_sample: str | None = Field(
        default=None,
        min_length=1,
        description="Events without schemas: a file of events with schemas, one a line, of which those of each table"
        " tell its types; may lie below the folder of this file",
    )
    untyped: Literal["refuse", "text"] = Field(
        default="refuse",
        description="Events without schemas: text has setup make columns text of which neither events nor the target's"
        " tables tell the type",
    )
    registry: SchemaRegistry | None = Field(
        default=None, description="Where the schemas of events in Avro are; without it events are JSON"
    )

    def below(self, folder: Path) -> DebeziumConfig:
        """The same, whose files are taken from a folder."""
        registry = None if self.registry is None else self.registry.below(folder)
        sample = None if self.schema_sample is None else _below(folder, self.schema_sample)
        return self.model_copy(update={"registry": registry, "schema_sample": sample})

    @property
    def transactions(self) -> str:
        """The name of the transaction topic."""
        return self.transaction_topic or f"{self.prefix}.transaction"


class TagList(ConfigPart):
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


class CaptureConfig(ConfigPart):
    """Where changes come from."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"source": {"enum": ["trigger_queue", "event_log"]}}},
            "then": {
                "required": ["connection"],
                "if": {"properties": {"source": {"const": "event_log"}}},
                "then": {"required": ["event_log"]},
            },
            "else": {
                "if": {"properties": {"source": {"const": "debezium"}}},
                "then": {"anyOf": [{"required": ["connection"]}, {"required": ["path"]}]},
                "else": {"required": ["path"]},
            },
        }
    )

    source: str = Field(
        pattern=rf"^(trigger_queue|change_files|debezium|event_log|xds|db2_log|{NAME})$",
        description="How changes are captured: trigger_queue by triggers, change_files from an archive of another"
        " pipeline's, debezium from change events, event_log from a table that other products' triggers fill,"
        " xds from a folder of XDS documents, db2_log from buffers of Db2's log; module:name in Python is a source of"
        " your own",
        examples=["trigger_queue", "change_files", "debezium", "event_log", "xds", "db2_log"],
    )
    connection: str | None = Field(
        default=None,
        description="trigger_queue, event_log: name of the connection to capture from; debezium: that of the Kafka"
        " cluster",
    )
    path: str | None = Field(
        default=None,
        description="change_files: folder of the archive, which may be below that of this file, or an url of an"
        " object store; debezium: a folder of files with events instead of a cluster; db2_log: folder of the"
        " buffers; xds: folder of the documents; for a source of your own, the place that it reads",
    )
    debezium: DebeziumConfig | None = Field(default=None, description="debezium: which topics, and how they are read")
    event_log: EventLogConfig | None = Field(default=None, description="event_log: which table, and how it is read")
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


class PublishedEventsConfig(ConfigPart):
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


class PublishConfig(ConfigPart):
    """Where changes are published, instead of being applied."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"to": {"const": "kafka"}}},
            "then": {
                "required": ["connection"],
                "if": {"properties": {"format": {"const": "xds"}}, "required": ["format"]},
                "else": {"required": ["debezium"]},
            },
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
    format: Literal["changes", "parquet", "debezium-json", "debezium-avro", "xds"] | None = Field(
        default=None,
        description="files: changes (JSON lines, compressed), which is the default, parquet, debezium-json, or xds from"
        " event_log; kafka: debezium-json, which is the default, debezium-avro, or xds from event_log",
    )
    topic: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,249}$",
        description="kafka, xds: the topic of the documents; <pipeline>.xds if absent",
    )
    debezium: PublishedEventsConfig | None = Field(default=None, description="How changes are told as change events")
    max_age_s: float = Field(
        default=10,
        ge=0,
        le=3600,
        description="files: seconds that changes may wait for others that go into the same file",
    )
    on_bad_value: Literal["stop", "put_aside_transaction", "put_aside_change"] = Field(
        default="put_aside_transaction",
        description="Change events: what becomes of a value that the format or the place does not carry: stop, put its"
        " transaction into the error queue, or only its change; of a row of the first copy, leave its table out, or put"
        " the row there",
    )
    retry_s: RetryS = Field(
        default="INFINITE",
        description="Seconds to go on trying while source or place is out of reach, or INFINITE; 60 at most before the"
        " run has worked once",
    )

    @property
    def form(self) -> str:
        """The format, where the file does not say it that of the place."""
        return self.format or ("changes" if self.to == "files" else "debezium-json")

    @field_validator("topic")
    @classmethod
    def _holds_no_positions(cls, topic: str | None) -> str | None:
        if topic is not None and re.fullmatch(r"penstock\..+\.position", topic):
            raise ValueError("is a topic that keeps the position of a pipeline; documents need one of their own")
        return topic

    @field_validator("path")
    @classmethod
    def _is_a_place(cls, path: str | None) -> str | None:
        return None if path is None else _place(path)


class TableRuleConfig(ConfigPart):
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


class RulesConfig(ConfigPart):
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


class PipelineConfig(ConfigPart):
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
        if capture.debezium is not None:
            capture = capture.model_copy(update={"debezium": capture.debezium.below(folder)})
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
    def handlers(self) -> HandlerSettings:
        """What is called for changes; the modules may lie beside the file."""
        if self.apply is None:
            return NO_HANDLERS
        return self.apply.handler_settings(self.capture.name, self.capture.folder.absolute())

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
