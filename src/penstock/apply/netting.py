"""Whether, and how, changes of a source table may be netted onto a target table: what can be said before seeing any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from penstock.apply.conflict_methods import ConflictRules
from penstock.apply.target import TargetTable
from penstock.change import Op
from penstock.schema import ForeignKey, TableSchema


@dataclass(frozen=True)
class Netting:
    """How one version of a source table nets onto a target table."""

    source: TableSchema
    table: TargetTable
    conflicts: ConflictRules = field(default_factory=ConflictRules)

    @cached_property
    def is_possible(self) -> bool:
        """Whether changes can be netted at all; otherwise they take the row path."""
        target = self.table.schema
        names = self.source.column_names
        return (
            not target.fires_triggers
            and not any(exclusion.is_deferrable for exclusion in target.exclusions)
            and all(name in target.by_name for name in names)
            # A staging table without columns would not even say how many rows it stands for.
            and any(not target.by_name[name].is_generated for name in names)
            and all(target.by_name[column.name].reads(column) for column in self.source.columns)
            and set(self.table.key.columns) <= set(names)
            # The source may break, between two changes, a constraint that only the target has.
            and not {_ends(fk) for fk in target.foreign_keys} - {_ends(fk) for fk in self.source.foreign_keys}
            and not set(_keys(target)) - set(_keys(self.source))
            and not set(_keys(target, at_once=True)) - set(_keys(self.source, at_once=True))
            and not self._checks_generated
            # Two rows may have the same key text there, and netting could not tell them apart.
            and not (self.table.key.is_declared and not self.table.key.is_unique)
        )

    def uncompared(self, op: Op) -> frozenset[str]:
        """Columns whose old values an operation does not compare: netting takes them as not told."""
        key = self.table.key.columns
        return self.conflicts.uncompared(self.table.name, [n for n in self.source.column_names if n not in key], op)

    @cached_property
    def is_insert_only(self) -> bool:
        """Whether only inserts can be netted, because no declared key tells rows apart."""
        return not self.table.key.is_declared

    @cached_property
    def can_move(self) -> bool:
        """Whether a key change may be written as a delete and an insert: no column is only the target's."""
        key = set(self.table.key.columns)
        return all(
            (column.is_generated or column.name in self.source.by_name)
            # Only an insert may write such a column, so the row path would refuse.
            and not (column.is_identity_always and column.name in key)
            for column in self.table.schema.columns
        )

    @property
    def _checks_generated(self) -> bool:
        """Whether a constraint that apply checks itself looks at values that only the target has."""
        target = self.table.schema
        checked = [name for unique in target.all_uniques if unique.is_deferrable for name in unique.mentions]
        checked += [name for fk in target.foreign_keys for name in fk.columns]
        checked += [name for fk in target.referenced_by for name in fk.parent_columns]
        return any(target.by_name[name].is_generated for name in checked)

    @cached_property
    def sensitive(self) -> frozenset[str]:
        """Columns of constraints that a value which is only there in between could break."""
        target = self.table.schema
        key = set(self.table.key.columns)
        columns = {name for unique in target.all_uniques if set(unique.mentions) != key for name in unique.mentions}
        columns |= {name for x in target.exclusions for name in x.columns or target.column_names}
        columns |= {name for foreign_key in target.foreign_keys for name in foreign_key.columns}
        return frozenset(columns & set(self.source.column_names))

    @cached_property
    def referred_to(self) -> frozenset[str]:
        """Columns that rows of other tables refer to."""
        return frozenset(name for fk in self.table.schema.referenced_by for name in fk.parent_columns)

    @cached_property
    def is_stricter(self) -> bool:
        """Whether the target may refuse a value that the source accepted."""
        target = self.table.schema.by_name
        return not set(self.table.schema.checks) <= set(self.source.checks) or any(
            not target[column.name].takes(column) or (column.is_nullable and not target[column.name].is_nullable)
            for column in self.source.columns
        )


def _keys(table: TableSchema, *, at_once: bool = False) -> Iterator[tuple[str, ...]]:
    """Yield each unique or exclusion constraint as a tuple that is equal where two tables have the same one.

    Args:
        at_once: Leave out deferrable ones, which two rows may break for a moment.
    """
    for unique in table.all_uniques:
        if at_once and unique.is_deferrable:
            continue
        yield ("unique", *sorted(unique.columns or unique.mentions), "" if unique.columns else "of expressions")
    for exclusion in table.exclusions:
        if at_once and exclusion.is_deferrable:
            continue
        yield ("exclusion", *exclusion.columns, *exclusion.operators)


def _ends(foreign_key: ForeignKey) -> tuple[object, ...]:
    pairs = zip(foreign_key.columns, foreign_key.parent_columns, strict=True)
    return foreign_key.parent, frozenset(pairs)
