"""DDL at the source arrives at the target at its place among the changes."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from penstock.apply.apply_errors import DDL_NOT_CARRIED_OUT
from penstock.apply.ddl import DdlPolicy, DdlRules, retyped_by_expression
from penstock.apply.lane import ServerConfig
from penstock.dialects.postgres.source.capture import _changing_key
from penstock.dialects.postgres.target.ledger import PostgresLedger
from penstock.errors import OperatorError, PenstockError
from penstock.pipeline.not_followed import not_followed
from tests.lab import Lab, table
from tests.stories.test_rules_whole import catch_up, opened

FOLLOWING = ServerConfig(ddl=DdlRules(DdlPolicy.APPLY))

WAYS = pytest.mark.parametrize(
    ("lanes", "use_set"),
    [(1, False), (4, True)],
    ids=["one lane, row path", "four lanes, set path"],
)
CAPTURES = pytest.mark.parametrize("is_told", [True, False], ids=["event trigger", "comparison"])


@pytest.fixture
def following(lab: Lab) -> Iterator[Lab]:
    """A lab whose log tells of DDL."""
    with Lab(lab.source_url, lab.target_url, with_ddl=True) as made:
        yield made


def without_event_triggers(lab: Lab) -> None:
    """Have the set be as one that no superuser has made: DDL is found by those who write."""
    lab.source.execute('DROP EVENT TRIGGER penstock_lab; DROP EVENT TRIGGER "penstock_lab drop"')


def columns(lab: Lab, side: str) -> list[tuple[object, ...]]:
    """What a table's columns are, the order left out: a column that is added comes last."""
    connection = lab.target if side == "target" else lab.source
    return connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid) FROM pg_attribute"
        " LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum"
        " WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attname"
    ).fetchall()


def test_what_the_target_does_not_follow_is_named(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text, w text); CREATE TABLE u (id int PRIMARY KEY)")
    before = lab.log.tables()
    assert list(not_followed(before, lab.log.tables(), DdlRules(DdlPolicy.IGNORE))) == []
    lab.source.execute("ALTER TABLE t DROP COLUMN w, ADD COLUMN mail text, ADD UNIQUE (v)")
    now = lab.log.tables()
    said = ("column w dropped", "column mail added", "unique key (v) made")
    assert list(not_followed(before, now, DdlRules(DdlPolicy.IGNORE))) == [(table("t"), said)]

    lab.source.execute("ALTER TABLE u ADD FOREIGN KEY (id) REFERENCES t")
    assert dict(not_followed(now, lab.log.tables(), DdlRules(DdlPolicy.IGNORE)))[table("u")] == (
        "foreign key (id) to public.t made",
    )


def test_of_tables_that_follow_only_keys_that_the_source_gave_up_are_named_here(lab: Lab) -> None:
    """Those that the target lacks are named with the line that makes them, see `NewParts`."""
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
    before = lab.log.tables()
    lab.source.execute("ALTER TABLE t ADD UNIQUE (v)")
    made = lab.log.tables()
    assert list(not_followed(before, made, DdlRules(DdlPolicy.APPLY))) == []

    lab.source.execute("ALTER TABLE t DROP CONSTRAINT t_v_key")

    found = list(not_followed(made, lab.log.tables(), DdlRules(DdlPolicy.APPLY)))
    assert found == [(table("t"), ("unique key (v) dropped",))]


def test_what_was_carried_out_is_kept_in_words_and_counted(following: Lab) -> None:
    following.setup("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, w text)")
    rules = DdlRules(DdlPolicy.APPLY, {table("u"): DdlPolicy.IGNORE})
    following.source.execute("ALTER TABLE t ADD COLUMN mail text DEFAULT 'secret', DROP COLUMN v")
    following.source.execute("ALTER TABLE t RENAME COLUMN mail TO e")
    following.source.execute("ALTER TABLE t ALTER COLUMN e TYPE varchar(9)")
    following.source.execute("ALTER TABLE u DROP COLUMN w")
    # Done by a person beforehand: there is nothing to be said.
    following.source.execute("ALTER TABLE t ADD COLUMN n int")
    following.target.execute("ALTER TABLE t ADD COLUMN n int")
    following.source.execute("ALTER TABLE t RENAME TO s")
    following.source.execute("DROP TABLE s")
    following.apply(config=ServerConfig(ddl=rules))

    found = []
    while page := following.ledger.newly_altered():
        found += page
    assert [(str(one.table), one.outcome, list(one.done), one.is_loss) for one in found] == [
        ("public.t", "applied", ["column v dropped", "column mail added (text)"], True),
        ("public.t", "applied", ["column mail renamed e"], False),
        ("public.t", "applied", ["column e made character varying(9)"], False),
        ("public.u", "left out", ["column w dropped"], True),
        ("public.t", "applied", ["table renamed public.s"], False),
        ("public.s", "applied", ["table dropped"], True),
    ]
    state = following.ledger.state()
    assert state is not None
    assert state.ddl == 5
    # The next run tells only what is new.
    following.ledger.close()
    again = PostgresLedger(following.target_url, following.name)
    again.acquire("shop", lanes=1)
    assert not again.newly_altered()
    again.close()


