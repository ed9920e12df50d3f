"""What the tracker makes of records that come from one partition sooner than from another."""

from contextlib import closing
from dataclasses import replace

import pytest

from penstock.position import START
from penstock.sources.debezium.index import Run
from penstock.sources.debezium.log import Partition
from penstock.sources.debezium.tracker import Layout, Tracker
from tests.sources.memory_log import ENDS, ORDERS, MemoryLog, ended, event, tables

OTHERS = Partition("shop.public.others", 0)


@pytest.mark.parametrize("last_mark", ["true", "last"])
def test_rows_of_the_first_snapshot_are_waited_for_in_every_partition(last_mark: str) -> None:
    """A change has come, or the last row, while another partition is far behind."""
    others = [replace(one, topic=OTHERS.topic) for one in (event(0, "first"), event(0, last_mark), event(7))]
    log = MemoryLog({ENDS: ended("7"), OTHERS: others, ORDERS: [event(0, "true") for _ in range(500)]})
    tracker = Tracker(log, Layout(ENDS.topic), tables(), "penstock.shop")
    with closing(tracker):
        tracker.start(START, is_new=True)
        rows = tracker.copy(20)
        numbers = {partition: number for number, partition in enumerate(tracker.partitions)}
        found = sorted((run for runs in rows.runs.values() for run in runs), key=lambda run: run.partition)
        assert found == sorted(
            [Run(numbers[OTHERS], 0, 2), Run(numbers[ORDERS], 0, 500)], key=lambda run: run.partition
        )
