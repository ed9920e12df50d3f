"""What a user wrote in Python, by its name `module:name`: beside the pipeline file, or installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

NAME = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
"""How such a name is written, as a regular expression."""


@cache
def load(name: str, folder: Path) -> Callable[..., Any]:
    """Import what a name stands for, once in a process.

    Args:
        folder: Where its module may lie; Python looks there first.

    Raises:
        Exception: Whatever importing the module raises; it has nothing of this name; or that cannot be called.
    """
    module, _, wanted = name.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    found = getattr(importlib.import_module(module), wanted)
    if not callable(found):
        raise TypeError(f"{wanted!r} is not a function")
    loaded: Callable[..., Any] = found
    return loaded


def module_file(name: str, folder: Path) -> Path | None:
    """Return the file of a name's module where that lies in the folder; None where Python has it from elsewhere.

    The module is imported already.

    Raises:
        ValueError: It lies in the folder, but is more than one file; or a module of this name was imported from
            elsewhere before, so that the one in the folder cannot be had.
    """
    module = name.partition(":")[0]
    file, package = folder / f"{module}.py", folder / module.partition(".")[0]
    found = Path(getattr(sys.modules[module], "__file__", None) or package).resolve()
    if found == file.resolve():
        return file
    if package.is_dir() and found.is_relative_to(package.resolve()):
        raise ValueError(f"{module!r} is not one file")
    if file.exists() or (package / "__init__.py").exists():
        raise ValueError(f"another module {module!r} was imported before, from {str(found)!r}")
    return None
