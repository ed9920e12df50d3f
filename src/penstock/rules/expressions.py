"""SQL expressions over the columns of a row: checked, typed and evaluated by DuckDB, for a whole batch at once.

An expression sees one row and nothing else: no table, no file, no clock, no chance. So it yields the same for the same
row wherever and whenever it is asked.
"""

from __future__ import annotations

import ctypes
import difflib
import json
import os
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError, OperatorError
from penstock.logical import Kind
from penstock.rules.duckdb_types import Input, Output, as_text
from penstock.rules.json_numbers import exchanged, is_lost, suspects
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
        "LAMBDA",
        "OPERATOR",
        "TYPE",
    }
)
"""Kinds of expressions that look at one row."""

_NOT_ALLOWED = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "*",
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
        if _is_ambiguous({name for expression in expressions for name in expression.inputs}):
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
    read = [f"{how.read.replace('{}', _quote(name))} AS {_quote(name)}" for name, how in inputs.items()]
    typed = f"(SELECT {', '.join([_quote(_NUMBER), *read])} FROM {_ROWS})"
    made = [f"{_bracketed(expression.sql)} AS {_value(n)}" for n, expression in enumerate(expressions)]
    written = [expression.write.replace("{}", _value(n)) for n, expression in enumerate(expressions)]
    number = _quote(_NUMBER)
    inner = f"SELECT {', '.join([number, *made])} FROM {typed}"
    query = f"SELECT {', '.join([number, *written])} FROM ({inner})"
    try:
        asked, *found = _query(query, rows)
    except _duckdb().Error as exc:
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
    inputs, kind, reads_json = _checked(sql, table, place)
    if kind != "BOOLEAN":
        raise ConfigError(f"{place}{sql!r} is not a condition but a value of type {kind}")
    return Expression(place, str(table.name), sql, inputs, None, reads_json)


