"""Log rows to the change stream: positions filled in, nothing of other slices, nothing guessed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import change as c
from penstock.change import NO_VERSION, TableName
from penstock.dialects.postgres.source.access import PostgresSource
from penstock.errors import MalformedInputError, OperatorError
from penstock.position import Scn
from penstock.schema import TableSchema
from penstock.sources.trigger_queue.decode import LOG_SCHEMA, CapturedTable, LogDecoder, change_by_change
from penstock.sources.trigger_queue.position import QueueSlice
from penstock.sources.trigger_queue.queue import QueueReader
from penstock.stream import TableVersion

EMP = TableName("public", "emp")
TABLES = {
    (16400, 1): CapturedTable(EMP, ("id",)),
    (16400, 2): CapturedTable(EMP, ("id", "co")),
    (16401, 1): CapturedTable(TableName("Other", "No Key"), ()),
}


def a_slice(*txn_ids: int, changes: Sequence[int] = (), after: int = 100) -> QueueSlice:
    n = len(txn_ids)
    return QueueSlice(
        after=Scn(after),
        end=Scn(after + n),
        commit_scns=np.arange(after + 1, after + 1 + n),
        txn_ids=np.array(txn_ids, np.int64),
        tag_codes=np.full(n, -1, np.int32),
        changes=np.array(changes or [1] * n, np.int64),
        size_bytes=np.zeros(n, np.int64),
        committed_at_us=np.arange(n, dtype=np.int64),
    )


def log(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    """Rows of (txn_id, seq, relid, version, op, before, after)."""
    return pa.RecordBatch.from_arrays(
        [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(LOG_SCHEMA)], schema=LOG_SCHEMA
    )


def row(txn_id: int, seq: int = 1) -> tuple[Any, ...]:
    return (txn_id, seq, 16400, 1, "I", None, '{"id":"1"}')


def decode(part: QueueSlice, *batches: pa.RecordBatch, with_key: bool = False) -> list[dict[str, Any]]:
    decoded = list(LogDecoder("shop", part, TABLES).decode(batches, with_key=with_key))
    assert all(batch.schema.equals(c.ARROW_SCHEMA) for batch in decoded)
    return [change for batch in decoded for change in batch.to_pylist()]


def test_a_log_row_becomes_a_change_with_all_that_is_known_of_it() -> None:
    changes = decode(
        a_slice(900, 800, changes=[1, 2]),
        log(
            (800, 31, 16400, 1, "U", '{"id":"1","v":null}', '{"v":"x"}'),
            (800, 33, 16401, 1, "T", None, None),
            row(900, 35),
        ),
        with_key=True,
    )

    common = {
        "source": "shop",
        "txn_id": "800",
        "commit_scn": 102,
        "txn_changes": 2,
        "committed_at": datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        "ddl": None,
        "tag": None,
        "meta": None,
    }
    assert changes[:2] == [
        {
            **common,
            "change_seq": 0,
            "scn": 31,
            "op": "update",
            "schema_name": "public",
            "table_name": "emp",
            "table_version": 1,
            "key": '{"id":"1"}',
            "before": '{"id":"1","v":null}',
            "after": '{"v":"x"}',
        },
        {
            **common,
            "change_seq": 1,
            "scn": 33,
            "op": "truncate",
            "schema_name": "Other",
            "table_name": "No Key",
            "table_version": 1,
            "key": None,
            "before": None,
            "after": None,
        },
    ]


@pytest.mark.parametrize(("op", "name"), [("I", "insert"), ("U", "update"), ("D", "delete"), ("T", "truncate")])
def test_operations(op: str, name: str) -> None:
    assert [change["op"] for change in decode(a_slice(5), log((5, 1, 16400, 1, op, None, None)))] == [name]


@pytest.mark.parametrize("op", ["i", "X", "", "insert", None])
def test_an_operation_that_nobody_knows_stops_everything(op: str | None) -> None:
    with pytest.raises(MalformedInputError) as caught:
        decode(a_slice(5), log(row(5, 1), (5, 2, 16400, 1, op, '{"id":"s3cret"}', None)))

    assert str(caught.value) == f"change log holds an unknown operation {op!r} (source shop, log row 2)"


@pytest.mark.parametrize(("relid", "version"), [(16400, 3), (16402, 1), (2**31 - 1, 1)])
def test_a_table_version_that_was_never_captured_stops_everything(relid: int, version: int) -> None:
    with pytest.raises(MalformedInputError) as caught:
        decode(a_slice(5), log((5, 1, relid, version, "I", None, '{"id":"s3cret"}')))

    assert caught.value.where == f"source shop, relation {relid}, version {version}"
    assert caught.value.do == "run `penstock setup`"
    assert "s3cret" not in str(caught.value)


def test_an_unknown_table_of_another_slice_is_none_of_our_business() -> None:
    assert len(decode(a_slice(5), log(row(5), (6, 1, 99, 9, "?", None, None)))) == 1


@settings(deadline=None)
@given(st.data())
def test_rows_are_numbered_alike_however_they_come_in_batches(data: st.DataObject) -> None:
    # Rows come by transaction id, which says nothing about the commit order.
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    rows = [row(10 + txn, seq) for txn, n in enumerate(lengths) for seq in range(n)]
    ours = data.draw(st.permutations(range(len(lengths))).map(lambda p: p[: max(1, len(p) - 1)]))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(rows)))) | {0, len(rows)})
    batches = [log(*rows[a:b]) for a, b in pairwise(cuts)]

    part = a_slice(*(10 + txn for txn in ours), changes=[lengths[txn] for txn in ours])
    decoded = decode(part, *batches)

    assert [
        (change["txn_id"], change["commit_scn"], change["change_seq"], change["txn_changes"]) for change in decoded
    ] == [
        (str(10 + txn), 101 + ours.index(txn), seq, n)
        for txn, n in enumerate(lengths)
        if txn in ours
        for seq in range(n)
    ]


@pytest.mark.parametrize(
    "part",
    [QueueSlice.empty(Scn(1)), a_slice(6, changes=[0]), a_slice(4, changes=[0])],
    ids=["empty", "later", "earlier"],
)
def test_nothing_of_other_slices_comes_out(part: QueueSlice) -> None:
    assert decode(part, log(row(5)), log()) == []


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        pytest.param([row(5), row(6, 1)], "transaction 6 has 1 change in the log where 2", id="fewer"),
        pytest.param([row(5)], "transaction 6 has 0 changes in the log where 2", id="none"),
        pytest.param([row(5, 1), row(5, 2), row(6, 3), row(6, 4)], "transaction 5 has 2 changes", id="more"),
        pytest.param(
            [], "transaction 5 has 0 changes in the log where 1 was counted, and 1 more transaction is", id="nothing"
        ),
    ],
)
@pytest.mark.parametrize("at_a_time", [1, 10])
def test_a_slice_that_is_not_whole_is_never_read_to_its_end(
    rows: list[tuple[Any, ...]], found: str, at_a_time: int
) -> None:
    batches = [log(*rows[i : i + at_a_time]) for i in range(0, len(rows), at_a_time)]

    with pytest.raises(OperatorError) as caught:
        decode(a_slice(5, 6, changes=[1, 2]), *batches)

    assert caught.value.what.startswith(found)


def test_changes_of_tables_that_the_reader_is_not_about_are_left_out_and_counted() -> None:
    decoder = LogDecoder("shop", a_slice(5, changes=[3]), TABLES, {(16400, 2), (16401, 1)})
    rows = log((5, 1, 16400, 2, "I", None, "{}"), (5, 2, 16400, 1, "I", None, "{}"), (5, 3, 16401, 1, "T", None, None))

    (batch,) = decoder.decode([rows], with_key=False)

    assert batch[c.TABLE_NAME].to_pylist() == ["emp"]


IMAGES = [
    pytest.param(("id",), {"id": "1", "v": "2"}, {"id": "1"}, id="one column"),
    pytest.param(("id", "co"), {"id": "1", "co": "x", "v": "2"}, {"id": "1", "co": "x"}, id="two columns"),
    pytest.param(("id", "co"), {"id": "1", "co": None}, {"id": "1", "co": None}, id="null"),
    pytest.param(("id",), {"id": 'a"}\\,{', "v": "2"}, {"id": 'a"}\\,{'}, id="a value like the syntax around it"),
    pytest.param(("id",), {"id": "two\nlines\u2028€😀"}, {"id": "two\nlines\u2028€😀"}, id="letters of all kinds"),
    pytest.param(("a b",), {"a b": "1"}, {"a b": "1"}, id="a name with a blank"),
    pytest.param((".*",), {".*": "1", "v": "2"}, {".*": "1"}, id="a name like a pattern"),
    pytest.param(('q"\\',), {'q"\\': "1"}, {'q"\\': "1"}, id="a name that JSON escapes"),
    pytest.param(("größe-№",), {"größe-№": "1"}, {"größe-№": "1"}, id="a name with other letters"),
    pytest.param(("id",), {"v": "2"}, None, id="an image without its key"),
    pytest.param((), {"v": "2"}, None, id="a table without a key"),
]


@pytest.mark.parametrize(("key", "image", "expected"), IMAGES)
@pytest.mark.parametrize("op", ["I", "U", "D"])
def test_the_key_is_that_of_the_row_before_the_change(
    op: str, key: tuple[str, ...], image: dict[str, str | None], expected: dict[str, str | None] | None
) -> None:
    text = json.dumps(image, ensure_ascii=False, separators=(",", ":"))
    before, after = {"I": (None, text), "U": (text, '{"id":"new"}'), "D": (text, None)}[op]
    decoder = LogDecoder("shop", a_slice(5), {(1, 1): CapturedTable(EMP, key)})

    (batch,) = decoder.decode([log((5, 1, 1, 1, op, before, after))], with_key=True)

    (found,) = batch[c.KEY].to_pylist()
    assert (None if found is None else json.loads(found)) == expected


def test_each_row_has_the_key_of_its_own_table_and_version() -> None:
    image = '{"id":"1","co":"x"}'

    changes = decode(
        a_slice(5, changes=[3]),
        log(*((5, i, *table, "I", None, image) for i, table in enumerate(TABLES))),
        with_key=True,
    )

    assert [change["key"] for change in changes] == ['{"id":"1"}', image, None]


def test_the_key_is_left_out_for_who_does_not_need_it() -> None:
    assert [change["key"] for change in decode(a_slice(5), log(row(5)))] == [None]


def test_an_oid_above_two_billion_is_known() -> None:
    oid = 3_000_000_000
    decoder = LogDecoder("s", a_slice(5), {(oid, 1): CapturedTable(TableName("p", "t"), ())})
    (batch,) = decoder.decode([log((5, 1, oid, 1, "I", None, "{}"))], with_key=False)
    assert batch.num_rows == 1


def test_many_changes_stored_as_one_row_become_rows_of_their_own() -> None:
    stored = log(
        (5, 1, 16400, 1, "I", None, "{1}"),
        (5, 2, 16400, 1, "u", "{1}\t{a}\n{2}\t{}", None),
        (5, 3, 16401, 1, "i", "{3}\n{4}", None),
        (5, 4, 16401, 1, "T", None, None),
        (6, 5, 16400, 2, "d", "{5}", None),
        (6, 6, 16400, 2, "U", "{6}", "{b}"),
    )

    assert (
        change_by_change(stored).to_pylist()
        == log(
            (5, 1, 16400, 1, "I", None, "{1}"),
            (5, 2, 16400, 1, "U", "{1}", "{a}"),
            (5, 2, 16400, 1, "U", "{2}", "{}"),
            (5, 3, 16401, 1, "I", None, "{3}"),
            (5, 3, 16401, 1, "I", None, "{4}"),
            (5, 4, 16401, 1, "T", None, None),
            (6, 5, 16400, 2, "D", "{5}", None),
            (6, 6, 16400, 2, "U", "{6}", "{b}"),
        ).to_pylist()
    )
    assert change_by_change(stored.slice(1, 2)).num_rows == 4


def test_rows_of_one_change_are_left_as_they_are() -> None:
    stored = log(row(5), row(6))

    assert change_by_change(stored) is stored
    assert change_by_change(log()).num_rows == 0


def test_a_reader_is_about_tables_by_all_names_that_they_had_on_the_way() -> None:
    def version(id_: int, number: int, name: str) -> TableVersion:
        table = TableName("public", name)
        return TableVersion(id_, TableSchema(table, (), version=number), {}, table)

    versions = [
        version(1, 1, "t"),
        version(1, 2, "for_a_while"),
        version(1, 3, "t"),
        version(2, 1, "u"),
        version(2, 2, "gone"),
        version(3, 1, "other"),
    ]
    follows = {TableName("public", "t"), TableName("public", "u")}
    reader = QueueReader.of("shop", PostgresSource("", "").log, versions, follows=follows)

    assert reader.left_out == {(2, 2), (2, NO_VERSION), (3, 1), (3, NO_VERSION)}
