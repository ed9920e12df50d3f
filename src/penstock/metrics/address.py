"""Where a server of ours listens: `HOST:PORT`, or only a port, which means this machine alone."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from penstock.errors import ConfigError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Address:
    """A host and a port; port 0 takes any that is free."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, option: str) -> Address:
        """Read `HOST:PORT`, `[HOST]:PORT` with an IPv6 address, `:PORT` or `PORT`; without a host it is localhost.

        Raises:
            ConfigError: It is none of these.
        """
        host, _, port = text.strip().rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if is_bracketed else host
        if not (port.isascii() and port.isdigit()) or int(port) > 65535 or (":" in host and not is_bracketed):
            raise ConfigError(
                f"{option} {text!r} is not an address",
                do="write HOST:PORT, [IPV6]:PORT, or only :PORT for this machine alone",
            )
        return cls(host or LOOPBACK, int(port))

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def listen(self, *, option: str) -> socket.socket:
        """Return a socket that listens there.

        Raises:
            ConfigError: The port is taken, or the host is not one of this machine.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            # All addresses of the machine are those of IPv4, too.
            is_dual = self.host == "::" and socket.has_dualstack_ipv6()
            listening = socket.create_server((self.host, self.port), family=family, backlog=64, dualstack_ipv6=is_dual)
        except OSError as exc:
            reason = (exc.strerror or type(exc).__name__).lower()
            raise ConfigError(
                f"{option}: cannot listen at {self}: {reason}", do="name another port, or end what listens there"
            ) from exc
        # The process that Python workers are forked from would hold the port for as long as it outlives a killed run.
        os.register_at_fork(after_in_child=listening.close)
        return listening

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_own_host(host: str, names: Collection[str] = ()) -> bool:
    """Whether a request's `Host` calls this machine by a number, by `localhost`, or by one of its names.

    Another site's name may be made to lead here (DNS rebinding), and its scripts could then read what this machine
    answers. A number cannot.
    """
    if host.startswith("["):
        name, end, port = host[1:].partition("]")
        if not end or port[:1] not in ("", ":"):
            return False
        port = port[1:]
    else:
        name, _, port = host.partition(":")
    if port and not port.isdecimal():
        return False
    if name.lower() in {"localhost", *(one.lower() for one in names)}:
        return True
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False
