"""A program that publishes to Kafka is killed at each boundary and at random, and others count what they read."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.change import TableName
from penstock.errors import FencedError, PenstockError, RetryableError
from penstock.formats.debezium.writer import EventSettings, JsonPacking
from penstock.position import Anchor, Scn
from penstock.schema import Column, Dictionary, TableSchema
from penstock.sinks.events import task
from penstock.sinks.events.encoder import EventEncoder
from penstock.sinks.events.kafka import Cluster, KafkaPublisher, KafkaTransaction
from penstock.sinks.events.publisher import begin_run, make_position
from penstock.sinks.events.task import EventTask
from penstock.stream import Slice
from tests.archives import stream, transaction
from tests.kafka.broker import KafkaBroker

LAST = 600
"""The position of the last transaction; every one that is divisible by 7 is missing."""

names = count(1)


def size(position: int) -> int:
    return 300 if position % 100 == 0 else position % 5 + 1


WANTED = {scn: size(scn) for scn in range(1, LAST + 1) if scn % 7}


class Made:
    """A reader of transactions that are made up, the same ones on every read."""

    leaves_out = False

    def open(self) -> None:
        """Nothing is opened."""

    def read(self, part: Slice, *, with_key: bool = True) -> Iterator[pa.RecordBatch]:
        yield stream(*(transaction(int(scn), size(int(scn))) for scn in part.commit_scns))


def slice_behind(after: int, end: int) -> Slice:
    scns = np.array([scn for scn in range(after + 1, end + 1) if scn % 7], np.int64)
    sizes = np.array([size(int(scn)) for scn in scns], np.int64)
    zeros = np.zeros(len(scns), np.int64)
    return Slice(Scn(after), Scn(end), scns, sizes, zeros, zeros, cut=Anchor(Scn(end), f"m{end}"))


ITEM = TableName("public", "item")
COLUMNS = (Column("id", "integer", "integer", is_nullable=False), Column("name", "text", "text"))


def cluster_of(address: str, name: str) -> Cluster:
    return Cluster({"bootstrap.servers": address}, name)


def task_of(cluster: Cluster, epoch: int) -> EventTask:
    # No key: every event of the table has its place in one order.
    settings = EventSettings(cluster.pipeline, "db", packing=JsonPacking(with_schemas=False))
    return EventTask(cluster, epoch, EventEncoder(settings, Dictionary([TableSchema(ITEM, COLUMNS, version=1)])))


def make(cluster: Cluster) -> None:
    topics = [cluster.position_topic, f"{cluster.pipeline}.transaction", f"{cluster.pipeline}.public.item"]
    cluster.make_topics(topics)
    make_position(cluster, "shop")


def publish_on(cluster: Cluster) -> None:
    """Go on where the position topic says, as a run does, with a few transactions to a Kafka transaction."""
    task._AT_ONCE_CHANGES = 40
    began = begin_run(cluster, "shop")
    published_state, token = began.published_state, began.token
    events = task_of(cluster, published_state.epoch)
    print("begun", flush=True)
    while published_state.position < LAST:
        part = slice_behind(published_state.position, min(LAST, published_state.position + random.randint(1, 60)))
        done = events.publish(part, Made(), token)
        published_state, token = done.published_state, done.token


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(do: Callable[..., Any], turn: int, *, before: bool) -> Callable[..., Any]:
    """The same, but the program is killed at its n-th call."""
    calls = count(1)

    def called(*args: Any, **kwargs: Any) -> Any:
        number = next(calls)
        if before and number == turn:
            kill()
        found = do(*args, **kwargs)
        if number == turn:
            kill()
        return found

    return called


def flushed_first(commit: Callable[[KafkaPublisher], None]) -> Callable[[KafkaPublisher], None]:
    def flushing(self: KafkaPublisher) -> None:
        self._client.flush(10)
        commit(self)

    return flushing


def die_at(kind: type, name: str, turn: int, *, before: bool) -> Callable[[], None]:
    return lambda: setattr(kind, name, dying(getattr(kind, name), turn, before=before))


POINTS: dict[str, Callable[[], None]] = {
    "before the first event": die_at(KafkaTransaction, "send", 2, before=True),
    "between two events": die_at(KafkaTransaction, "_produce", 77, before=True),
    "before the position": die_at(KafkaTransaction, "send_entries", 4, before=True),
    "with all on the brokers, before the commit": lambda: setattr(
        KafkaPublisher, "_commit", flushed_first(dying(KafkaPublisher._commit, 4, before=True))
    ),
    "after the commit": die_at(KafkaPublisher, "_commit", 4, before=False),
    "once the producer was replaced": die_at(Cluster, "published_state", 3, before=False),
}


def read_on(broker: KafkaBroker, name: str) -> list[int]:
    """Check all that a consumer reads who reads what is committed; returns the positions of the transactions."""
    events = [record.payload for record in broker.read(f"{name}.public.item")]
    ends = [r.payload for r in broker.read(f"{name}.transaction") if r.payload["status"] == "END"]
    scns = [int(end["id"].partition(":")[2]) >> 22 for end in ends]
    assert scns == list(WANTED)[: len(scns)], "lost, doubled or in another order"
    assert [end["event_count"] for end in ends] == [WANTED[scn] for scn in scns]
    told = [(event["source"]["lsn"] >> 22, event["transaction"]["total_order"]) for event in events]
    assert told == [(scn, seq) for scn in scns for seq in range(1, WANTED[scn] + 1)], "torn"
    return scns


@pytest.fixture
def cluster(kafka: KafkaBroker) -> Cluster:
    made = cluster_of(kafka.address, f"killed{next(names)}")
    make(made)
    return made


def program(cluster: Cluster, *arguments: str) -> list[str]:
    return [sys.executable, "-m", __name__, cluster.settings["bootstrap.servers"], cluster.pipeline, *arguments]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_a_boundary_loses_doubles_and_tears_nothing(kafka: KafkaBroker, cluster: Cluster, point: str) -> None:
    killed = subprocess.run(
        program(cluster, point), cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    before = read_on(kafka, cluster.pipeline)
    assert len(before) < len(WANTED)

    publish_on(cluster)

    assert read_on(kafka, cluster.pipeline) == list(WANTED)
    assert cluster.published_state().transactions == len(WANTED)
    assert cluster.published_state().changes == sum(WANTED.values())


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.soak)])
def test_kills_at_random_lose_double_and_tear_nothing(kafka: KafkaBroker, cluster: Cluster, kills: int) -> None:
    drawn = random.Random()
    for _ in range(kills):
        with subprocess.Popen(program(cluster), stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as run:
            assert run.stdout is not None
            run.stdout.readline()
            time.sleep(drawn.uniform(0, 0.4))
            run.kill()
        read_on(kafka, cluster.pipeline)

    publish_on(cluster)

    assert read_on(kafka, cluster.pipeline) == list(WANTED)


def test_a_run_that_was_replaced_is_refused_whatever_it_was_at(kafka: KafkaBroker, cluster: Cluster) -> None:
    zombie = begin_run(cluster, "shop")
    events = task_of(cluster, zombie.published_state.epoch)
    done = events.publish(slice_behind(0, 20), Made(), zombie.token)
    part = slice_behind(20, 40)
    opened = EventTask._kept[cluster.where]

    def sleep_in_the_middle() -> None:
        with opened.transaction() as transaction:
            transaction.send(events.events.of_changes(Made().read(part)))
            opened._client.flush(10)
            publish_on(cluster)
            published_state = opened.published_state.behind(part, len(part), part.total_changes)
            transaction.stand(published_state, published_state.position_entry)

    with pytest.raises(RetryableError, match="another producer"):
        sleep_in_the_middle()
    with pytest.raises(FencedError, match="another run"):
        events.publish(part, Made(), done.token)
    assert read_on(kafka, cluster.pipeline) == list(WANTED)


def test_a_task_that_is_tried_again_publishes_only_what_it_had_not(kafka: KafkaBroker, cluster: Cluster) -> None:
    began = begin_run(cluster, "shop")
    events = task_of(cluster, began.published_state.epoch)
    first = events.publish(slice_behind(0, 30), Made(), began.token)
    # As Spark does where it does not know that the task was done: with what was known when it began.
    again = events.publish(slice_behind(0, 50), Made(), began.token)
    later = events.publish(slice_behind(0, 30), Made(), first.token)

    assert (again.published_state.position, later.published_state.position) == (50, 50)
    assert read_on(kafka, cluster.pipeline) == [scn for scn in WANTED if scn <= 50]


def test_what_was_published_by_another_source_is_refused(cluster: Cluster) -> None:
    with pytest.raises(PenstockError, match="publishes source 'shop', not 'bank'"):
        begin_run(cluster, "bank")


if __name__ == "__main__":
    if sys.argv[3:]:
        POINTS[sys.argv[3]]()
    publish_on(cluster_of(sys.argv[1], sys.argv[2]))
