"""The rules of all tables, put to work on the change stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from penstock.change import TableName
from penstock.rules.table_rule import TableRule


class StreamRules:
    """Puts each change through the rule of its table's version. Travels to tasks."""

    def __init__(self, rules: Mapping[tuple[TableName, int], TableRule]) -> None:
        """Keep rules by the name and version of their table at the source; other tables pass as they are."""
        self._rules = dict(rules)

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches of the change stream as they become, in the same order; an empty one is left out."""
        raise NotImplementedError
