"""The row path: one transaction, change by change, with every conflict told exactly.

Foreign keys and deferrable constraints are checked when all changes are in: the source committed them together,
so a constraint that is broken half-way does not matter (ADR 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from penstock.apply.conflicts import (
    CHILD_EXISTS,
    COLUMN_MISSING,
    FOREIGN_KEY_VIOLATED,
    MORE_THAN_ONE_ROW,
    NOT_CAPTURED,
    NOT_INSTANTIATED,
    ROW_DIFFERS,
    ROW_MISSING,
    TABLE_MISSING,
    TYPE_DIFFERS,
    UNIQUE_VIOLATED,
    VALUE_MISSING,
    ApplyError,
    ContentionError,
)
from penstock.apply.ledger import Failure
from penstock.apply.target import RowMatch, RowWriter, TargetCatalog, TargetTable
from penstock.change import NO_VERSION, Change, Image, Op, Transaction
from penstock.errors import PenstockError
from penstock.schema import Dictionary, ForeignKey


class TransactionError(PenstockError):
    """A transaction cannot be applied; `failure` says which change and why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error.what, where=failure.error.where)
        self.failure = failure


class RowPath:
    """Applies transactions through a session whose transaction the caller opens and closes, but for `explain`."""

    def __init__(
        self, writer: RowWriter, catalog: TargetCatalog, dictionary: Dictionary, *, allow_duplicate_rows: bool
    ) -> None:
        """Write to the catalog's tables changes of the tables in the dictionary.

        Args:
            allow_duplicate_rows: Where several rows are equal in every column, change one of them.
        """
        self._writer = writer
        self._catalog = catalog
        self._dictionary = dictionary
        self._allow_duplicate_rows = allow_duplicate_rows

    def apply(self, transaction: Transaction) -> None:
        """Apply every change of a transaction, then make the checks that the database leaves to us.

        Raises:
            TransactionError: A change conflicts or fails; the caller must roll back.
        """
        message_number = 0
        # By the numbers of their changes: old rows of which the change does not tell what others may refer to.
        gone: dict[int, Image] = {}
        try:
            for run in _truncate_runs(transaction.changes):
                message_number += 1
                if run[0].op is Op.TRUNCATE:
                    self._writer.truncate([self._table(change) for change in run])
                    message_number += len(run) - 1
                else:
                    old = self._apply_row(run[0], self._table(run[0]))
                    if old is not None:
                        gone[message_number] = old
            with_references = transaction.commit_scn > self._catalog.references_from
            for number, change in enumerate(transaction.changes, start=1):
                message_number = number
                if change.op is not Op.TRUNCATE:
                    before = gone.get(number, change.before)
                    self._check(change, before, with_references=with_references)
        except ApplyError as exc:
            raise TransactionError(Failure(message_number, exc)) from exc

    def explain(self, transaction: Transaction, failure: Failure) -> Failure:
        """Add to a failure the column that does not take its value, or the row that stands in the way.

        To be called once the transaction is rolled back, so a row is told as it was before it. Opens a transaction of
        its own; a fact that cannot be found out is left out.
        """
        if failure.message_number == 0:
            return failure
        change = next(islice(transaction.changes, failure.message_number - 1, None))
        table = self._catalog.tables.get(change.table)
        if table is None:
            return failure
        # Another session may have altered the table, or hold a lock on it; report the first failure.
        with suppress(ApplyError, ContentionError), self._writer.transaction():
            return replace(failure, error=self._explained(failure.error, change, table))
        return failure

    def _explained(self, error: ApplyError, change: Change, table: TargetTable) -> ApplyError:
        if error.is_of_value:
            for image in (change.after, change.before):
                column = self._writer.unfit_column(table, _known(image, table))
                if column is not None:
                    return error.with_column(column, table.schema.by_name[column].type)
        elif error.number == UNIQUE_VIOLATED and error.constraint is not None and change.op is not Op.DELETE:
            image = _known({**_present(change.before), **_present(change.after)}, table)
            for row in self._writer.rows_in_the_way(table, error.constraint, image):
                if not _is_own(row, change, table):
                    return error.with_found(row)
        return error

    def _table(self, change: Change) -> TargetTable:
        table = self._catalog.tables.get(change.table)
        if table is None:
            raise ApplyError(TABLE_MISSING, f"table {change.table} does not exist at the target")
        instantiated = self._catalog.instantiated.get(change.table)
        if instantiated is None:
            raise ApplyError(NOT_INSTANTIATED, f"table {change.table} was never copied to this target")
        return table

    def _apply_row(self, change: Change, table: TargetTable) -> Image | None:
        """Apply a change; return the row that was there, where the change does not tell what others may refer to."""
        if change.op is Op.GAP:
            what = f"a change was not captured: {_present(change.before).get('reason')}"
            raise ApplyError(NOT_CAPTURED, what, where=_place(change))
        self._check_columns(change, table)
        old = self._found(change.before or change.after, table) if _hides_reference(change, table) else None
        match change.op:
            case Op.INSERT:
                self._writer.insert(table, _writable(_present(change.after), table))
            case Op.UPDATE:
                self._update(change, table)
            case Op.DELETE:
                before = _present(change.before)
                row = self._match(before, before, table, change)
                self._expect_one(self._writer.delete(table, row), row, table, change)
            case Op.SNAPSHOT:
                self._put(change, table)
            case _:
                raise ApplyError(VALUE_MISSING, f"operation {change.op} has no row to apply", where=_place(change))
        return old

    def _check_columns(self, change: Change, table: TargetTable) -> None:
        is_known = change.table_version != NO_VERSION
        captured = self._dictionary.get(change.table, change.table_version).by_name if is_known else {}
        for name in {**(change.before or {}), **(change.after or {})}:
            column = table.schema.by_name.get(name)
            if column is None:
                what = f"column {name!r} does not exist at the target"
                raise ApplyError(COLUMN_MISSING, what, where=_place(change))
            if name in captured and not column.reads(captured[name]):
                what = (
                    f"column {name!r} was {captured[name].type} when this was captured, and is {column.type} at the"
                    " target now: retry while it is of the old type"
                )
                raise ApplyError(TYPE_DIFFERS, what, where=_place(change))

    def _update(self, change: Change, table: TargetTable) -> None:
        before, after = _present(change.before), _present(change.after)
        # A column set to the value it had is neither compared nor written.
        changed = {name: value for name, value in after.items() if name not in before or before[name] != value}
        if not changed:
            return
        compared = {name: value for name, value in before.items() if name not in after or name in changed}
        row = self._match(before, compared, table, change)
        self._expect_one(self._writer.update(table, row, _writable(changed, table)), row, table, change)

    def _put(self, change: Change, table: TargetTable) -> None:
        """Make the row with the key of the change what the change says, whether there is one or not."""
        after = _present(change.after)
        values = _writable(after, table)
        if table.key.is_declared:
            match = replace(self._match(after, {}, table, change), old={})
            by_name = table.schema.by_name
            # A key that is equal may still be written in another way, as 1.0 and 1.00.
            others = {n: v for n, v in values.items() if n not in match.key or not by_name[n].is_exact}
            count = self._writer.update(table, match, others)
            if count > 1:
                raise ApplyError(MORE_THAN_ONE_ROW, f"{change.op} matches {count} rows", where=_place(change))
            if count == 1:
                return
        self._writer.insert(table, values)

    def _found(self, image: Image | None, table: TargetTable) -> Image:
        """The row with the key that an image has; empty where there is none, or no key in the image."""
        known = _present(image)
        if not table.key.is_declared or not set(table.key.columns) <= set(known):
            return {}
        rows = self._writer.lock_rows(table, RowMatch({name: known[name] for name in table.key.columns}, {}))
        return rows[0] if rows else {}

    def _match(self, before: Image, compared: Image, table: TargetTable, change: Change) -> RowMatch:
        missing = [name for name in table.key.columns if name not in before]
        if missing:
            raise ApplyError(VALUE_MISSING, f"key column {missing[0]!r} is not in the change", where=_place(change))
        return RowMatch(
            key={name: before[name] for name in table.key.columns},
            # Values that a key's index calls equal, as 1.0 and 1.00, may be written in different ways.
            old={
                name: value
                for name, value in compared.items()
                if name not in table.key.columns or not table.schema.by_name[name].is_exact
            },
            # Rows that a key keeps apart only in the end may be equal for a while, and any of them will do.
            only_one=table.key.is_deferrable or (not table.key.is_unique and self._allow_duplicate_rows),
        )

    def _expect_one(self, count: int, row: RowMatch, table: TargetTable, change: Change) -> None:
        if count == 1:
            return
        if count > 1:
            raise ApplyError(MORE_THAN_ONE_ROW, f"{change.op} matches {count} rows", where=_place(change))
        found = self._writer.lock_rows(table, row) if table.key.is_declared else []
        if not found:
            raise ApplyError(ROW_MISSING, f"{change.op} finds no row with its key", where=_place(change))
        current = found[0]
        differing = [name for name, value in row.old.items() if current[name] != value]
        columns = ", ".join(repr(name) for name in differing)
        raise ApplyError(
            ROW_DIFFERS, f"{change.op} finds other values in column {columns}", where=_place(change), found=current
        )

    def _check(self, change: Change, before: Image | None, *, with_references: bool) -> None:
        table = self._catalog.tables[change.table]
        if change.op is not Op.DELETE:
            self._check_new(change, table, with_references=with_references)
        if not with_references or before is None:
            return
        for foreign_key in table.schema.referenced_by:
            if _concerns(change, foreign_key.parent_columns):
                self._check_reference(foreign_key, before, change, is_child=False)

    def _check_new(self, change: Change, table: TargetTable, *, with_references: bool) -> None:
        """Check the row that a change left."""
        after = {**_present(change.before), **_present(change.after)}
        foreign_keys = [fk for fk in table.schema.foreign_keys if with_references and _concerns(change, fk.columns)]
        checked = {name for fk in foreign_keys for name in fk.columns}
        checked |= {name for key in table.schema.all_uniques if key.is_deferrable for name in key.columns}
        checked |= {name for rule in table.schema.exclusions if rule.is_deferrable for name in rule.columns}
        if not checked <= set(after):
            # The change tells of a part of the row only; the rest is as it stands here.
            after = {**self._found(after, table), **after}
        broken = self._writer.is_unique_broken(table, after)
        if broken is not None:
            what = f"two rows break constraint {broken!r}"
            raise ApplyError(UNIQUE_VIOLATED, what, where=_place(change), constraint=broken)
        for foreign_key in foreign_keys:
            self._check_reference(foreign_key, after, change, is_child=True)

    def _check_reference(self, foreign_key: ForeignKey, image: Image, change: Change, *, is_child: bool) -> None:
        columns = foreign_key.columns if is_child else foreign_key.parent_columns
        values = [value for name in columns if (value := image.get(name)) is not None]
        if len(values) < len(columns):
            if is_child and foreign_key.is_match_full and values:
                what = f"foreign key {foreign_key.name!r} is half null"
                raise ApplyError(FOREIGN_KEY_VIOLATED, what, where=_place(change))
            return
        if not self._writer.is_reference_broken(foreign_key, values, is_child=is_child):
            return
        if is_child:
            what = f"no row of {foreign_key.parent} for foreign key {foreign_key.name!r}"
            raise ApplyError(FOREIGN_KEY_VIOLATED, what, where=_place(change))
        what = f"rows of {foreign_key.child} still refer by foreign key {foreign_key.name!r}"
        raise ApplyError(CHILD_EXISTS, what, where=_place(change))


