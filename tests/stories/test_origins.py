"""Who wrote a change decides where it goes: chains, fans and circles of pipelines."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock import change as c
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.source.access import PostgresSource
from penstock.dialects.postgres.source.change_log import PostgresChangeLog
from penstock.dialects.postgres.target.error_queue import PostgresErrorQueue
from penstock.errors import OperatorError
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline_file import parse
from penstock.position import Limit, Scn
from penstock.sources.trigger_queue.queue import QueueReader
from penstock.storage import LocalStorage
from penstock.wiring import open_pipeline
from tests.archives import read
from tests.conftest import create_database, drop_database, numbers

FILE = """\
version: 1
name: {name}
connections:
  here: {{type: postgres, url: "${{env:HERE}}"}}
  there: {{type: postgres, url: "${{env:THERE}}"}}
capture: {{source: trigger_queue, connection: here, tables: ["public.*"], changes_of: {changes_of}}}
apply: {{connection: there, tag: {tag}, first_copy: {first_copy}, tables: {tables}}}
"""


class Site:
    """A database that may be both source and target."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sql = psycopg.connect(url, autocommit=True)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.sql.execute(query).fetchall()

    def stream(self, pipeline: Flow) -> list[dict[str, Any]]:
        """Every change that the capture set of a pipeline holds, whoever wrote it, in commit order."""
        set_name = f"penstock_{pipeline.name}"
        log, found = PostgresChangeLog(self.url, set_name), []
        reader = QueueReader.of("here", PostgresSource(self.url, set_name).log, log.tables())
        position = log.earliest().scn
        while (part := log.next_slice(position, Limit())) is not None:
            found += [row for batch in reader.read(part) for row in batch.to_pylist()]
            position = part.end
        log.close()
        return sorted(found, key=lambda row: (row[c.COMMIT_SCN], row[c.CHANGE_SEQ]))


@dataclass(frozen=True)
class Flow:
    """A pipeline from one site to another."""

    name: str
    here: Site
    there: Site
    changes_of: str = "users"
    tag: str = '"00"'
    first_copy: bool = True
    tables: str = "{}"

    def pipeline(self) -> Pipeline:
        text = FILE.format(
            name=self.name,
            changes_of=self.changes_of,
            tag=self.tag,
            first_copy=str(self.first_copy).lower(),
            tables=self.tables,
        )
        environment = {"HERE": self.here.url, "THERE": self.there.url}
        pipeline = open_pipeline(parse(text, name="pipeline.yaml", environment=environment))
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
        pipeline = self.pipeline()
        log = PostgresChangeLog(self.here.url, f"penstock_{self.name}", pipeline.config.capture.origins)
        part = log.next_slice(Scn(pipeline.status().low_watermark), Limit())
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
    catch_up(first)
    marks = {(row[c.TABLE_NAME], row[c.OP], row[c.TAG]) for row in b.stream(second)}
    assert {mark for mark in marks if mark[2] is None} == {("item", "insert", None)}
    assert {("orders", "insert", "eu-shop"), ("item", "delete", "eu-shop"), ("part", "insert", "eu-shop")} <= marks
    catch_up(second)
    assert b.rows("SELECT count(*) FROM item") == [(200,)]
    b.sql.execute("DELETE FROM item WHERE id = 5000")
    catch_up(second)
    assert_identical(a, b, c_)
    assert second.pipeline().verify().is_identical


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
    assert b.rows("SELECT count(*), count(tag) FROM penstock_bc.marker") == [(0, 0)]


