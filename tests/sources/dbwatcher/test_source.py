"""Messages put together to transactions, without a target."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import change as c
from penstock.apply.apply_errors import ApplyError
from penstock.apply.ddl import alteration
from penstock.change import Change, Op, TableName
from penstock.errors import MalformedInputError, OperatorError, PenstockError
from penstock.history import HistoryError
from penstock.position import START, Scn
from penstock.schema import TableSchema
from penstock.sources.dbwatcher.config import DbWatcherConfig
from penstock.sources.dbwatcher.folder import FolderMessages
from penstock.sources.dbwatcher.reading import Reading
from penstock.sources.dbwatcher.source import MessageConnector, Messages
from penstock.storage import LocalStorage
from tests.sources.dbwatcher.messages import CONTENT, CREATE, OPEN, cols, ddl, message, row

T = TableName("public", "t")


class Folder:
    def __init__(self, path: Path, *messages: str, **reading: Any) -> None:
        self.path = path
        self.reading = Reading(**reading)
        self.declared: Mapping[TableName, TableSchema] = {}
        self._files = 0
        self.put(*messages)

    def put(self, *messages: str, name: str | None = None) -> None:
        """Add a file for each message."""
        for one in messages:
            self._files += 1
            (self.path / (name or f"{self._files:06}.xml")).write_text(one)

    def open(self) -> Messages:
        """What a process reads that has just begun."""
        log = FolderMessages(LocalStorage(self.path))
        return Messages(log, ["public.*"], self.reading, declared=self.declared)


def read(messages: Messages, after: Scn = START) -> list[list[tuple[Any, ...]]]:
    """The changes of each transaction, as tasks read them: op, before, after."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    while (part := messages.next_slice(after)) is not None:
        reader = pickle.loads(pickle.dumps(messages.readable))
        batches = list(reader.read(pickle.loads(pickle.dumps(part))))
        for one in pa.Table.from_batches(batches, c.ARROW_SCHEMA).to_pylist():
            told = (one[c.OP], *(json.loads(one[name] or "null") for name in (c.BEFORE, c.AFTER)))
            found.setdefault(one[c.COMMIT_SCN], []).append(told)
        after = part.end
    return list(found.values())


def insert(id_: int) -> tuple[Any, ...]:
    return ("insert", None, {"id": str(id_)})


def put_in(id_: int, key: int, txn: str) -> str:
    return row("INSERT", cols(id=str(id_)), key, txn)


def test_a_message_is_a_transaction_and_those_that_keep_it_open_are_one(tmp_path: Path) -> None:
    folder = Folder(
        tmp_path,
        CREATE,
        message("7", put_in(1, 10, "7"), put_in(2, 12, "7")),
        message("8", put_in(3, 13, "8"), desc=OPEN),
        # Another one is complete meanwhile.
        message("9", put_in(4, 14, "9")),
        message("8", row("UPDATE", cols(id="3", name="x"), 15, "8", old=cols(id="3", name=None))),
        message("10", put_in(5, 16, "10"), desc=OPEN),
        # It ends without another row.
        message("10"),
    )

    assert read(folder.open()) == [
        [insert(1), insert(2)],
        [insert(4)],
        [insert(3), ("update", {"id": "3", "name": None}, {"name": "x"})],
        [insert(5)],
    ]


def test_a_transaction_whose_end_has_not_come_waits_for_it(tmp_path: Path) -> None:
    folder = Folder(tmp_path, CREATE, message("8", put_in(3, 13, "8"), desc=OPEN))
    messages = folder.open()
    assert read(messages) == []

    folder.put(message("8", put_in(4, 14, "8")))

    assert read(messages) == [[insert(3), insert(4)]]


