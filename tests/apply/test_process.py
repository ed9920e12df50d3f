"""The loop of a run, where something other than a batch comes of asking for one."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime

import pytest

from penstock.apply.ddl_log import APPLIED, LEFT_OUT, LoggedDdl
from penstock.apply.error_queue import ErrorEntry
from penstock.apply.lane import LaneResult
from penstock.apply.ledger import ProcessState, ProcessStatus, QueueState
from penstock.apply.parameters import Parameters
from penstock.apply.process import ApplyProcess
from penstock.apply.progress import Progress
from penstock.apply.retry_policy import RetryPolicy
from penstock.apply.table_counts import TableCounts
from penstock.change import TableName
from penstock.errors import FencedError, OperatorError, PenstockError, RetryableError, TooManyErrorsError
from penstock.history import CaptureOrigin, Consumer, History, Joined
from penstock.pipeline.report import Report
from penstock.pipeline.running import CopyWatch
from penstock.position import Anchor, Limit, Scn
from penstock.stream import Slice

FREED = OperatorError("the change log does not hold what follows position 5")
TAKEN_OVER = FencedError("another run has taken over")
CUT = Anchor(Scn(5), "m")
ORIGIN = CaptureOrigin("the set", "the place")
HISTORY = History(Consumer("c", "A1"), ORIGIN, Scn(5), CUT, CUT, is_new=False)
STATE = ProcessState("A1", 1, "ENABLED", datetime.now(UTC), None, None, Scn(5), Scn(5), None, 0, 0, 0, 0, 0, HISTORY)


class Feed:
    """A source that has forgotten what follows."""

    source = "DBS1"

    def join(self, history: History) -> Joined:
        return Joined(ORIGIN, history.position, CUT)

    def start(self, state: ProcessState, known: Collection[TableName]) -> None: ...

    def look_around(self) -> None: ...

    def next_batch(self, after: Scn, limit: Limit) -> Slice | None:
        raise FREED

    def apply(self, part: Slice, lanes: int) -> Sequence[LaneResult]:
        return part.apply(lanes=lanes)

    is_gathering = False

    def wait(self, stop: threading.Event, timeout_s: float) -> None: ...

    def tick(self) -> Scn:
        return Scn(9)

    def reached(self, position: Scn) -> None: ...

    def free(self, upto: Scn) -> None: ...

    def close(self) -> None: ...


class Ledger:
    """The ledger of a run, which may have been taken over."""

    def __init__(self, confirm: Callable[[], None]) -> None:
        self.confirm = confirm

    def acquire(self, source: str, *, lanes: int) -> ProcessState:
        return STATE

    def adopt(self, found: Joined) -> ProcessState:
        return STATE

    def complete(self, end: Scn, consistent_at: datetime | None, anchor: Anchor | None) -> None: ...

    def count(self, tables: TableCounts) -> None: ...

    def note_idle(self, consistent_at: datetime) -> None: ...

    def set_status(self, status: ProcessStatus, reason: str, error: str | None = None) -> None: ...

    def newly_queued(self) -> list[ErrorEntry]:
        return []

    def newly_altered(self) -> list[LoggedDdl]:
        return []

    def queue_state(self) -> QueueState:
        return QueueState()

    def close(self) -> None: ...


class Nobody:
    """Hears nothing."""

    def following(self) -> None: ...

    def queued(self, entry: object) -> None: ...

    def progressed(self, progress: Progress) -> None: ...

    def waiting(self, progress: Progress) -> None: ...

    def copying(self, chunks: int, tables: int) -> None: ...

    def copied(self, chunks: int, rows: int) -> None: ...

    def retrying(self, error: PenstockError, left_s: float | None) -> None: ...


def taken_over() -> None:
    raise TAKEN_OVER


def alone() -> None: ...


def run(feed: Feed, ledger: Ledger, *, retry_s: float) -> None:
    stop = threading.Event()
    ApplyProcess(
        feed=feed,
        ledger=ledger,
        prepare=lambda state, stop: [],
        parameters=Parameters,
        retry_policy=RetryPolicy(retry_s, stop, Counting()),
        listener=Nobody(),
    ).run(stop)


@pytest.mark.parametrize(("confirm", "error"), [(taken_over, TAKEN_OVER), (alone, FREED)])
def test_a_run_that_was_taken_over_says_so_and_not_that_the_log_is_gone(
    confirm: Callable[[], None], error: PenstockError
) -> None:
    with pytest.raises(type(error)) as caught:
        run(Feed(), Ledger(confirm), retry_s=0)

    assert caught.value is error


class Failing:
    """A batch that cannot be applied, however often it is tried."""

    end = Scn(6)
    total_changes = 1
    anchor = CUT
    last_committed_at = None

    def __len__(self) -> int:
        return 1

    def apply(self, *, lanes: int) -> Sequence[LaneResult]:
        raise RetryableError("a Spark task failed")


class FailingFeed(Feed):
    def next_batch(self, after: Scn, limit: Limit) -> Slice | None:
        return Failing()


class Counting(Nobody):
    def __init__(self, *, most: int = 4) -> None:
        self.retries = 0
        self._most = most

    def retrying(self, error: PenstockError, left_s: float | None) -> None:
        self.retries += 1
        assert self.retries <= self._most, "it goes on for ever"


def test_a_batch_that_fails_each_time_is_not_tried_for_longer_than_a_server_that_is_away() -> None:
    with pytest.raises(RetryableError, match="after trying"):
        run(FailingFeed(), Ledger(alone), retry_s=0.5)


def test_a_copy_that_gets_on_may_meet_any_number_of_failures() -> None:
    stop = threading.Event()
    stop.set()  # No pause.
    retry_policy = RetryPolicy(0.001, stop, Counting(most=10))

    def fail() -> None:
        time.sleep(0.002)
        retry_policy.wait(RetryableError("connection lost"))

    watch = CopyWatch(Nobody(), retry_policy)
    for _ in range(3):
        fail()
        fail()
        watch.copied(1, 10)
    fail()
    fail()
    with pytest.raises(RetryableError, match="after trying"):
        fail()


class Applied(Failing):
    """A batch that is applied."""

    def __init__(self, end: Scn) -> None:
        self.end = end

    def apply(self, *, lanes: int) -> Sequence[LaneResult]:
        return [LaneResult(changes=1)]


class Busy(Feed):
    """A source that always has another batch, up to one at which the run is told to stop."""

    def __init__(self, stop: threading.Event, last: Scn) -> None:
        self._stop, self._last = stop, last

    def next_batch(self, after: Scn, limit: Limit) -> Slice | None:
        time.sleep(0.001)
        if after >= self._last:
            self._stop.set()
        return Applied(Scn(after + 1))


class Queue(Ledger):
    """An error queue of three entries, which somebody deletes."""

    def __init__(self) -> None:
        super().__init__(alone)
        self.asked = 0
        self.completed = Scn(0)

    def complete(self, end: Scn, consistent_at: datetime | None, anchor: Anchor | None) -> None:
        self.completed = end

    def queue_state(self) -> QueueState:
        self.asked += 1
        return QueueState(failed=3 if self.completed < 150 else 0)


class InQueue(Nobody):
    def __init__(self) -> None:
        self.heard: list[int] = []

    def progressed(self, progress: Progress) -> None:
        self.heard.append(progress.in_queue)


def test_a_queue_that_is_cleared_is_seen_also_while_batch_follows_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.apply.process._QUEUE_EVERY_S", 0.05)
    stop, ledger, listener = threading.Event(), Queue(), InQueue()

    ApplyProcess(
        feed=Busy(stop, Scn(300)),
        ledger=ledger,
        prepare=lambda state, stop: [],
        parameters=Parameters,
        retry_policy=RetryPolicy(1, stop, listener),
        listener=listener,
    ).run(stop)

    assert (listener.heard[0], listener.heard[-1]) == (3, 0)
    assert sorted(listener.heard, reverse=True) == listener.heard
    # And not once for every batch.
    assert ledger.asked < len(listener.heard) / 4


class Altered(Ledger):
    """A ledger of a target that DDL was carried out at."""

    def __init__(self) -> None:
        super().__init__(alone)
        name = TableName("public", "customer")
        self.new = [
            LoggedDdl("2279", Scn(6), name, APPLIED, ("column phone dropped",), is_loss=True),
            LoggedDdl("2280", Scn(7), name, APPLIED, ("column mail added (text)",), is_loss=False),
            LoggedDdl("2281", Scn(8), name, LEFT_OUT, ("column mail dropped",), is_loss=True),
        ]

    def newly_altered(self) -> list[LoggedDdl]:
        found, self.new = self.new, []
        return found


def test_what_ddl_did_is_a_line_and_a_warning_where_data_went(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    stop, listener = threading.Event(), Nobody()

    ApplyProcess(
        feed=Busy(stop, Scn(7)),
        ledger=Altered(),
        prepare=lambda state, stop: [],
        parameters=Parameters,
        retry_policy=RetryPolicy(1, stop, Counting()),
        listener=listener,
    ).run(stop)

    assert [(r.levelname, r.__dict__["event"], r.getMessage()) for r in caplog.records] == [
        (
            "WARNING",
            "ddl.applied",
            "public.customer: column phone dropped, as at the source (transaction 2279)",
        ),
        (
            "INFO",
            "ddl.applied",
            "public.customer: column mail added (text), as at the source (transaction 2280)",
        ),
        (
            "INFO",
            "ddl.left_out",
            "public.customer: column mail dropped at the source, and not here: `ddl` leaves it out (transaction 2281)",
        ),
    ]


class Asked(Busy):
    """A source that remembers what it was asked for."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__(stop, Scn(99))
        self.asked: list[Limit] = []

    def next_batch(self, after: Scn, limit: Limit) -> Slice | None:
        self.asked.append(limit)
        return super().next_batch(after, limit)


