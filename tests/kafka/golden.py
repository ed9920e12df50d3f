"""Events as the connectors write them whose databases are not at hand: `python -m tests.kafka.golden` makes them anew.

Their source blocks come from each connector's own schema, their columns from its own value converters, which are given
what its driver or its log reader gives them, and their bytes from Kafka Connect's JsonConverter. Only what a database
decides is made up: positions, times, and which rows there are.

The files of a connector are those that `record` makes of PostgreSQL's: `oracle_3.6.jsonl` without schemas,
`oracle_3.6.schemas.jsonl` with them, and `oracle_3.6.rows.jsonl` with the rows as canonical text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jpype

from tests.kafka import jars
from tests.kafka.record import FOLDER

_PREFIX = "server1"
_VERSION = "3.6.3.Final"
_COMMITTED_MS = 1520085154000
_PROCESSED_NS = 1532592105975123456

_NUMERIC, _DECIMAL, _INTEGER, _SMALLINT, _TINYINT, _BIGINT = 2, 3, 4, 5, -6, -5
_FLOAT, _REAL, _DOUBLE, _BIT, _BOOLEAN = 6, 7, 8, -7, 16
_CHAR, _VARCHAR, _NVARCHAR, _CLOB, _NCLOB, _LONGVARCHAR = 1, 12, -9, 2005, 2011, -1
_BINARY, _VARBINARY, _LONGVARBINARY, _BLOB, _SQLXML, _OTHER = -2, -3, -4, 2004, 2009, 1111
_DATE, _TIME, _TIMESTAMP, _TIMESTAMP_ZONED = 91, 92, 93, 2014

# What Oracle's source block says of a transaction, and of no row of a first copy.
_OF_A_TRANSACTION = (
    "txId",
    "commit_scn",
    "redo_thread",
    "user_name",
    "commit_ts_ms",
    "start_scn",
    "start_ts_ms",
    "txSeq",
)


@dataclass(frozen=True)
class Field:
    """One column.

    Attributes:
        type: What its database calls it, with length and scale.
        jdbc, native: How the driver numbers the type, and the database itself where that matters.
        value: Makes the value as the connector gets it from its driver or log reader.
        text: The same as canonical text.
    """

    name: str
    type: str
    jdbc: int
    value: Callable[[], Any]
    text: str | None
    length: int | None = None
    scale: int | None = None
    native: int | None = None
    is_optional: bool = True
    charset: str | None = None
    enum: Sequence[str] = ()


@dataclass(frozen=True)
class Connector:
    """What one connector's events are made of."""

    name: str
    package: str
    config: str
    maker: str
    settings: Mapping[str, str]
    topic: str
    collection: str
    source: Mapping[str, Any]
    snapshot: Mapping[str, Any]
    transaction: str
    fields: Sequence[Field]
    converters: Callable[[Any], Any]
    truncates: bool = True
    key: Sequence[str] = field(default=("ID",))


