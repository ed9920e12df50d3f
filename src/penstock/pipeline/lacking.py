"""What the target lacks of what the source has: tables and columns, partitions and enum labels.

Indexes and other post-data objects that it lacks are found by `dialects.postgres.target.post_data_builder`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.apply.ddl import DdlPolicy
from penstock.apply.listener import RunListener
from penstock.change import TableName
from penstock.database import MissingPart
from penstock.events import Event
from penstock.pipeline.connectors import PipelineEnds
from penstock.pipeline.status import MissingColumns, lacking
from penstock.schema import TableSchema


class Lacking:
    """What the target of a pipeline lacks; a run reports each once as long as it is lacking."""

    def __init__(self, ends: PipelineEnds) -> None:
        """Compare the two ends of a pipeline; nothing is asked yet."""
        self._ends = ends
        self._told: Sequence[MissingColumns | MissingPart] = ()

    def of(self, tables: Collection[TableName]) -> list[MissingColumns | MissingPart]:
        """Return what the target lacks of some tables, and all partitions and labels that it lacks."""
        source, target = self._ends.source, self._ends.target
        return [*lacking(source.describe(tables), target.describe(tables)), *self._parts()]

    def tell(
        self, followed: Iterable[TableName], at_target: Mapping[TableName, TableSchema], listener: RunListener
    ) -> bool:
        """Report what the target lacks; return whether tables or columns are lacking."""
        rules = self._ends.apply.ddl_rules
        # A table that is to follow will have it once the change that says so is applied, or in the error queue.
        left = [name for name in followed if rules.of(name) is not DdlPolicy.APPLY]
        tables = lacking(self._ends.source.describe(left), at_target)
        parts = [part for part in self._parts() if not part.is_followed]
        found: list[MissingColumns | MissingPart] = [*tables, *parts]
        for one in found:
            if one not in self._told:
                listener.warned(str(one), Event.TARGET_LACKS, one.facts)
        self._told = found
        # Missing parts do not count: no definition changes when they are added.
        return bool(tables)

    def _parts(self) -> Sequence[MissingPart]:
        installed, rules = self._ends.installed, self._ends.apply.ddl_rules
        if installed is None:
            return ()
        patterns, target = self._ends.config.capture.tables, self._ends.target
        found = target.lacking(installed.parts(patterns))
        if not (found and rules.is_applied):
            return found
        left = target.lacking(installed.parts(patterns, lambda table: rules.of(table) is DdlPolicy.APPLY))
        return [one if one in left else replace(one, is_followed=True) for one in found]
