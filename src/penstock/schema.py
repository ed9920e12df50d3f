"""Table definitions, and the dictionary of every version of them that a change may name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from penstock.change import TableName
from penstock.errors import MalformedInputError
from penstock.fit import FINEST, Fit, fit, is_cast_otherwise, is_whole
from penstock.logical import COMMON_TEXT, Kind, LogicalType, of_sql_name, other

_UNSAID = other("")


@dataclass(frozen=True)
class Column:
    """One column: what it holds, and what its database says of it.

    A column of a database comes from its catalogue; one of no database is made by `of`.

    Attributes:
        type: The database's own spelling, with length and precision: `numeric(10,2)`. Of no database, the text form of
            `logical`.
        base_type: The type below length, domain and alias: `numeric`.
        logical: What it holds, for databases of other kinds. Where it was not said, it is told by the type's name.
        dialect: The kind of database that has spelled the type; None of no database, or in definitions of versions
            that did not say it.
        is_domain: The type has conditions of its own beside what it holds.
        is_nullable: False where the table refuses NULL.
        is_generated: The database computes it; no statement may write it.
        is_identity_always: An insert may write it by overriding the identity, an update never.
        is_comparable: The type has an equality operator.
        is_exact: Equal values have equal canonical text. False for numeric (1.0 = 1.00) without a scale, jsonb...
        is_builtin: The database's own type: no cast, operator or function that a user made applies to it.
        is_key_usable: May be part of an all-columns key.
        is_integer, is_decimal: Canonical text is a plain number, so equal values can be told by normalising it.
        notation: Equal in columns that read each other's canonical text for what it says; None where that is not known.
        native: What else its definition says, such as how its database casts its values. Only the column's own dialect
            reads it; everybody else hands it on.
    """

    name: str
    type: str
    base_type: str
    is_nullable: bool = True
    is_generated: bool = False
    is_identity_always: bool = False
    is_comparable: bool = True
    is_exact: bool = True
    is_builtin: bool = True
    is_key_usable: bool = True
    is_integer: bool = False
    is_decimal: bool = False
    notation: str | None = None
    logical: LogicalType = _UNSAID
    dialect: str | None = None
    is_domain: bool = False
    native: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Tell what the column holds by the name of its type, where that was not said."""
        if self.logical is _UNSAID or self.logical == _UNSAID:
            told = of_sql_name(self.type) or of_sql_name(self.base_type) or other(self.base_type)
            object.__setattr__(self, "logical", told)

    @classmethod
    def of(cls, name: str, logical: LogicalType, *, is_nullable: bool = True) -> Column:
        """A column of no database: a target makes a column of its own of it."""
        return cls(
            name=name,
            type=str(logical),
            base_type=str(logical.kind),
            is_nullable=is_nullable,
            is_comparable=logical.is_comparable,
            is_exact=logical.is_exact,
            is_key_usable=logical.is_comparable and logical.element is None,
            is_integer=logical.kind is Kind.INTEGER,
            is_decimal=logical.kind in (Kind.DECIMAL, Kind.FLOAT),
            # What is finer than the times of most databases is kept as text there.
            notation=None if logical.is_finer_than(6) else "" if logical.kind in COMMON_TEXT else str(logical.kind),
            logical=logical,
        )

    def takes(self, other: Column) -> bool:
        """Whether no value of another column is refused here, as far as types can tell."""
        if self.dialect == other.dialect or self.type == other.type:
            return self.type == other.type
        return self.logical == other.logical and not self.is_domain

    def cuts(self, other: Column) -> bool:
        """Whether values of another column, or of this one at an earlier time, are rounded or cut here in silence."""
        if self.type == other.type and self.dialect == other.dialect and not self.is_domain:
            # Asked of each column of each change that goes by itself.
            return False
        if self.dialect != other.dialect and (self.logical.element or self.logical).kind is Kind.STRING:
            # Events call every text a string, and do not say which are padded.
            return False
        told = other.logical
        if told.kind is self.logical.kind and told.is_finer_than(FINEST):
            # What no column here keeps, `plan` has said.
            told = replace(told, precision=FINEST)
        return fit(self.logical, told) is Fit.CUT

    def cuts_one_of(self, other: Column, values: Iterable[str | None]) -> bool:
        """Whether any of these values, as canonical text of the other column, is rounded or cut here in silence."""
        return self.cuts(other) and not all(value is None or is_whole(self.logical, value) for value in values)

    def reads(self, other: Column) -> bool:
        """Whether the canonical text of another column, or of this one at an earlier time, may be stored here."""
        if self.cuts(other):
            return False
        if self.dialect != other.dialect and (
            self.logical.kind is other.logical.kind or (self.logical.kind is Kind.OTHER and other.logical.is_text)
        ):
            # What only this database knows is text to the others.
            return True
        if self.notation == other.notation or None in (self.notation, other.notation):
            return True
        if self.dialect == other.dialect and is_cast_otherwise(self.logical, other.logical):
            return False
        return fit(self.logical, other.logical) is Fit.WHOLE


