"""Handlers that do what a test says, and write down that they were called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.apply.handlers.settings import Function, HandlerSettings, OpHandlers, StatementHandler
from penstock.apply.handlers.statement import parse
from penstock.change import Op, TableName

CALLS: list[str] = []
"""Which handlers were called, in order."""

SEEN: list[Any] = []
"""Whatever handlers write down."""

DO: dict[str, Callable[..., Any]] = {}
"""What each of them does."""


def procedure(lcr: Any, target: Any) -> Any:
    CALLS.append("procedure")
    return DO["procedure"](lcr, target)


def other_procedure(lcr: Any, target: Any) -> Any:
    CALLS.append("other_procedure")
    return DO["other_procedure"](lcr, target)


def error(lcr: Any, target: Any, errors: Any) -> Any:
    CALLS.append("error")
    return DO["error"](lcr, target, errors)


def precommit(transaction: Any, target: Any) -> Any:
    CALLS.append("precommit")
    return DO["precommit"](transaction, target)


def message(message: Any, target: Any) -> Any:
    CALLS.append("message")
    return DO["message"](message, target)


def ddl(lcr: Any, target: Any) -> Any:
    CALLS.append("ddl")
    return DO["ddl"](lcr, target)


def too_few(lcr: Any) -> None:
    raise AssertionError("is never called")


def function(name: str, takes: int = 2) -> Function:
    return Function(f"tests.apply.handled:{name}", Path(), f"apply.{name}", takes)


def statements(name: str, *texts: str) -> StatementHandler:
    return StatementHandler(name, tuple(map(parse, texts)), f"statements.{name}")


def on(*handlers: StatementHandler, **functions: Callable[..., Any]) -> OpHandlers:
    """The handlers of one operation; a function is called by its handler's name."""
    DO.update(functions)
    return OpHandlers(
        handlers,
        procedure=function("procedure") if "procedure" in functions else None,
        error=function("error", 3) if "error" in functions else None,
    )


def settings(table: str = "emp", *, timeout_s: float = 30, **ops: OpHandlers) -> HandlerSettings:
    """The handlers of one table, by operation."""
    tables = {TableName("public", table): {Op(op): handlers for op, handlers in ops.items()}}
    return HandlerSettings(tables=tables, source="DBS1", timeout_s=timeout_s)


def forget() -> None:
    CALLS.clear()
    SEEN.clear()
    DO.clear()
