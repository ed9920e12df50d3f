"""PgBouncer before a server, as Debian's package installs it. `make test` installs it (scripts/ensure-pgbouncer)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from psycopg.conninfo import conninfo_to_dict

from penstock.demo.servers import _free_port
from tests.program import await_true

FILE = """\
[databases]
* = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 200
logfile = {folder}/log
pidfile = {folder}/pid
unix_socket_dir =
server_reset_query = DISCARD ALL
{more}
"""


class PgBouncer:
    """A pooler on a free port of the loopback interface, before the server of a url; it goes with the block."""

    def __init__(self, url: str, mode: str, *, takes_options: bool = True, size: int = 20) -> None:
        """Pool by `mode`; `takes_options`: drop settings without a word, which PgBouncer otherwise refuses."""
        self._url = url
        self.port = _free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-pgbouncer-"))
        more = "ignore_startup_parameters = options,extra_float_digits" if takes_options else ""
        server = int(conninfo_to_dict(url)["port"])
        text = FILE.format(server=server, port=self.port, mode=mode, size=size, folder=self._folder, more=more)
        (self._folder / "pgbouncer.ini").write_text(text)

    def url(self, url: str | None = None) -> str:
        """The same database, or another one of the server, by way of the pooler."""
        url = url or self._url
        return url.replace(f":{conninfo_to_dict(url)['port']}/", f":{self.port}/")

    def __enter__(self) -> PgBouncer:
        # It refuses to run as root; PostgreSQL's package has made a user for servers.
        user = "postgres" if os.geteuid() == 0 else None
        if user is not None:
            shutil.chown(self._folder, user)
            self._folder.chmod(0o755)
        program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        self._process = subprocess.Popen(
            [program, "-q", str(self._folder / "pgbouncer.ini")], user=user, stderr=subprocess.DEVNULL
        )
        await_true(self._answers, 20, (self._folder / "log").read_text)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder)

    def _answers(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0
