"""Two at the same work: only the later one may commit."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.apply.lane import LaneResult, ServerConfig
from penstock.apply.ledger import LaneClaim, RunPlace
from penstock.apply.task import apply_lane, in_commit_order
from penstock.dialects.postgres.connection import connect
from penstock.dialects.postgres.target.lane_ledger import PostgresLaneLedger
from penstock.dialects.postgres.target.ledger import PostgresLedger
from penstock.dialects.postgres.target.teardown import teardown_steps
from penstock.errors import FencedError, OperatorError, RetryableError
from penstock.history import CaptureOrigin, Joined
from penstock.position import Anchor, Scn
from penstock.source_switch import SwitchPosition
from tests.faults.proxy import Proxy
from tests.hand_made import T, Target, as_batch, insert, update

TRANSACTIONS = [
    T(20 + i, insert("nk", a=i, b="x", c=i), update("acct", {"id": 1, "bal": i}, {"bal": i + 1})) for i in range(4)
]


@pytest.fixture
def target(database: str) -> Iterator[Target]:
    made = Target(database)
    made.connection.execute("UPDATE acct SET bal = 0 WHERE id = 1")
    yield made
    made.close()


def serve(target: Target, *, epoch: int, attempt: int, moves_watermark: bool = True) -> LaneResult:
    context = target.context(ServerConfig(group_changes=2))
    rows = in_commit_order([as_batch(TRANSACTIONS)], context.catalog.instantiated)
    return apply_lane(rows.to_batches(), LaneClaim("A1", epoch, 0, attempt, moves_watermark), context)


def state(target: Target) -> tuple[int, int, int]:
    row = target.connection.execute("SELECT count(*), max(a) FROM nk WHERE b = 'x'").fetchone()
    assert row is not None
    return row[0], target.one("SELECT bal FROM acct WHERE id = 1"), target.watermarks()[0]


def test_another_source_goes_on_behind_what_is_applied(target: Target) -> None:
    origin = CaptureOrigin("another", "events/another")
    taken = SwitchPosition(Joined(origin, Scn(20), Anchor(Scn(20), "m")), [Scn(22)], "its copy")
    assert serve(target, epoch=target.ledger.state().epoch, attempt=1).transactions == 4  # type: ignore[union-attr]

    target.ledger.switch("DBS2", taken)

    found = target.ledger.state()
    assert found is not None
    assert (found.low_watermark, found.history.origin, found.history.anchor) == (20, origin, taken.joined.anchor)
    claim = LaneClaim("A1", found.epoch, 0, 2, moves_watermark=False)
    with connect(target.url, "test") as connection, connection.transaction():
        assert PostgresLaneLedger(target.url, connection, claim).claim().tolist() == [20, 22]
    assert set(target.ledger.copied_from().values()) <= {"its copy"}


def test_a_second_run_of_the_same_name_is_refused(target: Target) -> None:
    second = PostgresLedger(target.url, "A1")
    with pytest.raises(OperatorError, match="'A1' is running already"):
        second.acquire("DBS1", lanes=1, wait_s=0.1)
    assert target.ledger.is_running()
    second.close()


def test_whoever_has_the_lock_of_a_process_is_named(target: Target) -> None:
    """It is an advisory lock, which anybody who may connect can take."""
    target.ledger.close()
    other = PostgresLedger(target.url, "A1")
    with psycopg.connect(target.url, application_name="psql by hand") as holder:
        holder.execute("SELECT pg_advisory_lock(hashtext('penstock'), hashtext('A1'))")
        named = rf"session {holder.info.backend_pid} \(user '\w+', 'psql by hand', idle in transaction.*\) has its lock"
        with pytest.raises(OperatorError, match=named):
            other.acquire("DBS1", lanes=1, wait_s=0.1)
        with pytest.raises(OperatorError, match=named):
            teardown_steps(target.connection, target.url, "A1")
    other.close()


def test_a_run_is_not_kept_out_by_a_session_of_its_own_that_it_has_lost(target: Target) -> None:
    target.ledger.close()
    at = make_conninfo(target.url)
    with Proxy(int(conninfo_to_dict(at)["port"])) as proxy:
        ledger = PostgresLedger(make_conninfo(at, port=proxy.port), "A1")
        first = ledger.acquire("DBS1", lanes=1)
        proxy.lose()
        ledger.close()

        again = ledger.acquire("DBS1", lanes=1, wait_s=2)

        assert again.epoch == first.epoch + 1
        ledger.close()


def test_the_server_asks_after_a_client_that_has_not_said_anything_for_a_while(target: Target) -> None:
    with connect(target.url, "test") as session:
        settings = session.execute(
            "SELECT setting::int FROM pg_settings WHERE name LIKE 'tcp_keepalives_%' ORDER BY name"
        ).fetchall()

    assert settings == [(3,), (30,), (10,)]


def test_everyone_sees_where_the_run_is_until_it_is_gone(target: Target) -> None:
    onlooker = PostgresLedger(target.url, "A1")

    assert onlooker.run_place() == RunPlace(platform.node(), os.getpid())
    # It waits until the session is gone.
    target.connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name LIKE 'penstock A1 ledger %@%'"
    )
    assert onlooker.run_place() is None
    onlooker.close()


@pytest.mark.rule("A-7")
def test_a_process_keeps_its_source(target: Target) -> None:
    target.ledger.close()
    other = PostgresLedger(target.url, "A1")
    with pytest.raises(OperatorError, match="DBS1"):
        other.acquire("DBS2", lanes=1)
    other.close()


def test_a_run_learns_that_another_one_has_taken_over(target: Target) -> None:
    target.ledger.confirm()
    other = PostgresLedger(target.url, "A1")
    target.connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'penstock A1 ledger%'"
    )
    other.acquire("DBS1", lanes=1, wait_s=5)

    # Its session was lost, which it notices first.
    with pytest.raises(RetryableError):
        target.ledger.confirm()
    with pytest.raises(FencedError, match="another run of process 'A1' has taken over"):
        target.ledger.confirm()
    other.close()


@pytest.mark.parametrize("moves_watermark", [True, False])
def test_what_a_killed_run_put_aside_is_told_by_the_next_one(target: Target, moves_watermark: bool) -> None:
    target.connection.execute("UPDATE acct SET bal = 99 WHERE id = 1")
    assert serve(target, epoch=target.state.epoch, attempt=1, moves_watermark=moves_watermark).errors == 4
    told = target.ledger.newly_queued()
    assert [entry.commit_scn for entry in told] == [20, 21, 22, 23]
    assert target.ledger.newly_queued() == []
    target.ledger.close()
    # A single lane moves the watermark with each commit; several leave it to the end of the batch.
    second = PostgresLedger(target.url, "A1")
    second.acquire("DBS1", lanes=1)
    assert len(second.newly_queued()) == (0 if moves_watermark else 4)
    second.complete(Scn(23), None, None)
    second.close()
    third = PostgresLedger(target.url, "A1")
    third.acquire("DBS1", lanes=1)
    assert third.newly_queued() == []
    assert third.queue_state().total == 4
    third.close()


@pytest.mark.rule("A-212")
@pytest.mark.parametrize("moves_watermark", [True, False])
def test_a_later_attempt_skips_what_an_earlier_one_has_committed(target: Target, moves_watermark: bool) -> None:
    epoch = target.state.epoch
    # The third transaction is in somebody's way: the first attempt waits in front of it with two committed.
    first = serve_until_blocked(target, epoch=epoch, moves_watermark=moves_watermark)
    assert isinstance(first.failure, RetryableError)
    second = serve(target, epoch=epoch, attempt=2, moves_watermark=moves_watermark)
    assert second.failure is None
    assert second.already_applied >= 1
    assert second.already_applied + second.transactions == 4
    rows, balance, _ = state(target)
    assert (rows, balance) == (4, 4)


@pytest.mark.rule("A-213")
def test_an_attempt_that_hangs_inside_a_transaction_does_not_keep_the_lane(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.dialects.postgres.target.lane_ledger._LOCK_TIMEOUT_MS", 200)
    hangs = psycopg.connect(target.url, application_name="penstock A1 apply")
    hangs.execute("UPDATE penstock.lane SET changes = changes + 1 WHERE process = 'A1' AND lane = 0")

    result = serve(target, epoch=target.state.epoch, attempt=2)

    assert (result.failure, result.transactions) == (None, 4)
    assert target.one("SELECT changes FROM penstock.lane WHERE process = 'A1' AND lane = 0") == 8
    with pytest.raises(psycopg.OperationalError):
        hangs.execute("SELECT 1")
    hangs.close()


def serve_until_blocked(target: Target, *, epoch: int, moves_watermark: bool) -> LaneResult:
    """Cut the connection of an attempt after its first transactions, from inside the database."""
    target.connection.execute(
        "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF new.a = 2 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN new; END $$;"
        "CREATE TRIGGER cut BEFORE INSERT ON nk FOR EACH ROW EXECUTE FUNCTION cut();"
        "ALTER TABLE nk ENABLE ALWAYS TRIGGER cut"
    )
    try:
        return serve(target, epoch=epoch, attempt=1, moves_watermark=moves_watermark)
    finally:
        target.connection.execute("DROP FUNCTION cut CASCADE")


@pytest.mark.rule("A-213")
def test_a_new_run_ends_the_sessions_that_an_earlier_one_left_behind(target: Target) -> None:
    left_behind = psycopg.connect(target.url, application_name="penstock A1 apply", autocommit=True)
    target.ledger.close()
    target.ledger.acquire("DBS1", lanes=4)
    with pytest.raises(psycopg.OperationalError):
        left_behind.execute("SELECT 1")
    left_behind.close()
