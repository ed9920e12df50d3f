"""Writers are never the ones who pay: no DDL makes a later statement fail, or lets its changes go unseen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from tests.lab import Lab, images


@pytest.fixture(params=["followed at once", "unfollowed"])
def watched(request: pytest.FixtureRequest, lab: Lab) -> Lab:
    """A lab whose set was installed by a superuser, or by one who could have no event trigger."""
    lab.is_followed = request.param == "followed at once"  # type: ignore[attr-defined]
    return lab


def set_up(lab: Lab, sql: str, tables: list[str] | None = None) -> None:
    lab.target.execute("CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 * 2'")
    lab.setup(sql, tables or ["public.*"])
    if not getattr(lab, "is_followed", True):
        unfollow(lab)


def unfollow(lab: Lab) -> None:
    for name in (lab.set_name, f"{lab.set_name} drop"):
        lab.source.execute(f'DROP EVENT TRIGGER "{name}"')


def follow(lab: Lab) -> list[str]:
    return list(lab.pipeline()._source.follow())


def not_captured(lab: Lab, tables: str = "public.*") -> list[str]:
    return [str(found) for found in lab.pipeline()._source.not_captured([tables])]


def gaps(lab: Lab) -> list[tuple[str, str]]:
    return [(row["table_name"], json.loads(row["before"])["reason"]) for row in lab.changes() if row["op"] == "gap"]


ALTERATIONS = {
    "a column goes": "ALTER TABLE t DROP v",
    "a column comes": "ALTER TABLE t ADD w text DEFAULT 'new'",
    "a column is renamed": "ALTER TABLE t RENAME v TO w",
    "a column is retyped": "ALTER TABLE t ALTER i TYPE text",
    "a column may be null": "ALTER TABLE t ALTER i DROP NOT NULL",
    "the key goes": "ALTER TABLE t DROP CONSTRAINT t_pkey",
    "the table is renamed": "ALTER TABLE t RENAME TO u",
    "the table moves": "CREATE SCHEMA elsewhere; ALTER TABLE t SET SCHEMA elsewhere",
    "an enum goes": "DROP TYPE mood CASCADE",
    "a function goes, and what it generates": "DROP FUNCTION twice(int) CASCADE",
    "a domain goes": "DROP DOMAIN positive CASCADE",
    "an extension goes": "DROP EXTENSION vector CASCADE",
    "applied DDL": "SET session_replication_role = replica; ALTER TABLE t DROP v; RESET session_replication_role",
    "rewritten": "ALTER TABLE t SET UNLOGGED; ALTER TABLE t SET LOGGED",
    "taken apart and put together": "ALTER TABLE t DROP v, DROP m, ADD v bytea, ADD m jsonb, ALTER g DROP EXPRESSION",
}
"""What was done to a table, and the statements."""

TABLE = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE EXTENSION vector;
CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 * 2';
CREATE TABLE t (id int PRIMARY KEY, v text, i int NOT NULL DEFAULT 1, m mood DEFAULT 'ok', p positive DEFAULT 2,
  e vector DEFAULT '[1,2]', g int GENERATED ALWAYS AS (twice(id)) STORED)
"""


