"""Answers `GET /metrics`, on threads and connections of its own: a run beside it waits for nothing here."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from penstock.events import Event, tell
from penstock.metrics.address import Address, is_own_host
from penstock.metrics.exposition import CONTENT_TYPE, exposition
from penstock.metrics.run_metrics import RunMetrics
from penstock.metrics.sample import PipelineSample
from penstock.metrics.sampler import Sampler

_READ_S = 10.0
"""A client that takes longer to say what it wants is left."""

_AT_ONCE = 32
"""Each client takes a thread and a file of the process, and anybody who reaches the port may be many."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = False
    # Set by `serving`.
    text: Callable[[], bytes]
    hosts: Collection[str]

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, _Handler, bind_and_activate=False)
        self._slots = threading.BoundedSemaphore(_AT_ONCE)

    def verify_request(self, *_: object) -> bool:
        """Whether there is room for one more client; it is hung up on where there is none."""
        return self._slots.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a client, and give its place to another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no news; the base class prints a traceback."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _READ_S
    server: _Server
    server_version = "penstock"
    sys_version = ""

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not is_own_host(hosts[0], self.server.hosts):
            text = b"penstock: this machine is not called that; name it with --host-name where the run is started\n"
            self._answer(421, text, "text/plain; charset=utf-8")
            return
        if self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"penstock: metrics are at /metrics\n", "text/plain; charset=utf-8")
            return
        try:
            text = self.server.text()
        except Exception as exc:
            # Unforeseen: Prometheus shows the status, and a person finds the kind in the answer.
            self._answer(500, f"penstock: {type(exc).__name__}\n".encode(), "text/plain; charset=utf-8")
            return
        self._answer(200, text, CONTENT_TYPE)

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """A line for each scrape would bury the run's own."""


@contextmanager
def serving(
    listening: socket.socket,
    look: Callable[[], Sequence[PipelineSample]],
    runs: Sequence[RunMetrics] = (),
    hosts: Collection[str] = (),
) -> Iterator[str]:
    """Serve metrics while the block runs; yields their url.

    Args:
        listening: A socket that listens; it is closed in the end.
        look: Asks pipelines where they stand; it is called on a thread of its own, and only when somebody scrapes.
        runs: The runs of this process.
        hosts: Names that clients may call this machine by, besides localhost and numbers.
    """
    address = Address(*listening.getsockname()[:2])
    server = _Server((address.host, address.port))
    server.socket.close()
    server.socket = listening
    sampler = Sampler(look)
    server.text = lambda: exposition(sampler.latest(), runs)
    server.hosts = hosts
    url = f"http://{address}/metrics"
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        tell(Event.NOTE, f"metrics at {url}", {"url": url})
        if not address.is_local:
            text = f"metrics at {address}: other machines can read names of tables and consumers, without a password"
            tell(Event.NOTE, text, level=logging.WARNING)
        yield url
    finally:
        server.shutdown()
        server.server_close()
        sampler.close()
