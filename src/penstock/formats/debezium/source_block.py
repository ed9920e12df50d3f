"""The `source` blocks that are written, one for each connector: their schemas, and what stands in them.

Positions are those of the change stream, told in the terms of each connector: they are ordered as the transactions
were, and no two changes have the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from penstock.change import TableName
from penstock.formats.debezium.columns import Connector
from penstock.formats.debezium.java_text import connect_json
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


class ChangePlace(NamedTuple):
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


def transaction_id(connector: Connector, place: ChangePlace) -> str:
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
) -> Callable[[ChangePlace], bytes]:
    """Return what makes the source blocks of a table's events, as JSON."""
    own = _WRITERS[connector]
    is_mysql, is_postgres = connector is Connector.MYSQL, connector is Connector.POSTGRESQL
    named = {"version": version, "connector": connector.value, "name": prefix}
    head = f'{_members(named)},"ts_ms":'
    db = _members({"db": table.schema if is_mysql else database})
    path = _members({"table": table.name} if is_mysql else {"schema": table.schema, "table": table.name})

    def write(place: ChangePlace) -> bytes:
        at, snapshot = place.committed_at_us, place.snapshot
        sequence = _sequence(place) if is_postgres else "null"
        text = (
            f'{{{head}{at // 1000},"snapshot":"{snapshot}",{db},"sequence":{sequence},"ts_us":{at},"ts_ns":{at}000,'
            f"{path},{own(place)}}}"
        ).encode()
        if not place.more:
            return text
        block = orjson.loads(text)
        return connect_json(block | {field: value for field, value in place.more.items() if field in block})

    return write


def _members(values: Mapping[str, str]) -> str:
    return connect_json(values).decode()[1:-1]


def _text(text: str) -> str:
    return f'"{text}"' if text.isalnum() else connect_json(text).decode()


def _oracle(place: ChangePlace) -> str:
    nothing = '"lcr_position":null,"rs_id":null,"ssn":null,"redo_thread":null,"user_name":null,"redo_sql":null'
    if place.snapshot != STREAMING:
        return (
            f'"txId":null,"scn":"{place.scn}","commit_scn":null,{nothing},"row_id":null,"commit_ts_ms":null,'
            '"start_scn":null,"start_ts_ms":null,"txSeq":null'
        )
    return (
        f'"txId":{_text(place.txn_id)},"scn":"{place.scn}","commit_scn":"{place.commit_scn}",{nothing},"row_id":null,'
        f'"commit_ts_ms":{place.committed_at_us // 1000},"start_scn":null,"start_ts_ms":null,"txSeq":{place.seq}'
    )


def _postgresql(place: ChangePlace) -> str:
    txn = place.txn_id if place.txn_id.isdecimal() else "null"
    return f'"txId":{txn},"lsn":{_lsn(place)},"xmin":null,"origin":null,"origin_lsn":null'


def _lsn(place: ChangePlace) -> int:
    # A row of a copy lies behind all changes up to the position that the copy is of.
    last = (1 << _LSN_BITS) - 1
    seq = last if place.snapshot != STREAMING else min(place.seq, last)
    return (place.commit_scn << _LSN_BITS) + seq


def _sequence(place: ChangePlace) -> str:
    return f'"[\\"{(place.commit_scn << _LSN_BITS) - 1}\\",\\"{_lsn(place)}\\"]"'


_FILE = "penstock.000001"


def _mysql(place: ChangePlace) -> str:
    row = place.seq if place.snapshot == STREAMING else 0
    return f'"server_id":0,"gtid":null,"file":"{_FILE}","pos":{place.commit_scn},"row":{row},"thread":null,"query":null'


def _commit_lsn(connector: Connector, place: ChangePlace) -> str:
    if connector is Connector.DB2:
        return f"00000000:00000000:{place.commit_scn:016x}"
    return f"{place.commit_scn >> 32:08x}:{place.commit_scn & 0xFFFFFFFF:08x}:0001"


def _sqlserver(place: ChangePlace) -> str:
    commit = _commit_lsn(Connector.SQLSERVER, place)
    if place.snapshot != STREAMING:
        return f'"change_lsn":null,"commit_lsn":"{commit}","event_serial_no":null'
    return f'"change_lsn":"00000000:{place.seq:08x}:0001","commit_lsn":"{commit}","event_serial_no":1'


def _db2(place: ChangePlace) -> str:
    commit = _commit_lsn(Connector.DB2, place)
    change = f'"00000000:00000000:{place.seq:016x}"' if place.snapshot == STREAMING else "null"
    return f'"change_lsn":{change},"commit_lsn":"{commit}"'


_WRITERS: Mapping[Connector, Callable[[ChangePlace], str]] = {
    Connector.ORACLE: _oracle,
    Connector.POSTGRESQL: _postgresql,
    Connector.MYSQL: _mysql,
    Connector.SQLSERVER: _sqlserver,
    Connector.DB2: _db2,
}
