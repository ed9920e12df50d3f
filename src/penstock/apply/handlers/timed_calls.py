"""A time limit for calls of a user's functions; which function is called, and when, `runner.py` decides.

Calls are made on a thread of their own. One that is late is left there, with a target that answers it no more; the
statement that it waits for is ended, and Python code is interrupted as soon as it runs again.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

_GRACE_S = 2.0
"""How long a late call has to notice that it is over, before it is left behind."""


class LateError(Exception):
    """A call took too long, and was interrupted or left behind."""


class _OverError(BaseException):
    """Raised inside a call whose time is over."""


@dataclass
class _Job:
    work: Callable[[], None]
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


class Caller:
    """Makes calls on one thread, so that what a function keeps for its thread is there the next time."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] | None = None
        self._thread: threading.Thread | None = None

    def call(self, work: Callable[[], None], *, timeout_s: float, interrupt: Callable[[], bool]) -> None:
        """Call, and raise what the call raises.

        Args:
            interrupt: Ends what the call may wait for at the target, and shuts it out; False while it has not yet.

        Raises:
            LateError: It took longer than `timeout_s`.
        """
        job = _Job(work)
        jobs = self._start()
        jobs.put(job)
        try:
            is_done = job.done.wait(timeout_s)
        except BaseException:
            self._give_up(job, interrupt)
            raise
        if not is_done:
            self._give_up(job, interrupt)
            raise LateError
        if job.error is not None:
            raise job.error

    def _start(self) -> queue.SimpleQueue[_Job | None]:
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            self._thread = threading.Thread(target=_serve, args=[self._jobs], name="handlers", daemon=True)
            self._thread.start()
            # It ends with the thread that it works for.
            weakref.finalize(self, self._jobs.put, None)
        return self._jobs

    def _give_up(self, job: _Job, interrupt: Callable[[], bool]) -> None:
        """Interrupt a call, and leave its thread behind."""
        assert self._jobs is not None
        assert self._thread is not None
        jobs, thread = self._jobs, self._thread
        self._jobs = self._thread = None
        # It ends behind the call, if that ever ends.
        jobs.put(None)
        for _ in range(10):
            # Only once it is shut out: an exception in the midst of a statement would spoil the session.
            if interrupt() and thread.ident is not None and not job.done.is_set():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_OverError))
            if job.done.wait(_GRACE_S / 10):
                return


_here = threading.local()


def caller_here() -> Caller:
    """The caller of this thread."""
    if not hasattr(_here, "caller"):
        _here.caller = Caller()
    caller: Caller = _here.caller
    return caller


def _serve(jobs: queue.SimpleQueue[_Job | None]) -> None:
    # The interruption of a call may arrive a moment after its end.
    with suppress(_OverError):
        while (job := jobs.get()) is not None:
            try:
                job.work()
            except BaseException as exc:
                job.error = exc
            job.done.set()
