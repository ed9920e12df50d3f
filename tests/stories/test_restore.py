"""Restoring a database from change files: as of the end of an archive, and as of any point in it."""

from __future__ import annotations

import random
import threading
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from penstock.archive import Archive
from penstock.dialects.postgres.connection import quote
from penstock.errors import ConfigError, MalformedInputError, OperatorError
from penstock.formats.archive_log import ArchiveRecord
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.publication import Publication
from penstock.pipeline_file import parse
from penstock.storage import open_storage
from penstock.wiring import open_pipeline
from tests.lab import Lab
from tests.program import Program, await_true
from tests.stories.test_types import MADE
from tests.stories.test_unseen_schema import a_schema

PUBLISHING = """
version: 1
name: {name}
connections: {{shop: {{type: postgres, url: "${{env:URL}}"}}}}
capture: {{source: trigger_queue, connection: shop, tables: ["public.*"]}}
publish: {{to: files, path: archive, format: {format}, max_age_s: 0}}
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

    @property
    def archive(self) -> Archive:
        """The archive as it is now."""
        return Archive(open_storage(str(self.folder / "archive")))

    @property
    def last(self) -> ArchiveRecord:
        """The last record of the archive."""
        archive = self.archive
        return archive.record(archive.count_records())

    def publish(self) -> None:
        self.publication.run(threading.Event(), until_caught_up=True)

    def restore(self, until: str | int | None = None) -> None:
        progress = self.pipeline.run(threading.Event(), until_caught_up=until is None, until=until)
        assert (progress.in_queue, progress.conflicts) == (0, 0)


@pytest.fixture(params=["changes", "parquet"])
def shop(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path, spark: object) -> Restoring:
    return Restoring(lab, tmp_path, request.param)


Content = dict[str, tuple[list[str], list[str]]]


def content(connection: psycopg.Connection) -> Content:
    """Every table of the schema: its columns, and its rows as text, both in order."""
    columns: dict[str, list[str]] = {}
    for name, column in connection.execute(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2"
    ).fetchall():
        columns.setdefault(name, []).append(column)
    return {name: (of, rows_of(connection, name, of)) for name, of in columns.items()}


def rows_of(connection: psycopg.Connection, name: str, columns: list[str]) -> list[str]:
    named = ", ".join(map(quote, columns))
    return sorted(row[0] for row in connection.execute(f"SELECT ROW({named})::text FROM {quote(name)}").fetchall())


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


@dataclass(frozen=True)
class Moment:
    """What the source was at a position of the archive, and by its clock."""

    position: int
    at: str
    rows: Content


MADE_ANEW = """
DROP TABLE note;
CREATE TABLE note (id int PRIMARY KEY, body text, more int);
INSERT INTO note VALUES (1, 'uno', 1), (2, 'due', 2);
"""

RENAMED = "ALTER TABLE orders RENAME TO purchase; INSERT INTO purchase VALUES (2, 9, now())"

STEPS = [
    "UPDATE customer SET balance = balance + 1 WHERE id % 2 = 0; DELETE FROM orders WHERE id < 100",
    "TRUNCATE orders; INSERT INTO note VALUES ('three')",
    MADE_ANEW,
    "UPDATE note SET more = 7 WHERE id = 2; INSERT INTO orders VALUES (1, 2, now())",
    RENAMED,
    "DELETE FROM purchase WHERE customer = 2; DELETE FROM customer WHERE id = 2",
    "ALTER TABLE customer ADD COLUMN since date; UPDATE customer SET since = '2024-02-29' WHERE id < 10",
    "ALTER TABLE customer DROP COLUMN raw; INSERT INTO customer VALUES (2000, 'late', 0, '2024-03-01')",
]


def live(shop: Restoring) -> list[Moment]:
    """Let the source live through the steps, and publish after each; returns what it was then."""
    source = shop.lab.source
    source.execute(TABLES)
    shop.publication.setup()
    shop.publish()
    moments = [moment(shop)]
    for step in STEPS:
        source.execute(step)
        if step in (MADE_ANEW, RENAMED):
            shop.publication.setup()
        if step is MADE_ANEW:
            # Captured, and in the copy that comes next.
            source.execute("INSERT INTO note VALUES (3, 'tre', 3); DELETE FROM note WHERE id = 1")
        shop.publish()
        moments.append(moment(shop))
    return moments


def moment(shop: Restoring) -> Moment:
    row = shop.lab.source.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    return Moment(shop.last.end, row[0].isoformat(), content(shop.lab.source))


def assert_is(shop: Restoring, then: Moment) -> None:
    """The target is what the source was; columns of another time are there, and hold nothing."""
    there = shop.lab.target.execute(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
    ).fetchall()
    for name, (columns, rows) in then.rows.items():
        assert rows_of(shop.lab.target, name, columns) == rows, name
        for other in {column for table, column in there if table == name} - set(columns) - {"raw"}:
            assert shop.lab.target.execute(f"SELECT FROM {quote(name)} WHERE {quote(other)} IS NOT NULL").rowcount == 0


@pytest.mark.parametrize("shop", ["changes"], indirect=True)
def test_one_target_goes_through_every_moment_one_after_the_other(shop: Restoring) -> None:
    moments = live(shop)
    shop.pipeline.setup()

    for number, then in enumerate(moments):
        # The last by its position: only later ones show that a time is over.
        is_by_time = number % 2 == 1 and number < len(moments) - 1
        shop.restore(then.at if is_by_time else then.position)

        assert_is(shop, then)
        status = shop.pipeline.status()
        assert (status.state, status.errors, status.low_watermark) == ("stopped", 0, then.position)
        assert status.reason == f"it had reached position {then.position}"
    # Nothing is known of the source behind what was published of it.
    assert shop.pipeline.status().consistent_at == shop.last.written_at
    assert shop.lab.target.execute("SELECT FROM orders").rowcount == 0
    with pytest.raises(OperatorError, match="the target is at position"):
        shop.restore(moments[0].position)
    with pytest.raises(OperatorError, match="behind the end of the archive"):
        shop.restore(moments[-1].position + 1)


@pytest.mark.parametrize("shop", ["parquet"], indirect=True)
def test_a_run_that_is_killed_in_between_is_gone_on_with(shop: Restoring) -> None:
    source = shop.lab.source
    source.execute(TABLES)
    shop.publication.setup()
    shop.publish()
    for number in range(150):
        source.execute("UPDATE customer SET balance = balance + 1 WHERE id %% 50 = %s", [number % 50])
    then = published(shop)
    source.execute("UPDATE customer SET balance = 0")
    shop.publish()
    shop.pipeline.setup()
    program = Program(shop.folder, "", shop.lab.target_url, name=shop.lab.name)
    (shop.folder / "pipeline.yaml").write_text(
        RESTORING.format(name=shop.lab.name).replace("${env:URL}", "${env:COPY_URL}")
    )

    with program.start("run", "--until", str(then.position)) as run:
        await_true(lambda: shop.lab.target.execute("SELECT FROM customer LIMIT 1").rowcount == 1 or not run.is_alive)
        assert run.is_alive, run.said
        run.kill()

    done = program("run", "--until", str(then.position))
    assert done.code == 0, done.err
    assert f"arrived at position {then.position}: as of " in done.out
    assert "error" not in done.out
    assert content(shop.lab.target) == then.rows
    with pytest.raises(OperatorError, match="2100-01-01 lies behind the end of the archive"):
        shop.restore("2100-01-01")


@pytest.mark.parametrize("shop", ["changes"], indirect=True)
def test_nothing_of_a_file_that_was_altered_is_applied(shop: Restoring) -> None:
    source = shop.lab.source
    source.execute(TABLES)
    shop.publication.setup()
    shop.publish()
    first = published(shop)
    source.execute("DELETE FROM note")
    shop.publish()
    (changes,) = (shop.folder / "archive" / "changes").iterdir()
    whole = changes.read_bytes()
    shop.pipeline.setup()

    for spoilt, what in ((whole[:-9], "cut short"), (whole[:-9] + bytes(9), "altered")):
        changes.chmod(0o600)
        changes.write_bytes(spoilt)
        with pytest.raises(MalformedInputError, match=what) as caught:
            shop.restore()
        assert f"{changes.name}, positions" in caught.value.where
        assert content(shop.lab.target) == first.rows
    copy = next(iter((shop.folder / "archive" / "copies").iterdir()))
    aside = copy.rename(shop.folder / "aside")
    changes.write_bytes(whole)
    shop.pipeline.resync()
    with pytest.raises(OperatorError, match="a file of the archive is missing"):
        shop.restore()

    aside.rename(copy)
    shop.restore()
    assert content(shop.lab.target) == content(source)


@pytest.mark.parametrize("shop", ["changes"], indirect=True)
def test_what_an_archive_cannot_do_is_said(shop: Restoring) -> None:
    with pytest.raises(OperatorError, match="there is no change archive"):
        shop.pipeline.plan()
    shop.lab.source.execute(TABLES)
    shop.publication.setup()
    with pytest.raises(OperatorError, match="no table of the archive matches"):
        shop.pipeline.plan()
    shop.publish()

    planned = shop.pipeline.plan()
    assert planned.source.steps == []
    assert any("nothing to compare with" in note for note in planned.source.notes)
    shop.pipeline.setup()
    for refused in (
        shop.pipeline.verify,
        lambda: shop.pipeline.verify(repair=True),
        lambda: shop.pipeline.plan(adopt=True),
    ):
        with pytest.raises(OperatorError, match="no tables to compare with"):
            refused()
    with pytest.raises(OperatorError, match="before the first copy of any table"):
        shop.restore(0)
    with pytest.raises(ConfigError, match="must be a position or a time"):
        shop.restore("yesterday")
    assert shop.pipeline.consumers() == ()
    removed = shop.pipeline.teardown()
    assert (removed.source.steps, bool(removed.target.steps)) == ([], True)
    assert shop.lab.target.execute("SELECT FROM customer").rowcount == 0


@pytest.mark.parametrize("shop", ["changes"], indirect=True)
def test_a_run_that_follows_takes_up_what_is_published_meanwhile(shop: Restoring) -> None:
    source = shop.lab.source
    source.execute(TABLES)
    shop.publication.setup()
    shop.publish()
    shop.pipeline.setup()

    with shop.pipeline.start():
        await_true(lambda: content(shop.lab.target) == content(source))
        # No transaction lies between the two copies of the table.
        source.execute(MADE_ANEW.replace(", more int", "").replace(", 1)", ")").replace(", 2)", ")"))
        shop.lab.target.execute("ALTER TABLE note ADD COLUMN id int")
        shop.publication.setup()
        shop.publish()
        source.execute("DELETE FROM note WHERE id = 1; INSERT INTO note VALUES (4, 'quattro')")
        shop.publish()

        await_true(lambda: content(shop.lab.target) == content(source))


@pytest.mark.parametrize("shop", ["parquet"], indirect=True)
def test_a_schema_nobody_has_seen_is_restored(shop: Restoring) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    source = shop.lab.source
    tables = a_schema(chance)

    def write(statements: int) -> None:
        for _ in range(statements):
            # The source refuses some: a key taken, a parent still referred to.
            with suppress(psycopg.errors.IntegrityError), source.transaction():
                source.execute(chance.choice(tables).statement(chance))

    for connection in (source, shop.lab.target):
        connection.execute(MADE)
    for table in tables:
        source.execute(table.ddl)
    write(150)
    shop.publication.setup()
    shop.publish()
    write(150)
    then = published(shop)
    write(50)
    shop.publish()

    shop.pipeline.setup()
    shop.restore(then.position)

    assert content(shop.lab.target) == then.rows


def test_a_run_from_a_change_log_ends_at_a_position_that_was_reached(lab: Lab, spark: object) -> None:
    lab.source.execute(TABLES)
    pipeline = lab.pipeline()
    pipeline.setup()
    lab.source.execute("SELECT 1")
    with pytest.raises(OperatorError, match="are not copied yet"):
        pipeline.run(threading.Event(), until=0)
    pipeline.run(threading.Event(), until_caught_up=True)
    lab.source.execute("DELETE FROM note WHERE body IS NULL")
    with closing(lab.log) as log:
        position = log.tick()
    then = content(lab.source)
    lab.source.execute("DELETE FROM note; UPDATE customer SET balance = 0")

    progress = pipeline.run(threading.Event(), until=position)

    assert content(lab.target) == then
    assert (progress.position, progress.transactions) == (position, 1)
    with pytest.raises(OperatorError, match="behind the end of the change log"):
        pipeline.run(threading.Event(), until=position + 1000)
    with pytest.raises(ConfigError, match="must be a position"):
        pipeline.run(threading.Event(), until="2024-01-02")


def published(shop: Restoring) -> Moment:
    """Publish what the source is now."""
    shop.publish()
    return moment(shop)
