"""Tables of which a source knows only what it was told: by patterns, and as all their versions need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.change import TableName
from penstock.database import DatabasePlan
from penstock.errors import OperatorError
from penstock.patterns import TablePattern, nearest_table
from penstock.schema import Column, ForeignKey, TableSchema, Unique
from penstock.stream import TableVersion

_MOST_NAMED = 10


class DeclaredTables:
    """Every version of every table that a source was told of."""

    def __init__(self, versions: Iterable[TableVersion]) -> None:
        """Know these versions."""
        self._names = {version.table.name for version in versions if not version.is_partition}
        self._by_name: dict[TableName, list[TableSchema]] = {}
        for version in versions:
            self._by_name.setdefault(version.table.name, []).append(version.table)

    def match(self, patterns: Sequence[str], *, kind: str, where: str, do: str) -> Sequence[TableName]:
        """Return the tables that patterns mean.

        Args:
            kind: What the source is called in messages; `where` is its label, `do` how it comes to know a table.

        Raises:
            OperatorError: A pattern means no table.
        """
        found: set[TableName] = set()
        unknown = []
        for pattern in map(TablePattern.parse, patterns):
            matched = {table for table in self._names if pattern.matches(table)}
            found |= matched
            if not matched:
                unknown.append(pattern.text)
        if unknown:
            what = f"no table of the {kind} matches {', '.join(map(repr, unknown))}"
            near = nearest_table(unknown[0], self._names)
            do += near or f"; there {_those(sorted(map(str, self._names)))}"
            raise OperatorError(what, where=f"capture.tables, {where}", do=do)
        return sorted(found)

    def describe(self, tables: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
        """Describe tables as they were known last, so that they take what was written under earlier versions."""
        return {name: of_all_times(self._by_name[name]) for name in tables if name in self._by_name}

    def plan(self, tables: Iterable[TableName], *, label: str) -> DatabasePlan:
        """Plan nothing: there is only what was told. Notes say which keys of a table do not hold for all of it."""
        plan = DatabasePlan(label)
        for name, table in self.describe(tables).items():
            last = self._by_name[name][-1]
            lost = [repr(key.name) for key in last.all_uniques if key not in table.all_uniques]
            lost += [repr(key.name) for key in last.foreign_keys if key not in table.foreign_keys]
            if lost:
                plan.notes.append(
                    f"table {name} is described without {', '.join(lost)}, which it did not have from its beginning; it"
                    " can be added at the target once the changes that were made without it are applied"
                )
        return plan


def _those(names: Sequence[str]) -> str:
    """Name what there is: the first of it."""
    if not names:
        return "is none yet"
    more = f", and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{'is' if len(names) == 1 else 'are'} {', '.join(names[:_MOST_NAMED])}{more}"


def of_all_times(versions: Sequence[TableSchema]) -> TableSchema:
    """The last version, with every column that another one had, and without what does not hold for all of them.

    A column that one of them lacks may be null: a row that was written then has no value for it. A key is kept if all
    have it.
    """
    # As they were told: a source that rules made of another may number them as it likes.
    ordered = list(reversed(versions))
    last = ordered[0]
    columns: dict[str, Column] = {}
    for table in ordered:
        for column in table.columns:
            columns.setdefault(column.name, column)

    def may_be_null(name: str) -> bool:
        return any(name not in table.by_name or table.by_name[name].is_nullable for table in versions)

    def is_primary(key: Unique) -> bool:
        return all(table.primary_key is not None and table.primary_key.columns == key.columns for table in versions)

    def is_unique(key: Unique) -> bool:
        return all(key.columns in {other.columns for other in table.all_uniques} for table in versions)

    def refers(key: ForeignKey) -> bool:
        pair = key.columns, key.parent
        return all(pair in {(other.columns, other.parent) for other in table.foreign_keys} for table in versions)

    return replace(
        last,
        columns=tuple(replace(column, is_nullable=may_be_null(column.name)) for column in columns.values()),
        primary_key=last.primary_key if last.primary_key is not None and is_primary(last.primary_key) else None,
        uniques=tuple(filter(is_unique, last.uniques)),
        foreign_keys=tuple(filter(refers, last.foreign_keys)),
    )
