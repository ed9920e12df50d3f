"""Data files: what each form looks like from outside, and what is refused; see also tests/contracts/test_format.py."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import change as c
from penstock.errors import MalformedInputError
from penstock.formats.change_file import Encoding, decode, encode, encode_lines
from tests.archives import row, stream, transaction


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
        "a name that is not UTF-8",
        "a value that is not UTF-8",
    ],
)
def test_lines_that_are_no_changes_are_refused_without_their_values(lines: bytes) -> None:
    with pytest.raises(MalformedInputError) as refused:
        decode(gzip.compress(lines), Encoding.CHANGES, where="the file")
    assert str(refused.value) == "file does not hold the change stream (the file)"


def test_parquet_of_other_columns_is_refused() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), sink)
    with pytest.raises(MalformedInputError, match="does not hold the change stream"):
        decode(sink.getvalue(), Encoding.PARQUET, where="the file")


_THREADS = """
import sys
from pathlib import Path
from penstock.formats.change_file import Encoding, decode

content = Path(sys.argv[1]).read_bytes()
before = len(list(Path("/proc/self/task").iterdir()))
decode(content, Encoding(sys.argv[2]), where="here")
print(len(list(Path("/proc/self/task").iterdir())) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists the threads of a process")
@pytest.mark.parametrize("encoding", Encoding)
def test_reading_starts_no_thread_that_outlives_it(encoding: Encoding, tmp_path: Path) -> None:
    """A thread of Arrow's that lets go of Python's bytes while Python ends aborts the process."""
    file = tmp_path / "changes"
    file.write_bytes(encode(pa.Table.from_batches([stream(*(transaction(n) for n in range(1, 50)))]), encoding))

    program = [sys.executable, "-c", _THREADS, file, encoding.value]
    read = subprocess.run(program, capture_output=True, text=True, check=False)

    assert read.stdout == "0\n", read.stderr
