"""What is said of any database: the steps by which it is set up, and what it keeps for its own kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import ClassVar

from penstock.change import TableName
from penstock.errors import PenstockError, RetryableError
from penstock.events import SourceFacts
from penstock.schema import TableSchema
from penstock.text import printable


class NativeForm:
    """Something of a database in a form that only databases of its kind understand; schemas say the rest to others.

    Attributes:
        dialect: The kind of database, as `Column.dialect` has it.
    """

    dialect: ClassVar[str]


class UncopiedRows(Enum):
    """What becomes of rows that a table of the target holds, and that were not copied there."""

    REFUSED = auto()
    ADOPTED = auto()
    """The first copy compares them, and keeps those that are as they must be."""
    KEPT = auto()
    """There is no first copy, so they are in nobody's way."""


@dataclass(frozen=True)
class SourceTables:
    """What a source says of the tables that a target is to have.

    Attributes:
        described: Each table, by its name at the target.
        blueprint: How to make tables exactly, in a database of the source's kind; None without a database.
        replaced: Tables that were made anew under their names, and have to be copied anew.
        post_data: What the tables have besides; None where the source has no tables.
    """

    described: Mapping[TableName, TableSchema]
    blueprint: NativeForm | None
    replaced: Sequence[TableName] = ()
    post_data: NativeForm | None = None


@dataclass(frozen=True)
class SetupStep:
    """One thing that setup does.

    Attributes:
        summary: What it is, in a few words.
        remedy: What the user can do if it fails, besides fixing what the error names.
        is_apart: Whether it is taken in a transaction of its own, after all that are not: it locks a table that is
            written to, which is not to wait for the other steps.
        is_optional: Where the database refuses it, it is left out, and all others are taken.
        tables: The tables that it is for, by their names at the target: where it cannot be taken, these are left out,
            and the others are set up. None: nothing can be set up without it.
        refers: The table that a foreign key refers to; where that one is left out, the key is.
    """

    summary: str
    sql: str
    is_apart: bool = False
    remedy: str = ""
    is_optional: bool = False
    tables: frozenset[TableName] = frozenset()
    refers: TableName | None = None

    def __post_init__(self) -> None:
        """Let no name in the summary pass for anything else where the summary is printed."""
        object.__setattr__(self, "summary", printable(self.summary))


@dataclass(frozen=True)
class Uncaptured:
    """A table that the pipeline file means, and whose changes are not captured.

    Attributes:
        is_there: There is a table of this name; otherwise the one that was captured has another name now.
        awaits_setup: `penstock setup` takes it in, unless something is in its way.
    """

    table: TableName
    reason: str
    is_there: bool = True
    awaits_setup: bool = False

    def __str__(self) -> str:
        return f"{self.table} is not captured: {self.reason}"

    @property
    def facts(self) -> SourceFacts:
        """The same for programs."""
        return {"table": str(self.table), "reason": self.reason}


@dataclass(frozen=True)
class MissingPart:
    """A partition, or labels of an enum, that the source has and the target lacks.

    Attributes:
        of: The partitioned table; None for labels.
        labels: What the enum lacks; none for a partition.
        is_followed: A run makes it, before it applies changes that need it.
    """

    name: TableName
    of: TableName | None = None
    labels: tuple[str, ...] = ()
    is_followed: bool = False

    def __str__(self) -> str:
        if self.of is not None:
            lack = f"partition {self.name} of {self.of} does not exist"
        else:
            named = f"label{'s' if len(self.labels) > 1 else ''} {', '.join(map(repr, self.labels))}"
            lack = f"type {self.name} lacks {named}"
        if self.is_followed:
            return printable(f"{lack} at the target yet: `penstock run` makes it before the next change")
        fate = "at the target: changes that need it go to the error queue until `penstock setup` adds it"
        return printable(f"{lack} {fate}")

    @property
    def facts(self) -> SourceFacts:
        """The same for programs."""
        of = None if self.of is None else str(self.of)
        return {"partition": str(self.name), "table": of} if of else {"type": str(self.name), "labels": [*self.labels]}


@dataclass(frozen=True)
class Renamed:
    """What becomes of a table of the source.

    Attributes:
        source: Its name there.
        table: Its name at the target.
        columns: The target's name of each column that is kept; None where all are as they are.
        has_step: Python of the user may change its rows.
    """

    source: TableName
    table: TableName
    columns: Mapping[str, str] | None = None
    has_step: bool = False


