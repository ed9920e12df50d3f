"""Tables whose rows are published once more by command, and what receivers make of that: requests, cancels, kills."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from penstock.errors import OperatorError
from penstock.formats.dbwatcher.message import Message
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.publication import Publication
from penstock.pipeline.report import Report
from penstock.storage import LocalStorage
from tests.lab import Lab, table
from tests.program import await_true
from tests.stories import test_publish_events as events
from tests.stories.test_publish_dbwatcher import messages_of, opened, run, told

RECEIVING = """
version: 1
name: {name}
connections: {{copy: {{type: postgres, url: "{url}"}}}}
capture: {{source: dbwatcher, path: messages, tables: ["public.*"]}}
apply: {{connection: copy, ddl: {ddl}}}
"""

SHOP = """
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE other (id int PRIMARY KEY, v text);
INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 900) n;
INSERT INTO other VALUES (1, 'a');
ANALYZE;
"""

T, OTHER = table("t"), table("other")


def receiver(folder: Path, url: str, *, name: str = "slave", ddl: str = "ignore") -> Pipeline:
    path = folder / f"{name}.yaml"
    path.write_text(RECEIVING.format(name=name, url=url, ddl=ddl))
    pipeline = penstock.open(path)
    assert isinstance(pipeline, Pipeline)
    return pipeline


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy a table in many pieces, each of which is published by itself."""
    cut_small(monkeypatch.setattr)


def cut_small(set_: Callable[[str, object], None]) -> None:
    set_("penstock.dialects.postgres.source.copy._CHUNK_BYTES", 16 * 1024)
    set_("penstock.dialects.postgres.source.copy._SAMPLED_PERCENT", 100)
    set_("penstock.sinks.events.copy._AT_ONCE", 1)
    set_("penstock.snapshot.chunk._BUNDLE_CHUNKS", 1)


class After(Report):
    """Does something once, when so many chunks of a copy were published."""

    def __init__(self, do: Callable[[], object], *, chunks: int = 4) -> None:
        super().__init__()
        self._do, self._left = do, chunks

    def copied(self, chunks: int, rows: int) -> None:
        self._left -= 1
        if self._left == 0:
            self._do()


def run_until(publication: Publication, listener_of: Callable[[threading.Event], Report]) -> None:
    stop = threading.Event()
    publication.run(stop, listener_of(stop), until_caught_up=True)


def stopped_in_the_copy(publication: Publication) -> None:
    run_until(publication, lambda stop: After(stop.set))


def begun(lab: Lab, folder: Path, sql: str = SHOP, *, ddl: str = "ignore") -> tuple[Publication, Pipeline]:
    """A pipeline that has published its first copy, and one that has applied it."""
    lab.source.execute(sql)
    publication = opened(folder, lab, content_rows=50)
    publication.setup()
    run(publication)
    slave = receiver(folder, lab.target_url, ddl=ddl)
    slave.setup()
    follow(slave)
    lab.assert_identical("t", "other")
    return publication, slave


def follow(slave: Pipeline) -> Any:
    return slave.run(threading.Event(), until_caught_up=True)


def outline(messages: Sequence[Message]) -> list[object]:
    """What messages are, those with content as one."""
    found: list[object] = []
    for message in messages:
        is_content = message.command == "REPLICATION" and "_createCounter" in message.head.attributes
        is_cancelled = "_initialUpdate" in message.head.attributes
        name = message.head.attributes.get("tableName")
        one = f"content {name}" if is_content else f"cancelled {name}" if is_cancelled else told(message)
        if found[-1:] != [one] or not isinstance(one, str):
            found.append(one)
    return found


