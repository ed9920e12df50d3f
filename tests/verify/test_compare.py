"""Source and target compared row by row: what differs is named, and what is only on its way is no difference."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import change as c
from penstock.apply.lane import ServerConfig
from penstock.apply.task import LANE, apply_lane, plan_batch
from penstock.cli.verify import as_json, show
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.connection import connect
from penstock.dialects.postgres.source.compared import PostgresComparedSource
from penstock.dialects.postgres.target.compared import PostgresComparedTarget
from penstock.errors import OperatorError, RetryableError
from penstock.position import Limit, Scn
from penstock.snapshot.chunk import Chunk, Range
from penstock.spark.job import CompareJobs
from penstock.verify.driver import CompareContext, LocalJobs, TableResult, VerifyResult, verify
from penstock.verify.task import MOST_KEYS, Comparer, RangeResult
from tests.conftest import lab_between
from tests.lab import Lab, table

SCHEMA = """
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE keyless (a int, b text);
"""
ROWS = """
INSERT INTO t SELECT n, 'row ' || n FROM generate_series(1, 30) n;
INSERT INTO keyless SELECT n % 10, 'row' FROM generate_series(1, 30) n;
"""
THIRDS = [["10"], ["20"]]


@dataclass
class InTurn:
    """Compares ranges in this process, with something happening before some of the calls."""

    context: CompareContext
    before: Sequence[Callable[[], object]] = ()
    calls: list[list[tuple[str, int]]] = field(default_factory=list)
    at_once: int = 16

    def compare(self, bundles: Sequence[Sequence[Chunk]]) -> Sequence[RangeResult]:
        if len(self.calls) < len(self.before):
            self.before[len(self.calls)]()
        self.calls.append([(chunk.table.name, chunk.number) for bundle in bundles for chunk in bundle])
        return [result for bundle in bundles for result in self.context.compare(bundle)]

    def repair(self, chunks: Sequence[Chunk]) -> Sequence[RangeResult]:
        return [self.context.repair(chunk) for chunk in chunks]


class Nobody:
    """Hears nothing."""

    def compared(self, ranges: int, of: int) -> None: ...

    def repaired(self, ranges: int, of: int) -> None: ...

    def warned(self, text: str) -> None: ...


def nothing() -> None:
    """Between two looks, nothing happens."""


def jobs_of(lab: Lab, names: Iterable[str], before: Sequence[Callable[[], object]] = ()) -> InTurn:
    wanted = [table(name) for name in names]
    described = []
    for url in (lab.source_url, lab.target_url):
        with connect(url, "verify") as connection:
            described.append(read_tables(connection, wanted))
    source = PostgresComparedSource(lab.source_url, lab.set_name, lab.name)
    comparer = Comparer(source, PostgresComparedTarget(lab.target_url, lab.name))
    at_source, at_target = described
    tables = {name: Range(at_source[name], at_target[name], Chunk(name, 0)) for name in at_source}
    return InTurn(CompareContext(comparer, tables), before)


def look(
    lab: Lab,
    *names: str,
    cuts: Mapping[str, Sequence[Sequence[str]]] = {},
    jobs: InTurn | None = None,
    consistency_point: Callable[[], Scn] | None = None,
    repair: bool = False,
) -> VerifyResult:
    """Compare tables; with a consistency point, as while a process runs."""
    return verify(
        [chunk for name in names for chunk in Chunk.between(table(name), cuts.get(name, []))],
        jobs or jobs_of(lab, names),
        Nobody(),
        consistency_point=consistency_point or (lambda: Scn(0)),
        tick=lab.log.tick,
        is_running=lambda: consistency_point is not None,
        repair=repair,
    )


def found(result: VerifyResult) -> dict[str, list[tuple[str, dict[str, str | None]]]]:
    """What differs, by table; the tables that do not are left out."""
    return {
        x.table.name: sorted(((d.kind, dict(d.key)) for d in x.differences), key=repr)
        for x in result.tables
        if x.differing
    }


def only(result: VerifyResult) -> TableResult:
    (one,) = result.tables
    return one


@pytest.fixture
def copied(lab: Lab) -> Lab:
    """Two tables, one without a key, the same on both sides."""
    lab.setup(SCHEMA)
    lab.source.execute(ROWS)
    lab.apply()
    return lab


def test_equal_tables_are_identical_and_counted(copied: Lab) -> None:
    result = look(copied, "t", "keyless", cuts={"t": THIRDS})

    assert result.is_identical
    assert [(str(x.table), x.rows, x.differing) for x in result.tables] == [
        ("public.keyless", 30, 0),
        ("public.t", 30, 0),
    ]


def test_empty_tables_are_identical(lab: Lab) -> None:
    lab.setup(SCHEMA)

    result = look(lab, "t", "keyless")

    assert result.is_identical
    assert [x.rows for x in result.tables] == [0, 0]


DIFFERENCES: dict[str, tuple[str, list[tuple[str, dict[str, str]]]]] = {
    "missing": ("DELETE FROM t WHERE id = 7", [("missing", {"id": "7"})]),
    "extra": ("INSERT INTO t VALUES (15, 'row 15'), (31, 'row 31') ON CONFLICT DO NOTHING", [("extra", {"id": "31"})]),
    "different": ("UPDATE t SET v = 'row' WHERE id = 30", [("different", {"id": "30"})]),
    "null": ("UPDATE t SET v = NULL WHERE id = 10", [("different", {"id": "10"})]),
    "another key": (
        "UPDATE t SET id = 99 WHERE id = 11",
        [("extra", {"id": "99"}), ("missing", {"id": "11"})],
    ),
    "values swapped": (
        "UPDATE t SET v = 'row ' || 25 - id WHERE id IN (12, 13)",
        [("different", {"id": "12"}), ("different", {"id": "13"})],
    ),
    "one of each": (
        "DELETE FROM t WHERE id = 1; UPDATE t SET v = '' WHERE id = 2; INSERT INTO t VALUES (0, '')",
        [("different", {"id": "2"}), ("extra", {"id": "0"}), ("missing", {"id": "1"})],
    ),
}


def test_each_kind_of_difference_is_named_with_table_and_key(copied: Lab) -> None:
    named = {}
    for story, (statement, _) in DIFFERENCES.items():
        with undone(copied.target, statement):
            named[story] = found(look(copied, "t", cuts={"t": [["15"]]}))

    assert named == {story: {"t": keys} for story, (_, keys) in DIFFERENCES.items()}
    assert look(copied, "t").is_identical


@contextmanager
def undone(connection: psycopg.Connection[Any], statement: str) -> Iterator[None]:
    """Change table t for the while of the block."""
    connection.execute("CREATE TABLE kept AS TABLE t")
    connection.execute(statement)
    yield
    connection.execute("TRUNCATE t; INSERT INTO t TABLE kept; DROP TABLE kept")


def test_a_composite_key_is_named_with_all_its_columns(lab: Lab) -> None:
    lab.setup('CREATE TABLE t (a numeric, "B""" text, v int, PRIMARY KEY ("B""", a))')
    lab.source.execute("INSERT INTO t VALUES (1.50, 'x', 1), (1.50, 'é, \"q\"', 1), (2, 'x', 1)")
    lab.apply()
    lab.target.execute("UPDATE t SET v = 2 WHERE a = 1.5")

    assert found(look(lab, "t")) == {
        "t": [("different", {'B"': "x", "a": "1.50"}), ("different", {'B"': 'é, "q"', "a": "1.50"})]
    }