def computed(sql: str, table: TableSchema, place: str) -> Expression:
    """Check an expression that makes a column of a table's rows.

    Raises:
        ConfigError: It is not one expression over the columns of one row, or no column can hold what it yields.
    """
    inputs, kind, reads_json = _checked(sql, table, place)
    output = Output.of(kind)
    if output is None:
        what = "NULL" if kind == '"NULL"' else kind
        raise ConfigError(f"{place}{sql!r} is of type {what}, which no column is made of", do="cast it to another type")
    return Expression(place, str(table.name), sql, inputs, output, reads_json)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'this'?`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _checked(sql: str, table: TableSchema, place: str) -> tuple[Mapping[str, Input], str, bool]:
    """The columns that an expression looks at, the type of its value, and whether it may look at numbers in JSON."""
    parts = list(_walk(_tree(sql, place), sql, place))
    names = dict.fromkeys(_column(node, table, place) for node in parts if node["class"] == "COLUMN_REF")
    inputs = {name: Input.of(table.by_name[name]) for name in names}
    _refuse_decimals_in_json(parts, {name.lower(): how for name, how in inputs.items()}, sql, place)
    if _is_ambiguous(inputs):
        raise ConfigError(f"{place}{sql!r} names two columns that differ only in case, which are one in an expression")
    typed = ", ".join(f"CAST(NULL AS {how.type}) AS {_quote(name)}" for name, how in inputs.items())
    query = f"DESCRIBE SELECT {_bracketed(sql)} FROM (SELECT {typed or 'NULL'})"
    try:
        ((_, kind, *_),) = _connection().execute(query).fetchall()
    except _duckdb().Error as exc:
        raise ConfigError(f"{place}{sql!r}: {_first_line(exc)}") from None
    for part in parts:
        if part["class"] == "FUNCTION" and (name := part["function_name"].lower()) not in _catalogue().functions:
            # DuckDB knows it all the same, and nobody says what it looks at.
            raise ConfigError(f"{place}{sql!r} calls {name}(), which is not in the catalogue of functions")
    return inputs, kind, any(how.type == "JSON" for how in inputs.values()) or any(map(_is_of_json, parts))


def _is_of_json(part: Mapping[str, Any]) -> bool:
    """Whether a part of an expression takes something for JSON, or makes JSON of it."""
    match part["class"]:
        case "FUNCTION":
            name = str(part["function_name"]).lower()
            return name == "->>" or "json" in name
        case "CAST":
            return str(part["type_expr"].get("type_name", "")).upper() == "JSON"
        case _:
            # An arrow, `->`: those of lambdas are refused.
            return bool(part["class"] == "LAMBDA")


_EXACT_TYPES = frozenset(("DECIMAL", "NUMERIC", "DEC", "HUGEINT", "UHUGEINT", "BIGNUM", "VARINT"))

_MAKERS = frozenset(("to_json", "json_object", "json_array", "json_quote", "array_to_json", "row_to_json"))


def _refuse_decimals_in_json(
    parts: Iterable[Mapping[str, Any]], inputs: Mapping[str, Input], sql: str, place: str
) -> None:
    """Refuse to make JSON of decimals, which become doubles there."""
    for part in parts:
        is_made = part["class"] == "FUNCTION" and part["function_name"].lower() in _MAKERS
        is_made |= part["class"] == "CAST" and _is_of_json(part)
        if is_made and any(_may_be_exact(part.get(name), inputs) for name in ("arguments", "child")):
            raise ConfigError(
                f"{place}{sql!r} puts a decimal into JSON, where it loses digits", do="cast it to VARCHAR first"
            )


def _may_be_exact(part: Any, inputs: Mapping[str, Input]) -> bool:
    """Whether there may be a decimal in a part of an expression."""
    if isinstance(part, list):
        return any(_may_be_exact(item, inputs) for item in part)
    if not isinstance(part, dict):
        return False
    match part.get("class"):
        case "COLUMN_REF":
            how = inputs.get(part["column_names"][-1].lower())
            return how is not None and how.type.startswith("DECIMAL")
        case "CONSTANT":
            return bool(part["literal"]["kind"] == "NUMERIC")
        case "CAST" if not _is_of_json(part):
            return str(part["type_expr"].get("type_name", "")).upper() in _EXACT_TYPES
    return any(_may_be_exact(value, inputs) for value in part.values())


def _tree(sql: str, place: str) -> Mapping[str, Any]:
    """An expression as DuckDB's parser has it."""
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
    assert isinstance(expression, dict)
    return expression


def _walk(part: Any, sql: str, place: str) -> Iterator[Mapping[str, Any]]:
    """Yield every part of a tree, each once it is known to look at the row alone."""
    if isinstance(part, list):
        for item in part:
            yield from _walk(item, sql, place)
    elif isinstance(part, dict):
        if "class" in part:
            _refuse(part, sql, place)
            # Anywhere else an arrow stands for what it does with JSON.
            if part["class"] == "FUNCTION" and part["function_name"].lower() in _catalogue().take_lambdas:
                _refuse_lambdas(part["arguments"], sql, place)
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


def _refuse_lambdas(arguments: Iterable[Mapping[str, Any]], sql: str, place: str) -> None:
    if any(argument["expression"]["class"] == "LAMBDA" for argument in arguments):
        raise ConfigError(f"{place}{sql!r} holds a lambda; an expression sees the columns of one row and nothing else")


def _is_function_of_row(name: str, arguments: int) -> bool:
    """Whether a function looks at its arguments alone; True for one that is not known, see `_checked`."""
    if name == "age":
        # With one argument, age() is the time from then until now.
        return arguments == 2
    return _catalogue().functions.get(name, True)


@dataclass(frozen=True)
class _Functions:
    """What DuckDB's catalogue says of functions.

    Attributes:
        functions: Whether one looks at its arguments alone, by its name.
        take_lambdas: Those that take a lambda.
    """

    functions: Mapping[str, bool]
    take_lambdas: Collection[str]


@cache
def _catalogue() -> _Functions:
    query = "SELECT function_name, function_type, stability, list_contains(parameter_types, 'LAMBDA')"
    functions: dict[str, bool] = {}
    take_lambdas: set[str] = set()
    for name, kind, stability, takes_lambda in _connection().execute(f"{query} FROM duckdb_functions()").fetchall():
        is_safe = name not in _OF_THE_SERVER and (
            (kind == "scalar" and (stability == "CONSISTENT" or name in _CALENDAR))
            or (kind == "macro" and name in _MACROS)
        )
        # All that share a name have to be safe, unless they are of another kind: max() of a list and of rows.
        functions[name] = functions.get(name, True) and is_safe
        if takes_lambda:
            take_lambdas.add(name)
    return _Functions(functions, take_lambdas)


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

_NUMBER = "row of penstock"


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
    words = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(error).__name__.removesuffix("Exception"))
    return f"{words.lower()} error"


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
