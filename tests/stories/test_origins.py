"""Who wrote a change decides where it goes: chains, fans and circles of pipelines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from penstock import change as c
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.source.access import PostgresSource
from penstock.dialects.postgres.source.change_log import ChangeLog
from penstock.dialects.postgres.target.error_queue import PostgresErrorQueue
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline_file import parse
from penstock.position import START, Limit
from penstock.sources.trigger_queue.queue import QueueReader
from penstock.wiring import open_pipeline
from tests.conftest import create_database, drop_database, numbers

FILE = """\
version: 1
name: {name}
connections:
  here: {{type: postgres, url: "${{env:HERE}}"}}
  there: {{type: postgres, url: "${{env:THERE}}"}}
capture: {{source: trigger_queue, connection: here, tables: ["public.*"], changes_of: {changes_of}}}
apply: {{connection: there, tag: {tag}, first_copy: {first_copy}}}
"""


class Site:
    """A database that may be both source and target."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sql = psycopg.connect(url, autocommit=True)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.sql.execute(query).fetchall()

    def stream(self, pipeline: Flow) -> list[dict[str, Any]]:
        """Every change that the capture set of a pipeline holds, whoever wrote it."""
        set_name = f"penstock_{pipeline.name}"
        log, found = ChangeLog(self.url, set_name), []
        reader, position = QueueReader.of("here", PostgresSource(self.url, set_name), log.tables()), START
        while (part := log.next_slice(position, Limit())) is not None:
            found += [row for batch in reader.read(part) for row in batch.to_pylist()]
            position = part.end
        log.close()
        return found


@dataclass(frozen=True)
class Flow:
    """A pipeline from one site to another."""

    name: str
    here: Site
    there: Site
    changes_of: str = "users"
    tag: str = '"00"'
    first_copy: bool = True
    more: str = ""

    def pipeline(self) -> Pipeline:
        text = FILE.format(
            name=self.name, changes_of=self.changes_of, tag=self.tag, first_copy=str(self.first_copy).lower()
        )
        environment = {"HERE": self.here.url, "THERE": self.there.url}
        pipeline = open_pipeline(parse(text + self.more, name="pipeline.yaml", environment=environment))
        assert isinstance(pipeline, Pipeline)
        return pipeline

    def setup(self) -> None:
        self.pipeline().setup()

    def catch_up(self) -> None:
        self.pipeline().run(threading.Event(), until_caught_up=True)

    def errors(self) -> list[Any]:
        return list(PostgresErrorQueue(self.there.url, self.name).entries())

    def waiting(self) -> int:
        """How many transactions wait that this pipeline would apply."""
        status = self.pipeline().status()
        assert status.process is not None
        log = ChangeLog(self.here.url, f"penstock_{self.name}", self.pipeline().config.capture.origins)
        part = log.next_slice(status.process.low_watermark, Limit())
        log.close()
        return 0 if part is None else len(part)


def catch_up(*flows: Flow) -> None:
    for flow in flows:
        flow.catch_up()
        assert flow.errors() == []


@pytest.fixture
def site(
    source_server: EmbeddedPostgres, target_server: EmbeddedPostgres, old_server: EmbeddedPostgres, spark: object
) -> Iterator[Callable[[], Site]]:
    """Makes databases, on each of three servers by turns."""
    made: list[tuple[EmbeddedPostgres, str, Site]] = []

    def make() -> Site:
        server = (source_server, target_server, old_server)[len(made) % 3]
        name = f"site{next(numbers)}"
        create_database(server, name)
        made.append((server, name, Site(server.url(name))))
        return made[-1][2]

    yield make
    for server, name, one in made:
        one.sql.close()
        drop_database(server, name)


TABLES = """
CREATE TABLE item (id int PRIMARY KEY, name text UNIQUE, stock int NOT NULL);
CREATE TABLE orders (id int PRIMARY KEY, item int REFERENCES item, n int);
CREATE TABLE part (id int, region text, v int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE part_eu PARTITION OF part FOR VALUES IN ('eu');
CREATE TABLE part_us PARTITION OF part FOR VALUES IN ('us');
"""
ALL = ("item", "orders", "part")


def assert_identical(*sites: Site) -> None:
    for table in ALL:
        first, *others = [one.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for one in sites]
        for other in others:
            assert other == first, table


@pytest.mark.rule("A-184", "A-186")
def test_a_chain_hands_on_what_is_applied_and_the_first_copy(site: Callable[[], Site]) -> None:
    a, b, c_ = site(), site(), site()
    a.sql.execute(TABLES)
    a.sql.execute("INSERT INTO item SELECT n, 'item ' || n, n FROM generate_series(1, 200) n")
    first, second = Flow("ab", a, b, tag='"eu-shop"'), Flow("bc", b, c_, changes_of="everything")
    first.setup()
    second.setup()
    # Nothing is at B yet, so what C gets of the first copy it gets as changes.
    catch_up(second, first, second)
    assert_identical(a, b, c_)

    a.sql.execute("INSERT INTO orders VALUES (1, 7, 3), (2, 8, 1); UPDATE item SET stock = stock - 3 WHERE id = 7")
    a.sql.execute("UPDATE item SET id = id + 1000 WHERE id > 100")
    a.sql.execute(
        "INSERT INTO part SELECT n, CASE n % 2 WHEN 0 THEN 'eu' ELSE 'us' END, n FROM generate_series(1, 9) n"
    )
    a.sql.execute("BEGIN; DELETE FROM orders WHERE id = 1; DELETE FROM item WHERE id = 7; COMMIT")
    a.sql.execute("UPDATE part SET region = 'us' WHERE id = 2")
    b.sql.execute("INSERT INTO item VALUES (5000, 'made at B', 1)")
    catch_up(first, second)
    assert b.rows("SELECT count(*) FROM item") == [(200,)]
    b.sql.execute("DELETE FROM item WHERE id = 5000")
    catch_up(second)
    assert_identical(a, b, c_)
    assert second.pipeline().verify().is_identical

    b_stream = [(row[c.OP], row[c.TAG]) for row in b.stream(Flow("bc", b, c_)) if row[c.TABLE_NAME] == "item"]
    assert ("delete", None) in b_stream


@pytest.mark.rule("A-185")
def test_by_default_what_is_applied_goes_no_further(site: Callable[[], Site]) -> None:
    a, b, c_ = site(), site(), site()
    a.sql.execute(TABLES)
    first, second = Flow("ab", a, b), Flow("bc", b, c_)
    first.setup()
    second.setup()
    a.sql.execute("INSERT INTO item VALUES (1, 'of A', 1)")
    b.sql.execute("INSERT INTO item VALUES (2, 'of B', 1)")
    a.sql.execute("INSERT INTO item VALUES (3, 'of A, too', 1)")
    catch_up(second)
    b.sql.execute("DELETE FROM item")
    catch_up(first, second)

    assert c_.rows("TABLE item") == []
    assert b.rows("SELECT id FROM item ORDER BY 1") == [(1,), (3,)]
    assert {row[c.TAG] for row in b.stream(second)} == {None}