@pytest.mark.parametrize("key", ["PRIMARY KEY (b, a)", "UNIQUE (a, b)"])
def test_a_range_of_keys_is_one_at_the_target_whatever_key_that_has(lab: Lab, key: str) -> None:
    lab.target.execute(f"CREATE TABLE t (a int NOT NULL, b int NOT NULL, v int, {key})")
    lab.setup("CREATE TABLE t (a int, b int, v int, PRIMARY KEY (a, b))")
    lab.source.execute("INSERT INTO t SELECT n / 3, 30 - n, n FROM generate_series(1, 20) n")
    lab.apply()
    cuts = {"t": [["2", "24"], ["4", "17"]]}

    assert look(lab, "t", cuts=cuts).is_identical

    lab.target.execute("UPDATE t SET v = 0 WHERE v = 9")
    assert found(look(lab, "t", cuts=cuts)) == {"t": [("different", {"a": "3", "b": "21"})]}
    assert only(look(lab, "t", cuts=cuts, repair=True)).repaired == 1
    assert look(lab, "t", cuts=cuts).is_identical


def test_rows_without_a_key_are_counted_each_as_often_as_it_occurs(copied: Lab) -> None:
    lab = copied
    lab.target.execute(
        "DELETE FROM keyless WHERE ctid = (SELECT min(ctid) FROM keyless WHERE a = 3);"
        "INSERT INTO keyless VALUES (4, 'row'), (4, 'row'), (4, 'other')"
    )

    result = only(look(lab, "keyless"))

    assert (result.rows, result.differing) == (30, 4)
    kinds = sorted(d.kind for d in result.differences)
    assert kinds == ["extra", "extra", "missing"]
    assert len({d.key["row"] for d in result.differences}) == 3