@pytest.mark.parametrize(
    ("what", "by_row"),
    [
        # Half of them here, the others in `make soak`.
        pytest.param(
            what,
            by_row,
            id=f"{what}-{'by row' if by_row else 'by statement'}",
            marks=pytest.mark.soak if (number + by_row) % 2 else (),
        )
        for number, what in enumerate(ALTERATIONS)
        for by_row in (False, True)
    ],
)
def test_no_ddl_makes_a_statement_fail_or_go_unseen(watched: Lab, what: str, by_row: bool) -> None:
    """The session that writes has plans of the table as it was; what it writes then is logged as the table is."""
    lab = watched
    lab.row_triggers = ["public.*"] if by_row else []
    lab.target.execute("CREATE EXTENSION vector")
    set_up(lab, TABLE)
    write = ["INSERT INTO {t} (id) VALUES ({n}), ({m})", "UPDATE {t} SET id = id + 100 WHERE id = {n}"]
    with psycopg.connect(lab.source_url, autocommit=True) as session:
        for statement in write:
            session.execute(statement.format(t="t", n=1, m=2))
        for statement in ALTERATIONS[what].split("; "):
            lab.source.execute(statement)
        name = {"the table is renamed": "u", "the table moves": "elsewhere.t"}.get(what, "t")
        for statement in write:
            session.execute(statement.format(t=name, n=3, m=4))
        session.execute(f"DELETE FROM {name} WHERE id = 4")
        stored = session.execute(f"SELECT to_jsonb(r) FROM {name} r WHERE id = 103").fetchone()

    rows = list(lab.changes())
    assert [row["op"] for row in rows] == ["insert", "insert", "update"] * 2 + ["delete"]
    assert {f"{row['schema_name']}.{row['table_name']}" for row in rows[3:]} == {
        name if "." in name else f"public.{name}"
    }
    inserted, updated = json.loads(rows[3]["after"]), json.loads(rows[5]["after"])
    assert stored is not None
    assert set(inserted) == set(stored[0])
    assert updated["id"] == "103"
    assert follow(lab) == []
    assert lab.source.execute("SELECT FROM penstock_lab.behind()").fetchall() == []


@pytest.mark.parametrize("by_row", [False, True], ids=["by statement", "by row"])
def test_a_typed_table_loses_an_attribute(watched: Lab, by_row: bool) -> None:
    watched.row_triggers = ["public.*"] if by_row else []
    set_up(watched, "CREATE TYPE rec AS (id int, v text); CREATE TABLE t OF rec (PRIMARY KEY (id))")
    watched.source.execute("INSERT INTO t VALUES (1, 'x')")
    watched.source.execute("ALTER TYPE rec DROP ATTRIBUTE v CASCADE")
    watched.source.execute("INSERT INTO t VALUES (2); UPDATE t SET id = 3 WHERE id = 2; DELETE FROM t WHERE id = 3")
    assert [(row["op"], row["before"], row["after"]) for row in watched.changes()][1:] == [
        ("insert", None, '{"id":"2"}'),
        ("update", '{"id":"2"}', '{"id":"3"}'),
        ("delete", '{"id":"3"}', None),
    ]


HARMLESS = {
    "a trigger of one's own goes": "DROP TRIGGER own ON t",
    "a child that is not captured goes, and its deferrable key": "DROP TABLE other.c",
    "a deferrable key goes": "ALTER TABLE other.c DROP CONSTRAINT c_id_fkey",
}


@pytest.mark.parametrize("statement", HARMLESS.values(), ids=HARMLESS)
def test_what_goes_and_is_not_captured_stops_nobody(watched: Lab, statement: str) -> None:
    set_up(
        watched,
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE SCHEMA other;"
        "CREATE TABLE other.c (id int REFERENCES t DEFERRABLE INITIALLY DEFERRED);"
        "CREATE FUNCTION own() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER own AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION own()",
    )
    with watched.session() as writer:
        writer.execute("INSERT INTO t VALUES (1, 1)")
        writer.execute("INSERT INTO other.c VALUES (1)")
    watched.source.execute(statement)
    watched.source.execute("INSERT INTO t VALUES (2, 1); UPDATE t SET v = 2 WHERE id = 1")

    assert follow(watched) == []
    assert not_captured(watched) == []
    assert gaps(watched) == []
    watched.apply()
    assert watched.errors() == []
    watched.assert_identical("t")


def test_two_writers_find_an_altered_table_at_once_and_neither_waits(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int)")
    unfollow(lab)
    lab.source.execute("ALTER TABLE t ADD w int")
    with psycopg.connect(lab.source_url) as first, psycopg.connect(lab.source_url) as second:
        first.execute("INSERT INTO t VALUES (1, 1, 1)")
        second.execute("SET lock_timeout = '2s'")
        second.execute("INSERT INTO t VALUES (2, 2, 2)")
    logged = sorted(row["after"] for row in lab.changes())
    assert logged == [f'{{"id":"{n}","v":"{n}","w":"{n}"}}' for n in (1, 2)]


