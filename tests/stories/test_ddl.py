"""What users do to captured tables, and what capture must never do to users."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from penstock.apply.lane import ServerConfig
from penstock.change import TableName
from penstock.database import LockedError
from penstock.dialects.postgres.connection import connect
from penstock.errors import OperatorError
from penstock.pipeline import steps
from tests.lab import Lab, images
from tests.program import await_true

WIDE = ", ".join(f"c{n} int DEFAULT 0" for n in range(300))


def test_an_update_of_a_wide_table_holds_what_changed(lab: Lab) -> None:
    lab.setup(f"CREATE TABLE t (id int PRIMARY KEY, {WIDE}, gone int)")
    lab.source.execute("INSERT INTO t VALUES (1), (2)")
    lab.source.execute(
        "UPDATE t SET c5 = 7 WHERE id = 1; UPDATE t SET c7 = 1, c150 = 2, c299 = 3; UPDATE t SET id = id + 2"
    )
    lab.apply()
    assert lab.errors() == []
    lab.assert_identical("t")


def test_a_large_update_after_a_small_one_is_not_quadratic(lab: Lab) -> None:
    """A session keeps the plan of its first statement; the ratio is far from what any noise could do."""
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT n, 0 FROM generate_series(1, 20000) n")

    def seconds(*before: str) -> float:
        with psycopg.connect(lab.source_url, autocommit=True) as session:
            for statement in before:
                session.execute(statement)
            began = time.monotonic()
            session.execute("UPDATE t SET v = v + 1")
            return time.monotonic() - began

    fresh = min(seconds() for _ in range(2))
    assert seconds("UPDATE t SET v = 1 WHERE id < 3", "UPDATE t SET v = 1 WHERE id < 0") < 20 * fresh + 1


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ALTER id TYPE bigint",
        "ALTER TABLE t DROP COLUMN id",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ALTER id TYPE text, ADD PRIMARY KEY (id)",
        "ALTER TABLE t RENAME id TO number",
        "DROP TABLE t",
        "CREATE TABLE sub (id int, v int) PARTITION BY RANGE (id);"
        " ALTER TABLE m ATTACH PARTITION sub FOR VALUES FROM (50) TO (60)",
        "ALTER TABLE m DETACH PARTITION m1; ALTER TABLE m ATTACH PARTITION m1 FOR VALUES FROM (1) TO (10)",
    ],
)
def test_capture_is_in_the_way_of_no_ddl(lab: Lab, statement: str) -> None:
    lab.setup(
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE m (id int, v int) PARTITION BY RANGE (id);"
        "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (1) TO (10);"
        "CREATE TABLE other (id int, v int) PARTITION BY RANGE (id)"
    )
    lab.source.execute(statement)
    lab.source.execute("INSERT INTO m VALUES (1, 1); UPDATE m SET v = 2")
    assert [row["op"] for row in lab.changes() if row["table_name"] == "m"] == ["insert", "update"]


def rows_read_by_an_alter(lab: Lab) -> int:
    """How many rows an ALTER of a captured table has its session read, of the set's tables and of the catalogue.

    With the statistics that autovacuum gathers a minute after tables are made: without them the planner scans whole
    catalogues or looks rows up, as it happens.
    """
    lab.source.execute("ANALYZE")
    counts = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_all_tables"
    with lab.source.transaction(force_rollback=True):
        lab.source.execute("ALTER TABLE t ALTER v TYPE varchar(21)")
        row = lab.source.execute(counts).fetchone()
    assert row is not None
    return int(row[0])


def test_an_alter_costs_its_writer_the_same_whatever_else_is_captured(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v varchar(20))")
    alone = rows_read_by_an_alter(lab)
    lab.setup(";".join(f"CREATE TABLE t{n} (id int PRIMARY KEY, v varchar(20), p int REFERENCES t)" for n in range(60)))

    assert rows_read_by_an_alter(lab) < 1.5 * alone


def test_a_partition_that_was_detached_is_let_go(lab: Lab) -> None:
    lab.setup(
        "CREATE TABLE m (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (1) TO (10);"
        "CREATE TABLE m2 PARTITION OF m FOR VALUES FROM (10) TO (20)",
        tables=["public.m"],
    )
    lab.source.execute("ALTER TABLE m DETACH PARTITION m1")
    lab.source.execute("INSERT INTO m1 VALUES (1); TRUNCATE m1; INSERT INTO m VALUES (11)")

    assert [(row["op"], row["table_name"]) for row in lab.changes()] == [("insert", "m")]
    assert lab.pipeline(["public.m"]).setup().is_done
    assert lab.source.execute("SELECT * FROM penstock_lab.behind()").fetchall() == []
    assert lab.source.execute("SELECT tgname FROM pg_trigger WHERE tgrelid = 'm1'::regclass").fetchall() == []


@pytest.mark.rule("C-41")
def test_a_table_made_anew_is_noticed_and_copied_anew(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int)")
    lab.source.execute("INSERT INTO t VALUES (1, 1)")
    lab.apply()
    lab.source.execute(
        "CREATE TABLE t_new (LIKE t INCLUDING ALL); INSERT INTO t_new VALUES (2, 2); DROP TABLE t;"
        " ALTER TABLE t_new RENAME TO t"
    )

    assert lab.pipeline()._source.replaced_tables() == [TableName("public", "t")]
    with pytest.raises(OperatorError, match=r"table public\.t holds rows that penstock did not copy"):
        lab.pipeline(["public.t"]).setup()
    lab.target.execute("TRUNCATE t")
    lab.pipeline(["public.t"]).setup()

    assert lab.ledger.instantiated() == {}
    assert lab.source.execute("SELECT * FROM penstock_lab.behind()").fetchall() == []
    assert lab.pipeline(["public.t"]).setup().is_done


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t DISABLE TRIGGER ALL",
        "DO $$ BEGIN EXECUTE (SELECT format('DROP TRIGGER %I ON t', min(tgname)) FROM pg_trigger"
        " WHERE tgname LIKE 'R\\_penstock%'); END $$",
    ],
    ids=["disabled", "dropped"],
)
def test_capture_that_somebody_switched_off_is_noticed(lab: Lab, statement: str) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY)")
    lab.source.execute("DROP EVENT TRIGGER penstock_lab")
    lab.source.execute(statement)

    assert lab.source.execute("SELECT r::regclass::text FROM penstock_lab.behind() r").fetchall() == [("t",)]
    assert not lab.pipeline().setup().is_done
    assert lab.source.execute("SELECT r::regclass::text FROM penstock_lab.behind() r").fetchall() == []


def test_pipelines_whose_names_begin_alike_leave_each_other_alone(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE m (id int) PARTITION BY RANGE (id)")
    with Lab(lab.source_url, lab.target_url, name="lab_d") as other:
        other.pipeline().setup()
        lab.source.execute("INSERT INTO t VALUES (1); DELETE FROM t")
        assert [row["op"] for row in other.changes()] == ["insert", "delete"]
        other.pipeline().teardown()
    lab.source.execute("INSERT INTO t VALUES (2); DELETE FROM t")
    assert [row["op"] for row in lab.changes()] == ["insert", "delete"] * 2


def test_rows_of_tables_that_inherit_are_captured_each_as_its_own(lab: Lab) -> None:
    lab.setup(
        "CREATE TABLE p (id int PRIMARY KEY, v int); CREATE TABLE c (x int, PRIMARY KEY (id)) INHERITS (p);"
        "INSERT INTO p VALUES (1, 1); INSERT INTO c VALUES (1, 1, 1), (2, 2, 2)"
    )
    lab.source.execute("UPDATE p SET v = v + 1; DELETE FROM p WHERE id = 2")
    found = [(row["op"], row["table_name"]) for row in lab.changes()]
    assert sorted(found) == [("delete", "c"), ("update", "c"), ("update", "c"), ("update", "p")]


def test_a_schema_of_the_user_s_own_is_refused(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    lab.target.execute("CREATE SCHEMA penstock; CREATE TABLE penstock.lane (mine int)")
    with pytest.raises(OperatorError, match="schema 'penstock' exists, and is not Penstock's"):
        lab.pipeline(["public.t"]).setup()


def test_teardown_leaves_what_others_put_beside_it(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)", tables=["public.t"])
    lab.source.execute(
        "CREATE FUNCTION penstock_lab.mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER mine AFTER INSERT ON u FOR EACH STATEMENT EXECUTE FUNCTION penstock_lab.mine()"
    )
    lab.ledger.close()
    with pytest.raises(OperatorError, match="other objects depend on it"):
        lab.pipeline(["public.t"]).teardown()
    lab.source.execute("INSERT INTO u VALUES (1); INSERT INTO t VALUES (1)")
    assert [row["table_name"] for row in lab.changes()] == ["t"]


def test_limits_for_interactive_users_do_not_bind_apply(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int)")
    for setting in (
        "lock_timeout = '100ms'",
        "statement_timeout = '300ms'",
        "idle_in_transaction_session_timeout = '100ms'",
        "idle_session_timeout = '100ms'",
        "transaction_timeout = '300ms'",
    ):
        lab.target.execute(f"ALTER DATABASE {lab.target.info.dbname} SET {setting}")
        lab.source.execute(f"ALTER DATABASE {lab.source.info.dbname} SET {setting}")
    lab.source.execute("INSERT INTO t VALUES (1, 1)")
    lab.apply()
    lab.source.execute("UPDATE t SET v = 2")
    with connect(lab.target_url, "idle") as ours:
        time.sleep(0.5)
        ours.execute("SELECT 1")
    without = "-c idle_in_transaction_session_timeout=0 -c transaction_timeout=0"
    with psycopg.connect(lab.target_url, options=without) as holder:
        holder.execute("SELECT FROM t FOR UPDATE")
        lab.target.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE false")
        from threading import Timer

        Timer(1.0, holder.rollback).start()
        lab.apply(config=ServerConfig(use_set_path=False))
    assert lab.errors() == []
    lab.assert_identical("t")


@pytest.mark.parametrize("use_set", [True, False], ids=["set path", "row path"])
def test_keys_of_generated_columns_are_checked(lab: Lab, use_set: bool) -> None:
    lab.setup(
        "CREATE TABLE p (id int PRIMARY KEY);"
        "CREATE TABLE c (id int PRIMARY KEY, v int, g int GENERATED ALWAYS AS (v + 1) STORED REFERENCES p,"
        " UNIQUE (g) DEFERRABLE)"
    )
    lab.source.execute("INSERT INTO p VALUES (1), (2)")
    lab.apply()
    lab.target.execute("DELETE FROM p WHERE id = 2")
    lab.source.execute("INSERT INTO c (id, v) VALUES (1, 1)")
    lab.apply(config=ServerConfig(use_set_path=use_set))
    assert [entry.error_number for entry in lab.errors()] == [2291]


def test_a_table_is_added_while_transactions_on_the_others_are_open(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE later (id int PRIMARY KEY)", tables=["public.t"])
    with psycopg.connect(lab.source_url) as writer:
        writer.execute("INSERT INTO t VALUES (1)")
        lab.pipeline().setup()
        writer.execute("INSERT INTO later VALUES (2)")
    lab.start()
    lab.apply()
    lab.assert_identical("t")
    lab.assert_identical("later")


def test_row_triggers_come_and_go_as_they_are_asked_for_and_nothing_is_lost(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE u (id int PRIMARY KEY, v int)")

    def write(first: int) -> None:
        for table in ("t", "u"):
            lab.source.execute(f"INSERT INTO {table} SELECT n, 0 FROM generate_series({first}, {first} + 99) n")
            lab.source.execute(f"UPDATE {table} SET v = v + 1, id = id + 1000; DELETE FROM {table} WHERE id % 7 = 0")

    def modes() -> list[str]:
        return [
            row[0]
            for row in lab.source.execute(
                f"SELECT string_agg(substring(tgname from '[a-z]+$'), ' ' ORDER BY tgname) FROM pg_trigger"
                f" WHERE tgname LIKE 'R\\_{lab.set_name}%' GROUP BY tgrelid ORDER BY tgrelid::regclass::text"
            ).fetchall()
        ]

    write(1)
    lab.row_triggers = ["public.t"]
    asked = lab.pipeline().setup()
    again = lab.pipeline().setup()
    assert (asked.is_done, again.is_done, modes()) == (False, True, ["rd ri ru t", "sd si su t"])
    write(101)
    lab.source.execute("ALTER TABLE t ADD w int DEFAULT 3; ALTER TABLE u ADD w int DEFAULT 3")
    lab.target.execute("ALTER TABLE t ADD w int DEFAULT 3; ALTER TABLE u ADD w int DEFAULT 3")
    assert modes()[0] == "rd ri ru t"
    write(201)
    lab.row_triggers = []
    assert not lab.pipeline().setup().is_done
    assert modes() == ["sd si su t", "sd si su t"]
    write(301)

    lab.apply()
    assert lab.errors() == []
    lab.assert_identical("t")
    lab.assert_identical("u")


@pytest.fixture
def lent(lab: Lab) -> Iterator[Lab]:
    """The lab of a user who owns nothing at the source, and has the rights that `plan` asks for."""
    role = f"borrower_{lab.source.info.dbname}"
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    lab.source.execute(f"CREATE ROLE {role} LOGIN; GRANT CREATE ON DATABASE {lab.source.info.dbname} TO {role}")
    lab.source.execute(f"GRANT SELECT, TRIGGER ON t TO {role}")
    with Lab(lab.source_url.replace("postgres@", f"{role}@"), lab.target_url) as made:
        yield made
    lab.source.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def test_triggers_that_only_the_owner_may_drop_stay_and_log_nothing(lab: Lab, lent: Lab) -> None:
    lent.pipeline().setup()
    for number, by_row in enumerate([["public.t"], [], ["public.t"]]):
        lent.row_triggers = by_row
        lent.pipeline().setup()
        assert lent.pipeline().setup().is_done
        lab.source.execute(f"INSERT INTO t VALUES ({number}, 0); UPDATE t SET v = v + 1 WHERE id = {number}")
    assert [change["op"] for change in lent.changes()] == ["insert", "update"] * 3


def test_who_set_up_tables_of_others_can_take_it_away(lab: Lab, lent: Lab) -> None:
    lent.pipeline().setup()
    lent.pipeline().teardown()
    assert lab.source.execute("SELECT FROM pg_trigger WHERE NOT tgisinternal").fetchall() == []
    assert lab.source.execute("SELECT FROM pg_namespace WHERE nspname = %s", [lent.set_name]).fetchall() == []
    lab.source.execute("INSERT INTO t VALUES (1, 0)")


def test_a_superuser_leaves_a_set_to_the_role_that_could_change_it(lab: Lab, lent: Lab) -> None:
    lent.pipeline().setup()
    # As if it were older.
    lab.source.execute(f"DROP TABLE {lab.set_name}.by_row; COMMENT ON SCHEMA {lab.set_name} IS 'penstock: older'")
    role = lent.source.info.user
    with pytest.raises(OperatorError, match=f"role '{role}' could put code into schema '{lab.set_name}'.*run this as"):
        lab.pipeline().setup()

    lent.pipeline().setup()

    assert lent.pipeline().plan().is_done


def test_triggers_are_not_exchanged_for_such_as_know_an_older_table(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, gone int)")
    lab.row_triggers = ["public.t"]
    with psycopg.connect(lab.source_url) as session:
        session.execute("ALTER TABLE t ADD v int; ALTER TABLE t DROP gone")
        setup = threading.Thread(target=lab.pipeline().setup)
        setup.start()
        await_true(lab.is_anyone_waiting, seconds=30)
    setup.join()
    assert lab.pipeline().plan().is_done
    lab.source.execute("INSERT INTO t VALUES (1, 2)")
    assert [change["after"] for change in lab.changes()] == ['{"id":"1","v":"2"}']


def test_a_partition_without_its_root_is_captured_however_it_is_written(lab: Lab) -> None:
    lab.setup(
        "CREATE TABLE m (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (1) TO (10);"
        "CREATE TABLE m2 PARTITION OF m FOR VALUES FROM (10) TO (20)",
        tables=["public.m1"],
    )
    lab.source.execute(
        "INSERT INTO m VALUES (1), (15); INSERT INTO m1 VALUES (2); UPDATE m SET id = id + 10 WHERE id < 10; TRUNCATE m"
    )
    assert [(change["op"], change["key"]) for change in lab.changes()] == [
        ("insert", '{"id":"1"}'),
        ("insert", '{"id":"2"}'),
        ("delete", '{"id":"1"}'),
        ("delete", '{"id":"2"}'),
        ("truncate", None),
    ]


def test_row_triggers_are_refused_for_a_table_that_is_not_captured(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    lab.row_triggers = ["public.t", "public.u", "public.T"]
    with pytest.raises(OperatorError, match=r"no captured table matches 'public.u', 'public.T'.*capture.row_triggers"):
        lab.pipeline(["public.t"]).setup()
    assert lab.source.execute("SELECT to_regnamespace(%s)", [lab.set_name]).fetchone() == (None,)


def test_a_writer_whose_way_setup_crosses_is_not_the_one_that_fails(lab: Lab) -> None:
    """Setup takes the tables one after the other, and comes back for one whose holder writes to one it has."""
    lab.source.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    with psycopg.connect(lab.source_url) as writer:
        writer.execute("INSERT INTO b VALUES (1)")
        setup = threading.Thread(target=lab.pipeline().setup)
        setup.start()
        await_true(lab.is_anyone_waiting, seconds=30)
        writer.execute("INSERT INTO a VALUES (1)")
    setup.join()

    lab.source.execute("INSERT INTO a VALUES (2); INSERT INTO b VALUES (2)")
    lab.start()
    assert [change["table_name"] for change in lab.changes()] == ["a", "a", "b"]


def test_setup_gives_up_on_a_table_that_is_held_for_long(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_PATIENCE_S", 1.0)
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with psycopg.connect(lab.source_url) as writer:
        writer.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(
            LockedError, match=r"capture table public\.t: another session holds a lock.*Everything else"
        ):
            lab.pipeline().setup()
    assert [str(table) for table in lab.pipeline()._source.not_captured(["public.*"])] == [
        "public.t is not captured: it was made after setup, or setup has left it out; run `penstock setup`"
    ]

    lab.pipeline().setup()
    assert lab.pipeline()._source.not_captured(["public.*"]) == []


@pytest.mark.parametrize(
    ("ddl", "tables"),
    [
        ("CREATE TABLE m (id int PRIMARY KEY) PARTITION BY RANGE (id);"
         "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (1) TO (10)", ["public.m1"]),
        ("CREATE TABLE m (id int PRIMARY KEY); CREATE TABLE m1 (PRIMARY KEY (id)) INHERITS (m)", ["public.*"]),
    ],
    ids=["a partition without its root", "a table that inherits"],
)  # fmt: skip
def test_ddl_reaches_the_capture_of_tables_below_the_one_it_names(lab: Lab, ddl: str, tables: list[str]) -> None:
    lab.setup(ddl, tables=tables)
    lab.source.execute("ALTER TABLE m ADD v text; INSERT INTO m1 VALUES (1, 'x')")
    lab.source.execute("ALTER TABLE m RENAME v TO w; UPDATE m1 SET w = 'y'; ALTER TABLE m DROP w; DELETE FROM m1")
    assert images(lab.changes()) == [
        ("insert", "m1", None, '{"id":"1","v":"x"}'),
        ("update", "m1", '{"id":"1","w":"x"}', '{"w":"y"}'),
        ("delete", "m1", '{"id":"1"}', None),
    ]


@pytest.mark.parametrize("use_set", [True, False], ids=["set path", "row path"])
def test_equal_rows_whose_deferrable_key_moves_on(lab: Lab, use_set: bool) -> None:
    fill = "INSERT INTO dp SELECT n, 'x' FROM generate_series(1, 9) n"
    lab.setup(f"CREATE TABLE dp (id int PRIMARY KEY DEFERRABLE, v text); {fill}")
    lab.target.execute(fill)
    lab.source.execute("UPDATE dp SET id = id + 1; DELETE FROM dp WHERE id = 4")
    lab.apply(config=ServerConfig(use_set_path=use_set))
    assert lab.errors() == []
    lab.assert_identical("dp")


@pytest.mark.parametrize("use_set", [True, False], ids=["set path", "row path"])
def test_a_swap_that_only_the_source_s_key_allows(lab: Lab, use_set: bool) -> None:
    """A key that is checked at once at the target takes, on either path, what would break it for a moment."""
    lab.setup(
        "CREATE TABLE s (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED);"
        "CREATE TABLE k (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v int)"
    )
    lab.target.execute("ALTER TABLE s DROP CONSTRAINT s_u_key, ADD UNIQUE (u)")
    lab.target.execute("ALTER TABLE k DROP CONSTRAINT k_pkey, ADD PRIMARY KEY (id)")
    lab.source.execute("INSERT INTO s VALUES (1, 1), (2, 2); INSERT INTO k VALUES (1, 1), (2, 2)")
    lab.apply()
    for statement in ("UPDATE s SET u = 3 - u", "UPDATE k SET id = 3 - id"):
        # Each in a batch of its own, or the one would send the other by the row path.
        lab.source.execute(statement)
        lab.apply(config=ServerConfig(use_set_path=use_set))
    assert lab.errors() == []
    lab.assert_identical("s", "k")


PASSED_ON = {
    "three go round": "UPDATE s SET u = u % 3 + 1",
    "a key goes round": "UPDATE s SET id = id % 3 + 1",
    "an insert before the delete": "INSERT INTO s VALUES (9, 1, 'i'); DELETE FROM s WHERE id = 1",
    "one that waits is changed": "UPDATE s SET u = 2 WHERE id = 1; UPDATE s SET v = 'z' WHERE id = 1;"
    " UPDATE s SET u = 1 WHERE id = 2",
    "one that waits is deleted": "UPDATE s SET u = 2 WHERE id = 1; DELETE FROM s WHERE id = 1;"
    " UPDATE s SET u = 7 WHERE id = 2",
    "one that waits moves on": "UPDATE s SET u = 2 WHERE id = 1; UPDATE s SET u = 3 WHERE id = 1;"
    " UPDATE s SET u = 1 WHERE id = 2; UPDATE s SET u = 2 WHERE id = 3",
}


@pytest.mark.parametrize("use_set", [True, False], ids=["set path", "row path"])
@pytest.mark.parametrize("changes", PASSED_ON.values(), ids=PASSED_ON)
def test_values_of_a_key_are_passed_on_inside_a_transaction(lab: Lab, changes: str, use_set: bool) -> None:
    lab.setup(
        "CREATE TABLE s (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED,"
        " u int UNIQUE DEFERRABLE INITIALLY DEFERRED, v text)"
    )
    lab.target.execute(
        "ALTER TABLE s DROP CONSTRAINT s_u_key, ADD UNIQUE (u), DROP CONSTRAINT s_pkey, ADD PRIMARY KEY (id),"
        " ADD own text DEFAULT 'of the target'"
    )
    lab.source.execute("INSERT INTO s VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c')")
    lab.apply()
    with lab.session() as writer:
        writer.execute(changes)

    lab.apply(config=ServerConfig(use_set_path=use_set))

    assert lab.errors() == []
    assert [row[:3] for row in lab.rows("s")] == lab.rows("s", side="source")
    assert {row[3] for row in lab.rows("s")} == {"of the target"}


KEYS_THAT_SWAP = {
    "equal values of two forms": (
        "id int PRIMARY KEY, u numeric, CONSTRAINT k UNIQUE (u)",
        "1, 1.0",
        "2, 2.00",
        "3 - u",
    ),
    "no primary key": ("id int, u int, CONSTRAINT k UNIQUE (u)", "1, 1", "2, 2", "3 - u"),
    "an exclusion constraint": (
        "id int PRIMARY KEY, u int4range, CONSTRAINT k EXCLUDE USING gist (u WITH &&)",
        "1, '[1,2)'",
        "2, '[2,3)'",
        "CASE id WHEN 1 THEN '[2,3)'::int4range ELSE '[1,2)' END",
    ),
}


@pytest.mark.parametrize("use_set", [True, False], ids=["set path", "row path"])
@pytest.mark.parametrize("case", KEYS_THAT_SWAP)
def test_what_is_in_the_way_of_a_value_is_for_the_target_to_say(lab: Lab, case: str, use_set: bool) -> None:
    columns, first, second, swapped = KEYS_THAT_SWAP[case]
    lab.target.execute(f"CREATE TABLE s ({columns})")
    lab.setup(f"CREATE TABLE s ({columns} DEFERRABLE INITIALLY DEFERRED)")
    lab.source.execute(f"INSERT INTO s VALUES ({first}), ({second})")
    lab.apply()
    lab.source.execute(f"UPDATE s SET u = {swapped}")

    lab.apply(config=ServerConfig(use_set_path=use_set))

    assert lab.errors() == []
    lab.assert_identical("s")


def test_a_value_that_is_given_up_and_held_by_another_row_is_an_error_of_the_change_that_takes_it(lab: Lab) -> None:
    lab.setup("CREATE TABLE s (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    lab.target.execute("ALTER TABLE s DROP CONSTRAINT s_u_key, ADD UNIQUE (u)")
    lab.source.execute("INSERT INTO s VALUES (1, 1), (2, 2)")
    lab.apply()
    # The target's row with this value is not the one that the source's transaction changes.
    lab.target.execute("UPDATE s SET u = 20 WHERE id = 2; INSERT INTO s VALUES (3, 2)")
    lab.source.execute("UPDATE s SET u = 3 - u")

    lab.apply()

    (entry,) = lab.errors()
    assert entry.error_number in (1, 26786)
    assert lab.rows("s") == [(1, 1), (2, 20), (3, 2)]


def test_a_foreign_key_from_a_timestamp_to_a_date_keeps_its_order_in_lanes(lab: Lab) -> None:
    lab.setup(
        "CREATE TABLE p (d timestamp PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY, d date REFERENCES p, v int)"
    )
    for n in range(1, 20):
        lab.source.execute(f"INSERT INTO p VALUES ('2024-01-{n:02}')")
        lab.source.execute(f"INSERT INTO c VALUES ({n}, '2024-01-{n:02}', 0)")
    for _ in range(3):
        lab.apply(lanes=4, shuffle=random.Random(7))
    assert lab.errors() == []
    lab.assert_identical("p", "c")


def test_a_foreign_table_that_leads_nowhere_stops_nobody_else(lab: Lab) -> None:
    lab.source.execute(
        "CREATE TABLE m (id int, v int) PARTITION BY RANGE (id);"
        "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (1) TO (20); CREATE TABLE t (id int)"
    )
    lab.target.execute(
        "CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere;"
        "CREATE TABLE m (id int, v int) PARTITION BY RANGE (id);"
        "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (1) TO (10);"
        "CREATE FOREIGN TABLE f PARTITION OF m FOR VALUES FROM (10) TO (20) SERVER nowhere"
    )
    ((error,),) = lab.pipeline().setup().left_out.values()
    assert re.match(r"cannot read table public\.m: .*has no handler.*capture\.tables", str(error))
    lab.target.execute("DROP FOREIGN TABLE f")
    lab.pipeline().setup()
    lab.start()
    lab.target.execute("CREATE FOREIGN TABLE f PARTITION OF m FOR VALUES FROM (10) TO (20) SERVER nowhere")
    lab.source.execute("INSERT INTO m VALUES (1, 1)")
    lab.source.execute("INSERT INTO m VALUES (11, 1)")
    lab.source.execute("INSERT INTO t VALUES (1)")
    lab.apply()
    assert [entry.error_code for entry in lab.errors()] == ["55000"]
    lab.assert_identical("t")
    assert lab.target.execute("SELECT id FROM m1").fetchall() == [(1,)]


def test_what_a_table_needs_and_the_target_lacks_is_named(lab: Lab) -> None:
    lab.source.execute(
        "CREATE FUNCTION twice(n int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT n * 2';"
        "CREATE TABLE g (id int PRIMARY KEY, d int GENERATED ALWAYS AS (twice(id)) STORED); CREATE TABLE t (id int)"
    )
    ((error,),) = lab.pipeline().setup().left_out.values()
    assert error.what == "function public.twice(n integer) is missing at the target"
    assert error.do == "create it there: `penstock plan --detail` prints the SQL"
    lab.target.execute("CREATE TABLE g (id int PRIMARY KEY, d int)")
    lab.pipeline().setup()


def test_setup_locks_one_table_at_a_time(lab: Lab) -> None:
    """Writers of a table wait for its own triggers to be made, and for nobody else's."""
    lab.source.execute("".join(f"CREATE TABLE t{n} (id int PRIMARY KEY, v text);" for n in range(14)))
    most, over = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        with lab.session() as session:
            while not over.is_set():
                row = session.execute(
                    "SELECT coalesce(max(n), 0) FROM (SELECT count(DISTINCT l.relation) AS n FROM pg_locks l"
                    " JOIN pg_class c ON c.oid = l.relation JOIN pg_database d ON d.oid = l.database"
                    " WHERE c.relname ~ '^t\\d+$' AND l.mode = 'ShareRowExclusiveLock'"
                    " AND d.datname = current_database() GROUP BY l.pid) locked"
                ).fetchone()
                assert row is not None
                most = max(most, row[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    lab.pipeline().setup()
    over.set()
    watcher.join()
    assert most == 1
