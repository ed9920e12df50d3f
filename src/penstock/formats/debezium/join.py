"""The changes of a transaction, from its events: two events that are halves of a changed key become one update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from penstock.change import Change, Op
from penstock.formats.debezium.decode import DataEvent


def changes_of(
    events: Iterable[DataEvent], version_of: Callable[[DataEvent], int] = lambda event: 1
) -> Iterator[Change]:
    """Yield the changes of one transaction, numbered from 0.

    A delete whose header tells the new key, and the insert behind it whose header tells the old one, are one update.
    Without headers (SQL Server) they stay a delete and an insert.

    Args:
        events: In the order in which the source made them, see `ChangeLocation.total_order`.
        version_of: The version of the table's definition that an event is written under.
    """
    seq = 0
    held: DataEvent | None = None
    for event in events:
        if held is not None:
            if _are_halves(held, event):
                yield _change(seq, Op.UPDATE, event, held, version_of)
                seq, held = seq + 1, None
                continue
            yield _change(seq, Op.DELETE, held, held, version_of)
            seq, held = seq + 1, None
        if event.location.op == "d" and event.new_key is not None:
            held = event
            continue
        yield _change(seq, op_of(event), event, event, version_of)
        seq += 1
    if held is not None:
        yield _change(seq, Op.DELETE, held, held, version_of)


def _change(seq: int, op: Op, event: DataEvent, earlier: DataEvent, version_of: Callable[[DataEvent], int]) -> Change:
    return Change(
        change_seq=seq,
        op=op,
        table=event.location.table,
        table_version=version_of(event),
        before=earlier.before,
        after=event.after,
    )


def _are_halves(deleted: DataEvent, created: DataEvent) -> bool:
    if created.location.op != "c" or created.old_key is None or created.location.table != deleted.location.table:
        return False
    # An empty key is a header that could not be read.
    is_old = not created.old_key or created.old_key == deleted.key
    return is_old and (not deleted.new_key or deleted.new_key == created.key)


def op_of(event: DataEvent) -> Op:
    """Say what an event does, by itself."""
    match event.location.op:
        case "c" | "r" if event.location.is_snapshot:
            return Op.SNAPSHOT
        case "c":
            return Op.INSERT
        case "u":
            return Op.UPDATE
        case "d":
            return Op.DELETE
        case "t":
            return Op.TRUNCATE
        case other:
            raise AssertionError(other)
