"""Several documented sets in one database, prefixes and roles; and what setup and teardown make and remove."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import psycopg
import pytest

from penstock.demo.servers import EmbeddedPostgres
from penstock.errors import ConfigError, OperatorError
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.report import Report
from tests.conftest import lab_between
from tests.lab import Lab
from tests.stories.test_documented import col, items

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def pipeline(lab: Lab, settings: str | None = "{prefix: REPL_}", tables: str = "public.t") -> Pipeline:
    lab.capture_settings = "" if settings is None else f"  documented: {settings}\n"
    return lab.pipeline([tables])


def contents(connection: psycopg.Connection, items: str) -> list[str]:
    """What ITEMS shows, without the CREATE of each table."""
    query = f"SELECT content FROM {items} WHERE db_action <> 'CREATE' ORDER BY repl_key"
    return [one for (one,) in connection.execute(query)]


def objects(connection: psycopg.Connection) -> set[str]:
    """Everything in the schemas of users."""
    query = """
        SELECT concat(n.nspname, '.', o.name) FROM pg_namespace n JOIN (
          SELECT relnamespace AS nsp, relname AS name FROM pg_class
          UNION ALL SELECT pronamespace, proname FROM pg_proc) o ON o.nsp = n.oid
        WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
        UNION ALL SELECT evtname FROM pg_event_trigger UNION ALL SELECT tgname FROM pg_trigger WHERE NOT tgisinternal"""
    return {one for (one,) in connection.execute(query)}


def test_without_the_setting_nothing_of_it_is_there(lab: Lab) -> None:
    lab.source.execute(TABLE)
    pipeline(lab, None).setup()
    without = objects(lab.source)

    pipeline(lab).setup()
    with_it = objects(lab.source)
    pipeline(lab, None).setup()

    assert not [one for one in without if "repl_" in one or "documented" in one or "watched" in one]
    assert {"public.repl_items", "public.repl_tables", "public.repl_seq", "public.repl_col2xml"} <= with_it
    assert objects(lab.source) == without
    assert lab.log.consumers() == []
    assert pipeline(lab, None).plan().source.steps == []


def test_teardown_removes_all_of_it(lab: Lab) -> None:
    lab.source.execute(TABLE)
    before = objects(lab.source)
    made = pipeline(lab)
    made.setup()
    lab.source.execute("UPDATE repl_tables SET debug = 1")
    lab.source.execute("INSERT INTO t VALUES (1)")

    made.teardown()

    assert objects(lab.source) == before


def test_a_second_setup_has_nothing_to_do_and_mends_what_somebody_dropped(lab: Lab) -> None:
    lab.source.execute(TABLE)
    pipeline(lab).setup()
    assert pipeline(lab).plan().source.steps == []
    lab.source.execute("INSERT INTO t VALUES (1)")

    lab.source.execute(
        "DROP VIEW repl_items; DROP FUNCTION repl_check_structure(); DROP TRIGGER b_change ON repl_tables"
    )
    pipeline(lab).setup()

    assert contents(lab.source, "repl_items") == [col("id", "1")]
    assert lab.source.execute("DELETE FROM repl_items").rowcount == 2
    assert lab.source.execute("DELETE FROM repl_tables").rowcount == 1
    assert lab.source.execute("SELECT repl_check_structure()").fetchone() == ("OK",)


def test_the_sql_that_plan_prints_makes_them(lab: Lab) -> None:
    lab.source.execute(TABLE)
    script = "-- source:" + pipeline(lab).plan().sql().split("-- source:", 1)[1]

    with psycopg.connect(lab.source_url, autocommit=True) as dba:
        dba.execute(script.encode())

    assert pipeline(lab).plan().source.steps == []
    lab.source.execute("INSERT INTO t VALUES (1)")
    assert contents(lab.source, "repl_items") == [col("id", "1")]


def test_setup_of_a_set_that_is_there_shows_changes_from_then_on(lab: Lab) -> None:
    lab.source.execute(TABLE)
    pipeline(lab, None).setup()
    lab.source.execute("INSERT INTO t VALUES (1)")

    pipeline(lab).setup()
    lab.source.execute("INSERT INTO t VALUES (2)")

    assert contents(lab.source, "repl_items") == [col("id", "2")]


def test_another_prefix_keeps_the_rows_and_what_was_acknowledged(lab: Lab) -> None:
    lab.source.execute(TABLE)
    pipeline(lab).setup()
    for number in (1, 2):
        lab.source.execute("INSERT INTO t VALUES (%s)", [number])
    lab.source.execute("DELETE FROM repl_items WHERE repl_key = (SELECT max(repl_key) FROM repl_items)")

    pipeline(lab, "{prefix: OTHER_}").setup()

    assert contents(lab.source, "other_items") == [col("id", "1")]
    assert not [one for one in objects(lab.source) if one.startswith("public.repl_")]
    assert [one.consumer.name for one in lab.log.consumers()] == ["other_items"]


def test_two_sets_of_one_table_never_touch_each_other(lab: Lab) -> None:
    lab.source.execute(TABLE)
    pipeline(lab, "{prefix: A_}").setup()
    with Lab(lab.source_url, lab.target_url, name="second") as second:
        second.target.execute("DROP TABLE t")
        pipeline(second, "{prefix: B_}").setup()
        lab.source.execute("INSERT INTO t VALUES (1)")

        assert lab.source.execute("DELETE FROM a_items").rowcount == 2
        assert contents(lab.source, "b_items") == [col("id", "1")]
        lab.source.execute("DELETE FROM a_tables")
        lab.source.execute("INSERT INTO t VALUES (2)")
        assert contents(lab.source, "a_items") == []
        pipeline(lab, "{prefix: A_}").teardown()
        lab.source.execute("INSERT INTO t VALUES (3)")

        assert contents(lab.source, "b_items") == [col("id", "1"), col("id", "2"), col("id", "3")]


def test_a_prefix_that_another_set_has_is_refused(lab: Lab) -> None:
    lab.source.execute(TABLE)
    pipeline(lab).setup()
    with (
        Lab(lab.source_url, lab.target_url, name="second") as second,
        pytest.raises(OperatorError, match=r"capture set penstock_lab has the prefix 'repl_'.*another prefix"),
    ):
        pipeline(second, "{prefix: repl_}").setup()


def test_an_old_set_of_the_same_prefix_is_refused(lab: Lab) -> None:
    lab.source.execute(TABLE + "; CREATE TABLE repl_items (repl_key int PRIMARY KEY, trans_key varchar(30))")

    with pytest.raises(OperatorError, match=r"table public.repl_items exists.*xmlBlaster.*cleanupFile"):
        pipeline(lab).setup()

    pipeline(lab, "{prefix: NEW_}").setup()
    lab.source.execute("INSERT INTO t VALUES (1)")
    assert contents(lab.source, "new_items") == [col("id", "1")]


def test_a_function_of_anybody_under_the_prefix_is_refused(lab: Lab) -> None:
    lab.source.execute(TABLE + "; CREATE FUNCTION repl_col2xml(text, text) RETURNS text LANGUAGE sql AS 'SELECT $1'")

    with pytest.raises(OperatorError, match=r"public.repl_col2xml exists, and is not Penstock's"):
        pipeline(lab).setup()


@pytest.mark.parametrize(
    ("prefix", "written"),
    [("REPL_", "repl_"), ("a.b-c ", "a_b_c_"), ("x/y\\z:", "xyz_"), ("[q]", "_q_"), ("Ab$1_", "ab$1_")],
)
def test_a_prefix_is_cleaned_and_that_is_told(lab: Lab, prefix: str, written: str) -> None:
    lab.source.execute(TABLE)
    quoted = "'" + prefix + "'"

    plan = pipeline(lab, f"{{prefix: {quoted}}}").setup()
    lab.source.execute("INSERT INTO t VALUES (1)")

    assert contents(lab.source, f"{written}items") == [col("id", "1")]
    told = [note for note in plan.source.notes if "prefix" in note]
    assert bool(told) == (prefix.lower() != written)


@pytest.mark.parametrize("prefix", ["", "1a", "a;b", 'a"b', "ä_", "/", "x" * 41])
def test_a_prefix_that_begins_no_name_is_refused(lab: Lab, prefix: str) -> None:
    quoted = "'" + prefix + "'"
    with pytest.raises(ConfigError, match=r"capture.documented.prefix"):
        pipeline(lab, f"{{prefix: {quoted}}}")


def test_they_can_lie_in_another_schema(lab: Lab) -> None:
    lab.source.execute(TABLE)
    with pytest.raises(OperatorError, match="schema 'My \"Repl' does not exist"):
        pipeline(lab, "{schema: 'My \"Repl'}").setup()
    lab.source.execute('CREATE SCHEMA "My ""Repl"')

    pipeline(lab, "{schema: 'My \"Repl'}").setup()
    lab.source.execute("INSERT INTO t VALUES (1)")

    assert contents(lab.source, '"My ""Repl".repl_items') == [col("id", "1")]
    pipeline(lab, "{schema: 'My \"Repl'}").teardown()
    assert not [one for one in objects(lab.source) if one.startswith('My "Repl')]


def test_they_are_no_difference_between_source_and_copy_and_no_pattern_means_them(lab: Lab) -> None:
    lab.source.execute(TABLE)
    made = pipeline(lab, tables="*.*")
    made.setup()

    plan = made.plan()

    assert plan.tables == ["public.t"]
    assert plan.source.steps == []
    assert plan.target.differences == []


def test_a_run_goes_on_beside_tables_that_only_tables_names(lab: Lab) -> None:
    lab.source.execute(TABLE + "; CREATE SCHEMA aside; CREATE TABLE aside.late (id int PRIMARY KEY)")
    made = pipeline(lab)
    made.setup()
    lab.source.execute(
        "INSERT INTO repl_tables (schemaname, tablename, actions) VALUES ('aside', 'late', 'IUD');"
        "INSERT INTO aside.late VALUES (1); INSERT INTO t VALUES (1, 'a')"
    )

    made.run(Event(), Report(), until_caught_up=True)

    lab.assert_identical("t")
    assert len(items(lab.source, "content")) == 4
    kept_for = [(one.name, one.transactions) for one in made.status().consumers]
    assert kept_for == [("repl_items", 1), ("lab", 0)]


def test_they_work_in_an_older_server(old_server: EmbeddedPostgres, target_server: EmbeddedPostgres) -> None:
    with lab_between(old_server, target_server) as lab:
        lab.source.execute(TABLE)
        made = pipeline(lab)
        made.setup()
        lab.source.execute("INSERT INTO t VALUES (1, '<'); ALTER TABLE t ADD w int; UPDATE t SET w = 1")
        lab.source.execute(
            "INSERT INTO repl_tables (schemaname, tablename) VALUES ('public', 'u'); CREATE TABLE u (a int)"
        )

        found = items(lab.source, "db_action", "tablename")
        assert lab.source.execute("SELECT repl_check_structure()").fetchone() == ("OK",)
        deleted = lab.source.execute("DELETE FROM repl_items").rowcount
        made.teardown()

    assert found == [("CREATE", "t"), ("INSERT", "t"), ("ALTER", "t"), ("UPDATE", "t"), ("CREATE", "u")]
    assert deleted == 5


@pytest.fixture
def roles(lab: Lab) -> Iterator[tuple[str, str]]:
    """A role that sets up and one that reads; neither is a superuser."""
    names = tuple(f"{what}_{lab.source.info.dbname}" for what in ("keeper", "reader"))
    database = lab.source.info.dbname
    for name in names:
        lab.source.execute(f"CREATE ROLE {name} LOGIN")
    lab.source.execute(
        f"GRANT CREATE ON DATABASE {database} TO {names[0]}; GRANT CREATE ON SCHEMA public TO {names[0]}"
    )
    yield names[0], names[1]
    for name in names:
        lab.source.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def logged_in(lab: Lab, role: str) -> str:
    return lab.source_url.replace("postgres@", f"{role}@")


def test_a_role_without_further_rights_sets_up_reads_and_tears_down(lab: Lab, roles: tuple[str, str]) -> None:
    keeper, reader = roles
    lab.source.execute(TABLE + f"; GRANT SELECT, TRIGGER ON t TO {keeper}")
    with Lab(logged_in(lab, keeper), lab.target_url) as plain:
        made = pipeline(plain)
        made.setup()
        plain.source.execute(f"GRANT SELECT, DELETE ON repl_items TO {reader}")
        lab.source.execute("INSERT INTO t VALUES (1)")

        with psycopg.connect(logged_in(lab, reader), autocommit=True) as connection:
            found = contents(connection, "repl_items")
            deleted = connection.execute("DELETE FROM repl_items").rowcount
        lab.source.execute("ALTER TABLE t ADD w int")
        plain.source.execute("SELECT repl_check_structure()")

        assert (found, deleted) == ([col("id", "1")], 2)
        assert items(plain.source, "db_action") == [("ALTER",)]
        made.teardown()
        assert not [one for one in objects(lab.source) if "repl_" in one]


def test_a_missing_right_on_the_schema_is_named(lab: Lab, roles: tuple[str, str]) -> None:
    keeper, _ = roles
    lab.source.execute(TABLE + f"; GRANT SELECT, TRIGGER ON t TO {keeper}; CREATE SCHEMA theirs")
    with Lab(logged_in(lab, keeper), lab.target_url) as plain:
        plan = pipeline(plain, "{schema: theirs}").plan()

    assert f'GRANT CREATE, USAGE ON SCHEMA "theirs" TO "{keeper}"' in plan.source.grants


def test_nobody_has_a_right_on_them_that_was_not_given(lab: Lab, roles: tuple[str, str]) -> None:
    _, reader = roles
    lab.source.execute(TABLE)
    pipeline(lab).setup()
    statements = [
        "SELECT * FROM repl_items",
        "DELETE FROM repl_items",
        "SELECT * FROM repl_tables",
        "INSERT INTO repl_tables (schemaname, tablename) VALUES ('public', 't')",
        "SELECT repl_check_structure()",
        "SELECT repl_prepare_broadcast('x')",
        "SELECT repl_increment()",
        "SELECT repl_check_tables(NULL, 'public', 't', 'CREATE', NULL)",
        "SELECT nextval('repl_seq')",
        "SELECT * FROM penstock_lab.log",
        "CREATE TEMPORARY TABLE x (a int); CREATE TRIGGER x AFTER INSERT ON x EXECUTE FUNCTION repl_write_debug()",
    ]
    with psycopg.connect(logged_in(lab, reader), autocommit=True) as connection:
        for statement in statements:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
        assert connection.execute("SELECT repl_needs_prot('a<b')").fetchone() == (1,)


def test_a_row_of_tables_opens_no_table_that_its_writer_may_not_read(lab: Lab, roles: tuple[str, str]) -> None:
    _, reader = roles
    lab.source.execute(TABLE + "; CREATE SCHEMA s; CREATE TABLE s.secret (id int)")
    pipeline(lab).setup()
    lab.source.execute(f"GRANT SELECT, DELETE ON repl_items TO {reader}; GRANT ALL ON repl_tables TO {reader}")
    insert = "INSERT INTO repl_tables (schemaname, tablename, actions) VALUES ('s', %s, 'IUD')"
    with psycopg.connect(logged_in(lab, reader), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"permission denied to watch table s\.secret"):
            connection.execute(insert, ["secret"])
        connection.execute(insert, ["later"])
        lab.source.execute("CREATE TABLE s.later (id int); INSERT INTO s.later VALUES (1)")
        assert contents(connection, "repl_items") == []

        lab.source.execute(f"GRANT SELECT, TRIGGER ON s.later TO {reader}")
        lab.source.execute("SELECT repl_check_structure(); INSERT INTO s.later VALUES (2)")

        assert items(connection, "tablename", "content")[1:] == [("later", None), ("later", col("id", "2"))]


def test_a_condition_of_a_reader_sees_no_row_that_items_does_not_show(lab: Lab, roles: tuple[str, str]) -> None:
    _, reader = roles
    lab.source.execute(TABLE)
    pipeline(lab).setup()
    lab.source.execute(f"GRANT SELECT ON repl_items TO {reader}; DELETE FROM repl_items; DELETE FROM repl_tables")
    lab.source.execute("INSERT INTO t VALUES (1, 'secret')")
    with psycopg.connect(logged_in(lab, reader), autocommit=True) as connection:
        seen: list[str] = []
        connection.add_notice_handler(lambda notice: seen.append(str(notice.message_primary)))
        connection.execute(
            "CREATE FUNCTION pg_temp.leak(text) RETURNS bool LANGUAGE plpgsql COST 0.0000001 AS"
            " $$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$"
        )
        assert connection.execute("SELECT * FROM repl_items WHERE pg_temp.leak(content)").fetchall() == []

    assert seen == []


def test_a_member_of_the_role_that_has_the_set_leaves_them_to_it(lab: Lab, roles: tuple[str, str]) -> None:
    keeper, member = roles
    lab.source.execute(TABLE + f"; GRANT SELECT, TRIGGER ON t TO {keeper}; GRANT {keeper} TO {member}")
    with Lab(logged_in(lab, keeper), lab.target_url) as plain:
        pipeline(plain, None).setup()

    with Lab(logged_in(lab, member), lab.target_url) as plain:
        pipeline(plain).setup()
        owners = (
            "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relname LIKE 'repl\\_%' AND relkind <> 'i'"
        )
        assert lab.source.execute(owners).fetchall() == [(keeper,)]
        lab.source.execute("INSERT INTO t VALUES (1)")
        assert plain.source.execute("DELETE FROM repl_items").rowcount == 2
        assert pipeline(plain).plan().source.steps == []


def test_a_set_of_an_earlier_version_is_carried_on_with_what_it_holds(lab: Lab, roles: tuple[str, str]) -> None:
    _, reader = roles
    lab.source.execute(TABLE)
    pipeline(lab).setup()
    lab.source.execute(f"GRANT SELECT ON repl_items TO {reader}; UPDATE repl_tables SET actions = 'I'")
    lab.source.execute("INSERT INTO t VALUES (1), (2)")
    lab.source.execute("DELETE FROM repl_items WHERE content = %s", [col("id", "1")])
    lab.source.execute("UPDATE penstock_lab.documented SET stamp = 'earlier'")

    steps = [step.summary for step in pipeline(lab).plan().source.steps]
    pipeline(lab).setup()

    assert steps == ["the documented tables public.repl_*"]
    with psycopg.connect(logged_in(lab, reader), autocommit=True) as connection:
        assert contents(connection, "repl_items") == [col("id", "2")]
    assert lab.source.execute("SELECT actions, status FROM repl_tables").fetchall() == [("I  ", "OK")]
    assert pipeline(lab).plan().source.steps == []


def test_default_privileges_give_nobody_a_right_on_them(lab: Lab, roles: tuple[str, str]) -> None:
    _, reader = roles
    lab.source.execute(
        f"{TABLE}; ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {reader};"
        f"ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO {reader}"
    )
    pipeline(lab).setup()
    lab.source.execute(
        f"ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM {reader};"
        f"ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM {reader}"
    )

    with psycopg.connect(logged_in(lab, reader), autocommit=True) as connection:
        for statement in ("SELECT * FROM repl_items", "SELECT * FROM repl_tables", "SELECT repl_check_structure()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
