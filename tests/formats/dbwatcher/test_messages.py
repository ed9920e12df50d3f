"""Messages as XML: the exact form that is written, the rules by which they are read, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.message import Columns, Command, Head, Message, MessageRow
from penstock.formats.dbwatcher.reader import MessageLimits, read_message
from penstock.formats.dbwatcher.writer import write_attribute, write_message

EXACT = b"""<?xml version='1.0' encoding='UTF-8' ?>
 <sql>
   <desc>
     <command>REPLICATION</command>
     <ident>1.2.3</ident>
   </desc>
   <row num='0'>  <col name="NAME">first</col><col name="AGE">44</col>
     <attr name='schema'>X</attr>
     <attr name='guid'>AAA</attr>
     <attr name='action'>UPDATE</attr>
     <attr name='replKey'>7</attr>
     <attr name='version'>0.0</attr>
     <attr name='transaction'>1.2.3</attr>
     <attr name='tableName'>T</attr>
     <attr name='oldContent' encoding='forcePlain'>&lt;col name=&quot;NAME&quot;&gt;&lt;![CDATA[a&lt;b&amp;c]]&gt;\
&lt;/col&gt;&lt;col name=&quot;AGE&quot;&gt;43&lt;/col&gt;</attr>
   </row>
 </sql>"""

UPDATE = Message(
    Head(Command.REPLICATION, "1.2.3"),
    [
        MessageRow(
            {"NAME": "first", "AGE": "44"},
            {
                "schema": "X",
                "guid": "AAA",
                "action": "UPDATE",
                "replKey": "7",
                "version": "0.0",
                "transaction": "1.2.3",
                "tableName": "T",
            },
            {"NAME": "a<b&c", "AGE": "43"},
        )
    ],
)


def test_the_form_is_as_documented_to_the_byte_and_reads_back() -> None:
    assert write_message(UPDATE) == EXACT
    assert read_message(EXACT) == UPDATE


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ('it\'s "x" > y', ">it&apos;s &quot;x&quot; &gt; y"),
        ("a\tb\nc\r", ">a\tb\nc&#x0D;"),
        ("a<b", " encoding='base64'>YTxi"),
        ("a|b", " encoding='base64'>YXxi"),
        ("a&b", " encoding='base64'>YSZi"),
        ("]]>", " encoding='base64'>XV0+"),
        ("\x00", " encoding='base64'>AA=="),
        ("x" * 100, f">{'x' * 100}"),
    ],
)
def test_an_attribute_is_escaped_or_base64(value: str, written: str) -> None:
    assert write_attribute("version", value) == f"     <attr name='version'{written}</attr>\n"


def columns_of(cols: str) -> Columns:
    document = f"<sql><desc><command>REPLICATION</command><ident>x</ident></desc><row num='0'>{cols}</row></sql>"
    return read_message(document.encode()).rows[0].columns


VECTORS = [
    ('<col name="B" encoding="base64">aGVsbG8g\nd29ybGQ=</col>', {"B": b"hello world"}),
    ("<col name='B' encoding='base64'>aGVsbG8g&#x0D;\n d29ybGQ=\t</col>", {"B": b"hello world"}),
    ('<col name="B" encoding="base64" charset="ISO-8859-1">5A==</col>', {"B": "ä"}),
    ('<col name="G">p<![CDATA[q]]>r</col>', {"G": "pqr"}),
    ('<col name="C" type="null"/>', {"C": None}),
    ("<col name='C'/>", {"C": ""}),
    ('<col name="E"></col>', {"E": ""}),
    ('<col name="A">1</col><col name="A">2</col>', {"A": "2"}),
    ('<COL name="A">1</COL><col name="B">2</col>', {"B": "2"}),
    ('<other><col name="A">1</col>text</other><col name="B">2</col>', {"B": "2"}),
    ('<col name="W"> \t\n </col>', {"W": " \t\n "}),
    ('<col name="P" encoding="forcePlain">&lt;a&gt;</col>', {"P": "<a>"}),
    ('<col size="3" type="byte[]" encoding="base64" name="R">AP8Q</col>', {"R": b"\x00\xff\x10"}),
    ('<col name="Q">&#x0D;&quot;&apos;</col>', {"Q": "\r\"'"}),
]


@pytest.mark.parametrize(("cols", "columns"), VECTORS, ids=[cols for cols, _ in VECTORS])
def test_the_parsers_vectors(cols: str, columns: Columns) -> None:
    assert columns_of(cols) == columns


def test_nested_old_content_is_read_as_the_escaped_text_is() -> None:
    escaped = (
        "&lt;col name=&quot;a&quot;&gt;x &amp;lt; y&lt;/col&gt;&lt;col name=&quot;b&quot; type=&quot;null&quot;/&gt;"
    )
    nested = "\n <col name='a'>x <![CDATA[<]]> y</col>\n<col name='b' type='null'></col>"
    document = (
        "<SQL><Desc><COMMAND> replication </COMMAND><ident> x </ident></Desc><ROW>"
        "<attr name='oldContent'>%s</attr></ROW></SQL>"
    )

    olds = [read_message((document % content).encode()).rows[0].old for content in (escaped, nested)]

    assert olds == [{"a": "x < y", "b": None}] * 2


NO_ROW = "<sql><desc><command>REPLICATION</command><ident>x</ident></desc>"

REFUSED = {
    "undefined entity": "<sql>&secret;</sql>",
    "document type": '<!DOCTYPE sql [<!ENTITY a SYSTEM "file:///etc/passwd">]><sql>&a;</sql>',
    "no element found": NO_ROW,
    "reference to invalid character": f'{NO_ROW}<row><col name="a">&#x0;</col></row></sql>',
    "root is not <sql>": "<nds/>",
    "no <desc>": "<sql></sql>",
    "second <desc>": f"{NO_ROW}<desc/></sql>",
    "before <desc>": "<sql><row/></sql>",
    "no <command>": "<sql><desc/></sql>",
    "command 'REPLICATE' is not known": "<sql><desc><command>REPLICATE</command></desc></sql>",
    "outside of a row": '<sql><desc><col name="secret">1</col></desc></sql>',
    "<col> has no name": f"{NO_ROW}<row><col>secret</col></row></sql>",
    "inside a <col>": f'{NO_ROW}<row><col name="a">x<b/></col></row></sql>',
    "text stands outside": f"{NO_ROW}<row>secret</row></sql>",
    "encoding 'quoted-printable'": f'{NO_ROW}<row><col name="a" encoding="quoted-printable">=41</col></row></sql>',
    "charset 'no' is not known": f'{NO_ROW}<row><col name="a" encoding="base64" charset="no">QQ==</col></row></sql>',
    "charset 'punycode' is not known": (
        f'{NO_ROW}<row><col name="a" encoding="base64" charset="punycode">QQ==</col></row></sql>'
    ),
    "not of the charset": f'{NO_ROW}<row><col name="a" encoding="base64" charset="ascii">5A==</col></row></sql>',
    "not padded Base64": f'{NO_ROW}<row><col name="a" encoding="base64">secret</col></row></sql>',
    "attribute 'action' is there twice": (
        f"{NO_ROW}<row><attr name='action'>INSERT</attr><attr name='action'>secret</attr></row></sql>"
    ),
    "second <command>": "<sql><desc><command>REPLICATION</command><command>DROP</command></desc></sql>",
    "second <ident>": "<sql><desc><command>DROP</command><ident>x</ident><ident>secret</ident></desc></sql>",
    "type null has text": f'{NO_ROW}<row><col name="a" type="null">secret</col></row></sql>',
    "columns of an image": f"{NO_ROW}<row><attr name='oldContent'>&lt;col name='a'&gt;secret</attr></row></sql>",
    "more than 32 elements": f"{NO_ROW}{'<a>' * 40}",
    "encoding that cannot be read": "<?xml version='1.0' encoding='Shift_JIS'?><sql/>",
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_no_message_is_refused_with_its_place_and_without_its_content(why: str) -> None:
    with pytest.raises(MalformedInputError, match=why) as raised:
        read_message(REFUSED[why].encode(), name="in.xml")

    assert "in.xml" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "encoding that" in why or "line 1, column" in str(raised.value)


@pytest.mark.parametrize("packed", ["QUJ", "QUJDRA", "QUJD=", "=", "QQ==QQ==", "Q===", "QQ-_", "QQ==x"])
def test_base64_that_is_cut_or_odd_is_refused(packed: str) -> None:
    with pytest.raises(MalformedInputError, match="not padded Base64"):
        columns_of(f'<col name="a" encoding="base64">{packed}</col>')


def test_a_message_above_the_limit_is_refused_before_it_is_read_whole() -> None:
    with pytest.raises(MalformedInputError, match="more than 100 bytes"):
        read_message(EXACT, limits=MessageLimits(bytes=100))


TEXTS = st.text(max_size=9) | st.text("]>[<!&;|'\"\r\n\t \x00\x7f\x85\ufffe\ud800a", max_size=9)
NAMES = st.text("aB é\"'<>&\t\n]", min_size=1, max_size=5)
IMAGES = st.dictionaries(NAMES, st.none() | TEXTS | st.binary(max_size=9), max_size=3)
ATTRIBUTES = st.dictionaries(NAMES, st.text("]>[<!&;|'\"\r\n\t \x00\x7fa", max_size=9), max_size=2)
MESSAGES = st.builds(
    Message,
    st.builds(Head, st.sampled_from(Command), NAMES.map(str.strip), ATTRIBUTES),
    st.lists(st.builds(MessageRow, IMAGES, ATTRIBUTES, st.none() | IMAGES), max_size=3),
)


@given(MESSAGES)
def test_what_is_written_reads_back_the_same(message: Message) -> None:
    found = read_message(write_message(message))

    assert found.head == message.head
    assert [plain(row) for row in found.rows] == [plain(row) for row in message.rows]


def plain(row: MessageRow) -> list[object]:
    """A row without the difference between a text and its bytes, which Base64 does not tell."""
    images = [
        None if image is None else [(n, as_bytes(v)) for n, v in image.items()] for image in (row.columns, row.old)
    ]
    return [*images, row.attributes]


def as_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
