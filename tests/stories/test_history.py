"""One history: a source or a target that is not what the ledger knows is refused, and nothing is applied before."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from penstock.apply.error_queue import EntryOutcome
from penstock.apply.retry import RetryConfig, retry
from penstock.change import TableName
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.connection import Connection
from penstock.dialects.postgres.source import change_log
from penstock.dialects.postgres.source.change_log import PostgresChangeLog
from penstock.dialects.postgres.source.connector import PostgresSourceConnector
from penstock.dialects.postgres.target import copy_ledger
from penstock.dialects.postgres.target.error_queue import PostgresErrorQueue
from penstock.dialects.postgres.target.ledger import PostgresLedger
from penstock.dialects.postgres.target.ledger_version import named_views
from penstock.errors import OperatorError
from penstock.history import Consumer
from penstock.pipeline.report import Report
from penstock.position import Limit, Scn
from tests.conftest import FAST, create_database, drop_database
from tests.lab import Lab

SCHEMA = "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE keyless (n int);"


def commit(lab: Lab, first: int, last: int) -> None:
    """Commit a transaction for each row."""
    for row in range(first, last + 1):
        lab.source.execute("WITH k AS (INSERT INTO keyless VALUES (%s)) INSERT INTO t VALUES (%s, 'x')", [row, row])


def follow(lab: Lab, first: int, last: int) -> None:
    """Commit transactions, and apply them; the log is freed as a run does."""
    commit(lab, first, last)
    lab.apply()
    state = lab.ledger.state()
    assert state is not None
    lab.log.free(state.low_watermark, state.history.consumer.id)


def again(lab: Lab) -> None:
    """Begin another run, as after a restart."""
    lab.ledger.close()
    lab.log.close()
    lab.acquire()


def refused(lab: Lab, match: str) -> None:
    """Begin another run, which must be refused before anything is applied."""
    before = lab.rows("t"), lab.rows("keyless")
    with pytest.raises(OperatorError, match=match) as caught:
        again(lab)
    assert "`penstock resync --all`" in caught.value.do
    assert (lab.rows("t"), lab.rows("keyless")) == before
    assert "penstock resync" in str(lab.pipeline().status().refused)
    lab.ledger.close()
    # What is lost will not come back, so nobody is told that it may succeed later; and nothing is mended by guess.
    for repair in (False, True):
        with pytest.raises(OperatorError, match="`penstock resync --all`"):
            lab.pipeline().verify(repair=repair)
    assert (lab.rows("t"), lab.rows("keyless")) == before


class ServerPair:
    """A source server whose files can be put aside and put back, with a pipeline to a database elsewhere."""

    def __init__(self, folder: Path, target: EmbeddedPostgres) -> None:
        self.server = EmbeddedPostgres(settings=FAST)
        self.server.start()
        self._folder = folder
        self._target = target
        create_database(target, "restored")
        create_database(self.server, "shop")
        self.lab = self.open()

    def open(self) -> Lab:
        return Lab(self.server.url("shop"), self._target.url("restored"), name="shop")

    def close(self) -> None:
        self.lab.close()
        drop_database(self._target, "restored")
        self.server.remove()

    def back_up(self) -> None:
        self._still(lambda: self._copy(self.server.data, self._folder / "backup"))

    def put_back(self) -> None:
        self._still(lambda: self._copy(self._folder / "backup", self.server.data))

    def _still(self, work: Callable[[], None]) -> None:
        self.lab.close()
        self.server.stop()
        work()
        self.server.start()
        self.lab = self.open()

    def _copy(self, source: Path, to: Path) -> None:
        shutil.rmtree(to, ignore_errors=True)
        subprocess.run(["cp", "-a", str(source), str(to)], check=True)


@pytest.fixture
def pair(tmp_path: Path, target_server: EmbeddedPostgres) -> Iterator[ServerPair]:
    made = ServerPair(tmp_path, target_server)
    yield made
    made.close()


@pytest.mark.parametrize("waits", [False, True], ids=["all applied", "some wait"])
def test_a_set_that_was_made_anew_is_refused(lab: Lab, waits: bool) -> None:
    lab.setup(SCHEMA)
    follow(lab, 1, 40)
    if waits:
        commit(lab, 41, 45)
    lab.source.execute(f"DROP SCHEMA {lab.set_name} CASCADE")
    for plan in (lab.pipeline().setup(), lab.pipeline().plan()):
        assert "it was made anew" in str(plan.refused)
    commit(lab, 101, 130)

    refused(lab, "it was made anew")
    lab.log.tick()
    refused(lab, "it was made anew")


def test_a_source_whose_backup_was_put_back_is_refused(pair: ServerPair) -> None:
    pair.lab.setup(SCHEMA)
    follow(pair.lab, 1, 20)
    pair.back_up()
    again(pair.lab)
    follow(pair.lab, 21, 60)
    pair.put_back()

    refused(pair.lab, "restored to an older state")
    # As many transactions again, so that the positions are there once more.
    commit(pair.lab, 101, 150)
    pair.lab.log.tick()
    commit(pair.lab, 151, 160)
    refused(pair.lab, "restored to an older state")


def test_a_source_that_lost_half_of_a_batch_is_refused(pair: ServerPair) -> None:
    """The low watermark lies within what was lost, and the cut before it is there."""
    pair.lab.setup(SCHEMA)
    follow(pair.lab, 1, 20)
    pair.back_up()
    again(pair.lab)
    commit(pair.lab, 21, 40)
    part = pair.lab.next_slice()
    assert part is not None
    half = next(part.windows([10], 10**9))
    assert [result.failure for result in pair.lab.apply_slice(half, lanes=1)] == [None]
    pair.put_back()

    refused(pair.lab, "restored to an older state")
    commit(pair.lab, 101, 150)
    pair.lab.log.tick()
    refused(pair.lab, "restored to an older state")


def test_a_source_that_lost_what_the_first_copy_holds_is_refused(pair: ServerPair) -> None:
    pair.lab.setup(SCHEMA)
    pair.back_up()
    again(pair.lab)
    commit(pair.lab, 1, 10)
    with pair.lab.pipeline()._source.origin().hold_snapshot() as held:
        pair.lab.target.execute("DELETE FROM penstock.instantiation")
        chunks = pair.lab.pipeline()._source.origin().cut_into_chunks([TableName("public", "t")])
        pair.lab.ledger.begin_copies(chunks, held)
    pair.put_back()

    refused(pair.lab, "restored to an older state")


def test_a_source_that_was_restored_to_what_is_applied_goes_on(pair: ServerPair) -> None:
    """Nothing is lost then."""
    pair.lab.setup(SCHEMA)
    follow(pair.lab, 1, 20)
    pair.back_up()
    commit(pair.lab, 21, 40)
    pair.put_back()
    commit(pair.lab, 51, 70)

    again(pair.lab)
    pair.lab.apply()

    pair.lab.assert_identical("t", "keyless")


def test_a_standby_that_has_it_all_is_the_source_from_now_on(pair: ServerPair, tmp_path: Path) -> None:
    pair.lab.setup(SCHEMA)
    follow(pair.lab, 1, 20)
    standby = EmbeddedPostgres(settings=FAST)
    try:
        shutil.rmtree(standby.data)
        conf = {"port": standby.port, "unix_socket_directories": standby.data}
        commit(pair.lab, 21, 30)
        pair.lab.close()
        pair.server.stop()
        subprocess.run(["cp", "-a", str(pair.server.data), str(standby.data)], check=True)
        pair.server.start()
        (standby.data / "standby.signal").touch()
        with (standby.data / "postgresql.conf").open("a") as lines:
            lines.writelines(f"{name} = '{value}'\n" for name, value in conf.items())
            lines.write(f"primary_conninfo = 'host=127.0.0.1 port={pair.server.port} user=postgres'\n")
        standby.start()
        pair.lab = pair.open()
        again(pair.lab)
        commit(pair.lab, 31, 40)
        pair.lab.apply()
        written = pair.lab.source.execute("SELECT pg_current_wal_lsn()").fetchone()
        assert written is not None
        with psycopg.connect(standby.url("shop"), autocommit=True) as there:
            while there.execute("SELECT pg_last_wal_replay_lsn() < %s::pg_lsn", [written[0]]).fetchone() != (False,):
                pass
            there.execute("SELECT pg_promote()")
        pair.lab.close()
        # What the old one did meanwhile is of another history.
        pair.lab = Lab(standby.url("shop"), pair.lab.target_url, name="shop")
        commit(pair.lab, 41, 50)
        again(pair.lab)
        pair.lab.apply()
        pair.lab.assert_identical("t", "keyless")
        pair.lab.close()

        pair.lab = pair.open()
        refused(pair.lab, "a standby took over that lacked")
    finally:
        standby.remove()


def move(lab: Lab, server: EmbeddedPostgres, to: EmbeddedPostgres, name: str) -> None:
    """Move a source as `pg_dump | psql` does."""
    create_database(to, name)
    dump = subprocess.run(
        [server.programs / "pg_dump", lab.source_url], capture_output=True, check=True, env={"PGCONNECT_TIMEOUT": "10"}
    )
    subprocess.run(
        [to.programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", to.url(name)],
        input=dump.stdout,
        capture_output=True,
        check=True,
        env={"PGCONNECT_TIMEOUT": "10"},
    )


@pytest.mark.parametrize("is_far", [True, False], ids=["to another server", "beside it"])
def test_a_source_that_was_moved_by_dump_is_refused_until_resync(
    lab: Lab, source_server: EmbeddedPostgres, target_server: EmbeddedPostgres, is_far: bool
) -> None:
    lab.setup(SCHEMA)
    follow(lab, 1, 20)
    commit(lab, 21, 25)
    to = target_server if is_far else source_server
    name = f"{lab.name}_moved"
    move(lab, source_server, to, name)
    try:
        with Lab(to.url(name), lab.target_url, name=lab.name) as moved:
            lab.ledger.close()
            refused(moved, "was copied here from another")
            # And this alone, though the tables' names are others' by now, and the target's rows in the way.
            for attempt in (
                moved.pipeline().setup,
                lambda: moved.pipeline().run(threading.Event(), Report()),
            ):
                with pytest.raises(OperatorError, match=r"^the capture set was copied here from another .*$"):
                    attempt()

            moved.pipeline().resync()
            commit(moved, 31, 40)
            moved.start()
            assert moved.rows("t") == []
            moved.apply()
            # Each change was captured once.
            assert [row[0] for row in moved.rows("keyless")] == list(range(31, 41))
    finally:
        drop_database(to, name)


def test_a_target_that_was_restored_is_refused_when_the_log_is_gone(lab: Lab) -> None:
    lab.setup(SCHEMA)
    follow(lab, 1, 20)
    old = lab.target.execute("SELECT low_watermark, anchor_scn, anchor_mark FROM penstock.process").fetchone()
    assert old is not None
    follow(lab, 21, 40)
    lab.target.execute("DELETE FROM t WHERE id > 20; DELETE FROM keyless WHERE n > 20")
    lab.target.execute("UPDATE penstock.process SET low_watermark = %s, anchor_scn = %s, anchor_mark = %s", old)
    lab.target.execute("UPDATE penstock.lane SET cut_scn = NULL, cut_mark = NULL")

    refused(lab, "the target was restored to an older state")


BOUNDARIES = {
    "before the source lets go": (PostgresSourceConnector, "release"),
    "before anything is forgotten": (PostgresLedger, "empty_and_forget"),
    "before the tables are emptied": (copy_ledger, "empty"),
    "before its last word": (PostgresLedger, "set_status"),
}


@pytest.mark.parametrize(("owner", "what"), BOUNDARIES.values(), ids=BOUNDARIES)
def test_a_resync_that_died_on_its_way_is_made_whole_by_another(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, owner: object, what: str
) -> None:
    lab.setup(SCHEMA)
    follow(lab, 1, 20)
    lab.target.execute("DELETE FROM t WHERE id = 7")
    commit(lab, 21, 25)
    lab.ledger.close()

    def die(*_: object, **__: object) -> None:
        raise RuntimeError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(owner, what, die)
        with pytest.raises(RuntimeError):
            lab.pipeline().resync()
    # As when a process dies, its sessions do.
    end_sessions(lab)
    assert not lab.ledger.is_running()

    lab.pipeline().resync()

    assert (lab.rows("t"), lab.rows("keyless")) == ([], [])
    assert lab.ledger.instantiated() == {}


def end_sessions(lab: Lab) -> None:
    lab.target.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'penstock % ledger%'"
    )
    lab.ledger.close()


def test_a_target_whose_ledger_is_lost_is_refused(lab: Lab) -> None:
    lab.setup(SCHEMA)
    follow(lab, 1, 20)
    lab.target.execute("DELETE FROM penstock.process")
    lab.ledger.close()

    with pytest.raises(OperatorError, match="of which the target's ledger knows nothing"):
        again(lab)

    lab.ledger.close()
    # The ledger does not know what it has filled.
    assert lab.pipeline().resync().tables == []
    lab.target.execute("TRUNCATE t, keyless")
    lab.start()
    commit(lab, 21, 30)
    lab.apply()
    assert [row[0] for row in lab.rows("keyless")] == list(range(21, 31))
    assert [state.consumer.id for state in lab.log.consumers()] == [lab.ledger.consumer().id]


def test_a_target_whose_ledger_was_dropped_keeps_the_rows_that_it_has(lab: Lab) -> None:
    lab.setup(SCHEMA)
    follow(lab, 1, 20)
    lab.ledger.close()
    lab.target.execute("DROP SCHEMA penstock CASCADE; UPDATE t SET v = 'not the source''s' WHERE id = 7")

    lab.pipeline().setup(adopt=True)
    with pytest.raises(OperatorError, match="of which the target's ledger knows nothing"):
        lab.pipeline().run(threading.Event(), Report(), until_caught_up=True)
    assert lab.pipeline().resync().tables == []
    assert len(lab.rows("t")) == 20
    commit(lab, 21, 30)
    lab.pipeline().run(threading.Event(), Report(), until_caught_up=True)

    assert sorted(lab.rows("t")) == [(row, "x") for row in range(1, 31)]
    assert lab.pipeline().verify().is_identical


def test_a_page_of_another_history_is_not_read(lab: Lab) -> None:
    """While a run is at work, its session is moved to a server that has other cuts."""
    lab.setup(SCHEMA)
    follow(lab, 1, 5)
    commit(lab, 6, 10)
    lab.source.execute(f"UPDATE {lab.set_name}.tick SET mark = gen_random_uuid()")

    with pytest.raises(OperatorError, match="restored to an older state"):
        lab.apply()


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("harm", ["DELETE", "mark"])
def test_a_batch_of_which_rows_are_gone_is_never_complete(lab: Lab, lanes: int, harm: str) -> None:
    lab.setup(SCHEMA)
    commit(lab, 1, 30)
    part = lab.next_slice()
    assert part is not None
    if harm == "mark":
        lab.source.execute(f"UPDATE {lab.set_name}.tick SET mark = gen_random_uuid()")
    else:
        lab.source.execute(f"DELETE FROM {lab.set_name}.log WHERE xid = '{part.txn_ids[-1]}'::xid8")

    try:
        failures = [result.failure for result in lab.apply_slice(part, lanes=lanes)]
    except OperatorError as exc:
        failures = [exc]

    assert any(" in the log where 2 were counted" in str(failure) for failure in failures)
    state = lab.ledger.state()
    assert state is not None
    assert state.low_watermark < part.end


def test_a_large_transaction_of_which_rows_are_gone_is_rolled_back(lab: Lab) -> None:
    lab.setup(SCHEMA)
    # Row by row, so that each has a row of the log.
    lab.source.execute("BEGIN")
    commit(lab, 1, 50)
    lab.source.execute("COMMIT")
    part = lab.log.next_slice(Scn(0), Limit(large_changes=10))
    assert part is not None
    assert part.is_large
    lab.source.execute(f"DELETE FROM {lab.set_name}.log WHERE seq = (SELECT max(seq) FROM {lab.set_name}.log)")

    (result,) = lab.apply_slice(part, lanes=1)

    assert "has 99 changes in the log where 100 were counted" in str(result.failure)
    assert lab.rows("t") == []


def test_a_retry_does_not_bring_back_what_was_truncated_since(lab: Lab) -> None:
    lab.setup(SCHEMA + "CREATE TABLE other (id int PRIMARY KEY)")
    lab.target.execute("INSERT INTO t VALUES (1, 'in the way')")
    lab.source.execute("BEGIN; INSERT INTO t VALUES (1, 'x'); INSERT INTO other VALUES (1); COMMIT")
    lab.apply()
    lab.target.execute("DELETE FROM t")
    lab.source.execute("TRUNCATE t")
    lab.source.execute("INSERT INTO t VALUES (2, 'later')")
    lab.apply()
    told: list[str] = []

    (entry,) = lab.errors()
    queue = PostgresErrorQueue(lab.target_url, lab.name)
    (retried,) = retry(queue, [entry.id], RetryConfig(allow_duplicate_rows=True), tell=told.append)
    assert (retried.entry_id, retried.outcome) == (entry.id, EntryOutcome.APPLIED)

    lab.assert_identical("t", "other")
    assert [text.partition(": ")[2] for text in told] == [
        "1 of its changes is left out: public.t was copied, repaired or truncated later"
    ]


def test_a_retry_is_not_sure_of_a_partition_that_was_truncated_since(lab: Lab) -> None:
    lab.setup(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)"
    )
    lab.target.execute("INSERT INTO p VALUES (1)")
    lab.source.execute("INSERT INTO p VALUES (1)")
    lab.apply()
    lab.target.execute("DELETE FROM p")
    lab.source.execute("TRUNCATE p1")
    lab.apply()

    (entry,) = lab.errors()
    with pytest.raises(OperatorError, match=r"partition public\.p1 of public\.p was truncated after"):
        lab.retry(entry.id)
    lab.source.execute("TRUNCATE p")
    lab.apply()
    assert lab.retry(entry.id) == [entry.id]
    lab.assert_identical("p")


def of_an_earlier_version(lab: Lab) -> None:
    """Take from set and ledger what an earlier version did not make."""
    lab.ledger.close()
    lab.log.close()
    lab.source.execute(
        f"DROP TABLE {lab.set_name}.identity, {lab.set_name}.consumer;"
        f"ALTER TABLE {lab.set_name}.tick DROP COLUMN mark;"
        f"COMMENT ON SCHEMA {lab.set_name} IS 'penstock: earlier'"
    )
    lab.target.execute(f"DROP VIEW {named_views()}")
    lab.target.execute(
        "ALTER TABLE penstock.process DROP consumer, DROP set_id, DROP set_place, DROP anchor_scn, DROP anchor_mark,"
        " DROP reason; ALTER TABLE penstock.lane DROP cut_scn, DROP cut_mark;"
        "DROP TABLE penstock.emptied, penstock.held, penstock.adoption, penstock.made;"
        "ALTER TABLE penstock.instantiation DROP mark; COMMENT ON SCHEMA penstock IS 'penstock: earlier'"
    )


def test_set_and_ledger_of_an_earlier_version_are_brought_up_to_date_and_followed(lab: Lab) -> None:
    lab.setup(SCHEMA)
    follow(lab, 1, 20)
    commit(lab, 21, 30)
    of_an_earlier_version(lab)
    with pytest.raises(OperatorError) as caught:
        again(lab)
    assert "run `penstock setup`" in caught.value.do

    lab.pipeline().setup()
    again(lab)
    lab.apply()

    lab.assert_identical("t", "keyless")
    assert lab.errors() == []


def test_a_ledger_of_an_earlier_version_is_refused_where_the_log_is_gone(lab: Lab) -> None:
    lab.setup(SCHEMA)
    follow(lab, 1, 20)
    of_an_earlier_version(lab)
    lab.source.execute(f"UPDATE {lab.set_name}.tick SET scn = scn + 1000000")
    lab.pipeline().setup()

    refused(lab, "does not hold what follows")


def test_a_log_is_not_cut_at_transactions_that_the_server_has_not_begun(lab: Lab) -> None:
    lab.setup(SCHEMA)
    lab.source.execute(f"UPDATE {lab.set_name}.tick SET snapshot = '4000000000:4000000000:'")

    with pytest.raises(OperatorError, match="has not begun yet"):
        lab.log.tick()


def test_who_joins_while_the_log_is_freed_finds_all_of_it(lab: Lab) -> None:
    """A consumer joins between looking who is furthest behind and deleting."""
    lab.setup(SCHEMA)
    commit(lab, 1, 5)
    lab.apply()
    state = lab.ledger.state()
    assert state is not None
    late = Consumer("late", "late")
    places = change_log.places

    def look(session: Connection, set_name: str, consumer: str) -> tuple[Scn | None, Scn | None]:
        found = places(session, set_name, consumer)
        with closing(PostgresChangeLog(lab.source_url, lab.set_name)) as other:
            other.keep_for(late, Scn(0))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(change_log, "places", look)
        assert lab.log.free(state.low_watermark, state.history.consumer.id) == 0

    assert len(list(lab.changes())) == 10


def test_a_set_of_an_earlier_version_that_was_copied_is_known_by_its_tables(
    lab: Lab, source_server: EmbeddedPostgres, target_server: EmbeddedPostgres
) -> None:
    lab.setup(SCHEMA)
    follow(lab, 1, 20)
    of_an_earlier_version(lab)
    name = f"{lab.name}_moved"
    move(lab, source_server, target_server, name)
    try:
        with Lab(target_server.url(name), lab.target_url, name=lab.name) as moved:
            lab.ledger.close()
            with pytest.raises(OperatorError, match="`penstock setup --adopt`; or empty them"):
                moved.pipeline().setup()
            lab.target.execute("TRUNCATE t, keyless")
            moved.pipeline().setup()
            refused(moved, "was copied here from another")
            moved.pipeline().resync()
            commit(moved, 31, 40)
            moved.start()
            moved.apply()
            assert [row[0] for row in moved.rows("keyless")] == list(range(31, 41))
    finally:
        drop_database(target_server, name)


def test_tables_at_two_positions_are_consistent_once_apply_has_passed_both(lab: Lab) -> None:
    """After a first copy that was cut short, a table without a key is copied anew, at a later position."""
    lab.setup(SCHEMA)
    commit(lab, 1, 5)
    later = lab.log.tick()
    commit(lab, 6, 10)
    lab.target.execute("INSERT INTO keyless SELECT generate_series(1, 5)")
    lab.target.execute("UPDATE penstock.instantiation SET scn = %s WHERE table_name = 'keyless'", [later])
    seen = []

    while (part := lab.next_slice(Limit(max_transactions=2))) is not None:
        status = lab.pipeline().status()
        seen.append((status.low_watermark >= later, status.consistent_at is not None))
        assert [result.failure for result in lab.apply_slice(part, lanes=1)] == [None]
        lab.ledger.complete(part.end, part.last_committed_at, part.anchor)

    assert {known for is_past, known in seen if not is_past} == {False}
    assert {known for is_past, known in seen if is_past} == {True}
    lab.assert_identical("t", "keyless")


def test_a_copy_that_begins_anew_leaves_tables_that_inherit_alone(lab: Lab) -> None:
    lab.setup(SCHEMA)
    lab.target.execute("CREATE TABLE child () INHERITS (keyless); INSERT INTO child VALUES (7)")
    lab.target.execute("INSERT INTO keyless VALUES (1)")

    lab.ledger.clear(TableName("public", "keyless"), keep_rows=False)

    assert lab.rows("keyless") == [(7,)]
    assert not lab.ledger.with_rows([TableName("public", "keyless")])


@pytest.mark.usefixtures("spark")
def test_a_log_that_is_freed_while_somebody_looks_is_no_other_history(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    lab.pipeline().setup()
    states = []
    for number in range(2):
        lab.source.execute("INSERT INTO t VALUES (%s)", [number])
        lab.pipeline().run(threading.Event(), Report(), until_caught_up=True)
        states.append(lab.ledger.state())
    assert states[0] != states[1]
    looks = iter([states[0], states[1], states[1], states[1]])
    monkeypatch.setattr(PostgresLedger, "state", lambda _: next(looks))
    status = lab.pipeline().status()
    assert status.refused is None

    # But who stands there for good is.
    monkeypatch.setattr(PostgresLedger, "state", lambda _: states[0])
    assert "the change log does not hold" in str(lab.pipeline().status().refused)