def test_rows_come_again_before_later_changes_and_after_earlier_ones(lab: Lab, tmp_path: Path, spark: object) -> None:
    publication, slave = begun(lab, tmp_path)
    before = len(messages_of(tmp_path))
    lab.target.execute("DELETE FROM t WHERE id < 500; UPDATE t SET v = 'wrong'")
    # They wait when the copy is made: it holds them already, those of the other table are told.
    lab.source.execute("INSERT INTO t VALUES (0, 'new'); DELETE FROM t WHERE id = 900; UPDATE other SET v = 'b'")

    asked = publication.request_copies(["public.t"])
    again = publication.request_copies(["public.t"])
    waiting = publication.status()
    run(publication)
    lab.source.execute("UPDATE t SET v = 'later' WHERE id = 0")
    run(publication)

    assert (list(asked.requested), list(asked.due), list(again.requested)) == ([T], [], [T])
    assert (waiting.copied, waiting.to_copy) == (1, 1)
    assert outline(messages_of(tmp_path)[before:]) == [
        ["CREATE", "t"],
        "content t",
        ["REPLICATION", "UPDATE"],
        ["REPLICATION", "UPDATE"],
    ]
    progress = follow(slave)
    assert (progress.errors, progress.conflicts) == (0, 0)
    lab.assert_identical("t", "other")
    assert publication.status().to_copy == 0


