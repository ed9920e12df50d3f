"""The pages that show pipelines at work, and the stream of what is seen of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.metrics import CONTENT_TYPE, PipelineSample, RunMetrics, exposition
from penstock.web.render import shown
from penstock.web.samples import SPANS

if TYPE_CHECKING:
    from penstock.web.site import Site
    from penstock.web.watcher import Sighting, Watcher

_QUIET_S = 15.0
"""A stream that says nothing for longer is taken for dead by what lies between."""

_MOST_STREAMS = 500


class LivePages:
    """Home, the page of one pipeline, and what keeps them current."""

    def __init__(self, site: Site, runs: Sequence[RunMetrics]) -> None:
        """Show the pipelines of a site, and what runs of this process count."""
        self._site = site
        self._runs = runs
        self._renderer = site.renderer
        self._streams = 0

    async def home(self, request: Request) -> Response:
        """Show the one pipeline, or all of them."""
        watchers = list(self._site.watchers.values())
        if len(watchers) == 1:
            return self._pipeline(request, watchers[0])
        cards = [(watcher.name, self._renderer.card(watcher, watcher.seen)) for watcher in watchers]
        return self._site.page(request, "home.html", cards=cards)

    async def pipeline(self, request: Request) -> Response:
        """Show one pipeline."""
        return self._pipeline(request, self._site.watcher(request))

    def _pipeline(self, request: Request, watcher: Watcher) -> Response:
        parts = self._renderer.parts(watcher, watcher.seen)
        return self._site.page(request, "pipeline.html", parts=parts, **shown(watcher, watcher.seen))

    async def samples(self, request: Request) -> Response:
        """Return the samples of a span, the oldest first."""
        span = request.query_params.get("span", "0")
        if span not in map(str, range(len(SPANS))):
            raise HTTPException(404, "There is no such span of time.")
        watcher = self._site.watcher(request)
        return JSONResponse([sample.to_json() for sample in watcher.samples.of(int(span))])

    async def status(self, _: Request) -> Response:
        """Return every pipeline's status for programs, as `penstock status --json` has it."""
        found = {}
        for name, watcher in self._site.watchers.items():
            observation = None if watcher.seen is None else watcher.seen.observation
            status = None if observation is None else observation.status
            found[name] = {
                "at": None if observation is None else observation.at.isoformat(),
                "lost": None if observation is None else observation.lost,
                "status": None if status is None else status.to_json(),
            }
        return JSONResponse(found)

    async def metrics(self, _: Request) -> Response:
        """Return the metrics of all pipelines, of what was seen last: a scrape asks no database."""
        samples = []
        for name, watcher in self._site.watchers.items():
            seen = None if watcher.seen is None else watcher.seen.observation
            if seen is not None:
                samples.append(
                    PipelineSample(
                        name,
                        seen.status,
                        seen.queued,
                        seen.at.timestamp(),
                        seen.took_s,
                        changes=seen.detail.changes if seen.detail is not None else {},
                    )
                )
        return Response(exposition(samples, self._runs), headers={"Content-Type": CONTENT_TYPE})

    async def alive(self, _: Request) -> Response:
        """Say that the page's server is there, and knows the browser."""
        return Response(status_code=204)

    async def events(self, request: Request) -> Response:
        """Stream what is seen of one pipeline, or of all of them."""
        if self._streams >= _MOST_STREAMS:
            raise HTTPException(503, "Too many pages are open.")
        name = request.query_params.get("pipeline")
        if name is not None and name not in self._site.watchers:
            raise HTTPException(404, "There is no such pipeline on this page.")
        watchers = [self._site.watchers[name]] if name is not None else list(self._site.watchers.values())
        self._streams += 1
        return _EventStream(self._stream(watchers, as_card=name is None), self._ended)

    def _ended(self) -> None:
        self._streams -= 1

    async def _stream(self, watchers: list[Watcher], *, as_card: bool) -> AsyncIterator[str]:
        """Yield events. Each holds only parts that are not as this page has them already."""
        news: asyncio.Queue[tuple[Watcher, Sighting]] = asyncio.Queue(maxsize=1)

        async def listen(watcher: Watcher) -> None:
            async with aclosing(watcher.news()) as found:
                async for seen in found:
                    await news.put((watcher, seen))

        listening = [asyncio.create_task(listen(watcher)) for watcher in watchers]
        sent: dict[str, str] = {}
        try:
            yield "retry: 3000\n\n"
            while not all(task.done() for task in listening):
                try:
                    watcher, seen = await asyncio.wait_for(news.get(), _QUIET_S)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                yield self._renderer.event(watcher, seen, sent, as_card=as_card)
        finally:
            for task in listening:
                task.cancel()


class _EventStream(StreamingResponse):
    """A response of server-sent events that says when it is over, even if the browser left before it began."""

    def __init__(self, events: AsyncIterator[str], when_over: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._when_over = when_over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._when_over()
