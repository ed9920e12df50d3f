"""What may be wrong with topics: it is told by its cause and its place, and nothing is lost, doubled or torn."""

import logging
import threading
import time
from itertools import count
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer

import penstock
from penstock.apply import retry_policy
from penstock.apply.progress import Progress
from penstock.errors import MalformedInputError, OperatorError
from penstock.history import HistoryError
from penstock.pipeline.background import BackgroundRun
from penstock.pipeline.pipeline import Pipeline
from penstock.sources.debezium import tracker
from tests.kafka import jars
from tests.kafka.broker import KafkaBroker, Record
from tests.kafka.events import Line, begin, end, event, record
from tests.kafka.shop import Shop, made, pipeline, wait_until

numbers = count(1)


class Stand:
    """Topics of two tables, `t` and `u`, that a test writes by itself, and a target that follows them."""

    def __init__(self, shop: Shop, folder: Path, *, broker: KafkaBroker | None = None) -> None:
        self.shop, self.folder = shop, folder
        self.broker = broker or shop.broker
        self.name = f"bad{next(numbers)}"
        self.target = made(shop.target, self.name, TABLES)
        self.topics = [self.broker.topic(f"{self.name}.{rest}") for rest in ("public.t", "public.u", "transaction")]
        self.t, self.u, self.transactions = self.topics

    def write(self, *lines: Line | Record) -> None:
        self.broker.produce(one if isinstance(one, Record) else record(one) for one in lines)

    def event(self, op: str, table: str, id_: int, xid: int, order: int, **members: object) -> Line:
        return event(op, table, {"id": id_, "v": f"v{xid}"}, xid, order, prefix=self.name, **members)

    def end(self, xid: int, **counts: int) -> Line:
        return end(xid, prefix=self.name, **counts)

    def begin(self, xid: int) -> Line:
        return begin(xid, prefix=self.name)

    def commit(self, xid: int) -> None:
        """Commit a transaction of a row in each table, whose keys are its number."""
        self.write(self.event("c", "t", xid, xid, 1), self.event("c", "u", xid, xid, 2), self.end(xid, t=1, u=1))

    def opened(self, **debezium: object) -> Pipeline:
        given = ", ".join(f"{name}: {value}" for name, value in debezium.items())
        kafka = f'bootstrap.servers: "{self.broker.address}"'
        run = penstock.open(pipeline(self.folder, self.shop, self.name, self.target, debezium=given, kafka=kafka))
        assert isinstance(run, Pipeline)
        return run

    def run(self, **debezium: object) -> Progress:
        return self.opened(**debezium).run(threading.Event(), until_caught_up=True)

    def begun(self, **debezium: object) -> Progress:
        """Copy the first rows, which were written here, and apply one transaction."""
        self.write(self.event("r", "t", 0, 0, 1, transaction=None), self.event("r", "u", 0, 0, 1, transaction=None))
        self.commit(1)
        self.opened(**debezium).setup()
        return self.run(**debezium)

    def start(self, **debezium: object) -> BackgroundRun:
        return self.opened(**debezium).start()

    def ids(self, table: str = "t") -> list[int]:
        with psycopg.connect(self.target) as connection:
            return [id_ for (id_,) in connection.execute(f"SELECT id FROM {table} ORDER BY id").fetchall()]


TABLES = "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text)"


@pytest.fixture
def stand(shop: Shop, tmp_path: Path, spark: object) -> Stand:
    return Stand(shop, tmp_path)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b'{"before": null, "after": {"id": 9, "v": "hush"', "is not JSON, or is cut off"),
        (b'{"op": "x", "source": {}, "after": {"id": "hush"}}', "has an op that Debezium does not have"),
        (b'{"id": "hush"}', "is no Debezium event: it has no op"),
    ],
)
def test_a_record_that_is_no_event_stops_the_run_or_is_skipped(
    stand: Stand, caplog: pytest.LogCaptureFixture, value: bytes, says: str
) -> None:
    stand.begun()
    stand.write(Record(stand.t, 0, 0, None, value))
    stand.commit(2)

    with pytest.raises(MalformedInputError, match=says) as refused:
        stand.run()
    assert f"topic {stand.t}, partition 0, offset 2" in str(refused.value)
    assert "hush" not in str(refused.value)
    assert stand.ids() == [0, 1]

    stand.run(on_malformed="skip")
    assert stand.ids() == stand.ids("u") == [0, 1, 2]
    assert f"a record was skipped, number 1: the value of a record {says}" in caplog.text
    assert "hush" not in caplog.text


