"""The part `capture.dbwatcher` of a pipeline file: where messages lie, and what they do not say of tables."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from penstock.change import TableName
from penstock.config.document import Document, Fault
from penstock.config.parts import Columns, ConfigPart, Table, table_named
from penstock.config.source import ONLY_TRIGGERS_KNOW, SourceKind
from penstock.errors import PenstockError
from penstock.logical import LogicalType
from penstock.schema import Column, TableSchema, Unique
from penstock.sources.dbwatcher.reading import Reading


class DeclaredTable(ConfigPart):
    """A table that no CREATE message describes, or not as it is to be read."""

    columns: dict[str, str] = Field(
        min_length=1, description="The columns in their order, each with its type: integer, decimal(10,2), string(40)"
    )
    key: Columns | None = Field(default=None, description="The columns of the primary key")

    @field_validator("columns")
    @classmethod
    def _has_types(cls, columns: dict[str, str]) -> dict[str, str]:
        for name, text in columns.items():
            try:
                LogicalType.parse(text)
            except PenstockError as exc:
                raise ValueError(f"column {name!r}: {exc}") from exc
        return columns

    def schema_of(self, name: TableName) -> TableSchema:
        """The same as a definition."""
        key = tuple(self.key or ())
        columns = tuple(
            Column.of(column, LogicalType.parse(text), is_nullable=column not in key)
            for column, text in self.columns.items()
        )
        return TableSchema(name, columns, Unique(f"{name.name}_pkey", key, key) if key else None)


class DbWatcherConfig(ConfigPart):
    """How DbWatcher's messages are read."""

    topic: str | None = Field(default=None, min_length=1, description="With a connection: the topic of the messages")
    default_schema: str = Field(
        default="public", min_length=1, description="The schema of tables of which messages name none"
    )
    tables: dict[Table, DeclaredTable] = Field(
        default_factory=dict,
        description="By schema.table, the columns of tables that no CREATE message describes; without, the target's"
        " own tables are asked",
    )
    on_malformed: Literal["stop", "put_aside"] = Field(
        default="stop",
        description="What to do at a message that cannot be read, or asks for what is not applied: stop with an error,"
        " or put its transaction into the error queue and go on",
    )
    statements: Literal["refuse", "rows"] = Field(
        default="refuse",
        description="STATEMENT messages: refuse them as on_malformed says, or apply the rows that they say the"
        " statement has changed; the statement itself is never executed",
    )
    missing_messages: Literal["stop", "accept"] = Field(
        default="stop",
        description="What to do where the numbers of messages (_MESSAGE_SEQ) have a gap: stop with an error, since"
        " messages were lost; or go on, where the watcher skips numbers, as the original does if it fails to send one",
    )
    max_message_bytes: int = Field(
        default=1 << 26, ge=1_000, description="How large the XML of a message may be, in bytes, uncompressed"
    )

    @field_validator("tables")
    @classmethod
    def _has_keys(cls, tables: dict[str, DeclaredTable]) -> dict[str, DeclaredTable]:
        for name, table in tables.items():
            for column in table.key or ():
                if column not in table.columns:
                    raise ValueError(f"the key of {name} names {column!r}, which is not one of its columns")
        return tables

    @property
    def reading(self) -> Reading:
        """The same for whoever reads."""
        return Reading(
            default_schema=self.default_schema,
            most_bytes=self.max_message_bytes,
            puts_aside=self.on_malformed == "put_aside",
            applies_statement_rows=self.statements == "rows",
            accepts_missing=self.missing_messages == "accept",
        )

    @property
    def declared(self) -> dict[TableName, TableSchema]:
        """The declared tables as definitions."""
        return {table_named(name): table.schema_of(table_named(name)) for name, table in self.tables.items()}


def check_dbwatcher(document: Document) -> list[Fault]:
    """Find what does not go with DbWatcher's messages, or is missing."""
    refused = document.unfit({"publish": "what comes from messages is published already; it can be applied"})
    if refused:
        return refused
    faults = document.unfit(
        {"capture.row_triggers": "messages have no triggers", "capture.changes_of": ONLY_TRIGGERS_KNOW}
    )
    from_folder, from_topic = (document.value("capture", name) is not None for name in ("path", "connection"))
    if from_folder:
        faults += document.unfit({"capture.dbwatcher.topic": "goes with a Kafka cluster; a folder holds files"})
    if from_folder == from_topic:
        what = "names the Kafka cluster, or capture.path a folder of messages; give one of them"
        faults.append(Fault(document.line(("capture",)), f"capture.connection: {what}"))
    elif from_topic and document.value("capture", "dbwatcher", "topic") is None:
        what = "capture.dbwatcher.topic: is missing; it is the topic of the messages"
        faults.append(Fault(document.line(("capture", "dbwatcher")), what))
    return faults


DBWATCHER = SourceKind("dbwatcher", "from DbWatcher's messages", check_dbwatcher, connects_to="cluster", tells_ddl=True)
