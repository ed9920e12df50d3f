"""What records say of rows: each op, old and new forms of the envelope, keys, before images, and what is no row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.change import Op, TableName
from penstock.errors import MalformedInputError
from penstock.formats.debezium.decode import BeforeImage, DataEvent, DecodeSettings, RecordDecoder, image_text
from penstock.formats.debezium.envelope import Boundary, ChangeLocation, SkippedRecord, Topics
from penstock.formats.debezium.join import changes_of
from penstock.formats.debezium.placeholders import Placeholder
from penstock.formats.debezium.record import TopicRecord
from penstock.values import encode_image
from tests.formats.debezium.events import (
    ANNE,
    GOLDEN,
    GOLDEN_END,
    GOLDEN_KEY,
    GOLDEN_VALUE,
    ORACLE_TOPIC,
    SOURCES,
    block,
    envelope,
    node,
    record,
    text,
    with_schema,
)

T = TableName("public", "t")
CUSTOMERS = TableName("DEBEZIUM", "CUSTOMERS")
ANNE_TEXT = {**ANNE, "ID": "1004"}
PLACEHOLDER = "__debezium_unavailable_value"


def event_of(value: object, settings: DecodeSettings | None = None, **rest: Any) -> DataEvent:
    event = RecordDecoder(settings).decode(record(value, **rest))
    assert isinstance(event, DataEvent)
    return event


def oracle(op: str, source: dict[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    return {**envelope(op, connector="oracle", source=source or {}), "transaction": GOLDEN["transaction"], **members}


@pytest.mark.parametrize(
    ("key", "value"),
    [(GOLDEN_KEY, GOLDEN_VALUE), (text({"ID": 1004}), text(GOLDEN)), (GOLDEN_KEY, text(GOLDEN))],
    ids=["with schemas", "without", "a key with, a value without"],
)
def test_an_insert_is_the_row_its_place_and_its_transaction(key: bytes, value: bytes) -> None:
    event = event_of(value, key=key, topic=ORACLE_TOPIC)

    assert (event.location.op, event.location.table, event.key) == ("c", CUSTOMERS, {"ID": "1004"})
    assert (event.before, event.after) == (None, ANNE_TEXT)
    assert list(event.after or {}) == list(ANNE)
    assert (event.location.txn, event.location.total_order) == ("06001c0027030000", 1)
    assert event.location.source.position == (2122190, 1, "06001c0027030000", 1)
    assert event.location.source.collection == "ORCLPDB1.DEBEZIUM.CUSTOMERS"
    assert event.location.source.ts_us == 1520085154000000
    assert event.ts_us == 1532592105975123


def test_an_update_and_a_delete_have_their_images() -> None:
    after = {**ANNE, "EMAIL": "anne@example.com"}
    update = event_of(oracle("u", before=ANNE, after=after, transaction=None), key={"ID": 1004})
    delete = event_of(oracle("d", before=after, transaction=None), key={"ID": 1004})

    assert (update.before, update.after) == (ANNE_TEXT, {**ANNE_TEXT, "EMAIL": "anne@example.com"})
    assert (update.location.txn, update.location.total_order) == ("06001c0027030000", None)
    assert (delete.before, delete.after) == ({**ANNE_TEXT, "EMAIL": "anne@example.com"}, None)


def test_a_truncation_has_a_table_and_nothing_else() -> None:
    source = {"txId": "02000a0037030000", "scn": "13234397", "commit_scn": "13271102", "table": "TEST_TABLE"}
    event = event_of(oracle("t", source, transaction=block("02000a0037030000", 2)))

    [change] = changes_of([event])

    assert (change.op, change.table, change.before, change.after) == (
        Op.TRUNCATE,
        TableName("DEBEZIUM", "TEST_TABLE"),
        None,
        None,
    )
    assert event.location.total_order == 2


@pytest.mark.parametrize("mark", ["first", "true", "last", "incremental", "false", True])
def test_a_row_of_a_snapshot_is_of_no_transaction(mark: object) -> None:
    event = event_of(oracle("r", {"snapshot": mark, "txId": None, "scn": "2000"}, after=ANNE), key={"ID": 1004})

    assert event.location.is_snapshot
    assert (event.location.txn, event.location.total_order) == (None, None)
    assert event.location.source.place == (2000,)
    assert [change.op for change in changes_of([event])] == [Op.SNAPSHOT]


def test_a_snapshot_row_of_postgresql_is_not_of_the_transaction_that_read_it() -> None:
    event = event_of(envelope("r", source={"snapshot": "true"}, after={"id": 1}), key={"id": 1})

    assert event.location.txn is None
    assert event.location.source.place == (1322341312,)


@pytest.mark.parametrize("named_by", ["schema", "topic"])
def test_a_source_of_old_that_names_no_table_leaves_it_to_the_names_around(named_by: str) -> None:
    source = {
        "version": "0.9.0",
        "name": "server1",
        "ts_ms": 1520085154000,
        "txId": "6.28.807",
        "scn": "2122185",
        "commit_scn": "2122185",
        "snapshot": False,
    }
    payload = {"before": None, "after": ANNE, "source": source, "op": "c", "ts_ms": 1532592105975}
    schema = json.loads(GOLDEN_VALUE)["schema"]
    value: object = {"schema": schema, "payload": payload} if named_by == "schema" else payload

    event = event_of(value, key={"ID": 1004}, topic="routed" if named_by == "schema" else ORACLE_TOPIC)

    assert (event.location.table, event.after) == (CUSTOMERS, ANNE_TEXT)
    assert (event.location.txn, event.location.source.connector) == ("6.28.807", "oracle")
    assert event.ts_us == 1532592105975000


def test_letters_of_an_op_may_be_large_and_fields_may_be_unknown_or_in_another_order() -> None:
    today = event_of(GOLDEN, key={"ID": 1004})
    odd = {"op": "C", "foo": 1, **{name: GOLDEN[name] for name in ("ts_ms", "ts_us", "source", "after", "before")}}
    odd["source"] = {"bar": {"x": 1}, **odd["source"]}
    event = event_of({**odd, "transaction": GOLDEN["transaction"]}, key={"ID": 1004})

    assert event.location._replace(size_bytes=0) == today.location._replace(size_bytes=0)
    assert (event.key, event.before, event.after) == (today.key, today.before, today.after)


@pytest.mark.parametrize(
    ("connector", "source", "expected"),
    [
        (
            "oracle",
            {"scn": 2122185, "commit_scn": 999, "txSeq": None},
            ((999, 1, "06001c0027030000", 2122185, "", 0), (999,)),
        ),
        ("oracle", {"commit_scn": "1000"}, ((1000, 1, "06001c0027030000", 1), (1000,))),
        ("postgresql", {}, ((1322341000, 1322341312), (1322341312,))),
        ("postgresql", {"sequence": '[null,"5"]', "lsn": 5}, ((0, 5), (5,))),
        ("postgresql", {"sequence": None}, ((0, 1322341312), (1322341312,))),
        ("mysql", {}, ((3, 484, 2), (3, 484))),
        ("mariadb", {"connector": "mariadb", "gtid": "0-1-23"}, ((3, 484, 2), (3, 484))),
        (
            "sqlserver",
            {},
            (("00000027:00000758:0005", "00000027:00000758:0003", 1), ("00000027:00000758:0005",)),
        ),
        (
            "db2",
            {},
            (
                ("00000000:00000000:000000000446140f", "00000000:00000000:0000000004461410", 0),
                ("00000000:00000000:000000000446140f",),
            ),
        ),
    ],
)
def test_each_connector_says_where_a_change_is(connector: str, source: dict[str, Any], expected: Any) -> None:
    base = "mysql" if connector == "mariadb" else connector
    event = event_of(envelope("c", connector=base, source=source, after={"id": 1}), key={"id": 1})

    assert event.location.source.connector == connector
    assert (event.location.source.position, event.location.source.place) == expected


@pytest.mark.parametrize(
    ("connector", "source", "txn", "table", "collection"),
    [
        ("oracle", {}, "06001c0027030000", CUSTOMERS, "ORCLPDB1.DEBEZIUM.CUSTOMERS"),
        ("postgresql", {}, "161587", T, "public.t"),
        ("mysql", {}, "a0b1:23", TableName("inventory", "t"), "inventory.t"),
        ("mysql", {"gtid": None}, "mysql-bin.000003:484", TableName("inventory", "t"), "inventory.t"),
        ("sqlserver", {}, "00000027:00000758:0005", TableName("dbo", "t"), "testDB.dbo.t"),
        ("db2", {}, "00000000:00000000:000000000446140f", TableName("DB2INST1", "T"), "TESTDB.DB2INST1.T"),
        ("postgresql", {"table": "we ird.T-x"}, "161587", TableName("public", "we ird.T-x"), "public.we ird.T-x"),
    ],
)
def test_each_connector_says_which_transaction_and_table_a_change_is_of(
    connector: str, source: dict[str, Any], txn: str, table: TableName, collection: str
) -> None:
    location = RecordDecoder().location(record(envelope("c", connector=connector, source=source, after={"id": 1})))

    assert isinstance(location, ChangeLocation)
    assert (location.txn, location.table, location.source.collection) == (txn, table, collection)


def test_positions_of_oracle_are_numbers_and_not_texts() -> None:
    earlier, later = (event_of(oracle("c", {"commit_scn": scn}, after=ANNE), key={"ID": 1}) for scn in ("999", "1000"))
    assert earlier.location.source.position < later.location.source.position


def test_ids_of_one_transaction_of_postgresql_are_one() -> None:
    begin = {"status": "BEGIN", "id": "161587:1322341312", "event_count": None, "data_collections": None, "ts_ms": 1}
    end = {**begin, "status": "END", "id": "161587:1322342232", "event_count": 0, "data_collections": []}
    event = envelope("c", after={"id": 1}, transaction=block("161587:1322341656", 2))

    seen = [RecordDecoder().location(record(one, topic="server1.transaction")) for one in (begin, event, end)]

    assert [one.txn for one in seen if not isinstance(one, SkippedRecord)] == ["161587"] * 3


@pytest.mark.parametrize(
    "id_", ["06001c0027030000", "6.28.807", "a0b1-c2:23", "0-1-23", "file=b.1,pos=4", "00000027:00000758:0005"]
)
def test_ids_of_other_connectors_are_taken_whole(id_: str) -> None:
    location = RecordDecoder().location(record(envelope("c", after={"id": 1}, transaction=block(id_, 1))))
    assert isinstance(location, ChangeLocation)
    assert location.txn == id_


def test_an_end_counts_events_of_tables_and_of_what_is_none() -> None:
    end = RecordDecoder().decode(record(GOLDEN_END, topic="server1.transaction"))

    assert end == Boundary(
        is_end=True,
        txn="06001c0027030000",
        events=3,
        collections={"ORCLPDB1.DEBEZIUM.CUSTOMERS": 2, "ORCLPDB1.DEBEZIUM.ORDERS": 1},
        ts_us=1520085154000000,
        prefix="server1",
    )
    message = "io.debezium.connector.postgresql.LogicalDecodingMessageMonitor$LogicalDecodingMessageId@1c021e46"
    counts = [{"data_collection": message, "event_count": 1}, {"data_collection": "public.uqonly", "event_count": 1}]
    other = RecordDecoder().decode(
        record({"status": "END", "id": "5", "event_count": 2, "data_collections": counts, "ts_ms": 1})
    )
    assert isinstance(other, Boundary)
    assert other.collections == {message: 1, "public.uqonly": 1}
    empty = RecordDecoder().decode(
        record({"status": "END", "id": "5", "event_count": 0, "data_collections": [], "ts_ms": 1})
    )
    assert isinstance(empty, Boundary)
    assert (empty.events, empty.collections) == (0, {})


HEARTBEAT_SCHEMA = {"type": "struct", "fields": [], "optional": False, "name": "io.debezium.connector.common.Heartbeat"}


@pytest.mark.parametrize(
    ("value", "topic", "kind"),
    [
        (None, "t", SkippedRecord.TOMBSTONE),
        (b"null", "t", SkippedRecord.TOMBSTONE),
        (b"", "t", SkippedRecord.TOMBSTONE),
        ({"schema": None, "payload": None}, "t", SkippedRecord.TOMBSTONE),
        (with_schema({}, {}).replace(b'"payload":{}', b'"payload":null'), "t", SkippedRecord.TOMBSTONE),
        ({"ts_ms": 1795223134748}, "__debezium-heartbeat.server1", SkippedRecord.HEARTBEAT),
        ({"schema": HEARTBEAT_SCHEMA, "payload": {"ts_ms": 1}}, "beats", SkippedRecord.HEARTBEAT),
        (
            {
                "source": SOURCES["oracle"],
                "ts_ms": 1,
                "databaseName": "X",
                "schemaName": "D",
                "ddl": "CREATE",
                "tableChanges": [],
            },
            "server1",
            SkippedRecord.SCHEMA_CHANGE,
        ),
        (
            {"id": "1", "type": "COMPLETED", "aggregate_type": "x", "additional_data": {}, "timestamp": 1},
            "n",
            SkippedRecord.NOTIFICATION,
        ),
        (
            {
                "op": "m",
                "ts_ms": 1,
                "source": SOURCES["postgresql"],
                "transaction": None,
                "message": {"prefix": "p", "content": "AA=="},
            },
            "server1.message",
            SkippedRecord.MESSAGE,
        ),
        (
            envelope("c", source={"table": "signal"}, after={"id": "1", "type": "x", "data": "{}"}),
            "t",
            SkippedRecord.SIGNAL,
        ),
    ],
)
def test_what_says_nothing_of_rows_is_passed_over_and_told_apart(value: Any, topic: str, kind: SkippedRecord) -> None:
    decoder = RecordDecoder(DecodeSettings(topics=Topics(signal_tables=frozenset({"public.signal"}))))

    assert decoder.location(record(value, topic=topic)) is kind
    assert decoder.decode(record(value, topic=topic)) is kind


def test_a_table_that_looks_like_a_heartbeat_or_a_signal_holds_rows() -> None:
    for topic, row in [
        ("__debezium-heartbeat.public.t", {"ts_ms": 1}),
        ("server1.public.transaction", {"id": "1", "status": "END", "event_count": 0}),
        ("server1.public.signal", {"id": "1", "type": "x", "data": "y"}),
    ]:
        event = event_of(envelope("c", after=row), topic=topic)
        assert event.after == {name: str(value) for name, value in row.items()}


def test_columns_of_a_key_stand_in_its_order() -> None:
    event = event_of(envelope("c", after={"b": "y", "a": 1, "v": "w"}), key={"a": 1, "b": "y"})

    assert list((event.key or {}).items()) == [("a", "1"), ("b", "y")]


def test_a_column_that_is_in_the_key_alone_is_taken_from_there() -> None:
    event = event_of(envelope("c", after={"v": "w"}), key={"id": 1})
    routed = event_of(envelope("c", after={"id": 1}), key={"id": 1, "__dbz__physicalTableIdentifier": "x"})

    assert event.after == {"id": "1", "v": "w"}
    assert (routed.key, routed.after) == ({"id": "1"}, {"id": "1"})


@pytest.mark.parametrize("connector", ["mysql", "postgresql"])
def test_a_column_that_is_in_the_key_alone_is_in_every_image_and_in_the_type(connector: str) -> None:
    rows: dict[str, Any] = {"before": {"v": 1}, "after": {"v": 2}}
    changed = event_of(envelope("u", connector=connector, **rows), key=text({"id": 5}))
    gone = event_of(envelope("d", connector=connector, before={"v": 1}), key=text({"id": 5}))

    assert (changed.after, gone.before and gone.before["id"]) == ({"id": "5", "v": "2"}, "5")
    assert changed.before is not None
    assert changed.before["id"] == "5"

    key = {"type": "struct", "fields": [{**node("int32", optional=False), "field": "id"}], "optional": False}
    typed = event_of(
        with_schema(envelope("u", connector=connector, **rows), {"v": node("int32")}),
        key=text({"schema": key, "payload": {"id": 5}}),
    )
    assert typed.row_type is not None
    assert [(one.name, str(one.logical)) for one in typed.row_type.columns] == [
        ("id", "integer(32)"),
        ("v", "integer(32)"),
    ]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            {"id": "1", "source": "/debezium/x", "specversion": "1.0", "type": "io.debezium.x", "datacontenttype": "a"},
            "is a CloudEvents message; have the connector write the plain event",
        ),
        (
            {"op": "c", "after": "{}", "source": {"connector": "mongodb", "name": "x", "db": "d", "collection": "c"}},
            "is of MongoDB's connector, whose rows are documents",
        ),
    ],
)
def test_messages_of_other_kinds_are_named(value: Any, says: str) -> None:
    with pytest.raises(MalformedInputError, match=says):
        event_of(value)


@pytest.mark.parametrize(
    "key",
    [
        {"schema": 1, "payload": 2},
        {"schema": "a", "payload": None},
        {"schema": {"scale": 0, "value": "AQ=="}, "payload": 1},
    ],
)
def test_columns_of_a_key_may_be_called_as_the_parts_of_a_message(key: dict[str, Any]) -> None:
    event = event_of(envelope("c", connector="oracle", after={"v": 1}), key=text(key))
    assert event.key is not None
    assert list(event.key) == ["schema", "payload"]


def test_a_delete_of_a_table_without_a_key_has_its_row() -> None:
    event = event_of(envelope("d", before={"a": 1, "b": "x"}))

    assert (event.key, event.before) == (None, {"a": "1", "b": "x"})


FILLERS = {"id": 2, "a": 0, "s": "", "n": "AA==", "dflt": 7, "opt": 9, "bo": False, "u": "", "bb": "", "js": ""}


def test_what_postgresql_makes_up_is_left_out() -> None:
    assert event_of(envelope("d", before=FILLERS), key={"id": 2}).before == {"id": "2"}
    assert event_of(envelope("u", before=None, after={"id": 2, "a": 1}), key={"id": 2}).before == {"id": "2"}


@pytest.mark.parametrize("setting", ["all", "table"])
def test_a_table_that_is_said_to_be_whole_keeps_its_before_image(setting: str) -> None:
    settings = (
        DecodeSettings(before_image=BeforeImage.FULL)
        if setting == "all"
        else DecodeSettings(before_images={T: BeforeImage.FULL})
    )
    before = event_of(envelope("d", before=FILLERS), settings, key={"id": 2}).before
    assert before == {name: str(value).lower() if value is False else str(value) for name, value in FILLERS.items()}


def test_an_update_with_a_before_image_shows_that_it_is_whole() -> None:
    value = envelope("u", before={"id": 1, "v": "x"}, after={"id": 1, "v": "y"})
    event = event_of(value, key={"id": 1})

    assert event.before == {"id": "1", "v": "x"}
    assert event.location.shows_full
    assert event_of(value, DecodeSettings(before_image=BeforeImage.KEY), key={"id": 1}).before == {"id": "1"}
    moved = envelope("u", before={"id": 0, "v": ""}, after={"id": 1, "v": "y"})
    assert event_of(moved, key={"id": 1}).before == {"id": "0"}


@pytest.mark.parametrize("connector", ["oracle", "mysql", "sqlserver", "db2"])
def test_other_connectors_make_nothing_up(connector: str) -> None:
    event = event_of(envelope("d", connector=connector, before={"id": 2, "a": 0}), key={"id": 2})

    assert event.before == {"id": "2", "a": "0"}


UNCHANGED = {
    "j": PLACEHOLDER,
    "b": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
    "x": "5f5f646562657a69756d5f756e617661696c61626c655f76616c7565",
    "ta": [PLACEHOLDER],
    "ba": ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="],
    "ia": list(PLACEHOLDER.encode()),
    "ua": ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
    "h": f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}',
    "m": {PLACEHOLDER: PLACEHOLDER},
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_value_that_did_not_change_and_is_not_known_is_absent(name: str) -> None:
    event = event_of(envelope("u", after={"id": 1, name: UNCHANGED[name], "n": None}), key={"id": 1})

    assert event.after == {"id": "1", "n": None}


def test_with_a_schema_an_unknown_value_is_absent_whatever_its_type() -> None:
    columns = {
        "id": node("int32"),
        "n": node("string"),
        "b": node("bytes"),
        "ia": {**node("array"), "items": node("int32")},
    }
    value = envelope("u", after={"id": 1, "n": None, "b": UNCHANGED["b"], "ia": UNCHANGED["ia"]})

    assert event_of(with_schema(value, columns), key={"id": 1}).after == {"id": "1", "n": None}


@pytest.mark.parametrize("setting", ["@@gone@@", "hex:00ff41"])
def test_the_placeholder_is_a_setting(setting: str) -> None:
    for form in Placeholder(setting).forms():
        event = event_of(envelope("u", after={"id": 1, "v": form}), DecodeSettings(placeholder=setting), key={"id": 1})
        assert event.after == {"id": "1"}, form
    kept = event_of(
        envelope("u", after={"id": 1, "v": PLACEHOLDER}), DecodeSettings(placeholder=setting), key={"id": 1}
    )
    assert kept.after == {"id": "1", "v": PLACEHOLDER}


def test_a_nullable_column_with_a_default_is_doubtful() -> None:
    columns = {
        "id": node("int32", optional=False),
        "opt": node("int32", default=9),
        "d": node("int32", optional=False, default=1),
    }
    event = event_of(with_schema(envelope("u", after={"id": 1, "opt": 9, "d": 1}), columns), key={"id": 1})

    assert event.after == {"id": "1", "opt": "9", "d": "1"}
    assert event.row_type is not None
    assert event.row_type.doubtful == ["opt"]


def test_events_of_one_schema_share_its_description_and_of_another_do_not() -> None:
    decoder = RecordDecoder()
    first = with_schema(envelope("c", after={"a": 1}), {"a": node("int32")})
    wider = with_schema(envelope("c", after={"a": 1, "b": "x"}), {"a": node("int32"), "b": node("string")})
    types = []
    for value in (first, wider, first):
        event = decoder.decode(record(value))
        assert isinstance(event, DataEvent)
        types.append(event.row_type)

    assert types[0] is types[2] is not types[1]


def test_a_schema_that_speaks_of_a_payload_is_read_to_its_end() -> None:
    odd = with_schema(envelope("c", after={"a": 1}), {"a": node("int32", doc='x,"payload":y')})
    nested = odd.replace(b'"doc":"x,\\"payload\\":y"', b'"default":{"schema":1,"payload":{"a":2}}')
    for value in (odd, nested):
        assert event_of(value).after == {"a": "1"}


def test_white_space_and_the_order_of_schema_and_payload_make_no_difference() -> None:
    document = json.loads(with_schema(envelope("c", after={"a": 1}), {"a": node("int32")}))
    for value in (json.dumps(document, indent=2), json.dumps(dict(reversed(document.items())))):
        assert event_of(value.encode()).after == {"a": "1"}
        assert event_of(b"\n " + value.encode() + b"\n").after == {"a": "1"}


def moved(txn: str | None = "9", *, connector: str = "postgresql", with_headers: bool = True) -> list[TopicRecord]:
    source = {"event_serial_no": 1} if connector == "sqlserver" else {}
    old, new = ('{"id":1}', '{"id":2}') if with_headers else (None, None)
    blocks = [None if txn is None else block(txn, order) for order in (1, 2)]
    deleted = envelope("d", connector=connector, source=source, before={"id": 1, "v": "x"}, transaction=blocks[0])
    created = envelope("c", connector=connector, after={"id": 2, "v": "x"}, transaction=blocks[1])
    return [
        record(deleted, key={"id": 1}, **({"newkey": new} if new else {})),
        record(None, key={"id": 1}, **({"newkey": new} if new else {})),
        record(created, key={"id": 2}, **({"oldkey": old} if old else {})),
    ]


def changes(records: list[TopicRecord], settings: DecodeSettings | None = None) -> list[tuple[Op, Any, Any]]:
    decoder = RecordDecoder(settings)
    events = [event for one in records if isinstance(event := decoder.decode(one), DataEvent)]
    events.sort(key=lambda event: event.location.total_order or 0)
    return [(change.op, change.before, change.after) for change in changes_of(events)]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]], ids=["in order", "the insert arrived first"])
def test_a_changed_key_is_one_update(order: list[int]) -> None:
    records = moved()
    assert changes([records[at] for at in order]) == [(Op.UPDATE, {"id": "1"}, {"id": "2", "v": "x"})]


def test_halves_of_a_changed_key_without_headers_stay_two_changes() -> None:
    assert changes(moved(connector="sqlserver", with_headers=False)) == [
        (Op.DELETE, {"id": "1", "v": "x"}, None),
        (Op.INSERT, None, {"id": "2", "v": "x"}),
    ]


def test_a_delete_whose_other_half_is_not_there_stays_a_delete() -> None:
    deleted, _, created = moved()
    other = record(envelope("c", after={"id": 3}, transaction=block("9", 2)), key={"id": 3}, oldkey='{"id":7}')

    assert [op for op, _, _ in changes([deleted])] == [Op.DELETE]
    assert [op for op, _, _ in changes([deleted, other])] == [Op.DELETE, Op.INSERT]
    assert [op for op, _, _ in changes([created])] == [Op.INSERT]


@pytest.mark.parametrize(
    ("column", "value", "header", "old"),
    [
        (node("string"), "a", '{"c":"a\\"b\\\\c\nd"}', 'a"b\\c\nd'),
        (
            node("bytes", "org.apache.kafka.connect.data.Decimal", parameters={"scale": "2"}),
            "gA==",
            '{"c":1.50}',
            "1.50",
        ),
        (node("bytes"), "gA==", '{"c":"AAE="}', "AAE="),
        (node("int32"), 1, '{"c":2}', "2"),
        (node("int32"), 1, '{"schema":{"type":"struct"},"payload":{"c":2}}', "2"),
        (node("boolean"), True, '{"c":false}', "false"),
        (node("string"), "x", '{"c":null}', None),
    ],
)
def test_a_key_in_a_header_is_read_leniently(column: Any, value: Any, header: str, old: str | None) -> None:
    key = text(
        {"schema": {"type": "struct", "fields": [{**column, "field": "c"}], "optional": False}, "payload": {"c": value}}
    )
    event = event_of(with_schema(envelope("c", after={"c": value}), {"c": column}), key=key, oldkey=header)

    assert event.old_key == {"c": old}


@pytest.mark.parametrize("header", ["{", '{"c":', '{"c":"x', "{} {}", "[" * 50, '{"c":1970-01-04}', "7", "\udcff"])
def test_a_header_that_cannot_be_read_still_marks_the_half_of_a_changed_key(header: str) -> None:
    deleted, tombstone, created = moved()
    odd = TopicRecord(
        **{name: getattr(created, name) for name in ("topic", "key", "value")},
        headers=(("__debezium.oldkey", header.encode(errors="surrogateescape")),),
    )

    assert [op for op, _, _ in changes([deleted, tombstone, odd])] in ([Op.UPDATE], [Op.DELETE, Op.INSERT])
    event = RecordDecoder().decode(odd)
    assert isinstance(event, DataEvent)
    assert event.old_key is not None


def test_truncations_and_snapshot_rows_keep_their_place_between_changes() -> None:
    records = [
        record(envelope("c", after={"id": 3}, transaction=block("9", 3)), key={"id": 3}),
        record(envelope("t", transaction=block("9", 2))),
        record(envelope("c", after={"id": 1}, transaction=block("9", 1)), key={"id": 1}),
    ]
    assert [op for op, _, _ in changes(records)] == [Op.INSERT, Op.TRUNCATE, Op.INSERT]


NOT_JSON = b'{"before":null'


@pytest.mark.parametrize(
    ("value", "key", "says"),
    [
        (NOT_JSON, None, "is not JSON, or is cut off"),
        (text(GOLDEN) + b"x", None, "is not JSON"),
        (text(GOLDEN) + text(GOLDEN), None, "is not JSON"),
        (GOLDEN_VALUE + b"}", None, "is not JSON"),
        (GOLDEN_VALUE[:-100], None, "is not JSON"),
        (text(GOLDEN)[:-1] + b',"op":"d"}', None, "names a member twice"),
        (text(GOLDEN).replace(b'"ID":1004', b'"ID":1004,"ID":1005'), None, "names a member twice"),
        (GOLDEN_VALUE[:-1] + b',"payload":{}}', None, "twice|is not JSON"),
        (b'{"schema":{"type":"struct"}}', None, "schema without payload"),
        (b'{"payload":{}}', None, "payload without schema"),
        (b'{"schema":{"type":"blob"},"payload":{}}', None, "has no type"),
        (b'{"schema":7,"payload":{}}', None, "is not an object"),
        (b"[]", None, "is not an object"),
        (b"7", None, "is not an object"),
        (b"{}", None, "it has no op"),
        (b'{"a":1}', None, "it has no op"),
        (b'{"op":"c"}', None, "no source"),
        (envelope("x", after={"id": 1}), None, "an op that Debezium does not have"),
        (envelope("c"), {"id": 1}, "no row to apply"),
        (envelope("u", before={"id": 1}), {"id": 1}, "no row to apply"),
        (envelope("c", after=[1]), {"id": 1}, "row that is not an object"),
        (envelope("d"), None, "neither a key nor a before image"),
        (envelope("u", after={"id": 1}), None, "neither a key nor a before image"),
        (envelope("c", after={"id": 1}, transaction={"id": "9"}), None, "without id or total_order"),
        (envelope("c", after={"id": 1}, transaction=7), None, "without id or total_order"),
        (envelope("c", after={"id": 1}, source={"lsn": "secret"}), None, "lsn that is not a whole number"),
        (envelope("c", after={"id": 1}, source={"sequence": "secret"}), None, "sequence"),
        (envelope("c", after={"id": 1}, source={"table": 7}), None, "name that is not text"),
        (envelope("c", after={"id": 1}, source={"connector": 0}), None, "name that is not text"),
        (envelope("c", after={"id": 1}, source={"table": None}), None, "names no table"),
        (envelope("c", after={"id": 1}), b"7", "key of a record is not an object"),
        (envelope("c", after={"id": 1}), b'{"id"', "key of a record is not JSON"),
        (b"\x00\x00\x00\x00\x01secret", None, "looks like Avro"),
        (b"\xff\xfe{}", None, "is not JSON"),
        (b'{"op":"\\ud800"}', None, "is not JSON"),
        (b'{"op":NaN}', None, "is not JSON"),
        (b"[" * 100_000, None, "is not JSON"),
        ({"status": "MIDDLE", "id": "1", "event_count": 1, "data_collections": []}, None, "neither begin nor end"),
        ({"status": "END", "id": "1", "event_count": None, "data_collections": None}, None, "how many events"),
        ({"status": "END", "id": "1", "event_count": 1, "data_collections": [7]}, None, "how many events each"),
        (
            {"status": "END", "id": "1", "event_count": 2, "data_collections": []},
            None,
            "2 events, and counts 0 by table",
        ),
        (
            {
                "status": "END",
                "id": "1",
                "event_count": 1,
                "data_collections": [{"data_collection": "public.t", "event_count": 2}],
            },
            None,
            "1 event, and counts 2 by table",
        ),
        (
            with_schema(envelope("c", after={"a": 1, "secret": 2}), {"a": node("int32")}),
            None,
            "none that the message's schema has",
        ),
    ],
)
def test_what_is_malformed_is_refused_with_its_place_and_not_shown(value: Any, key: Any, says: str) -> None:
    with pytest.raises(MalformedInputError, match=says) as refused:
        RecordDecoder().decode(record(value, key=key, topic="topic"))
    assert "topic topic, partition 0, offset 7" in str(refused.value)
    assert "secret" not in str(refused.value) or "column secret" in str(refused.value)


def test_a_text_that_looks_like_members_is_no_second_member() -> None:
    odd = '":x","op":"d"'
    event = event_of(envelope("c", after={"id": 1, "a": odd, "b": ":", 'c":': ":", "d\\": "\\"}), key={"id": 1})

    assert event.after == {"id": "1", "a": odd, "b": ":", 'c":': ":", "d\\": "\\"}


def test_one_place_in_a_transaction_holds_one_change() -> None:
    decoder = RecordDecoder()
    first = record(envelope("c", after={"id": 1, "n": 1.5}, ts_ms=1, ts_us=1000), key={"id": 1})
    again = record(envelope("c", after={"id": 1, "n": 1.5}, ts_ms=2, ts_us=2000), key={"id": 1})
    other = record(envelope("c", after={"id": 1, "n": 1.50001}), key={"id": 1})

    decoder.refuse_other(first, again)
    with pytest.raises(MalformedInputError, match="two different changes") as refused:
        decoder.refuse_other(first, other)
    assert "the source was reset" in refused.value.do.lower()


def test_a_location_says_what_decoding_says() -> None:
    decoder = RecordDecoder()
    for one in (*moved(), record(GOLDEN_VALUE, key=GOLDEN_KEY), record(GOLDEN_END), record(envelope("t"))):
        decoded = decoder.decode(one)
        assert decoder.location(one) == (decoded.location if isinstance(decoded, DataEvent) else decoded)


@pytest.mark.parametrize("image", [{}, {"a": None, 'b"\\\n\u0001': "😀\u2028\x7f/<"}])
def test_an_image_is_written_as_everywhere_else(image: dict[str, str | None]) -> None:
    assert image_text(image) == encode_image(image)
