"""Images in bulk say the same as images one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.change import Image
from penstock.errors import MalformedInputError
from penstock.images import are_plain, build_images, edit_images, find_present, is_complete, is_present, parse_images
from penstock.values import encode_image

# Names and values that look like the syntax around them.
NAMES = ("id", "d", "a b", "null", "a:", "{}", "ß€", "tab\there", "x,y")
values = st.none() | st.text(max_size=8) | st.sampled_from(['":null', '"id":', '\\":null', "null", "\n", "}{", "{}"])
images = st.none() | st.dictionaries(st.sampled_from(NAMES), values, max_size=len(NAMES))
batches = st.lists(images, max_size=6)


def as_array(batch: Sequence[Image | None]) -> pa.Array:
    return pa.array([None if image is None else encode_image(image) for image in batch], pa.string())


@settings(deadline=None)
@given(batches)
@example([])
@example([None])
@example([{}, None, {"id": 'x":null'}])
def test_values_come_out_as_they_went_in(batch: list[Image | None]) -> None:
    parsed = parse_images(as_array(batch), NAMES, are_all=True)

    for name in NAMES:
        assert parsed[name].type == pa.string()
        assert parsed[name].to_pylist() == [image.get(name) if image else None for image in batch]


@settings(deadline=None)
@given(batches)
def test_columns_that_were_not_asked_for_are_skipped(batch: list[Image | None]) -> None:
    parsed = parse_images(as_array(batch), ["d"])

    assert {name: column.to_pylist() for name, column in parsed.items()} == {
        "d": [image.get("d") if image else None for image in batch]
    }


@settings(deadline=None)
@given(batches)
def test_a_column_is_present_exactly_where_it_was_written(batch: list[Image | None]) -> None:
    written = as_array(batch)
    found = find_present(written, parse_images(written, NAMES))

    for name in NAMES:
        expected = [image is not None and name in image for image in batch]
        assert is_present(written, name).to_pylist() == expected
        assert found[name].to_pylist() == expected


@settings(deadline=None)
@given(st.lists(st.none() | st.dictionaries(st.sampled_from(NAMES[:3]), values, max_size=3), max_size=4))
@example([{"id": None, "d": 'x":null', "a b": '":null'}])
@example([{"id": 'x":null', "d": "1"}])
@example([None, {"id": None, "d": None, "a b": None}])
def test_images_are_complete_exactly_when_no_column_is_absent(batch: list[Image | None]) -> None:
    written = as_array(batch)
    parsed = parse_images(written, NAMES[:3], are_all=True)

    assert is_complete(written, parsed) == all(image is None or len(image) == 3 for image in batch)


def test_a_part_of_a_batch_is_read_by_itself() -> None:
    part = as_array([{"id": None}, {"id": "2"}, None, {"id": None}, {"id": None}]).slice(1, 3)
    parsed = parse_images(part, ["id"], are_all=True)

    assert parsed["id"].to_pylist() == ["2", None, None]
    assert is_complete(part, parsed)
    assert not is_complete(part.slice(0, 2), {"id": pa.nulls(2, pa.string())})
    assert find_present(part, parsed)["id"].to_pylist() == [True, False, True]


@pytest.mark.parametrize(
    ("text", "are_all"),
    [
        pytest.param('{"id":"s3cret"', False, id="cut short"),
        pytest.param('{"id":4711}', False, id="a number"),
        pytest.param('{"id":true}', False, id="a boolean"),
        pytest.param('{"id":{"x":"s3cret"}}', False, id="an object"),
        pytest.param('["s3cret"]', False, id="an array"),
        pytest.param('"s3cret"', False, id="a string"),
        pytest.param("s3cret", False, id="no JSON"),
        pytest.param('{"id":"s3cret","id":"s3cret"}', False, id="a column twice"),
        pytest.param('{"id":"1","s3cret":"1"}', True, id="an unknown column"),
    ],
)
def test_what_is_no_image_is_refused_without_being_shown(text: str, are_all: bool) -> None:
    written = pa.array(['{"id":"1"}', text], pa.string())

    with pytest.raises(MalformedInputError) as caught:
        parse_images(written, ["id"], are_all=are_all)

    assert "s3cret" not in str(caught.value)
    assert "4711" not in str(caught.value)
    assert caught.value.where == "one of 2 changes"


@pytest.mark.parametrize(
    "images",
    [["", '{"a":"1"}'], ['{"a":"1"}{"a":"2"}', ""], ['{"a":"1"}{"a":"2"}'], ['{"a"', ':"1"}'], [" "], ["null"]],
    ids=["nothing", "two, then nothing", "two in one", "one in two", "a space", "the JSON null"],
)
def test_one_image_is_one_object(images: list[str]) -> None:
    with pytest.raises(MalformedInputError):
        parse_images(pa.array(images), ["a"])


@pytest.mark.parametrize("column", ['x"a', "x\\a", ",", "}a", "x\na"])
def test_a_column_is_told_from_one_whose_name_ends_alike(column: str) -> None:
    written = pa.array([encode_image({column: ",", ":a": "{"}), encode_image({"a": "1"}), None])
    assert is_present(written, column).to_pylist() == [True, False, False]
    assert is_present(written, "a").to_pylist() == [False, True, False]


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), values, max_size=len(NAMES)), max_size=6))
def test_images_are_built_as_they_are_written_one_by_one(batch: list[Image]) -> None:
    columns = {name: pa.array([image.get(name) for image in batch], pa.string()) for name in NAMES}
    present = {name: pa.array([name in image for image in batch], pa.bool_()) for name in NAMES}

    built = build_images(columns, present)

    in_order = [{name: image[name] for name in NAMES if name in image} for image in batch]
    assert built.to_pylist() == [encode_image(image) for image in in_order]


plain = [name for name in NAMES if are_plain([name])]


@settings(deadline=None)
@given(batches, st.sets(st.sampled_from(plain)), st.sets(st.sampled_from(plain)))
def test_images_are_edited_as_they_would_be_one_by_one(
    batch: list[Image | None], drop: set[str], rename: set[str]
) -> None:
    names = {name: f"new {name}" for name in rename - drop}

    edited = edit_images(as_array(batch), drop=drop, rename=names)

    assert edited.to_pylist() == [
        None if image is None else encode_image({names.get(n, n): image[n] for n in image if n not in drop})
        for image in batch
    ]


def test_a_name_that_is_not_found_by_its_text_is_not_plain() -> None:
    assert plain == ["id", "d", "a b", "null", "a:", "{}", "ß€", "x,y"]
