"""A short form of `python -m tests.fuzz.types`: every type once, and always the same values."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from penstock.verify.driver import VerifyResult
from tests.fuzz.types import EXTENSIONS, Case, Round, Servers, copy, installed_pair, look, play, type_names, wheel_pair
from tests.fuzz.values import TWINS, Kind
from tests.installed import LOCALES

NOT_PACKAGED = {"postgis"}
"""Extensions that no package which `make test` installs has."""

PARTS = 3


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with wheel_pair() as pair:
        yield pair


@pytest.fixture(scope="module")
def installed() -> Iterator[Servers]:
    with installed_pair() as pair:
        yield pair


@pytest.fixture(scope="module")
def names(servers: Servers) -> list[str]:
    return type_names(*servers)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.soak) for part in range(1, PARTS))])
def test_values_arrive_bit_by_bit(servers: Servers, names: list[str], part: int) -> None:
    result = play(*servers, part, names[part::PARTS])
    assert not result.wrong, result.report()
    without_libxml = {"xml", "xml[]"}
    assert result.types >= set(names[part::PARTS]) - without_libxml


def test_values_of_extensions_and_of_what_locales_and_libraries_make_arrive_bit_by_bit(
    installed: Servers, names: list[str]
) -> None:
    own = type_names(*installed)
    chosen = sorted((set(own) - set(names)) | {"xml", "xml[]", "money", "money[]", "made.thing", "made.thing[]"})

    result = play(*installed, 1, chosen)

    assert not result.wrong, result.report()
    assert result.types == set(chosen)
    assert result.monetary == {"C", *LOCALES}


def test_no_extension_is_left_out(servers: Servers, installed: Servers) -> None:
    found = set()
    for pair in (servers, installed):
        with Round(*pair, random.Random(1)) as made:
            found |= made.result.extensions
    assert found == set(EXTENSIONS) - NOT_PACKAGED


@pytest.fixture
def made(servers: Servers) -> Iterator[Round]:
    with Round(*servers, random.Random(1)) as made:
        yield made


@pytest.mark.parametrize("pair", ["servers", "installed"])
def test_only_types_without_input_are_left_out(request: pytest.FixtureRequest, pair: str) -> None:
    with Round(*request.getfixturevalue(pair), random.Random(1)) as made:
        kinds = {kind.sql for kind in made.kinds()}
        left_out = list(made.result.left_out)
    assert {"integer", "integer[]", "numrange", "tstzmultirange[]", "made.nested", "made.amount", "xid8"} <= kinds
    without_input = ("pg_", "gtsvector", "cstring", "public.ghstore", "public.ltree_gist")
    assert all(name.startswith(without_input) for name in left_out), left_out


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
        made.target.execute("UPDATE public.k0 SET v = round(v, 3)")
        made.target.execute("RESET session_replication_role")
        return results

    monkeypatch.setattr(made.lab, "apply", apply_and_spoil)
    kinds = {kind.sql: kind for kind in made.kinds()}
    made.play([kinds["made.amount"], kinds["integer"]])
    assert {wrong.type for wrong in made.result.wrong} == {"made.amount"}


def test_a_bit_that_verify_overlooks_is_noticed(made: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_away(*given: Any) -> VerifyResult:
        result = look(*given)
        return replace(result, tables=[replace(x, differing=0, differences=[]) for x in result.tables])

    monkeypatch.setattr("tests.fuzz.types.look", look_away)
    kinds = {kind.sql: kind for kind in made.kinds()}
    made.play([kinds["integer"]])
    assert [wrong.phase for wrong in made.result.wrong] == ["verify"]


def test_a_value_that_the_first_copy_spoils_is_noticed(made: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy_and_spoil(*given: Any) -> None:
        copy(*given)
        made.target.execute("UPDATE public.w1 SET v = v # 1")

    monkeypatch.setattr("tests.fuzz.types.copy", copy_and_spoil)
    kinds = {kind.sql: kind for kind in made.kinds()}
    made.play([kinds["made.amount"], kinds["integer"]])
    assert [(wrong.type, wrong.phase) for wrong in made.result.wrong] == [("integer", "first copy")]


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


def _case(kind: Kind) -> Case:
    return Case(kind, "", "", "")
