"""Parameters of an apply process, set in its file and while it runs; runs that end at a limit, or are told to."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from penstock import change as c
from penstock.apply.apply_errors import ROW_DIFFERS, ROW_MISSING
from penstock.apply.ledger import ProcessStatus
from penstock.apply.progress import Progress
from penstock.errors import ConfigError, OperatorError, RetryableError
from penstock.position import Scn
from tests.lab import Lab

ACCT = (
    "CREATE TABLE acct (id int PRIMARY KEY, bal int); INSERT INTO acct SELECT n, n * 100 FROM generate_series(1, 4) n"
)


def catch_up(lab: Lab) -> Progress:
    return lab.pipeline().run(threading.Event(), until_caught_up=True)


def commit(lab: Lab, *statements: str) -> list[tuple[Scn, str]]:
    """Commit a transaction for each statement; returns position and id of each."""
    state = lab.ledger.state()
    assert state is not None
    for statement in statements:
        lab.source.execute(statement)
    found = {(row[c.COMMIT_SCN], row[c.TXN_ID]) for row in lab.changes(after=state.low_watermark)}
    assert len(found) == len(statements)
    return sorted(found)


def balances(lab: Lab) -> list[int]:
    return [bal for (bal,) in lab.target.execute("SELECT bal FROM acct ORDER BY id")]


def watermarks(lab: Lab) -> tuple[int, int]:
    state = lab.ledger.state()
    assert state is not None
    return state.low_watermark, state.high_watermark


def ended(lab: Lab) -> tuple[ProcessStatus, str | None, str | None]:
    state = lab.ledger.state()
    assert state is not None
    return state.status, state.reason, state.error


def add(key: int) -> str:
    return f"UPDATE acct SET bal = bal + 1 WHERE id = {key}"


@pytest.fixture
def copied(lab: Lab, spark: object) -> Lab:
    """A pipeline whose tables are copied, and that has caught up."""
    lab.source.execute(ACCT)
    lab.pipeline().setup()
    catch_up(lab)
    return lab


@pytest.mark.rule("A-191", "A-193")
def test_s32_a_run_ends_before_the_transaction_at_maximum_scn(copied: Lab) -> None:
    lab = copied
    _, (second, _), (third, _), _ = commit(lab, *map(add, (1, 2, 3, 4)))
    lab.apply_settings = f"  maximum_scn: {third}\n"

    progress = catch_up(lab)

    assert (progress.ended_by, progress.position) == (f"it had reached maximum_scn {third}", third - 1)
    assert balances(lab) == [101, 201, 300, 400]
    assert watermarks(lab) == (third - 1, third - 1)
    assert third - 1 >= second
    assert ended(lab) == (ProcessStatus.DISABLED, f"it had reached maximum_scn {third}", None)
    assert lab.errors() == []
    # The next run ends at once; what is set comes before the file.
    assert catch_up(lab).transactions == 0
    lab.pipeline().set_parameter("Maximum_SCN", "infinite")
    assert catch_up(lab).ended_by is None
    assert balances(lab) == [101, 201, 301, 401]


@pytest.mark.rule("A-191", "A-193")
def test_s33_a_run_ends_after_transaction_limit_those_that_fail_included(copied: Lab) -> None:
    lab = copied
    lab.target.execute("UPDATE acct SET bal = 7 WHERE id = 2")
    commit(lab, *map(add, (1, 2, 3)))
    lab.apply_settings = "  transaction_limit: 2\n  disable_on_limit: true\n  parallelism: 1\n"

    progress = catch_up(lab)

    assert (progress.ended_by, progress.errors) == ("it had reached transaction_limit 2", 1)
    assert balances(lab) == [101, 7, 300, 400]
    assert [entry.error_number for entry in lab.errors()] == [ROW_DIFFERS]
    low, high = watermarks(lab)
    assert low == high == lab.errors()[0].commit_scn
    assert ended(lab)[:2] == (ProcessStatus.DISABLED, "it had reached transaction_limit 2")


@pytest.mark.rule("A-191", "A-193")
def test_s33_without_disable_on_limit_counts_begin_anew(copied: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab = copied
    commit(lab, *map(add, (1, 2, 3)))
    lab.pipeline().set_parameter("transaction_limit", "2")
    caplog.set_level(logging.INFO, "penstock")

    progress = catch_up(lab)

    assert progress.ended_by is None
    assert balances(lab) == [101, 201, 301, 400]
    assert len([r for r in caplog.records if "reached transaction_limit 2; counts begin anew" in r.getMessage()]) == 1


@pytest.mark.rule("A-191", "A-193")
def test_a_run_ends_after_time_limit(copied: Lab) -> None:
    lab = copied
    lab.apply_settings = "  time_limit: 1\n  disable_on_limit: true\n"
    began = time.monotonic()

    progress = lab.pipeline().run(threading.Event())

    assert progress.ended_by == "it had reached time_limit 1"
    assert time.monotonic() - began >= 1


@pytest.mark.rule("A-191", "A-194")
def test_s34_an_ignored_transaction_is_left_out_and_counts_as_applied(copied: Lab) -> None:
    lab = copied
    *_, (_, second), (third, _) = commit(lab, add(1), add(1), add(1))
    lab.pipeline().set_parameter("ignore_transaction", second)

    catch_up(lab)

    assert balances(lab) == [101, 200, 300, 400]
    assert [(entry.commit_scn, entry.error_number) for entry in lab.errors()] == [(third, ROW_DIFFERS)]
    low, high = watermarks(lab)
    assert low == high >= third


@pytest.mark.rule("A-191", "A-194")
def test_ignored_transactions_add_up_and_are_forgotten_together(copied: Lab) -> None:
    lab = copied
    lab.apply_settings = "  ignore_transaction: ['7']\n"
    pipeline = lab.pipeline()

    for one in ("8", " 9 ", "8"):
        pipeline.set_parameter("IGNORE_TRANSACTION", one)
    assert pipeline.parameters().ignore_transaction == {"7", "8", "9"}

    pipeline.set_parameter("ignore_transaction", None)
    assert pipeline.parameters().ignore_transaction == {"7"}


@pytest.mark.rule("A-195")
def test_s36_a_run_waits_startup_seconds_for_another_one(copied: Lab) -> None:
    lab = copied
    with psycopg.connect(lab.target_url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(hashtext('penstock'), hashtext('lab'))")
        with pytest.raises(OperatorError, match="is running already"):
            catch_up(lab)
        lab.pipeline().set_parameter("startup_seconds", "1")
        with pytest.raises(OperatorError, match="is running already"):
            catch_up(lab)

        lab.pipeline().set_parameter("startup_seconds", "60")
        ending = threading.Timer(2, other.execute, ["SELECT pg_advisory_unlock_all()"])
        ending.start()
        catch_up(lab)
        ending.join()


@pytest.mark.rule("A-192")
@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("parallelisms", "2", "there is no parameter 'parallelisms'; did you mean 'parallelism'?"),
        ("parallelism", "0", "parallelism: must be an integer from 1 to 64, not '0'"),
        ("parallelism", "two", "parallelism: must be an integer from 1 to 64, not 'two'"),
        ("time_limit", "-1", "time_limit: must be an integer from 1 to 4294967295, or INFINITE, not '-1'"),
        (
            "time_limit",
            "4294967296",
            "time_limit: must be an integer from 1 to 4294967295, or INFINITE, not '4294967296'",
        ),
        ("disable_on_error", "maybe", "disable_on_error: must be Y or N, not 'maybe'"),
        ("commit_serialization", "SOME", "commit_serialization: must be FULL or DEPENDENT_TRANSACTIONS, not 'SOME'"),
        ("ignore_transaction", "  ", "ignore_transaction: names no transaction"),
        ("trace_level", "1.5", "trace_level: must be an integer from 0 to 4294967295, not '1.5'"),
    ],
)
def test_what_a_parameter_does_not_take_leaves_it_as_it_was(lab: Lab, name: str, text: str, fault: str) -> None:
    lab.source.execute(ACCT)
    lab.pipeline().setup()
    lab.pipeline().set_parameter("parallelism", "3")
    before = lab.pipeline().parameters()

    with pytest.raises(ConfigError) as caught:
        lab.pipeline().set_parameter(name, text)

    assert str(caught.value).startswith(fault)
    assert lab.pipeline().parameters() == before


@pytest.mark.rule("A-192")
def test_what_is_set_comes_before_the_file_until_it_is_forgotten(lab: Lab) -> None:
    lab.source.execute(ACCT)
    lab.apply_settings = "  parallelism: 5\n  disable_on_error: true\n"
    pipeline = lab.pipeline()
    with pytest.raises(OperatorError, match="there is no ledger"):
        pipeline.set_parameter("parallelism", "7")
    pipeline.setup()

    pipeline.set_parameter("PARALLELISM", "7")
    pipeline.set_parameter("disable_on_error", "n")
    found = pipeline.parameters()
    assert (found.parallelism, found.disable_on_error) == (7, False)
    assert pipeline.parameters_set() == {"parallelism", "disable_on_error"}

    pipeline.set_parameter("parallelism", None)
    assert pipeline.parameters().parallelism == 5
    lab.pipeline().teardown()
    lab.pipeline().setup()
    assert lab.pipeline().parameters().disable_on_error


def eventually(is_so: Callable[[], bool], *, within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to it in time"
        time.sleep(0.05)


@pytest.mark.rule("A-191", "A-192")
def test_a_run_takes_up_what_is_set_with_its_next_batch(copied: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab = copied
    caplog.set_level(logging.INFO, "penstock")

    def lanes() -> int:
        return len(lab.target.execute("SELECT FROM penstock.lane").fetchall())

    def use() -> None:
        with lab.pipeline().start():
            lab.source.execute(add(1))
            eventually(lambda: balances(lab)[0] == 101)
            assert not [r for r in caplog.records if getattr(r, "event", "") == "apply.batch"]
            for name, text in (("trace_level", "1"), ("disable_on_error", "Y"), ("parallelism", "6")):
                lab.pipeline().set_parameter(name, text)
            lab.source.execute(add(1))
            eventually(lambda: balances(lab)[0] == 102)
            eventually(lambda: lanes() == 6)
            lab.source.execute(add(1))
            eventually(lambda: balances(lab)[0] == 103)
            assert [r for r in caplog.records if getattr(r, "event", "") == "apply.batch"]
            lab.target.execute("DELETE FROM acct WHERE id = 2")
            lab.source.execute(add(2))
            eventually(lambda: ended(lab)[0] is ProcessStatus.ABORTED)

    with pytest.raises(OperatorError, match="as disable_on_error asks"):
        use()
    assert [entry.error_number for entry in lab.errors()] == [ROW_MISSING]


@pytest.mark.rule("A-11", "A-173")
def test_s30_another_process_stops_the_run_which_finishes_what_it_has_begun(copied: Lab) -> None:
    lab = copied
    with lab.pipeline().start() as run:
        lab.source.execute(add(1))
        eventually(lambda: balances(lab)[0] == 101)

        state = lab.pipeline().stop_run()

        assert (state.status, state.reason) == (ProcessStatus.DISABLED, "it was told to stop")
        assert state.low_watermark == state.high_watermark
        run.wait()
    with pytest.raises(OperatorError, match="no run of process 'lab' is at work"):
        lab.pipeline().stop_run()
    # The next run is not told to stop by what the last one was told.
    lab.source.execute(add(1))
    catch_up(lab)
    assert balances(lab)[0] == 102


@pytest.mark.rule("A-11")
def test_a_run_that_is_forced_to_stop_rolls_back_what_it_has_begun(copied: Lab) -> None:
    lab = copied
    with lab.pipeline().start() as run, psycopg.connect(lab.target_url) as other:
        other.execute("SELECT FROM acct WHERE id = 1 FOR UPDATE")
        lab.source.execute("UPDATE acct SET bal = bal + 1 WHERE id IN (1, 3)")
        eventually(lambda: bool(lab.target.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall()))
        # What is begun cannot be finished.
        with pytest.raises(RetryableError, match="has not stopped in 1 s"):
            lab.pipeline().stop_run(wait_s=1)

        state = lab.pipeline().stop_run(force=True, wait_s=15)

        assert state.status is ProcessStatus.DISABLED
        run.wait()
    assert balances(lab) == [100, 200, 300, 400]
    catch_up(lab)
    assert balances(lab) == [101, 200, 301, 400]
    assert lab.errors() == []
