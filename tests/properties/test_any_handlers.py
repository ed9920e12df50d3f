"""With handlers and resolvers, too, any plan and any path give what serial apply gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.apply.conflict_methods import ConflictRules
from penstock.apply.handlers import ApplyError
from penstock.apply.handlers.settings import Function, HandlerSettings, OpHandlers, StatementHandler
from penstock.apply.handlers.statement import parse
from penstock.change import Op, TableName
from penstock.demo.servers import EmbeddedPostgres
from tests.examples import examples
from tests.properties.test_any_plan import RULES, WAYS, Farm, divergences, outcome, transactions

NOTE = "INSERT INTO public.note VALUES (%s, %s)"


def note_and_execute(lcr: Any, target: Any) -> None:
    target.execute(NOTE, [lcr.object_name, lcr.get_value("new", "id") or lcr.get_value("old", "id")])
    lcr.execute(True)


def execute_or_note(lcr: Any, target: Any) -> None:
    try:
        lcr.execute(True)
    except ApplyError as exc:
        target.execute(NOTE, ["failed", str(exc.number)])


def refuse_some(lcr: Any, target: Any) -> None:
    note_and_execute(lcr, target)
    if int(lcr.get_values("new")["id"]) % 2:
        raise ValueError("odd")


def swallow(lcr: Any, target: Any, errors: Any) -> None:
    target.execute(NOTE, ["swallowed", str(errors.numbers[0])])


def swallow_missing(lcr: Any, target: Any, errors: Any) -> None:
    target.execute(NOTE, ["seen", str(errors.numbers[0])])
    if errors.numbers[0] != 26787:
        raise errors.errors[0]


def refuse_long(transaction: Any, target: Any) -> None:
    target.execute(NOTE, ["commit", str(transaction.commit_scn)])
    if transaction.changes > 2:
        raise ApplyError(20500, "too long")


def function(name: str, takes: int = 2) -> Function:
    return Function(f"tests.properties.test_any_handlers:{name}", Path(), name, takes)


def statements(*texts: str) -> tuple[StatementHandler, ...]:
    return (StatementHandler("h", tuple(map(parse, texts))),)


def of_tables(precommit: Function | None = None, **tables: dict[str, OpHandlers]) -> HandlerSettings:
    made = {TableName("public", name): {Op(op): one for op, one in ops.items()} for name, ops in tables.items()}
    return HandlerSettings(tables=made, precommit=precommit)


BY_SQL = "INSERT INTO public.note VALUES (:command_type, :new.id)"
ANY_ERROR = OpHandlers(error=function("swallow", 3))

HANDLED = [
    of_tables(
        p={"update": OpHandlers(statements(BY_SQL, ":lcr.execute TRUE"))},
        c={"insert": ANY_ERROR, "update": OpHandlers(error=function("swallow_missing", 3))},
    ),
    of_tables(
        p={"insert": OpHandlers(procedure=function("execute_or_note"))},
        c={"delete": OpHandlers(procedure=function("note_and_execute"))},
        d={"insert": OpHandlers(procedure=function("refuse_some"))},
        s={"insert": ANY_ERROR, "update": ANY_ERROR, "delete": ANY_ERROR},
    ),
    of_tables(
        function("refuse_long"),
        p={"update": OpHandlers(statements(":lcr.execute FALSE", BY_SQL), error=function("swallow_missing", 3))},
    ),
]
"""Handlers that write besides only where it does not matter in which order."""


@pytest.fixture(scope="module")
def farm(source_server: EmbeddedPostgres, target_server: EmbeddedPostgres) -> Iterator[Farm]:
    made = Farm(source_server, target_server, name="handled")
    for lab in made.labs:
        lab.target.execute("CREATE TABLE note (what text, which text)")
    yield made
    made.close()


@pytest.mark.rule("A-110", "A-120", "A-122", "A-216")
@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    work=transactions,
    divergence=divergences,
    seed=st.integers(0, 9),
    handlers=st.sampled_from(HANDLED),
    said=st.sampled_from([{}, *RULES]),
)
def test_every_way_handles_the_same(
    farm: Farm, work: list[Any], divergence: list[Any], seed: int, handlers: HandlerSettings, said: dict[str, Any]
) -> None:
    farm.reset(divergence)
    for lab in farm.labs:
        lab.target.execute("TRUNCATE note")
    farm.work(work)
    tables = {TableName("public", name): rules for name, rules in said.items()}

    outcomes = []
    for lab, way in zip(farm.labs, WAYS, strict=True):
        config = replace(way.config, handlers=handlers, conflicts=ConflictRules(tables=tables))
        outcomes.append((outcome(lab, replace(way, config=config), seed), lab.rows("note")))

    for way, found in zip(WAYS[1:], outcomes[1:], strict=True):
        assert found == outcomes[0], way.name
