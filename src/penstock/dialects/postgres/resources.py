"""The SQL files of this dialect."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_INCLUDED = re.compile(r"^\\ir (\w+)\.sql\n", re.MULTILINE)


@cache
def sql_text(name: str) -> str:
    r"""Return the text of `sql/<name>.sql`; a line `\ir other.sql` in it, as psql reads it, stands for that file."""
    text = files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    return _INCLUDED.sub(lambda found: sql_text(found[1]), text)
