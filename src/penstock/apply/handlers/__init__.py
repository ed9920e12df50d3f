"""Handlers: what a user has apply do with changes, in SQL or in Python; see docs/handlers.md.

A handler written in Python needs nothing from here but, to tell errors apart or to raise one of its own, `ApplyError`.
"""

from penstock.apply.apply_errors import ApplyError
from penstock.apply.handlers.calls import ErrorStack, HandledTransaction
from penstock.apply.handlers.ddl import DdlLcr
from penstock.apply.handlers.lcr import RowLcr
from penstock.apply.handlers.sql import HandlerSql, SqlResult

__all__ = ["ApplyError", "DdlLcr", "ErrorStack", "HandledTransaction", "HandlerSql", "RowLcr", "SqlResult"]
