"""Handlers at work: the steps of `matrix` for one change of the row path, and the calls around a transaction."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from penstock.apply.apply_errors import HANDLER_FAILED, HANDLER_LATE, LCR_MALFORMED, ApplyError
from penstock.apply.change_applier import ChangeApplier, Effects
from penstock.apply.ddl import Alteration
from penstock.apply.handlers import matrix
from penstock.apply.handlers.calls import ErrorStack, HandledTransaction
from penstock.apply.handlers.ddl import DdlLcr
from penstock.apply.handlers.lcr import ChangeOrigin, RowLcr, changed_keys
from penstock.apply.handlers.matrix import FailedError
from penstock.apply.handlers.message import message_of, unhandled
from penstock.apply.handlers.settings import Function, HandlerSettings, OpHandlers, StatementHandler
from penstock.apply.handlers.sql import Gate, HandlerSql, SqlRunner
from penstock.apply.handlers.statement import Bind, BindSource, Statement
from penstock.apply.handlers.timed_calls import LateError, caller_here
from penstock.change import Change, Op, TableName, Transaction
from penstock.errors import HandlerError, PenstockError, RetryableError
from penstock.logical import LogicalType
from penstock.schema import Column

Handler = TypeVar("Handler", Function, StatementHandler)

_MARK = "penstock_call"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Handlers:
    """The handlers of a process, called on behalf of one session."""

    def __init__(self, settings: HandlerSettings, session: SqlRunner) -> None:
        """Call handlers, which work through `session`."""
        self.settings = settings
        self.session = session
        self._is_barred = False
        if any(True for _ in settings.functions()):
            session.prepare_bar()

    def begin(self) -> None:
        """A transaction begins."""
        self._is_barred = False

    def bar(self) -> None:
        """Have nobody commit the transaction until `end`; to be called before a function is, in no savepoint of it."""
        if not self._is_barred:
            self.session.bar_commit()
            self._is_barred = True

    def end(self) -> None:
        """All handlers of a transaction were called.

        Raises:
            HandlerError: One of them has ended the transaction by itself.
        """
        if self._is_barred:
            self._is_barred = False
            if not self.session.unbar_commit():
                raise _ended("a handler of this transaction")

    def of(self, change: Change) -> OpHandlers | None:
        """The handlers of a change; None where it is applied as if there were none at all."""
        return self.settings.of(change.table, change.op)

    def deliver(self, change: Change, number: int, transaction: Transaction) -> None:
        """Call the message handler for a message.

        Raises:
            ApplyError: It refuses the message, or there is none.
        """
        function = self.settings.message
        if function is None:
            raise unhandled(change)
        message = message_of(change, number, _origin(self.settings, transaction))
        self.bar()
        gate = Gate(self.session)
        sql = HandlerSql(gate, gate.savepoint)
        self.call(function, gate, lambda call: call(message, sql))

    def process(self, applier: ChangeApplier, number: int, change: Change, origin: Transaction) -> Effects:
        """Process a change that there are handlers for.

        Raises:
            ApplyError: Its transaction cannot be applied.
            HandlerError: A handler cannot be had, or has ended the transaction.
        """
        found = self.of(change)
        assert found is not None
        if found.procedure is not None or found.error is not None:
            self.bar()
        steps = _Steps(self, applier, number, RowLcr(change, _origin(self.settings, origin)), found)
        try:
            matrix.process(steps)
        except FailedError as exc:
            raise exc.error from exc
        return steps.effects

    def before_commit(self, transaction: Transaction) -> None:
        """Call the precommit handler.

        Raises:
            ApplyError: It refuses the transaction.
        """
        function = self.settings.precommit
        if function is None or (transaction.changes and all(one.op is Op.DDL for one in transaction.changes)):
            return
        origin = _origin(self.settings, transaction)
        seen = HandledTransaction(
            origin.source, origin.commit_scn, origin.txn_id, origin.committed_at, len(transaction.changes)
        )
        self.bar()
        gate = Gate(self.session)
        sql = HandlerSql(gate, gate.savepoint)
        self.call(function, gate, lambda call: call(seen, sql))

    @property
    def takes_ddl(self) -> bool:
        """Whether DDL is left to a handler."""
        return self.settings.ddl is not None

    def handle_ddl(
        self, change: Change, transaction: Transaction, execute: Callable[[TableName, Alteration], None]
    ) -> None:
        """Call the handler for DDL, which has `execute` do what the process itself would do, if it likes.

        Raises:
            ApplyError: It refuses the DDL.
        """
        function = self.settings.ddl
        assert function is not None
        self.bar()
        gate = Gate(self.session)

        def execute_alone(table: TableName, wanted: Alteration) -> None:
            with gate.enter(), gate.savepoint():
                execute(table, wanted)

        ddl = DdlLcr(change, _origin(self.settings, transaction), execute_alone)
        sql = HandlerSql(gate, gate.savepoint)
        self.call(function, gate, lambda call: call(ddl, sql))

    def call(self, function: Function, gate: Gate, make: Callable[[Callable[..., object]], object]) -> None:
        """Call a function of the user's.

        Args:
            make: Makes the call, given the function.

        Raises:
            ApplyError: It has raised, was late, or returned something.
            HandlerError: It cannot be had, or has ended the transaction.
        """
        call = function.load()
        returned: list[object] = []
        is_late = False
        self.session.set_savepoint(_MARK)
        try:
            caller_here().call(
                lambda: returned.append(make(call)), timeout_s=self.settings.timeout_s, interrupt=gate.shut
            )
            error = None if returned == [None] else _returned(function, returned)
        except LateError:
            is_late = True
            what = f"{function.name!r} took longer than {self.settings.timeout_s:g} s, and was ended"
            error = ApplyError(HANDLER_LATE, what, where=function.place)
        except ApplyError as exc:
            error = exc.with_place(f"{function.place}: {function.name!r}")
        except (Exception, SystemExit) as exc:
            # Leave out the error's text and its cause: both may repeat a value.
            what = f"{function.name!r} failed: {type(exc).__name__}{_line_of(exc)}"
            error = ApplyError(HANDLER_FAILED, what, where=function.place)
        if not gate.shut():
            # What it has the target do cannot be ended: only losing the session helps.
            what = f"{function.place}: {function.name!r} is late, and what it does at the target cannot be ended"
            raise RetryableError(what)
        if gate.stopped_by is not None and not is_late:
            # Caught by the handler, perhaps, but not about this change: a deadlock, a lost connection.
            raise gate.stopped_by
        self._leave(function, has_failed=error is not None)
        if error is not None:
            raise error

    def _leave(self, function: Function, *, has_failed: bool) -> None:
        """Make sure that the transaction is the one that a call began in, whose savepoint it has."""
        try:
            if has_failed:
                self.session.roll_back_to(_MARK)
            else:
                self.session.release(_MARK)
        except RetryableError:
            raise
        except PenstockError as exc:
            raise _ended(f"{function.place}: {function.name!r}") from exc


class _Steps(matrix.Steps):
    """The steps of one change."""

    def __init__(
        self,
        owner: Handlers,
        applier: ChangeApplier,
        number: int,
        lcr: RowLcr,
        found: OpHandlers,
    ) -> None:
        self._owner = owner
        self.applier = applier
        self.number = number
        self._lcr = lcr
        self._found = found
        self.effects = Effects()

    @property
    def handlers(self) -> Sequence[Callable[[], None]]:
        made: list[Callable[[], None]] = [_bound(self._run_statements, one) for one in self._found.statements]
        if self._found.procedure is not None:
            made.append(_bound(self._run_procedure, self._found.procedure))
        return made

    @property
    def handle_error(self) -> Callable[[ApplyError], None] | None:
        function = self._found.error
        return None if function is None else partial(self._run_error_handler, function)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with self.effects.undone_with(self.applier.savepoint()):
            yield

    def apply(self) -> None:
        self.add(self.applier.perform(self.number, self._lcr.committed, with_resolvers=True))

    def resolve(self) -> bool:
        return self.add(self.applier.resolve(self.number, self._lcr.committed))

    def follow_rule(self, error: ApplyError) -> bool:
        return self.add(self.applier.follow_rule(self.number, self._lcr.committed, error, self._try_again))

    def _try_again(self) -> None:
        matrix.attempt(self)

    def add(self, effects: Effects | None) -> bool:
        if effects is None:
            return False
        self.effects.done += effects.done
        self.effects.resolutions += effects.resolutions
        self.effects.recorded += effects.recorded
        return True

    def _run_procedure(self, function: Function) -> None:
        self._call(function, ())

    def _run_error_handler(self, function: Function, error: ApplyError) -> None:
        try:
            self._call(function, (ErrorStack([error]),))
        except FailedError as exc:
            if exc.error is error:
                raise
            raise FailedError(exc.error.with_cause(error), resolvers_asked=True) from exc

    def _call(self, function: Function, more: tuple[object, ...]) -> None:
        gate = Gate(self._owner.session)
        executor = _Executor(self, gate)
        lcr = self._lcr.copy(executor.execute, executor.type_of)
        sql = HandlerSql(gate, executor.savepoint)
        try:
            self._owner.call(function, gate, lambda call: call(lcr, sql, *more))
        except ApplyError as exc:
            raise FailedError(exc, resolvers_asked=True) from exc

    def _run_statements(self, handler: StatementHandler) -> None:
        lcr = self._lcr.copy()
        try:
            for statement in handler.statements:
                self._run_statement(statement, lcr)
        except ApplyError as exc:
            # Whatever failed is no conflict of the change.
            raise FailedError(self._placed(exc, handler), resolvers_asked=True) from exc
        except FailedError as exc:
            raise FailedError(self._placed(exc.error, handler), resolvers_asked=exc.resolvers_asked) from exc

    def _placed(self, error: ApplyError, handler: StatementHandler) -> ApplyError:
        return error.with_place(f"statements {handler.name!r}")

    def _run_statement(self, statement: Statement, lcr: RowLcr) -> None:
        call = statement.call
        if call is None:
            # The values are those of the change as it came: what the calls alter are its columns alone.
            self._owner.session.run_statement(statement, [self._value_of(bind) for bind in statement.binds])
            return
        names = [name for name in call.arguments if name is not None]
        match call.name:
            case "execute":
                change = lcr.as_change()
                self.add(self.applier.perform(self.number, change, with_resolvers=call.arguments == ("TRUE",)))
            case "add_column":
                lcr.add_column("old" if lcr.command_type == "DELETE" else "new", names[0], call.arguments[1])
            case "delete_column":
                lcr.delete_column(names[0])
            case "rename_column":
                lcr.rename_column(names[0], names[1])
            case _:
                lcr.keep_columns(names)

    def _value_of(self, bind: Bind) -> tuple[Column | None, str | None]:
        lcr, name = self._lcr, bind.name
        old, new = lcr.get_values("old"), lcr.get_values("new", use_old=False)
        match bind.source:
            case BindSource.NEW:
                return self._column(name), new.get(name, old.get(name))
            case BindSource.NEW_ONLY:
                return self._column(name), new.get(name)
            case BindSource.OLD:
                return self._column(name), old.get(name)
            case BindSource.NEW_EXISTS:
                return None, "Y" if name in new else "N"
            case BindSource.OLD_EXISTS:
                return None, "Y" if name in old else "N"
            case BindSource.ATTRIBUTE:
                return None, _attribute(lcr, name)

    def _column(self, name: str) -> Column | None:
        try:
            table = self.applier.table_named(self._lcr.table)
        except ApplyError:
            return None
        return table.schema.by_name.get(name)


class _Executor:
    """Executes the changes of one call of a handler."""

    def __init__(self, steps: _Steps, gate: Gate) -> None:
        self._steps = steps
        self._gate = gate

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with self._steps.effects.undone_with(self._gate.savepoint()):
            yield

    def execute(self, lcr: RowLcr, with_resolvers: bool) -> None:
        steps = self._steps
        change = lcr.as_change()
        with self._gate.enter():
            try:
                table = steps.applier.table_named(change.table)
                moved = next(changed_keys(lcr, table.key.columns), None)
                if moved is not None:
                    what = (
                        f"the old value of key column {moved!r} was altered, so another row would be changed: make a"
                        " change of that row (`make`) to change it"
                    )
                    raise ApplyError(LCR_MALFORMED, what, where=f"table {change.table}")
                with self.savepoint():
                    steps.add(steps.applier.perform(steps.number, change, with_resolvers=with_resolvers))
            except FailedError as exc:
                raise exc.error from exc

    def type_of(self, table: TableName, column: str) -> LogicalType | None:
        with self._gate.enter():
            try:
                found = self._steps.applier.table_named(table).schema.by_name.get(column)
            except ApplyError:
                return None
        return None if found is None else found.logical


def _bound(run: Callable[[Handler], None], handler: Handler) -> Callable[[], None]:
    return lambda: run(handler)


def handlers_of(settings: HandlerSettings, session: SqlRunner) -> Handlers | None:
    """The handlers of a process; None where it has none, so that nothing is looked up for its changes."""
    return None if settings.is_empty else Handlers(settings, session)


def _origin(settings: HandlerSettings, transaction: Transaction) -> ChangeOrigin:
    at_us = transaction.committed_at_us
    committed_at = None if at_us is None else _EPOCH + timedelta(microseconds=at_us)
    return ChangeOrigin(settings.source, transaction.txn_id, transaction.commit_scn, committed_at)


def _attribute(lcr: RowLcr, name: str) -> str | None:
    match name:
        case "source_time":
            at = lcr.get_commit_time()
            return None if at is None else at.isoformat()
        case "commit_scn":
            return str(lcr.get_commit_scn())
        case _:
            value: str = getattr(lcr, name)
            return value


def _returned(function: Function, returned: Sequence[object]) -> ApplyError:
    what = (
        f"{function.name!r} returned {type(returned[0]).__name__}: a handler returns nothing; it alters the change that"
        " it is given, and executes it"
    )
    return ApplyError(HANDLER_FAILED, what, where=function.place)


def _ended(who: str) -> HandlerError:
    return HandlerError(
        f"{who} has committed or rolled back the transaction that it takes part in",
        do="fix the handler; what was not committed was rolled back, and nothing is applied meanwhile",
    )


def _line_of(error: BaseException) -> str:
    """Where in the user's file it happened."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