def test_what_was_sent_again_is_left_out_however_it_is_cut(tmp_path: Path) -> None:
    seven = message("7", put_in(1, 10, "7"), put_in(2, 12, "7"))
    eight = [message("8", put_in(3, 13, "8"), desc=OPEN), message("8", put_in(4, 14, "8"))]
    folder = Folder(
        tmp_path,
        CREATE,
        seven,
        eight[0],
        # The watcher begins anew.
        seven,
        eight[0],
        # One message comes twice.
        eight[0],
        *eight,
        # The same in one message, and in other pieces.
        message("8", put_in(3, 13, "8"), put_in(4, 14, "8")),
        message("7", put_in(1, 10, "7"), desc=OPEN),
        message("7", put_in(2, 12, "7")),
        # The second of three messages comes twice.
        message("20", put_in(6, 30, "20"), desc=OPEN),
        message("20", put_in(7, 31, "20"), desc=OPEN),
        message("20", put_in(7, 31, "20"), desc=OPEN),
        message("20", put_in(8, 32, "20")),
        # Two transactions in a message, one of them known.
        message("7", put_in(1, 10, "7"), put_in(2, 12, "7"), put_in(5, 15, "9")),
    )

    behind = [[insert(3), insert(4)], [insert(6), insert(7), insert(8)], [insert(5)]]
    assert read(folder.open()) == [[insert(1), insert(2)], *behind]
    assert read(folder.open(), Scn(2)) == behind


def test_a_late_commit_with_lower_keys_and_a_torn_transaction_are_read(tmp_path: Path) -> None:
    folder = Folder(
        tmp_path,
        CREATE,
        message("9", put_in(1, 20, "9")),
        message("8", put_in(2, 10, "8")),
        # A watcher that goes by the order of keys sends what took turns in several messages.
        message("9", put_in(3, 30, "9")),
    )

    assert read(folder.open()) == [[insert(1)], [insert(2)], [insert(3)]]


@pytest.mark.parametrize(
    "other",
    [
        message("7", put_in(9, 10, "7"), put_in(2, 12, "7")),
        message("7", put_in(1, 10, "7")),
        message("7", put_in(3, 11, "7")),
        message("7", row("INSERT", cols(id="1", name=None), 10, "7"), put_in(2, 12, "7")),
    ],
)
def test_a_transaction_with_the_name_of_another_one_is_refused(tmp_path: Path, other: str) -> None:
    folder = Folder(tmp_path, CREATE, message("7", put_in(1, 10, "7"), put_in(2, 12, "7")), other)
    messages = folder.open()

    with pytest.raises(HistoryError, match=r"transaction 7 came before .*000003\.xml"):
        read(messages)

    assert messages.end() == 3


def test_rows_without_keys_are_never_taken_for_repeats(tmp_path: Path) -> None:
    plain = message("t", f"<row num='0'>{cols(id='1')}</row>", desc="<attr name='action'>INSERT</attr>" + NAMED)
    folder = Folder(tmp_path, CREATE, plain, plain)

    assert read(folder.open()) == [[insert(1)], [insert(1)]]


NAMED = "<attr name='tableName'>t</attr>"


def test_a_file_may_hold_several_messages_whatever_their_values_hold(tmp_path: Path) -> None:
    odd = row("INSERT", '<col name="id">2</col><col name="name"><![CDATA[</sql>\n<?xml ?><a>]]></col>', 11, "8")
    folder = Folder(tmp_path, CREATE)
    folder.put("\n".join([message("7", put_in(1, 10, "7")), message("8", odd), message("9", put_in(3, 12, "9"))]))
    messages = folder.open()

    found = read(messages)

    assert found == [[insert(1)], [("insert", None, {"id": "2", "name": "</sql>\n<?xml ?><a>"})], [insert(3)]]
    assert read(messages, Scn(3)) == found[2:]
    proof = messages.proof_at(Scn(3))
    folder.open().hold_against(proof, Scn(3))


