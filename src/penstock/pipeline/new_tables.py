"""Tables that were made at the source after setup, and that a run takes up: those that the handler for DDL wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.apply.apply_errors import DDL_NOT_CARRIED_OUT, ApplyError
from penstock.apply.ddl import Alteration, alteration, creation
from penstock.apply.handlers.runner import Handlers
from penstock.apply.listener import RunListener
from penstock.change import TableName, Transaction
from penstock.database import Uncaptured
from penstock.errors import OperatorError
from penstock.pipeline.connectors import PipelineEnds
from penstock.position import Scn
from penstock.schema import TableSchema


class NewTables:
    """Those that one run meets. What is in the way of one may be gone at the next look."""

    def __init__(
        self,
        ends: PipelineEnds,
        take_up: Callable[[Sequence[TableName]], None],
    ) -> None:
        """Take up tables by a function that raises OperatorError where it cannot."""
        self._ends = ends
        self._handlers = ends.config.handlers
        self._take_up = take_up
        self._left_out: Sequence[Uncaptured] = []
        self._refused: set[str] = set()
        # What the handler has said: whether it has executed it.
        self._asked: dict[Uncaptured, bool] = {}

    def follow(
        self, find: Callable[[], Sequence[Uncaptured]], applied_upto: Callable[[], Scn], listener: RunListener
    ) -> None:
        """Take up what `find` finds, and tell once of what cannot be."""
        found = find()
        if not found or found == self._left_out:
            return
        is_settled = True
        wanted = []
        for one in found:
            try:
                if self._is_wanted(one, applied_upto):
                    wanted.append(one.table)
            except ApplyError as exc:
                is_settled = False
                self._warn_once(exc, listener)
        try:
            if wanted:
                self._take_up(wanted)
        except OperatorError as exc:
            # The others flow on.
            self._warn_once(exc, listener)
        else:
            if is_settled:
                # What setup leaves out, such as an unlogged table, it would leave out again.
                self._left_out = find()

    def declines(self, table: TableName) -> bool:
        """Whether the handler was asked about a table of this name, and has not executed its DDL."""
        return any(asked.table == table and not executed for asked, executed in self._asked.items())

    def _warn_once(self, error: OperatorError | ApplyError, listener: RunListener) -> None:
        if str(error) not in self._refused:
            self._refused.add(str(error))
            listener.warned(f"new tables are not taken up yet: {error}")

    def _is_wanted(self, found: Uncaptured, applied_upto: Callable[[], Scn]) -> bool:
        if self._handlers.ddl is None:
            return True
        if found not in self._asked:
            described = next(iter(self._ends.source.describe([found.table]).values()), None)
            # What setup would not take is no question for a handler.
            self._asked[found] = described is None or self._ask(described, applied_upto())
        return self._asked[found]

    def _ask(self, table: TableSchema, upto: Scn) -> bool:
        """Call the handler in a target transaction of its own; return whether it has executed the DDL.

        Raises:
            ApplyError: It refuses the DDL, and what it did is undone.
        """
        change = creation(table)
        transaction = Transaction(upto, "", None, [change])
        executed = False

        def execute(name: TableName, wanted: Alteration) -> None:
            nonlocal executed
            if name != table.name or wanted != alteration(change):
                what = "what a new table is called and made of is for rules to say; or make it by SQL, then execute"
                raise ApplyError(DDL_NOT_CARRIED_OUT, what, where=f"table {table.name}")
            executed = True

        try:
            with self._ends.target.error_queue().retry_session() as session, session.transaction():
                handlers = Handlers(self._handlers, session.handler_sql)
                handlers.handle_ddl(change, transaction, execute)
                handlers.end()
        except ApplyError as exc:
            raise exc if exc.where else exc.with_place(f"table {table.name}") from exc
        return executed
