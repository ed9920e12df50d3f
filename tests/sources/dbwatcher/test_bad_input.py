"""What is wrong with messages: each fault is one clear error, nothing behind it is lost, and nothing doubled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.files import split, split_pieces
from penstock.history import HistoryError
from penstock.position import START, Scn
from penstock.sources.dbwatcher.numbers import MissingMessagesError
from tests.sources.dbwatcher.messages import CONTENT, CREATE, OPEN, cols, message, row
from tests.sources.dbwatcher.test_source import Folder, insert, put_in, read

GOOD = message("8", put_in(8, 21, "8"))

ENTITY = (
    '<?xml version="1.0"?><!DOCTYPE sql [{}]><sql><desc><command>REPLICATION</command><ident>&x;</ident></desc></sql>'
)

BOMB = "".join(f'<!ENTITY x{n} "{f"&x{n - 1};" * 10}">' for n in range(1, 10))

BAD: dict[str, tuple[bytes, str]] = {
    "cut in an element": (GOOD.encode()[:-40], "the message is not XML"),
    "cut in the declaration": (GOOD.encode()[:10], "the message is not XML"),
    "empty": (b"", "the message is not XML"),
    "bytes": (bytes(range(256)), "the message is not XML"),
    "other root": (b"<html><body/></html>", "not <sql>"),
    "element never closed": (GOOD.encode().replace(b"</row>", b""), "the message is not XML"),
    "external entity": (
        ENTITY.format('<!ENTITY x SYSTEM "file:///etc/passwd">').encode(),
        "declares a document type; no entity is resolved",
    ),
    "parameter entity": (
        ENTITY.format('<!ENTITY % x SYSTEM "http://127.0.0.1/x"> %x;').encode(),
        "declares a document type; no entity is resolved",
    ),
    "entity bomb": (
        ENTITY.format(f'<!ENTITY x0 "ha">{BOMB}<!ENTITY x "&x9;">').encode(),
        "declares a document type; no entity is resolved",
    ),
    "entity that is not declared": (GOOD.replace(">8<", ">&x;<", 1).encode(), "the message is not XML"),
    "base64 of another alphabet": (
        message("8", row("INSERT", '<col name="name" encoding="base64">AP-_</col>', 21, "8")).encode(),
        "not padded Base64 of the standard alphabet",
    ),
    "base64 without padding": (
        message("8", row("INSERT", '<col name="name" encoding="base64">c2VjcmV0cw</col>', 21, "8")).encode(),
        "not padded Base64 of the standard alphabet",
    ),
    "base64 of no text": (
        message("8", row("INSERT", '<col name="name" encoding="base64">/////w==</col>', 21, "8")).encode(),
        "value of column 'name'",
    ),
    "half of a surrogate pair": (
        message("8", row("INSERT", '<col name="name" encoding="base64">7aCA</col>', 21, "8")).encode(),
        "the value of column 'name' has half of a surrogate pair, which is not text",
    ),
    "half of a surrogate pair in an old image": (
        message(
            "8", row("UPDATE", cols(id="8"), 21, "8", old='<col name="name" encoding="base64">7aCA</col>')
        ).encode(),
        "the value of column 'name' has half of a surrogate pair, which is not text",
    ),
    "insert without columns": (
        message("8", row("INSERT", "", 21, "8")).encode(),
        "the new row of an INSERT has no columns",
    ),
    "update without columns": (
        message("8", row("UPDATE", "", 21, "8", old=cols(id="8"))).encode(),
        "the new row of an UPDATE has no columns",
    ),
    "an action twice": (
        GOOD.replace("INSERT</attr>", "INSERT</attr><attr name='action'>secret</attr>").encode(),
        "attribute 'action' is there twice",
    ),
    "unknown encoding": (
        message("8", row("INSERT", '<col name="name" encoding="rot13">frperg</col>', 21, "8")).encode(),
        "the encoding 'rot13' is not base64 or forcePlain",
    ),
    "unknown charset": (
        message(
            "8", row("INSERT", '<col name="name" encoding="base64" charset="klingon">AA==</col>', 21, "8")
        ).encode(),
        "the charset 'klingon' is not known",
    ),
    "latin-1 that says it is UTF-8": (
        message("8", row("INSERT", '<col name="name">é</col>', 21, "8")).encode("latin-1"),
        "the message is not XML",
    ),
    "UTF-16 that says it is UTF-8": (GOOD.encode("utf-16-le"), "the message is not XML"),
    "control character": (GOOD.replace(">8<", ">\x01<", 1).encode(), "the message is not XML"),
    "U+0000": (GOOD.replace(">8<", ">&#x0;<", 1).encode(), "the message is not XML"),
    "two roots": (GOOD.encode() + b"<sql/>", "the message is not XML"),
}


@pytest.mark.parametrize("why", BAD)
def test_a_fault_is_one_error_and_what_follows_is_applied_once_it_is_mended(tmp_path: Path, why: str) -> None:
    bad, said = BAD[why]
    folder = Folder(tmp_path, CREATE, message("7", put_in(7, 20, "7")))
    (tmp_path / "000003.xml").write_bytes(bad)
    (tmp_path / "000004.xml").write_text(message("9", put_in(9, 30, "9")))

    messages = folder.open()
    part = messages.next_slice(Scn(0))
    assert part is not None
    assert part.commit_scns.tolist() == [2]
    with pytest.raises(MalformedInputError) as raised:
        messages.next_slice(Scn(2))

    assert said in str(raised.value)
    assert f"{tmp_path}/000003.xml" in str(raised.value)
    assert raised.value.do
    assert "\n" not in str(raised.value)
    assert not any(secret in str(raised.value) for secret in ("secret", "frperg", "passwd"))
    (tmp_path / "000003.xml").write_text(GOOD)
    assert read(folder.open(), Scn(2)) == [[insert(8)], [insert(9)]]


@pytest.mark.parametrize(
    "text",
    [
        message("8", row("INSERT", cols(id="8", name="é€😀"), 21, "8")).encode("utf-8-sig"),
        message("8", row("INSERT", cols(id="8", name="é€😀"), 21, "8")).replace("UTF-8", "UTF-16").encode("utf-16"),
        message("8", row("INSERT", '<col name="id">8</col><col name="name">é&#x20AC;&#x1F600;</col>', 21, "8"))
        .replace("UTF-8", "ISO-8859-1")
        .encode("latin-1"),
        message("8", row("INSERT", '<col name="id" x="1">8</col><col name="name">é€😀</col><new/>', 21, "8"))
        .replace("<row num='0'>", "<row num='what' more='x'>")
        .encode(),
    ],
    ids=["BOM", "UTF-16", "latin-1", "unknown elements and attributes"],
)
def test_what_a_message_declares_itself_to_be_is_read_so(tmp_path: Path, text: bytes) -> None:
    folder = Folder(tmp_path, CREATE)
    (tmp_path / "000002.xml").write_bytes(text)

    assert read(folder.open()) == [[("insert", None, {"id": "8", "name": "é€😀"})]]


def numbered(number: int, *keys: int, txn: str = "", more: str = "") -> str:
    name = txn or str(number)
    return message(
        name, *(put_in(key, key, name) for key in keys), desc=f"<attr name='_MESSAGE_SEQ'>{number}</attr>{more}"
    )


def test_a_gap_between_the_numbers_of_messages_stops_there_until_they_come(tmp_path: Path) -> None:
    folder = Folder(tmp_path, CREATE, numbered(5, 10), numbered(6, 11), numbered(9, 14))
    messages = folder.open()

    part = messages.next_slice(Scn(0))
    assert part is not None
    assert part.commit_scns.tolist() == [2, 3]
    with pytest.raises(MissingMessagesError) as raised:
        messages.next_slice(Scn(3))

    assert "messages 7 to 8 are missing: 2 messages with these numbers (_MESSAGE_SEQ) never came" in str(raised.value)
    assert f"{tmp_path}/000004.xml" in str(raised.value)
    (tmp_path / "000004.xml").unlink()
    folder = Folder(tmp_path)
    for number, text in enumerate((numbered(7, 12), numbered(8, 13), numbered(9, 14)), 4):
        folder.put(text, name=f"{number:06}.xml")
    assert read(folder.open(), Scn(3)) == [[insert(key)] for key in (12, 13, 14)]


def content(counter: int) -> str:
    """The message with some rows of what table t contains."""
    return CONTENT.format(counter=counter, rows=f"<row num='0'>{cols(id=str(counter))}</row>")


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([CREATE, content(1), content(3)], "message 2 of the content of table public.t is missing"),
        ([content(3), GOOD], "messages 1 to 2 of the content of table public.t are missing"),
        ([CREATE, content(2), content(1)], "message 1 of the content of table public.t is missing"),
    ],
)
def test_a_message_of_a_tables_content_is_missed_by_its_counter(
    tmp_path: Path, texts: Sequence[str], said: str
) -> None:
    with pytest.raises(MissingMessagesError, match=rf"{said}.*\(_createCounter\).*[0-9]\.xml"):
        read(Folder(tmp_path, *texts).open(), Scn(1) if texts[1] == content(1) else START)


def test_content_that_is_sent_again_or_put_aside_is_not_missing(tmp_path: Path) -> None:
    texts = [CREATE, content(1), CREATE, content(1), content(2), content(3)[:-30], content(4), content(3)]
    messages = Folder(tmp_path, *texts, content(5), puts_aside=True).open()

    found = [one for one in read(messages) if one[0][0] != "gap"]

    assert found == [[insert(number)] for number in (1, 2, 4, 3, 5)]


def test_a_gap_is_accepted_if_the_file_says_so(tmp_path: Path) -> None:
    folder = Folder(tmp_path, CREATE, numbered(5, 10), numbered(9, 14), accepts_missing=True)

    assert read(folder.open()) == [[insert(10)], [insert(14)]]
    folder.put(content(7))
    assert read(folder.open()) == [[insert(10)], [insert(14)], [insert(7)]]


def test_numbers_that_are_sent_again_are_no_gap(tmp_path: Path) -> None:
    again = [numbered(6, 11), numbered(7, 12)]
    folder = Folder(
        tmp_path,
        CREATE,
        numbered(5, 10),
        *again,
        *again,
        numbered(8, 13),
        # It numbers what it sends again behind what it has sent.
        message("5", put_in(10, 10, "5"), desc="<attr name='_MESSAGE_SEQ'>9</attr>"),
        numbered(10, 14),
    )

    assert read(folder.open()) == [[insert(key)] for key in (10, 11, 12, 13, 14)]


@pytest.mark.parametrize("first", [1, 6, 7])
def test_a_number_of_another_message_stops_the_run_unless_the_file_says_so(tmp_path: Path, first: int) -> None:
    other = message("b", put_in(100, 100, "b"), desc=f"<attr name='_MESSAGE_SEQ'>{first}</attr>")
    texts = [CREATE, numbered(5, 10), numbered(6, 11), numbered(7, 12), other, numbered(8, 13)]
    folder = Folder(tmp_path, *texts)

    with pytest.raises(
        MissingMessagesError, match=rf"message {first} \(_MESSAGE_SEQ\) comes when message 7 came already, and"
    ):
        read(folder.open())

    folder = Folder(tmp_path, *texts, accepts_missing=True)
    assert read(folder.open()) == [[insert(key)] for key in (10, 11, 12, 100, 13)]


def test_a_message_that_comes_twice_does_not_begin_its_transaction_anew(tmp_path: Path) -> None:
    first, second = numbered(5, 10, txn="8", more=OPEN), numbered(6, 11, txn="8", more=OPEN)
    folder = Folder(tmp_path, CREATE, first, second, first, numbered(7, 12, txn="8"))

    assert read(folder.open()) == [[insert(10), insert(11), insert(12)]]


def test_a_message_that_was_put_aside_may_come_again_mended(tmp_path: Path) -> None:
    broken = numbered(6, 11)[:-30], numbered(7, 12).replace("INSERT", "EXPLODE")
    folder = Folder(tmp_path, CREATE, numbered(5, 10), *broken, numbered(8, 13), puts_aside=True)
    folder.put(numbered(6, 11), numbered(7, 12), numbered(9, 14))

    found = [one for one in read(folder.open()) if one[0][0] != "gap"]

    assert found == [[insert(key)] for key in (10, 13, 11, 12, 14)]


def test_a_message_that_is_put_aside_is_not_missing(tmp_path: Path) -> None:
    broken = [numbered(6, 11)[:-30], "no number in it", numbered(8, 13).replace("INSERT", "EXPLODE")]
    folder = Folder(tmp_path, CREATE, numbered(5, 10), *broken, numbered(9, 14), numbered(12, 17), puts_aside=True)
    messages = folder.open()

    with pytest.raises(MissingMessagesError, match="messages 10 to 11 are missing"):
        read(messages)

    part = messages.next_slice(Scn(0))
    assert part is not None
    assert part.commit_scns.tolist() == [2, 3, 4, 5, 6]


def test_messages_of_a_transaction_in_another_order_are_refused(tmp_path: Path) -> None:
    parts = [
        message("8", put_in(1, 20, "8"), desc=OPEN),
        message("8", put_in(2, 21, "8"), desc=OPEN),
        message("8", put_in(3, 22, "8")),
    ]
    for number, order in enumerate([(1, 0, 2), (2, 0, 1), (0, 2, 1)]):
        (path := tmp_path / str(number)).mkdir()
        folder = Folder(path, CREATE, *(parts[at] for at in order))

        with pytest.raises(HistoryError, match="transaction 8 came before") as raised:
            read(folder.open())
        assert raised.value.do
    # Twice in their order they are one transaction.
    (path := tmp_path / "twice").mkdir()
    assert read(Folder(path, CREATE, *parts, *parts).open()) == [[insert(1), insert(2), insert(3)]]


PEAK = """
import resource, sys
from pathlib import Path
from penstock.errors import MalformedInputError
from penstock.position import START
from penstock.sources.dbwatcher.folder import FolderMessages
from penstock.sources.dbwatcher.reading import Reading
from penstock.sources.dbwatcher.source import Messages
from penstock.storage import LocalStorage

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
messages = Messages(FolderMessages(LocalStorage(Path(sys.argv[1]))), ["public.*"], Reading())
after = START
try:
    while (part := messages.next_slice(after)) is not None:
        after = part.end
