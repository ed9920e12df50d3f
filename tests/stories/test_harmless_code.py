"""What the server's own functions, operators and casts could be told to run, drawn from its catalogue one by one.

An expression of the source's is made at the target if it is known to be harmless, whatever it is told. So everything of
that kind is told of a domain, a row, a view, an array and a function that note in a sequence that they were run.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import psycopg

from penstock.dialects.postgres.post_data import read_found
from tests.lab import Lab, table

PLANTED = """
CREATE SCHEMA planted;
CREATE SEQUENCE planted.runs;
CREATE FUNCTION planted.fire(text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
  PERFORM pg_catalog.nextval('planted.runs'); RETURN true;
END $$;
CREATE DOMAIN planted.dom AS text CHECK (planted.fire(VALUE));
CREATE TYPE planted.pair AS (v planted.dom);
CREATE TYPE planted.kind AS ENUM ('a');
CREATE TYPE planted.span AS RANGE (SUBTYPE = planted.kind, MULTIRANGE_TYPE_NAME = planted.spans);
CREATE FUNCTION planted.json(planted.kind) RETURNS json LANGUAGE plpgsql AS $$ BEGIN
  PERFORM planted.fire(''); RETURN '1';
END $$;
CREATE CAST (planted.kind AS json) WITH FUNCTION planted.json;
CREATE FUNCTION planted.text(planted.kind) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
  PERFORM planted.fire(''); RETURN 'a';
END $$;
CREATE CAST (planted.kind AS text) WITH FUNCTION planted.text;
CREATE TABLE planted.held (v planted.dom);
CREATE VIEW planted.seen AS SELECT 'x'::text AS v WHERE planted.fire('x');

-- Which of some queries have run what is planted; an error takes nothing of that back.
CREATE FUNCTION planted.fired(queries text[], keys text[]) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE before bigint; after bigint;
BEGIN
  FOR n IN 1 .. cardinality(queries) LOOP
    SELECT last_value INTO before FROM planted.runs;
    BEGIN
      EXECUTE queries[n];
    EXCEPTION WHEN OTHERS OR ASSERT_FAILURE THEN NULL;
    END;
    SELECT last_value INTO after FROM planted.runs;
    IF after > before THEN RETURN NEXT keys[n]; END IF;
  END LOOP;
END $$;
SELECT nextval('planted.runs');
"""

NAMES = ("planted.dom", "planted.pair", "planted.held", "planted.seen", "planted.fire(text)", "planted", "planted.runs")

TOLD: Mapping[str, tuple[str, ...]] = {
    "cstring": ("'(x)'", "'{x}'", "'x'"),
    "oid": (
        *(f"'planted.{name}'::regtype::oid" for name in ("dom", "pair", "_dom", "held")),
        "'planted.seen'::regclass::oid",
        "'planted.fire'::regproc::oid",
    ),
    "regtype": ("'planted.dom'", "'planted.pair'"),
    "regclass": ("'planted.seen'", "'planted.held'"),
    "regproc": ("'planted.fire'",),
    "regprocedure": ("'planted.fire(text)'",),
    "regnamespace": ("'planted'",),
    "integer": ("-1", "1"),
    "text": (*(f"'{name}'" for name in NAMES), "'SELECT planted.fire(''x'')'", "'SELECT * FROM planted.seen'", "'UTC'"),
    "name": ("'planted'", "'planted.dom'", "'seen'"),
    "json": ("""'{"v": "x"}'""", """'[{"v": "x"}]'"""),
    "jsonb": ("""'{"v": "x"}'""", """'[{"v": "x"}]'"""),
    "tsquery": ("'x'",),
    "boolean": ("true", "false"),
    "record": ("ROW('x')", "ROW('a'::planted.kind)"),
    '"any"': ("'x'::text", "'a'::planted.kind"),
    "anyelement": ("NULL::planted.pair", "'a'::planted.kind", "'x'::text"),
    "anynonarray": ("'a'::planted.kind", "'x'::text"),
    "anyarray": ("ARRAY['a'::planted.kind]", "ARRAY['x']"),
    "anyenum": ("'a'::planted.kind",),
    "anyrange": ("'[a,a]'::planted.span",),
    "anymultirange": ("'{[a,a]}'::planted.spans",),
    "anycompatible": ("'x'::text", "'a'::planted.kind"),
    "anycompatiblearray": ("ARRAY['x']", "ARRAY['a'::planted.kind]"),
    "anycompatiblenonarray": ("'x'::text",),
}
"""What arguments of a type are told; of others a NULL, and what a text makes of them."""

UNTYPED = {"integer", "boolean"} | {name for name in TOLD if name.startswith("any") or name in ('"any"', "record")}

PARSED = {
    "cstring": "'x'::cstring",
    "record": "NULL::planted.pair",
    '"any"': "'a'::planted.kind",
    **{
        f"any{kind}": "'a'::planted.kind"
        for kind in ("element", "nonarray", "enum", "compatible", "compatiblenonarray")
    },
    **{f"any{kind}": "ARRAY['a'::planted.kind]" for kind in ("array", "compatiblearray")},
    **{f"any{kind}": "NULL::planted.span" for kind in ("range", "compatiblerange")},
    **{f"any{kind}": "NULL::planted.spans" for kind in ("multirange", "compatiblemultirange")},
}
"""What the server takes for an argument of a pseudo-type without a question."""


@dataclass(frozen=True)
class Called:
    """A function, operator or cast of the server's own.

    Attributes:
        key: Its signature.
        form: An expression that calls it, with a place for each argument.
        types: Those of its arguments.
    """

    key: str
    form: str
    types: tuple[str, ...]

    @property
    def plain(self) -> str:
        """An expression that calls it, for the server to parse."""
        return f"({self.form.format(*(PARSED.get(type_, f'NULL::{type_}') for type_ in self.types))}) IS NOT NULL"

    def told(self, draw: random.Random, *, most: int) -> Iterator[str]:
        """Queries that call it with what is planted."""
        choices = [list(_values(type_)) for type_ in self.types]
        combined = list(itertools.islice(itertools.product(*choices), 500))
        for values in draw.sample(combined, min(most, len(combined))):
            yield f"SELECT {self.form.format(*values)}"


def _values(type_: str) -> Iterable[str]:
    values = TOLD.get(type_)
    if values is None:
        base = type_.removesuffix("[]")
        return (f"NULL::{type_}", *(f"({value}::text)::{base}" for value in TOLD["text"][:2] if base == type_))
    return values if type_ in UNTYPED else [f"{value}::{type_}" for value in values]


FUNCTIONS = """
SELECT p.oid::regprocedure::text, format('pg_catalog.%I', p.proname), ARRAY(SELECT format_type(a, NULL)
  FROM unnest(p.proargtypes) a), p.provariadic <> 0 AND p.provariadic <> '"any"'::regtype
FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND NOT p.proretset
  AND p.prorettype NOT IN ('internal'::regtype, 'trigger'::regtype, 'event_trigger'::regtype)
  AND NOT p.proargtypes::oid[] && ARRAY(SELECT oid FROM pg_type WHERE typname ~ '^(internal|.*trigger|.*_handler)$')
ORDER BY p.oid
"""

OPERATORS = """
SELECT o.oid::regoperator::text, o.oprname, ARRAY(SELECT format_type(a, NULL)
  FROM unnest(ARRAY[o.oprleft, o.oprright]) a WHERE a <> 0)
FROM pg_operator o WHERE o.oprnamespace = 'pg_catalog'::regnamespace ORDER BY o.oid
"""

CASTS = """
SELECT format_type(castsource, NULL), format_type(casttarget, NULL) FROM pg_cast WHERE oid < 16384 ORDER BY oid
"""


def server_s_own(connection: psycopg.Connection) -> Iterator[Called]:
    """Whatever an expression could call."""
    for key, name, types, is_variadic in connection.execute(FUNCTIONS):
        places = ["{}"] * len(types)
        if is_variadic:
            places[-1] = "VARIADIC {}"
        yield Called(key, f"{name}({', '.join(places)})", tuple(types))
    for key, name, types in connection.execute(OPERATORS):
        operator = f"OPERATOR(pg_catalog.{name})"
        yield Called(key, f"{{}} {operator} {{}}" if len(types) == 2 else f"{operator} {{}}", tuple(types))
    for source, target in connection.execute(CASTS):
        yield Called(f"({source} AS {target})", f"({{}})::{target}", (source,))


def known(connection: psycopg.Connection, expressions: Mapping[str, str]) -> set[str]:
    """Those of some expressions of defaults, by key, that are known to be harmless."""
    harmless = set()
    every = list(expressions.items())
    for number in range(0, len(every), 400):
        part = every[number : number + 400]
        columns = ", ".join(f"c{n} bool DEFAULT ({expression})" for n, (_, expression) in enumerate(part))
        connection.execute(f"CREATE TABLE public.drawn ({columns}, v text)".encode())
        found = {one.name: one for one in read_found(connection, [table("drawn")])}
        harmless |= {key for n, (key, _) in enumerate(part) if not found[f"c{n}"].refused}
        connection.execute("DROP TABLE public.drawn")
    return harmless


def fired(connection: psycopg.Connection, called: Iterable[Called], *, most: int) -> set[str]:
    """Those that run what is planted, as it turns out."""
    draw = random.Random(7)
    queries, keys = zip(*((query, one.key) for one in called for query in one.told(draw, most=most)), strict=True)
    rows = connection.execute("SELECT * FROM planted.fired(%s::text[], %s::text[])", [list(queries), list(keys)])
    return {key for (key,) in rows}


RUNS_WHAT_IT_IS_TOLD = {
    *("record_in(cstring,oid,integer)", "array_in(cstring,oid,integer)", "domain_in(cstring,oid,integer)"),
    *("pg_input_is_valid(text,text)", "jsonb_populate_record(anyelement,jsonb)", "ts_rewrite(tsquery,text)"),
    *("to_json(anyelement)", "to_jsonb(anyelement)", "row_to_json(record)", "array_to_json(anyarray)"),
    *("textanycat(text,anynonarray)", "||(anynonarray,text)", "quote_literal(anyelement)"),
}


def test_nothing_of_the_server_s_own_that_is_known_runs_what_is_planted(lab: Lab) -> None:
    lab.target.execute(PLANTED)
    called = list(server_s_own(lab.target))

    harmless = known(lab.target, {one.key: one.plain for one in called})

    assert fired(lab.target, [one for one in called if one.key in harmless], most=6) == set()
    others = [one for one in called if one.key in RUNS_WHAT_IT_IS_TOLD]
    assert fired(lab.target, others, most=36) == RUNS_WHAT_IT_IS_TOLD
    assert len(harmless) > 2000


USUAL = (
    *("now() > '2020-01-01'", "CURRENT_DATE > '2020-01-01'", "clock_timestamp() > LOCALTIMESTAMP", "random() < 1"),
    *("gen_random_uuid() IS NULL", "nextval('public.s'::regclass) > 1", "CURRENT_USER = 'x'", "SESSION_USER = 'x'"),
    *("date_trunc('day', now()) > '2020-01-01'", "(now() AT TIME ZONE 'UTC') < '2020-01-01'::date"),
    *("now() + interval '1 day' > now()", "EXTRACT(year FROM now()) > 2020", "to_char(now(), 'YYYY') = '2020'"),
    *("upper('x' || 1) ~ '^X'", "concat('a', 1) = 'a1'", "format('%s', 1) = '1'", "lpad('x', 3) LIKE 'x%'"),
    *("ARRAY['a', 'b'] <@ ARRAY['a']", "cardinality(ARRAY[1]) > 0", "'a' = ANY ('{a,b}')", "'{}'::jsonb ? 'a'"),
    *(
        "to_jsonb(1) = '1'",
        "jsonb_build_object('a', 1) = '{}'",
        "('{\"a\": 1}'::jsonb ->> 'a')::int > 0",
        "'1'::int > 0",
    ),
    *("COALESCE(NULLIF('a', 'b'), 'c') IN ('a', 'b')", "GREATEST(1, 2) > LEAST(1, 2)", "('a', 1) < ('b', 2)"),
    *("CASE 'a' WHEN 'a' THEN true END", "1.5::numeric(10,2)::money > '1'", "int4range(1, 2) @> 1", "'a' IS JSON"),
    *("to_tsvector('english', 'a') @@ 'a'::tsquery", "md5('a') COLLATE \"C\" > 'a'", "num_nonnulls(1, NULL) = 1"),
    *("current_setting('app.tenant') = 'x'", "current_setting('app.tenant', true) IS NULL"),
    *(
        "'\\x00'::bytea = decode('00', 'hex')",
        "'::1'::inet << '::/0'",
        "xmlcomment('a') IS NOT NULL",
    ),
)

STRANGE = (
    *("record_in('(x)'::cstring, to_regtype('public.d')::oid, -1) IS NOT NULL", "'public.d'::text::regclass IS NULL"),
    *("domain_in('x'::cstring, 1, -1) IS NULL", "nextval(('public.' || 's')::regclass) > 1", "currval('public.s') > 1"),
    *("format_type(1, 1) = 'x'", "to_regtype('public.d') IS NULL", "pg_get_viewdef('public.v') = 'x'"),
    *("query_to_xml('SELECT 1', true, true, '') IS NULL", "table_to_xml('public.s', true, true, '') IS NULL"),
    *("lo_create(1) > 0", "pg_read_file('x') = 'x'", "set_config('a.b', 'c', false) = 'd'", "pg_sleep(0) IS NULL"),
    *(
        "to_jsonb(ROW(1, 'a'::planted.kind)) IS NULL",
        "('x' || 'a'::planted.kind) = 'x'",
        "json_exists('{}'::jsonb, '$')",
    ),
    *("json_exists('{}'::jsonb, '$')", "planted.fire('x')", "jsonb_populate_record(NULL::planted.pair, '{}') IS NULL"),
)


def test_what_defaults_usually_say_is_known_and_no_more(lab: Lab) -> None:
    lab.target.execute(f"{PLANTED}; CREATE SEQUENCE public.s")

    harmless = known(lab.target, {one: one for one in (*USUAL, *STRANGE)})

    assert sorted(set(USUAL) - harmless) == []
    assert sorted(harmless - set(USUAL)) == []


def test_a_check_draws_from_no_sequence(lab: Lab) -> None:
    """A default gives the rows of its own table numbers; whoever writes a check has no right to any."""
    lab.target.execute("CREATE SEQUENCE s; CREATE TABLE t (id int DEFAULT nextval('s') CHECK (nextval('s') > 0))")

    found = {one.kind: list(one.refused) for one in read_found(lab.target, [table("t")])}

    assert found == {"default": [], "check": ["nextval(regclass)"]}
