"""One history: what a process has followed so far, held against what its source holds now.

A position means something in one history only. A source that was restored or reset, that failed over to an older
state, that was moved or set up anew has another history behind the point where it parted; so has a restored target.
The ledger knows the capture set by its id and place, and the cuts of the log that anything at the target is of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock.errors import OperatorError
from penstock.position import Anchor, Scn

RESYNC = "`penstock resync --all` prepares a new first copy"


@dataclass(frozen=True)
class HistoryWording:
    """How messages speak of what a pipeline publishes to.

    Attributes:
        noun: What it is called, behind `the`.
        other: What begins another one of them.
        anew: How to begin with a new first copy.
        shown: What shows what was published.
    """

    noun: str
    other: str
    anew: str
    shown: str


class HistoryError(OperatorError):
    """Source and pipeline are of different histories; said for a pipeline that applies, and for one that publishes.

    Attributes:
        published: What it says, and what to do, where the pipeline publishes; `{}` stands for what it publishes to.
    """

    def __init__(
        self, what: str, *, where: str, do: str = RESYNC, published: tuple[str, str | None] = ("", "")
    ) -> None:
        """Say it; where `published` is not given, only what to do is another thing for a pipeline that publishes.

        Without what to do it is what begins with a new first copy.
        """
        super().__init__(what, where=where, do=do)
        self.published = (what, None) if published is None else published

    def for_published(self, words: HistoryWording) -> OperatorError:
        """Return the same error in the words of a pipeline that publishes."""
        what, do = self.published
        return OperatorError(what.format(words.noun), where=self.where, do=do.format(words.noun) if do else words.anew)


@dataclass(frozen=True)
class Consumer:
    """A reader of a change log, as the source knows it: the log is kept for all of them.

    Attributes:
        id: Random, made with the reader's ledger; two pipelines of one name are two consumers.
        name: Of the pipeline, or what a Spark reader calls itself.
        target: Where it applies or publishes to, for a person; None for a Spark reader.
        target_place: The same for comparing.
    """

    id: str
    name: str
    target: str | None = None
    target_place: str | None = None


@dataclass(frozen=True)
class ConsumerState:
    """What a consumer holds back.

    Attributes:
        position: What lies at or before it may be freed for this consumer's sake.
        transactions, size_bytes: What is kept behind that.
        oldest_at: When the oldest change that is kept was made; None where none is.
        seen_at: When it last moved, or said that there is nothing for it.
        announced: Rows that wait for it beside the log, such as that a table is to be read whole.
    """

    consumer: Consumer
    position: Scn
    transactions: int
    size_bytes: int
    oldest_at: datetime | None
    seen_at: datetime
    announced: int = 0


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction at the source that was not ended: the disk of log rows freed since then cannot be used again.

    Attributes:
        holder: Whose it is, for a person.
        since: When it began; None where the source does not say.
        size_bytes: The disk that it keeps from being used again, estimated; all of them that are open keep the same.
    """

    holder: str
    since: datetime | None
    size_bytes: int


@dataclass(frozen=True)
class LogHold:
    """The disk that a change log takes at its source, and for whom.

    Attributes:
        size_bytes: What its files take.
        consumers: Those that it is kept for, the furthest behind first; none where there is none.
        open: Transactions open for minutes, the oldest first.
        attention: What a person has to fix, a line each.
    """

    size_bytes: int = 0
    consumers: Sequence[ConsumerState] = ()
    open: Sequence[OpenTransaction] = ()
    attention: Sequence[str] = ()


NOTHING_HELD = LogHold()


@dataclass(frozen=True)
class CaptureOrigin:
    """A capture set: the id that setup drew for it, and the server, database and schema it was made in."""

    set_id: str
    place: str

    @property
    def database(self) -> str:
        """The place without the schema, which is another one when the set is made again."""
        return self.place.rpartition("/")[0]


@dataclass(frozen=True)
class History:
    """What a process has followed, as its ledger says.

    Attributes:
        origin: The set it follows; None before it has joined one, and for ledgers of earlier versions.
        position: Everything up to here is applied.
        anchor: The last cut at or before that.
        newest: The last cut that anything at the target is of: applied in part, or copied.
        is_new: Nothing was applied or copied yet.
        copies: The cuts that tables were copied at, those that have a mark.
    """

    consumer: Consumer
    origin: CaptureOrigin | None
    position: Scn
    anchor: Anchor | None
    newest: Anchor | None
    is_new: bool
    copies: Sequence[Anchor] = ()


@dataclass(frozen=True)
class Joined:
    """Where a process goes on, once its history is known to be the source's."""

    origin: CaptureOrigin
    position: Scn
    anchor: Anchor


