"""The SQL files of this dialect."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def sql_text(name: str) -> str:
    """Return the text of `sql/<name>.sql`."""
    return files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
