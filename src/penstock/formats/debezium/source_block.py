"""The `source` blocks that are written, one for each connector: their schemas, and what stands in them.

Positions are those of the change stream, told in the terms of each connector: they are ordered as the transactions
were, and no two changes have the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.change import TableName
from penstock.formats.debezium.columns import Connector
from penstock.formats.debezium.schema import ConnectSchema

STREAMING = "false"
"""The snapshot mark of a change."""

_SNAPSHOT = ConnectSchema(
    "string",
    is_optional=True,
    name="io.debezium.data.Enum",
    version=1,
    parameters=MappingProxyType(
        {"allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"}
    ),
    default=STREAMING,
)

_LSN_BITS = 22
"""How many of the lower bits of what stands for an LSN count changes inside a transaction."""

_OWN: Mapping[Connector, str] = {
    Connector.ORACLE: "schema:string table:string txId:string? scn:string? commit_scn:string? lcr_position:string?"
    " rs_id:string? ssn:int64? redo_thread:int32? user_name:string? redo_sql:string? row_id:string? commit_ts_ms:int64?"
    " start_scn:string? start_ts_ms:int64? txSeq:int64?",
    Connector.POSTGRESQL: "schema:string table:string txId:int64? lsn:int64? xmin:int64? origin:string?"
    " origin_lsn:int64?",
    Connector.MYSQL: "table:string? server_id:int64 gtid:string? file:string pos:int64 row:int32 thread:int64?"
    " query:string?",
    Connector.SQLSERVER: "schema:string table:string change_lsn:string? commit_lsn:string? event_serial_no:int64?",
    Connector.DB2: "schema:string table:string change_lsn:string? commit_lsn:string?",
}
"""The fields of each connector behind the common ones; those with a question mark may be null."""


class Place(NamedTuple):
    """Where a change is in the change stream.

    Attributes:
        scn: Of the change itself, where the source knows it; otherwise that of the commit.
        seq: Counts the events of the transaction from 1.
        snapshot: The mark of a row of a first copy; `STREAMING` for a change.
        more: Fields that the change stream's `meta` gives under `debezium`.
    """

    txn_id: str
    commit_scn: int
    committed_at_us: int
    scn: int
    seq: int
    snapshot: str
    more: Mapping[str, Any]


def source_schema(connector: Connector) -> ConnectSchema:
    """Return the schema of a connector's source block."""
    text, number = ConnectSchema("string"), ConnectSchema("int64", is_optional=True)
    fields = {
        "version": text,
        "connector": text,
        "name": text,
        "ts_ms": ConnectSchema("int64"),
        "snapshot": _SNAPSHOT,
        "db": text,
        "sequence": ConnectSchema("string", is_optional=True),
        "ts_us": number,
        "ts_ns": number,
    }
    for field in _OWN[connector].split():
        name, _, type_ = field.partition(":")
        fields[name] = ConnectSchema(type_.rstrip("?"), is_optional=type_.endswith("?"))
    name = f"io.debezium.connector.{connector.value}.Source"
    return ConnectSchema("struct", name=name, version=1, fields=MappingProxyType(fields))


def transaction_id(connector: Connector, place: Place) -> str:
    """Return the id of a transaction in its block, and in the transaction topic."""
    match connector:
        case Connector.ORACLE:
            return place.txn_id
        case Connector.POSTGRESQL:
            # The connector says the position of each record. One for all of them keeps them in one partition.
            return f"{place.txn_id}:{place.commit_scn << _LSN_BITS}"
        case Connector.MYSQL:
            return f"file={_FILE},pos={place.commit_scn}"
        case Connector.SQLSERVER | Connector.DB2:
            return _commit_lsn(connector, place)


def collection(connector: Connector, database: str, table: TableName) -> str:
    """Return what END calls a table."""
    match connector:
        case Connector.POSTGRESQL | Connector.MYSQL:
            return f"{table.schema}.{table.name}"
        case _:
            return f"{database}.{table.schema}.{table.name}"


def topic_path(connector: Connector, database: str, table: TableName) -> str:
    """Return what follows the prefix in the name of a table's topic."""
    middle = f"{database}." if connector is Connector.SQLSERVER else ""
    return f"{middle}{table.schema}.{table.name}"