def test_nobody_waits_for_a_partition_that_is_being_rewritten(lab: Lab) -> None:
    lab.setup(
        "CREATE TABLE p (id int PRIMARY KEY CHECK (id > 0)) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);"
        "CREATE TABLE t (id int PRIMARY KEY)"
    )
    with lab.session() as holder, lab.session() as writer, lab.session() as another:
        holder.execute("LOCK TABLE ONLY p2 IN ACCESS EXCLUSIVE MODE")
        writer.execute("SET lock_timeout = '2s'; INSERT INTO p VALUES (1); DELETE FROM p1")
        writer.commit()
        holder.rollback()
        # Nor where nobody has noted the partition, or what the table looks like now.
        unfollow(lab)
        lab.source.execute(
            "CREATE TABLE p3 PARTITION OF p (CHECK (id <> 25)) FOR VALUES FROM (20) TO (30); ALTER TABLE t ADD v int"
        )
        holder.execute("LOCK TABLE ONLY p3 IN ACCESS EXCLUSIVE MODE")
        another.execute("SET lock_timeout = '2s'; INSERT INTO p VALUES (3); INSERT INTO t VALUES (1, 1)")
        another.commit()
        assert follow(lab) == []
        another.execute("INSERT INTO p VALUES (4)")
        another.commit()
    logged = [(row["op"], row["after"] or row["before"]) for row in lab.changes()]
    assert logged == [
        ("insert", '{"id":"1"}'),
        ("delete", '{"id":"1"}'),
        ("insert", '{"id":"3"}'),
        ("insert", '{"id":"1","v":"1"}'),
        ("insert", '{"id":"4"}'),
    ]


def test_settings_of_the_writer_stay_as_they_were(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY)")
    unfollow(lab)
    lab.source.execute("ALTER TABLE t ADD f float8, ADD d timestamptz[]")
    with lab.session() as session:
        session.execute("SET extra_float_digits = -3; SET datestyle = 'German'; SET timezone = 'Asia/Kolkata'")
        session.execute("SET LOCAL search_path = public, pg_temp")
        session.execute("INSERT INTO t VALUES (1, 0.1, '{2024-01-02 03:04:05+00}')")
        shown = session.execute(
            "SELECT current_setting('extra_float_digits'), current_setting('datestyle'), current_setting('timezone'),"
            " current_setting('search_path')"
        ).fetchone()
    assert shown == ("-3", "German, DMY", "Asia/Kolkata", "public, pg_temp")
    assert json.loads(next(lab.changes())["after"]) == {
        "id": "1",
        "f": "0.1",
        "d": '{"2024-01-02 03:04:05+00"}',
    }


@pytest.mark.parametrize("own_ddl", [False, True], ids=["somebody's DDL", "its own DDL"])
def test_a_transaction_with_an_old_snapshot(lab: Lab, own_ddl: bool) -> None:
    """What it writes to a table that was altered since is there, or the gap is."""
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE u (id int)")
    unfollow(lab)
    with lab.session() as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT FROM u")
        (session if own_ddl else lab.source).execute("ALTER TABLE t ADD w int DEFAULT 3")
        session.execute("INSERT INTO t VALUES (1, 2)")
    if own_ddl:
        assert [row["after"] for row in lab.changes()] == ['{"id":"1","v":"2","w":"3"}']
    else:
        assert gaps(lab) == [("t", "the table was altered after the transaction had taken its snapshot")]
    lab.source.execute("INSERT INTO t VALUES (2, 2)")
    assert [row["after"] for row in lab.changes()][1:] == ['{"id":"2","v":"2","w":"3"}']