@pytest.mark.rule("A-185", "A-186")
def test_two_ways_go_round_no_circle(site: Callable[[], Site]) -> None:
    a, b = site(), site()
    a.sql.execute(TABLES)
    a.sql.execute("INSERT INTO item SELECT n, 'item ' || n, n FROM generate_series(1, 50) n")
    there, back = Flow("there", a, b), Flow("back", b, a, first_copy=False)
    there.setup()
    catch_up(there)
    back.setup()
    catch_up(back)
    assert_identical(a, b)

    a.sql.execute("UPDATE item SET stock = 0 WHERE id = 1; INSERT INTO orders VALUES (1, 1, 1)")
    b.sql.execute("UPDATE item SET stock = 0 WHERE id = 2; INSERT INTO orders VALUES (2, 2, 1)")
    catch_up(there, back)
    assert_identical(a, b)
    # A row that came from the other side, and goes back changed.
    b.sql.execute("UPDATE orders SET n = 5 WHERE id = 1; DELETE FROM item WHERE id = 50")
    a.sql.execute("UPDATE orders SET n = 6 WHERE id = 2")
    catch_up(back, there)
    assert_identical(a, b)
    assert a.rows("SELECT id, n FROM orders ORDER BY 1") == [(1, 5), (2, 6)]
    assert (there.waiting(), back.waiting()) == (0, 0)
    assert [flow.pipeline().verify().is_identical for flow in (there, back)] == [True, True]


def test_both_sides_give_keys_of_their_own(site: Callable[[], Site]) -> None:
    """Each run keeps the other side's sequences in step, and leaves them their remainders."""
    a, b = site(), site()
    a.sql.execute(
        "CREATE TABLE t (id int GENERATED BY DEFAULT AS IDENTITY (INCREMENT 2) PRIMARY KEY, n serial, v text);"
        "ALTER SEQUENCE t_n_seq INCREMENT -10 MINVALUE -1000 MAXVALUE 1000 RESTART 1000"
    )
    there, back = Flow("there", a, b), Flow("back", b, a, first_copy=False)
    there.setup()
    a.sql.execute("INSERT INTO t (v) SELECT 'a' FROM generate_series(1, 5)")
    catch_up(there)
    back.setup()
    b.sql.execute("ALTER TABLE t ALTER id RESTART WITH 2; ALTER SEQUENCE t_n_seq RESTART 995")
    catch_up(back)
    drawn: set[tuple[str, int]] = set()
    for round_ in range(3):
        for one, many in ((a, 6), (b, 2 if round_ else 9)):
            rows = one.rows(f"INSERT INTO t (v) SELECT 'x' FROM generate_series(1, {many}) RETURNING id, n")
            new = {("id", row[0]) for row in rows} | {("n", row[1]) for row in rows}
            assert len(new) == 2 * many
            assert not new & drawn
            drawn |= new
        catch_up(there, back)
        values = [one.rows("SELECT i.last_value, n.last_value FROM t_id_seq i, t_n_seq n")[0] for one in (a, b)]
        (first, down), (second, other_down) = values
        assert (first % 2, second % 2, abs(first - second)) == (1, 0, 1)
        assert (down % 10, other_down % 10, abs(down - other_down)) == (0, 5, 5)
    assert a.rows("SELECT * FROM t ORDER BY id") == b.rows("SELECT * FROM t ORDER BY id")


LATEST_WINS = """{
  public.price: {conflicts: [
    {on: insert, method: maximum, by: at}, {on: update, method: maximum, by: at},
    {on: update, row: missing, method: discard}, {on: delete, method: overwrite},
    {on: delete, row: missing, method: discard}]}}"""
