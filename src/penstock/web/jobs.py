"""What people have asked for: each action goes on by itself, one after the other, and says how it is getting on."""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count as numbers
from queue import SimpleQueue

from penstock.apply.retry import Retried
from penstock.errors import PenstockError
from penstock.pipeline.error_sums import AlikeNotes, failures_in_short
from penstock.text import printable

log = logging.getLogger("penstock")

_KEPT = 20
"""How many actions are remembered."""

_LINES = 100
"""How many lines one of them may say; what is more is counted."""


@dataclass
class Job:
    """One action on the error queue.

    Attributes:
        what: In words, for its heading.
        of: How many entries it is about.
        outcomes: How many entries came to which.
        lines: What is to be said of single entries, and notes.
        left_out: Lines that there was no room for.
        skipped: Entries that fit, but are on hold.
        error: Why it ended before its end.
        entry_id: The one entry that it is about, if it is one.
        again: The form that does for good what a dry run has tried, by its fields.
    """

    number: int
    what: str
    of: int
    entry_id: str | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    left_out: int = 0
    skipped: int = 0
    failed: str = ""
    error: str | None = None
    again: Mapping[str, str] = field(default_factory=dict)
    is_done: bool = False
    done: threading.Event = field(default_factory=threading.Event)

    def say(self, line: str) -> None:
        """Add a line, if there is room for it."""
        if len(self.lines) < _LINES:
            self.lines.append(printable(line))
        else:
            self.left_out += 1

    @property
    def tried(self) -> int:
        """How many entries something has come of."""
        return self.outcomes.total()

    @property
    def has_failed(self) -> bool:
        """Whether somebody should look at what came of it."""
        return self.error is not None or bool(self.failed)


class Jobs:
    """The actions on one error queue; one at a time, in the order in which they were asked for."""

    def __init__(self, when_done: Callable[[], None]) -> None:
        """Begin with none; call `when_done` behind each."""
        self._numbers = numbers(1)
        self._jobs: OrderedDict[int, Job] = OrderedDict()
        self._when_done = when_done
        self._waiting: SimpleQueue[tuple[Job, Callable[[Job], None]] | None] = SimpleQueue()
        # Not kept from ending with the program: what it was doing is rolled back then, and the entry stays.
        threading.Thread(target=self._work, name="page actions", daemon=True).start()

    def find(self, number: int) -> Job | None:
        """Return an action; None where it was so long ago that it is forgotten."""
        return self._jobs.get(number)

    def begin(self, what: str, entry_ids: Sequence[str], work: Callable[[Job], None]) -> Job:
        """Have an action done as soon as those before it are."""
        one = entry_ids[0] if len(entry_ids) == 1 else None
        job = Job(next(self._numbers), what, len(entry_ids), one)
        self._jobs[job.number] = job
        while len(self._jobs) > _KEPT:
            self._jobs.popitem(last=False)
        self._waiting.put((job, work))
        return job

    def close(self) -> None:
        """Take no further action; those that were asked for before are done, as long as the program lives."""
        self._waiting.put(None)

    def _work(self) -> None:
        while (found := self._waiting.get()) is not None:
            self._do(*found)

    def _do(self, job: Job, work: Callable[[Job], None]) -> None:
        try:
            work(job)
        except PenstockError as exc:
            job.error = printable(str(exc))
        except Exception as exc:
            # Its text may hold a value of a row.
            job.error = f"it failed for an unforeseen reason: {type(exc).__name__}"
            log.error("an action on the error queue failed: %s", type(exc).__name__)  # noqa: TRY400
        finally:
            job.is_done = True
            job.done.set()
            self._when_done()


def follow(job: Job, retrying: Callable[[Callable[[str], None]], Iterator[Retried]]) -> None:
    """Apply entries, and keep what came of each.

    Args:
        retrying: Begins it; is given what tells notes, as `Pipeline.retry` has it.
    """
    notes = AlikeNotes(job.say)
    failed: list[Retried] = []
    try:
        for one in retrying(notes.add):
            job.outcomes[str(one.outcome)] += 1
            waited = ", which had waited" if one.has_gone_on else ""
            reason = f": {one.error}" if one.error is not None else ""
            edits = f"; edited, or left out: {', '.join(one.edits)}" if one.edits else ""
            job.say(f"{one.entry_id}{waited}: {one.outcome}{reason}{edits}")
            if one.is_failed:
                failed.append(one)
                job.failed = failures_in_short(failed)
    finally:
        notes.close()
