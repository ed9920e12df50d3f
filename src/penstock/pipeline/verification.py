"""`penstock verify`, and `resync TABLE`: compares the tables of a pipeline, also while changes flow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.change import TableName
from penstock.database import Uncaptured
from penstock.errors import OperatorError
from penstock.patterns import TablePattern
from penstock.pipeline.capturing import Capturing
from penstock.pipeline.connectors import DatabaseSource, PipelineEnds, TargetLedger
from penstock.pipeline.first_copy import copy_fault
from penstock.pipeline.process_state import held_state, low_watermark
from penstock.pipeline.transformed_access import all_rows
from penstock.schema import TableSchema
from penstock.spark.job import CompareJobs
from penstock.spark.starting import Spark
from penstock.stream import Source
from penstock.verify import driver
from penstock.verify.driver import VerifyListener, VerifyResult
from penstock.verify.task import Comparer, not_copied


@dataclass(frozen=True)
class Verification:
    """One comparison of the tables of a pipeline.

    Attributes:
        database: The source, as one that has tables.
        ledger, stream: Those of the pipeline's process, opened for this comparison.
    """

    pipeline: Capturing
    ends: PipelineEnds
    database: DatabaseSource
    ledger: TargetLedger
    stream: Source

    def run(
        self, spark: Spark, listener: VerifyListener, tables: Sequence[str] = (), *, repair: bool = False
    ) -> VerifyResult:
        """Compare, and repair, as `Pipeline.verify` says."""
        held_state(self.ledger, self.stream)
        uncaptured = self.pipeline.not_captured()
        copied = self.ledger.instantiated()
        followed = self.pipeline.followed(self.stream.tables(), copied)
        if tables:
            followed, uncaptured = self._only(tables, followed, uncaptured)
        source = self.database.describe(followed - {found.table for found in uncaptured})
        target = self.ends.target.describe(source)
        faults = self._faults(source, target, copied)
        source = {name: table for name, table in source.items() if name not in faults}
        if repair:
            self._refuse_shared(self.ledger.copied_by_others(sorted(source)))
        chunks = self.database.origin().cut_into_chunks(sorted(source))
        comparer = Comparer(self.database.compared(), self.ends.target.compared())
        context = driver.CompareContext(comparer, {name: all_rows(source[name], target[name]) for name in source})
        began_at = low_watermark(self.ledger)
        result = driver.verify(
            chunks,
            driver.LocalJobs(context) if driver.are_few(chunks) else CompareJobs(spark, context),
            listener,
            consistency_point=lambda: low_watermark(self.ledger),
            tick=self.stream.tick,
            is_running=self.ledger.is_running,
            repair=repair,
        )
        if repair:
            self.ledger.note_brought([table.table for table in result.tables if not table.differing], began_at)
        root_of = {version.table.name: version.root for version in self.stream.tables()}
        result = driver.with_queued(result, self.ends.error_queue().count_by_table(root_of))
        unseen = self.ends.target.unseen(self.database.beside(source), of_all=not tables)
        return replace(result, unchecked=[*map(str, uncaptured), *map(str, faults.values())], unseen=unseen)

    def _faults(
        self,
        source: Mapping[TableName, TableSchema],
        target: Mapping[TableName, TableSchema],
        copied: Collection[TableName],
    ) -> Mapping[TableName, OperatorError]:
        """Return why some tables cannot be compared, by name.

        Raises:
            OperatorError: None of them can be.
        """
        where = self.ends.target.label
        faults: dict[TableName, OperatorError] = {}
        for name in sorted(source):
            if name not in copied:
                faults[name] = not_copied([name])
            elif name not in target:
                faults[name] = OperatorError(f"{name} does not exist at the target", where=where)
            elif (fault := copy_fault(source[name], target[name], where=where)) is not None:
                faults[name] = fault
        if faults and len(faults) == len(source):
            waiting = [name for name in faults if name not in copied]
            raise not_copied(waiting) if waiting else OperatorError("\n".join(map(str, faults.values())))
        return faults

    def _only(
        self, patterns: Sequence[str], followed: set[TableName], uncaptured: Sequence[Uncaptured]
    ) -> tuple[set[TableName], list[Uncaptured]]:
        """Keep the tables that patterns mean, by their names at the target or at the source."""
        chosen = [TablePattern.parse(text) for text in patterns]
        names = followed | {found.table for found in uncaptured}

        def means(pattern: TablePattern, table: TableName) -> bool:
            return pattern.matches(table) or any(map(pattern.matches, self.pipeline.origins(table)))

        unknown = [repr(p.text) for p in chosen if not any(means(p, name) for name in names)]
        if unknown:
            raise OperatorError(
                f"no table of the pipeline matches {', '.join(unknown)}",
                where=self.database.label,
                do="`penstock plan` counts them; write schema.table, as the catalogue spells it",
            )
        found = [one for one in uncaptured if any(means(p, one.table) for p in chosen)]
        return {name for name in followed if any(means(p, name) for p in chosen)}, found

    def _refuse_shared(self, others: Mapping[TableName, str]) -> None:
        for name, other in others.items():
            raise OperatorError(
                f"table {name} holds rows that process {other!r} copied, which a repair would delete",
                where=self.ends.target.label,
                do="name the tables to repair, or leave it out of capture.tables in one of the two pipeline files",
            )
