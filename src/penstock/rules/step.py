"""Steps in Python that a user wrote: an Arrow table of rows in, one of the same rows out."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.errors import ConfigError, OperatorError
from penstock.rules.expressions import rows_with_nul
from penstock.user_code import load


@dataclass(frozen=True)
class Stepped:
    """What a step makes of rows: their columns, and what is wrong with some of the rows, by their indexes."""

    values: Mapping[str, pa.Array]
    faults: Mapping[int, OperatorError]


@dataclass(frozen=True)
class PythonStep:
    """A function by its name. Travels to tasks, where it is imported when first needed.

    Attributes:
        place: Where it is named, as messages begin.
        table: The table, for messages.
        name: `module:function`.
        folder: Where its module lies, unless Python finds it elsewhere.
    """

    place: str
    table: str
    name: str
    folder: Path

    def check(self) -> None:
        """Make sure that the function is there.

        Raises:
            ConfigError: It is not.
        """
        try:
            load(self.name, self.folder)
        except Exception as exc:
            what = f"{type(exc).__name__}: {exc}"
            raise ConfigError(
                f"{self.place}cannot load {self.name!r}: {what}",
                do="name a function as module:function, in a module beside the pipeline file or one that is installed",
            ) from exc

    def __call__(self, columns: Mapping[str, pa.Array]) -> Stepped:
        """Put rows through the function; columns are texts, in and out.

        Raises:
            OperatorError: The function failed, or did not return the same columns of as many rows.
        """
        rows = pa.table(dict(columns))
        try:
            made = load(self.name, self.folder)(rows)
        except (Exception, SystemExit) as exc:
            # Leave out the error's text and its cause: both may repeat a value.
            raise OperatorError(
                f"{self.place}{self.name!r} failed: {type(exc).__name__}{_line_of(exc)}",
                where=f"table {self.table}",
                do="fix the function, then run again",
            ) from None
        values = self._checked(rows, made)
        faults = {
            index: OperatorError(
                f"{self.place}{self.name!r} made a text with a zero byte (NUL), which no database keeps",
                where=f"table {self.table}",
                do="fix the function",
            )
            for column in values.values()
            for index in rows_with_nul(column)
        }
        return Stepped(values, faults)

    def _checked(self, rows: pa.Table, made: object) -> Mapping[str, pa.Array]:
        wrong = ""
        if not isinstance(made, pa.Table):
            wrong = f"returned {type(made).__name__}, not an Arrow table"
        elif sorted(made.column_names) != sorted(rows.column_names):
            wrong = f"returned the columns {made.column_names} for {rows.column_names}"
        elif made.num_rows != rows.num_rows:
            wrong = f"returned {made.num_rows} rows for {rows.num_rows}"
        else:
            odd = [name for name in rows.column_names if not _is_text(made.schema.field(name).type)]
            wrong = f"returned {made.schema.field(odd[0]).type}, not text, for the column {odd[0]!r}" if odd else ""
        if wrong or not isinstance(made, pa.Table):
            raise OperatorError(
                f"{self.place}{self.name!r} {wrong}", where=f"table {self.table}", do="fix the function"
            )
        return {name: _array(made.column(name).cast(pa.string())) for name in rows.column_names}


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind))


def _array(values: pa.ChunkedArray) -> pa.Array:
    return values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks or [pa.nulls(0, pa.string())])


def _line_of(error: BaseException) -> str:
    """Where in the user's file it happened."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
