"""Two databases to which the same is done, one of them captured, and the copy of that one.

A step is one statement of one session. It is carried out in both databases, and has to answer alike. DDL is carried out
at the target too, after everything that was captured before it is applied, as a careful user would. A sync compares
all three.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.connection import quote
from penstock.errors import PenstockError
from penstock.stream import roots
from tests.lab import Lab
from tests.properties import schemas

SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    # What it locks, and when, would differ between the databases.
    "autovacuum": "off",
    "max_locks_per_transaction": "256",
}

PATTERNS = ["*.*"]
SCHEMAS = ["public", "s0", "S 1"]
OWNER, WRITER, BOSS = "fuzz_owner", "fuzz_writer", "fuzz_boss"
SESSIONS = [OWNER, WRITER, BOSS, OWNER]
"""The role of each session: who owns the tables (twice), who may only write to them, and a superuser."""

_ROLES = f"""
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{OWNER}') THEN
    CREATE ROLE {OWNER} LOGIN; CREATE ROLE {WRITER} LOGIN; CREATE ROLE {BOSS} LOGIN SUPERUSER;
  END IF;
END $$
"""
_PRELUDE = f"""
GRANT ALL ON SCHEMA public TO {OWNER};
CREATE SCHEMA s0 AUTHORIZATION {OWNER};
CREATE SCHEMA "S 1" AUTHORIZATION {OWNER};
GRANT USAGE ON SCHEMA public, s0, "S 1" TO {WRITER};
ALTER DEFAULT PRIVILEGES FOR ROLE {OWNER} IN SCHEMA public, s0, "S 1" GRANT ALL ON TABLES TO {WRITER};
ALTER DEFAULT PRIVILEGES FOR ROLE {OWNER} IN SCHEMA public, s0, "S 1" GRANT ALL ON SEQUENCES TO {WRITER};
ALTER DEFAULT PRIVILEGES FOR ROLE {BOSS} IN SCHEMA public, s0, "S 1" GRANT ALL ON TABLES TO {WRITER}, {OWNER};
CREATE FOREIGN DATA WRAPPER nowhere;
CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere;
GRANT USAGE ON FOREIGN SERVER nowhere TO {OWNER};
SET ROLE {OWNER};
CREATE TABLE public.anchor (id int PRIMARY KEY, v text);
RESET ROLE;
"""
_TABLES = """
SELECT n.nspname, c.relname,
  (SELECT rn.nspname FROM pg_class r JOIN pg_namespace rn ON rn.oid = r.relnamespace
   WHERE r.oid = pg_partition_root(c.oid)),
  (SELECT r.relname FROM pg_class r WHERE r.oid = pg_partition_root(c.oid)),
  (SELECT coalesce(string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum), '') FROM pg_attribute a
   WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence <> 't' AND n.nspname = ANY (%s) ORDER BY 1, 2
"""
_ROOTS = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname = ANY (%s)
"""
_CANONICAL = "-c datestyle=ISO -c intervalstyle=iso_8601 -c timezone=UTC -c extra_float_digits=1 -c lc_monetary=C"

_IN_THE_WAY = ("55P03", "40P01", "40001")
"""How a statement is refused because of what other sessions do."""

_numbers = count(1)


@dataclass(frozen=True)
class Step:
    """One thing to do.

    Attributes:
        session: Whose statement it is, an index into `SESSIONS`; -1 for a sync.
        sql: The statement; of a sync "", or "setup" where `penstock setup` is run even if nothing asks for it.
        data: What COPY reads.
        is_ddl: It is to be carried out at the target too.
        moves_rows: It writes rows that capture does not see, such as those of a table that is rewritten.
    """

    session: int
    sql: str
    data: str | None = None
    is_ddl: bool = False
    moves_rows: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


SYNC = Step(-1, "")


@dataclass(frozen=True)
class Outcome:
    """How a statement was answered."""

    sqlstate: str | None
    rowcount: int = 0
    rows: tuple[str, ...] = ()
    message: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.rowcount} rows" if self.sqlstate is None else f"{self.sqlstate} {self.message}"


