"""Messages about tables, for all receivers and for the watcher; and compressed bodies."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.change import Change, Op, TableName
from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.changes import changes_of
from penstock.formats.dbwatcher.compression import Compression, compress, decompress
from penstock.formats.dbwatcher.message import (
    IN_PROPERTY,
    REQUIRED_PARAMETERS,
    Attribute,
    ColumnMetadata,
    Command,
    ControlCommand,
    ControlMessage,
    Head,
    Message,
    MessageRow,
    Route,
)
from penstock.formats.dbwatcher.metadata import metadata_of, table_of
from penstock.formats.dbwatcher.reader import MessageLimits, read_control, read_message, route_of
from penstock.formats.dbwatcher.tables import (
    Creation,
    cancel_message,
    content_messages,
    create_message,
    statement_message,
)
from penstock.formats.dbwatcher.writer import write_control, write_message
from penstock.logical import LogicalType
from penstock.schema import Column, TableSchema, Unique

TYPES = [
    "integer(16)", "integer(32)", "integer(64)", "boolean", "decimal", "decimal(12,3)", "decimal(10,0)",
    "decimal(5,-2)", "decimal(3,5)", "float(32)", "float(64)", "string", "string(40)", "string(5,padded)", "binary",
    "date", "time", "time(3)", "timetz", "timestamp", "timestamp(3)", "timestamptz", "interval", "json", "uuid", "xml",
    "bits", "bits(8)", "array(integer(32))", "array(timestamp(3))", "other('inet')",
]  # fmt: skip

NAMES = [f"c{n} \"<&>'" for n in range(len(TYPES))]

WIDE = TableSchema(
    TableName("s2", "Mixed Case"),
    tuple(
        Column.of(name, LogicalType.parse(type_), is_nullable=name not in NAMES[:2])
        for name, type_ in zip(NAMES, TYPES, strict=True)
    ),
    Unique("the key", columns=tuple(NAMES[:2]), mentions=tuple(NAMES[:2])),
)


def read(message: Message) -> Message:
    return read_message(write_message(message), message.properties)


def test_a_create_describes_the_table() -> None:
    creation = Creation(WIDE, 7, "X", 8, "client/DemoWriter/1")

    found = read(create_message(creation))

    assert found.head.ident == "Mixed Case"
    assert {
        name: found.head.attributes[name] for name in ("action", "_createCounter", "extraReplKey", "_destination")
    } == {
        "action": "CREATE",
        "_createCounter": "0",
        "extraReplKey": "8",
        "_destination": "client/DemoWriter/1",
    }
    assert found.properties == {"replKey": "7", "_command": "CREATE", "_destination": "client/DemoWriter/1"}
    event = changes_of(found, {}).event
    assert event is not None
    assert event.table == WIDE.name
    assert table_of(event.table, event.metadata) == WIDE


def test_the_metadata_of_a_column_is_as_documented() -> None:
    document = write_message(Message(Head(Command.CREATE, "t", {}, metadata_of(WIDE)[5:6]))).decode()

    assert (
        "     <colname table='Mixed Case' schema='s2' type='numeric' sqlType='2' precision='12' scale='3' nullable='1'"
        " pos='6'>c5 &quot;&lt;&amp;&gt;&apos;</colname>\n"
    ) in document


@pytest.mark.parametrize(
    ("said", "type_"),
    [
        ({"type": "VARCHAR2", "colSize": "30"}, "string(30)"),
        ({"type": "NUMBER", "precision": "10"}, "decimal(10,0)"),
        ({"type": "NUMBER"}, "decimal"),
        ({"type": "NUMBER", "precision": "38", "scale": "-127"}, "decimal"),
        ({"type": "NUMBER", "precision": "5", "scale": "-2"}, "decimal(5,-2)"),
        ({"type": "numeric", "precision": "5", "scale": "2046"}, "decimal(5,-2)"),
        ({"type": "numeric", "precision": "131089"}, "decimal"),
        ({"type": "varchar", "colSize": "2147483647"}, "string"),
        ({"type": "DATE", "sqlType": "93"}, "timestamp"),
        ({"type": "TIMESTAMP(6) WITH LOCAL TIME ZONE", "sqlType": "-102"}, "timestamptz"),
        ({"type": "FLOAT", "sqlType": "6"}, "float(64)"),
        ({"type": "CLOB"}, "string"),
        ({"type": "RAW", "colSize": "16"}, "binary"),
        ({"type": "TIMESTAMP"}, "timestamp"),
        ({"type": "SDO_GEOMETRY"}, "other('SDO_GEOMETRY')"),
        ({}, "other('')"),
    ],
)
def test_types_of_other_databases_are_read(said: dict[str, str], type_: str) -> None:
    table = table_of(TableName("s", "t"), [ColumnMetadata("c", said)])

    assert table.columns[0].logical == Column.of("c", LogicalType.parse(type_)).logical


def test_content_comes_in_messages_of_so_many_rows_and_is_told_from_changes() -> None:
    table = TableSchema(TableName("public", "t"), (Column.of("id", LogicalType.parse("integer(32)")),))
    rows = [{"id": str(n), "name": None} for n in range(600)]

    found = [read(m) for m in content_messages(Creation(table, 7, "X", 8), rows)]

    assert [len(message.rows) for message in found] == [250, 250, 100]
    assert [message.head.attributes["_createCounter"] for message in found] == ["1", "2", "3"]
    assert [row.attributes for row in found[0].rows[:2]] == [{}, {}]
    told = changes_of(found[2], {table.name: table})
    assert told.content_of == table.name
    assert told.parts[0].changes[0] == Change(0, Op.INSERT, table.name, 1, None, {"id": "500"})


def test_a_statement_is_told_beside_the_rows_that_it_changed() -> None:
    sent = statement_message(
        {Attribute.STATEMENT: "update t set name='q' where id<3", Attribute.STATEMENT_ID: "4"}, "X", 9
    )
    row = MessageRow({"id": "1"}, {"action": "DELETE", "tableName": "t", "schema": "public", "transaction": "X"})

    found = changes_of(read(Message(sent.head, [row], sent.properties)), {})

    assert found.statement == {"statement": "update t set name='q' where id<3", "statementId": "4"}
    assert [change.op for change in found.parts[0].changes] == [Op.DELETE]


@pytest.mark.parametrize("command", ["ALTER", "DROP", "CREATE", "TRUNCATE"])
def test_rows_beside_a_change_of_a_table_are_refused(command: str) -> None:
    message = Message(Head(Command(command), "X", {"tableName": "t"}), [MessageRow({"id": "secret"}, {})])

    with pytest.raises(MalformedInputError, match=f"command {command} has 1 row, .*message with ident 'X'") as raised:
        changes_of(message, {})

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("command", list(ControlCommand))
def test_a_control_message_reads_back(command: ControlCommand) -> None:
    message = ControlMessage(command, dict.fromkeys(REQUIRED_PARAMETERS.get(command, ()), "x"))

    body, properties = write_control(message)

    assert read_control(body, properties) == message
    assert body == (b"" if command in IN_PROPERTY else command.value.encode())


def test_a_control_message_without_what_it_needs_is_refused_and_another_message_is_none() -> None:
    with pytest.raises(MalformedInputError, match="REQUEST_UPDATE has no _replVersion"):
        read_control(b"REQUEST_UPDATE", {"_slaveName": "client/x"})
    assert read_control(b"<sql/>", {"_command": "CREATE"}) is None


@pytest.mark.parametrize(
    ("body", "properties", "route"),
    [
        (b"<sql/>", {}, Route.XML),
        (b" <sql/>", {"DUMP": "true"}, Route.XML),
        (b"\x03\x03EXPORT:V10", {"DUMP": "true"}, Route.DUMP),
        (b"<sql/>", {"_END_OF_TRANSITION": "true"}, Route.END_OF_TRANSITION),
        (b"", {"_INITIAL_DATA_END_TO_REMOTE": "true"}, Route.END_OF_TRANSITION),
        (b"REQUEST_CANCEL_UPDATE", {"_slaveName": "x"}, Route.CONTROL),
        (b"<sql/>", {"_command": "STATEMENT"}, Route.XML),
        (b"", {"_command": "INITIAL_DATA_RESPONSE"}, Route.CONTROL),
    ],
)
def test_a_message_is_told_by_its_body_and_properties(body: bytes, properties: dict[str, str], route: Route) -> None:
    assert route_of(body, properties) is route


BODY = write_message(Message(Head(Command.REPLICATION, "X"), [MessageRow({"a": "b" * 1000}, {})]))


@pytest.mark.parametrize("kind", list(Compression))
def test_a_compressed_body_reads_back_and_is_written_the_same_each_time(kind: Compression) -> None:
    packed, properties = compress(BODY, kind)

    assert len(packed) < len(BODY)
    assert (packed, properties) == compress(BODY, kind)
    assert read_message(packed, properties).rows[0].columns == {"a": "b" * 1000}


def test_a_body_that_is_short_or_does_not_shrink_stays_as_it_is() -> None:
    assert compress(b"<sql/>", Compression.GZIP) == (b"<sql/>", {})
    assert compress(BODY, Compression.GZIP, least_bytes=10_000) == (BODY, {})


def test_zlibs_format_is_read_as_zip_too() -> None:
    assert decompress(zlib.compress(BODY), {"_compressionType": "ZIP"}, most_bytes=10_000) == BODY


def zipped(*names: str, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An archive with this body once for each name, written as Java does: its sizes follow each entry."""

    class Stream(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: int) -> int:
            raise OSError

    file = Stream()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name in names:
            archive.writestr(name, BODY)
    return file.getvalue()


