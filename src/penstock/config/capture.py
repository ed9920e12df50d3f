"""The part `capture` of a pipeline file: where changes come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import ConfigDict, Discriminator, Field, PrivateAttr, field_validator, model_validator

from penstock.config.document import Document, Fault
from penstock.config.log import LogConfig
from penstock.config.parts import ConfigPart, Pattern, Tag, below, checked_place
from penstock.config.source import SourceKind, check_folder
from penstock.origins import EVERYTHING, USERS, Origins
from penstock.sources.change_files.config import CHANGE_FILES
from penstock.sources.db2_log.config import DB2_LOG
from penstock.sources.dbwatcher.config import DBWATCHER, DbWatcherConfig
from penstock.sources.debezium.config import DEBEZIUM, DebeziumConfig
from penstock.sources.event_log.config import EVENT_LOG, EventLogConfig
from penstock.sources.trigger_queue.config import TRIGGER_QUEUE, DocumentedConfig
from penstock.sources.xds.config import XDS
from penstock.user_code import NAME

SOURCES = (TRIGGER_QUEUE, CHANGE_FILES, DEBEZIUM, EVENT_LOG, XDS, DB2_LOG, DBWATCHER)
"""Every kind of source, and the one place where it is registered.

One that has settings below its own name has a field in `CaptureConfig`, too. One without `open_folder` is made in
`wiring`.
"""

_NAMES = [source.name for source in SOURCES]
_FROM_DATABASES: list[pydantic.JsonValue] = [source.name for source in SOURCES if source.connects_to == "database"]

_FROM_CLUSTERS: list[pydantic.JsonValue] = [source.name for source in SOURCES if source.connects_to == "cluster"]


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
            "if": {"properties": {"source": {"enum": _FROM_DATABASES}}},
            "then": {
                "required": ["connection"],
                "if": {"properties": {"source": {"const": "event_log"}}},
                "then": {"required": ["event_log"]},
            },
            "else": {
                "if": {"properties": {"source": {"enum": _FROM_CLUSTERS}}},
                "then": {"anyOf": [{"required": ["connection"]}, {"required": ["path"]}]},
                "else": {"required": ["path"]},
            },
        }
    )

    source: str = Field(
        pattern=rf"^({'|'.join([*_NAMES, NAME])})$",
        description="How changes are captured: "
        + ", ".join(f"{source.name} {source.captures}" for source in SOURCES)
        + "; module:name in Python is a source of your own",
        examples=_NAMES,
    )
    connection: str | None = Field(
        default=None,
        description="trigger_queue, event_log: name of the connection to capture from; debezium, dbwatcher: that"
        " of the Kafka cluster",
    )
    path: str | None = Field(
        default=None,
        description="change_files: folder of the archive, which may be below that of this file, or an url of an"
        " object store; debezium: a folder of files with events instead of a cluster; db2_log: folder of the"
        " buffers; xds: folder of the documents; dbwatcher: folder of the messages instead of a cluster; for a source"
        " of your own, the place that it reads",
    )
    documented: DocumentedConfig | None = Field(
        default=None, description="trigger_queue: setup makes the documented tables beside the log"
    )
    debezium: DebeziumConfig | None = Field(default=None, description="debezium: which topics, and how they are read")
    event_log: EventLogConfig | None = Field(default=None, description="event_log: which table, and how it is read")
    dbwatcher: DbWatcherConfig | None = Field(
        default=None, description="dbwatcher: which topic, and how messages are read"
    )
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
    log: LogConfig = Field(
        default_factory=LogConfig, description="trigger_queue: how much of the source's disk the log may take"
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
        return checked_place(path)

    def below(self, folder: Path) -> CaptureConfig:
        """The same, whose files are taken from a folder."""
        path = None if self.path is None else below(folder, self.path)
        debezium = None if self.debezium is None else self.debezium.below(folder)
        return self.model_copy(update={"path": path, "debezium": debezium})


def check_capture(document: Document) -> list[Fault]:
    """Find what does not go with the kind of source that a file names, or is missing."""
    source = document.value("capture", "source")
    if isinstance(source, str) and ":" in source:
        return _check_own(document)
    kind = kind_of_source(source)
    return [] if kind is None else kind.check(document)


def kind_of_source(name: object) -> SourceKind | None:
    """The kind of source that `capture.source` names; None for one of the user's own, and for no source at all."""
    return next((source for source in SOURCES if source.name == name), None)


def _check_own(document: Document) -> list[Fault]:
    return check_folder(
        document,
        published="what comes from a source of your own can be applied, but not published",
        connection="a source of your own reads capture.path, through no connection",
        row_triggers="a source of your own has no triggers",
    )
