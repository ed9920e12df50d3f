"""The first copy: as of one snapshot, while others write; cut short anywhere; nothing lost, nothing twice."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.apply.lane import ServerConfig
from penstock.apply.listener import CopyListener
from penstock.apply.parameters import OnBadRow
from penstock.change import TableName
from penstock.dialects.postgres.connection import RAW_FORM
from penstock.dialects.postgres.source import copy as postgres_copy
from penstock.dialects.postgres.source.access import PostgresSource
from penstock.dialects.postgres.source.copy import PostgresChunkReader, PostgresCopyOrigin
from penstock.dialects.postgres.target.access import PostgresTarget
from penstock.errors import FencedError, OperatorError, PenstockError, RetryableError, TableError
from penstock.schema import TableSchema
from penstock.snapshot import chunk as chunk_module
from penstock.snapshot.chunk import Chunk, CopySource, bundles
from penstock.snapshot.instantiate import HeldSnapshot, Instantiator, Work
from penstock.snapshot.task import CopyContext, copy_chunks
from tests.lab import Lab, table

ACCOUNTS = """
CREATE TABLE here (id int PRIMARY KEY, bal numeric NOT NULL);
CREATE TABLE there (id int PRIMARY KEY, owner int REFERENCES here, bal numeric NOT NULL);
INSERT INTO here SELECT n, 100 FROM generate_series(1, 30) n;
INSERT INTO there SELECT n, n, 100 FROM generate_series(1, 30) n;
"""

TENS = {"here": [["10"], ["20"]], "there": [["10"], ["20"]], "t": [["10"], ["20"]]}
"""Where tables are cut: three chunks each."""


class Crash(Exception):
    """The process is gone."""


class Quiet:
    """A listener that only counts."""

    def __init__(self) -> None:
        self.chunks = self.rows = 0

    def copying(self, chunks: int, tables: int) -> None:
        """Nobody listens."""

    def copied(self, chunks: int, rows: int) -> None:
        self.chunks += chunks
        self.rows += rows


class CutAt(PostgresCopyOrigin):
    """An origin that cuts tables where the test says."""

    def __init__(self, lab: Lab, cuts: Mapping[str, Sequence[Sequence[str]]]) -> None:
        super().__init__(lab.source_url, lab.set_name)
        self._given = cuts

    def cut_into_chunks(self, tables: Sequence[TableName]) -> list[Chunk]:
        return [chunk for name in tables for chunk in Chunk.between(name, self._given.get(name.name, []))]


@dataclass
class OneByOne:
    """Copies chunk after chunk in this process, with something happening before some of them."""

    context: CopyContext
    before: Mapping[tuple[str, int], Callable[[], object]]
    copied: list[tuple[str, int, int]]
    at_once: int = 16

    def copy(self, work: Sequence[Work], done: CopyListener) -> None:
        for (chunk,), source in work:
            name = (chunk.table.name, chunk.number)
            self.before.get(name, lambda: None)()
            rows = copy_chunks([chunk], source, self.context)
            self.copied.append((*name, rows))
            done.copied(1, rows)


def prepare(lab: Lab, sql: str) -> None:
    """Have tables captured, with an apply process that has copied none of them."""
    lab.source.execute(sql)
    lab.pipeline().setup()
    lab.acquire()


def copy_context(lab: Lab) -> CopyContext:
    assert lab.state is not None
    context = lab.context(ServerConfig())
    captured = {x.table.name: x.table for x in lab.log.tables() if not x.is_partition}
    return CopyContext(
        lab.name,
        lab.state.epoch,
        PostgresSource(lab.source_url, lab.set_name),
        PostgresTarget(lab.target_url, lab.name),
        captured,
        dict(context.catalog.tables),
    )


def instantiator(lab: Lab, jobs: OneByOne, origin: PostgresCopyOrigin) -> Instantiator:
    return Instantiator(origin, lab.ledger, jobs, Quiet(), confirm=lambda: None)


def copy(
    lab: Lab,
    *names: str,
    cuts: Mapping[str, Sequence[Sequence[str]]] = TENS,
    before: Mapping[tuple[str, int], Callable[[], object]] = {},
    origin: PostgresCopyOrigin | None = None,
) -> list[tuple[str, int, int]]:
    """Run the first copy; returns (table, chunk, rows) of what it copied, in order."""
    jobs = OneByOne(copy_context(lab), before, [])
    tables = [table(name) for name in names]
    chosen = origin or CutAt(lab, cuts)
    assert instantiator(lab, jobs, chosen).run(tables, threading.Event())
    return jobs.copied


def crash() -> None:
    raise Crash


def crash_at(lab: Lab, where: tuple[str, int], *names: str, **options: Any) -> None:
    """Run the first copy up to a chunk, and start the process anew."""
    with pytest.raises(Crash):
        copy(lab, *names, before={where: crash}, **options)
    begin_again(lab)


def crash_behind_the_first_chunks(lab: Lab, origin: PostgresCopyOrigin, *names: str) -> None:
    """Copy the first chunk of every table, then have the process start anew."""
    with origin.hold_snapshot() as held:
        chunks = {name: origin.cut_into_chunks([table(name)]) for name in names}
        assert min(map(len, chunks.values())) > 1
        lab.ledger.begin_copies([chunk for cut in chunks.values() for chunk in cut], held)
        context = copy_context(lab)
        for cut in chunks.values():
            copy_chunks([cut[0]], CopySource(held.text, held.exported), context)
    begin_again(lab)


def begin_again(lab: Lab) -> None:
    """Start the process anew, after the last run of it and its sessions have died."""
    PostgresTarget(lab.target_url, lab.name).session(0).close()
    lab.ledger.close()
    lab.acquire()


def as_text(lab: Lab, side: str, *names: str) -> dict[str, list[str]]:
    """The rows of tables as the database writes them; NaN is equal to itself there, and 1.0 is not 1.00."""
    connection = lab.target if side == "target" else lab.source
    return {
        name: [row[0] for row in connection.execute(f'SELECT r::text FROM {name} r ORDER BY r::text COLLATE "C"')]
        for name in names
    }


def assert_applied(lab: Lab, *names: str) -> None:
    """Whatever was committed is at the target, and nothing needed a second look."""
    results = lab.apply()
    assert [e.error_message for e in lab.errors()] == []
    assert sum(result.conflicts for result in results) == 0
    lab.assert_identical_text(*names)


@pytest.mark.rule("C-45")
def test_tables_are_copied_as_of_one_snapshot_while_others_write(lab: Lab) -> None:
    prepare(lab, ACCOUNTS)
    then = {name: lab.rows(name, side="source") for name in ("here", "there")}

    def pay(sender: int, receiver: int) -> None:
        with lab.source.transaction():
            lab.source.execute("UPDATE here SET bal = bal - 7 WHERE id = %s", [sender])
            lab.source.execute("UPDATE there SET bal = bal + 7 WHERE id = %s", [receiver])

    # What is copied side by side is of different tables.
    chunks = [(name, number) for number in range(3) for name in ("here", "there")]
    copied = copy(
        lab, "here", "there", before={chunk: lambda n=n: pay(30 - 5 * n, 1 + 5 * n) for n, chunk in enumerate(chunks)}
    )

    assert copied == [(name, number, 10) for name, number in chunks]
    assert {name: lab.rows(name) for name in then} == then
    assert_applied(lab, "here", "there")


def test_the_copy_sees_a_transaction_whole_or_not_at_all(lab: Lab) -> None:
    prepare(lab, ACCOUNTS)

    with lab.session() as early, lab.session() as late:
        early.execute("INSERT INTO here VALUES (31, 1); INSERT INTO there VALUES (31, 31, 1)")
        lab.source.execute("INSERT INTO here VALUES (33, 3); INSERT INTO there VALUES (33, 33, 3)")

        def commit() -> None:
            early.commit()
            late.execute("INSERT INTO here VALUES (32, 2); INSERT INTO there VALUES (32, 32, 2)")
            late.commit()

        copy(lab, "here", "there", before={("here", 1): commit})

    assert [row[0] for name in ("here", "there") for row in lab.rows(name) if row[0] > 30] == [33, 33]
    assert_applied(lab, "here", "there")


def test_a_crash_costs_only_the_chunks_that_were_not_done(lab: Lab) -> None:
    prepare(lab, ACCOUNTS)
    crash_at(lab, ("there", 1), "here", "there")

    resumed = copy(lab, "here", "there")

    assert resumed == [("here", 2, 10), ("there", 1, 10), ("there", 2, 10)]
    assert_applied(lab, "here", "there")


ROWS = """
CREATE TABLE {t} (id int PRIMARY KEY, v text);
INSERT INTO {t} SELECT n, 'row ' || n FROM generate_series(1, 23) n WHERE n % 10 IN (1, 2, 3);
"""

AFTER_THE_CRASH = {
    "nothing": "",
    "insert": "INSERT INTO {t} VALUES (25, 'new')",
    "update": "UPDATE {t} SET v = 'changed' WHERE id = 21",
    "update, twice": "UPDATE {t} SET v = 'changed' WHERE id = 21; UPDATE {t} SET v = 'again' WHERE id = 21",
    "update to null": "UPDATE {t} SET v = NULL WHERE id = 21",
    "delete": "DELETE FROM {t} WHERE id = 21",
    "delete all": "DELETE FROM {t}",
    "insert, then delete": "INSERT INTO {t} VALUES (25, 'new'); DELETE FROM {t} WHERE id = 25",
    "delete, then insert": "DELETE FROM {t} WHERE id = 21; INSERT INTO {t} VALUES (21, 'other')",
    "key moves within": "UPDATE {t} SET id = 26 WHERE id = 21",
    "key moves out, to what is copied": "UPDATE {t} SET id = 5 WHERE id = 21",
    "key moves in, from what is copied": "UPDATE {t} SET id = 25 WHERE id = 2",
    "key moves there and back": "UPDATE {t} SET id = 25 WHERE id = 21; UPDATE {t} SET id = 21, v = 'x' WHERE id = 25",
    "key is taken over": "UPDATE {t} SET id = 25 WHERE id = 21; UPDATE {t} SET id = 21 WHERE id = 22",
    "keys are swapped": "UPDATE {t} SET id = 25 WHERE id = 21; UPDATE {t} SET id = 21 WHERE id = 22; "
    "UPDATE {t} SET id = 22 WHERE id = 25",
    "insert, then key moves in": "INSERT INTO {t} VALUES (40, 'new'); UPDATE {t} SET id = 25 WHERE id = 40",
    "all keys move, from the top": "UPDATE {t} SET id = id + 1000",
    "update that changes nothing": "UPDATE {t} SET v = v",
    "rolled back": "BEGIN; DELETE FROM {t}; ROLLBACK",
    "what is copied": (
        "UPDATE {t} SET v = 'changed' WHERE id = 2; DELETE FROM {t} WHERE id = 3; INSERT INTO {t} VALUES (4, 'n')"
    ),
}


def test_what_is_missing_is_copied_as_it_was_at_the_snapshot(lab: Lab) -> None:
    tables = {f"t{number}": story for number, story in enumerate(AFTER_THE_CRASH)}
    prepare(lab, "".join(ROWS.replace("{t}", name) for name in tables))
    then = as_text(lab, "source", *tables)
    crash_behind_the_first_chunks(lab, CutAt(lab, {name: [["10"], ["20"]] for name in tables}), *tables)
    for name, story in tables.items():
        lab.source.execute(AFTER_THE_CRASH[story].replace("{t}", name))

    resumed = copy(lab, *tables)

    found = as_text(lab, "target", *tables)
    assert [story for name, story in tables.items() if found[name] != then[name]] == []
    assert sorted(resumed) == sorted((name, number, 3) for name in tables for number in (1, 2))
    assert_applied(lab, *tables)


@pytest.fixture
def rows_of_t(lab: Lab) -> Lab:
    """One captured table, with rows 1 to 3, 11 to 13 and 21 to 23."""
    prepare(lab, ROWS.replace("{t}", "t"))
    return lab


@pytest.mark.parametrize("raw_form", [RAW_FORM, "of another database"])
def test_a_crash_in_the_midst_of_a_chunk_leaves_none_of_it(rows_of_t: Lab, raw_form: str) -> None:
    lab = rows_of_t
    context = replace(copy_context(lab), source=BreaksOff(lab, raw_form))
    origin = CutAt(lab, TENS)

    with pytest.raises(RetryableError, match="connection lost"):
        instantiator(lab, OneByOne(context, {}, []), origin).run([table("t")], threading.Event())

    assert lab.rows("t") == []
    assert [chunk.number for copy in lab.ledger.open_copies() for chunk in copy.todo] == [0, 1, 2]
    assert copy(lab, "t") == [("t", 0, 3), ("t", 1, 3), ("t", 2, 3)]
    assert_applied(lab, "t")


REFUSED = {
    "too long": ("ALTER v TYPE varchar(5)", "column 'v' is character varying(5) at the target. Widen column 'v' at"),
    "no number": ("ALTER v TYPE int USING 0", "column 'v' is integer at the target. Widen column 'v' at"),
    "null": ('ALTER "v: w" SET NOT NULL', "column 'v: w'). Alter column 'v: w' at"),
    "a check": (
        "ADD CONSTRAINT short CHECK (v <> 'secret')",
        "constraint 'short'). Alter the table at",
    ),
}


@pytest.mark.parametrize("raw_form", [RAW_FORM, "of another database"])
@pytest.mark.parametrize("is_staged", [False, True], ids=["", "staged"])
def test_a_value_that_the_target_refuses_is_named_by_table_and_column(
    lab: Lab, raw_form: str, *, is_staged: bool
) -> None:
    tables = {f"t{number}": story for number, story in enumerate(REFUSED)}
    staged = ", b bytea" if is_staged else ""
    prepare(lab, "".join(f'CREATE TABLE {t} (id int PRIMARY KEY, "v: w" text, v text{staged});' for t in tables))
    for name, story in tables.items():
        lab.source.execute(f"INSERT INTO {name} VALUES (1, NULL, 'secret')")
        lab.target.execute(f"ALTER TABLE {name} {REFUSED[story][0]}")
    context = replace(copy_context(lab), source=In(lab, raw_form))
    for name, story in tables.items():
        copying = instantiator(lab, OneByOne(context, {}, []), CutAt(lab, {}))
        with pytest.raises(OperatorError) as caught:
            copying.run([table(name)], threading.Event())
        said = str(caught.value)
        assert said.startswith(f"cannot copy table public.{name}: the target refuses a row: ")
        assert REFUSED[story][1] in said.replace(" (key of the table: id)", "")
        assert "(key of the table: id)" in said
        assert said.endswith("or take the table out of capture.tables; then run again")
        assert "secret" not in said


@pytest.mark.parametrize("is_staged", [False, True], ids=["", "staged"])
def test_rows_that_the_target_refuses_are_put_aside_and_the_rest_is_copied(lab: Lab, *, is_staged: bool) -> None:
    staged = ", b bytea" if is_staged else ""
    prepare(lab, f"CREATE TABLE t (id int PRIMARY KEY, v text{staged}); CREATE TABLE bare (v text)")
    lab.source.execute(
        "INSERT INTO t SELECT n, CASE WHEN n % 40 = 7 THEN 'too long, and SECRET' ELSE 'short' END"
        " FROM generate_series(1, 100) n; INSERT INTO bare VALUES ('short'), ('too long, and SECRET')"
    )
    for name in ("t", "bare"):
        lab.target.execute(f"ALTER TABLE {name} ALTER v TYPE varchar(5)")
    context = replace(copy_context(lab), on_bad_row=OnBadRow.PUT_ASIDE)

    instantiator(lab, OneByOne(context, {}, []), CutAt(lab, TENS)).run([table("t"), table("bare")], threading.Event())

    assert len(lab.rows("t")) == 97
    assert lab.rows("bare") == [("short",)]
    entries = lab.errors()
    assert sorted((str(one.table), one.txn_id, one.error_number) for one in entries) == [
        ("public.bare", "first copy", 12899),
        *[("public.t", "first copy", 12899)] * 3,
    ]
    for one in entries:
        assert "column 'v' is character varying(5) at the target" in one.error_message
        assert "SECRET" not in one.error_message

    # What the row needs is there now: a retry writes it.
    for name in ("t", "bare"):
        lab.target.execute(f"ALTER TABLE {name} ALTER v TYPE text")
    assert len(lab.retry(*[one.id for one in entries])) == 4
    lab.assert_identical("t", "bare")
    assert lab.errors() == []


@dataclass
class In:
    """Reads chunks in a form."""

    lab: Lab
    raw_form: str

    def chunk_reader(self, source: CopySource) -> PostgresChunkReader:
        reader = WithForm(self.lab.source_url, self.lab.set_name, source)
        reader.form = self.raw_form
        return reader


class WithForm(PostgresChunkReader):
    form = ""

    def raw_form(self, table: TableSchema) -> str:
        return self.form


@dataclass
class BreaksOff:
    """Reads chunks, and loses the connection once their rows are through."""

    lab: Lab
    raw_form: str

    def chunk_reader(self, source: CopySource) -> PostgresChunkReader:
        reader = Breaking(self.lab.source_url, self.lab.set_name, source)
        reader.form = self.raw_form
        return reader


class Breaking(WithForm):
    def read_chunk(self, *args: Any) -> Iterator[pa.RecordBatch]:
        yield from super().read_chunk(*args)
        raise RetryableError("connection lost")

    def read_raw(self, *args: Any) -> Iterator[bytes]:
        yield from super().read_raw(*args)
        raise RetryableError("connection lost")


def test_small_chunks_go_together_and_large_ones_alone() -> None:
    mb = 1024 * 1024
    sizes = [0, mb, 3 * mb, 1, None, 5 * mb, 0, *[mb // 32] * 40]
    chunks = [Chunk(table("t"), number, size_bytes=size) for number, size in enumerate(sizes)]

    found = bundles(chunks)

    assert [c for bundle in found for c in bundle] == chunks
    assert [len(bundle) for bundle in found] == [3, 1, 1, 1, 32, 9]


def test_small_tables_are_copied_together_or_not_at_all(lab: Lab) -> None:
    prepare(lab, "".join(f"CREATE TABLE t{n} (id int PRIMARY KEY); INSERT INTO t{n} VALUES ({n});" for n in range(5)))
    names = [f"t{n}" for n in range(5)]
    tables, stop = [table(name) for name in names], threading.Event()
    lab.target.execute("ALTER TABLE t3 ADD CHECK (id <> 3)")
    origin = PostgresCopyOrigin(lab.source_url, lab.set_name)

    with pytest.raises(OperatorError, match="t3_id_check"):
        instantiator(lab, Together(copy_context(lab)), origin).run(tables, stop)
    assert [row for name in names for row in lab.rows(name)] == []
    lab.target.execute("ALTER TABLE t3 DROP CONSTRAINT t3_id_check")
    begin_again(lab)
    jobs = Together(copy_context(lab))
    instantiator(lab, jobs, origin).run(tables, stop)

    assert sorted(lab.ledger.instantiated()) == tables
    assert_applied(lab, *names)


@dataclass
class Together:
    """Copies bundle after bundle in this process."""

    context: CopyContext
    at_once: int = 16

    def copy(self, work: Sequence[Work], done: CopyListener) -> None:
        for chunks, source in work:
            done.copied(len(chunks), copy_chunks(chunks, source, self.context))


def test_a_chunk_that_is_done_is_not_copied_again(rows_of_t: Lab) -> None:
    lab = rows_of_t
    crash_at(lab, ("t", 1), "t")
    snapshot = lab.ledger.open_copies()[0].snapshot

    rows = copy_chunks([Chunk(table("t"), 0, None, ["10"])], CopySource(snapshot, None), copy_context(lab))

    assert rows == 0
    assert lab.target.execute("SELECT count(*) FROM t").fetchone() == (3,)


def test_a_chunk_of_an_earlier_run_is_refused(rows_of_t: Lab) -> None:
    lab = rows_of_t
    context = copy_context(lab)
    crash_at(lab, ("t", 1), "t")
    open_copy = lab.ledger.open_copies()[0]

    with pytest.raises(FencedError, match="chunk 1"):
        copy_chunks([open_copy.todo[0]], CopySource(open_copy.snapshot, None), context)

    assert lab.target.execute("SELECT count(*) FROM t").fetchone() == (3,)


def test_a_key_may_have_the_names_of_what_the_log_says(lab: Lab) -> None:
    prepare(
        lab,
        'CREATE TABLE t (line int, seq int, before text, after text, "digest" text, PRIMARY KEY (line, seq));'
        "INSERT INTO t SELECT n, n, 'b', 'a', 'd' FROM generate_series(1, 30) n",
    )
    crash_at(lab, ("t", 1), "t", cuts={"t": [["10", "10"], ["20", "20"]]})
    lab.source.execute(
        "UPDATE t SET before = 'x' WHERE line > 12; DELETE FROM t WHERE seq = 25; UPDATE t SET line = -seq"
    )

    copy(lab, "t")

    assert_applied(lab, "t")


def test_a_second_crash_goes_on_from_the_same_snapshot(rows_of_t: Lab) -> None:
    lab = rows_of_t
    then = lab.rows("t", side="source")
    crash_at(lab, ("t", 1), "t")
    lab.source.execute("UPDATE t SET v = 'changed'; UPDATE t SET id = 27 WHERE id = 23")
    crash_at(lab, ("t", 2), "t")
    lab.source.execute("DELETE FROM t WHERE id = 21; INSERT INTO t VALUES (28, 'new')")

    assert copy(lab, "t") == [("t", 2, 3)]
    assert lab.rows("t") == then
    assert_applied(lab, "t")


def test_a_copy_that_was_complete_but_for_its_last_word_is_not_begun_again(rows_of_t: Lab) -> None:
    lab = rows_of_t
    copy(lab, "t")
    lab.target.execute("UPDATE penstock.instantiation SET state = 'COPYING'")

    assert copy(lab, "t") == []
    assert table("t") in lab.ledger.instantiated()


KEYS = {
    "integer": ("id bigint", "n - 100"),
    "text": ("id text", "chr(64 + n % 60) || E' \\'\"\\\\,é' || n"),
    "text in another collation": ('id text COLLATE "C"', "(ARRAY['a', 'B', 'é', '_'])[1 + n % 4] || n"),
    "numeric": ("id numeric", "(n - 80) * 1.50"),
    "float": ("id float8", "CASE n WHEN 1 THEN 'NaN' WHEN 2 THEN '-Infinity' ELSE 1e300 / n END"),
    "uuid": ("id uuid", "md5(n::text)::uuid"),
    "bytea": ("id bytea", "decode(lpad(to_hex(n * 977), 6, '0'), 'hex')"),
    "timestamptz": ("id timestamptz", "timestamptz '2024-03-31 00:30+01' + n * interval '7 minutes'"),
    "char": ("id char(8)", "left(md5(n::text), 8)"),
    "composite": ("id text, a int", "chr(65 + n % 3), n"),
    "composite, in another order": ("a int, id text, b bool", "n % 5, 'x' || n, n % 2 = 0"),
}


@pytest.mark.usefixtures("small_chunks")
def test_any_key_cuts_a_table_into_chunks_and_finds_its_rows_again(lab: Lab) -> None:
    tables = {f"t{number}": key for number, key in enumerate(KEYS)}
    for name, story in tables.items():
        columns, values = KEYS[story]
        key = ", ".join(re.findall(r"(\w+) \w", columns.replace(" COLLATE", "")))
        lab.source.execute(f"CREATE TABLE {name} (v text, {columns}, PRIMARY KEY ({key}))")
        lab.source.execute(f"INSERT INTO {name} SELECT repeat(n::text, 50), {values} FROM generate_series(1, 160) n")
    prepare(lab, "")
    then = as_text(lab, "source", *tables)
    origin = PostgresCopyOrigin(lab.source_url, lab.set_name)
    crash_behind_the_first_chunks(lab, origin, *tables)
    for name, story in tables.items():
        values = KEYS[story][1]
        lab.source.execute(f"DELETE FROM {name} WHERE v LIKE '2%'; UPDATE {name} SET v = 'x' WHERE v LIKE '1%'")
        lab.source.execute(f"INSERT INTO {name} SELECT 'again', {values} FROM generate_series(20, 29) n")

    copy(lab, *tables)

    found = as_text(lab, "target", *tables)
    assert [story for name, story in tables.items() if found[name] != then[name]] == []
    assert_applied(lab, *tables)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tables of a few pages cut into chunks as larger ones are."""
    monkeypatch.setattr(postgres_copy, "_CHUNK_BYTES", 8192)
    monkeypatch.setattr(postgres_copy, "_SAMPLED_PERCENT", 100)
    monkeypatch.setattr(chunk_module, "_BUNDLE_BYTES", -1)