def test_an_archive_whose_sizes_follow_its_entry_is_read() -> None:
    packed = zipped("a")

    assert packed[6] & 8
    assert decompress(packed, {"_compressionType": "ZIP"}, most_bytes=10_000) == BODY


@given(st.sampled_from([*Compression]), st.booleans(), st.integers(0, 10**6), st.integers(0, 255))
def test_a_body_with_another_byte_is_refused_or_the_same(kind: Compression, as_java: bool, at: int, byte: int) -> None:
    packed = bytearray(zipped("a") if as_java and kind is Compression.ZIP else compress(BODY, kind)[0])
    packed[at % len(packed)] = byte
    try:
        found = decompress(bytes(packed), {"_compressionType": kind.value}, most_bytes=10_000)
    except MalformedInputError:
        return

    assert found == BODY


def damaged() -> list[tuple[str, bytes, dict[str, str]]]:
    found = []
    for kind in Compression:
        packed, properties = compress(BODY, kind)
        found.append((f"no whole {kind}", packed[:-9], dict(properties)))
        found.append((f"no whole {kind}", b"", dict(properties)))
        found.append((f"no whole {kind}", b"PK" + packed[2:9], dict(properties)))
        found.append(("not as many", packed, {**properties, "_uncompressedSize": "7"}))
        found.append(("more than 5,000 bytes", compress(BODY + bytes(9000), kind)[0], {"_compressionType": kind.value}))
        found.append(("more than 5,000 bytes", packed, {**properties, "_uncompressedSize": "9000"}))
    found.append(("no whole ZIP", zlib.compress(BODY)[:-1], {"_compressionType": "ZIP"}))
    found.append(("no whole ZIP", zlib.compress(BODY) + b"x", {"_compressionType": "ZIP"}))
    found.append(("no whole ZIP", zipped("a", "b"), {"_compressionType": "ZIP"}))
    found.append(("no whole ZIP", zipped(), {"_compressionType": "ZIP"}))
    found.append(("no whole ZIP", zipped("a", method=zipfile.ZIP_LZMA), {"_compressionType": "ZIP"}))
    found.append(("compression is 'LZ4'", BODY, {"_compressionType": "LZ4"}))
    bomb = gzip.compress(gzip.compress(bytes(10**7)))
    found.append(("not XML", bomb, {"_compressionType": "GZIP"}))
    return found


@pytest.mark.parametrize(("why", "body", "properties"), damaged())
def test_a_body_that_is_damaged_or_grows_too_large_is_refused(
    why: str, body: bytes, properties: dict[str, str]
) -> None:
    with pytest.raises(MalformedInputError, match=why):
        read_message(
            body,
            properties,
            name="7.xml",
            limits=MessageLimits(bytes=5000) if "5,000" in why else MessageLimits(bytes=10**6),
        )


def test_a_cancelled_initial_update_names_its_table_and_has_no_rows() -> None:
    table = TableName("public", "t")
    body = write_message(cancel_message(Creation(TableSchema(table, ()), 9, "copy.1.public.t", 9)))

    found = changes_of(read_message(body), {})

    assert found.cancelled is not None
    assert (found.cancelled.table, found.cancelled.repl_key, found.cancelled.txn_id) == (table, 9, "copy.1.public.t")
    assert (found.parts, found.event, found.keeps_open) == ((), None, False)
    with_rows = body.replace(b" </sql>", b"<row num='0'><col name='id'>1</col></row> </sql>")
    with pytest.raises(MalformedInputError, match="cancels an initial update has 1 row"):
        changes_of(read_message(with_rows), {})