def main() -> None:
    """Write all files anew."""
    beginnings = ("debezium-connector-", "debezium-ddl-parser-", "mysql-", "mssql-", "ojdbc11-")
    with_all = jars.wheel_path(*beginnings)
    jpype.startJVM("-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC", classpath=with_all.split(":"))
    for connector in _connectors():
        for middle, converters in (("", _converters(schemas=False)), (".schemas", _converters(schemas=True))):
            lines = _Events(connector, converters).lines()
            (FOLDER / f"{connector.name}_3.6{middle}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        rows = [json.dumps(line, ensure_ascii=False) for line in _rows(connector)]
        (FOLDER / f"{connector.name}_3.6.rows.jsonl").write_text("".join(f"{line}\n" for line in rows))


def _rows(connector: Connector) -> Iterator[dict[str, Any]]:
    table = connector.collection
    columns = [{"name": x.name, "type": x.type, "nullable": x.is_optional} for x in connector.fields]
    yield {"table": table, "key": connector.key, "columns": columns}
    first = {each.name: each.text for each in connector.fields}
    empty = {each.name: None if each.is_optional else each.text for each in connector.fields}
    changes = [("snapshot", None, first), ("insert", None, first), ("update", first, empty), ("delete", empty, None)]
    if connector.truncates:
        changes.append(("truncate", None, None))
    for op, before, after in changes:
        number = None if op == "snapshot" else 1
        yield {"transaction": number, "op": op, "table": table, "before": before, "after": after}


class _Events:
    """The records of one connector: a row's life, then the table emptied."""

    def __init__(self, connector: Connector, converters: tuple[Any, Any]) -> None:
        self._of = connector
        self._key_converter, self._value_converter = converters
        self._offsets: dict[str, int] = {}
        self._orders = 0
        config = _java(f"{connector.package}.{connector.config}")(_configuration(connector.settings))
        maker = _java(f"{connector.package}.{connector.maker}")()
        maker.init(connector.name, _VERSION, config)
        self._source_schema = maker.schema()
        types = connector.converters(config)
        builder = _java("org.apache.kafka.connect.data.SchemaBuilder").struct().name(f"{connector.topic}.Value")
        key = _java("org.apache.kafka.connect.data.SchemaBuilder").struct().name(f"{connector.topic}.Key")
        self._convert = {}
        for each in connector.fields:
            column = _column(each)
            made = types.schemaBuilder(column)
            if made is None:
                raise RuntimeError(f"{connector.name} does not capture {each.name} {each.type}")
            schema = made.optional().build() if each.is_optional else made.build()
            builder.field(each.name, schema)
            if each.name in connector.key:
                key.field(each.name, schema)
            made_field = _java("org.apache.kafka.connect.data.Field")(each.name, 0, schema)
            self._convert[each.name] = types.converter(column, made_field)
        self._row_schema, self._key_schema = builder.optional().build(), key.build()
        transaction = _java("io.debezium.pipeline.txmetadata.DefaultTransactionStructMaker")(
            _java("io.debezium.config.Configuration").create().build()
        )
        self._block_schema = transaction.getTransactionBlockSchema()
        self._boundary_key = transaction.getTransactionKeySchema()
        self._boundary = transaction.getTransactionValueSchema()
        self._collection = transaction.getEventCountPerDataCollectionSchema()
        self._envelope = (
            _java("io.debezium.data.Envelope")
            .defineSchema()
            .withName(f"{connector.topic}.Envelope")
            .withRecord(self._row_schema)
            .withSource(self._source_schema)
            .withTransaction(self._block_schema)
            .build()
        )

    def lines(self) -> list[str]:
        first, empty = self._row(), self._row(is_empty=True)
        found = [self._event("r", None, first, snapshot="first"), self._bound("BEGIN", 0)]
        found += [self._event("c", None, first), self._event("u", first, empty), self._event("d", empty, None)]
        found += [self._tombstone(empty)]
        if self._of.truncates:
            found.append(self._event("t", None, None))
        return [*found, self._bound("END", self._orders)]

    def _row(self, *, is_empty: bool = False) -> Any:
        row = _struct(self._row_schema)
        for each in self._of.fields:
            if not (is_empty and each.is_optional):
                row.put(each.name, self._convert[each.name].convert(each.value()))
        return row

    def _key(self, row: Any) -> Any:
        key = _struct(self._key_schema)
        for name in self._of.key:
            key.put(name, row.get(name))
        return key

    def _event(self, op: str, before: Any, after: Any, snapshot: str | None = None) -> str:
        value = _struct(self._envelope.schema())
        value.put("before", before).put("after", after)
        source = _struct(self._source_schema)
        told = {**self._of.source, **(self._of.snapshot if snapshot else {})}
        common = {"version": _VERSION, "connector": self._of.name, "name": _PREFIX, "snapshot": snapshot}
        common |= {"ts_ms": _COMMITTED_MS, "ts_us": _COMMITTED_MS * 1000, "ts_ns": _COMMITTED_MS * 1000000}
        for name, content in {**common, **told}.items():
            source.put(name, _boxed(content, source.schema().field(name).schema()))
        value.put("source", source)
        if snapshot is None:
            self._orders += 1
            block = _struct(self._block_schema)
            block.put("id", self._of.transaction)
            for name in ("total_order", "data_collection_order"):
                block.put(name, jpype.JLong(self._orders))
            value.put("transaction", block)
        value.put("op", op)
        clock = {"ts_ms": _PROCESSED_NS // 1000000, "ts_us": _PROCESSED_NS // 1000, "ts_ns": _PROCESSED_NS}
        for name, number in clock.items():
            value.put(name, jpype.JLong(number))
        row = after if after is not None else before
        key = None if row is None else self._key(row)
        return self._line(self._of.topic, key, self._key_schema, value, self._envelope.schema())

    def _tombstone(self, row: Any) -> str:
        return self._line(self._of.topic, self._key(row), self._key_schema, None, None)

    def _bound(self, status: str, count: int) -> str:
        key = _struct(self._boundary_key).put("id", self._of.transaction)
        value = _struct(self._boundary).put("status", status).put("id", self._of.transaction)
        value.put("ts_ms", jpype.JLong(_COMMITTED_MS))
        if status == "END":
            collection = _struct(self._collection).put("data_collection", self._of.collection)
            collection.put("event_count", jpype.JLong(count))
            value.put("event_count", jpype.JLong(count))
            value.put("data_collections", _java("java.util.ArrayList")([collection]))
        return self._line(f"{_PREFIX}.transaction", key, self._boundary_key, value, self._boundary)

    def _line(self, topic: str, key: Any, key_schema: Any, value: Any, value_schema: Any) -> str:
        offset = self._offsets.get(topic, -1) + 1
        self._offsets[topic] = offset
        head = json.dumps({"topic": topic, "partition": 0, "offset": offset})[:-1]
        key_text = _text(self._key_converter, topic, key_schema if key is not None else None, key)
        value_text = _text(self._value_converter, topic, value_schema, value)
        return f'{head}, "key": {key_text}, "value": {value_text}, "headers": []}}'


class _OracleTypes:
    """What Oracle's converters, which ask a database how they are to work, make of these columns."""

    def schemaBuilder(self, column: Any) -> Any:
        return self._type(column)[0]

    def converter(self, column: Any, made: Any) -> Any:
        of = self._type(column)[1]

        class Converter:
            def convert(self, value: Any) -> Any:
                return of(value, made.schema())

        return Converter()

    def _type(self, column: Any) -> tuple[Any, Callable[[Any, Any], Any]]:
        plain = _java("org.apache.kafka.connect.data.SchemaBuilder")
        name, digits = str(column.typeName()), column.length()
        scale = int(column.scale().get()) if column.scale().isPresent() else None
        integers = {3: ("int8", "byte"), 5: ("int16", "short"), 10: ("int32", "int"), 19: ("int64", "long")}
        if name in ("NUMBER", "FLOAT") and scale is None:
            variable = _java("io.debezium.data.VariableScaleDecimal")
            return variable.builder(), lambda value, schema: variable.fromLogical(schema, value.stripTrailingZeros())
        if name == "NUMBER":
            width = next((limit for limit in integers if scale <= 0 and digits - scale < limit), None)
            if width is not None:
                builder, method = integers[width]
                return getattr(plain, builder)(), lambda value, _: getattr(value, f"{method}Value")()
            decimal = _java("org.apache.kafka.connect.data.Decimal").builder(scale)
            return decimal.parameter("connect.decimal.precision", str(digits)), lambda value, _: value.setScale(scale)
        if name in ("DATE", "TIMESTAMP"):
            unit = {0: "", 1: "Micro", 2: "Nano"}[0 if name == "DATE" else (scale - 1) // 3]
            zero = _java("java.time.ZoneOffset").UTC

            def since(value: Any, _: Any) -> Any:
                moment = value.toLocalDateTime().toInstant(zero)
                nanoseconds = int(moment.getEpochSecond()) * 10**9 + int(moment.getNano())
                return jpype.JLong(nanoseconds // {"": 10**6, "Micro": 10**3, "Nano": 1}[unit])

            return _java(f"io.debezium.time.{unit}Timestamp").builder(), since
        kind = {"BINARY_FLOAT": "float32", "BINARY_DOUBLE": "float64"}.get(name, "string")
        return getattr(plain, kind)(), lambda value, _: value


def _connectors() -> list[Connector]:
    big = _java("java.math.BigDecimal")
    local = _java("java.time.LocalDateTime").parse("2024-02-29T13:45:59.123456789")
    utc = _java("java.time.OffsetDateTime").parse("2024-02-29T11:45:59.123456Z")
    day, time = local.toLocalDate(), local.toLocalTime()
    stamp = _java("java.sql.Timestamp").valueOf(local)
    content = bytes.fromhex("deadbeef00")

    def number(text: str) -> Callable[[], Any]:
        return lambda: big(text)

    def this(value: Any) -> Callable[[], Any]:
        return lambda: value

    def octets() -> Any:
        return jpype.JArray(jpype.JByte)([each - 256 if each > 127 else each for each in content])

    oracle = [
        Field("ID", "NUMBER(9,0)", _NUMERIC, number("1004"), "1004", 9, 0, is_optional=False),
        Field("N2", "NUMBER(2,0)", _NUMERIC, number("-9"), "-9", 2, 0),
        Field("N4", "NUMBER(4,0)", _NUMERIC, number("9999"), "9999", 4, 0),
        Field("N18", "NUMBER(18,0)", _NUMERIC, number("999999999999999999"), "999999999999999999", 18, 0),
        Field("N38", "NUMBER(38,0)", _NUMERIC, number("1" * 38), "1" * 38, 38, 0),
        Field("N10_2", "NUMBER(10,2)", _NUMERIC, number("-1.28"), "-1.28", 10, 2),
        Field("N5_M2", "NUMBER(5,-2)", _NUMERIC, number("12300"), "12300", 5, -2),
        Field("N", "NUMBER", _NUMERIC, number("3.10"), "3.1", 0, None),
        Field("F", "FLOAT(126)", _FLOAT, number("0.00001"), "0.00001", 126, None),
        Field("BF", "BINARY_FLOAT", 100, this(jpype.JFloat(1.5)), "1.5", 4),
        Field("BD", "BINARY_DOUBLE", 101, this(jpype.JDouble(1e23)), "1e+23", 8),
        Field("V", "VARCHAR2(50 CHAR)", _VARCHAR, this("Chloé 😀"), "Chloé 😀", 50),
        Field("C", "CHAR(5 BYTE)", _CHAR, this("ab   "), "ab   ", 5),
        Field("D", "DATE", _TIMESTAMP, this(stamp), "2024-02-29T13:45:59.123000", 7),
        Field("T3", "TIMESTAMP(3)", _TIMESTAMP, this(stamp), "2024-02-29T13:45:59.123000", 3, 3),
        Field("T6", "TIMESTAMP(6)", _TIMESTAMP, this(stamp), "2024-02-29T13:45:59.123456", 6, 6),
        Field("T9", "TIMESTAMP(9)", _TIMESTAMP, this(stamp), "2024-02-29T13:45:59.123456789", 9, 9),
    ]
    mysql = [
        Field("id", "INT", _INTEGER, this(jpype.JInt(7)), "7", is_optional=False),
        Field("si", "SMALLINT", _SMALLINT, this(jpype.JShort(-128)), "-128"),
        Field("bi", "BIGINT", _BIGINT, this(jpype.JLong(-(2**63))), str(-(2**63))),
        Field("de", "DECIMAL(10,2)", _DECIMAL, number("99999.99"), "99999.99", 10, 2),
        Field("d", "DOUBLE", _DOUBLE, this(jpype.JDouble(0.1)), "0.1"),
        Field("v", "VARCHAR(20)", _VARCHAR, this("größe"), "größe", 20, charset="utf8mb4"),
        Field("da", "DATE", _DATE, this(day), "2024-02-29"),
        Field("t", "TIME(6)", _TIME, this(_java("java.time.Duration").parse("PT-838H-59M-59S")), "-838:59:59", 6),
        Field("dt3", "DATETIME(3)", _TIMESTAMP, this(local), "2024-02-29T13:45:59.123000", 3),
        Field("dt6", "DATETIME(6)", _TIMESTAMP, this(local), "2024-02-29T13:45:59.123456", 6),
        Field("ts", "TIMESTAMP", _TIMESTAMP_ZONED, this(utc), "2024-02-29T11:45:59.123456+00:00", 6),
        Field("y", "YEAR", _INTEGER, this(_java("java.time.Year").of(2024)), "2024"),
        Field("e", "ENUM", _CHAR, this(jpype.JInt(2)), "meh", charset="utf8mb4", enum=("'sad'", "'meh'")),
        Field("b", "VARBINARY(20)", _VARBINARY, octets, "3q2+7wA=", 20),
    ]
    sqlserver = [
        Field("id", "int", _INTEGER, this(jpype.JInt(7)), "7", is_optional=False),
        Field("b", "bit", _BIT, this(jpype.JBoolean(True)), "true", 1),
        Field("ti", "tinyint", _TINYINT, this(jpype.JShort(255)), "255"),
        Field("bi", "bigint", _BIGINT, this(jpype.JLong(2**63 - 1)), str(2**63 - 1)),
        Field("de", "decimal(18,4)", _DECIMAL, number("-0.0001"), "-0.0001", 18, 4),
        Field("m", "money", _DECIMAL, number("12.3400"), "12.3400", 19, 4),
        Field("r", "real", _REAL, this(jpype.JFloat(1.5)), "1.5"),
        Field("f", "float", _DOUBLE, this(jpype.JDouble(9.99e-4)), "0.000999"),
        Field("nv", "nvarchar(50)", _NVARCHAR, this("größe 😀"), "größe 😀", 50),
        Field("d", "date", _DATE, this(_java("java.sql.Date").valueOf(day)), "2024-02-29"),
        Field("t7", "time(7)", _TIME, this(time), "13:45:59.123456789", 16, 7),
        Field("dt2_3", "datetime2(3)", _TIMESTAMP, this(stamp), "2024-02-29T13:45:59.123000", 23, 3),
        Field("dt2_6", "datetime2(6)", _TIMESTAMP, this(stamp), "2024-02-29T13:45:59.123456", 26, 6),
        Field("dt2_7", "datetime2(7)", _TIMESTAMP, this(stamp), "2024-02-29T13:45:59.123456789", 27, 7),
        Field("by", "varbinary(20)", _VARBINARY, octets, "3q2+7wA=", 20),
    ]
    db2 = [
        Field("ID", "INTEGER", _INTEGER, this(jpype.JInt(7)), "7", is_optional=False),
        Field("SI", "SMALLINT", _SMALLINT, this(jpype.JShort(-32768)), "-32768"),
        Field("BI", "BIGINT", _BIGINT, this(jpype.JLong(2**53 + 1)), str(2**53 + 1)),
        Field("DE", "DECIMAL(31,2)", _DECIMAL, number(f"{'9' * 29}.01"), f"{'9' * 29}.01", 31, 2),
        Field("R", "REAL", _REAL, this(jpype.JFloat(1.5)), "1.5"),
        Field("DO", "DOUBLE", _DOUBLE, this(jpype.JDouble(1e7)), "10000000"),
        Field("V", "VARCHAR(50)", _VARCHAR, this("größe"), "größe", 50),
        Field("D", "DATE", _DATE, this(_java("java.sql.Date").valueOf(day)), "2024-02-29"),
        Field("T6", "TIMESTAMP(6)", _TIMESTAMP, this(stamp), "2024-02-29T13:45:59.123456", 26, 6),
        Field("T3", "TIMESTAMP(3)", _TIMESTAMP, this(stamp), "2024-02-29T13:45:59.123000", 23, 3),
        Field("BY", "VARBINARY(20)", _VARBINARY, octets, "3q2+7wA=", 20),
    ]
    modes = _java("io.debezium.jdbc.JdbcValueConverters$DecimalMode"), _java("io.debezium.jdbc.TemporalPrecisionMode")
    binary = _java("io.debezium.config.CommonConnectorConfig$BinaryHandlingMode").BYTES
    failing = _java("io.debezium.config.CommonConnectorConfig$EventConvertingFailureHandlingMode").WARN
    precise, adaptive = modes[0].PRECISE, modes[1].ADAPTIVE
    package = "io.debezium.connector"
    charsets = _java(f"{package}.mysql.charset.MySqlCharsetRegistry")()
    plain = {"topic.prefix": _PREFIX, "database.hostname": "localhost", "database.user": "u", "database.password": "p"}
    return [
        Connector(
            "oracle",
            f"{package}.oracle",
            "OracleConnectorConfig",
            "OracleSourceInfoStructMaker",
            {**plain, "database.dbname": "ORCLCDB", "database.pdb.name": "ORCLPDB1"},
            f"{_PREFIX}.DEBEZIUM.CUSTOMERS",
            "ORCLPDB1.DEBEZIUM.CUSTOMERS",
            {
                "db": "ORCLPDB1",
                "schema": "DEBEZIUM",
                "table": "CUSTOMERS",
                "txId": "06001c0027030000",
                "scn": "2122185",
                "commit_scn": "2122190",
                "redo_thread": 1,
                "user_name": "DEBEZIUM",
                "commit_ts_ms": _COMMITTED_MS,
                "start_scn": "2122180",
                "start_ts_ms": _COMMITTED_MS - 1000,
                "txSeq": 1,
            },
            dict.fromkeys(_OF_A_TRANSACTION),
            "06001c0027030000",
            oracle,
            lambda _: _OracleTypes(),
        ),
        Connector(
            "mysql",
            f"{package}.mysql",
            "MySqlConnectorConfig",
            "MySqlSourceInfoStructMaker",
            {**plain, "database.server.id": "223344"},
            f"{_PREFIX}.inventory.customers",
            "inventory.customers",
            {
                "db": "inventory",
                "table": "customers",
                "server_id": 223344,
                "gtid": "24bc7850-2c16-11e6-a073-0242ac110002:5",
                "file": "mysql-bin.000003",
                "pos": 484,
                "row": 0,
                "thread": 7,
            },
            {"server_id": 0, "gtid": None, "thread": None},
            "24bc7850-2c16-11e6-a073-0242ac110002:5",
            mysql,
            lambda _: _java(f"{package}.mysql.jdbc.MySqlValueConverters")(
                precise,
                modes[1].ADAPTIVE_TIME_MICROSECONDS,
                _java("io.debezium.jdbc.JdbcValueConverters$BigIntUnsignedMode").LONG,
                binary,
                jpype.JProxy("java.time.temporal.TemporalAdjuster", dict={"adjustInto": lambda value: value}),
                failing,
                # The one service that it asks for.
                jpype.JProxy("io.debezium.service.spi.ServiceRegistry", dict={"getService": lambda _: charsets}),
            ),
            key=("id",),
        ),
        Connector(
            "sqlserver",
            f"{package}.sqlserver",
            "SqlServerConnectorConfig",
            "SqlServerSourceInfoStructMaker",
            {**plain, "database.names": "testDB"},
            f"{_PREFIX}.testDB.dbo.customers",
            "testDB.dbo.customers",
            {
                "db": "testDB",
                "schema": "dbo",
                "table": "customers",
                "change_lsn": "00000027:00000758:0003",
                "commit_lsn": "00000027:00000758:0005",
                "event_serial_no": 1,
            },
            {"change_lsn": None, "event_serial_no": None},
            "00000027:00000758:0005",
            sqlserver,
            lambda _: _java(f"{package}.sqlserver.SqlServerValueConverters")(precise, adaptive, binary),
            truncates=False,
            key=("id",),
        ),
        Connector(
            "db2",
            f"{package}.db2",
            "Db2ConnectorConfig",
            "Db2SourceInfoStructMaker",
            {**plain, "database.dbname": "TESTDB"},
            f"{_PREFIX}.DB2INST1.CUSTOMERS",
            "TESTDB.DB2INST1.CUSTOMERS",
            {
                "db": "TESTDB",
                "schema": "DB2INST1",
                "table": "CUSTOMERS",
                "change_lsn": "00000000:00000000:000000000446140f",
                "commit_lsn": "00000000:00000000:0000000004461420",
            },
            {"change_lsn": None},
            "00000000:00000000:0000000004461420",
            db2,
            lambda _: _java(f"{package}.db2.Db2ValueConverters")(precise, adaptive),
            truncates=False,
        ),
    ]


def _column(each: Field) -> Any:
    name = each.type.partition("(")[0]
    editor = _java("io.debezium.relational.Column").editor().name(each.name).type(name, each.type).jdbcType(each.jdbc)
    editor.optional(each.is_optional)
    if each.length is not None:
        editor.length(each.length)
    if each.scale is not None:
        editor.scale(jpype.JInt(each.scale))
    if each.native is not None:
        editor.nativeType(each.native)
    if each.charset is not None:
        editor.charsetName(each.charset)
    if each.enum:
        editor.enumValues(_java("java.util.ArrayList")(list(each.enum)))
    return editor.create()


def _converters(*, schemas: bool) -> tuple[Any, Any]:
    made = []
    for is_key in (True, False):
        converter = _java("org.apache.kafka.connect.json.JsonConverter")()
        converter.configure(_java("java.util.HashMap")({"schemas.enable": str(schemas).lower()}), is_key)
        made.append(converter)
    return made[0], made[1]


def _configuration(settings: Mapping[str, str]) -> Any:
    builder = _java("io.debezium.config.Configuration").create()
    for name, value in settings.items():
        builder.with_(name, value)
    return builder.build()


def _boxed(value: Any, schema: Any) -> Any:
    kind = str(schema.type())
    if value is None:
        return None
    if kind == "INT64":
        return jpype.JLong(value)
    return jpype.JInt(value) if kind == "INT32" else value


def _struct(schema: Any) -> Any:
    return _java("org.apache.kafka.connect.data.Struct")(schema)


def _text(converter: Any, topic: str, schema: Any, value: Any) -> str:
    content = converter.fromConnectData(topic, schema, value)
    return "null" if content is None else bytes(content).decode()


def _java(name: str) -> Any:
    return jpype.JClass(name)


if __name__ == "__main__":
    main()
