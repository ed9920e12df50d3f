"""Values that are not in their image: how an image tells of them, and what becomes of those who do not know."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.change import Image
from penstock.errors import MalformedInputError, OperatorError
from penstock.external_values import MARK, ExternalValue
from penstock.images import edit_images, find_present, mark_external, parse_images
from penstock.values import decode_image, encode_image

elsewhere = st.builds(ExternalValue.at, st.text(), st.integers(0), is_binary=st.booleans(), is_appended=st.booleans())
appending = st.builds(ExternalValue.appending, st.text(), is_binary=st.booleans())
told = elsewhere | appending
values = st.none() | st.text() | told
PLAIN = ["id", "text", "elsewhere", "a b"]
images = st.dictionaries(st.sampled_from(PLAIN), values)


def are_elsewhere(image: Image) -> list[str]:
    return [name for name, value in image.items() if isinstance(value, ExternalValue)]


@settings(deadline=None)
@given(st.dictionaries(st.text(), values), st.booleans())
def test_what_is_told_of_a_value_comes_back_as_it_was_written(image: Image, is_ascii: bool) -> None:
    decoded = decode_image(encode_image(image, is_ascii=is_ascii))

    assert decoded == image
    assert are_elsewhere(decoded) == are_elsewhere(image)


def test_it_tells_where_a_value_is_and_what_is_done_with_it() -> None:
    there = ExternalValue.at("7:9:2", 10**10, is_binary=True)
    here = ExternalValue.appending('"x', is_binary=False)

    assert (there.place, there.size_bytes, there.text) == ("7:9:2", 10**10, None)
    assert (there.is_binary, there.is_appended) == (True, False)
    assert (here.place, here.size_bytes, here.text) == (None, 2, '"x')
    assert (here.is_binary, here.is_appended) == (False, True)


@settings(deadline=None)
@given(st.lists(st.none() | images))
@example([{"elsewhere": "", "text": MARK}, {"text": "x"}])
@example([{"id": "a:{", "elsewhere": "b"}])
@example([{"id": json.dumps({"x": ExternalValue.appending("", is_binary=False).told})}])
def test_images_with_such_a_value_are_told_from_all_others(batch: list[Image | None]) -> None:
    array = pa.chunked_array([[None if i is None else encode_image(i) for i in batch]], pa.string())
    wanted = [i is not None and bool(are_elsewhere(i)) for i in batch]

    found = mark_external(array)

    assert (found.to_pylist() if found is not None else [False] * len(batch)) == wanted


@settings(deadline=None)
@given(st.lists(images, min_size=1), st.sets(st.sampled_from(PLAIN)), st.sets(st.sampled_from(PLAIN)))
def test_such_values_are_left_out_and_renamed_as_all_others(
    batch: list[Image], drop: set[str], rename: set[str]
) -> None:
    names = {name: f"new {name}" for name in rename - drop}

    edited = edit_images(pa.array(map(encode_image, batch), pa.string()), drop=drop, rename=names)

    kept = [{names.get(n, n): v for n, v in image.items() if n not in drop} for image in batch]
    assert edited.to_pylist() == [encode_image(image) for image in kept]


@settings(deadline=None)
@given(st.lists(st.fixed_dictionaries({"id": st.none() | st.text(), "text": values}), min_size=1))
def test_other_columns_are_read_beside_them(batch: list[Image]) -> None:
    array = pa.array(map(encode_image, batch), pa.string())

    parsed = parse_images(array, ["id"])

    assert parsed["id"].to_pylist() == [image["id"] for image in batch]
    assert find_present(array, parsed)["id"].to_pylist() == [True] * len(batch)


@settings(deadline=None)
@given(told, st.booleans())
def test_who_asks_for_the_value_of_such_a_column_is_refused(value: ExternalValue, are_all: bool) -> None:
    with pytest.raises(OperatorError, match="the value of column 'text' is looked at, and is too large"):
        parse_images(pa.array([encode_image({"text": value})]), ["text"], are_all=are_all)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({",elsewhere": "s3cret"}, id="no list"),
        pytest.param({",elsewhere": ["s3cret", 1, True, False]}, id="too short"),
        pytest.param({",elsewhere": [None, 1, True, False, None]}, id="says not where"),
        pytest.param({",elsewhere": ["s3cret", 1, True, False, "s3cret"]}, id="here and there"),
        pytest.param({",elsewhere": ["s3cret", "1", True, False, None]}, id="a size that is not a number"),
        pytest.param({",elsewhere": ["s3cret", True, True, False, None]}, id="a size that is a boolean"),
        pytest.param({",elsewhere": ["s3cret", 1, True, False, None], "b": "s3cret"}, id="says more"),
    ],
)
def test_what_tells_of_no_value_is_refused_without_being_shown(wrong: dict[str, Any]) -> None:
    with pytest.raises(MalformedInputError) as caught:
        decode_image(json.dumps({"a": wrong}, separators=(",", ":")))

    assert "s3cret" not in str(caught.value)
