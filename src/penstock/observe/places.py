"""What OpenLineage calls the places that tables are in: https://openlineage.io/docs/spec/naming."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from penstock.change import TableName
from penstock.config import PipelineConfig
from penstock.config.connections import ConnectionConfig, KafkaConfig
from penstock.dialects.postgres.connection import place_of


@dataclass(frozen=True)
class DatasetPlace:
    """A database, a cluster or a folder.

    Attributes:
        prefix: What names of tables there begin with.
    """

    namespace: str
    prefix: str = ""

    def name(self, table: TableName) -> str:
        """The name of a table's dataset."""
        return f"{self.prefix}{table.schema}.{table.name}"


def source_place(config: PipelineConfig) -> DatasetPlace:
    """Where a pipeline captures from."""
    return _place(config, config.capture.connection, config.capture.path)


def target_place(config: PipelineConfig) -> DatasetPlace:
    """Where a pipeline applies or publishes to."""
    if config.apply is not None:
        return _place(config, config.apply.connection, None)
    assert config.publish is not None
    return _place(config, config.publish.connection, config.publish.path)


def _place(config: PipelineConfig, connection: str | None, path: str | None) -> DatasetPlace:
    if path is not None:
        parts = urlsplit(path)
        if parts.scheme and parts.netloc:
            # The path of a store, without a user or a password that its url may hold.
            return DatasetPlace(f"{parts.scheme}://{parts.hostname}", f"{parts.path.strip('/')}/")
        return DatasetPlace("file", f"{path.rstrip('/')}/")
    assert connection is not None
    found = config.connections[connection]
    if isinstance(found, KafkaConfig):
        broker = str(found.settings["bootstrap.servers"]).split(",")[0].strip()
        return DatasetPlace(f"kafka://{broker}")
    assert isinstance(found, ConnectionConfig)
    host, port, database = place_of(found.url)
    return DatasetPlace(f"postgres://{host}:{port}", f"{database}.")
