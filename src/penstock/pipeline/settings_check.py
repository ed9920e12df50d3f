"""Faults in the `apply` part of a pipeline file that only the tables show: keys, conflicts and handlers."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.apply.keys import key_faults
from penstock.change import TableName
from penstock.errors import OperatorError
from penstock.pipeline.conflicts import conflict_faults
from penstock.pipeline.connectors import PipelineEnds
from penstock.pipeline.handlers import handler_faults, statement_faults
from penstock.schema import TableSchema

_NONE: Mapping[TableName, TableSchema] = {}


class SettingsCheck:
    """Holds the settings of a pipeline against its tables, which go by their names at the target."""

    def __init__(self, ends: PipelineEnds) -> None:
        """Check what the file of `ends` says; nothing is asked yet."""
        self._ends = ends

    def named(self, described: Mapping[TableName, TableSchema] = _NONE) -> list[OperatorError]:
        """Return the tables and columns that virtual dependencies and keys name, and that do not exist.

        Args:
            described: Tables of the source, which stand for those that the target does not have yet.
        """
        apply, target = self._ends.apply, self._ends.target
        virtual = apply.dependencies.virtual
        names = virtual.tables | apply.keys.keys()
        tables = {**described, **(target.describe(names) if names else {})}
        do = "correct `apply` in the pipeline file, where tables and columns go by their names at the target"
        found = [*virtual.faults(tables), *key_faults(apply.keys, tables)]
        return [OperatorError(what, where=target.label, do=do) for what in found]

    def of_tables(self, described: Mapping[TableName, TableSchema]) -> list[OperatorError]:
        """Return the faults of conflict resolution and of handlers, for tables of the source."""
        return [*self._of_conflicts(described), *self._of_handlers(described)]

    def _of_conflicts(self, described: Mapping[TableName, TableSchema]) -> list[OperatorError]:
        conflicts, target = self._ends.apply.conflict_rules, self._ends.target
        if not conflicts.tables:
            return []
        there = target.describe([name for name in conflicts.tables if name in described])
        return conflict_faults(conflicts, {**described, **there}, where=target.label)

    def _of_handlers(self, described: Mapping[TableName, TableSchema]) -> list[OperatorError]:
        settings, target = self._ends.config.handlers, self._ends.target
        if not settings.tables:
            return list(settings.check())
        there = target.describe(settings.tables)
        found = [*settings.check(), *handler_faults(settings, described, there, where=target.label)]
        if found or not target.has_ledger():
            # Before setup, tables that it makes are not there yet.
            return found
        return statement_faults(settings, target.statement_faults, where=target.label)