@pytest.mark.rule("C-49")
def test_a_gap_goes_to_the_error_queue(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
    lab.source.execute("INSERT INTO t VALUES (1, repeat(chr(1), 200000000))")
    lab.source.execute("INSERT INTO t VALUES (2, 'x')")
    lab.apply()
    assert [(entry.error_number, entry.error_message) for entry in lab.errors()] == [
        (26690, "a change was not captured: a change could not be put into words (SQLSTATE 54000) (table public.t)")
    ]
    assert lab.rows("t") == [(2, "x")]


@pytest.mark.parametrize("by_row", [False, True], ids=["by statement", "by row"])
def test_columns_may_have_any_name(lab: Lab, by_row: bool) -> None:
    lab.row_triggers = ["public.*"] if by_row else []
    names = ["penstock row", "penstock row_", "logged", "line", "lines", "settings", "o", "n", "new", "old", "ctid2"]
    columns = ", ".join(f'"{name}" int DEFAULT 0' for name in names)
    lab.setup(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    lab.source.execute("INSERT INTO t (id) SELECT generate_series(1, 100)")
    lab.source.execute('UPDATE t SET "penstock row" = 7, n = id, o = id; DELETE FROM t WHERE id > 50')
    lab.apply()
    assert lab.errors() == []
    lab.assert_identical("t")


def test_foreign_tables_may_be_partitions(watched: Lab) -> None:
    set_up(watched, "CREATE TABLE m (id int, v int) PARTITION BY RANGE (id)")
    watched.source.execute(
        "CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere;"
        "CREATE FOREIGN TABLE f (id int, v int) SERVER nowhere;"
        "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (1) TO (10)"
    )
    watched.source.execute("ALTER TABLE m ATTACH PARTITION f FOR VALUES FROM (10) TO (20)")
    watched.source.execute("ALTER TABLE m ADD w int")
    watched.source.execute("INSERT INTO m VALUES (1, 1, 1)")
    watched.target.execute("ALTER TABLE m ADD w int")
    watched.pipeline().setup()
    assert images(list(watched.changes())) == [("insert", "m", None, '{"id":"1","v":"1","w":"1"}')]


def test_a_captured_table_becomes_a_partition(watched: Lab) -> None:
    """Its rows are the root's from then on; those that it brings along were never inserted into the root."""
    set_up(
        watched,
        "CREATE TABLE m (id int, v int) PARTITION BY RANGE (id); CREATE TABLE a (id int, v int);"
        "CREATE TABLE empty (id int, v int)",
    )
    watched.source.execute("INSERT INTO a VALUES (1, 1)")
    watched.source.execute("ALTER TABLE m ATTACH PARTITION a FOR VALUES FROM (1) TO (10)")
    watched.source.execute("ALTER TABLE m ATTACH PARTITION empty FOR VALUES FROM (10) TO (20)")
    watched.source.execute("INSERT INTO m VALUES (2, 2); INSERT INTO a VALUES (3, 3); INSERT INTO empty VALUES (13, 3)")
    assert follow(watched) == []
    rows = [row for row in watched.changes() if row["op"] != "gap"]
    assert [(row["table_name"], row["after"]) for row in rows] == [
        ("a", '{"id":"1","v":"1"}'),
        ("m", '{"id":"2","v":"2"}'),
        ("m", '{"id":"3","v":"3"}'),
        ("m", '{"id":"13","v":"3"}'),
    ]
    assert ("m", "partition public.a was attached") in gaps(watched)
    watched.source.execute("TRUNCATE a")
    assert [(row["op"], row["table_name"]) for row in watched.changes()][-1] == ("truncate", "a")


def test_a_table_that_is_made_filled_and_attached_in_one_transaction(watched: Lab) -> None:
    """Its rows were never inserted into the root, unlike those of a partition that was made as one and filled then."""
    set_up(
        watched,
        "CREATE TABLE m (id int PRIMARY KEY, v int NOT NULL DEFAULT 5) PARTITION BY RANGE (id);"
        "CREATE TABLE one (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    )
    watched.source.execute(
        "CREATE TABLE a (LIKE m INCLUDING ALL); INSERT INTO a VALUES (1, 1);"
        "ALTER TABLE m ATTACH PARTITION a FOR VALUES FROM (1) TO (10)"
    )
    watched.source.execute(
        "CREATE TABLE b PARTITION OF m (v DEFAULT 7) FOR VALUES FROM (10) TO (20); INSERT INTO b VALUES (11, 1);"
        "ALTER TABLE b ADD CHECK (v > 0); ALTER TABLE b ALTER v SET DEFAULT 9"
    )
    watched.source.execute(
        "CREATE TABLE one_a PARTITION OF one FOR VALUES FROM (1) TO (10); INSERT INTO one VALUES (1)"
    )
    assert follow(watched) == []
    assert gaps(watched) == [("m", "partition public.a was attached")]


def test_partitions_that_leave_with_rows(watched: Lab) -> None:
    set_up(
        watched,
        "CREATE TABLE m (id int, v int) PARTITION BY RANGE (id);"
        "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (1) TO (10);"
        "CREATE TABLE m2 PARTITION OF m FOR VALUES FROM (10) TO (20);"
        "CREATE TABLE m3 PARTITION OF m FOR VALUES FROM (20) TO (30)",
    )
    watched.source.execute("INSERT INTO m VALUES (1, 1), (11, 11)")
    watched.source.execute("ALTER TABLE m DETACH PARTITION m1")
    watched.source.execute("ALTER TABLE m DETACH PARTITION m3")
    watched.source.execute("DROP TABLE m2")
    assert follow(watched) == []
    assert sorted(gaps(watched)) == [
        ("m", "partition public.m1 was detached"),
        ("m", "partition public.m2 was dropped"),
    ]
    what = "is not captured: it was a partition, and was detached; run `penstock setup`"
    assert not_captured(watched) == [f"public.m1 {what}", f"public.m3 {what}"]
    watched.pipeline().setup()
    assert not_captured(watched) == []
    watched.source.execute("INSERT INTO m1 VALUES (2, 2)")
    assert images(list(watched.changes()))[-1] == ("insert", "m1", None, '{"id":"2","v":"2"}')


def test_a_partition_that_was_emptied_before_it_was_watched(lab: Lab) -> None:
    lab.setup("CREATE TABLE m (id int) PARTITION BY RANGE (id)")
    unfollow(lab)
    lab.source.execute("CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (1) TO (10)")
    lab.source.execute("INSERT INTO m VALUES (1)")
    lab.source.execute("TRUNCATE m1")
    assert follow(lab) == []
    assert gaps(lab) == [("m", "partition public.m1 was emptied or rewritten before it was watched")]
    lab.source.execute("TRUNCATE m1")
    assert [row["op"] for row in lab.changes()] == ["insert", "gap", "truncate"]


def test_an_event_trigger_that_somebody_dropped_is_made_again(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY)")
    unfollow(lab)
    plan = lab.pipeline().setup()
    assert [step.summary for step in plan.source.steps] == [
        "rebuild the capture of a table when its definition changes"
    ]
    lab.source.execute("ALTER TABLE t ADD v int")
    assert lab.source.execute("SELECT FROM penstock_lab.behind()").fetchall() == []


def test_event_triggers_of_users_see_no_ddl_of_ours(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY)")
    lab.source.execute(
        "CREATE TABLE seen (tag text); CREATE FUNCTION see() RETURNS event_trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO seen SELECT command_tag FROM pg_event_trigger_ddl_commands(); END';"
    )
    lab.source.execute("CREATE EVENT TRIGGER see ON ddl_command_end EXECUTE FUNCTION see()")
    lab.source.execute("ALTER TABLE t ADD v int")
    assert lab.source.execute("SELECT tag FROM seen").fetchall() == [("ALTER TABLE",)]
    lab.source.execute("DROP EVENT TRIGGER see")


def test_rows_of_a_table_that_inherits_are_not_taken_for_its_parent_s(watched: Lab) -> None:
    set_up(watched, "CREATE TABLE p (id int, v int)", ["public.p"])
    watched.source.execute("INSERT INTO p VALUES (1, 1)")
    watched.source.execute("CREATE TABLE c () INHERITS (p)")
    watched.source.execute("INSERT INTO c VALUES (1, 1)")
    watched.source.execute("DELETE FROM c")
    watched.source.execute("DELETE FROM p WHERE id = 7")
    assert [(row["op"], row["table_name"]) for row in watched.changes()] == [("insert", "p")]
    watched.source.execute("INSERT INTO c VALUES (1, 1)")
    watched.source.execute("DELETE FROM p WHERE id = 1")
    ops = [row["op"] for row in watched.changes()][1:]
    # Also where DDL is followed: to exchange the triggers would keep writers waiting until it is committed.
    assert ops == ["gap"]
    assert follow(watched) == []
    watched.source.execute("INSERT INTO p VALUES (2, 2); UPDATE p SET v = 3")
    assert [row["op"] for row in watched.changes()][2:] == ["insert", "update"]


def test_tables_that_change_places(watched: Lab) -> None:
    set_up(watched, "CREATE TABLE sw (id int PRIMARY KEY)")
    watched.source.execute("CREATE TABLE sw_new (id int PRIMARY KEY)")
    watched.source.execute("INSERT INTO sw VALUES (1)")
    watched.source.execute("BEGIN; ALTER TABLE sw RENAME TO sw_old; ALTER TABLE sw_new RENAME TO sw; COMMIT")
    watched.source.execute("INSERT INTO sw_old VALUES (2)")
    assert [(row["table_name"], row["after"]) for row in watched.changes()] == [
        ("sw", '{"id":"1"}'),
        ("sw_old", '{"id":"2"}'),
    ]
    follow(watched)
    assert not_captured(watched) == [
        "public.sw is not captured: it was made anew, or renamed, after setup; run `penstock setup`"
    ]


def test_a_table_that_is_renamed_away_is_named(watched: Lab) -> None:
    set_up(watched, "CREATE TABLE t (id int PRIMARY KEY)", ["public.t"])
    watched.source.execute("ALTER TABLE t RENAME TO u")
    assert not_captured(watched, "public.t") == [
        "public.t is not captured: it was renamed to public.u, which no pattern of capture.tables means"
    ]


def test_a_table_that_took_a_captured_name_is_named_and_stops_no_run(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY)")
    lab.source.execute("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY)")
    warned = []

    class Listener:
        def warned(self, text: str, event: str = "note", facts: object = None) -> None:
            warned.append(text)

    lab.pipeline().follow(Listener())  # type: ignore[arg-type]

    assert warned == [
        "public.t is not captured: another table has taken its name; run `penstock setup`, and `penstock verify`"
        " afterwards"
    ]


def test_unlogged_tables_are_left_out_and_named(lab: Lab) -> None:
    lab.source.execute("CREATE UNLOGGED TABLE u (id int); CREATE TABLE t (id int)")
    plan = lab.pipeline().setup()
    assert "public.u: unlogged, and so not captured: a crash empties it without a change" in plan.source.notes
    assert not_captured(lab) == [
        "public.u is not captured: it is unlogged; a crash empties it without a change:"
        " take it out (rules.exclude), or ALTER TABLE ... SET LOGGED, then `penstock setup`"
    ]
    assert lab.pipeline().setup().is_done


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t DISABLE TRIGGER USER; ALTER TABLE t ENABLE TRIGGER USER",
        "ALTER TABLE t DISABLE TRIGGER USER",
        "ALTER TABLE t ENABLE REPLICA TRIGGER {trigger}",
        "DROP TRIGGER {trigger} ON t",
    ],
)
def test_triggers_that_were_switched_off_leave_a_gap(lab: Lab, statement: str) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY)")
    unfollow(lab)
    trigger = lab.source.execute(
        "SELECT quote_ident(min(tgname)) FROM pg_trigger WHERE tgrelid = 't'::regclass"
    ).fetchone()
    assert trigger is not None
    lab.source.execute(statement.format(trigger=trigger[0]))
    assert follow(lab) == []
    assert gaps(lab) == [("t", "capture triggers were altered or switched off")]
    lab.source.execute("INSERT INTO t VALUES (1)")
    assert [row["op"] for row in lab.changes()] == ["gap", "insert"]
    assert follow(lab) == []
    assert len(gaps(lab)) == 1


