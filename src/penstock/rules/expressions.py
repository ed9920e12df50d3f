"""SQL expressions over the columns of a row: checked, typed and evaluated by DuckDB, for a whole batch at once.

An expression sees one row and nothing else: no table, no file, no clock, no chance. So it yields the same for the same
row wherever and whenever it is asked.
"""

from __future__ import annotations

import ctypes
import difflib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import ConfigError, OperatorError
from penstock.rules.kinds import Input, Output, as_text
from penstock.schema import TableSchema

if TYPE_CHECKING:
    import duckdb

_SETTINGS = {
    "threads": "1",
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    # A name that is no column would otherwise be taken for a variable of the program.
    "python_enable_replacements": "false",
}

_ALLOWED = frozenset(
    {
        "BETWEEN",
        "CASE",
        "CAST",
        "COLLATE",
        "COLUMN_REF",
        "COMPARISON",
        "CONJUNCTION",
        "CONSTANT",
        "FUNCTION",
        "OPERATOR",
        "TYPE",
    }
)
"""Kinds of expressions that look at one row."""

_NOT_ALLOWED = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "*",
    "LAMBDA": "a lambda",
    "PARAMETER": "a parameter",
    "DEFAULT": "DEFAULT",
    "POSITIONAL_REFERENCE": "the number of a column",
}

_CALENDAR = frozenset(
    {
        "+",
        "-",
        "century",
        "date_diff",
        "date_part",
        "date_sub",
        "date_trunc",
        "datediff",
        "datepart",
        "datesub",
        "datetrunc",
        "day",
        "dayname",
        "dayofmonth",
        "dayofweek",
        "dayofyear",
        "decade",
        "era",
        "hour",
        "isodow",
        "isoyear",
        "julian",
        "last_day",
        "make_timestamptz",
        "microsecond",
        "millennium",
        "millisecond",
        "minute",
        "month",
        "monthname",
        "quarter",
        "second",
        "strftime",
        "time_bucket",
        "timezone",
        "timezone_hour",
        "timezone_minute",
        "week",
        "weekday",
        "weekofyear",
        "year",
        "yearweek",
    }
)
"""Functions that depend on the session's time zone, which is always UTC here; the others of their kind read a clock."""

_MACROS = frozenset({"date_add", "days_in_month", "fdiv", "if", "json", "nullif", "split_part"})
"""Functions that are made of others: those which look at their arguments alone."""

_OF_THE_SERVER = frozenset({"version"})

_CLOCKS = frozenset(
    {
        "current_date",
        "current_localtime",
        "current_localtimestamp",
        "current_time",
        "current_timestamp",
        "current_user",
        "localtime",
        "localtimestamp",
        "session_user",
        "user",
    }
)
"""Functions that SQL calls without brackets."""

_connections: dict[tuple[int, int], duckdb.DuckDBPyConnection] = {}
"""By process and thread; one that ends leaves its connection to the next of its number."""

_functions: dict[str, bool] = {}


@dataclass(frozen=True)
class Expression:
    """An expression that was checked against a table.

    Attributes:
        place: Where it stands, as messages begin.
        table: The table, for messages.
        sql: What the user wrote.
        inputs: How the columns that it looks at are read, by their names at the source.
        output: The column it makes; None for a condition.
    """

    place: str
    table: str
    sql: str
    inputs: Mapping[str, Input]
    output: Output | None

    @property
    def write(self) -> str:
        """SQL template, `{}` for the value, that yields what is wanted of it."""
        return "coalesce({}, false)" if self.output is None else self.output.write