def _truncate_runs(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Yield the changes one by one, but neighbouring truncates together: the source may have named them in one."""
    run: list[Change] = []
    for change in changes:
        if run and change.op is not Op.TRUNCATE:
            yield run
            run = []
        if change.op is Op.TRUNCATE:
            run.append(change)
        else:
            yield [change]
    if run:
        yield run


def _present(image: Image | None) -> Image:
    return {} if image is None else image


def _writable(image: Image, table: TargetTable) -> Image:
    """Leave out what the target computes by itself."""
    return {name: value for name, value in image.items() if not table.schema.by_name[name].is_generated}


def _known(image: Image | None, table: TargetTable) -> Image:
    """Leave out what the target has no column for."""
    return {name: value for name, value in _present(image).items() if name in table.schema.by_name}


def _is_own(row: Image, change: Change, table: TargetTable) -> bool:
    """Whether a row is the one that an update or a snapshot changes."""
    old = change.after if change.op is Op.SNAPSHOT else change.before
    return old is not None and all(row[name] == old.get(name) for name in table.key.columns)


def _concerns(change: Change, columns: tuple[str, ...]) -> bool:
    """Whether a change may have given these columns other values."""
    before, after = _present(change.before), _present(change.after)
    return change.op is not Op.UPDATE or any(
        name in after and (name not in before or before[name] != after[name]) for name in columns
    )


def _hides_reference(change: Change, table: TargetTable) -> bool:
    """Whether a change takes away, from rows that refer to it, a value that it does not tell."""
    if change.op not in (Op.UPDATE, Op.DELETE, Op.SNAPSHOT):
        return False
    # What a snapshot says of a row leaves its key as it is.
    told = set(table.key.columns) if change.op is Op.SNAPSHOT else set(_present(change.before))
    return any(
        not set(fk.parent_columns) <= told and _concerns(change, fk.parent_columns) for fk in table.schema.referenced_by
    )


def _place(change: Change) -> str:
    return f"table {change.table}"