@pytest.mark.rule("A-55", "A-148", "A-156")
@CAPTURES
@WAYS
def test_rows_before_and_after_ddl_are_each_applied_with_their_version(
    following: Lab, lanes: int, use_set: bool, is_told: bool
) -> None:
    lab = following
    lab.setup(
        "CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL, gone text, w text); CREATE TABLE u (id int PRIMARY KEY)"
    )
    if not is_told:
        without_event_triggers(lab)
    number = 0

    def write() -> None:
        nonlocal number
        for _ in range(3):
            number += 1
            lab.source.execute(f"INSERT INTO u VALUES ({number}); INSERT INTO t (id, v) VALUES ({number}, {number})")
        lab.source.execute(f"UPDATE t SET v = v + 1 WHERE id < {number}; DELETE FROM t WHERE id = {number - 2}")

    write()
    for statement in (
        "ALTER TABLE t ADD c timestamptz NOT NULL DEFAULT now()",
        "ALTER TABLE t DROP gone",
        "ALTER TABLE t RENAME w TO renamed",
        "ALTER TABLE t ALTER renamed TYPE varchar(20), ALTER v TYPE numeric(12,2)",
        "ALTER TABLE t ALTER v DROP NOT NULL",
        "ALTER TABLE t ADD gone int, ALTER renamed SET DEFAULT 'x'",
        "BEGIN; INSERT INTO t (id, v) VALUES (100, 1); ALTER TABLE t ADD late text DEFAULT 'l''ate';"
        " UPDATE t SET late = late || '!' WHERE id = 100; COMMIT",
    ):
        lab.source.execute(statement)
        write()
    config = ServerConfig(ddl=FOLLOWING.ddl, use_set_path=use_set)

    results = lab.apply(lanes=lanes, config=config, shuffle=random.Random(3))

    assert lab.errors() == []
    names = ", ".join(str(name) for name, *_ in columns(lab, "source"))
    query = f"SELECT {names} FROM t ORDER BY id"
    assert lab.target.execute(query).fetchall() == lab.source.execute(query).fetchall()
    assert [c[:3] for c in columns(lab, "target")] == [c[:3] for c in columns(lab, "source")]
    assert use_set == (sum(result.set_changes for result in results) > 0)
    if is_told:
        # Twice the same changes nothing.
        assert lab.apply(lanes=lanes, config=config) == []


