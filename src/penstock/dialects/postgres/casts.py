"""SQL for the values of columns: their canonical text, what a text stands for, and whether two values are equal.

How a column's type is cast is said by its definition, as `describe.sql` makes it, and kept in `Column.native`. These
definitions lie in change logs, ledgers and archives, so the names of what they say never change:

| in the definition | meaning |
| --- | --- |
| `to_text` | SQL template, `{}` for the column, that yields canonical text |
| `from_text` | SQL template, `{}` for canonical text read as one of the two types below, that yields the value |
| `staging_type` | the type of a staging column that canonical text is copied into |
| `cast_type` | the type canonical text is cast to in a statement; it has no length, so it cuts nothing |

A foreign key's says for each pair of columns which `operators` tell that they are equal, as `equal_sql` takes them (the
parent's column stands left), and in `child_casts` the cast after the child's column that the operator needs.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.schema import Column, ForeignKey


def casts_of(type_: str, uncut: str, *, is_binary: bool) -> dict[str, str]:
    """What the definition of a column says that is made here for one of another database.

    Args:
        type_: Its type.
        uncut: The same type without a length.
    """
    if is_binary:
        encoded = "pg_catalog.replace(pg_catalog.encode({}, 'base64'), pg_catalog.chr(10), '')"
        decoded = "pg_catalog.decode({}, 'base64')"
        return {"to_text": encoded, "from_text": decoded, "staging_type": "text", "cast_type": "text"}
    return {"to_text": "{}::text", "from_text": "{}", "staging_type": type_, "cast_type": uncut}


def text_sql(column: Column, expression: str) -> str:
    """SQL for the canonical text of `expression`, a value of this column."""
    template: str = column.native.get("to_text", "{}::text")
    return template.replace("{}", expression)


def value_sql(column: Column, staged: str) -> str:
    """SQL for the column's value, from a column of the staging type."""
    template: str = column.native.get("from_text", "{}")
    return template.replace("{}", staged)


def cast_sql(column: Column, text: str) -> str:
    """SQL for the column's value, from a parameter or expression that is canonical text."""
    return value_sql(column, f"{text}::{column.native.get('cast_type', 'text')}")


def same_text_sql(column: Column, left: str, right: str) -> str:
    """SQL for whether two values of a column have the same text to the byte, or are both null."""
    return f'{text_sql(column, left)} COLLATE "C" IS NOT DISTINCT FROM {text_sql(column, right)} COLLATE "C"'


def staging_type(column: Column) -> str:
    """The type of a staging column that the column's canonical text is copied into."""
    type_: str = column.native.get("staging_type", "text")
    return type_


def is_copied_as_text(column: Column) -> bool:
    """Whether canonical text can be copied into the column itself."""
    return value_sql(column, "{}") == "{}"


def equal_sql(left: str, equals: str, right: str) -> str:
    """SQL for whether `equals` holds between two values, each as SQL.

    `equals` is an operator; or, where a user's cast leaves it open which operator that is, the name of the operator's
    function, and the cast that both values need. No index is used for a function.
    """
    if not equals.startswith("pg_catalog."):
        return f"{left} {equals} {right}"
    function, _, cast = equals.partition(" ")
    return f"{function}({left}{cast}, {right}{cast})"


def refers_sql(foreign_key: ForeignKey, parents: Iterable[str], children: Iterable[str]) -> str:
    """SQL for whether the values of two rows refer to each other, each as SQL, in the order of the columns."""
    # A version that was described long ago has neither.
    operators = foreign_key.native.get("operators") or ["="] * len(foreign_key.columns)
    casts = foreign_key.native.get("child_casts") or [""] * len(foreign_key.columns)
    pairs = zip(parents, operators, children, casts, strict=True)
    return " AND ".join(equal_sql(parent, equals, f"{child}{cast}") for parent, equals, child, cast in pairs)
