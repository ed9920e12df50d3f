"""What a look at a machine, a database or a pipeline finds: the values that `penstock doctor` and `init` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.change import TableName
from penstock.errors import PenstockError
from penstock.text import printable, size

_LITTLE_DISK, _NO_DISK = 5 << 30, 1 << 30
"""Less free space than this is a warning, or a fault."""


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """The pipeline works, and something may go wrong later."""
    FAULT = "fault"
    """The pipeline cannot be set up, or cannot run, until a person has changed something."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, in one line: what, where, and the command that fixes it.

    Attributes:
        look: The stable name of what was looked at; programs build on it, docs/cli.md lists them.
        do: A command, or what to do in a few words; empty where all is well.
    """

    severity: Severity
    look: str
    what: str
    where: str = ""
    do: str = ""

    @classmethod
    def of(cls, look: str, error: PenstockError, severity: Severity = Severity.FAULT) -> Finding:
        """The finding that an error is."""
        return cls(severity, look, error.what, error.where, error.do)

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return printable(f"{self.what}{place}{': ' + self.do if self.do else ''}")

    def to_json(self) -> dict[str, str]:
        """The same for programs."""
        return {
            "severity": self.severity,
            "look": self.look,
            "what": self.what,
            "where": self.where,
            "do": self.do,
        }


@dataclass(frozen=True)
class ColumnFacts:
    """A column as the catalogue has it; no default and no check, which may hold values."""

    name: str
    type: str
    is_nullable: bool


@dataclass(frozen=True)
class TableFacts:
    """A table as the catalogue has it, partitions included.

    Attributes:
        size_bytes: Of rows and large values, without indexes.
        rows: The server's estimate; None where it never looked.
        key: The columns of the primary key, or else of a unique key without NULLs; empty without one.
        partitions: How many partitions hold its rows; 0 for an ordinary table.
        replica_identity: As the catalogue has it: `d`, `n`, `f` or `i`.
    """

    name: TableName
    size_bytes: int
    rows: int | None
    key: tuple[str, ...]
    columns: tuple[ColumnFacts, ...]
    partitions: int = 0
    is_unlogged: bool = False
    replica_identity: str = "d"

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "table": str(self.name),
            "size_bytes": self.size_bytes,
            "rows": self.rows,
            "key": list(self.key),
            "columns": [{"name": c.name, "type": c.type, "nullable": c.is_nullable} for c in self.columns],
            "partitions": self.partitions,
            "unlogged": self.is_unlogged,
            "replica_identity": self.replica_identity,
        }


@dataclass(frozen=True)
class DatabaseFacts:
    """What a database says of itself.

    Attributes:
        label: The database, named without secrets.
        version: As the server writes it.
        clock_off_s: How much its clock is ahead of this machine's.
        answer_s: How long it takes to answer.
        time_zone: The one that sessions have by default; empty where it cannot be told.
        collation: Encoding, locale and provider of texts.
        user: The role of the session.
        settings: Settings of the server that matter to a copy; none is a secret.
        tables: In order of their names.
    """

    label: str
    version: str
    clock_off_s: float
    answer_s: float
    time_zone: str
    collation: str
    user: str
    settings: Mapping[str, str] = field(default_factory=dict)
    tables: Sequence[TableFacts] = ()

    def to_json(self) -> dict[str, Any]:
        """The same for programs, without the tables."""
        return {
            "database": self.label,
            "version": self.version,
            "clock_off_s": round(self.clock_off_s, 3),
            "answer_s": round(self.answer_s, 3),
            "time_zone": self.time_zone,
            "collation": self.collation,
            "settings": dict(self.settings),
        }


@dataclass(frozen=True)
class Examination:
    """What looking at a database came to."""

    facts: DatabaseFacts
    findings: Sequence[Finding]


def disk_finding(what: str, free: int, total: int, where: str) -> Finding:
    """Say how many bytes of a disk are left."""
    text = f"{what}: {size(free)} of {size(total)} free"
    if free < _NO_DISK:
        return Finding(Severity.FAULT, "disk", text, where, "make room there")
    if free < _LITTLE_DISK:
        return Finding(Severity.WARNING, "disk", text, where, "make room there")
    return Finding(Severity.OK, "disk", text, where)
