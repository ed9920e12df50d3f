"""Controls an apply process through the ledger, wherever its run is: parameters, and requests to stop.

A new run waits here for another one to end, and is refused if it does not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager

from penstock.apply.ledger import ProcessState, ProcessStatus, StopRequest
from penstock.apply.parameters import Parameters, canonical_name, text_to_keep
from penstock.errors import OperatorError, PenstockError, RetryableError
from penstock.pipeline.connectors import TargetConnector, TargetLedger
from penstock.spark.starting import Spark

_LOOK_EVERY_S = 0.25

_ASK_EVERY_S = 1.0
"""How often a run looks whether it is to stop."""


class Control:
    """Parameters of a process, and the end of its run; both kept in the ledger of its target."""

    def __init__(self, process: str, target: TargetConnector, of_file: Parameters) -> None:
        """Speak to a process.

        Args:
            of_file: How it is to work as the pipeline file says.
        """
        self._process = process
        self._target = target
        self._of_file = of_file

    def parameters(self) -> Parameters:
        """How the process works, as the file and what was set have it now."""
        with closing(self._ledger()) as ledger:
            return self.parameters_in(ledger)

    def were_set(self) -> Collection[str]:
        """The names of the parameters that were set, and so come before the file."""
        with closing(self._ledger()) as ledger:
            return set(ledger.parameters())

    def set(self, name: str, text: str | None) -> None:
        """Set a parameter; a run that is at work takes it up with its next batch.

        Args:
            name: See `apply.parameters.Parameters`; its case means nothing.
            text: None has the pipeline file say again what it is. An id of a transaction to ignore adds to those that
                were set, and None forgets these.

        Raises:
            ConfigError: There is no such parameter, or it does not take this; nothing has changed.
        """
        known = canonical_name(name)
        with closing(self._ledger()) as ledger:
            kept = None if text is None else text_to_keep(known, text, ledger.parameters().get(known))
            ledger.set_parameter(known, kept)

    def stop_run(self, *, force: bool = False, wait_s: float = 60) -> ProcessState:
        """Ask the run that is at work, wherever that is, to stop, and wait until it has.

        Args:
            force: Have it stop at once: what it is just applying is rolled back. Otherwise that is finished first.

        Returns:
            Where the process stands then.

        Raises:
            OperatorError: No run is at work.
            RetryableError: It has not stopped in time, and may yet.
        """
        with closing(self._ledger()) as ledger:
            if not ledger.is_running():
                raise OperatorError(
                    f"no run of process {self._process!r} is at work",
                    where=self._target.label,
                    do="there is nothing to stop; `penstock status` says why the last run ended",
                )
            ledger.ask_to_stop(StopRequest.FORCE if force else StopRequest.FINISH)
            deadline = time.monotonic() + wait_s
            while ledger.is_running():
                if time.monotonic() > deadline:
                    raise RetryableError(
                        f"the run of process {self._process!r} has not stopped in {wait_s:g} s",
                        where=self._target.label,
                        do="it stops once its batch is applied; `penstock apply stop --force` has it stop at once",
                    )
                time.sleep(_LOOK_EVERY_S)
            state = ledger.state()
            if state is not None and state.status is ProcessStatus.ENABLED:
                # It could not say so itself, for what it was applying still had locks in the ledger.
                ledger.set_status_of_cut_run("it was told to stop, and was cut short")
                state = ledger.state()
            assert state is not None
            return state

    def _ledger(self) -> TargetLedger:
        if not self._target.has_ledger():
            raise OperatorError("there is no ledger", where=self._target.label, do="run `penstock setup`")
        return self._target.ledger()

    @contextmanager
    def stops(self, spark: Spark, stop: threading.Event) -> Iterator[None]:
        """Set `stop` when the ledger says that this run is to stop; look once a second as long as the block runs."""
        over = threading.Event()

        def watch() -> None:
            with closing(self._target.ledger()) as ledger:
                while not over.wait(_ASK_EVERY_S):
                    try:
                        request = ledger.stop_request()
                    except PenstockError:
                        # The run has a session of its own there, and notices that itself.
                        ledger.close()
                        continue
                    if request is not None:
                        stop.set()
                    if request is StopRequest.FORCE:
                        spark.cancel_jobs()

        watcher = threading.Thread(target=watch, name="stop requests", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def parameters_in(self, ledger: TargetLedger) -> Parameters:
        """The same, of a ledger that is open."""
        return self._of_file.with_set(ledger.parameters())

    def wait_for_other(self, ledger: TargetLedger, stop: threading.Event) -> None:
        """Wait as long as startup_seconds says for another run of the process to end, then refuse."""
        most = self.parameters_in(ledger).startup_seconds
        deadline = None if most is None else time.monotonic() + most
        while (deadline is None or time.monotonic() < deadline) and not stop.is_set() and ledger.is_running():
            stop.wait(_LOOK_EVERY_S)
        if not stop.is_set():
            ledger.refuse_second()
