"""Table patterns mean what they say about names as the catalogue spells them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.change import TableName
from penstock.errors import ConfigError
from penstock.patterns import TablePattern, nearest_table

names = st.text(st.sampled_from('ab.*?"\\[ \n'), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("pattern", "schema", "name", "is_meant"),
    [
        ("public.orders", "public", "orders", True),
        ("public.orders", "public", "orders2", False),
        ("public.orders", "public", "Orders", False),
        ("Public.orders", "public", "orders", False),
        ("public.*", "public", "orders", True),
        ("public.*", "public2", "orders", False),
        ("public.*", "public", "a.b", True),
        ("*.*", "any", "thing", True),
        ("p?.t", "p1", "t", True),
        ("p?.t", "p", "t", False),
        ("p?.t", "p12", "t", False),
        ("p*.*_log", "p", "a_log", True),
        ("p*.*_log", "p", "a_log_old", False),
        ("p.a+b", "p", "a+b", True),
        ("p.a+b", "p", "aab", False),
        ("p.[ab]", "p", "a", False),
        ('"a.b".c', "a.b", "c", True),
        ('"a.b".*', "a.b", "c", True),
        ('"a*".c', "a*", "c", True),
        ('"a*".c', "ab", "c", False),
        ('p."t?"', "p", "t?", True),
        ('p."t?"', "p", "tt", False),
        ('p."say ""hi"""', "p", 'say "hi"', True),
        ("p.a b", "p", "a b", True),
        ("p.*", "p", "two\nlines", True),
    ],
)
def test_a_pattern_means_these_tables(pattern: str, schema: str, name: str, is_meant: bool) -> None:
    assert TablePattern.parse(pattern).matches(TableName(schema, name)) is is_meant


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "orders",
        "public.",
        ".orders",
        "public..orders",
        "db.public.orders",
        "public.orders.",
        '"public".',
        '"".orders',
        '"public.orders',
        'public."orders',
        'pub"lic.orders',
        '"public"orders',
        '"public" .orders',
        'public.orders"',
    ],
)
def test_what_does_not_have_two_parts_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TablePattern.parse(text)

    assert caught.value.what == f"{text!r} is not a table pattern"
    assert caught.value.do.startswith("write schema.table")


@settings(deadline=None)
@given(names, names, names, names)
def test_a_quoted_pattern_means_exactly_one_table(schema: str, name: str, other_schema: str, other_name: str) -> None:
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, name))

    pattern = TablePattern.parse(quoted)

    assert pattern.matches(TableName(schema, name))
    assert pattern.matches(TableName(other_schema, other_name)) == ((schema, name) == (other_schema, other_name))


@settings(deadline=None)
@given(names, names, names, names)
def test_a_table_can_be_written_as_a_pattern(schema: str, name: str, other_schema: str, other_name: str) -> None:
    table, other = TableName(schema, name), TableName(other_schema, other_name)
    assert TablePattern.parse(TablePattern.exactly(table)).table == table
    assert TablePattern.parse(TablePattern.exactly(table)).matches(other) == (table == other)
    assert TablePattern.parse(TablePattern.all_of(schema)).matches(other) == (schema == other_schema)


def test_a_schema_that_two_names_share_makes_them_no_neighbours() -> None:
    assert nearest_table("public.nope", [TableName("public", "orders")]) == ""
    assert nearest_table("publik.orders", [TableName("public", "orders")]) == "; did you mean 'public.orders'?"


@pytest.mark.parametrize(("pattern", "asked"), [("public.Order", "; did you mean 'public.orders'?"), ("publik.*", "")])
def test_the_nearest_table_is_asked_for(pattern: str, asked: str) -> None:
    assert nearest_table(pattern, [TableName("public", "orders"), TableName("public", "item")]) == asked
