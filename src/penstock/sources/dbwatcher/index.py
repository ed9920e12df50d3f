"""Transactions put together from messages, in the driver: where each lies, how large it is, and which ones are repeats.

A message is a transaction. Messages that keep their transaction open, and DDL between them, belong to it: it lies at
its last message. What was sent again is left out: a watcher that was started anew sends what it had not yet seen
acknowledged. A transaction is known again by its name and its first REPL_KEY, and by all that it says.
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from penstock.change import NO_VERSION, Change, Op, TableName
from penstock.errors import MalformedInputError, PenstockError
from penstock.events import Event, tell
from penstock.formats.dbwatcher.changes import TableEvent
from penstock.formats.dbwatcher.message import Action, Attribute, Command, Message
from penstock.formats.dbwatcher.metadata import table_of
from penstock.history import HistoryError
from penstock.patterns import TablePattern
from penstock.position import START, Scn
from penstock.schema import TableSchema
from penstock.sources.dbwatcher.ddl import ddl_of
from penstock.sources.dbwatcher.messages import DIGEST_BYTES, MessageLog, Place, StoredMessage, digest_of
from penstock.sources.dbwatcher.numbers import ContentNumbers, MessageNumbers
from penstock.sources.dbwatcher.outline import Outlines
from penstock.sources.dbwatcher.pieces import Asked, Piece, ask, read
from penstock.sources.dbwatcher.reading import Reading
from penstock.sources.dbwatcher.tables import KnownTables
from penstock.text import printable

_STRUCTURE = "0"
"""The counter of a CREATE that the content of the table follows."""

_RESET = (
    "if the source was reset or restored, have the watcher write into an empty folder or a new topic; then `penstock"
    " resync --all` prepares a new first copy"
)


class MessageStretch(NamedTuple):
    """The changes of one part of a message."""

    place: Place
    part: int
    changes: int


Told: TypeAlias = tuple[MessageStretch | Change, ...]
"""What a transaction is of: changes that lie in messages, and changes that the driver has made of DDL."""


class IndexedMessages(NamedTuple):
    """A transaction that was found."""

    position: int
    txn_id: str
    told: Told
    changes: int
    size_bytes: int
    at_us: int
    has_ddl: bool


@dataclass
class _Gathered:
    """A transaction of which some pieces came; it may be waiting for more.

    Attributes:
        name: The first REPL_KEY and the counter.
        began: The position of its first message.
        last_piece: The keys of the last piece, and a digest of what it says.
        said: Of all that its pieces say, a digest in the making.
        gap: Why nothing of it may be applied.
    """

    txn_id: str
    name: tuple[int | None, str]
    began: Scn
    gap: Change | None = None
    told: list[MessageStretch | Change] = field(default_factory=list)
    last_piece: tuple[int | None, int | None, bytes] = (None, None, b"")
    said: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=DIGEST_BYTES))
    size_bytes: int = 0
    has_ddl: bool = False


class _Known(NamedTuple):
    """What a transaction is known again by."""

    name: tuple[int | None, str]
    last_key: int | None
    digest: bytes


class MessageIndex:
    """Looks through messages as they come; not for two threads at once.

    Attributes:
        found: The transactions, by position.
        fault: What is wrong with the message at which it stopped, and the message's position.
    """

    def __init__(
        self, log: MessageLog, tables: KnownTables, reading: Reading, patterns: Sequence[TablePattern]
    ) -> None:
        """Look through nothing yet.

        Args:
            patterns: Mean the tables that are followed.
        """
        self.found: list[IndexedMessages] = []
        self.fault: tuple[Scn, PenstockError] | None = None
        self._log = log
        self._tables = tables
        self._reading = reading
        self._patterns = patterns
        self._outlines = Outlines(reading)
        self._looked_upto = START
        self._open: dict[str, _Gathered] = {}
        self._known: dict[str, list[_Known]] = {}
        # Of transactions in several messages, the positions of the first and of the last one.
        self._spans: list[tuple[Scn, Scn]] = []
        # Tables of which rows, or CREATE messages, came.
        self._met: set[TableName] = set()
        # A message that cannot be read said that its transaction goes on.
        self._lost: Change | None = None
        # By transaction that is open, the tables that ALTER messages have described, and the messages' positions.
        self._altered: dict[str, list[tuple[TableName, Scn]]] = {}
        # The same of those that say that their transaction goes on, CREATE messages among them.
        self._described: dict[str, list[tuple[TableName, Scn]]] = {}
        self._said: set[str] = set()
        self._numbers = MessageNumbers()
        self._content = ContentNumbers()

    def look(self) -> None:
        """Look through the messages that came since; stops at one that is at fault."""
        if self.fault is not None:
            return
        for stored in self._log.later(self._looked_upto):
            try:
                self._add(stored)
            except PenstockError as exc:
                self.fault = stored.place.position, exc
                return
            self._looked_upto = stored.place.position

    def follow(self, number: int, position: Scn) -> None:
        """Make sure that what follows a message with a number is there; as `MessageNumbers.follow`."""
        self.look()
        if not self._reading.accepts_missing:
            self._numbers.follow(number, position)

    def after(self, position: Scn) -> int:
        """Return the place in `found` of the first transaction behind a position."""
        return bisect_right(self.found, int(position), key=lambda one: one.position)

    def open_since(self, position: Scn) -> Scn | None:
        """Return where the oldest transaction has begun that is not over at a position; None where all are."""
        begun = [began for began, end in self._spans if began <= position < end]
        begun += [held.began for held in self._open.values() if held.began <= position]
        return min(begun, default=None)

    def _add(self, stored: StoredMessage) -> None:
        outlined = self._outlines.ask(stored, self._tables.book)
        if outlined is not None:
            head, asked = outlined
            if self._is_next(Message(head, (), stored.properties), stored):
                self._take(head.ident, asked, None, stored)
            return
        try:
            message = read(stored, self._reading)
            if message is None:
                self._note(
                    "control",
                    f"{stored.where} is a control message, which changes no row; such messages are skipped",
                    stored,
                )
                return
            if not self._is_next(message, stored):
                return
            was = self._learn(message, stored)
            asked = ask(message, stored, self._tables.book, self._reading)
            self._outlines.learn(message, stored, self._tables.book)
        except MalformedInputError as exc:
            if not self._reading.puts_aside:
                do = exc.do or "repair the message, or set capture.dbwatcher.on_malformed to put_aside"
                raise MalformedInputError(exc.what, where=exc.where, do=do) from exc
            self._numbers.take_unread(stored)
            self._content.take_unread()
            self._put_aside(stored, exc)
            return
        self._take(message.head.ident, asked, was, stored)

    def _is_next(self, message: Message, stored: StoredMessage) -> bool:
        """Whether a message is not a repeat, by its number; raises as `MessageNumbers.take`."""
        return self._reading.accepts_missing or self._numbers.take(message, stored)

    def _take(self, ident: str, asked: Asked, was: TableSchema | None, stored: StoredMessage) -> None:
        """Take up what a message asks for.

        Args:
            was: The table of a message about a table, as it was described before.
        """
        closed: list[_Gathered] = []
        if not asked.pieces and not asked.keeps_open:
            # The end of a transaction, with no change of its own.
            last = self._open.pop(ident, None)
            closed += [] if last is None else [last]
        for piece in asked.pieces:
            self._gather(piece, was, stored)
            if not asked.keeps_open or piece is not asked.pieces[-1]:
                closed.append(self._open.pop(piece.txn_id))
        if not asked.keeps_open:
            self._lost = None
        for one in closed:
            if one.began < stored.place.position:
                self._spans.append((one.began, stored.place.position))
            self._altered.pop(one.txn_id, None)
            for table, position in self._described.pop(one.txn_id, ()):
                self._tables.put_off(table, position, stored.place.position)
        self._close([one for one in closed if not self._is_repeat(one, stored)], stored)

    def _gather(self, piece: Piece, was: TableSchema | None, stored: StoredMessage) -> None:
        """Add a piece to its transaction, which may have begun in an earlier message."""
        held = self._open.get(piece.txn_id)
        name = piece.first_key, piece.counter
        here = piece.first_key, piece.last_key, digest_of(piece.said)
        if held is not None and piece.first_key is not None:
            if here == held.last_piece:
                return
            if name == held.name:
                # The watcher begins the transaction anew.
                held = None
                if piece.event is None:
                    self._take_back(piece.txn_id)
            elif held.last_piece[1] is not None and piece.first_key <= held.last_piece[1]:
                raise _differs(piece.txn_id, stored)
        if held is None:
            if not self._is_known(piece.txn_id, name) and self._is_part_of_known(piece.txn_id, name):
                # Its end may never come: what the transaction says otherwise is said now.
                raise _differs(piece.txn_id, stored)
            if not self._reading.accepts_missing and piece.counter and not self._is_known(piece.txn_id, name):
                for table in piece.tables:
                    self._content.take(piece.txn_id, piece.first_key, table, piece.counter, stored.where)
            held = self._open[piece.txn_id] = _Gathered(piece.txn_id, name, stored.place.position, self._lost)
        if piece.event is None and piece.changes:
            held.told.append(MessageStretch(stored.place, piece.part, piece.changes))
            self._met |= piece.tables
        elif piece.event is not None and not self._is_known(held.txn_id, held.name):
            # What was sent again says nothing new of its table.
            if piece.is_cancelled:
                made: tuple[Change, ...] = (self._cancelled(piece.event, stored),)
            else:
                made = self._made_of(piece.event, was, piece.counter, stored)
            held.has_ddl |= any(change.op is Op.DDL for change in made)
            held.told += made
        held.said.update(piece.said)
        held.last_piece = here
        held.size_bytes += len(stored.body)

    def _is_repeat(self, whole: _Gathered, stored: StoredMessage) -> bool:
        """Whether a transaction came before; one that came is remembered.

        Raises:
            HistoryError: One of the same name came before, and said something else.
        """
        last_key = whole.last_piece[1]
        if whole.name[0] is None:
            return False
        now = _Known(whole.name, last_key, whole.said.digest())
        earlier = self._known.setdefault(whole.txn_id, [])
        for known in earlier:
            if known.name == now.name:
                if known != now:
                    raise _differs(whole.txn_id, stored)
                return True
        if self._is_part_of_known(whole.txn_id, whole.name):
            raise _differs(whole.txn_id, stored)
        earlier.append(now)
        return False

    def _is_part_of_known(self, txn_id: str, name: tuple[int | None, str]) -> bool:
        """Whether keys come back, at or below those that a transaction had."""
        first_key, counter = name
        # A watcher that goes by the order of keys sends what transactions did by turns in several messages.
        return first_key is not None and any(
            known.last_key is not None and first_key <= known.last_key
            for known in self._known.get(txn_id, ())
            if not (known.name[1] or counter)
        )

    def _is_known(self, txn_id: str, name: tuple[int | None, str]) -> bool:
        """Whether a transaction of a name came before, whatever it said."""
        return any(known.name == name for known in self._known.get(txn_id, ()))

    def _close(self, closed: Sequence[_Gathered], stored: StoredMessage) -> None:
        told: list[MessageStretch | Change] = []
        for one in closed:
            told += [one.gap] if one.gap is not None else one.told
        if told:
            has_ddl = any(one.has_ddl and one.gap is None for one in closed)
            self._found(closed[0].txn_id, told, sum(one.size_bytes for one in closed), stored, has_ddl=has_ddl)

    def _found(
        self,
        txn_id: str,
        told: Sequence[MessageStretch | Change],
        size_bytes: int,
        stored: StoredMessage,
        *,
        has_ddl: bool,
    ) -> None:
        changes = sum(one.changes if isinstance(one, MessageStretch) else 1 for one in told)
        position = int(stored.place.position)
        self.found.append(IndexedMessages(position, txn_id, tuple(told), changes, size_bytes, stored.at_us, has_ddl))

    def _put_aside(self, stored: StoredMessage, fault: MalformedInputError) -> None:
        """Have a message go to the error queue, and the transactions that it may belong to."""
        name = self._name_of(stored)
        gap = Change(0, Op.GAP, self._any_table(), NO_VERSION, {"reason": str(fault), "document": name}, None)
        for held in self._open.values():
            held.gap = gap
        if Attribute.KEEP_TRANSACTION_OPEN.encode() in stored.body:
            # What follows may belong to it, too.
            self._lost = gap
        self._found(name, [gap], len(stored.body), stored, has_ddl=False)

    def _any_table(self) -> TableName:
        # A change needs a table. Of a message that cannot be read it is any that is followed; nobody is shown it.
        names = [version.table.name for version in self._tables.versions()]
        followed = [name for name in names if any(one.matches(name) for one in self._patterns)]
        return (followed or names or [TableName(self._reading.default_schema, "")])[0]

    def _learn(self, message: Message, stored: StoredMessage) -> TableSchema | None:
        """Take up what a message says of a table, before its rows are read by it.

        Returns:
            How the table of a message about a table was described before; None where it was not, or of other messages.
        """
        head = message.head
        if head.command not in (Command.CREATE, Command.ALTER, Command.DROP) and not head.metadata:
            return None
        said = head.attributes
        schema = said.get(Attribute.SCHEMA, "")
        schema = schema if schema.strip() else self._reading.default_schema
        name = TableName(schema, said.get(Attribute.TABLE_NAME) or head.ident)
        is_old = head.command not in (Command.CREATE, Command.ALTER) and self._tables.is_created(name)
        key, txn_id = said.get(Attribute.REPL_KEY, "").strip(), said.get(Attribute.TRANSACTION) or head.ident
        if key.isdecimal():
            here = int(key), said.get(Attribute.CREATE_COUNTER, "").strip()
            held = self._open.get(txn_id)
            if held is not None and held.name == here:
                self._take_back(txn_id)
            is_old |= self._is_known(txn_id, here if held is None else held.name)
        was = self._tables.last(name)
        if head.metadata and not is_old:
            try:
                described = table_of(name, head.metadata)
            except MalformedInputError as exc:
                raise MalformedInputError(exc.what, where=stored.where, do=exc.do) from exc
            if head.command is Command.ALTER:
                self._tables.alter(described, stored.place.position)
                self._altered.setdefault(txn_id, []).append((name, stored.place.position))
            else:
                self._tables.create(described, stored.place.position)
            if message.keeps_transaction_open:
                self._tables.put_off(name, stored.place.position)
                self._described.setdefault(txn_id, []).append((name, stored.place.position))
        return was

    def _take_back(self, txn_id: str) -> None:
        """Forget what ALTER messages of a transaction say that comes again from its beginning."""
        for table, position in self._altered.pop(txn_id, ()):
            self._tables.forget(table, position)

    def _made_of(
        self, event: TableEvent, was: TableSchema | None, counter: str, stored: StoredMessage
    ) -> tuple[Change, ...]:
        """Return what apply is to be told of DDL; nothing of a table that begins."""
        is_known = event.table in self._met
        if event.action is Action.DROP:
            self._met.discard(event.table)
            self._tables.end(event.table, stored.place.position)
        else:
            self._met.add(event.table)
        if event.action is Action.CREATE and not is_known:
            self._tables.begin(event.table, Scn(self.found[-1].position) if self.found else START)
        empties = event.action is Action.CREATE and counter == _STRUCTURE and is_known
        # An ALTER goes by what is known of the table, whether or not rows of it came.
        was = was if is_known or event.action is Action.ALTER else None
        is_declared = self._tables.is_declared(event.table)
        return ddl_of(event, was, self._tables.last(event.table), empties=empties, is_declared=is_declared)

    def _cancelled(self, event: TableEvent, stored: StoredMessage) -> Change:
        """What apply is told where the content of a table ends before it is whole: the error queue says so."""
        reason = (
            f"the initial update of table {event.table} was cancelled at the source: the target has a part of its rows,"
            " and gets no change of it until a new one comes; request that there, then delete this entry"
        )
        return Change(0, Op.GAP, event.table, NO_VERSION, {"reason": reason, "document": self._name_of(stored)}, None)

    def _name_of(self, stored: StoredMessage) -> str:
        return printable(stored.where.removeprefix(self._log.label).lstrip("/, "))

    def _note(self, what: str, text: str, stored: StoredMessage) -> None:
        if what not in self._said:
            self._said.add(what)
            tell(Event.NOTE, text, {"position": int(stored.place.position)}, level=logging.INFO)


def _differs(txn_id: str, stored: StoredMessage) -> HistoryError:
    return HistoryError(
        f"transaction {printable(txn_id[:60])} came before with these REPL_KEYs, and says something else now",
        where=stored.where,
        do=_RESET,
    )
