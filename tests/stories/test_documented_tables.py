"""TABLES is live: what is inserted, changed or deleted there changes what ITEMS shows, in the same transaction."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.lab import Lab
from tests.stories.test_documented import col, documented, items

WATCHED = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def later(lab: Lab, name: str = "late") -> None:
    """Make a table that the pipeline file does not mean."""
    lab.source.execute(f"CREATE SCHEMA IF NOT EXISTS aside; CREATE TABLE aside.{name} (id int PRIMARY KEY, v text)")


def watch(connection: psycopg.Connection, name: str, actions: str | None = "IUD", schema: str = "aside") -> None:
    connection.execute(
        "INSERT INTO REPL_TABLES (CATALOGNAME, SCHEMANAME, TABLENAME, ACTIONS, STATUS, REPL_KEY, TRIGGER_NAME, DEBUG)"
        " VALUES (' ', %s, %s, %s, 'CREATING', REPL_INCREMENT(), '', 0)",
        [schema, name, actions],
    )


def tables(lab: Lab, *columns: str) -> list[tuple[Any, ...]]:
    return lab.source.execute(f"SELECT {', '.join(columns)} FROM REPL_TABLES ORDER BY schemaname, tablename").fetchall()


def actions(lab: Lab) -> list[tuple[Any, ...]]:
    """What ITEMS shows, which is acknowledged thereby."""
    found = items(lab.source, "db_action", "tablename")
    lab.source.execute("DELETE FROM REPL_ITEMS")
    return found


def setup(lab: Lab, schema: str = WATCHED) -> None:
    """A pipeline that means the tables in `public` alone."""
    lab.capture_settings = "  documented: {prefix: REPL_}\n"
    lab.source.execute(schema)
    lab.pipeline().setup()
    # Without the CREATE of each table. To take it would move the log, which `Lab.start` follows from its beginning.
    lab.source.execute(f"DELETE FROM {lab.set_name}.announced")


def test_setup_lists_the_captured_tables(lab: Lab) -> None:
    setup(lab, WATCHED + "; CREATE TABLE u (id int)")

    cursor = lab.source.execute("SELECT * FROM REPL_TABLES ORDER BY tablename")

    assert [one.name for one in cursor.description or []] == [
        "catalogname",
        "schemaname",
        "tablename",
        "actions",
        "status",
        "repl_key",
        "trigger_name",
        "debug",
    ]
    assert cursor.fetchall() == [
        (" ", "public", "t", "IUD", "OK", 1, "repl_1", 0),
        (" ", "public", "u", "IUD", "OK", 2, "repl_2", 0),
    ]
    assert lab.source.execute("SELECT relname FROM repl_current_tables ORDER BY 1").fetchall() == [("t",), ("u",)]


def test_a_table_that_is_inserted_is_watched_in_the_same_transaction(lab: Lab) -> None:
    setup(lab)
    later(lab)

    with psycopg.connect(lab.source_url) as user:
        watch(user, "late")
        user.execute("INSERT INTO aside.late VALUES (1, 'a')")
        user.commit()

    assert items(lab.source, "db_action", "db_schema", "tablename", "content") == [
        ("CREATE", "aside", "late", None),
        ("INSERT", "aside", "late", col("id", "1") + col("v", "a")),
    ]
    assert tables(lab, "tablename", "status") == [("late", "OK"), ("t", "OK")]


def test_an_insert_that_is_rolled_back_watches_nothing(lab: Lab) -> None:
    setup(lab)
    later(lab)

    with psycopg.connect(lab.source_url) as user:
        watch(user, "late")
        user.rollback()
    lab.source.execute("INSERT INTO aside.late VALUES (1, 'a')")

    assert actions(lab) == []
    assert tables(lab, "tablename") == [("t",)]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("I", ["INSERT"]),
        ("DU", ["UPDATE", "DELETE"]),
        ("iud", ["INSERT", "UPDATE", "DELETE"]),
        (None, ["INSERT", "UPDATE", "DELETE"]),
        ("", []),
    ],
)
def test_actions_say_which_changes_are_shown(lab: Lab, given: str | None, shown: list[str]) -> None:
    setup(lab)
    later(lab)
    watch(lab.source, "late", given)
    assert actions(lab) == [("CREATE", "late")]

    for statement in ("INSERT INTO aside.late VALUES (1)", "UPDATE aside.late SET v = 'b'", "DELETE FROM aside.late"):
        lab.source.execute(statement)

    assert actions(lab) == [(one, "late") for one in shown]


def test_actions_that_are_changed_count_from_then_on(lab: Lab) -> None:
    setup(lab)
    lab.source.execute("INSERT INTO t VALUES (1)")

    lab.source.execute("UPDATE REPL_TABLES SET actions = 'D' WHERE tablename = 't'")
    lab.source.execute("INSERT INTO t VALUES (2)")
    lab.source.execute("DELETE FROM t WHERE id = 1")

    assert actions(lab) == [("INSERT", "t"), ("DELETE", "t")]


@pytest.mark.parametrize("given", ["X", "IUDX", "I D"])
def test_other_actions_are_refused(lab: Lab, given: str) -> None:
    setup(lab)
    later(lab)

    with pytest.raises(psycopg.Error):
        watch(lab.source, "late", given)
    with pytest.raises(psycopg.Error):
        lab.source.execute("UPDATE REPL_TABLES SET actions = %s", [given])


def test_a_table_that_does_not_exist_is_taken_up_by_the_statement_that_makes_it(lab: Lab) -> None:
    setup(lab)
    watch(lab.source, "late")
    waiting = tables(lab, "tablename", "status")

    later(lab)
    lab.source.execute("INSERT INTO aside.late VALUES (1)")

    assert waiting == [("late", "CREATING"), ("t", "OK")]
    assert tables(lab, "tablename", "status") == [("late", "OK"), ("t", "OK")]
    assert actions(lab) == [("CREATE", "late"), ("INSERT", "late")]


def test_names_in_capital_letters_mean_what_they_mean_without_quotes(lab: Lab) -> None:
    setup(lab)
    later(lab)

    watch(lab.source, "LATE", schema="ASIDE")
    lab.source.execute("INSERT INTO aside.late VALUES (1)")

    assert items(lab.source, "db_action", "db_schema", "tablename")[1:] == [("INSERT", "aside", "late")]


def test_a_row_that_is_deleted_ends_the_watch_and_the_capture(lab: Lab) -> None:
    setup(lab)
    later(lab)
    watch(lab.source, "late")
    lab.source.execute("INSERT INTO aside.late VALUES (1)")

    assert lab.source.execute("DELETE FROM REPL_TABLES WHERE TABLENAME = 'late'").rowcount == 1
    lab.source.execute("INSERT INTO aside.late VALUES (2)")

    assert actions(lab) == [("CREATE", "late"), ("INSERT", "late")]
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'aside.late'::regclass AND NOT tgisinternal"
    assert lab.source.execute(triggers).fetchone() == (0,)
    assert lab.source.execute(f"SELECT count(*) FROM {lab.set_name}.log").fetchone() == (0,)


def test_a_table_can_be_watched_again(lab: Lab) -> None:
    setup(lab)
    later(lab)
    for value in range(3):
        watch(lab.source, "late")
        lab.source.execute("INSERT INTO aside.late VALUES (%s)", [value])
        lab.source.execute("DELETE FROM REPL_TABLES WHERE TABLENAME = 'late'")

    assert actions(lab) == [("CREATE", "late"), ("INSERT", "late")] * 3


def test_a_table_of_the_pipeline_file_stays_captured_for_its_run_and_setup_does_not_list_it_again(lab: Lab) -> None:
    setup(lab)
    lab.start()

    lab.source.execute("DELETE FROM REPL_TABLES")
    lab.source.execute("INSERT INTO t VALUES (1)")
    lab.pipeline().setup()

    assert actions(lab) == []
    assert tables(lab, "tablename") == []
    assert [change["op"] for change in lab.changes()] == ["insert"]


def test_a_row_twice_is_refused(lab: Lab) -> None:
    setup(lab)

    for name, schema in (("t", "public"), ("T", "PUBLIC"), ("t", " ")):
        with pytest.raises(
            psycopg.errors.UniqueViolation, match=r"table public\.t is in repl_tables already"
        ) as refused:
            watch(lab.source, name, schema=schema)
        assert "Change its row instead" in (refused.value.diag.message_hint or "")
    # One that does not exist yet is known by its name.
    watch(lab.source, "later", schema="public")
    with pytest.raises(psycopg.errors.UniqueViolation, match=r"table public\.later is in repl_tables already"):
        watch(lab.source, "later", schema="public")


@pytest.mark.parametrize(
    "statement", ["INSERT INTO REPL_ITEMS (REPL_KEY) VALUES (1)", "UPDATE REPL_ITEMS SET CONTENT = ''"]
)
def test_items_is_written_by_the_capture_alone(lab: Lab, statement: str) -> None:
    setup(lab)
    lab.source.execute("INSERT INTO t VALUES (1)")

    with pytest.raises(
        psycopg.errors.ObjectNotInPrerequisiteState,
        match="rows of repl_items come from the capture: only DELETE is possible",
    ):
        lab.source.execute(statement)

    lab.source.execute("DELETE FROM REPL_ITEMS")
    assert lab.pipeline().plan().source.steps == []


def test_a_partition_goes_with_its_table(lab: Lab) -> None:
    setup(
        lab,
        "CREATE TABLE p (id int) PARTITION BY RANGE (id); CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9)",
    )

    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="partition"):
        watch(lab.source, "p1", schema="public")
    lab.source.execute("INSERT INTO p VALUES (1)")

    assert actions(lab) == [("INSERT", "p")]


def test_ddl_on_watched_tables_is_told(lab: Lab) -> None:
    setup(lab)

    lab.source.execute("ALTER TABLE t ADD city text")
    lab.source.execute("INSERT INTO t VALUES (1, 'a', 'b')")
    lab.source.execute("ALTER TABLE t RENAME v TO w")
    lab.source.execute("CREATE INDEX ON t (w)")
    lab.source.execute("DROP TABLE t")
    lab.source.execute("CREATE TABLE t (x int)")
    lab.source.execute("INSERT INTO t VALUES (7)")

    assert items(lab.source, "db_action", "db_schema", "tablename", "content") == [
        ("ALTER", "public", "t", None),
        ("INSERT", "public", "t", col("id", "1") + col("v", "a") + col("city", "b")),
        ("ALTER", "public", "t", None),
        ("DROP", "public", "t", None),
        ("CREATE", "public", "t", None),
        ("INSERT", "public", "t", col("x", "7")),
    ]
    assert tables(lab, "tablename", "status") == [("t", "OK")]


def test_ddl_in_the_middle_of_a_transaction_stands_at_its_place(lab: Lab) -> None:
    setup(lab)

    with psycopg.connect(lab.source_url) as user:
        user.execute("INSERT INTO t VALUES (1)")
        user.execute("ALTER TABLE t ADD city text")
        user.execute("INSERT INTO t VALUES (2, 'a', 'b')")
        user.commit()

    assert items(lab.source, "db_action", "content") == [
        ("INSERT", col("id", "1")),
        ("ALTER", None),
        ("INSERT", col("id", "2") + col("v", "a") + col("city", "b")),
    ]
    assert len(set(items(lab.source, "trans_key"))) == 1


def test_a_table_that_is_renamed_is_followed(lab: Lab) -> None:
    setup(lab)

    lab.source.execute("ALTER TABLE t RENAME TO u")
    lab.source.execute("INSERT INTO u VALUES (1)")

    assert actions(lab) == [("ALTER", "t"), ("INSERT", "u")]
    assert tables(lab, "tablename", "status") == [("u", "OK")]


@pytest.mark.parametrize("has_event_triggers", [True, False])
def test_tables_that_take_each_others_names_are_followed(lab: Lab, has_event_triggers: bool) -> None:
    setup(lab, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    lab.source.execute("UPDATE REPL_TABLES SET debug = 1 WHERE tablename = 'a'")
    if not has_event_triggers:
        lab.source.execute('DROP EVENT TRIGGER penstock_lab; DROP EVENT TRIGGER "penstock_lab tables"')

    lab.source.execute("ALTER TABLE a RENAME TO c; ALTER TABLE b RENAME TO a; ALTER TABLE c RENAME TO b")

    assert lab.source.execute("SELECT REPL_CHECK_STRUCTURE()").fetchone() == ("OK",)
    assert tables(lab, "tablename", "debug", "status") == [("a", 0, "OK"), ("b", 1, "OK")]


def test_a_table_takes_the_name_of_one_that_is_watched_no_more(lab: Lab) -> None:
    setup(lab, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    lab.source.execute("DELETE FROM REPL_TABLES WHERE tablename = 'a'")
    watch(lab.source, "late")
    watch(lab.source, "waited")

    lab.source.execute("ALTER TABLE a RENAME TO was_a; ALTER TABLE b RENAME TO a")
    later(lab)
    assert tables(lab, "tablename", "status") == [("late", "OK"), ("waited", "CREATING"), ("a", "OK")]
    # What a user has taken out stays so under its new name.
    lab.pipeline().setup()
    assert ("was_a",) not in tables(lab, "tablename")

    lab.source.execute("ALTER TABLE aside.late RENAME TO waited")
    assert tables(lab, "tablename", "status") == [("waited", "OK"), ("a", "OK")]


def test_a_name_in_capital_letters_that_another_table_takes_is_written_as_it_is(lab: Lab) -> None:
    setup(lab, "CREATE TABLE a (id int PRIMARY KEY)")
    later(lab, "b")
    lab.source.execute("DELETE FROM REPL_TABLES WHERE tablename = 'a'")
    watch(lab.source, "A", schema="public")
    watch(lab.source, "b")

    lab.source.execute('ALTER TABLE aside.b RENAME TO "A"; ALTER TABLE aside."A" SET SCHEMA public')

    assert tables(lab, "tablename", "status") == [("A", "OK"), ("a", "OK")]


def test_a_table_that_a_user_makes_is_watched_from_its_first_row(lab: Lab) -> None:
    setup(lab)
    watch(lab.source, "late", schema="public")
    role = f"user_{lab.source.info.dbname}"
    lab.source.execute(f"CREATE ROLE {role}; GRANT CREATE ON SCHEMA public TO {role}; SET ROLE {role}")

    lab.source.execute("CREATE TABLE late (id int PRIMARY KEY)")
    lab.source.execute("INSERT INTO late VALUES (1)")
    lab.source.execute("ALTER TABLE late ADD w int")
    lab.source.execute("DROP TABLE late")
    lab.source.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")

    assert actions(lab) == [("CREATE", "late"), ("INSERT", "late"), ("ALTER", "late"), ("DROP", "late")]
    assert tables(lab, "tablename", "status") == [("late", "CREATING"), ("t", "OK")]


def test_a_row_that_is_given_another_table_watches_that_one(lab: Lab) -> None:
    setup(lab)
    later(lab)
    later(lab, "other")
    watch(lab.source, "late")

    lab.source.execute("UPDATE REPL_TABLES SET TABLENAME = 'other' WHERE TABLENAME = 'late'")
    lab.source.execute("INSERT INTO aside.late VALUES (1); INSERT INTO aside.other VALUES (1)")

    assert actions(lab) == [("CREATE", "late"), ("CREATE", "other"), ("INSERT", "other")]


def test_a_partitioned_table_is_watched_with_its_partitions(lab: Lab) -> None:
    setup(lab)
    watch(lab.source, "p", schema="public")

    lab.source.execute("CREATE TABLE p (id int) PARTITION BY RANGE (id)")
    lab.source.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9)")
    lab.source.execute("INSERT INTO p VALUES (1)")
    lab.source.execute("INSERT INTO p1 VALUES (2)")
    lab.source.execute("TRUNCATE p")
    lab.source.execute("DELETE FROM REPL_TABLES WHERE TABLENAME = 'p'")
    lab.source.execute("INSERT INTO p VALUES (3)")

    assert actions(lab) == [("CREATE", "p"), ("INSERT", "p"), ("INSERT", "p"), ("TRUNCATE", "p")]
    count = (
        "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'R_penstock%' AND tgrelid IN ('p'::regclass, 'p1'::regclass)"
    )
    assert lab.source.execute(count).fetchone() == (0,)


def test_without_event_triggers_check_structure_finds_ddl(lab: Lab) -> None:
    setup(lab)
    watch(lab.source, "late")
    # A role that is no superuser has none.
    names = lab.source.execute("SELECT quote_ident(evtname) FROM pg_event_trigger").fetchall()
    for (name,) in names:
        lab.source.execute(f"DROP EVENT TRIGGER {name}")

    later(lab)
    lab.source.execute("ALTER TABLE t ADD city text")
    assert lab.source.execute("SELECT REPL_CHECK_STRUCTURE()").fetchone() == ("OK",)
    assert sorted(actions(lab)) == [("ALTER", "t"), ("CREATE", "late")]
    lab.source.execute("DROP TABLE t; CREATE TABLE t (x int)")
    lab.source.execute("SELECT REPL_CHECK_STRUCTURE()")
    lab.source.execute("INSERT INTO t VALUES (7)")
    lab.source.execute("SELECT REPL_CHECK_STRUCTURE()")

    assert len(names) == 3
    assert actions(lab) == [("DROP", "t"), ("CREATE", "t"), ("INSERT", "t")]


def test_the_copy_of_the_structure_is_that_of_the_last_check(lab: Lab) -> None:
    setup(lab)
    view = "SELECT attname, owner, attnotnull, attnum FROM repl_cols_view ORDER BY attnum"
    copy = view.replace("cols_view", "cols_table")
    before = lab.source.execute(copy).fetchall()

    lab.source.execute("ALTER TABLE t ADD city text, DROP v")
    live, stored = lab.source.execute(view).fetchall(), lab.source.execute(copy).fetchall()
    lab.source.execute("SELECT repl_check_structure()")

    assert before == stored == [("id", "t", True, 1), ("v", "t", False, 2)]
    assert live == [("id", "t", True, 1), ("city", "t", False, 3)]
    assert lab.source.execute(copy).fetchall() == live


def test_a_trigger_that_somebody_dropped_shows_and_is_mended(lab: Lab) -> None:
    setup(lab)
    (trigger,) = (
        lab.source.execute("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'R_penstock_lab_%_si'").fetchone() or ()
    )

    lab.source.execute(f'DROP TRIGGER "{trigger}" ON t')
    broken = tables(lab, "status")
    lab.source.execute("INSERT INTO t VALUES (1)")
    lab.pipeline().setup()
    lab.source.execute("INSERT INTO t VALUES (2)")

    assert broken == [("REMOVE",)]
    assert tables(lab, "status") == [("OK",)]
    found = items(lab.source, "db_action", "content")
    assert [action for action, _ in found] == ["EXCEPTION", "INSERT"]
    assert "triggers were altered or switched off" in found[0][1]


def test_what_a_trigger_of_a_partition_missed_shows_and_is_told(lab: Lab) -> None:
    setup(
        lab,
        """CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);
      CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)""",
    )
    lab.source.execute('DROP EVENT TRIGGER penstock_lab; DROP EVENT TRIGGER "penstock_lab tables"')

    lab.source.execute("ALTER TABLE p1 DISABLE TRIGGER USER; INSERT INTO p VALUES (1)")

    assert tables(lab, "tablename", "status") == [("p", "REMOVE")]
    lab.source.execute("SELECT REPL_CHECK_STRUCTURE()")
    assert tables(lab, "tablename", "status") == [("p", "OK")]
    assert actions(lab) == [("EXCEPTION", "p1")]


def test_a_status_that_is_not_ok_has_the_capture_made_again(lab: Lab) -> None:
    setup(lab)
    (trigger,) = (
        lab.source.execute("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'R_penstock_lab_%_si'").fetchone() or ()
    )
    lab.source.execute(f'ALTER TABLE t DISABLE TRIGGER "{trigger}"')

    assert lab.source.execute("UPDATE REPL_TABLES SET STATUS = 'REMOVE' WHERE TABLENAME = 't'").rowcount == 1
    lab.source.execute("INSERT INTO t VALUES (2)")

    assert tables(lab, "status") == [("OK",)]
    assert actions(lab) == [("EXCEPTION", "t"), ("INSERT", "t")]


def test_debug_lines_are_written_where_debug_is_1(lab: Lab) -> None:
    setup(lab, WATCHED + "; CREATE TABLE u (id int)")

    lab.source.execute("UPDATE REPL_TABLES SET debug = 1 WHERE tablename = 't'")
    lab.source.execute("INSERT INTO t VALUES (1, 'secret')")
    lab.source.execute("INSERT INTO u VALUES (1)")
    lab.source.execute("UPDATE REPL_TABLES SET debug = 0")
    lab.source.execute("DELETE FROM t")

    found = lab.source.execute("SELECT repl_key, line FROM repl_debug_table").fetchall()
    assert [line.rsplit(" ", 1)[0] for _, line in found] == ["INSERT public.t transaction"]
    assert found[0][0] > 0
    assert actions(lab) == [("INSERT", "t"), ("INSERT", "u"), ("DELETE", "t")]
    assert [step.summary for step in lab.pipeline().plan().source.steps] == []


def test_a_broadcast_stands_in_its_transaction(lab: Lab) -> None:
    setup(lab)

    with psycopg.connect(lab.source_url) as user:
        user.execute("SELECT REPL_PREPARE_BROADCAST(%s)", ["<attr id='statement'>update t set v='q'</attr>"])
        user.execute("INSERT INTO t VALUES (1)")
        user.commit()

    found = items(lab.source, "db_action", "tablename", "content", "trans_key")
    assert [one[:2] for one in found] == [("statement", None), ("INSERT", "t")]
    assert found[0][2] == "<attr id='statement'>update t set v='q'</attr>"
    assert found[0][3] == found[1][3]
    assert lab.source.execute("DELETE FROM repl_items").rowcount == 2
    assert lab.source.execute(f"SELECT count(*) FROM {lab.set_name}.announced").fetchone() == (0,)


def test_a_table_is_announced_again_where_it_exists(lab: Lab) -> None:
    setup(lab)
    call = "SELECT REPL_CHECK_TABLES(NULL, 'public', %s, 'CREATE', '<desc/>')"

    assert lab.source.execute(call, ["t"]).fetchone() == ("TRUE",)
    assert lab.source.execute(call, ["missing"]).fetchone() == ("FALSE",)

    assert items(lab.source, "db_action", "tablename", "content") == [("CREATE", "t", "<desc/>")]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("needs_prot('prova')", 0),
        ("needs_prot('<![[CDATAsome text]]>')", 2),
        ("needs_prot('this is a &lt;a')", 1),
        ("needs_prot(NULL)", 0),
        ("needs_prot(E'a\\tb\\nc')", 0),
        ("needs_prot(E'a\\rb')", 2),
        ("needs_prot(E'a\\x7fb')", 2),
        ("needs_prot(E'a\\uFFFEb')", 2),
        ("needs_prot('äß€😀')", 0),
        ("needs_prot('')", 0),
        (
            "col2xml('colName', '<![CDATA[colValue]]>')",
            '<col name="colName" encoding="base64">PCFbQ0RBVEFbY29sVmFsdWVdXT4=</col>',
        ),
        ("col2xml('colName', 'c&lt;olValue')", '<col name="colName"><![CDATA[c&lt;olValue]]></col>'),
        ("col2xml('c', 'v')", '<col name="c">v</col>'),
        ("col2xml('c', NULL)", '<col name="c" type="null"/>'),
        ("col2xml('a\"<&b', 'v')", '<col name="a&quot;&lt;&amp;b">v</col>'),
        ("col2xml_cdata('c', 'v')", '<col name="c"><![CDATA[v]]></col>'),
        ("col2xml_base64('c', 'ä')", '<col name="c" encoding="base64">w6Q=</col>'),
        ("col2xml_base64('c', '\\x00ff10'::bytea)", '<col name="c" encoding="base64">AP8Q</col>'),
        ("col2xml_null('c')", '<col name="c" type="null"/>'),
    ],
)
def test_functions_have_their_documented_results(functions: psycopg.Connection, call: str, expected: object) -> None:
    assert functions.execute(f"SELECT REPL_{call}").fetchone() == (expected,)


def test_increment_draws_from_the_sequence(functions: psycopg.Connection) -> None:
    first = functions.execute("SELECT REPL_INCREMENT()").fetchone()
    second = functions.execute("SELECT nextval('REPL_SEQ')").fetchone()

    assert first is not None
    assert second == (first[0] + 1,)


@pytest.fixture(scope="module")
def functions(source_server: Any, target_server: Any) -> Any:
    from tests.conftest import lab_between

    with lab_between(source_server, target_server) as made:
        documented(made, WATCHED)
        yield made.source
