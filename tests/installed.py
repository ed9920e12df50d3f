"""Servers of the PostgreSQL that this machine's packages installed.

Beside the wheel's, it has the contrib extensions, libxml, JIT and whatever locale is asked for; and on Debian 12 it is
PostgreSQL 15. `make test` installs it (scripts/ensure-postgresql).
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from penstock.demo.servers import EmbeddedPostgres

LOCALES = ("en_US.UTF-8", "de_DE.UTF-8", "ja_JP.UTF-8")
"""Locales that its servers know beside C: two decimals, a comma, and no decimals."""


class InstalledPostgres(EmbeddedPostgres):
    """A server on a free port of the loopback interface, run by the machine's own programs."""

    def _make_cluster(self, version: int) -> tuple[Path, str | None]:
        programs = installed_programs()
        # Its programs refuse to run as root; the package has made a user for them.
        user = "postgres" if os.geteuid() == 0 else None
        if user is not None:
            self._home.chmod(0o755)
            shutil.chown(self._data, user)
        self.programs, self._user = programs, user
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--username=postgres", "--no-sync"]
        self._run("initdb", *options, "-D", str(self._data))
        return programs, user

    def _environment(self) -> Mapping[str, str] | None:
        return {**os.environ, "LOCPATH": str(made_locales())}


def installed_programs() -> Path:
    """The folder of the newest server's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    asked = shutil.which("pg_config")
    if asked is not None:
        folder = Path(subprocess.run([asked, "--bindir"], check=True, capture_output=True, text=True).stdout.strip())
        if (folder / "initdb").exists():
            return folder
    raise RuntimeError("no PostgreSQL is installed on this machine: run scripts/ensure-postgresql")


@cache
def made_locales() -> Path:
    """A folder with the locales, for LOCPATH; it is made once for this process."""
    folder = Path(mkdtemp(prefix="penstock-locales-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    for name in LOCALES:
        language, encoding = name.split(".")
        made = [shutil.which("localedef") or "localedef", "-i", language, "-f", encoding, str(folder / name)]
        done = subprocess.run(made, capture_output=True, text=True, check=False)
        if not (folder / name / "LC_MONETARY").exists():
            raise RuntimeError(f"locale {name} cannot be made: {done.stderr.strip()}; run scripts/ensure-postgresql")
    return folder
