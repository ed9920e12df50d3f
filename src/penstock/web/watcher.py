"""One watcher for each pipeline: it looks again and again, and everybody who has the page open sees what it has seen.

So a hundred open pages ask the databases no more often than one does.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.change import TableName
from penstock.config.pipeline import PipelineConfig
from penstock.errors import PenstockError
from penstock.metrics import RunMetrics
from penstock.pipeline.observation import Observation, Observer
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.publication import Publication
from penstock.web.samples import CurvePoint, Samples, sample_of

log = logging.getLogger("penstock")

WATCHED_EVERY_S = 2.0
UNWATCHED_EVERY_S = 10.0
"""How often to look, with the page open somewhere and without: the curves go on without it."""

_SHARE = 0.04
_SLOWEST_S = 10.0
"""Looking takes this part of the time, and so is rarer where servers are busy, though no rarer than this."""


@dataclass(frozen=True)
class Sighting:
    """What the last look has shown, with the sample that it adds; `number` counts the looks."""

    number: int
    observation: Observation
    before: Observation | None
    sample: CurvePoint
    every_s: float


class Watcher:
    """Looks at one pipeline in a thread of its own, from `start` until `close`."""

    def __init__(
        self, config: PipelineConfig, open_pipeline: Callable[[PipelineConfig], Pipeline | Publication]
    ) -> None:
        """Watch a pipeline; nothing is connected to yet.

        Args:
            open_pipeline: Opens one; the watcher has one to itself, since each of its methods opens sessions.
        """
        self.config = config
        self.open_pipeline = open_pipeline
        self.run: RunMetrics | None = None
        """What the run counts that the page is served beside, if it is of this pipeline."""
        self.samples = Samples()
        self.seen: Sighting | None = None
        self.changed_at: dict[TableName, datetime] = {}
        """When changes of each table were last seen to be applied."""
        self._watching = 0
        self._over = threading.Event()
        self._soon = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._thread = threading.Thread(target=self._work, name=f"page of {config.name}", daemon=True)

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.config.name

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to look; `loop` is where the news are waited for."""
        self._loop = loop
        self._thread.start()

    def close(self) -> None:
        """Look no more, and let everybody go who waits for news."""
        self._over.set()
        self._soon.set()
        self._tell()

    def look_soon(self) -> None:
        """Look at once: something was done that people want to see."""
        self._soon.set()

    async def news(self) -> AsyncGenerator[Sighting]:
        """Yield what was seen last, and then each time what is new; whoever is slow misses what is old by then."""
        self._watching += 1
        self._soon.set()
        number = 0
        try:
            while not self._over.is_set():
                news = self._news
                if self.seen is not None and self.seen.number != number:
                    number = self.seen.number
                    yield self.seen
                else:
                    await news.wait()
        finally:
            self._watching -= 1

    @property
    def watching(self) -> int:
        """How many pages are open."""
        return self._watching

    def _work(self) -> None:
        with ExitStack() as stack:
            observer: Observer | None = None
            while not self._over.is_set():
                self._soon.clear()
                began = time.monotonic()
                try:
                    if observer is None:
                        observer = stack.enter_context(closing(Observer(self.open_pipeline(self.config))))
                    self._note(observer.look())
                except PenstockError as exc:
                    # Such as a folder that is not mounted yet.
                    self._note(Observation(datetime.now(UTC), lost=str(exc)))
                except Exception as exc:
                    # The page goes on; a fault of ours must not end what it runs beside. The text may hold a value.
                    log.warning("the page could not look at pipeline %s: %s", self.name, type(exc).__name__)
                self._rest(time.monotonic() - began)

    def _note(self, observation: Observation) -> None:
        before, sample = self.seen, sample_of(observation)
        self._note_changed(observation, before.observation if before is not None else None)
        self.samples.add(sample)
        number, last = (1, None) if before is None else (before.number + 1, before.observation)
        self.seen = Sighting(number, observation, last, sample, self._every_s(observation.took_s))
        self._tell()

    def _note_changed(self, now: Observation, before: Observation | None) -> None:
        if now.detail is None or before is None or before.detail is None:
            return
        changes = {one.table: one.changes for one in before.detail.tables}
        for one in now.detail.tables:
            if one.changes != changes.get(one.table, one.changes):
                self.changed_at[one.table] = now.at

    def _every_s(self, took_s: float) -> float:
        every_s = WATCHED_EVERY_S if self._watching else UNWATCHED_EVERY_S
        return max(every_s, min(took_s / _SHARE, _SLOWEST_S))

    def _rest(self, took_s: float) -> None:
        end = time.monotonic() + self._every_s(took_s)
        # Even for one who does much, not more often than every half second.
        self._over.wait(min(0.5, WATCHED_EVERY_S))
        self._soon.wait(max(0.0, end - time.monotonic()))

    def _tell(self) -> None:
        if self._loop is not None:
            # The loop may have ended with its server.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        waiting, self._news = self._news, asyncio.Event()
        waiting.set()
