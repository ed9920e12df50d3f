"""An archive as a pipeline's source: copies in their place among the changes, and tables as all their versions need."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import change as c
from penstock.archive import Archive
from penstock.change import TableName
from penstock.config.rules import RulesConfig
from penstock.errors import ConfigError, MalformedInputError, OperatorError
from penstock.formats.archive_log import CopiedPart
from penstock.formats.change_file import Encoding
from penstock.pipeline.transformed import TransformedRecording
from penstock.position import START, Anchor, Limit, Scn
from penstock.rules.ruleset import RuleSet
from penstock.sinks.archive.files import ArchiveWriter, FileWriter, make_archive
from penstock.snapshot.chunk import Chunk, CopySource
from penstock.sources.change_files.connector import ChangeFilesConnector
from penstock.sources.change_files.source import ChangeFiles, ChangeFilesAccess
from penstock.storage import LocalStorage
from penstock.stream import StoredCopy
from tests.archives import BOOK, COLUMN, ITEM, definition, publish, row, stream

OTHER = TableName("public", "other")


class Writing:
    """A run that publishes, step by step."""

    def __init__(self, folder: Path) -> None:
        self.storage = LocalStorage(folder)
        make_archive(self.storage, "shop", Encoding.CHANGES)
        self.writer = ArchiveWriter(self.storage)
        self.files = FileWriter(self.storage, Encoding.CHANGES, self.writer.acquire().epoch)

    @property
    def side(self) -> ChangeFilesConnector:
        return ChangeFilesConnector(self.storage)

    def define(self, id_: int, table: TableName, version: int, **parts: Any) -> None:
        described = {**definition(table), **parts}
        self.writer.commit(self.writer.last.end, tables=[self.writer.describe(id_, table, version, described, table)])

    def copy(
        self, table: TableName, position: int, id_: int, *, name: str, rows: int = 1, is_whole: bool = True
    ) -> None:
        held = stream([row(position, n, op="snapshot", table=table, after={"id": str(n)}) for n in range(rows)])
        part = CopiedPart(table, name, Scn(position), tuple(self.files.write_copy([held])), is_whole, "", id_)
        self.writer.commit(self.writer.last.end, copies=[part])

    def change(self, *rows: Mapping[str, Any]) -> None:
        batch = stream(rows)
        self.writer.commit(Scn(batch[c.COMMIT_SCN][-1].as_py()), self.files.write_changes([batch]))

    def slices(self, until: int | None = None) -> list[tuple[int, int, list[tuple[int, str]]]]:
        """Each slice's bounds, and the position and table of each change that tasks read of it."""
        source = ChangeFiles(Archive(self.storage))
        reader = ChangeFilesAccess(self.storage).reader("s", source.tables(), follows={ITEM, BOOK, OTHER})
        after, found = START, []
        bound = None if until is None else Scn(until)
        while (part := source.next_slice(after, Limit(), until=bound)) is not None:
            rows = pa.Table.from_batches(reader.read(part), c.ARROW_SCHEMA)
            changes = zip(rows[c.COMMIT_SCN].to_pylist(), rows[c.TABLE_NAME].to_pylist(), strict=True)
            found.append((part.after, part.end, list(changes)))
            after = part.end
        return found


@pytest.fixture
def writing(tmp_path: Path) -> Writing:
    return Writing(tmp_path)


def test_a_table_made_anew_has_no_changes_until_its_copy(writing: Writing) -> None:
    writing.define(1, ITEM, 1)
    writing.copy(ITEM, 2, 1, name="first")
    writing.change(row(1), row(3))
    writing.define(9, ITEM, 2)
    writing.change({**row(5), c.TABLE_VERSION: 2})
    writing.copy(ITEM, 7, 9, name="anew")
    writing.change({**row(6), c.TABLE_VERSION: 2}, {**row(8), c.TABLE_VERSION: 2})

    # 1 is in the first copy, 5 and 6 are in the second.
    assert writing.slices() == [(0, 2, []), (2, 7, [(3, "item")]), (7, 8, [(8, "item")])]
    assert [writing.side.copies_at([ITEM], Scn(at)) for at in (1, 2, 6)] == [[], *2 * [[_copy("first", 2)]]]
    assert writing.side.copies_at([ITEM], Scn(7)) == [_copy("anew", 7)]


def test_a_table_that_was_renamed_is_gone_from_its_old_name(writing: Writing) -> None:
    writing.define(1, ITEM, 1)
    writing.copy(ITEM, 0, 1, name="first")
    writing.define(1, BOOK, 2)
    writing.change(row(1), {**row(2, table=BOOK), c.TABLE_VERSION: 2})
    writing.copy(BOOK, 2, 1, name="renamed")
    writing.change({**row(3, table=BOOK), c.TABLE_VERSION: 2})

    assert writing.slices() == [(0, 2, [(1, "item")]), (2, 3, [(3, "book")])]
    assert writing.side.copies_at([ITEM, BOOK], Scn(1)) == [_copy("first", 0)]
    assert writing.side.copies_at([ITEM, BOOK], Scn(2)) == [_copy("renamed", 2, BOOK)]


def test_a_copy_that_was_cut_short_is_of_no_account(writing: Writing) -> None:
    writing.define(1, ITEM, 1)
    writing.copy(ITEM, 0, 1, name="cut short", is_whole=False)
    writing.copy(ITEM, 1, 1, name="whole")
    writing.change(row(1), row(2))

    assert writing.slices() == [(0, 1, []), (1, 2, [(2, "item")])]
    assert writing.side.copies_at([ITEM], Scn(0)) == []
    assert writing.side.first_copies([ITEM, BOOK]) == {ITEM: 1}


