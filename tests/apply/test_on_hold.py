"""Entries of the error queue that a person has put on hold: nobody applies or deletes them until they are released."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock.apply.error_queue import EntryAction, EntryOutcome, EntrySelection, NoEntryError, OnHoldError
from penstock.apply.lane import ServerConfig
from penstock.apply.retry import RetryConfig, go_on, retry
from tests.hand_made import T, Target, insert, update
from tests.program import await_true

CONFIG = RetryConfig(allow_duplicate_rows=True)


@pytest.fixture
def target(database: str) -> Iterator[Target]:
    """Two entries, whose rows refer to a department that is there by now."""
    made = Target(database)
    made.apply(T(100, insert("emp", id=3, dept_id=70)), T(110, insert("emp", id=4, dept_id=70)))
    made.connection.execute("INSERT INTO dept VALUES (70, 'L')")
    yield made
    made.close()


def employees(target: Target) -> list[int]:
    return [number for (number,) in target.rows("SELECT id FROM emp WHERE dept_id = 70 ORDER BY id")]


def test_an_entry_on_hold_says_who_when_and_why(target: Target) -> None:
    assert target.queue.hold("1", note="ticket 4711") == ["A1.1"]

    first, second = target.errors()
    assert first.on_hold is not None
    assert (first.on_hold.by, first.on_hold.note) == ("postgres (ann on desk)", "ticket 4711")
    assert first.on_hold.at > first.created_at
    assert (first.state, second.state, second.on_hold) == ("failed, on hold", "failed", None)
    assert target.queue.on_hold(["1", "A1.2"]) == {"A1.1"}
    assert [entry.id for entry in target.queue.entries(EntrySelection(on_hold=True))] == ["A1.1"]
    assert target.queue.count(EntrySelection(on_hold=False)) == 1
    state = target.ledger.state()
    assert state is not None
    assert (state.errors, state.on_hold) == (2, 1)


@pytest.mark.rule("A-227")
def test_all_are_retried_but_those_on_hold(target: Target) -> None:
    target.queue.hold("1", note="wait")

    retried = target.retried()

    assert [(one.entry_id, one.outcome, one.is_failed) for one in retried] == [
        ("A1.1", EntryOutcome.ON_HOLD, False),
        ("A1.2", EntryOutcome.APPLIED, False),
    ]
    assert employees(target) == [4]


def test_one_on_hold_is_tried_without_being_applied(target: Target) -> None:
    target.queue.hold("1", note="wait")

    (tried,) = target.retried("A1.1", dry_run=True)

    assert tried.outcome is EntryOutcome.WOULD_APPLY
    assert (employees(target), target.queue.on_hold(["1"])) == ([], {"A1.1"})


@pytest.mark.rule("A-227")
def test_one_that_is_named_is_not_deleted_and_neither_are_those_beside_it(target: Target) -> None:
    target.queue.hold("1", note="wait")

    with pytest.raises(OnHoldError, match=r"is on hold: A1.1 .*errors release A1.1"):
        target.queue.delete("2", "1")
    assert len(target.errors()) == 2

    assert target.queue.delete("1", "2", skip_gone=True) == ["A1.2"]
    assert [entry.id for entry in target.errors()] == ["A1.1"]


def test_a_released_entry_is_applied_like_any_other(target: Target) -> None:
    target.queue.hold("1", note="wait")

    assert target.queue.release("1", "2") == ["A1.1"]
    target.retry()

    assert employees(target) == [3, 4]
    assert [(one.action, one.outcome, one.note) for one in target.queue.history(entry_id="1", most=9)] == [
        (EntryAction.HOLD, EntryOutcome.ON_HOLD, "wait"),
        (EntryAction.RELEASE, EntryOutcome.RELEASED, None),
        (EntryAction.RETRY, EntryOutcome.APPLIED, None),
    ]


def test_a_second_hold_has_the_new_note_unless_it_was_not_named(target: Target) -> None:
    target.queue.hold("1", note="wait")

    assert target.queue.hold("1", "2", note="all", skip_gone=True) == ["A1.2"]
    assert target.queue.hold("1", note="wait longer") == ["A1.1"]

    assert [entry.on_hold and entry.on_hold.note for entry in target.errors()] == ["wait longer", "all"]
    with pytest.raises(NoEntryError):
        target.queue.hold("1", "99", note="neither")
    assert target.queue.hold("99", note="gone", skip_gone=True) == []


@pytest.mark.rule("A-227")
def test_one_that_is_put_on_hold_while_it_is_about_to_be_applied_stays(target: Target) -> None:
    target.remember_versions()
    done: list[EntryOutcome] = []

    def second() -> None:
        done.extend(one.outcome for one in retry(target.queue, ["A1.1"], CONFIG))

    connection = target.queue._sql()
    with connection.transaction():
        # The other session has begun, has found no hold, and waits for the entry.
        connection.execute("UPDATE penstock.error SET on_hold_at = now(), on_hold_by = 'b' WHERE id = 1")
        waiting = threading.Thread(target=second)
        waiting.start()
        await_true(lambda: target.one("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0, seconds=30)
    waiting.join()

    assert done == [EntryOutcome.ON_HOLD]
    assert employees(target) == []


def test_who_puts_an_entry_on_hold_that_is_being_applied_is_told_that_it_is_gone(target: Target) -> None:
    told: list[str] = []

    def second() -> None:
        try:
            target.queue.hold("1", note="too late")
        except NoEntryError as exc:
            told.append(exc.what)

    with target.queue.retry_session() as first, first.transaction():
        assert first.remove_entry("A1.1") is None
        waiting = threading.Thread(target=second)
        waiting.start()
        await_true(lambda: target.one("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0, seconds=30)
    waiting.join()

    assert told == ["no transaction '1' in the error queue"]


def test_one_that_waits_behind_another_and_is_on_hold_keeps_what_waits_for_it(database: str) -> None:
    target = Target(database)

    def balance(old: int, new: int) -> object:
        return update("acct", {"id": 1, "code": "X", "bal": f"{old}.00"}, {"bal": f"{new}.00"})

    chain = [T(100, balance(999, 110)), T(110, balance(110, 120)), T(120, balance(120, 130))]
    target.apply(*chain, config=ServerConfig(hold_dependents=True))
    target.connection.execute("UPDATE acct SET bal = 999 WHERE id = 1")
    target.queue.hold("2", note="wait")
    assert [entry.state for entry in target.errors()][:2] == ["failed", "waits behind A1.1, on hold"]

    assert target.retry("A1.1") == ["A1.1"]
    assert target.ledger.queue_state().may_go_on is False
    assert [entry.state for entry in target.errors()] == ["free to go on, on hold", "waits behind A1.2"]

    target.queue.release("2")
    # A run notices that one of those that wait was released.
    assert target.ledger.queue_state().may_go_on is True
    assert [one.outcome for one in go_on(target.queue, CONFIG)] == [EntryOutcome.APPLIED] * 2
    assert target.one("SELECT bal FROM acct WHERE id = 1") == 130
    target.close()
