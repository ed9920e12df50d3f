"""Where the page listens: an address as people write it, and the socket that is bound to it."""

from __future__ import annotations

import ipaddress
import re
import socket
from contextlib import suppress
from dataclasses import dataclass

from penstock.errors import ConfigError, OperatorError

DEFAULT = "127.0.0.1:8787"

_FORM = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]\s/]*):)?(?P<port>[0-9]{1,5})")


@dataclass(frozen=True)
class Address:
    """A host and a port; port 0 lets the system choose one."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """How a browser on this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine reach it."""
        if self.host == "localhost":
            return True
        with suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return False


def read_address(text: str, *, option: str) -> Address:
    """Read `8787`, `:8787`, `localhost:8787` or `[::1]:8787`; without a host it is this machine's own.

    Raises:
        ConfigError: It is no address.
    """
    found = _FORM.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ConfigError(f"{option} takes HOST:PORT, not {text!r}", do=f"write {option} {DEFAULT}, or a port alone")
    return Address((found["host"] or "").strip("[]") or "127.0.0.1", int(found["port"]))


def listen(address: Address, *, option: str) -> tuple[socket.socket, Address]:
    """Take an address, before anything else is begun.

    Returns:
        The socket, and the address with the port that it has.

    Raises:
        OperatorError: The port is taken, or the host is none of this machine's.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port whose last user has just ended is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(128)
    except OSError as exc:
        listener.close()
        reason = (exc.strerror or str(exc)).lower()
        raise OperatorError(
            f"cannot listen at {address.host}:{address.port}: {reason}",
            do=f"name another address, as {option} 127.0.0.1:{(address.port or 8787) % 65535 + 1}",
        ) from exc
    return listener, Address(address.host, listener.getsockname()[1])