@dataclass(frozen=True)
class SequenceValue:
    """Where a sequence stands: at the value that it has given last, or gives next if it is not called yet."""

    last: int
    is_called: bool

    def __str__(self) -> str:
        return str(self.last) if self.is_called else f"{self.last}, not given yet"


@dataclass(frozen=True)
class SequenceSetting:
    """A sequence of the target, where it stood, and what it is set to; the same where it stays."""

    name: TableName
    before: SequenceValue
    after: SequenceValue

    @property
    def is_needed(self) -> bool:
        """Whether it has to be set at all."""
        return self.before != self.after


@dataclass(frozen=True)
class MissingObject:
    """Something that a table of the source has, and the copy has not, though applying changes does not need it.

    Attributes:
        what: It and its table, in a few words.
        reason: Why it is not made; empty where it will be.
    """

    table: TableName
    what: str
    reason: str = ""

    def __str__(self) -> str:
        return printable(f"{self.what} is left out: {self.reason}" if self.reason else f"{self.what} is missing")


@dataclass(frozen=True)
class CatalogDifference:
    """Something in which the copy is not what the source is, and that Penstock does not make.

    Attributes:
        kind: What sort of thing it is.
        what: It, and where it belongs, in a few words.
        table: The table that it belongs to; None for what belongs to a schema.
        reason: Why it differs, or is not made; empty where that is nobody's but the user's.
        sql: The statements that bring it at the target, or take it away; empty where only `pg_dump` has them.
        is_extra: The copy has it, and the source has not.
        schema: Where it is at the source.
    """

    kind: str
    what: str
    table: TableName | None
    reason: str = ""
    sql: str = ""
    is_extra: bool = False
    schema: str = ""

    def __str__(self) -> str:
        return printable(f"{self.what}: {self.reason}" if self.reason else self.what)

    @property
    def facts(self) -> SourceFacts:
        """The same for programs."""
        table = None if self.table is None else str(self.table)
        return {
            "kind": self.kind,
            "what": self.what,
            "table": table,
            "reason": self.reason or None,
            "sql": self.sql or None,
        }


@dataclass(frozen=True)
class NotCompared:
    """Something that a comparison of rows does not see, for no table holds it.

    Attributes:
        is_lacking: The target does not have it.
    """

    what: str
    is_lacking: bool

    def __str__(self) -> str:
        return printable(self.what)


@dataclass(frozen=True)
class CaptureBehind:
    """A table that was altered, and whose capture was not brought up to date."""

    table: TableName
    reason: str

    def __str__(self) -> str:
        return f"{self.table} was altered, and {self.reason}"

    @property
    def facts(self) -> SourceFacts:
        """The same for programs."""
        return {"table": str(self.table), "reason": self.reason}


