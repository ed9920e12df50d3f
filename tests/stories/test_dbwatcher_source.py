"""DbWatcher's messages in a folder, applied to a database, as another product has written them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.pipeline_file import parse
from tests.lab import Lab
from tests.program import Program
from tests.sources.dbwatcher.messages import CONTENT, CREATE, OPEN, cols, ddl, message, row

FILE = """\
version: 1
name: slave
connections:
  copy: {{type: postgres, url: "${{env:COPY_URL}}"}}
capture: {{source: dbwatcher, path: {path}, tables: ["public.*"]{more}}}
apply: {{connection: copy}}
"""

FULL = (
    '<col name="id">1</col><col name="name">first</col><col name="amount">44.500</col>'
    '<col name="ts">2024-01-02 03:04:05.678</col><col name="flag">true</col>'
    '<col name="photo" encoding="base64">AP8Q</col>'
)


class Folder:
    """A folder of messages, and the pipeline that applies them."""

    def __init__(self, lab: Lab, tmp_path: Path, more: str = "") -> None:
        self.path = tmp_path / "messages"
        self.path.mkdir()
        self._files = 0
        self.program = Program(tmp_path, lab.source_url, lab.target_url, name="slave")
        (tmp_path / "pipeline.yaml").write_text(FILE.format(path=self.path, more=more))

    def put(self, *messages: str) -> None:
        for one in messages:
            self._files += 1
            (self.path / f"{self._files:06}.xml").write_text(one)


def test_messages_of_another_product_are_applied_once_with_their_first_copy(lab: Lab, tmp_path: Path) -> None:
    folder = Folder(lab, tmp_path)
    changes = [
        message("7", row("UPDATE", cols(id="3", name=None), 20, "7", old=cols(id="2", name="b"))),
        # One transaction in two messages, and a third one between them that is complete.
        message("8", row("INSERT", FULL, 21, "8"), desc=OPEN),
        message("9", row("DELETE", cols(id="3", name=None), 23, "9")),
        message("8", row("UPDATE", cols(id="1", name="<![CDATA[a<b & c]]>"), 24, "8", old=cols(id="1", name="first"))),
    ]
    folder.put(
        CREATE,
        CONTENT.format(counter=1, rows="".join(f"<row num='{n}'>{cols(id=str(n), name='b')}</row>" for n in (2, 4))),
        CONTENT.format(counter=2, rows=f"<row num='0'>{cols(id='5', name='')}</row>"),
        *changes[:3],
    )
    assert folder.program("setup").code == 0
    first = folder.program("run", "--until-caught-up", "--json")
    assert first.code == 0, first.err
    assert lab.target.execute("SELECT id, name FROM t ORDER BY id").fetchall() == [(4, "b"), (5, "")]

    # A watcher that was started anew sends again what nobody has acknowledged.
    folder.put(*changes[1:3], changes[3], *changes)
    again = folder.program("run", "--until-caught-up", "--json")

    assert again.code == 0, again.err
    rows = lab.target.execute("SELECT id, name, amount::text, ts::text, flag, photo FROM t ORDER BY id").fetchall()
    assert rows == [
        (1, "a<b & c", "44.500", "2024-01-02 03:04:05.678", True, b"\x00\xff\x10"),
        (4, "b", None, None, None, None),
        (5, "", None, None, None, None),
    ]
    types = lab.target.execute(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0"
        " ORDER BY attnum"
    ).fetchall()
    assert [one for (one,) in types] == [
        "integer",
        "character varying(40)",
        "numeric(12,3)",
        "timestamp without time zone",
        "boolean",
        "bytea",
    ]


def test_a_table_that_begins_anew_loses_its_rows_and_gets_its_content(lab: Lab, tmp_path: Path) -> None:
    folder = Folder(lab, tmp_path)
    folder.put(CREATE, CONTENT.format(counter=1, rows=f"<row num='0'>{cols(id='2', name='b')}</row>"))
    assert folder.program("setup").code == 0
    folder.put(message("7", row("INSERT", cols(id="3"), 20, "7")))
    again = CREATE.replace(">1</attr>", ">30</attr>").replace("0.1", "0.2")
    content = CONTENT.replace("<attr name='replKey'>1", "<attr name='replKey'>30").replace("0.1", "0.2")
    folder.put(again, content.format(counter=1, rows=f"<row num='0'>{cols(id='9', name='z')}</row>"))

    ended = folder.program("run", "--until-caught-up")

    assert ended.code == 0, ended.err
    assert lab.target.execute("SELECT id, name FROM t").fetchall() == [(9, "z")]

    # A table that is created later begins there, once setup has made it.
    later = CREATE.replace(">t<", ">u<").replace("t_pk", "u_pk").replace("0.1", "0.3")
    folder.put(later, message("9", row("INSERT", cols(id="1"), 40, "9").replace(">t<", ">u<")))
    refused = folder.program("run", "--until-caught-up")
    assert refused.code == 3
    assert "public.u does not exist at the target" in refused.err
    assert folder.program("setup").code == 0
    assert folder.program("run", "--until-caught-up").code == 0
    assert lab.target.execute("SELECT id FROM u").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (message("8", command="EXPLODE"), "the command 'EXPLODE' is not known"),
        (message("8", row("INSERT", cols(id="secret"), 21, "8")), "the value of column 'id' is not a number"),
    ],
)
def test_a_message_that_is_not_applied_stops_the_run_or_is_put_aside(
    lab: Lab, tmp_path: Path, bad: str, why: str
) -> None:
    folder = Folder(lab, tmp_path)
    folder.put(CREATE, message("7", row("INSERT", cols(id="1"), 20, "7")), bad)
    folder.put(message("9", row("INSERT", cols(id="9"), 30, "9")))
    assert folder.program("setup").code == 0

    stopped = folder.program("run", "--until-caught-up")

    assert stopped.code != 0
    assert why in stopped.err
    assert f"{folder.path}/000003.xml" in stopped.err
    assert "secret" not in stopped.err
    assert lab.target.execute("SELECT id FROM t").fetchall() == [(1,)]
    status = folder.program("status", "--json").json
    assert status["backlog_changes"] == 1
    assert why in status["reason"]

    file = tmp_path / "pipeline.yaml"
    file.write_text(file.read_text().replace('["public.*"]', '["public.*"], dbwatcher: {on_malformed: put_aside}'))
    ended = folder.program("run", "--until-caught-up")

    assert ended.code == 5, ended.err
    assert lab.target.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (9,)]
    (entry,) = json.loads(folder.program("errors", "list", "--json").out)
    assert entry["op"] == "gap"
    assert why in entry["error_message"]
    assert "secret" not in json.dumps(entry)


def test_ddl_in_messages_goes_by_the_policy_of_apply(lab: Lab, tmp_path: Path) -> None:
    folder = Folder(lab, tmp_path)
    folder.put(
        CREATE,
        message("8", row("INSERT", cols(id="1"), 20, "8"), desc=OPEN),
        ddl("ALTER", "8", 21, more=OPEN),
        message("8", row("INSERT", cols(id="2"), 22, "8")),
        ddl("DROP", "9", 23),
        ddl("TRUNCATE", "10", 24),
        message("11", row("INSERT", cols(id="3"), 25, "11")),
    )
    assert folder.program("setup").code == 0

    ended = folder.program("run", "--until-caught-up")

    # Ignored by default: the halves are one transaction, and the table stays.
    assert ended.code == 0, ended.err
    assert lab.target.execute("SELECT id FROM t").fetchall() == [(3,)]

    file = tmp_path / "pipeline.yaml"
    file.write_text(file.read_text().replace("connection: copy}", "connection: copy, ddl: stop}"))
    folder.put(ddl("ALTER", "12", 26), ddl("DROP", "13", 27))
    stopped = folder.program("run", "--until-caught-up")
    assert stopped.code == 3
    assert "the table was altered at the source, and `ddl: stop` ends the run here" in stopped.err

    # What was altered is left to a person; that the table is gone is not.
    file.write_text(file.read_text().replace("ddl: stop", "ddl: apply"))
    dropped = folder.program("run", "--until-caught-up")
    assert dropped.code == 5, dropped.err
    (entry,) = json.loads(folder.program("errors", "list", "--json").out)
    assert "the message does not say what was altered" in entry["error_message"]
    assert lab.target.execute("SELECT to_regclass('t')").fetchone() == (None,)

    assert folder.program("errors", "delete", entry["id"]).code == 0
    folder.put(
        CREATE.replace(">1</attr>", ">30</attr>").replace("0.1", "0.2"),
        message("14", row("INSERT", cols(id="14"), 31, "14")),
    )
    assert folder.program("setup").code == 0
    again = folder.program("run", "--until-caught-up")
    assert again.code == 0, again.err
    assert lab.target.execute("SELECT id FROM t").fetchall() == [(14,)]


def test_runs_go_on_behind_a_table_that_was_dropped_until_it_comes_again(lab: Lab, tmp_path: Path) -> None:
    folder = Folder(lab, tmp_path)
    file = tmp_path / "pipeline.yaml"
    file.write_text(file.read_text().replace("connection: copy}", "connection: copy, ddl: apply}"))
    folder.put(CREATE, CREATE.replace(">t<", ">u<").replace("t_pk", "u_pk").replace("0.1", "0.3"), in_u(1, 11))
    assert folder.program("setup").code == 0
    folder.put(ddl("DROP", "9", 12))
    assert folder.program("run", "--until-caught-up").code == 0

    for key in (13, 14):
        folder.put(in_u(key, key))
        ended = folder.program("run", "--until-caught-up")
        assert ended.code == 0, ended.err
    again = CREATE.replace(">1</attr>", ">20</attr>").replace("0.1", "0.2")
    folder.put(again, in_u(21, 21), message("22", row("INSERT", cols(id="22"), 22, "22")))
    refused = folder.program("run", "--until-caught-up")
    assert "public.t does not exist at the target" in refused.err
    assert folder.program("setup").code == 0
    ended = folder.program("run", "--until-caught-up")

    assert ended.code == 0, ended.err
    assert lab.target.execute("SELECT id FROM u ORDER BY id").fetchall() == [(1,), (13,), (14,), (21,)]
    assert lab.target.execute("SELECT id FROM t").fetchall() == [(22,)]


def in_u(id_: int, key: int) -> str:
    return message(str(key), row("INSERT", cols(id=str(id_)), key, str(key)).replace(">t<", ">u<"))


def test_a_column_that_the_target_lacks_is_named_with_what_to_do(lab: Lab, tmp_path: Path) -> None:
    folder = Folder(lab, tmp_path)
    more = [row("INSERT", cols(id=str(n), city="Uster"), 20 + n, "8") for n in (1, 2)]
    # The original says that the table was altered, and not how.
    folder.put(CREATE, ddl("ALTER", "7", 10), message("8", *more))
    folder.put(message("9", row("INSERT", cols(id="9"), 30, "9")))
    assert folder.program("setup").code == 0

    ended = folder.program("run", "--until-caught-up")

    assert ended.code == 5, ended.err
    (entry,) = json.loads(folder.program("errors", "list", "--json").out)
    assert "column 'city' does not exist at the target: add it there, then retry" in entry["error_message"]
    assert lab.target.execute("SELECT id FROM t").fetchall() == [(9,)]

    lab.target.execute("ALTER TABLE t ADD city text")
    assert folder.program("errors", "retry", entry["id"]).code == 0
    assert lab.target.execute("SELECT id, city FROM t ORDER BY id").fetchall() == [
        (1, "Uster"),
        (2, "Uster"),
        (9, None),
    ]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("publish: {to: files, path: p}\n", "what comes from messages is published already; it can be applied"),
        ("", "capture.dbwatcher.topic: goes with a Kafka cluster"),
    ],
)
def test_what_does_not_go_with_messages_is_refused(more: str, why: str) -> None:
    text = FILE.format(path="m", more="" if more else ", dbwatcher: {topic: t}") + more
    if more:
        text = text.replace("apply: {connection: copy}\n", "")

    with pytest.raises(ConfigError) as raised:
        parse(text, name="pipeline.yaml", environment={"COPY_URL": "host=b"})

    assert why in str(raised.value)
