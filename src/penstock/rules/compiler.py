"""Rules made from what the file says, for one version of a table: every fault is found here, before any row is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.change import TableName
from penstock.errors import ConfigError, OperatorError
from penstock.rules.columns import ColumnMap
from penstock.rules.expression_checks import nearest
from penstock.rules.expressions import Expression, computed, condition
from penstock.rules.step import PythonStep
from penstock.rules.table_rule import TableRule
from penstock.schema import Exclusion, ForeignKey, TableSchema, Unique

Named = Callable[[TableName, Sequence[str]], tuple[TableName, list[str]] | None]
"""What a table and some of its columns are called at the target; None where one of them is not there."""


@dataclass(frozen=True)
class RuleSettings:
    """What is said of one table.

    Attributes:
        values: Each setting that is given: see `config.TableRuleConfig`.
        places: Where it stands, as messages begin.
        folder: Where modules of the user's own lie.
    """

    values: Mapping[str, Any]
    places: Mapping[str, str]
    folder: Path

    @property
    def changes_rows(self) -> bool:
        """Whether more is said than what the table is called."""
        return any(name != "to" for name in self.values)

    def get(self, setting: str, default: Any = None) -> Any:
        """A setting, or the default where nothing is said of it."""
        return self.values.get(setting, default)

    def place(self, setting: str, part: str | int | None = None) -> str:
        """Where a setting, or the part of it for one column, stands."""
        return self.places[setting if part is None else f"{setting}.{part}"]


def make_rule(
    table: TableSchema, target: TableName, settings: RuleSettings, *, is_current: bool, named: Named
) -> TableRule:
    """Make the rule for a table that is called `target` at the target; see `RuleSet.rule`.

    Raises:
        ConfigError: The settings do not fit the table; names each fault with its line.
    """
    maker = _Maker(table, settings)
    rule = maker.rule(target, named)
    if not maker.faults:
        return rule
    if is_current:
        raise ConfigError("\n".join(maker.faults))
    is_needed = [fault for fault in maker.faults if fault not in maker.absent]
    if not is_needed:
        return rule
    return replace(
        rule,
        refusal=OperatorError(
            f"an earlier version of table {table.name}, of which changes still wait, does not fit its rules:\n"
            + "\n".join(is_needed),
            do="apply those changes with the earlier rules, or prepare a new first copy",
        ),
    )


class _Maker:
    """Collects faults while it makes what it can.

    Attributes:
        faults: Every fault, with its line.
        absent: Those that only say that a column which is kept, dropped or renamed is not there.
    """

    def __init__(self, table: TableSchema, settings: RuleSettings) -> None:
        self._table = table
        self._settings = settings
        self.faults: list[str] = []
        self.absent: list[str] = []

    def rule(self, target: TableName, named: Named) -> TableRule:
        """The rule; a part that is at fault is missing."""
        columns = self._columns()
        added = self._added(columns)
        rows, operations = self._settings.get("rows"), self._settings.get("operations")
        met = None if rows is None else self._try(condition, rows, self._settings.place("rows"))
        step = self._step()
        if not columns.names and not added:
            where = "keep" if "keep" in self._settings.values else "drop"
            self.faults.append(f"{self._settings.place(where)}leaves no column of table {self._table.name}")
        made = _Renamed(self._table, target, columns, named).table(added)
        keeps_key = self._table.primary_key is not None and made.primary_key is not None and step is None
        return TableRule(
            source=self._table,
            table=made,
            keeps_key=keeps_key,
            columns=columns,
            row_filter=met,
            operations=None if operations is None else frozenset(operations),
            added=added,
            step=step,
        )

    def _columns(self) -> ColumnMap:
        keep = self._settings.get("keep")
        drop, rename = self._settings.get("drop", ()), self._settings.get("rename", {})
        known = self._table.column_names
        for setting, given in (("keep", keep or ()), ("drop", drop)):
            for number, name in enumerate(given):
                self._refuse_unknown(name, self._settings.place(setting, number))
        for name in rename:
            self._refuse_unknown(name, self._settings.place("rename", name))
        kept = [name for name in known if (keep is None or name in keep) and name not in drop]
        for name in rename:
            if name in known and name not in kept:
                self.faults.append(f"{self._settings.place('rename', name)}column {name!r} is left out before")
        names: dict[str, str] = {}
        for name in kept:
            new = rename.get(name, name)
            if not new:
                self.faults.append(f"{self._settings.place('rename', name)}a column needs a name")
            elif new in names.values():
                place = self._settings.place("rename", name if name in rename else _key_of(rename, new))
                self.faults.append(f"{place}two columns of table {self._table.name} would be called {new!r}")
            names[name] = new
        return ColumnMap(names, tuple(name for name in known if name not in names))

    def _added(self, columns: ColumnMap) -> dict[str, Expression]:
        added = {}
        for name, sql in self._settings.get("add", {}).items():
            place = self._settings.place("add", name)
            if name in columns.names.values():
                self.faults.append(
                    f"{place}table {self._table.name} has a column {name!r} already; drop or rename that one"
                )
            elif not name:
                self.faults.append(f"{place}a column needs a name")
            elif (expression := self._try(computed, sql, place)) is not None:
                added[name] = expression
        return added

    def _step(self) -> PythonStep | None:
        name = self._settings.get("step")
        if name is None:
            return None
        step = PythonStep(self._settings.place("step"), str(self._table.name), name, self._settings.folder)
        try:
            step.check()
        except ConfigError as exc:
            self.faults.append(str(exc))
        return step

    def _try(self, check: Callable[[str, TableSchema, str], Expression], sql: str, place: str) -> Expression | None:
        try:
            return check(sql, self._table, place)
        except ConfigError as exc:
            self.faults.append(str(exc))
            return None

    def _refuse_unknown(self, name: str, place: str) -> None:
        if name not in self._table.by_name:
            known = self._table.column_names
            fault = f"{place}table {self._table.name} has no column {name!r}{nearest(name, known)}"
            self.faults.append(fault)
            self.absent.append(fault)


def _key_of(names: Mapping[str, str], new: str) -> str:
    return next(old for old, other in names.items() if other == new)


class _Renamed:
    """A table as it is called at the target, with its keys."""

    def __init__(self, table: TableSchema, target: TableName, columns: ColumnMap, named: Named) -> None:
        self._table = table
        self._target = target
        self._columns = columns
        self._named = named

    def table(self, added: Mapping[str, Expression]) -> TableSchema:
        """The table; a key, or a reference, of which a column is left out is left out itself."""
        table, names = self._table, self._columns.names
        key = table.primary_key
        kept = [replace(table.by_name[name], name=new) for name, new in names.items()]
        made = [expression.output.column(name) for name, expression in added.items() if expression.output is not None]
        # A check says which columns it looks at only in its text.
        is_same = all(name == new for name, new in names.items()) and not set(added) & set(table.by_name)
        return replace(
            table,
            name=self._target,
            columns=(*kept, *made),
            primary_key=None if key is None else self._unique(key),
            uniques=tuple(u for u in map(self._unique, table.uniques) if u is not None),
            exclusions=tuple(x for x in map(self._exclusion, table.exclusions) if x is not None),
            checks=table.checks if is_same else (),
            foreign_keys=tuple(fk for fk in map(self._reference, table.foreign_keys) if fk is not None),
            referenced_by=tuple(fk for fk in map(self._referrer, table.referenced_by) if fk is not None),
        )

    def _unique(self, unique: Unique) -> Unique | None:
        columns, mentions = self._new(unique.columns), self._new(unique.mentions)
        if columns is None or mentions is None:
            return None
        return replace(unique, columns=columns, mentions=mentions)

    def _exclusion(self, exclusion: Exclusion) -> Exclusion | None:
        if not exclusion.columns:
            # It has an expression, whose columns are not known.
            is_same = not self._columns.dropped and all(old == new for old, new in self._columns.names.items())
            return exclusion if is_same else None
        columns = self._new(exclusion.columns)
        return None if columns is None else replace(exclusion, columns=columns)

    def _reference(self, key: ForeignKey) -> ForeignKey | None:
        columns = self._new(key.columns)
        parent = self._named(key.parent, key.parent_columns)
        if columns is None or parent is None:
            return None
        return replace(key, child=self._target, columns=columns, parent=parent[0], parent_columns=tuple(parent[1]))

    def _referrer(self, key: ForeignKey) -> ForeignKey | None:
        columns = self._new(key.parent_columns)
        child = self._named(key.child, key.columns)
        if columns is None or child is None:
            return None
        return replace(key, child=child[0], columns=tuple(child[1]), parent=self._target, parent_columns=columns)

    def _new(self, columns: Iterable[str]) -> tuple[str, ...] | None:
        """What columns are called; None where one of them is left out."""
        names = self._columns.names
        columns = tuple(columns)
        return tuple(names[name] for name in columns) if all(name in names for name in columns) else None
