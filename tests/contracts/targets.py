"""Every target that changes may be applied to: `TARGETS`. To have another one tested, add it there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.apply.lane import ServerConfig
from penstock.apply.ledger import ProcessState
from penstock.apply.task import TaskContext
from penstock.demo.servers import EmbeddedPostgres
from penstock.pipeline.connectors import TargetLedger
from tests.conftest import create_database, drop_database, numbers
from tests.hand_made import Target

TABLES = """
CREATE TABLE parent (id int PRIMARY KEY, name varchar(5) NOT NULL);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent, code text,
                    CONSTRAINT code UNIQUE (code) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE entry (at int, body text);
INSERT INTO parent VALUES (1, 'one'), (2, 'two');
INSERT INTO child VALUES (1, 1, 'a'), (2, 1, 'b');
INSERT INTO entry VALUES (0, 'twice'), (0, 'twice');
"""
"""What each target holds at first; one that is no PostgreSQL makes the same in its own words."""


class Stand(Protocol):
    """A target with the tables of `TABLES` in schema `public`, each instantiated at position 10, and a ledger.

    Attributes:
        ledger: Of the process `A1`.
        state: What `ledger.acquire` has returned: a run has begun.
    """

    ledger: TargetLedger
    state: ProcessState

    def context(self, config: ServerConfig = ServerConfig()) -> TaskContext:
        """What tasks apply by: how they reach the target, and its tables as they are now."""

    def rows_of(self, table: str) -> list[tuple[Any, ...]]:
        """All rows of a table as anybody sees them who looks now, numbers as `int`; in any order."""

    def failed(self) -> list[tuple[int, int, int, int]]:
        """Of each entry of the error queue: position, error number, number of the failing change, changes."""


class Postgres(Target):
    """A PostgreSQL database."""

    def rows_of(self, table: str) -> list[tuple[Any, ...]]:
        return self.rows(f"SELECT * FROM {table}")


@dataclass(frozen=True)
class Servers:
    """What runs already."""

    new: EmbeddedPostgres
    old: EmbeddedPostgres


Made = Callable[[Servers], AbstractContextManager[Stand]]


def postgres(server: Callable[[Servers], EmbeddedPostgres]) -> Made:
    @contextmanager
    def made(servers: Servers) -> Iterator[Stand]:
        name = f"target{next(numbers)}"
        create_database(server(servers), name)
        target = Postgres(server(servers).url(name), TABLES)
        yield target
        target.close()
        drop_database(server(servers), name)

    return made


TARGETS: Mapping[str, Made] = {
    "postgres 18": postgres(lambda servers: servers.new),
    "postgres 16": postgres(lambda servers: servers.old),
}
"""By name: what `wiring` knows it by, then its version."""