@dataclass
class DatabasePlan:
    """What setup does in one database.

    Attributes:
        label: The database, named without secrets.
        steps: In the order they are carried out; all of them in one transaction, but those that are apart.
        grants: SQL a superuser has to run first, because this user may not do some step.
        recommended: SQL a superuser should run as well: without it a step works, and `cutover` will not.
        notes: Facts that the user should know, though they stop nothing.
        faults: What keeps the pipeline from being set up.
        preamble: SQL that a script of the steps begins with, so that the user who runs it runs no other role's code.
        role: The role that must own the objects, where another role may carry the steps out.
        plain_role: Where changes are applied as a superuser: SQL that makes a role which is none, and is to be the
            connection's user instead; for the superuser to run.
        differences: In what tables are not, and will not be, what they are at the source.
        table_faults: What keeps single tables from being set up, by their names at the target; the others can be.
        table_grants: Those of `grants` that single tables lack, in the same way.
        printed: The steps for a DBA, who runs the grants before: also those of tables that only lack some.
        references: Foreign keys that are there already, each with the table that has it and the one that it refers to.
    """

    label: str
    steps: list[SetupStep] = field(default_factory=list)
    grants: list[str] = field(default_factory=list)
    recommended: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[PenstockError] = field(default_factory=list)
    preamble: list[str] = field(default_factory=list)
    role: str | None = None
    plain_role: list[str] = field(default_factory=list)
    differences: list[CatalogDifference] = field(default_factory=list)
    table_faults: dict[TableName, list[PenstockError]] = field(default_factory=dict)
    table_grants: dict[TableName, list[str]] = field(default_factory=dict)
    printed: list[SetupStep] | None = None
    references: list[tuple[TableName, TableName, str]] = field(default_factory=list)

    def refuse(self, table: TableName, fault: PenstockError) -> None:
        """Note what keeps a table from being set up."""
        self.table_faults.setdefault(table, []).append(fault)

    def name_tables(self, called: Callable[[TableName], TableName]) -> None:
        """Call tables by other names, where those of a source have others at the target."""
        self.steps = [replace(step, tables=frozenset(map(called, step.tables))) for step in self.steps]
        self.table_faults = {called(table): faults for table, faults in self.table_faults.items()}
        self.table_grants = {called(table): grants for table, grants in self.table_grants.items()}

    def leave_out(self, tables: Collection[TableName]) -> None:
        """Take no step for these tables alone, and none that refers to them; note what goes on to refer to them."""
        kept = []
        for step in self.steps:
            if step.tables and step.tables <= set(tables):
                continue
            if step.refers in tables:
                self.notes.append(f"{step.summary} is left out, as {step.refers} is")
            else:
                kept.append(step)
        self.steps = kept
        dangling = [one for one in self.references if one[1] in tables and one[0] not in tables]
        self.notes += [
            f"{what} stays, and {other} is left out: until it is copied, rows of {table} may refer to rows that are not"
            " there"
            for table, other, what in dangling
        ]
        # Each is told once, whatever else is left out later.
        self.references = [one for one in self.references if one not in dangling]

    @property
    def kept_back(self) -> set[TableName]:
        """The tables that something is in the way of."""
        return {*self.table_faults, *self.table_grants}


def transactions(steps: Sequence[SetupStep]) -> list[Sequence[SetupStep]]:
    """Group steps by the transactions they are taken in, in order."""
    together = [step for step in steps if not step.is_apart]
    return [*([together] if together else []), *([step] for step in steps if step.is_apart)]


@dataclass(frozen=True)
class Emptying:
    """What a new first copy does away with at the target.

    Attributes:
        tables: They are emptied.
        left: Tables that the process has copied, but that stay as they are, and why.
        errors: Transactions in the error queue, which are forgotten.
    """

    tables: Sequence[TableName]
    left: Mapping[TableName, str]
    errors: int


@dataclass(frozen=True)
class WorkingSession:
    """A session of ours that is inside a transaction.

    Attributes:
        session: The server's number for it.
        purpose: What it does for the pipeline: `apply`, `copy`, `retry` and so on.
        seconds: How long its transaction is open.
        waits_for: What the server says that it waits for, in the server's words; empty where it works.
        where: The database, named without secrets.
    """

    session: int
    purpose: str
    seconds: float
    waits_for: str
    where: str


@dataclass(frozen=True)
class LockWait:
    """A session of ours that waits for a lock.

    Attributes:
        session: The server's number for it.
        seconds: How long it has waited.
        table: What it wants to lock, or a row of; None where that cannot be told.
        where: The database, named without secrets.
        holder: The session in its way; None for a prepared transaction.
        remedy: What a person can do about it.
        described: What is known of that session.
    """

    session: int
    seconds: float
    table: TableName | None
    where: str
    holder: int | None
    remedy: str
    described: str = ""

    def __str__(self) -> str:
        held_by = f"{self._holder} is in the way ({self.where})"
        return f"waiting for {self.seconds:.0f} s for a lock{self._of}: {held_by}; {self.remedy}"

    @property
    def held_by(self) -> str:
        """Which session holds a lock, on what."""
        return f"{self._holder} holds a lock{self._of}"

    @property
    def facts(self) -> SourceFacts:
        """The same for programs."""
        return {
            "session": self.session,
            "seconds": round(self.seconds, 3),
            "table": str(self.table) if self.table else None,
            "where": self.where,
            "holder": self.holder,
        }

    @property
    def _of(self) -> str:
        return f" on {self.table}" if self.table else ""

    @property
    def _holder(self) -> str:
        if self.holder is None:
            return "a prepared transaction"
        return f"session {self.holder}" + (f" ({self.described})" if self.described else "")


class LockedError(RetryableError):
    """Others are at work on what a step changes; no step was taken."""
