"""A schema that nobody has seen, written to from several sessions, while the pipeline is started and stopped."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg
import pytest

from tests.lab import Lab
from tests.program import Program
from tests.stories.test_types import MADE, TYPES

KEYS = {
    "integer": "(random() * 300)::int",
    "bigint": "(random() * 300)::bigint * 10000000000",
    "text": "'Key \"' || (random() * 300)::int || E'\\n'",
    "uuid": "md5((random() * 300)::int::text)::uuid",
    "numeric": "round((random() * 30)::numeric, 1)",
    "timestamptz": "'2024-01-01 00:00+00'::timestamptz + (random() * 300)::int * interval '1 hour'",
    "mood": "(ARRAY['sad', 'o k'])[1 + (random() * 1.9)::int % 2]::mood",
    "bytea": "decode(md5((random() * 300)::int::text), 'hex')",
    "date": "'2024-01-01'::date + (random() * 300)::int",
}
NAMES = ["plain", "Mixed Case", 'a "quoted" one', "ünïcödé", "select", "back\\slash", "a.dot", "100%"]

ROUNDS = [pytest.param(1, id="one schema"), pytest.param(8, id="eight schemas", marks=pytest.mark.soak)]


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Table:
    """A table, and random statements that write to it."""

    name: str
    key: dict[str, str]
    columns: dict[str, str]
    parent: Table | None
    extra: str

    @property
    def ddl(self) -> str:
        columns = [f"{quote(name)} {type_}" for name, type_ in (self.key | self.columns).items()]
        if self.parent is not None:
            columns += [f"{quote(f'parent {name}')} {type_}" for name, type_ in self.parent.key.items()]
            columns.append(f"FOREIGN KEY ({self._parent_names}) REFERENCES {self.parent.sql} {self.extra}")
        if self.key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quote, self.key))})")
        return f"CREATE TABLE {self.sql} ({', '.join(columns)});"

    @property
    def sql(self) -> str:
        return quote(self.name)

    @property
    def _parent_names(self) -> str:
        assert self.parent is not None
        return ", ".join(quote(f"parent {name}") for name in self.parent.key)

    def statement(self, chance: random.Random) -> str:
        some = f"ctid = ANY (ARRAY(SELECT ctid FROM {self.sql} ORDER BY random() LIMIT {chance.randint(1, 5)}))"
        kind = chance.random()
        if kind < 0.5:
            names = [quote(name) for name in (*self.key, *self.columns)]
            values = [KEYS[type_] for type_ in self.key.values()]
            values += [self._value(type_, chance) for type_ in self.columns.values()]
            source = ""
            if self.parent is not None:
                names.append(self._parent_names)
                values += [quote(name) for name in self.parent.key]
                source = f" FROM (SELECT * FROM {self.parent.sql} ORDER BY random() LIMIT 2) p"
            conflict = " ON CONFLICT DO NOTHING" if self.key else ""
            return f"INSERT INTO {self.sql} ({', '.join(names)}) SELECT {', '.join(values)}{source}{conflict}"
        if kind < 0.8:
            name, type_ = chance.choice(list(self.columns.items()))
            return f"UPDATE {self.sql} SET {quote(name)} = {self._value(type_, chance)} WHERE {some}"
        if kind < 0.85 and self.key:
            name, type_ = chance.choice(list(self.key.items()))
            one = f"ctid = (SELECT min(ctid) FROM {self.sql})"
            return f"UPDATE {self.sql} SET {quote(name)} = {KEYS[type_]} WHERE {one}"
        return f"DELETE FROM {self.sql} WHERE {some}"

    def _value(self, type_: str, chance: random.Random) -> str:
        if chance.random() < 0.1 and type_ != "positive":
            return "NULL"
        return f"({chance.choice(TYPES[type_])})::{type_}"


def a_schema(chance: random.Random) -> list[Table]:
    tables: list[Table] = []
    for number, name in enumerate(chance.sample(NAMES, 5)):
        key = {
            f"{chance.choice(NAMES)} key {n}": chance.choice(list(KEYS)) for n in range(chance.choice([0, 1, 1, 1, 2]))
        }
        types = chance.sample(list(TYPES), 9)
        columns = {f"{chance.choice(NAMES)} {n}": type_ for n, type_ in enumerate(types)}
        parents = [table for table in tables if table.key]
        parent = chance.choice(parents) if parents and chance.random() < 0.7 else None
        extra = chance.choice(
            ["", "ON DELETE CASCADE", "ON UPDATE CASCADE ON DELETE SET NULL", "DEFERRABLE INITIALLY DEFERRED"]
        )
        tables.append(Table(f"{name} {number}", key, columns, parent, extra))
    return tables


def write(
    url: str,
    tables: list[Table],
    seed: int,
    until: threading.Event,
    done: list[int],
    *,
    first: str = "SELECT",
    last: str = "SELECT",
) -> None:
    """Commit random transactions, a part of them rolled back, with savepoints in between.

    Args:
        first, last: What each begins and ends with; {n} stands for its number.
    """
    chance = random.Random(seed)
    numbers = count(1)
    with psycopg.connect(url, autocommit=True) as connection:
        while not until.wait(0.02):
            number = next(numbers)
            try:
                with connection.transaction(force_rollback=chance.random() < 0.1):
                    connection.execute(first.format(n=number))
                    for _ in range(chance.randint(1, 6)):
                        table = chance.choice(tables)
                        with connection.transaction(force_rollback=chance.random() < 0.05):
                            connection.execute(table.statement(chance))
                    connection.execute(last.format(n=number))
                done.append(1)
            except (psycopg.errors.IntegrityError, psycopg.errors.DeadlockDetected):
                # The source refused the whole transaction: a key taken, a parent gone, a deadlock.
                continue


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize("schemas", ROUNDS)
def test_a_schema_nobody_has_seen_is_the_same_on_both_sides(
    lab: Lab, tmp_path: Path, chance: random.Random, schemas: int
) -> None:
    lab.source.execute(MADE)
    for number in range(schemas):
        lab.source.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public" if number else "SELECT 1")
        lab.target.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public" if number else "SELECT 1")
        if number:
            lab.source.execute(MADE)
        tables = a_schema(chance)
        for table in tables:
            lab.source.execute(table.ddl)
        for table in tables * 40:
            # The source refuses some: a key taken, a parent still referred to.
            with suppress(psycopg.errors.IntegrityError), lab.source.transaction():
                lab.source.execute(table.statement(chance))
        by_row = [f"public.{table.sql}" for table in tables if chance.random() < 0.3]
        program = Program(
            tmp_path, lab.source_url, lab.target_url, name=f"unseen{number}", row_triggers=by_row, parallelism=3
        )
        assert program("setup").code == 0
        follow(program, lab, tables, chance)
        for table in tables:
            query = f'SELECT t::text FROM {table.sql} AS t ORDER BY t::text COLLATE "C"'
            there = lab.target.execute(query).fetchall()
            assert there == lab.source.execute(query).fetchall(), table.name
        assert program("teardown").code == 0


def follow(program: Program, lab: Lab, tables: list[Table], chance: random.Random) -> None:
    until, done = threading.Event(), list[int]()
    writers = [
        threading.Thread(target=write, args=(lab.source_url, tables, chance.randrange(1 << 30), until, done))
        for _ in range(3)
    ]
    for writer in writers:
        writer.start()
    try:
        for _ in range(2):
            with program.start("run") as run:
                run.await_line("following")
                until.wait(2)
                assert run.end() == 0, run.said
    finally:
        until.set()
        for writer in writers:
            writer.join()
    assert len(done) > 50
    ended = program("run", "--until-caught-up", "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["conflicts"], ended.json["errors"]) == (0, 0)
    verified = program("verify")
    assert verified.code == 0, verified.out