@pytest.mark.rule("A-191")
def test_parameters_say_how_much_a_batch_takes_and_where_a_run_ends() -> None:
    stop, listener = threading.Event(), InQueue()
    feed = Asked(stop)
    said = iter(
        [
            # Asked once more before the first batch.
            Parameters(),
            Parameters(txn_lcr_spill_threshold=7, transaction_limit=3),
            Parameters(txn_lcr_spill_threshold=None, transaction_limit=3),
            Parameters(maximum_scn=Scn(9), transaction_limit=30),
            Parameters(maximum_scn=Scn(9)),
        ]
    )

    progress = ApplyProcess(
        feed=feed,
        ledger=Ledger(alone),
        prepare=lambda state, stop: [],
        parameters=lambda: next(said),
        retry_policy=RetryPolicy(1, stop, listener),
        listener=listener,
    ).run(stop)

    # From position 5 on, one transaction at a time.
    assert [limit.large_changes for limit in feed.asked] == [7, sys.maxsize, 200_000]
    assert [limit.max_transactions for limit in feed.asked] == [3, 2, 28]
    assert [limit.until for limit in feed.asked] == [None, None, 8]
    assert (progress.position, progress.ended_by) == (8, "it had reached maximum_scn 9")


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        (Parameters(transaction_limit=3, disable_on_limit=True), "it had reached transaction_limit 3"),
        (Parameters(time_limit=1, disable_on_limit=True), "it had reached time_limit 1"),
    ],
)
@pytest.mark.rule("A-191", "A-193")
def test_a_run_ends_at_its_limit(parameters: Parameters, reason: str) -> None:
    stop, listener = threading.Event(), InQueue()

    progress = ApplyProcess(
        feed=Busy(stop, Scn(10**9)),
        ledger=Ledger(alone),
        prepare=lambda state, stop: [],
        parameters=lambda: parameters,
        retry_policy=RetryPolicy(1, stop, listener),
        listener=listener,
    ).run(stop)

    assert progress.ended_by == reason
    assert parameters.transaction_limit is None or len(listener.heard) == 3


