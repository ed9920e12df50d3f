"""Reads where the process of a pipeline stands, and refuses a source that has another history. Writes nothing.

Why a run stops is decided and written in `apply.process`.
"""

from __future__ import annotations

from penstock.apply.ledger import ProcessState
from penstock.errors import OperatorError
from penstock.pipeline.connectors import TargetLedger
from penstock.position import START, Scn
from penstock.stream import Source


def held_state(ledger: TargetLedger, stream: Source) -> ProcessState | None:
    """Return where the process stands, once it is sure that the source has the history it follows.

    Raises:
        OperatorError: The source has another history.
    """
    while True:
        state = ledger.state()
        try:
            if state is not None:
                stream.hold_against(state.history)
        except OperatorError:
            # A run that is at work has the log freed up to where it stands, which is read a moment earlier.
            if ledger.state() == state:
                raise
        else:
            return state


def low_watermark(ledger: TargetLedger) -> Scn:
    """Return the position up to which everything is applied; the start before the first run."""
    state = ledger.state()
    return state.low_watermark if state is not None else START
