"""One change of a row as a handler sees it: a copy of its own, to look at, to alter, and to execute (an LCR).

Values are canonical text, and None for NULL (see `penstock.values`); a column that an image does not tell is absent.
A value may be given as a number, a bool, bytes, a date or a time as well. Errors are `ApplyError`s by number: 23605 for
what makes no sense, 23607 for a column that is not there.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Literal

from penstock.apply.apply_errors import LCR_COLUMN, LCR_MALFORMED, ApplyError
from penstock.change import Change, Image, Op, TableName
from penstock.logical import Kind, LogicalType

Kind_ = Literal["old", "new"]
Kinds = Literal["old", "new", "*"]
Value = str | int | float | bool | Decimal | bytes | date | time | datetime | None

Execute = Callable[["RowLcr", bool], None]
TypeOf = Callable[[TableName, str], "LogicalType | None"]

_SHAPES = {Op.INSERT: (False, True), Op.UPDATE: (True, True), Op.DELETE: (True, False)}
"""Which values a change of each operation has: old, new."""


@dataclass(frozen=True)
class ChangeOrigin:
    """Where a change comes from.

    Attributes:
        source: The name of the source in the pipeline file.
        committed_at: When its transaction was committed at the source, where that is known.
    """

    source: str
    txn_id: str
    commit_scn: int
    committed_at: datetime | None


class Lcr:
    """What every change that a handler sees tells: its table, and the transaction that it is of."""

    def __init__(self, table: TableName, origin: ChangeOrigin) -> None:
        """Stand for a change of a table."""
        self._table = table
        self.origin = origin

    @property
    def object_owner(self) -> str:
        """The table's schema."""
        return self._table.schema

    @property
    def object_name(self) -> str:
        """The table's name."""
        return self._table.name

    @property
    def table(self) -> TableName:
        """The table, by its name at the target."""
        return self._table

    @property
    def source_database_name(self) -> str:
        """The name of the source in the pipeline file."""
        return self.origin.source

    @property
    def transaction_id(self) -> str:
        """The source's own id of the transaction."""
        return self.origin.txn_id

    def get_commit_scn(self) -> int:
        """The position of the transaction."""
        return self.origin.commit_scn

    def get_commit_time(self) -> datetime | None:
        """When the transaction was committed at the source, where that is known."""
        return self.origin.committed_at

    @property
    def _place(self) -> str:
        return f"table {self._table}"


