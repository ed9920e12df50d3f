"""A database whose changes are published to Kafka, and what tests ask of the topics."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

import penstock
from penstock.apply.progress import Progress
from penstock.demo.servers import EmbeddedPostgres
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.publication import Publication
from tests.kafka.broker import KafkaBroker, Record

FILE = """
version: 1
name: {name}
connections:
  shop: {{type: postgres, url: "{url}"}}
  events: {{type: kafka, settings: {settings}}}
capture: {{source: trigger_queue, connection: shop, tables: ["public.*"]}}
publish: {publish}
"""

CONSUMING = """
version: 1
name: {name}_copy
connections:
  events: {{type: kafka, settings: {settings}}}
  copy: {{type: postgres, url: "{url}"}}
capture:
  source: debezium
  connection: events
  tables: ["public.*"]
  debezium: {events}
apply: {{connection: copy}}
"""


@dataclass
class Published:
    """A pipeline from a database of its own to topics, whose names begin with the pipeline's."""

    broker: KafkaBroker
    name: str
    url: str
    folder: Path
    publication: Publication

    @classmethod
    def of(
        cls, broker: KafkaBroker, server: EmbeddedPostgres, folder: Path, name: str, sql: str, **events: object
    ) -> Published:
        """Make the database, fill it, and set the pipeline up.

        Args:
            events: What stands below `publish.debezium`; `connection` has settings of the cluster instead, and with
                `is_there` the database is there already.
        """
        url = server.url(name) if events.pop("is_there", False) else made(server, name, sql)
        settings = {"bootstrap.servers": broker.address, **dict(events.pop("connection", {}))}  # type: ignore[call-overload]
        form = events.pop("form", "debezium-json")
        publish = {"to": "kafka", "connection": "events", "format": form, "debezium": {"prefix": name, **events}}
        path = folder / f"{name}.yaml"
        text = FILE.format(name=name, url=url, settings=json.dumps(settings), publish=json.dumps(publish))
        path.write_text(text)
        publication = penstock.open(path)
        assert isinstance(publication, Publication)
        publication.setup()
        return cls(broker, name, url, folder, publication)

    def again(self) -> Publication:
        """The same pipeline, as another run has it."""
        publication = penstock.open(self.folder / f"{self.name}.yaml")
        assert isinstance(publication, Publication)
        return publication

    def publish(self) -> Progress:
        """Publish what there is."""
        return self.publication.run(threading.Event(), until_caught_up=True)

    def execute(self, sql: str, *parameters: Any) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(sql, parameters or None)

    def topic(self, table: str) -> str:
        return f"{self.name}.public.{table}"

    def events(self, table: str, *, committed_only: bool = True) -> list[Record]:
        return self.broker.read(self.topic(table), committed_only=committed_only)

    def ops(self, table: str) -> Counter[str]:
        """How many events of each kind there are; a tombstone is an empty text."""
        return Counter("" if record.payload is None else record.payload["op"] for record in self.events(table))

    def consumer(self, url: str, **events: object) -> Pipeline:
        """A pipeline that applies the topics to another database."""
        path = self.folder / f"{self.name}_copy.yaml"
        settings = json.dumps({"bootstrap.servers": self.broker.address})
        given = json.dumps({"prefix": self.name, **events})
        path.write_text(CONSUMING.format(name=self.name, url=url, settings=settings, events=given))
        pipeline = penstock.open(path)
        assert isinstance(pipeline, Pipeline)
        return pipeline


def made(server: EmbeddedPostgres, name: str, sql: str = "") -> str:
    """Make a database; returns its url."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    with psycopg.connect(server.url(name), autocommit=True) as connection:
        connection.execute(sql or "SELECT 1")
    return server.url(name)


def texts(url: str, *tables: str) -> Sequence[Sequence[tuple[str]]]:
    """The rows of tables as the database writes them, in an order of their own."""
    query = 'SELECT whole FROM (SELECT t::text AS whole FROM {} t) AS rows ORDER BY whole COLLATE "C"'
    with psycopg.connect(url) as connection:
        return [connection.execute(query.format(table)).fetchall() for table in tables]