@dataclass(frozen=True)
class Unique:
    """A primary key, unique constraint or unique index.

    Attributes:
        columns: Empty when the index has an expression or a predicate: which rows it keeps apart cannot be
            told from column values alone.
        operators: For each column, what is equal to the index, as its own dialect spells it; none where that is `=`.
        mentions: Every column it looks at.
        is_deferrable: Checked at commit, or at the end of the statement, instead of row by row.
        nulls_are_equal: NULLS NOT DISTINCT.
    """

    name: str
    columns: tuple[str, ...]
    mentions: tuple[str, ...]
    is_deferrable: bool = False
    nulls_are_equal: bool = False
    operators: tuple[str, ...] = ()

    @property
    def equals(self) -> Mapping[str, str]:
        """For each column, the operator that its index uses."""
        return dict(zip(self.columns, self.operators or ("=",) * len(self.columns), strict=True))


@dataclass(frozen=True)
class ForeignKey:
    """A foreign key that the database enforces.

    Attributes:
        native: What else its definition says, such as how its database compares the two sides; see `Column.native`.
    """

    name: str
    child: TableName
    columns: tuple[str, ...]
    parent: TableName
    parent_columns: tuple[str, ...]
    is_match_full: bool = False
    is_deferrable: bool = False
    native: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Exclusion:
    """An exclusion constraint: no two rows for which every operator holds between their columns.

    Operators are as its own dialect spells them. `columns` is empty when it has an expression or a predicate.
    """

    name: str
    columns: tuple[str, ...]
    operators: tuple[str, ...]
    is_deferrable: bool = False

    @property
    def equals(self) -> Mapping[str, str]:
        """For each column, the operator of the constraint."""
        return dict(zip(self.columns, self.operators, strict=True))