class Failure(Exception):
    """Penstock did what it must not. `kind` stays the same when the statements around it are left out."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = text

    def __str__(self) -> str:
        return f"{self.kind}\n{self.text}"


class RoundOver(Exception):
    """Nothing more can be learned from these databases, and no harm was done."""


@dataclass(frozen=True)
class Refusal:
    """What Penstock says itself that it does not, or cannot, follow."""

    stops: str = ""
    warnings: str = ""

    def names(self, schema: str, name: str) -> bool:
        """Whether a table is meant, written in any way that messages have."""
        text = f"{self.stops}\n{self.warnings}"
        forms = (f"{schema}.{name}", quote(schema, name), *([quote(name), name] if schema == "public" else []))
        return any(re.search(rf'(?<![\w."]){re.escape(form)}(?![\w."])', text) for form in forms)

    def and_also(self, other: Refusal) -> Refusal:
        """Both of them."""
        return Refusal(f"{self.stops}\n{other.stops}".strip(), f"{self.warnings}\n{other.warnings}".strip())

    def __bool__(self) -> bool:
        return bool(self.stops or self.warnings)


class _Told:
    """A run's listener that keeps the warnings."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warned(self, text: str, event: str = "note", facts: object = None) -> None:
        self.texts.append(text)

    def __getattr__(self, _: str) -> Any:
        return lambda *__, **___: None


def refused(lab: Lab) -> Refusal:
    """What `penstock run` would say before it applies anything. The only place that knows how it says so."""
    told = _Told()
    try:
        lab.pipeline(PATTERNS)._check_capture(told)
    except PenstockError as exc:
        return Refusal(stops=str(exc), warnings="\n".join(told.texts))
    return Refusal(warnings="\n".join(told.texts))


@dataclass(frozen=True)
class _Table:
    schema: str
    name: str
    root: tuple[str, str]
    columns: str

    @property
    def sql(self) -> str:
        return quote(self.schema, self.name)


