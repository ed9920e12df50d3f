"""Picks the classes for `publish`: what a pipeline publishes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.config.connections import KafkaConfig
from penstock.config.pipeline import PipelineConfig
from penstock.config.publish import PublishConfig
from penstock.formats.change_file import Encoding
from penstock.pipeline.sink import Sink
from penstock.sinks.archive.sink import ArchiveSink
from penstock.storage import Storage
from penstock.wiring.opening import not_installed, open_folder


def _archive(name: str, storage: Storage, publish: PublishConfig) -> ArchiveSink:
    return ArchiveSink(name, storage, Encoding(publish.form), max_age_s=publish.max_age_s)


FOLDER_SINKS: Mapping[str, Callable[[str, Storage, PublishConfig], Sink]] = {
    **{encoding.value: _archive for encoding in Encoding},
}
"""By `publish.format`, those that are not change events: what publishes a pipeline of this name to a folder."""


def published_to(config: PipelineConfig, database: str | None) -> Sink:
    """Open what a pipeline publishes to.

    Args:
        database: What the one is called that changes are captured from, as far as its url says it.
    """
    publish = config.publish
    assert publish is not None
    if publish.form.startswith("debezium"):
        return _published_events(config, publish, database)
    if publish.form == "dbwatcher":
        return _published_messages(config, publish, database)
    assert publish.path is not None
    return FOLDER_SINKS[publish.form](config.name, open_folder(publish.path, "publish.path"), publish)


def _published_events(config: PipelineConfig, publish: PublishConfig, database: str | None) -> Sink:
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
        raise not_installed(f"publish.format {publish.form}", exc) from exc
    events = publish.debezium
    assert events is not None
    registry = events.registry
    settings = EventSettings(
        prefix=events.prefix,
        database=events.database or database or events.prefix,
        modes=ConnectorModes(Connector(events.connector), decimals=events.decimals, intervals=events.intervals),
        tombstones=events.tombstones_on_delete,
        skipped=frozenset(events.skipped_operations),
        with_transactions=events.transaction_metadata,
        transactions=events.transaction_topic,
        packing=JsonPacking(events.schemas) if registry is None else AvroPacking(registry.open().register),
    )
    on_bad_value = OnBadValue(publish.on_bad_value)
    if publish.path is not None:
        folder = Folder(open_folder(publish.path, "publish.path"), config.name)
        return EventFileSink(folder, settings, on_bad_value=on_bad_value, max_age_s=publish.max_age_s)
    assert publish.connection is not None
    connection = config.connections[publish.connection]
    assert isinstance(connection, KafkaConfig)
    cluster = Cluster(connection.client_settings, config.name, events.partitions, events.replication)
    return KafkaSink(cluster, settings, on_bad_value=on_bad_value)


def _published_messages(config: PipelineConfig, publish: PublishConfig, database: str | None) -> Sink:
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
        raise not_installed(f"publish.format {publish.form}", exc) from exc
    messages = publish.dbwatcher or PublishedMessagesConfig()
    settings = MessageSettings(
        topic=publish.topic or f"{config.name}.dbwatcher",
        writer=WriterSettings(
            version=messages.version,
            db_id=messages.database or database,
            most_rows=messages.max_rows,
            most_transactions=messages.collect_transactions,
            sends_unchanged=messages.send_unchanged_updates,
            sends_truncate=messages.send_truncate,
        ),
        content_rows=messages.content_rows,
        compress_bytes=messages.compress_size,
        compression=Compression(messages.compression),
    )
    on_bad_value = OnBadValue(publish.on_bad_value)
    if publish.path is not None:
        folder = MessageFolder(open_folder(publish.path, "publish.path"), config.name)
        return MessageFileSink(folder, settings, on_bad_value=on_bad_value, max_age_s=publish.max_age_s)
    assert publish.connection is not None
    connection = config.connections[publish.connection]
    assert isinstance(connection, KafkaConfig)
    cluster = Cluster(connection.client_settings, config.name, 1, messages.replication)
    return MessageTopicSink(cluster, settings, on_bad_value=on_bad_value)