def test_files_that_penstock_publishes_are_read(tmp_path: Path) -> None:
    # Each ends with the position of its pipeline; the first one holds nothing else.
    position = '\n<!-- penstock.shop.position [["shop", {"at": 7}]] -->\n'
    folder = Folder(tmp_path)
    folder.put(message("penstock.shop.position") + position, name=f"{1:020}.xml")
    copied = "\n".join([CREATE, message("7", put_in(1, 10, "7"))])
    folder.put(copied + position, name=f"{2:020}.xml")
    folder.put(message("8", put_in(2, 11, "8")) + position, name=f"{3:020}.xml")

    assert read(folder.open()) == [[insert(1)], [insert(2)]]


def test_the_content_of_a_table_is_its_first_rows_and_replaces_them_when_it_comes_again(tmp_path: Path) -> None:
    content = CONTENT.format(counter=1, rows=f"<row num='0'>{cols(id='1')}</row><row num='1'>{cols(id='2')}</row>")
    again = [text.replace("0.1", "0.2").replace("'replKey'>1<", "'replKey'>5<") for text in (CREATE, content)]
    folder = Folder(tmp_path, CREATE, content, message("7", put_in(3, 10, "7")), CREATE, content, *again)

    assert read(folder.open()) == [
        [insert(1), insert(2)],
        [insert(3)],
        [("truncate", None, None)],
        [insert(1), insert(2)],
    ]


def test_a_table_is_read_by_the_definition_that_counts_there(tmp_path: Path) -> None:
    stamp = cols(id="1", ts="2024-01-02 03:04:05.678")
    wider = CREATE.replace("'timestamp'", "'text'").replace("sqlType='93'", "sqlType='12'").replace("0.1", "0.2")
    folder = Folder(
        tmp_path,
        CREATE,
        message("7", row("INSERT", stamp, 10, "7")),
        wider,
        message("8", row("INSERT", stamp, 11, "8")),
    )
    messages = folder.open()

    first, altered, second = read(messages)

    assert first == [("insert", None, {"id": "1", "ts": "2024-01-02T03:04:05.678000"})]
    assert second == [("insert", None, {"id": "1", "ts": "2024-01-02 03:04:05.678"})]
    assert [op for op, *_ in altered] == ["truncate", "ddl"]
    # Its rows are gone, so the difference is all that there is to it.
    assert "unlike" not in altered[1][1]
    assert told_of(altered[1][1]) == ["ts made string"]
    assert [version.table.version for version in messages.tables()] == [2, 3]
    (part,) = [messages.next_slice(Scn(2))]
    assert part is not None
    assert part.has_ddl
    assert part.until_ddl().commit_scns.tolist() == [3]


def told_of(image: Mapping[str, Any]) -> list[str]:
    """What a change of DDL has a table of the target altered by."""
    found = alteration(Change(0, Op.DDL, T, 2, image, None))
    return [
        *(f"{old} renamed {new}" for old, new in found.renamed),
        *(f"{name} dropped" for name in found.dropped),
        *(f"{one.name} added ({one.type})" + (f" = {one.filled}" if one.filled else "") for one in found.added),
        *(f"{one.name} made {one.type}" for one in found.retyped),
        *(f"{name} nullable {is_nullable}" for name, is_nullable in found.nullable),
        *(f"{name}: {why}" for name, why in found.unclear.items()),
    ]


ID = "<colname type='int4' nullable='0' sqlType='4' pos='1' pk='true' pkName='t_pk'{}>id</colname>"
NAME = "<colname type='varchar' nullable='1' charLength='{}' sqlType='12' pos='2'{}>{}</colname>"
CITY = "<colname type='text' nullable='1' sqlType='12' pos='3'{}>city</colname>"

SHORT = CREATE[: CREATE.index("     <colname type='numeric'")] + CREATE[CREATE.index("     <attr name='action'") :]
"""The CREATE of a table with id and name."""


def altered(*columns: str, key: int = 21, txn: str = "8", more: str = "") -> str:
    return ddl("ALTER", txn, key, more="".join(columns) + more)


