"""DDL among the changes: what a new version of a table changes of the one before it, and what is to be done about it.

Where there is no new version, the table was dropped.

A change of this kind (`Op.DDL`) holds no SQL that would be run. It holds the table before and after, column by column
with the numbers that columns keep, and the target makes a statement of its own of the difference (ADR 48).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from penstock.apply.apply_errors import DDL_NOT_CARRIED_OUT, ApplyError
from penstock.apply.target import Unfollowed
from penstock.change import Change, Image, Op, TableName
from penstock.logical import LogicalType
from penstock.schema import Column, TableSchema


class DdlPolicy(StrEnum):
    """What becomes of DDL of a table at the source."""

    APPLY = "apply"
    IGNORE = "ignore"
    STOP = "stop"


@dataclass(frozen=True)
class DdlRules:
    """What becomes of DDL, by table as it is called at the target."""

    default: DdlPolicy = DdlPolicy.IGNORE
    tables: Mapping[TableName, DdlPolicy] = field(default_factory=dict)

    def of(self, table: TableName) -> DdlPolicy:
        """What becomes of DDL of one table."""
        return self.tables.get(table, self.default)

    @property
    def is_applied(self) -> bool:
        """Whether tables of the target follow, some of them at least."""
        return DdlPolicy.APPLY in (self.default, *self.tables.values())

    @property
    def is_followed(self) -> bool:
        """Whether anything at all is to be done about DDL."""
        return any(policy is not DdlPolicy.IGNORE for policy in (self.default, *self.tables.values()))


NO_DDL = DdlRules()
"""No table follows."""

ALL_DDL = DdlRules(DdlPolicy.APPLY)
"""Every table follows."""


@dataclass(frozen=True)
class ShapedColumn:
    """A column in one version of a table, in the words of the source.

    Attributes:
        default: SQL; None without one.
        filled: The text that rows have which were there before the column; None where that is NULL, or not known.
        origin: Its name at the source, where rules call it otherwise.
        logical: What it holds, where the source has no type of the target's words for it: the target has its own.
    """

    name: str
    type: str
    collation: str | None = None
    is_nullable: bool = True
    is_identity: bool = False
    is_generated: bool = False
    default: str | None = None
    filled: str | None = None
    origin: str | None = None
    logical: str | None = None

    def is_type_of(self, column: Column) -> bool:
        """Whether a column of the target has this type already."""
        return column.type == self.type if self.logical is None else column.logical == LogicalType.parse(self.logical)


@dataclass(frozen=True)
class ShapedObject:
    """A check, or an index that is not unique, in one version of a table.

    Attributes:
        kind: `check` or `index`.
        definition: `CHECK (...)` or `USING ...`, in the words of the source.
        is_valid: Off for a check that rows from before it may break.
        looks: A digest that is the same whatever it and its columns are called.
        unworded: Why the target's words for it are not known; None where they are the source's.
    """

    kind: str
    name: str
    definition: str
    is_valid: bool = True
    looks: str = ""
    unworded: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What it is found by."""
        return self.kind, self.name


@dataclass(frozen=True)
class Alteration:
    """What is to be done to a table of the target, in this order.

    Attributes:
        renamed: Old and new names.
        dropped: Names.
        added: As they are to be.
        retyped: As they are to be, by their new names.
        nullable: By their new names, whether they are to take NULL.
        defaults: By their new names, the SQL of the default of columns that were there before; None without one.
        post_data_dropped: Checks and indexes that are there no more, by the names that the table had before.
        post_data_added: Those that are new, or not the same as before.
        key: The columns of the primary key, where those are others than before; that is left to a person.
        unclear: By the names of added or retyped columns, why it cannot be told what their rows have.
        called: What the table is to be called, where that is another name than it has.
        is_drop: The table is to be dropped, and nothing else.
        children: The tables that inherit from it at the source, and so are altered with it; None where that is not
            known.
    """

    renamed: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()
    added: tuple[ShapedColumn, ...] = ()
    retyped: tuple[ShapedColumn, ...] = ()
    nullable: tuple[tuple[str, bool], ...] = ()
    defaults: tuple[tuple[str, str | None], ...] = ()
    post_data_dropped: tuple[ShapedObject, ...] = ()
    post_data_added: tuple[ShapedObject, ...] = ()
    key: tuple[str, ...] | None = None
    unclear: Mapping[str, str] = field(default_factory=dict)
    called: TableName | None = None
    is_drop: bool = False
    children: frozenset[TableName] | None = None

    @property
    def reaches_children(self) -> bool:
        """Whether tables that inherit from the table are altered with it."""
        checks = any(item.kind == "check" for item in (*self.post_data_dropped, *self.post_data_added))
        return checks or any((self.renamed, self.added, self.retyped, self.nullable))