class World:
    """The databases of one round."""

    def __init__(self, server: EmbeddedPostgres, *, is_superuser: bool, loud: Counter[str] | None = None) -> None:
        self.is_superuser = is_superuser
        self.loud: Counter[str] = Counter() if loud is None else loud
        """What was refused, and how often."""
        self._server = server
        self._name = f"fuzz{next(_numbers)}"
        self._stack = ExitStack()
        self._pending: list[list[tuple[str, Step | None]]] = [[] for _ in SESSIONS]
        self._excuse = ""
        self._is_set_up = False

    def __enter__(self) -> World:
        self._stack.__enter__()
        with self._connect(None) as admin:
            admin.execute(_ROLES)
            for side in "abt":
                database = f"{self._name}_{side}"
                admin.execute(f"CREATE DATABASE {database}")
                self._stack.callback(self._drop, database)
                admin.execute(f"GRANT CREATE ON DATABASE {database} TO {OWNER}")
        for side in "abt":
            with self._connect(side) as made:
                made.execute(_PRELUDE)
        self.a, self.b, self.t = (self._stack.enter_context(self._connect(side)) for side in "abt")
        # A first copy waits for DDL that is open, as a run's would; here nobody would ever end it.
        self.a.execute("SET lock_timeout = '5s'")
        self.sessions = [
            tuple(self._stack.enter_context(self._connect(side, role)) for side in "ab") for role in SESSIONS
        ]
        # Under the settings of its session, since they decide what a rewritten column holds.
        self._mirrors = [self._stack.enter_context(self._connect("t", "postgres", options="")) for _ in SESSIONS]
        for pair in self.sessions:
            for session in pair:
                session.execute("SET lock_timeout = '250ms'")
        setup_role = "postgres" if self.is_superuser else OWNER
        self.lab = self._stack.enter_context(Lab(self._url("a", setup_role), self._url("t"), name="fuzz"))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.__exit__(None, None, None)

    def take(self, step: Step) -> Outcome:
        """Carry out a step.

        Raises:
            Failure: The databases answer differently, or are different afterwards.
            RoundOver: Penstock, or the target, cannot go on, and says so.
        """
        if step.session < 0:
            self.sync(always_setup=step.sql == "setup")
            return Outcome(None)
        at_a, at_b = self.sessions[step.session]
        is_inside = at_a.info.transaction_status != TransactionStatus.IDLE
        pending = self._pending[step.session]
        word = step.sql.split(None, 1)[0].upper()
        if (step.is_ddl and not is_inside) or word == "BEGIN" or (word == "COMMIT" and pending):
            self.drain()
        with_capture, without = execute(at_a, step), execute(at_b, step)
        if with_capture.sqlstate is None and without.sqlstate in _IN_THE_WAY:
            # What capture did earlier, such as giving a table its first trigger, may spare a later statement a lock.
            raise RoundOver("the statement waits only without capture")
        if with_capture != without:
            kind = f"answer: {_difference(step.sql, with_capture, without)}"
            raise Failure(kind, f"with capture:    {with_capture}\nwithout capture: {without}")
        if without.sqlstate is None:
            self._note(step, is_inside=is_inside)
        if at_b.info.transaction_status == TransactionStatus.IDLE and is_inside:
            done = [given for kind, given in pending if kind == "ddl"]
            pending.clear()
            if without.sqlstate is None and without.message == "COMMIT":
                for given in done:
                    assert given is not None
                    self._mirror(given)
                    if given.moves_rows:
                        self._excuse = "a table was rewritten in a transaction that wrote to it"
        return without

    def _note(self, step: Step, *, is_inside: bool) -> None:
        """Remember DDL until its transaction commits, and forget it where a savepoint is rolled back."""
        pending = self._pending[step.session]
        if step.is_ddl or re.match(r"(RE)?SET (?!CONSTRAINTS|session_replication_role)", step.sql):
            if is_inside:
                pending.append(("ddl", step))
            else:
                self._mirror(step)
        elif step.sql.startswith("SAVEPOINT"):
            pending.append(("savepoint", None))
        elif step.sql.startswith("ROLLBACK TO"):
            while pending and pending[-1][0] != "savepoint":
                pending.pop()

    def _mirror(self, step: Step) -> None:
        try:
            self._mirrors[step.session].execute(step.sql)
        except psycopg.Error as exc:
            self.loud["the target cannot follow the DDL"] += 1
            raise RoundOver(f"{step.sql}: {exc}") from exc

    def drain(self) -> None:
        """Copy what is new, and apply what is captured, as a run does."""
        if not self._is_set_up:
            return
        try:
            self._copy_new()
            self.lab.apply()
        except PenstockError as exc:
            self._excuse = f"apply: {anonymous(str(exc))}"
            raise RoundOver(self._count(self._excuse)) from exc
        except RoundOver:
            raise
        except Exception as exc:
            raise Failure(f"apply breaks: {type(exc).__name__}", str(exc)) from exc

    def sync(self, *, always_setup: bool = False) -> None:
        """Compare all three; have Penstock set up anew what it says it does not follow."""
        for number, (at_a, _) in enumerate(self.sessions):
            if at_a.info.transaction_status != TransactionStatus.IDLE:
                self.take(Step(number, "COMMIT"))
        self._compare_sources()
        if not self._is_set_up:
            self._setup()
            try:
                self.lab.start()
            except PenstockError as exc:
                raise RoundOver(self._count(f"start: {anonymous(str(exc))}")) from exc
            # A run copies, and knows, roots only.
            self.t.execute("DELETE FROM penstock.instantiation")
            self._is_set_up = True
            self._copy_all()
            return
        refusal = refused(self.lab)
        self.drain()
        copied = self._copied()
        if refusal or always_setup:
            if refusal:
                self._count(f"run: {anonymous(refusal.stops or refusal.warnings)}")
            for table in self._tables(self.t):
                if refusal.names(table.schema, table.name) or table.root not in copied:
                    self._empty(table)
            self._setup()
            # What stopped the run may have kept it from saying more.
            refusal = refusal.and_also(refused(self.lab))
            self.drain()
        if self.lab.errors():
            for entry in self.lab.errors():
                self._count(f"error queue: {entry.error_number} {anonymous(entry.error_message)}")
            self._excuse = "error queue"
            self.t.execute("DELETE FROM penstock.error")
        if not self._excuse:
            self._compare_copy(refusal)
        self._copy_all()

    def compare_schemas(self) -> None:
        """See that what the catalogues of source and copy differ by is told, once a cutover has made what it makes."""
        pipeline = self.lab.pipeline(PATTERNS)
        try:
            told = schemas.build_post_data(pipeline, PATTERNS)
            schemas.check_told(self.lab, (self._server, self._server), told, PATTERNS)
        except PenstockError as exc:
            raise RoundOver(self._count(f"schemas: {anonymous(str(exc))}")) from exc
        except AssertionError as exc:
            raise Failure("schema: differs, in silence", str(exc)) from exc

    def _empty(self, table: _Table) -> None:
        """Empty a table of the target's, as setup asks for before it copies a table anew."""
        try:
            self.t.execute("SET session_replication_role = replica")
            self.t.execute(f"DELETE FROM ONLY {table.sql}")
        except psycopg.Error as exc:
            raise RoundOver(self._count("a table of the target cannot be emptied")) from exc
        finally:
            self.t.execute("RESET session_replication_role")

    def _count(self, what: str) -> str:
        self.loud[what] += 1
        return what

    def _setup(self) -> None:
        try:
            self.lab.pipeline(PATTERNS).setup()
        except PenstockError as exc:
            raise RoundOver(self._count(f"setup: {anonymous(str(exc))}")) from exc
        except Exception as exc:
            raise Failure(f"setup breaks: {type(exc).__name__}", str(exc)) from exc

    def _compare_sources(self) -> None:
        """Hold the captured source against the other: capture changes nothing."""
        at_a, at_b = self._tables(self.a), self._tables(self.b)
        if at_a != at_b:
            raise Failure("source: other tables", f"with capture: {at_a}\nwithout: {at_b}")
        for table in at_a:
            found, wanted = _rows(self.a, table), _rows(self.b, table)
            if found != wanted:
                raise Failure("source: other rows", f"{table.sql}\nwith capture: {found}\nwithout: {wanted}")

    def _compare_copy(self, refusal: Refusal) -> None:
        there = {(table.schema, table.name): table for table in self._tables(self.t)}
        for table in self._tables(self.a):
            names = {(table.schema, table.name), table.root}
            if any(refusal.names(*name) for name in names):
                continue
            copy = there.get((table.schema, table.name))
            if copy is None:
                raise Failure("copy: no such table, in silence", table.sql)
            found, wanted = _rows(self.t, copy), _rows(self.a, table)
            if found != wanted:
                extra, missing = (
                    list((Counter(found) - Counter(wanted)).elements()),
                    list((Counter(wanted) - Counter(found)).elements()),
                )
                raise Failure(
                    f"copy: {'rows too many' if extra else ''}{' and ' if extra and missing else ''}"
                    f"{'rows missing' if missing else ''}, in silence",
                    f"{table.sql}\nat the target only: {extra[:20]}\nat the source only: {missing[:20]}",
                )

    def _copy_new(self) -> None:
        """Make the first copies of what is captured and not copied yet, at a position as a run would."""
        new = {(name.schema, name.name) for name in roots(self.lab.log.tables())} - self._copied()
        existing = {(schema, name) for schema, name in self.a.execute(_ROOTS, [SCHEMAS])}
        if not new & existing:
            return
        scn = self.lab.log.tick()
        self._copy(lambda table: table.root in new)
        self._count_as_copied(new & existing, scn)

    def _copy_all(self) -> None:
        """Make the copy equal again; everything captured so far is applied."""
        state = self.lab.ledger.state()
        assert state is not None
        self._copy(lambda _: True)
        existing = {(schema, name) for schema, name in self.a.execute(_ROOTS, [SCHEMAS])}
        captured = {(name.schema, name.name) for name in roots(self.lab.log.tables())}
        self._count_as_copied(captured & existing, state.low_watermark)
        self._excuse = ""

    def _copy(self, is_wanted: Callable[[_Table], bool]) -> None:
        there = {(table.schema, table.name): table for table in self._tables(self.t)}
        try:
            self.t.execute("SET session_replication_role = replica")
            for table in filter(is_wanted, self._tables(self.a)):
                copy = there[(table.schema, table.name)]
                if _rows(self.a, table) == _rows(self.t, copy):
                    continue
                self.t.execute(f"DELETE FROM ONLY {copy.sql}")
                columns = table.columns
                if not columns:
                    continue
                with (
                    self.a.cursor().copy(f"COPY (SELECT {columns} FROM ONLY {table.sql}) TO STDOUT") as out,
                    self.t.cursor().copy(f"COPY {copy.sql} ({columns}) FROM STDIN") as into,
                ):
                    for block in out:
                        into.write(block)
        except (KeyError, psycopg.Error) as exc:
            self.loud["the target cannot be copied to"] += 1
            raise RoundOver(f"the copy fails: {exc}") from exc
        finally:
            self.t.execute("RESET session_replication_role")

    def _count_as_copied(self, names: set[tuple[str, str]], scn: int) -> None:
        for schema, name in names:
            self.t.execute(
                "INSERT INTO penstock.instantiation (process, schema_name, table_name, scn, snapshot, state)"
                " VALUES ('fuzz', %s, %s, %s, '', 'READY') ON CONFLICT DO NOTHING",
                [schema, name, int(scn)],
            )

    def _copied(self) -> set[tuple[str, str]]:
        return {(name.schema, name.name) for name in self.lab.ledger.instantiated()}

    def _tables(self, connection: psycopg.Connection[Any]) -> list[_Table]:
        rows = connection.execute(_TABLES, [SCHEMAS]).fetchall()
        return [
            _Table(schema, name, (root_s or schema, root or name), cols) for schema, name, root_s, root, cols in rows
        ]

    def _url(self, side: str | None, role: str = "postgres") -> str:
        return self._server.url(f"{self._name}_{side}" if side else "postgres").replace("postgres@", f"{role}@", 1)

    def _connect(
        self, side: str | None, role: str = "postgres", *, options: str | None = None
    ) -> psycopg.Connection[Any]:
        if options is None:
            options = _CANONICAL if role == "postgres" else ""
        return psycopg.connect(self._url(side, role), autocommit=True, prepare_threshold=None, options=options)

    def _drop(self, database: str) -> None:
        with suppress(psycopg.Error), self._connect(None) as admin:
            admin.execute(f"DROP DATABASE {database} WITH (FORCE)")