def test_whatever_happens_after_the_snapshot_can_be_undone(lab: Lab) -> None:
    """A table as it is, put back by the log's images, is the table as it was."""
    tables = [f"t{seed}" for seed in range(8)]
    prepare(
        lab,
        "".join(
            f"CREATE TABLE {name} (k text, n numeric, v jsonb, twice numeric GENERATED ALWAYS AS (n * 2) STORED,"
            f" PRIMARY KEY (n, k)); INSERT INTO {name} SELECT chr(97 + n % 3), n / 3, jsonb_build_object('n', n)"
            " FROM generate_series(1, 24) n;"
            for name in tables
        ),
    )
    then = as_text(lab, "source", *tables)
    crash_behind_the_first_chunks(lab, CutAt(lab, {name: [["2", "b"], ["5", "a"]] for name in tables}), *tables)
    for seed, name in enumerate(tables):
        chosen = random.Random(seed)
        for _ in range(60):
            _one_change(lab.source, name, chosen)

    copied = copy(lab, *tables)

    found = as_text(lab, "target", *tables)
    assert [name for name in tables if found[name] != then[name]] == []
    assert [(name, number) for name, number, _ in copied] == [(name, number) for number in (1, 2) for name in tables]
    assert_applied(lab, *tables)


def _one_change(connection: psycopg.Connection[Any], name: str, chosen: random.Random) -> None:
    key = [chosen.randint(0, 9), chosen.choice("abc")]
    other = [chosen.randint(0, 9), chosen.choice("abc")]
    statement, values = chosen.choice(
        [
            ("INSERT INTO {t} (n, k, v) VALUES (%s, %s, '{}') ON CONFLICT DO NOTHING", key),
            ("DELETE FROM {t} WHERE (n, k) = (%s, %s)", key),
            ("UPDATE {t} SET v = v || '{\"x\": 1.0}' WHERE (n, k) = (%s, %s)", key),
            ("UPDATE {t} SET v = NULL WHERE n = %s", key[:1]),
            (
                "UPDATE {t} SET n = %s, k = %s WHERE (n, k) = (%s, %s)"
                " AND NOT EXISTS (SELECT FROM {t} o WHERE (o.n, o.k) = (%s, %s))",
                [*other, *key, *other],
            ),
            (
                "WITH gone AS (DELETE FROM {t} WHERE n = %s RETURNING *)"
                " INSERT INTO {t} (n, k, v) SELECT n, k, 'null' FROM gone",
                key[:1],
            ),
        ]
    )
    connection.execute(statement.replace("{t}", name), values)


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("TRUNCATE t; INSERT INTO t VALUES (12, 'new')", id="truncate"),
        pytest.param("ALTER TABLE t ALTER v TYPE text USING v || ''", id="rewrite"),
    ],
)
def test_a_table_emptied_or_rewritten_under_the_snapshot_loses_nothing(rows_of_t: Lab, statement: str) -> None:
    """An old snapshot sees no row of a table's new file, so what it sees there must not count as copied."""
    lab = rows_of_t
    before = {("t", 1): lambda: lab.source.execute(f"UPDATE t SET v = 'changed' WHERE id = 21; {statement}")}

    with pytest.raises(RetryableError, match=r"public\.t was truncated or rewritten while it was copied"):
        copy(lab, "t", before=before)
    begin_again(lab)
    copy(lab, "t")

    assert_applied(lab, "t")
    assert len(lab.rows("t")) == (1 if "TRUNCATE" in statement else 9)


