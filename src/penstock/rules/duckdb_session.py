"""DuckDB, in memory, reaching nothing else: what checks and evaluates expressions asks it."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

_SETTINGS = {
    "threads": "1",
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    # A name that is no column would otherwise be taken for a variable of the program.
    "python_enable_replacements": "false",
}


_connections: dict[tuple[int, int], duckdb.DuckDBPyConnection] = {}
"""By process and thread; one that ends leaves its connection to the next of its number."""


def bracketed(sql: str) -> str:
    """Put an expression in brackets."""
    # A comment at the end must not take the bracket with it.
    return f"(\n{sql}\n)"


def quote(name: str) -> str:
    """Write the name of a column."""
    return '"' + name.replace('"', '""') + '"'


def first_line(error: Exception) -> str:
    """Return what an error says, without the query."""
    return str(error).partition("\n")[0].strip()


def duckdb_module() -> Any:
    """Import DuckDB, which takes long, where something is asked of it."""
    import duckdb

    return duckdb


def session() -> duckdb.DuckDBPyConnection:
    """This thread's connection to a database in memory that reaches nothing else; a forked process makes its own."""
    mine = os.getpid(), threading.get_ident()
    if mine not in _connections:
        connection = duckdb_module().connect(":memory:", config=_SETTINGS)
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET lock_configuration = true")
        # In a forked process, to close a connection of the first one waits for threads that are not there, or crashes.
        # So one more reference than there is keeps it open, until the process is gone.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        _connections[mine] = connection
    return _connections[mine]