@pytest.mark.parametrize(
    ("made", "ddl", "fixed", "why"),
    [
        ("", "ALTER TABLE t ADD c float DEFAULT random()", "ALTER TABLE t ADD c float", "worked out for each row"),
        (
            "CREATE DOMAIN filled AS text CHECK (VALUE <> '')",
            "ALTER TABLE t ADD c filled DEFAULT 'x'",
            "ALTER TABLE t ADD c filled DEFAULT 'x'",
            "of a domain with checks",
        ),
        ("", "ALTER TABLE t ADD c serial", "ALTER TABLE t ADD c int NOT NULL DEFAULT 0", "worked out for each row"),
        (
            "",
            "ALTER TABLE t ADD c int GENERATED ALWAYS AS (v * 2) STORED",
            "ALTER TABLE t ADD c int GENERATED ALWAYS AS (v * 2) STORED",
            "generated",
        ),
        (
            "",
            "ALTER TABLE t ALTER v TYPE bigint USING v * 100",
            "ALTER TABLE t ALTER v TYPE bigint USING v * 100",
            "by an expression",
        ),
        (
            "",
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, v)",
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, v)",
            "primary key",
        ),
        (
            "CREATE TYPE mood AS ENUM ('calm')",
            "ALTER TABLE t ADD c mood DEFAULT 'calm'",
            "CREATE TYPE mood AS ENUM ('calm')",
            "the target has no type 'public.mood', which column 'c' is of",
        ),
        (
            "CREATE TYPE mood AS ENUM ('calm')",
            "ALTER TABLE t ADD c mood DEFAULT 'calm'",
            "DROP TYPE mood; CREATE TYPE mood AS ENUM ('calm')",
            "column 'c': invalid text representation; do it at the target, and retry",
        ),
        (
            "",
            "ALTER TABLE t ALTER v TYPE smallint",
            "DELETE FROM t WHERE id = 9",
            "column 'v': numeric value out of range; do it at the target, and retry",
        ),
    ],
    ids=[
        *(
            "volatile default",
            "default of a domain",
            "serial",
            "generated",
            "using",
            "primary key",
            "a type that the target lacks",
        ),
        *("an enum made anew", "values that do not fit"),
    ],
)
@pytest.mark.rule("A-157")
def test_what_cannot_be_carried_out_waits_in_the_error_queue_until_a_person_has_done_it(
    following: Lab, made: str, ddl: str, fixed: str, why: str
) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE u (id int PRIMARY KEY)")
    lab.source.execute(made)
    if "DOMAIN" in made:
        lab.target.execute(made)
    if "DROP TYPE" in fixed:
        lab.target.execute("CREATE TYPE mood AS ENUM ('sad')")
    if "smallint" in ddl:
        lab.target.execute("INSERT INTO t VALUES (9, 99999)")
    lab.source.execute(f"INSERT INTO t VALUES (1, 1); {ddl}")
    lab.source.execute("INSERT INTO u VALUES (1)")

    lab.apply(lanes=4, config=FOLLOWING)

    (entry,) = lab.errors()
    assert entry.op == "ddl"
    assert entry.table == table("t")
    assert entry.error_number == DDL_NOT_CARRIED_OUT
    assert why in entry.error_message
    lab.assert_identical("u")

    with pytest.raises(OperatorError, match=why):
        lab.retry(entry.id)
    lab.target.execute(fixed)
    assert lab.retry(entry.id) == [entry.id]
    assert lab.errors() == []
    assert [c[:2] for c in columns(lab, "target")] == [c[:2] for c in columns(lab, "source")]
    # The transaction held a row as well.
    assert lab.target.execute("SELECT id FROM t").fetchall() == [(1,)]


def test_by_default_ddl_changes_nothing_and_no_reader_hears_of_it(lab: Lab, following: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int)")
    lab.source.execute("ALTER TABLE t ADD c int")
    lab.source.execute("INSERT INTO t VALUES (1, 1)")

    assert [row["op"] for row in lab.changes()] == ["insert"]
    told = list(following.changes())
    assert [(row["op"], row["table_name"], row["txn_changes"]) for row in told] == [("ddl", "t", 1), ("insert", "t", 1)]
    # Positions are the same for both.
    assert told[1]["commit_scn"] == next(lab.changes())["commit_scn"]
    assert json.loads(told[0]["before"])["statement"] == "ALTER TABLE t ADD c int"


