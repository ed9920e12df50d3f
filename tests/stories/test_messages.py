"""Messages: what an application says at the source in the midst of a transaction, and a handler at the target hears."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.apply.apply_errors import HANDLER_FAILED, HANDLER_LATE, MESSAGE_UNHANDLED, ROW_DIFFERS
from penstock.apply.entry_rows import stand
from penstock.apply.handlers import ApplyError
from penstock.apply.handlers.message import UserMessage
from penstock.apply.handlers.settings import HandlerSettings
from penstock.apply.lane import ServerConfig
from penstock.change import MESSAGES, Op
from penstock.dialects.postgres.target.error_queue import PostgresErrorQueue
from penstock.errors import ConfigError, HandlerError, OperatorError
from penstock.pipeline_file import parse
from penstock.position import Limit
from tests.apply import handled
from tests.apply.handled import CALLS, DO, SEEN, function
from tests.lab import FILE, Lab, images
from tests.stories.test_handlers import pipeline, run

WAYS = pytest.mark.parametrize(
    ("use_set", "lanes"),
    [(use_set, lanes) for use_set in (True, False) for lanes in (1, 4)],
    ids=[f"{path}-path-{lanes}-lanes" for path in ("set", "row") for lanes in (1, 4)],
)


def taking(timeout_s: float = 30) -> HandlerSettings:
    return HandlerSettings(message=function("message"), source="shop", timeout_s=timeout_s)


TAKING = taking()


@pytest.fixture
def told(lab: Lab) -> Iterator[Lab]:
    """A lab whose log tells of messages, with one table; the target has one that handlers write to."""
    handled.forget()
    with Lab(lab.source_url, lab.target_url, with_messages=True) as made:
        made.setup("CREATE TABLE t (id int PRIMARY KEY, v int)")
        made.target.execute("CREATE TABLE heard (kind text, content text, rows bigint)")
        yield made


def send(lab: Lab, kind: str, content: str | None) -> None:
    lab.source.execute("SELECT penstock_lab.emit_message(%s, %s)", [kind, content])


def write_down(message: Any, target: Any) -> None:
    """Write what was heard beside the rows that are there by then."""
    SEEN.append(message)
    target.execute("INSERT INTO public.heard SELECT %s, %s, count(*) FROM public.t", [message.kind, message.content])


def heard(lab: Lab) -> list[tuple[Any, ...]]:
    return lab.target.execute("SELECT kind, content, rows FROM heard ORDER BY rows, content").fetchall()


@pytest.mark.rule("A-33", "A-105")
@WAYS
def test_a_message_is_heard_at_its_place_in_its_transaction(told: Lab, use_set: bool, lanes: int) -> None:
    lab = told
    DO["message"] = write_down
    lab.source.execute("INSERT INTO t VALUES (1, 1)")
    lab.source.execute(
        "BEGIN; INSERT INTO t VALUES (2, 2); SELECT penstock_lab.emit_message('note', 'between'); "
        "INSERT INTO t VALUES (3, 3); SELECT penstock_lab.emit_message('note', 'behind'); COMMIT"
    )
    lab.source.execute("BEGIN; SELECT penstock_lab.emit_message('note', 'never'); ROLLBACK")
    send(lab, "alone", None)
    lab.source.execute("UPDATE t SET v = 9 WHERE id = 1")

    config = ServerConfig(handlers=TAKING, use_set_path=use_set)
    results = lab.apply(lanes=lanes, config=config, shuffle=random.Random(1))

    assert lab.errors() == []
    lab.assert_identical("t")
    by_content = {content: rows for _, content, rows in heard(lab)}
    assert by_content.keys() == {"between", "behind", None}
    assert by_content["behind"] == by_content["between"] + 1
    first = next(one for one in SEEN if one.content == "between")
    assert isinstance(first, UserMessage)
    assert (first.kind, first.number, first.source) == ("note", 2, "shop")
    assert first.committed_at is not None
    assert "between" not in repr(first)
    # The rows around it still go by the set path.
    assert (sum(result.set_changes for result in results) > 0) == use_set
    # Delivered again, it is not heard again.
    CALLS.clear()
    lab.apply(lanes=lanes, config=config)
    assert CALLS == []


@pytest.mark.rule("A-117")
@WAYS
def test_without_a_handler_its_transaction_waits_in_the_error_queue(told: Lab, use_set: bool, lanes: int) -> None:
    lab = told
    lab.source.execute(
        "BEGIN; INSERT INTO t VALUES (1, 1); SELECT penstock_lab.emit_message('secret?', 'it says this'); COMMIT"
    )
    lab.source.execute("INSERT INTO t VALUES (2, 2)")

    lab.apply(lanes=lanes, config=ServerConfig(use_set_path=use_set))

    (entry,) = lab.errors()
    assert (entry.op, entry.table) == (Op.MESSAGE, MESSAGES)
    assert (entry.error_number, entry.message_number, entry.message_count) == (MESSAGE_UNHANDLED, 2, 2)
    assert "kind 'secret?'" in entry.error_message
    assert "it says" not in entry.error_message
    assert lab.rows("t") == [(2, 2)]

    queue = PostgresErrorQueue(lab.target_url, lab.name)
    with queue.retry_session() as session:
        row, message = stand(session, queue.load(entry.id)[1], {})
    assert (row.finds_no_row, message.finds_no_row) == (True, False)

    DO["message"] = write_down
    assert lab.retry(entry.id, handlers=TAKING) == [entry.id]
    assert heard(lab) == [("secret?", "it says this", 2)]
    lab.assert_identical("t")


@pytest.mark.rule("A-115", "A-118", "A-119")
def test_a_handler_of_messages_takes_part_in_the_transaction_and_cannot_end_it(told: Lab) -> None:
    lab = told

    def refuse(message: UserMessage, target: Any) -> None:
        target.execute("INSERT INTO public.heard VALUES ('x', 'x', 0)")
        if message.content == "hangs":
            threading.Event().wait(30)
        if message.content == "commits":
            target.execute("COMMIT")
        raise ValueError(message.content)

    DO["message"] = refuse
    for content in ("raises", "hangs", "commits"):
        lab.source.execute(
            f"BEGIN; INSERT INTO t VALUES ({len(content)}, 1);"
            f" SELECT penstock_lab.emit_message('k', '{content}'); COMMIT"
        )
    lab.apply(config=ServerConfig(handlers=taking(timeout_s=1)))

    entries = lab.errors()
    assert [entry.error_number for entry in entries][:2] == [HANDLER_FAILED, HANDLER_LATE]
    assert len(entries) == 3
    assert all("raises" not in entry.error_message for entry in entries)
    assert lab.rows("t") == heard(lab) == []

    # One that conflicts is applied as a whole or not at all.
    DO["message"] = write_down
    lab.source.execute("BEGIN; SELECT penstock_lab.emit_message('k', 'first'); UPDATE t SET v = 2 WHERE id = 6; COMMIT")
    lab.target.execute("INSERT INTO t VALUES (6, 7)")
    lab.apply(config=ServerConfig(handlers=TAKING))
    assert lab.errors()[-1].error_number == ROW_DIFFERS
    assert heard(lab) == []

    # One that cannot be had stops the process.
    send(lab, "k", "waits")
    missing = HandlerSettings(message=function("not_there"), source="shop")
    with pytest.raises(HandlerError, match="not_there"):
        lab.apply(config=ServerConfig(handlers=missing))
    lab.start()
    lab.apply(config=ServerConfig(handlers=TAKING))
    assert [content for _, content, _ in heard(lab)] == ["waits"]


@pytest.mark.rule("A-33")
def test_messages_of_one_kind_keep_their_order_in_any_number_of_lanes(told: Lab) -> None:
    lab = told
    DO["message"] = lambda message, target: SEEN.append((message.kind, message.content))
    for n in range(12):
        lab.source.execute(
            f"BEGIN; INSERT INTO t VALUES ({n}, 0); SELECT penstock_lab.emit_message('k{n % 2}', '{n:02}'); COMMIT"
        )

    results = lab.apply(lanes=4, config=ServerConfig(handlers=TAKING), shuffle=random.Random(7))

    assert len(SEEN) == 12
    assert len(results) == 2
    for kind in ("k0", "k1"):
        contents = [content for one, content in SEEN if one == kind]
        assert contents == sorted(contents)


@WAYS
def test_a_message_that_fails_keeps_those_of_its_kind_waiting_if_the_file_says_so(
    told: Lab, use_set: bool, lanes: int
) -> None:
    lab = told

    def refuse_the_first(message: UserMessage, target: Any) -> None:
        if message.content == "1":
            raise ApplyError(20500, "not yet")
        write_down(message, target)

    DO["message"] = refuse_the_first
    for kind, content in (("a", "1"), ("a", "2"), ("b", "3")):
        send(lab, kind, content)
    config = ServerConfig(handlers=TAKING, use_set_path=use_set, hold_dependents=True)
    lab.apply(lanes=lanes, config=config)

    assert [(entry.commit_scn, entry.is_held) for entry in lab.errors()] == [(1, False), (2, True)]
    assert [content for _, content, _ in heard(lab)] == ["3"]

    DO["message"] = write_down
    first, second = lab.errors()
    assert lab.retry(first.id, handlers=TAKING) == [first.id, second.id]
    assert [content for _, content, _ in heard(lab)] == ["1", "2", "3"]


def test_messages_in_a_transaction_that_is_not_held_in_memory(told: Lab) -> None:
    lab = told
    DO["message"] = write_down
    lab.source.execute(
        "BEGIN; INSERT INTO t SELECT n, n FROM generate_series(1, 300) n;"
        " SELECT penstock_lab.emit_message('k', 'at 300'); INSERT INTO t VALUES (301, 301); COMMIT"
    )
    part = lab.next_slice(limit := Limit(large_changes=100))
    assert part is not None
    assert part.is_large
    lab.apply(limit=limit, config=ServerConfig(handlers=TAKING, group_changes=50))

    assert [entry.error_message for entry in lab.errors()] == []
    assert heard(lab) == [("k", "at 300", 300)]
    lab.assert_identical("t")


SENDER = """
CREATE FUNCTION public.say(kind text, content text) RETURNS void LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog AS 'SELECT penstock_lab.emit_message(kind, content)'
"""


def test_who_may_send_and_what_is_refused(told: Lab) -> None:
    lab = told
    (database,) = lab.source.execute("SELECT current_database()").fetchone() or ("",)
    role = f"sender_{database}"
    lab.source.execute(f"CREATE ROLE {role}; {SENDER}; SET ROLE {role}")
    try:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="schema penstock_lab"):
            send(lab, "k", "c")
        lab.source.execute(f"RESET ROLE; GRANT USAGE ON SCHEMA penstock_lab TO {role}; SET ROLE {role}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="table log"):
            send(lab, "k", "c")
        lab.source.execute("RESET ROLE")
        # As one of an earlier version: setting up anew takes nothing from those that send.
        lab.source.execute("COMMENT ON SCHEMA penstock_lab IS 'penstock: capture 4 0123'")
        lab.pipeline().setup()
        lab.source.execute(f"SET ROLE {role}; SELECT public.say('k', 'c')")
        for kind in ("", None, "k" * 64):
            with pytest.raises(psycopg.errors.InvalidParameterValue, match="1 to 63 characters"):
                lab.source.execute("SELECT public.say(%s, 'c')", [kind])
        assert [row["op"] for row in lab.changes()] == ["message"]
        lab.source.execute("RESET ROLE")
        lab.ledger.close()
        # The message was sent and nobody received it: that, too, would be lost.
        with pytest.raises(OperatorError, match="1 transaction at the source was not applied and is lost"):
            lab.pipeline().teardown()
        lab.pipeline().teardown(lose=True)
        assert lab.source.execute("SELECT to_regnamespace('penstock_lab')").fetchone() == (None,)
    finally:
        lab.source.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")


def test_readers_that_do_not_ask_hear_of_none_and_have_the_same_positions(lab: Lab, told: Lab) -> None:
    send(told, "k", "one")
    told.source.execute("BEGIN; INSERT INTO t VALUES (1, 1); SELECT penstock_lab.emit_message('k', 'two'); COMMIT")

    asked, others = list(told.changes()), list(lab.changes())

    assert [(row["op"], row["txn_changes"]) for row in asked] == [("message", 1), ("insert", 2), ("message", 2)]
    assert [(row["op"], row["txn_changes"]) for row in others] == [("insert", 1)]
    assert others[0]["commit_scn"] == asked[1]["commit_scn"]
    assert images(asked)[0][:2] == ("message", "message")
    assert json.loads(asked[0]["before"]) == {"kind": "k", "content": "one"}


def test_a_run_calls_the_handler_that_the_file_names(lab: Lab, spark: object, tmp_path: Path) -> None:
    (tmp_path / "listening.py").write_text(
        "def hear(message, target):\n"
        "    target.execute('INSERT INTO public.heard VALUES (%s, %s)', [message.kind, message.content])\n"
    )
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    lab.target.execute("CREATE TABLE heard (kind text, content text)")
    text = FILE.format(name="lab", tables=["public.*"], row_triggers=[]) + (
        "  handlers: {message: 'listening:hear'}\nrules: {tables: {public.t: {rename: {v: w}}}}"
    )
    made = pipeline(lab, tmp_path, text)
    made.setup()
    run(made)
    lab.source.execute("BEGIN; INSERT INTO t VALUES (1, 1); SELECT penstock_lab.emit_message('k', 'ö\n\"{}'); COMMIT")
    send(lab, "k", "alone")

    run(made)

    assert lab.errors() == []
    assert lab.rows("heard") == [("k", "alone"), ("k", 'ö\n"{}')]
    assert lab.target.execute("SELECT w FROM t").fetchall() == [(1,)]
    view = "SELECT message_handler FROM penstock.dba_apply WHERE apply_name = 'lab'"
    assert lab.target.execute(view).fetchone() == ("listening:hear",)
    assert made.verify().is_identical


def test_only_a_pipeline_from_a_change_log_has_messages() -> None:
    text = FILE.format(name="lab", tables=["public.*"], row_triggers=[]) + "  handlers: {message: 'listening:hear'}\n"
    text = text.replace("source: trigger_queue\n  connection: shop", "source: change_files\n  path: /tmp/there")
    with pytest.raises(ConfigError, match="only a pipeline from trigger_queue has messages") as caught:
        parse(text, name="pipeline.yaml", environment={"SHOP_URL": "postgresql://a/b", "COPY_URL": "postgresql://a/c"})
    assert "apply.handlers.message" in str(caught.value)


@pytest.mark.rule("A-33", "A-112")
@WAYS
def test_a_message_of_a_transaction_that_fails_is_heard_with_its_retry_alone(
    told: Lab, use_set: bool, lanes: int
) -> None:
    lab = told
    DO["message"] = write_down
    lab.target.execute("INSERT INTO t VALUES (1, 7)")
    lab.source.execute("BEGIN; SELECT penstock_lab.emit_message('note', 'first'); INSERT INTO t VALUES (1, 1); COMMIT")
    send(lab, "note", "second")
    lab.source.execute("UPDATE t SET v = 3 WHERE id = 1")

    lab.apply(lanes=lanes, config=ServerConfig(handlers=TAKING, use_set_path=use_set, hold_dependents=True))

    # What the handler wrote before the failure is undone; what depends on it, by kind or by row, waits.
    assert [entry.is_held for entry in lab.errors()] == [False, True, True]
    assert heard(lab) == []
    lab.target.execute("DELETE FROM t")
    lab.retry(lab.errors()[0].id, handlers=TAKING)
    assert lab.errors() == []
    assert [(content, rows) for _, content, rows in heard(lab)] == [("first", 0), ("second", 1)]
    lab.assert_identical("t")
