"""Db2's catalogue as a file tells it: which table a record is of, and what its columns were at that point of the log.

The file is a sequence of JSON objects: one, in any place, with how the log was read, and one for each version of a
table. `docs/db2.md` has the query that writes the latter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from penstock.change import TableName
from penstock.errors import ConfigError
from penstock.logical import BINARY, BOOLEAN, DATE, STRING, Kind, LogicalType, decimal, floating, integer, other, string
from penstock.schema import Column, TableSchema, Unique
from penstock.sources.db2_log.framing import BufferFormat, Framing, Level, Lri
from penstock.stream import TableVersion

TableId = tuple[int, int]
"""Table space id and table id; a partition has its own pair."""

LOBS = frozenset(("BLOB", "CLOB", "DBCLOB"))
VARYING = frozenset(("VARCHAR", "VARGRAPHIC", "VARBINARY"))
GRAPHIC = frozenset(("GRAPHIC", "VARGRAPHIC", "DBCLOB"))

_NAMES = {"CHARACTER": "CHAR", "LONG VARCHAR": "LONG VARCHAR", "FLOAT": "DOUBLE", "TIMESTMP": "TIMESTAMP"}


@dataclass(frozen=True)
class Db2Column:
    """One column, as SYSCAT.COLUMNS has it.

    Attributes:
        type: TYPENAME, in capitals.
        length: Bytes of a string; digits of a DECIMAL.
        scale: Of a DECIMAL; decimals of a TIMESTAMP's second.
        is_bit_data: A string of bytes: its code page is 0.
        inline_length: Most bytes of a LOB in the row, with its 4 bytes of header; None where it is not said.
        default: The text of DEFAULT; None without one.
    """

    name: str
    type: str
    length: int
    scale: int
    is_nullable: bool
    is_bit_data: bool
    inline_length: int | None
    default: str | None
    key_seq: int | None

    @property
    def is_lob(self) -> bool:
        """Whether its value may come in records of the LOB manager."""
        return self.type in LOBS

    @property
    def is_varying(self) -> bool:
        """Whether the row has an offset and a length in its place."""
        return self.type in LOBS or self.type in VARYING

    @property
    def logical(self) -> LogicalType:
        """What it holds."""
        match self.type:
            case "SMALLINT" | "INTEGER" | "BIGINT":
                return integer({"SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}[self.type])
            case "DECIMAL":
                return decimal(self.length, self.scale)
            case "REAL" | "DOUBLE":
                return floating(32 if self.type == "REAL" else 64)
            case "BOOLEAN":
                return BOOLEAN
            case "DATE":
                return DATE
            case "TIME":
                return LogicalType(Kind.TIME, precision=0)
            case "TIMESTAMP":
                return LogicalType(Kind.TIMESTAMP, precision=self.scale)
            case "BLOB" | "BINARY" | "VARBINARY":
                return BINARY
            case "CLOB" | "DBCLOB":
                return STRING
            case "CHAR" | "VARCHAR" if self.is_bit_data:
                return BINARY
            case "CHAR" | "GRAPHIC":
                return string(self.length, is_padded=True)
            case "VARCHAR" | "VARGRAPHIC":
                return string(self.length)
        return other(self.type)


@dataclass(frozen=True)
class Db2Table:
    """One version of a table.

    Attributes:
        ids: Of the table, or of each of its partitions.
        since: The version holds for records from this one on.
        number: 1 for the first version of a table.
    """

    name: TableName
    ids: tuple[TableId, ...]
    columns: tuple[Db2Column, ...]
    since: Lri
    number: int

    @cached_property
    def key(self) -> tuple[str, ...]:
        """The columns of the primary key, in its order."""
        keyed = sorted((c.key_seq, c.name) for c in self.columns if c.key_seq is not None)
        return tuple(name for _, name in keyed)

    @cached_property
    def lob_numbers(self) -> frozenset[int]:
        """Which columns are LOBs, by their number."""
        return frozenset(n for n, column in enumerate(self.columns) if column.is_lob)

    def schema(self) -> TableSchema:
        """The table as Penstock knows tables."""
        columns = tuple(Column.of(c.name, c.logical, is_nullable=c.is_nullable) for c in self.columns)
        key = Unique(f"{self.name.name}_pkey", self.key, self.key) if self.key else None
        return TableSchema(self.name, columns, key, version=self.number)


@dataclass(frozen=True)
class Catalog:
    """How the log was read, and every version of every table.

    Attributes:
        id: Tells the log from every other one; the name of the database and where its history began.
        encoding: Python's name of the database's code page.
        graphic: The same for GRAPHIC types, which a person has made sure of; None: they are refused.
        leaves_out: What to do where the log does not hold the value of a column: leave it out, or else stop.
    """

    id: str
    form: BufferFormat
    tables: tuple[Db2Table, ...]
    encoding: str = "utf-8"
    graphic: str | None = None
    leaves_out: bool = False

    @cached_property
    def by_id(self) -> Mapping[TableId, Sequence[Db2Table]]:
        """The versions of each table by its ids, oldest first."""
        found: dict[TableId, list[Db2Table]] = {}
        for table in self.tables:
            for id_ in table.ids:
                found.setdefault(id_, []).append(table)
        return found

    def find(self, id_: TableId, lri: Lri) -> Db2Table | None:
        """Return the version of a table that a record is of; None where the catalogue does not have the table."""
        versions = self.by_id.get(id_)
        if versions is None:
            return None
        if len(versions) == 1:
            return versions[0]
        return next((table for table in reversed(versions) if table.since <= lri), versions[0])

    def versions(self) -> Sequence[TableVersion]:
        """Every version of every table, oldest first."""
        numbers = {name: n for n, name in enumerate(dict.fromkeys(table.name for table in self.tables), 1)}
        schemas = [table.schema() for table in self.tables]
        return [TableVersion(numbers[s.name], s, s.to_definition(), s.name) for s in schemas]


def read_catalog(text: str, *, where: str) -> Catalog:
    """Read a catalogue.

    Raises:
        ConfigError: It is none, or lacks something; the message names the table and the column.
    """
    settings: dict[str, Any] = {}
    tables: list[Mapping[str, Any]] = []
    for value in _objects(text, where):
        tables += value.get("tables", [value] if "columns" in value else [])
        if "columns" not in value:
            settings |= {name: said for name, said in value.items() if name != "tables"}
    if unknown := settings.keys() - _SETTINGS:
        _refuse(f"{min(unknown)!r} is not a setting", where, do=f"there are {', '.join(sorted(_SETTINGS))}")
    if not tables:
        _refuse("the catalogue has no table", where)
    versions: list[Db2Table] = []
    for said in tables:
        table = _table(said, where, versions)
        earlier = next((t for t in reversed(versions) if t.name == table.name), None)
        if earlier is not None and earlier.since >= table.since:
            _refuse(f"{table.name} has two versions, and `from` of the later one is not the higher", where)
        versions.append(table)
    try:
        form = BufferFormat(
            Level(settings.get("level", Level.V10)),
            Framing(settings.get("framing", Framing.FILTER)),
            _one_of(settings.get("byte_order", "little"), "little", "big"),
        )
        encoding, graphic = settings.get("encoding", "utf-8"), settings.get("graphic")
        for name in (encoding, graphic):
            _ = b"".decode(name) if name is not None else ""
        leaves_out = _one_of(settings.get("on_unreplicable", "stop"), "stop", "leave_column_out") == "leave_column_out"
    except (ValueError, LookupError, TypeError) as exc:
        raise ConfigError(f"a setting of the catalogue is wrong: {exc}", where=where) from exc
    return Catalog(str(settings.get("id", "")), form, tuple(versions), encoding, graphic, leaves_out)


_SETTINGS = frozenset(("id", "level", "framing", "byte_order", "encoding", "graphic", "on_unreplicable"))


def _objects(text: str, where: str) -> Iterator[Mapping[str, Any]]:
    decoder, at = json.JSONDecoder(), 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as exc:
            raise ConfigError("the catalogue is not JSON", where=f"{where}, character {at}") from exc
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, dict):
                _refuse("the catalogue holds something that is not a JSON object", f"{where}, character {at}")
            yield one


def _table(said: Mapping[str, Any], where: str, earlier: Sequence[Db2Table]) -> Db2Table:
    name = TableName(str(said.get("schema", "")).rstrip(), str(said.get("table", "")))
    try:
        pairs = said["ids"] if "ids" in said else [[said["tablespace_id"], said["table_id"]]]
        ids = tuple((int(space), int(table)) for space, table in pairs)
        columns = tuple(_column(column) for column in said["columns"])
        since = Lri(*map(int, said["from"])) if said.get("from") is not None else Lri(0, 0)
    except (KeyError, TypeError, ValueError) as exc:
        raise ConfigError(f"the catalogue does not describe {name}: {type(exc).__name__}: {exc}", where=where) from exc
    if not columns or len({column.name for column in columns}) != len(columns):
        _refuse(f"{name} has no columns, or two of one name", where)
    for other_ in earlier:
        if other_.name != name and set(other_.ids) & set(ids) and other_.since >= since:
            do = "where one was made when the other was dropped, it is below that one, with `from`"
            _refuse(f"{name} and {other_.name} have the same table space id and table id", where, do=do)
    return Db2Table(name, ids, columns, since, 1 + sum(t.name == name for t in earlier))


def _column(said: Mapping[str, Any]) -> Db2Column:
    type_ = str(said["type"]).strip().upper()
    inline, key = said.get("inline_length"), said.get("key_seq")
    return Db2Column(
        name=str(said["name"]),
        type=_NAMES.get(type_, type_),
        length=int(said.get("length") or 0),
        scale=int(said.get("scale") or 0),
        is_nullable=said.get("nulls", True) in (True, "Y"),
        is_bit_data=said.get("code_page") == 0,
        inline_length=None if inline is None else int(inline),
        default=said.get("default"),
        key_seq=None if key is None else int(key),
    )


def _one_of(value: Any, *known: str) -> Any:
    if value not in known:
        raise ValueError(f"{value!r} is not one of {', '.join(known)}")
    return value


def _refuse(what: str, where: str, *, do: str = "") -> NoReturn:
    raise ConfigError(what, where=where, do=do)