@pytest.mark.parametrize(
    ("columns", "does"),
    [
        # As Penstock writes them.
        (
            [ID.format(" was='id'"), NAME.format(40, " was='name'", "name"), CITY.format(" was=''")],
            ["city added (string)"],
        ),
        (
            [ID.format(" was='id'"), NAME.format(40, " was='name'", "nm"), CITY.format(" was='' filled='Uster'")],
            ["name renamed nm", "city added (string) = Uster"],
        ),
        # A column of the name, and another one all the same.
        ([ID.format(" was='id'"), NAME.format(40, " was=''", "name")], ["name dropped", "name added (string(40))"]),
        (
            [ID.format(" was='id'"), NAME.format(9, " was='name' unclear='became text by an expression'", "name")],
            ["name made string(9)", "name: became text by an expression"],
        ),
        # Names alone: a difference in one direction is clear.
        ([ID.format(""), NAME.format(40, "", "name"), CITY.format("")], ["city added (string)"]),
        ([ID.format("")], ["name dropped"]),
        (
            [ID.format(""), NAME.format(80, "", "name").replace("nullable='1'", "nullable='0'")],
            ["name made string(80)", "name nullable False"],
        ),
    ],
)
def test_what_an_alter_with_columns_says_is_told_from_the_description_before(
    tmp_path: Path, columns: list[str], does: list[str]
) -> None:
    folder = Folder(tmp_path, SHORT, message("7", put_in(1, 10, "7")), altered(*columns))

    _, ((_, image, _),) = read(folder.open())

    assert told_of(image) == does
    assert (image["was_version"], image["is_version"]) == ("2", "3")


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ([ID.format(""), CITY.format("")], "does not say whether 'name' became 'city', or was dropped"),
        ([ID.format(" was='id'"), CITY.format(" was='town'")], "speaks of 'town', which the description before"),
    ],
)
def test_an_alter_that_can_be_read_in_two_ways_is_left_to_a_person(
    tmp_path: Path, columns: list[str], why: str
) -> None:
    folder = Folder(tmp_path, SHORT, message("7", put_in(1, 10, "7")), altered(*columns))

    _, ((_, image, _),) = read(folder.open())

    assert why in image["unlike"]
    with pytest.raises(ApplyError, match="alter the table at the target"):
        alteration(Change(0, Op.DDL, T, 2, image, None))


def test_rows_behind_an_alter_are_read_by_its_columns_also_where_it_comes_again(tmp_path: Path) -> None:
    stamp = "<colname type='timestamp' nullable='1' sqlType='93' pos='3' was=''>ts</colname>"
    change = altered(ID.format(" was='id'"), NAME.format(40, " was='name'", "nm"), stamp, key=21, more=OPEN)
    before = message("8", put_in(1, 20, "8"), desc=OPEN)
    end = message("8", row("INSERT", cols(id="2", nm="b", ts="2024-01-02 03:04:05"), 22, "8"))
    back = altered(ID.format(" was='id'"), NAME.format(40, " was='nm'", "name"), key=30, txn="9")
    # The watcher dies between the ALTER and the end, and sends all of it again, and once more later.
    folder = Folder(tmp_path, SHORT, before, change, before, change, end, back, before, change, end)
    folder.put(message("10", row("INSERT", cols(id="3", name="c"), 40, "10")))
    messages = folder.open()

    first, second, third = read(messages)

    assert [op for op, *_ in first] == ["insert", "ddl", "insert"]
    assert told_of(first[1][1]) == ["name renamed nm", "ts added (timestamp)"]
    assert first[2][2] == {"id": "2", "nm": "b", "ts": "2024-01-02T03:04:05.000000"}
    assert told_of(second[0][1]) == ["nm renamed name", "ts dropped"]
    assert third == [("insert", None, {"id": "3", "name": "c"})]
    assert [version.table.column_names for version in messages.tables()] == [
        ["id", "name"],
        ["id", "nm", "ts"],
        ["id", "name"],
    ]


