"""Records in files of JSON lines: keys and values keep every byte, and a line that is none is named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MalformedInputError
from penstock.formats.debezium.record import TopicRecord, read_line


def read(line: str) -> TopicRecord:
    return read_line(line.encode(), file="events.jsonl", number=3)


def test_key_and_value_keep_the_bytes_that_they_were_written_with() -> None:
    record = read(
        '{"topic":"t","partition":2,"offset":9,"key":{"id": 1},"value":{"n": 1.50, "s":"\\u00e9ü"},"headers":[]}'
    )

    assert (record.topic, record.partition, record.offset) == ("t", 2, 9)
    assert record.key == b'{"id": 1}'
    assert record.value == '{"n": 1.50, "s":"\\u00e9ü"}'.encode()
    assert record.where == "events.jsonl, line 3"


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ('{"topic":"t","key":null,"value":null}', None, None),
        ('{"topic":"t","value":{}}', None, b"{}"),
        (' { "value" : "{\\"op\\":1}" , "key":"", "topic" : "t" } ', b"", b'{"op":1}'),
        ('{"topic":"t","key":7,"value":[1]}', b"7", b"[1]"),
    ],
)
def test_a_null_a_text_and_json_are_told_apart(line: str, key: bytes | None, value: bytes | None) -> None:
    assert (read(line).key, read(line).value) == (key, value)


@pytest.mark.parametrize(
    "headers",
    ['{"a":"x","b":null}', '[["a","x"],["b",null]]', '[{"key":"a","value":"x"},{"key":"b","value":null}]'],
)
def test_headers_come_in_several_forms(headers: str) -> None:
    record = read(f'{{"topic":"t","value":null,"headers":{headers}}}')
    assert record.headers == (("a", b"x"), ("b", None))
    assert (record.header("a"), record.header("b"), record.header("c")) == (b"x", None, None)


def test_a_header_may_be_json_and_the_last_of_a_name_counts() -> None:
    assert read('{"topic":"t","value":null,"headers":[["a",1],["a",{"id": 2}]]}').header("a") == b'{"id":2}'
    assert read('{"topic":"t","value":null,"headers":null}').headers == ()


def test_what_kcat_writes_is_read() -> None:
    record = read(
        '{"topic":"t","partition":1,"offset":42,"tstype":"create","ts":1700000000000,"broker":0,'
        '"headers":["a","x","b",null],"key":"{\\"id\\":1}","payload":"{\\"op\\":\\"c\\"}"}'
    )

    assert (record.partition, record.offset, record.headers) == (1, 42, (("a", b"x"), ("b", None)))
    assert (record.key, record.value) == (b'{"id":1}', b'{"op":"c"}')
    assert read('{"topic":"t","key":"k","payload":null}').value is None


def test_a_file_of_values_alone_is_refused_with_a_way_to_get_whole_records() -> None:
    with pytest.raises(MalformedInputError, match=r"a record has no topic.*`kcat -C -J -e -t TOPIC` writes"):
        read('{"before":null,"after":{"id":1},"op":"c"}')


@pytest.mark.parametrize(
    "line",
    [
        *("", "7", "[]", "{", '{"topic":"t"}', '{"value":null}', '{"topic":7,"value":null}', '{"topic":"t","value":}'),
        *('{"topic":"t","value":null} x', '{"topic":"t","value":null,}', '{"topic":"t" "value":null}', "{1:2}"),
        *('{"topic":"t","topic":"u","value":null}', '{"topic":"t","value":null,"partition":"0"}', "\x00"),
        *('{"topic":"t","value":null,"offset":1.5}', '{"topic":"t","value":null,"headers":7}'),
        *('{"topic":"t","value":null,"headers":["a"]}', '{"topic":"t","value":null,"headers":["a","x","b"]}'),
        *('{"topic":"t","value":null,"headers":[7]}', '{"topic":"t","value":null,"headers":[[1,"x"]]}'),
        '{"topic":"t","value":' + "[" * 100_000,
    ],
)
def test_a_line_that_is_no_record_is_refused_by_its_number(line: str) -> None:
    with pytest.raises(MalformedInputError, match=r"events\.jsonl, line 3"):
        read(line)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(MalformedInputError, match=r"line 3"):
        read_line(b'{"topic":"\xff","value":null}', file="events.jsonl", number=3)


@given(
    st.text(),
    st.none()
    | st.text().map(str.encode)
    | st.dictionaries(st.text(), st.text()).map(lambda one: json.dumps(one).encode()),
    st.lists(st.tuples(st.text(), st.none() | st.text().map(str.encode))),
)
def test_any_record_comes_back_from_its_line(
    topic: str, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    record = TopicRecord(topic, value, value, tuple(headers), partition=3, offset=8)
    line = record.to_line()
    back = read_line(line, file="f", number=1)

    assert b"\n" not in line
    assert (back.topic, back.key, back.value, back.headers) == (topic, value, value, tuple(headers))
    assert (back.partition, back.offset) == (3, 8)


def test_a_place_is_told_without_what_would_break_a_line() -> None:
    assert TopicRecord("a\nb", None, None, offset=4).where == "topic a\\nb, partition 0, offset 4"
    assert TopicRecord("t", None, None, partition=1).where == "topic t, partition 1"