def evaluate(expressions: Sequence[Expression], columns: Mapping[str, pa.Array], count: int) -> list[pa.Array]:
    """Ask expressions of `count` rows: booleans of a condition, where null is no; otherwise canonical text.

    Args:
        columns: The columns they look at, as canonical text, and maybe more.

    Raises:
        OperatorError: One has no value for a row.
    """
    if not expressions:
        return []
    inputs = {name: how for expression in expressions for name, how in expression.inputs.items()}
    if _is_ambiguous(inputs):
        return [evaluate([expression], columns, count)[0] for expression in expressions]
    # A table without columns has no rows.
    rows = pa.table({name: columns[name] for name in inputs} or {"": pa.nulls(count, pa.bool_())})
    read = [f"{how.read.replace('{}', _quote(name))} AS {_quote(name)}" for name, how in inputs.items()]
    typed = f"(SELECT {', '.join(read)} FROM {_ROWS})" if read else _ROWS
    made = [f"{_bracketed(expression.sql)} AS {_value(n)}" for n, expression in enumerate(expressions)]
    written = [expression.write.replace("{}", _value(n)) for n, expression in enumerate(expressions)]
    query = f"SELECT {', '.join(written)} FROM (SELECT {', '.join(made)} FROM {typed})"
    try:
        found = _query(query, rows)
    except _duckdb().Error as exc:
        if len(expressions) > 1:
            # One by one, to find the expression that fails.
            return [evaluate([expression], columns, count)[0] for expression in expressions]
        (failed,) = expressions
        # The text of the error may repeat a value.
        raise OperatorError(
            f"{failed.place}{failed.sql!r} has no value for a row: {_sort_of(exc)}",
            where=f"table {failed.table}",
            do="let it say what becomes of such rows, for example by TRY_CAST or CASE",
        ) from None
    return [
        values if expression.output is None else as_text(values)
        for expression, values in zip(expressions, found, strict=True)
    ]


def condition(sql: str, table: TableSchema, place: str) -> Expression:
    """Check a condition over a table's rows.

    Raises:
        ConfigError: It is not one expression over the columns of one row, or is neither true nor false.
    """
    inputs, kind = _checked(sql, table, place)
    if kind != "BOOLEAN":
        raise ConfigError(f"{place}{sql!r} is not a condition but a value of type {kind}")
    return Expression(place, str(table.name), sql, inputs, None)


