"""Connections that are described in a file: what `service=NAME` in a url stands for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def read_service(name: str) -> Mapping[str, str]:
    """Return the parameters of a service, as libpq finds them; empty where no file that can be read has it.

    The user's own file comes first, `PGSERVICEFILE` or ~/.pg_service.conf; then the one in the folder `PGSYSCONFDIR`.
    """
    own = os.environ.get("PGSERVICEFILE")
    paths = [Path(own) if own else Path.home() / ".pg_service.conf"]
    if os.environ.get("PGSYSCONFDIR"):
        paths.append(Path(os.environ["PGSYSCONFDIR"]) / "pg_service.conf")
    for path in paths:
        found = _read(path, name)
        if found is not None:
            return found
    return {}


def _read(path: Path, service: str) -> Mapping[str, str] | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    found: dict[str, str] | None = None
    for line in map(str.strip, lines):
        if line.startswith("["):
            if found is not None:
                break
            if line == f"[{service}]":
                found = {}
        elif found is not None and line and not line.startswith("#"):
            key, is_pair, value = line.partition("=")
            if is_pair:
                # The first one counts.
                found.setdefault(key.strip(), value.strip())
    return found