def test_a_first_snapshot_is_waited_for_however_long_it_takes(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracker, "_SNAPSHOT_S", 0.2)
    for name in ("_AT_START_S", "_WORK_S", "_LEAST_S"):
        monkeypatch.setattr(retry_policy, name, 0.5)

    def row(id_: int, mark: str) -> Line:
        source = {"schema": "public", "table": "t", "name": stand.name, "snapshot": mark}
        return stand.event("r", "t", id_, 0, id_, transaction=None, source=source)

    stand.write(row(1, "first"))
    stand.opened().setup()
    caplog.set_level(logging.INFO, "penstock")
    run = stand.start()
    wait_until(lambda: "is still at its first snapshot, which is waited for" in caplog.text)
    time.sleep(3)
    assert run.is_alive
    began = time.monotonic()
    run.stop()
    assert time.monotonic() - began < 5
    assert stand.ids() == []
    with stand.start():
        stand.write(row(2, "true"), row(3, "last"))
        wait_until(lambda: stand.ids() == [1, 2, 3])


@pytest.mark.parametrize("topic", ["t", "transaction"])
def test_what_retention_has_deleted_before_it_was_applied_is_told(stand: Stand, topic: str) -> None:
    stand.begun()
    for xid in (2, 3):
        stand.commit(xid)
    stand.broker.delete_records(stand.t if topic == "t" else stand.transactions, 3 if topic == "t" else 2)

    with pytest.raises(OperatorError, match=r"records from offset \d on are gone.*resync --all"):
        stand.run()

    assert stand.ids() == stand.ids("u") == [0, 1]


def test_a_topic_that_is_deleted_takes_no_part_of_a_transaction_along_unsaid(stand: Stand) -> None:
    stand.begun()
    stand.commit(2)
    stand.broker.delete_topic(stand.u)

    with pytest.raises(OperatorError, match=r"events of transaction 2: public\.u 0 of 1 have not come"):
        stand.run(incomplete_after_s=1)

    assert stand.ids() == [0, 1]


