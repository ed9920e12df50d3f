"""The page's server: beside a run, or alone; it ends with what started it, and never ends that."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from penstock.config.pipeline import PipelineConfig
from penstock.errors import ConfigError
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.publication import Publication
from penstock.web.access import Access, new_token, read_token
from penstock.web.address import Address, listen, read_address
from penstock.web.app import make_app
from penstock.web.watcher import Watcher

log = logging.getLogger("penstock")

_END_S = 1
"""How long open pages may take to be let go."""


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


class WebServer:
    """Serves pipelines in a thread of its own, from `start` until `close`."""

    def __init__(
        self,
        configs: Sequence[tuple[Path, PipelineConfig]],
        open_pipeline: Callable[[PipelineConfig], Pipeline | Publication],
        settings: WebSettings,
    ) -> None:
        """Take the address; no page is served yet.

        Raises:
            ConfigError: The address or the token file is none, or two pipelines have one name.
            OperatorError: The address is taken.
        """
        names = [config.name for _, config in configs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"two pipeline files are called {twice!r}", do="give one of them another name")
        wanted = read_address(settings.address, option=settings.option)
        token = new_token() if settings.token_file is None else read_token(settings.token_file)
        self._socket, self.address = listen(wanted, option=settings.option)
        access = Access(
            token,
            port=self.address.port,
            is_reading_open=settings.is_reading_open,
            hosts=[*settings.hosts, wanted.host],
        )
        self.url = self.address.url if settings.token_file is not None else f"{self.address.url}/?token={token}"
        self.watchers = [Watcher(config, file, open_pipeline) for file, config in configs]
        self._server = _Server(make_app(self.watchers, access))
        self._thread = threading.Thread(target=self._serve, name="page", daemon=True)

    def start(self) -> None:
        """Begin to serve, and return once pages are answered."""
        self._thread.start()
        self._server.wait_until_started(self._thread)

    def close(self) -> None:
        """Serve no more."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(_END_S + 5)
        self._socket.close()

    @property
    def is_serving(self) -> bool:
        """Whether pages are answered."""
        return self._thread.is_alive()

    def _serve(self) -> None:
        try:
            self._server.run([self._socket])
        except (Exception, SystemExit) as exc:
            # Whatever goes wrong with the page, the run beside it goes on.
            log.warning("the page has ended: %s: it is not served any more", type(exc).__name__)


class _Server:
    """uvicorn, without its logs: they would hold addresses, and so the token."""

    def __init__(self, app: object) -> None:
        config = uvicorn.Config(
            app,  # type: ignore[arg-type]
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


def exposure(address: Address) -> str | None:
    """What to warn of where others than this machine's programs can reach the page; None where they cannot."""
    if address.is_local:
        return None
    return (
        f"the page listens at {address.host}:{address.port}, beyond this machine, and its traffic is not encrypted:"
        " put a proxy with TLS before it, or listen at 127.0.0.1 and come by ssh -L"
    )