class RowLcr(Lcr):
    """A change of one row. What is done to it concerns nobody else until it is executed."""

    def __init__(
        self,
        change: Change,
        origin: ChangeOrigin,
        execute: Execute | None = None,
        type_of: TypeOf = lambda table, column: None,
        *,
        is_made: bool = False,
    ) -> None:
        """Copy a change.

        Args:
            execute: Applies a change as it is now, as the process itself would; is told whether resolvers have a say.
            type_of: What a column holds; None where that is not known.
            is_made: No source committed it so.
        """
        super().__init__(change.table, origin)
        self._change = change
        self._execute, self._type_of = execute, type_of
        self._op = change.op
        self._values: dict[str, dict[str, str | None]] = {
            "old": dict(change.before or {}),
            "new": dict(change.after or {}),
        }
        self.is_made = is_made

    @property
    def command_type(self) -> str:
        """`INSERT`, `UPDATE` or `DELETE`."""
        return self._op.name

    def set_command_type(self, command_type: str) -> None:
        """Make it another operation; its old and new values must become those of that one."""
        try:
            op = Op(command_type.lower())
        except (ValueError, AttributeError):
            raise ApplyError(LCR_MALFORMED, f"{command_type!r} is not an operation of a row") from None
        if op not in _SHAPES:
            raise ApplyError(LCR_MALFORMED, f"{command_type!r} is not an operation of a row")
        self._op = op

    def set_object_owner(self, schema: str) -> None:
        """Have it change a table of another schema."""
        self._table = TableName(schema, self._table.name)

    def set_object_name(self, name: str) -> None:
        """Have it change another table."""
        self._table = TableName(self._table.schema, name)

    def is_present(self, kind: Kind_, column: str) -> bool:
        """Whether the old, or the new, values hold a column, be it NULL."""
        return column in self._of(kind)

    def get_value(self, kind: Kind_, column: str, *, use_old: bool = True) -> str | None:
        """The value of a column as text; None where it is NULL, or absent.

        Args:
            use_old: The new value of a column that an update has not changed is its old one.
        """
        return self.get_values(kind, use_old=use_old).get(column)

    def get_typed(self, kind: Kind_, column: str, *, use_old: bool = True) -> Any:
        """The same as an `int`, `Decimal`, `float`, `bool` or `bytes` where the column holds such; text otherwise."""
        text = self.get_value(kind, column, use_old=use_old)
        logical = self._type_of(self._table, column)
        return text if text is None or logical is None else _typed(text, logical)

    def get_values(self, kind: Kind_, *, use_old: bool = True) -> dict[str, str | None]:
        """All old, or all new, values by column, as `get_value`; what is done to them does not alter the change."""
        values = self._of(kind)
        if kind == "new" and use_old and self._op is Op.UPDATE:
            return {**self._values["old"], **values}
        return dict(values)

    def set_value(self, kind: Kind_, column: str, value: Value) -> None:
        """Give a column another value; 23607 where it is absent."""
        values = self._of(kind)
        if column not in values:
            raise self._absent(column, [kind])
        values[column] = _text(value)

    def set_values(self, kind: Kind_, values: Mapping[str, Value]) -> None:
        """Put other old, or new, values in place of all of them."""
        self._of(kind)
        self._values[kind] = {column: _text(value) for column, value in values.items()}

    def add_column(self, kind: Kind_, column: str, value: Value) -> None:
        """Add a column; 23605 where it is there."""
        values = self._of(kind)
        if column in values:
            raise ApplyError(LCR_MALFORMED, f"column {column!r} is in the {kind} values already", where=self._place)
        values[column] = _text(value)

    def delete_column(self, column: str, kind: Kinds = "*") -> None:
        """Take a column out of the old values, the new ones, or both; 23607 where it is in none of them."""
        found = [one for one in self._kinds(kind) if column in self._values[one]]
        if not found:
            raise self._absent(column, self._kinds(kind))
        for one in found:
            del self._values[one][column]

    def rename_column(self, column: str, to: str, kind: Kinds = "*") -> None:
        """Give a column another name.

        Raises:
            ApplyError: 23607 where it is absent; 23605 where the new name is taken. With both kinds, it must be in the
                old and in the new values, as far as the operation has them; an update has the new value of a column
                only where it changed it.
        """
        kinds = self._kinds(kind)
        needed = [one for one in kinds if self._has(one) and not (kind == "*" and one == "new" and self._has("old"))]
        if any(column not in self._values[one] for one in needed):
            raise self._absent(column, kinds)
        found = [one for one in kinds if column in self._values[one]]
        if not found:
            raise self._absent(column, kinds)
        if any(to in self._values[one] for one in kinds):
            raise ApplyError(LCR_MALFORMED, f"column {to!r} is there already", where=self._place)
        for one in found:
            self._values[one] = {to if name == column else name: value for name, value in self._values[one].items()}

    def keep_columns(self, columns: Collection[str], kind: Kinds = "*") -> None:
        """Take all other columns out."""
        for one in self._kinds(kind):
            self._values[one] = {name: value for name, value in self._values[one].items() if name in columns}

    def execute(self, conflict_resolution: bool | None = None) -> None:
        """Apply the change as it is now, with all checks that a change has; calls no handler.

        Args:
            conflict_resolution: Whether `conflicts` of the pipeline file have their say; must be given.

        Raises:
            ApplyError: It conflicts, and is not resolved, or fails; then it has done nothing.
        """
        if not isinstance(conflict_resolution, bool):
            raise ApplyError(LCR_MALFORMED, "execute takes True or False: whether resolvers are called")
        if self._execute is None:
            raise ApplyError(LCR_MALFORMED, "a change can be executed inside a handler only", where=self._place)
        self._execute(self, conflict_resolution)

    def make(
        self,
        command_type: str,
        table: str,
        *,
        old: Mapping[str, Value] | None = None,
        new: Mapping[str, Value] | None = None,
    ) -> RowLcr:
        """Make a further change, of any table of the target; it is to be executed to have an effect.

        Args:
            table: `schema.table`; without a schema, in that of this change's.
        """
        schema, dot, name = table.partition(".")
        target = TableName(schema, name) if dot else TableName(self._table.schema, table)
        made = RowLcr(
            Change(self._change.change_seq, Op.INSERT, target, 0, {}, {}),
            self.origin,
            self._execute,
            self._type_of,
            is_made=True,
        )
        made.set_command_type(command_type)
        made.set_values("old", old or {})
        made.set_values("new", new or {})
        return made

    def get_where_clause(self) -> str:
        """SQL that finds the row: by the new values of an insert, the row after an update, the old ones of a delete."""
        values = self._values["old"] if self._op is Op.DELETE else self.get_values("new")
        tests = [f"{_name(n)} IS NULL" if v is None else f"{_name(n)} = {_literal(v)}" for n, v in values.items()]
        return f"WHERE {' AND '.join(tests)}" if tests else ""

    def get_row_text(self) -> str:
        """SQL that says what the change does, for people. It holds the row's values, so it is not for a log."""
        table = f"{_name(self._table.schema)}.{_name(self._table.name)}"
        new = self._values["new"]
        match self._op:
            case Op.INSERT:
                names, values = ", ".join(map(_name, new)), ", ".join(map(_literal, new.values()))
                return f"INSERT INTO {table} ({names}) VALUES ({values})"
            case Op.DELETE:
                return f"DELETE FROM {table} {self.get_where_clause()}".rstrip()
            case _:
                settings = ", ".join(f"{_name(column)} = {_literal(value)}" for column, value in new.items())
                return f"UPDATE {table} SET {settings} {self.get_where_clause()}".rstrip()

    def as_change(self) -> Change:
        """The change as it is now.

        Raises:
            ApplyError: 23605: an insert has old values, a delete new ones, or an update no old ones.
        """
        old, new = self._values["old"], self._values["new"]
        has_old, has_new = _SHAPES[self._op]
        for kind, has, values in (("old", has_old, old), ("new", has_new, new)):
            if values and not has:
                what = f"{self._op} has {kind} values, which it cannot have"
                raise ApplyError(LCR_MALFORMED, what, where=self._place)
        if has_old and not old:
            raise ApplyError(LCR_MALFORMED, f"{self._op} has no old values", where=self._place)
        is_same = self._table == self._change.table and not self.is_made
        version = self._change.table_version if is_same else 0
        images = (dict(old) if has_old else None, dict(new) if has_new else None)
        return Change(self._change.change_seq, self._op, self._table, version, *images)

    @property
    def committed(self) -> Change:
        """The change as the source committed it, after rules."""
        return self._change

    def copy(self, execute: Execute | None = None, type_of: TypeOf = lambda table, column: None) -> RowLcr:
        """A copy of the change as it came, which another handler may alter."""
        return RowLcr(self._change, self.origin, execute, type_of, is_made=self.is_made)

    def __repr__(self) -> str:
        """Name it without its values, which belong in no log."""
        return f"<RowLcr {self._op} {self._table}>"

    def _of(self, kind: str) -> dict[str, str | None]:
        if kind not in self._values:
            raise ApplyError(LCR_MALFORMED, f"kind is 'old' or 'new', not {kind!r}", where=self._place)
        return self._values[kind]

    def _kinds(self, kind: str) -> list[str]:
        if kind == "*":
            return ["old", "new"]
        self._of(kind)
        return [kind]

    def _has(self, kind: str) -> bool:
        return _SHAPES[self._op][kind == "new"]

    def _absent(self, column: str, kinds: Collection[str]) -> ApplyError:
        return ApplyError(LCR_COLUMN, f"column {column!r} is not in the {' or '.join(kinds)} values", where=self._place)