def test_each_table_has_its_policy(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE left_alone (id int PRIMARY KEY)")
    lab.source.execute("INSERT INTO t VALUES (1)")
    lab.source.execute("ALTER TABLE left_alone ADD c int")
    lab.source.execute("ALTER TABLE t ADD c int")
    lab.source.execute("INSERT INTO t VALUES (2, 2)")
    own = {table("left_alone"): DdlPolicy.IGNORE, table("t"): DdlPolicy.STOP}

    for _ in range(2):
        with pytest.raises(OperatorError, match=r"altered at the source.*`ddl: stop`.*public\.t"):
            lab.apply(config=ServerConfig(ddl=DdlRules(DdlPolicy.APPLY, own)))
        assert lab.rows("t") == [(1,)]

    lab.apply(config=ServerConfig(ddl=DdlRules(DdlPolicy.APPLY, {**own, table("t"): DdlPolicy.APPLY})))
    assert lab.errors() == []
    lab.assert_identical("t")
    assert len(lab.target.execute("SELECT * FROM left_alone").description or ()) == 1


@pytest.mark.rule("A-150")
def test_s77_a_task_that_is_killed_at_any_step_leaves_ddl_done_once_or_not_at_all(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int)")
    lab.target.execute(
        "CREATE FUNCTION die() RETURNS event_trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); END$$;"
        "CREATE EVENT TRIGGER die ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION die();"
        "ALTER EVENT TRIGGER die ENABLE ALWAYS"
    )
    lab.source.execute("ALTER TABLE t RENAME v TO w; INSERT INTO t VALUES (1, 1); ALTER TABLE t ADD c int DEFAULT 7")
    with pytest.raises(PenstockError):
        lab.apply(config=FOLLOWING)
    lab.target.execute("DROP EVENT TRIGGER die")
    assert [name for name, *_ in columns(lab, "target")] == ["id", "v"]

    # It is done, and dies before anybody hears of it.
    part = lab.next_slice()
    assert part is not None
    (done,) = lab.apply_slice(part, lanes=1, config=FOLLOWING)
    assert (done.failure, done.transactions, done.errors) == (None, 1, 0)
    lab.start()
    (again,) = lab.apply_slice(part, lanes=1, config=FOLLOWING)
    assert (again.already_applied, again.transactions) == (1, 0)
    assert lab.errors() == []
    lab.assert_identical("t")


@pytest.mark.rule("A-153", "A-158", "S-71")
def test_a_run_follows_ddl_through_rules_and_takes_up_new_tables(lab: Lab, spark: object) -> None:
    lab.source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int, secret text); CREATE TABLE dept (id int PRIMARY KEY, name text);"
        "INSERT INTO t SELECT n, n, 's' FROM generate_series(1, 20) n; INSERT INTO dept VALUES (10, 'ENG'), (20, 'OPS')"
    )
    rules = (
        "  ddl: apply\n"
        "rules: {tables: {public.t: {to: far.whole, rename: {v: amount}, drop: [secret], rows: 'id > 5'}}}"
    )
    pipeline = opened(lab, rules)
    pipeline.setup()
    catch_up(pipeline)
    lab.target.execute("INSERT INTO dept VALUES (99, 'Z')")

    def write(first: int) -> None:
        for n in range(first, first + 20):
            lab.source.execute(f"INSERT INTO t (id, v) VALUES ({n}, {n}); UPDATE t SET v = v + 1 WHERE id = {n - 3}")

    writer = threading.Thread(target=write, args=(100,))
    writer.start()
    lab.source.execute("ALTER TABLE t ADD c int NOT NULL DEFAULT 7")
    writer.join()
    lab.source.execute("ALTER TABLE t ALTER secret TYPE varchar(9), ADD other_secret text")
    lab.source.execute("CREATE TABLE copied AS SELECT id, name FROM dept")
    lab.source.execute("ALTER TABLE t ALTER v TYPE bigint; UPDATE t SET c = 8 WHERE id = 9")
    write(200)
    lab.source.execute("INSERT INTO copied VALUES (30, 'NEW')")

    catch_up(pipeline)

    assert lab.errors() == []
    wanted = lab.source.execute("SELECT id, v, c, other_secret FROM t WHERE id > 5 ORDER BY id").fetchall()
    query = "SELECT id, amount, c, other_secret FROM far.whole ORDER BY id"
    assert lab.target.execute(query).fetchall() == wanted
    assert lab.rows("copied") == [(10, "ENG"), (20, "OPS"), (30, "NEW")]
    lab.source.execute("UPDATE copied SET name = 'X'; INSERT INTO copied VALUES (40, 'Y')")
    catch_up(pipeline)
    lab.assert_identical("copied")
    assert pipeline.verify(tables=["public.copied"]).is_identical


def test_columns_that_get_their_types_together_get_them_together_here(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, a int, b int, CHECK (a < b), c int DEFAULT 3)")
    lab.source.execute("INSERT INTO t VALUES (1, 1, 2)")
    lab.source.execute("ALTER TABLE t ALTER a TYPE text, ALTER b TYPE text, ALTER c TYPE text")

    lab.apply(config=FOLLOWING)

    assert lab.errors() == []
    assert columns(lab, "target") == columns(lab, "source")
    lab.assert_identical("t")


