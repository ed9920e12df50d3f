"""What `penstock setup` would do for a pipeline that applies: the plan for both databases, and what is in the way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

from penstock.change import TableName
from penstock.database import SourceTables, UncopiedRows
from penstock.errors import OperatorError, PenstockError
from penstock.history import HistoryError
from penstock.patterns import TablePattern
from penstock.pipeline.connectors import COMPARE_EXTERNAL, PipelineEnds, database_of
from penstock.pipeline.names_to_come import names_to_come
from penstock.pipeline.plan import Plan
from penstock.pipeline.settings_check import SettingsCheck


class SetupPlanner:
    """Plans setup. Changes nothing."""

    def __init__(self, ends: PipelineEnds, check: SettingsCheck) -> None:
        """Plan for the two ends of a pipeline; nothing is asked yet."""
        self._ends = ends
        self._check = check

    def table_faults(self) -> Mapping[TableName, Sequence[PenstockError]]:
        """What keeps single tables from being set up, by their names at the target; what a GRANT fixes is left out."""
        plan = self._whole_plan(adopt=False, capture_fault=lambda: None)
        found: dict[TableName, list[PenstockError]] = {}
        for side in (plan.source, plan.target):
            for table, faults in side.table_faults.items():
                found.setdefault(table, []).extend(faults)
        return found

    def plan(self, *, adopt: bool, capture_fault: Callable[[], HistoryError | None]) -> Plan:
        """Plan setup for all tables that the file means; those that something is in the way of are left out.

        Args and errors are those of `_whole_plan`.
        """
        return self._whole_plan(adopt=adopt, capture_fault=capture_fault).without_bad_tables()

    def _whole_plan(self, *, adopt: bool, capture_fault: Callable[[], HistoryError | None]) -> Plan:
        """Plan setup for all tables that the file means.

        Args:
            adopt: Tables at the target that hold rows are compared, and not refused.
            capture_fault: Says what is wrong with the capture as a whole.

        Raises:
            OperatorError: `adopt` where the source has no tables.
        """
        ends, capture = self._ends, self._ends.config.capture
        tables = ends.source.match(capture.tables)
        described = ends.source.describe(tables)
        named = self._check.named(described)
        database = database_of(ends.source) if adopt else ends.database
        coming = self._renamed_by_the_run()
        there = [table for table in tables if table not in coming]
        post_data = None if database is None else database.post_data(there)
        wanted = SourceTables(
            {name: table for name, table in described.items() if name not in coming},
            ends.source.blueprint(there),
            ends.installed.replaced_tables() if ends.installed is not None else (),
            post_data,
        )
        # With many tables either side takes seconds, nearly all of them its server's.
        with ThreadPoolExecutor(1) as pool:
            target = pool.submit(
                ends.target.plan,
                wanted,
                uncopied_rows=self._uncopied_rows(adopt=adopt),
                firing={pattern: table.triggers for pattern, table in ends.apply.tables.items() if table.triggers},
                keyed=ends.apply.keys.keys(),
            )
            plan = Plan(
                tables=[str(table) for table in tables],
                rules=ends.source.explain(tables),
                source=ends.source.plan(tables, capture.row_triggers),
                target=target.result(),
            )
        plan.target.faults = [*plan.target.faults, *named]
        plan.target.notes += [
            f"{name} is made by the run, by renaming the copy that there is" for name in sorted(coming)
        ]
        if database is None:
            what = "`verify`, `resync TABLE` and `setup --adopt` have nothing to compare with here"
            plan.source.notes.append(f"{what}: {COMPARE_EXTERNAL}")
        elif post_data is not None:
            # Without them sequences are not kept in step, and `cutover` is refused.
            plan.source.recommended += database.sequence_reader(post_data).hidden
        plan.target.faults.extend(self._check.of_tables(described))
        fault = capture_fault()
        if fault is not None:
            # This fault causes the others; name it alone.
            plan.source.faults, plan.target.faults = [fault], []
            plan.source.table_faults, plan.target.table_faults = {}, {}
        if ends.installed is not None and ends.installed.identity() == ends.target.identity():
            what = "source and target are the same database"
            # It causes all the others: the tables that are there are the source's own.
            plan.source.faults, plan.target.differences = [], []
            plan.target.faults = [OperatorError(what, where=ends.target.label, do="correct one of the urls")]
            plan.target.table_faults = {}
        return plan

    def plan_of_new(self, tables: Sequence[TableName]) -> Plan:
        """Plan what setup would do for tables alone: others may be altered, and follow only later."""
        ends = self._ends
        row_triggers = ends.config.capture.row_triggers
        patterns = [pattern for pattern in row_triggers if any(map(TablePattern.parse(pattern).matches, tables))]
        return Plan(
            tables=[str(table) for table in tables],
            rules=ends.source.explain(tables),
            source=ends.source.plan(tables, patterns),
            target=ends.target.plan(
                SourceTables(
                    ends.source.describe(tables),
                    ends.source.blueprint(tables),
                    post_data=ends.database.post_data(tables) if ends.database is not None else None,
                ),
                uncopied_rows=self._uncopied_rows(adopt=False),
                keyed=ends.apply.keys.keys(),
            ),
        )

    def _uncopied_rows(self, *, adopt: bool) -> UncopiedRows:
        if not self._ends.apply.first_copy:
            return UncopiedRows.KEPT
        return UncopiedRows.ADOPTED if adopt else UncopiedRows.REFUSED

    def _renamed_by_the_run(self) -> Collection[TableName]:
        """Names of tables whose copies go by earlier ones until a run gets to the change that says so."""
        ends, ddl = self._ends, self._ends.apply.ddl_rules
        # A fault of the plan tells why one of the two cannot be asked.
        with suppress(OperatorError):
            if not (ddl.is_followed and ends.are_set_up()):
                return ()
            with closing(ends.target.ledger()) as ledger, closing(ends.source.open_source()) as stream:
                copied = ledger.instantiated()
                return set(names_to_come(stream.tables(), copied, ddl)) - set(copied)
        return ()
