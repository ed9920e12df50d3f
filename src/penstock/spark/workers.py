"""Python workers forked from the run itself, which has imported all that a worker needs.

Spark's Java process starts a program (`daemon`) to fork workers from, and only when it has its first task for one. To
import everything anew takes that program more than a second. So the run forks a process as soon as it has imported
everything, while Java is still starting. The program that Java starts finds it by `ADDRESS`, hands its standard streams
and environment over, and waits until it ends. Where there is no such process, the program imports everything itself.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ADDRESS = "PENSTOCK_WORKERS"
"""The variable that tells Java's program where the forked process listens."""

_STREAMS = (0, 1, 2)

_held: list[int] = []
"""Ends of pipes that close when this program ends, however it ends."""


def fork(address: str, be_daemon: Callable[[], None]) -> None:
    """Fork the process that workers will be forked from.

    To be called before this program has started threads that hold locks. Elsewhere than on Linux nothing is forked:
    libraries of other systems do not all survive it. The process ends with this program, unless
    it has become the daemon by then: that one ends with Java.

    Args:
        address: Path of the socket to listen at, in a folder of this user's alone.
        be_daemon: What the process does once it has been given Java's streams.
    """
    if sys.platform != "linux":
        return
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(address)
        listener.listen(1)
    except OSError:
        # The path may be too long for a socket: then Java's program imports everything itself.
        listener.close()
        return
    until_we_end, ours = os.pipe()
    with warnings.catch_warnings():
        # The one other thread passes on what Java says, and holds no lock that the process will want.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        listener.close()
        os.close(until_we_end)
        _held.append(ours)
        return
    code = 1
    try:
        os.close(ours)
        if _took_over(listener, until_we_end):
            be_daemon()
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def hand_over(address: str) -> bool:
    """Give this program's streams and environment to the process at an address, and wait until that ends.

    Returns:
        False where no process listens.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(address)
        except OSError:
            return False
        socket.send_fds(connection, [b"\0"], _STREAMS)
        connection.sendall(json.dumps({"environment": dict(os.environ), "arguments": sys.argv}).encode())
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1):
            pass
    return True


def _took_over(listener: socket.socket, until_run_ends: int) -> bool:
    """Wait to be given streams and environment, and take them for our own; False where the run ended before."""
    # A terminal's interrupt is for the run.
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    # Objects of the run that are garbage would close descriptors which are something else by then.
    gc.disable()
    gc.freeze()
    _close_all_but(*_STREAMS, listener.fileno(), until_run_ends)
    ready, _, _ = select.select([listener.fileno(), until_run_ends], [], [])
    if listener.fileno() not in ready:
        return False
    connection, _ = listener.accept()
    _, streams, _, _ = socket.recv_fds(connection, 1, len(_STREAMS))
    told = bytearray()
    while part := connection.recv(65536):
        told += part
    for stream, given in zip(_STREAMS, streams, strict=True):
        os.dup2(given, stream)
    # The connection stays open: Java's program waits for its end.
    _held.append(connection.detach())
    _close_all_but(*_STREAMS, *_held)
    given_over = json.loads(told)
    os.environ.clear()
    os.environ.update(given_over["environment"])
    sys.argv = given_over["arguments"]
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(stream, mode, closefd=False) for stream, mode in zip(_STREAMS, "rww", strict=True)
    )
    # It was looked for under another environment.
    tempfile.tempdir = None
    gc.enable()
    return True


def _close_all_but(*kept: int) -> None:
    """Close what was inherited: Java would not end as long as its input is open here, too."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in kept:
            # The one by which the folder was read is closed already.
            with suppress(OSError):
                os.close(int(entry.name))
