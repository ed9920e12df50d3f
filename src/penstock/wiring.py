"""Picks the classes for a pipeline file: the only module that knows every source, database and sink."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.apply.ddl import DdlPolicy
from penstock.change import TableName
from penstock.config.apply import ApplyConfig
from penstock.config.capture import CaptureConfig, kind_of_source
from penstock.config.connections import ConnectionConfig, KafkaConfig
from penstock.config.pipeline import PipelineConfig
from penstock.config.publish import PublishConfig
from penstock.dialects.postgres.connection import database_of
from penstock.dialects.postgres.source.access import PostgresSource
from penstock.dialects.postgres.source.connector import PostgresSourceConnector
from penstock.dialects.postgres.source.event_journal import PostgresJournal
from penstock.dialects.postgres.source.event_log import PostgresEventLog
from penstock.dialects.postgres.source.event_log_connector import PostgresEventLogConnector
from penstock.dialects.postgres.target.connector import PostgresTargetConnector
from penstock.errors import ConfigError, PenstockError
from penstock.external_values import ValueStore
from penstock.formats.change_file import Encoding
from penstock.formats.xds.values import TimeSyntax
from penstock.patterns import TablePattern
from penstock.pipeline.connectors import (
    DatabaseSource,
    EventSource,
    PlainDatabase,
    SourceConnector,
    SourceWithCopies,
    TargetConnector,
)
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.publication import Publication
from penstock.pipeline.sink import Sink
from penstock.pipeline.transformed import TransformedDatabase, TransformedRecording
from penstock.rules.ruleset import RuleSet
from penstock.schema import TableSchema
from penstock.sinks.archive.sink import ArchiveSink
from penstock.sinks.xds.folder import XdsFolder
from penstock.sinks.xds.publication import EventLogPublication
from penstock.sources.change_files.read import read_archive
from penstock.sources.change_files.spark_source import ChangeFilesSource
from penstock.sources.db2_log.lobs import LogValues
from penstock.sources.db2_log.spark_source import Db2LogSource
from penstock.sources.dbwatcher.config import DbWatcherConfig
from penstock.sources.dbwatcher.folder import FolderMessages
from penstock.sources.dbwatcher.messages import MessageLog
from penstock.sources.dbwatcher.source import MessageConnector, Messages
from penstock.sources.dbwatcher.spark_source import DbWatcherSource
from penstock.sources.debezium.config import DebeziumConfig
from penstock.sources.event_log.channel import Channel
from penstock.sources.event_log.config import EventLogConfig
from penstock.sources.event_log.failures import Failures
from penstock.sources.event_log.options import read_log_options
from penstock.sources.event_log.spark_source import EventLogDataSource, ReadOptions
from penstock.sources.trigger_queue.queue import OpenLog
from penstock.sources.trigger_queue.source import TriggerQueueSource
from penstock.sources.xds.source import XdsConnector
from penstock.spark.java import Java
from penstock.spark.job import run_first_job
from penstock.spark.session import make_session, start_context
from penstock.spark.starting import Spark
from penstock.storage import Storage, open_storage
from penstock.user_code import load, module_file

if TYPE_CHECKING:
    from penstock.formats.debezium.decode import DecodeSettings
    from penstock.sources.debezium.log import RecordLog

TASK_MODULES = ("adbc_driver_postgresql.dbapi",)
"""What tasks import late; the daemon of the tasks imports it beforehand."""

_Connector = TypeVar("_Connector")


@dataclass(frozen=True)
class CapturedDatabase:
    """A kind of database that changes are captured from.

    Attributes:
        connector: The source of a pipeline.
        open_log: Says how the Spark data source opens the change log of a set at a url.
        name_of: Returns what the database at a url is called; raises a `ConfigError` where the url cannot be read.
    """

    connector: type[PostgresSourceConnector]
    open_log: Callable[[str, str], OpenLog]
    name_of: Callable[[str], str | None]


_DATABASES: Mapping[str, CapturedDatabase] = {
    "postgres": CapturedDatabase(
        PostgresSourceConnector, lambda url, name: PostgresSource(url, name).log, name_of=database_of
    ),
}
_TARGETS: Mapping[str, Callable[[str, str, str | None, ValueStore | None], TargetConnector]] = {
    "postgres": PostgresTargetConnector,
}
"""By `type` of a connection: the databases that changes are captured from, and those that they are applied to."""


def _archive(name: str, storage: Storage, publish: PublishConfig) -> ArchiveSink:
    return ArchiveSink(name, storage, Encoding(publish.form), max_age_s=publish.max_age_s)


_FOLDER_SINKS: Mapping[str, Callable[[str, Storage, PublishConfig], Sink]] = {
    **{encoding.value: _archive for encoding in Encoding},
}
"""By `publish.format`, those that are no change events: what publishes a pipeline of this name to a folder."""


def open_pipeline(config: PipelineConfig, java: Java | None = None) -> Pipeline | Publication:
    """Put a pipeline file to work; nothing is connected to yet. Spark starts at once where Java was begun for it."""
    pipeline = _opened(config, java)
    path = _archive_path(config)
    if path is not None:
        pipeline.reads_changes = partial(read_archive, path)
    return pipeline


def _archive_path(config: PipelineConfig) -> str | None:
    """The archive that a pipeline publishes to, or captures from; None if it has none."""
    if config.publish is not None and config.publish.form in set(Encoding):
        return config.publish.path
    return config.capture.path if config.capture.source == "change_files" else None


def _opened(config: PipelineConfig, java: Java | None) -> Pipeline | Publication:
    spark = _spark(config, java)
    if java is not None:
        spark.begin()
    rules = None
    if config.rules is not None:
        rules = RuleSet.of(config.rules, config.capture.tables, config.rules.folder)
    if config.publish is not None and config.capture.source == "event_log":
        return _published_log(config, config.publish)
    if config.publish is not None:
        database = _database(config)
        published: DatabaseSource = database if rules is None else TransformedDatabase(database, rules)
        return Publication(config, published, _published_to(config), spark, rules)
    assert config.apply is not None
    target = _target(config, config.apply)
    path = config.capture.path
    source: SourceConnector
    if config.capture.source == "debezium":
        events = _events(config, rules, target)
        source = events if rules is None else TransformedRecording(events, rules)
    elif config.capture.source == "event_log":
        source = _event_log(config, target)
    elif config.capture.source == "xds":
        assert path is not None
        source = XdsConnector(_open_folder(path, "capture.path"), config.capture.tables, target.tables_like)
    elif config.capture.source == "dbwatcher":
        messages = _messages(config, rules, target)
        source = messages if rules is None else TransformedRecording(messages, rules)
    elif path is None:
        database = _database(config)
        source = database if rules is None else TransformedDatabase(database, rules)
    else:
        recording = _recording(config.capture, path)
        source = recording if rules is None else TransformedRecording(recording, rules)
    return Pipeline(config, source, target, spark, rules)


def _spark(config: PipelineConfig, java: Java | None) -> Spark:
    def start() -> SparkContext:
        context = start_context(
            config.application_name, lanes=config.parallelism, settings=config.spark_settings, java=java
        )
        run_first_job(context)
        return context

    def on_started(context: SparkContext) -> None:
        if java is not None:
            java.keep()
        if config.capture.is_own:
            _send_own(context, [config.capture.source], config.capture.folder)
        # Those of a command that calls none are not imported.
        named = [one.name for one in config.handlers.functions() if one.name.partition(":")[0] in sys.modules]
        _send_own(context, named, config.capture.folder)

    return Spark(start, partial(make_session, config.spark_settings), on_started)


def _published_to(config: PipelineConfig) -> Sink:
    """Open what a pipeline publishes to."""
    publish = config.publish
    assert publish is not None
    if publish.form.startswith("debezium"):
        return _published_events(config, publish)
    if publish.form == "dbwatcher":
        return _published_messages(config, publish)
    assert publish.path is not None
    return _FOLDER_SINKS[publish.form](config.name, _open_folder(publish.path, "publish.path"), publish)


def _published_events(config: PipelineConfig, publish: PublishConfig) -> Sink:
    """Topics of a cluster, or a folder of files, with change events.

    Raises:
        ConfigError: The libraries that write them are not installed.
    """
    try:
        from penstock.formats.debezium.avro_writer import AvroPacking
        from penstock.formats.debezium.columns import Connector, ConnectorModes
        from penstock.formats.debezium.writer import EventSettings, JsonPacking
        from penstock.sinks.events.files import Folder
        from penstock.sinks.events.kafka import Cluster
        from penstock.sinks.events.put_aside import OnBadValue
        from penstock.sinks.events.sink import EventFileSink, KafkaSink
    except ImportError as exc:
        raise _not_installed(f"publish.format {publish.form}", exc) from exc
    events = publish.debezium
    assert events is not None
    registry = events.registry
    settings = EventSettings(
        prefix=events.prefix,
        database=events.database or _database_name(config) or events.prefix,
        modes=ConnectorModes(Connector(events.connector), decimals=events.decimals, intervals=events.intervals),
        tombstones=events.tombstones_on_delete,
        skipped=frozenset(events.skipped_operations),
        with_transactions=events.transaction_metadata,
        transactions=events.transaction_topic,
        packing=JsonPacking(events.schemas) if registry is None else AvroPacking(registry.open().register),
    )
    on_bad_value = OnBadValue(publish.on_bad_value)
    if publish.path is not None:
        folder = Folder(_open_folder(publish.path, "publish.path"), config.name)
        return EventFileSink(folder, settings, on_bad_value=on_bad_value, max_age_s=publish.max_age_s)
    assert publish.connection is not None
    connection = config.connections[publish.connection]
    assert isinstance(connection, KafkaConfig)
    cluster = Cluster(connection.client_settings, config.name, events.partitions, events.replication)
    return KafkaSink(cluster, settings, on_bad_value=on_bad_value)


def _published_messages(config: PipelineConfig, publish: PublishConfig) -> Sink:
    """A topic of a cluster, or a folder of files, with DbWatcher messages.

    Raises:
        ConfigError: The libraries that write them are not installed.
    """
    try:
        from penstock.formats.dbwatcher.compression import Compression
        from penstock.formats.dbwatcher.transactions import WriterSettings
        from penstock.sinks.dbwatcher.config import PublishedMessagesConfig
        from penstock.sinks.dbwatcher.encoder import MessageSettings
        from penstock.sinks.dbwatcher.folder import MessageFolder
        from penstock.sinks.dbwatcher.sink import MessageFileSink, MessageTopicSink
        from penstock.sinks.events.kafka import Cluster
        from penstock.sinks.events.put_aside import OnBadValue
    except ImportError as exc:
        raise _not_installed(f"publish.format {publish.form}", exc) from exc
    messages = publish.dbwatcher or PublishedMessagesConfig()
    settings = MessageSettings(
        topic=publish.topic or f"{config.name}.dbwatcher",
        writer=WriterSettings(
            version=messages.version,
            db_id=messages.database or _database_name(config),
            most_rows=messages.max_rows,
            sends_unchanged=messages.send_unchanged_updates,
            sends_truncate=messages.send_truncate,
        ),
        content_rows=messages.content_rows,
        compress_bytes=messages.compress_size,
        compression=Compression(messages.compression),
    )
    on_bad_value = OnBadValue(publish.on_bad_value)
    if publish.path is not None:
        folder = MessageFolder(_open_folder(publish.path, "publish.path"), config.name)
        return MessageFileSink(folder, settings, on_bad_value=on_bad_value, max_age_s=publish.max_age_s)
    assert publish.connection is not None
    connection = config.connections[publish.connection]
    assert isinstance(connection, KafkaConfig)
    cluster = Cluster(connection.client_settings, config.name, 1, messages.replication)
    return MessageTopicSink(cluster, settings, on_bad_value=on_bad_value)


def _database_name(config: PipelineConfig) -> str | None:
    """What the database that changes are captured from is called, as far as its url says it."""
    assert config.capture.connection is not None
    connection = config.connections[config.capture.connection]
    assert isinstance(connection, ConnectionConfig)
    try:
        return _DATABASES[connection.type].name_of(connection.url)
    except ConfigError:
        # Connecting says what is wrong with it.
        return None


def _not_installed(what: str, cause: ImportError) -> ConfigError:
    return ConfigError(f"{what} needs {cause.name}, which is not installed", do="pip install 'penstock[kafka]'")


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
        raise _not_installed("capture.source debezium", exc) from exc
    capture = config.capture
    debezium = capture.debezium or DebeziumConfig()
    settings = decode_settings(debezium)
    if capture.path is not None:
        return FileLog(_open_folder(capture.path, "capture.path")), settings
    assert capture.connection is not None
    cluster = config.connections[capture.connection]
    assert isinstance(cluster, KafkaConfig)
    topics = tuple(debezium.topics or [f"{debezium.prefix}.*"])
    return KafkaLog(cluster.client_settings, (*topics, debezium.transactions)), settings


def _event_log(config: PipelineConfig, target: TargetConnector | None) -> PostgresEventLogConnector:
    """An event log as a source.

    Args:
        target: Whose error queue says which events failed; None where they are published.
    """
    capture = config.capture
    assert capture.event_log is not None
    assert capture.connection is not None
    settings, creates, triggers = capture.event_log.settings, capture.event_log.create, capture.event_log.triggers
    if target is not None:
        # Written in full, and read again for apply.
        settings = replace(settings, time_syntax=TimeSyntax.WHOLE)

    failures = Failures(None if target is None else target.error_queue)

    def open_connector(url: str, pipeline: str) -> PostgresEventLogConnector:
        return PostgresEventLogConnector(
            url, pipeline, settings, capture.tables, creates_log=creates, triggers=triggers, failures=failures
        )

    return _open(open_connector, config, capture.connection)


def open_event_log(config: PipelineConfig, *, is_xds: bool) -> PostgresEventLog:
    """The event log of a pipeline; `is_xds` writes times as its file says, else so that none loses anything."""
    journal = _event_log(config, None).journal
    if is_xds:
        return journal.open_log()
    return replace(journal, settings=replace(journal.settings, time_syntax=TimeSyntax.WHOLE)).open_log()


def _published_log(config: PipelineConfig, publish: PublishConfig) -> EventLogPublication:
    """What publishes an event log as XDS documents."""
    source = _event_log(config, None)
    log, settings = source.journal.open_log(), source.journal.settings
    if publish.path is not None:
        folder = XdsFolder(_open_folder(publish.path, "publish.path"))
        return EventLogPublication(config, source, folder, Channel(log, settings, folder.put_all))
    try:
        from penstock.sinks.events.kafka import Cluster
        from penstock.sinks.xds.topic import AT_ONCE, XdsTopic
    except ImportError as exc:
        raise _not_installed("publish.to kafka", exc) from exc
    assert publish.connection is not None
    connection = config.connections[publish.connection]
    assert isinstance(connection, KafkaConfig)
    topic_name = publish.topic or f"{config.name}.xds"
    topic = XdsTopic(Cluster(connection.client_settings, config.name), topic_name, config.capture.name, source.journal)
    # A record holds one event, whatever goes into one transaction.
    channel = Channel(log, replace(settings, batch_size=AT_ONCE), topic.put_all, let_go=topic.close)
    return EventLogPublication(config, source, topic, channel)


def _events(config: PipelineConfig, rules: RuleSet | None, target: TargetConnector) -> EventSource:
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


def _messages(config: PipelineConfig, rules: RuleSet | None, target: TargetConnector) -> MessageConnector:
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
    return MessageConnector(messages)


def _message_log(config: PipelineConfig, said: DbWatcherConfig) -> MessageLog:
    """Where DbWatcher's messages lie.

    Raises:
        ConfigError: The library that reads topics is not installed.
    """
    capture = config.capture
    if capture.path is not None:
        return FolderMessages(_open_folder(capture.path, "capture.path"))
    assert capture.connection is not None
    assert said.topic is not None
    try:
        from penstock.sources.dbwatcher.topic import TopicMessages
    except ImportError as exc:
        raise _not_installed("capture.source dbwatcher", exc) from exc
    cluster = config.connections[capture.connection]
    assert isinstance(cluster, KafkaConfig)
    return TopicMessages(cluster.client_settings, said.topic)


def _recording(capture: CaptureConfig, path: str) -> SourceWithCopies:
    """A source that reads a folder, ours or the user's own."""
    if capture.is_own:
        return _own(capture)(_open_folder(path, "capture.path"))
    kind = kind_of_source(capture.source)
    assert kind is not None
    assert kind.open_folder is not None
    recording = kind.open_folder(_open_folder(path, "capture.path"))
    assert isinstance(recording, SourceWithCopies)
    return recording


