"""Every combination of handlers, and what comes of a change: a case for each row of the matrix in docs/handlers.md."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.apply.apply_errors import ROW_DIFFERS, ROW_MISSING, UNIQUE_VIOLATED, ApplyError
from penstock.apply.conflict_methods import ConflictKind, ConflictRules, Method, Resolver, TableRules
from penstock.apply.conflict_resolver import ConflictResolver
from penstock.apply.handlers import runner
from penstock.apply.lane import ServerConfig
from penstock.change import Op, TableName
from penstock.demo.servers import EmbeddedPostgres
from tests.apply import handled
from tests.apply.handled import CALLS, SEEN, on, settings, statements
from tests.conftest import create_database, drop_database
from tests.hand_made import Lcr, T, Target, update

GOES = "continue"
"""What comes of it where the next change of the transaction is applied, too; otherwise the error's number."""

FITS = update("emp", {"id": 1, "sal": "5000.00", "comm": None}, {"sal": "5100.00"})
DIFFERS = update("emp", {"id": 1, "sal": "4400.00", "comm": None}, {"sal": "5100.00"})
TIES = update("emp", {"id": 1, "sal": "4400.00", "comm": None}, {"sal": "5000.00"})
MISSES = update("emp", {"id": 99, "sal": "4400.00", "comm": None}, {"sal": "5100.00"})
"""What the change meets: the row as it says, one with another salary (equal to the new one), or none."""

NOTES = "INSERT INTO public.hist VALUES (:new.id, 's', 'd')"
FAILS = "INSERT INTO public.acct VALUES (:new.id, 'X', 0)"
X_TRUE, X_FALSE = ":lcr.execute TRUE", ":lcr.execute FALSE"

Body = Callable[..., Any]


def executes(*, resolves: bool, catches: bool = False, fails_first: bool = False, raises: bool = False) -> Body:
    def body(lcr: Any, target: Any, *errors: Any) -> None:
        SEEN.append((lcr.get_values("old"), lcr.get_values("new", use_old=False), *(e.numbers for e in errors)))
        target.execute("INSERT INTO public.hist VALUES (%s, 'p', 'd')", [lcr.get_typed("new", "id")])
        if fails_first:
            with pytest.raises(ApplyError) as error:
                target.execute("INSERT INTO public.acct VALUES (3, 'X', 0)")
            assert error.value.number == UNIQUE_VIOLATED
        try:
            lcr.execute(resolves)
        except ApplyError:
            if not catches:
                raise
        if raises:
            raise ValueError("a value")

    return body


def returns(lcr: Any, target: Any, *errors: Any) -> None:
    executes(resolves=False, catches=True)(lcr, target, *errors)


def raising(lcr: Any, target: Any, *errors: Any) -> None:
    executes(resolves=False, catches=True, raises=True)(lcr, target, *errors)


@dataclass(frozen=True)
class Row:
    """A row of the matrix: which handlers there are, what the change meets, what comes of it, and who was called.

    `calls` counts statement handlers, procedure, resolvers and error handler; `left` is the salary in the end, and
    `noted` how many rows handlers have left in `hist`.
    """

    change: Lcr
    outcome: int | str
    calls: tuple[int, int, int, int]
    sdh: tuple[tuple[str, ...], ...] = ()
    pdh: Body | None = None
    eh: Body | None = None
    uch: Method | None = None
    left: int = 5000
    noted: int = 0


OVERWRITES, MAXIMUM = Method.OVERWRITE, Method.MAXIMUM

