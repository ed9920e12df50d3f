"""The first copy of tables of a database, which a run makes before it follows changes.

Every run begins here, and looks at all captured tables to see which of them are not copied yet.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass

from penstock.apply.ledger import ProcessState
from penstock.apply.listener import CopyListener
from penstock.apply.target import TargetTable
from penstock.change import TableName
from penstock.errors import OperatorError, RetryableError, TableError
from penstock.pipeline.capturing import Capturing
from penstock.pipeline.connectors import DatabaseSource, PipelineEnds, TargetLedger
from penstock.pipeline.ddl_before_copy import DdlBeforeCopy
from penstock.pipeline.left_out import LeftOut
from penstock.pipeline.names_to_come import names_to_come
from penstock.pipeline.replay import check_columns
from penstock.position import Scn
from penstock.schema import TableSchema
from penstock.snapshot.instantiate import Instantiator
from penstock.snapshot.task import CopyContext
from penstock.spark.job import SparkChunkJobs
from penstock.spark.starting import Spark
from penstock.stream import roots
from penstock.text import are


@dataclass(frozen=True)
class FirstCopy:
    """Copies the tables of a database that are not copied yet.

    Attributes:
        left_out: Gets the tables that cannot be copied; the others are.
        until: The run ends at this position, so no copy may be made that is as of a later one.
    """

    pipeline: Capturing
    ends: PipelineEnds
    database: DatabaseSource
    ledger: TargetLedger
    left_out: LeftOut
    until: Scn | None

    def make(
        self, spark: Spark, state: ProcessState, stop: threading.Event, listener: CopyListener
    ) -> Collection[TableName]:
        """Copy what is not copied yet; returns the tables that were captured when it began.

        A table that cannot be copied is left out, as long as there are others.
        """
        apply, source, target = self.ends.apply, self.database, self.ends.target
        with closing(source.open_source()) as stream:
            versions = stream.tables()
        copied = set(self.ledger.instantiated())
        to_come = names_to_come(versions, copied, apply.ddl_rules)
        followed = self.pipeline.followed(versions, copied) - set(to_come)
        captured = {name: table for name, table in roots(versions).items() if name in followed}
        existing = source.describe(captured)

        def leave_out(error: TableError) -> None:
            if existing.keys() | copied <= self.left_out.tables | {TableName(*error.table)}:
                raise error
            self.left_out.add(error)

        early = DdlBeforeCopy(self.ends, source)
        for error in early.follow(state, versions, sorted(set(existing) - copied)):
            leave_out(error)
        at_target = target.describe(captured)
        for name in sorted(set(existing) - copied - self.left_out.tables):
            fault = copy_fault(existing[name], at_target.get(name), where=target.label)
            if fault is not None:
                leave_out(TableError.of(fault, (name.schema, name.name)))
        copyable = sorted(name for name in existing if name in at_target and name not in self.left_out.tables)
        self._refuse_later(sorted(set(copyable) - copied))

        def confirm() -> None:
            found = source.describe(captured)
            altered = [str(name) for name in sorted(captured) if found.get(name) != existing.get(name)]
            if altered:
                raise RetryableError(
                    f"{', '.join(altered)} was altered while the first copy was about to begin",
                    where=source.label,
                    do="the copy begins anew",
                )

        context = CopyContext(
            process=state.name,
            epoch=state.epoch,
            source=source.access,
            target=target.access,
            source_tables={name: existing[name] for name in copyable},
            target_tables={name: TargetTable(at_target[name]) for name in copyable},
            adopted=frozenset(self.ledger.with_rows([name for name in self.ledger.adopted() if name in at_target])),
            on_bad_row=apply.on_bad_row,
        )
        Instantiator(
            source.origin(),
            self.ledger,
            SparkChunkJobs(spark, context),
            listener,
            confirm=confirm,
            copies=apply.first_copy,
            leave_out=leave_out,
        ).run(copyable, stop)
        # Changes made before a table was dropped or renamed are of its earlier name.
        return {*captured, *copied, *to_come}

    def _refuse_later(self, tables: Collection[TableName]) -> None:
        if self.until is not None and tables:
            raise OperatorError(
                f"{', '.join(map(str, tables))} {are(len(tables))} not copied yet, and a copy is as of now:"
                f" it would hold more than position {self.until}",
                where=self.ends.target.label,
                do="run without `--until` first; only from change files a target is restored as of an earlier point",
            )


def copy_fault(source: TableSchema, target: TableSchema | None, *, where: str) -> OperatorError | None:
    """Return what keeps a table from being copied to the target at `where`, as far as the catalogues say."""
    if target is None:
        return OperatorError(
            f"missing at the target: {source.name}",
            where=where,
            do="made or renamed at the source after setup; run `penstock setup`, which makes what is missing here",
        )
    try:
        check_columns(source, target, where=where)
    except OperatorError as exc:
        return exc
    return None
