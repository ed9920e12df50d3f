"""The pages of the error queue: what could not be applied, why, and what a person may do about it.

Everything here is done by what `penstock errors` calls: `Errors` and `Pipeline.retry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from urllib.parse import urlencode

from penstock.apply.detail import QueuedCount
from penstock.apply.entry_edits import EntryEdit
from penstock.apply.error_queue import EntryPlace, ErrorEntry
from penstock.apply.retry import Retried, RetryOptions
from penstock.errors import ConfigError, RetryableError
from penstock.patterns import TablePattern
from penstock.pipeline.errors import ErrorFilter, Errors, checked_note
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.publication import Publication
from penstock.pipeline.published_queue import PublishedQueue
from penstock.text import count, printable
from penstock.web.edits import read_edit
from penstock.web.jobs import Job, Jobs, follow
from penstock.web.watcher import Watcher

PAGE = 50
"""How many entries a page lists."""

_REMEMBERED = 200_000
"""Forms of fewer characters are kept after a dry run, to be sent again."""

CHANGES = 50
"""How many changes of a transaction a page shows."""


@dataclass(frozen=True)
class QueueFilter:
    """Which entries a person has asked for, as the fields of the form have it."""

    table: str = ""
    error: str = ""
    since: str = ""
    until: str = ""
    text: str = ""
    on_hold: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> QueueFilter:
        """Read it from a query or a form."""
        return cls(*(fields.get(name, "").strip() for name in ("table", "error", "since", "until", "text", "on_hold")))

    @property
    def filter(self) -> ErrorFilter:
        """The same for the queue.

        Raises:
            ConfigError: A field cannot be read.
        """
        return ErrorFilter(
            tables=tuple(TablePattern.parse(one) for one in self.table.replace(",", " ").split()),
            errors=tuple(self.error.replace(",", " ").split()),
            since=_time(self.since, "from"),
            until=_time(self.until, "to"),
            text=self.text,
            on_hold={"yes": True, "no": False}.get(self.on_hold),
        )

    @property
    def fields(self) -> dict[str, str]:
        """What is said, by the names of the fields."""
        return {name: value for name, value in vars(self).items() if value}

    @property
    def query(self) -> str:
        """The same as a query, which other fields may follow."""
        return urlencode(self.fields)


def _time(text: str, field: str) -> datetime | None:
    """A time as a browser's field sends it; UTC where it says no zone."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError as exc:
        raise ConfigError(f"the field {field!r} must be a time", do="write 2026-01-02T03:04, in UTC") from exc
    return at if at.tzinfo else at.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Page:
    """Some entries in commit order, and where the pages beside them begin; None where there is none."""

    entries: Sequence[ErrorEntry]
    total: int
    before: EntryPlace | None
    after: EntryPlace | None


@dataclass(frozen=True)
class Attempt:
    """How entries are applied again: by whose rights, and whether only to see what would come of it."""

    as_me: bool = False
    role: str | None = None
    is_dry: bool = False
    goes_on: bool = False

    @classmethod
    def of(cls, form: Mapping[str, str]) -> Attempt:
        """Read it from a form."""
        who, role = form.get("who", "recipient"), form.get("role", "").strip()
        if who == "role" and not role:
            raise ConfigError("no role is named", do="write the name of the role, or choose another right")
        return cls(who == "me", role if who == "role" else None, "dry" in form, "go_on" in form)

    def options(self, edit: EntryEdit | None = None) -> RetryOptions:
        """The same for the pipeline."""
        return {
            "mend": edit,
            "as_me": self.as_me,
            "role": self.role,
            "go_on": self.goes_on,
            "dry_run": self.is_dry,
        }