def test_an_alter_of_a_table_that_the_file_declares_or_only_the_target_has(tmp_path: Path) -> None:
    more = altered(ID.format(" was='id'"), NAME.format(40, " was='name'", "name"), CITY.format(" was=''"))
    folder = Folder(tmp_path, message("7", put_in(1, 10, "7")), more)
    said = {"tables": {"public.t": {"columns": {"id": "integer", "name": "string(40)"}, "key": ["id"]}}}
    known = DbWatcherConfig.model_validate(said).declared

    at_target = Messages(FolderMessages(LocalStorage(tmp_path)), ["public.*"], Reading(), describe=lambda: known)
    _, ((_, image, _),) = read(at_target)
    folder.declared = known
    _, ((_, declared, _),) = read(folder.open())

    assert told_of(image) == ["city added (string)"]
    assert "the pipeline file declares the table" in declared["unlike"]


def test_ddl_in_the_middle_of_a_transaction_belongs_to_it(tmp_path: Path) -> None:
    folder = Folder(
        tmp_path,
        CREATE,
        message("8", put_in(1, 20, "8"), desc=OPEN),
        ddl("ALTER", "8", 21, more=OPEN),
        message("8", put_in(2, 22, "8")),
        ddl("TRUNCATE", "9", 23),
        ddl("DROP", "10", 24),
    )

    found = read(folder.open())

    assert [[op for op, *_ in one] for one in found] == [["insert", "ddl", "insert"], ["truncate"], ["ddl"]]
    assert found[0][1][1]["unlike"].startswith("the message does not say what was altered: alter the table")
    assert found[2][0][1]["is"] is None
    assert json.loads(found[2][0][1]["was"])["name"] == "t"


def test_a_table_begins_without_rows_where_it_is_created_and_where_it_comes_again(tmp_path: Path) -> None:
    again = CREATE.replace("0.1", "0.2").replace("'replKey'>1<", "'replKey'>25<")
    late = CREATE.replace(">t<", ">u<").replace("0.1", "0.3").replace("'replKey'>1<", "'replKey'>26<")
    drop = ddl("DROP", "10", 24)
    folder = Folder(
        tmp_path,
        CREATE,
        message("8", put_in(1, 20, "8")),
        drop,
        again,
        message("9", put_in(1, 27, "9")),
        late,
        message("11", put_in(2, 28, "11")),
        # What is sent again begins nothing.
        drop,
        CREATE,
        again,
        late,
    )
    source = MessageConnector(folder.open())
    tables = [T, TableName("public", "u"), TableName("public", "nothing")]

    def copies(position: int) -> list[tuple[int, list[str]]]:
        found = source.copies_at(tables, Scn(position))
        return [(int(copy.cut.scn), sorted(table.name for table in copy.tables)) for copy in found]

    assert [copies(position) for position in (0, 2, 3, 4, 5, 20)] == [
        [(0, ["t"])],
        [(0, ["t"])],
        [(3, ["t"])],
        [(3, ["t"])],
        [(3, ["t"]), (5, ["u"])],
        [(3, ["t"]), (5, ["u"])],
    ]
    assert source.first_copies(tables) == {T: 0, TableName("public", "u"): 5}
    ids = {copy.id for position in (0, 3) for copy in source.copies_at([T], Scn(position))}
    assert len(ids) == 2
    # Copies take their places between slices.
    ends, after = [], START
    while (part := folder.open().next_slice(after)) is not None:
        after = part.end
        ends.append(after)
    assert ends == [3, 5, 7]


