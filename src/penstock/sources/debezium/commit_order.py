"""The commit order of transactions that no transaction topic counts: numbers made of the source's own positions.

And what tells events apart where nothing numbers them. Where a run goes on in a topic is kept by `kafka.KafkaOffsets`
and the ledger, not here.
"""

from __future__ import annotations

from hashlib import blake2b

from penstock.errors import MalformedInputError
from penstock.formats.debezium.envelope import ChangeLocation
from penstock.formats.debezium.record import TopicRecord
from penstock.formats.debezium.source import Key
from penstock.position import Scn

_MOST = 2**63

_NUMBERED = 4
"""So many parts a position of Oracle's has where the last one is the number of the event."""


def scn_of(connector: str, position: Key, *, where: str) -> Scn:
    """Return the position of the transaction that an event is of; it grows from each transaction to the next.

    Oracle: the commit SCN. PostgreSQL: the LSN behind the commit before it. MySQL and MariaDB: number and place in the
    binary log, 32 bits each. SQL Server: the three parts of the commit LSN, 25, 26 and 12 bits. Db2: the commit LSN.

    Args:
        position: As `Source.position`.

    Raises:
        MalformedInputError: The event does not say, or the number is too large.
    """
    match connector, position:
        case "oracle", (int(number), *_):
            scn = number
        case "postgresql", (int(committed), *_):
            scn = committed + 1
        case (("mysql" | "mariadb"), (int(file), int(pos), *_)) if pos < 2**32:
            scn = file << 32 | pos
        case (("sqlserver" | "db2"), (str(lsn), *_)):
            scn = _of_lsn(lsn)
        case _:
            scn = _MOST
    if not 0 <= scn < _MOST:
        raise MalformedInputError(
            "nothing says where in the source's log this change was committed",
            where=where,
            do="have the connector write its transaction topic (provide.transaction.metadata)",
        )
    return Scn(scn)


def is_in_commit_order(connector: str, position: Key) -> bool:
    """Whether positions grow with every transaction of a connector.

    Oracle's do since it numbers a transaction's events. Before that, changes of one bear the commit SCNs of several.
    """
    return connector != "oracle" or len(position) == _NUMBERED


def place_in_log(connector: str, position: Key) -> Key:
    """Return what of a change's position rows of snapshots are compared with, as `Source.place`."""
    match connector:
        case "postgresql":
            return position[1:2]
        case "mysql" | "mariadb":
            return position[:2]
        case _:
            return position[:1]


def identity_of(record: TopicRecord, location: ChangeLocation) -> bytes:
    """Return what an event without a number has in common with its repetitions alone; nothing where it cannot be told.

    Several rows may have one place in the source's log: those of one INSERT, in PostgreSQL. So may the truncations of
    several tables.
    """
    if not location.source.identity:
        return b""
    text = repr((location.source.identity, location.op, str(location.table))).encode()
    return blake2b(text + b"\0" + (record.key or b""), digest_size=12).digest()


def _of_lsn(text: str) -> int:
    try:
        parts = [int(part, 16) for part in text.split(":")]
    except ValueError:
        return _MOST
    if len(parts) == 3 and parts[:2] == [0, 0]:
        return parts[2]
    if len(parts) == 3 and parts[0] < 2**25 and parts[1] < 2**26 and parts[2] < 2**12:
        return parts[0] << 38 | parts[1] << 12 | parts[2]
    return _MOST
