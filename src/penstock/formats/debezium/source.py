"""The `source` block of an event, of each connector in all its versions: where in the database's stream a change is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import orjson

from penstock.change import TableName

Key: TypeAlias = tuple[int | str, ...]
"""Comparable with others of one connector."""

_DIGITS = re.compile(r"-?\d{1,40}", re.ASCII)
_LAST_NUMBER = re.compile(r"(\d+)\D*$", re.ASCII)
_SEQUENCE = re.compile(r'\["(\d{1,19})","(\d{1,19})"\]', re.ASCII)
_POSTGRES_BLOCK = re.compile(r"(\d+):(\d+)", re.ASCII)

_STREAMING = ("", "false")


class SourceError(ValueError):
    """A source block breaks its own format; the text says how, and holds no value of a row."""


class SourceBlock(NamedTuple):
    """What a source block says.

    Attributes:
        connector: `oracle`, `postgresql`...; empty in events of old.
        name: The prefix of the connector's topics.
        database: Empty where the block does not say.
        table: As the database spells it; a table of MySQL is in its database. None where the block does not say.
        collection: How END counts the table's events: `PDB.SCHEMA.TABLE`, `schema.table`, `db.table`.
        snapshot: Empty for a change; else the mark of a snapshot row: `true`, `first`, `last`, `incremental`...
        ts_us: The database's time of the change. Neither unique nor increasing.
        txn: Which transaction the source says the change is of; None where it does not say.
        position: Its place in the order of all changes of the connector; empty where the block does not say.
        place: What a snapshot row and a change of its row are compared by; empty where the block does not say.
        identity: Equal for two events only if one repeats the other, with op and key; empty where it cannot be told.
        marks_firsts: The connector marks the first row of a snapshot: those before version 2.0 mark the last one alone.
    """

    connector: str
    name: str
    database: str
    table: TableName | None
    collection: str
    snapshot: str
    ts_us: int | None
    txn: str | None
    position: Key
    place: Key
    identity: Key
    marks_firsts: bool = True


class _Places(NamedTuple):
    txn: str | None
    position: Key
    place: Key
    identity: Key


_NOWHERE = _Places(None, (), (), ())


def read_source(block: Mapping[str, Any]) -> SourceBlock:
    """Read a source block.

    Raises:
        SourceError: A field has a value that it never has.
    """
    get = block.get
    connector = get("connector")
    # Events of old have none.
    if connector is None or connector == "":
        connector = _connector_of(block)
    try:
        name, database, table, collection = _named(connector, get("name"), get("db"), get("schema"), get("table"))
    except TypeError:
        raise SourceError("has a name that is not text") from None
    snapshot = _snapshot(block.get("snapshot"))
    places = _PLACES.get(connector, _nowhere)(block, bool(snapshot))
    return SourceBlock(
        connector=connector,
        name=name,
        database=database,
        table=table,
        collection=collection,
        snapshot=snapshot,
        ts_us=_time_us(block),
        txn=places.txn,
        position=places.position,
        place=places.place,
        identity=places.identity,
        marks_firsts=not str(block.get("version") or "").startswith(("0.", "1.")),
    )


@dataclass(frozen=True, slots=True)
class SourceForm:
    """What the source blocks of the changes of one table have in common.

    Attributes:
        fields: Their members, in order.
        values: Those that are the same in all of them.
    """

    connector: str
    fields: tuple[str, ...]
    values: tuple[Any, ...]

    @classmethod
    def of(cls, block: Mapping[str, Any]) -> SourceForm | None:
        """Take it from a block that `read_source` has read as that of a change; None where values are no texts."""
        values = tuple(block[name] for name in _COMMON if name in block)
        if not all(type(value) is str or value is None for value in values):
            return None
        return cls(read_source(block).connector, tuple(block), values)

    def read(self, blocks: Sequence[Mapping[str, Any]]) -> list[tuple[Key, int | None]]:
        """Return position and time of changes, as `SourceBlock` has them.

        Raises:
            SourceError: A block has another form, or `read_source` would raise.
        """
        values = itemgetter(*(name for name in _COMMON if name in self.fields))
        if set(map(tuple, blocks)) != {self.fields} or set(map(values, blocks)) != {self.values}:
            raise SourceError("differs from those before it")
        read = _PLACES.get(self.connector, _nowhere)
        return [(read(block, False).position, _time_us(block)) for block in blocks]


_COMMON = ("connector", "name", "db", "schema", "table", "snapshot")


def group_of(block_id: str) -> str:
    """Return what the ids of one transaction have in common.

    PostgreSQL's connector adds the position of each record: `161587:1322341312`. No other id is two numbers.
    """
    found = _POSTGRES_BLOCK.fullmatch(block_id)
    return found[1] if found else block_id


def place_of(block_id: str) -> int | None:
    """Return a record's position in the source's log, which PostgreSQL's connector adds to the transaction's id."""
    found = _POSTGRES_BLOCK.fullmatch(block_id)
    return int(found[2]) if found else None


def table_of(name: str, prefix: str) -> TableName | None:
    """Take the table out of a topic or an envelope's schema name; None where it cannot be told.

    Args:
        name: `prefix.schema.table`, `prefix.database.schema.table`.
        prefix: The prefix of the connector's topics, as the source block says it.
    """
    rest = name.removeprefix(f"{prefix}.") if prefix else name.partition(".")[2]
    parts = rest.split(".")
    return TableName(parts[-2], parts[-1]) if len(parts) in (2, 3) and rest != name and all(parts) else None


@lru_cache(65536)
def _named(
    connector: str, name: str | None, database: str | None, schema: str | None, table: str | None
) -> tuple[str, str, TableName | None, str]:
    """Return prefix, database, table, and how END calls the table; raises `TypeError` for names that are no texts."""
    name, database, schema, table = (_name(one) for one in (name, database, schema, table))
    if not isinstance(connector, str):
        raise TypeError
    if not table:
        return name, database, None, ""
    if connector in ("mysql", "mariadb"):
        return name, database, TableName(database, table), f"{database}.{table}"
    collection = f"{schema}.{table}" if connector == "postgresql" else f"{database}.{schema}.{table}"
    return name, database, TableName(schema, table), collection


def _name(given: object) -> str:
    if not isinstance(given, str | None):
        raise TypeError
    return given or ""


def _connector_of(block: Mapping[str, Any]) -> str:
    """Tell the connector of a block that does not name it by the fields that only one of them has."""
    for field, connector in _ONLY_IN.items():
        if field in block:
            return connector
    return ""


def _snapshot(mark: object) -> str:
    # A converter that leaves defaults alone writes null for a change; versions before 0.10 write a boolean.
    if mark == "false" or mark is None or mark is False:
        return ""
    if mark is True:
        return "true"
    if not isinstance(mark, str):
        raise SourceError("has a snapshot mark that is not text")
    mark = mark.lower()
    return "" if mark in _STREAMING else mark


def _time_us(block: Mapping[str, Any]) -> int | None:
    if type(given := block.get("ts_us")) is int:
        return given
    for field, factor, divisor in (
        ("ts_us", 1, 1),
        ("ts_ns", 1, 1000),
        ("ts_ms", 1000, 1),
        ("ts_usec", 1, 1),
        ("ts_sec", 10**6, 1),
    ):
        value = block.get(field)
        if value is not None:
            if type(value) is not int:
                raise SourceError(f"has a {field} that is not a whole number")
            return value * factor // divisor
    return None


def _number(block: Mapping[str, Any], field: str) -> int | None:
    """Return a number that versions write as a number or as a text; None where there is none."""
    value = block.get(field)
    if value is None or value == "":
        return None
    if type(value) is int:
        return value
    if type(value) is str and _DIGITS.fullmatch(value):
        return int(value)
    raise SourceError(f"has a {field} that is not a whole number")


def _text(block: Mapping[str, Any], field: str) -> str | None:
    value = block.get(field)
    if value is None or type(value) is str:
        return value or None
    if type(value) is int:
        return str(value)
    raise SourceError(f"has a {field} that is not text")


def _oracle(block: Mapping[str, Any], is_snapshot: bool) -> _Places:
    txn, scn = _text(block, "txId"), _number(block, "scn")
    commit, seq = _number(block, "commit_scn"), _number(block, "txSeq")
    thread = _number(block, "redo_thread") or 0
    if is_snapshot or txn is None:
        place = () if scn is None else (scn,)
        return _Places(None, place, place, ())
    end = commit if commit is not None else scn
    if end is None:
        return _Places(txn, (), (), ())
    if seq is not None:
        return _Places(txn, (end, thread, txn, seq), (end,), (end, thread, txn, seq))
    inside = (scn or 0, _text(block, "rs_id") or "", _number(block, "ssn") or 0)
    # Without a number of its own a change has no identity unless the redo record that made it is known.
    identity = (end, thread, txn, *inside) if block.get("rs_id") else ()
    return _Places(txn, (end, thread, txn, *inside), (end,), identity)


def _postgresql(block: Mapping[str, Any], is_snapshot: bool) -> _Places:
    txn, lsn = _text(block, "txId"), _number(block, "lsn")
    committed, own = _sequence(block.get("sequence"))
    lsn = own if lsn is None else lsn
    if lsn is None:
        return _Places(txn, (), (), ())
    return _Places(None if is_snapshot else txn, (committed, lsn), (lsn,), () if is_snapshot else (lsn,))


def _sequence(text: object) -> tuple[int, int | None]:
    """Return the position of the last commit before a change, 0 for none, and its own."""
    if text is None:
        return 0, None
    if type(text) is str and (found := _SEQUENCE.fullmatch(text)):
        return int(found[1]), int(found[2])
    try:
        parts: Any = orjson.loads(text) if isinstance(text, str) else text
        committed, own = parts
        return int(committed or 0), None if own is None else int(own)
    except (ValueError, TypeError):
        raise SourceError("has a sequence that is not a list of two positions") from None


def _mysql(block: Mapping[str, Any], is_snapshot: bool) -> _Places:
    file, pos, row = _text(block, "file"), _number(block, "pos"), _number(block, "row") or 0
    gtid = _text(block, "gtid")
    if file is None or pos is None:
        return _Places(gtid, (), (), ())
    found = _LAST_NUMBER.search(file)
    number = int(found[1]) if found else 0
    if is_snapshot:
        return _Places(None, (number, pos, row), (number, pos), ())
    # Without GTIDs nothing says where a transaction ends: what one binlog event holds belongs together, no more.
    return _Places(gtid or f"{file}:{pos}", (number, pos, row), (number, pos), (file, pos, row))


def _lsns(block: Mapping[str, Any], is_snapshot: bool) -> _Places:
    commit, change = _text(block, "commit_lsn"), _text(block, "change_lsn")
    serial = _number(block, "event_serial_no")
    if commit is None:
        return _NOWHERE
    position = (commit, change or "", serial or 0)
    if is_snapshot or change is None:
        return _Places(None, position, (commit,), ())
    return _Places(commit, position, (commit,), position)


def _nowhere(block: Mapping[str, Any], is_snapshot: bool) -> _Places:
    return _Places(_text(block, "txId"), (), (), ())


_PLACES: Mapping[str, Callable[[Mapping[str, Any], bool], _Places]] = {
    "oracle": _oracle,
    "postgresql": _postgresql,
    "mysql": _mysql,
    "mariadb": _mysql,
    "sqlserver": _lsns,
    "db2": _lsns,
}

_ONLY_IN = {
    "commit_scn": "oracle",
    "scn": "oracle",
    "xmin": "postgresql",
    "lsn": "postgresql",
    "gtid": "mysql",
    "server_id": "mysql",
    "event_serial_no": "sqlserver",
    "commit_lsn": "db2",
    "change_lsn": "db2",
}
