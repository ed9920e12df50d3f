"""The part `capture.debezium` of a pipeline file: which topics hold change events, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from penstock.config.document import Document, Fault
from penstock.config.parts import ConfigPart, Pattern, below
from penstock.config.registry import SchemaRegistry
from penstock.config.source import ONLY_TRIGGERS_KNOW, SourceKind


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
        default="stop", description="skip counts and logs a record that is not an event, and goes on"
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
        sample = None if self.schema_sample is None else below(folder, self.schema_sample)
        return self.model_copy(update={"registry": registry, "schema_sample": sample})

    @property
    def transactions(self) -> str:
        """The name of the transaction topic."""
        return self.transaction_topic or f"{self.prefix}.transaction"


def check_debezium(document: Document) -> list[Fault]:
    """Find what does not go with change events, or is missing."""
    refused = document.unfit({"publish": "what comes from change events is published already; it can be applied"})
    if refused:
        return refused
    faults = document.unfit(
        {"capture.row_triggers": "a connector has no triggers", "capture.changes_of": ONLY_TRIGGERS_KNOW}
    )
    from_files, from_kafka = (document.value("capture", name) is not None for name in ("path", "connection"))
    if from_files:
        faults += document.unfit({"capture.debezium.registry": "files hold JSON; a registry goes with a Kafka cluster"})
    if from_files == from_kafka:
        what = "names the Kafka cluster, or capture.path a folder of files; give one of them"
        faults.append(Fault(document.line(("capture",)), f"capture.connection: {what}"))
    elif from_kafka and all(document.value("capture", "debezium", name) is None for name in ("prefix", "topics")):
        what = "capture.debezium.prefix: is missing; it is the connector's topic.prefix"
        faults.append(Fault(document.line(("capture", "debezium")), what))
    return faults


DEBEZIUM = SourceKind("debezium", "from change events", check_debezium, connects_to="cluster")