def test_equal_rows_in_another_order_are_identical(copied: Lab) -> None:
    lab = copied
    for name in ("t", "keyless"):
        lab.target.execute(
            f"CREATE TEMP TABLE kept AS TABLE {name}; TRUNCATE {name};"
            f" INSERT INTO {name} SELECT * FROM kept ORDER BY random(); DROP TABLE kept"
        )

    assert look(lab, "t", "keyless").is_identical


# type: (source, target, are they the same)
PAIRS = [
    ("float8", "'NaN'", "'NaN'", True),
    ("float8", "'NaN'", "'Infinity'", False),
    ("float8", "'-0'", "0", False),
    ("float8", "0.1", "0.1::float8 + 2e-17", False),
    ("float8", "1e23", "1.0000000000000001e23", False),
    ("real", "0.1", "0.10", True),
    ("numeric", "'NaN'", "'NaN'", True),
    ("numeric", "1.0", "1.0", True),
    ("numeric", "1.0", "1.00", False),
    ("numeric", "0", "'-0'", True),
    ("numeric", "1e40 + 1", "1e40", False),
    ("numeric(9,2)", "1.0", "1.00", True),
    ("text", "''", "NULL", False),
    ("text", "NULL", "NULL", True),
    ("text", "'NULL'", "NULL", False),
    ("text", "'a'", "'a '", False),
    ("text", "E'\\\\000'", "E'\\\\\\\\000'", False),
    ("text", "E'\\\\x00'", "''", False),
    ("text", "E'a\\x01b'", "E'a\\x02b'", False),
    ("text", "E'a\\r\\nb'", "E'a\\nb'", False),
    ("text", "E'\\u00e9'", "E'e\\u0301'", False),
    ("text", "'😀'", "'😀'", True),
    ("text", "'😀'", "'😁'", False),
    ("text", "E'\\u00a0'", "' '", False),
    ("char(5)", "'a'", "'a    '", True),
    ("bytea", "'\\x00'", "'\\x0000'", False),
    ("bytea", "'\\x'", "NULL", False),
    ("jsonb", '\'{"a": 1, "b": 2}\'', '\'{"b": 2, "a": 1}\'', True),
    ("jsonb", "'1.0'", "'1.00'", False),
    ("json", "'{\"a\":1}'", "'{\"a\": 1}'", False),
    ("text[]", "'{a,b}'", "'{\"a,b\"}'", False),
    ("text[]", "'{NULL}'", "'{\"NULL\"}'", False),
    ("int[]", "'{1}'", "'[0:0]={1}'", False),
    ("interval", "'1 day'", "'24 hours'", False),
    ("timestamptz", "'2024-01-01 00:00+00'", "'2024-01-01 02:00+02'", True),
    ("timestamptz", "'infinity'", "'-infinity'", False),
]


def test_values_are_told_apart_by_what_they_look_like(lab: Lab) -> None:
    """Row n of each table holds a value in column n, and nothing in the others."""
    columns = ", ".join(f"c{n} {kind}" for n, (kind, *_) in enumerate(PAIRS))
    lab.setup(f"CREATE TABLE keyed (n int PRIMARY KEY, {columns}); CREATE TABLE keyless (n int, {columns})")
    for n, (kind, at_source, at_target, _) in enumerate(PAIRS):
        for connection, value in ((lab.source, at_source), (lab.target, at_target)):
            connection.execute(f"INSERT INTO keyed (n, c{n}) VALUES ({n}, ({value})::{kind})")
    lab.source.execute("INSERT INTO keyless TABLE keyed")
    lab.target.execute("INSERT INTO keyless TABLE keyed")
    unequal = {n for n, (*_, is_same) in enumerate(PAIRS) if not is_same}

    # At the position of now: what waits in the log is what the source holds.
    now = lab.log.tick()
    lab.ledger.complete(now, None, lab.log.anchor_of(now))
    keyed, keyless = look(lab, "keyed", "keyless").tables

    named = {int(str(d.key["n"])) for d in keyed.differences}
    assert [PAIRS[n] for n in named ^ unequal] == []
    assert {d.kind for d in keyed.differences} == {"different"}
    # Without a key each of them is missing as it is here, and extra as it is there.
    assert keyless.differing == 2 * len(unequal)


