"""Looks at pipelines for whoever asks, once for all of them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from penstock.events import Event, tell
from penstock.metrics.sample import PipelineSample

_EVERY_S = 5.0
"""Two scrapes within so many seconds share a look."""

_SHARE = 0.02
"""A look reads all of the source's log, which may be long; so looks take no more than this part of the time."""

_WAIT_S = 5.0
"""A scrape waits so long for a look, and then takes the one before: Prometheus gives up after 10 s by default."""


class Sampler:
    """Looks at pipelines on a thread of its own, when asked to, and never twice at once."""

    def __init__(
        self,
        look: Callable[[], Sequence[PipelineSample]],
        *,
        every_s: float = _EVERY_S,
        wait_s: float = _WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look by `look`, at most every `every_s` seconds; who asks waits `wait_s` at most."""
        self._look = look
        self._every_s = every_s
        self._wait_s = wait_s
        self._clock = clock
        self._changed = threading.Condition()
        self._found: Sequence[PipelineSample] = ()
        self._next_at = -math.inf
        self._is_looking = self._is_closed = False

    def latest(self) -> Sequence[PipelineSample]:
        """Return what the last look has found, after a new one where it is time; nothing before the first one."""
        with self._changed:
            if self._clock() >= self._next_at:
                if not self._is_looking and not self._is_closed:
                    self._is_looking = True
                    threading.Thread(target=self._work, name="sample", daemon=True).start()
                self._changed.wait_for(lambda: not self._is_looking, self._wait_s)
            return self._found

    def close(self) -> None:
        """Look no more; a look that hangs is left to end by itself."""
        with self._changed:
            self._is_closed = True

    def _work(self) -> None:
        began = self._clock()
        found: Sequence[PipelineSample] | None = None
        try:
            found = self._look()
        except Exception as exc:
            # Unforeseen: what was known stays, with its time. The text may hold a value, so only the kind is told.
            tell(Event.NOTE, f"a look at the pipeline failed: {type(exc).__name__}", level=logging.WARNING)
        finally:
            with self._changed:
                self._is_looking = False
                if found is not None:
                    self._found = found
                now = self._clock()
                self._next_at = max(began + self._every_s, now + (now - began) / _SHARE)
                self._changed.notify_all()
