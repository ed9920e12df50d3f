"""Where in a connector's events another reader of the same database was left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

from penstock.errors import OperatorError
from penstock.formats.debezium.envelope import Boundary, ChangeLocation
from penstock.position import START, Scn
from penstock.source_switch import SwitchSource
from penstock.sources.debezium.log import Extent, Partition, RecordLog
from penstock.sources.debezium.tables import Tables

_TAKE = 5_000
_TAKE_S = 0.5


@dataclass
class Point:
    """A point in the transaction topic.

    Attributes:
        position: Everything up to here is applied.
        applied: Positions behind it of transactions that are applied, too.
    """

    position: Scn = START
    applied: list[Scn] = field(default_factory=list)


def find_point(log: RecordLog, tables: Tables, transactions: str, left: SwitchSource, *, wait_s: float) -> Point:
    """Read the transaction topic up to where all is told that is applied.

    Raises:
        OperatorError: There is no such topic, it begins behind the point, or does not come so far in time.
    """
    ends = {partition: extent for partition, extent in log.extents().items() if partition.topic == transactions}
    if not ends:
        raise OperatorError(
            f"there is no transaction topic {transactions}, which says in which order transactions were committed",
            where=log.label,
            do="have the connector write it (provide.transaction.metadata), or correct capture.debezium",
        )
    point = Point()
    has_first = is_behind = False
    deadline = time.monotonic() + wait_s
    with closing(log.follow({partition: extent.first for partition, extent in ends.items()})) as follower:
        while True:
            records = follower.take(_TAKE, _TAKE_S)
            for record in records:
                found = tables.look(record)
                if not isinstance(found, Boundary) or not found.is_end:
                    continue
                assert record.offset is not None
                scn = Scn(record.offset + 1)
                has_first |= left.first.is_told(found.txn, found.place)
                if left.last.is_told(found.txn, found.place):
                    if not has_first:
                        raise _began_late(log, transactions)
                    return point
                if not _is_applied(left, found.txn, log, transactions):
                    is_behind = True
                elif is_behind:
                    point.applied.append(scn)
                else:
                    point.position = scn
            if not records and time.monotonic() > deadline:
                raise OperatorError(
                    f"the connector has not told of transaction {left.last.txn}, which was committed {wait_s:g} s ago",
                    where=f"{log.label}, topic {transactions}",
                    do="see whether it is running, and reads this database; it is to tell of logical messages, too"
                    " (message.prefix.include.list, message.prefix.exclude.list)",
                )


def first_needed(log: RecordLog, tables: Tables, transactions: str, left: SwitchSource) -> Mapping[Partition, int]:
    """Return for each partition of events the offset of the first that is not applied, and its end where all are.

    Rows of the connector's snapshots that lie before it are of a state that the target has gone beyond.
    """
    return {
        partition: _first_needed(log, tables, partition, extent, left)
        for partition, extent in log.extents().items()
        if partition.topic != transactions
    }


def _first_needed(log: RecordLog, tables: Tables, partition: Partition, extent: Extent, left: SwitchSource) -> int:
    for record in log.read(partition, extent.first, extent.end):
        found = tables.look(record)
        if isinstance(found, ChangeLocation) and found.txn is not None and not found.is_snapshot:
            assert record.offset is not None
            if not _is_applied(left, found.txn, log, partition.topic):
                return record.offset
    return extent.end


def _is_applied(left: SwitchSource, txn: str, log: RecordLog, topic: str) -> bool:
    try:
        return left.is_applied(txn)
    except ValueError:
        raise OperatorError(
            "its transactions are named as those of another kind of database",
            where=f"{log.label}, topic {topic}",
            do="name the topics of a connector that reads the database that was captured",
        ) from None


def _began_late(log: RecordLog, transactions: str) -> OperatorError:
    return OperatorError(
        "the connector began to read the database after the switch began: transactions before that may be missing",
        where=f"{log.label}, topic {transactions}",
        do="switch again, now that the connector reads",
    )