def test_what_is_refused_of_several_columns_names_the_one_that_it_is_about(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    lab.source.execute("ALTER TABLE t ALTER a TYPE bigint, ALTER COLUMN b SET DATA TYPE bigint USING -b")

    lab.apply(config=FOLLOWING)

    (entry,) = lab.errors()
    assert "column 'b' became bigint by an expression of the statement" in entry.error_message
    lab.target.execute("ALTER TABLE t ALTER b TYPE bigint USING -b")
    assert lab.retry(entry.id) == [entry.id]
    assert columns(lab, "target") == columns(lab, "source")


UNTOLD = {
    "a function": "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN {} END $$; SELECT f()",
    "a procedure": "CREATE PROCEDURE p() LANGUAGE sql AS $$ {} $$; CALL p()",
    "a block": "DO $$ BEGIN EXECUTE replace('{}', 'USING', 'U' || 'SING'); END $$",
    "a name that is written otherwise": 'ALTER TABLE t ALTER U&"\\0061" TYPE bigint USING a * 100',
}


@pytest.mark.parametrize("how", UNTOLD)
def test_a_type_that_the_statement_does_not_name_is_left_to_a_person(following: Lab, how: str) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    lab.source.execute("INSERT INTO t VALUES (1, 7, 8)")
    lab.source.execute(UNTOLD[how].replace("{}", "ALTER TABLE t ALTER a TYPE bigint USING a * 100;"))

    lab.apply(config=FOLLOWING)

    (entry,) = lab.errors()
    assert entry.error_number == DDL_NOT_CARRIED_OUT
    assert "column 'a' became bigint by " in entry.error_message
    lab.target.execute("ALTER TABLE t ALTER a TYPE bigint USING a * 100")
    assert lab.retry(entry.id) == [entry.id]
    lab.assert_identical("t")


def test_a_type_that_the_event_trigger_was_kept_from_noting_is_left_to_a_person(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, a int)")
    lab.source.execute("INSERT INTO t VALUES (1, 7)")
    with lab.session() as other:
        # As another session that builds the capture of this table at the time.
        other.execute("SELECT pg_advisory_xact_lock(%s, 't'::regclass::oid::int)", [_changing_key(lab.set_name)])
        lab.source.execute("ALTER TABLE t ALTER a TYPE bigint USING a * 100")
    lab.source.execute("INSERT INTO t VALUES (2, 8)")

    lab.apply(config=FOLLOWING)

    assert [entry.error_number for entry in lab.errors()][:1] == [DDL_NOT_CARRIED_OUT]
    assert "by a statement that is not known" in lab.errors()[0].error_message


EXCHANGED = [
    "ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME x TO b",
    "ALTER TABLE t RENAME a TO x; ALTER TABLE t ADD a int DEFAULT 3",
    "ALTER TABLE t DROP a; ALTER TABLE t RENAME b TO a",
    "ALTER TABLE t DROP a; ALTER TABLE t ADD a int DEFAULT 3",
]


@pytest.mark.parametrize("exchanged", EXCHANGED)
def test_an_entry_that_waits_does_not_meet_columns_that_took_its_names(following: Lab, exchanged: str) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    lab.target.execute("INSERT INTO t VALUES (5)")
    lab.source.execute("INSERT INTO t VALUES (5, 10, 20)")
    lab.source.execute(exchanged)
    lab.apply(config=FOLLOWING)
    (entry,) = lab.errors()
    lab.target.execute("DELETE FROM t")

    if "DROP" in exchanged:
        with pytest.raises(OperatorError, match="column 'a, dropped' does not exist at the target"):
            lab.retry(entry.id)
    else:
        assert lab.retry(entry.id) == [entry.id]
        lab.assert_identical("t")


@pytest.mark.parametrize("exchanged", EXCHANGED)
@CAPTURES
@WAYS
def test_what_comes_behind_an_alteration_that_waits_meets_no_other_columns(
    following: Lab, use_set: bool, lanes: int, is_told: bool, exchanged: str
) -> None:
    lab = following
    config = ServerConfig(ddl=FOLLOWING.ddl, use_set_path=use_set)
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, a int, b int, k int)")
    if not is_told:
        without_event_triggers(lab)
    lab.source.execute("INSERT INTO t VALUES (1, 1, 1, 1)")
    lab.apply(config=config)
    lab.source.execute(f"BEGIN; {exchanged}; ALTER TABLE t ADD z float DEFAULT random(); COMMIT")
    lab.source.execute("INSERT INTO t (id, a) VALUES (2, 20)")
    lab.source.execute("UPDATE t SET a = 30 WHERE id = 1")
    lab.source.execute("INSERT INTO t (id, a) SELECT n, n FROM generate_series(10, 20) n")

    lab.apply(lanes=lanes, config=config, shuffle=random.Random(1))

    assert lab.target.execute("SELECT id, a FROM t").fetchall() == [(1, 1)]
    assert lab.errors()[0].error_number == DDL_NOT_CARRIED_OUT