def test_triggers_that_were_switched_off_on_a_partition_alone(lab: Lab) -> None:
    lab.setup(
        "CREATE TABLE m (id int, v int) PARTITION BY RANGE (id);"
        "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (1) TO (10);"
        "CREATE TABLE m2 PARTITION OF m FOR VALUES FROM (10) TO (20)"
    )
    unfollow(lab)
    lab.source.execute("ALTER TABLE m1 DISABLE TRIGGER USER")
    assert follow(lab) == []
    assert gaps(lab) == [("m1", "capture triggers were altered or switched off")]
    lab.source.execute("INSERT INTO m VALUES (1, 1), (11, 1)")
    assert [row["op"] for row in lab.changes()] == ["gap", "insert", "insert"]
    assert follow(lab) == []
    assert len(gaps(lab)) == 1


def test_following_an_open_ddl_keeps_no_writer_waiting(lab: Lab) -> None:
    lab.setup("CREATE TABLE p (id int)", ["public.p"])
    with lab.session() as session:
        session.execute("CREATE TABLE c () INHERITS (p)")
        lab.source.execute("SET lock_timeout = '2s'; INSERT INTO p VALUES (1)")


def test_one_who_holds_a_table_keeps_nobody_from_following_the_others(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY CHECK (id > 0)); CREATE TABLE u (id int PRIMARY KEY)")
    with lab.session() as holder:
        holder.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        unfollow(lab)
        lab.source.execute("ALTER TABLE u ADD v int")
        assert follow(lab) == []
        lab.source.execute("INSERT INTO u VALUES (1, 2)")
    assert lab.source.execute("SELECT FROM penstock_lab.behind()").fetchall() == []
    assert [row["after"] for row in lab.changes()] == ['{"id":"1","v":"2"}']


