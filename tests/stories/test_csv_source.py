"""The example source of one's own: a folder of CSV files, set up and applied to PostgreSQL as its page says."""

from __future__ import annotations

import json
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from penstock import pipeline_file
from penstock.errors import ConfigError, MalformedInputError, OperatorError
from penstock.pipeline.pipeline import Pipeline
from penstock.position import Limit, Scn
from penstock.storage import LocalStorage
from penstock.stream import Source
from penstock.user_code import load
from penstock.wiring import open_pipeline

EXAMPLE = Path(__file__).parents[2] / "examples" / "csv_source"

NAME = "csv_changes:open_csv"

HEAD = "position,committed_at,op,table,before,after\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The example, in a place where all but its Python may be altered: a process imports a module once."""
    made = tmp_path / "example"
    shutil.copytree(EXAMPLE, made, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    (made / "csv_changes.py").symlink_to(EXAMPLE / "csv_changes.py")
    return made


def open_source(folder: Path) -> Source:
    """The source of the example, without a pipeline."""
    return load(NAME, folder)(LocalStorage(folder / "changes")).open_source()


class Shop:
    """The example's pipeline, to a database of this test's own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url

    def pipeline(self) -> Pipeline:
        made = open_pipeline(pipeline_file.load(self.folder / "pipeline.yaml", {"COPY_URL": self.url}))
        assert isinstance(made, Pipeline)
        return made

    def run(self, *, until: int | None = None) -> int:
        """Apply what is there; returns the position that was reached."""
        progress = self.pipeline().run(threading.Event(), until_caught_up=until is None, until=until)
        assert (progress.in_queue, progress.conflicts) == (0, 0)
        return progress.position

    def rows(self, table: str) -> list[tuple[str, ...]]:
        with psycopg.connect(self.url) as connection:
            return [tuple(row) for row in connection.execute(f"SELECT t::text FROM {table} t ORDER BY 1").fetchall()]

    def add(self, name: str, *lines: str) -> None:
        (self.folder / "changes" / name).write_text(HEAD + "".join(f"{line}\n" for line in lines))


@pytest.fixture
def shop(folder: Path, database: str, spark: SparkSession) -> Shop:
    return Shop(folder, database)


def test_a_target_becomes_what_csv_files_say_and_goes_on_with_those_that_come_later(shop: Shop) -> None:
    shop.pipeline().setup()

    assert shop.run(until=5) == 5
    assert shop.rows("item") == [("(1,pen,1.75)",), ("(2,ink,)",)]
    assert len(shop.rows("note")) == 1

    shop.run()
    assert shop.rows("item") == [("(1,pen,1.75)",), ('(3,"paper, ""A4""",4.00)',)]
    assert shop.rows("note") == []

    shop.add("12.csv", '12,2024-01-02T13:00:00+01:00,insert,public.note,,"{""at"": null, ""body"": ""later""}"')
    before = shop.pipeline().status()
    assert (before.backlog_changes, before.consistent_at) == (1, datetime(2024, 1, 2, 12, tzinfo=UTC))
    assert shop.run() == 12
    after = shop.pipeline().status()
    assert (after.backlog_changes, after.consistent_at) == (0, datetime(2024, 1, 2, 12, tzinfo=UTC))
    assert shop.rows("note") == [("(,later)",)]


def test_rules_and_lanes_and_what_the_target_refuses_are_as_for_any_source(shop: Shop, spark: SparkSession) -> None:
    text = (shop.folder / "pipeline.yaml").read_text()
    rules = "rules: {exclude: [public.note], tables: {public.item: {to: public.goods, drop: [price], rows: id > 1}}}\n"
    (shop.folder / "pipeline.yaml").write_text(text + rules)
    shop.pipeline().setup()

    shop.run()

    assert shop.rows("goods") == [('(3,"paper, ""A4""")',)]