def is_drop(change: Change) -> bool:
    """Whether a change says that its table was dropped."""
    return change.op is Op.DDL and (change.before or {}).get("is") is None


def is_creation(change: Change) -> bool:
    """Whether a change says that its table was made."""
    return change.op is Op.DDL and (change.before or {}).get("was") is None and not is_drop(change)


def creation(table: TableSchema) -> Change:
    """A change that says that a table was made, as it is to be at the target."""
    columns = {
        number: {"name": one.name, "type": one.type, "is_nullable": one.is_nullable, "is_generated": one.is_generated}
        for number, one in enumerate(table.columns, start=1)
    }
    shape = {"schema": table.name.schema, "name": table.name.name, "columns": columns}
    return Change(0, Op.DDL, table.name, table.version, {"was": None, "is": json.dumps(shape)}, None)


def is_rename(change: Change) -> bool:
    """Whether a change says that its table is called otherwise at the target."""
    was, now = (_shape(change.before or {}, part) for part in ("was", "is"))
    return change.op is Op.DDL and was != {} != now and _name(was) != _name(now)


def name_before(change: Change) -> TableName:
    """What the target calls the table of a change of DDL until then."""
    # An entry of the error queue goes by the name that its table has now.
    return _name(_shape(change.before or {}, "was")) if is_rename(change) else change.table


def alteration(change: Change) -> Alteration:
    """Tell what a change of DDL is to do to its table.

    Raises:
        ApplyError: The two versions do not tell it.
    """
    image = change.before or {}
    was, now = _shape(image, "was"), _shape(image, "is")
    if not now:
        return Alteration(is_drop=True)
    if not was:
        return Alteration(added=tuple(_columns(now).values()))
    old, new = _columns(was), _columns(now)
    if (reason := image.get("unlike")) is not None:
        what = f"it is to be {_name(now)}, but {reason}; delete this entry, and have the table copied anew"
        raise _refused(change.table, what)
    kept = [(old[number], new[number]) for number in new if number in old]
    added = tuple(column for number, column in new.items() if number not in old)
    retyped = tuple(b for a, b in kept if (a.type, a.collation) != (b.type, b.collation))
    unclear = {column.name: why for column in added if (why := _why_unfilled(column)) is not None}
    # Versions that an earlier capture set has noted do not tell of them.
    had, has = (_post_data(was), _post_data(now)) if "fittings" in was and "fittings" in now else ({}, {})
    unclear |= _why_retyped(change, retyped) | _told_unclear(image, (*added, *retyped))
    return Alteration(
        renamed=tuple((a.name, b.name) for a, b in kept if a.name != b.name),
        dropped=tuple(column.name for number, column in old.items() if number not in new),
        added=added,
        retyped=retyped,
        nullable=tuple((b.name, b.is_nullable) for a, b in kept if a.is_nullable != b.is_nullable),
        defaults=tuple(_defaults(was, now)),
        post_data_dropped=tuple(one for one in had.values() if not _is_same(one, has.get(one.key))),
        post_data_added=tuple(one for one in has.values() if not _is_same(one, had.get(one.key))),
        key=_key(now, new) if was["key"] != now["key"] else None,
        unclear=unclear,
        called=_name(now) if _name(was) != _name(now) else None,
        children=frozenset(TableName(*child) for child in now["children"]) if "children" in now else None,
    )


_TOKEN = re.compile(
    r"""\s+|--[^\n]*|/\*.*?\*/|[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\w*)\$.*?\$\1\$|[\w$]+|.""",
    re.DOTALL,
)


def _told_unclear(image: Image, columns: Sequence[ShapedColumn]) -> dict[str, str]:
    """What the source itself says that it does not tell of columns, by the columns' names."""
    told: Mapping[str, str] = json.loads(image.get("unclear") or "{}")
    return {one.name: told[one.origin or one.name] for one in columns if (one.origin or one.name) in told}