def test_an_entry_of_before_a_table_was_copied_anew_undoes_nothing_of_the_copy(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    publication, slave = begun(lab, tmp_path)
    with lab.source.transaction():
        lab.source.execute("TRUNCATE t; UPDATE other SET v = 'beside it'")
    lab.source.execute("INSERT INTO t VALUES (1, 'later')")
    run(publication)
    # What receivers do not know is mended by a copy, and they learn the command.
    publication.request_copies(["public.t"])
    run(publication)
    (entry,) = publication.errors().entries()
    understood = opened(tmp_path, lab, content_rows=50, send_truncate=True)

    (dry,) = understood.retry([entry.id], dry_run=True)
    (retried,) = understood.retry([entry.id])

    assert (dry.outcome.value, retried.outcome.value) == ("would apply", "applied")
    assert publication.errors().entries() == []
    assert told(messages_of(tmp_path)[-1]) == ["REPLICATION", "UPDATE"]
    follow(slave)
    lab.assert_identical("t", "other")


def test_a_run_at_work_takes_a_request_up_while_others_write(lab: Lab, tmp_path: Path, spark: object) -> None:
    publication, slave = begun(lab, tmp_path)
    over, drawn = threading.Event(), random.Random(4)

    def write() -> None:
        with psycopg.connect(lab.source_url, autocommit=True) as session:
            while not over.wait(0.01):
                at = drawn.randint(1, 1200)
                session.execute("INSERT INTO t VALUES (%s, 'w') ON CONFLICT (id) DO UPDATE SET v = t.v || 'u'", [at])
                session.execute("DELETE FROM t WHERE id = %s", [drawn.randint(1, 1200)])
                session.execute("UPDATE other SET v = %s", [str(at)])

    def created() -> int:
        return sum(file.read_bytes().count(b"<command>CREATE<") for file in (tmp_path / "messages").iterdir())

    writer = threading.Thread(target=write)
    with publication.start() as background:
        writer.start()
        for _ in range(2):
            seen = created()
            opened(tmp_path, lab, content_rows=50).request_copies(["public.t"])
            await_true(lambda seen=seen: created() > seen or not background.is_alive, seconds=30)
        over.set()
        writer.join()
        # Nobody writes: the run has nothing to publish at which it would notice.
        seen = created()
        await_true(lambda: publication.status().low_watermark > 0)
        opened(tmp_path, lab, content_rows=50).request_copies(["public.other"])
        await_true(lambda: created() > seen)
    run(publication)

    progress = follow(slave)
    assert (progress.errors, progress.conflicts) == (0, 0)
    lab.assert_identical("t", "other")


def test_a_request_that_has_not_begun_is_withdrawn_without_a_word(lab: Lab, tmp_path: Path, spark: object) -> None:
    publication, slave = begun(lab, tmp_path)
    before = len(messages_of(tmp_path))
    publication.request_copies(["public.*"])

    done = publication.cancel_copies(["public.t"])
    idle = publication.cancel_copies(["public.t"])
    lab.source.execute("UPDATE t SET v = 'b' WHERE id = 1")
    run(publication)

    assert (list(done.withdrawn), list(done.cancelled), list(idle.idle)) == ([T], [], [T])
    assert outline(messages_of(tmp_path)[before:]) == [["CREATE", "other"], "content other", ["REPLICATION", "UPDATE"]]
    follow(slave)
    lab.assert_identical("t", "other")
    with pytest.raises(OperatorError, match=r"the pattern 'public\.u' matches no table"):
        publication.cancel_copies(["public.u"])


def test_a_copy_that_is_cancelled_in_the_middle_leaves_no_table_half_copied_in_silence(
    lab: Lab, tmp_path: Path, spark: object, pieces: None
) -> None:
    publication, slave = begun(lab, tmp_path)
    before = len(messages_of(tmp_path))
    publication.request_copies(["public.t"])
    cancelling = opened(tmp_path, lab, content_rows=50)
    done: list[Any] = []

    run_until(publication, lambda _: After(lambda: done.append(cancelling.cancel_copies(["public.*"]))))
    lab.source.execute("UPDATE t SET v = 'b'; UPDATE other SET v = 'b'")
    run(publication)

    assert (list(done[0].cancelled), list(done[0].idle)) == ([T], [OTHER])
    assert outline(messages_of(tmp_path)[before:]) == [
        ["CREATE", "t"],
        "content t",
        "cancelled t",
        ["REPLICATION", "UPDATE"],
    ]
    shown = publication.status()
    assert shown.to_copy == 0
    assert any("public.t is not published: its copy was cancelled" in text for text in shown.attention)
    progress = follow(slave)
    assert (progress.errors, progress.conflicts) == (1, 0)
    (entry,) = slave.errors().entries()
    assert "the initial update of table public.t was cancelled at the source" in entry.error_message
    assert 0 < len(lab.rows("t")) < 900
    lab.assert_identical("other")

    # Nothing was written since: the new copy is as of the same position, and must not be taken for the cancelled one.
    publication.request_copies(["public.t"])
    run(publication)
    slave.errors().delete(entry.id)
    again = follow(slave)

    assert (again.errors, again.conflicts) == (0, 0)
    lab.assert_identical("t", "other")
    assert publication.status().attention == []


def test_a_copy_of_which_nothing_was_published_is_cancelled_as_if_it_had_not_begun(
    lab: Lab, tmp_path: Path, spark: object, pieces: None
) -> None:
    publication, slave = begun(lab, tmp_path)
    before = len(messages_of(tmp_path))
    lab.source.execute("DELETE FROM t WHERE id > 800; UPDATE other SET v = 'b'")
    # The larger one comes last, so it has not begun.
    publication.request_copies(["public.*"])
    run_until(publication, lambda stop: After(stop.set, chunks=1))

    done = publication.cancel_copies(["public.t"])
    run(publication)

    assert (list(done.withdrawn), list(done.cancelled)) == ([T], [])
    assert outline(messages_of(tmp_path)[before:]) == [
        ["CREATE", "other"],
        "content other",
        ["REPLICATION", *["DELETE"] * 100],
    ]
    follow(slave)
    lab.assert_identical("t", "other")


@pytest.mark.parametrize(
    ("sql", "outcome"),
    [
        ("TRUNCATE t; INSERT INTO t VALUES (1, 'only')", [["CREATE", "t"], "content t"]),
        ("DROP TABLE t", [["DROP", "t"]]),
    ],
    ids=["emptied", "dropped"],
)
def test_what_becomes_of_a_table_in_the_middle_of_its_copy_is_told(
    lab: Lab, tmp_path: Path, spark: object, pieces: None, sql: str, outcome: list[object]
) -> None:
    publication, slave = begun(lab, tmp_path)
    before = len(messages_of(tmp_path))
    publication.request_copies(["public.t"])
    stopped_in_the_copy(publication)

    lab.source.execute(sql)
    run(publication)
    run(publication)

    expected = [["CREATE", "t"], "content t", "cancelled t", *outcome]
    assert outline(messages_of(tmp_path)[before:]) == expected
    progress = follow(slave)
    assert progress.errors == 1
    if outcome != [["DROP", "t"]]:
        lab.assert_identical("t")
    assert publication.status().to_copy == 0
    assert list(publication.cancel_copies(["public.other"]).idle) == [OTHER]


@pytest.mark.parametrize("ddl", ["apply", "ignore"])
def test_a_table_is_dropped_and_made_anew_at_receivers_that_follow_ddl(
    lab: Lab, tmp_path: Path, spark: object, ddl: str
) -> None:
    publication, slave = begun(lab, tmp_path, ddl=ddl)
    before = len(messages_of(tmp_path))
    if ddl == "apply":
        lab.source.execute("ALTER TABLE t ADD city text DEFAULT 'Uster'")
    lab.target.execute("INSERT INTO t (id) VALUES (7777); DELETE FROM t WHERE id = 1")

    publication.request_copies(["public.t"], recreates=True)
    run(publication)

    assert outline(messages_of(tmp_path)[before:]) == [["DROP", "t"], ["CREATE", "t"], "content t"]
    if ddl == "apply":
        with pytest.raises(OperatorError, match=r"public\.t does not exist at the target"):
            follow(slave)
        slave.setup()
    progress = follow(slave)
    assert progress.errors == 0
    lab.assert_identical("t", "other")


def test_each_receiver_has_its_own_place_and_one_that_is_away_holds_back_nobody(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    publication, first = begun(lab, tmp_path)
    lab.target.execute("CREATE DATABASE second")
    url = psycopg.conninfo.make_conninfo(lab.target_url, dbname="second")
    try:
        second = receiver(tmp_path, url, name="second")
        second.setup()
        follow(second)
        held = publication.log_hold()

        # The second one is away: the first gets everything, a copy that is cancelled and a new one included.
        lab.source.execute("UPDATE t SET v = 'b' WHERE id < 100")
        run(publication)
        publication.request_copies(["public.t"])
        run(publication)
        lab.source.execute("DELETE FROM other")
        run(publication)
        follow(first)
        lab.assert_identical("t", "other")
        waits, done = second.status(), first.status()

        assert waits.backlog_changes > 0
        assert done.backlog_changes == 0
        # Nothing is kept at the source for it.
        assert [one.consumer.name for one in publication.log_hold().consumers] == [
            one.consumer.name for one in held.consumers
        ]
        assert publication.status().backlog_changes == 0

        progress = follow(second)
        assert (progress.errors, progress.conflicts) == (0, 0)
        with psycopg.connect(url) as connection:
            for name in ("t", "other"):
                there = connection.execute(f"SELECT * FROM {name}").fetchall()
                assert sorted(there, key=repr) == lab.rows(name, side="source")
    finally:
        lab.target.execute("DROP DATABASE second WITH (FORCE)")


def test_change_events_tell_of_rows_again_and_cannot_take_them_back(
    lab: Lab, tmp_path: Path, spark: object, pieces: None
) -> None:
    lab.source.execute(SHOP)
    publication = events.opened(tmp_path, lab)
    publication.setup()
    run(publication)
    publication.request_copies(["public.t"])
    stopped_in_the_copy(publication)

    with pytest.raises(OperatorError, match=r"rows of public\.t were published, which receivers of change events keep"):
        publication.cancel_copies(["public.t"])
    with pytest.raises(OperatorError, match="make no table anew"):
        publication.request_copies(["public.t"], recreates=True)
    run(publication)

    lines = [line for line in events.lines(tmp_path) if line["topic"] == "shop.public.t"]
    values = [line["value"]["payload"] for line in lines]
    rows = [value["after"]["id"] for value in values if value["op"] == "r"]
    assert sorted(rows) == sorted([*range(1, 901)] * 2)
    assert {value["source"]["snapshot"] for value in values[900:]} == {"incremental"}


def test_a_row_of_tables_that_is_set_to_creating_has_its_table_sent_anew(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    lab.source.execute(SHOP)
    publication = with_documented(tmp_path, lab)
    publication.setup()
    run(publication)
    slave = receiver(tmp_path, lab.target_url)
    slave.setup()
    follow(slave)
    lab.target.execute("DELETE FROM t WHERE id < 500")
    before = len(messages_of(tmp_path))

    with publication.start():
        lab.source.execute("UPDATE REPL_TABLES SET STATUS = 'CREATING' WHERE TABLENAME = 't'")
        await_true(lambda: outline(messages_of(tmp_path)[before:]) == [["CREATE", "t"], "content t"])
    run(publication)

    status = lab.source.execute("SELECT TABLENAME, STATUS FROM REPL_TABLES ORDER BY 1").fetchall()
    assert status == [("other", "OK"), ("t", "OK")]
    items = lab.source.execute("SELECT DB_ACTION, TABLENAME FROM REPL_ITEMS").fetchall()
    assert items[-1] == ("CREATE", "t")
    assert outline(messages_of(tmp_path)[before:]) == [["CREATE", "t"], "content t"]
    follow(slave)
    lab.assert_identical("t", "other")

    # So has one that is taken out and put in again, while no run is at work.
    lab.source.execute("DELETE FROM REPL_TABLES WHERE TABLENAME = 'other'")
    lab.source.execute(
        "INSERT INTO REPL_TABLES (CATALOGNAME, SCHEMANAME, TABLENAME, STATUS, REPL_KEY, TRIGGER_NAME, DEBUG)"
        " VALUES (' ', 'public', 'other', 'CREATING', REPL_INCREMENT(), '', 0)"
    )
    run(publication)
    run(publication)
    assert outline(messages_of(tmp_path)[before:])[2:] == [["CREATE", "other"], "content other"]


def with_documented(folder: Path, lab: Lab) -> Publication:
    publication = opened(folder, lab)
    path = folder / "publish.yaml"
    path.write_text(path.read_text().replace('["public.*"]}', '["public.*"], documented: {}}'))
    publication = penstock.open(path)
    assert isinstance(publication, Publication)
    return publication


KILLS = {
    "in the copy": None,
    "before a cancel is written": True,
    "after a cancel is written": False,
}


@pytest.mark.parametrize("point", KILLS)
def test_a_kill_loses_doubles_and_hides_nothing(
    lab: Lab, tmp_path: Path, spark: object, pieces: None, point: str
) -> None:
    publication, slave = begun(lab, tmp_path)
    publication.request_copies(["public.t"])
    if KILLS[point] is not None:
        stopped_in_the_copy(publication)

    killed = subprocess.run(
        [sys.executable, "-m", __name__, str(tmp_path / "publish.yaml"), point],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
        check=False,
    )
    lab.source.execute("UPDATE t SET v = 'b' WHERE id % 3 = 0; DELETE FROM t WHERE id > 890")
    run(publication)

    assert killed.returncode == -signal.SIGKILL
    progress = follow(slave)
    is_cancelled = point == "after a cancel is written"
    assert (progress.errors, progress.conflicts) == (int(is_cancelled), 0)
    assert any("public.t is not published" in text for text in publication.status().attention) == is_cancelled
    if is_cancelled:
        publication.request_copies(["public.t"])
        run(publication)
        follow(slave)
    lab.assert_identical("t", "other")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at(path: str, point: str) -> None:
    """Do what a command or a run does, and be killed at a point of it."""
    publication = penstock.open(path)
    assert isinstance(publication, Publication)
    is_before = KILLS[point]
    if is_before is None:
        cut_small(_set)
        publication.run(threading.Event(), After(die), until_caught_up=True)
    create = LocalStorage.create

    def dying(self: LocalStorage, *given: Any) -> Any:
        if not is_before:
            create(self, *given)
        die()

    LocalStorage.create = dying  # type: ignore[method-assign]
    publication.cancel_copies(["public.t"])


def _set(name: str, value: object) -> None:
    module, _, attribute = name.rpartition(".")
    __import__(module)
    setattr(sys.modules[module], attribute, value)


if __name__ == "__main__":
    killed_at(*sys.argv[1:])