def play(world: World, steps: Sequence[Step]) -> Iterator[tuple[Step, Outcome]]:
    """Carry out steps one by one."""
    for step in steps:
        yield step, world.take(step)


@contextmanager
def fuzz_server() -> Iterator[EmbeddedPostgres]:
    """A server for rounds, which is faster than it is safe."""
    with EmbeddedPostgres(settings=SETTINGS) as server:
        yield server


def execute(connection: psycopg.Connection[Any], step: Step) -> Outcome:
    try:
        with connection.cursor() as cursor:
            if step.data is not None:
                with cursor.copy(step.sql) as copy:
                    copy.write(step.data)
            else:
                cursor.execute(step.sql)
            rows = tuple(sorted(map(repr, cursor.fetchall()))) if cursor.description else ()
            return Outcome(None, cursor.rowcount, rows, cursor.statusmessage or "")
    except psycopg.Error as exc:
        return Outcome(exc.sqlstate or type(exc).__name__, message=str(exc).strip())


def _rows(connection: psycopg.Connection[Any], table: _Table) -> list[str]:
    query = f'SELECT x FROM (SELECT r::text AS x FROM ONLY {table.sql} AS r) q ORDER BY x COLLATE "C"'
    return [row[0] for row in connection.execute(query)]


def _difference(sql: str, found: Outcome, wanted: Outcome) -> str:
    if found.sqlstate is not None:
        return f"{found.sqlstate} {anonymous(found.message)}"
    return f"{sql.split(None, 1)[0]} {'works' if wanted.sqlstate else 'answers otherwise'}"


def anonymous(text: str) -> str:
    """The message without names and numbers, so that equal ones are counted together."""
    names = r"^.*(?= is not captured)|(?<=the name of ).*(?=, and is not)|(?<=table ).*(?= was never)"
    text = re.sub(rf"{names}|(?<=partition ).*(?= was )|(?<= \().*(?=\))", "…", text)
    return re.sub(r"\d+", "#", re.sub(r'"[^"]*"|\'[^\']*\'', "…", text.split("\n")[0]))[:160]