def _why_retyped(change: Change, retyped: Sequence[ShapedColumn]) -> dict[str, str]:
    """Why it cannot be told what rows have in columns that got another type, by the columns' names."""
    statement = statement_of(change)
    called = {column.origin or column.name: column for column in retyped}
    if statement is not None:
        # What it does not name itself, a function has altered, or a block, by whatever expression.
        untold = called.keys() - _types_given(statement).named
        found = retyped_by_expression(statement, list(called)) - untold
    else:
        # Without an event trigger no statement is known, and none is missed.
        untold, found = set(called if (change.before or {}).get("is_missed") else ()), set[str]()
    return {called[name].name: f"became {called[name].type} by an expression of the statement" for name in found} | {
        called[name].name: f"became {called[name].type} by a statement that is not known, maybe with an expression"
        for name in untold
    }


def retyped_by_expression(statement: str, columns: Sequence[str]) -> set[str]:
    """Say which columns got their types by a USING of a statement; all of `columns` where that cannot be told."""
    given = _types_given(statement)
    # One inside a text may be of a statement that a block has run.
    is_whole = given.count == len(re.findall(r"\busing\b", statement, re.IGNORECASE)) and given.by_expression <= set(
        columns
    )
    return set(given.by_expression) if is_whole else set(columns)


@dataclass(frozen=True)
class _TypesGiven:
    """What a statement itself says of the types of columns.

    Attributes:
        named: The columns that it gives a type.
        by_expression: Those of them with a USING.
        count: How many USING there are.
    """

    named: Set[str]
    by_expression: Set[str]
    count: int


def _types_given(statement: str) -> _TypesGiven:
    named: set[str] = set()
    found: set[str] = set()
    tokens = [token for token in (match[0] for match in _TOKEN.finditer(statement)) if not _is_blank(token)]
    words = [token.lower() for token in tokens]
    depth = seen = 0
    column: str | None = None
    for place, word in enumerate(words):
        depth += (word == "(") - (word == ")")
        if depth == 0 and word in (",", ";"):
            column = None
        elif depth == 0 and word == "alter" and words[place + 1 : place + 2] != ["table"]:
            name = place + 1 + (words[place + 1 : place + 2] in (["column"], ["attribute"]))
            follows = words[name + 1 : name + 4]
            if follows[:1] == ["type"] or follows == ["set", "data", "type"]:
                column = _unquoted(tokens[name])
                named.add(column)
        elif depth == 0 and word == "using":
            seen += 1
            found |= set() if column is None else {column}
    return _TypesGiven(named, found, seen)


def is_one_part(text: str) -> bool:
    """Whether a text can be one part of a statement, an expression for example, and not begin another part.

    Definitions come as texts in the words of the source, which are put into statements of ours.
    """
    open_ = []
    for token in (match[0] for match in _TOKEN.finditer(text)):
        if token in _CLOSING:
            open_.append(_CLOSING[token])
        elif token in _CLOSING.values():
            if not open_ or open_.pop() != token:
                return False
        elif token.startswith((";", "$", "--", "/*")) or _is_open(token) or (not open_ and token.startswith(",")):
            # Another statement, a comment, or another part.
            return False
    return not open_


_CLOSING = {"(": ")", "[": "]", "{": "}"}


def _is_open(token: str) -> bool:
    """Whether a quote begins that does not end."""
    return token[:1] in ("'", '"') and len(token) == 1


def _is_blank(token: str) -> bool:
    return token.isspace() or token.startswith(("--", "/*"))


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


def unfollowed(waiting: Sequence[tuple[str, Change]]) -> tuple[Unfollowed, ...]:
    """Tell after which alterations names mean other columns at the target, where these wait.

    Args:
        waiting: What is to be done to one table, in its order, each with its entry.
    """
    found = []
    there: Mapping[str, int] | None = None
    for _, change in waiting:
        image = change.before or {}
        was, now = (
            {column.name: number for number, column in _columns(_shape(image, part)).items()} for part in ("was", "is")
        )
        there = was if there is None else there
        moved = frozenset(name for name, number in now.items() if there.get(name, number) != number)
        if (version := image.get("is_version")) is not None:
            found.append(Unfollowed(waiting[0][0], int(version), moved))
    return tuple(found) if any(one.columns for one in found) else ()


def columns_of(change: Change, part: str) -> tuple[ShapedColumn, ...]:
    """The columns of a table before (`was`) or behind (`is`) a change of DDL, in the source's order."""
    return tuple(_columns(_shape(change.before or {}, part)).values())


