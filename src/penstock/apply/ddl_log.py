"""What DDL has done to tables of the target, as the ledger keeps it and the log of a run says it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.apply.ddl import Alteration
from penstock.change import TableName
from penstock.position import Scn

APPLIED = "applied"
LEFT_OUT = "left out"


@dataclass(frozen=True)
class LoggedDdl:
    """DDL of one table.

    Attributes:
        table: By its name at the target before that.
        outcome: `applied`, or `left out`.
        done: What was done to the table, or would have been; neither values nor defaults are in it.
        is_loss: Rows, or values of a column, went with it.
    """

    txn_id: str
    commit_scn: Scn
    table: TableName
    outcome: str
    done: tuple[str, ...]
    is_loss: bool

    def __str__(self) -> str:
        what = f"{self.table}: {', '.join(self.done)}"
        if self.outcome == LEFT_OUT:
            return f"{what} at the source, and not here: `ddl` leaves it out (transaction {self.txn_id})"
        return f"{what}, as at the source (transaction {self.txn_id})"


def words_for(wanted: Alteration) -> Iterator[str]:
    """Yield what an alteration does, a few words for each part of it."""
    if wanted.is_drop:
        yield "table dropped"
        return
    for old, new in wanted.renamed:
        yield f"column {old} renamed {new}"
    for name in wanted.dropped:
        yield f"column {name} dropped"
    for column in wanted.added:
        yield f"column {column.name} added ({column.type})"
    for column in wanted.retyped:
        yield f"column {column.name} made {column.type}"
    for name, is_nullable in wanted.nullable:
        yield f"column {name} may {'' if is_nullable else 'not '}be NULL"
    for name, default in wanted.defaults:
        yield f"default of column {name} {'dropped' if default is None else 'set'}"
    for item in wanted.post_data_dropped:
        yield f"{item.kind} {item.name} dropped"
    for item in wanted.post_data_added:
        yield f"{item.kind} {item.name} made"
    if wanted.called is not None:
        yield f"table renamed {wanted.called}"


def loses(wanted: Alteration) -> bool:
    """Whether rows, or values of a column, go with an alteration."""
    return wanted.is_drop or bool(wanted.dropped)