def test_changes_of_partitions_wait_behind_an_alteration_of_their_root(following: Lab) -> None:
    lab = following
    lab.setup(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100)"
    )
    lab.target.execute("INSERT INTO t VALUES (5)")
    lab.source.execute("INSERT INTO t VALUES (5, 50, 60)")
    lab.source.execute(f"BEGIN; {EXCHANGED[0]}; ALTER TABLE t ADD z float DEFAULT random(); COMMIT")
    lab.source.execute("INSERT INTO t (id, a) VALUES (2, 20)")
    lab.source.execute("INSERT INTO t1 (id, b) VALUES (3, 30)")

    lab.apply(config=FOLLOWING)

    assert lab.rows("t") == [(5, None, None)]
    lab.target.execute("DELETE FROM t")
    lab.target.execute("ALTER TABLE t ADD z float")
    for number in [entry.id for entry in sorted(lab.errors(), key=lambda entry: entry.commit_scn)][::-1]:
        # In whatever order they are tried: each into its column, or not at all.
        with suppress(OperatorError):
            lab.retry(number)
    lab.retry(*[entry.id for entry in sorted(lab.errors(), key=lambda entry: entry.commit_scn)])
    assert (
        lab.target.execute("SELECT id, a, b FROM t ORDER BY id").fetchall()
        == lab.source.execute("SELECT id, a, b FROM t ORDER BY id").fetchall()
    )


INHERITED = {
    "a type": "ALTER n TYPE numeric(9,1)",
    "a column": "ADD x int DEFAULT 5",
    "a name": "RENAME n TO m",
    "a check": "ADD CHECK (id > 0)",
}


@pytest.mark.parametrize("altered", INHERITED)
@CAPTURES
def test_a_table_that_inherits_no_more_is_not_altered_with_its_parent(
    following: Lab, is_told: bool, altered: str
) -> None:
    lab = following
    lab.setup(
        "CREATE TABLE p (id int PRIMARY KEY, n numeric(9,3)); CREATE TABLE c (PRIMARY KEY (id)) INHERITS (p);"
        "CREATE TABLE d (PRIMARY KEY (id)) INHERITS (p)"
    )
    if not is_told:
        without_event_triggers(lab)
    lab.source.execute("INSERT INTO p VALUES (1, 1.234); INSERT INTO c VALUES (2, 2.345); INSERT INTO d VALUES (3, 3)")
    lab.source.execute("ALTER TABLE c NO INHERIT p")
    lab.source.execute(f"ALTER TABLE p {INHERITED[altered]}")
    lab.source.execute("INSERT INTO p VALUES (4, 4); INSERT INTO d VALUES (5, 5)")

    lab.apply(config=FOLLOWING)

    assert lab.rows("c") == lab.rows("c", side="source")
    said = [entry.error_message for entry in lab.errors()]
    assert "table public.c inherits from it here, and not at the source, and would be altered with it" in said[0]
    lab.target.execute('ALTER TABLE "public"."c" NO INHERIT "public"."p"')
    for entry in lab.errors():
        lab.retry(entry.id)
    lab.assert_identical("ONLY p", "c", "d")


@CAPTURES
def test_what_only_a_parent_drops_its_children_keep(following: Lab, is_told: bool) -> None:
    lab = following
    tables = "CREATE TABLE p (id int PRIMARY KEY, v text, w text, n int);"
    tables += "".join(f"CREATE TABLE c{n} (PRIMARY KEY (id)) INHERITS (p);" for n in range(5))
    # As a dump makes them: what they have of their parent goes with it.
    lab.target.execute(tables)
    lab.setup(tables)
    if not is_told:
        without_event_triggers(lab)
    names = ("ONLY p", *(f"c{n}" for n in range(5)))
    for number, name in enumerate(names):
        lab.source.execute(f"INSERT INTO {name.removeprefix('ONLY ')} VALUES ({number}, 'v', 'w', {number})")
    lab.source.execute("ALTER TABLE ONLY p DROP COLUMN v")
    lab.source.execute("ALTER TABLE ONLY p ALTER n SET DEFAULT 5")
    lab.source.execute("ALTER TABLE p DROP COLUMN w")
    for number, name in enumerate(names, start=10):
        lab.source.execute(f"INSERT INTO {name.removeprefix('ONLY ')} (id) VALUES ({number})")

    lab.apply(config=FOLLOWING)

    assert [entry.error_message for entry in lab.errors()] == []
    lab.assert_identical(*names)
    defaults = "SELECT adrelid::regclass::text FROM pg_attrdef WHERE adrelid = ANY (%s::regclass[]) ORDER BY 1"
    tables = [name.removeprefix("ONLY ") for name in names]
    assert lab.target.execute(defaults, [tables]).fetchall() == [("p",)]