def statement_of(change: Change) -> str | None:
    """The statement of a change of DDL, as the source ran it; None where it is not known."""
    return (change.before or {}).get("statement")


def pending(wanted: Alteration, table: TableSchema) -> Alteration:
    """What of it is still to be done to a table.

    Two writers may have noted the same version, and a person may have altered the target beforehand.

    Raises:
        ApplyError: What is left cannot be told from the two versions.
    """
    there = table.by_name
    for a, b in wanted.renamed:
        if a in there and b in there:
            what = f"another column is called {b!r} already, and the values are in {a!r}"
            raise _refused(table.name, f"{what}; rename the other one, and retry")
    left = replace(
        wanted,
        renamed=tuple((a, b) for a, b in wanted.renamed if b not in there),
        dropped=tuple(name for name in wanted.dropped if name in there),
        added=tuple(column for column in wanted.added if column.name not in there),
        retyped=tuple(c for c in wanted.retyped if c.name not in there or not c.is_type_of(there[c.name])),
    )
    for column in (*left.added, *left.retyped):
        if column.name in wanted.unclear:
            what = f"column {column.name!r} {wanted.unclear[column.name]}"
            raise _refused(table.name, f"{what}: the values of its rows are not known; do it at the target, and retry")
    has = table.primary_key.columns if table.primary_key is not None else ()
    if wanted.key is not None and set(wanted.key) != set(has):
        raise _refused(table.name, "its primary key was changed; change it at the target, and retry")
    return left


def touched(wanted: Alteration) -> set[tuple[str, str]]:
    """The columns, checks and indexes that an alteration is about, by kind and by each name that it knows of them."""
    columns = {*wanted.dropped, *(name for name, _ in (*wanted.nullable, *wanted.defaults)), *(wanted.key or ())}
    columns |= {name for names in wanted.renamed for name in names}
    columns |= {column.name for column in (*wanted.added, *wanted.retyped)}
    post_data = {item.key for item in (*wanted.post_data_dropped, *wanted.post_data_added)}
    return {("column", name) for name in columns} | post_data


def _name(shape: Mapping[str, Any]) -> TableName:
    return TableName(shape["schema"], shape["name"])


def _columns(shape: Mapping[str, Any]) -> dict[int, ShapedColumn]:
    found = {int(number): ShapedColumn(**column) for number, column in shape.get("columns", {}).items()}
    return dict(sorted(found.items()))


def _defaults(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Yield the defaults that were set or dropped; not those that only name a sequence by its new name."""
    old, new = _columns(was), _columns(now)
    is_known = "defaults" in was and "defaults" in now
    for number in [number for number in new if number in old]:
        before, after = old[number], new[number]
        if is_known and was["defaults"].get(str(number)) == now["defaults"].get(str(number)):
            continue
        if before.default != after.default and not _is_computed(before, after):
            yield after.name, after.default


def _post_data(shape: Mapping[str, Any]) -> dict[tuple[str, str], ShapedObject]:
    found = [
        ShapedObject(**{name: one[name] for name in one if name not in ("columns", "has_row")})
        for one in shape["fittings"]
    ]
    return {one.key: one for one in found}


def _is_same(one: ShapedObject, other: ShapedObject | None) -> bool:
    return other is not None and (one.looks, one.is_valid) == (other.looks, other.is_valid)


def _is_computed(*columns: ShapedColumn) -> bool:
    """Whether what stands as the default of a column is none."""
    return any(column.is_generated or column.is_identity for column in columns)


def _shape(image: Image, part: str) -> dict[str, Any]:
    found: dict[str, Any] | None = json.loads(image.get(part) or "{}")
    return found or {}


def _why_unfilled(column: ShapedColumn) -> str | None:
    """Why it cannot be told what rows have in a new column that were there before it; None where it can."""
    if _is_computed(column):
        return "is generated, or an identity"
    if column.default is not None and column.filled is None:
        return "has a default that is worked out for each row, or is of a domain with checks, or of a partitioned table"
    return None


def _key(shape: Mapping[str, Any], columns: Mapping[int, ShapedColumn]) -> tuple[str, ...]:
    # Rules may leave a column out.
    return tuple(columns[number].name for number in shape["key"] or () if number in columns)


def _refused(table: TableName, why: str) -> ApplyError:
    return ApplyError(DDL_NOT_CARRIED_OUT, why, where=f"table {table}")