def test_a_table_is_dropped_until_it_is_created_again(tmp_path: Path) -> None:
    again = CREATE.replace("0.1", "0.2").replace("'replKey'>1<", "'replKey'>25<")
    rest = [message(str(n), put_in(n, n, str(n)).replace(">t<", ">u<")) for n in (21, 22)]
    folder = Folder(tmp_path, CREATE, ddl("DROP", "10", 20), *rest, again)
    source = MessageConnector(folder.open())

    found = [source.copies_at([T], Scn(position)) for position in (0, 1, 2, 3, 4)]

    assert [[sorted(copy.dropped) for copy in copies] for copies in found] == [[[]], [[]], [[T]], [[T]], [[]]]
    assert [int(copy.cut.scn) for copies in found for copy in copies] == [0, 0, 0, 0, 4]


def test_a_declared_table_has_the_declared_types_whatever_create_says(tmp_path: Path) -> None:
    said = {"tables": {"public.t": {"columns": {"id": "string(10)", "ts": "date"}, "key": ["id"]}}}
    folder = Folder(tmp_path, CREATE, message("7", row("INSERT", cols(id="x", ts="2024-01-02"), 10, "7")))
    folder.declared = DbWatcherConfig.model_validate(said).declared
    messages = folder.open()

    assert read(messages) == [[("insert", None, {"id": "x", "ts": "2024-01-02"})]]
    (version,) = messages.tables()
    assert version.table.version == 1
    assert version.table.primary_key is not None
    assert version.table.primary_key.columns == ("id",)


BAD = [
    (message("8", command="EXPLODE"), "the command 'EXPLODE' is not known"),
    (message("8", put_in(1, 21, "8"), row("EXPLODE", cols(id="1"), 22, "8")), "the action 'EXPLODE' of a row"),
    (message("8", put_in(1, 21, "8"), row("INSERT", cols(id="secret"), 22, "8")), "the value of column 'id'"),
    (message("8", row("UPDATE", cols(id="1"), 21, "8")), "an UPDATE has no oldContent"),
    (message("8", put_in(1, 21, "8"))[:-40], "the message is not XML"),
    ("", "the message is not XML"),
    ('<!DOCTYPE sql [<!ENTITY x "y">]><sql/>', "declares a document type"),
    (message("8", put_in(1, 21, "8"), "x" * 20_000), "more than 20,000 bytes"),
    (
        message("8", put_in(1, 21, "8"), desc="<attr name='statement'>DROP TABLE t</attr>", command="STATEMENT"),
        "asks to execute a statement, which is never done",
    ),
    (message("8", put_in(1, 21, "8"), command="DROP"), "1 row, which nobody applies"),
    (message("8", command="INITIAL_DUMP_AS_XML"), "part of a dump, which is not read"),
]


@pytest.mark.parametrize(("bad", "why"), BAD)
def test_a_message_that_is_not_applied_stops_behind_those_before_it(tmp_path: Path, bad: str, why: str) -> None:
    folder = Folder(tmp_path, CREATE, message("7", put_in(7, 20, "7")), bad, most_bytes=20_000)
    folder.put(message("9", put_in(9, 30, "9")))
    messages = folder.open()

    part = messages.next_slice(START)
    assert part is not None
    assert part.commit_scns.tolist() == [2]
    with pytest.raises(MalformedInputError) as raised:
        read(messages)

    assert why in str(raised.value)
    # What is told of the pipeline is that something waits.
    assert [messages.backlog(at).changes for at in (START, Scn(2))] == [2, 1]
    assert f"{tmp_path}/000003.xml" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert messages.end() == 3


@pytest.mark.parametrize(("bad", "why"), BAD)
def test_a_message_that_is_not_applied_is_put_aside_if_the_file_says_so(tmp_path: Path, bad: str, why: str) -> None:
    folder = Folder(tmp_path, CREATE, message("7", put_in(7, 20, "7")), bad, most_bytes=20_000, puts_aside=True)
    folder.put(message("9", put_in(9, 30, "9")))

    first, gap, last = read(folder.open())

    assert (first, last) == ([insert(7)], [insert(9)])
    ((op, image, _),) = gap
    assert op == "gap"
    assert why in image["reason"]
    assert "secret" not in image["reason"]
    assert image["document"] == "000003.xml"