def source_writer(
    connector: Connector, *, version: str, prefix: str, database: str, table: TableName
) -> Callable[[Place], dict[str, Any]]:
    """Return what makes the source blocks of a table's events."""
    own = _WRITERS[connector]
    database = table.schema if connector is Connector.MYSQL else database
    name = connector.value
    is_postgres = connector is Connector.POSTGRESQL

    def write(place: Place) -> dict[str, Any]:
        at = place.committed_at_us
        block = {
            "version": version,
            "connector": name,
            "name": prefix,
            "ts_ms": at // 1000,
            "snapshot": place.snapshot,
            "db": database,
            "sequence": _sequence(place) if is_postgres else None,
            "ts_us": at,
            "ts_ns": at * 1000,
        }
        own(block, table, place)
        for field, value in place.more.items():
            if field in block:
                block[field] = value
        return block

    return write


def _oracle(block: dict[str, Any], table: TableName, place: Place) -> None:
    is_change = place.snapshot == STREAMING
    block |= {
        "schema": table.schema,
        "table": table.name,
        "txId": place.txn_id if is_change else None,
        "scn": str(place.scn),
        "commit_scn": str(place.commit_scn) if is_change else None,
        "lcr_position": None,
        "rs_id": None,
        "ssn": None,
        "redo_thread": None,
        "user_name": None,
        "redo_sql": None,
        "row_id": None,
        "commit_ts_ms": block["ts_ms"] if is_change else None,
        "start_scn": None,
        "start_ts_ms": None,
        "txSeq": place.seq if is_change else None,
    }


def _postgresql(block: dict[str, Any], table: TableName, place: Place) -> None:
    block |= {
        "schema": table.schema,
        "table": table.name,
        "txId": int(place.txn_id) if place.txn_id.isdecimal() else None,
        "lsn": _lsn(place),
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    }


def _lsn(place: Place) -> int:
    # A row of a copy lies behind all changes up to the position that the copy is of.
    last = (1 << _LSN_BITS) - 1
    seq = last if place.snapshot != STREAMING else min(place.seq, last)
    return (place.commit_scn << _LSN_BITS) + seq


def _sequence(place: Place) -> str:
    return f'["{(place.commit_scn << _LSN_BITS) - 1}","{_lsn(place)}"]'


_FILE = "penstock.000001"


def _mysql(block: dict[str, Any], table: TableName, place: Place) -> None:
    block |= {
        "table": table.name,
        "server_id": 0,
        "gtid": None,
        "file": _FILE,
        "pos": place.commit_scn,
        "row": place.seq if place.snapshot == STREAMING else 0,
        "thread": None,
        "query": None,
    }


def _commit_lsn(connector: Connector, place: Place) -> str:
    if connector is Connector.DB2:
        return f"00000000:00000000:{place.commit_scn:016x}"
    return f"{place.commit_scn >> 32:08x}:{place.commit_scn & 0xFFFFFFFF:08x}:0001"


def _sqlserver(block: dict[str, Any], table: TableName, place: Place) -> None:
    is_change = place.snapshot == STREAMING
    block |= {
        "schema": table.schema,
        "table": table.name,
        "change_lsn": f"00000000:{place.seq:08x}:0001" if is_change else None,
        "commit_lsn": _commit_lsn(Connector.SQLSERVER, place),
        "event_serial_no": 1 if is_change else None,
    }


def _db2(block: dict[str, Any], table: TableName, place: Place) -> None:
    is_change = place.snapshot == STREAMING
    block |= {
        "schema": table.schema,
        "table": table.name,
        "change_lsn": f"00000000:00000000:{place.seq:016x}" if is_change else None,
        "commit_lsn": _commit_lsn(Connector.DB2, place),
    }


_WRITERS: Mapping[Connector, Callable[[dict[str, Any], TableName, Place], None]] = {
    Connector.ORACLE: _oracle,
    Connector.POSTGRESQL: _postgresql,
    Connector.MYSQL: _mysql,
    Connector.SQLSERVER: _sqlserver,
    Connector.DB2: _db2,
}
