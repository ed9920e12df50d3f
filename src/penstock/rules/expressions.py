"""SQL expressions over the columns of a row: checked, typed and evaluated by DuckDB, for a whole batch at once.

An expression sees one row and nothing else: no table, no file, no clock, no chance. So it yields the same for the same
row wherever and whenever it is asked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError, OperatorError
from penstock.logical import Kind
from penstock.rules.duckdb_session import bracketed, duckdb_module, quote, session
from penstock.rules.duckdb_types import Input, Output, as_text
from penstock.rules.expression_checks import checked, is_ambiguous
from penstock.rules.json_numbers import exchanged, is_lost, suspects
from penstock.schema import TableSchema

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Expression:
    """An expression that was checked against a table.

    Attributes:
        place: Where it stands, as messages begin.
        table: The table, for messages.
        sql: What the user wrote.
        inputs: How the columns that it looks at are read, by their names at the source.
        output: The column it makes; None for a condition.
        reads_json: It may look at numbers inside JSON.
    """

    place: str
    table: str
    sql: str
    inputs: Mapping[str, Input]
    output: Output | None
    reads_json: bool = False

    @property
    def write(self) -> str:
        """SQL template, `{}` for the value, that yields what is wanted of it."""
        return "coalesce({}, false)" if self.output is None else self.output.write


@dataclass(frozen=True)
class Evaluated:
    """What expressions make of rows.

    Attributes:
        values: For each expression, what it yields for the rows: booleans of a condition, where null is no; otherwise
            canonical text. Null where it has no value for a row.
        faults: Why a row has no value, by its index; without anything that the row holds.
    """

    values: list[pa.Array]
    faults: Mapping[int, OperatorError]


def evaluate(expressions: Sequence[Expression], columns: Mapping[str, pa.Array], count: int) -> Evaluated:
    """Ask expressions of `count` rows.

    Args:
        columns: The columns they look at, as canonical text, and maybe more.
    """
    if not expressions:
        return Evaluated([], {})
    try:
        if is_ambiguous({name for expression in expressions for name in expression.inputs}):
            raise _FailedError
        found = _ask(expressions, columns, count)
    except _FailedError as exc:
        if len(expressions) == 1:
            return _sift(expressions[0], columns, count, exc)
        # One by one, to find the expression that fails.
        parts = [evaluate([expression], columns, count) for expression in expressions]
        faults = {index: fault for part in reversed(parts) for index, fault in part.faults.items()}
        return Evaluated([part.values[0] for part in parts], faults)
    values, faults = [], dict[int, OperatorError]()
    for expression, made in zip(expressions, found, strict=True):
        bad = dict.fromkeys(rows_with_nul(made), "it makes a text with a zero byte (NUL), which no database keeps")
        if expression.reads_json:
            bad |= dict.fromkeys(_lost_digits(expression, columns, made), _DIGITS)
        for index, why in bad.items():
            faults.setdefault(index, _fault(expression, why, do=_DO_DIGITS if why == _DIGITS else ""))
        values.append(_without(made, bad))
    return Evaluated(values, faults)


class _FailedError(Exception):
    """An expression has no value for a row, or not one for each; the text says which kind of error, and no value."""


def _ask(expressions: Sequence[Expression], columns: Mapping[str, pa.Array], count: int) -> list[pa.Array]:
    """What expressions yield, one array for each.

    Raises:
        _FailedError: One of them fails for a row, or does not yield one value for each.
    """
    inputs = {name: how for expression in expressions for name, how in expression.inputs.items()}
    numbers = pa.array(np.arange(count))
    rows = pa.table({_NUMBER: numbers, **{name: columns[name] for name in inputs}})
    read = [f"{how.read.replace('{}', quote(name))} AS {quote(name)}" for name, how in inputs.items()]
    typed = f"(SELECT {', '.join([quote(_NUMBER), *read])} FROM {_ROWS})"
    made = [f"{bracketed(expression.sql)} AS {_value(n)}" for n, expression in enumerate(expressions)]
    written = [expression.write.replace("{}", _value(n)) for n, expression in enumerate(expressions)]
    number = quote(_NUMBER)
    inner = f"SELECT {', '.join([number, *made])} FROM {typed}"
    query = f"SELECT {', '.join([number, *written])} FROM ({inner})"
    try:
        asked, *found = _query(query, rows)
    except duckdb_module().Error as exc:
        # Its text may repeat a value.
        raise _FailedError(_sort_of(exc)) from None
    if not asked.equals(numbers):
        raise _FailedError("it yields none or several for it")
    return [
        values if expression.output is None else as_text(values)
        for expression, values in zip(expressions, found, strict=True)
    ]


def _sift(expression: Expression, columns: Mapping[str, pa.Array], count: int, failed: _FailedError) -> Evaluated:
    """Ask an expression, which fails for some of the rows, of the others."""
    if count == 1:
        kind = pa.bool_() if expression.output is None else pa.string()
        return Evaluated([pa.nulls(1, kind)], {0: _fault(expression, str(failed))})
    half = count // 2
    parts = [
        evaluate([expression], {name: columns[name].slice(first, size) for name in expression.inputs}, size)
        for first, size in ((0, half), (half, count - half))
    ]
    later = {half + index: fault for index, fault in parts[1].faults.items()}
    return Evaluated([pa.concat_arrays([part.values[0] for part in parts])], {**parts[0].faults, **later})


def _fault(expression: Expression, why: str, *, do: str = "") -> OperatorError:
    return OperatorError(
        f"{expression.place}{expression.sql!r} has no value for a row: {why}",
        where=f"table {expression.table}",
        do=do or "let it say what becomes of such rows, for example by TRY_CAST or CASE",
    )


_DIGITS = "a number inside JSON would come out with other digits"
_DO_DIGITS = "cast it to a DECIMAL, which keeps up to 15 digits; or take the JSON as it is, which keeps all"


def _lost_digits(expression: Expression, columns: Mapping[str, pa.Array], made: pa.Array) -> Collection[int]:
    """The rows of which a number inside JSON comes out of an expression with other digits."""
    output = expression.output
    if output is not None and output.type.kind is Kind.FLOAT:
        # As is asked for.
        return []
    names = [name for name, how in expression.inputs.items() if how.type in ("JSON", "VARCHAR")]
    rows = suspects(columns[name] for name in names)
    if not len(rows):
        return []
    among = pa.array(rows)
    texts = [columns[name].take(among) for name in names]
    by_value = output is None or output.type.kind not in (Kind.STRING, Kind.JSON)
    as_written, beside, has_any = exchanged(texts, _numbers_written, by_value=by_value)
    if not has_any.any():
        return []
    among, kept = pa.array(rows[has_any]), pa.array(has_any)
    asked = {name: columns[name].take(among) for name in expression.inputs}
    other = []
    for texts in (as_written, beside):
        given = asked | {name: values.filter(kept) for name, values in zip(names, texts, strict=True)}
        try:
            other += _ask([expression], given, len(among))
        except _FailedError:
            # A number alone makes the difference between a value and none.
            return list(map(int, rows[has_any]))
    return list(map(int, rows[has_any][is_lost(made.take(among), *other)]))


def _numbers_written(numbers: Sequence[str]) -> list[str | None]:
    """How DuckDB writes numbers inside JSON; None for what it takes for none."""
    if not numbers:
        return []
    # In a text beside the JSON there may be what looks like a number, and is none there: `007.5`.
    query = f"SELECT CASE WHEN json_valid(v) THEN CAST(json(v) AS VARCHAR) END FROM {_ROWS}"
    (found,) = _query(query, pa.table({"v": pa.array(numbers, pa.string())}))
    return list(found.to_pylist())


def rows_with_nul(values: pa.Array) -> list[int]:
    """Return the indexes of texts that hold a zero byte."""
    if not pa.types.is_string(values.type) or values.null_count == len(values):
        return []
    return list(map(int, np.flatnonzero(np.asarray(pc.fill_null(pc.match_substring(values, "\0"), False), bool))))


def _without(values: pa.Array, bad: Collection[int]) -> pa.Array:
    """Make the values of some rows null."""
    if not bad:
        return values
    mask = np.zeros(len(values), bool)
    mask[list(bad)] = True
    return pc.if_else(pa.array(mask), pa.scalar(None, values.type), values)


def condition(sql: str, table: TableSchema, place: str) -> Expression:
    """Check a condition over a table's rows.

    Raises:
        ConfigError: It is not one expression over the columns of one row, or is neither true nor false.
    """
    inputs, kind, reads_json = checked(sql, table, place)
    if kind != "BOOLEAN":
        raise ConfigError(f"{place}{sql!r} is not a condition but a value of type {kind}")
    return Expression(place, str(table.name), sql, inputs, None, reads_json)


def computed(sql: str, table: TableSchema, place: str) -> Expression:
    """Check an expression that makes a column of a table's rows.

    Raises:
        ConfigError: It is not one expression over the columns of one row, or no column can hold what it yields.
    """
    inputs, kind, reads_json = checked(sql, table, place)
    output = Output.of(kind)
    if output is None:
        what = "NULL" if kind == '"NULL"' else kind
        raise ConfigError(f"{place}{sql!r} is of type {what}, which no column is made of", do="cast it to another type")
    return Expression(place, str(table.name), sql, inputs, output, reads_json)


_ROWS = '"rows"'

_NUMBER = "row of penstock"


def _value(number: int) -> str:
    return f'"value {number}"'


def _sort_of(error: Exception) -> str:
    words = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(error).__name__.removesuffix("Exception"))
    return f"{words.lower()} error"


def _query(query: str, rows: pa.Table) -> list[pa.Array]:
    """The columns of a query over `rows`, in their order."""
    connection = session()
    connection.register("rows", rows)
    try:
        found = connection.sql(query).to_arrow_table()
    finally:
        connection.unregister("rows")
    return [values.chunk(0) if values.num_chunks == 1 else values.combine_chunks() for values in found.columns]
