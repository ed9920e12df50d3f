"""Many entries of the error queue in few lines: what they have in common, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.apply.error_queue import ErrorEntry
    from penstock.apply.retry import Retried


class AlikeNotes:
    """Notes on entries: of those that say the same, the first is said at once, and the others are counted.

    They are printed by `penstock errors`; lines of a run's log are counted by `events.AlikeLines`.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        """Say notes through `say`."""
        self._say = say
        self._more: dict[str, int] = {}

    def add(self, text: str) -> None:
        """Say or count a note, which begins with the id of its entry."""
        _, _, said = text.partition(": ")
        if said in self._more:
            self._more[said] += 1
            return
        self._more[said] = 0
        self._say(text)

    def close(self) -> None:
        """Say what was counted."""
        for said, more in self._more.items():
            if more:
                self._say(f"{more:,} more {'entry' if more == 1 else 'entries'}: {said}")
        self._more.clear()


def kind_of_failure(retried: Retried) -> str:
    """The error number and the table of an entry that failed again, as people compare them."""
    if retried.failure is None:
        return "not tried" if retried.outcome == "waits" else "other reasons"
    error = retried.failure.error
    # "table 'public.orders'", and what else it may be about.
    table = error.where.split(",")[0].removeprefix("table ")
    return f"error {error.number or error.code or 'unknown'} {table}".strip()


def failures_in_short(failed: Sequence[Retried]) -> str:
    """How many entries failed again, by error number and table, the most frequent first."""
    kinds = Counter(map(kind_of_failure, failed)).most_common()
    if len(kinds) == 1:
        return f"all: {kinds[0][0]}" if len(failed) > 1 else kinds[0][0]
    return ", ".join(f"{number:,}: {kind}" for kind, number in kinds)


def summary(entries: Iterable[ErrorEntry]) -> list[dict[str, Any]]:
    """Entries by error, table and operation, the most frequent first; ids and times of the first and the last one."""
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    for one in entries:
        table = str(one.table) if one.table else None
        plain = {
            "state": "held" if one.is_held else "failed",
            "error_number": None if one.is_held else one.error_number,
            "error_code": one.error_code,
            "error_type": one.error_type,
            "table": table,
            "op": one.op,
        }
        known = found.setdefault(tuple(plain.values()), {**plain, "entries": 0, "on_hold": 0, "first_id": one.id})
        known["entries"] += 1
        known["on_hold"] += one.on_hold is not None
        known["last_id"] = one.id
    return sorted(found.values(), key=lambda row: -int(row["entries"]))
