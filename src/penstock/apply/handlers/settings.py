"""Which handlers there are: plain values that travel to tasks, where functions are imported when first needed."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from penstock.apply.handlers.statement import Statement
from penstock.change import Op, TableName
from penstock.errors import HandlerError
from penstock.user_code import load, module_file

HANDLED = (Op.INSERT, Op.UPDATE, Op.DELETE)
"""The operations whose changes handlers take."""

ENTRY_POINTS = "penstock.handlers"
"""The group of entry points that a name without a module means."""


@dataclass(frozen=True)
class Function:
    """A function by its name.

    Attributes:
        name: `module:function`, or an entry point's.
        folder: Where its module may lie.
        place: The setting that names it, for messages.
        takes: How many arguments it is called with.
    """

    name: str
    folder: Path
    place: str
    takes: int = 2

    def load(self) -> Callable[..., object]:
        """Import it, once in a process.

        Raises:
            HandlerError: It cannot be had, or cannot be called so.
        """
        return _loaded(self)

    def check(self) -> None:
        """Make sure that it can be had, and sent to where tasks run; raises as `load`."""
        self.load()
        if ":" in self.name:
            with self._explained():
                module_file(self.name, self.folder)

    def _load(self) -> Callable[..., object]:
        with self._explained():
            found = load(self.name, self.folder) if ":" in self.name else _entry_point(self.name)
            signature = inspect.signature(found)
        try:
            signature.bind(*[None] * self.takes)
        except TypeError:
            names = ", ".join(signature.parameters)
            raise HandlerError(
                f"{self.place}: {self.name!r} takes ({names}), and is called with {self.takes} arguments",
                do="fix the function; nothing is applied meanwhile",
            ) from None
        return found

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as exc:
            raise HandlerError(
                f"{self.place}: cannot load {self.name!r}: {type(exc).__name__}: {exc}",
                do="name a function as module:function, in a module beside the pipeline file or one that is installed,"
                f" or an entry point of the group {ENTRY_POINTS}; nothing is applied meanwhile",
            ) from exc


@cache
def _loaded(function: Function) -> Callable[..., object]:
    # What raises is tried again.
    return function._load()


@cache
def _entry_point(name: str) -> Callable[..., Any]:
    found = entry_points(group=ENTRY_POINTS, name=name)
    if not found:
        raise LookupError(f"no entry point of this name in the group {ENTRY_POINTS}")
    loaded = next(iter(found)).load()
    if not callable(loaded):
        raise TypeError(f"{name!r} is not a function")
    function: Callable[..., Any] = loaded
    return function


@dataclass(frozen=True)
class StatementHandler:
    """A statement handler: SQL, and calls of the change itself, in order.

    Attributes:
        place: The setting that holds it, for messages.
    """

    name: str
    statements: tuple[Statement, ...]
    place: str = ""


@dataclass(frozen=True)
class OpHandlers:
    """The handlers of one operation of one table. There is no error handler beside a procedure."""

    statements: tuple[StatementHandler, ...] = ()
    procedure: Function | None = None
    error: Function | None = None

    @property
    def takes_over(self) -> bool:
        """Whether changes are not applied directly."""
        return bool(self.statements) or self.procedure is not None


@dataclass(frozen=True)
class HandlerSettings:
    """All handlers of a process.

    Attributes:
        tables: By name at the target, after rules, and by operation.
        precommit: Called before each transaction commits.
        ddl: Called for DDL, whichever table it is of, instead of carrying it out.
        source: What the source is called, for handlers to ask.
        timeout_s: How long one call may take.
        message: Called for each message.
    """

    tables: Mapping[TableName, Mapping[Op, OpHandlers]] = field(default_factory=dict)
    precommit: Function | None = None
    ddl: Function | None = None
    source: str = ""
    timeout_s: float = 60
    message: Function | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there are no handlers at all."""
        return not self.tables and self.precommit is None and self.ddl is None and self.message is None

    def of(self, table: TableName, op: Op) -> OpHandlers | None:
        """The handlers for an operation of a table; None where there are none."""
        return self.tables.get(table, {}).get(op)

    def taken_over(self, table: TableName) -> frozenset[Op]:
        """The operations of a table whose changes are not applied directly."""
        return frozenset(op for op, handlers in self.tables.get(table, {}).items() if handlers.takes_over)

    def handles_errors(self, table: TableName) -> bool:
        """Whether a table has an error handler."""
        return any(handlers.error is not None for handlers in self.tables.get(table, {}).values())

    def functions(self) -> Iterator[Function]:
        """Every function that is named."""
        yield from (one for one in (self.precommit, self.ddl, self.message) if one is not None)
        for handlers in (one for by_op in self.tables.values() for one in by_op.values()):
            yield from (one for one in (handlers.procedure, handlers.error) if one is not None)

    def check(self) -> Iterator[HandlerError]:
        """Import every function that is named; yield what is wrong, each once."""
        importlib.invalidate_caches()
        for function in dict.fromkeys(replace(one, place="") for one in self.functions()):
            named = next(one for one in self.functions() if replace(one, place="") == function)
            try:
                named.check()
            except HandlerError as exc:
                yield exc


NO_HANDLERS = HandlerSettings()
