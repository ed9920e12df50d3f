"""Picks the classes for sources that are no database: events, messages, folders, and sources of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.apply.ddl import DdlPolicy
from penstock.change import TableName
from penstock.config.capture import CaptureConfig, kind_of_source
from penstock.config.connections import KafkaConfig
from penstock.config.pipeline import PipelineConfig
from penstock.errors import ConfigError, PenstockError
from penstock.patterns import TablePattern
from penstock.pipeline.connectors import (
    EventSource,
    SourceWithCopies,
    TargetConnector,
)
from penstock.pipeline.process_state import low_watermark
from penstock.position import START, Scn
from penstock.rules.ruleset import RuleSet
from penstock.schema import TableSchema
from penstock.sources.dbwatcher.config import DbWatcherConfig
from penstock.sources.dbwatcher.folder import FolderMessages
from penstock.sources.dbwatcher.messages import MessageLog
from penstock.sources.dbwatcher.source import MessageConnector, Messages
from penstock.sources.debezium.config import DebeziumConfig
from penstock.storage import Storage
from penstock.user_code import load, module_file
from penstock.wiring.opening import not_installed, open_folder

if TYPE_CHECKING:
    from penstock.formats.debezium.decode import DecodeSettings
    from penstock.sources.debezium.log import RecordLog


def open_events(config: PipelineConfig) -> tuple[RecordLog, DecodeSettings]:
    """Where a connector's change events are, in Kafka or in files, and what they do not say of themselves.

    Raises:
        ConfigError: The libraries that read them are not installed.
    """
    try:
        from penstock.sources.debezium.decoding import decode_settings
        from penstock.sources.debezium.files import FileLog
        from penstock.sources.debezium.kafka import KafkaLog
    except ImportError as exc:
        raise not_installed("capture.source debezium", exc) from exc
    capture = config.capture
    debezium = capture.debezium or DebeziumConfig()
    settings = decode_settings(debezium)
    if capture.path is not None:
        return FileLog(open_folder(capture.path, "capture.path")), settings
    assert capture.connection is not None
    cluster = config.connections[capture.connection]
    assert isinstance(cluster, KafkaConfig)
    topics = tuple(debezium.topics or [f"{debezium.prefix}.*"])
    return KafkaLog(cluster.client_settings, (*topics, debezium.transactions)), settings


def event_source(config: PipelineConfig, rules: RuleSet | None, target: TargetConnector) -> EventSource:
    """A connector's change events as a source.

    Args:
        target: Whose tables say what events without schemas hold, where they have the source's names.
    """
    log, settings = open_events(config)
    from penstock.sources.debezium.connector import DebeziumConnector, Untyped
    from penstock.sources.debezium.log import LogLayout
    from penstock.sources.debezium.tables import Tables

    def described(table: TableName) -> TableSchema | None:
        return None if rules is not None else target.describe([table]).get(table)

    patterns = [TablePattern.parse(text) for text in config.capture.tables]

    def is_wanted(table: TableName) -> bool:
        return rules.takes(table) if rules is not None else any(pattern.matches(table) for pattern in patterns)

    debezium = config.capture.debezium or DebeziumConfig()
    tables = Tables(
        settings,
        debezium.prefix or "",
        skips=debezium.on_malformed == "skip",
        described=described,
        is_wanted=is_wanted,
    )
    layout = LogLayout(debezium.transactions, debezium.settle_s, debezium.incomplete, debezium.incomplete_after_s)
    untyped = Untyped(as_text=debezium.untyped == "text", by_target=rules is None)
    return DebeziumConnector(log, layout, tables, config.name, untyped=untyped)


def message_source(config: PipelineConfig, rules: RuleSet | None, target: TargetConnector) -> MessageConnector:
    """DbWatcher's messages as a source.

    Args:
        target: Whose tables say what messages do not, where they have the source's names.
    """
    capture = config.capture
    said = capture.dbwatcher or DbWatcherConfig()

    def described() -> Mapping[TableName, TableSchema]:
        return {} if rules is not None else target.tables_like(capture.tables)

    messages = Messages(
        _message_log(config, said), capture.tables, said.reading, declared=said.declared, describe=described
    )
    assert config.apply is not None
    ddl = config.apply.ddl_rules

    def reached() -> Scn:
        if not target.has_ledger():
            return START
        with closing(target.ledger()) as ledger:
            return low_watermark(ledger)

    def passes_over(table: TableName) -> bool:
        return ddl.of(table if rules is None else rules.target_name(table)) is DdlPolicy.IGNORE

    return MessageConnector(messages, reached=reached, passes_over=passes_over)


def _message_log(config: PipelineConfig, said: DbWatcherConfig) -> MessageLog:
    """Where DbWatcher's messages lie.

    Raises:
        ConfigError: The library that reads topics is not installed.
    """
    capture = config.capture
    if capture.path is not None:
        return FolderMessages(open_folder(capture.path, "capture.path"), said.max_message_bytes)
    assert capture.connection is not None
    assert said.topic is not None
    try:
        from penstock.sources.dbwatcher.topic import TopicMessages
    except ImportError as exc:
        raise not_installed("capture.source dbwatcher", exc) from exc
    cluster = config.connections[capture.connection]
    assert isinstance(cluster, KafkaConfig)
    return TopicMessages(cluster.client_settings, said.topic)


def recorded_source(capture: CaptureConfig, path: str) -> SourceWithCopies:
    """A source that reads a folder, ours or the user's own."""
    if capture.is_own:
        return _own(capture)(open_folder(path, "capture.path"))
    kind = kind_of_source(capture.source)
    assert kind is not None
    assert kind.open_folder is not None
    recording = kind.open_folder(open_folder(path, "capture.path"))
    assert isinstance(recording, SourceWithCopies)
    return recording


def _own(capture: CaptureConfig) -> Callable[[Storage], SourceWithCopies]:
    """A source of the user's own.

    Raises:
        ConfigError: It cannot be loaded, or what it makes is not a source.
    """
    do = "name a class or function as module:name, in one file beside the pipeline file or in what is installed"
    try:
        made = load(capture.source, capture.folder)
        module_file(capture.source, capture.folder)
    except Exception as exc:
        what = f"{capture.place}cannot load {capture.source!r}: {type(exc).__name__}: {exc}"
        raise ConfigError(what, do=do) from exc

    def open_recording(storage: Storage) -> SourceWithCopies:
        try:
            source = made(storage)
        except PenstockError:
            raise
        except Exception as exc:
            what = f"{capture.place}{capture.source!r} failed: {type(exc).__name__}: {exc}"
            raise ConfigError(what, do="it is called with a penstock.storage.Storage") from exc
        if not isinstance(source, SourceWithCopies):
            what = f"{capture.place}{capture.source!r} made {type(source).__name__}, which is not a source"
            raise ConfigError(
                what, do="return a penstock.sources.recorded.RecordedConnector, or another SourceWithCopies"
            )
        return source

    return open_recording