def test_a_folder_that_holds_another_recording_or_an_older_one_is_refused(shop: Shop) -> None:
    shop.pipeline().setup()
    shop.run()

    (shop.folder / "changes" / "9.csv").rename(shop.folder / "kept")
    with pytest.raises(OperatorError, match="restored to an older state"):
        shop.run()
    (shop.folder / "kept").rename(shop.folder / "changes" / "9.csv")
    tables = shop.folder / "changes" / "tables.json"
    tables.write_text(json.dumps({**json.loads(tables.read_text()), "id": "another shop"}))
    with pytest.raises(OperatorError, match="is not the one that the target was filled from"):
        shop.run()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("12,yesterday,insert,public.note,,{}", r"not a change.*12\.csv, line 3\)"),
        ("12,2024-01-02T13:00:00+00:00,upsert,public.note,,{}", r"not a change.*12\.csv, line 3\)"),
        ('12,2024-01-02T13:00:00+00:00,insert,public.note,,"{""at"": 5}"', r"not a change.*12\.csv, line 3\)"),
        ("10,2024-01-02T13:00:00+00:00,truncate,public.note,,", r"transactions are not in order"),
        ("13,2024-01-02T13:00:00+00:00,truncate,public.note,,", r"is at position 13, not at the one"),
    ],
    ids=["no time", "no operation", "no text", "not in order", "behind the name"],
)
def test_a_file_that_is_none_is_named_with_its_line_and_nothing_of_it_is_read(
    folder: Path, line: str, said: str
) -> None:
    (folder / "changes" / "12.csv").write_text(f"{HEAD}11,2024-01-02T13:00:00+00:00,truncate,public.note,,\n{line}\n")
    source = open_source(folder)
    with pytest.raises(MalformedInputError, match=said) as refused:
        source.next_slice(Scn(9), Limit())
    assert "yesterday" not in str(refused.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("csv_chagnes:open_csv", "cannot load 'csv_chagnes:open_csv': ModuleNotFoundError: No module named"),
        ("csv_changes:open_it", "cannot load 'csv_changes:open_it': AttributeError: module 'csv_changes' has no"),
        ("csv_changes:HEAD", "cannot load 'csv_changes:HEAD': AttributeError"),
        ("csv_changes:OPS", "cannot load 'csv_changes:OPS': TypeError: 'OPS' is not a function"),
        ("csv_changes:TableName", "'csv_changes:TableName' failed: TypeError: "),
        ("csv_changes:CsvChanges", "'csv_changes:CsvChanges' made CsvChanges, which is not a source"),
    ],
)
def test_a_source_that_cannot_be_loaded_is_told_with_its_line(folder: Path, source: str, said: str) -> None:
    file = folder / "pipeline.yaml"
    file.write_text(file.read_text().replace(NAME, source))
    with pytest.raises(ConfigError) as refused:
        open_pipeline(pipeline_file.load(file, {"COPY_URL": "postgresql://nowhere"}))
    assert str(refused.value).startswith(f"{file}:6: capture.source: {said}")


def test_a_source_of_several_files_beside_the_pipeline_file_is_refused_for_tasks_would_not_find_it(
    folder: Path,
) -> None:
    package = folder / "csv_package"
    package.mkdir()
    shutil.copy(folder / "csv_changes.py", package / "__init__.py")
    file = folder / "pipeline.yaml"
    file.write_text(file.read_text().replace(NAME, "csv_package:open_csv"))
    with pytest.raises(ConfigError, match=r"ValueError: 'csv_package' is not one file\. Name a class"):
        open_pipeline(pipeline_file.load(file, {"COPY_URL": "postgresql://nowhere"}))


def test_the_file_beside_the_pipeline_file_is_not_taken_for_another_one_of_its_name(folder: Path) -> None:
    load(NAME, EXAMPLE)
    (folder / "csv_changes.py").unlink()
    shutil.copy(EXAMPLE / "csv_changes.py", folder)
    with pytest.raises(ConfigError, match="another module 'csv_changes' was imported before, from"):
        open_pipeline(pipeline_file.load(folder / "pipeline.yaml", {"COPY_URL": "postgresql://nowhere"}))
