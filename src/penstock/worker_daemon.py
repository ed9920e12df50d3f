"""The process that Spark forks its Python workers from, with everything imported that a task will need.

A worker that has to import it all takes a second before its first row; forked from here it takes none. Named in
`spark.python.daemon.module`. Spark's own daemon imports as little as it can, for threads do not survive a fork: here
the only one is jemalloc's, which minds forks by itself. Where the run has forked such a process already, this one only
hands over to it; see `workers`.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket

from penstock.spark import workers

_NEEDED = ("pyspark.sql.pandas.serializers", "pyspark.worker")


def main() -> None:
    """Hand over to the process that the run has forked, or be the daemon."""
    # No worker makes a file that others may read, whatever started it.
    os.umask(0o077)
    address = os.environ.get(workers.ADDRESS)
    if address is None or not workers.hand_over(address):
        run()


def run() -> None:
    """Import what is not imported yet, then be the daemon."""
    os.umask(0o077)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import_all()
    # Imported late: a program that only hands over needs nothing of Spark.
    import pyspark.daemon

    work = pyspark.daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        """Serve tasks; end in silence when the driver is gone: it reports itself why it gave a worker up."""
        _acknowledge_at_once(sock)
        try:
            return int(work(sock, authenticated))
        except BrokenPipeError:
            return 1

    # A worker collects garbage after each task; frozen objects are not visited each time.
    gc.freeze()
    pyspark.daemon.worker = worker
    pyspark.daemon.manager()


def import_all() -> None:
    """Import what tasks need."""
    # Imported late, too.
    from penstock import wiring

    for name in (*wiring.TASK_MODULES, *_NEEDED):
        importlib.import_module(name)


def _acknowledge_at_once(sock: socket.socket) -> None:
    """Spare the task the 40 ms for which Linux holds back an acknowledgement.

    Java writes a task in several small pieces, and does not send one before the last one is acknowledged.
    """
    if sock.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_QUICKACK"):
        # Linux forgets it after a while.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


if __name__ == "__main__":
    main()
