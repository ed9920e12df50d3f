"""Images as text: what goes in comes out, absent and NULL apart; what is no image is refused and not shown."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.change import Image
from penstock.errors import MalformedInputError
from penstock.values import decode_image, encode_image

images = st.dictionaries(st.text(), st.none() | st.text(), max_size=6)


@settings(deadline=None)
@given(images)
@example({"": "", "null": None, 'a"b': 'c\\":null'})
def test_an_image_comes_back_as_it_was_written(image: Image) -> None:
    decoded = decode_image(encode_image(image))

    assert decoded == image
    assert list(decoded) == list(image)


@settings(deadline=None)
@given(images)
def test_an_image_is_one_line(image: Image) -> None:
    assert "\n" not in encode_image(image)


@pytest.mark.parametrize(
    ("image", "text"),
    [
        pytest.param({}, "{}", id="empty"),
        pytest.param({"b": "1", "a": None}, '{"b":"1","a":null}', id="columns keep their order"),
        pytest.param({"a": "null"}, '{"a":"null"}', id="the text null is no NULL"),
        pytest.param({"a": "12345678901234567890.10"}, '{"a":"12345678901234567890.10"}', id="a number is a string"),
        pytest.param({"ä": "€"}, '{"ä":"€"}', id="letters stay letters"),
        pytest.param({"a": 'x"\\\n\x01'}, r'{"a":"x\"\\\n\u0001"}', id="what JSON must escape"),
    ],
)
def test_images_are_written_alike_everywhere(image: Image, text: str) -> None:
    assert encode_image(image) == text


def test_an_absent_column_is_not_null() -> None:
    assert decode_image('{"a":null}') == {"a": None}
    assert decode_image("{}") == {}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "image is not JSON"),
        ('{"a":"s3cret"', "image is not JSON"),
        ('{"a":"s3cret"}{"a":"s3cret"}', "image is not JSON"),
        ('{"a":s3cret}', "image is not JSON"),
        ("null", "image is not a JSON object of strings and nulls"),
        ('"s3cret"', "image is not a JSON object of strings and nulls"),
        ('["s3cret"]', "image is not a JSON object of strings and nulls"),
        ('{"a":4711}', "image is not a JSON object of strings and nulls"),
        ('{"a":"s3cret","b":true}', "image is not a JSON object of strings and nulls"),
        ('{"a":{"b":"s3cret"}}', "image is not a JSON object of strings and nulls"),
        ('{"a":NaN}', "image is not a JSON object of strings and nulls"),
    ],
)
def test_what_is_no_image_is_refused_without_being_shown(text: str, what: str) -> None:
    with pytest.raises(MalformedInputError) as caught:
        decode_image(text)

    assert str(caught.value) == f"{what} ({len(text)} characters)"


def test_an_image_nested_without_end_is_refused() -> None:
    with pytest.raises(MalformedInputError):
        decode_image("[" * 200_000)