"""Of two changes of a row the later one holds at both sides; a row that one side deletes is gone at both."""


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_both_sides_change_the_same_rows_and_the_latest_change_wins(site: Callable[[], Site], seed: int) -> None:
    a, b = site(), site()
    dice = random.Random(seed)
    a.sql.execute("CREATE TABLE price (id int PRIMARY KEY, cents int, note text, at timestamptz NOT NULL)")
    a.sql.execute("INSERT INTO price SELECT n, n, NULL, clock_timestamp() FROM generate_series(1, 30) n")
    there = Flow("there", a, b, tables=LATEST_WINS)
    back = Flow("back", b, a, tables=LATEST_WINS, first_copy=False)
    there.setup()
    catch_up(there)
    back.setup()
    catch_up(back)

    for round_ in range(4):
        for _ in range(40):
            one, row = dice.choice((a, b)), dice.randint(1, 20)
            what = dice.choice((f"cents = {dice.randint(1, 9)}", f"note = 'of {one.sql.info.dbname}'"))
            one.sql.execute(f"UPDATE price SET {what}, at = clock_timestamp() WHERE id = {row}")
        for one in dice.sample((a, b), 2):
            # A row that both insert, and one that only one of them deletes while the other may change it.
            one.sql.execute(
                f"INSERT INTO price VALUES ({100 + round_}, {dice.randint(1, 9)}, 'new', clock_timestamp())"
            )
        a.sql.execute(f"DELETE FROM price WHERE id = {1 + round_}")
        b.sql.execute(f"DELETE FROM price WHERE id = {11 + round_}; DELETE FROM price WHERE id = {21 + round_}")
        a.sql.execute(f"DELETE FROM price WHERE id = {21 + round_}")
        latest = max(one.rows("SELECT max(at) FROM price")[0][0] for one in (a, b))
        catch_up(*dice.sample((there, back), 2))

        rows = a.rows("SELECT * FROM price ORDER BY id")
        assert rows == b.rows("SELECT * FROM price ORDER BY id")
        assert latest == max(at for *_, at in rows)
        assert (there.waiting(), back.waiting()) == (0, 0)
    assert len(rows) == 30 + 4 - 12
    assert min(flow.pipeline().status().resolved for flow in (there, back)) > 20
    assert [flow.pipeline().verify().is_identical for flow in (there, back)] == [True, True]


@pytest.mark.rule("A-185", "A-186")
def test_s84_without_a_mark_a_change_returns(site: Callable[[], Site]) -> None:
    a, b = site(), site()
    a.sql.execute(TABLES)
    a.sql.execute("INSERT INTO item VALUES (1, 'one', 1)")
    there, back = Flow("there", a, b), Flow("back", b, a, changes_of="{only: [null]}", first_copy=False)
    there.setup()
    catch_up(there)
    back.setup()
    catch_up(back)
    a.sql.execute("UPDATE item SET stock = 2")
    catch_up(there)
    assert back.waiting() == 0
    catch_up(back)

    unmarked = Flow("there", a, b, tag="null")
    a.sql.execute("UPDATE item SET stock = 3")
    catch_up(unmarked)
    assert back.waiting() == 1
    back.catch_up()

    (error,) = back.errors()
    assert error.error_number == 26786
    assert a.rows("SELECT stock FROM item") == [(3,)]


@pytest.mark.rule("A-186", "A-188")
def test_a_hub_sends_no_spoke_its_own_changes(site: Callable[[], Site]) -> None:
    hub, x, y = site(), site(), site()
    hub.sql.execute(TABLES)
    hub.sql.execute("INSERT INTO item SELECT n, 'item ' || n, n FROM generate_series(1, 20) n")
    to_x = Flow("to_x", hub, x, changes_of="{without: [x]}")
    to_y = Flow("to_y", hub, y, changes_of="{without: [y]}")
    from_x = Flow("from_x", x, hub, tag="x", first_copy=False)
    from_y = Flow("from_y", y, hub, tag="y", first_copy=False)
    for flow in (to_x, to_y, from_x, from_y):
        flow.setup()
        catch_up(flow)

    hub.sql.execute("INSERT INTO item VALUES (100, 'hub', 1)")
    x.sql.execute("INSERT INTO item VALUES (200, 'x', 1); UPDATE item SET stock = 0 WHERE id = 1")
    y.sql.execute("INSERT INTO item VALUES (300, 'y', 1); UPDATE item SET stock = 0 WHERE id = 2")
    catch_up(from_x, from_y, to_x, to_y)
    assert_identical(hub, x, y)
    assert hub.rows("SELECT count(*) FROM item") == [(23,)]
    y.sql.execute("UPDATE item SET stock = 7 WHERE id = 200")
    catch_up(from_y, to_x, from_x, to_y)
    assert_identical(hub, x, y)
    assert [flow.waiting() for flow in (from_x, from_y, to_x, to_y)] == [0, 0, 0, 0]


