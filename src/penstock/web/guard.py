"""What every request passes first: whose name is it sent to, who sends it, and what browsers may do with the answer."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.web.access import Access
from penstock.web.render import Renderer

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)

HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
"""What every answer says: nothing of it comes from elsewhere, and no other site may frame or read it."""

_OPEN = ("/static/", "/enter")
"""Paths that need no token: the page at the door looks as all others do."""


class Guard:
    """Wraps the application. Its pages find `is_known` in their request's state: the person may act."""

    def __init__(self, app: ASGIApp, access: Access, renderer: Renderer) -> None:
        """Guard an application."""
        self._app = app
        self._access = access
        self._renderer = renderer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it pass."""
        if scope["type"] != "http":
            # There are no web sockets; the application's own start and end pass.
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if "Cache-Control" not in headers:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        answer = self._answer(scope)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """What a request is answered that goes no further."""
        connection = HTTPConnection(scope)
        hosts = Headers(scope=scope).getlist("host")
        if len(hosts) != 1 or not self._access.is_own_host(hosts[0]):
            text = "This machine is not called that. Name it with --host-name where the page is started.\n"
            return PlainTextResponse(text, 421)
        given = connection.query_params.get("token")
        if given is not None:
            return self._enter(scope, given)
        is_known = self._access.is_known(connection.cookies, connection.headers.get("authorization", ""))
        state: dict[str, Any] = scope.setdefault("state", {})
        state["is_known"] = is_known
        may_pass = is_known or self._access.is_reading_open or scope["path"].startswith(_OPEN)
        return None if may_pass else self.door(401)

    def door(self, status: int, *, why: str = "") -> Response:
        """The page that asks for the token."""
        return HTMLResponse(self._renderer.page("door.html", why=why), status)

    def _enter(self, scope: Scope, given: str) -> Response:
        """Take the token out of the address, where it would be seen, and give the browser a cookie."""
        if not self._access.is_token(given):
            return self.door(403, why="The token in this address is wrong, or of an earlier start.")
        query = [(name, value) for name, value in parse_qsl(scope["query_string"].decode()) if name != "token"]
        # Always of this page: a path that begins with two slashes would be another host.
        path = quote("/" + scope["path"].lstrip("/\\"))
        return self.let_in(Headers(scope=scope), f"{path}?{urlencode(query)}" if query else path)

    def let_in(self, headers: Headers, path: str) -> Response:
        """Give the browser its cookie, and have it go on to a path of this page.

        A redirect would count as coming from where the link was, and the cookie would not be sent along.
        """
        answer = HTMLResponse(self._renderer.page("entered.html", path=path))
        # A proxy with TLS says so. Nobody gains by saying it falsely: their own browser would drop the cookie.
        is_encrypted = headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower() == "https"
        answer.set_cookie(
            self._access.cookie_name,
            self._access.cookie,
            secure=is_encrypted,
            httponly=True,
            samesite="strict",
            path="/",
        )
        return answer