def _own(capture: CaptureConfig) -> Callable[[Storage], SourceWithCopies]:
    """A source of the user's own.

    Raises:
        ConfigError: It cannot be loaded, or what it makes is no source.
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
            what = f"{capture.place}{capture.source!r} made {type(source).__name__}, which is no source"
            raise ConfigError(
                what, do="return a penstock.sources.recorded.RecordedConnector, or another SourceWithCopies"
            )
        return source

    return open_recording


def _send_own(context: SparkContext, names: Iterable[str], folder: Path) -> None:
    """Have modules that lie beside the pipeline file at the workers, where nothing of them is installed."""
    for name in {name.partition(":")[0]: name for name in names if ":" in name}.values():
        file = module_file(name, folder)
        if file is not None:
            context.addPyFile(str(file))


def _database(config: PipelineConfig) -> PlainDatabase:
    connection, apply, publish = config.capture.connection, config.apply, config.publish
    assert connection is not None
    # DbWatcher messages say that a table was altered; other formats show it by the rows.
    with_ddl = apply.ddl_rules.is_followed if apply is not None else publish is not None and publish.form == "dbwatcher"
    connector = _DATABASES[_kind(config, connection)].connector

    def open_connector(url: str, pipeline: str) -> PlainDatabase:
        return connector(
            url,
            pipeline,
            config.capture.origins,
            with_ddl=with_ddl,
            takes_up_new=apply is not None and apply.ddl is DdlPolicy.APPLY,
            # What is published has no place for messages; what is applied must not lose any.
            with_messages=apply is not None,
            documented=config.capture.documented,
        )

    return _open(open_connector, config, connection)


def _target(config: PipelineConfig, apply: ApplyConfig) -> TargetConnector:
    connector = _TARGETS[_kind(config, apply.connection)]
    path = config.capture.path
    values = None
    if config.capture.source == "db2_log" and path is not None:
        values = LogValues(_open_folder(path, "capture.path"))
    return _open(lambda url, pipeline: connector(url, pipeline, apply.tag, values), config, apply.connection)


def _kind(config: PipelineConfig, connection: str) -> str:
    return config.connections[connection].type


def _open(connector: Callable[[str, str], _Connector], config: PipelineConfig, name: str) -> _Connector:
    try:
        connection = config.connections[name]
        assert isinstance(connection, ConnectionConfig)
        return connector(connection.url, config.name)
    except ConfigError as exc:
        raise ConfigError(exc.what, where=f"connections.{name}.url", do=exc.do) from exc


def _open_folder(path: str, setting: str) -> Storage:
    try:
        return open_storage(path)
    except ConfigError as exc:
        raise ConfigError(exc.what, where=", ".join(filter(None, [setting, exc.where])), do=exc.do) from exc


class TriggerQueue(TriggerQueueSource):
    """The data source, for every database that has a folder."""

    @staticmethod
    def log_of(kind: str, url: str, set_name: str) -> OpenLog:
        """Say how tasks open the log of a set in a kind of database."""
        if kind not in _DATABASES:
            raise ConfigError(f"option 'type' must be one of {', '.join(_DATABASES)}, not {kind!r}")
        return _DATABASES[kind].open_log(url, set_name)


class EventLogTable(EventLogDataSource):
    """The data source, for every database that has a folder."""

    @staticmethod
    def reading(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
        """Say what options mean."""
        return read_log_options(options, is_stream=is_stream, open_journal=_open_journal)


def _open_journal(kind: str, url: str, name: str, config: EventLogConfig, tables: Sequence[str]) -> PostgresJournal:
    if kind != "postgres":
        raise ConfigError(f"option 'type' must be postgres, not {kind!r}")
    return PostgresJournal(url, name, config.settings, tuple(tables))


def register_sources(spark: SparkSession) -> None:
    """Make our data sources known to a Spark session.

    They are `penstock.trigger_queue`, `penstock.change_files`, `penstock.event_log`, `penstock.db2_log` and
    `penstock.dbwatcher`.
    """
    spark.dataSource.register(TriggerQueue)
    spark.dataSource.register(ChangeFilesSource)
    spark.dataSource.register(EventLogTable)
    spark.dataSource.register(Db2LogSource)
    spark.dataSource.register(DbWatcherSource)
