"""What setup makes is what the source has; what it does not make is named, with the SQL that brings it."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from penstock.cli import cutover, differences
from penstock.database import CatalogDifference
from penstock.demo.servers import EmbeddedPostgres
from penstock.errors import OperatorError
from penstock.pipeline.pipeline import Pipeline
from tests.conftest import lab_between
from tests.lab import Lab, table
from tests.program import await_true
from tests.stories.test_rules_whole import catch_up

TREE = """
CREATE TABLE ev (id bigint NOT NULL, region text NOT NULL, note text NOT NULL) PARTITION BY LIST (region);
CREATE TABLE ev_a PARTITION OF ev FOR VALUES IN ('a');
CREATE TABLE ev_b PARTITION OF ev FOR VALUES IN ('b') PARTITION BY LIST (note);
CREATE TABLE ev_b1 PARTITION OF ev_b DEFAULT;
CREATE TABLE ev_c (note text NOT NULL, id bigint NOT NULL, region text NOT NULL);
CREATE UNIQUE INDEX by_hand ON ev_c (note, region);
ALTER TABLE ev ATTACH PARTITION ev_c FOR VALUES IN ('c');
CREATE UNIQUE INDEX ev_u ON ev (note, region);
"""
APPLICATION = """
CREATE DOMAIN email AS text;
CREATE TABLE customer (id int PRIMARY KEY, mail email, vat text);
CREATE FUNCTION is_mail(text) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT $1 ~ ''@''';
ALTER DOMAIN email ADD CONSTRAINT has_at CHECK (is_mail(VALUE));
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER item_total BEFORE INSERT ON customer FOR EACH ROW EXECUTE FUNCTION noted();
CREATE VIEW v2 AS SELECT id FROM customer;
CREATE RULE quiet AS ON DELETE TO customer WHERE OLD.id < 0 DO INSTEAD NOTHING;
ALTER TABLE customer ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON customer USING (id > 0);
"""
NAMED = [
    "function public.is_mail(text)",
    "function public.noted()",
    "domain check has_at of public.email",
    "view public.v2",
    "trigger item_total of public.customer",
    "rule quiet of public.customer",
    "row security of public.customer",
    "policy own of public.customer",
]


# PostgreSQL of another version words some objects otherwise, and lacks some: a name of NOT NULL, for one.
EVERYTHING = (
    TREE
    + APPLICATION
    + """
CREATE TABLE kept (id int PRIMARY KEY, code text NOT NULL UNIQUE, n numeric CHECK (n > 0), at date DEFAULT now());
CREATE TABLE by_index (a int NOT NULL, b text);
CREATE UNIQUE INDEX identity_index ON by_index (a);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX identity_index;
CREATE TABLE of_full (id int PRIMARY KEY, k int REFERENCES kept DEFERRABLE);
ALTER TABLE of_full REPLICA IDENTITY FULL, SET (fillfactor = 70);
CREATE STATISTICS st ON id, k FROM of_full;
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (extra text) INHERITS (parent);
COMMENT ON TABLE kept IS 'x';
"""
)


def build_post_data(pipeline: Pipeline) -> list[CatalogDifference]:
    """Make what a run and a cutover make; returns what differs then."""
    source = pipeline._source
    tables = source.match(["public.*"])
    with closing(pipeline._target.post_data_builder(source.post_data(tables))) as post_data_builder:  # type: ignore[attr-defined]
        list(post_data_builder.build(tables, is_last=True))
        return list(post_data_builder.differences())


def named(found: list[CatalogDifference]) -> list[str]:
    return [one.what for one in found]


def test_a_unique_index_of_a_partitioned_table_is_valid_down_to_the_last_partition(lab: Lab) -> None:
    lab.source.execute(TREE)
    pipeline = lab.pipeline()

    pipeline.setup()

    indexes = (
        "SELECT i.indexrelid::regclass::text, i.indisvalid, h.inhparent::regclass::text FROM pg_index i"
        " LEFT JOIN pg_inherits h ON h.inhrelid = i.indexrelid WHERE i.indrelid::regclass::text ~ '^ev' ORDER BY 1"
    )
    assert lab.target.execute(indexes).fetchall() == lab.source.execute(indexes).fetchall()
    assert lab.target.execute("SELECT bool_and(indisvalid) FROM pg_index").fetchone() == (True,)
    again = pipeline.plan()
    assert again.is_done
    assert again.is_possible
    assert build_post_data(pipeline) == []


def test_what_is_not_valid_at_the_source_is_not_valid_at_the_target(lab: Lab) -> None:
    lab.source.execute(
        "CREATE TABLE par (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY, p int, v int);"
        "INSERT INTO t VALUES (1, 99, NULL);"
        "ALTER TABLE t ADD CONSTRAINT fk FOREIGN KEY (p) REFERENCES par NOT VALID;"
        "ALTER TABLE t ADD CONSTRAINT nn NOT NULL v NOT VALID"
    )
    pipeline = lab.pipeline()
    pipeline.setup()
    # A row of the first copy, as the source has it.
    lab.target.execute("SET session_replication_role = replica; INSERT INTO t VALUES (1, 99, NULL)")

    assert build_post_data(pipeline) == []

    valid = "SELECT conname, convalidated FROM pg_constraint WHERE conname IN ('fk', 'nn') ORDER BY 1"
    assert lab.target.execute(valid).fetchall() == [("fk", False), ("nn", False)]


def test_a_parent_s_rows_are_those_of_its_children_too(lab: Lab) -> None:
    lab.setup(
        "CREATE TABLE parent (id int PRIMARY KEY, x int DEFAULT 5 CHECK (x > 0));"
        "CREATE TABLE child (y int, PRIMARY KEY (id)) INHERITS (parent)"
    )
    lab.source.execute(
        "INSERT INTO parent VALUES (1, 1), (2, 2); INSERT INTO child VALUES (1, 10, 3), (7, 20, 3);"
        "UPDATE parent SET x = x + 1 WHERE id = 1; DELETE FROM ONLY parent WHERE id = 2; UPDATE child SET y = 4"
    )

    lab.apply()

    assert lab.errors() == []
    lab.assert_identical("parent", "ONLY parent", "child")
    assert len(lab.rows("parent")) == 3


def test_an_index_that_is_not_valid_is_a_fault(lab: Lab) -> None:
    lab.source.execute(TREE)
    pipeline = lab.pipeline()
    pipeline.setup()
    lab.target.execute("DROP INDEX ev_u; CREATE UNIQUE INDEX ev_u ON ONLY ev (note, region)")

    (fault,) = [one for one in pipeline.plan().target.faults if "not valid" in str(one)]
    assert "index ev_u of public.ev is not valid" in str(fault)
    with pytest.raises(OperatorError, match="index ev_u of public"):
        build_post_data(pipeline)


def test_an_identity_beside_a_sequence_of_the_usual_name(lab: Lab) -> None:
    lab.source.execute(
        "CREATE TABLE t (id serial PRIMARY KEY); ALTER TABLE t ALTER id DROP DEFAULT;"
        "ALTER TABLE t ALTER id ADD GENERATED BY DEFAULT AS IDENTITY"
    )
    pipeline = lab.pipeline()
    pipeline.setup()

    sequences = "SELECT relname FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace ORDER BY 1"
    assert lab.target.execute(sequences).fetchall() == [("t_id_seq",), ("t_id_seq1",)]
    assert pipeline.plan().is_done
    assert build_post_data(pipeline) == []


def test_a_collation_that_is_missing_is_named_with_what_makes_it(lab: Lab) -> None:
    lab.source.execute("CREATE COLLATION mine (PROVIDER = libc, LOCALE = 'C')")
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v text COLLATE mine)")
    (fault,) = lab.pipeline().plan().target.faults
    assert fault.what == "collation public.mine is missing at the target"

    lab.target.execute(fault.do.removeprefix("create it there: "))

    assert lab.pipeline().plan().is_possible


def test_a_column_to_add_has_the_source_s_default(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, phone text DEFAULT 'none')")
    lab.target.execute("CREATE TABLE t (id int PRIMARY KEY)")
    (fault,) = lab.pipeline().plan().target.faults
    assert """ADD COLUMN "phone" text DEFAULT 'none'::text;""" in str(fault)


def test_one_database_on_both_sides_is_the_only_fault_told(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with Lab(lab.source_url, lab.source_url) as same:
        (fault,) = same.pipeline().plan().target.faults
    assert fault.what == "source and target are the same database"


def test_what_an_application_needs_is_named_before_and_after_and_can_be_brought(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.source.execute(APPLICATION)
    pipeline = lab.pipeline()
    assert named(pipeline.plan().target.differences) == NAMED
    assert "-- trigger item_total of public.customer" in pipeline.plan().sql()
    pipeline.setup()
    assert named(build_post_data(pipeline)) == NAMED

    lab.source.execute("ALTER TABLE customer ADD CONSTRAINT one_vat UNIQUE (vat)")
    told = build_post_data(pipeline)

    assert named(told) == [*NAMED[:3], "unique key one_vat of public.customer", *NAMED[3:]]
    differences.show(told, detail=False)
    shown = capsys.readouterr().out
    assert shown.startswith("9 things are not copied:\n")
    assert "trigger: trigger item_total of public.customer" in shown
    assert {one["kind"] for one in differences.as_json(told)["not_brought"]} >= {"trigger", "view"}  # type: ignore[attr-defined]
    for one in told:
        lab.target.execute(one.sql)
    assert build_post_data(pipeline) == []


def test_what_an_extension_or_penstock_has_made_is_not_named(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    lab.source.execute("CREATE FUNCTION as_of_an_extension() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    lab.source.execute(
        "CREATE EXTENSION IF NOT EXISTS plpgsql; ALTER EXTENSION plpgsql ADD FUNCTION as_of_an_extension()"
    )
    pipeline = lab.pipeline()
    pipeline.setup()
    assert build_post_data(pipeline) == []


def test_new_partitions_and_labels_are_followed_and_new_keys_are_told_of(lab: Lab, spark: object) -> None:
    lab.source.execute(
        "CREATE TYPE colour AS ENUM ('red');"
        "CREATE TABLE m (id int, c colour, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
        "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (10); INSERT INTO m VALUES (1, 'red')"
    )
    lab.apply_settings = "  ddl: apply\n"
    pipeline = lab.pipeline()
    pipeline.setup()
    catch_up(pipeline)
    stop, heard = threading.Event(), Warnings()
    run = threading.Thread(target=lambda: pipeline.run(stop, heard))  # type: ignore[arg-type]
    run.start()
    try:
        lab.source.execute("INSERT INTO m VALUES (2, 'red')")
        await_rows(lab, 2)
        lab.source.execute(
            "CREATE TABLE m2 PARTITION OF m FOR VALUES FROM (10) TO (20); INSERT INTO m VALUES (11, 'red')"
        )
        await_rows(lab, 3)
        lab.source.execute("ALTER TYPE colour ADD VALUE 'blue'")
        lab.source.execute("INSERT INTO m VALUES (12, 'blue')")
        await_rows(lab, 4)
        lab.source.execute("ALTER TABLE m ADD CONSTRAINT both_of UNIQUE (id, c)")
        lab.source.execute("INSERT INTO m VALUES (13, 'blue')")
        await_rows(lab, 5)
    finally:
        stop.set()
        run.join()
    assert lab.errors() == []
    # What the run makes is not announced as missing.
    (said,) = heard.texts
    assert "unique key both_of of public.m was made at the source, and is not followed" in said


def test_what_a_run_is_about_to_make_is_not_called_left_out(lab: Lab) -> None:
    lab.source.execute(
        "CREATE TYPE colour AS ENUM ('red'); CREATE TABLE m (id int, c colour) PARTITION BY RANGE (id);"
        "CREATE TABLE t (id int PRIMARY KEY)"
    )
    lab.apply_settings = "  ddl: apply\n"
    pipeline = lab.pipeline()
    pipeline.setup()
    lab.start()
    parts, heard = pipeline._new_parts(), Warnings()
    assert parts is not None
    with closing(parts):
        parts.follow(heard)  # type: ignore[arg-type]
        lab.source.execute(
            "CREATE TABLE later (id int PRIMARY KEY, t int REFERENCES t); CREATE UNIQUE INDEX one ON later (t);"
            "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (9); ALTER TYPE colour ADD VALUE 'blue'"
        )
        followed = pipeline._source.match(["public.*"])
        pipeline._lacking.tell(followed, pipeline._target.describe(followed), heard)  # type: ignore[arg-type]
        assert [line.partition(" yet: ")[0] for line in pipeline.status().attention[:2]] == [
            "partition public.m1 of public.m does not exist at the target",
            "type public.colour lacks label 'blue' at the target",
        ]

        assert parts.follow(heard)  # type: ignore[arg-type]

        assert heard.texts == []
        pipeline._set_up_new([table("later")])
        lab.source.execute("ALTER TABLE later ADD UNIQUE (id, t)")
        parts.follow(heard)  # type: ignore[arg-type]
    (said,) = heard.texts
    assert said.startswith("unique key later_id_t_key of public.later was made at the source, and is not followed")
    lab.target.execute(said.partition("; ")[2].removesuffix(" makes it at the target"))


class Warnings:
    """A run's listener that keeps the warnings."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warned(self, text: str, event: str = "note", facts: object = None) -> None:
        self.texts.append(text)

    def __getattr__(self, _: str) -> object:
        return lambda *__, **___: None


def await_rows(lab: Lab, number: int) -> None:
    await_true(lambda: len(lab.rows("m")) == number)


@pytest.mark.parametrize("newer", ["source", "target"])
def test_servers_of_two_versions_are_compared(
    source_server: EmbeddedPostgres, old_server: EmbeddedPostgres, newer: str
) -> None:
    servers = (source_server, old_server) if newer == "source" else (old_server, source_server)
    with lab_between(*servers) as lab:
        lab.source.execute(EVERYTHING)

        plan = lab.pipeline().setup()

        assert plan.target.faults == []
        left = set(named(build_post_data(lab.pipeline())))
        # An inherited NOT NULL has a name of its own from PostgreSQL 18 on, which the older server cannot have.
        assert left - {"not null of column 'id' of public.child"} == set(NAMED)


def test_what_tables_use_of_another_schema_is_compared(lab: Lab) -> None:
    lab.source.execute(
        "CREATE SCHEMA lib; CREATE DOMAIN lib.word AS text DEFAULT 'x'; COMMENT ON DOMAIN lib.word IS 'a word';"
        "CREATE TYPE lib.colour AS ENUM ('red'); COMMENT ON TYPE lib.colour IS 'a colour'; CREATE SEQUENCE lib.numbers;"
        "COMMENT ON SEQUENCE lib.numbers IS 'numbers';"
        "CREATE TABLE t (id int PRIMARY KEY DEFAULT nextval('lib.numbers'), a lib.word[], b lib.colour)"
    )

    planned = lab.pipeline().plan().target.differences
    lab.pipeline().setup()

    assert {one.what: one.sql for one in planned} == {
        "domain default lib.word": "ALTER DOMAIN lib.word SET DEFAULT 'x'::text",
        "comment on type lib.word": "COMMENT ON TYPE lib.word IS 'a word'",
        "comment on sequence lib.numbers": "COMMENT ON SEQUENCE lib.numbers IS 'numbers'",
        "comment on type lib.colour": "COMMENT ON TYPE lib.colour IS 'a colour'",
    }
    assert build_post_data(lab.pipeline()) == planned
    for one in planned:
        lab.target.execute(one.sql)
    assert build_post_data(lab.pipeline()) == []


DEFAULT_PRIVILEGES = {
    "in a schema": "ALTER DEFAULT PRIVILEGES FOR ROLE {0} IN SCHEMA public GRANT INSERT, SELECT ON TABLES TO PUBLIC",
    "with grant option": (
        "ALTER DEFAULT PRIVILEGES FOR ROLE {0} GRANT USAGE ON SEQUENCES TO pg_monitor WITH GRANT OPTION"
    ),
    "less than usual": "ALTER DEFAULT PRIVILEGES FOR ROLE {0} REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC",
}


@pytest.mark.parametrize("statement", DEFAULT_PRIVILEGES.values(), ids=DEFAULT_PRIVILEGES)
def test_default_privileges_are_named(lab: Lab, statement: str) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    lab.source.execute(statement.format("pg_read_all_data"))

    lab.pipeline().setup()

    (told,) = build_post_data(lab.pipeline())
    assert told.kind == "default privileges"
    assert told.sql == statement.format("pg_read_all_data")
    lab.target.execute(told.sql)
    assert build_post_data(lab.pipeline()) == []


def test_an_unlogged_table_is_named_with_the_line_that_makes_it_one(lab: Lab) -> None:
    lab.source.execute("CREATE UNLOGGED TABLE u (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY)")
    (planned,) = lab.pipeline().plan().target.differences
    lab.pipeline().setup()

    (told,) = build_post_data(lab.pipeline())

    assert str(planned) == str(told) == "persistence of public.u: it is unlogged at the source"
    assert planned.sql == told.sql == "ALTER TABLE public.u SET UNLOGGED"
    lab.target.execute(told.sql)
    assert build_post_data(lab.pipeline()) == []


def test_a_cutover_names_what_is_not_captured(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.setup("CREATE UNLOGGED TABLE u (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY)")

    found = lab.pipeline().cutover(threading.Event(), is_dry=True)

    assert not found.is_ready
    cutover.show(found)
    said = capsys.readouterr().out.replace("\n", " ")
    assert "not copied: public.u is not captured: it is unlogged" in said
    assert "1 table is to be captured first, or taken out by rules.exclude" in said
    assert cutover.as_json(found)["uncaptured"] == list(found.uncaptured)


def test_names_with_blanks_are_known_to_be_brought(lab: Lab) -> None:
    lab.source.execute(
        'CREATE SCHEMA "My Schema"; CREATE DOMAIN "My Schema"."My Type" AS text NOT NULL CHECK (VALUE <> \'\');'
        'CREATE TABLE "My Schema"."My Table" (id int PRIMARY KEY, v "My Schema"."My Type")'
    )

    assert lab.pipeline(["My Schema.*"]).plan().target.differences == []


def test_comments_on_parts_of_types_and_views_are_named(lab: Lab) -> None:
    lab.source.execute(
        "CREATE TYPE pair AS (x int); COMMENT ON COLUMN pair.x IS 'x'; CREATE DOMAIN word AS text CHECK (VALUE <> '');"
        "COMMENT ON CONSTRAINT word_check ON DOMAIN word IS 'check';"
        "CREATE TABLE t (id int PRIMARY KEY, a pair, b word); CREATE VIEW v AS SELECT id FROM t;"
        "COMMENT ON COLUMN v.id IS 'id'"
    )
    planned = lab.pipeline().plan().target.differences
    lab.pipeline().setup()

    told = build_post_data(lab.pipeline())

    assert set(told) == set(planned)
    sql = {one.what: one.sql for one in told}
    assert "COMMENT ON COLUMN public.v.id IS 'id'" in sql.pop("view public.v").split("; ")
    assert sql == {
        "comment on column 'x' of type public.pair": "COMMENT ON COLUMN public.pair.x IS 'x'",
        "comment on domain check word_check of public.word": (
            "COMMENT ON CONSTRAINT word_check ON DOMAIN public.word IS 'check'"
        ),
    }
    for one in told:
        lab.target.execute(one.sql)
    assert build_post_data(lab.pipeline()) == []