LOOK_ALIKES: list[tuple[str | None, str | None]] = [
    ("a", "b"),
    ("ab", ""),
    ("", "ab"),
    ("ab", None),
    (None, "ab"),
    ("a,b", ""),
    ("a", ",b"),
    ("a,", "b"),
    ('a","b', ""),
    ('a"', '"b'),
    ('"a"', "b"),
    ("(a", "b)"),
    ("a\\", "b"),
    ("a", "\\b"),
    ("a\\,b", ""),
    (None, None),
    ("", ""),
    ("", None),
    (None, ""),
    (" ", ""),
    ("NULL", "NULL"),
    ("a\x1f", "b"),
    ("a\n", "b"),
]


def test_rows_that_read_alike_when_run_together_are_told_apart(lab: Lab) -> None:
    """Each row against each: the two that are the same are identical, any other two are not."""
    lab.setup("CREATE TABLE keyed (n int PRIMARY KEY, a text, b text); CREATE TABLE keyless (n int, a text, b text)")
    many = len(LOOK_ALIKES)
    for name in ("keyed", "keyless"):
        for connection, choose in ((lab.source, lambda n: n // many), (lab.target, lambda n: n % many)):
            with connection.cursor().copy(f"COPY {name} FROM STDIN") as rows:
                for n in range(many * many):
                    rows.write_row((n, *LOOK_ALIKES[choose(n)]))

    now = lab.log.tick()
    lab.ledger.complete(now, None, lab.log.anchor_of(now))
    # Each range names only so many.
    cuts = {"keyed": [[str(n)] for n in range(MOST_KEYS, many * many, MOST_KEYS)]}
    result = look(lab, "keyed", "keyless", cuts=cuts)

    unequal = many * many - many
    by_name = {x.table.name: x for x in result.tables}
    assert by_name["keyed"].differing == unequal
    assert {d.kind for d in by_name["keyed"].differences} == {"different"}
    assert {int(str(d.key["n"])) for d in by_name["keyed"].differences} == {
        n for n in range(many * many) if n // many != n % many
    }
    # Without a key each of them is missing as it is here, and extra as it is there.
    assert by_name["keyless"].differing == 2 * unequal


def test_many_differences_are_all_counted_and_some_are_named(lab: Lab) -> None:
    lab.setup(SCHEMA)
    lab.source.execute(
        "INSERT INTO t SELECT n, 'x' FROM generate_series(1, 3000) n;"
        "INSERT INTO keyless SELECT n, 'x' FROM generate_series(1, 3000) n"
    )
    lab.apply()
    lab.target.execute("UPDATE t SET v = 'y' WHERE id > 500; DELETE FROM keyless WHERE a > 500")

    result = look(lab, "t", "keyless", cuts={"t": [["1000"], ["2000"]]})

    keyless, keyed = result.tables
    assert (keyed.rows, keyed.differing, len(keyed.differences)) == (3000, 2500, 3 * MOST_KEYS)
    assert (keyless.rows, keyless.differing, len(keyless.differences)) == (3000, 2500, MOST_KEYS)


LATE = """
UPDATE t SET v = 'changed' WHERE id = 2;
UPDATE t SET v = 'again' WHERE id = 2;
DELETE FROM t WHERE id = 3;
INSERT INTO t VALUES (3, 'other'), (31, 'new');
UPDATE t SET id = 40 WHERE id = 14;
UPDATE t SET id = 14 WHERE id = 15;
UPDATE keyless SET b = 'changed' WHERE a = 2;
DELETE FROM keyless WHERE a = 3;
INSERT INTO keyless VALUES (3, 'row'), (99, 'new');
UPDATE keyless SET a = a WHERE a = 4;
"""


def test_what_waits_to_be_applied_is_no_difference(copied: Lab) -> None:
    lab = copied
    lab.source.execute(LATE)
    jobs = jobs_of(lab, ["t", "keyless"])

    result = look(lab, "t", "keyless", cuts={"t": THIRDS}, jobs=jobs)

    assert result.is_identical
    assert [x.rows for x in result.tables] == [30, 30]
    assert len(jobs.calls) == 1
    lab.apply()
    assert look(lab, "t", "keyless", cuts={"t": THIRDS}).is_identical


def test_a_real_difference_is_seen_through_what_waits(copied: Lab) -> None:
    lab = copied
    lab.source.execute(LATE)
    # At its position the target lacks row 5, has 2 with a wrong value, and the row that is still to come already.
    lab.target.execute(
        "DELETE FROM t WHERE id = 5; UPDATE t SET v = 'changed' WHERE id = 2; INSERT INTO t VALUES (31, 'new')"
    )
    lab.target.execute("INSERT INTO keyless VALUES (99, 'new')")

    result = look(lab, "t", "keyless", cuts={"t": THIRDS})

    assert found(result)["t"] == [("different", {"id": "2"}), ("extra", {"id": "31"}), ("missing", {"id": "5"})]
    assert [(d.kind, x.differing) for x in result.tables[:1] for d in x.differences] == [("extra", 1)]


def test_a_batch_of_which_some_lanes_are_applied_is_no_difference(copied: Lab) -> None:
    lab = copied
    for row in range(1, 31):
        lab.source.execute("UPDATE t SET v = 'changed' WHERE id = %s", [row])
        lab.source.execute("INSERT INTO keyless VALUES (%s, 'new')", [row])
    part = lab.next_slice()
    assert part is not None
    context = lab.context(ServerConfig())
    batches = list(lab.reader().read(part, with_key=False))
    planned = pa.Table.from_batches(list(plan_batch(batches, part.changes, part.commit_scns, 3, context)))
    some = sorted(set(planned[LANE].to_pylist()))[1:]
    for lane in some:
        rows = planned.filter(pc.equal(planned[LANE], lane)).sort_by(
            [(c.COMMIT_SCN, "ascending"), (c.CHANGE_SEQ, "ascending")]
        )
        apply_lane(rows.to_batches(), lab.claim(lane, part, moves_watermark=False), context)

    applied = lab.target.execute("SELECT count(*) FROM t WHERE v = 'changed'").fetchone()
    result = look(lab, "t", "keyless", cuts={"t": THIRDS})

    assert applied is not None
    assert 0 < applied[0] < 30
    assert found(result) == {}


def test_a_transaction_in_the_error_queue_is_a_difference_until_it_is_retried(copied: Lab) -> None:
    lab = copied
    lab.target.execute("DELETE FROM t WHERE id = 8")
    lab.source.execute("BEGIN; UPDATE t SET v = 'changed' WHERE id IN (8, 9); COMMIT")
    lab.apply()

    before = found(look(lab, "t"))
    lab.target.execute("INSERT INTO t VALUES (8, 'row 8')")
    (entry,) = lab.errors()
    lab.retry(entry.id)

    assert before == {"t": [("different", {"id": "9"}), ("missing", {"id": "8"})]}
    assert found(look(lab, "t")) == {}


def test_what_differed_is_looked_at_once_more_and_only_that(copied: Lab) -> None:
    lab = copied
    lab.target.execute("DELETE FROM t WHERE id IN (15, 16); INSERT INTO keyless VALUES (0, 'extra')")
    jobs = jobs_of(lab, ["t", "keyless"], [nothing, lambda: lab.target.execute("INSERT INTO t VALUES (15, 'row 15')")])

    result = look(lab, "t", "keyless", cuts={"t": THIRDS}, jobs=jobs)

    assert jobs.calls == [[("t", 0), ("t", 1), ("t", 2), ("keyless", 0)], [("t", 1), ("keyless", 0)]]
    assert found(result)["t"] == [("missing", {"id": "16"})]
    assert [(x.rows, x.differing) for x in result.tables] == [(30, 1), (30, 1)]


def test_the_second_look_waits_until_what_was_committed_is_applied(copied: Lab) -> None:
    lab = copied
    lab.target.execute("DELETE FROM t WHERE id = 15")
    # Applying it mends the row, as no second look at the same position would see.
    lab.source.execute("DELETE FROM t WHERE id = 15")
    lab.source.execute("UPDATE t SET v = 'changed' WHERE id = 16")
    points = []

    def apply_one() -> Scn:
        part = lab.next_slice(Limit(max_transactions=1))
        if part is not None:
            lab.apply_slice(part, lanes=1, config=ServerConfig(allow_duplicate_rows=True))
            lab.ledger.complete(part.end, part.last_committed_at, part.anchor)
        state = lab.ledger.state()
        assert state is not None
        points.append(state.low_watermark)
        return state.low_watermark

    result = look(lab, "t", consistency_point=apply_one)

    assert [a < b for a, b in pairwise(points)] == [True] * (len(points) - 1)
    assert len(points) >= 2
    assert found(result) == {}


def test_a_truncate_that_waits_is_waited_for(copied: Lab) -> None:
    lab = copied
    lab.source.execute("TRUNCATE t; INSERT INTO t VALUES (1, 'new')")
    jobs = jobs_of(lab, ["t"], [nothing, lab.apply])

    result = look(lab, "t", jobs=jobs, consistency_point=lambda: Scn(0))

    assert len(jobs.calls) == 2
    assert (result.is_identical, only(result).rows) == (True, 1)


def test_a_truncate_that_waits_cannot_be_looked_behind(copied: Lab) -> None:
    copied.source.execute("TRUNCATE t")

    with pytest.raises(RetryableError, match=r"public\.t was truncated"):
        jobs_of(copied, ["t"]).compare([Chunk.between(table("t"), [])])


def test_a_log_that_was_freed_still_tells_what_waits(copied: Lab) -> None:
    lab = copied
    state = lab.ledger.state()
    assert state is not None
    assert lab.log.free(state.low_watermark, state.history.consumer.id) > 0
    lab.source.execute(LATE)

    assert look(lab, "t", "keyless", cuts={"t": THIRDS}).is_identical


def test_a_partitioned_table_is_compared_through_its_root(lab: Lab) -> None:
    lab.setup(
        "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (15);"
        "CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (15) TO (99);"
    )
    lab.source.execute("INSERT INTO t SELECT n, 'x' FROM generate_series(1, 30) n")
    lab.apply()
    lab.source.execute("UPDATE t SET id = 50 WHERE id = 2; UPDATE t_high SET v = 'y'; DELETE FROM t_low WHERE id = 3")
    lab.target.execute("DELETE FROM t_low WHERE id = 4; UPDATE t_high SET v = NULL WHERE id = 20")

    result = look(lab, "t", cuts={"t": THIRDS})

    assert found(result) == {"t": [("different", {"id": "20"}), ("missing", {"id": "4"})]}
    assert only(result).rows == 30


def test_under_load_it_never_cries_wolf_and_finds_the_row_that_is_wrong(copied: Lab) -> None:
    lab = copied
    quiet = threading.Event()
    writer = threading.Thread(target=_write, args=[lab, quiet])
    writer.start()

    try:
        results = []
        for _ in range(5):
            results.append(found(look(lab, "t", "keyless")))
            part = lab.next_slice(Limit(max_transactions=5))
            if part is not None:
                lab.apply_slice(part, lanes=2)
                results.append(found(look(lab, "t", "keyless")))
                lab.ledger.complete(part.end, part.last_committed_at, part.anchor)
        behind = lab.log.backlog(_low(lab)).changes
        lab.target.execute("INSERT INTO t VALUES (-5, 'never at the source')")
        wrong = found(look(lab, "t", "keyless"))
    finally:
        quiet.set()
        writer.join()

    assert [result for result in results if result] == []
    assert behind > 0
    assert wrong == {"t": [("extra", {"id": "-5"})]}


def _low(lab: Lab) -> Scn:
    state = lab.ledger.state()
    assert state is not None
    return state.low_watermark


def _write(lab: Lab, until: threading.Event) -> None:
    chosen = random.Random(1)
    with psycopg.connect(lab.source_url, autocommit=True) as session:
        # The pause leaves the machine some time for the comparison.
        while not until.wait(0.01):
            row = chosen.randint(1, 40)
            session.execute("UPDATE t SET v = v || '.' WHERE id BETWEEN %s AND %s", [row, row + 3])
            session.execute("DELETE FROM t WHERE id = %s", [chosen.randint(1, 40)])
            session.execute("INSERT INTO t VALUES (%s, 'new') ON CONFLICT DO NOTHING", [chosen.randint(1, 40)])
            session.execute("UPDATE keyless SET b = b || '.' WHERE a = %s", [chosen.randint(0, 9)])


class Counts:
    """Hears how far a comparison is."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []

    def compared(self, ranges: int, of: int) -> None:
        self.heard.append((ranges, of))

    def warned(self, text: str) -> None: ...


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("on_spark", [True, False], ids=["on Spark", "small"])
def test_all_tables_of_a_pipeline_are_compared(copied: Lab, monkeypatch: pytest.MonkeyPatch, *, on_spark: bool) -> None:
    lab, used = copied, []
    if on_spark:
        monkeypatch.setattr("penstock.verify.driver._FEW_BYTES", -1)
    for kind in (LocalJobs, CompareJobs):
        monkeypatch.setattr(kind, "compare", noted(kind.compare, lambda kind=kind: used.append(kind)))
    lab.target.execute("UPDATE t SET v = 'wrong' WHERE id = 3")
    listener = Counts()
    # Nothing runs, so nothing is waited for.
    lab.ledger.close()

    result = lab.pipeline().verify(listener)

    assert found(result) == {"t": [("different", {"id": "3"})]}
    assert [(x.table.name, x.rows) for x in result.tables] == [("keyless", 30), ("t", 30)]
    assert listener.heard == [(0, 2), (2, 2)]
    # What differed is looked at once more.
    assert used == [CompareJobs if on_spark else LocalJobs] * 2


def noted(work: Callable[..., Any], note: Callable[[], object]) -> Callable[..., Any]:
    def do(*args: Any) -> Any:
        note()
        return work(*args)

    return do


@pytest.mark.usefixtures("spark")
def test_transactions_in_the_error_queue_are_counted_for_the_tables_they_change(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.setup(
        f"{SCHEMA} CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY LIST (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)"
    )
    lab.target.execute("INSERT INTO p VALUES (1, 1)")
    with lab.source.transaction():
        lab.source.execute("INSERT INTO p VALUES (1, 1), (2, 2); INSERT INTO t VALUES (1, 'secret')")
    lab.apply()
    lab.ledger.close()

    result = lab.pipeline().verify(Counts())

    assert {x.table.name: (x.differing, x.queued) for x in result.tables} == {
        "keyless": (0, 0),
        "p": (1, 1),
        "t": (1, 1),
    }
    show(result)
    said = capsys.readouterr().out
    assert "public.t: the error queue holds 1 transaction that changes it: `penstock errors list`\n" in said
    assert "public.keyless: the" not in said
    assert [table["queued"] for table in as_json(result)["tables"]] == [0, 1, 1]


def test_tables_that_are_not_copied_yet_are_named(copied: Lab) -> None:
    copied.target.execute("UPDATE penstock.instantiation SET state = 'COPYING' WHERE table_name = 't'")

    result = copied.pipeline().verify(Counts())

    assert result.unchecked == ["public.t is not copied yet. Let `penstock run` copy it first"]
    assert not result.is_identical
    assert [str(one.table) for one in result.tables] == ["public.keyless"]
    copied.target.execute("UPDATE penstock.instantiation SET state = 'COPYING'")
    with pytest.raises(OperatorError, match=r"public\.keyless, public\.t are not copied yet"):
        copied.pipeline().verify(Counts())


UNSEEN = {
    "a table made after setup": ("CREATE TABLE later (id int PRIMARY KEY)", "public.later"),
    "a partition that was detached": ("ALTER TABLE p DETACH PARTITION p1", "public.p1"),
    "a table that is unlogged now": ("ALTER TABLE t SET UNLOGGED", "public.t"),
    "a partition that is unlogged now": ("ALTER TABLE p1 SET UNLOGGED", "public.p"),
}


@pytest.mark.parametrize(("statement", "named"), UNSEEN.values(), ids=UNSEEN)
def test_a_table_that_is_meant_and_not_captured_is_not_called_identical(
    copied: Lab, capsys: pytest.CaptureFixture[str], statement: str, named: str
) -> None:
    copied.setup(
        "CREATE TABLE p (id int) PARTITION BY RANGE (id); CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9)"
    )
    copied.source.execute("INSERT INTO p VALUES (1)")
    copied.apply()
    assert copied.pipeline().verify(Nobody()).is_identical
    copied.source.execute(statement)
    copied.apply()

    result = copied.pipeline().verify(Nobody())

    assert [line.split()[0] for line in result.unchecked] == [named]
    assert not result.is_identical
    assert as_json(result)["identical"] is False
    show(result)
    said = capsys.readouterr().out
    assert f"not compared: {result.unchecked[0]}" in said.replace("\n", " ")
    assert "source and target identical" not in said
    status = copied.pipeline().status()
    assert status is not None
    assert list(status.attention) == result.unchecked


def test_what_waits_is_not_waited_for_when_nobody_applies(copied: Lab) -> None:
    copied.source.execute("TRUNCATE t")
    jobs = jobs_of(copied, ["t"])

    with pytest.raises(RetryableError, match="Let `penstock run` apply them"):
        look(copied, "t", jobs=jobs)

    assert len(jobs.calls) == 1


def test_keys_in_another_order_are_found_again(lab: Lab) -> None:
    """Two collations of one order but of two names stand for two servers whose libraries sort differently."""
    lab.source.execute('CREATE TABLE t (id text COLLATE "C" PRIMARY KEY)')
    lab.target.execute('CREATE TABLE t (id text COLLATE "pg_c_utf8" PRIMARY KEY)')
    lab.setup("INSERT INTO t VALUES ('a'), ('B'), ('c'), ('D')")
    lab.target.execute("INSERT INTO t VALUES ('a'), ('B'), ('c'), ('D')")

    # Cut as a collation would that sorts a, B, c, D.
    cuts = {"t": [["a"], ["B"], ["c"]]}
    assert found(look(lab, "t", cuts=cuts)) == {}

    lab.target.execute("UPDATE t SET id = 'Z' WHERE id = 'c'")
    assert {(kind, key["id"]) for kind, key in found(look(lab, "t", cuts=cuts))["t"]} == {
        ("missing", "c"),
        ("extra", "Z"),
    }


def test_the_same_letters_in_another_encoding_are_the_same(
    source_server: EmbeddedPostgres, target_server: EmbeddedPostgres
) -> None:
    latin = "ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
    with lab_between(source_server, target_server, source_options=latin) as lab:
        lab.setup(
            "CREATE TYPE mood AS ENUM ('müde', 'heiß'); CREATE TABLE keyless (v text);"
            "CREATE TABLE t (k text PRIMARY KEY, v text, j jsonb, m mood, b bytea)"
        )
        for key in ("ä", "é", "z"):
            lab.source.execute("INSERT INTO t VALUES (%s, 'Ünter', '{\"ß\":1}', 'müde', '\\xe4')", [key])
            lab.source.execute("INSERT INTO keyless VALUES (%s)", [key])
        lab.apply()
        lab.assert_identical_text("t", "keyless")
        assert look(lab, "t", "keyless").is_identical
        lab.source.execute("UPDATE t SET v = 'Öl' WHERE k = 'ä'; DELETE FROM keyless WHERE v = 'é'")
        assert look(lab, "t", "keyless").is_identical

        lab.target.execute("UPDATE t SET v = 'a' WHERE k = 'é'; UPDATE keyless SET v = 'a' WHERE v = 'ä'")
        assert found(look(lab, "t"))["t"] == [("different", {"k": "é"})]
        assert only(look(lab, "keyless")).differing


def test_a_column_that_the_target_lacks_is_named(copied: Lab) -> None:
    copied.target.execute("ALTER TABLE t DROP v")

    (told,) = copied.pipeline(["public.t"]).verify(Nobody()).unchecked

    assert told.startswith("public.t lacks column 'v' at the target")
    with pytest.raises(OperatorError, match=r"public\.t lacks column 'v' at the target"):
        copied.pipeline(["public.t"]).verify(Nobody(), ["public.t"])


def test_columns_may_have_the_names_of_what_the_log_says(lab: Lab) -> None:
    lab.setup(
        "CREATE TYPE mood AS ENUM ('sad', 'glad');"
        "CREATE TABLE t (seq int, line int, before int, digest int, t text, PRIMARY KEY (seq, line, before, digest));"
        "CREATE TABLE moods (m mood, before int, t text, PRIMARY KEY (m, before))"
    )
    lab.source.execute("INSERT INTO t SELECT n, n, n, n, 'x' FROM generate_series(1, 9) n")
    lab.source.execute("INSERT INTO moods VALUES ('sad', 1, 'x'), ('glad', 1, 'x')")
    lab.apply()
    lab.source.execute("UPDATE t SET t = 'y' WHERE seq < 3; DELETE FROM t WHERE seq = 4")
    lab.source.execute("UPDATE t SET seq = 20 WHERE seq = 5")
    lab.source.execute("UPDATE moods SET before = 2 WHERE m = 'sad'; DELETE FROM moods WHERE m = 'glad'")
    assert look(lab, "t", "moods").is_identical

    lab.target.execute("UPDATE t SET t = 'z' WHERE digest = 7; UPDATE moods SET t = 'z' WHERE m = 'glad'")
    assert found(look(lab, "t", "moods")) == {
        "t": [("different", {"seq": "7", "line": "7", "before": "7", "digest": "7"})],
        "moods": [("different", {"m": "glad", "before": "1"})],
    }