@pytest.mark.rule("A-5", "A-161", "A-186")
def test_s26_two_sources_fill_one_table_each_from_its_own_position(site: Callable[[], Site]) -> None:
    a, b, all_ = site(), site(), site()
    for one, first in ((a, 1), (b, 1001)):
        one.sql.execute(TABLES)
        one.sql.execute(f"INSERT INTO item SELECT n, 'item ' || n, n FROM generate_series({first}, {first} + 9) n")
    from_a = Flow("from_a", a, all_)
    from_a.setup()
    catch_up(from_a)
    all_.sql.execute("INSERT INTO item SELECT n, 'item ' || n, n FROM generate_series(1001, 1010) n")
    from_b = Flow("from_b", b, all_, first_copy=False)
    from_b.setup()
    catch_up(from_b)

    for one, first in ((a, 1), (b, 1001)):
        one.sql.execute(f"UPDATE item SET stock = 0 WHERE id = {first}; DELETE FROM item WHERE id = {first + 1}")
        one.sql.execute(f"INSERT INTO orders VALUES ({first}, {first}, 1)")
    catch_up(from_a, from_b)

    for table in ("item", "orders"):
        of_each = [row for one in (a, b) for row in one.rows(f"SELECT * FROM {table} ORDER BY 1")]
        assert all_.rows(f"SELECT * FROM {table} ORDER BY 1") == of_each


@pytest.mark.rule("A-162")
def test_without_a_first_copy_nothing_is_copied_and_what_was_committed_before_stays_away(
    site: Callable[[], Site],
) -> None:
    a, b = site(), site()
    for one in (a, b):
        one.sql.execute(TABLES)
        one.sql.execute("INSERT INTO item VALUES (1, 'one', 1)")
    flow = Flow("f", a, b, first_copy=False)
    flow.setup()
    a.sql.execute("INSERT INTO item VALUES (2, 'before the first run', 1)")
    catch_up(flow)
    a.sql.execute("UPDATE item SET stock = 9 WHERE id = 1")
    catch_up(flow)

    assert b.rows("SELECT id, stock FROM item") == [(1, 9)]


@pytest.mark.rule("A-187")
def test_what_a_person_has_written_carries_the_mark_too(site: Callable[[], Site]) -> None:
    a, b, c_ = site(), site(), site()
    a.sql.execute(TABLES)
    a.sql.execute("INSERT INTO item VALUES (1, 'one', 1), (2, 'two', 2)")
    first, second = Flow("ab", a, b, tag="first"), Flow("bc", b, c_, changes_of="everything")
    first.setup()
    catch_up(first)
    second.setup()
    catch_up(second)
    # It cannot be applied, and is tried again under the mark that the file names by then.
    b.sql.execute("UPDATE item SET stock = 100 WHERE id = 1")
    a.sql.execute("UPDATE item SET stock = 5 WHERE id = 1")
    first.catch_up()
    (error,) = first.errors()
    b.sql.execute("UPDATE item SET stock = 1 WHERE id = 1")
    again = Flow("ab", a, b, tag="again")
    assert [one.entry_id for one in again.pipeline().retry([error.id])] == [error.id]
    b.sql.execute("UPDATE item SET stock = -1 WHERE id = 2")
    assert again.pipeline().verify(repair=True).is_identical

    images = [(row[c.AFTER], row[c.TAG]) for row in b.stream(second) if row[c.AFTER]]
    assert [tag for after, tag in images if after == '{"stock":"5"}'] == ["again"]
    assert {tag for after, tag in images if '"stock":"2"' in after} == {"again"}
    assert {tag for after, tag in images if after in ('{"stock":"100"}', '{"stock":"1"}', '{"stock":"-1"}')} == {None}
    catch_up(second)
    assert_identical(a, b, c_)