def test_a_place_drawn_too_early_is_drawn_again(lab: Lab) -> None:
    """A transaction that checks its constraints, and defers them again, has its place where it commits."""
    lab.setup(
        "CREATE TABLE p (id int PRIMARY KEY);"
        "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p DEFERRABLE INITIALLY DEFERRED)"
    )
    with lab.session() as session:
        session.execute("INSERT INTO c VALUES (1, NULL)")
        session.execute("SET CONSTRAINTS ALL IMMEDIATE")
        session.execute("SET CONSTRAINTS ALL DEFERRED")
        session.execute("INSERT INTO c VALUES (2, 2)")
        lab.source.execute("INSERT INTO p VALUES (2)")
    lab.apply()
    assert lab.errors() == []
    lab.assert_identical("p", "c")


@pytest.fixture
def owner(lab: Lab) -> Iterator[psycopg.Connection]:
    """A plain role that owns the database, but not the capture set."""
    name = lab.source.info.dbname
    lab.source.execute(f"CREATE ROLE owner_{name} LOGIN; ALTER DATABASE {name} OWNER TO owner_{name}")
    url = lab.source_url.replace("postgres@", f"owner_{name}@")
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection
    lab.source.execute(
        f"ALTER DATABASE {name} OWNER TO postgres; DROP OWNED BY owner_{name} CASCADE; DROP ROLE owner_{name}"
    )


