"""Partitions and enum labels that were made at the source after setup, which a run that follows DDL makes, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from penstock.apply.ddl import DdlPolicy, DdlRules
from penstock.apply.listener import RunListener
from penstock.change import TableName
from penstock.database import CatalogDifference, DatabasePlan
from penstock.errors import OperatorError, RetryableError
from penstock.events import Event, tell
from penstock.pipeline.connectors import DatabaseSource, TargetConnector

_AGAIN_S = 30.0
"""How long what could not be made is left alone."""

_NOT_FOLLOWED = ("primary key", "unique key", "exclusion constraint", "foreign key", "index")
"""What refuses rows, and is made at the copy by nobody but its user once the table is there."""


class NewParts:
    """Those that one run meets. They are made before the changes that need them are applied."""

    def __init__(
        self,
        source: DatabaseSource,
        target: TargetConnector,
        patterns: Sequence[str],
        rules: DdlRules,
        carry_out: Callable[[DatabasePlan], None],
    ) -> None:
        """Look for them in the tables that patterns mean, as far as these follow by `rules`."""
        self._source = source
        self._target = target
        self._patterns = patterns
        self._rules = rules
        self._carry_out = carry_out
        self._stack = ExitStack()
        self._look: Callable[[], object] | None = None
        self._mark: object = None
        self._tried_at = 0.0
        self._told: set[str] = set()

    def follow(self, listener: RunListener) -> bool:
        """Make what is new, and tell once of keys that are not followed; returns whether something was made."""
        if not self._rules.is_applied:
            return False
        try:
            if self._look is None:
                self._look = self._stack.enter_context(self._source.marks_of_ddl())
            mark = self._look()
        except RetryableError:
            self.close()
            raise
        if mark == self._mark or time.monotonic() - self._tried_at < _AGAIN_S:
            return False
        is_first, made = self._mark is None, False
        try:
            made = self._make()
            if not is_first:
                self._tell_not_followed(listener)
        except (OperatorError, RetryableError) as exc:
            # What needs it goes to the error queue; all else flows on.
            self._warn_once(f"new partitions and labels are not made yet: {exc}", listener)
            self._tried_at = time.monotonic()
        else:
            self._mark = mark
        return made

    def close(self) -> None:
        """Close the session; a later call opens another one."""
        self._stack.close()
        self._look = None

    def _make(self) -> bool:
        if not self._target.lacking(self._source.parts(self._patterns)):
            return False
        plan = self._target.plan_parts(self._source.blueprint(self._tables()), self._tables())
        for fault in plan.faults:
            raise fault
        self._carry_out(plan)
        for step in plan.steps:
            tell(Event.POST_DATA_MADE, f"made at the target, as at the source: {step.summary}", {"made": step.summary})
        return bool(plan.steps)

    def _tell_not_followed(self, listener: RunListener) -> None:
        tables = self._tables()
        # A table that is made, or renamed, later gets its keys with that.
        there = self._target.describe(tables)
        post_data = self._source.post_data([table for table in tables if table in there])
        with closing(self._target.post_data_builder(post_data)) as post_data_builder:
            for one in post_data_builder.differences():
                if one.kind in _NOT_FOLLOWED and not one.is_extra:
                    self._warn_once(_not_followed(one), listener)

    def _tables(self) -> list[TableName]:
        return [t for t in self._source.match(self._patterns) if self._rules.of(t) is DdlPolicy.APPLY]

    def _warn_once(self, text: str, listener: RunListener) -> None:
        if text not in self._told:
            self._told.add(text)
            listener.warned(text)


def _not_followed(one: CatalogDifference) -> str:
    made = f"; {one.sql} makes it at the target" if one.sql else ""
    return f"{one} was made at the source, and is not followed{made}"
