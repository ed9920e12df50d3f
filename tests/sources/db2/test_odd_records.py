"""Odd records: information without data, changes that are undone without a place, null indicators of many bits."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from penstock.errors import MalformedInputError
from tests.sources.db2.encoder import OUT, Log, Varying, image
from tests.sources.db2.test_examples import catalog_of, decode
from tests.sources.db2.test_round_trip import TABLE


def row(number: int, name: str, text: Varying = Varying(None)) -> bytes:
    return image([struct.pack("<i", number), Varying(name.encode()), text])


def changes(log: Log) -> list[dict[str, Any]]:
    ((_, _, found),) = decode(*log.buffers(), catalog=catalog_of(TABLE))
    return found


@pytest.mark.parametrize("operations", [[66], [67], [66, 67]], ids=str)
def test_out_of_row_data_of_which_only_information_follows_leaves_the_value_as_it_is(operations: list[int]) -> None:
    log = Log()
    log.start(1)
    for operation in operations:
        log.lob_record(1, operation, 2, 4, 0)
    log.update(1, 5, row(1, "old", OUT), row(1, "new", OUT))
    log.commit(1)

    assert changes(log) == [{"op": "update", "before": {"ID": "1", "NAME": "old"}, "after": {"NAME": "new"}}]


def test_an_insert_whose_data_is_missing_is_still_refused() -> None:
    log = Log()
    log.start(1)
    log.lob_record(1, 67, 2, 1, 0)
    log.insert(1, 5, row(1, "new", OUT))
    log.commit(1)

    with pytest.raises(MalformedInputError):
        changes(log)


def test_what_is_undone_without_a_place_is_found_by_table_and_row() -> None:
    log = Log()
    log.insert(1, 5, row(1, "kept"))
    log.insert(1, 6, row(2, "undone"))
    log.undo_insert(1, 6, 0)
    log.delete(1, 7, row(3, "kept, too"))
    log.undo_with_image(1, 111, 7, row(3, "kept, too"), 0)
    log.commit(1)

    assert [change["after"]["NAME"] for change in changes(log)] == ["kept"]


def test_what_is_undone_without_a_place_is_the_last_change_of_its_row() -> None:
    log = Log()
    log.update(1, 5, row(1, "a"), row(1, "b"))
    log.update(1, 5, row(1, "b"), row(1, "c"))
    log.undo_with_image(1, 112, 5, row(1, "b"), 0)
    log.commit(1)

    assert [change["after"] for change in changes(log)] == [{"NAME": "b"}]


def test_nothing_that_was_not_done_can_be_undone() -> None:
    log = Log()
    log.insert(1, 5, row(1, "kept"))
    log.undo_insert(1, 6, 0)
    log.commit(1)

    with pytest.raises(MalformedInputError, match="undoes a change that the transaction has not made"):
        changes(log)


@pytest.mark.parametrize(("indicator", "name"), [(0x00, "x"), (0x01, None), (0x80, "x"), (0x81, None), (0xFE, "x")])
def test_a_null_indicator_is_read_by_its_lowest_bit(indicator: int, name: str | None) -> None:
    log = Log()
    made = bytearray(row(1, "x"))
    # Behind the number and its indicator, and the varying column's place.
    made[8 + 5 + 4] = indicator
    log.insert(1, 5, bytes(made))
    log.commit(1)

    assert changes(log)[0]["after"]["NAME"] == name
