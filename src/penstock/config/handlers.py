"""What a pipeline file says of handlers: SQL and functions that are called for changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from penstock.apply.handlers.settings import HANDLED, Function, OpHandlers, StatementHandler
from penstock.apply.handlers.statement import parse
from penstock.change import Op
from penstock.config.parts import ConfigPart
from penstock.user_code import NAME


def _is_statement(text: str) -> str:
    parse(text)
    return text


HandlerName = Annotated[str, Field(pattern=rf"^({NAME}|[A-Za-z_][\w.-]*)$")]
"""`module:function`, or an entry point of the group `penstock.handlers`."""

_Statements = Annotated[list[Annotated[str, AfterValidator(_is_statement)]], Field(min_length=1)]


class OperationHandlersConfig(ConfigPart):
    """What is called for changes of one operation of a table."""

    statements: dict[str, _Statements] = Field(
        default_factory=dict,
        description="By a name of yours: SQL statements with values of the change as :new.column and :old.column, and"
        " calls such as :lcr.execute TRUE, in order; instead of applying the change",
    )
    procedure: HandlerName | None = Field(
        default=None,
        description="module:function, or an entry point, that is called with the change and the target instead of"
        " applying the change",
    )
    error: HandlerName | None = Field(
        default=None,
        description="module:function, or an entry point, that is called with the change, the target and the errors"
        " where the change could not be applied",
    )

    @model_validator(mode="after")
    def _says_something(self) -> OperationHandlersConfig:
        if not (self.statements or self.procedure or self.error):
            raise ValueError("names no handler: give statements, procedure or error")
        return self


class TransactionHandlersConfig(ConfigPart):
    """What is called for transactions, whichever tables they change."""

    precommit: HandlerName | None = Field(
        default=None, description="module:function that is called before each transaction commits"
    )
    ddl: HandlerName | None = Field(
        default=None,
        description="module:function that is called for DDL of tables whose ddl is apply, instead of carrying it out",
    )
    timeout_s: float = Field(default=60, gt=0, le=86_400, description="How many seconds a call of a function may take")
    message: HandlerName | None = Field(
        default=None,
        description="module:function that is called for each message of the source's applications (emit_message)",
    )


def check_operations(handlers: Mapping[str, OperationHandlersConfig]) -> None:
    """Make sure that the handlers of one table go together.

    Raises:
        ValueError: They do not.
    """
    default = handlers.get("default")
    if default is not None and default.statements:
        raise ValueError("default takes no statements, which are of insert, update or delete")
    for op in HANDLED:
        own = handlers.get(op)
        procedure = (own and own.procedure) or (default and default.procedure)
        error = (own and own.error) or (default and default.error)
        if procedure and error:
            raise ValueError(
                f"{op} has a procedure, {procedure!r}, and an error handler, {error!r}: a procedure deals with errors"
                " itself, so give one of the two"
            )


def handlers_of(table: str, handlers: Mapping[str, OperationHandlersConfig], folder: Path) -> Mapping[Op, OpHandlers]:
    """The handlers of one table, as apply takes them."""
    default = handlers.get("default")
    made = {}
    for op in HANDLED:
        own = handlers.get(op)
        found = OpHandlers(
            statements=()
            if own is None
            else _statement_handlers(f"apply.tables.{table}.handlers.{op}", own.statements),
            procedure=_function("procedure", table, [(op, own), ("default", default)], folder, takes=2),
            error=_function("error", table, [(op, own), ("default", default)], folder, takes=3),
        )
        if found != OpHandlers():
            made[op] = found
    return made


def _statement_handlers(place: str, named: Mapping[str, Sequence[str]]) -> tuple[StatementHandler, ...]:
    return tuple(
        StatementHandler(name, tuple(map(parse, statements)), f"{place}.statements.{name}")
        for name, statements in named.items()
    )


def _function(
    setting: str,
    table: str,
    said: Sequence[tuple[str, OperationHandlersConfig | None]],
    folder: Path,
    *,
    takes: int,
) -> Function | None:
    for op, one in said:
        name = None if one is None else getattr(one, setting)
        if name is not None:
            return Function(name, folder, f"apply.tables.{table}.handlers.{op}.{setting}", takes)
    return None
