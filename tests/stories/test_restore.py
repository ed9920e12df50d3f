"""Restoring a database from change files: as of the end of an archive, and as of any point in it."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest

from penstock.config import parse
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.publication import Publication
from penstock.wiring import open_pipeline
from tests.lab import Lab

PUBLISHING = """
version: 1
name: {name}
connections: {{shop: {{type: postgres, url: "${{env:URL}}"}}}}
capture: {{source: trigger_queue, connection: shop, tables: ["public.*"]}}
publish: {{to: files, path: archive, format: {format}}}
"""

RESTORING = """
version: 1
name: {name}
connections: {{copy: {{type: postgres, url: "${{env:URL}}"}}}}
capture: {{source: change_files, path: archive, tables: ["public.*"]}}
apply: {{connection: copy}}
"""

TABLES = """
CREATE TABLE customer (id int PRIMARY KEY, name text NOT NULL, balance numeric(12,2) NOT NULL DEFAULT 0, raw bytea);
CREATE TABLE orders (id int PRIMARY KEY, customer int REFERENCES customer, at timestamptz);
CREATE TABLE note (body text);
INSERT INTO customer SELECT n, 'customer "' || n || E'"\\n', n / 7.0, '\\x00ff' FROM generate_series(1, 500) n;
INSERT INTO orders SELECT n, n % 500 + 1, '2024-01-01' FROM generate_series(1, 900) n;
INSERT INTO note VALUES ('one'), (NULL), ('one');
"""


class Restoring:
    """A database that is published to an archive, and another one that is restored from it."""

    def __init__(self, lab: Lab, folder: Path, format_: str) -> None:
        self.lab = lab
        self.folder = folder
        text = PUBLISHING.format(name=lab.name, format=format_)
        publication = open_pipeline(
            parse(text, name="publish.yaml", environment={"URL": lab.source_url}, folder=folder)
        )
        assert isinstance(publication, Publication)
        self.publication = publication

    @property
    def pipeline(self) -> Pipeline:
        text = RESTORING.format(name=self.lab.name)
        pipeline = open_pipeline(
            parse(text, name="restore.yaml", environment={"URL": self.lab.target_url}, folder=self.folder)
        )
        assert isinstance(pipeline, Pipeline)
        return pipeline

    def publish(self) -> None:
        self.publication.run(threading.Event(), until_caught_up=True)

    def restore(self, until: str | int | None = None) -> None:
        progress = self.pipeline.run(threading.Event(), until_caught_up=until is None, until=until)
        assert (progress.in_queue, progress.conflicts) == (0, 0)


@pytest.fixture(params=["changes", "parquet"])
def shop(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path, spark: object) -> Restoring:
    return Restoring(lab, tmp_path, request.param)


def content(connection: psycopg.Connection) -> dict[str, list[str]]:
    """Every table of the schema, and its rows as text, in order."""
    names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1").fetchall()
    return {
        name: sorted(row[0] for row in connection.execute(f'SELECT t::text FROM "{name}" t').fetchall())
        for (name,) in names
    }


def test_a_target_becomes_what_the_source_was(shop: Restoring) -> None:
    source = shop.lab.source
    source.execute(TABLES)
    shop.publication.setup()
    shop.publish()
    source.execute("UPDATE customer SET balance = -1.50, name = 'x' WHERE id % 3 = 0")
    with source.transaction():
        source.execute("DELETE FROM orders WHERE customer = 7; DELETE FROM customer WHERE id = 7")
        source.execute("INSERT INTO customer VALUES (1000, 'new', 1, '\\x01')")
    source.execute("TRUNCATE note")
    source.execute("ALTER TABLE orders ADD COLUMN comment text")
    source.execute("INSERT INTO orders VALUES (5000, 1000, now(), 'first')")
    source.execute("INSERT INTO note VALUES ('two')")
    shop.publish()

    shop.pipeline.setup()
    shop.restore()

    assert content(shop.lab.target) == content(source)
