"""Rows that differ are brought, those and no others, while everything else goes on."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from penstock.dialects.postgres.source.change_log import PostgresChangeLog
from penstock.errors import OperatorError, RetryableError
from penstock.position import Limit, Scn
from penstock.snapshot.chunk import Chunk
from penstock.verify.driver import TableResult
from tests.lab import Lab, table
from tests.verify.test_compare import THIRDS, jobs_of, look


def prepared(lab: Lab, schema: str, rows: str) -> None:
    """Have tables captured and filled, the same on both sides."""
    lab.setup(schema)
    lab.source.execute(rows)
    lab.apply()


def repair(lab: Lab, *names: str, cuts: Sequence[Sequence[str]] = ()) -> dict[str, TableResult]:
    """Repair tables, each cut at the same keys, and see that nothing differs any more."""
    result = look(lab, *names, cuts=dict.fromkeys(names, cuts), repair=True)
    assert result.is_identical
    assert look(lab, *names).is_identical
    lab.assert_identical_text(*names)
    return {each.table.name: each for each in result.tables}


def places(lab: Lab, name: str) -> set[tuple[str, str]]:
    """Where each row of a table is stored, and who wrote it: other things for a row that was written again."""
    return set(lab.target.execute(f"SELECT ctid::text, xmin::text FROM {name}").fetchall())


def test_what_differs_is_brought_and_nothing_else_is_written(lab: Lab) -> None:
    prepared(
        lab,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, 'row ' || n FROM generate_series(1, 30) n",
    )
    before = places(lab, "t")
    lab.target.execute("UPDATE t SET v = NULL WHERE id = 5")
    lab.target.execute("DELETE FROM t WHERE id IN (12, 13)")
    lab.target.execute("INSERT INTO t VALUES (-1, 'of nobody'), (99, 'of nobody')")

    brought = repair(lab, "t", cuts=THIRDS)

    assert (brought["t"].rows, brought["t"].differing, brought["t"].repaired) == (30, 0, 5)
    kinds = sorted((d.kind, d.key["id"]) for d in brought["t"].differences)
    assert kinds == [("different", "5"), ("extra", "-1"), ("extra", "99"), ("missing", "12"), ("missing", "13")]
    assert len(places(lab, "t") & before) == 27


def test_rows_without_a_key_are_brought_as_often_as_they_occur(lab: Lab) -> None:
    prepared(
        lab,
        "CREATE TABLE k (a int, b text, digest text)",
        "INSERT INTO k SELECT n % 3, 'row', NULL FROM generate_series(1, 12) n",
    )
    lab.target.execute("DELETE FROM k WHERE ctid IN (SELECT ctid FROM k WHERE a = 1 LIMIT 3)")
    lab.target.execute("INSERT INTO k SELECT 2, 'row', NULL FROM generate_series(1, 5)")
    lab.target.execute("INSERT INTO k VALUES (7, 'of nobody', 'x')")

    assert repair(lab, "k")["k"].repaired == 3 + 5 + 1


def test_a_row_keeps_what_only_the_target_has_of_it(lab: Lab) -> None:
    prepared(
        lab,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    )
    lab.target.execute("ALTER TABLE t ADD note text DEFAULT 'fresh'")
    lab.target.execute("UPDATE t SET note = 'kept', v = 'wrong' WHERE id < 3")
    lab.target.execute("DELETE FROM t WHERE id = 3")

    look(lab, "t", repair=True)

    assert lab.rows("t") == [(1, "a", "kept"), (2, "b", "kept"), (3, "c", "fresh")]


@pytest.mark.parametrize("cuts", [(), THIRDS], ids=["in one range", "across ranges"])
def test_rows_that_exchanged_unique_values_are_brought(lab: Lab, cuts: Sequence[Sequence[str]]) -> None:
    prepared(
        lab,
        "CREATE TABLE u (id int PRIMARY KEY, name text UNIQUE)",
        "INSERT INTO u SELECT n, 'name ' || n FROM generate_series(1, 30) n",
    )
    lab.target.execute("UPDATE u SET name = NULL WHERE id IN (5, 25)")
    lab.target.execute("UPDATE u SET name = 'name ' || 30 - id WHERE id IN (5, 25)")

    assert repair(lab, "u", cuts=cuts)["u"].repaired == 2


KINDS = {
    "a generated column": "g int PRIMARY KEY, v int, w int GENERATED ALWAYS AS (v * 2) STORED",
    "an identity that is the key": "g int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int",
    "an identity beside the key": "v int PRIMARY KEY, g int GENERATED ALWAYS AS IDENTITY",
    "a key of two columns": "v int, g text, w numeric DEFAULT 1.0, PRIMARY KEY (g, v)",
    "a key that is written in two ways": "g numeric PRIMARY KEY, v int",
    "a deferrable key": "g int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v int",
    "odd names": 'g int PRIMARY KEY, v int, "penstock row" text, "k0" int, "o0" text, "s" text, "digest" int',
}


@pytest.mark.parametrize("columns", KINDS.values(), ids=KINDS)
def test_tables_of_every_kind_are_brought(lab: Lab, columns: str) -> None:
    overriding = "OVERRIDING SYSTEM VALUE"
    prepared(
        lab,
        f"CREATE TABLE t ({columns})",
        f"INSERT INTO t (g, v) {overriding} SELECT n, n FROM generate_series(1, 20) n",
    )
    lab.target.execute("UPDATE t SET v = v + 100 WHERE v IN (3, 7)")
    lab.target.execute("DELETE FROM t WHERE v IN (5, 10)")
    lab.target.execute(f"INSERT INTO t (g, v) {overriding} VALUES (51, 51)")
    if "numeric PRIMARY" in columns:
        lab.target.execute("UPDATE t SET g = g + 0.00 WHERE v = 8")

    assert repair(lab, "t")["t"].repaired >= 5


def test_a_partitioned_table_is_brought_through_its_root(lab: Lab) -> None:
    prepared(
        lab,
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "INSERT INTO p SELECT n, 'row' FROM generate_series(1, 19) n",
    )
    lab.target.execute("TRUNCATE p1")
    lab.target.execute("UPDATE p2 SET v = 'wrong' WHERE id = 15")

    assert repair(lab, "p")["p"].repaired == 10


def test_rows_of_a_table_that_inherits_are_left_alone(lab: Lab) -> None:
    prepared(lab, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    lab.target.execute("CREATE TABLE theirs () INHERITS (t); INSERT INTO theirs VALUES (1, 'mine'), (7, 'mine')")
    lab.target.execute("UPDATE ONLY t SET v = 'wrong' WHERE id = 1")

    look(lab, "t", repair=True)

    assert lab.target.execute("SELECT * FROM ONLY t ORDER BY id").fetchall() == [(1, "a"), (2, "b")]
    assert lab.rows("theirs") == [(1, "mine"), (7, "mine")]


def test_what_waits_meets_the_rows_it_expects(lab: Lab) -> None:
    prepared(
        lab,
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE k (a int, b int)",
        "INSERT INTO t SELECT n, 0 FROM generate_series(1, 30) n; INSERT INTO k SELECT 1, 1 FROM generate_series(1, 9)",
    )
    lab.source.execute("UPDATE t SET v = v + 1; DELETE FROM t WHERE id > 25; UPDATE t SET id = -id WHERE id < 4")
    lab.source.execute("UPDATE k SET b = 2 WHERE ctid IN (SELECT ctid FROM k LIMIT 4); INSERT INTO t VALUES (26, 7)")
    lab.target.execute("DELETE FROM t WHERE id % 3 = 0; UPDATE t SET v = 9 WHERE id % 3 = 1; DELETE FROM k")

    result = look(lab, "t", "k", cuts={"t": THIRDS}, repair=True)

    assert result.is_identical
    assert sorted(set(lab.rows("k"))) == [(1, 1)]
    results = lab.apply()
    assert [entry.error_message for entry in lab.errors()] == []
    assert sum(r.conflicts for r in results) == 0
    lab.assert_identical("t", "k")


@pytest.fixture
def allowed() -> threading.Semaphore:
    """How often the writer may write before more is applied: one that is faster than apply would never be caught up."""
    return threading.Semaphore(60)


@pytest.fixture
def writing(lab: Lab, allowed: threading.Semaphore) -> Iterator[Lab]:
    """Two tables that somebody goes on changing."""
    prepared(
        lab,
        "CREATE TABLE t (id int PRIMARY KEY, v text, u int UNIQUE); CREATE TABLE k (a int, b text)",
        "INSERT INTO t SELECT n, 'row', n FROM generate_series(1, 30) n;"
        "INSERT INTO k SELECT n % 5, 'row' FROM generate_series(1, 30) n",
    )
    quiet = threading.Event()

    def write() -> None:
        chosen = random.Random(7)
        with psycopg.connect(lab.source_url, autocommit=True) as session:
            while not quiet.wait(0.005):
                if not allowed.acquire(timeout=0.1):
                    continue
                row = chosen.randint(1, 40)
                session.execute("UPDATE t SET v = v || '.' WHERE id BETWEEN %s AND %s", [row, row + 3])
                session.execute("DELETE FROM t WHERE id = %s", [chosen.randint(1, 40)])
                session.execute("INSERT INTO t VALUES (%s, 'new', NULL) ON CONFLICT DO NOTHING", [row])
                session.execute("UPDATE t SET u = CASE u WHEN 300 THEN 400 ELSE 300 END WHERE id = 11")
                session.execute("UPDATE k SET b = b || '.' WHERE a = %s", [chosen.randint(0, 4)])

    writer = threading.Thread(target=write)
    writer.start()
    yield lab
    quiet.set()
    writer.join()


def test_beside_apply_every_change_takes_effect_once(writing: Lab, allowed: threading.Semaphore) -> None:
    """Rows are spoiled and brought, again and again, while another thread applies what is written meanwhile."""
    lab = writing
    chosen = random.Random(11)
    is_over = threading.Event()
    failures: list[BaseException] = []

    def apply() -> None:
        try:
            while not is_over.is_set():
                part = lab.next_slice(Limit(max_transactions=chosen.randint(1, 6)))
                if part is not None:
                    lab.apply_slice(part, lanes=chosen.choice([1, 2]))
                    lab.ledger.complete(part.end, part.last_committed_at, part.anchor)
                    allowed.release()
        except BaseException as exc:
            failures.append(exc)

    # Nothing is spoiled while it may be applied to: a row that is wrong is a conflict, and rightly so.
    repaired = 0
    for _ in range(3):
        spoil(lab, chosen)
        before = lab.target.execute("SELECT count(*) FROM penstock.error").fetchone()
        brought = look(lab, "t", "k", cuts={"t": THIRDS}, repair=True)
        repaired += sum(each.repaired for each in brought.tables)
        assert before == (0,)
        is_over.clear()
        applying = threading.Thread(target=apply)
        applying.start()
        for _ in range(3):
            # Nothing is wrong, and everything in motion; what is compared and what is locked must not show.
            result = look_again(lab)
            assert sum(each.differing + each.repaired for each in result) == 0
        is_over.set()
        applying.join()

    assert failures == []
    assert repaired > 0
    assert lab.errors() == []


def look_again(lab: Lab) -> list[TableResult]:
    """Have every range go through the repair, whether it differs or not."""
    jobs = jobs_of(lab, ["t", "k"])
    chunks = [*Chunk.between(table("t"), THIRDS), Chunk(table("k"), 0)]
    results = []
    for chunk in chunks:
        for _ in range(20):
            try:
                (found,) = jobs.repair([chunk])
            except RetryableError:
                continue
            results.append(TableResult(found.chunk.table, found.rows, 0, list(found.differences), found.differing))
            break
    assert len(results) == len(chunks)
    return results


def spoil(lab: Lab, chosen: random.Random) -> None:
    """Do something to the target that the source has not done."""
    row = chosen.randint(1, 30)
    lab.target.execute("UPDATE t SET v = 'spoiled' WHERE id BETWEEN %s AND %s", [row, row + 5])
    lab.target.execute("DELETE FROM t WHERE id = %s", [chosen.randint(1, 30)])
    lab.target.execute("INSERT INTO t VALUES (%s, 'nobody', NULL) ON CONFLICT DO NOTHING", [chosen.randint(50, 60)])
    lab.target.execute("DELETE FROM k WHERE a = %s", [chosen.randint(0, 4)])
    lab.target.execute("INSERT INTO k VALUES (9, 'nobody')")


def test_apply_waits_for_a_range_and_goes_on_behind_it(lab: Lab) -> None:
    prepared(lab, "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 0), (2, 0)")
    lab.target.execute("DELETE FROM t WHERE id = 2")
    lab.source.execute("UPDATE t SET v = 1")
    part = lab.next_slice()
    assert part is not None
    blocker = psycopg.connect(lab.target_url)
    # The repair is kept waiting inside its transaction, where it has locked the lanes already.
    blocker.execute("LOCK TABLE t IN SHARE MODE")
    repairing = threading.Thread(target=lambda: look(lab, "t", repair=True))
    repairing.start()
    wait_until(lab, "SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND relation = 't'::regclass")
    applying = threading.Thread(target=lambda: lab.apply_slice(part, lanes=1))
    applying.start()
    wait_until(lab, "SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'")

    blocker.rollback()
    repairing.join()
    applying.join()

    blocker.close()
    assert lab.errors() == []
    lab.assert_identical("t")


def wait_until(lab: Lab, query: str) -> None:
    for _ in range(400):
        if lab.target.execute(query).fetchone() == (True,):
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"never true: {query}")


def test_a_row_that_the_target_refuses_is_an_error_and_its_range_is_left(lab: Lab) -> None:
    prepared(
        lab,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, 'a secret' FROM generate_series(1, 30) n",
    )
    lab.target.execute("DELETE FROM t WHERE id IN (3, 4); ALTER TABLE t ADD CHECK (id <> 4)")

    with pytest.raises(OperatorError) as caught:
        look(lab, "t", cuts={"t": THIRDS}, repair=True)

    assert "cannot repair rows of table public.t" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert set(lab.rows("t")) == {(n, "a secret") for n in range(1, 31) if n not in (3, 4)}


def test_a_table_that_was_copied_ahead_of_what_is_applied_is_brought_as_of_its_copy(lab: Lab) -> None:
    prepared(
        lab,
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE o (id int PRIMARY KEY, v int)",
        "INSERT INTO t VALUES (1, 0), (2, 0); INSERT INTO o VALUES (1, 0)",
    )
    lab.source.execute("UPDATE t SET v = 1; UPDATE o SET v = 1")
    lab.target.execute("UPDATE t SET v = 1 WHERE id = 1")
    lab.target.execute("UPDATE penstock.instantiation SET scn = %s WHERE table_name = 't'", [lab.log.tick()])
    lab.source.execute("UPDATE t SET v = 2")

    result = look(lab, "t", "o", repair=True)

    assert result.is_identical
    assert (lab.rows("t"), lab.rows("o")) == ([(1, 1), (2, 1)], [(1, 0)])
    lab.apply()
    assert lab.errors() == []
    lab.assert_identical("t", "o")


def test_what_was_put_aside_before_is_left_out_of_a_retry(lab: Lab) -> None:
    prepared(lab, "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE o (id int PRIMARY KEY)", "SELECT")
    lab.source.execute("INSERT INTO t VALUES (1, 0)")
    lab.apply()
    lab.target.execute("DELETE FROM t")
    lab.source.execute("BEGIN; UPDATE t SET v = 1 WHERE id = 1; INSERT INTO o VALUES (5); COMMIT")
    lab.apply()
    (entry,) = lab.errors()
    # Nothing runs, so nothing is waited for.
    lab.ledger.close()

    assert lab.pipeline().verify(tables=["public.t"], repair=True).is_identical
    assert lab.retry(entry.id) == [entry.id]

    assert lab.errors() == []
    lab.assert_identical("t", "o")


def test_rows_that_come_late_in_a_large_range_are_brought(lab: Lab) -> None:
    """What is read of the source comes in batches, of which the first ones hold nothing that differs."""
    prepared(
        lab,
        "CREATE TABLE t (id int PRIMARY KEY, v int, pad text); CREATE TABLE k (id int, pad text)",
        "INSERT INTO t SELECT n, n, repeat('x', 900) FROM generate_series(1, 40000) n;"
        "INSERT INTO k SELECT n, repeat('y', 900) FROM generate_series(1, 40000) n",
    )
    lab.target.execute("UPDATE t SET v = 0 WHERE id = 39991; DELETE FROM k WHERE id = 39991")

    brought = repair(lab, "t", "k")

    assert (brought["t"].repaired, brought["k"].repaired) == (1, 1)


def test_a_table_without_a_key_does_not_get_rows_twice_by_a_retry(lab: Lab) -> None:
    prepared(lab, "CREATE TABLE k (a int); CREATE TABLE c (id int PRIMARY KEY)", "INSERT INTO k VALUES (1)")
    lab.target.execute("INSERT INTO c VALUES (5)")
    lab.source.execute("BEGIN; INSERT INTO k VALUES (2), (2); INSERT INTO c VALUES (5); COMMIT")
    lab.apply()
    (entry,) = lab.errors()

    # As when the command is killed before its last word.
    assert [r.differing for r in jobs_of(lab, ["k"]).repair([Chunk(table("k"), 0)])] == [2]
    lab.target.execute("DELETE FROM c")
    assert lab.retry(entry.id) == [entry.id]

    lab.assert_identical("k", "c")
    assert lab.target.execute("SELECT count(*) FROM penstock.held").fetchone() == (0,)


def test_a_key_written_in_another_way_keeps_what_only_the_target_has(lab: Lab) -> None:
    prepared(lab, "CREATE TABLE t (id numeric PRIMARY KEY, v int)", "INSERT INTO t VALUES (1.00, 1), (2, 2)")
    lab.target.execute("ALTER TABLE t ADD note text; UPDATE t SET id = 1.0, note = 'kept' WHERE id = 1")

    look(lab, "t", repair=True)

    assert lab.target.execute("SELECT id::text, note FROM t ORDER BY id").fetchall() == [("1.00", "kept"), ("2", None)]


def test_whoever_holds_a_row_keeps_apply_waiting_for_a_moment_only(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.verify.task._LOCK_TIMEOUT_MS", 200)
    prepared(lab, "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 0), (2, 0)")
    lab.target.execute("UPDATE t SET v = 9 WHERE id = 1")
    lab.source.execute("UPDATE t SET v = 1 WHERE id = 2")
    with psycopg.connect(lab.target_url) as holder:
        holder.execute("SELECT FROM t WHERE id = 1 FOR UPDATE")

        with pytest.raises(RetryableError):
            look(lab, "t", repair=True)
        lab.apply()

        assert set(lab.rows("t")) == {(1, 9), (2, 1)}
    repair(lab, "t")


def test_rows_that_another_pipeline_has_copied_are_not_deleted(lab: Lab) -> None:
    prepared(lab, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    lab.target.execute("INSERT INTO penstock.process (name, source) VALUES ('other', 'x'); INSERT INTO t VALUES (2)")
    lab.target.execute("INSERT INTO penstock.instantiation VALUES ('other', 'public', 't', 0, '', 'READY')")
    lab.ledger.close()

    with pytest.raises(OperatorError, match="process 'other' copied, which a repair would delete"):
        lab.pipeline().verify(repair=True)
    lab.target.execute("DELETE FROM penstock.instantiation WHERE process = 'lab'")
    for adopt in (False, True):
        with pytest.raises(OperatorError, match="holds rows that process 'other' copied"):
            lab.pipeline().setup(adopt=adopt)

    assert set(lab.rows("t")) == {(1,), (2,)}


def test_a_trigger_of_the_target_that_keeps_rows_away_is_an_error(lab: Lab) -> None:
    prepared(lab, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    lab.target.execute("""
        DELETE FROM t;
        CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER away BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION nothing();
        ALTER TABLE t ENABLE ALWAYS TRIGGER away
    """)

    with pytest.raises(OperatorError, match="a statement concerns 0 rows"):
        look(lab, "t", repair=True)


def test_rows_that_the_target_makes_all_of_are_counted(lab: Lab) -> None:
    prepared(lab, "CREATE TABLE g (a int GENERATED ALWAYS AS (7) STORED)", "INSERT INTO g VALUES (DEFAULT), (DEFAULT)")
    lab.target.execute("DELETE FROM g")

    assert repair(lab, "g")["g"].repaired == 2


def test_a_log_that_is_freed_between_two_looks_is_looked_at_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(lab, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 9)")
    lab.source.execute("INSERT INTO t VALUES (10)")
    lab.source.execute("INSERT INTO t VALUES (11)")
    part = lab.next_slice(Limit(max_transactions=1))
    assert part is not None
    lab.apply_slice(part, lanes=1)
    found = PostgresChangeLog._read_page

    def freed(self: PostgresChangeLog, *args: Any, **options: Any) -> Any:
        lab.source.execute(f"DELETE FROM {lab.set_name}.log")
        return found(self, *args, **options)

    monkeypatch.setattr(PostgresChangeLog, "_read_page", freed)
    with pytest.raises(RetryableError, match="freed in the meantime"):
        look(lab, "t")


def test_ranges_mended_before_one_that_has_to_wait_are_counted(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(lab, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 30)")
    lab.target.execute("DELETE FROM t WHERE id IN (5, 15, 25)")
    jobs = jobs_of(lab, ["t"])
    mend, waited = jobs.repair, []

    def repair_later(chunks: Sequence[Chunk]) -> Any:
        done = []
        for chunk in chunks:
            if chunk.number == 1 and not waited:
                waited.append(chunk)
                raise RetryableError("somebody is in the way")
            done += mend([chunk])
        return done

    monkeypatch.setattr(jobs, "repair", repair_later)
    low = Scn(10**9)
    result = look(lab, "t", cuts={"t": THIRDS}, jobs=jobs, repair=True, consistency_point=lambda: low)

    assert waited
    assert [each.repaired for each in result.tables] == [3]