@dataclass(frozen=True)
class SourceFacts:
    """What a source holds.

    Attributes:
        origin: What the set says of itself.
        place: Where it is in truth.
        first: The earliest cut that is kept.
        last: The latest one.
        base: The last cut at or before the position in question; None when it was freed.
        is_readable: Whether what follows the position is cut as it was when the position was reached.
        has_newest: Whether the newest cut that the ledger knows is there, with its mark.
        earlier: Another consumer that applies as this one does, to the very same database.
    """

    origin: CaptureOrigin
    place: str
    first: Anchor
    last: Anchor
    base: Anchor | None
    is_readable: bool
    has_newest: bool
    earlier: Consumer | None


def joined(history: History, facts: SourceFacts, *, where: str) -> Joined:
    """Say where a process goes on.

    Raises:
        HistoryError: What the ledger has followed is not what the source holds.
    """
    if facts.origin.place != facts.place:
        raise copied_here(where=where)
    if history.is_new and history.origin is None:
        if facts.earlier is not None:
            raise HistoryError(
                f"the source keeps its log for process {history.consumer.name!r} of this target, of which the target's"
                " ledger knows nothing: the ledger was removed, or the target restored to an older state",
                where=where,
                published=(
                    f"the source keeps its log for the {{}} that pipeline {history.consumer.name!r} had here, and that"
                    " is not there any more",
                    "bring that {} back; or `penstock teardown`, then `penstock setup`, begins with a new first copy",
                ),
            )
        return Joined(facts.origin, facts.last.scn, facts.last)
    if history.origin is not None and history.origin != facts.origin:
        is_here = history.origin.database == facts.origin.database
        how = "it was made anew" if is_here else "it is that of another database"
        what = "the capture set is not the one that the {} was filled from: {}"
        # A pipeline with another name has another ledger at a target, but may be given the same path.
        renamed = ", or the pipeline was renamed" if is_here else ""
        raise HistoryError(what.format("target", how), where=where, published=(what.format("{}", how + renamed), None))
    if history.newest is not None and not facts.has_newest and facts.first.scn <= history.newest.scn:
        raise older(history.newest, facts.last, where=where)
    if (history.anchor is not None and facts.base != history.anchor) or facts.base is None or not facts.is_readable:
        raise freed(history.position, where=where, do=RESYNC)
    return Joined(facts.origin, history.position, facts.base)


def copied_here(*, where: str) -> HistoryError:
    """The error for a set that is not where it was made."""
    return HistoryError(
        "the capture set was copied here from another database, server or schema: its log and positions are those of"
        " the other one",
        where=where,
        do=f"{RESYNC}, and makes the set anew",
    )


def older(known: Anchor, last: Anchor, *, where: str) -> HistoryError:
    """The error for a source that has lost what the target holds."""
    found = f"ends at {last.scn}" if last.scn < known.scn else "holds other transactions there"
    what = (
        "the source is not the one that the {0} was filled from: it was restored to an older state, or a standby took"
        f" over that lacked its last transactions. The {{0}} is of position {known.scn}; the log {found}"
    )
    return HistoryError(what.format("target"), where=where, published=(what, None))


_ANY_READER = f"{RESYNC}; a Spark stream begins anew, with another checkpoint and an empty sink"


def freed(position: Scn, *, where: str, do: str = _ANY_READER) -> HistoryError:
    """The error for a log that does not hold what follows a position; `do` may speak to one kind of reader alone."""
    what = (
        f"the change log does not hold what follows position {position}: it was freed, which means that the {{}} was"
        " restored to an older state, or that its consumer was removed"
    )
    return HistoryError(
        what.format("target"),
        where=where,
        do=do,
        published=(what, None),
    )


def other_pipeline(name: str, words: HistoryWording, *, where: str) -> OperatorError:
    """The error for what was filled from the capture set of another pipeline, called `name`."""
    return OperatorError(
        f"the {words.noun} was filled by pipeline {name!r}, which has a capture set of its own",
        where=where,
        do=f"{words.other}; or, if it is this pipeline that was renamed, give it the former name",
    )


def no_set(words: HistoryWording, *, where: str) -> OperatorError:
    """The error for what was filled from a capture set that is not there; a new one cannot go on with it."""
    return OperatorError(
        f"the {words.noun} was filled from a capture set that is not in this database, or not any more; a new one"
        " begins another history",
        where=where,
        do=f"{words.other}: a new {words.noun} begins with a new first copy",
    )


def other_history(known: Anchor, *, where: str) -> OperatorError:
    """The error for a stream's checkpoint that is not of the log's history."""
    return OperatorError(
        f"the change log does not hold the cut at position {known.scn} that the checkpoint is of: the source was"
        " restored to an older state or set up anew, or the log was freed",
        where=where,
        do="begin the query anew, with another checkpoint and an empty sink",
    )
