"""Tables that are dropped or renamed at the source are so at the target, at their place among the changes."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.apply.apply_errors import DDL_NOT_CARRIED_OUT
from penstock.apply.ddl import DdlPolicy, DdlRules
from penstock.apply.handlers.settings import HandlerSettings
from penstock.apply.lane import ServerConfig
from penstock.errors import OperatorError, PenstockError
from penstock.pipeline.report import Report
from tests.apply import handled
from tests.apply.handled import SEEN, function
from tests.lab import FILE, Lab, table
from tests.stories.test_ddl_applied import CAPTURES, FOLLOWING, WAYS, without_event_triggers
from tests.stories.test_handlers import pipeline
from tests.stories.test_rules_whole import catch_up, opened, rows


@pytest.fixture
def following(lab: Lab) -> Iterator[Lab]:
    """A lab whose log tells of DDL."""
    handled.forget()
    with Lab(lab.source_url, lab.target_url, with_ddl=True) as made:
        yield made


def tables(lab: Lab) -> list[str]:
    """The tables at the target, but the ledger's."""
    rows = lab.target.execute(
        "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition"
        " AND relnamespace::regnamespace::text IN ('public', 'far') ORDER BY 1"
    )
    return [name for (name,) in rows]


def copied(lab: Lab) -> list[str]:
    return sorted(str(name) for name in lab.ledger.instantiated())


@pytest.mark.rule("A-55", "A-148", "A-151")
@CAPTURES
@WAYS
def test_tables_are_dropped_and_renamed_at_their_place(
    following: Lab, lanes: int, use_set: bool, is_told: bool
) -> None:
    lab = following
    lab.target.execute("CREATE SCHEMA far")
    lab.setup(
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE gone (id int PRIMARY KEY, v int);"
        "CREATE TABLE u (id int PRIMARY KEY, t_id int REFERENCES t); CREATE SCHEMA far;"
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (1000)"
    )
    if not is_told:
        without_event_triggers(lab)
    number = 0

    def write(name: str, parted: str = "p") -> None:
        nonlocal number
        for _ in range(3):
            number += 1
            lab.source.execute(
                f"INSERT INTO {name} VALUES ({number}, {number}); INSERT INTO u VALUES ({number}, {number})"
            )
            lab.source.execute(f"INSERT INTO {parted} VALUES ({number})")
        lab.source.execute(f"UPDATE {name} SET v = v + 1; DELETE FROM u WHERE id = {number - 1}")

    lab.source.execute("INSERT INTO gone SELECT n, n FROM generate_series(1, 20) n")
    write("t")
    lab.source.execute("ALTER TABLE t RENAME TO t2; ALTER TABLE p RENAME TO parted")
    write("t2", "parted")
    lab.source.execute("INSERT INTO gone VALUES (99, 99); UPDATE gone SET v = 0")
    lab.source.execute(
        "DROP TABLE gone; ALTER TABLE t2 ADD c int DEFAULT 7, DROP v; ALTER TABLE t2 ADD w int DEFAULT 0"
    )
    if not is_told:
        # A run looks every half minute; until then nothing is known of the drop.
        assert [row["table_name"] for row in lab.changes() if row["op"] == "ddl"] == ["t", "p"]
        for _ in range(2):
            lab.pipeline()._source.follow()
    lab.source.execute("INSERT INTO t2 (id, c) VALUES (100, 8)")
    lab.source.execute("ALTER TABLE t2 SET SCHEMA far; ALTER TABLE far.t2 RENAME TO t3")
    lab.source.execute("INSERT INTO far.t3 (id, c) VALUES (101, 8); INSERT INTO u VALUES (101, 101)")
    config = ServerConfig(ddl=FOLLOWING.ddl, use_set_path=use_set)

    lab.apply(lanes=lanes, config=config, shuffle=random.Random(3))

    assert [entry.error_message for entry in lab.errors()] == []
    assert tables(lab) == ["far.t3", "parted", "u"]
    lab.assert_identical("far.t3", "u", "parted")
    assert copied(lab) == ["far.t3", "public.p1", "public.parted", "public.u"]
    # Twice the same changes nothing.
    assert lab.apply(lanes=lanes, config=config) == []