def test_a_queue_that_is_cleared_is_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    report = Report(every_s=0)
    report.progressed(Progress(Scn(6), changes=1, errors=3, in_queue=3))
    report.progressed(Progress(Scn(7), changes=1, errors=3, in_queue=3))
    report.progressed(Progress(Scn(8), changes=1, errors=3, in_queue=0))

    said = [record.getMessage() for record in caplog.records]
    assert [line.split(", ")[1] for line in said] == [
        "3 errors (3 in the error queue)",
        "3 errors (0 in the error queue)",
    ]


class Storm:
    """A batch of which every transaction fails."""

    total_changes = 3
    anchor = CUT
    last_committed_at = None

    def __init__(self, end: int) -> None:
        self.end = Scn(end)

    def __len__(self) -> int:
        return 3

    def apply(self, *, lanes: int) -> Sequence[LaneResult]:
        return [LaneResult(errors=2), LaneResult(errors=1)]


class StormFeed(Feed):
    def next_batch(self, after: Scn, limit: Limit) -> Slice | None:
        return Storm(after + 1)


def test_a_run_stops_with_a_code_of_its_own_once_as_many_have_failed_as_may() -> None:
    reasons = []

    class Noting(Ledger):
        def set_status(self, status: ProcessStatus, reason: str, error: str | None = None) -> None:
            reasons.append((status, reason))

    stop = threading.Event()
    process = ApplyProcess(
        feed=StormFeed(),
        ledger=Noting(alone),
        prepare=lambda state, stop: [],
        parameters=lambda: Parameters(max_errors=5),
        retry_policy=RetryPolicy(0, stop, Counting()),
        listener=Nobody(),
    )

    with pytest.raises(TooManyErrorsError, match=r"6 transactions into the error queue \(max_errors 5\)") as caught:
        process.run(stop)

    assert caught.value.exit_code == 6
    assert process.errors == 6
    assert reasons == [(ProcessStatus.ABORTED, "apply stopped: this run has put 6 transactions into the error queue")]
