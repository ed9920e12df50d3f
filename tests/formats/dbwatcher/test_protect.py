"""NEEDS_PROT and COL2XML: the vectors of the original's tests, and what may stand in XML as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.protect import (
    Protection,
    base64_of,
    bytes_of,
    col2xml,
    columns2xml,
    needs_prot,
    text_of,
)
from penstock.formats.dbwatcher.reader import read_columns

PROTECTED = [
    (None, 0),
    ("", 0),
    ("prova", 0),
    ("<![[CDATAsome text]]>", 2),
    ("this is a &lt;a", 1),
    ("a<b", 1),
    ("a>b", 0),
    ("]]", 0),
    ("]] >", 0),
    ("]]>", 2),
    ("tab\tand line\nfeed", 0),
    ("tab\tand < line\nfeed", 1),
    ("a\rb", 2),
    ("\x00", 2),
    ("\x01", 2),
    ("\x0b", 2),
    ("\x1f", 2),
    ("\x7f", 2),
    ("\x85", 2),
    ("\x9f", 2),
    ("\xa0", 0),
    ("  \"q\" 's' äß€😀  ", 0),
    ("\u2028", 0),
    ("\ufffd", 0),
    ("\ufffe", 2),
    ("\uffff", 2),
    ("\ud800", 2),
    ("\udfff", 2),
    ("\U0001fffe", 0),
]


@pytest.mark.parametrize(("text", "protection"), PROTECTED, ids=[ascii(text) for text, _ in PROTECTED])
def test_a_text_is_protected_by_what_it_holds(text: str | None, protection: int) -> None:
    assert needs_prot(text) == protection


ELEMENTS = [
    ("<![CDATA[colValue]]>", '<col name="colName" encoding="base64">PCFbQ0RBVEFbY29sVmFsdWVdXT4=</col>'),
    ("c&lt;olValue", '<col name="colName"><![CDATA[c&lt;olValue]]></col>'),
    (None, '<col name="colName" type="null"/>'),
    ("", '<col name="colName"></col>'),
    ("plain 'text'", "<col name=\"colName\">plain 'text'</col>"),
    (b"\x00\xff\x10", '<col name="colName" encoding="base64">AP8Q</col>'),
    (b"", '<col name="colName" encoding="base64"></col>'),
    (bytes(120), f'<col name="colName" encoding="base64">{"A" * 160}</col>'),
    ("\ud800", '<col name="colName" encoding="base64">7aCA</col>'),
]


@pytest.mark.parametrize(("value", "element"), ELEMENTS, ids=[element for _, element in ELEMENTS])
def test_the_element_is_as_documented(value: str | bytes | None, element: str) -> None:
    assert col2xml("colName", value) == element


def test_a_name_is_escaped_and_one_that_xml_cannot_carry_is_refused() -> None:
    assert col2xml('a"b<&>\t', "v") == '<col name="a&quot;b&lt;&amp;&gt;&#x09;">v</col>'
    with pytest.raises(MalformedInputError, match=r"column 'a\\\\x01'.*Rename the column"):
        col2xml("a\x01", "v")


NAMES = st.text("aB é\"'<>&\t\n]", min_size=1, max_size=5)
TEXTS = st.text() | st.text("]>[<!&;\r\n\t \x00\x7f\x85\ufffe\ud800a")


@given(st.dictionaries(NAMES, st.none() | TEXTS | st.binary(), max_size=5))
def test_an_image_reads_back_the_same(image: dict[str, str | bytes | None]) -> None:
    found = read_columns(columns2xml(image))

    assert list(found) == list(image)
    for name, value in image.items():
        back = found[name]
        if isinstance(value, str):
            assert back is not None
            assert text_of(back) == value
        else:
            assert back == value


@given(TEXTS)
def test_base64_of_a_text_is_the_text(text: str) -> None:
    assert text_of(bytes_of(text)) == text
    assert "\n" not in base64_of(text)
    assert needs_prot(text) in Protection