@pytest.mark.parametrize(
    ("until", "ends"), [(0, []), (1, [(0, 1)]), (3, [(0, 2), (2, 3)]), (4, [(0, 2), (2, 4)]), (9, [(0, 2), (2, 5)])]
)
def test_no_slice_ends_behind_a_point_between_transactions_either(
    writing: Writing, until: int, ends: list[tuple[int, int]]
) -> None:
    writing.define(1, ITEM, 1)
    writing.copy(ITEM, 2, 1, name="first")
    writing.change(row(2), row(3))
    writing.change(row(5))

    assert [(after, end) for after, end, _ in writing.slices(until)] == ends


def test_a_table_takes_every_version_and_keeps_what_all_of_them_have(writing: Writing) -> None:
    key = definition(ITEM)["primary_key"]
    number = {**COLUMN, "is_nullable": False}
    text = {"name": "name", "type": "text", "base_type": "text", "is_nullable": False}
    by_name = {**key, "name": "by_name", "columns": ["name"]}
    writing.define(1, ITEM, 1, columns=[number, text], uniques=[by_name])
    writing.define(1, ITEM, 2, columns=[number, {**text, "name": "late"}], primary_key={**key, "name": "other"})
    writing.define(2, BOOK, 1, primary_key=None)
    writing.define(2, BOOK, 2)

    found = writing.side.describe([ITEM, BOOK, OTHER])

    assert [(x.name, x.is_nullable) for x in found[ITEM].columns] == [("id", False), ("late", True), ("name", True)]
    assert found[ITEM].primary_key is not None
    assert found[ITEM].uniques == ()
    assert found[BOOK].primary_key is None
    assert list(found) == [ITEM, BOOK]
    note, of_copies = writing.side.plan([ITEM, BOOK], []).notes
    assert note.startswith("table public.book is described without 'pk'")
    assert of_copies.startswith("the first copy of each table is the one that is stored here")


def test_the_version_that_was_told_last_is_the_newest_whatever_its_number(writing: Writing) -> None:
    number, text = COLUMN, {"name": "name", "type": "text", "base_type": "text"}
    writing.define(1, ITEM, 65_600, columns=[number, text])
    writing.define(1, ITEM, 2, columns=[{**number, "type": "bigint"}, text])

    assert writing.side.describe([ITEM])[ITEM].by_name["id"].type == "bigint"


def test_each_file_of_a_copy_is_read_through_a_rule_that_drops_the_key(tmp_path: Path) -> None:
    publish(storage := LocalStorage(tmp_path))
    config = RulesConfig.model_validate({"tables": {str(ITEM): {"drop": ["id"]}}})
    side = TransformedRecording(ChangeFilesConnector(storage), RuleSet.of(config, ["public.*"], tmp_path))
    (copy,) = side.copies_at({ITEM}, Scn(0))
    chunks = side.stored(copy, threading.Event()).cut_into_chunks([ITEM])
    table = side.describe([ITEM])[ITEM]

    reader = side.access.chunk_reader(CopySource(copy.id, None))
    rows = [batch.num_rows for chunk in chunks for batch in reader.read_chunk(table, ["name"], chunk)]

    assert rows == [2, 1]


def test_a_copy_is_read_file_by_file_with_the_columns_that_it_has(writing: Writing) -> None:
    writing.define(1, ITEM, 1)
    writing.copy(ITEM, 0, 1, name="first", rows=3)
    origin = writing.side.stored(_copy("first", 0), threading.Event())
    table = writing.side.describe([ITEM])[ITEM]
    with origin.hold_snapshot() as held:
        source = CopySource(held.text, held.exported)
    reader = writing.side.access.chunk_reader(source)

    (chunk,) = origin.cut_into_chunks([ITEM])
    (batch,) = reader.read_chunk(table, ["id", "name"], chunk)

    assert batch.to_pydict() == {"id": ["0", "1", "2"]}
    assert reader.count_rows(table, chunk) == 3
    assert (origin.can_resume(ITEM, "first"), origin.can_resume(ITEM, "earlier")) == (True, False)
    other = writing.side.describe([ITEM])[ITEM].from_definition(definition(BOOK))
    with pytest.raises(MalformedInputError, match="other rows than its record says"):
        reader.count_rows(other, Chunk(ITEM, 0))


@pytest.mark.parametrize(
    ("text", "position"), [("3", 3), ("4", 4), ("2024-01-02T12:00:03", 4), ("2024-01-02T13:00:04+01:00", 4)]
)
def test_a_point_is_a_position_or_a_time(writing: Writing, text: str, position: int) -> None:
    writing.change(row(3))
    writing.change(row(5))

    assert writing.side.position_of(text, option="--until") == position


def test_a_point_that_is_not_there_is_refused(writing: Writing) -> None:
    writing.change(row(3))

    for text in ("4", "9000-01-01"):
        with pytest.raises(OperatorError, match=f"--until {text} lies behind the end of the archive, position 3"):
            writing.side.position_of(text, option="--until")
    with pytest.raises(ConfigError, match="must be a position or a time"):
        writing.side.position_of("soon", option="--until")


def _copy(id_: str, position: int, table: TableName = ITEM) -> StoredCopy:
    return StoredCopy(id_, Anchor(Scn(position), ""), frozenset([table]))
