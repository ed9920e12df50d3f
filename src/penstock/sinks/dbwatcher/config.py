"""The part `publish.dbwatcher` of a pipeline file: how transactions become DbWatcher messages."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from penstock.config.document import Document, Fault
from penstock.config.parts import ConfigPart


class PublishedMessagesConfig(ConfigPart):
    """How transactions become DbWatcher messages; names in brackets are those of xmlBlaster's properties."""

    version: str = Field(
        default="0.0",
        max_length=255,
        description="What messages say the version of the source's tables is called (replication.version)",
    )
    database: str | None = Field(
        default=None, min_length=1, description="What messages call the database (dbId); its own name if absent"
    )
    max_rows: int = Field(
        default=0,
        strict=True,
        ge=0,
        description="A message that holds more rows takes no other, and the transaction goes on in the next one"
        " (replication.maxRowsInTx); 0: a transaction is one message",
    )
    collect_transactions: int = Field(
        default=1,
        strict=True,
        ge=1,
        description="How many transactions that follow each other go into a message at most"
        " (dbWatcher.maxCollectedStatements); receivers apply them together",
    )
    send_unchanged_updates: bool = Field(
        default=True, description="Updates that changed nothing are sent (replication.sendUnchangedUpdates)"
    )
    send_truncate: bool = Field(
        default=False,
        description="Receivers know the command TRUNCATE; otherwise such a transaction goes to the error queue",
    )
    content_rows: int = Field(
        default=250,
        strict=True,
        ge=1,
        le=100_000,
        description="Most rows of the first copy in a message (replication.maxRowsOnCreate)",
    )
    compress_size: int = Field(
        default=0,
        strict=True,
        ge=0,
        description="kafka: a message of so many bytes or more is compressed (mom.compressSize); 0 compresses none",
    )
    compression: Literal["GZIP", "ZIP"] = Field(default="GZIP", description="How messages are compressed")
    replication: int | None = Field(
        default=None, strict=True, ge=1, description="Replicas of topics that are made; the brokers' default if absent"
    )


def check_messages(document: Document) -> list[Fault]:
    """Find where the part `publish.dbwatcher` goes with nothing."""
    if document.value("publish", "format") != "dbwatcher":
        return document.unfit({"publish.dbwatcher": "goes with publish.format dbwatcher"})
    faults = []
    if document.value("publish", "debezium") is not None:
        faults.append(document.fault(("publish", "debezium"), "DbWatcher messages are not change events"))
    if document.value("publish", "to") == "files":
        what = "files hold messages as they are; those in Kafka are compressed"
        faults += document.unfit({f"publish.dbwatcher.{name}": what for name in ("compress_size", "compression")})
        faults += document.unfit({"publish.dbwatcher.replication": "goes with publish.to kafka"})
    if document.value("capture", "source") == "event_log":
        faults.append(document.fault(("publish", "format"), "an event log is published as xds"))
    return faults
