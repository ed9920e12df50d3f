"""The loop of a run, where something other than a batch comes of asking for one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

import pytest

from penstock.apply.ledger import ProcessState
from penstock.apply.patience import Patience
from penstock.apply.process import ApplyProcess, Batch, ProcessConfig, Progress
from penstock.errors import FencedError, OperatorError, PenstockError
from penstock.position import Limit, Scn

FREED = OperatorError("the change log does not hold what follows position 5")
TAKEN_OVER = FencedError("another run has taken over")


class Feed:
    """A source that has forgotten what follows."""

    def start(self, state: ProcessState) -> None: ...

    def next_batch(self, after: Scn, limit: Limit) -> Batch | None:
        raise FREED

    def wait(self, stop: threading.Event, timeout_s: float) -> None: ...

    def tick(self) -> Scn:
        return Scn(9)

    def free(self, upto: Scn) -> None: ...

    def close(self) -> None: ...


class Ledger:
    """The ledger of a run, which may have been taken over."""

    def __init__(self, confirm: Callable[[], None]) -> None:
        self.confirm = confirm

    def acquire(self, source: str, *, lanes: int) -> ProcessState:
        return ProcessState("A1", 1, "ENABLED", None, Scn(5), Scn(5), None, None, 0, 0, 0, 0)

    def complete(self, end: Scn, consistent_at: datetime | None) -> None: ...

    def note_idle(self, consistent_at: datetime) -> None: ...

    def set_status(self, status: str, error: str | None = None) -> None: ...

    def close(self) -> None: ...


class Nobody:
    """Hears nothing."""

    def following(self) -> None: ...

    def progressed(self, progress: Progress) -> None: ...

    def waiting(self, progress: Progress) -> None: ...

    def retrying(self, error: PenstockError, left_s: float) -> None: ...


def taken_over() -> None:
    raise TAKEN_OVER


def alone() -> None: ...


@pytest.mark.parametrize(("confirm", "error"), [(taken_over, TAKEN_OVER), (alone, FREED)])
def test_a_run_that_was_taken_over_says_so_and_not_that_the_log_is_gone(
    confirm: Callable[[], None], error: PenstockError
) -> None:
    stop = threading.Event()
    process = ApplyProcess(
        source="DBS1",
        feed=Feed(),
        ledger=Ledger(confirm),
        prepare=lambda state, stop: None,
        config=ProcessConfig(),
        patience=Patience(0, stop, Nobody()),
        listener=Nobody(),
    )

    with pytest.raises(type(error)) as caught:
        process.run(stop)

    assert caught.value is error
