"""Records of an archive's log: they come back as they were, and any other byte is noticed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from penstock.change import TableName
from penstock.errors import MalformedInputError
from penstock.formats.archive_log import (
    ArchiveRecord,
    CopiedPart,
    DataFile,
    Header,
    TableFile,
    TransactionArrays,
    read_table,
    record_number,
    record_path,
    table_bytes,
)
from penstock.formats.change_file import Encoding
from penstock.history import CaptureOrigin
from penstock.position import Anchor, Scn

NOON = datetime(2024, 1, 2, 12, tzinfo=UTC)
ODD = TableName('a"b', "c.\n")
FILE = DataFile("changes/x.jsonl.gz", Scn(8), Scn(2**60), 2, 5, 100, "0" * 64)
HEADER = Header("id", 'the "shop"', Encoding.PARQUET, NOON)
RECORD = ArchiveRecord(
    number=3,
    archive="id",
    epoch=2,
    previous="1" * 64,
    earlier=1,
    written_at=NOON,
    after=Scn(7),
    end=Scn(2**60),
    origin=CaptureOrigin("set", "server/db/schema"),
    anchor=Anchor(Scn(8), "mark"),
    tables=(TableFile(5, ODD, 2, "tables/t.json", "2" * 64),),
    copies=(CopiedPart(ODD, "c", Scn(3), (FILE,), is_complete=True),),
    files=(FILE,),
    transactions=TransactionArrays(*(np.array(values) for values in ([8, 2**60], [2, 3], [10, 20], [1, 2]))),
)


def test_a_record_comes_back() -> None:
    found = ArchiveRecord.from_bytes(RECORD.to_bytes(), where="r")
    assert len(found.sha256) == 64
    arrays = vars(found.transactions)
    assert {name: array.tolist() for name, array in arrays.items()} == {
        name: array.tolist() for name, array in vars(RECORD.transactions).items()
    }
    assert replace(found, transactions=RECORD.transactions, sha256="") == RECORD


def test_a_record_that_says_nothing_comes_back() -> None:
    empty = ArchiveRecord(1, "id", 1, "p", 0, NOON)
    found = ArchiveRecord.from_bytes(empty.to_bytes(), where="r")
    assert (found.origin, found.anchor, found.tables, found.files, len(found.transactions)) == (None, None, (), (), 0)


def test_no_byte_of_a_record_can_be_another_one() -> None:
    content = RECORD.to_bytes()
    for at in range(len(content)):
        altered = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises(MalformedInputError, match=r"record was cut short or altered \(log/3\)"):
            ArchiveRecord.from_bytes(altered, where="log/3")


def test_no_byte_of_a_record_can_be_missing() -> None:
    content = RECORD.to_bytes()
    for length in range(len(content)):
        with pytest.raises(MalformedInputError, match="cut short or altered"):
            ArchiveRecord.from_bytes(content[:length], where="log/3")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "changes/../../x", "changes/", "changes/.x", "x"])
def test_a_name_that_leads_out_of_the_archive_is_refused(name: str) -> None:
    with pytest.raises(MalformedInputError, match="not a record of a change archive"):
        ArchiveRecord.from_bytes(replace(RECORD, files=(replace(FILE, name=name),)).to_bytes(), where="r")


def test_a_header_comes_back() -> None:
    assert Header.from_bytes(HEADER.to_bytes(), where="h") == HEADER


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"penstock":"something else"}'])
def test_another_file_is_no_header(content: bytes) -> None:
    with pytest.raises(MalformedInputError, match="not the header of a change archive"):
        Header.from_bytes(content, where="h")


def test_an_archive_of_a_later_version_is_refused() -> None:
    later = HEADER.to_bytes().replace(b'"version":1', b'"version":2')
    with pytest.raises(MalformedInputError, match="the archive is of version 2, and only 1 can be read"):
        Header.from_bytes(later, where="h")


def test_a_table_comes_back() -> None:
    assert read_table(table_bytes({"name": "é"}, ODD), where="t") == ({"name": "é"}, ODD)


def test_a_file_that_describes_no_table() -> None:
    with pytest.raises(MalformedInputError, match="does not describe a table"):
        read_table(b'{"definition": 1}', where="t")


def test_only_whole_names_are_records() -> None:
    assert record_path(12) == "log/00000000000000000012.json"
    assert record_number("00000000000000000012.json") == 12
    assert record_number("12.json") is None
    assert record_number(".00000000000000000012.json.f00") is None
