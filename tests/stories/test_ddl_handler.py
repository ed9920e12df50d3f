"""A handler for DDL: it is called instead of carrying DDL out, at its place among the changes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.apply.apply_errors import (
    DDL_NOT_CARRIED_OUT,
    HANDLER_FAILED,
    HANDLER_LATE,
    LCR_MALFORMED,
    STATEMENT_REFUSED,
    ApplyError,
)
from penstock.apply.conflict_methods import ConflictRules
from penstock.apply.ddl import DdlPolicy, DdlRules
from penstock.apply.handlers.settings import NO_HANDLERS, HandlerSettings
from penstock.apply.lane import ServerConfig
from penstock.apply.parameters import Parameters
from penstock.apply.retry import RetryConfig, retry
from penstock.apply.settings_shown import settings_shown
from penstock.apply.virtual_dependencies import NONE
from penstock.dialects.postgres.target.error_queue import PostgresErrorQueue
from penstock.errors import ConfigError, HandlerError, OperatorError, PenstockError
from penstock.pipeline_file import parse
from tests.apply import handled
from tests.apply.handled import CALLS, SEEN, function
from tests.lab import Lab, table
from tests.stories.test_handlers import blocks

WAYS = pytest.mark.parametrize(("lanes", "use_set"), [(1, False), (4, True)], ids=["row path", "four lanes, set path"])


@pytest.fixture
def following(lab: Lab) -> Iterator[Lab]:
    """A lab whose log tells of DDL."""
    handled.forget()
    with Lab(lab.source_url, lab.target_url, with_ddl=True) as made:
        yield made


def handling(do: Callable[[Any, Any], Any], *, timeout_s: float = 30) -> ServerConfig:
    handled.DO["ddl"] = do
    settings = HandlerSettings(ddl=function("ddl"), source="shop", timeout_s=timeout_s)
    return ServerConfig(ddl=DdlRules(DdlPolicy.APPLY), handlers=settings)


def names(lab: Lab, name: str) -> list[str]:
    """The columns of a table at the target, in order."""
    return [column.name for column in lab.target.execute(f"SELECT * FROM {name}").description or ()]


@WAYS
@pytest.mark.rule("A-55", "A-116")
def test_s62_a_handler_executes_ddl_for_another_table_and_ignores_the_next(
    following: Lab, lanes: int, use_set: bool
) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE u (id int PRIMARY KEY)")
    lab.target.execute("CREATE TABLE other (id int PRIMARY KEY, v int)")

    def rename_the_first(ddl: Any, target: Any) -> None:
        SEEN.append((target.execute("SELECT max(id) FROM public.u").rows, [column.name for column in ddl.now]))
        if len(SEEN) == 1:
            ddl.set_object_name("other")
            ddl.execute()

    config = replace(handling(rename_the_first), use_set_path=use_set)
    for n, statement in ((1, "ALTER TABLE t ADD c int DEFAULT 7"), (2, "ALTER TABLE t ADD d int"), (3, "SELECT")):
        lab.source.execute(f"INSERT INTO t (id, v) VALUES ({n}, {n})")
        lab.source.execute(f"INSERT INTO u SELECT {n} * 100 + g FROM generate_series(1, 20) g")
        lab.source.execute(statement)

    lab.apply(lanes=lanes, config=config, shuffle=random.Random(3))

    assert SEEN == [([(120,)], ["id", "v", "c"]), ([(220,)], ["id", "v", "c", "d"])]
    assert (names(lab, "other"), names(lab, "t")) == (["id", "v", "c"], ["id", "v"])
    # Ignoring is no error; rows of the table that was left as it is are, where they tell of its new columns.
    assert [entry.op for entry in lab.errors()] == ["insert"] * 2
    assert lab.apply(lanes=lanes, config=config) == []
    assert CALLS == ["ddl", "ddl"]


@pytest.mark.rule("A-116", "A-126")
def test_a_handler_is_told_what_there_is_to_tell(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int, gone text)")
    lab.source.execute("ALTER TABLE t DROP gone, ADD c int NOT NULL DEFAULT 7")
    (told,) = lab.changes()

    def look(ddl: Any, _: Any) -> None:
        SEEN.append(ddl)

    lab.apply(config=handling(look))

    (ddl,) = SEEN
    assert (ddl.command_type, ddl.object_owner, ddl.object_name) == ("ALTER TABLE", "public", "t")
    assert (ddl.table, ddl.source_database_name) == (table("t"), "shop")
    assert (ddl.get_commit_scn(), ddl.transaction_id) == (told["commit_scn"], told["txn_id"])
    assert ddl.get_commit_time() == told["committed_at"]
    assert ddl.ddl_text.startswith("ALTER TABLE t DROP gone")
    assert [(column.name, column.type) for column in ddl.was] == [("id", "integer"), ("v", "integer"), ("gone", "text")]
    assert [(column.name, column.filled) for column in ddl.now] == [("id", None), ("v", None), ("c", "7")]
    assert (ddl.alteration.dropped, [c.name for c in ddl.alteration.added]) == (("gone",), ["c"])
    assert "DROP" not in repr(ddl)
    # What is kept behind the call can do nothing any more.
    with pytest.raises(ApplyError, match="the call that this belongs to is over"):
        ddl.execute()
    with pytest.raises(ApplyError, match="expected an Alteration, not str") as error:
        ddl.set_alteration("DROP")
    assert error.value.number == LCR_MALFORMED
    assert names(lab, "t") == ["id", "v", "gone"]


@pytest.mark.rule("A-116", "A-112")
def test_a_handler_does_by_itself_what_two_versions_do_not_tell(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, gone int)")
    lab.source.execute("INSERT INTO t VALUES (1)")
    lab.source.execute("ALTER TABLE t DROP gone, ADD c float DEFAULT random(); INSERT INTO t VALUES (2, 0.5)")

    def mend(ddl: Any, target: Any) -> None:
        try:
            ddl.execute()
        except ApplyError as exc:
            SEEN.append(exc.number)
        # Nothing of it is done.
        SEEN.append(target.execute("SELECT * FROM public.t").rows)
        target.execute("ALTER TABLE public.t ADD c float DEFAULT 0")
        ddl.set_alteration(replace(ddl.alteration, added=()))
        ddl.execute()

    lab.apply(config=handling(mend))

    assert SEEN == [DDL_NOT_CARRIED_OUT, [(1, None)]]
    assert lab.errors() == []
    assert lab.rows("t") == [(1, 0.0), (2, 0.5)]


def refuse(ddl: Any, _: Any) -> None:
    ddl.execute()
    raise ApplyError(20500, "not today")


def fail(ddl: Any, _: Any) -> None:
    ddl.execute()
    raise ValueError("a value")


def commit(ddl: Any, target: Any) -> None:
    ddl.execute()
    target.execute("COMMIT")


def hang(ddl: Any, target: Any) -> None:
    ddl.execute()
    target.execute("SELECT pg_sleep(60)")


def answer(ddl: Any, _: Any) -> bool:
    ddl.execute()
    return True


@pytest.mark.parametrize(
    ("do", "number", "why"),
    [
        (refuse, 20500, "not today"),
        (fail, HANDLER_FAILED, "ValueError at test_ddl_handler.py"),
        (commit, STATEMENT_REFUSED, "it commits"),
        (hang, HANDLER_LATE, "took longer than 0.5 s"),
        (answer, HANDLER_FAILED, "returned bool"),
    ],
    ids=["raises", "fails", "commits", "hangs", "returns something"],
)
@pytest.mark.rule("A-115", "A-116", "A-137", "A-157")
def test_a_handler_that_fails_sends_its_transaction_to_the_queue_and_a_retry_calls_it(
    following: Lab, do: Callable[[Any, Any], Any], number: int, why: str
) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    lab.source.execute("ALTER TABLE t ADD c int; INSERT INTO t VALUES (1, 1)")
    lab.source.execute("INSERT INTO u VALUES (1)")
    began = time.monotonic()

    lab.apply(config=handling(do, timeout_s=0.5 if do is hang else 30))

    assert time.monotonic() - began < 20
    (entry,) = lab.errors()
    assert (entry.op, entry.error_number) == ("ddl", number)
    assert why in entry.error_message
    assert "a value" not in entry.error_message
    assert names(lab, "t") == ["id"]
    lab.assert_identical("u")

    queue = PostgresErrorQueue(lab.target_url, lab.name)
    config = handling(lambda ddl, _: ddl.execute())
    retried = list(retry(queue, [entry.id], RetryConfig(allow_duplicate_rows=True, handlers=config.handlers)))
    assert [one.error for one in retried] == [None]
    lab.assert_identical("t")


@pytest.mark.rule("A-115")
def test_a_handler_that_ends_the_transaction_by_other_means_stops_the_process(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY)")
    lab.source.execute("ALTER TABLE t ADD c int")

    def commit_behind_our_back(ddl: Any, target: Any) -> None:
        ddl.execute()
        target._gate._session._session.connection.execute("ROLLBACK")

    with pytest.raises(HandlerError, match="has committed or rolled back the transaction"):
        lab.apply(config=handling(commit_behind_our_back))
    assert lab.errors() == []
    assert names(lab, "t") == ["id"]


@pytest.mark.rule("A-150")
def test_a_task_that_is_killed_inside_a_handler_leaves_its_ddl_done_once_or_not_at_all(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int)")
    lab.source.execute("ALTER TABLE t ADD c int DEFAULT 7; INSERT INTO t VALUES (1)")

    def note(ddl: Any, target: Any) -> None:
        ddl.execute()
        target.execute("INSERT INTO public.u VALUES (1)")

    def die(ddl: Any, target: Any) -> None:
        note(ddl, target)
        target.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(PenstockError):
        lab.apply(config=handling(die))
    assert (names(lab, "t"), lab.rows("u"), lab.errors()) == (["id"], [], [])

    # It is done, and dies before anybody hears of it.
    part = lab.next_slice()
    assert part is not None
    (done,) = lab.apply_slice(part, lanes=1, config=handling(note))
    assert (done.failure, done.errors) == (None, 0)
    lab.start()
    (again,) = lab.apply_slice(part, lanes=1, config=handling(note))
    assert (again.already_applied, again.transactions) == (1, 0)
    lab.assert_identical("t")
    assert lab.rows("u") == [(1,)]


@pytest.mark.rule("A-116", "A-118")
def test_tables_that_are_not_to_follow_call_no_handler_and_ddl_alone_no_precommit_handler(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE alone (id int PRIMARY KEY)")
    lab.source.execute("ALTER TABLE alone ADD c int")
    lab.source.execute("ALTER TABLE t ADD c int")
    lab.source.execute("INSERT INTO t VALUES (1, 1)")
    config = handling(lambda ddl, _: ddl.execute())
    handled.DO["precommit"] = lambda transaction, _: None
    handlers = replace(config.handlers, precommit=function("precommit"))
    rules = DdlRules(DdlPolicy.APPLY, {table("alone"): DdlPolicy.IGNORE})

    lab.apply(config=replace(config, ddl=rules, handlers=handlers))

    assert CALLS == ["ddl", "precommit"]
    assert (names(lab, "alone"), names(lab, "t")) == (["id"], ["id", "c"])
    lab.source.execute("ALTER TABLE t ADD d int")
    with pytest.raises(OperatorError, match="`ddl: stop` ends the run here"):
        lab.apply(config=replace(config, ddl=DdlRules(DdlPolicy.STOP)))
    assert CALLS == ["ddl", "precommit"]


@pytest.mark.rule("A-116", "A-137")
@pytest.mark.parametrize("policy", [DdlPolicy.APPLY, DdlPolicy.IGNORE])
def test_ddl_that_has_waited_behind_an_entry_goes_the_same_way(following: Lab, policy: DdlPolicy) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    lab.target.execute("INSERT INTO u VALUES (1)")
    lab.source.execute("INSERT INTO u VALUES (1)")
    lab.source.execute("ALTER TABLE t ADD c int")
    rules = DdlRules(DdlPolicy.APPLY, {table("t"): policy})
    config = replace(handling(lambda ddl, _: ddl.execute()), hold_dependents=True, ddl=rules)
    lab.apply(config=config)
    first, behind = lab.errors()
    assert (first.is_held, behind.is_held, CALLS) == (False, True, [])
    PostgresErrorQueue(lab.target_url, lab.name).delete(first.id)

    (went_on,) = lab.context(config).go_on()

    assert (went_on.error, lab.errors()) == (None, [])
    is_applied = policy is DdlPolicy.APPLY
    assert (CALLS, names(lab, "t")) == (["ddl"] if is_applied else [], ["id", "c"] if is_applied else ["id"])


@pytest.mark.rule("A-116")
def test_the_example_of_the_page_runs(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int, gone int)")
    lab.source.execute("ALTER TABLE t DROP gone, ADD c int")
    lab.source.execute("ALTER TABLE t RENAME v TO w")
    page: dict[str, Any] = {}
    exec(blocks("python")[1], page)

    lab.apply(config=handling(page["follow"]))

    assert lab.errors() == []
    assert names(lab, "t") == ["id", "w", "gone", "c"]


FILE = """\
version: 1
name: shop
connections:
  shop: {type: postgres, url: "${env:SHOP_URL}"}
  copy: {type: postgres, url: "${env:COPY_URL}"}