def test_truncate_after_a_crash_has_the_table_copied_anew(rows_of_t: Lab) -> None:
    lab = rows_of_t
    crash_at(lab, ("t", 2), "t")
    lab.source.execute("UPDATE t SET v = 'changed'; TRUNCATE t; INSERT INTO t VALUES (12, 'new'), (25, 'new')")

    resumed = copy(lab, "t")

    assert resumed == [("t", 0, 0), ("t", 1, 1), ("t", 2, 1)]
    assert lab.rows("t") == [(12, "new"), (25, "new")]
    assert_applied(lab, "t")


def test_a_new_column_after_a_crash_has_the_table_copied_anew(rows_of_t: Lab) -> None:
    lab = rows_of_t
    crash_at(lab, ("t", 2), "t")
    for connection in (lab.source, lab.target):
        connection.execute("ALTER TABLE t ADD more int DEFAULT 7")

    resumed = copy(lab, "t")

    assert [number for _, number, _ in resumed] == [0, 1, 2]
    assert_applied(lab, "t")


def test_rows_at_the_target_that_nobody_copied_are_left_alone_and_nothing_is_written(lab: Lab) -> None:
    prepare(lab, ACCOUNTS + "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    lab.target.execute("INSERT INTO t VALUES (99); INSERT INTO here VALUES (99, 1)")

    with pytest.raises(TableError) as caught:
        copy(lab, "here", "t", "there")

    assert caught.value.what == "table public.here holds rows that penstock did not copy"
    assert caught.value.table == ("public", "here")
    assert caught.value.do.startswith("empty it; or have its rows compared and kept, by `penstock setup --adopt`; or")
    assert lab.rows("t") == [(99,)]
    assert lab.rows("there") == []
    assert lab.ledger.open_copies() == []
    assert lab.ledger.instantiated() == {}


def test_an_empty_table_is_copied_and_followed(lab: Lab) -> None:
    prepare(lab, "CREATE TABLE t (id int PRIMARY KEY, v text)")

    assert copy(lab, "t", origin=PostgresCopyOrigin(lab.source_url, lab.set_name)) == [("t", 0, 0)]

    lab.source.execute("INSERT INTO t VALUES (1, 'first')")
    assert_applied(lab, "t")
    assert lab.rows("t") == [(1, "first")]


def test_a_table_without_a_key_is_copied_and_after_a_crash_copied_anew(lab: Lab) -> None:
    prepare(lab, "CREATE TABLE a (v text); CREATE TABLE b (v text); INSERT INTO a VALUES ('x'), ('x'), (NULL)")
    lab.source.execute("INSERT INTO b SELECT v FROM a")
    crash_at(lab, ("b", 0), "a", "b")
    lab.source.execute("DELETE FROM b WHERE ctid = '(0,1)'; INSERT INTO b VALUES ('y'); INSERT INTO a VALUES ('z')")

    resumed = copy(lab, "a", "b")

    assert resumed == [("b", 0, 3)]
    assert_applied(lab, "a", "b")
    assert lab.rows("a") == [("x",), ("x",), ("z",), (None,)]


def test_a_partitioned_table_is_copied_once_through_its_root(lab: Lab) -> None:
    prepare(
        lab,
        "CREATE TABLE t (id int, r text, v int, PRIMARY KEY (id, r)) PARTITION BY LIST (r);"
        "CREATE TABLE t_a PARTITION OF t FOR VALUES IN ('a');"
        "CREATE TABLE t_b PARTITION OF t FOR VALUES IN ('b') PARTITION BY RANGE (id);"
        "CREATE TABLE t_b1 PARTITION OF t_b FOR VALUES FROM (0) TO (15);"
        "CREATE TABLE t_b2 PARTITION OF t_b FOR VALUES FROM (15) TO (99);"
        "INSERT INTO t SELECT n, r, n FROM generate_series(1, 30) n, unnest(ARRAY['a', 'b']) r",
    )
    then = lab.rows("t", side="source")
    cuts = {"t": [["10", "a"], ["20", "b"]]}
    crash_at(lab, ("t", 1), "t", cuts=cuts)
    lab.source.execute("UPDATE t SET r = 'b', id = id + 50 WHERE r = 'a' AND id > 20; DELETE FROM t WHERE id = 12")
    lab.source.execute("INSERT INTO t_b1 VALUES (12, 'b', 0); UPDATE t_a SET v = 0")

    resumed = copy(lab, "t", cuts=cuts)

    assert resumed == [("t", 1, 21), ("t", 2, 20)]
    assert lab.rows("t") == then
    assert_applied(lab, "t", "t_a", "t_b1", "t_b2")


def test_truncate_of_one_partition_after_a_crash_has_the_table_copied_anew(lab: Lab) -> None:
    prepare(
        lab,
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (15);"
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (15) TO (99);"
        "INSERT INTO t SELECT generate_series(1, 30)",
    )
    crash_at(lab, ("t", 1), "t")
    lab.source.execute("TRUNCATE t_2; INSERT INTO t VALUES (16)")

    resumed = copy(lab, "t")

    assert resumed == [("t", 0, 10), ("t", 1, 5), ("t", 2, 0)]
    assert_applied(lab, "t", "t_1", "t_2")


def test_a_table_that_joins_later_is_copied_without_disturbing_the_others(lab: Lab) -> None:
    prepare(lab, "CREATE TABLE a (id int PRIMARY KEY, v text)")
    copy(lab, "a")
    lab.source.execute("INSERT INTO a VALUES (1, 'applied')")
    lab.apply()
    lab.source.execute("CREATE TABLE b (id int PRIMARY KEY, v text)")
    lab.pipeline().setup()
    lab.source.execute("BEGIN; INSERT INTO a VALUES (2, 'both'); INSERT INTO b VALUES (2, 'both'); COMMIT")

    copied = copy(
        lab, "a", "b", before={("b", 0): lambda: lab.source.execute("UPDATE a SET v = 'x'; UPDATE b SET v = 'x'")}
    )

    assert copied == [("b", 0, 1)]
    assert lab.rows("b") == [(2, "both")]
    assert lab.rows("a") == [(1, "applied")]
    assert_applied(lab, "a", "b")


def test_a_column_that_only_the_source_generates_is_copied(lab: Lab) -> None:
    lab.target.execute("CREATE TABLE t (id int PRIMARY KEY, v int, g int)")
    prepare(
        lab,
        "CREATE TABLE t (id int PRIMARY KEY, v int, g int GENERATED ALWAYS AS (v + 1) STORED);"
        "INSERT INTO t (id, v) SELECT n, n FROM generate_series(1, 30) n",
    )
    crash_at(lab, ("t", 1), "t")
    lab.source.execute("UPDATE t SET v = 0 WHERE id IN (5, 25); DELETE FROM t WHERE id IN (6, 26)")

    copy(lab, "t")

    assert lab.target.execute("SELECT sum(g - v), count(g) FROM t").fetchone() == (30, 30)
    assert_applied(lab, "t")


def test_a_generated_column_that_the_target_lacks_is_asked_for(lab: Lab) -> None:
    lab.target.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(OperatorError, match=r"lacks column 'g'.*ADD COLUMN \"g\" integer"):
        prepare(lab, "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED)")


@pytest.mark.parametrize("form", [RAW_FORM, "of another database"])
def test_a_copy_whose_snapshot_is_gone_goes_on_without_it(
    rows_of_t: Lab, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = rows_of_t
    monkeypatch.setattr(PostgresChunkReader, "raw_form", lambda *_: form)

    def end_holder() -> None:
        lab.source.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name ~ 'snapshot$'"
        )

    with pytest.raises(RetryableError, match="the session that holds the copy's snapshot was ended"):
        copy(lab, "t", before={("t", 1): end_holder})
    begin_again(lab)
    lab.source.execute("UPDATE t SET v = v || '!'")

    assert [(chunk, rows) for _, chunk, rows in copy(lab, "t")] == [(1, 3), (2, 3)]
    assert_applied(lab, "t")


def test_retry_leaves_out_what_the_copy_of_a_partition_s_root_holds(lab: Lab) -> None:
    prepare(
        lab,
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (15);",
    )
    lab.source.execute("BEGIN; TRUNCATE t_1; INSERT INTO t VALUES (1); COMMIT")
    lab.apply()
    (entry,) = lab.errors()
    lab.source.execute("INSERT INTO t VALUES (2)")
    copy(lab, "t")

    lab.retry(entry.id)

    assert lab.rows("t") == [(1,), (2,)]
    assert_applied(lab, "t", "t_1")


def test_a_stop_between_chunks_is_heeded_and_gone_on_from(lab: Lab) -> None:
    prepare(lab, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 20)")
    origin = CutAt(lab, {"t": [[str(n)] for n in range(1, 20)]})
    stop = threading.Event()
    jobs = OneByOne(copy_context(lab), {("t", 3): stop.set}, [])

    assert not instantiator(lab, jobs, origin).run([table("t")], stop)

    assert lab.ledger.instantiated() == {}
    done = len(jobs.copied)
    assert 4 <= done < 20
    assert len(copy(lab, "t")) == 20 - done
    assert_applied(lab, "t")


def test_nothing_is_said_of_a_copy_without_rows(lab: Lab) -> None:
    prepare(lab, "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1)")
    origin, told = PostgresCopyOrigin(lab.source_url, lab.set_name), []

    for name in ("t", "u"):
        jobs, heard = OneByOne(copy_context(lab), {}, []), Quiet()
        Instantiator(origin, lab.ledger, jobs, heard, confirm=lambda: None).run([table(name)], threading.Event())
        told.append((heard.chunks, heard.rows))

    assert told == [(0, 0), (1, 1)]
    assert set(lab.ledger.instantiated()) == {table("t"), table("u")}


class OnceCopied(Quiet):
    """Hears a run on Spark, and has something done whenever some chunks are copied."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self._then = then

    def copied(self, chunks: int, rows: int) -> None:
        super().copied(chunks, rows)
        self._then()

    def following(self) -> None:
        """Nobody listens, here and below."""

    def queued(self, entry: object) -> None: ...

    def progressed(self, progress: object) -> None: ...

    def waiting(self, progress: object) -> None: ...

    def retrying(self, error: PenstockError, left_s: float) -> None: ...

    def warned(self, text: str, event: str = "note", facts: object = None) -> None:
        raise AssertionError(text)

    def ended(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.usefixtures("spark", "small_chunks")
def test_on_spark_a_copy_under_load_is_stopped_gone_on_with_and_caught_up(lab: Lab) -> None:
    lab.source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        "INSERT INTO t SELECT n, repeat('x', 80) FROM generate_series(1, 1500) n"
    )
    lab.pipeline().setup()
    stop, quiet = threading.Event(), threading.Event()
    first, second = OnceCopied(stop.set), OnceCopied(lambda: None)
    writer = threading.Thread(target=_write, args=[lab, quiet])
    writer.start()

    try:
        lab.pipeline().run(stop, first, until_caught_up=True)
        half = lab.target.execute("SELECT count(*) FROM t").fetchone()
        lab.pipeline().run(threading.Event(), second, until_caught_up=True)
    finally:
        quiet.set()
        writer.join()
    lab.pipeline().run(threading.Event(), OnceCopied(lambda: None), until_caught_up=True)

    assert half == (first.rows,)
    assert 0 < first.rows < 1500
    assert first.chunks == 16
    assert second.chunks > 0
    assert lab.errors() == []
    lab.assert_identical("t")
    assert lab.target.execute("SELECT sum(rows) FROM penstock.chunk").fetchone() == (first.rows + second.rows,)


def _write(lab: Lab, until: threading.Event) -> None:
    chosen = random.Random(1)
    fresh = count(10_000)
    with psycopg.connect(lab.source_url, autocommit=True) as session:
        # The pause leaves the machine some time for the copy.
        while not until.wait(0.01):
            row = chosen.randint(1, 1500)
            session.execute("UPDATE t SET v = v || '.' WHERE id BETWEEN %s AND %s", [row, row + 5])
            session.execute("DELETE FROM t WHERE id = %s", [chosen.randint(1, 1500)])
            session.execute("INSERT INTO t VALUES (%s, 'new') ON CONFLICT DO NOTHING", [chosen.randint(1, 3000)])
            session.execute("UPDATE t SET id = %s WHERE id = %s", [next(fresh), chosen.randint(1, 1500)])


@pytest.mark.usefixtures("spark")
def test_on_spark_a_table_that_is_set_up_during_the_first_copy_is_copied_before_its_changes(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    lab.pipeline().setup()

    def add() -> None:
        if lab.source.execute("SELECT to_regclass('u')").fetchone() != (None,):
            return
        lab.source.execute("CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1)")
        lab.pipeline().setup()
        lab.source.execute("UPDATE u SET id = 2; UPDATE t SET id = 2")

    stop = threading.Event()
    listener = OnceCopied(add)
    monkeypatch.setattr(listener, "waiting", lambda progress: stop.set())
    lab.pipeline().run(stop, listener)

    assert lab.errors() == []
    lab.assert_identical("t", "u")


@pytest.mark.usefixtures("spark")
def test_on_spark_a_table_altered_just_before_its_snapshot_is_copied_with_its_new_column(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    lab.pipeline().setup()
    lab.target.execute("ALTER TABLE t ADD c text")
    hold = PostgresCopyOrigin.hold_snapshot

    def alter_and_hold(origin: PostgresCopyOrigin) -> AbstractContextManager[HeldSnapshot]:
        lab.source.execute("ALTER TABLE t ADD COLUMN IF NOT EXISTS c text; UPDATE t SET c = 'x'")
        return hold(origin)

    monkeypatch.setattr(PostgresCopyOrigin, "hold_snapshot", alter_and_hold)
    lab.pipeline().run(threading.Event(), OnceCopied(lambda: None), until_caught_up=True)

    assert lab.errors() == []
    lab.assert_identical("t")


@pytest.mark.usefixtures("spark")
def test_rows_without_a_column_that_could_be_written_are_copied(lab: Lab) -> None:
    """A table may lose all its columns, and the target may make each of them itself."""
    lab.source.execute(
        "CREATE TABLE bare (id int); INSERT INTO bare VALUES (1), (2), (3); ALTER TABLE bare DROP COLUMN id;"
        "CREATE TABLE made (n int GENERATED ALWAYS AS (7) STORED); INSERT INTO made SELECT FROM generate_series(1, 5);"
        "CREATE TABLE keyed (n int GENERATED ALWAYS AS (7) STORED PRIMARY KEY); INSERT INTO keyed DEFAULT VALUES;"
    )
    pipeline = lab.pipeline()
    pipeline.setup()
    pipeline.run(threading.Event(), until_caught_up=True)
    for change in (
        "INSERT INTO bare DEFAULT VALUES",
        "INSERT INTO bare SELECT FROM generate_series(1, 2)",
        "INSERT INTO made DEFAULT VALUES",
        "INSERT INTO made SELECT FROM generate_series(1, 200)",
        "DELETE FROM keyed",
    ):
        lab.source.execute(change)
    progress = pipeline.run(threading.Event(), until_caught_up=True)
    assert (progress.transactions, progress.changes, progress.errors) == (5, 205, 0)
    counts = [lab.target.execute(f"SELECT count(*) FROM {name}").fetchone() for name in ("bare", "made", "keyed")]
    assert counts == [(6,), (206,), (0,)]
    assert pipeline.verify().is_identical
