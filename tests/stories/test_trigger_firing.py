"""For whose changes the target's triggers fire, as the pipeline file says it."""

from __future__ import annotations

import pytest

from penstock.apply.retry import RetryConfig, retry
from penstock.dialects.postgres.target.error_queue import PostgresErrorQueue
from penstock.errors import ConfigError
from tests.lab import Lab
from tests.stories.test_rules_whole import opened

NOTE = """
CREATE TABLE fired (name text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO public.fired VALUES (TG_NAME); RETURN NULL;
END $$;
CREATE TRIGGER always AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER "on""ce" AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER apply AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION note();
ALTER TABLE t DISABLE TRIGGER "on""ce";
"""
FIRING = """\
  tables:
    public.t:
      triggers: {always: always, 'on"ce': fire_once, apply: apply_only, lost: always}
    other.t:
      triggers: {always: always}
"""


@pytest.mark.rule("A-176", "A-177")
def test_s73_each_trigger_fires_for_those_that_the_file_says(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int)")
    lab.target.execute(NOTE)
    lab.source.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    lab.apply()
    plan = opened(lab, FIRING).plan()
    assert [step.summary for step in plan.target.steps] == [
        "trigger always of public.t fires for users and for apply",
        'trigger on"ce of public.t fires for users only',
        "trigger apply of public.t fires for apply only",
    ]
    assert "trigger 'lost' of table public.t is not there; once it is, run `penstock setup` again" in plan.target.notes
    assert "apply.tables.other.t: no table of the pipeline is called so at the target" in plan.target.notes

    opened(lab, FIRING).setup()
    assert opened(lab, FIRING).plan().is_done

    lab.target.execute("UPDATE t SET v = 20 WHERE id = 2")
    lab.source.execute("UPDATE t SET v = 10 WHERE id = 1")
    lab.apply()
    lab.source.execute("UPDATE t SET v = 21 WHERE id = 2")
    lab.apply()
    (entry,) = lab.errors()
    lab.target.execute("SET session_replication_role = replica; ALTER TABLE t DISABLE TRIGGER ALL")
    lab.target.execute("UPDATE t SET v = 2 WHERE id = 2; RESET session_replication_role")
    opened(lab, FIRING).setup()
    queue = PostgresErrorQueue(lab.target_url, lab.name)
    (retried,) = retry(queue, [entry.id], RetryConfig(allow_duplicate_rows=True))
    assert retried.error is None

    assert lab.target.execute("SELECT name, count(*) FROM fired GROUP BY 1 ORDER BY 1").fetchall() == [
        ("always", 3),
        ("apply", 2),
        ('on"ce', 1),
    ]


def test_a_trigger_of_another_owner_s_table_is_noted_with_what_its_owner_has_to_run(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    lab.target.execute(f"CREATE TABLE t (id int PRIMARY KEY); {NOTE}")
    role = f"few_{lab.target.info.dbname}"
    lab.target.execute(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA public TO {role}")
    admin, lab.target_url = lab.target_url, lab.target_url.replace("postgres@", f"{role}@")
    try:
        plan = opened(lab, FIRING).plan()
        line = "only the owner of public.t can see to it that trigger 'always' fires for users and for apply"
        assert f'{line}: ALTER TABLE "public"."t" ENABLE ALWAYS TRIGGER "always"' in plan.target.notes
    finally:
        lab.target_url = admin
        lab.target.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def test_a_word_that_is_none_is_refused_with_its_line(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="always"):
        opened(lab, FIRING.replace("apply_only", "sometimes"))


def test_a_trigger_of_a_single_partition_sees_every_change(lab: Lab) -> None:
    lab.setup(
        "CREATE TABLE t (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (9)"
    )
    lab.target.execute(
        "CREATE TABLE seen (n int); CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO public.seen VALUES (NEW.n); RETURN NULL; END $$;"
        "CREATE TRIGGER n AFTER INSERT OR UPDATE ON t1 FOR EACH ROW EXECUTE FUNCTION note();"
        "ALTER TABLE t1 ENABLE ALWAYS TRIGGER n"
    )
    lab.source.execute("INSERT INTO t VALUES (1, 1)")
    lab.source.execute("UPDATE t SET n = 2")
    lab.source.execute("UPDATE t SET n = 3")

    lab.apply()

    assert lab.rows("seen") == [(1,), (2,), (3,)]
    assert any("public.t has triggers that fire for apply too" in note for note in lab.pipeline().plan().target.notes)