def changed_keys(lcr: RowLcr, keys: Image | Collection[str]) -> Iterator[str]:
    """The key columns whose old value is not the one that was committed, so that another row would be changed."""
    committed, now = lcr.committed, lcr.get_values("old")
    if lcr.is_made or committed.before is None or lcr.table != committed.table:
        return
    yield from (
        name for name in keys if name in now and name in committed.before and now[name] != committed.before[name]
    )


def _text(value: Value) -> str | None:
    """Write a value as canonical text.

    Raises:
        ApplyError: 23605 where it is a text that holds a zero byte, which no database keeps.
    """
    match value:
        case str() if "\0" in value:
            raise ApplyError(LCR_MALFORMED, "a value of a handler's is a text with a zero byte (NUL)")
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case Decimal():
            return str(value) if not value.is_finite() else format(value, "f")
        case float():
            return (
                str(value) if math.isfinite(value) else {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
            )
        case bytes():
            return base64.b64encode(value).decode()
        case date() | time():
            return value.isoformat()
    raise ApplyError(
        LCR_MALFORMED, f"a value is text, None, a number, bool, bytes, date or time, not {type(value).__name__}"
    )


def _typed(text: str, logical: LogicalType) -> Any:
    match logical.kind:
        case Kind.INTEGER:
            return int(text)
        case Kind.DECIMAL:
            return Decimal(text)
        case Kind.FLOAT:
            return float(text)
        case Kind.BOOLEAN:
            return text == "true"
        case Kind.BINARY:
            return base64.b64decode(text)
        case _:
            return text


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: str | None) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"