def test_one_transaction_writes_renames_and_drops(following: Lab) -> None:
    lab = following
    lab.setup(
        "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY, p_id int REFERENCES p);"
        "CREATE TABLE gone (id int PRIMARY KEY UNIQUE DEFERRABLE)"
    )
    lab.source.execute(
        "BEGIN; INSERT INTO gone VALUES (1); INSERT INTO p VALUES (1); INSERT INTO c VALUES (1, 1);"
        "ALTER TABLE p RENAME TO q; INSERT INTO q VALUES (2); INSERT INTO c VALUES (2, 2); DROP TABLE gone;"
        "ALTER TABLE c RENAME TO d; INSERT INTO d VALUES (3, 1); ALTER TABLE d RENAME TO e;"
        "UPDATE e SET p_id = 1; COMMIT"
    )
    lab.apply(config=FOLLOWING)
    assert lab.errors() == []
    assert tables(lab) == ["e", "q"]
    lab.assert_identical("e", "q")


def test_names_are_exchanged(following: Lab) -> None:
    lab = following
    lab.setup(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)", tables=["public.a", "public.b"]
    )
    lab.source.execute("INSERT INTO a VALUES (1)")
    lab.source.execute("INSERT INTO b VALUES (2)")
    lab.source.execute(
        "BEGIN; INSERT INTO a VALUES (10); INSERT INTO b VALUES (20); ALTER TABLE a RENAME TO tmp;"
        "ALTER TABLE b RENAME TO a; ALTER TABLE tmp RENAME TO b; INSERT INTO a VALUES (21); INSERT INTO b VALUES (11);"
        "COMMIT"
    )
    lab.source.execute("INSERT INTO a VALUES (3)")
    lab.source.execute("INSERT INTO b VALUES (4)")

    lab.apply(config=FOLLOWING)

    assert lab.errors() == []
    lab.assert_identical("a", "b")
    assert lab.rows("a") == [(2,), (20,), (21,), (3,)]