@pytest.mark.parametrize("strings", ["on", "off"])
@CAPTURES
def test_words_mean_the_same_whatever_the_session_has_set_that_alters(
    following: Lab, is_told: bool, strings: str
) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, d date, CHECK (id > 0)); CREATE INDEX ON t (d)")
    lab.source.execute("INSERT INTO t VALUES (1)")
    lab.apply(config=FOLLOWING)
    if not is_told:
        without_event_triggers(lab)
    lab.source.execute(
        "SET datestyle = 'SQL, DMY'; SET intervalstyle = 'sql_standard'; SET timezone = 'Asia/Tokyo';"
        " SET extra_float_digits = -15; SET bytea_output = 'escape'; SET quote_all_identifiers = on;"
        f" SET standard_conforming_strings = {strings}; SET escape_string_warning = off"
    )
    lab.source.execute("ALTER TABLE t ALTER d SET DEFAULT date '01/02/2024'")
    lab.source.execute("ALTER TABLE t ADD e date DEFAULT '03/04/2024', ADD i interval DEFAULT '-1 2:03:04'")
    lab.source.execute("ALTER TABLE t ADD f float8 DEFAULT 1.2345678901234567, ADD s text DEFAULT E'a\\\\b'")
    lab.source.execute("ALTER TABLE t ADD z timestamptz DEFAULT '05/06/2024 07:00', ADD CHECK (d <> '03/04/2024')")
    lab.source.execute("ALTER TABLE t ADD y bytea DEFAULT E'\\\\001'")
    lab.source.execute("INSERT INTO t (id) VALUES (2)")
    lab.source.execute("RESET ALL")
    versions = lab.source.execute("SELECT count(*) FROM penstock_lab.captured").fetchall()
    lab.source.execute("INSERT INTO t (id) VALUES (3)")
    assert lab.source.execute("SELECT count(*) FROM penstock_lab.captured").fetchall() == versions

    lab.apply(config=FOLLOWING)

    assert lab.errors() == []
    assert columns(lab, "target") == columns(lab, "source")
    checks = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 't'::regclass ORDER BY 1"
    assert lab.target.execute(checks).fetchall() == lab.source.execute(checks).fetchall()
    lab.assert_identical("t")


BY_SETTINGS = [
    ("timestamp", "2024-03-04 23:30", "timestamptz"),
    ("timestamptz", "2024-03-04 23:30Z", "date"),
    ("timestamptz", "2024-03-04 23:30Z", "text"),
    ("timestamptz(3)", "2024-03-04 23:30Z", "timestamp(0)"),
    ("timestamptz[]", "{2024-03-04 23:30Z}", "date[]"),
    ("time", "10:00", "timetz"),
    ("interval", "1 mon 2 days", "varchar(40)"),
    ("date[]", "{2024-03-04}", "text"),
    ("bytea", "\\x5c00", "text"),
    ("float8", "0.1", "text"),
    ("moment", "2024-03-04 23:30Z", "date"),
]
PLAIN = [("int", "7", "text"), ("int[]", "{7}", "text"), ("mood", "sad", "text"), ("numeric", "1.50", "numeric(9,1)")]
PLAIN += [
    ("timestamptz", None, "date"),
    ("timestamp(3)", "2024-03-04 23:30", "timestamp(0)"),
    ("date", "2024-03-04", "timestamp"),
]


