"""A TCP proxy in front of a PostgreSQL server, which can cut, stall and lose the connections that go through it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from types import TracebackType

_COPY_DATA = ord("d")
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)
_CHUNK = 1 << 16


class Proxy:
    """Listens on a port of the loopback interface while the block runs, and passes on to another port."""

    def __init__(self, port: int, *, at: int = 0) -> None:
        """Pass on to `port`; `at` is the port to listen at, by default a free one."""
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", at))
        self.port = int(self._listener.getsockname()[1])
        self._links: set[_Link] = set()
        self._flows = threading.Event()
        self._flows.set()
        self._cut_armed: str | None = None
        self._cut_done = threading.Event()

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flows.set()
        self._listener.close()
        self.drop()

    def client_port(self, server_port: int) -> int | None:
        """The port that the client has at its end of the connection that has this one at the server's end."""
        for link in list(self._links):
            with contextlib.suppress(OSError):
                if link.server.getsockname()[1] == server_port:
                    return int(link.client.getpeername()[1])
        return None

    def arm(self, direction: str) -> None:
        """Cut the next connection that is in the middle of a COPY row.

        Args:
            direction: `in` for COPY FROM STDIN, `out` for COPY TO STDOUT.
        """
        self._cut_done.clear()
        self._cut_armed = direction

    def await_cut(self, seconds: float = 60) -> bool:
        """Whether it was cut within so many seconds; it is not armed any more then."""
        was_cut = self._cut_done.wait(seconds)
        self._cut_armed = None
        return was_cut

    def drop(self) -> None:
        """Cut every connection; both ends notice at once."""
        for link in list(self._links):
            link.close()

    def lose(self) -> None:
        """Cut every connection, of which the server hears nothing: as when a machine in between goes away."""
        for link in list(self._links):
            link.forget()

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Pass nothing on while the block runs, and everything after it."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    def _accept(self) -> None:
        # Ends when the listener is closed.
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._to), timeout=10)
                except OSError:
                    _reset(client)
                    continue
                for end in (client, server):
                    end.settimeout(None)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                link = _Link(client, server)
                self._links.add(link)
                threading.Thread(target=self._pass_on, args=(link, "in"), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(link, "out"), daemon=True).start()

    def _pass_on(self, link: _Link, direction: str) -> None:
        """Pass on one direction until either end is closed."""
        source, sink = (link.client, link.server) if direction == "in" else (link.server, link.client)
        frames = _Frames()
        # An end that is reset is an end.
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                self._flows.wait()
                link.is_plain(data, frames, direction)
                inside_copy = frames.feed(data)
                if inside_copy is not None and self._cut_armed == direction and not self._cut_done.is_set():
                    self._cut_done.set()
                    sink.sendall(data[:inside_copy])
                    break
                sink.sendall(data)
        self._links.discard(link)
        link.close(unless_forgotten=True)


class _Link:
    """The two ends of a connection."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self._is_forgotten = False
        self._refuses_ssl = threading.Event()

    def is_plain(self, data: bytes, frames: _Frames, direction: str) -> None:
        """Have the frames begin where messages do: behind the startup packets, which have no type."""
        if frames.has_begun:
            return
        if direction == "in":
            if data.startswith(_SSL_REQUEST):
                self._refuses_ssl.set()
                return
            frames.begin(skip=struct.unpack("!i", data[:4])[0])
        elif self._refuses_ssl.is_set() and data[:1] == b"N":
            self._refuses_ssl.clear()
            if len(data) > 1:
                frames.begin(skip=1)
        else:
            frames.begin(skip=0)

    def close(self, *, unless_forgotten: bool = False) -> None:
        if unless_forgotten and self._is_forgotten:
            return
        for end in (self.client, self.server):
            _reset(end)

    def forget(self) -> None:
        """Reset the client's end; the server's end stays open for as long as this object lives."""
        self._is_forgotten = True
        _lost.append(self.server)
        _reset(self.client)


class _Frames:
    """Follows the messages in one direction of the protocol: a type byte, a length, that many bytes."""

    def __init__(self) -> None:
        self.has_begun = False
        self._left = 0
        self._type = 0
        self._header = b""

    def begin(self, *, skip: int) -> None:
        self.has_begun = True
        self._left = skip

    def feed(self, data: bytes) -> int | None:
        """Take what was received; returns where in it is the middle of a row of COPY, if there is one."""
        at = 0
        inside_copy = None
        while self.has_begun and at < len(data):
            if self._left:
                taken = min(self._left, len(data) - at)
                if self._type == _COPY_DATA:
                    inside_copy = at + taken // 2
                self._left -= taken
                at += taken
                continue
            taken = min(5 - len(self._header), len(data) - at)
            self._header += data[at : at + taken]
            at += taken
            if len(self._header) == 5:
                self._type = self._header[0]
                self._left = struct.unpack("!i", self._header[1:])[0] - 4
                self._header = b""
        return inside_copy


_lost: list[socket.socket] = []
"""Ends that nobody closes, as if the other machine were gone."""


def _reset(end: socket.socket) -> None:
    """Close at once, without a word of farewell."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Wakes a thread that waits in recv, which closing alone does not.
        end.shutdown(socket.SHUT_RDWR)
    end.close()
