"""Tables that a run goes on without, since they cannot be copied: it says why, and tries again now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from penstock.change import TableName
from penstock.errors import TableError
from penstock.stream import TableVersion

_AGAIN_S = 300.0
"""How long a run goes on without a table before it tries to copy it again."""


class LeftOut:
    """Those of one run."""

    def __init__(self, tell: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        """None yet; `tell` hears once of each, and why."""
        self._tell = tell
        self._clock = clock
        self._told: set[str] = set()
        self._since = 0.0
        self.tables: set[TableName] = set()

    def begin_anew(self) -> None:
        """All of them are about to be tried again."""
        self.tables = set()
        self._since = self._clock()

    def add(self, error: TableError) -> None:
        """Go on without a table."""
        table = TableName(*error.table)
        self.tables.add(table)
        text = f"table {table} is left out, the others go on: {error}"
        if text not in self._told:
            self._told.add(text)
            self._tell(text)

    @property
    def is_due(self) -> bool:
        """Whether it is time to try again."""
        return bool(self.tables) and self._clock() - self._since > _AGAIN_S

    def without(self, names: Collection[TableName], versions: Iterable[TableVersion]) -> set[TableName]:
        """Those of the names that are not left out; partitions go with their table."""
        return set(names) - self.tables - {v.table.name for v in versions if v.root in self.tables}
