"""Events read in bulk are what each of them is by itself: the same rows, in the same place, and the same errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.change import TableName
from penstock.errors import MalformedInputError
from penstock.formats.debezium.bulk import BulkDecoder, EventShape
from penstock.formats.debezium.decode import BeforeImage, DataEvent, DecodeSettings, RecordDecoder, RowType
from penstock.formats.debezium.envelope import ChangeLocation
from penstock.formats.debezium.record import TopicRecord
from penstock.logical import Kind, LogicalType
from tests.formats.debezium.events import block, envelope, node, record, text, with_schema

T = TableName("public", "t")
COLUMNS = {
    "id": node("int32"),
    "name": node("string", optional=True),
    "amount": node("double", optional=True),
    "large": node("int64", optional=True),
    "day": node("int32", optional=True, name="io.debezium.time.Date"),
}
DECLARED = {
    "id": LogicalType(Kind.INTEGER, bits=32),
    "amount": LogicalType(Kind.FLOAT, bits=64),
    "large": LogicalType(Kind.INTEGER, bits=64),
    "day": LogicalType(Kind.DATE),
}
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(-3, 3),
        "name": st.none() | st.text('ab"\\:,{}é\0\n', max_size=4) | st.just('":'),
        "amount": st.none() | st.floats(allow_nan=False, allow_infinity=False, width=16),
        "large": st.none() | st.integers(-(2**63), 2**63 - 1),
        "day": st.none() | st.integers(-1000, 1000),
    }
)

Odd = Callable[[dict[str, Any]], object]


def _in(*path: str, value: object) -> Odd:
    def put(event: dict[str, Any]) -> None:
        for name in path[:-1]:
            event = event[name] or {}
        event[path[-1]] = value

    return put


def _without(*path: str) -> Odd:
    def drop(event: dict[str, Any]) -> None:
        for name in path[:-1]:
            event = event[name] or {}
        event.pop(path[-1], None)

    return drop


PLACEHOLDER = "__debezium_unavailable_value"

ODD: Sequence[Odd] = [
    *(_in("value", side, "name", value=value) for side in ("before", "after") for value in (PLACEHOLDER, 1, ["a"], {})),
    *(
        _in("value", side, "id", value=value)
        for side in ("before", "after")
        for value in (2**31, True, 1.0, "1", None, 9)
    ),
    *(_in("value", "after", "large", value=value) for value in (2**63, 2**70, 0.1)),
    *(_in("value", "after", "more", value=value) for value in ("x", 1, 0.5)),
    *(_without("value", side, name) for side in ("before", "after") for name in ("id", "name")),
    *(_in("value", side, value=value) for side in ("before", "after") for value in (None, "row")),
    *(_in("value", "op", value=value) for value in ("r", "t", "m", "U", "x", None, ["c"])),
    *(_in("value", "transaction", value=value) for value in (None, "1", block("", 1), block("1:2", 0))),
    *(_in("value", "transaction", "total_order", value=value) for value in ("1", None, True, 1.0)),
    *(_in("value", "source", "snapshot", value=value) for value in ("true", None, False, 0, [])),
    *(_in("value", "source", "lsn", value=value) for value in ("5", "x", None, 2**70)),
    *(_in("value", "source", "sequence", value=value) for value in (None, "x", '["1","2"]', "[null,7]", '["1","x"]')),
    *(_in("value", "source", "ts_us", value=value) for value in (None, "1")),
    *(_in("value", "source", name, value=value) for name in ("table", "db", "connector") for value in ("u", None, 1)),
    _in("value", "source", "more", value=1),
    *(_without("value", "source", name) for name in ("txId", "db", "snapshot", "connector", "ts_us")),
    _in("value", value=None),
    _in("value", value={"ts_ms": 1}),
    *(_in("key", value=value) for value in (None, {}, {"id": 1, "__dbz__t": "a"}, {"other": 1}, [1], {"id": "x"})),
    _in("headers", value={"newkey": '{"id": 9}'}),
    _in("headers", value={"oldkey": '{"id": 9}'}),
    _in("raw", value=lambda raw: raw[:-1]),
    _in("raw", value=lambda raw: raw.replace(b'"op"', b'"op":"c","op"', 1)),
    _in("raw", value=lambda raw: raw.replace(b'"name":', b'"name":"x","name":', 1)),
    _in("raw", value=lambda raw: raw.replace(b'"op":', b'"op" :', 1)),
    _in("raw_key", value=lambda raw: raw and raw.replace(b'"id":', b'"id":1,"id":', 1)),
]
"""What one event may have that others have not."""


def _event(op: str, old: dict[str, Any] | None, new: dict[str, Any], block_: object) -> dict[str, Any]:
    """What one event is made of, for an `Odd` to change."""
    after = None if op == "d" else dict(new)
    value = envelope(op, before=old and dict(old), after=after, transaction=block_)
    return {"value": {**value, "source": dict(value["source"])}, "key": {"id": new["id"]}, "headers": {}}


def _record(event: dict[str, Any], *, has_schema: bool) -> TopicRecord:
    raw = event["value"]
    if raw is not None:
        raw = with_schema(raw, COLUMNS) if has_schema else text(raw)
        raw = event.get("raw", bytes)(raw)
    key = None if event["key"] is None else text(event["key"])
    return record(raw, key=event.get("raw_key", bytes)(key) if key else key, **event["headers"])


@st.composite
def events(draw: st.DrawFn) -> TopicRecord:
    op = draw(st.sampled_from("ccuud"))
    old, new = draw(ROWS), draw(ROWS)
    old["id"] = new["id"]
    has_old = op == "d" or (op == "u" and draw(st.booleans()))
    numbered = block(f"{draw(st.integers(1, 3))}:77", draw(st.integers(1, 9)))
    event = _event(op, old if has_old else None, new, numbered)
    if draw(st.integers(0, 3)) == 0:
        draw(st.sampled_from(ODD))(event)
    return _record(event, has_schema=draw(st.sampled_from([True, True, True, False])))


SETTINGS = st.builds(
    DecodeSettings,
    declared=st.sampled_from([{}, {T: DECLARED}]),
    before_image=st.sampled_from(BeforeImage),
    only=st.sampled_from([None, None, frozenset({T}), frozenset()]),
)


def _error(exc: MalformedInputError) -> str:
    return f"{exc.what} {exc.where} {exc.do}"


def _row_type(row_type: RowType | None) -> object:
    return row_type and row_type.columns


def _image(image: Mapping[str, str | None] | None) -> object:
    return None if image is None else list(image.items())


def _one_by_one(decoder: RecordDecoder, one: TopicRecord) -> object:
    """What an event is by itself, as far as bulk tells it."""
    try:
        event = decoder.decode(one)
    except MalformedInputError as exc:
        return _error(exc)
    if not isinstance(event, DataEvent):
        return event
    place = event.location.op, event.location.table, event.location.txn, event.location.total_order
    if event.location.op == "d" and event.new_key is not None:
        return "half of a changed key", place, _image(event.new_key), _image(event.before)
    return place, tuple(event.key or ()), _image(event.before), _image(event.after), _row_type(event.row_type)


def _hold_against_each_other(records: Sequence[TopicRecord], given_: DecodeSettings) -> None:
    plain, decoder = RecordDecoder(given_), RecordDecoder(given_)
    assert decoder.messages is not None
    bulk = BulkDecoder(decoder, decoder.messages)

    # A second time, when all forms are known.
    for _ in range(2):
        made, others = bulk.decode(records)
        found = {at: _one_by_one(decoder, records[at]) for at in others}
        for some in made:
            form: EventShape = some.form
            for at, txn, order, before, after in zip(*some[1:], strict=True):
                place = form.op, form.table, txn, order
                key = form.key if form.is_read else ()
                found[at] = place, key, _image(before), _image(after), _row_type(form.row_type)

        assert [found[at] for at in range(len(records))] == [_one_by_one(plain, one) for one in records]


@pytest.mark.rule("A-226")
@settings(max_examples=150, deadline=None)
@given(records=st.lists(events(), min_size=1, max_size=25), given_=SETTINGS)
def test_events_in_bulk_are_what_each_is_by_itself(records: list[TopicRecord], given_: DecodeSettings) -> None:
    _hold_against_each_other(records, given_)


ROW: dict[str, Any] = {"id": 1, "name": "a", "amount": 0.5, "large": 5, "day": 7}


@pytest.mark.rule("A-226")
@pytest.mark.parametrize("has_schema", [True, False], ids=["with schemas", "without"])
@pytest.mark.parametrize("mode", BeforeImage)
@pytest.mark.parametrize(("op", "has_old"), [("c", False), ("u", False), ("u", True), ("d", True)])
def test_one_that_is_odd_among_others(op: str, has_old: bool, mode: BeforeImage, has_schema: bool) -> None:
    def alike(number: int) -> dict[str, Any]:
        return _event(op, ROW if has_old else None, {**ROW, "name": "b"}, block("1:2", number))

    given_ = DecodeSettings(declared={T: DECLARED}, before_image=mode)
    for odd in ODD:
        among = alike(2)
        odd(among)
        for some in ([alike(1), among, alike(3), alike(4)], [among, alike(3), alike(4)]):
            _hold_against_each_other([_record(one, has_schema=has_schema) for one in some], given_)


def _scanned(decoder: RecordDecoder, one: TopicRecord) -> object:
    try:
        location, shape = decoder.scan(one)
    except MalformedInputError as exc:
        return _error(exc)
    if not isinstance(location, ChangeLocation):
        return location
    source = location.source
    return (
        (location.table, source.collection, source.connector, location.txn, location.total_order),
        (source.position, source.ts_us),
        shape if isinstance(shape, tuple | None) else shape.to_json(),
    )


@pytest.mark.rule("A-226")
@settings(max_examples=100, deadline=None)
@given(records=st.lists(events(), min_size=1, max_size=25))
def test_what_is_seen_in_bulk_is_what_is_seen_of_each(records: list[TopicRecord]) -> None:
    plain, decoder = RecordDecoder(), RecordDecoder()
    assert decoder.messages is not None
    bulk = BulkDecoder(decoder, decoder.messages)

    for _ in range(2):
        made, others = bulk.scan(records)
        found = {at: _scanned(decoder, records[at]) for at in others}
        for some in made:
            form = some.form
            for at, txn, order, place in zip(*some[1:], strict=True):
                shape = form.shape if isinstance(form.shape, tuple | None) else form.shape.to_json()
                found[at] = (form.table, form.collection, form.connector, txn, order), place, shape

        assert [found[at] for at in range(len(records))] == [_scanned(plain, one) for one in records]


def test_what_is_made_alike_is_read_in_bulk() -> None:
    values = [
        envelope("c", after={"id": n, "name": "x"}, transaction=block(f"{n}:5", 1), source={"lsn": n})
        for n in range(1, 50)
    ]
    records = [record(with_schema(one, COLUMNS), key=one["after"]) for one in values]
    decoder = RecordDecoder()
    assert decoder.messages is not None

    (some,), others = BulkDecoder(decoder, decoder.messages).decode(records)

    assert others == []
    assert [*some.txns] == [str(n) for n in range(1, 50)]
    assert [one and json.dumps(one) for one in some.after][-1] == '{"id": "49", "name": "x"}'