def test_owners_do_ddl_on_their_tables_whoever_captures_them(lab: Lab, owner: psycopg.Connection) -> None:
    owner.execute(
        "CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, v int);"
        "CREATE TABLE app.m (id int) PARTITION BY RANGE (id)"
    )
    lab.pipeline(["app.*"]).setup()
    owner.execute("ALTER TABLE app.t DROP v, ADD w text; INSERT INTO app.t VALUES (1, 'x')")
    owner.execute("CREATE TABLE app.m1 PARTITION OF app.m FOR VALUES FROM (1) TO (10); INSERT INTO app.m VALUES (1)")
    owner.execute("ALTER TABLE app.m DETACH PARTITION app.m1; TRUNCATE app.t; DROP TABLE app.m1")
    assert [row["op"] for row in lab.changes() if row["op"] != "gap"] == ["insert", "insert", "truncate"]


def test_attributes_that_a_type_gains_are_written_as_its_others(watched: Lab) -> None:
    """No table is told when a type that it is made of changes."""
    set_up(watched, "CREATE TYPE c AS (a int); CREATE TABLE t (id int PRIMARY KEY, v c, w c[])")
    watched.source.execute("INSERT INTO t VALUES (1, ROW(1), ARRAY[ROW(1)::c])")
    watched.apply()
    for side in (watched.source, watched.target):
        side.execute("ALTER TYPE c ADD ATTRIBUTE d date, ADD ATTRIBUTE f float8, ADD ATTRIBUTE m money")
    with watched.session() as writer:
        writer.execute("SET datestyle = 'SQL, DMY'; SET extra_float_digits = -5")
        row = "ROW(2, '2020-02-01'::date, 0.1234567890123, 1.5::money)::c"
        writer.execute(f"INSERT INTO t VALUES (2, {row}, ARRAY[{row}])")
    watched.apply()
    watched.assert_identical_text("t")