@dataclass(frozen=True)
class TableSchema:
    """One version of a table, as its database's catalogue described it. Columns are in catalogue order.

    Attributes:
        referenced_by: Foreign keys of other tables, or of itself, whose parent this table is.
        checks: Conditions that every row must meet, as SQL over the bare column names.
        fires_triggers: A trigger would fire even for rows that apply writes.
        has_row_security: Row-level security is on.
    """

    name: TableName
    columns: tuple[Column, ...]
    primary_key: Unique | None = None
    uniques: tuple[Unique, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    checks: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    referenced_by: tuple[ForeignKey, ...] = ()
    is_partitioned: bool = False
    fires_triggers: bool = False
    has_row_security: bool = False
    version: int = 1

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        """The columns by their names."""
        return {column.name: column for column in self.columns}

    @property
    def column_names(self) -> list[str]:
        """Column names, in catalogue order."""
        return [column.name for column in self.columns]

    @property
    def has_builtin_key(self) -> bool:
        """Whether the primary key can be ordered, and read from its text, with nothing of a user's having a say."""
        return self.primary_key is not None and all(self.by_name[n].is_builtin for n in self.primary_key.columns)

    @property
    def all_uniques(self) -> tuple[Unique, ...]:
        """The primary key, if there is one, and every other unique index."""
        return (self.primary_key, *self.uniques) if self.primary_key else self.uniques

    def to_definition(self) -> dict[str, Any]:
        """Return the JSON that `from_definition` reads. What is native stands among the rest, as dialects write it."""
        own = {f.name: getattr(self, f.name) for f in fields(TableSchema)}
        plain = asdict(TableSchema(**{**own, "columns": ()}))
        del plain["version"]
        for key in (*plain["foreign_keys"], *plain["referenced_by"]):
            key.update(key.pop("native"))
        return {**plain.pop("name"), **plain, "columns": [_column_definition(column) for column in self.columns]}

    @classmethod
    def from_definition(cls, definition: Mapping[str, Any], *, version: int = 1) -> TableSchema:
        """Read the JSON that a dialect's catalogue query yields.

        Raises:
            MalformedInputError: A part is missing.
        """
        try:
            primary_key = definition["primary_key"]
            return cls(
                name=TableName(definition["schema"], definition["name"]),
                columns=tuple(map(_column, definition["columns"])),
                primary_key=_unique(primary_key) if primary_key else None,
                uniques=tuple(_unique(unique) for unique in definition["uniques"]),
                exclusions=tuple(
                    Exclusion(x["name"], tuple(x["columns"]), tuple(x["operators"]), x["is_deferrable"])
                    for x in definition["exclusions"]
                ),
                checks=tuple(definition["checks"]),
                foreign_keys=tuple(_foreign_key(fk) for fk in definition["foreign_keys"]),
                referenced_by=tuple(_foreign_key(fk) for fk in definition["referenced_by"]),
                is_partitioned=definition["is_partitioned"],
                fires_triggers=definition["fires_triggers"],
                has_row_security=definition["has_row_security"],
                version=version,
            )
        except KeyError as exc:
            raise MalformedInputError(f"table definition lacks {exc.args[0]!r}") from exc
        except TypeError as exc:
            raise MalformedInputError("table definition holds a column, key or reference that lacks a part") from exc


class Dictionary:
    """Every version of every source table that a change may name.

    A change is read with the version it was written under, whatever the table looks like now.
    """

    def __init__(self, tables: Iterable[TableSchema] = ()) -> None:
        self._tables = {(table.name, table.version): table for table in tables}

    def __len__(self) -> int:
        return len(self._tables)

    def get(self, name: TableName, version: int) -> TableSchema:
        """Return the table as it was in `version`.

        Raises:
            MalformedInputError: No such version was ever described.
        """
        try:
            return self._tables[name, version]
        except KeyError:
            raise MalformedInputError(
                "change names a table version that the dictionary does not hold",
                where=f"table {name}, version {version}",
            ) from None


_COLUMN = dict.fromkeys(f.name for f in fields(Column) if f.name != "native")
_FOREIGN_KEY = dict.fromkeys(f.name for f in fields(ForeignKey) if f.name != "native")


def _column_definition(column: Column) -> dict[str, Any]:
    said = {name: getattr(column, name) for name in _COLUMN}
    return {**said, "logical": str(column.logical), **column.native}


def _column(values: Mapping[str, Any]) -> Column:
    known = {name: value for name, value in values.items() if name in _COLUMN}
    if known.get("logical") is not None:
        known["logical"] = LogicalType.parse(known["logical"])
    return Column(**known, native=_native(values, _COLUMN))


def _native(values: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in known}


def _unique(values: Mapping[str, Any]) -> Unique:
    return Unique(
        values["name"],
        tuple(values["columns"]),
        tuple(values["mentions"]),
        values["is_deferrable"],
        values["nulls_are_equal"],
        # A version that was described long ago has none.
        tuple(values.get("operators", ())),
    )


def _foreign_key(values: Mapping[str, Any]) -> ForeignKey:
    return ForeignKey(
        values["name"],
        TableName(**values["child"]),
        tuple(values["columns"]),
        TableName(**values["parent"]),
        tuple(values["parent_columns"]),
        values["is_match_full"],
        values["is_deferrable"],
        _native(values, _FOREIGN_KEY),
    )