class Queue:
    """The error queue of one pipeline, for the page."""

    def __init__(self, watcher: Watcher, jobs: Jobs) -> None:
        """Use the queue of a pipeline; nothing is connected to yet."""
        self._watcher = watcher
        self._jobs = jobs

    @cached_property
    def pipeline(self) -> Pipeline | Publication:
        """A pipeline to ask: it opens a session for each call, and is not the watcher's."""
        return self._watcher.open_pipeline(self._watcher.config)

    @cached_property
    def _listed(self) -> Errors | PublishedQueue:
        """The queue for lists alone, which keeps its session: half of what a page takes is to open one."""
        return self.pipeline.errors()

    def errors(self) -> Errors | PublishedQueue:
        """Open the queue, on a session of its own."""
        return self.pipeline.errors()

    def page(self, wanted: QueueFilter, place: Mapping[str, str]) -> Page:
        """Return the page of the list that `after` or `before` names."""
        chosen = wanted.filter
        after, before = _place(place.get("after")), _place(place.get("before"))
        try:
            found = self._read(chosen, after, before)
        except RetryableError:
            # The session may be of before a restart of the server; the next one is new.
            found = self._read(chosen, after, before)
        has_more = len(found) > PAGE
        if before is not None:
            shown = found[-PAGE:]
            has_before, has_after = has_more, True
        else:
            shown = found[:PAGE]
            has_before, has_after = after is not None, has_more
        return Page(
            shown,
            self._total(chosen) if has_more or after is not None or before is not None else len(found),
            shown[0].place if shown and has_before else None,
            shown[-1].place if shown and has_after else None,
        )

    def _read(self, chosen: ErrorFilter, after: EntryPlace | None, before: EntryPlace | None) -> Sequence[ErrorEntry]:
        # One more than is shown tells whether there is another page.
        return self._listed.page(chosen, most=PAGE + 1, after=after, before=before)

    def _total(self, chosen: ErrorFilter) -> int:
        """How many entries fit; of all, as many as were seen at the last look, which costs nothing."""
        seen = self._watcher.seen
        if chosen == ErrorFilter() and seen is not None and seen.observation.status is not None:
            return max(seen.observation.status.consistent_but_for, PAGE + 1)
        return self._listed.count(chosen)

    def groups(self) -> Sequence[QueuedCount]:
        """What failed, by table and error, as it was seen last; the most frequent first."""
        seen = self._watcher.seen
        return () if seen is None else [one for one in seen.observation.queued if one.state == "failed"]

    def named(self, entry: ErrorEntry) -> str:
        """An entry's table at the target; where rules have renamed it, with its name at the source."""
        if entry.table is None:
            return ""
        origins = ", ".join(map(str, self.pipeline.origins(entry.table)))
        return printable(f"{entry.table} ({origins} at the source)" if origins else str(entry.table))

    def retry(self, entry_id: str, form: Mapping[str, str]) -> Job:
        """Apply one entry again, with other values where the form says so.

        Raises:
            ConfigError: The form does not fit the entry.
            NoEntryError: There is no such entry.
        """
        attempt, edit = Attempt.of(form), None
        if "edited" in form:
            entry, transaction = self.errors().load(entry_id)
            failed_at = entry.created_at.isoformat()
            if form.get("failed_at", failed_at) != failed_at:
                # Numbers begin anew where a pipeline was torn down and set up, with the form open meanwhile.
                raise ConfigError("the form is of an earlier entry with this number", do="load the page again")
            edit = read_edit(form, transaction)
            entry_id = entry.id
            if edit is None:
                raise ConfigError("nothing was edited", do="change a value, or leave a change out")
        what = f"{'dry run of ' if attempt.is_dry else 'retry '}{entry_id}{', edited' if edit else ''}"
        job = self._jobs.begin(what, [entry_id], lambda job: self._apply(job, [entry_id], attempt, edit))
        if attempt.is_dry and sum(map(len, form.values())) < _REMEMBERED:
            job.again = {name: value for name, value in form.items() if name != "dry"}
        return job

    def delete(self, entry_ids: Sequence[str], *, skip_gone: bool = False, skipped: int = 0) -> Job:
        """Give transactions up; what has waited for one of them waits no more."""

        def work(job: Job) -> None:
            deleted = self.errors().delete(*entry_ids, skip_gone=skip_gone)
            job.outcomes["deleted"] += len(deleted)
            job.skipped = skipped
            follow(job, self.pipeline.go_on)

        return self._jobs.begin(f"delete {_named(entry_ids)}", entry_ids, work)

    def hold(self, entry_ids: Sequence[str], note: str, *, skip_gone: bool = False) -> Job:
        """Put transactions on hold, so that nobody applies or deletes them.

        Raises:
            ConfigError: The note does not say why.
        """
        note = checked_note(note)

        def work(job: Job) -> None:
            job.outcomes["on hold"] += len(self.errors().hold(*entry_ids, note=note, skip_gone=skip_gone))

        return self._jobs.begin(f"put {_named(entry_ids)} on hold", entry_ids, work)

    def release(self, entry_ids: Sequence[str], *, skip_gone: bool = False) -> Job:
        """End the hold of transactions; what one of them waited for may be gone, and then it is applied."""

        def work(job: Job) -> None:
            job.outcomes["released"] += len(self.errors().release(*entry_ids, skip_gone=skip_gone))
            follow(job, self.pipeline.go_on)

        return self._jobs.begin(f"release {_named(entry_ids)}", entry_ids, work)

    def chosen(self, action: str, wanted: QueueFilter, last: int | None) -> tuple[Sequence[ErrorEntry], int]:
        """Return the entries that an action on all is for, in commit order, and how many are on hold and skipped.

        Args:
            last: The highest number of an entry that was there when the question was asked; None to ask it.
        """
        entries = [one for one in self.errors().entries(wanted.filter) if last is None or one.place.number <= last]
        on_hold = [one for one in entries if one.on_hold is not None]
        if action == "release":
            return on_hold, 0
        return [one for one in entries if one.on_hold is None], len(on_hold)

    def act_on_all(self, action: str, chosen: Sequence[ErrorEntry], skipped: int, form: Mapping[str, str]) -> Job:
        """Act on entries, which are in commit order; those that are gone by then are skipped."""
        entry_ids = [entry.id for entry in chosen]
        match action:
            case "release":
                return self.release(entry_ids, skip_gone=True)
            case "hold":
                return self.hold(entry_ids, form.get("note", ""), skip_gone=True)
            case "delete":
                return self.delete(entry_ids, skip_gone=True, skipped=skipped)
        attempt = Attempt.of(form)
        what = f"{'dry run of' if attempt.is_dry else 'retry'} {_named(entry_ids)}"

        def work(job: Job) -> None:
            job.skipped = skipped
            self._apply(job, entry_ids, attempt, None, skip_gone=True)

        return self._jobs.begin(what, entry_ids, work)

    def _apply(
        self, job: Job, chosen: Sequence[str], attempt: Attempt, edit: EntryEdit | None, *, skip_gone: bool = False
    ) -> None:
        def retrying(tell: Callable[[str], None]) -> Iterator[Retried]:
            return self.pipeline.retry(chosen, tell, skip_gone=skip_gone, **attempt.options(edit))

        follow(job, retrying)


def _named(entry_ids: Sequence[str]) -> str:
    return f"transaction {entry_ids[0]}" if len(entry_ids) == 1 else count(len(entry_ids), "transaction")


def _place(text: str | None) -> EntryPlace | None:
    """A place as `place_text` writes it; None for anything else, which is the beginning."""
    scn, _, number = (text or "").partition(".")
    is_place = scn.isdecimal() and number.isdecimal() and len(scn) < 19 and len(number) < 19
    return EntryPlace(int(scn), int(number)) if is_place else None


def place_text(place: EntryPlace) -> str:
    """A place for an address."""
    return f"{place.commit_scn}.{place.number}"
