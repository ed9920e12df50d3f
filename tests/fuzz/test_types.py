"""A short form of `python -m tests.fuzz.types`: a quarter of the types, and always the same values."""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.fuzz.types import Round, play
from tests.fuzz.values import TWINS, Kind
from tests.fuzz.world import SETTINGS


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    settings = {**SETTINGS, "jit": "off"}
    with EmbeddedPostgres(settings=settings) as source, EmbeddedPostgres(settings=settings) as target:
        yield source, target


@pytest.mark.parametrize("seed", [1, 2])
def test_values_arrive_bit_by_bit(servers: tuple[EmbeddedPostgres, EmbeddedPostgres], seed: int) -> None:
    result = play(*servers, seed, share=0.25)
    assert not result.wrong, result.report()


@pytest.fixture
def made(servers: tuple[EmbeddedPostgres, EmbeddedPostgres]) -> Iterator[Round]:
    with Round(*servers, random.Random(1)) as made:
        yield made


def test_only_types_without_input_and_extensions_that_are_missing_are_left_out(made: Round) -> None:
    kinds = {kind.sql for kind in made.kinds()}
    assert {"integer", "integer[]", "numrange", "tstzmultirange[]", "made.nested", "made.amount", "xid8"} <= kinds
    left_out = [name for name in made.result.left_out if not name.startswith("extension ")]
    assert all(name.startswith(("pg_", "gtsvector", "cstring")) for name in left_out), left_out


def test_twins_are_values_with_other_bits(made: Round) -> None:
    for kind in made.kinds():
        if kind.name in TWINS and kind.type == "b":
            made.source.execute(f"CREATE TABLE made.twins (id int, v {kind.sql})")
            for number, pair in enumerate(TWINS[kind.name] if _is_supported(made, kind) else []):
                for value in pair:
                    made.source.execute("INSERT INTO made.twins VALUES (%s, %s)", [number, value])
            case = _case(kind)
            for number, forms in made._forms(made.source, "made.twins", "id", case).items():
                assert len({repr(form) for form in forms}) > 1, (kind.sql, TWINS[kind.name][number])
            made.source.execute("DROP TABLE made.twins")


def test_values_that_arrive_otherwise_are_noticed(made: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    real = made.lab.apply

    def apply_and_spoil(**options: object) -> object:
        results = real(**options)
        made.target.execute("SET session_replication_role = replica")
        made.target.execute("UPDATE public.k0 SET v = v::numeric(20, 3)")
        made.target.execute("RESET session_replication_role")
        return results

    monkeypatch.setattr(made.lab, "apply", apply_and_spoil)
    kinds = {kind.sql: kind for kind in made.kinds()}
    made.play([kinds["made.amount"], kinds["integer"]])
    assert {wrong.type for wrong in made.result.wrong} == {"made.amount"}


def test_a_local_change_that_is_overwritten_is_noticed(made: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    real = made.lab.apply
    is_last = False

    def conflicts(cases: object) -> None:
        nonlocal is_last
        is_last = True
        type(made)._conflicts(made, cases)

    def apply(**options: object) -> object:
        if is_last:
            made.target.execute("UPDATE public.k0 SET v = 5")
        return real(**options)

    monkeypatch.setattr(made, "_conflicts", conflicts)
    monkeypatch.setattr(made.lab, "apply", apply)
    kinds = {kind.sql: kind for kind in made.kinds()}
    made.play([kinds["integer"]])
    assert ["overwritten in silence" in wrong.text for wrong in made.result.wrong] == [True]


def test_every_kind_makes_values_that_the_server_takes(made: Round) -> None:
    lost = []
    for number, kind in enumerate(made.kinds()):
        if made._make(number, kind) is None:
            lost.append(kind.sql)
    # A server may be built without libxml, and says so.
    assert lost == [name for name in lost if name.startswith("xml")]


def test_parts_are_quoted(made: Round) -> None:
    text = Kind("text", "text", "b")
    array = Kind("_text", "text[]", "a", text)
    for seed in range(300):
        value = array.value(random.Random(seed))
        with psycopg.ClientCursor(made.source) as cursor:
            cursor.execute("SELECT %s::text[]", [value])


def _is_supported(made: Round, kind: Kind) -> bool:
    return kind.name != "xml" or made._make(0, kind) is not None


def _case(kind: Kind):
    from tests.fuzz.types import Case

    return Case(kind, "", "", "")
