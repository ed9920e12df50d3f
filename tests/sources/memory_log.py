"""Records in memory as a log, and events of a connector that are put there."""

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from penstock.formats.debezium.decode import DecodeSettings
from penstock.formats.debezium.record import TopicRecord
from penstock.history import HistoryError
from penstock.sources.debezium.log import Extent, Partition, RecordFollower, RecordLog
from penstock.sources.debezium.tables import Tables

ENDS = Partition("shop.transaction", 0)
ORDERS = Partition("shop.public.orders", 0)


class MemoryLog:
    """Implements `log.RecordLog`."""

    label = "memory"
    ends = False

    def __init__(self, records: Mapping[Partition, Sequence[TopicRecord]], *, at_once: int = 2) -> None:
        """Hold records; whoever follows is given so many at once, one partition after the other."""
        self.at_once = at_once
        self.records = {
            partition: [replace(record, offset=offset) for offset, record in enumerate(records_)]
            for partition, records_ in records.items()
        }
        self.held: dict[Partition, threading.Event] = {}
        self.committed: dict[Partition, tuple[int, str]] = {}
        self.ids: dict[str, str] = {}

    def append(self, partition: Partition, *records: TopicRecord) -> None:
        """Write some more records."""
        there = self.records.setdefault(partition, [])
        there += [replace(record, offset=offset) for offset, record in enumerate(records, start=len(there))]

    def hold(self, partition: Partition, until: threading.Event) -> None:
        """Have nothing come of a partition by itself before something is set."""
        self.held[partition] = until

    def partition_of(self, record: TopicRecord) -> Partition:
        return Partition(record.topic, record.partition)

    def identity(self) -> str:
        return "memory"

    def topic_id(self, topic: str) -> str:
        is_there = any(partition.topic == topic for partition in self.records)
        return self.ids.get(topic, topic) if is_there else ""

    def proof(self, upto: Mapping[Partition, int]) -> Mapping[str, str]:
        return {partition.topic: self.topic_id(partition.topic) for partition in upto}

    def hold_against(self, proof: Mapping[str, str], is_needed: Callable[[str], bool]) -> Mapping[Partition, int]:
        for topic, known in proof.items():
            if self.topic_id(topic) != known:
                raise HistoryError(f"topic {topic} was made anew", where=self.label)
        return {}

    def offsets(self, consumer: str) -> "MemoryOffsets":
        return MemoryOffsets(self.committed)

    def extents(self) -> Mapping[Partition, Extent]:
        return {partition: Extent(0, len(records)) for partition, records in self.records.items()}

    def others(self) -> Sequence[str]:
        return ()

    def follow(self, positions: Mapping[Partition, int]) -> "MemoryFollower":
        return MemoryFollower(self, dict(positions))

    def read(self, partition: Partition, first: int, end: int) -> Iterator[TopicRecord]:
        yield from self.records[partition][first:end]


class MemoryOffsets:
    """Implements `log.ConsumerOffsets`."""

    def __init__(self, kept: dict[Partition, tuple[int, str]]) -> None:
        self._kept = kept

    def committed(self, partitions: Collection[Partition]) -> Mapping[Partition, tuple[int, str]]:
        return {partition: self._kept[partition] for partition in partitions if partition in self._kept}

    def commit(self, offsets: Mapping[Partition, tuple[int, str]]) -> None:
        self._kept |= offsets

    def close(self) -> None:
        pass


class MemoryFollower:
    """Implements `log.RecordFollower`."""

    def __init__(self, log: MemoryLog, positions: dict[Partition, int]) -> None:
        self._log = log
        self._positions = positions

    def take(self, most: int, timeout_s: float) -> Sequence[TopicRecord]:
        for partition, at in self._positions.items():
            if partition in self._log.held and not self._log.held[partition].is_set():
                continue
            found = self._log.records[partition][at : at + self._log.at_once]
            if found:
                self._positions[partition] = at + len(found)
                return found
        time.sleep(min(timeout_s, 0.01))
        return []

    def positions(self) -> Mapping[Partition, int]:
        return self._positions

    def close(self) -> None:
        pass


def boundary(status: str, txn: str, counts: Mapping[str, int] = {}) -> TopicRecord:
    collections = [{"data_collection": name, "event_count": number} for name, number in counts.items()]
    value = {
        "status": status,
        "id": f"{txn}:1",
        "event_count": sum(counts.values()),
        "data_collections": collections,
        "ts_ms": 5,
    }
    return TopicRecord(ENDS.topic, None, json.dumps(value).encode(), (), 0, None)


def ended(*txns: str, counts: Mapping[str, int] = {}) -> list[TopicRecord]:
    return [boundary(status, txn, counts if status == "END" else {}) for txn in txns for status in ("BEGIN", "END")]


def event(
    txn: int, snapshot: str = "false", *, table: str = "orders", order: int | None = None, lsn: int | None = None
) -> TopicRecord:
    """A change of a transaction, or a row of a snapshot; with a number in its transaction where it is to have one."""
    lsn = txn if lsn is None else lsn
    source = {
        "connector": "postgresql",
        "name": "shop",
        "db": "shop",
        "schema": "public",
        "table": table,
        "txId": txn,
        "lsn": lsn,
        "sequence": json.dumps([str(txn - 1), str(lsn)]),
        "snapshot": snapshot,
        "ts_ms": 5,
    }
    op = "c" if snapshot == "false" else "r"
    value: dict[str, object] = {"op": op, "source": source, "before": None, "after": {"id": txn}, "ts_ms": 5}
    if order is not None:
        block = {"id": f"{txn}:{order}", "total_order": order, "data_collection_order": order}
        value["transaction"] = block
    return TopicRecord(f"shop.public.{table}", b'{"id": 1}', json.dumps(value).encode(), (), 0, None)


def tables(*, skips: bool = False) -> Tables:
    return Tables(DecodeSettings(), "shop", skips=skips)


_: type[RecordLog] = MemoryLog
__: type[RecordFollower] = MemoryFollower