def test_nothing_is_applied_of_a_transaction_one_of_whose_messages_is_put_aside(tmp_path: Path) -> None:
    broken = message("8", row("INSERT", cols(id="x"), 21, "8"), desc=OPEN)
    middle = Folder(tmp_path, CREATE, message("8", put_in(1, 20, "8"), desc=OPEN), broken, puts_aside=True)
    middle.put(message("8", put_in(3, 22, "8")), message("9", put_in(9, 30, "9")))
    (other := tmp_path / "other").mkdir()
    first = Folder(other, CREATE, broken, message("8", put_in(3, 22, "8")), puts_aside=True)
    first.put(message("9", put_in(9, 30, "9")))

    for folder in (middle, first):
        assert [[op for op, *_ in one] for one in read(folder.open())] == [["gap"], ["gap"], ["insert"]]


def test_rows_of_a_statement_are_applied_if_the_file_says_so(tmp_path: Path) -> None:
    said = message("8", put_in(1, 21, "8"), desc="<attr name='statement'>DROP TABLE t</attr>", command="STATEMENT")
    folder = Folder(tmp_path, CREATE, said, applies_statement_rows=True)

    assert read(folder.open()) == [[insert(1)]]


def spoil(folder: Folder, how: str) -> None:
    match how:
        case "below":
            folder.put(message("9", put_in(9, 30, "9")), name="000002a.xml")
        case "gone":
            (folder.path / "000002.xml").unlink()
        case "changed":
            folder.put(message("7", put_in(9, 20, "7")), name="000002.xml")
        case "renamed":
            (folder.path / "000003.xml").rename(folder.path / "000003a.xml")


@pytest.mark.parametrize("how", ["below", "gone", "changed", "renamed"])
def test_files_that_were_read_stay_as_they_are(tmp_path: Path, how: str) -> None:
    folder = Folder(tmp_path, CREATE, message("7", put_in(7, 20, "7")), message("8", put_in(8, 21, "8")))
    messages = folder.open()
    read(messages)
    proof = messages.proof_at(Scn(3))
    folder.open().hold_against(proof, Scn(3))

    spoil(folder, how)

    with pytest.raises(OperatorError):
        folder.open().hold_against(proof, Scn(3))
    if how != "changed":
        with pytest.raises(OperatorError):
            messages.end()


def test_a_file_that_was_read_half_is_told_before_the_next_one_is_read(tmp_path: Path) -> None:
    """Its first half may end behind a message, and the numbers of messages may be missing."""
    folder = Folder(tmp_path, CREATE, message("7", put_in(7, 20, "7")))
    messages = folder.open()
    read(messages)
    with (folder.path / "000002.xml").open("a") as file:
        file.write(message("8", put_in(8, 21, "8")))
    folder.put(message("9", put_in(9, 22, "9")))

    with pytest.raises(HistoryError, match=r"file 000002\.xml was read, and holds something else now"):
        messages.next_slice(messages.end())


def test_files_whose_numbers_have_a_hole_or_another_order_are_refused(tmp_path: Path) -> None:
    one = [message(str(n), put_in(n, n, str(n))) for n in range(3)]
    names: Sequence[Sequence[str]] = [("1.xml", "2.xml", "4.xml"), ("m-9.xml", "m-10.xml"), ("0" * 19 + "2.xml",)]
    for number, some in enumerate(names):
        (path := tmp_path / str(number)).mkdir()
        folder = Folder(path)
        for name, text in zip(some, one, strict=False):
            folder.put(text, name=name)
        with pytest.raises(PenstockError) as raised:
            folder.open().end()
        assert any(why in str(raised.value) for why in ("is missing", "by the order of their names", "are missing"))
