"""Every target that changes may be applied to: `TARGETS`. To have another one tested, add it there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from penstock.demo.servers import EmbeddedPostgres
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


@dataclass(frozen=True)
class Servers:
    """What runs already."""

    new: EmbeddedPostgres
    old: EmbeddedPostgres


Made = Callable[[Servers], AbstractContextManager[Target]]


def postgres(server: Callable[[Servers], EmbeddedPostgres]) -> Made:
    @contextmanager
    def made(servers: Servers) -> Iterator[Target]:
        name = f"target{next(numbers)}"
        create_database(server(servers), name)
        target = Target(server(servers).url(name), TABLES)
        yield target
        target.close()
        drop_database(server(servers), name)

    return made


TARGETS: Mapping[str, Made] = {
    "postgres 18": postgres(lambda servers: servers.new),
    "postgres 16": postgres(lambda servers: servers.old),
}
"""By name: what `wiring` knows it by, then its version."""