capture: {source: trigger_queue, connection: shop, tables: ["public.*"]}
apply:
  connection: copy
"""

ENVIRONMENT = {"SHOP_URL": "postgresql://a", "COPY_URL": "postgresql://b"}


@pytest.mark.rule("A-116")
def test_a_handler_is_named_in_the_pipeline_file_and_refused_where_it_is_never_called() -> None:
    said = f"{FILE}  handlers: {{ddl: 'beside:follow'}}\n"
    one = "  tables: {public.t: {ddl: apply}}\n"
    for text in (f"{said}  ddl: apply\n", f"{said}{one}"):
        config = parse(text, name="pipeline.yaml", environment=ENVIRONMENT, folder=Path("/here"))
        (found,) = config.handlers.functions()
        assert (found.name, found.folder, found.place, found.takes) == (
            "beside:follow",
            Path("/here"),
            "apply.handlers.ddl",
            2,
        )
    for text in (said, f"{said}  ddl: stop\n", f"{said}  tables: {{public.t: {{ddl: ignore}}}}\n"):
        with pytest.raises(ConfigError, match=r"handlers\.ddl is never called: set ddl to apply"):
            parse(text, name="pipeline.yaml", environment=ENVIRONMENT)
    with pytest.raises(ConfigError, match=r"apply\.handlers\.ddl: must be module:function, or the name of an entry"):
        parse(said.replace("beside:follow", "a b"), name="pipeline.yaml", environment=ENVIRONMENT)


@pytest.mark.rule("A-197")
def test_the_view_of_processes_names_it(following: Lab) -> None:
    following.setup("CREATE TABLE t (id int PRIMARY KEY)")
    for handlers, named in ((HandlerSettings(ddl=function("ddl")), "tests.apply.handled:ddl"), (NO_HANDLERS, None)):
        shown = settings_shown(
            tag=None,
            parameters=Parameters(),
            keys={},
            conflicts=ConflictRules(),
            handlers=handlers,
            virtual=NONE,
        )
        following.ledger.note_settings(shown)
        view = "SELECT ddl_handler FROM penstock.dba_apply WHERE apply_name = %s"
        assert following.target.execute(view, [following.name]).fetchone() == (named,)