def test_events_that_do_not_come_hold_later_transactions_back_until_the_time_is_up(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    stand.begun()
    stand.write(stand.event("c", "t", 2, 2, 1), stand.end(2, t=2))
    stand.commit(3)

    with pytest.raises(OperatorError, match=r"events of transaction 2: public\.t 1 of 2 have not come for 1 s"):
        stand.run(incomplete_after_s=1)
    assert stand.ids() == [0, 1]

    with stand.start(incomplete_after_s=1, incomplete="wait"):
        wait_until(lambda: "events of transaction 2: public.t 1 of 2 have not come for 1 s; they are" in caplog.text)
        assert stand.ids() == [0, 1]
        stand.write(stand.event("c", "t", 22, 2, 2))
        wait_until(lambda: stand.ids() == [0, 1, 2, 3, 22])


def test_a_transaction_is_put_aside_with_a_warning_when_that_was_asked_for(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    stand.begun()
    stand.write(stand.event("c", "t", 2, 2, 1), stand.end(2, t=2))
    stand.commit(3)

    stand.run(incomplete_after_s=1, incomplete="put_aside")

    assert stand.ids() == [0, 1, 3]
    [warning] = [one for one in caplog.records if "the transaction was left out" in one.getMessage()]
    assert warning.levelno == logging.WARNING
    # It stays left out, also for a run that reads it anew.
    stand.write(stand.event("c", "t", 22, 2, 2))
    stand.commit(4)
    stand.run()
    assert stand.ids() == [0, 1, 3, 4]


@pytest.mark.parametrize("incomplete", ["stop", "wait", "put_aside"])
def test_an_end_that_does_not_come_is_told_when_the_time_is_up(
    stand: Stand, caplog: pytest.LogCaptureFixture, incomplete: str
) -> None:
    stand.begun()
    stand.write(stand.begin(2), stand.event("c", "t", 2, 2, 1))
    stand.commit(3)
    says = "transaction 2 has begun, and its END has not come for 1 s"

    if incomplete == "stop":
        with pytest.raises(OperatorError, match=says):
            stand.opened(incomplete_after_s=1).run(threading.Event())
    else:
        with stand.start(incomplete_after_s=1, incomplete=incomplete):
            wait_until(lambda: says in caplog.text)
    assert stand.ids() == [0, 1, 3]
    # Its END comes late.
    stand.write(stand.end(2, t=1))
    stand.run()
    assert stand.ids() == [0, 1, 2, 3]


def test_what_a_restarted_connector_sends_again_is_applied_once(stand: Stand) -> None:
    stand.begun()
    stand.write(stand.begin(2), stand.event("c", "t", 2, 2, 1))
    stand.write(stand.begin(2), stand.event("c", "t", 2, 2, 1), stand.event("c", "u", 2, 2, 2), stand.end(2, t=1, u=1))
    assert stand.run().changes == 2
    stand.write(stand.event("c", "u", 2, 2, 2), stand.end(2, t=1, u=1), stand.begin(2), stand.end(2, t=1, u=1))
    stand.commit(3)

    progress = stand.run()

    assert (progress.transactions, progress.changes, progress.errors) == (1, 2, 0)
    assert stand.ids() == stand.ids("u") == [0, 1, 2, 3]


def test_another_transaction_of_a_name_that_was_applied_is_refused_by_a_later_run(stand: Stand) -> None:
    stand.begun()
    stand.commit(2)
    stand.run()
    # Its id was given out again: other rows, as many of them.
    again = (stand.event("c", t, 7, 2, n, source=source(stand, t, 2, lsn=9000 + n)) for n, t in ((1, "t"), (2, "u")))
    stand.write(*again, stand.end(2, t=1, u=1))
    stand.commit(3)

    with pytest.raises(HistoryError, match="transaction 2 has the name of an earlier one"):
        stand.run()

    assert stand.ids() == stand.ids("u") == [0, 1, 2]


def source(stand: Stand, table: str, xid: int | None, **members: object) -> dict[str, object]:
    """The source block of an event, with what is changed in it."""
    return {"name": stand.name, "schema": "public", "table": table, "txId": xid, "sequence": None, **members}


def without_ends(stand: Stand) -> None:
    """Copy a row, and apply two transactions, where nothing says when one has ended."""
    stand.broker.delete_topic(stand.transactions)
    stand.write(stand.event("r", "t", 0, 0, 1, transaction=None), stand.event("r", "u", 0, 0, 1, transaction=None))
    stand.opened(settle_s=0.5).setup()
    stand.run(settle_s=0.5)
    for xid, table in ((1, "t"), (2, "u")):
        stand.write(stand.event("c", table, xid, xid, 1, transaction=None))
    stand.run(settle_s=0.5)
    assert (stand.ids(), stand.ids("u")) == ([0, 1], [0, 2])


@pytest.mark.parametrize(("is_made_anew", "says"), [(True, "was made anew"), (False, "is not there any more")])
def test_a_topic_of_a_table_that_is_not_the_one_that_was_followed_is_told(
    stand: Stand, is_made_anew: bool, says: str
) -> None:
    without_ends(stand)
    stand.broker.delete_topic(stand.u)
    if is_made_anew:
        stand.broker.topic(stand.u)
        stand.write(stand.event("c", "u", 4, 4, 1, transaction=None), stand.event("c", "u", 5, 5, 1, transaction=None))

    with pytest.raises(HistoryError, match=rf"topic {stand.u}.* {says}"):
        stand.run(settle_s=0.5)

    assert stand.ids("u") == [0, 2]


def test_rows_of_a_later_snapshot_do_not_wait_for_a_transaction(stand: Stand) -> None:
    stand.begun()
    mark = source(stand, "t", None, snapshot="incremental")
    stand.write(stand.event("r", "t", 7, 7, 1, transaction=None, source=mark))

    assert stand.run(settle_s=0.5).changes == 1
    assert stand.ids() == [0, 1, 7]
    assert stand.opened().status().backlog_changes == 0
    assert stand.run(settle_s=0.5).changes == 0
    stand.write(stand.begin(8), stand.event("c", "t", 8, 8, 1), stand.end(8, t=1))
    assert stand.run(settle_s=0.5).changes == 1


def test_without_total_order_the_places_in_the_sources_log_tell_events_apart(stand: Stand) -> None:
    stand.begun()
    first, second = (stand.event("c", "t", n, 2, n, transaction=None) for n in (2, 3))
    stand.write(first, second, first, second, stand.end(2, t=2))

    assert stand.run(incomplete_after_s=1).changes == 2
    assert stand.ids() == [0, 1, 2, 3]


@pytest.mark.parametrize("is_copy", [True, False])
def test_without_ends_what_an_open_kafka_transaction_holds_back_is_waited_for(
    stand: Stand, caplog: pytest.LogCaptureFixture, is_copy: bool
) -> None:
    stand.broker.delete_topic(stand.transactions)
    alone = {"transaction": None}
    rows = [stand.event("r", table, 0, 0, 1, **alone) for table in ("t", "u")]
    first = [stand.event("c", "t", 1, 1, 1, **alone), stand.event("c", "u", 1, 1, 2, **alone)]
    stand.write(*rows, *([] if is_copy else first))
    stand.opened(settle_s=1).setup()
    if not is_copy:
        stand.run(settle_s=1)
    settings = {"bootstrap.servers": stand.broker.address, "transactional.id": stand.name, "linger.ms": 1}
    producer = Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    held = record(stand.event("r", "u", 2, 0, 1, **alone) if is_copy else stand.event("c", "u", 2, 2, 2, **alone))
    producer.produce(held.topic, value=held.value, key=held.key, partition=0)
    producer.flush(30)
    if not is_copy:
        stand.write(*(stand.event("c", "t", xid, xid, 1, **alone) for xid in (2, 3)))

    with stand.start(settle_s=1):
        wait_until(lambda: "a Kafka transaction is open" in caplog.text)
        time.sleep(2)
        assert (stand.ids(), stand.ids("u")) == (([], []) if is_copy else ([0, 1], [0, 1]))
        producer.commit_transaction(30)
        wait_until(lambda: (stand.ids(), stand.ids("u")) == (([0], [0, 2]) if is_copy else ([0, 1, 2, 3], [0, 1, 2])))


def test_without_rows_of_a_snapshot_the_first_copy_is_told_to_be_empty_and_none_is_made_anew(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    stand.commit(1)
    stand.opened().setup()
    stand.run()
    assert "the connector has sent no row of a first snapshot (snapshot.mode)" in caplog.text

    with pytest.raises(OperatorError, match=r"no row of a snapshot to copy anew: 2 tables would be emptied"):
        stand.opened().resync()
    assert stand.ids() == stand.ids("u") == [1]


def test_a_first_copy_is_made_anew_of_the_rows_of_a_snapshot(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    stand.begun()

    stand.opened().resync()

    assert stand.ids() == []
    stand.run()
    assert stand.ids() == stand.ids("u") == [0, 1]
    assert "has sent no row" not in caplog.text


def test_a_table_that_is_made_while_much_waits_begins_where_it_is_first_told_of(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(stand.target, autocommit=True) as connection:
        connection.execute("CREATE TABLE w (id int PRIMARY KEY, v text)")
    stand.begun()
    with stand.start(), psycopg.connect(stand.target) as lock:
        stand.commit(2)
        wait_until(lambda: stand.ids() == [0, 1, 2])
        lock.execute("LOCK TABLE t IN SHARE ROW EXCLUSIVE MODE")
        # The first of these is being applied, and waits; the others are read meanwhile.
        for xid in range(3, 8):
            stand.commit(xid)
            time.sleep(0.5)
        stand.broker.topic(f"{stand.name}.public.w")
        stand.write(stand.event("c", "w", 8, 8, 1), stand.event("c", "t", 8, 8, 2), stand.end(8, w=1, t=1))
        for xid in range(9, 12):
            stand.commit(xid)
        time.sleep(7)
        lock.rollback()
        stand.write(stand.event("c", "w", 12, 12, 1), stand.end(12, w=1))
        wait_until(lambda: stand.ids("w") == [8, 12])

    assert stand.ids() == list(range(12))
    assert "error queue" not in caplog.text


def test_brokers_that_are_down_for_a_while_are_waited_for_and_told_once(
    shop: Shop,
    kafka_jars: Path,
    tmp_path: Path,
    spark: object,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.kafka.ANSWER_S", 2)
    with KafkaBroker(jars.broker_path(kafka_jars)) as broker:
        stand = Stand(shop, tmp_path, broker=broker)
        stand.begun()
        with caplog.at_level(logging.INFO, "penstock"), stand.start():
            stand.commit(2)
            wait_until(lambda: stand.ids() == [0, 1, 2])
            broker.stop()
            wait_until(lambda: "Kafka cannot" in caplog.text)
            time.sleep(5)
            broker.start()
            stand.commit(3)
            wait_until(lambda: stand.ids() == [0, 1, 2, 3])
            wait_until(lambda: "connected again" in caplog.text)
    [lost] = [one for one in caplog.records if "Kafka cannot" in one.getMessage()]
    assert f"(kafka {broker.address})" in lost.getMessage()


def test_another_connector_in_the_same_topics_is_noticed(stand: Stand) -> None:
    stand.begun()
    stand.write(stand.event("c", "t", 2, 2, 1), stand.event("c", "t", 77, 2, 1), stand.end(2, t=1))

    with pytest.raises(MalformedInputError, match=r"two different changes have the same place.*two connectors"):
        stand.run()

    assert stand.ids() == [0, 1]
