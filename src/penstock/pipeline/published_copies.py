"""New copies of tables that a pipeline publishes: requested and cancelled by people, and made by its run.

Requests are kept beside the published position. Who writes one becomes the only publisher for a moment. A run that is
at work notices that, looks where the pipeline stands, and copies the table before more changes follow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

from penstock.change import TableName
from penstock.errors import FencedError, OperatorError, RetryableError
from penstock.patterns import TablePattern, nearest_table
from penstock.sinks.events.encoding import RecordFormat, cancellations
from penstock.sinks.events.publisher import EventDestination, PublishTransaction, open_for_run
from penstock.sinks.events.state import OpenPublishedCopy, PublishedState, RequestedCopy

_MOST_ATTEMPTS = 50

T = TypeVar("T")


@dataclass(frozen=True)
class CopyRequests:
    """What became of a request for copies.

    Attributes:
        requested: Tables that the next run, or the one that is at work, copies.
        due: Tables that it copies anyway: their first copy was not made yet, or is being made.
    """

    requested: Collection[TableName]
    due: Collection[TableName] = ()


@dataclass(frozen=True)
class CopyCancellations:
    """What became of copies that were to be cancelled.

    Attributes:
        withdrawn: Tables of whose copy nothing was published: they are as before.
        cancelled: Tables that are not published any more until a copy is requested; receivers are told of those that
            they have a part of.
        idle: Tables of which no copy was requested or under way.
    """

    withdrawn: Collection[TableName]
    cancelled: Collection[TableName]
    idle: Collection[TableName] = ()


class PublishedCopies:
    """The copies of tables that a destination of records keeps."""

    def __init__(self, log: EventDestination, form: RecordFormat) -> None:
        """Use the requests of a log; nothing is touched yet.

        Args:
            form: The format that changes are published in.
        """
        self._log = log
        self._form = form

    def withheld(self, tables: Mapping[TableName, int]) -> Mapping[TableName, str]:
        """Return those of some tables that are not published, with the reason; see `CopyCancellations.cancelled`.

        Args:
            tables: By name, the source's own number of each.
        """
        found = self._log.published_state().withheld
        return {name: _reason(name) for name, id_ in sorted(found.items()) if tables.get(name) == id_}

    def request(
        self, patterns: Sequence[str], known: Mapping[TableName, int], *, recreates: bool = False
    ) -> CopyRequests:
        """Ask for new copies; asking again changes nothing.

        Args:
            patterns: Mean some of the tables that are known.
            known: By the names that they are published under, the source's own number of each.
            recreates: Receivers are to drop the tables before they create them anew.

        Raises:
            OperatorError: A pattern means no table, or receivers of the format drop none.
        """
        if recreates and not self._form.begins_tables_anew:
            raise OperatorError(
                "receivers of change events are told of rows alone, and make no table anew",
                where=self._log.label,
                do="leave --recreate out",
            )
        tables = {name: known[name] for name in _matching(patterns, known, where=self._log.label)}
        return self._between(lambda: self._request_now(tables, recreates=recreates))

    def request_again(self, tables: Mapping[TableName, int]) -> CopyRequests:
        """Ask for new copies of tables that are known to be there, by the source's own number of each."""
        return self._between(lambda: self._request_now(tables, recreates=False))

    def _request_now(self, tables: Mapping[TableName, int], *, recreates: bool) -> CopyRequests:
        with closing(open_for_run(self._log, self._log.published_state().epoch)) as publisher:
            state = publisher.published_state
            due = {name for name, id_ in tables.items() if _is_due(state, name, id_)}
            new = [RequestedCopy(name, id_, recreates) for name, id_ in tables.items() if name not in due]
            new = [one for one in new if state.requested.get(one.table) != one]
            if new:
                with publisher.transaction() as transaction:
                    state, entries = state.requesting(new)
                    transaction.stand(state, *entries)
        return CopyRequests(sorted(tables.keys() - due), sorted(due))

    def cancel(self, patterns: Sequence[str], known: Collection[TableName]) -> CopyCancellations:
        """Cancel copies that were requested or are under way; receivers are told where they have a part of one.

        Args:
            patterns: Mean some of the tables that are known, or of which a copy was requested or is under way.

        Raises:
            OperatorError: A pattern means no table; or a part was published, and receivers of the format keep it: such
                a copy is finished.
        """
        return self._between(lambda: self._cancel_now(patterns, known))

    def _cancel_now(self, patterns: Sequence[str], known: Collection[TableName]) -> CopyCancellations:
        with closing(open_for_run(self._log, self._log.published_state().epoch)) as publisher:
            before = publisher.published_state
            under_way = {name for copy in before.copies.values() for name in copy.ids}
            tables = _matching(patterns, {*known, *before.requested, *under_way}, where=self._log.label)
            requested = before.requested.keys() & set(tables)
            open_copies = {
                copy.id: names for copy in before.copies.values() if (names := sorted(copy.ids.keys() & set(tables)))
            }
            self._refuse_begun(before, open_copies)
            if requested or open_copies:
                with publisher.transaction() as transaction:
                    self._cancel(transaction, before, requested, open_copies)
            after = publisher.published_state
        affected = {name for names in open_copies.values() for name in names}
        cancelled = affected & after.cancelled.keys()
        withdrawn = (requested | affected) - cancelled
        return CopyCancellations(sorted(withdrawn), sorted(cancelled), sorted(set(tables) - withdrawn - cancelled))

    def _between(self, do: Callable[[], T]) -> T:
        """Do something as the only publisher; again where a run has published, or begun, at that moment."""
        for _ in range(_MOST_ATTEMPTS):
            before = self._log.published_state()
            try:
                return do()
            except (RetryableError, FencedError):
                # A destination that is out of reach says so here, or stands where it did.
                if self._log.published_state() == before:
                    raise
        return do()

    def _cancel(
        self,
        transaction: PublishTransaction,
        state: PublishedState,
        requested: Collection[TableName],
        open_copies: Mapping[str, Collection[TableName]],
    ) -> None:
        state, entries = state.without_requests(requested)
        for copy_id, names in open_copies.items():
            copy: OpenPublishedCopy = state.copies[copy_id]
            records = cancellations(self._form, state, copy, names)
            state, more = state.with_records(transaction.send(records)).cancelling(copy, names)
            entries += more
        transaction.stand(state, *entries)

    def _refuse_begun(self, state: PublishedState, open_copies: Mapping[str, Collection[TableName]]) -> None:
        if self._form.begins_tables_anew:
            return
        begun = [name for id_, names in open_copies.items() for name in names if state.copies[id_].records.get(name)]
        if begun:
            raise OperatorError(
                f"rows of {', '.join(map(str, sorted(begun)))} were published, which receivers of change events keep",
                where=self._log.label,
                do="let `penstock run` finish the copy",
            )


def _is_due(state: PublishedState, table: TableName, id_: int) -> bool:
    """Whether a table is copied without being asked for."""
    if state.cancelled.get(table) == id_ or table in state.requested:
        return False
    return not state.is_copied(id_, table)


def _reason(table: TableName) -> str:
    return f"table {table} is not published: its copy was cancelled; `penstock resync {table}` requests a new one"


def _matching(patterns: Sequence[str], tables: Collection[TableName], *, where: str) -> list[TableName]:
    found: set[TableName] = set()
    for text in patterns:
        pattern = TablePattern.parse(text)
        meant = {name for name in tables if pattern.matches(name)}
        if not meant:
            what = f"the pattern {text!r} matches no table that the pipeline publishes"
            raise OperatorError(what + nearest_table(text, tables), where=where, do="`penstock plan` lists them")
        found |= meant
    return sorted(found)
