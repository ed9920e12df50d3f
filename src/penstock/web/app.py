"""The page as an ASGI application: its routes, and what a person is told when something is in the way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock.apply.error_queue import NoEntryError
from penstock.errors import ConfigError, PenstockError, RetryableError
from penstock.metrics import RunMetrics
from penstock.text import printable
from penstock.web.access import Access
from penstock.web.guard import Guard
from penstock.web.live import LivePages
from penstock.web.queue_pages import QueuePages
from penstock.web.render import Renderer
from penstock.web.site import Site, read_form
from penstock.web.watcher import Watcher

log = logging.getLogger("penstock")

_LONGEST_ENTRY = 16 << 10
"""Bytes of the form at the door, which anybody may send."""


def make_app(watchers: Sequence[Watcher], access: Access, runs: Sequence[RunMetrics] = ()) -> ASGIApp:
    """Make the application that shows some pipelines; they are watched as long as it is served."""
    for watcher in watchers:
        watcher.run = next((run for run in runs if run.pipeline == watcher.name), None)
    renderer = Renderer()
    site = Site(watchers, access, renderer)
    live, queue = LivePages(site, runs), QueuePages(site)

    @asynccontextmanager
    async def watched(_: Starlette) -> AsyncIterator[None]:
        for watcher in watchers:
            watcher.start(asyncio.get_running_loop())
        try:
            yield
        finally:
            for watcher in watchers:
                watcher.close()
            for jobs in site.jobs.values():
                jobs.close()

    async def enter(request: Request) -> Response:
        form = await read_form(request, most=_LONGEST_ENTRY, too_large="This is not the token.")
        given = form.get("token", "").strip()
        if not access.is_token(given):
            return guard.door(403, why="This is not the token.")
        return guard.let_in(request.headers, "/")

    app = Starlette(
        routes=[
            Route("/", live.home),
            Route("/enter", enter, methods=["POST"]),
            Route("/alive", live.alive),
            Route("/events", live.events),
            Route("/status.json", live.status),
            Route("/metrics", live.metrics),
            Route("/static/{file}", site.asset),
            Route("/p/{name}", live.pipeline),
            Route("/p/{name}/samples", live.samples),
            Route("/p/{name}/errors", queue.list_),
            Route("/p/{name}/errors/history", queue.history),
            Route("/p/{name}/errors/{entry}", queue.show),
            Route("/p/{name}/errors/all/{action:action}", queue.act_on_all, methods=["POST"]),
            Route("/p/{name}/errors/{entry}/{action:action}", queue.act, methods=["POST"]),
            Route("/p/{name}/actions/{number}", queue.action),
        ],
        exception_handlers={
            HTTPException: _Faults(site).of_http,
            PenstockError: _Faults(site).of_penstock,
            ClientDisconnect: _gone,
            Exception: _Faults(site).unforeseen,
        },
        lifespan=watched,
    )
    guard = Guard(app, access, renderer)
    return guard


async def _gone(_: Request, __: Exception) -> Response:
    """Answer nobody: the browser has left before it had said everything, which is no failure of the page."""
    return Response(status_code=400)


class _Faults:
    """Pages that say what is in the way."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def of_http(self, request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        if exc.status_code == HTTPStatus.UNAUTHORIZED:
            why = "Row values and actions need the token."
            return self._site.page(request, "door.html", code=401, why=why)
        return self._page(request, exc.status_code, HTTPStatus(exc.status_code).phrase, exc.detail)

    async def of_penstock(self, request: Request, exc: Exception) -> Response:
        assert isinstance(exc, PenstockError)
        status = 409
        for kind, code in ((NoEntryError, 404), (ConfigError, 400), (RetryableError, 503)):
            if isinstance(exc, kind):
                status = code
        where = f" ({exc.where})" if exc.where else ""
        return self._page(request, status, f"{exc.what[:1].upper()}{exc.what[1:]}{where}", exc.do)

    async def unforeseen(self, request: Request, exc: Exception) -> Response:
        # Its text may hold a value of a row.
        log.error("the page failed at %s: %s", printable(request.url.path), type(exc).__name__)
        return self._page(request, 500, "The page failed", f"{type(exc).__name__}; the pipeline is not affected.")

    def _page(self, request: Request, status: int, what: str, do: str) -> Response:
        name, entry = (request.path_params.get(key) for key in ("name", "entry"))
        # To where the person came from; an entry that is not there leads to the list.
        steps = [f"/p/{name}"] if name in self._site.watchers else []
        steps += ["/errors"] if steps and "/errors" in request.url.path else []
        steps += [f"/{quote(entry)}"] if len(steps) == 2 and entry and status != HTTPStatus.NOT_FOUND else []
        do = f"{do[:1].upper()}{do[1:]}"
        return self._site.page(request, "fault.html", code=status, what=what, do=do, back="".join(steps) or "/")
