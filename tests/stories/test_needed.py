"""What the target must have before setup can make a table there is asked for by plan, with what brings it."""

from __future__ import annotations

import pytest

from tests.lab import Lab

MINE = "CREATE COLLATION mine (LOCALE = 'C');"
ORDER = (
    "CREATE OPERATOR CLASS backwards FOR TYPE int USING btree AS OPERATOR 1 >, OPERATOR 2 >=, OPERATOR 3 =,"
    " OPERATOR 4 <=, OPERATOR 5 <, FUNCTION 1 against(int, int);"
)
AGAINST = "CREATE FUNCTION against(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT btint4cmp($2, $1)';"
DOUBLE = "CREATE FUNCTION double(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 * 2';"

WITH_COLLATION = {
    "a column": "CREATE TABLE t (id int PRIMARY KEY, v text COLLATE mine)",
    "a domain": "CREATE DOMAIN d AS text COLLATE mine; CREATE TABLE t (id int PRIMARY KEY, v d)",
    "an attribute": "CREATE TYPE d AS (a text COLLATE mine); CREATE TABLE t (id int PRIMARY KEY, v d[])",
    "a range": "CREATE TYPE r AS RANGE (subtype = text, collation = mine); CREATE TABLE t (id int PRIMARY KEY, v r)",
    "a partition key": "CREATE TABLE t (id text, v int) PARTITION BY RANGE (id COLLATE mine)",
    "a generated column": (
        "CREATE TABLE t (id int PRIMARY KEY, v text, g boolean GENERATED ALWAYS AS (v COLLATE mine > 'a') STORED)"
    ),
}
WITH_CODE = {
    "a unique index": f"{AGAINST}{ORDER} CREATE TABLE t (id int); CREATE UNIQUE INDEX i ON t (id backwards)",
    "a partition": f"{AGAINST}{ORDER} CREATE TABLE t (id int) PARTITION BY RANGE (id backwards)",
    "a range of it": (
        f"{AGAINST}{ORDER} CREATE TYPE r AS RANGE (subtype = int, subtype_opclass = backwards); CREATE TABLE t (v r)"
    ),
    "a function": f"{DOUBLE} CREATE TABLE t (id int, g int GENERATED ALWAYS AS (double(id)) STORED)",
}


@pytest.mark.parametrize("sql", WITH_COLLATION.values(), ids=WITH_COLLATION)
def test_a_collation_that_the_target_lacks_is_asked_for_with_the_statement_that_makes_it(lab: Lab, sql: str) -> None:
    lab.source.execute(f"{MINE} {sql}")

    (fault,) = lab.pipeline().plan().target.faults

    assert str(fault).startswith("collation public.mine is missing at the target")
    lab.target.execute(fault.do.partition(": ")[2])
    lab.pipeline().setup()
    assert lab.pipeline().plan().is_done


def test_a_collation_of_a_schema_that_the_target_lacks_comes_with_the_schema(lab: Lab) -> None:
    lab.source.execute(
        "CREATE SCHEMA c; CREATE COLLATION c.mine (LOCALE = 'C'); CREATE TABLE t (v text COLLATE c.mine)"
    )

    (fault,) = lab.pipeline().plan().target.faults

    lab.target.execute(fault.do.partition(": ")[2])
    lab.pipeline().setup()


@pytest.mark.parametrize("sql", WITH_CODE.values(), ids=WITH_CODE)
def test_code_that_the_target_lacks_is_asked_for(lab: Lab, sql: str) -> None:
    lab.source.execute(sql)

    (fault,) = lab.pipeline().plan().target.faults

    is_function = "double" in sql
    named = "function public.double(integer)" if is_function else "operator class public.backwards for btree"
    assert str(fault).startswith(f"{named} is missing at the target")
    lab.target.execute(DOUBLE if is_function else AGAINST + ORDER)
    lab.pipeline().setup()
    assert lab.pipeline().plan().is_done


def test_nothing_is_asked_for_tables_that_are_there(lab: Lab) -> None:
    lab.source.execute(f"{DOUBLE} CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (double(id)) STORED)")
    lab.source.execute("CREATE TABLE u (id int PRIMARY KEY)")
    lab.target.execute("CREATE TABLE t (id int PRIMARY KEY, g int)")

    lab.pipeline().setup()


def test_an_extension_that_the_target_lacks_is_asked_for_once(lab: Lab) -> None:
    lab.source.execute("CREATE EXTENSION vector; CREATE TABLE t (id int PRIMARY KEY, v vector(3), w halfvec(2))")

    faults = {fault.do.partition(": ")[2] for fault in lab.pipeline().plan().target.faults}

    assert faults == {'CREATE EXTENSION "vector"'}
    lab.target.execute(*faults)
    lab.pipeline().setup()