@pytest.mark.parametrize(
    "end",
    ["DROP TABLE p2", "ALTER TABLE p DETACH PARTITION p2", "DROP TABLE sub", "ALTER TABLE p DETACH PARTITION sub"],
)
@pytest.mark.parametrize("is_noted", [True, False], ids=["while a run is at work", "between two runs"])
def test_partitions_that_come_and_go_between_two_looks(lab: Lab, end: str, is_noted: bool) -> None:
    set_up(
        lab,
        "CREATE TABLE p (id int, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9)",
    )
    unfollow(lab)
    lab.source.execute("INSERT INTO p VALUES (1, 'stays')")
    lab.source.execute(
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);"
        "CREATE TABLE sub PARTITION OF p FOR VALUES FROM (20) TO (40) PARTITION BY RANGE (id);"
        "CREATE TABLE p3 PARTITION OF sub FOR VALUES FROM (20) TO (30)"
    )
    lab.source.execute("INSERT INTO p VALUES (11, 'goes')")
    lab.source.execute("INSERT INTO p3 VALUES (21, 'goes'); INSERT INTO p VALUES (2, 'stays')")
    if is_noted:
        assert follow(lab) == []
        assert gaps(lab) == []
    lab.source.execute(end)
    assert follow(lab) == []
    part = "p2" if "p2" in end else "p3"
    kind = "dropped" if "DROP" in end else "detached"
    assert gaps(lab) == [("p", f"partition public.{part} was {kind}")]
    assert follow(lab) == []
    assert len(gaps(lab)) == 1
    # And those who went the slow way are quick again.
    assert lab.source.execute(f"SELECT FROM {lab.set_name}.behind()").fetchall() == []


def test_a_trigger_that_its_table_s_owner_renames(lab: Lab) -> None:
    set_up(lab, "CREATE TABLE t (id int, v text)")
    unfollow(lab)
    (name,) = lab.source.execute("SELECT tgname FROM pg_trigger WHERE tgname ~ '_si$'").fetchall()[0]
    lab.source.execute(f'ALTER TRIGGER "{name}" ON t RENAME TO innocent')
    lab.source.execute("INSERT INTO t VALUES (1, 'once')")
    assert follow(lab) == []
    lab.source.execute("INSERT INTO t VALUES (2, 'once')")
    assert follow(lab) == []
    ops = [row["op"] for row in lab.changes()]
    assert ops == ["insert", "gap", "insert"]


def test_serializable_writers_have_nothing_in_common_through_us(lab: Lab) -> None:
    tables = ("t1", "t2", "t3")
    lab.setup("".join(f"CREATE TABLE {t} (id int PRIMARY KEY, v int UNIQUE DEFERRABLE);" for t in tables))
    with ExitStack() as stack:
        sessions = [stack.enter_context(lab.session()) for _ in tables]
        for session, name in zip(sessions, tables, strict=True):
            session.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            session.execute(f"INSERT INTO {name} VALUES (1, 1)")
            session.execute(f"INSERT INTO {name} VALUES (2, 2)")
        for session in reversed(sessions):
            session.commit()
    lab.apply()
    lab.assert_identical(*tables)


@pytest.mark.parametrize(
    ("before", "after", "old", "new"),
    [
        ("numeric(10,2)", "numeric", "1.00", "1.0000"),
        ("varchar(3)", "varchar(9)", "a", "abcdef"),
    ],
)
def test_what_an_old_snapshot_hides_of_a_column(lab: Lab, before: str, after: str, old: str, new: str) -> None:
    """Its session believes that the table is what it was, also after the transaction."""
    set_up(lab, f"CREATE TABLE t (id int PRIMARY KEY, v {before})")
    unfollow(lab)
    lab.source.execute("INSERT INTO t VALUES (1, %s), (2, %s), (3, %s)", [old] * 3)
    lab.apply()
    with lab.session() as writer:
        writer.execute("UPDATE t SET v = v WHERE id = 3")
        writer.commit()
        writer.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class LIMIT 1")
        for side in (lab.source, lab.target):
            side.execute(f"ALTER TABLE t ALTER v TYPE {after}")
        writer.execute("UPDATE t SET v = %s WHERE id = 1", [new])
        writer.commit()
        writer.execute("UPDATE t SET v = %s WHERE id = 2", [new])
    lab.apply()
    assert lab.errors() == []
    lab.assert_identical_text("t")
