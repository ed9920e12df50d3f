"""XDS documents in a folder, applied to a database: what one pipeline has published, and what others put there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.pipeline_file import parse
from tests.lab import Lab
from tests.program import Program
from tests.stories.test_event_log import TABLES, Log, run

FILE = """\
version: 1
name: back
connections:
  copy: {{type: postgres, url: "${{env:COPY_URL}}"}}
capture: {{source: xds, path: {path}, tables: ["indirect.*"]}}
apply: {{connection: copy}}
"""


@pytest.mark.rule("E-19")
def test_documents_are_applied_and_one_that_cannot_be_read_stops_none_beside_it(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "xds"
    folder.mkdir()
    log = Log(lab, folder)
    publication = log.publication(", time_syntax: 3, query_limit: 1")
    publication.setup()
    lab.source.execute(
        "INSERT INTO indirect.usr VALUES (1, 'Ann', '<&>', '\\xaaaa', '2024-01-02 03:04:05.678');"
        "INSERT INTO indirect.usr VALUES (2, 'Bob');"
        "INSERT INTO indirect.usr_phone VALUES (1, '111'), (1, '222'), (2, '999')"
    )
    for type_, key in ((5, "idu=1"), (5, "idu=2")):
        log.write(type_, key)
        run(publication)
    lab.source.execute("DELETE FROM indirect.usr_phone WHERE phoneno IN ('111', '999')")
    lab.source.execute("INSERT INTO indirect.usr_phone VALUES (1, '333')")
    log.write(6, "idu=1")
    log.write(4, "idu=2")
    log.write(2, "idu=3", "fname", "not", "there")
    run(publication)
    # Another product's document, and one that breaks off.
    (folder / "0000000000000000008.xml").write_text('<nds dtdversion="2.0"><input><add class-name="acct">')
    (folder / "0000000000000000009.xml").write_text(
        '<nds dtdversion="2.0"><source/><input><add class-name="acct" event-id="x"><association>\n'
        "num= 07,table=acct,schema=indirect\n</association>"
        '<add-attr attr-name="owner"><value>Zed</value></add-attr></add></input></nds>'
    )
    lab.target.execute(TABLES)
    program = Program(tmp_path, lab.source_url, lab.target_url, name="back")
    (tmp_path / "pipeline.yaml").write_text(FILE.format(path=folder))
    assert program("setup").code == 0

    ended = program("run", "--until-caught-up", "--json")

    assert ended.code == 5, ended.err
    usr = lab.target.execute("SELECT idu, fname, lname, photo, seen::text FROM indirect.usr").fetchall()
    assert usr == [(1, "Ann", "<&>", b"\xaa\xaa", "2024-01-02 03:04:05.678")]
    phones = lab.target.execute("SELECT idu, phoneno FROM indirect.usr_phone ORDER BY phoneno").fetchall()
    assert phones == [(1, "222"), (1, "333")]
    assert lab.target.execute("SELECT * FROM indirect.acct").fetchall() == [(7, "Zed")]
    listed = json.loads(program("errors", "list", "--json").out)
    found = [(entry["txn_id"], entry["error_number"], entry["error_message"]) for entry in listed]
    assert [(name, number) for name, number, _ in found] == [
        ("0000000000000000005.xml", 26787),
        ("0000000000000000008.xml", 26690),
    ], found
    assert found[1][2].startswith("document 0000000000000000008.xml: the document is not XML")
    # It is of no table, and its reason stands there whole.
    assert (listed[1]["table"], listed[1]["op"]) == (None, "gap")
    assert "table" not in listed[1]["error_message"]
    shown = program("errors", "show", listed[1]["id"]).out
    assert "gap of document 0000000000000000008.xml" in shown
    assert shown.count(found[1][2]) == 2
    assert "indirect." not in shown


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("rules: {exclude: [a.b]}\n", "pipeline.yaml:7: rules: rules do not go with capture.source xds"),
        ("publish: {to: files, path: p}\n", "XDS documents are published already; they can be applied"),
    ],
)
def test_what_does_not_go_with_documents_is_refused_with_its_line(more: str, why: str) -> None:
    text = FILE.format(path="xds") + more
    if "publish" in more:
        text = text.replace("apply: {connection: copy}\n", "")

    with pytest.raises(ConfigError) as raised:
        parse(text, name="pipeline.yaml", environment={"COPY_URL": "host=b"})

    assert why in str(raised.value)


def test_documents_need_a_folder_and_no_connection() -> None:
    text = FILE.format(path="xds").replace("path: xds", "connection: copy")

    with pytest.raises(ConfigError) as raised:
        parse(text, name="pipeline.yaml", environment={"COPY_URL": "host=b"})

    assert "capture.path: is missing" in str(raised.value)
    assert "capture.connection: XDS documents are read from capture.path" in str(raised.value)