def computed(sql: str, table: TableSchema, place: str) -> Expression:
    """Check an expression that makes a column of a table's rows.

    Raises:
        ConfigError: It is not one expression over the columns of one row, or no column can hold what it yields.
    """
    inputs, kind = _checked(sql, table, place)
    output = Output.of(kind)
    if output is None:
        what = "NULL" if kind == '"NULL"' else kind
        raise ConfigError(f"{place}{sql!r} is of type {what}, which no column is made of", do="cast it to another type")
    return Expression(place, str(table.name), sql, inputs, output)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'this'?`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _checked(sql: str, table: TableSchema, place: str) -> tuple[Mapping[str, Input], str]:
    """The columns that an expression looks at, and the type of its value."""
    names = dict.fromkeys(_column(node, table, place) for node in _parts(sql, place) if node["class"] == "COLUMN_REF")
    inputs = {name: Input.of(table.by_name[name]) for name in names}
    if _is_ambiguous(inputs):
        raise ConfigError(f"{place}{sql!r} names two columns that differ only in case, which are one in an expression")
    typed = ", ".join(f"CAST(NULL AS {how.type}) AS {_quote(name)}" for name, how in inputs.items())
    query = f"DESCRIBE SELECT {_bracketed(sql)} FROM (SELECT {typed or 'NULL'})"
    try:
        ((_, kind, *_),) = _connection().execute(query).fetchall()
    except _duckdb().Error as exc:
        raise ConfigError(f"{place}{sql!r}: {_first_line(exc)}") from None
    return inputs, kind


def _parts(sql: str, place: str) -> Iterator[Mapping[str, Any]]:
    """Every part of an expression, as DuckDB's parser found them."""
    query = f"SELECT {_bracketed(sql)}"
    ((text,),) = _connection().execute("SELECT json_serialize_sql($1)", [query]).fetchall()
    parsed = json.loads(text)
    if parsed["error"]:
        raise ConfigError(
            f"{place}{sql!r} is not an SQL expression: {parsed['error_message']}",
            do="write a column that is called like a word of SQL in double quotes",
        )
    try:
        (statement,) = parsed["statements"]
        node = statement["node"]
        (expression,) = node["select_list"]
        rest = {
            key: value
            for key, value in node.items()
            if key not in ("type", "select_list", "cte_map", "aggregate_handling")
        }
        is_one = (
            node["type"] == "SELECT_NODE"
            and rest.pop("from_table")["type"] == "EMPTY"
            and not node["cte_map"]["map"]
            and not any(rest.values())
        )
    except (KeyError, TypeError, ValueError):
        is_one = False
    if not is_one:
        raise ConfigError(f"{place}{sql!r} is not one SQL expression")
    yield from _walk(expression, sql, place)


def _walk(part: Any, sql: str, place: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(part, list):
        for item in part:
            yield from _walk(item, sql, place)
    elif isinstance(part, dict):
        if "class" in part:
            _refuse(part, sql, place)
            yield part
        for value in part.values():
            yield from _walk(value, sql, place)


def _refuse(part: Mapping[str, Any], sql: str, place: str) -> None:
    kind = part["class"]
    if kind not in _ALLOWED:
        what = _NOT_ALLOWED.get(kind, kind.lower().replace("_", " "))
        raise ConfigError(f"{place}{sql!r} holds {what}; an expression sees the columns of one row and nothing else")
    if kind == "FUNCTION":
        name = part["function_name"].lower()
        if part["schema"] or part["catalog"] or not _is_function_of_row(name, len(part["arguments"])):
            why = "which does not yield the same for the same row, or looks at more than it"
            raise ConfigError(f"{place}{sql!r} calls {name}(), {why}")


def _is_function_of_row(name: str, arguments: int) -> bool:
    """Whether a function looks at its arguments alone; True for one that is not there, which is told later."""
    if name == "age":
        # With one argument, age() is the time from then until now.
        return arguments == 2
    if not _functions:
        for found, kind, stability in (
            _connection().execute("SELECT function_name, function_type, stability FROM duckdb_functions()").fetchall()
        ):
            is_safe = found not in _OF_THE_SERVER and (
                (kind == "scalar" and (stability == "CONSISTENT" or found in _CALENDAR))
                or (kind == "macro" and found in _MACROS)
            )
            # All that share a name have to be safe, unless they are of another kind: max() of a list and of rows.
            _functions[found] = _functions.get(found, True) and is_safe
    return _functions.get(name, True)


def _column(part: Mapping[str, Any], table: TableSchema, place: str) -> str:
    """The column that is meant, by its name at the source: as it is spelled, or else in whatever case."""
    *qualifiers, name = part["column_names"]
    if qualifiers:
        raise ConfigError(f"{place}{'.'.join(part['column_names'])!r}: a column is named by its name alone")
    if name in table.by_name:
        return str(name)
    alike = [known for known in table.column_names if known.lower() == name.lower()]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise ConfigError(
            f"{place}{name!r} may be any of the columns {', '.join(map(repr, alike))} of table {table.name}"
        )
    if name.lower() in _CLOCKS:
        raise ConfigError(f"{place}{name} does not yield the same for the same row")
    raise ConfigError(f"{place}table {table.name} has no column {name!r}{nearest(name, table.column_names)}")


def _is_ambiguous(names: Iterable[str]) -> bool:
    """Whether DuckDB, to which case means nothing, would take two columns for one."""
    names = list(names)
    return len({name.lower() for name in names}) < len(names)


_ROWS = '"rows"'


def _value(number: int) -> str:
    return f'"value {number}"'


def _bracketed(sql: str) -> str:
    # A comment at the end must not take the bracket with it.
    return f"(\n{sql}\n)"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].strip()


def _sort_of(error: Exception) -> str:
    return type(error).__name__.removesuffix("Exception").lower() + " error"


def _query(query: str, rows: pa.Table) -> list[pa.Array]:
    """The columns of a query over `rows`, in their order."""
    connection = _connection()
    connection.register("rows", rows)
    try:
        found = connection.sql(query).to_arrow_table()
    finally:
        connection.unregister("rows")
    return [values.chunk(0) if values.num_chunks == 1 else values.combine_chunks() for values in found.columns]


def _duckdb() -> Any:
    import duckdb

    return duckdb


def _connection() -> duckdb.DuckDBPyConnection:
    """This thread's connection to a database in memory that reaches nothing else; a forked process makes its own."""
    mine = os.getpid(), threading.get_ident()
    if mine not in _connections:
        connection = _duckdb().connect(":memory:", config=_SETTINGS)
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET lock_configuration = true")
        # In a forked process, to close a connection of the first one waits for threads that are not there, or crashes.
        # So one more reference than there is keeps it open, until the process is gone.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        _connections[mine] = connection
    return _connections[mine]
