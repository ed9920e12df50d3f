"""Going around conflicts: which changes of a group the set path takes, and which go change by change.

Dependency values are those of `reader`, found here for each change and not for each transaction: what a transaction
does besides its conflict does not depend on how that ends, as long as it is resolved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import change as c
from penstock.apply.conflict_methods import ConflictKind, ConflictRules, Resolution
from penstock.apply.coordinator import Dependencies, behind_writers, with_followers
from penstock.apply.dependency_keys import find_dependencies
from penstock.apply.group import Group
from penstock.apply.net import NetChange
from penstock.apply.target import TargetCatalog, TargetTable
from penstock.change import Op, TableName
from penstock.images import is_present


@dataclass(frozen=True)
class ConflictSplit:
    """A group in two parts; the first may be applied before the second with the outcome of commit order.

    Attributes:
        is_apart: For each change of the group, whether it is in the second part, which goes by the row path.
        apart: That part, in commit order. Other changes of its transactions may be in the first one.
        numbers: For each change of `apart`, its number in its transaction, counted from 1.
        meets_row: For each change of `apart`, whether it is known to meet a row with its key that it does not expect.
        meets_it_now: For each of these, whether no other change of `apart` writes to that row before.
        txn: For each transaction of `apart`, its index in the group.
        is_whole: For each transaction of `apart`, whether all its changes are there, since it may fail.
        transactions: How many there are in the group.
    """

    is_apart: NDArray[np.bool_]
    apart: Group
    numbers: NDArray[np.int64]
    meets_row: NDArray[np.bool_]
    meets_it_now: NDArray[np.bool_]
    txn: NDArray[np.int64]
    is_whole: NDArray[np.bool_]
    transactions: int

    def meeting(self, index: int, *, now: bool = False) -> list[int]:
        """Which changes of a transaction of `apart`, counted from 1 as they are there, `meets_row` is about.

        Args:
            now: Those of `meets_it_now` alone.
        """
        first, end = self.apart.starts[index], self.apart.starts[index + 1]
        which = self.meets_it_now if now else self.meets_row
        numbers: list[int] = (np.flatnonzero(which[first:end]) + 1).tolist()
        return numbers

    def renumbered(self, index: int, resolutions: Sequence[Resolution]) -> list[Resolution]:
        """What was resolved in a transaction of `apart`, by the numbers that its changes have in the whole of it."""
        first = int(self.apart.starts[index])
        return [replace(one, message_number=int(self.numbers[first + one.message_number - 1])) for one in resolutions]


def dependencies_of_changes(group: Group, catalog: TargetCatalog) -> Dependencies:
    """Find the dependency values of each change of a group; where these speak of transactions, changes are meant."""
    return find_dependencies(group.rows.to_batches(), np.arange(len(group.rows)), catalog.tables, catalog.virtual)


def split_conflicts(
    group: Group,
    found: NDArray[np.bool_],
    is_there: NDArray[np.bool_],
    failing: NDArray[np.bool_],
    catalog: TargetCatalog,
    *,
    by_change: Dependencies | None,
) -> ConflictSplit:
    """Part a group where changes conflict.

    Args:
        found: For each change, whether it is known to conflict.
        is_there: For each of these, whether a row has its key.
        failing: For each transaction, whether it may fail, so that nothing of it is to be applied before that is known.
        by_change: See `dependencies_of_changes`. None where a resolver may change a row that no dependency value tells
            of: then everything behind the first conflict stays behind it.
    """
    txn_of = group.txn_of
    if by_change is None:
        is_apart = np.logical_or.accumulate(found | failing[txn_of])
        # All of a transaction that comes behind one of these is apart.
        is_whole = np.logical_or.accumulate(failing)
        meets_now = np.zeros(len(is_there), bool)
    else:
        by_transaction = Dependencies(
            txn_of[by_change.txn], by_change.value, by_change.is_written, np.unique(txn_of[by_change.barriers])
        )
        is_whole = with_followers(by_transaction, failing) if failing.any() else failing
        # Who refers to a row that is there, and stays, need not wait until it is decided about.
        keeping = _keeps_key(group, is_there & ~is_whole[txn_of], catalog)
        is_apart = with_followers(by_change, found | is_whole[txn_of], keeping=keeping)
        meets_now = is_there & ~behind_writers(by_change, is_apart, keeping)
    numbers = np.arange(len(txn_of)) - group.starts[txn_of] + 1
    apart = group.changes(is_apart)
    txn = np.unique(txn_of[is_apart])
    return ConflictSplit(
        is_apart, apart, numbers[is_apart], is_there[is_apart], meets_now[is_apart], txn, is_whole[txn], len(group)
    )


def all_apart(group: Group) -> ConflictSplit:
    """Have all of a group go by the row path, each transaction as a whole."""
    changes, transactions = np.ones(len(group.rows), bool), np.ones(len(group), bool)
    numbers = np.arange(len(group.rows)) - group.starts[group.txn_of] + 1
    return ConflictSplit(changes, group, numbers, ~changes, ~changes, np.arange(len(group)), transactions, len(group))


def untouched_rows(
    group: Group, nets: Sequence[NetChange], is_apart: NDArray[np.bool_]
) -> tuple[list[NDArray[np.int64]], NDArray[np.bool_]]:
    """Tell which rows of net changes no change apart has to do with.

    Returns:
        For each net change, the first changes of all other rows. And which changes of the group are of these rows, and
        not apart: they have to be netted by themselves.
    """
    left_out = []
    torn = np.zeros(len(is_apart), bool)
    is_here_of = {table: is_here for table, _, is_here in group.tables}
    for net in nets:
        changes, firsts = net.chains
        here = np.flatnonzero(is_here_of[net.table.name])
        # For each change of the table, whether a row of it is left out; `rows` names them by their first changes.
        is_left = is_apart[here]
        while True:
            rows = np.unique(firsts[is_left[changes]])
            more = changes[np.isin(firsts, rows)]
            if is_left[more].all():
                break
            is_left[more] = True
        left_out.append(rows)
        torn[here[is_left & ~is_apart[here]]] = True
    return left_out, torn


def _keeps_key(group: Group, is_there: NDArray[np.bool_], catalog: TargetCatalog) -> NDArray[np.bool_]:
    """Which of the changes that meet a row with their key cannot take from it what other rows refer to."""
    keeps = np.zeros(len(is_there), bool)
    for name, _, is_here in group.tables:
        table = catalog.tables[name]
        key = set(table.key.columns)
        at = np.flatnonzero(is_here & is_there)
        if not len(at) or not all(set(one.parent_columns) <= key for one in table.schema.referenced_by):
            continue
        rows = group.rows.take(pa.array(at)).combine_chunks()
        ops = np.asarray(rows[c.OP])
        after = pa.concat_arrays(rows[c.AFTER].chunks)
        moves = np.logical_or.reduce([np.asarray(is_present(after, column)) for column in sorted(key)])
        keeps[at] = (ops == Op.INSERT) | ((ops == Op.UPDATE) & ~moves)
    return keeps


def may_fail(group: Group, found: NDArray[np.bool_], conflicts: ConflictRules) -> NDArray[np.bool_]:
    """Tell for each transaction whether one of its conflicts is none that the rules have an answer to."""
    is_open = found.copy()
    for table, _, is_here in group.tables:
        for op in (Op.INSERT, Op.UPDATE, Op.DELETE):
            if _is_answered(conflicts, table, op):
                is_open &= ~(is_here & np.asarray(pc.equal(group.rows[c.OP], op)))
    return np.logical_or.reduceat(is_open, group.starts[:-1])


def may_take_another_key(table: TargetTable, conflicts: ConflictRules) -> bool:
    """Whether an insert may be resolved against a row of another key, by a unique key that they share."""
    others = (u for u in table.schema.all_uniques if set(u.columns) != set(table.key.columns))
    resolvers = conflicts.resolvers_for(table.name, Op.INSERT, ConflictKind.EXISTS)
    return bool(resolvers) and any(not unique.is_deferrable for unique in others)


def _is_answered(conflicts: ConflictRules, table: TableName, op: Op) -> bool:
    if any(rule.then.is_of_change for rule in conflicts.of(table).on_error):
        return True
    return any(conflicts.resolvers_for(table, op, row) for row in ConflictKind)
