"""Positions of a queue as Spark's offsets."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MalformedInputError
from penstock.position import Anchor, Scn
from penstock.sources.trigger_queue.position import offset_json, offset_position


@given(st.integers(0, 2**63 - 1))
def test_an_offset_comes_back_from_its_json(position: int) -> None:
    cut = Anchor(Scn(position // 2), "mark")

    assert offset_position(json.loads(json.dumps(offset_json(Scn(position), cut)))) == (position, cut)


def test_an_offset_is_plain_json_whatever_kind_of_integer_it_was_made_of() -> None:
    offset = offset_json(Scn(np.int64(4711)), Anchor(Scn(np.int64(4700)), "m"))

    assert json.dumps(offset) == '{"commit_scn": 4711, "cut": 4700, "mark": "m"}'


def test_an_offset_of_an_earlier_version_has_no_cut() -> None:
    assert offset_position({"commit_scn": 4711}) == (4711, None)


@pytest.mark.parametrize(
    "offset",
    [
        {},
        None,
        [],
        "4711",
        {"scn": 1},
        {"commit_scn": None},
        {"commit_scn": "a"},
        {"commit_scn": 5, "cut": 5},
        {"commit_scn": 5, "mark": "m"},
        {"commit_scn": 5, "cut": 6, "mark": "m"},
    ],
)
def test_an_offset_of_something_else_is_refused_with_what_it_is(offset: Any) -> None:
    with pytest.raises(MalformedInputError) as caught:
        offset_position(offset)

    assert caught.value.what.startswith("offset of a trigger queue must be {'commit_scn': integer")
    assert caught.value.where == repr(offset)


@pytest.mark.parametrize("value", [1.5, True, "12", float("inf"), -1])
def test_an_offset_is_an_integer(value: object) -> None:
    with pytest.raises(MalformedInputError):
        offset_position({"commit_scn": value})
