"""Random values of every type the server knows, from source to target bit by bit: `python -m tests.fuzz.types`.

Each type has a table with a key and one without. Values are made once, under known settings, and kept beside the
captured tables; sessions with random settings then move them, so that a setting can only change what capture makes of
them. The databases have random settings too. Some rows are there before the first copy; and verify has to find equal
what is, and every value that was changed at the target.

There are two pairs of servers: the wheel's, and the machine's own, which have the contrib extensions, libxml, and
locales with other ideas of money.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import psycopg
from psycopg import sql

from penstock.apply.lane import ServerConfig
from penstock.apply.listener import CopyListener
from penstock.change import TableName
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.source.copy import PostgresCopyOrigin
from penstock.position import Scn
from penstock.snapshot.instantiate import Work
from penstock.snapshot.task import copy_chunks
from penstock.verify.driver import VerifyResult, verify
from tests.fuzz.values import BASE, Kind
from tests.fuzz.world import SETTINGS
from tests.installed import LOCALES, InstalledPostgres
from tests.lab import Lab
from tests.snapshot.test_copy import OneByOne, copy_context, instantiator
from tests.verify.test_compare import Nobody, jobs_of

MADE = """
CREATE TABLE public."Odd name" (id int);
CREATE TYPE made.mood AS ENUM ('sad', 'o k', 'NULL', 'Sad');
CREATE TYPE made.thing AS (n numeric, t text, f float8, i interval, j jsonb, b bpchar, p point, m money);
CREATE TYPE made.nested AS (one made.thing, many made.thing[], mood made.mood);
CREATE DOMAIN made.amount AS numeric;
CREATE DOMAIN made.words AS text[];
CREATE DOMAIN made.whole AS made.thing;
CREATE DOMAIN made.padded AS bpchar;
CREATE TYPE made.floats AS RANGE (SUBTYPE = float8, SUBTYPE_DIFF = float8mi);
CREATE TYPE made.texts AS RANGE (SUBTYPE = text, COLLATION = "C");
CREATE TYPE made.times AS RANGE (SUBTYPE = timetz);
CREATE TYPE made.spans AS RANGE (SUBTYPE = interval);
"""
EXTENSIONS = ["citext", "hstore", "cube", "ltree", "vector", "postgis"]

_COLUMN_TYPES = """
SELECT t.oid::bigint, t.typname, n.nspname, format_type(t.oid, -1), t.typtype::text,
  t.typcategory = 'A' AND t.typelem <> 0 AND t.typarray = 0,
  t.typelem::bigint, t.typbasetype::bigint, coalesce(r.rngsubtype, m.rngtypid, 0)::bigint, t.typdelim::text,
  (SELECT array_agg(a.atttypid::bigint ORDER BY a.attnum) FROM pg_attribute a
   WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
  (SELECT array_agg(e.enumlabel ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid), t.typsend <> 0
    -- Their empty value is sent in a form that is not received.
    AND t.typname NOT IN ('int2vector', 'oidvector')
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_range r ON r.rngtypid = t.oid LEFT JOIN pg_range m ON m.rngmultitypid = t.oid
WHERE t.typtype <> 'p' AND t.typisdefined AND n.nspname IN ('pg_catalog', 'information_schema', 'made', 'public')
  AND (t.typrelid = 0 OR (SELECT relkind FROM pg_class c WHERE c.oid = t.typrelid) = 'c')
  AND NOT EXISTS (
    SELECT FROM pg_type e JOIN pg_class c ON c.oid = e.typrelid WHERE e.oid = t.typelem AND c.relkind <> 'c')
ORDER BY t.oid
"""
_CHOICES = {
    "datestyle": ["ISO, DMY", "German", "SQL, MDY", "SQL, DMY", "Postgres, DMY", "ISO, YMD"],
    "intervalstyle": ["postgres", "postgres_verbose", "sql_standard", "iso_8601"],
    "timezone": ["UTC", "Asia/Kathmandu", "America/St_Johns", "Europe/Berlin", "<+03>-3"],
    "extra_float_digits": ["-15", "0", "1", "3"],
    "bytea_output": ["hex", "escape"],
    # And the locales that the server knows.
    "lc_monetary": ["C"],
    "xmloption": ["content", "document"],
    "quote_all_identifiers": ["on", "off"],
    "array_nulls": ["on", "off"],
    "search_path": ["public", "made, public", "''", "pg_temp, pg_catalog, made", "public, pg_catalog"],
    "default_text_search_config": ["simple", "english"],
    "standard_conforming_strings": ["on"],
}
_CANONICAL = (
    "-c datestyle=ISO -c intervalstyle=iso_8601 -c timezone=UTC -c extra_float_digits=3 -c bytea_output=hex"
    " -c lc_monetary=C -c xmloption=content -c array_nulls=on -c search_path= -c quote_all_identifiers=off"
)
_VALUES = 8
"""Values of a type in one round; they stand in pairs, which are exchanged for each other."""

_SERVERS = {**SETTINGS, "jit": "off"}

_numbers = count(1)


@dataclass(frozen=True)
class Wrong:
    """What became of a type's values that should not have."""

    type: str
    phase: str
    text: str

    def __str__(self) -> str:
        return f"{self.type}, {self.phase}: {self.text}"


@dataclass
class Result:
    """What rounds came to."""

    types: set[str] = field(default_factory=set)
    values: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    extensions: set[str] = field(default_factory=set)
    monetary: set[str] = field(default_factory=set)
    wrong: list[Wrong] = field(default_factory=list)

    def add(self, other: Result) -> None:
        """Count another round."""
        self.types |= other.types
        self.values += other.values
        self.left_out |= other.left_out
        self.extensions |= other.extensions
        self.monetary |= other.monetary
        self.wrong += other.wrong

    def report(self, *, details: int = 3) -> str:
        """What to print: the types that fail, and in which phase."""
        lines = [f"{len(self.types)} types, {self.values} values"]
        lines += [f"left out: {name}: {why}" for name, why in sorted(self.left_out.items())]
        shown = Counter[str]()
        for wrong in self.wrong:
            shown[wrong.type] += 1
            if shown[wrong.type] <= details:
                lines.append(f"WRONG {wrong}")
        if shown:
            lines.append("types that fail: " + ", ".join(sorted(shown)))
        return "\n".join(lines)


def read_kinds(connection: psycopg.Connection[Any], left_out: dict[str, str]) -> list[Kind]:
    """Every type that a column can have and that values can be made for; says why of the others."""
    rows = {row[0]: row for row in connection.execute(_COLUMN_TYPES)}
    made: dict[int, Kind | None] = {}

    def kind_of(oid: int) -> Kind | None:
        if oid not in made:
            made[oid] = build(rows[oid]) if oid in rows else None
        return made[oid]

    def build(row: tuple[Any, ...]) -> Kind | None:
        _, name, schema, text, kind, is_array, element, base, bound, delimiter, attributes, labels, has_bits = row
        is_built_in = schema == "pg_catalog"
        if is_array or kind in "drm":
            inner = kind_of(element if is_array else base if kind == "d" else bound)
            if inner is None:
                return None
            between = str(rows[element][9]) if is_array else delimiter
            return Kind(name, text, "a" if is_array else kind, inner, (), (), is_built_in, between)
        if kind == "c":
            parts = [kind_of(oid) for oid in attributes or []]
            return Kind(name, text, "c", None, [p for p in parts if p], (), is_built_in) if all(parts) else None
        if kind == "e":
            return Kind(name, text, "e", labels=labels or (), is_built_in=is_built_in)
        return Kind(name, text, "b", is_built_in=is_built_in, has_bits=has_bits) if name in BASE else None

    found = []
    for oid, row in rows.items():
        kind = kind_of(oid)
        if kind is None:
            left_out[row[3]] = "no values are made for it" if row[4] == "b" and not row[5] else "its parts are left out"
        else:
            found.append(kind)
    return found


Servers = tuple[EmbeddedPostgres, EmbeddedPostgres]


@contextmanager
def wheel_pair() -> Iterator[Servers]:
    """A source and a target of the wheel's newest PostgreSQL."""
    with EmbeddedPostgres(settings=_SERVERS) as source, EmbeddedPostgres(settings=_SERVERS) as target:
        yield source, target


@contextmanager
def installed_pair() -> Iterator[Servers]:
    """A source and a target of the machine's PostgreSQL."""
    with InstalledPostgres(settings=_SERVERS) as source, InstalledPostgres(settings=_SERVERS) as target:
        yield source, target


class InBundles(OneByOne):
    """Copies small tables together, as a run does."""

    def copy(self, work: Sequence[Work], done: CopyListener) -> None:
        for chunks, source in work:
            done.copied(len(chunks), copy_chunks(chunks, source, self.context))


def copy(lab: Lab, names: Sequence[str]) -> None:
    """Make the first copy of tables, with the tasks of a run."""
    origin = PostgresCopyOrigin(lab.source_url, lab.set_name)
    jobs = InBundles(copy_context(lab), {}, [])
    assert instantiator(lab, jobs, origin).run([TableName("public", name) for name in names], threading.Event())


def look(lab: Lab, names: Sequence[str]) -> VerifyResult:
    """Compare tables, with the tasks of `penstock verify`."""
    chunks = PostgresCopyOrigin(lab.source_url, lab.set_name).cut_into_chunks(
        [TableName("public", name) for name in names]
    )
    return verify(
        chunks,
        jobs_of(lab, names),
        Nobody(),
        consistency_point=lambda: Scn(0),
        tick=lab.log.tick,
        is_running=lambda: False,
    )


class Round:
    """One pair of databases, and some types."""

    def __init__(self, source: EmbeddedPostgres, target: EmbeddedPostgres, chance: random.Random) -> None:
        self._source, self._target = source, target
        self._chance = chance
        self._stack = ExitStack()
        self.result = Result()

    def __enter__(self) -> Round:
        self._stack.__enter__()
        name = f"types{next(_numbers)}"
        for server in (self._source, self._target):
            with psycopg.connect(server.url(), autocommit=True) as admin:
                admin.execute(f"CREATE DATABASE {name}")
                self._stack.callback(_drop, server, name)
                for setting, value in self._settings().items():
                    admin.execute(f"ALTER DATABASE {name} SET {setting} = {value}")
        self.source = self._canonical(self._source, name)
        self.target = self._canonical(self._target, name)
        self.writer = self._stack.enter_context(
            psycopg.connect(self._source.url(name), autocommit=True, prepare_threshold=None)
        )
        self.lab = self._stack.enter_context(Lab(self._source.url(name), self._target.url(name), name="types"))
        for side in (self.source, self.target):
            side.execute("CREATE SCHEMA made")
            for (extension,) in side.execute(
                "SELECT name FROM pg_available_extensions WHERE name = ANY (%s)", [EXTENSIONS]
            ).fetchall():
                side.execute(f"CREATE EXTENSION {extension} SCHEMA public")
                self.result.extensions.add(extension)
            side.execute(MADE)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.__exit__(None, None, None)

    def kinds(self) -> list[Kind]:
        """The types there are."""
        found = read_kinds(self.source, self.result.left_out)
        usable = []
        for kind in found:
            try:
                with self.source.transaction(force_rollback=True):
                    self.source.execute(f"CREATE TABLE made.probe (v {kind.sql})")
            except psycopg.Error as exc:
                self.result.left_out[kind.sql] = str(exc).splitlines()[0]
                continue
            usable.append(kind)
        return usable

    def play(self, kinds: Sequence[Kind]) -> None:
        """Send values of types to the target, change them there and back; keep what goes wrong."""
        cases = [case for number, kind in enumerate(kinds) if (case := self._make(number, kind)) is not None]
        for case in cases:
            self.source.execute(
                f"CREATE TABLE {case.keyed} (id int PRIMARY KEY, v {case.kind.sql}, other int);"
                f"CREATE TABLE {case.keyless} (n int, v {case.kind.sql});"
                f"INSERT INTO {case.keyed} SELECT id + 200, v, 0 FROM {case.stash};"
                f"INSERT INTO {case.keyless} SELECT id + 200, v FROM {case.stash}"
            )
        if not cases:
            return
        self.lab.pipeline(["public.k*", "public.w*"]).setup()
        self.lab.acquire()
        copy(self.lab, [name for case in cases for name in case.names])
        cases = [case for case in cases if not self._find_wrong(case, "first copy")]
        self.result.types |= {case.kind.sql for case in cases}
        self.result.values += sum(len(case.texts) for case in cases)
        for phase, config, change in self._phases():
            for case in cases:
                self._set_any_settings()
                for statement in change(case):
                    self.writer.execute(statement)
            self._apply(config)
            cases = [case for case in cases if not self._find_wrong(case, phase)]
            self.target.execute("DELETE FROM penstock.error")
        self._verify(cases, {})
        self._conflicts(cases)

    def _phases(self) -> Iterator[tuple[str, ServerConfig, Callable[[Case], list[str]]]]:
        by_set, by_row = ServerConfig(), ServerConfig(use_set_path=False)
        yield (
            "inserted, set path",
            by_set,
            lambda case: [
                f"INSERT INTO {case.keyed} SELECT id, v, 0 FROM {case.stash}",
                f"INSERT INTO {case.keyless} SELECT id, v FROM {case.stash}",
            ],
        )
        yield (
            "updated, set path",
            by_set,
            lambda case: [
                statement
                for number in range(len(case.texts))
                for statement in (
                    f"UPDATE {case.keyed} SET v = {case.stashed(number ^ 1)} WHERE id = {number}",
                    f"UPDATE {case.keyless} SET v = {case.stashed(number ^ 1)} WHERE n = {number}",
                )
            ],
        )
        yield (
            "updated back, row path",
            by_row,
            lambda case: [
                f"UPDATE {case.keyed} k SET v = s.v FROM {case.stash} s WHERE k.id = s.id",
                f"UPDATE {case.keyless} k SET v = s.v FROM {case.stash} s WHERE k.n = s.id",
            ],
        )
        yield (
            "inserted one by one, row path",
            by_row,
            lambda case: [
                f"INSERT INTO {case.keyed} SELECT id + 100, v, 0 FROM {case.stash} WHERE id = {number}"
                for number in range(len(case.texts))
            ],
        )
        # Rows that differ in nothing but the bits of a value.
        yield (
            "deleted among its like, row path",
            by_row,
            lambda case: [
                f"UPDATE {case.keyless} SET n = n / 2",
                *(
                    f"DELETE FROM {case.keyless}"
                    f" WHERE ctid = (SELECT min(ctid) FROM {case.keyless} WHERE n = {number} / 2)"
                    for number in range(0, len(case.texts), 4)
                ),
            ],
        )
        yield (
            "deleted among its like, set path",
            by_set,
            lambda case: [
                f"DELETE FROM {case.keyless} WHERE ctid = (SELECT max(ctid) FROM {case.keyless} WHERE n = {number} / 2)"
                for number in range(2, len(case.texts), 4)
            ],
        )

    def _verify(self, cases: Sequence[Case], changed: Mapping[str, set[int]]) -> None:
        """Have the tables compared: the rows whose value was changed at the target differ, by id, and no others."""
        found = look(self.lab, [name for case in cases for name in case.names])
        differing = {x.table.name: {d.key.get("id") for d in x.differences} for x in found.tables if x.differing}
        for case in cases:
            wanted = {str(number) for number in changed.get(case.keyed, ())}
            for name, ids in zip(case.names, (wanted, set()), strict=True):
                if differing.get(name, set()) != ids:
                    lost = ", ".join(sorted(map(str, differing.get(name, set()) ^ ids)))
                    self._wrong(case, "verify", f"{name} differs otherwise than it does in rows {lost}")

    def _conflicts(self, cases: Sequence[Case]) -> None:
        """Change values at the target, then the same rows at the source: verify and apply must notice.

        And apply leaves them alone.
        """
        changes = [
            "UPDATE {} SET other = 1 WHERE id = {}",
            "DELETE FROM {} WHERE id = {}",
            "UPDATE {} SET v = (SELECT v FROM {stash} WHERE id = 0) WHERE id = {}",
        ]
        forms: dict[str, dict[Any, Any]] = {}
        changed: dict[str, set[int]] = {}
        for case in cases:
            self._copy_stash(case)
            forms[case.keyed] = own = self._forms(self.source, case.stash, "id", case)
            changed[case.keyed] = {number for number in range(0, len(case.texts), 2) if own[number] != own[number ^ 1]}
            for number in changed[case.keyed]:
                self.target.execute(f"UPDATE {case.keyed} SET v = {case.stashed(number ^ 1)} WHERE id = {number}")
        self._verify(cases, changed)
        wanted: dict[str, int] = {}
        for case in cases:
            own = forms[case.keyed]
            self._set_any_settings()
            for number in sorted(changed[case.keyed]):
                is_new = own[0] not in (own[number], own[number ^ 1])
                change = changes[number // 2 % (len(changes) if is_new else 2)]
                done = self.writer.execute(change.format(case.keyed, number, stash=case.stash))
                wanted[case.keyed] = wanted.get(case.keyed, 0) + done.rowcount
        before = {case.keyed: self._forms(self.target, case.keyed, "id", case) for case in cases}
        self._apply(ServerConfig(use_set_path=self._chance.random() < 0.5))
        found = Counter(f'public."{entry.table.name}"' for entry in self.lab.errors() if entry.table)
        for case in cases:
            after = self._forms(self.target, case.keyed, "id", case)
            if after != before[case.keyed]:
                lost = sorted(key for key in before[case.keyed] if after.get(key) != before[case.keyed][key])
                local, wanted_there = ([case.texts[k % 100 ^ n][:80] for k in lost[:4]] for n in (1, 0))
                self._wrong(case, "local change", f"overwritten in silence: {local} in place of {wanted_there}")
            elif found[case.keyed] != wanted.get(case.keyed, 0):
                self._wrong(
                    case, "local change", f"{found[case.keyed]} conflicts instead of {wanted.get(case.keyed, 0)}"
                )

    def _apply(self, config: ServerConfig) -> None:
        self.lab.apply(config=config)

    def _find_wrong(self, case: Case, phase: str) -> bool:
        errors = [e for e in self.lab.errors() if e.table and f'public."{e.table.name}"' in (case.keyed, case.keyless)]
        if errors:
            return self._wrong(case, phase, f"error queue: {errors[0].error_number} {errors[0].error_message[:300]}")
        for table, key in ((case.keyed, "id"), (case.keyless, "n")):
            sent, arrived = (self._forms(side, table, key, case) for side in (self.source, self.target))
            if sent != arrived:
                lost = [repr(x) for key in sent if arrived.get(key) != sent[key] for x in (sent[key], arrived.get(key))]
                return self._wrong(case, phase, f"sent, arrived: {', '.join(lost)[:400]}")
        return False

    def _wrong(self, case: Case, phase: str, text: str) -> bool:
        self.result.wrong.append(Wrong(case.kind.sql, phase, text))
        return True

    def _make(self, number: int, kind: Kind) -> Case | None:
        """Make the values of a type, and keep them at the source where no capture sees them."""
        case = Case(kind, f'public."k{number}"', f'public."w{number}"', f'made."s{number}"')
        # Twins first, so that they are partners.
        twins = kind.twins()
        given: list[str | None] = [
            x for pair in self._chance.sample(twins, min(len(twins), _VALUES // 4)) for x in pair
        ]
        self.source.execute(f"CREATE TABLE {case.stash} (id int PRIMARY KEY, v {kind.sql})")
        kept: list[str] = []
        why = ""
        for attempt in range(_VALUES * 12):
            if len(kept) >= _VALUES or (attempt > _VALUES * 3 and len(kept) >= 2 and len(kept) % 2 == 0):
                break
            text = given[attempt] if attempt < len(given) else kind.value(self._chance)
            try:
                self.source.execute(f"INSERT INTO {case.stash} VALUES (%s, %s::{kind.sql})", [len(kept), text])
            except psycopg.Error as exc:
                why = str(exc).splitlines()[0]
                if attempt < len(given) and attempt % 2 and len(kept) % 2:
                    # Half of a pair is none.
                    self.source.execute(f"DELETE FROM {case.stash} WHERE id = {len(kept) - 1}")
                    kept.pop()
                continue
            kept.append(text or "")
        if len(kept) < 2:
            self.result.left_out[kind.sql] = why
            return None
        if len(kept) % 2:
            self.source.execute(f"DELETE FROM {case.stash} WHERE id = {len(kept) - 1}")
            kept.pop()
        case.texts = kept
        return case

    def _copy_stash(self, case: Case) -> None:
        """Have the same values at the target, not by way of Penstock."""
        form = "(FORMAT binary)" if case.kind.is_portable else ""
        self.target.execute(f"CREATE TABLE {case.stash} (id int PRIMARY KEY, v {case.kind.sql})")
        with (
            self.source.cursor().copy(f"COPY {case.stash} TO STDOUT {form}") as out,
            self.target.cursor().copy(f"COPY {case.stash} FROM STDIN {form}") as into,
        ):
            for block in out:
                into.write(block)

    def _forms(self, side: psycopg.Connection[Any], table: str, key: str, case: Case) -> dict[Any, Any]:
        """What each value looks like, as text and, where it means something elsewhere, as bits."""
        query = sql.SQL("COPY (SELECT {}, v FROM {} ORDER BY 1) TO STDOUT {}")
        forms: dict[Any, Any] = {}
        for form in ["", "(FORMAT binary)"] if case.kind.is_portable else [""]:
            with side.cursor().copy(query.format(sql.SQL(key), sql.SQL(table), sql.SQL(form))) as copy:
                if form:
                    copy.set_types(["int4", "bytea"])
                    rows = [(number, value) for number, value in _binary_rows(copy)]
                else:
                    rows = [
                        (int(n), value)
                        for n, value in (row.decode().rstrip("\n").split("\t", 1) for row in _lines(copy))
                    ]
            for number, value in rows:
                forms.setdefault(number, []).append(value)
        # Rows of one number have no order.
        return {number: sorted(values, key=repr) for number, values in forms.items()}

    def _settings(self) -> dict[str, str]:
        """A random choice of settings, as SQL."""
        choices = {**_CHOICES, "lc_monetary": ["C", *self._locales]}
        found = {name: self._chance.choice(values) for name, values in choices.items()}
        self.result.monetary.add(found["lc_monetary"])
        return {name: value if name == "search_path" else repr(value) for name, value in found.items()}

    @property
    def _locales(self) -> Sequence[str]:
        return LOCALES if isinstance(self._source, InstalledPostgres) else ()

    def _set_any_settings(self) -> None:
        for name, value in self._settings().items():
            self.writer.execute(f"SET {name} = {value}")

    def _canonical(self, server: EmbeddedPostgres, name: str) -> psycopg.Connection[Any]:
        connection = psycopg.connect(server.url(name), autocommit=True, prepare_threshold=None, options=_CANONICAL)
        self._stack.enter_context(closing(connection))
        return connection


@dataclass
class Case:
    """A type in a round, its tables, and its values as they were given."""

    kind: Kind
    keyed: str
    keyless: str
    stash: str
    texts: list[str] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, str]:
        """The names of its two tables, the one with a key first."""
        return self.keyed.split('"')[1], self.keyless.split('"')[1]

    def stashed(self, number: int) -> str:
        """SQL for a value, as it was made."""
        return f"(SELECT v FROM {self.stash} WHERE id = {number})"


def type_names(source: EmbeddedPostgres, target: EmbeddedPostgres) -> list[str]:
    """The types that a column can have there."""
    with Round(source, target, random.Random(0)) as made:
        return [kind.sql for kind in made.kinds()]


def play(source: EmbeddedPostgres, target: EmbeddedPostgres, seed: int, chosen: Sequence[str]) -> Result:
    """One round over the chosen types; where a type stops everything, over the halves each by itself."""
    with Round(source, target, random.Random(seed)) as made:
        kinds = {kind.sql: kind for kind in made.kinds()}
        try:
            made.play([kinds[name] for name in chosen])
        except Exception as exc:
            if len(chosen) == 1:
                made.result.wrong.append(Wrong(chosen[0], "stops everything", f"{type(exc).__name__}: {exc}"[:500]))
                return made.result
            print(f"{len(chosen)} types stop: {type(exc).__name__}: {str(exc)[:200]}", file=sys.stderr)
            half = len(chosen) // 2
            result = play(source, target, seed, chosen[:half])
            result.add(play(source, target, seed, chosen[half:]))
            return result
        return made.result


def _lines(copy: psycopg.Copy) -> Iterator[bytes]:
    rest = b""
    for block in copy:
        *whole, rest = (rest + bytes(block)).split(b"\n")
        yield from whole


def _binary_rows(copy: psycopg.Copy) -> Iterator[tuple[int, bytes | None]]:
    for row in copy.rows():
        yield row[0], row[1]


def _drop(server: EmbeddedPostgres, name: str) -> None:
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def main(arguments: Sequence[str], say: Callable[[str], None] = print) -> int:
    """Play rounds until the time is up; returns 1 if a value was lost or changed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.types", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", action="append", default=[], help="only this type; may be given more than once")
    parser.add_argument("--share", type=float, default=0.4, help="share of the types in one round")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    until = time.monotonic() + given.minutes * 60
    total = Result()
    number = 0
    with wheel_pair() as wheel, installed_pair() as installed:
        pairs = [(pair, type_names(*pair)) for pair in (wheel, installed)]
        while number < given.rounds if given.rounds else time.monotonic() < until:
            # The same pair again for the same seed.
            pair, names = pairs[(seed + number) % 2]
            share = random.Random(seed + number).sample(names, max(1, int(len(names) * given.share)))
            chosen = [name for name in names if name in given.only] if given.only else share
            found = play(*pair, seed + number, chosen)
            if found.wrong and not total.wrong:
                say(f"again: python -m tests.fuzz.types --rounds 1 --seed {seed + number} --share {given.share}")
            total.add(found)
            number += 1
    say(total.report())
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
