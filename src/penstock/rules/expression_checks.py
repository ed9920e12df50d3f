"""Which SQL expressions a rule may have: those that see one row, and nothing that differs from time to time."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from penstock.errors import ConfigError
from penstock.rules.duckdb_session import bracketed, duckdb_module, first_line, quote, session
from penstock.rules.duckdb_types import Input
from penstock.schema import TableSchema

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


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'this'?`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def checked(sql: str, table: TableSchema, place: str) -> tuple[Mapping[str, Input], str, bool]:
    """The columns that an expression looks at, the type of its value, and whether it may look at numbers in JSON."""
    parts = list(_walk(_tree(sql, place), sql, place))
    names = dict.fromkeys(_column(node, table, place) for node in parts if node["class"] == "COLUMN_REF")
    inputs = {name: Input.of(table.by_name[name]) for name in names}
    _refuse_decimals_in_json(parts, {name.lower(): how for name, how in inputs.items()}, sql, place)
    if is_ambiguous(inputs):
        raise ConfigError(f"{place}{sql!r} names two columns that differ only in case, which are one in an expression")
    typed = ", ".join(f"CAST(NULL AS {how.type}) AS {quote(name)}" for name, how in inputs.items())
    query = f"DESCRIBE SELECT {bracketed(sql)} FROM (SELECT {typed or 'NULL'})"
    try:
        ((_, kind, *_),) = session().execute(query).fetchall()
    except duckdb_module().Error as exc:
        raise ConfigError(f"{place}{sql!r}: {first_line(exc)}") from None
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
    query = f"SELECT {bracketed(sql)}"
    ((text,),) = session().execute("SELECT json_serialize_sql($1)", [query]).fetchall()
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
    """Whether a function looks at its arguments alone; True for one that is not known, see `checked`."""
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
    for name, kind, stability, takes_lambda in session().execute(f"{query} FROM duckdb_functions()").fetchall():
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


def is_ambiguous(names: Iterable[str]) -> bool:
    """Whether DuckDB, to which case means nothing, would take two columns for one."""
    names = list(names)
    return len({name.lower() for name in names}) < len(names)
