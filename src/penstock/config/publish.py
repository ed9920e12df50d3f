"""The part `publish` of a pipeline file: where changes are published, instead of being applied."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import ConfigDict, Field, field_validator

from penstock.config.document import Document, Fault, must_be_redacted
from penstock.config.limits import RetryS
from penstock.config.parts import ConfigPart, below, checked_place
from penstock.sinks.dbwatcher.config import PublishedMessagesConfig, check_messages
from penstock.sinks.events.config import PublishedEventsConfig, check_events, check_schema_registry
from penstock.sinks.xds.config import check_xds_documents

FilesFormat = Literal["changes", "parquet", "debezium-json", "xds", "dbwatcher"]
"""The formats that go into a folder, and the one place of the settings where one is added."""

KafkaFormat = Literal["debezium-json", "debezium-avro", "xds", "dbwatcher"]
"""Those that go into topics."""


@dataclass(frozen=True)
class _Destination:
    """A value of `publish.to`: its formats, the settings that it needs, and reasons against others."""

    formats: Sequence[str]
    needed: Sequence[str]
    unfit: Mapping[str, str]


_DESTINATIONS: Mapping[str, _Destination] = {
    "files": _Destination(
        formats=get_args(FilesFormat),
        needed=("path",),
        unfit={"publish.connection": "files are written to publish.path, through no connection"},
    ),
    "kafka": _Destination(
        formats=get_args(KafkaFormat),
        needed=("connection",),
        unfit={
            "publish.path": "events are published to a cluster, by publish.connection",
            "publish.max_age_s": "events do not wait for others; linger.ms of the connection's settings does a little",
        },
    ),
}


class PublishConfig(ConfigPart):
    """Where changes are published, instead of being applied."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"to": {"const": "kafka"}}},
            "then": {
                "required": ["connection"],
                "if": {"properties": {"format": {"enum": ["xds", "dbwatcher"]}}, "required": ["format"]},
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
    format: Literal[FilesFormat, KafkaFormat] | None = Field(
        default=None,
        description="files: changes (JSON lines, compressed), which is the default, parquet, debezium-json,"
        " dbwatcher, or xds from event_log; kafka: debezium-json, which is the default, debezium-avro, dbwatcher, or"
        " xds from event_log",
    )
    topic: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,249}$",
        description="kafka, xds or dbwatcher: the topic of the documents or messages; <pipeline>.xds or"
        " <pipeline>.dbwatcher if absent",
    )
    debezium: PublishedEventsConfig | None = Field(default=None, description="How changes are told as change events")
    dbwatcher: PublishedMessagesConfig | None = Field(
        default=None, description="How transactions become DbWatcher messages"
    )
    max_age_s: float = Field(
        default=10,
        ge=0,
        le=3600,
        description="files: seconds that changes may wait for others that go into the same file",
    )
    on_bad_value: Literal["stop", "put_aside_transaction", "put_aside_change"] = Field(
        default="put_aside_transaction",
        description="Change events, DbWatcher messages: what becomes of a value that the format or the place does not"
        " carry: stop, put its transaction into the error queue, or only its change; of a row of the first copy, leave"
        " its table out, or put the row there",
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
        return checked_place(path)

    def below(self, folder: Path) -> PublishConfig:
        """The same, whose files are taken from a folder."""
        path = None if self.path is None else below(folder, self.path)
        debezium = None if self.debezium is None else self.debezium.below(folder)
        return self.model_copy(update={"path": path, "debezium": debezium})


def check_publish(document: Document) -> list[Fault]:
    """Find what does not go with the place to publish to, or is missing."""
    destination = _DESTINATIONS.get(str(document.value("publish", "to")))
    if destination is None:
        return []
    return [
        *document.unfit(destination.unfit),
        *document.missing("publish", destination.needed),
        *check_events(document),
        *check_messages(document),
        *check_xds_documents(document),
        *check_schema_registry(document),
        *_check_format(document, destination.formats),
    ]


def _check_format(document: Document, formats: Sequence[str]) -> list[Fault]:
    form = document.value("publish", "format")
    if not isinstance(form, str) or form in formats:
        return []
    path = ("publish", "format")
    document.reported.add(path)
    named = " or ".join([", ".join(map(repr, formats[:-1])), repr(formats[-1])])
    return [document.fault(path, f"must be {named}{'' if must_be_redacted(form) else f', not {form!r}'}")]