except MalformedInputError as exc:
    print(exc)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_message_of_a_gigabyte_is_refused_without_much_memory(tmp_path: Path) -> None:
    """Takes some seconds, most of them to look through the file."""
    begin, _, end = message("8", row("INSERT", cols(id="8", name="HERE"), 21, "8")).encode().partition(b"HERE")
    Folder(tmp_path, CREATE, message("7", put_in(7, 20, "7")))
    with (tmp_path / "000003.xml").open("wb") as file:
        file.write(begin)
        # A hole, which takes no room on the disk.
        file.seek(1 << 30)
        file.write(end + b"\n" + message("9", put_in(9, 30, "9")).encode())

    told = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout

    why, peak_kb = told.splitlines()
    assert "the message has more than 67,108,864 bytes" in why
    assert "000003.xml, message 1" in why
    assert int(peak_kb) < 300_000


PARTS = [b"<?xml ?><sql>", b"</sql>", b"</SQL>\n", b"<![CDATA[", b"]]>", b"<!--", b"-->", b" ", b"x", b"\n<?xml ?>"]


@given(st.lists(st.sampled_from([*PARTS, b"y" * 5000]), max_size=30), st.integers(1, 40))
def test_a_file_that_comes_in_pieces_is_taken_apart_alike(parts: list[bytes], size: int) -> None:
    content = b"<?xml ?><sql>" + b"".join(parts) + b"</sql>"
    # What is opened and not closed is no XML, however it is taken apart.
    for opening, closing in ((b"<![CDATA[", b"]]>"), (b"<!--", b"-->")):
        assume(content.rfind(closing) >= content.rfind(opening))
    pieces = [content[at : at + size] for at in range(0, len(content), size)]

    assert list(split_pieces(pieces, 1 << 20)) == split(content)
    assert list(split_pieces(pieces, 3)) == [body[:4] for body in split(content)]
