"""`penstock decode dbwatcher`: messages as JSON lines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from penstock.change import TableName
from penstock.cli.main import app
from penstock.errors import ConfigError
from penstock.formats.dbwatcher.tables import Creation, content_messages, create_message
from penstock.formats.dbwatcher.writer import write_message
from penstock.logical import LogicalType
from penstock.schema import Column, TableSchema

T = TableSchema(TableName("public", "t"), (Column.of("id", LogicalType.parse("integer(32)")),))

MESSAGE = b"""<sql><desc><command>REPLICATION</command><ident>4711</ident></desc>
<row><col name="id">1</col><col name="photo" encoding="base64">/w==</col><attr name='oldContent'>&lt;col name="id"&gt;2\
&lt;/col&gt;</attr><attr name='action'>UPDATE</attr><attr name='schema'>public</attr><attr name='tableName'>t</attr>
<attr name='replKey'>7</attr></row></sql>"""


def decode(*arguments: str, sent: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["decode", "dbwatcher", *arguments], input=sent)


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


CHANGE = {
    "command": "REPLICATION",
    "txn_id": "4711",
    "repl_key": 7,
    "change_seq": 0,
    "op": "update",
    "schema_name": "public",
    "table_name": "t",
    "before": {"id": "2"},
    "after": {"id": "1", "photo": "/w=="},
}


@pytest.mark.parametrize("packed", [MESSAGE, gzip.compress(MESSAGE)], ids=["plain", "gzip"])
def test_a_row_is_a_line(tmp_path: Path, packed: bytes) -> None:
    (tmp_path / "7.xml").write_bytes(packed)

    found = decode(str(tmp_path / "7.xml"))

    assert (found.exit_code, lines(found)) == (0, [{"file": str(tmp_path / "7.xml"), **CHANGE}])


def test_messages_one_behind_the_other_are_told_apart_whatever_their_values_hold(tmp_path: Path) -> None:
    values = [" </sql>\n<?xml version='1.0' encoding='UTF-8' ?>\n <sql>", "<!--", "]]>", "-->"]
    creation = Creation(T, 7, "1", 7)
    messages = [create_message(creation), *content_messages(creation, [{"id": v} for v in values], rows_per_message=1)]
    file = tmp_path / f"{1:020}.xml"
    whole = b"\n".join(write_message(message) for message in messages) + b"\n<!-- penstock.shop.position [] -->\n"
    file.write_bytes(whole)

    found = decode(str(file))

    assert (found.exit_code, found.stderr) == (0, "")
    assert [line["op"] for line in lines(found)] == ["ddl", *["content"] * 4]
    assert [line["after"]["id"] for line in lines(found)[1:]] == values

    file.write_bytes(whole.replace(b"<ident>", b"<ident", 1) + b" " * 1_000_000)
    damaged = decode(str(file), "--limit-mb", "1")
    assert damaged.exit_code == 3
    assert len(lines(damaged)) == 3
    assert f"{file}, message 1" in damaged.stderr
    assert "has more than 1 MB, of which the whole messages are printed; raise --limit-mb" in damaged.stderr


def test_standard_input_is_read_and_json_may_be_asked_for() -> None:
    assert lines(decode("-", "--json", sent=MESSAGE)) == [{"file": "-", **CHANGE}]


def test_a_table_that_is_sent_as_a_whole_is_told_from_changes(tmp_path: Path) -> None:
    creation = Creation(T, 7, "X", 8)
    messages = [create_message(creation), *content_messages(creation, [{"id": "1"}])]
    for number, message in enumerate(messages):
        (tmp_path / f"{number}.xml").write_bytes(write_message(message))

    found = lines(decode(str(tmp_path / "0.xml"), str(tmp_path / "1.xml")))

    assert [(line["op"], line["table_name"]) for line in found] == [("ddl", "t"), ("content", "t")]
    assert found[0]["action"] == "CREATE"
    assert found[0]["columns"]["id"]["type"] == "int4"


def test_a_message_that_cannot_be_read_is_named_and_the_others_are_printed(tmp_path: Path) -> None:
    (tmp_path / "1.xml").write_bytes(MESSAGE[:-20])
    (tmp_path / "2.xml").write_bytes(MESSAGE)
    (tmp_path / "3.xml").write_bytes(MESSAGE.replace(b"UPDATE", b"MERGE"))

    found = decode(*(str(tmp_path / f"{number}.xml") for number in (1, 2, 3)))

    assert found.exit_code == 3
    assert [Path(line["file"]).name for line in lines(found)] == ["2.xml"]
    notes = found.stderr.splitlines()
    assert "the message is not XML: " in notes[0]
    assert "1.xml, line 3" in notes[0]
    assert "the action 'MERGE' of a row is not known" in notes[1]
    assert "3.xml, table public.t, row 0, replKey 7" in notes[1]


def test_a_message_above_the_limit_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "1.xml").write_bytes(b"<sql>" + b" " * 1_000_000)

    assert "more than 1,000,000 bytes" in decode(str(tmp_path / "1.xml"), "--limit-mb", "1").stderr
    absent = decode(str(tmp_path / "absent.xml"))
    assert isinstance(absent.exception, ConfigError)


def test_half_of_a_surrogate_pair_is_printed_as_json_escapes_it() -> None:
    found = decode("-", sent=MESSAGE.replace(b"/w==", b"7aCA"))

    assert found.exit_code == 0
    assert "\\ud800" in found.stdout
