"""Writes transactions of a lane by the row path, or into the error queue, each with its entry in the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apply.apply_errors import (
    CHILD_EXISTS,
    CONFLICTS,
    CONTENTION,
    FOREIGN_KEY_VIOLATED,
    ROW_MISSING,
    ApplyError,
    ContentionError,
    SpeculationError,
)
from penstock.apply.blocked_keys import BlockedKeys
from penstock.apply.change_applier import Handled
from penstock.apply.conflict_methods import ConflictKind, ErrorAction
from penstock.apply.conflict_prefetch import NOTHING_MET, ConflictPrefetch, Meeting, PrefetchRequest
from penstock.apply.conflict_split import ConflictSplit, dependencies_of_changes, may_take_another_key
from penstock.apply.dependency_keys import fingerprint
from penstock.apply.group import Group
from penstock.apply.handlers.runner import handlers_of
from penstock.apply.held_transactions import HeldTransactions
from penstock.apply.lane import LaneResult, ServerConfig
from penstock.apply.ledger import Failed, Failure, LaneLedger
from penstock.apply.row_path import RowPath, TransactionError
from penstock.apply.session import TargetSession
from penstock.apply.target import TargetCatalog
from penstock.apply.written_keys import WrittenKeys
from penstock.change import Op, Transaction
from penstock.errors import OperatorError
from penstock.schema import Dictionary

PREFETCHED_TRANSACTIONS = 500
"""So many transactions at a time are held as values, while the rows that they meet are looked for together."""

_FOREIGN_KEYS = (FOREIGN_KEY_VIOLATED, CHILD_EXISTS)

_CONTENTION_RETRIES = 8
"""How often a transaction that another session blocks is tried again before it goes to the error queue."""


@dataclass(frozen=True)
class Apart:
    """A transaction that was applied by the row path, or put into the error queue because of a failure, or held."""

    transaction: Transaction
    handled: Handled
    failure: Failure | None = None
    marks: BlockedKeys | None = None
    is_held: bool = False


@dataclass(frozen=True)
class Held:
    """Transactions that wait behind the error queue, and their marks."""

    group: Group
    marks: BlockedKeys


class SplitError(Exception):
    """Transactions fail of which something is done that cannot be undone alone; by their indexes in the group."""

    def __init__(self, *txns: int) -> None:
        super().__init__(*txns)
        self.txns = list(txns)


class EnoughError(Exception):
    """With the transaction of this index in the group as many have failed as may."""

    def __init__(self, txn: int) -> None:
        super().__init__(txn)
        self.txn = txn


class _RecordedError(Exception):
    """A change went to the error queue, which others may have to wait for: they are looked at one by one."""


class LaneWriter:
    """Writes transactions of one lane change by change, or puts them aside, and counts what came of them.

    Attributes:
        result: What the lane has come to so far.
        rows: The row path.
        held_transactions: What waits behind the error queue; None where nothing is to wait.
    """

    def __init__(
        self,
        session: TargetSession,
        ledger: LaneLedger,
        catalog: TargetCatalog,
        dictionary: Dictionary,
        config: ServerConfig,
    ) -> None:
        """Write through `session`, whose transactions `ledger` writes into."""
        self._session = session
        self._ledger = ledger
        self._catalog = catalog
        self._config = config
        self.result = LaneResult()
        self.rows = RowPath(
            session,
            catalog,
            dictionary,
            allow_duplicate_rows=config.allow_duplicate_rows,
            conflicts=config.conflicts,
            handlers=handlers_of(config.handlers, session.handler_sql),
            ddl=config.ddl,
        )
        self._prefetch = ConflictPrefetch(session, catalog, dictionary, config.conflicts, self.rows.lookup)
        self.held_transactions: HeldTransactions | None = None
        if config.hold_dependents:
            self.held_transactions = HeldTransactions(ledger, catalog, fingerprint(catalog.tables, catalog.virtual))

    def hold(self, transaction: Transaction, marks: BlockedKeys | None) -> bool:
        """Put a transaction aside if it waits behind the error queue; whether it does."""
        if self.held_transactions is None or marks is None or not self.held_transactions.keeps(marks):
            return False
        with self._session.transaction():
            self._ledger.record(np.array([transaction.commit_scn]), changes=len(transaction.changes))
            self._ledger.put_held([transaction], marks)
        self.held_transactions.add(marks)
        self.result.held += 1
        return True

    def apply_transaction(
        self, transaction: Transaction, marks: BlockedKeys | None, read: Callable[[], Iterable[pa.RecordBatch]]
    ) -> bool:
        """Apply a transaction, or put it into the error queue; whether it was applied.

        Args:
            marks: By what it would keep others back, if that is known already.
            read: Reads its changes.
        """
        scns = np.array([transaction.commit_scn])
        failure = self._try_patiently(transaction, scns)
        if failure is None:
            return True
        failure = self.rows.explain(transaction, failure)
        if self.held_transactions is not None and marks is None:
            marks = self.held_transactions.of_batches(read())
        with self._session.transaction():
            self._ledger.record(scns, changes=len(transaction.changes))
            self._ledger.put_errors([Failed(transaction, failure, marks)])
        if self.held_transactions is not None and marks is not None:
            self.held_transactions.add(marks)
        self._count_error(transaction, failure)
        return False

    def _try_patiently(self, transaction: Transaction, scns: NDArray[np.int64]) -> Failure | None:
        """Apply a transaction by the row path, and again as often as the rules for its error say.

        Raises:
            OperatorError: They say that the process is to stop.
        """
        tries = 0
        while (failure := self._try_rows(transaction, scns)) is not None:
            rule = self.rows.error_rule(transaction, failure)
            if rule is not None and rule.then is ErrorAction.ABEND:
                raise OperatorError(
                    f"transaction {transaction.txn_id} cannot be applied: {failure.error}",
                    where=f"change {failure.message_number} of {len(transaction.changes)}",
                    do="fix the cause and run again; the rule `abend` of `on_error` stops the run here",
                )
            if rule is None or rule.then is not ErrorAction.RETRY_TRANSACTION or tries == rule.times:
                return failure
            tries += 1
            time.sleep(rule.delay_s)
        return None

    def _try_rows(self, transaction: Transaction, scns: NDArray[np.int64]) -> Failure | None:
        """Apply a transaction by the row path and commit it; return why it could not be."""
        for attempt in range(_CONTENTION_RETRIES + 1):
            try:
                with self._session.transaction():
                    self._ledger.record(scns, changes=len(transaction.changes))
                    handled = self._write_rows(transaction)
                    if handled.recorded:
                        self._ledger.put_errors(self._recorded(transaction, handled))
                    self._note_resolutions([(transaction, handled)])
            except TransactionError as exc:
                return exc.failure
            except ApplyError as exc:
                # At commit: no change of the transaction can be named.
                self.rows.rolled_back()
                return Failure(0, exc)
            except ContentionError as exc:
                self.rows.rolled_back()
                contention = Failure(exc.message_number, ApplyError(CONTENTION, exc.what, where=exc.where))
                time.sleep(0.01 * 2**attempt)
            else:
                if self.held_transactions is not None:
                    self.held_transactions.add(
                        *(self.held_transactions.of_change(transaction, one) for one, _ in handled.recorded)
                    )
                self._count_handled(transaction, handled)
                return None
        return contention

    def write_apart(
        self, plan: ConflictSplit, early: NDArray[np.bool_] | None = None
    ) -> tuple[list[Apart], list[BlockedKeys]]:
        """Apply changes by the row path, or put their transactions into the error queue, inside the open transaction.

        Args:
            early: For each transaction, whether its conflicts may be resolved out of turn although it is whole.

        Returns:
            What became of each, and the marks of those that went to the queue, where others are to wait for them.

        Raises:
            SplitError: Transactions fail of which changes are applied already.
        """
        if self.held_transactions is not None:
            return self._write_or_hold(plan.apart, self.held_transactions)
        apart: list[Apart] = []
        numbered = enumerate(plan.apart.transactions())
        written = WrittenKeys(plan.apart, dependencies_of_changes(plan.apart, self._catalog))
        tables = (self._catalog.tables.get(name) for name, _, _ in plan.apart.tables)
        conflicts = self._config.conflicts
        may_take_another = any(table is not None and may_take_another_key(table, conflicts) for table in tables)
        failing = []
        while some := list(islice(numbered, PREFETCHED_TRANSACTIONS)):
            asking = [self._asking(plan, index, one, written, early) for index, one in some]
            meetings = self._prefetch.look(asking)
            written.begin()
            for (index, transaction), found in zip(some, meetings, strict=True):
                # What was seen of a row that was written to since is not so any more.
                meeting = {n: met for n, met in found.items() if met.resolved or not written.concerns(index, n)}
                is_early = any(met.resolved for met in meeting.values())
                if plan.is_whole[index] and not all(
                    n in meeting and meeting[n].resolved for n in _numbers(transaction)
                ):
                    one = self._try_apart(transaction, meeting=meeting)
                    if one.failure is not None and is_early:
                        failing.append(int(plan.txn[index]))
                else:
                    try:
                        one = Apart(transaction, self._write_rows(transaction, meeting))
                    except TransactionError as exc:
                        raise SplitError(int(plan.txn[index]), *failing) from exc
                    one.handled.resolutions = plan.renumbered(index, one.handled.resolutions)
                apart.append(one)
                self._refuse_more(plan, index, apart)
                if one.failure is None:
                    written.note(index)
                    if may_take_another and one.handled.resolutions:
                        written.note_anything()
        if failing:
            raise SplitError(*failing)
        return apart, []

    def _asking(
        self,
        plan: ConflictSplit,
        index: int,
        transaction: Transaction,
        written: WrittenKeys,
        early: NDArray[np.bool_] | None,
    ) -> PrefetchRequest:
        """Of which changes of a transaction the rows are to be looked for."""
        if not plan.is_whole[index]:
            now = plan.meeting(index, now=True)
            return PrefetchRequest(transaction, plan.meeting(index), now, now)
        now = written.not_behind_own(index)
        is_early = early is not None and early[index]
        return PrefetchRequest(transaction, now, now, written.not_behind_any(index) if is_early else ())

    def _refuse_more(self, plan: ConflictSplit, index: int, apart: Sequence[Apart]) -> None:
        """Make sure that nothing is applied behind the last transaction that may fail.

        Raises:
            EnoughError: That is what the last one of `apart` is, and others of its group are behind it.
        """
        left = self._errors_left()
        if left is None or not (apart[-1].failure or apart[-1].handled.recorded):
            return
        failed = sum((one.failure is not None) + len(one.handled.recorded) for one in apart)
        if failed >= left and plan.txn[index] + 1 < plan.transactions:
            raise EnoughError(int(plan.txn[index]))

    def _write_or_hold(
        self, group: Group, held_transactions: HeldTransactions
    ) -> tuple[list[Apart], list[BlockedKeys]]:
        """The same for whole transactions, of which some may have to wait for others."""
        transactions = list(group.transactions())
        tables = {change.table for transaction in transactions for change in transaction.changes}
        if any(self._config.conflicts.resolves(table) for table in tables):
            # A savepoint for each costs two round trips, and each of them may well be resolved.
            with suppress(TransactionError, _RecordedError), self._session.savepoint():
                apart = [Apart(one, self._write_rows(one)) for one in transactions]
                if any(one.handled.recorded for one in apart):
                    raise _RecordedError
                return apart, []
        marks = held_transactions.of_group(group)
        waiting = held_transactions.behind_more()
        apart = []
        for number, transaction in enumerate(transactions):
            own = marks.of_one(number)
            if waiting.keeps(own):
                self._ledger.put_held([transaction], own)
                apart.append(Apart(transaction, Handled(), None, is_held=True))
            else:
                apart.append(self._try_apart(transaction, own))
                if apart[-1].failure is None:
                    for change, _ in apart[-1].handled.recorded:
                        waiting.add(held_transactions.of_change(transaction, change))
                    continue
            waiting.add(own)
        return apart, waiting.added

    def _try_apart(
        self, transaction: Transaction, marks: BlockedKeys | None = None, *, meeting: Meeting = NOTHING_MET
    ) -> Apart:
        """Apply a whole transaction by the row path inside the open transaction, or find out why that cannot be."""
        prefetched = self.rows.prefetched_failure(transaction, meeting)
        if prefetched is not None:
            return Apart(transaction, Handled(), prefetched, marks)
        try:
            with self._session.savepoint():
                return Apart(transaction, self._write_rows(transaction, meeting))
        except TransactionError as exc:
            rule = self.rows.error_rule(transaction, exc.failure)
            if rule is not None and rule.then in (ErrorAction.ABEND, ErrorAction.RETRY_TRANSACTION):
                raise SpeculationError("a transaction is to be tried again, or to stop the run") from exc
            failure = self.rows.explain(transaction, exc.failure, is_open=True)
            return Apart(transaction, Handled(), failure, marks)

    def _write_rows(self, transaction: Transaction, meeting: Meeting = NOTHING_MET) -> Handled:
        """Apply a transaction by the row path, inside the open transaction, and write down which tables it empties."""
        handled = self.rows.apply(transaction, meeting)
        emptied = {change.table for change in transaction.changes if change.op is Op.TRUNCATE}
        if emptied:
            self._ledger.note_emptied(emptied, transaction.commit_scn)
        return handled

    def put_aside(self, apart: Sequence[Apart]) -> None:
        """Write down what failed, and what was resolved."""
        queue = self._queued(apart)
        if queue:
            self._ledger.put_errors(queue)
        self._note_resolutions((one.transaction, one.handled) for one in apart)

    def _queued(self, apart: Iterable[Apart]) -> list[Failed]:
        """What goes to the error queue."""
        queued = []
        for one in apart:
            if one.failure is not None:
                queued.append(Failed(one.transaction, one.failure, one.marks))
            queued += self._recorded(one.transaction, one.handled)
        return queued

    def _recorded(self, transaction: Transaction, handled: Handled) -> list[Failed]:
        """What goes to the error queue of a transaction that is applied."""
        return [
            Failed(
                replace(transaction, changes=(change,)),
                failure,
                None if self.held_transactions is None else self.held_transactions.of_change(transaction, change),
                is_whole=False,
            )
            for change, failure in handled.recorded
        ]

    def _note_resolutions(self, written: Iterable[tuple[Transaction, Handled]]) -> None:
        resolved = [(transaction, handled.resolutions) for transaction, handled in written if handled.resolutions]
        if resolved:
            self._ledger.note_resolutions(resolved)

    def count_apart(
        self,
        group: Group,
        plan: ConflictSplit,
        apart: Sequence[Apart],
        queued: Sequence[BlockedKeys],
        held: Held | None,
    ) -> None:
        """Count a group that was applied but for what failed or was held of `apart`, and what is `held` beside it."""
        self.count_held(held)
        if self.held_transactions is not None:
            self.held_transactions.add(*queued)
        self.result.set_changes += len(group.rows) - len(plan.apart.rows)
        applied = len(group)
        changes = len(group.rows)
        for one in apart:
            size = len(one.transaction.changes)
            if one.failure is None and not one.is_held:
                self.result.row_changes += size
                self._count_handled(one.transaction, one.handled)
                continue
            applied, changes = applied - 1, changes - size
            if one.failure is None:
                self.result.held += 1
            else:
                self._count_error(one.transaction, one.failure)
        self.result.tables.add_group(group)
        for one in apart:
            if one.failure is not None or one.is_held:
                # Counted with its group just now, and not applied.
                self.result.tables.add_changes(one.transaction.changes, times=-1)
        self.result.count(applied, changes, group.committed_at_us)

    def count_held(self, held: Held | None) -> None:
        """Count transactions that were put aside, now that this is committed."""
        if held is not None and self.held_transactions is not None:
            self.held_transactions.add(held.marks)
            self.result.held += len(held.group)

    def _count_handled(self, transaction: Transaction, handled: Handled) -> None:
        self.result.resolved += len(handled.resolutions)
        for one in handled.resolutions:
            self.result.resolutions[one.row or "error", one.outcome] += 1
        # As the ledger counts: what went to the error queue by itself is not applied.
        self.result.changes -= len(handled.recorded)
        self.result.row_changes -= len(handled.recorded)
        for change, failure in handled.recorded:
            self.result.tables.changes[change.table, change.op.value] -= 1
            self._count_error(replace(transaction, changes=(change,)), failure)

    def _count_error(self, transaction: Transaction, failure: Failure) -> None:
        self.result.errors += 1
        self.result.failed_tables |= {change.table for change in transaction.changes}
        if failure.error.number in CONFLICTS:
            self.result.conflicts += 1
            self.result.resolutions[_met(failure.error.number), "queued"] += 1
        if self._config.disable_on_error or self._errors_left() == 0:
            self.result.aborted_by = f"transaction {transaction.txn_id}: {failure.error}"

    def _errors_left(self) -> int | None:
        """How many more transactions may fail; None where any number may."""
        most = self._config.max_errors
        return None if most is None else max(0, most - self.result.errors)


def _numbers(transaction: Transaction) -> range:
    return range(1, len(transaction.changes) + 1)


def _met(error_number: int) -> str:
    """What a change met that failed with the number of a conflict."""
    if error_number in _FOREIGN_KEYS:
        return "foreign_key"
    return ConflictKind.MISSING if error_number == ROW_MISSING else ConflictKind.EXISTS
