"""Setup of what came later, and of many tables: only what is new is planned, by its name, and cheaply."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres import connector
from penstock.dialects.postgres.connection import Connection, connect
from penstock.errors import OperatorError
from penstock.events import Event
from tests.conftest import lab_between
from tests.installed import InstalledPostgres
from tests.lab import Lab, table

MONTHS = """
CREATE TABLE m (at date, id int, PRIMARY KEY (at, id)) PARTITION BY RANGE (at);
CREATE TABLE m1 PARTITION OF m FOR VALUES FROM ('2025-01-01') TO ('2025-02-01');
"""
FEBRUARY = "CREATE TABLE m2 PARTITION OF m FOR VALUES FROM ('2025-02-01') TO ('2025-03-01')"


def many(count: int) -> str:
    return ";".join(f"CREATE TABLE t{n} (id int PRIMARY KEY)" for n in range(count))


def summaries(lab: Lab) -> tuple[list[str], list[str]]:
    plan = lab.pipeline().plan()
    assert not plan.source.faults + plan.target.faults
    return [step.summary for step in plan.source.steps], [step.summary for step in plan.target.steps]


def triggers(lab: Lab) -> set[tuple[str, int]]:
    return set(
        lab.source.execute(
            "SELECT tgrelid::regclass::text, oid FROM pg_trigger WHERE tgname LIKE 'R\\_penstock%'"
        ).fetchall()
    )


def test_one_more_table_is_the_only_one_planned(lab: Lab) -> None:
    lab.setup(many(16))
    before = triggers(lab)
    lab.source.execute("CREATE TABLE new (id int PRIMARY KEY)")
    assert summaries(lab)[0] == ["capture table public.new"]

    lab.pipeline().setup()

    assert {name for name, _ in triggers(lab) - before} == {"new"}
    assert before < triggers(lab)
    assert lab.pipeline().plan().is_done


def test_a_table_whose_triggers_are_to_be_others_is_the_only_one_planned(lab: Lab) -> None:
    lab.setup(many(3))
    lab.row_triggers = ["public.t1"]
    assert summaries(lab)[0] == ["capture table public.t1 by row triggers"]


def test_every_step_of_a_plan_says_what_it_makes(lab: Lab) -> None:
    lab.source.execute(
        f"{MONTHS}{FEBRUARY}; CREATE TABLE p (id int PRIMARY KEY, a int, b int, CONSTRAINT ab UNIQUE (a, b));"
        "CREATE UNIQUE INDEX low ON p (a) WHERE a < 9;"
        "CREATE TABLE c (id int PRIMARY KEY, one int CONSTRAINT to_one REFERENCES p,"
        " two int CONSTRAINT to_two REFERENCES p)"
    )
    _, target = summaries(lab)
    assert len(target) == len(set(target))
    assert set(target) >= {
        "table public.m",
        "partition public.m1 of public.m",
        "partition public.m2 of public.m",
        "primary key m_pkey of public.m",
        "unique key ab of public.p",
        "index low of public.p",
        "foreign key to_one of public.c to public.p",
        "foreign key to_two of public.c to public.p",
    }


def test_a_run_says_once_which_partition_the_target_lacks(lab: Lab) -> None:
    lab.setup(MONTHS)
    lab.source.execute(FEBRUARY)
    pipeline, warned = lab.pipeline(), []
    listener: Any = SimpleNamespace(warned=lambda text, event, facts: warned.append((text[:30], event, facts)))
    for _ in range(2):
        at_target = pipeline._target.describe([table("m")])
        assert not pipeline._lacking.tell([table("m")], at_target, listener)
    facts = {"partition": "public.m2", "table": "public.m"}
    assert warned == [("partition public.m2 of public.", Event.TARGET_LACKS, facts)]


def test_setup_brings_a_new_partition_to_the_target(lab: Lab) -> None:
    lab.setup(f"{MONTHS} INSERT INTO m VALUES ('2025-01-01', 1)")
    lab.source.execute(f"{FEBRUARY} PARTITION BY RANGE (at)")
    lab.source.execute(
        "CREATE TABLE m2a PARTITION OF m2 FOR VALUES FROM ('2025-02-01') TO ('2025-02-15');"
        "CREATE UNIQUE INDEX only_here ON m2a (id)"
    )
    lab.source.execute("INSERT INTO m VALUES ('2025-02-02', 2)")
    attention = "\n".join(lab.pipeline().status().attention)
    assert "partition public.m2 of public.m does not exist at the target" in attention
    assert summaries(lab)[1] == [
        "partition public.m2 of public.m",
        "partition public.m2a of public.m2",
        "index only_here of public.m2a",
    ]

    lab.pipeline().setup()

    assert lab.pipeline().plan().is_done
    assert not lab.pipeline().status().attention
    lab.apply()
    assert not lab.errors()
    assert ("m2a",) in lab.target.execute("SELECT tableoid::regclass::text FROM m").fetchall()


@pytest.mark.parametrize(
    ("at_target", "note"),
    [
        ("CREATE TABLE m (at date, id int, PRIMARY KEY (at, id))", ""),
        ("CREATE TABLE m (at date, id int, PRIMARY KEY (at, id)) PARTITION BY HASH (id)", ""),
        (
            "CREATE TABLE m (at date, id int, PRIMARY KEY (at, id)) PARTITION BY RANGE (at);"
            "CREATE TABLE all_of_it PARTITION OF m DEFAULT",
            "the others are not the same",
        ),
        (MONTHS + FEBRUARY.replace("m2", "another_name"), ""),
        (f"{MONTHS} CREATE TABLE m2 (at date, id int)", "is another table"),
    ],
    ids=["not at all", "by another key", "by other bounds", "under another name", "a table of that name"],
)
def test_a_target_that_is_partitioned_otherwise_is_left_alone(lab: Lab, at_target: str, note: str) -> None:
    lab.target.execute(at_target)
    lab.setup(MONTHS)
    lab.source.execute(FEBRUARY)
    assert summaries(lab)[1] == []
    assert note in "\n".join(lab.pipeline().plan().target.notes)


def test_setup_brings_new_labels_of_an_enum_to_their_places(lab: Lab) -> None:
    lab.setup(
        "CREATE TYPE mood AS ENUM ('low', 'high'); CREATE TABLE t (mood mood) PARTITION BY LIST (mood);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES IN ('low')"
    )
    lab.source.execute("ALTER TYPE mood ADD VALUE 'none' BEFORE 'low'")
    lab.source.execute("ALTER TYPE mood ADD VALUE 'fair' AFTER 'low'")
    lab.source.execute("ALTER TYPE mood ADD VALUE 'it''s good' AFTER 'fair'")
    # A bound may name a label once that is committed.
    lab.source.execute("CREATE TABLE t2 PARTITION OF t FOR VALUES IN ('fair')")
    lab.source.execute("INSERT INTO t VALUES ('fair')")
    assert "type public.mood lacks labels 'none', 'fair', \"it's good\"" in "\n".join(lab.pipeline().status().attention)
    assert len(summaries(lab)[1]) == 4

    lab.pipeline().setup()

    labels = "SELECT array_agg(enumlabel ORDER BY enumsortorder) FROM pg_enum"
    assert lab.target.execute(labels).fetchall() == lab.source.execute(labels).fetchall()
    assert lab.pipeline().plan().is_done
    lab.apply()
    lab.assert_identical("t")


def test_what_only_another_owner_may_add_is_noted_and_keeps_nobody_from_setup(lab: Lab) -> None:
    role = f"plain_{lab.target.info.dbname}"
    sql = f"CREATE TYPE mood AS ENUM ('low'); {MONTHS} CREATE TABLE t (mood mood);"
    lab.source.execute(sql)
    lab.target.execute(f"{sql} CREATE ROLE {role} LOGIN")
    database = lab.target.info.dbname
    lab.target.execute(f"GRANT CREATE, TEMPORARY ON DATABASE {database} TO {role}; GRANT ALL ON m, t TO {role}")
    lab.target.execute(f"GRANT SET ON PARAMETER session_replication_role TO {role}")
    lab.target_url = lab.target_url.replace("postgres@", f"{role}@")
    lab.pipeline().setup()
    lab.source.execute(f"ALTER TYPE mood ADD VALUE 'fair'; {FEBRUARY}")
    lab.source.execute("CREATE TABLE new (id int)")
    lab.target.execute("CREATE TABLE new (id int)")
    lab.target.execute(f"GRANT ALL ON new TO {role}")

    notes = "\n".join(lab.pipeline().setup().target.notes)

    assert "type public.mood lacks label 'fair' at the target; only its owner can add that: ALTER TYPE" in notes
    assert "where only the owner of public.m can make it: CREATE TABLE public.m2 PARTITION OF public.m" in notes
    assert lab.pipeline().plan().is_done
    lab.target.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def test_a_label_that_may_have_been_renamed_is_left_to_a_person(lab: Lab) -> None:
    lab.setup("CREATE TYPE mood AS ENUM ('low', 'high'); CREATE TABLE t (mood mood)")
    lab.source.execute("ALTER TYPE mood RENAME VALUE 'low' TO 'down'")
    with pytest.raises(OperatorError, match=r"lacks label 'down' at the target, and has 'low'.* RENAME VALUE"):
        lab.pipeline().setup()


def test_labels_in_another_order_are_noted(lab: Lab) -> None:
    lab.target.execute("CREATE TYPE mood AS ENUM ('high', 'low', 'more')")
    lab.setup("CREATE TYPE mood AS ENUM ('low', 'high'); CREATE TABLE t (mood mood)")
    assert "type public.mood stand in another order" in "\n".join(lab.pipeline().plan().target.notes)


def test_what_a_target_lacks_comes_with_the_statement_that_mends_it(lab: Lab) -> None:
    lab.target.execute("CREATE TABLE t (id int, price text)")
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, price numeric(9,2), v int)")
    faults = "\n".join(map(str, lab.pipeline().plan().target.faults))
    statements = [
        'ALTER TABLE "public"."t" ADD COLUMN "v" integer',
        'ALTER TABLE "public"."t" ALTER COLUMN "price" TYPE numeric(9,2) USING "price"::numeric(9,2)',
        'ALTER TABLE "public"."t" ADD PRIMARY KEY ("id")',
    ]
    assert all(statement in faults for statement in statements)
    for statement in statements:
        lab.target.execute(statement)
    assert not lab.pipeline().plan().target.faults


OF_ITS_OWN = "is checked when changes are applied, but not by the first copy and `verify --repair`"


def test_constraints_that_nothing_checks_are_named(lab: Lab) -> None:
    both = (
        "CREATE TABLE o (id int PRIMARY KEY);"
        "CREATE TABLE t (id int PRIMARY KEY, u int, r int4range, o int REFERENCES o) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (9);"
        "CREATE TABLE p (id int4range, at daterange, d int UNIQUE DEFERRABLE, PRIMARY KEY (id, at WITHOUT OVERLAPS));"
        "CREATE TABLE c (p int4range, at daterange, FOREIGN KEY (p, PERIOD at) REFERENCES p (id, PERIOD at))"
    )
    lab.source.execute(both)
    periods = "foreign key 'c_p_at_fkey' of public.c cannot be checked by apply: it compares periods"
    assert lab.pipeline().plan().target.notes == [periods]
    lab.pipeline().setup()
    assert lab.pipeline().plan().target.notes == [periods]

    lab.target.execute(
        "CREATE SCHEMA own; CREATE TABLE own.parent (id int PRIMARY KEY); CREATE TABLE own.child (t int REFERENCES t);"
        "CREATE TABLE own.of_part (t int REFERENCES t1);"
        "ALTER TABLE t1 ADD UNIQUE (u) DEFERRABLE, ADD FOREIGN KEY (u) REFERENCES o, ADD UNIQUE (r);"
        "ALTER TABLE o ADD FOREIGN KEY (id) REFERENCES own.parent;"
        "ALTER TABLE p ADD FOREIGN KEY (d) REFERENCES o, ADD EXCLUDE USING gist (at WITH &&) DEFERRABLE"
    )
    notes = lab.pipeline().plan().target.notes
    assert {note.partition(":")[0] for note in notes} == {
        periods.partition(":")[0],
        "foreign key 'of_part_t_fkey' of own.of_part cannot be checked by apply",
        "foreign key 't1_u_fkey' of public.t1 cannot be checked by apply",
        "deferrable constraint 't1_u_key' of public.t1 cannot be checked by apply",
        f"foreign key 'o_id_fkey' of public.o {OF_ITS_OWN}",
        f"foreign key 'child_t_fkey' of own.child {OF_ITS_OWN}",
        f"foreign key 'p_d_fkey' of public.p {OF_ITS_OWN}",
        f"deferrable constraint 'p_at_excl' of public.p {OF_ITS_OWN}",
    }
    assert len(notes) == 8


def test_many_tables_are_set_up_in_as_many_sessions_as_few(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def counted(url: str, application_name: str) -> Connection:
        opened.append(application_name)
        return connect(url, application_name)

    monkeypatch.setattr(connector, "connect", counted)
    counts = []
    lab.setup("CREATE TABLE first (id int)")
    for sql in ("CREATE TABLE one (id int)", many(40)):
        lab.source.execute(sql)
        opened.clear()
        lab.pipeline().setup()
        counts.append(len(opened))
    assert counts[0] == counts[1]


def test_planning_asks_as_much_of_many_tables_as_of_few(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    execute = psycopg.Cursor.execute

    def counted(self: Any, query: object, *args: object, **named: object) -> object:
        # Not what is left in this process of another test asks meanwhile.
        if self.connection.info.dbname in (lab.source.info.dbname, lab.target.info.dbname):
            asked.append(query)
        return execute(self, query, *args, **named)  # type: ignore[arg-type, call-overload, misc]

    counts: list[int] = []
    sets: Sequence[str] = ("CREATE TABLE u0 (id int)", ";".join(f"CREATE TABLE u{n} (id int)" for n in range(1, 40)))
    for sql in sets:
        # Tables that are there and not copied are looked into.
        lab.source.execute(sql)
        lab.target.execute(sql)
        with monkeypatch.context() as patch:
            patch.setattr(psycopg.Cursor, "execute", counted)
            asked.clear()
            lab.pipeline().plan()
            counts.append(len(asked))
    assert counts[0] == counts[1]


def test_rows_in_the_way_are_named_with_all_their_tables_at_once(lab: Lab) -> None:
    sql = "CREATE TABLE a (id int); CREATE TABLE b (id int); CREATE TABLE c (id int);"
    lab.source.execute(sql)
    lab.target.execute(f"{sql} INSERT INTO a VALUES (1); INSERT INTO c VALUES (1)")
    plan = lab.pipeline().plan()
    assert [
        (name.name, str(error).partition(" (")[0]) for name, errors in plan.left_out.items() for error in errors
    ] == [
        ("a", "tables public.a, public.c hold rows that penstock did not copy"),
        ("c", "tables public.a, public.c hold rows that penstock did not copy"),
    ]


@pytest.mark.soak
def test_setup_of_500_tables_keeps_no_writer_waiting(target_server: EmbeddedPostgres) -> None:
    """On a server that compiles what it deems costly, which is what setup's own queries are."""
    with InstalledPostgres() as server, lab_between(server, target_server) as lab:
        assert lab.source.execute("SELECT current_setting('jit'), pg_jit_available()").fetchone() == ("on", True)
        lab.source.execute(";".join(f"CREATE TABLE t{n} (id int PRIMARY KEY, v text)" for n in range(500)))
        longest, over = Longest(), threading.Event()

        def write() -> None:
            with psycopg.connect(lab.source_url, autocommit=True) as session:
                for number in itertools.count():
                    if over.is_set():
                        return
                    with longest.timed("insert"):
                        session.execute(f"INSERT INTO t{number % 500} VALUES ({number}, 'x')")

        writer = threading.Thread(target=write)
        writer.start()
        try:
            lab.pipeline().setup()
        finally:
            over.set()
            writer.join()
        lab.source.execute("CREATE TABLE m (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        lab.pipeline().setup()
        for number in range(12):
            with longest.timed("partition"):
                bounds = f"FROM ({number}) TO ({number + 1})"
                lab.source.execute(f"CREATE TABLE m{number} PARTITION OF m FOR VALUES {bounds}")
        with longest.timed("alter"):
            lab.source.execute("ALTER TABLE t7 ADD w int")

    # 6.1 s, 1.8 s and 0.5 s once; on a machine that does nothing else.
    assert longest.of["insert"] < 0.2, longest.of
    assert longest.of["partition"] < 0.5, longest.of
    assert longest.of["alter"] < 0.5, longest.of


class Longest:
    """How long the longest statement of each kind took, in seconds."""

    def __init__(self) -> None:
        self.of: dict[str, float] = {}

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.of[kind] = max(self.of.get(kind, 0.0), time.monotonic() - began)


def test_a_publication_of_all_tables_is_named_before_anything_is_done(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES")
    pipeline = lab.pipeline()

    (fault,) = pipeline.plan().source.faults

    assert str(fault).startswith("publication 'p' is for all tables, and would publish those of the capture set")
    with pytest.raises(OperatorError, match="publication 'p'"):
        pipeline.setup()
    assert lab.source.execute("SELECT to_regnamespace('penstock_lab')").fetchone() == (None,)
    lab.source.execute("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLES IN SCHEMA public")
    pipeline.setup()
    assert pipeline.plan().is_done
