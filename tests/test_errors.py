"""Errors say what, where and what to do, and keep saying it in another process."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.apply.apply_errors import VALUE_MALFORMED, ApplyError, ContentionError
from penstock.errors import (
    ConfigError,
    FencedError,
    MalformedInputError,
    OperatorError,
    PenstockError,
    RetryableError,
    TableError,
    from_json,
)

KINDS = (PenstockError, ConfigError, OperatorError, RetryableError, FencedError, MalformedInputError)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PenstockError("cannot read"), "cannot read"),
        (PenstockError("cannot read", where="table a.b"), "cannot read (table a.b)"),
        (PenstockError("cannot read", do="grant SELECT on it"), "cannot read. Grant SELECT on it"),
        (PenstockError("cannot read", where="table a.b", do="x"), "cannot read (table a.b). X"),
    ],
)
def test_an_error_reads_as_what_where_and_what_to_do(error: PenstockError, text: str) -> None:
    assert str(error) == text


@settings(deadline=None)
@given(kind=st.sampled_from(KINDS), what=st.text(), where=st.text(), do=st.text())
def test_an_error_is_the_same_in_another_process(kind: type[PenstockError], what: str, where: str, do: str) -> None:
    error = kind(what, where=where, do=do)

    rebuilt = from_json(error.to_json())

    assert type(rebuilt) is kind
    assert (rebuilt.what, rebuilt.where, rebuilt.do) == (what, where, do)


def test_an_error_travels_as_one_line() -> None:
    assert "\n" not in ConfigError("one\ntwo").to_json()


def test_every_kind_that_others_catch_travels() -> None:
    assert set(KINDS) == {PenstockError} | {
        kind for kind in PenstockError.__subclasses__() if kind.__module__ == PenstockError.__module__
    }


@pytest.mark.parametrize(
    ("kind", "code"), [(ConfigError, 2), (RetryableError, 4), *((kind, 3) for kind in (*KINDS[2:3], *KINDS[4:]))]
)
def test_the_exit_code_says_whether_to_mend_the_file_or_to_try_again(kind: type[PenstockError], code: int) -> None:
    assert kind("x").exit_code == code


def test_a_kind_of_its_own_crosses_as_the_nearest_one_that_is_known() -> None:
    told = from_json(ContentionError("blocked", where="table t").to_json())
    assert type(told) is RetryableError
    assert (told.what, told.where) == ("blocked", "table t")


@pytest.mark.parametrize(
    "error",
    [
        MalformedInputError("the value is none", where="topic t, offset 3", do="look"),
        TableError("cannot be read", where="there", do="grant", table=("public", "t")),
        ApplyError(VALUE_MALFORMED, "invalid", where="here", code="22P02", column="c"),
    ],
)
def test_an_error_is_the_same_after_it_was_pickled(error: PenstockError) -> None:
    found = pickle.loads(pickle.dumps(error))

    assert (type(found), str(found), found.args, vars(found)) == (type(error), str(error), error.args, vars(error))