ROWS = {
    "M1a": Row(FITS, GOES, (0, 0, 0, 0), left=5100),
    "M1b, update conflict": Row(DIFFERS, ROW_DIFFERS, (0, 0, 0, 0)),
    "M1b, other": Row(MISSES, ROW_MISSING, (0, 0, 0, 0)),
    "M2a": Row(FITS, GOES, (0, 0, 0, 0), uch=OVERWRITES, left=5100),
    "M2b": Row(MISSES, ROW_MISSING, (0, 0, 0, 0), uch=OVERWRITES),
    "M2c": Row(DIFFERS, GOES, (0, 0, 1, 0), uch=OVERWRITES, left=5100),
    "M2d": Row(TIES, ROW_DIFFERS, (0, 0, 1, 0), uch=MAXIMUM),
    "M3a": Row(FITS, GOES, (2, 0, 0, 0), sdh=((NOTES, X_TRUE), (NOTES,)), left=5100, noted=2),
    "M3b, SQL": Row(FITS, UNIQUE_VIOLATED, (1, 0, 0, 0), sdh=((X_TRUE, FAILS),)),
    "M3b, EXECUTE": Row(DIFFERS, ROW_DIFFERS, (1, 0, 0, 0), sdh=((NOTES, X_TRUE),)),
    "M3c": Row(FITS, GOES, (0, 1, 0, 0), pdh=executes(resolves=True, fails_first=True), left=5100, noted=1),
    "M3d": Row(FITS, 20000, (0, 1, 0, 0), pdh=executes(resolves=True, raises=True)),
    "M4a, EXECUTE": Row(MISSES, ROW_MISSING, (1, 0, 0, 0), sdh=((NOTES, X_TRUE),), uch=OVERWRITES),
    "M4a, SQL": Row(FITS, UNIQUE_VIOLATED, (1, 0, 0, 0), sdh=((X_TRUE, FAILS),), uch=OVERWRITES),
    "M4b, swallowed": Row(
        MISSES, GOES, (0, 1, 0, 0), pdh=executes(resolves=True, catches=True), uch=OVERWRITES, noted=1
    ),
    "M4b, raised": Row(MISSES, ROW_MISSING, (0, 1, 0, 0), pdh=executes(resolves=True), uch=OVERWRITES),
    "M4c": Row(DIFFERS, GOES, (1, 0, 1, 0), sdh=((NOTES, X_TRUE),), uch=OVERWRITES, left=5100, noted=1),
    "M4d": Row(TIES, ROW_DIFFERS, (1, 0, 1, 0), sdh=((NOTES, X_TRUE),), uch=MAXIMUM),
    "M4e": Row(DIFFERS, GOES, (0, 1, 1, 0), pdh=executes(resolves=True), uch=OVERWRITES, left=5100, noted=1),
    "M4f, swallowed": Row(TIES, GOES, (0, 1, 1, 0), pdh=executes(resolves=True, catches=True), uch=MAXIMUM, noted=1),
    "M4f, raised": Row(TIES, ROW_DIFFERS, (0, 1, 1, 0), pdh=executes(resolves=True), uch=MAXIMUM),
    "M4g": Row(DIFFERS, ROW_DIFFERS, (1, 0, 0, 0), sdh=((NOTES, X_FALSE),), uch=OVERWRITES),
    "M4h, swallowed": Row(
        DIFFERS, GOES, (0, 1, 0, 0), pdh=executes(resolves=False, catches=True), uch=OVERWRITES, noted=1
    ),
    "M4h, raised": Row(DIFFERS, ROW_DIFFERS, (0, 1, 0, 0), pdh=executes(resolves=False), uch=OVERWRITES),
    "M5a": Row(FITS, GOES, (1, 1, 0, 0), sdh=((NOTES,),), pdh=executes(resolves=True), left=5100, noted=2),
    "M5b, the procedure raises": Row(FITS, 20000, (-1, 1, 0, 0), sdh=((NOTES,),), pdh=raising),
    "M5b, a statement fails": Row(FITS, UNIQUE_VIOLATED, (1, -1, 0, 0), sdh=((FAILS,),), pdh=returns),
    "M6a": Row(MISSES, GOES, (0, 0, 0, 1), eh=returns, noted=1),
    "M6b": Row(MISSES, 20000, (0, 0, 0, 1), eh=raising),
    "M6c": Row(MISSES, GOES, (0, 0, 0, 1), eh=executes(resolves=True, fails_first=True, catches=True), noted=1),
    "M7a": Row(MISSES, GOES, (0, 0, 0, 1), eh=returns, uch=OVERWRITES, noted=1),
    "M7b": Row(DIFFERS, GOES, (0, 0, 1, 0), eh=returns, uch=OVERWRITES, left=5100),
    "M7c": Row(TIES, GOES, (0, 0, 1, 1), eh=returns, uch=MAXIMUM, noted=1),
    "M8, SQL": Row(
        FITS, GOES, (1, 0, 0, 1), sdh=((NOTES, X_TRUE, FAILS),), eh=executes(resolves=False), left=5100, noted=1
    ),
    "M8, EXECUTE": Row(
        DIFFERS, GOES, (1, 0, 0, 1), sdh=((NOTES, ":lcr.delete_column comm", X_TRUE),), eh=returns, noted=1
    ),
    "M9a": Row(MISSES, GOES, (1, 0, 0, 1), sdh=((NOTES, X_TRUE),), eh=returns, uch=OVERWRITES, noted=1),
    "M9a, SQL": Row(DIFFERS, GOES, (1, 0, 0, 1), sdh=((NOTES, FAILS, X_TRUE),), eh=returns, uch=OVERWRITES, noted=1),
    "M9b": Row(DIFFERS, GOES, (1, 0, 1, 0), sdh=((NOTES, X_TRUE),), eh=returns, uch=OVERWRITES, left=5100, noted=1),
    "M9c": Row(TIES, GOES, (1, 0, 1, 1), sdh=((NOTES, X_TRUE),), eh=returns, uch=MAXIMUM, noted=1),
    "M9d, resolved": Row(DIFFERS, GOES, (1, 0, 1, 0), sdh=((NOTES, X_FALSE),), eh=returns, uch=OVERWRITES, left=5100),
    "M9d, undecided": Row(TIES, GOES, (1, 0, 1, 1), sdh=((NOTES, X_FALSE),), eh=returns, uch=MAXIMUM, noted=1),
}


