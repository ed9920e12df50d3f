"""Data files: whatever the change stream holds comes back as it was, and anything else is refused."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import change as c
from penstock.change import Op
from penstock.errors import MalformedInputError
from penstock.formats.change_file import Encoding, decode, encode, encode_lines
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


def test_a_line_is_one_json_object_without_what_is_null() -> None:
    one = row(7, 3, of=9, op="update", before={"id": "3", "name": None}, after={"name": 'a"b\n'})

    line = gzip.decompress(encode(pa.Table.from_batches([stream([one])]), Encoding.CHANGES)).decode()

    assert json.loads(line) == {
        "source": "shop",
        "txn_id": "t7",
        "commit_scn": 7,
        "change_seq": 3,
        "txn_changes": 9,
        "committed_at": "2024-01-02T12:00:07.000000Z",
        "op": "update",
        "schema_name": "public",
        "table_name": "item",
        "table_version": 1,
        "key": {"id": "3"},
        "before": {"id": "3", "name": None},
        "after": {"name": 'a"b\n'},
    }
    assert line.endswith("}\n")
    assert "null" not in line.replace('"name":null', "")


def test_other_tools_read_parquet() -> None:
    rows = pa.Table.from_batches([stream(transaction(1), transaction(2, 3))])
    found = pq.read_table(pa.BufferReader(encode(rows, Encoding.PARQUET)))
    assert found.to_pylist() == rows.to_pylist()
    assert found[c.COMMITTED_AT][0].as_py() == datetime(2024, 1, 2, 12, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "image",
    ["[]", "null", '{"a":"b"', '{"a":\n"b"}'],
    ids=["a list", "null", "cut short", "on two lines"],
)
def test_an_image_that_is_no_object_on_one_line_is_not_written(image: str) -> None:
    rows = pa.Table.from_batches([stream([row(1) | {c.AFTER: image}])])
    with pytest.raises(MalformedInputError, match="an image"):
        encode_lines(rows)


LINE = encode_lines(pa.Table.from_batches([stream(transaction(1))])).to_pybytes()


@pytest.mark.parametrize(
    "lines",
    [
        LINE[:-1],
        LINE[:-3] + b"\n",
        b"\n",
        b"null\n",
        LINE + b"{}\n",
        LINE.replace(b'"insert"', b'"upsert"'),
        LINE.replace(b'"commit_scn":1', b'"commit_scn":"one"'),
        LINE.replace(b'"commit_scn":1,', b""),
        LINE.replace(b'"source"', b'"sauce"'),
        LINE.replace(b"public", b"publ\xff"),
        LINE.replace(b"n1", b"n\xff"),
    ],
    ids=[
        "no line feed",
        "no brace",
        "an empty line",
        "null",
        "an empty object",
        "an unknown operation",
        "a position that is text",
        "no position",
        "an unknown member",
        "a name that is no UTF-8",
        "a value that is no UTF-8",
    ],
)
def test_lines_that_are_no_changes_are_refused_without_their_values(lines: bytes) -> None:
    with pytest.raises(MalformedInputError) as refused:
        decode(gzip.compress(lines), Encoding.CHANGES, where="the file")
    assert str(refused.value) == "file does not hold the change stream (the file)"


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("content", [b"", b"PAR1", b"nonsense"])
def test_bytes_that_are_no_such_file_are_refused(encoding: Encoding, content: bytes) -> None:
    with pytest.raises(MalformedInputError, match=r"does not hold the change stream \(the file\)"):
        decode(content, encoding, where="the file")


def test_parquet_of_other_columns_is_refused() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), sink)
    with pytest.raises(MalformedInputError, match="does not hold the change stream"):
        decode(sink.getvalue(), Encoding.PARQUET, where="the file")
