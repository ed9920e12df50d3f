"""Entries of the error queue: retried, edited, tried, given up, and what is written down of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from penstock.apply.apply_errors import COLUMN_MISSING, FOREIGN_KEY_VIOLATED, NOT_CAPTURED, ROW_DIFFERS, UNIQUE_VIOLATED
from penstock.apply.entry_edits import AbsentValue, Setting, by_form, by_function, by_settings, read_setting
from penstock.apply.entry_rows import stand
from penstock.apply.error_queue import (
    Actor,
    EntryAction,
    EntryOutcome,
    ErrorEntry,
    ErrorType,
    NoEntryError,
)
from penstock.apply.retry import RetryConfig, in_commit_order, retry
from penstock.change import Change
from penstock.errors import ConfigError, OperatorError, RetryableError
from tests.hand_made import Lcr, T, Target, delete, insert, truncate, update
from tests.program import await_true


@pytest.fixture
def target(database: str) -> Iterator[Target]:
    made = Target(database)
    yield made
    made.close()


def acct(key: int, old: float, new: float) -> Lcr:
    return update("acct", {"id": key, "code": "XY"[key - 1], "bal": f"{old:.2f}"}, {"bal": f"{new:.2f}"})


def s37(target: Target) -> str:
    """Put the transaction of scenario 37 into the queue: its second change expects another balance."""
    target.apply(T(100, acct(2, 200, 210), acct(1, 999, 50), insert("dept", id=30, name="N")))
    (entry,) = target.errors()
    return entry.id


def rows(target: Target) -> tuple[Any, ...]:
    balances = target.rows("SELECT bal FROM acct ORDER BY id")
    return (*(int(bal) for (bal,) in balances), target.one("SELECT count(*) FROM dept WHERE id = 30"))


def deeds(target: Target) -> list[tuple[EntryAction, EntryOutcome, str]]:
    return [(a.action, a.outcome, a.entry_id) for a in target.queue.history(most=100)]


BEFORE = (100, 200, 0)
MENDED = (50, 210, 1)


@pytest.mark.rule("A-138")
def test_s65_a_mended_value_is_applied_once(target: Target) -> None:
    entry_id = s37(target)

    def mend(change: Change, entry: ErrorEntry, number: int) -> Change:
        assert entry.message_number == 2
        return replace(change, before={**(change.before or {}), "bal": "100.00"}) if number == 2 else change

    (retried,) = target.retried(entry_id, edit=by_function(mend))

    assert rows(target) == MENDED
    assert target.errors() == []
    assert retried.edits == ["2.before.bal"]
    assert deeds(target) == [(EntryAction.EDIT, EntryOutcome.APPLIED, entry_id)]


@pytest.mark.rule("A-138")
def test_s65_a_change_is_left_out(target: Target) -> None:
    entry_id = s37(target)

    (retried,) = target.retried(entry_id, edit=by_function(lambda change, _, number: change if number != 2 else None))

    assert rows(target) == (100, 210, 1)
    assert target.errors() == []
    assert retried.edits == ["2"]


@pytest.mark.rule("A-138")
def test_s65_a_function_that_fails_leaves_everything_as_it_was(target: Target) -> None:
    entry_id = s37(target)
    (before,) = target.errors()

    def mend(change: Change, _: ErrorEntry, number: int) -> Change:
        raise ValueError(f"a secret: {change.before}")

    with pytest.raises(OperatorError, match="failed: ValueError") as caught:
        target.retry(entry_id, edit=by_function(mend, "my:fix"))

    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert rows(target) == BEFORE
    assert target.errors() == [before]
    assert deeds(target) == [(EntryAction.EDIT, EntryOutcome.FAILED, entry_id)]


@pytest.mark.rule("A-138")
def test_an_edit_that_fails_leaves_the_entry_as_the_source_committed_it(target: Target) -> None:
    entry_id = s37(target)
    before = target.queue.load(entry_id)

    with pytest.raises(OperatorError, match="still cannot be applied"):
        target.retry(entry_id, edit=by_settings([Setting(2, "before", "bal", "7.00")], []))

    assert target.queue.load(entry_id) == before
    assert rows(target) == BEFORE
    (action,) = target.queue.history(most=9)
    assert (action.outcome, action.edits, action.error_number) == (EntryOutcome.FAILED, ["2.before.bal"], ROW_DIFFERS)


def test_what_is_left_out_does_not_change_which_number_a_failing_change_has(target: Target) -> None:
    twice = insert("dept", id=10, name="again")
    target.apply(T(100, acct(2, 200, 210), twice, acct(1, 999, 50)))
    (entry,) = target.errors()

    (retried,) = target.retried(entry.id, edit=by_settings([], [1, 2]), go_on=True)

    assert retried.failure is not None
    assert retried.failure.message_number == 3


REFUSED = {
    "no such column": ([Setting(2, "before", "bak", "1")], [], "bak is not a column of public.acct at the target; did"),
    "the key is gone": ([Setting(2, "before", "id", AbsentValue.ABSENT)], [], "before lacks key column 'id'"),
    "an insert without its key": ([Setting(3, "after", "id", AbsentValue.ABSENT)], [], "after lacks key column 'id'"),
    "what is not there": (
        [Setting(2, "after", "code", AbsentValue.ABSENT)],
        [],
        "2.after.code: there is no such column",
    ),
    "an insert has no old row": ([Setting(3, "before", "id", "1")], [], "of operation insert, which has no 'before'"),
    "a zero byte": ([Setting(3, "after", "code", "a\0b")], [], "after.code holds a zero byte (NUL)"),
    "no such change": ([], [4], "there is no change 4: the transaction has 3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_edit_that_does_not_fit_is_refused(target: Target, case: str) -> None:
    settings, skipped, why = REFUSED[case]
    entry_id = s37(target)

    with pytest.raises(ConfigError) as caught:
        target.retry(entry_id, edit=by_settings(settings, skipped))

    assert why in str(caught.value)
    assert rows(target) == BEFORE
    assert len(target.errors()) == 1


def form(target: Target, entry_id: str) -> dict[str, Any]:
    entry, transaction = target.queue.load(entry_id)
    changes = [
        {"number": n, "op": c.op, "table": str(c.table), "before": c.before, "after": c.after}
        for n, c in enumerate(transaction.changes, start=1)
    ]
    return {"id": entry.id, "changes": changes}


def test_a_form_says_what_to_apply(target: Target) -> None:
    entry_id = s37(target)
    filled = form(target, entry_id)
    filled["changes"][1]["before"]["bal"] = "100.00"
    filled["changes"][0]["skip"] = True
    # An insert of a department that is there by now.
    target.connection.execute("INSERT INTO dept VALUES (30, 'was')")
    filled["changes"][2] |= {"op": "update", "before": {"id": "30", "name": "was"}}

    (retried,) = target.retried(entry_id, edit=by_form(json.dumps(filled)))

    assert rows(target) == (50, 200, 1)
    assert target.one("SELECT name FROM dept WHERE id = 30") == "N"
    assert retried.edits == ["1", "2.before.bal", "3.op", "3.before.id", "3.before.name"]


def broken(name: str, filled: dict[str, Any]) -> str:
    first = filled["changes"][0]
    match name:
        case "cut off":
            return json.dumps(filled)[:40]
        case "of another entry":
            filled["id"] = "A1.77"
        case "a change is missing":
            del filled["changes"][1]
        case "a number for a text":
            first["before"]["bal"] = 100
        case "another table":
            first["table"] = "public.emp"
        case "no operation":
            first["op"] = "merge"
        case "an operation of no row":
            first["op"] = "truncate"
        case "no new row":
            first["after"] = None
        case "a list":
            return "[]"
        case "one name twice":
            return json.dumps(filled).replace('"skip": 1', "").replace('"id": "2"', '"id": "2", "id": "1"', 1)
        case "no answer":
            first["skip"] = "yes"
    return json.dumps(filled)


BROKEN = {
    "cut off": "the form is not JSON",
    "of another entry": "of entry 'A1.77', not of 'A1.1'",
    "a change is missing": "must hold the changes 1 to 3",
    "a number for a text": "before.bal is not a text",
    "another table": "is of table public.acct; another table",
    "no operation": "'merge' is not an operation",
    "an operation of no row": "cannot be made one of operation truncate",
    "no new row": "operation update has 'after'",
    "a list": "holds no list of changes",
    "one name twice": "'id' is there twice",
    "no answer": '"skip" is true or false',
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_form_that_does_not_fit_is_refused(target: Target, case: str) -> None:
    entry_id = s37(target)

    with pytest.raises(ConfigError) as caught:
        target.retry(entry_id, edit=by_form(broken(case, form(target, entry_id))))

    assert BROKEN[case] in str(caught.value)
    assert "200" not in str(caught.value)
    assert rows(target) == BEFORE


def test_settings_are_read() -> None:
    assert read_setting("2.before.a.b=c=d", option="--set") == Setting(2, "before", "a.b", "c=d")
    for wrong in ("bal=1", "2.bal=1", "2.before.=1", "2.before.bal", "x.after.bal=1"):
        with pytest.raises(ConfigError, match="takes the number of a change"):
            read_setting(wrong, option="--set")


@pytest.mark.rule("A-132", "A-133")
def test_an_entry_tells_everything_of_its_transaction(target: Target) -> None:
    entry_id = s37(target)

    entry, transaction = target.queue.load(entry_id)

    assert (entry.id, entry.source, entry.txn_id, entry.commit_scn) == ("A1.1", "DBS1", "700", 100)
    assert (entry.message_number, entry.message_count, entry.error_type) == (2, 3, ErrorType.CONFLICT)
    assert entry.recipient == target.one("SELECT current_user")
    assert [str(change.table) for change in transaction.changes] == ["public.acct", "public.acct", "public.dept"]
    # Only the failing change carries the error.
    assert (str(entry.table), entry.op) == ("public.acct", "update")
    assert target.queue.tables() == {change.table for change in transaction.changes}


@pytest.mark.rule("A-133", "A-208")
def test_a_failure_at_commit_has_the_number_0(target: Target) -> None:
    target.connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'no' USING ERRCODE = '23514'; END $$;"
        "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON dept DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION refuse(); ALTER TABLE dept ENABLE ALWAYS TRIGGER t"
    )

    target.apply(T(100, insert("dept", id=30, name="N")))

    assert [entry.message_number for entry in target.errors()] == [0]
    (tried,) = target.retried(dry_run=True)
    assert tried.outcome == EntryOutcome.WOULD_FAIL
    target.connection.execute("DROP TRIGGER t ON dept")
    assert target.retry() == ["A1.1"]


@pytest.mark.rule("A-139")
def test_retrying_goes_on_past_failures_where_it_is_told_to(target: Target) -> None:
    target.apply(
        T(100, insert("emp", id=3, dept_id=70)),
        T(110, insert("emp", id=4, dept_id=80)),
        T(120, insert("emp", id=5, dept_id=70)),
    )
    target.connection.execute("INSERT INTO dept VALUES (70, 'L')")

    done = target.retried(go_on=True)

    assert [one.outcome for one in done] == [EntryOutcome.APPLIED, EntryOutcome.FAILED, EntryOutcome.APPLIED]
    assert target.failed() == [(110, FOREIGN_KEY_VIOLATED, 1, 1)]
    assert deeds(target) == [
        (EntryAction.RETRY, EntryOutcome.APPLIED, "A1.1"),
        (EntryAction.RETRY, EntryOutcome.FAILED, "A1.2"),
        (EntryAction.RETRY, EntryOutcome.APPLIED, "A1.3"),
    ]


@pytest.mark.rule("A-139")
def test_entries_are_tried_in_commit_order_however_they_are_named(target: Target) -> None:
    target.apply(T(100, insert("emp", id=3, dept_id=70)), T(110, insert("emp", id=4, dept_id=80)))

    assert in_commit_order(target.queue, ["2", "A1.1", "A1.2"]) == ["A1.1", "A1.2"]
    with pytest.raises(NoEntryError, match="no transaction '3'"):
        in_commit_order(target.queue, ["1", "3"])


def test_a_dry_run_changes_nothing_and_tells_of_each_with_what_those_before_it_would_do(target: Target) -> None:
    target.apply(
        T(100, insert("dept", id=30, name="n" * 25)),
        T(110, insert("emp", id=3, dept_id=30)),
        T(120, insert("emp", id=4, dept_id=77)),
        T(130, insert("emp", id=1, dept_id=30)),
    )
    target.connection.execute("ALTER TABLE dept ALTER name TYPE varchar(40)")
    before = [target.queue.load(entry.id) for entry in target.errors()]

    done = target.retried(dry_run=True)

    assert [one.outcome for one in done] == [
        EntryOutcome.WOULD_APPLY,
        EntryOutcome.WOULD_APPLY,
        EntryOutcome.WOULD_FAIL,
        EntryOutcome.WOULD_FAIL,
    ]
    errors = [one.failure.error.number for one in done if one.failure is not None]
    assert errors == [FOREIGN_KEY_VIOLATED, UNIQUE_VIOLATED]
    assert [target.queue.load(entry.id) for entry in target.errors()] == before
    assert target.one("SELECT count(*) FROM dept WHERE id = 30") == 0
    assert [(deed, outcome) for deed, outcome, _ in deeds(target)] == [
        (EntryAction.DRY_RUN, one.outcome) for one in done
    ]


@pytest.fixture
def roles(target: Target) -> Iterator[tuple[str, str]]:
    """Two roles: one that may write departments and one that may not."""
    name = f"r_{target.connection.info.dbname}"
    may, may_not = f"{name}_may", f"{name}_may_not"
    target.connection.execute(
        f"CREATE ROLE {may}; CREATE ROLE {may_not}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {may}"
    )
    yield may, may_not
    target.connection.execute(f"DROP OWNED BY {may}, {may_not}; DROP ROLE {may}; DROP ROLE {may_not}")


@pytest.mark.rule("A-137")
def test_an_entry_is_applied_with_the_rights_of_who_could_not_apply_it(target: Target, roles: tuple[str, str]) -> None:
    may, may_not = roles
    entry_id = s37(target)
    target.connection.execute("UPDATE acct SET bal = 999 WHERE id = 1")
    target.connection.execute("UPDATE penstock.error SET recipient = %s", [may_not])

    with pytest.raises(OperatorError, match="permission denied"):
        target.retry(entry_id)
    with pytest.raises(OperatorError, match="there is no such role") as caught:
        target.retry(entry_id, role="nobody; DROP TABLE acct")
    assert "--as-me" in caught.value.do
    assert rows(target) == (999, 200, 0)
    target.connection.execute("UPDATE penstock.error SET recipient = %s", [may])
    assert target.retry(entry_id) == [entry_id]

    assert rows(target) == MENDED
    assert [(action.role, action.outcome) for action in target.queue.history(most=9)] == [
        (may_not, EntryOutcome.FAILED),
        ("nobody; DROP TABLE acct", EntryOutcome.FAILED),
        (may, EntryOutcome.APPLIED),
    ]


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_deferred_trigger_runs_with_the_rights_of_the_role_too(
    target: Target, roles: tuple[str, str], dry_run: bool
) -> None:
    may, _ = roles
    target.connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF current_user <> '{may}' THEN RAISE 'not as %', current_user USING ERRCODE = '23514'; END IF;"
        " RETURN NULL; END $$;"
        "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON dept DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION refuse(); ALTER TABLE dept ENABLE ALWAYS TRIGGER t"
    )
    target.apply(T(100, insert("dept", id=30, name="N")))

    (as_me,) = target.retried(as_me=True, go_on=True, dry_run=dry_run)
    (retried,) = target.retried(role=may, dry_run=dry_run)

    assert as_me.is_failed
    assert not retried.is_failed


@pytest.mark.rule("A-137")
def test_an_entry_is_applied_with_ones_own_rights_on_request(target: Target, roles: tuple[str, str]) -> None:
    entry_id = s37(target)
    target.connection.execute("UPDATE acct SET bal = 999 WHERE id = 1")
    target.connection.execute("UPDATE penstock.error SET recipient = %s", [roles[1]])

    assert target.retry(entry_id, as_me=True) == [entry_id]

    (action,) = target.queue.history(most=9)
    assert action.role is None


@pytest.mark.rule("A-14", "A-140")
def test_s66_giving_up_applies_nothing_and_moves_no_watermark(target: Target) -> None:
    entry_id = s37(target)
    target.apply(T(110, update("dept", {"id": 10, "name": "ENG"}, {"name": "E"})))
    with pytest.raises(NoEntryError, match="no transaction 'nope' in the error queue"):
        target.queue.delete("nope")
    with pytest.raises(NoEntryError, match=r"'A1\.9'"):
        target.queue.delete(entry_id, "A1.9")
    assert len(target.errors()) == 1
    before = target.watermarks()

    target.queue.delete(entry_id)

    assert target.errors() == []
    assert rows(target) == BEFORE
    assert target.watermarks() == before == (110, 110)
    assert target.one("SELECT count(*) FROM penstock.error_change") == 0
    (action,) = target.queue.history(entry_id="1", most=9)
    assert (action.action, action.outcome, action.txn_id) == (EntryAction.DELETE, EntryOutcome.DELETED, "700")
    assert (action.os_user, action.host, action.db_user) == ("ann", "desk", target.one("SELECT session_user"))
    at = action.commit_scn
    assert (target.queue.deleted(at, at), target.queue.deleted(0, at - 1)) == ({at}, set())
    # Sent again it is a duplicate.
    (result,) = target.apply(T(100, acct(1, 100, 50)), complete=False)
    assert (result.already_applied, result.transactions) == (1, 0)
    assert rows(target) == BEFORE


@pytest.mark.rule("A-22")
def test_s68_an_entry_holds_what_rules_made_of_it_and_is_applied_once_the_column_is_there(target: Target) -> None:
    target.apply(T(100, update("emp", {"id": 1, "pay": "4400"}, {"pay": "4500"})))
    assert target.failed() == [(100, COLUMN_MISSING, 1, 1)]
    assert target.errors()[0].error_type == ErrorType.DEFINITION

    target.connection.execute("ALTER TABLE emp ADD pay numeric; UPDATE emp SET pay = 4400")

    assert target.retry() == ["A1.1"]
    assert target.one("SELECT pay FROM emp WHERE id = 1") == 4500


def test_a_column_that_the_target_lacks_is_taken_out(target: Target) -> None:
    target.apply(T(100, insert("dept", id=30, name="N", boss="eve")))
    assert target.failed() == [(100, COLUMN_MISSING, 1, 1)]

    target.retry(edit=by_settings([Setting(1, "after", "boss", AbsentValue.ABSENT)], []))

    assert target.one("SELECT name FROM dept WHERE id = 30") == "N"


def test_changes_stand_beside_the_rows_that_the_target_holds_now(target: Target) -> None:
    target.apply(
        T(
            100,
            acct(1, 999, 50),
            insert("acct", id=3, code="Y", bal=1),
            delete("acct", id=77, code="Q", bal=0),
            insert("nk", a=1, b="p", c=1),
            insert("gone", id=1),
        )
    )
    _, transaction = target.queue.load("1")

    with target.queue.retry_session() as session:
        first, second, third, fourth, fifth = stand(session, transaction, {})

    assert first.now == {"id": "1", "code": "X", "bal": "100.00"}
    assert first.differing == ["bal"]
    assert first.in_the_way == {}
    assert second.now is None
    assert second.in_the_way == {"acct_code_key": {"id": "2", "code": "Y", "bal": "200.00"}}
    assert (third.now, third.has_table) == (None, True)
    assert fourth.now == {"a": "1", "b": "p", "c": "1"}
    assert not fifth.has_table


def test_a_value_of_another_type_than_the_target_has_hides_no_other_change(target: Target) -> None:
    target.apply(T(100, update("acct", {"id": "one", "bal": "1"}, {"bal": "2"}), acct(1, 999, 50)))
    _, transaction = target.queue.load("1")

    with target.queue.retry_session() as session:
        first, second = stand(session, transaction, {})

    assert first.now is None
    assert second.now is not None


def test_two_people_who_retry_one_entry_apply_it_once(target: Target) -> None:
    entry_id = s37(target)
    target.connection.execute("UPDATE acct SET bal = 999 WHERE id = 1")
    target.remember_versions()
    done: list[EntryOutcome] = []

    def second() -> None:
        done.extend(one.outcome for one in retry(target.queue, [entry_id], RetryConfig(allow_duplicate_rows=True)))

    with target.queue.retry_session() as first, first.transaction():
        # The first one has begun; the second finds the entry still there, and waits.
        assert first.remove_entry(entry_id) is None
        waiting = threading.Thread(target=second)
        waiting.start()
        await_true(lambda: target.one("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0, seconds=30)
    waiting.join()

    assert done == [EntryOutcome.GONE]
    assert rows(target) == (999, 200, 0)
    assert deeds(target) == []


def test_who_gives_up_an_entry_that_is_being_applied_waits_and_is_told_that_it_is_gone(target: Target) -> None:
    entry_id = s37(target)
    told: list[str] = []

    def second() -> None:
        try:
            target.queue.delete("1", entry_id)
        except NoEntryError as exc:
            told.append(exc.what)

    with target.queue.retry_session() as first, first.transaction():
        assert first.remove_entry(entry_id) is None
        waiting = threading.Thread(target=second)
        waiting.start()
        await_true(lambda: target.one("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0, seconds=30)
    waiting.join()

    assert told == ["no transaction 'A1.1' in the error queue"]
    assert deeds(target) == []


def test_an_entry_that_is_given_up_by_another_meanwhile_is_passed_by(target: Target) -> None:
    target.apply(T(100, insert("emp", id=3, dept_id=70)), T(110, insert("emp", id=4, dept_id=70)))
    target.connection.execute("INSERT INTO dept VALUES (70, 'L')")

    target.remember_versions()
    retrying = retry(target.queue, ["A1.1", "A1.2"], RetryConfig(allow_duplicate_rows=True))
    first = next(retrying)
    target.queue.delete("A1.2")

    assert first.outcome == EntryOutcome.APPLIED
    assert [one.outcome for one in retrying] == [EntryOutcome.GONE]
    assert target.one("SELECT count(*) FROM emp WHERE id = 4") == 0


@pytest.mark.rule("A-137")
def test_a_connection_that_is_lost_in_between_leaves_the_entry_and_the_rows(target: Target) -> None:
    entry_id = s37(target)
    target.connection.execute("UPDATE acct SET bal = 999 WHERE id = 1")
    # The last change waits, and its session is ended meanwhile: as a kill of the client ends it.
    failed: list[Exception] = []

    def attempt() -> None:
        try:
            target.retry(entry_id)
        except RetryableError as exc:
            failed.append(exc)

    with psycopg.connect(target.url) as other:
        other.execute("INSERT INTO dept VALUES (30, 'mine')")
        retrying = threading.Thread(target=attempt)
        retrying.start()
        await_true(lambda: target.one("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0, seconds=30)
        target.one(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock A1 retry'"
        )
        retrying.join()
        other.rollback()

    assert len(failed) == 1
    assert rows(target) == (999, 200, 0)
    assert len(target.errors()) == 1
    assert deeds(target) == []
    assert target.retry(entry_id) == [entry_id]
    assert rows(target) == MENDED


@pytest.mark.rule("A-145")
def test_entries_stay_until_somebody_acts(target: Target) -> None:
    entry_id = s37(target)

    target.apply(T(110, update("dept", {"id": 10, "name": "ENG"}, {"name": "E"})))
    target.ledger.acquire("DBS1", lanes=2)

    assert [entry.id for entry in target.errors()] == [entry_id]
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        target.connection.execute("DELETE FROM penstock.process")


def test_the_history_holds_no_row_value(target: Target) -> None:
    target.apply(T(100, update("acct", {"id": 1, "code": "X", "bal": "31337.00"}, {"code": "s3cret"})))
    with suppress(OperatorError):
        target.retry()
    with suppress(OperatorError):
        target.retry(edit=by_settings([Setting(1, "after", "code", "t00long" * 9)], []))

    held = str(target.rows("SELECT a::text FROM penstock.error_action a"))

    assert "1.after.code" in held
    assert not [value for value in ("31337", "s3cret", "t00long") if value in held]


@pytest.mark.rule("A-143")
def test_what_was_not_captured_cannot_be_applied_only_left_out(target: Target) -> None:
    target.apply(T(100, insert("dept", id=30, name="N"), Lcr("gap", "acct", {"reason": "too wide"}, None)))
    (entry,) = target.errors()
    assert (entry.error_number, entry.error_type, entry.message_number) == (NOT_CAPTURED, ErrorType.GAP, 2)

    with pytest.raises(OperatorError, match="was not captured"):
        target.retry()
    with pytest.raises(ConfigError, match="of operation gap, which can only be left out"):
        target.retry(edit=by_settings([Setting(2, "before", "reason", "none")], []))
    target.retry(edit=by_settings([], [2]))

    assert target.one("SELECT name FROM dept WHERE id = 30") == "N"
    assert target.errors() == []


@pytest.mark.rule("A-144")
def test_an_entry_is_retried_while_the_process_runs_and_waits_for_locks_like_any_other(target: Target) -> None:
    entry_id = s37(target)
    target.remember_versions()
    target.connection.execute("UPDATE acct SET bal = 999 WHERE id = 1")
    done: list[EntryOutcome] = []

    def second() -> None:
        done.extend(one.outcome for one in retry(target.queue, [entry_id], RetryConfig(allow_duplicate_rows=True)))

    with psycopg.connect(target.url) as server:
        server.execute("SELECT FROM acct WHERE id = 1 FOR UPDATE")
        retrying = threading.Thread(target=second)
        retrying.start()
        await_true(lambda: target.one("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0, seconds=30)
        # The process goes on meanwhile, and puts another transaction into the queue.
        target.apply(T(110, insert("emp", id=1, dept_id=10)), T(120, update("emp", {"id": 2}, {"job": "Z"})))
    retrying.join()

    assert done == [EntryOutcome.APPLIED]
    assert rows(target) == MENDED
    assert target.one("SELECT job FROM emp WHERE id = 2") == "Z"
    assert [entry.commit_scn for entry in target.errors()] == [110]


def test_a_dry_run_waits_for_no_commit_and_leaves_no_lock(target: Target) -> None:
    entry_id = s37(target)

    target.retried(entry_id, dry_run=True)

    # A server takes a moment to notice that a client has gone.
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock A1 retry'"
    await_true(lambda: target.one(sessions) == 0, seconds=10)
    with psycopg.connect(target.url) as other:
        other.execute("SET lock_timeout = 1; SELECT FROM acct FOR UPDATE; SELECT FROM penstock.error FOR UPDATE")


def test_a_truncated_table_is_tried_and_rolled_back(target: Target) -> None:
    target.apply(T(100, truncate("hist"), insert("emp", id=3, dept_id=70)))
    target.connection.execute("INSERT INTO hist VALUES (1, 'A', 'x'); INSERT INTO dept VALUES (70, 'L')")

    (tried,) = target.retried(dry_run=True)

    assert tried.outcome == EntryOutcome.WOULD_APPLY
    assert target.one("SELECT count(*) FROM hist") == 1


@pytest.mark.rule("A-147")
def test_a_lost_connection_stops_the_process_and_puts_nothing_into_the_queue(target: Target) -> None:
    failed: list[Exception] = []

    def server() -> None:
        try:
            target.apply(T(100, acct(1, 100, 50)))
        except RetryableError as exc:
            failed.append(exc)

    with psycopg.connect(target.url, autocommit=True) as watch, psycopg.connect(target.url) as other:
        other.execute("SELECT FROM acct WHERE id = 1 FOR UPDATE")
        applying = threading.Thread(target=server)
        applying.start()
        await_true(lambda: watch.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount > 0, seconds=30)
        session = "SELECT pid FROM pg_stat_activity WHERE application_name = 'penstock A1 apply'"
        watch.execute(f"SELECT pg_terminate_backend(pid) FROM ({session}) s")
        applying.join()

    assert len(failed) == 1
    assert target.errors() == []
    target.apply(T(100, acct(1, 100, 50)))
    assert rows(target) == (50, 200, 0)


def test_a_function_that_finds_nothing_to_mend_makes_it_a_retry(target: Target) -> None:
    entry_id = s37(target)
    target.connection.execute("UPDATE acct SET bal = 998 WHERE id = 1")

    with pytest.raises(OperatorError):
        target.retry(entry_id, edit=by_function(lambda change, *_: change))

    assert deeds(target) == [(EntryAction.RETRY, EntryOutcome.FAILED, entry_id)]
    assert target.errors()[0].found == {"id": "1", "code": "X", "bal": "998.00"}


def test_a_user_who_has_no_name_acts_by_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", unknown)
    monkeypatch.setattr("os.getuid", lambda: 12345)

    assert Actor.here().os_user == "12345"