REFUSED = {
    "a foreign key of another table": (
        "CREATE TABLE other (id int REFERENCES t)",
        "DROP TABLE t",
        "DROP TABLE other",
        "cannot drop table public.t because other objects depend on it: constraint other_id_fkey on table public.other",
    ),
    "a view": (
        "CREATE VIEW v AS SELECT * FROM t",
        "DROP TABLE t",
        "DROP VIEW v",
        "view public.v depends on table public.t",
    ),
    "the name is taken": (
        "CREATE TABLE t2 (other int)",
        "ALTER TABLE t RENAME TO t2",
        "DROP TABLE t2",
        'relation "t2" already exists',
    ),
    "no such schema": (
        "",
        "CREATE SCHEMA far; ALTER TABLE t SET SCHEMA far",
        "CREATE SCHEMA far",
        'schema "far" does not exist',
    ),
    "another process": (
        "INSERT INTO penstock.process (name, source) VALUES ('other', 'x');"
        "INSERT INTO penstock.instantiation (process, schema_name, table_name, scn, snapshot, state)"
        " VALUES ('other', 'public', 't', 0, '', 'READY')",
        "DROP TABLE t",
        "DELETE FROM penstock.instantiation WHERE process = 'other'",
        "it holds what process 'other' applies, too; drop it by hand",
    ),
    "another process, renamed": (
        "INSERT INTO penstock.process (name, source) VALUES ('other', 'x');"
        "INSERT INTO penstock.instantiation (process, schema_name, table_name, scn, snapshot, state)"
        " VALUES ('other', 'public', 't', 0, '', 'READY')",
        "ALTER TABLE t RENAME TO t2",
        "DELETE FROM penstock.instantiation WHERE process = 'other'",
        "it holds what process 'other' applies, too; rename it by hand",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.rule("A-157")
def test_what_is_in_the_way_is_told_and_a_retry_follows_once_it_is_gone(following: Lab, case: str) -> None:
    lab = following
    before, ddl, mended, why = REFUSED[case]
    lab.setup("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    lab.target.execute(before)
    lab.source.execute(f"INSERT INTO u VALUES (1); {ddl}")
    lab.source.execute("INSERT INTO u VALUES (2)")

    lab.apply(config=FOLLOWING)

    (entry,) = lab.errors()
    assert (entry.op, entry.table, entry.error_number) == ("ddl", table("t"), DDL_NOT_CARRIED_OUT)
    assert why in entry.error_message
    assert "t" in tables(lab)
    assert "public.t" in copied(lab)
    assert lab.rows("u") == [(2,)]

    with pytest.raises(OperatorError, match="still cannot be applied"):
        lab.retry(entry.id)
    lab.target.execute(mended)
    assert lab.retry(entry.id) == [entry.id]
    assert "t" not in tables(lab)
    lab.assert_identical("u")
    assert copied(lab) == (
        ["public.u"] if "DROP" in ddl else sorted(["far.t" if "far" in ddl else "public.t2", "public.u"])
    )


@pytest.mark.parametrize(
    ("ddl", "by_hand"),
    [
        ("DROP TABLE t", "DROP TABLE t CASCADE"),
        ("ALTER TABLE t RENAME TO t2", "DROP TABLE t2; ALTER TABLE t RENAME TO t2"),
    ],
    ids=["dropped", "renamed"],
)
def test_what_a_person_has_done_meanwhile_is_not_done_again(following: Lab, ddl: str, by_hand: str) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY)")
    lab.target.execute("CREATE TABLE t2 (other int); CREATE TABLE other (id int REFERENCES t)")
    lab.source.execute(ddl)
    lab.source.execute("SELECT 1" if "DROP" in ddl else "INSERT INTO t2 VALUES (1)")
    lab.apply(config=FOLLOWING)
    ids = [entry.id for entry in lab.errors()]
    assert len(ids) == (1 if "DROP" in ddl else 2)

    lab.target.execute(by_hand)

    assert lab.retry(*ids) == ids
    assert copied(lab) == ([] if "DROP" in ddl else ["public.t2"])
    if "DROP" not in ddl:
        lab.assert_identical("t2")


def test_entries_of_the_error_queue_go_by_the_name_that_their_table_has_now(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int)")
    lab.target.execute("INSERT INTO t VALUES (1, 7)")
    lab.source.execute("INSERT INTO t VALUES (1, 1)")
    lab.source.execute("ALTER TABLE t RENAME TO t2")
    lab.apply(config=FOLLOWING)
    (entry,) = lab.errors()
    assert entry.table == table("t2")

    lab.target.execute("DELETE FROM t2")
    assert lab.retry(entry.id) == [entry.id]
    lab.assert_identical("t2")


def test_an_entry_of_a_dropped_table_does_not_meet_the_one_that_took_its_name(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE a (id int, v int); CREATE TABLE b (id int, v int)")
    lab.source.execute("INSERT INTO a VALUES (1, 1); INSERT INTO b VALUES (1, 1)")
    lab.apply(config=FOLLOWING)
    lab.target.execute("ALTER TABLE b ADD CHECK (v < 5); ALTER TABLE a ADD CHECK (v < 5)")
    lab.source.execute("INSERT INTO b VALUES (2, 9)")
    lab.source.execute("INSERT INTO a VALUES (2, 9)")
    lab.apply(config=FOLLOWING)
    of_b, of_a = lab.errors()
    # As if both had been repaired, so that they hold what the entries did.
    for name in ("a", "b"):
        lab.target.execute("INSERT INTO penstock.held SELECT process, id, 'public', %s FROM penstock.error", [name])
    lab.source.execute("BEGIN; DROP TABLE b; ALTER TABLE a RENAME TO b; COMMIT")

    lab.apply(config=FOLLOWING)

    assert len(lab.errors()) == 2
    assert [str(entry.table) for entry in lab.errors()] == ["public.b, dropped", "public.b"]
    lab.target.execute("ALTER TABLE b DROP CONSTRAINT a_v_check; DELETE FROM penstock.held")
    with pytest.raises(PenstockError, match="b, dropped does not exist at the target"):
        lab.retry(of_b.id)
    assert lab.retry(of_a.id) == [of_a.id]
    lab.assert_identical("b")


def test_ddl_waits_in_the_queue_whatever_becomes_of_the_rows(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int, v int)")
    lab.target.execute("CREATE VIEW seen AS SELECT v FROM t")
    lab.source.execute("ALTER TABLE t DROP v")
    lab.source.execute("TRUNCATE t")
    lab.apply(config=FOLLOWING)
    (entry,) = lab.errors()
    lab.target.execute("DROP VIEW seen")

    assert lab.retry(entry.id) == [entry.id]

    assert [
        name
        for (name,) in lab.target.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped"
        )
    ] == ["id"]


@pytest.mark.rule("A-150")
@pytest.mark.parametrize("ddl", ["DROP TABLE t", "ALTER TABLE t RENAME TO t2"], ids=["drop", "rename"])
def test_a_task_that_is_killed_leaves_it_done_once_or_not_at_all(following: Lab, ddl: str) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    lab.target.execute(
        "CREATE FUNCTION die() RETURNS event_trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); END$$;"
        "CREATE EVENT TRIGGER die ON ddl_command_end WHEN TAG IN ('ALTER TABLE', 'DROP TABLE') EXECUTE FUNCTION die();"
        "ALTER EVENT TRIGGER die ENABLE ALWAYS"
    )
    lab.source.execute(f"INSERT INTO u VALUES (1); {ddl}")
    with pytest.raises(PenstockError):
        lab.apply(config=FOLLOWING)
    lab.target.execute("DROP EVENT TRIGGER die")
    assert (tables(lab), copied(lab), lab.rows("u")) == (["t", "u"], ["public.t", "public.u"], [])

    # It is done, and dies before anybody hears of it.
    part = lab.next_slice()
    assert part is not None
    (done,) = lab.apply_slice(part, lanes=1, config=FOLLOWING)
    assert (done.failure, done.transactions, done.errors) == (None, 1, 0)
    lab.acquire()
    (again,) = lab.apply_slice(part, lanes=1, config=FOLLOWING)
    assert (again.already_applied, again.transactions) == (1, 0)
    now = ["u"] if "DROP" in ddl else ["t2", "u"]
    assert (tables(lab), copied(lab), lab.errors()) == (now, [f"public.{name}" for name in now], [])
    lab.assert_identical("u")


def test_each_table_has_its_policy(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE a (id int); CREATE TABLE kept (id int); CREATE TABLE s (id int); CREATE TABLE r (id int)")
    own = {table("kept"): DdlPolicy.IGNORE, table("s"): DdlPolicy.STOP}
    lab.source.execute("DROP TABLE kept")
    lab.source.execute("DROP TABLE a")
    lab.source.execute("DROP TABLE s")
    lab.source.execute("ALTER TABLE r RENAME TO renamed")

    for _ in range(2):
        with pytest.raises(OperatorError, match=r"dropped at the source, and `ddl: stop` ends.*public\.s"):
            lab.apply(config=ServerConfig(ddl=DdlRules(DdlPolicy.APPLY, own)))
        assert tables(lab) == ["kept", "r", "s"]
    own[table("s")] = DdlPolicy.IGNORE
    with pytest.raises(OperatorError, match=r"renamed at the source, and `ddl: stop`.*public\.r.*`ddl` to `apply`"):
        lab.apply(config=ServerConfig(ddl=DdlRules(DdlPolicy.APPLY, {**own, table("r"): DdlPolicy.STOP})))
    lab.apply(config=ServerConfig(ddl=DdlRules(DdlPolicy.APPLY, own)))

    assert tables(lab) == ["kept", "renamed", "s"]
    assert lab.errors() == []


def test_what_was_noted_twice_is_done_once(following: Lab) -> None:
    """Two writers may find the same, and neither sees what the other has noted."""
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE gone (id int)")
    lab.source.execute("DROP TABLE gone")
    lab.source.execute("ALTER TABLE t RENAME TO t2")
    lab.source.execute(
        f"INSERT INTO {lab.set_name}.log (relid, version, op, before, changes)"
        f" SELECT relid, version, op, before, changes FROM {lab.set_name}.log WHERE op = 'A' ORDER BY seq"
    )
    lab.source.execute("INSERT INTO t2 VALUES (1)")

    lab.apply(config=FOLLOWING)

    assert lab.errors() == []
    assert tables(lab) == ["t2"]
    lab.assert_identical("t2")


@pytest.mark.parametrize("has_handler", [False, True])
def test_tables_that_refer_to_each_other_are_dropped_together(following: Lab, has_handler: bool) -> None:
    lab = following
    lab.setup("CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (id int REFERENCES p)")
    lab.source.execute("DROP TABLE p, c")
    config = FOLLOWING
    if has_handler:
        handled.DO["ddl"] = lambda ddl, _: ddl.execute()
        config = replace(config, handlers=HandlerSettings(ddl=function("ddl")))

    lab.apply(config=config)

    assert [entry.error_message for entry in lab.errors()] == []
    assert tables(lab) == []


def test_tables_of_one_circle_are_dropped_together(following: Lab) -> None:
    lab = following
    lab.setup(
        "CREATE TABLE a (id int PRIMARY KEY, b_id int); CREATE TABLE b (id int PRIMARY KEY, a_id int REFERENCES a);"
        "ALTER TABLE a ADD FOREIGN KEY (b_id) REFERENCES b"
    )
    lab.source.execute("DROP TABLE a, b")
    lab.apply(config=FOLLOWING)
    assert [entry.error_message for entry in lab.errors()] == []
    assert tables(lab) == []


@pytest.mark.rule("A-116")
def test_a_handler_is_called_for_them_and_keeps_what_it_likes(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE gone (id int PRIMARY KEY)")
    lab.source.execute("INSERT INTO gone VALUES (1)")
    lab.source.execute("ALTER TABLE t RENAME TO t2")
    lab.source.execute("INSERT INTO t2 VALUES (1)")
    lab.source.execute("DROP TABLE gone")

    def keep(ddl: Any, target: Any) -> None:
        SEEN.append((ddl.command_type, ddl.object_name, str(ddl.alteration.called), len(ddl.now)))
        if ddl.command_type == "DROP TABLE":
            # It is kept for a while, and the process knows it no more.
            target.execute("CREATE TABLE public.kept AS TABLE public.gone")
        ddl.execute()

    handled.DO["ddl"] = keep
    lab.apply(config=replace(FOLLOWING, handlers=HandlerSettings(ddl=function("ddl"))))

    assert lab.errors() == []
    assert SEEN == [("RENAME TABLE", "t", "public.t2", 1), ("DROP TABLE", "gone", "None", 0)]
    assert (tables(lab), copied(lab)) == (["kept", "t2"], ["public.t2"])
    lab.assert_identical("t2")


def test_setup_leaves_it_to_the_run_to_rename_a_copy(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY)")
    lab.source.execute("INSERT INTO t VALUES (1)")
    lab.source.execute("ALTER TABLE t RENAME TO t2")
    lab.apply_settings = "  ddl: apply\n"

    plan = lab.pipeline().setup()

    assert "public.t2 is made by the run, by renaming the copy that there is" in plan.target.notes
    assert tables(lab) == ["t"]
    lab.apply(config=FOLLOWING)
    assert (lab.errors(), tables(lab)) == ([], ["t2"])
    assert lab.pipeline().plan().is_done
    lab.assert_identical("t2")


@pytest.mark.parametrize("there", [["public.t"], []], ids=["beside others", "alone"])
def test_a_pattern_that_means_no_table_yet_is_a_note_where_new_tables_are_taken_up(
    lab: Lab, spark: object, there: list[str]
) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    patterns = [*there, "public.new*"]
    with pytest.raises(OperatorError, match=r"no table matches 'public\.new\*'"):
        lab.pipeline(patterns).plan()

    lab.apply_settings = "  ddl: apply\n"
    pipeline = lab.pipeline(patterns)
    plan = pipeline.setup()
    assert plan.tables == there
    assert "no table matches 'public.new*' yet; the run takes up one that is made later" in plan.source.notes

    lab.source.execute("CREATE TABLE newest (id int PRIMARY KEY); INSERT INTO newest VALUES (1)")
    catch_up(pipeline)
    assert lab.target.execute("SELECT id FROM newest").fetchall() == [(1,)]
    assert not [note for note in pipeline.plan().source.notes if "no table matches" in note]


@pytest.mark.rule("A-55", "A-158")
def test_s18_a_table_made_in_the_stream_is_taken_up_by_a_copy_while_changes_wait(lab: Lab, spark: object) -> None:
    lab.source.execute("CREATE TABLE acct (id int PRIMARY KEY, bal int); INSERT INTO acct VALUES (1, 100), (2, 200)")
    pipeline = opened(lab, "  ddl: apply\n")
    pipeline.setup()
    catch_up(pipeline)
    lab.source.execute("UPDATE acct SET bal = 110 WHERE id = 1")
    lab.source.execute("CREATE TABLE x (i int CONSTRAINT x_pk PRIMARY KEY)")
    lab.source.execute("INSERT INTO x VALUES (1)")
    lab.source.execute("UPDATE acct SET bal = 210 WHERE id = 2")
    seen = []

    class Watching(Report):
        def copied(self, chunks: int, rows: int) -> None:
            (state,) = lab.target.execute('SELECT state FROM penstock."v$streams_apply_coordinator"').fetchall()
            seen.append((state, rows, lab.rows("acct")))

    pipeline.run(threading.Event(), Watching(), until_caught_up=True)

    # Nothing is applied meanwhile, as Oracle's reader pauses.
    assert seen == [(("INITIALIZING",), 1, [(1, 100), (2, 200)])]
    lab.assert_identical("acct", "x")
    keys = "SELECT conname FROM pg_constraint WHERE conrelid = 'x'::regclass AND contype = 'p'"
    assert lab.target.execute(keys).fetchall() == [("x_pk",)]
    lab.source.execute("INSERT INTO x VALUES (2)")
    catch_up(pipeline)
    lab.assert_identical("x")
    assert lab.errors() == []


@pytest.mark.rule("A-148", "A-151")
def test_a_run_follows_drops_and_renames_through_rules_and_takes_up_what_has_the_name_then(
    lab: Lab, spark: object
) -> None:
    lab.source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE again (id int PRIMARY KEY);"
        "CREATE TABLE u (id int PRIMARY KEY, v int); INSERT INTO t SELECT n, n FROM generate_series(1, 20) n;"
        "INSERT INTO again SELECT n FROM generate_series(1, 20) n"
    )
    rules = "  ddl: apply\nrules: {tables: {public.*: {to: far.*}}}"
    pipeline = opened(lab, rules, tables=["public.t*", "public.again", "public.u"])
    pipeline.setup()
    catch_up(pipeline)

    lab.source.execute("UPDATE t SET v = 0 WHERE id < 5; DELETE FROM again WHERE id > 5")
    position = lab.log.tick()
    lab.source.execute("UPDATE t SET v = 1 WHERE id < 5")
    lab.source.execute("ALTER TABLE t RENAME TO t9")
    lab.source.execute("INSERT INTO t9 VALUES (21, 21); ALTER TABLE t9 ADD c int DEFAULT 7")
    lab.source.execute("DROP TABLE again; CREATE TABLE again (other text PRIMARY KEY); INSERT INTO again VALUES ('x')")
    # Out of what capture.tables means, and another one takes its name.
    lab.source.execute("INSERT INTO u VALUES (1, 1); ALTER TABLE u RENAME TO u_old; CREATE TABLE u (LIKE u_old)")
    lab.source.execute("INSERT INTO u VALUES (2, 2); INSERT INTO u_old VALUES (3, 3)")
    # One run ends before that, and the next one begins when the source has other names already.
    pipeline.run(threading.Event(), until=position)
    assert rows(lab, "SELECT count(*), sum(v) FROM far.t WHERE id < 5") == [(4, 0)]
    catch_up(pipeline)

    assert [entry.error_message for entry in lab.errors()] == []
    assert [str(name) for name in sorted(lab.ledger.instantiated())] == ["far.t9", "far.u_old"]
    query = "SELECT * FROM {}.t9 ORDER BY id"
    assert rows(lab, query.format("far")) == lab.source.execute(query.format("public")).fetchall()
    # The copy of one that is left out stays as it was when it left.
    assert lab.rows("far.u_old") == [(1, 1)]

    catch_up(pipeline)

    assert [entry.error_message for entry in lab.errors()] == []
    assert (lab.rows("far.again"), lab.rows("far.u")) == ([("x",)], [(2, 2)])
    lab.source.execute("INSERT INTO again VALUES ('y'); INSERT INTO t9 VALUES (22, 22, 22)")
    catch_up(pipeline)
    assert lab.rows("far.again") == [("x",), ("y",)]
    assert rows(lab, query.format("far")) == lab.source.execute(query.format("public")).fetchall()
    assert [entry.error_message for entry in lab.errors()] == []
    assert pipeline.verify(tables=["far.t9", "far.again"]).is_identical
    status = pipeline.status()
    assert (status.to_copy, status.errors) == (0, 0)


FOLLOWING_NEW = """
def follow(ddl, target):
    columns = ", ".join(f"{one.name} {one.type}" for one in ddl.now)
    target.execute("INSERT INTO public.noted VALUES (%s, %s, %s)", [ddl.command_type, str(ddl.table), columns])
    match ddl.object_name:
        case "own":
            target.execute("CREATE TABLE far.own (id int PRIMARY KEY, more text DEFAULT 'mine')", [])
        case "refused":
            raise ValueError("a secret")
        case "renamed":
            ddl.set_object_name("other")
        case "left_out":
            return
    ddl.execute()
"""


@pytest.mark.rule("A-116", "A-158")
def test_a_new_table_calls_the_handler_which_takes_it_up_or_leaves_it_out(
    lab: Lab, spark: object, tmp_path: Path
) -> None:
    (tmp_path / "following_new.py").write_text(FOLLOWING_NEW)
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    lab.target.execute("CREATE TABLE noted (command text, name text, columns text)")
    rules = "  ddl: apply\n  handlers: {ddl: 'following_new:follow'}\nrules: {tables: {public.*: {to: far.*}}}"
    made = pipeline(lab, tmp_path, FILE.format(name=lab.name, tables=["public.*"], row_triggers=[]) + rules)
    made.setup()
    catch_up(made)
    lab.source.execute(
        "CREATE TABLE kept (id int PRIMARY KEY, v text); CREATE TABLE own (id int PRIMARY KEY);"
        "CREATE TABLE left_out (id int PRIMARY KEY); CREATE TABLE refused (id int PRIMARY KEY);"
        "CREATE TABLE renamed (id int PRIMARY KEY); INSERT INTO kept VALUES (1, 'a'); INSERT INTO own VALUES (1)"
    )
    told: list[str] = []

    class Hearing(Report):
        def warned(self, text: str, *_: Any) -> None:
            told.append(text)

    progress = made.run(threading.Event(), Hearing(), until_caught_up=True)

    assert tables(lab) == ["far.kept", "far.own", "far.t", "noted"]
    # What a handler does not want is not missed.
    assert progress.left_out == ["far.refused", "far.renamed"]
    assert rows(lab, "SELECT * FROM far.kept") == [(1, "a")]
    assert rows(lab, "SELECT * FROM far.own") == [(1, "mine")]
    # What a handler did that raised is undone; one that does not execute has ignored it.
    assert rows(lab, "SELECT * FROM noted ORDER BY name") == [
        ("CREATE TABLE", "far.kept", "id integer, v text"),
        ("CREATE TABLE", "far.left_out", "id integer"),
        ("CREATE TABLE", "far.own", "id integer"),
    ]
    refusals = [text for text in told if text.startswith("new tables are not taken up yet")]
    assert len(refusals) == 2
    assert any("ValueError" in text and "secret" not in text for text in refusals)
    assert any("is for rules to say" in text for text in refusals)
    lab.source.execute("INSERT INTO kept VALUES (2, 'b'); ALTER TABLE kept ADD c int")
    catch_up(made)
    assert rows(lab, "SELECT * FROM far.kept ORDER BY id") == [(1, "a", None), (2, "b", None)]
    assert lab.errors() == []


@pytest.mark.parametrize(
    "moved", ["ALTER TABLE t SET SCHEMA other", "ALTER TABLE t RENAME TO other_t"], ids=["schema", "name"]
)
def test_a_table_that_no_pattern_means_any_more_keeps_no_new_one_back(
    lab: Lab, spark: object, tmp_path: Path, moved: str
) -> None:
    for side in (lab.source, lab.target):
        side.execute("CREATE SCHEMA other")
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE table_u (id int PRIMARY KEY)")
    captured = ["public.t", "public.table_*"]
    made = pipeline(lab, tmp_path, FILE.format(name=lab.name, tables=captured, row_triggers=[]) + "  ddl: apply\n")
    made.setup()
    catch_up(made)
    lab.source.execute(moved)
    catch_up(made)
    lab.source.execute("CREATE TABLE table_v (id int PRIMARY KEY); INSERT INTO table_v VALUES (1)")
    told: list[str] = []

    class Hearing(Report):
        def warned(self, text: str, *_: Any) -> None:
            told.append(text)

    made.run(threading.Event(), Hearing(), until_caught_up=True)

    assert rows(lab, "SELECT * FROM table_v") == [(1,)]
    assert [text for text in told if "not taken up" in text] == []
