"""DDL on the row path: tables of the target follow those of the source, by themselves or by a user's handler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from penstock.apply.apply_errors import ApplyError
from penstock.apply.change_applier import copied_table, not_instantiated
from penstock.apply.ddl import (
    Alteration,
    DdlPolicy,
    DdlRules,
    alteration,
    is_creation,
    is_drop,
    is_rename,
    name_before,
    pending,
)
from penstock.apply.ddl_log import APPLIED, LEFT_OUT, LoggedDdl, loses, words_for
from penstock.apply.handlers.runner import Handlers
from penstock.apply.session import TargetSession
from penstock.apply.target import TargetCatalog, TargetTable
from penstock.change import Change, TableName, Transaction
from penstock.errors import OperatorError
from penstock.position import Scn
from penstock.schema import TableSchema


class DdlApplier:
    """Carries out DDL through a session whose transaction the caller opens and closes."""

    def __init__(self, session: TargetSession, rules: DdlRules, handlers: Handlers | None) -> None:
        """Have tables follow by `rules`; a handler that there is for DDL does it in place of us."""
        self._session = session
        self._rules = rules
        self._handlers = handlers
        self._moves: list[tuple[int, TableName, TableName | None]] = []
        self._number = 0

    def begin(self) -> None:
        """A transaction begins."""
        self._moves = []

    def name_now(self, table: TableName, number: int) -> TableName | None:
        """What the table of a change is called that the transaction may have renamed since; None: it has dropped it."""
        for behind, old, new in self._moves:
            if behind > number and old == table:
                if new is None:
                    return None
                table = new
        return table

    def carry_out(
        self, number: int, changes: Sequence[Change], transaction: Transaction, catalog: TargetCatalog
    ) -> TargetCatalog:
        """Have tables of the target follow those of the source.

        Args:
            number: That of the first change in the transaction.
            changes: One change of DDL; or several neighbouring ones that tables were dropped, which may refer to each
                other.

        Returns:
            The target's tables as they are then, by which later changes go.

        Raises:
            ApplyError: It cannot be carried out, or the handler has failed.
            OperatorError: That a table was altered is to stop the process.
        """
        self._number = number
        wanted = [change for change in changes if self._is_wanted(change, catalog)]
        if self._handlers is not None and self._handlers.takes_ddl:
            for change in _children_first(wanted, catalog):
                catalog = self._by_handler(self._handlers, change, transaction, catalog)
            return catalog
        for change in changes:
            if self._rules.of(name_before(change)) is DdlPolicy.IGNORE:
                # What the two versions do not tell is no reason to fail, where nothing is to be done.
                with suppress(ApplyError):
                    self._note(change, transaction, alteration(change), LEFT_OUT)
        drops = [name_before(change) for change in wanted if is_drop(change)]
        if drops:
            there = [table for table in drops if self._session.describe_anew(table) is not None]
            self._session.drop(drops)
            for change in wanted:
                if name_before(change) in there:
                    self._note(change, transaction, alteration(change), APPLIED)
            return self._look_again(catalog, dict.fromkeys(drops))
        for change in wanted:
            catalog = self._alter(change, transaction, catalog)
        return catalog

    def _is_wanted(self, change: Change, catalog: TargetCatalog) -> bool:
        table = name_before(change)
        policy = self._rules.of(table)
        if policy is DdlPolicy.STOP:
            raise _stop(change)
        # What is not copied is not ours to drop; and whoever notes the same twice finds it done.
        is_ours = table in catalog.instantiated or not (is_drop(change) or is_rename(change))
        return policy is DdlPolicy.APPLY and is_ours

    def _alter(self, change: Change, transaction: Transaction, catalog: TargetCatalog) -> TargetCatalog:
        table, wanted = name_before(change), alteration(change)
        if wanted.called is None:
            table = copied_table(table, catalog).name
        was = self._session.describe_anew(table)
        self._session.alter(table, wanted, Scn(transaction.commit_scn))
        # Of what a person has done beforehand there is nothing to say.
        done = wanted if was is None else pending(wanted, was)
        self._note(change, transaction, done, APPLIED, table)
        return self._look_again(catalog, {table: wanted.called or table})

    def _note(
        self, change: Change, transaction: Transaction, done: Alteration, outcome: str, table: TableName | None = None
    ) -> None:
        words = ("table made",) if is_creation(change) else tuple(words_for(done))
        if words:
            scn, name = Scn(transaction.commit_scn), table or name_before(change)
            self._session.note_ddl(LoggedDdl(transaction.txn_id, scn, name, outcome, words, loses(done)))

    def _by_handler(
        self, handlers: Handlers, change: Change, transaction: Transaction, catalog: TargetCatalog
    ) -> TargetCatalog:
        table = name_before(change)
        if table not in catalog.instantiated:
            raise not_instantiated(table)
        touched: dict[TableName, TableName | None] = {table: table}

        def execute(name: TableName, wanted: Alteration) -> None:
            was = self._session.describe_anew(name)
            self._session.alter(name, wanted, Scn(transaction.commit_scn))
            done = wanted if was is None else pending(wanted, was)
            self._note(change, transaction, done, APPLIED, name)
            touched[name] = None if wanted.is_drop else wanted.called or name

        try:
            handlers.handle_ddl(change, transaction, execute)
        except ApplyError as exc:
            # Of several tables that are dropped together the queue shows the first.
            raise exc if exc.where else exc.with_place(f"table {table}") from exc
        # What SQL of its own has done is seen only there.
        return self._look_again(catalog, touched)

    def _look_again(self, catalog: TargetCatalog, touched: Mapping[TableName, TableName | None]) -> TargetCatalog:
        """Describe tables as they are now, by their names before and now, and those that refer to renamed ones."""
        moved = {old: new for old, new in touched.items() if old != new}
        self._moves += [(self._number, old, new) for old, new in moved.items()]
        tables, copied = dict(catalog.tables), dict(catalog.instantiated)
        for old, new in moved.items():
            tables.pop(old, None)
            at = copied.pop(old, None)
            if new is not None and at is not None:
                copied[new] = at
        related = {name for name, table in tables.items() if not _referred(table.schema).isdisjoint(moved)}
        for name in sorted({*(new for new in touched.values() if new is not None), *related}):
            schema = self._session.describe_anew(name)
            if schema is None:
                tables.pop(name, None)
            else:
                old = next((was for was, new in moved.items() if new == name), name)
                known = catalog.tables.get(old)
                tables[name] = TargetTable(schema) if known is None else replace(known, schema=schema)
        return replace(catalog, tables=tables, instantiated=copied)


def _stop(change: Change) -> OperatorError:
    if is_drop(change):
        done, do = "dropped", "set `ddl` to `ignore`, and its copy stays; or to `apply`, and it is dropped, too"
    elif is_rename(change):
        # To go on under the new name is what `apply` is.
        done, do = "renamed", "set `ddl` to `apply`, and its copy is renamed, too"
    else:
        done = "altered"
        do = "alter it at the target, set `ddl` to `ignore`, and run again; or set it to `apply`"
    what = f"the table was {done} at the source, and `ddl: stop` ends the run here"
    return OperatorError(what, where=f"table {name_before(change)}", do=do)


def _children_first(changes: Sequence[Change], catalog: TargetCatalog) -> Iterator[Change]:
    """Put tables that are dropped one by one before those that they refer to; a circle stays as it is."""
    left = {name_before(change): change for change in changes}
    while left:
        parents = {
            key.parent
            for name in left
            if name in catalog.tables
            for key in catalog.tables[name].schema.foreign_keys
            if key.parent != name
        }
        name = next((name for name in left if name not in parents), next(iter(left)))
        yield left.pop(name)


def _referred(table: TableSchema) -> set[TableName]:
    return {key.parent for key in table.foreign_keys} | {key.child for key in table.referenced_by}
