"""The part `publish.debezium` of a pipeline file: how changes are told as change events."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from penstock.config.document import Document, Fault
from penstock.config.parts import ConfigPart
from penstock.config.registry import SchemaRegistry


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

    def below(self, folder: Path) -> PublishedEventsConfig:
        """The same, whose files are taken from a folder."""
        registry = None if self.registry is None else self.registry.below(folder)
        return self.model_copy(update={"registry": registry})


def check_events(document: Document) -> list[Fault]:
    """Find where the part `publish.debezium` is missing, or goes with nothing."""
    to, form = document.value("publish", "to"), document.value("publish", "format")
    is_given = document.value("publish", "debezium") is not None
    tells_events = str(form).startswith("debezium")
    if form == "dbwatcher":
        # What is wrong with settings of change events there is said with its own.
        return []
    if (to == "kafka" or tells_events) and form != "xds" and not is_given:
        return document.missing("publish", ["debezium"])
    if to == "files" and not tells_events and is_given:
        what = "change files are not change events; publish.format debezium-json writes those"
        return [document.fault(("publish", "debezium"), what)]
    if to == "kafka" and form == "xds" and is_given:
        return [document.fault(("publish", "debezium"), "XDS documents are not change events")]
    return []


def check_schema_registry(document: Document) -> list[Fault]:
    """Find where a schema registry is missing, or goes with nothing."""
    is_given = isinstance(document.value("publish", "debezium", "registry"), dict)
    is_avro = document.value("publish", "format") == "debezium-avro"
    is_kafka = document.value("publish", "to") == "kafka"
    if is_kafka and is_avro and not is_given and document.value("publish", "debezium") is not None:
        what = "publish.debezium.registry: is missing; Avro has its schemas there"
        return [Fault(document.line(("publish", "debezium")), what)]
    if is_given and not is_avro:
        return [document.fault(("publish", "debezium", "registry"), "goes with publish.format debezium-avro")]
    return []
