"""An apply server: one lane, one connection, transactions in commit order, several to a target transaction.

The set path is tried first. Where rows are not as it expects, the transactions that conflict go by the row path, and
all others by the set path. Whatever it cannot decide otherwise is cut in halves and tried again, and what is left after
that goes by the row path; the outcome is the same as if every transaction had gone by the row path.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apply.apply_errors import ApplyError, ContentionError, SpeculationError
from penstock.apply.blocked_keys import BlockedKeys
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
from penstock.apply.dependency_keys import Uses
from penstock.apply.group import Group
from penstock.apply.lane import LaneResult, ServerConfig
from penstock.apply.lane_writer import PREFETCHED_TRANSACTIONS, EnoughError, Held, LaneWriter, SplitError
from penstock.apply.large import LargeTransaction
from penstock.apply.ledger import LaneClaim
from penstock.apply.net import NetChange
from penstock.apply.nettable import Nettable
from penstock.apply.prefetch import ahead
from penstock.apply.session import TargetSession
from penstock.apply.table_counts import TableCounts
from penstock.apply.target import TargetCatalog
from penstock.errors import PenstockError
from penstock.schema import Dictionary, ForeignKey

__all__ = ["GROUP_BYTES", "ApplyServer", "LaneResult", "ServerConfig"]

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


@dataclass(frozen=True)
class _Work:
    """A run of transactions, with their net changes if it is one for the set path and they could be told."""

    group: Group
    can_net: bool
    nets: Sequence[NetChange] | None
    uses: Uses | None = None


class _StormError(SpeculationError):
    """Most changes of a group conflict, so that the set path has little to do there."""


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
        self._writer = LaneWriter(session, ledger, catalog, dictionary, config)
        self._held_transactions = self._writer.held_transactions
        self._result = self._writer.result
        if config.ddl.is_followed:
            session.forget_tables()
        self._nettable = Nettable(
            catalog, dictionary, config.conflicts, config.handlers, most_columns=session.most_net_columns
        )
        self._pieces = TableCounts()
        self._trusted = sys.maxsize
        self._wary = 0
        self._is_storm = False
        self._failed_in_a_row = 0

    def serve(self, groups: Iterable[Group]) -> LaneResult:
        """Apply groups, in commit order.

        An error that stops the process is returned in the result's `failure`; what was committed before stays.
        """
        try:
            self._result.began_ns = time.time_ns()
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
        self._result.ended_ns = time.time_ns()
        return self._result

    def serve_large(self, large: LargeTransaction) -> LaneResult:
        """Apply a transaction that cannot be held; otherwise as `serve`."""
        try:
            self._result.began_ns = time.time_ns()
            low, *above = self._already_applied().tolist()
            if large.commit_scn <= low or large.commit_scn in above:
                self._result.already_applied += 1
            elif large.changes:
                self._apply_large(large)
        except PenstockError as exc:
            self._result.failure = exc
        self._result.ended_ns = time.time_ns()
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
        held = None if found is None else Held(group.only(found[0]), found[1])
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

    def _try_set(self, group: Group, nets: Sequence[NetChange] | None, held: Held | None = None) -> bool:
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
        self._writer.count_held(held)
        self._result.set_changes += len(group.rows)
        self._result.tables.add_group(group)
        self._result.count(len(group), len(group.rows), group.committed_at_us)
        return True

    def _record(self, group: Group, held: Held | None) -> None:
        """Write down that a group is applied, and what waits of it; they were cut from each other."""
        if held is None:
            self._ledger.record(group.commit_scns, changes=len(group.rows))
            return
        # One entry for both, in commit order: the low watermark may follow it.
        scns = np.sort(np.r_[group.commit_scns, held.group.commit_scns])
        self._ledger.record(scns, changes=len(group.rows) + len(held.group.rows))
        self._ledger.put_held(list(held.group.transactions()), held.marks)

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

    def _try_split(self, group: Group, nets: Sequence[NetChange] | None, held: Held | None = None) -> bool:
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
        self, group: Group, nets: Sequence[NetChange], held: Held | None, by_change: Future[Dependencies] | None
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
                    apart, queued = self._writer.write_apart(plan)
                    self._writer.put_aside(apart)
            except SplitError as exc:
                failing[exc.txns] = True
                continue
            except EnoughError as exc:
                self._apply_up_to(group, exc.txn)
                return True
            except _StormError:
                self._is_storm = True
                break
            except (SpeculationError, ApplyError, ContentionError):
                break
            self._wary = _WARY_GROUPS
            self._writer.count_apart(group, plan, apart, queued, held)
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
            part = group.part(first, min(max(end, first + 1), first + PREFETCHED_TRANSACTIONS))
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
                    apart, queued = self._writer.write_apart(plan, is_early)
                    self._writer.put_aside(apart)
            except SplitError as exc:
                is_early[exc.txns] = False
                continue
            except EnoughError as exc:
                self._apply_up_to(group, exc.txn)
                return True
            except (SpeculationError, ApplyError, ContentionError):
                self._writer.rows.rolled_back()
                return False
            self._writer.count_apart(group, plan, apart, queued, None)
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
            if self._writer.hold(large.transaction(), marks):
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
            if not self._writer.apply_transaction(large.transaction(), marks, large.read):
                return
            self._result.row_changes += large.changes
            self._pieces = TableCounts()
            for rows in self._pieces_of(large):
                self._pieces.add_group(rows)
        else:
            self._result.set_changes += large.changes
        self._result.tables.add(self._pieces.as_one_transaction())
        self._result.count(1, large.changes, large.committed_at_us)

    def _nets_of_pieces(self, large: LargeTransaction) -> Iterator[Sequence[NetChange]]:
        """Net a transaction piece by piece; a check that holds only once all pieces are in is left to the row path."""
        self._pieces = TableCounts()
        for piece in self._pieces_of(large):
            self._pieces.add_group(piece)
            nets = self._nettable.nets(piece) if self._nettable.can_net(piece).all() else None
            if nets is None:
                raise SpeculationError("the changes cannot be netted")
            yield nets

    def _pieces_of(self, large: LargeTransaction) -> Iterator[Group]:
        return large.pieces(max_changes=self._config.group_changes, max_bytes=GROUP_BYTES)

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
            if self._writer.hold(transaction, own):
                continue
            if self._writer.apply_transaction(transaction, own, group.part(i, i + 1).rows.to_batches):
                self._result.row_changes += len(transaction.changes)
                self._result.tables.add_changes(transaction.changes)
                self._result.count(1, len(transaction.changes), times[i : i + 1])
                self._failed_in_a_row = 0
            else:
                self._failed_in_a_row += 1
            if self._result.aborted_by is not None:
                return


def _trimmed(nets: Iterator[Sequence[NetChange]]) -> Generator[Sequence[NetChange], None, None]:
    """Give back what making each piece took: Arrow keeps memory for a while that is free again."""
    for piece in nets:
        pa.default_memory_pool().release_unused()
        yield piece
