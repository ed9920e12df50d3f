"""What is promised of every form in which the change stream is written: it comes back as it was, or is refused.

The forms are those of `Encoding`; one that is added there is asked, too.
"""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import change as c
from penstock.change import Op
from penstock.errors import MalformedInputError
from penstock.formats.change_file import Encoding, decode, encode
from penstock.values import encode_image
from tests.archives import row, stream, transaction

ODD = ['"', "\\", '","before":{', ',"meta":{', "{", "}", "\n", "\x00", "\x7f", "\u2028", "é", "𝄞", "", "null", ":{"]

texts = st.one_of(st.sampled_from(ODD), st.text(max_size=8), st.lists(st.sampled_from(ODD), max_size=4).map("".join))
names = st.one_of(st.sampled_from(["key", "before", "after", "meta", "op", "source"]), texts)
images = st.dictionaries(names, st.none() | texts, max_size=4)
anything = st.recursive(
    st.none() | texts | st.integers(), lambda v: st.lists(v) | st.dictionaries(names, v), max_leaves=6
)
numbers = st.integers(-(2**63), 2**63 - 1)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


changes = st.fixed_dictionaries(
    {
        c.SOURCE: texts,
        c.TXN_ID: texts,
        c.COMMIT_SCN: numbers,
        c.CHANGE_SEQ: numbers,
        c.TXN_CHANGES: st.none() | numbers,
        c.SCN: st.none() | numbers,
        c.COMMITTED_AT: st.none() | st.datetimes(timezones=st.just(UTC)),
        c.OP: st.sampled_from([op.value for op in Op]),
        c.SCHEMA_NAME: texts,
        c.TABLE_NAME: texts,
        c.TABLE_VERSION: st.integers(-(2**31), 2**31 - 1),
        c.KEY: st.none() | images.map(encode_image),
        c.BEFORE: st.none() | images.map(encode_image),
        c.AFTER: st.none() | images.map(lambda image: encode_image(image, is_ascii=True)),
        c.DDL: st.none() | texts,
        c.TAG: st.none() | texts,
        c.META: st.none() | st.dictionaries(names, anything, max_size=3).map(compact),
    }
)


@pytest.mark.parametrize("encoding", Encoding)
@settings(deadline=None, max_examples=300)
@given(rows=st.lists(changes, max_size=8))
def test_whatever_the_stream_holds_comes_back(encoding: Encoding, rows: list[dict[str, Any]]) -> None:
    written = pa.Table.from_pylist(rows, c.ARROW_SCHEMA)

    found = decode(encode(written, encoding), encoding, where="file")

    assert found.schema.equals(c.ARROW_SCHEMA)
    assert pa.Table.from_batches([found]).equals(written)


@pytest.mark.parametrize("encoding", Encoding)
def test_a_huge_value_comes_back(encoding: Encoding) -> None:
    written = pa.Table.from_batches([stream([row(1, after={"id": "1", "body": "x{" * 20_000_000}), row(1, 1)])])
    assert pa.Table.from_batches([decode(encode(written, encoding), encoding, where="file")]).equals(written)


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("content", [b"", b"PAR1", b"nonsense"])
def test_bytes_that_are_no_such_file_are_refused(encoding: Encoding, content: bytes) -> None:
    with pytest.raises(MalformedInputError, match=r"does not hold the change stream \(the file\)"):
        decode(content, encoding, where="the file")


@pytest.mark.parametrize("encoding", Encoding)
def test_a_file_that_was_cut_short_anywhere_is_refused_without_its_values(encoding: Encoding) -> None:
    content = encode(pa.Table.from_batches([stream(transaction(1), transaction(2, 3))]), encoding).to_pybytes()
    for length in range(0, len(content), 17):
        with pytest.raises(MalformedInputError) as refused:
            decode(content[:length], encoding, where="the file")
        assert str(refused.value) == "file does not hold the change stream (the file)"


@pytest.mark.parametrize("encoding", Encoding)
def test_what_is_written_twice_is_the_same_and_nothing_is_written_for_nothing(encoding: Encoding) -> None:
    """A task that is done again may leave the same file beside the first, and no other one."""
    rows = pa.Table.from_batches([stream(transaction(1), transaction(2, 3))])
    assert encode(rows, encoding).equals(encode(rows, encoding))
    nothing = rows.slice(0, 0)
    assert decode(encode(nothing, encoding), encoding, where="file").num_rows == 0
