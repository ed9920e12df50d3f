"""Picks the classes for a pipeline file: the only folder that knows every source, database and sink."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.apply.ddl import DdlPolicy
from penstock.change import TableName
from penstock.config.apply import ApplyConfig
from penstock.config.connections import ConnectionConfig, KafkaConfig
from penstock.config.pipeline import PipelineConfig
from penstock.config.publish import PublishConfig
from penstock.dialects.postgres.connection import connect, database_of, referring_url_of, secrets_of, speaking
from penstock.dialects.postgres.examine import ExaminedPart, examine
from penstock.dialects.postgres.source.access import PostgresSource
from penstock.dialects.postgres.source.connector import PostgresSourceConnector
from penstock.dialects.postgres.source.event_journal import PostgresJournal
from penstock.dialects.postgres.source.event_log import PostgresEventLog
from penstock.dialects.postgres.source.event_log_columns import find_event_logs as event_logs_of
from penstock.dialects.postgres.source.event_log_connector import PostgresEventLogConnector
from penstock.dialects.postgres.target.connector import PostgresTargetConnector
from penstock.errors import ConfigError
from penstock.examination import Examination
from penstock.external_values import ValueStore
from penstock.formats.change_file import Encoding
from penstock.formats.xds.values import TimeSyntax
from penstock.pipeline.connectors import (
    DatabaseSource,
    PlainDatabase,
    SourceConnector,
    TargetConnector,
)
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.publication import Publication
from penstock.pipeline.transformed import TransformedDatabase, TransformedRecording
from penstock.rules.ruleset import RuleSet
from penstock.sinks.xds.folder import XdsFolder
from penstock.sinks.xds.publication import EventLogPublication
from penstock.sources.change_files.read import read_archive
from penstock.sources.change_files.spark_source import ChangeFilesSource
from penstock.sources.db2_log.lobs import LogValues
from penstock.sources.db2_log.spark_source import Db2LogSource
from penstock.sources.dbwatcher.spark_source import DbWatcherSource
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
from penstock.user_code import module_file
from penstock.wiring.opening import not_installed, open_folder
from penstock.wiring.recordings import event_source, message_source, open_events, recorded_source
from penstock.wiring.sinks import published_to

__all__ = ["TASK_MODULES", "open_event_log", "open_events", "open_pipeline", "register_sources"]

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
        secrets_of: Returns the secrets that a url holds.
        referring: See `referring_url`.
    """

    connector: type[PostgresSourceConnector]
    open_log: Callable[[str, str], OpenLog]
    name_of: Callable[[str], str | None]
    secrets_of: Callable[[str], Sequence[str]]
    referring: Callable[[str, str], tuple[str, Mapping[str, str]]]


_DATABASES: Mapping[str, CapturedDatabase] = {
    "postgres": CapturedDatabase(
        PostgresSourceConnector,
        lambda url, name: PostgresSource(url, name).log,
        name_of=database_of,
        secrets_of=secrets_of,
        referring=referring_url_of,
    ),
}
_TARGETS: Mapping[str, Callable[[str, str, str | None, ValueStore | None], TargetConnector]] = {
    "postgres": PostgresTargetConnector,
}
"""By `type` of a connection: the databases that changes are captured from, and those that they are applied to."""

_EXAMINERS: Mapping[str, Callable[[str, ExaminedPart], Examination]] = {"postgres": examine}
"""By `type` of a connection: what looks at a database for `penstock doctor`."""


def examine_database(
    connection: ConnectionConfig, patterns: Sequence[str], *, is_source: bool, sessions: int
) -> Examination:
    """Look at a database as a source or a target; nothing is changed.

    Args:
        patterns: Of the tables that are looked at.
        sessions: How many connections a run opens there.

    Raises:
        PenstockError: It cannot be connected to, or asked.
    """
    return _EXAMINERS[connection.type](connection.url, ExaminedPart(tuple(patterns), is_source, sessions))


def find_event_logs(connection: ConnectionConfig) -> Sequence[TableName]:
    """Return the tables and views of a database that look like event logs.

    Raises:
        PenstockError: It cannot be connected to, or asked.
    """
    with closing(connect(connection.url, "penstock init")) as session, speaking("find event logs", connection.url):
        return event_logs_of(session)


def url_secrets(connection: ConnectionConfig) -> Sequence[str]:
    """Return the secrets that the url of a database holds, and may be shown nowhere."""
    return _DATABASES[connection.type].secrets_of(connection.url)


def referring_url(kind: str, url: str, prefix: str) -> tuple[str, Mapping[str, str]]:
    """Return a url as a pipeline file may have it, and the secret of it by the variable that the file refers to.

    Args:
        prefix: What the variable's name begins with.

    Raises:
        ConfigError: It cannot be read.
    """
    return _DATABASES[kind].referring(url, prefix)


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
        return Publication(config, published, published_to(config, _database_name(config)), spark, rules)
    assert config.apply is not None
    target = _target(config, config.apply)
    path = config.capture.path
    source: SourceConnector
    if config.capture.source == "debezium":
        events = event_source(config, rules, target)
        source = events if rules is None else TransformedRecording(events, rules)
    elif config.capture.source == "event_log":
        source = _event_log(config, target)
    elif config.capture.source == "xds":
        assert path is not None
        source = XdsConnector(open_folder(path, "capture.path"), config.capture.tables, target.tables_like)
    elif config.capture.source == "dbwatcher":
        messages = message_source(config, rules, target)
        source = messages if rules is None else TransformedRecording(messages, rules)
    elif path is None:
        database = _database(config)
        source = database if rules is None else TransformedDatabase(database, rules)
    else:
        recording = recorded_source(config.capture, path)
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
        folder = XdsFolder(open_folder(publish.path, "publish.path"))
        return EventLogPublication(config, source, folder, Channel(log, settings, folder.put_all))
    try:
        from penstock.sinks.events.kafka import Cluster
        from penstock.sinks.xds.topic import AT_ONCE, XdsTopic
    except ImportError as exc:
        raise not_installed("publish.to kafka", exc) from exc
    assert publish.connection is not None
    connection = config.connections[publish.connection]
    assert isinstance(connection, KafkaConfig)
    topic_name = publish.topic or f"{config.name}.xds"
    topic = XdsTopic(Cluster(connection.client_settings, config.name), topic_name, config.capture.name, source.journal)
    # A record holds one event, whatever goes into one transaction.
    channel = Channel(log, replace(settings, batch_size=AT_ONCE), topic.put_all, let_go=topic.close)
    return EventLogPublication(config, source, topic, channel)


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
        values = LogValues(open_folder(path, "capture.path"))
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
