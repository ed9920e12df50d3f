"""A real HTTP server that keeps what it is sent, and answers as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.program import await_true


@dataclass(frozen=True)
class Request:
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Hook:
    """Attributes: `answer` is called with each request, and returns the status and headers to answer with."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[Request] = []
        self.answer: Callable[[Request], tuple[int, Mapping[str, str]]] = lambda _: (200, {})

    def await_requests(self, number: int, seconds: float = 60) -> list[Request]:
        await_true(lambda: len(self.requests) >= number, seconds, lambda: f"{len(self.requests)} requests")
        return self.requests


@contextmanager
def serving() -> Iterator[Hook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = Request(self.path, {**self.headers}, body)
            hook.requests.append(request)
            status, headers = hook.answer(request)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hook = Hook(f"http://127.0.0.1:{server.server_port}/hook?key=s3cret")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()