@pytest.mark.rule("A-184")
def test_only_who_may_switch_triggers_off_can_set_a_mark(site: Callable[[], Site]) -> None:
    b, c_ = site(), site()
    b.sql.execute(TABLES)
    flow = Flow("bc", b, c_, changes_of="{without: [x]}")
    flow.setup()
    catch_up(flow)
    b.sql.execute("CREATE ROLE clerk; GRANT ALL ON item TO clerk")
    try:
        b.sql.execute("SET ROLE clerk; SET penstock.tag = 'x'; INSERT INTO item VALUES (1, 'forged?', 1)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            b.sql.execute("SET session_replication_role = replica")
        b.sql.execute("RESET ROLE; SET session_replication_role = replica")
        b.sql.execute("INSERT INTO item VALUES (2, 'marked', 1)")
        b.sql.execute("SET penstock.tag = ''; INSERT INTO item VALUES (3, 'not marked', 1)")
        b.sql.execute("SET penstock.tag = 'y'; BEGIN; INSERT INTO item VALUES (4, 'marked otherwise', 1)")
        b.sql.execute("SAVEPOINT s; UPDATE item SET stock = 2 WHERE id = 4; ROLLBACK TO s; COMMIT")
        assert [(row[c.TXN_CHANGES], row[c.TAG]) for row in b.stream(flow)] == [
            (1, None),
            (1, "x"),
            (1, None),
            (1, "y"),
        ]
        catch_up(flow)
        assert c_.rows("SELECT id FROM item ORDER BY 1") == [(1,), (3,), (4,)]
    finally:
        b.sql.execute("RESET ALL; DROP OWNED BY clerk; DROP ROLE clerk")


def test_a_set_begins_to_capture_what_is_applied_when_setup_is_told_so(site: Callable[[], Site]) -> None:
    a, b, c_ = site(), site(), site()
    a.sql.execute(TABLES)
    first, users, everything = Flow("ab", a, b), Flow("bc", b, c_), Flow("bc", b, c_, changes_of="everything")
    first.setup()
    users.setup()
    catch_up(first, users)
    a.sql.execute("INSERT INTO item VALUES (1, 'too early', 1)")
    catch_up(first)

    with pytest.raises(OperatorError, match="Run `penstock setup`"):
        everything.catch_up()
    plan = everything.pipeline().plan()
    assert any("until now was not captured" in note for note in plan.source.notes)
    everything.setup()
    assert everything.pipeline().plan().source.steps == []
    firing = b.rows(
        "SELECT tgname, tgenabled FROM pg_trigger WHERE NOT tgisinternal AND tgrelid::regclass::text !~ 'marker'"
    )
    assert {enabled for name, enabled in firing if name.endswith("_a")} == {"R"}
    assert {enabled for name, enabled in firing if not name.endswith("_a")} == {"A"}
    assert len([name for name, _ in firing if name.endswith("_a")]) == 5
    a.sql.execute("INSERT INTO item VALUES (2, 'in time', 1); INSERT INTO part VALUES (1, 'eu', 1)")
    catch_up(first, everything)
    assert c_.rows("SELECT id FROM item") == [(2,)]
    assert c_.rows("SELECT id FROM part") == [(1,)]

    # Setup for users alone leaves it on, for others that may read the set; a run reads what it is to.
    users.setup()
    a.sql.execute("INSERT INTO item VALUES (3, 'not for users', 1)")
    b.sql.execute("INSERT INTO item VALUES (4, 'of a user', 1)")
    catch_up(first, users)
    assert c_.rows("SELECT id FROM item ORDER BY 1") == [(2,), (4,)]
    users.pipeline().teardown()
    assert b.rows("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal") == []


def test_ddl_on_the_way_leaves_the_marks_and_the_triggers(site: Callable[[], Site]) -> None:
    a, b, c_ = site(), site(), site()
    a.sql.execute(TABLES)
    first, second = Flow("ab", a, b, tag="ab"), Flow("bc", b, c_, changes_of="everything")
    first.setup()
    second.setup()
    catch_up(first, second)

    for one in (c_, b, a):
        one.sql.execute("ALTER TABLE item ADD note text")
        one.sql.execute("CREATE TABLE part_asia PARTITION OF part FOR VALUES IN ('asia')")
    a.sql.execute("INSERT INTO item VALUES (1, 'one', 1, 'new')")
    a.sql.execute("INSERT INTO part VALUES (1, 'asia', 1), (1, 'eu', 1)")
    catch_up(first)
    assert {row[c.TAG] for row in b.stream(second)} == {"ab"}
    catch_up(second)
    assert_identical(a, b, c_)
    assert second.pipeline().status().attention == []
    assert second.pipeline().plan().source.steps == []


def test_who_does_not_own_a_table_is_told_what_it_takes(site: Callable[[], Site]) -> None:
    b, c_ = site(), site()
    b.sql.execute("CREATE ROLE shopkeeper; CREATE ROLE piper LOGIN PASSWORD 'p' NOINHERIT")
    try:
        b.sql.execute("CREATE TABLE item (id int PRIMARY KEY); ALTER TABLE item OWNER TO shopkeeper")
        b.sql.execute(f"GRANT CREATE ON DATABASE {b.sql.info.dbname} TO piper; GRANT SELECT, TRIGGER ON item TO piper")
        piper = Site(psycopg.conninfo.make_conninfo(b.url, user="piper", password="p"))
        assert Flow("bc", piper, c_).pipeline().plan().source.grants == []
        assert Flow("bc", piper, c_, changes_of="everything").pipeline().plan().source.grants == [
            'GRANT "shopkeeper" TO "piper"'
        ]
        piper.sql.close()
    finally:
        b.sql.execute("DROP OWNED BY shopkeeper, piper; DROP ROLE shopkeeper, piper")


@pytest.mark.rule("A-189")
def test_an_applied_transaction_has_its_place_where_it_commits(site: Callable[[], Site]) -> None:
    b, c_ = site(), site()
    b.sql.execute(TABLES)
    flow = Flow("bc", b, c_, changes_of="everything")
    flow.setup()
    catch_up(flow)
    # Apply writes a child first and checks the reference afterwards, when another session has made the parent.
    with psycopg.connect(b.url) as apply:
        apply.execute("SET session_replication_role = replica")
        apply.execute("INSERT INTO orders VALUES (1, 1, 1)")
        b.sql.execute("INSERT INTO item VALUES (1, 'one', 1)")
        apply.commit()

    assert [row[c.TABLE_NAME] for row in b.stream(flow)] == ["item", "orders"]
    catch_up(flow)
    assert_identical(b, c_)


@pytest.mark.rule("A-188")
def test_what_is_published_has_the_marks(site: Callable[[], Site], tmp_path: Path) -> None:
    b = site()
    b.sql.execute("CREATE TABLE item (id int PRIMARY KEY)")
    text = FILE.format(name="out", changes_of="{without: [x]}", tag="x", first_copy="true", tables="{}")
    text = text[: text.index("apply:")] + f"publish: {{to: files, path: {tmp_path}}}\n"
    publication = open_pipeline(parse(text, name="pipeline.yaml", environment={"HERE": b.url, "THERE": b.url}))
    publication.setup()
    publication.run(threading.Event(), until_caught_up=True)
    b.sql.execute("INSERT INTO item VALUES (1); SET session_replication_role = replica")
    for number, tag in ((2, "x"), (3, "y")):
        b.sql.execute(f"SET penstock.tag = '{tag}'")
        b.sql.execute(f"INSERT INTO item VALUES ({number})")
    publication.run(threading.Event(), until_caught_up=True)

    rows = read(LocalStorage(tmp_path)).to_pylist()
    assert [(row[c.AFTER], row[c.TAG]) for row in rows if row[c.OP] == "insert"] == [
        ('{"id":"1"}', None),
        ('{"id":"3"}', "y"),
    ]