@pytest.mark.parametrize(
    ("old", "value", "new", "is_refused"), [(*one, one in BY_SETTINGS) for one in BY_SETTINGS + PLAIN]
)
def test_values_that_got_another_type_by_a_session_s_settings_are_left_to_a_person(
    following: Lab, old: str, value: str | None, new: str, is_refused: bool
) -> None:
    lab = following
    types = "CREATE TYPE mood AS ENUM ('sad'); CREATE DOMAIN moment AS timestamptz;"
    lab.target.execute(types)
    lab.setup(f"{types} CREATE TABLE t (id int PRIMARY KEY, a {old}); INSERT INTO t VALUES (1)")
    lab.target.execute("INSERT INTO t VALUES (1)")
    lab.source.execute("UPDATE t SET a = %s::text::" + old, [value])
    lab.source.execute("SET timezone = 'Asia/Tokyo'; SET datestyle = 'German'; SET bytea_output = 'escape'")
    altered = f"ALTER TABLE t ALTER a TYPE {new}"
    lab.source.execute(altered)

    lab.apply(config=FOLLOWING)

    if is_refused:
        (entry,) = lab.errors()
        assert entry.error_number == DDL_NOT_CARRIED_OUT
        assert "as the settings of the session say that altered it, such as its time zone" in entry.error_message
        lab.target.execute(
            f"SET timezone = 'Asia/Tokyo'; SET datestyle = 'German'; SET bytea_output = 'escape'; {altered}"
        )
        assert lab.retry(entry.id) == [entry.id]
    assert lab.errors() == []
    for side in (lab.source, lab.target):
        side.execute("RESET ALL")
    lab.assert_identical_text("t")


@pytest.mark.parametrize(
    ("later", "is_apart"),
    [
        ("DROP COLUMN a", False),
        ("RENAME COLUMN a TO x", False),
        ("ALTER a SET NOT NULL", False),
        ("DROP COLUMN b", True),
    ],
)
def test_an_alteration_does_not_overtake_an_earlier_one_of_its_columns(
    following: Lab, later: str, is_apart: bool
) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    lab.source.execute("ALTER TABLE t ALTER a TYPE bigint USING -a")
    lab.source.execute(f"ALTER TABLE t {later}")

    lab.apply(config=FOLLOWING)

    if is_apart:
        (first,) = lab.errors()
    else:
        first, second = lab.errors()
        assert second.error_number == DDL_NOT_CARRIED_OUT
        waits = f"column 'a' is altered before by entry {first.id}, which waits here, too; retry that one first"
        assert waits in second.error_message
        with pytest.raises(OperatorError, match="retry that one first"):
            lab.retry(second.id)
    lab.target.execute("ALTER TABLE t ALTER a TYPE bigint USING -a")
    lab.retry(*(entry.id for entry in lab.errors()))
    assert lab.errors() == []
    assert columns(lab, "target") == columns(lab, "source")


def test_an_alteration_that_a_person_has_done_keeps_no_later_one_back(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, a int)")
    lab.source.execute("ALTER TABLE t ALTER a TYPE bigint USING -a")
    lab.apply(config=FOLLOWING)
    lab.target.execute("ALTER TABLE t ALTER a TYPE bigint USING -a")
    lab.source.execute("ALTER TABLE t DROP COLUMN a")

    lab.apply(config=FOLLOWING)

    assert columns(lab, "target") == columns(lab, "source")


STATEMENTS = {
    "ALTER TABLE t ALTER a TYPE int": set(),
    "ALTER TABLE t ALTER a TYPE int USING a::int": {"a"},
    "alter table t alter column a set data type int using (a, 'using')::int, alter b type text": {"a", "b"},
    "ALTER TABLE t ALTER a TYPE numeric(9, 2), ALTER b TYPE int USING f(b, 1), ADD c int": {"b"},
    'ALTER TABLE t ALTER "a" TYPE int /* , */ USING a::int, ALTER B TYPE int': {"a"},
    "ALTER TABLE t ALTER a TYPE int, ADD EXCLUDE USING gist (b WITH &&)": set(),
    "ALTER TABLE t ALTER a TYPE int; ALTER TABLE t ALTER b TYPE int USING 1": {"b"},
    "ALTER TABLE t ALTER other TYPE int USING 1": {"a", "b"},
    "DO $$ BEGIN ALTER TABLE t ALTER a TYPE int USING 1; END $$": {"a", "b"},
    "ALTER TABLE t ALTER a TYPE text USING E'it\\'s, using', ALTER b TYPE int": {"a", "b"},
}


@pytest.mark.parametrize(("statement", "found"), STATEMENTS.items(), ids=STATEMENTS)
def test_a_statement_says_which_columns_it_works_out(statement: str, found: set[str]) -> None:
    assert retyped_by_expression(statement, ["a", "b"]) == found
