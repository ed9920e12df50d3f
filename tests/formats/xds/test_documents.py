"""XDS documents: what is written reads back the same, and what is not XDS is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MalformedInputError
from penstock.formats.xds.event import AttributeStep, Operation, Value, XdsAttribute, XdsEvent, XdsEventKind
from penstock.formats.xds.reader import read_document
from penstock.formats.xds.table_key import Association, parse_key, write_key
from penstock.formats.xds.values import TimeSyntax, UnreadableError, canonical, converter
from penstock.formats.xds.writer import NOT_XML, write_document, write_event
from penstock.logical import LogicalType

TEXTS = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: NOT_XML.search(text) is None)
NAMES = TEXTS.filter(lambda text: text.strip() == text and text)
IDS = st.none() | NAMES
VALUES = st.builds(Value, st.sampled_from(["string", "octet", "int", "state", "time"]), TEXTS)
FILLED = st.lists(VALUES, min_size=1, max_size=3).map(tuple)
STEPS = st.one_of(
    st.builds(Operation, st.sampled_from([AttributeStep.ADD_VALUE, AttributeStep.REMOVE_VALUE]), FILLED),
    st.just(Operation(AttributeStep.REMOVE_ALL_VALUES)),
)
ADDED = st.builds(XdsAttribute, NAMES, st.tuples(st.builds(Operation, st.just(AttributeStep.ADD_VALUE), FILLED)))
MODIFIED = st.builds(XdsAttribute, NAMES, st.lists(STEPS, min_size=1, max_size=4).map(tuple))
EVENTS = st.one_of(
    st.builds(XdsEvent, st.just(XdsEventKind.ADD), NAMES, NAMES, st.lists(ADDED, max_size=3).map(tuple), IDS),
    st.builds(
        XdsEvent, st.just(XdsEventKind.MODIFY), NAMES, NAMES, st.lists(MODIFIED, min_size=1, max_size=3).map(tuple), IDS
    ),
    st.builds(XdsEvent, st.just(XdsEventKind.DELETE), NAMES, NAMES, st.just(()), IDS),
)


@given(st.lists(EVENTS, max_size=4))
def test_what_is_written_reads_back_the_same(events: list[XdsEvent]) -> None:
    assert read_document(write_document(events)) == events


@given(st.dictionaries(st.text("abc é.", min_size=1).filter(lambda s: s == s.strip()), st.text(), min_size=1))
def test_a_key_and_an_association_read_back_the_same(values: dict[str, str]) -> None:
    key = tuple(values.items())

    association = Association(key, 'u,s"r', "x=y")

    assert parse_key(write_key(key)) == key
    assert Association.parse(f" {association}\n") == association


def test_the_element_is_as_documented_to_the_byte() -> None:
    event = XdsEvent(
        XdsEventKind.MODIFY,
        "usr",
        "idu=1,table=usr,schema=indirect",
        (
            XdsAttribute(
                "a<b",
                (
                    Operation(AttributeStep.REMOVE_ALL_VALUES),
                    Operation(AttributeStep.ADD_VALUE, (Value("string", "x\r&"),)),
                ),
            ),
            XdsAttribute("n", (Operation(AttributeStep.REMOVE_VALUE, (Value("int", "1"), Value("int", "2"))),)),
        ),
        "7",
    )

    assert write_event(event) == (
        '<modify class-name="usr" event-id="7"><association>idu=1,table=usr,schema=indirect</association>'
        '<modify-attr attr-name="a&lt;b"><remove-all-values/><add-value><value type="string">x&#13;&amp;</value>'
        '</add-value></modify-attr><modify-attr attr-name="n"><remove-value><value type="int">1</value>'
        '<value type="int">2</value></remove-value></modify-attr></modify>'
    )


def test_a_character_that_xml_cannot_carry_is_named_without_the_value() -> None:
    with pytest.raises(MalformedInputError, match=r"U\+0001") as raised:
        write_event(XdsEvent(XdsEventKind.DELETE, "usr", "secret\x01"))

    assert "secret" not in str(raised.value)


BOMB = '<!DOCTYPE nds [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><nds><input>&b;</input></nds>'

NAMED = "<association>a</association>"

REFUSED = {
    "not XML": "<nds><input>",
    "document type": BOMB,
    "root": "<xds><input/></xds>",
    "one <input>": "<nds/>",
    "event 1 is <query>, not add, modify or delete": "<nds><input><query/></input></nds>",
    "one <association>": '<nds><input><add class-name="c"/></input></nds>',
    "no class-name": "<nds><input><delete><association>a</association></delete></input></nds>",
    "no <value>": f'<nds><input><add class-name="c">{NAMED}<add-attr attr-name="x"/></add></input></nds>',
    "says nothing": f'<nds><input><modify class-name="c">{NAMED}<modify-attr attr-name="x"/></modify></input></nds>',
    "no attr-name": (
        f'<nds><input><modify class-name="c">{NAMED}<modify-attr name="x"><remove-all-values/></modify-attr></modify>'
        "</input></nds>"
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_no_xds_is_refused(why: str) -> None:
    with pytest.raises(MalformedInputError, match=why):
        read_document(REFUSED[why].encode(), name="in.xml")


@pytest.mark.parametrize("encoding", ["Shift_JIS", "GB2312", "UTF-32", "UTF-7", "punycode", "nobody"])
def test_an_encoding_that_the_parser_does_not_know_is_refused_with_the_documents_name(encoding: str) -> None:
    document = f'<?xml version="1.0" encoding="{encoding}"?><nds><input/></nds>'.encode("ascii")

    with pytest.raises(MalformedInputError, match=r"encoding that cannot be read \(in\.xml\)"):
        read_document(document, name="in.xml")


MORNING = "2024-03-01T08:30:00"

TIMES = [
    ("timestamp", 1, "2024-03-01 08:30:00.5", Value("time", "1709281800"), "2024-03-01T08:30:00.000000"),
    ("timestamp", 2, "2024-03-01 08:30:00.5", Value("string", "20240301083000500000000"), "2024-03-01T08:30:00.500000"),
    (
        "timestamptz",
        3,
        "2024-03-01 08:30:00+02",
        Value("string", "2024-03-01 06:30:00.0"),
        "2024-03-01T06:30:00.000000+00:00",
    ),
    ("date", 1, "1970-01-02", Value("time", "86400"), "1970-01-02"),
    ("date", 2, "2024-03-01", Value("string", "20240301"), "2024-03-01"),
    ("time", 1, "00:01:00", Value("time", "60"), "00:01:00.000000"),
    ("time", 2, "08:30:00", Value("string", "083000"), "08:30:00.000000"),
    ("boolean", 1, "Yes", Value("state", "true"), "true"),
    ("integer(32)", 1, " +007 ", Value("int", "7"), "7"),
    ("binary", 1, "u7\r\ns=\n", Value("octet", "u7s="), "u7s="),
    ("string(5,padded)", 1, "ab   ", Value("string", "ab"), "ab"),
]


@pytest.mark.rule("E-14")
@pytest.mark.parametrize(("type_", "syntax", "logged", "value", "as_canonical"), TIMES)
def test_a_logged_text_is_a_value_and_comes_back_as_canonical_text(
    type_: str, syntax: int, logged: str, value: Value, as_canonical: str
) -> None:
    logical = LogicalType.parse(type_)

    assert converter(logical, TimeSyntax(syntax))(logged) == value
    assert canonical(logical, value) == as_canonical


@pytest.mark.rule("E-14")
@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("integer(32)", "1.0"),
        ("integer(32)", "٣"),
        ("boolean", "2"),
        ("binary", "qqo"),
        ("binary", "qq-_"),
        ("binary", "QUJD="),
        ("binary", "="),
        ("binary", "QQ==QQ=="),
        ("timestamp", "2024-03-01 08:30:00+02"),
        ("timestamp", "infinity"),
        ("timestamp", "2024-03-01 24:00:00"),
        ("time", "2024-03-01"),
        ("string", "\ud800"),
    ],
)
def test_a_text_that_is_no_value_is_refused_without_saying_it(type_: str, text: str) -> None:
    with pytest.raises(UnreadableError) as raised:
        converter(LogicalType.parse(type_), TimeSyntax.SECONDS)(text)

    assert text not in str(raised.value)
