"""What the pages of one server share: its pipelines, its templates, who may do what."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from penstock.web.access import Access
from penstock.web.jobs import Jobs
from penstock.web.render import FOLDER, Renderer
from penstock.web.watcher import Watcher

_MOST_BYTES = 8 << 20
_MOST_FIELDS = 20_000
"""Of a form. What is edited has values of rows in it, so it may be large."""

_SLOWEST_S = 60.0
"""How long a form may take to arrive."""

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Site:
    """The pipelines that are shown, by name."""

    def __init__(self, watchers: Sequence[Watcher], access: Access, renderer: Renderer) -> None:
        """Show pipelines, which are watched by `watchers`."""
        self.watchers: Mapping[str, Watcher] = {watcher.name: watcher for watcher in watchers}
        self.access = access
        self.renderer = renderer
        self.jobs = {name: Jobs(watcher.look_soon) for name, watcher in self.watchers.items()}
        self.assets = {path.name: path.read_bytes() for path in _assets() if path.suffix in _TYPES}
        version = hashlib.sha256(b"".join(self.assets.values())).hexdigest()[:12]
        renderer.set("asset", lambda name: f"/static/{name}?{version}")

    def watcher(self, request: Request) -> Watcher:
        """The pipeline that a path names.

        Raises:
            HTTPException: There is none of this name.
        """
        found = self.watchers.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "There is no such pipeline on this page.")
        return found

    def page(self, request: Request, template: str, *, code: int = 200, **values: Any) -> Response:
        """Fill a template for a person."""
        is_known = bool(request.state.is_known)
        html = self.renderer.page(
            template,
            pipelines=list(self.watchers),
            is_known=is_known,
            form_token=self.access.form_token if is_known else "",
            **values,
        )
        return HTMLResponse(html, code)

    def refuse_strangers(self, request: Request) -> None:
        """Make sure that a person has shown the token, as row values and actions need it in any case.

        Raises:
            HTTPException: They have not.
        """
        if not request.state.is_known:
            raise HTTPException(401)

    async def form(self, request: Request) -> Mapping[str, str]:
        """Read the form of an action.

        Raises:
            HTTPException: It is not of this page, or too large.
        """
        self.refuse_strangers(request)
        too_large = "The form is larger than 8 MB. `penstock errors edit` takes any size."
        form = await read_form(request, most=_MOST_BYTES, too_large=too_large)
        if not self.access.is_own_form(form.pop("form_token", ""), request.headers.get("sec-fetch-site")):
            raise HTTPException(403, "This form is not of this page, or of an earlier start. Load the page again.")
        return form

    async def asset(self, request: Request) -> Response:
        """Send a file of the page. Only names that were there at the start lead to any."""
        name = request.path_params["file"]
        if name not in self.assets:
            raise HTTPException(404, "There is no such file.")
        headers = {"Cache-Control": "private, max-age=31536000, immutable"}
        return Response(self.assets[name], media_type=_TYPES[Path(name).suffix], headers=headers)


async def read_form(request: Request, *, most: int, too_large: str) -> dict[str, str]:
    """Read a form of at most so many bytes: what is larger, or does not end, is not kept in memory.

    Raises:
        HTTPException: It is too large, too slow, or none.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(_SLOWEST_S):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise HTTPException(413, too_large)
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except TimeoutError:
        raise HTTPException(408, "The form did not arrive whole.") from None
    except ValueError:
        raise HTTPException(400, "This is not a form of this page.") from None


def _assets() -> list[Path]:
    return sorted((FOLDER / "static").iterdir())
