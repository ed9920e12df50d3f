"""One bad table: it is left out by name, all others are set up, copied and followed; fixed, it is taken in."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.database import LockedError
from penstock.dialects.postgres.source import copy
from penstock.errors import OperatorError, TableError
from penstock.pipeline import steps
from penstock.pipeline.left_out import LeftOut
from penstock.pipeline.plan import Plan
from tests.lab import Lab
from tests.program import Program
from tests.stories.test_rules_whole import opened

GOOD = "CREATE TABLE good (id int PRIMARY KEY, v text); INSERT INTO good VALUES (1, 'a');"


def setup(lab: Lab) -> Plan:
    return lab.pipeline().setup()


def captured(lab: Lab) -> set[str]:
    return {version.table.name.name for version in lab.log.tables()}


def foreign_keys(lab: Lab) -> list[str]:
    query = "SELECT conname FROM pg_constraint WHERE contype = 'f' AND connamespace = 'public'::regnamespace"
    return [name for (name,) in lab.target.execute(query)]


def left_out(plan: Plan) -> dict[str, str]:
    return {name.name: "; ".join(map(str, errors)) for name, errors in plan.left_out.items()}


BAD = {
    "a type that is not there": (
        "CREATE SCHEMA other; CREATE TABLE other.it (a int); CREATE TABLE bad (id int PRIMARY KEY, v other.it);",
        "",
        "CREATE SCHEMA other; CREATE TABLE other.it (a int)",
        "type other.it is missing at the target",
    ),
    "a column that the target lacks": (
        "CREATE TABLE bad (id int PRIMARY KEY, v text);",
        "CREATE TABLE bad (id int PRIMARY KEY);",
        "ALTER TABLE bad ADD v text",
        "table public.bad lacks column 'v'",
    ),
    "a type of its name": (
        "CREATE TABLE bad (id int PRIMARY KEY, v text);",
        "CREATE TYPE bad AS ENUM ('a')",
        "ALTER TYPE bad RENAME TO other",
        "table public.bad cannot be made: a type has that name",
    ),
    "rows that nobody copied": (
        "CREATE TABLE bad (id int PRIMARY KEY);",
        "CREATE TABLE bad (id int PRIMARY KEY); INSERT INTO bad VALUES (1);",
        "TRUNCATE bad",
        "table public.bad holds rows that penstock did not copy",
    ),
    "a collation that is not there": (
        "CREATE COLLATION mine (locale = 'C');CREATE TABLE bad (id int PRIMARY KEY, v text COLLATE mine);",
        "",
        "CREATE COLLATION mine (locale = 'C')",
        "collation public.mine is missing at the target",
    ),
    "a name that another relation has": (
        "CREATE TABLE bad (id int PRIMARY KEY);",
        "CREATE VIEW bad AS SELECT 1 AS id;",
        "DROP VIEW bad",
        "table public.bad cannot be made: a view has that name",
    ),
    "an index whose name another relation has": (
        "CREATE TABLE bad (id int CONSTRAINT taken PRIMARY KEY);",
        "CREATE SEQUENCE taken;",
        "DROP SEQUENCE taken",
        'relation "taken" already exists',
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_table_that_cannot_be_set_up_is_left_out_and_taken_in_once_that_is_mended(lab: Lab, case: str) -> None:
    at_source, at_target, mend, why = BAD[case]
    lab.source.execute(GOOD + at_source)
    lab.target.execute(at_target)
    planned = left_out(lab.pipeline().plan())

    done = setup(lab)

    # What only the server notices is not foreseen.
    assert planned == ({} if "already exists" in why else left_out(done))
    assert why in left_out(done).pop("bad")
    assert len(done.left_out) == 1
    assert captured(lab) == {"good"}
    lab.target.execute("SELECT FROM good")

    lab.target.execute(mend)
    done = setup(lab)
    assert not done.left_out
    assert captured(lab) == {"good", "bad"}
    assert lab.pipeline().plan().is_done


def test_what_is_in_the_way_of_every_table_is_in_the_way_of_setup(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    lab.target.execute("CREATE VIEW a AS SELECT 1 AS id; CREATE VIEW b AS SELECT 1 AS id")
    with pytest.raises(OperatorError, match=r"table public\.[ab] cannot be made: a view"):
        setup(lab)
    assert not lab.pipeline()._target.has_ledger()


def test_a_foreign_key_to_a_table_that_is_left_out_is_left_out_and_made_with_it(lab: Lab) -> None:
    lab.source.execute(
        "CREATE TABLE parent (id int PRIMARY KEY);"
        "CREATE TABLE child (id int PRIMARY KEY, p int CONSTRAINT to_parent REFERENCES parent)"
    )
    lab.target.execute("CREATE VIEW parent AS SELECT 1 AS id")

    done = setup(lab)

    assert left_out(done).keys() == {"parent"}
    assert "foreign key to_parent of public.child to public.parent is left out, as public.parent is" in "\n".join(
        done.target.notes
    )
    assert captured(lab) == {"child"}

    lab.target.execute("DROP VIEW parent")
    assert not setup(lab).left_out
    assert foreign_keys(lab) == ["to_parent"]


@contextmanager
def locked(url: str, name: str) -> Iterator[None]:
    with psycopg.connect(url) as session:
        session.execute(f"LOCK TABLE {name}")
        yield


def test_a_table_that_another_session_has_locked_keeps_only_itself(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_PATIENCE_S", 0.3)
    lab.source.execute(
        f"{GOOD} CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int REFERENCES parent)"
    )
    with locked(lab.source_url, "parent"), pytest.raises(LockedError, match=r"capture table public\.parent"):
        setup(lab)
    assert captured(lab) == {"good", "child"}
    assert foreign_keys(lab) == []

    assert not setup(lab).left_out
    assert captured(lab) == {"good", "child", "parent"}
    assert foreign_keys(lab) == ["child_id_fkey"]


def test_a_table_that_takes_no_trigger_is_left_out(lab: Lab) -> None:
    lab.source.execute(
        f"{GOOD} CREATE TABLE bad (id int PRIMARY KEY);"
        "CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() c WHERE c.object_identity LIKE '%on public.bad')"
        " THEN RAISE 'no triggers here'; END IF; END $$;"
        "CREATE EVENT TRIGGER no ON ddl_command_end WHEN TAG IN ('CREATE TRIGGER') EXECUTE FUNCTION no()"
    )

    done = setup(lab)

    assert "no triggers here" in left_out(done)["bad"]
    assert captured(lab) == {"good"}
    lab.source.execute("DROP EVENT TRIGGER no")
    assert not setup(lab).left_out
    assert captured(lab) == {"good", "bad"}


def catch_up(pipeline: Any) -> Any:
    return pipeline.run(threading.Event(), until_caught_up=True)


def test_rows_that_the_target_refuses_keep_only_their_table_from_being_copied(lab: Lab, spark: object) -> None:
    lab.source.execute(f"{GOOD} CREATE TABLE bad (id int PRIMARY KEY, v text); INSERT INTO bad VALUES (1, 'too long')")
    lab.target.execute("CREATE TABLE bad (id int PRIMARY KEY, v text CHECK (length(v) < 4))")
    lab.pipeline().setup()

    progress = catch_up(lab.pipeline())

    assert progress.left_out == ["public.bad"]
    assert lab.rows("good") == [(1, "a")]
    lab.source.execute("INSERT INTO good VALUES (2, 'b'); INSERT INTO bad VALUES (2, 'x')")
    progress = catch_up(lab.pipeline())
    assert (progress.left_out, progress.in_queue) == (["public.bad"], 0)
    assert lab.rows("good") == [(1, "a"), (2, "b")]
    assert lab.rows("bad") == []

    lab.target.execute("ALTER TABLE bad DROP CONSTRAINT bad_v_check")
    assert catch_up(lab.pipeline()).left_out == []
    lab.assert_identical("good", "bad")


@pytest.mark.soak
def test_runs_that_are_killed_without_a_table_lose_nothing_of_it(lab: Lab, tmp_path: Path) -> None:
    rows = "INSERT INTO {0} SELECT n, 1 FROM generate_series(1, 200) n;"
    lab.source.execute(
        "CREATE TABLE good (id int PRIMARY KEY, v int); CREATE TABLE bad (id int PRIMARY KEY, v int);"
        "CREATE TABLE child (id int PRIMARY KEY, v int REFERENCES bad);"
        + "".join(rows.format(name) for name in ("good", "bad", "child"))
    )
    program = Program(tmp_path, lab.source_url, lab.target_url, name=lab.name)
    assert program("setup").code == 0
    lab.target.execute("ALTER TABLE bad ADD CONSTRAINT odd CHECK (id <> 77)")
    for number in range(1001, 1004):
        with program.start("run") as run:
            run.await_line("following")
            assert "table public.bad is left out" in run.said
            with lab.source.transaction():
                lab.source.execute("UPDATE good SET v = v + 1; UPDATE bad SET v = v + 1")
                lab.source.execute(
                    f"INSERT INTO bad VALUES ({number}, 1); INSERT INTO child VALUES ({number}, {number})"
                )
                lab.source.execute(f"DELETE FROM bad WHERE id = {number - 950}")
            # What refers to a row that is not there yet waits for a person.
            run.await_line("went to the error queue")
            run.end(signal.SIGKILL)
    assert program("run", "--until-caught-up").code == 3
    assert program("verify").code == 1

    lab.target.execute("ALTER TABLE bad DROP CONSTRAINT odd")
    program("run", "--until-caught-up")
    assert program("errors", "retry", "--all").code == 0
    verified = program("verify")
    assert verified.code == 0, verified.out


def test_a_run_goes_on_without_a_table_that_another_session_keeps_locked(
    lab: Lab, spark: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "COPY_LOCK_WAIT", "500ms")
    lab.source.execute(f"{GOOD} CREATE TABLE bad (id int PRIMARY KEY); INSERT INTO bad VALUES (1)")
    lab.pipeline().setup()
    with locked(lab.source_url, "bad"):
        progress = catch_up(lab.pipeline())
    assert progress.left_out == ["public.bad"]
    assert lab.rows("good") == [(1, "a")]

    assert catch_up(lab.pipeline()).left_out == []
    lab.assert_identical("good", "bad")


def test_what_cannot_be_copied_at_all_still_ends_a_run(lab: Lab, spark: object) -> None:
    lab.source.execute("CREATE TABLE bad (id int PRIMARY KEY, v text); INSERT INTO bad VALUES (1, 'too long')")
    lab.target.execute("CREATE TABLE bad (id int PRIMARY KEY, v text CHECK (length(v) < 4))")
    lab.pipeline().setup()
    with pytest.raises(OperatorError, match=r"cannot copy table public\.bad: the target refuses a row"):
        catch_up(lab.pipeline())


def test_a_run_tries_again_after_five_minutes() -> None:
    now, told = [0.0], list[str]()
    left = LeftOut(told.append, clock=lambda: now[0])
    left.begin_anew()
    for _ in range(2):
        left.add(TableError("cannot be read", table=("public", "t")))
    assert told == ["table public.t is left out, the others go on: cannot be read"]
    assert not left.is_due

    now[0] = 301
    assert left.is_due
    left.begin_anew()
    assert not left.is_due


@pytest.mark.parametrize("rules", ["", "rules: {tables: {public.t: {rename: {v: w}}}}"], ids=["as it is", "by rules"])
def test_an_identity_whose_usual_sequence_is_an_older_one_has_the_source_s(lab: Lab, rules: str) -> None:
    lab.source.execute(
        "CREATE TABLE t (id serial PRIMARY KEY, v int); ALTER TABLE t ALTER id DROP DEFAULT;"
        "ALTER TABLE t ALTER id ADD GENERATED ALWAYS AS IDENTITY"
    )

    assert not opened(lab, rules).setup().left_out

    names = "SELECT c.relname FROM pg_class c WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace ORDER BY 1"
    assert lab.target.execute(names).fetchall() == lab.source.execute(names).fetchall()
    query = (
        "SELECT objid::regclass::text FROM pg_depend"
        " WHERE refobjid = 't'::regclass AND deptype = 'i' AND refobjsubid > 0"
    )
    assert lab.target.execute(query).fetchone() == lab.source.execute(query).fetchone()


NARROW = "CREATE DOMAIN d AS numeric(9,{})"


def test_a_foreign_key_that_is_there_and_refers_to_a_table_that_is_left_out_is_named(lab: Lab) -> None:
    tables = "CREATE TABLE parent (id int PRIMARY KEY, v d); CREATE TABLE child (id int PRIMARY KEY, p int {})"
    for connection, scale in ((lab.source, 3), (lab.target, 1)):
        connection.execute(f"{NARROW.format(scale)}; {tables.format('REFERENCES parent')}")

    done = setup(lab)

    assert left_out(done).keys() == {"parent"}
    assert captured(lab) == {"child"}
    assert (
        "foreign key child_p_fkey of public.child to public.parent stays, and public.parent is left out: until it is"
        " copied, rows of public.child may refer to rows that are not there"
    ) in done.target.notes


def test_inheritance_from_a_table_that_is_left_out_is_left_out_and_made_with_it(lab: Lab) -> None:
    lab.source.execute('CREATE TABLE "the parent" (id int); CREATE TABLE child (w int) INHERITS ("the parent")')
    lab.target.execute('CREATE TABLE "the parent" (id int); INSERT INTO "the parent" VALUES (1)')

    done = setup(lab)

    assert left_out(done).keys() == {"the parent"}
    assert captured(lab) == {"child"}
    what = 'inheritance of public.child from public."the parent"'
    assert f"{what} is left out, as public.the parent is" in done.target.notes
    assert lab.target.execute("SELECT FROM pg_inherits").fetchall() == []

    lab.target.execute('TRUNCATE "the parent"')
    assert not setup(lab).left_out
    assert lab.target.execute("SELECT inhrelid::regclass::text FROM pg_inherits").fetchall() == [("child",)]


def test_partitions_of_a_table_that_is_left_out_are_left_out_with_it(lab: Lab) -> None:
    tree = "CREATE TABLE p (id int, v d) PARTITION BY RANGE (id);"
    lab.source.execute(f"{NARROW.format(3)}; {tree} CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9); {GOOD}")
    lab.target.execute(f"{NARROW.format(1)}; {tree}")

    done = setup(lab)

    assert left_out(done).keys() == {"p"}
    assert captured(lab) == {"good"}
    assert lab.target.execute("SELECT FROM pg_inherits").fetchall() == []
