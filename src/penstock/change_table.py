"""Changes that were read from an archive, for programs and notebooks: as Arrow, pandas or a DataFrame of Spark's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock import html
from penstock.change import ARROW_SCHEMA, TableName

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 20
_COLUMNS = ("commit_scn", "txn_id", "change_seq", "op", "schema_name", "table_name", "before", "after")


class RecordedChanges:
    """A stretch of changes, in commit order; nothing is read before it is asked for, and it may be read again.

    A row is a change, its columns are those of the change stream: see docs/change-files.md.
    """

    def __init__(self, place: str, read: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        """Stand for what `read` yields.

        Args:
            place: Where it is read, named without secrets.
        """
        self._place = place
        self._read = read

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The changes a batch at a time, for more of them than memory holds."""
        return self._read()

    def to_arrow(self) -> pa.Table:
        """All of them as one Arrow table; empty where there are none."""
        return pa.Table.from_batches(self._read(), ARROW_SCHEMA)

    def to_pandas(self) -> pd.DataFrame:
        """All of them as a pandas DataFrame."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_spark(self, spark: Any) -> Any:
        """All of them as a DataFrame of this Spark session, sent there by this process.

        For archives of more than memory holds, read the data source `penstock.change_files` instead.
        """
        return spark.createDataFrame(self.to_arrow())

    def tables(self) -> dict[TableName, int]:
        """How many changes each table has."""
        found: dict[TableName, int] = {}
        for batch in self._read():
            names = zip(batch["schema_name"].to_pylist(), batch["table_name"].to_pylist(), strict=True)
            for schema, name in names:
                table = TableName(schema, name)
                found[table] = found.get(table, 0) + 1
        return found

    def __repr__(self) -> str:
        return f"RecordedChanges({self._place!r})"

    def _repr_html_(self) -> str:
        """The first changes, for a notebook: row values included, because somebody asked to see them."""
        rows: list[list[object]] = []
        for batch in self._read():
            for row in batch.slice(0, _SHOWN + 1 - len(rows)).to_pylist():
                rows.append([row[name] for name in _COLUMNS])
            if len(rows) > _SHOWN:
                break
        more = html.note(f"the first {_SHOWN}; to_arrow() and to_pandas() have all") if len(rows) > _SHOWN else ""
        return html.heading(f"changes of {self._place}") + html.table(_COLUMNS, rows[:_SHOWN]) + more
