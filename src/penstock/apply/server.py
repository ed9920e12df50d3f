"""An apply server: one lane, one connection, transactions in commit order, several to a target transaction.

The set path is tried first. Where rows are not as it expects, the transactions that conflict go by the row path, and
all others by the set path. Whatever it cannot decide otherwise is cut in halves and tried again, and what is left after
that goes by the row path; the outcome is the same as if every transaction had gone by the row path.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apply.apply_errors import CONFLICTS, CONTENTION, ApplyError, ContentionError, SpeculationError
from penstock.apply.blocked_keys import BlockedKeys
from penstock.apply.change_applier import Handled
from penstock.apply.conflict_prefetch import NOTHING_MET, ConflictPrefetch, Meeting, PrefetchRequest
from penstock.apply.conflict_split import (
    ConflictSplit,
    all_apart,
    dependencies_of_changes,
    may_fail,
    may_take_another_key,
    split_conflicts,
    untouched_rows,
)
from penstock.apply.coordinator import Dependencies
from penstock.apply.ddl import DdlRules
from penstock.apply.group import Group
from penstock.apply.handlers.runner import handlers_of
from penstock.apply.handlers.settings import NO_HANDLERS, HandlerSettings
from penstock.apply.held_transactions import HeldTransactions
from penstock.apply.lag import LagHistogram
from penstock.apply.large import LargeTransaction
from penstock.apply.ledger import Failed, Failure, LaneClaim
from penstock.apply.net import NetChange
from penstock.apply.nettable import Nettable
from penstock.apply.prefetch import ahead
from penstock.apply.reader import Uses, fingerprint
from penstock.apply.resolve import ConflictRules, ErrorAction
from penstock.apply.row_path import RowPath, TransactionError
from penstock.apply.session import TargetSession
from penstock.apply.target import TargetCatalog
from penstock.apply.written_keys import WrittenKeys
from penstock.change import Op, TableName, Transaction
from penstock.errors import OperatorError, PenstockError, from_json
from penstock.schema import Dictionary, ForeignKey

_SMALLEST_SPLIT = 50
"""A group of fewer changes is not halved any more when the set path fails: the row path is as quick."""

_WARY_GROUPS = 8
"""After a group with conflicts, so many are searched for conflicts before they are applied."""

_SPLITS = 3
"""How often a group is tried with transactions parted of which one turns out to fail; then all are kept whole."""

GROUP_BYTES = 32 * 1024 * 1024
"""A group, or a piece of a large transaction, ends where it reaches so many bytes of images."""

_WIDE_BYTES = 1024 * 1024

_TOGETHER_CHANGES = 5_000
"""A group of which most transactions fail, or are resolved, is applied in parts of so many changes at most."""

_FEWEST_TOGETHER = 8
"""Where other sessions are in the way of a part, it is halved down to so many transactions; these go one by one."""

_LOOKED_AT = 500
"""So many transactions at a time are held as values, while the rows that they meet are looked for together."""

_CONTENTION_RETRIES = 8
"""How often a transaction that another session blocks is tried again before it goes to the error queue."""


@dataclass(frozen=True)
class ServerConfig:
    """How an apply server works.

    Attributes:
        group_changes: A target transaction takes whole source transactions until it holds so many changes; the first
            ones of a batch fewer, see `group_sizes`.
        disable_on_error: Stop after the first transaction that goes to the error queue.
        max_errors: Stop after so many of them; None: never.
        allow_duplicate_rows: See `RowPath`.
        use_set_path: Off, every transaction goes by the row path; the outcome is the same.
        conflicts: How conflicts are found and resolved, and what is done about errors.
        ignored: Ids of transactions at the source whose changes are left out; they count as applied.
        handlers: What users have done with changes.
        hold_dependents: Transactions that depend on one in the error queue wait behind it.
        ddl: What becomes of alterations of tables.
    """

    group_changes: int = 100_000
    disable_on_error: bool = False
    max_errors: int | None = None
    allow_duplicate_rows: bool = True
    use_set_path: bool = True
    conflicts: ConflictRules = field(default_factory=ConflictRules)
    ignored: frozenset[str] = frozenset()
    handlers: HandlerSettings = NO_HANDLERS
    hold_dependents: bool = False
    ddl: DdlRules = field(default_factory=DdlRules)


@dataclass
class LaneResult:
    """What one lane of one batch came to."""

    lane: int = 0
    transactions: int = 0
    changes: int = 0
    set_changes: int = 0
    row_changes: int = 0
    target_transactions: int = 0
    errors: int = 0
    held: int = 0
    conflicts: int = 0
    resolved: int = 0
    already_applied: int = 0
    lag: LagHistogram = field(default_factory=LagHistogram)
    aborted_by: str | None = None
    failure: PenstockError | None = None
    failed_tables: set[TableName] = field(default_factory=set)
    """The tables of the transactions that went to the error queue."""

    def to_json(self) -> str:
        """Write the result as a line that `from_json` reads in another process."""
        plain = {**self.__dict__, "lag": dict(self.lag.buckets), "failure": None}
        plain["failed_tables"] = [[table.schema, table.name] for table in sorted(self.failed_tables)]
        if self.failure is not None:
            plain["failure"] = self.failure.to_json()
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> LaneResult:
        """Read what `to_json` wrote."""
        plain = json.loads(text)
        lag = LagHistogram()
        lag.merge(plain.pop("lag"))
        failure = plain.pop("failure")
        plain["failed_tables"] = {TableName(schema, name) for schema, name in plain["failed_tables"]}
        return cls(**plain, lag=lag, failure=from_json(failure) if failure else None)


@dataclass(frozen=True)
class _Work:
    """A run of transactions, with their net changes if it is one for the set path and they could be told."""

    group: Group
    can_net: bool
    nets: Sequence[NetChange] | None
    uses: Uses | None = None


@dataclass(frozen=True)
class _Apart:
    """A transaction that was applied by the row path, or put into the error queue because of a failure, or held."""

    transaction: Transaction
    handled: Handled
    failure: Failure | None = None
    marks: BlockedKeys | None = None
    is_held: bool = False


@dataclass(frozen=True)
class _Held:
    """Transactions that wait behind the error queue, and their marks."""

    group: Group
    marks: BlockedKeys


class _SplitError(Exception):
    """Transactions fail of which something is done that cannot be undone alone; by their indexes in the group."""

    def __init__(self, *txns: int) -> None:
        super().__init__(*txns)
        self.txns = list(txns)


class _EnoughError(Exception):
    """With the transaction of this index in the group as many have failed as may."""

    def __init__(self, txn: int) -> None:
        super().__init__(txn)
        self.txn = txn


class _StormError(SpeculationError):
    """Most changes of a group conflict, so that the set path has little to do there."""


class _RecordedError(Exception):
    """A change went to the error queue, which others may have to wait for: they are looked at one by one."""


class ApplyServer:
    """Applies the changes of one lane."""

    def __init__(
        self,
        session: TargetSession,
        claim: LaneClaim,
        catalog: TargetCatalog,
        dictionary: Dictionary,
        config: ServerConfig,
    ) -> None:
        """Apply through `session`, and write the ledger of the lane in the same transactions."""
        self._session = session
        self._ledger = ledger = session.lane_ledger(claim)
        self._catalog = catalog
        self._config = config
        self._rows = RowPath(
            session,
            catalog,
            dictionary,
            allow_duplicate_rows=config.allow_duplicate_rows,
            conflicts=config.conflicts,
            handlers=handlers_of(config.handlers, session.handler_sql),
            ddl=config.ddl,
        )
        self._prefetch = ConflictPrefetch(session, catalog, dictionary, config.conflicts, self._rows.aim)
        if config.ddl.is_followed:
            session.forget_tables()
        self._held_transactions: HeldTransactions | None = None
        if config.hold_dependents:
            self._held_transactions = HeldTransactions(ledger, catalog, fingerprint(catalog.tables, catalog.virtual))
        self._nettable = Nettable(
            catalog, dictionary, config.conflicts, config.handlers, most_columns=session.most_net_columns
        )
        self._result = LaneResult()
        self._trusted = sys.maxsize
        self._wary = 0
        self._is_storm = False
        self._failed_in_a_row = 0

    def serve(self, groups: Iterable[Group]) -> LaneResult:
        """Apply groups, in commit order.

        An error that stops the process is returned in the result's `failure`; what was committed before stays.
        """
        try:
            applied = self._already_applied()
            # One group is being read, one is netted, and the target is at work on one.
            # Closed here: an error that is kept keeps them too, and they would go on reading.
            with (
                closing(ahead(groups)) as made,
                closing(ahead(self._prepare(made, applied))) as prepared,
            ):
                for work in prepared:
                    if self._held_transactions is not None:
                        self._held_transactions.expect(work.group, work.uses)
                    if work.can_net:
                        self._apply_set(work.group, work.nets)
                    else:
                        self._apply_rows(work.group)
                    if self._result.aborted_by is not None:
                        break
        except PenstockError as exc:
            self._result.failure = exc
        return self._result

    def serve_large(self, large: LargeTransaction) -> LaneResult:
        """Apply a transaction that cannot be held; otherwise as `serve`."""
        try:
            low, *above = self._already_applied().tolist()
            if large.commit_scn <= low or large.commit_scn in above:
                self._result.already_applied += 1
            elif large.changes:
                self._apply_large(large)
        except PenstockError as exc:
            self._result.failure = exc
        return self._result

    def _prepare(self, groups: Iterable[Group], applied: NDArray[np.int64]) -> Iterator[_Work]:
        """Cut groups into runs for the set path, with their net changes, and runs for the row path."""
        for group in groups:
            for run, can_net in self._nettable.runs(self._not_applied(group, applied)):
                is_for_set_path = can_net and self._config.use_set_path
                uses = self._held_transactions.look_ahead(run) if self._held_transactions is not None else None
                yield _Work(run, is_for_set_path, self._nettable.nets(run) if is_for_set_path else None, uses)

    def _already_applied(self) -> NDArray[np.int64]:
        with self._session.transaction():
            applied = self._ledger.claim()
            if self._held_transactions is not None:
                self._held_transactions.begin()
            return applied

    def _not_applied(self, group: Group, applied: NDArray[np.int64]) -> Group:
        """Leave out transactions that an earlier attempt has applied."""
        low, above = applied[0], applied[1:]
        scns = group.commit_scns
        is_new = (scns > low) & ~np.isin(scns, above)
        self._result.already_applied += int((~is_new).sum())
        return group.only(is_new)

    def _apply_set(self, group: Group, nets: Sequence[NetChange] | None, *, is_part: bool = False) -> None:
        if self._is_storm and self._can_go_together(group):
            self._apply_together(group)
            return
        if len(group.rows) > self._trusted and len(group) > 1:
            self._apply_parts(group)
            return
        cut = self._checks_more(group)
        if cut:
            for part in (group.part(0, cut), group.part(cut, len(group))):
                if self._result.aborted_by is None:
                    self._apply_set(part, self._nettable.nets(part))
            return
        found = self._held_transactions.find(group) if self._held_transactions is not None else None
        held = None if found is None else _Held(group.only(found[0]), found[1])
        rest = group if found is None else group.only(~found[0])
        if held is not None:
            nets = self._nettable.nets(rest)
        is_wary = self._wary > 0
        if not (is_wary and self._try_split(rest, nets, held)) and not self._try_set(rest, nets, held):
            # Of a part of a group that was searched already it is known that this does not help.
            if not (is_wary or is_part or self._is_storm) and self._try_split(rest, nets, held):
                return
            if self._is_storm and self._can_go_together(group):
                self._apply_together(group)
                return
            # Where one fails others will: larger ones are not tried again until smaller ones go well.
            self._trusted = max(len(group.rows) // 2, _SMALLEST_SPLIT)
            self._apply_parts(group)
            return
        self._trusted = max(self._trusted, 2 * len(group.rows))

    def _try_set(self, group: Group, nets: Sequence[NetChange] | None, held: _Held | None = None) -> bool:
        """Apply a group by the set path, and put aside what is `held` among it, in one target transaction.

        Returns:
            False, and nothing is done, where that cannot decide it.
        """
        if nets is None:
            return False
        try:
            with self._session.transaction():
                self._record(group, held)
                if len(group):
                    self._session.apply_net(nets, unchecked=self._unchecked(group))
        except (SpeculationError, ApplyError, ContentionError):
            return False
        self._count_held(held)
        self._result.set_changes += len(group.rows)
        self._count(len(group), len(group.rows), group.committed_at_us)
        return True

    def _record(self, group: Group, held: _Held | None) -> None:
        """Write down that a group is applied, and what waits of it; they were cut from each other."""
        if held is None:
            self._ledger.record(group.commit_scns, changes=len(group.rows))
            return
        # One entry for both, in commit order: the low watermark may follow it.
        scns = np.sort(np.r_[group.commit_scns, held.group.commit_scns])
        self._ledger.record(scns, changes=len(group.rows) + len(held.group.rows))
        self._ledger.put_held(list(held.group.transactions()), held.marks)

    def _count_held(self, held: _Held | None) -> None:
        if held is not None and self._held_transactions is not None:
            self._held_transactions.add(held.marks)
            self._result.held += len(held.group)

    def _unchecked(self, group: Group) -> Collection[ForeignKey]:
        """The foreign keys that are not checked of a group, which are the same for all of it."""
        return self._catalog.unchecked(int(group.commit_scns[0]))

    def _checks_more(self, group: Group) -> int:
        """The index of the first transaction of which more foreign keys are checked than of the first; 0 for none."""
        first, last, ends = group.commit_scns[0], group.commit_scns[-1], self._catalog.reference_positions
        end = int(np.searchsorted(ends, first))
        if end == len(ends) or ends[end] >= last:
            return 0
        return int(np.searchsorted(group.commit_scns, ends[end], side="right"))

    def _try_split(self, group: Group, nets: Sequence[NetChange] | None, held: _Held | None = None) -> bool:
        """Apply a group in one target transaction: by the set path, but for what conflicts, and by the row path that.

        Changes that conflict, and later ones that depend on them, come last; the others share nothing with them, so the
        outcome is that of commit order. Of a transaction that may fail nothing is applied before that is known.

        Returns:
            False, and nothing is done, where nothing conflicts, too much does, or others must decide.
        """
        if nets is None or len(group) <= 1 or self._is_one_by_one(group):
            return False
        # A resolver may then change a row that no dependency value of its transaction names.
        all_behind = any(may_take_another_key(net.table, self._config.conflicts) for net in nets)
        # While the target is searched.
        with ThreadPoolExecutor(1, "dependencies") as aside:
            by_change = None if all_behind else aside.submit(dependencies_of_changes, group, self._catalog)
            return self._apply_split(group, nets, held, by_change)

    def _is_one_by_one(self, group: Group) -> bool:
        """Whether no transaction may be begun before it is known what becomes of the one before."""
        if self._config.disable_on_error or self._config.conflicts.waits:
            return True
        # What an error handler does besides is not to be done in another order than the source's.
        return any(self._config.handlers.handles_errors(table) for table, _, _ in group.tables)

    def _apply_split(
        self, group: Group, nets: Sequence[NetChange], held: _Held | None, by_change: Future[Dependencies] | None
    ) -> bool:
        failing = np.zeros(len(group), bool)
        for attempt in range(_SPLITS + 1):
            try:
                with self._session.transaction():
                    self._record(group, held)
                    # One that waits behind the error queue, or has others wait, is looked at as a whole.
                    splits = attempt < _SPLITS and self._held_transactions is None
                    plan = self._split_conflicts(group, nets, failing, by_change, splits=splits)
                    self._apply_rest(group, nets, plan)
                    apart, queued = self._write_apart(plan)
                    self._put_aside(apart)
            except _SplitError as exc:
                failing[exc.txns] = True
                continue
            except _EnoughError as exc:
                self._apply_up_to(group, exc.txn)
                return True
            except _StormError:
                self._is_storm = True
                break
            except (SpeculationError, ApplyError, ContentionError):
                break
            self._wary = _WARY_GROUPS
            self._count_apart(group, plan, apart, queued, held)
            return True
        self._wary = max(0, self._wary - 1)
        return False

    def _apply_rest(self, group: Group, nets: Sequence[NetChange], plan: ConflictSplit) -> None:
        """Apply by the set path what is not apart."""
        unchecked = self._unchecked(group)
        is_rest = ~plan.is_apart
        if not any(len(net.puts) or len(net.probes) for net in nets):
            # Rows that nothing apart has to do with are netted and staged already.
            left_out, is_rest = untouched_rows(group, nets, plan.is_apart)
            self._session.apply_found(left_out, unchecked=unchecked)
        if is_rest.any():
            rest = self._nettable.nets(group.changes(is_rest))
            if rest is None:
                raise SpeculationError("the changes cannot be netted")
            self._session.apply_net(rest, unchecked=unchecked)

    def _split_conflicts(
        self,
        group: Group,
        nets: Sequence[NetChange],
        failing: NDArray[np.bool_],
        by_change: Future[Dependencies] | None,
        *,
        splits: bool,
    ) -> ConflictSplit:
        """Part a group; `failing` are transactions that have turned out to fail, and to which others are added.

        Raises:
            SpeculationError: It is not worth it.
        """
        found, is_there = np.zeros(len(group.rows), bool), np.zeros(len(group.rows), bool)
        is_here_of = {table: is_here for table, _, is_here in group.tables}
        for net, unexpected in zip(nets, self._session.find_conflicts(nets), strict=True):
            # Indexes among the changes of the table, then among all.
            changes = np.flatnonzero(is_here_of[net.table.name])[unexpected.changes]
            found[changes], is_there[changes] = True, unexpected.is_there
        if not found.any():
            raise SpeculationError("no conflict was found")
        if splits:
            failing |= may_fail(group, found, self._config.conflicts)
        else:
            failing |= np.logical_or.reduceat(found, group.starts[:-1])
        depends = None if by_change is None else by_change.result()
        plan = split_conflicts(group, found, is_there, failing, self._catalog, by_change=depends)
        if 2 * len(plan.apart.rows) > len(group.rows):
            raise _StormError("every second change would go by the row path")
        return plan

    def _apply_up_to(self, group: Group, txn: int) -> None:
        """Apply a group up to a transaction with which enough have failed; what is behind it only if fewer do now."""
        for part in (group.part(0, txn + 1), group.part(txn + 1, len(group))):
            if len(part) and self._result.aborted_by is None:
                self._apply_set(part, self._nettable.nets(part), is_part=True)

    def _refuse_more(self, plan: ConflictSplit, index: int, apart: Sequence[_Apart]) -> None:
        """Make sure that nothing is applied behind the last transaction that may fail.

        Raises:
            _EnoughError: That is what the last one of `apart` is, and others of its group are behind it.
        """
        left = self._errors_left()
        if left is None or not (apart[-1].failure or apart[-1].handled.recorded):
            return
        failed = sum((one.failure is not None) + len(one.handled.recorded) for one in apart)
        if failed >= left and plan.txn[index] + 1 < plan.transactions:
            raise _EnoughError(int(plan.txn[index]))

    def _put_aside(self, apart: Sequence[_Apart]) -> None:
        """Write down what failed, and what was resolved."""
        queue = self._queued(apart)
        if queue:
            self._ledger.put_errors(queue)
        self._note_resolutions((one.transaction, one.handled) for one in apart)

    def _count_apart(
        self,
        group: Group,
        plan: ConflictSplit,
        apart: Sequence[_Apart],
        queued: Sequence[BlockedKeys],
        held: _Held | None,
    ) -> None:
        self._count_held(held)
        if self._held_transactions is not None:
            self._held_transactions.add(*queued)
        self._result.set_changes += len(group.rows) - len(plan.apart.rows)
        applied = len(group)
        changes = len(group.rows)
        for one in apart:
            size = len(one.transaction.changes)
            if one.failure is None and not one.is_held:
                self._result.row_changes += size
                self._count_handled(one.transaction, one.handled)
                continue
            applied, changes = applied - 1, changes - size
            if one.failure is None:
                self._result.held += 1
            else:
                self._count_error(one.transaction, one.failure)
        self._count(applied, changes, group.committed_at_us)

    def _write_apart(
        self, plan: ConflictSplit, early: NDArray[np.bool_] | None = None
    ) -> tuple[list[_Apart], list[BlockedKeys]]:
        """Apply changes by the row path, or put their transactions into the error queue, inside the open transaction.

        Args:
            early: For each transaction, whether its conflicts may be resolved out of turn although it is whole.

        Returns:
            What became of each, and the marks of those that went to the queue, where others are to wait for them.

        Raises:
            _SplitError: Transactions fail of which changes are applied already.
        """
        if self._held_transactions is not None:
            return self._write_or_hold(plan.apart, self._held_transactions)
        apart: list[_Apart] = []
        numbered = enumerate(plan.apart.transactions())
        written = WrittenKeys(plan.apart, dependencies_of_changes(plan.apart, self._catalog))
        tables = (self._catalog.tables.get(name) for name, _, _ in plan.apart.tables)
        conflicts = self._config.conflicts
        may_take_another = any(table is not None and may_take_another_key(table, conflicts) for table in tables)
        failing = []
        while some := list(islice(numbered, _LOOKED_AT)):
            asking = [self._asking(plan, index, one, written, early) for index, one in some]
            meetings = self._prefetch.look(asking)
            written.begin()
            for (index, transaction), found in zip(some, meetings, strict=True):
                # What was seen of a row that was written to since is not so any more.
                meeting = {n: met for n, met in found.items() if met.mended or not written.concerns(index, n)}
                is_early = any(met.mended for met in meeting.values())
                if plan.is_whole[index] and not all(n in meeting and meeting[n].mended for n in _numbers(transaction)):
                    one = self._try_apart(transaction, meeting=meeting)
                    if one.failure is not None and is_early:
                        failing.append(int(plan.txn[index]))
                else:
                    try:
                        one = _Apart(transaction, self._write_rows(transaction, meeting))
                    except TransactionError as exc:
                        raise _SplitError(int(plan.txn[index]), *failing) from exc
                    one.handled.resolutions = plan.renumbered(index, one.handled.resolutions)
                apart.append(one)
                self._refuse_more(plan, index, apart)
                if one.failure is None:
                    written.note(index)
                    if may_take_another and one.handled.resolutions:
                        written.note_anything()
        if failing:
            raise _SplitError(*failing)
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

    def _write_or_hold(
        self, group: Group, held_transactions: HeldTransactions
    ) -> tuple[list[_Apart], list[BlockedKeys]]:
        """The same for whole transactions, of which some may have to wait for others."""
        transactions = list(group.transactions())
        tables = {change.table for transaction in transactions for change in transaction.changes}
        if any(self._config.conflicts.resolves(table) for table in tables):
            # A savepoint for each costs two round trips, and each of them may well be resolved.
            with suppress(TransactionError, _RecordedError), self._session.savepoint():
                apart = [_Apart(one, self._write_rows(one)) for one in transactions]
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
                apart.append(_Apart(transaction, Handled(), None, is_held=True))
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
    ) -> _Apart:
        """Apply a whole transaction by the row path inside the open transaction, or find out why that cannot be."""
        prefetched = self._rows.prefetched_failure(transaction, meeting)
        if prefetched is not None:
            return _Apart(transaction, Handled(), prefetched, marks)
        try:
            with self._session.savepoint():
                return _Apart(transaction, self._write_rows(transaction, meeting))
        except TransactionError as exc:
            rule = self._rows.error_rule(transaction, exc.failure)
            if rule is not None and rule.then in (ErrorAction.ABEND, ErrorAction.RETRY_TRANSACTION):
                raise SpeculationError("a transaction is to be tried again, or to stop the run") from exc
            failure = self._rows.explain(transaction, exc.failure, is_open=True)
            return _Apart(transaction, Handled(), failure, marks)

    def _queued(self, apart: Iterable[_Apart]) -> list[Failed]:
        """What goes to the error queue."""
        queued = []
        for one in apart:
            if one.failure is not None:
                queued.append(Failed(one.transaction, one.failure, one.marks))
            queued += self._recorded(one.transaction, one.handled)
        return queued

    def _apply_parts(self, group: Group) -> None:
        """Narrow down to the transactions that the set path cannot apply; those go by the row path."""
        if len(group) == 1 or len(group.rows) < _SMALLEST_SPLIT:
            if self._can_go_together(group):
                self._apply_together(group)
            else:
                self._apply_rows(group)
            return
        middle = int(np.searchsorted(group.starts, len(group.rows) // 2))
        middle = min(max(1, middle), len(group) - 1)
        for part in (group.part(0, middle), group.part(middle, len(group))):
            if self._result.aborted_by is None:
                self._apply_set(part, self._nettable.nets(part), is_part=True)

    def _can_go_together(self, group: Group) -> bool:
        """Whether transactions may fail in a target transaction that others are applied in."""
        if len(group) == 1 or self._held_transactions is not None or not self._config.use_set_path:
            return False
        return not self._is_one_by_one(group)

    def _apply_together(self, group: Group) -> None:
        """Apply transactions of which most fail, or have conflicts: by the row path, many to a target transaction."""
        first = 0
        while first < len(group) and self._result.aborted_by is None:
            end = int(np.searchsorted(group.starts, group.starts[first] + _TOGETHER_CHANGES, side="right")) - 1
            part = group.part(first, min(max(end, first + 1), first + _LOOKED_AT))
            self._apply_part_together(part)
            first += len(part)

    def _apply_part_together(self, part: Group) -> None:
        if len(part) > 1 and self._try_together(part):
            return
        if len(part) < _FEWEST_TOGETHER:
            self._apply_rows(part)
            return
        middle = len(part) // 2
        for half in (part.part(0, middle), part.part(middle, len(part))):
            if self._result.aborted_by is None:
                self._apply_part_together(half)

    def _try_together(self, group: Group) -> bool:
        """Apply transactions by the row path in one target transaction, and put those that fail into the error queue.

        Returns:
            False, and nothing is done, where they have to be tried one by one.
        """
        plan = all_apart(group)
        is_early = np.ones(len(group), bool)
        for attempt in range(_SPLITS + 1):
            if attempt == _SPLITS:
                is_early[:] = False
            try:
                with self._session.transaction():
                    self._record(group, None)
                    apart, queued = self._write_apart(plan, is_early)
                    self._put_aside(apart)
            except _SplitError as exc:
                is_early[exc.txns] = False
                continue
            except _EnoughError as exc:
                self._apply_up_to(group, exc.txn)
                return True
            except (SpeculationError, ApplyError, ContentionError):
                self._rows.rolled_back()
                return False
            self._count_apart(group, plan, apart, queued, None)
            handled = sum(one.failure is not None or bool(one.handled.resolutions) for one in apart)
            self._is_storm = 2 * handled > len(group)
            self._failed_in_a_row = _FEWEST_TOGETHER if self._is_storm else 0
            if not self._is_storm:
                self._trusted = max(self._trusted, _SMALLEST_SPLIT)
            return True
        return False

    def _apply_large(self, large: LargeTransaction) -> None:
        marks = None
        if self._held_transactions is not None and self._held_transactions.keeps_any:
            marks = self._held_transactions.of_batches(large.read())
            if self._hold(large.transaction(), marks):
                return
        try:
            if not self._config.use_set_path:
                raise SpeculationError("the set path is switched off")
            unchecked = self._catalog.unchecked(large.commit_scn)
            with self._session.transaction():
                self._ledger.record(np.array([large.commit_scn]), changes=large.changes)
                nets = self._nets_of_pieces(large)
                # Two pieces at a time would be too much where single rows are huge.
                pieces = _trimmed(nets) if large.size_bytes > _WIDE_BYTES * large.changes else ahead(nets)
                with closing(pieces):
                    for piece in pieces:
                        self._session.apply_net(piece, unchecked=unchecked)
        except (SpeculationError, ApplyError, ContentionError):
            if not self._apply_transaction(large.transaction(), marks, large.read):
                return
            self._result.row_changes += large.changes
        else:
            self._result.set_changes += large.changes
        self._count(1, large.changes, large.committed_at_us)

    def _nets_of_pieces(self, large: LargeTransaction) -> Iterator[Sequence[NetChange]]:
        """Net a transaction piece by piece; a check that holds only once all pieces are in is left to the row path."""
        for piece in large.pieces(max_changes=self._config.group_changes, max_bytes=GROUP_BYTES):
            nets = self._nettable.nets(piece) if self._nettable.can_net(piece).all() else None
            if nets is None:
                raise SpeculationError("the changes cannot be netted")
            yield nets

    def _apply_rows(self, group: Group) -> None:
        times = group.committed_at_us
        marks: BlockedKeys | None = None
        for i, transaction in enumerate(group.transactions()):
            if self._failed_in_a_row >= _FEWEST_TOGETHER and i + _FEWEST_TOGETHER <= len(group):
                # What comes next will fail, too.
                rest, self._failed_in_a_row = group.part(i, len(group)), 0
                if self._can_go_together(rest) and self._nettable.are_plain(rest):
                    self._apply_together(rest)
                    return
            own = None
            if self._held_transactions is not None and (self._held_transactions.keeps_any or marks is not None):
                marks = self._held_transactions.of_group(group) if marks is None else marks
                own = marks.of_one(i)
            if self._hold(transaction, own):
                continue
            if self._apply_transaction(transaction, own, group.part(i, i + 1).rows.to_batches):
                self._result.row_changes += len(transaction.changes)
                self._count(1, len(transaction.changes), times[i : i + 1])
                self._failed_in_a_row = 0
            else:
                self._failed_in_a_row += 1
            if self._result.aborted_by is not None:
                return

    def _hold(self, transaction: Transaction, marks: BlockedKeys | None) -> bool:
        """Put a transaction aside if it waits behind the error queue; whether it does."""
        if self._held_transactions is None or marks is None or not self._held_transactions.keeps(marks):
            return False
        with self._session.transaction():
            self._ledger.record(np.array([transaction.commit_scn]), changes=len(transaction.changes))
            self._ledger.put_held([transaction], marks)
        self._held_transactions.add(marks)
        self._result.held += 1
        return True

    def _apply_transaction(
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
        failure = self._rows.explain(transaction, failure)
        if self._held_transactions is not None and marks is None:
            marks = self._held_transactions.of_batches(read())
        with self._session.transaction():
            self._ledger.record(scns, changes=len(transaction.changes))
            self._ledger.put_errors([Failed(transaction, failure, marks)])
        if self._held_transactions is not None and marks is not None:
            self._held_transactions.add(marks)
        self._count_error(transaction, failure)
        return False

    def _try_patiently(self, transaction: Transaction, scns: NDArray[np.int64]) -> Failure | None:
        """Apply a transaction by the row path, and again as often as the rules for its error say.

        Raises:
            OperatorError: They say that the process is to stop.
        """
        tries = 0
        while (failure := self._try_rows(transaction, scns)) is not None:
            rule = self._rows.error_rule(transaction, failure)
            if rule is not None and rule.then is ErrorAction.ABEND:
                raise OperatorError(
                    f"transaction {transaction.txn_id} cannot be applied: {failure.error}",
                    where=f"change {failure.message_number} of {len(transaction.changes)}",
                    do="mend the cause and run again; the rule `abend` of `on_error` stops the run here",
                )
            if rule is None or rule.then is not ErrorAction.RETRY_TRANSACTION or tries == rule.times:
                return failure
            tries += 1
            time.sleep(rule.delay_s)
        return None

    def _count_error(self, transaction: Transaction, failure: Failure) -> None:
        self._result.errors += 1
        self._result.failed_tables |= {change.table for change in transaction.changes}
        self._result.conflicts += failure.error.number in CONFLICTS
        if self._config.disable_on_error or self._errors_left() == 0:
            self._result.aborted_by = f"transaction {transaction.txn_id}: {failure.error}"

    def _errors_left(self) -> int | None:
        """How many more transactions may fail; None where any number may."""
        most = self._config.max_errors
        return None if most is None else max(0, most - self._result.errors)

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
                self._rows.rolled_back()
                return Failure(0, exc)
            except ContentionError as exc:
                self._rows.rolled_back()
                contention = Failure(exc.message_number, ApplyError(CONTENTION, exc.what, where=exc.where))
                time.sleep(0.01 * 2**attempt)
            else:
                if self._held_transactions is not None:
                    self._held_transactions.add(
                        *(self._held_transactions.of_change(transaction, one) for one, _ in handled.recorded)
                    )
                self._count_handled(transaction, handled)
                return None
        return contention

    def _write_rows(self, transaction: Transaction, meeting: Meeting = NOTHING_MET) -> Handled:
        """Apply a transaction by the row path, inside the open transaction, and write down which tables it empties."""
        handled = self._rows.apply(transaction, meeting)
        emptied = {change.table for change in transaction.changes if change.op is Op.TRUNCATE}
        if emptied:
            self._ledger.note_emptied(emptied, transaction.commit_scn)
        return handled

    def _recorded(self, transaction: Transaction, handled: Handled) -> list[Failed]:
        """What goes to the error queue of a transaction that is applied."""
        return [
            Failed(
                replace(transaction, changes=(change,)),
                failure,
                None if self._held_transactions is None else self._held_transactions.of_change(transaction, change),
                is_whole=False,
            )
            for change, failure in handled.recorded
        ]

    def _note_resolutions(self, written: Iterable[tuple[Transaction, Handled]]) -> None:
        resolved = [(transaction, handled.resolutions) for transaction, handled in written if handled.resolutions]
        if resolved:
            self._ledger.note_resolutions(resolved)

    def _count_handled(self, transaction: Transaction, handled: Handled) -> None:
        self._result.resolved += len(handled.resolutions)
        # As the ledger counts: what went to the error queue by itself is not applied.
        self._result.changes -= len(handled.recorded)
        self._result.row_changes -= len(handled.recorded)
        for change, failure in handled.recorded:
            self._count_error(replace(transaction, changes=(change,)), failure)

    def _count(self, transactions: int, changes: int, committed_at_us: NDArray[np.int64]) -> None:
        result = self._result
        result.target_transactions += 1
        result.transactions += transactions
        result.changes += changes
        known = committed_at_us[committed_at_us > 0]
        if len(known):
            result.lag.add(time.time_ns() // 1_000 - known)


def _numbers(transaction: Transaction) -> range:
    return range(1, len(transaction.changes) + 1)


def _trimmed(nets: Iterator[Sequence[NetChange]]) -> Generator[Sequence[NetChange], None, None]:
    """Give back what making each piece took: Arrow keeps memory for a while that is free again."""
    for piece in nets:
        pa.default_memory_pool().release_unused()
        yield piece