class Bench:
    """A target for many cases, one after the other, and who was called for the last one."""

    def __init__(self, url: str) -> None:
        self.target = Target(url)
        self.scn = 100

    def reset(self) -> None:
        handled.forget()
        self.target.connection.execute(
            "UPDATE emp SET sal = 5000; UPDATE acct SET bal = 100 WHERE id = 1; TRUNCATE hist;"
            " DELETE FROM penstock.error"
        )


@pytest.fixture(scope="module")
def bench(source_server: EmbeddedPostgres) -> Iterator[Bench]:
    create_database(source_server, "handler_matrix")
    made = Bench(source_server.url("handler_matrix"))
    yield made
    made.target.close()
    drop_database(source_server, "handler_matrix")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what handlers do not tell of themselves, and has those of one change run in another order each time."""
    counted: Counter[str] = Counter()
    run, resolve, handlers = runner._Steps._run_statements, ConflictResolver.resolve, runner._Steps.handlers.fget
    assert handlers is not None

    def run_statements(self: Any, handler: Any) -> None:
        counted["statements"] += 1
        run(self, handler)

    def ask(self: ConflictResolver, number: int, change: Any, table: Any, error: ApplyError) -> Any:
        meant = self._conflicts.resolvers_for(table.name, Op.UPDATE, ConflictKind.EXISTS)
        counted["resolvers"] += bool(meant) and error.number == ROW_DIFFERS
        return resolve(self, number, change, table, error)

    def shuffled(self: Any) -> list[Any]:
        found = list(handlers(self))
        random.shuffle(found)
        return found

    monkeypatch.setattr(runner._Steps, "_run_statements", run_statements)
    monkeypatch.setattr(runner._Steps, "handlers", property(shuffled))
    monkeypatch.setattr(ConflictResolver, "resolve", ask)
    return counted


@pytest.mark.rule("A-98", "A-105", "A-112", "A-113", "A-114", "A-122", "A-123", "A-124")
@pytest.mark.parametrize("name", ROWS)
def test_s90_each_row_of_the_matrix(bench: Bench, calls: Counter[str], name: str) -> None:
    row, target = ROWS[name], bench.target
    bench.reset()
    bodies = {n: body for n, body in (("procedure", row.pdh), ("error", row.eh)) if body is not None}
    named = [statements(f"h{n}", *texts) for n, texts in enumerate(row.sdh)]
    given = settings(update=on(*named, **bodies)) if named or bodies else settings()
    resolvers = (
        (Resolver(Op.UPDATE, ConflictKind.EXISTS, row.uch, ("sal",), "sal" if row.uch.compares else None),)
        if row.uch
        else ()
    )
    conflicts = ConflictRules(tables={TableName("public", "emp"): TableRules(resolvers=resolvers)})
    bench.scn += 10

    target.apply(
        T(bench.scn, row.change, update("acct", {"id": 1, "bal": "100.00"}, {"bal": "150.00"})),
        config=ServerConfig(handlers=given, conflicts=conflicts),
    )

    assert target.failed() == ([] if row.outcome == GOES else [(bench.scn, row.outcome, 1, 2)])
    assert target.one("SELECT bal FROM acct WHERE id = 1") == (150 if row.outcome == GOES else 100)
    counted = (calls["statements"], CALLS.count("procedure"), calls["resolvers"], CALLS.count("error"))
    # -1: called or not, as the order happens to be.
    assert [c for c, due in zip(counted, row.calls, strict=True) if due >= 0] == [due for due in row.calls if due >= 0]
    assert target.one("SELECT sal FROM emp WHERE id = 1") == row.left
    assert target.one("SELECT count(*) FROM hist") == row.noted
    # Whatever other handlers did to their copies, each sees the change as it came.
    assert all(
        (old, new) == (dict(row.change.before or {}) | {"id": old["id"]}, row.change.after) for old, new, *_ in SEEN
    )
