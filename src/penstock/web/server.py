"""The page's server: beside a run, or alone; it ends with what started it, and never ends that."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.config.pipeline import PipelineConfig
from penstock.errors import ConfigError, OperatorError
from penstock.metrics import RunMetrics
from penstock.metrics.address import LOOPBACK, Address
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.publication import Publication
from penstock.web.access import Access, new_token, read_token
from penstock.web.app import make_app
from penstock.web.watcher import Watcher

log = logging.getLogger("penstock")

_END_S = 1
"""How long open pages may take to be let go."""

_MOST_CONNECTIONS = 640
"""Each takes a file of the process, and the run beside the page needs some of the 1,024 that it may open."""

_HEAD_S = 20.0
"""How long a client may take to say what it wants."""


@dataclass(frozen=True)
class WebSettings:
    """How the page is served.

    Attributes:
        address: As people write it.
        token_file: Where the token is; None makes one.
        hosts: Names that browsers may call this machine by.
        option: What the address was given by, for messages.
    """

    address: str
    token_file: Path | None = None
    is_reading_open: bool = False
    hosts: Collection[str] = ()
    option: str = "--listen"


class Door:
    """The page's address, which is taken, and who may enter."""

    def __init__(self, settings: WebSettings) -> None:
        """Take the address; no page is served yet.

        Raises:
            ConfigError: The address or the token file is none, or the address is taken.
        """
        wanted = Address.parse(settings.address, option=settings.option)
        token = new_token() if settings.token_file is None else read_token(settings.token_file)
        self.socket = wanted.listen(option=settings.option)
        self.address = Address(wanted.host, self.socket.getsockname()[1])
        self.token_file = settings.token_file
        hosts = [*settings.hosts, wanted.host]
        self.access = Access(token, port=self.address.port, is_reading_open=settings.is_reading_open, hosts=hosts)
        self.home = url_of(self.address)
        self.url = self.home if settings.token_file is not None else f"{self.home}/?token={token}"

    @property
    def warning(self) -> str | None:
        """What to warn of where others than this machine's programs can reach the page; None where they cannot."""
        if self.address.is_local:
            return None
        return (
            f"the page listens at {self.address}, beyond this machine, and its traffic is not encrypted: put a proxy"
            " with TLS before it, or listen at 127.0.0.1 and come by ssh -L"
        )

    def close(self) -> None:
        """Give the address back."""
        self.socket.close()


def url_of(address: Address) -> str:
    """How a browser on this machine reaches an address."""
    host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(address.host, address.host)  # noqa: S104
    return f"http://{Address(host, address.port)}"


class WebServer:
    """Serves pipelines in a thread of its own, from `start` until `close`."""

    def __init__(
        self,
        door: Door,
        configs: Sequence[PipelineConfig],
        open_pipeline: Callable[[PipelineConfig], Pipeline | Publication],
        runs: Sequence[RunMetrics] = (),
    ) -> None:
        """Prepare to serve; nothing is asked yet.

        Args:
            open_pipeline: Opens a pipeline; the page has some to itself, and shares no session with a run.
            runs: What runs of this process count, for /metrics.

        Raises:
            ConfigError: Two pipelines have one name.
        """
        names = [config.name for config in configs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"two pipeline files are called {twice!r}", do="give one of them another name")
        self.door = door
        self.watchers = [Watcher(config, open_pipeline) for config in configs]
        self._server = _Server(make_app(self.watchers, door.access, runs))
        self._thread = threading.Thread(target=self._serve, name="page", daemon=True)

    def start(self) -> None:
        """Begin to serve, and return once pages are answered.

        Raises:
            OperatorError: They are not; the log says why.
        """
        self._thread.start()
        self._server.wait_until_started(self._thread)
        if not self.is_serving:
            raise OperatorError("the page's server has not started", where=self.door.home)

    def close(self) -> None:
        """Serve no more."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(_END_S + 5)

    @property
    def is_serving(self) -> bool:
        """Whether pages are answered."""
        return self._thread.is_alive()

    def _serve(self) -> None:
        try:
            self._server.run([self.door.socket])
        except (Exception, SystemExit) as exc:
            # Whatever goes wrong with the page, the run beside it goes on.
            log.warning("the page has ended: %s: it is not served any more", type(exc).__name__)


class _Connection(H11Protocol):
    """One of a limited number, which ends where nothing is asked: anybody may connect, and without a token."""

    _impatience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > _MOST_CONNECTIONS:
            transport.abort()
        else:
            self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
        super().connection_lost(exc)

    @property
    def _is_asked(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_request(self) -> None:
        if self._is_asked:
            if self._impatience is not None:
                self._impatience.cancel()
                self._impatience = None
        elif self._impatience is None:
            self._impatience = self.loop.call_later(_HEAD_S, self._lose_patience)

    def _lose_patience(self) -> None:
        self._impatience = None
        if not self._is_asked:
            self.transport.close()


class _Server:
    """uvicorn, without its logs: they would hold addresses, and so the token."""

    def __init__(self, app: object) -> None:
        config = uvicorn.Config(
            app,  # type: ignore[arg-type]
            http=_Connection,
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=_END_S,
        )
        self._server = uvicorn.Server(config)

    @property
    def should_exit(self) -> bool:
        return self._server.should_exit

    @should_exit.setter
    def should_exit(self, is_over: bool) -> None:
        self._server.should_exit = is_over

    def run(self, sockets: list[socket.socket]) -> None:
        self._server.run(sockets)

    def wait_until_started(self, thread: threading.Thread) -> None:
        while not self._server.started and thread.is_alive():
            thread.join(0.02)
