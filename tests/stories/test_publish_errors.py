"""What cannot be told as an event waits in an error queue beside the position; all else is published, each once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import penstock
from penstock.apply.entry_edits import by_settings, read_place
from penstock.apply.error_queue import EntryOutcome, NoEntryError, OnHoldError
from penstock.change import TableName
from penstock.cli.main import app
from penstock.errors import OperatorError, RetryableError
from penstock.pipeline.publication import Publication
from penstock.storage import LocalStorage
from tests.lab import Lab
from tests.stories.test_publish_events import consumer, lines

FILE = """
version: 1
name: {name}
connections: {{shop: {{type: postgres, url: "{url}"}}}}
capture: {{source: trigger_queue, connection: shop, tables: ["public.*"]}}
publish: {{to: files, path: events, format: debezium-json, max_age_s: 0, on_bad_value: {on_bad_value},
  debezium: {{prefix: shop}}}}
"""

TABLES = "CREATE TABLE good (id int PRIMARY KEY); CREATE TABLE bad (id int PRIMARY KEY, m money[]);"

Open = Callable[..., Publication]


@pytest.fixture
def publishing(lab: Lab, spark: object, tmp_path: Path) -> Open:
    def opened(on_bad_value: str = "put_aside_transaction") -> Publication:
        path = tmp_path / "publish.yaml"
        path.write_text(FILE.format(name=lab.name, url=lab.source_url, on_bad_value=on_bad_value))
        publication = penstock.open(path)
        assert isinstance(publication, Publication)
        return publication

    lab.source.execute(TABLES)
    opened().setup()
    run(opened())
    return opened


def run(publication: Any) -> Any:
    return publication.run(threading.Event(), until_caught_up=True)


def published(folder: Path) -> list[tuple[str, str, int]]:
    """Table, operation and id of each event, in order."""
    found = []
    for line in lines(folder):
        payload = (line["value"] or {}).get("payload", {})
        if "op" in payload:
            row = payload["after"] or payload["before"]
            found.append((payload["source"]["table"], payload["op"], row["id"]))
    return found


def commit(lab: Lab, *transactions: str) -> None:
    for sql in transactions:
        lab.source.execute(sql)


BOTH = "INSERT INTO good VALUES ({n}); INSERT INTO bad VALUES ({n}, '{{$1.50}}')"


def test_a_transaction_that_cannot_be_told_is_put_aside_and_what_follows_is_published(
    lab: Lab, publishing: Open, tmp_path: Path
) -> None:
    publication = publishing()
    commit(lab, BOTH.format(n=1), "INSERT INTO good VALUES (2)")

    progress = run(publication)

    assert published(tmp_path) == [("good", "c", 2)]
    assert (progress.errors, progress.in_queue) == (1, 1)
    assert progress.tables.changes == {(TableName("public", "good"), "insert"): 1}
    (entry,) = publication.errors().entries()
    (queued,) = publication.queued_counts()
    assert (str(queued.table), queued.error, queued.entries) == ("public.bad", str(entry.error_number), 1)
    assert (entry.id, entry.message_number, entry.message_count) == (f"{lab.name}.1", 2, 2)
    assert (str(entry.table), entry.op, entry.error_type) == ("public.bad", "insert", "value")
    assert "column 'm'" in entry.error_message
    assert f"transaction {entry.txn_id}" in entry.error_message
    assert "1.50" not in entry.error_message
    assert publication.status().errors == 1
    shown = publication.errors().show("1")
    assert [str(one.change.table) for one in shown.current_rows] == ["public.good", "public.bad"]


def test_the_change_alone_is_put_aside_where_the_file_says_so(lab: Lab, publishing: Open, tmp_path: Path) -> None:
    publication = publishing("put_aside_change")
    lab.source.execute(BOTH.format(n=1))

    run(publication)

    assert published(tmp_path) == [("good", "c", 1)]
    _, transaction = publication.errors().load("1")
    assert [(change.change_seq, str(change.table)) for change in transaction.changes] == [(2, "public.bad")]


def test_a_run_that_is_to_stop_names_table_column_and_transaction(lab: Lab, publishing: Open, tmp_path: Path) -> None:
    publication = publishing("stop")
    commit(lab, "INSERT INTO good VALUES (0)", BOTH.format(n=1))

    with pytest.raises(OperatorError, match=r"column 'm'.*public\.bad.*transaction \d+") as caught:
        run(publication)

    assert "1.50" not in str(caught.value)
    run(publishing())
    assert published(tmp_path) == [("good", "c", 0)]


def test_rows_of_a_first_copy_are_put_aside_one_by_one(lab: Lab, publishing: Open, tmp_path: Path) -> None:
    lab.source.execute(
        "CREATE TABLE more (id int PRIMARY KEY, m money[]); INSERT INTO more VALUES (1, '{1.5}'), (2, NULL)"
    )
    publication = publishing()
    publication.setup()

    run(publication)

    assert published(tmp_path) == [("more", "r", 2)]
    (entry,) = publication.errors().entries()
    assert (str(entry.table), entry.op) == ("public.more", "snapshot")


def test_a_table_whose_rows_stop_a_first_copy_keeps_no_other_one_back(
    lab: Lab, publishing: Open, tmp_path: Path
) -> None:
    lab.source.execute(
        "CREATE TABLE more (id int PRIMARY KEY, m money[]); INSERT INTO more VALUES (1, '{1.5}');"
        "CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1)"
    )
    publication = publishing("stop")
    publication.setup()

    assert run(publication).left_out == ["public.more"]

    lab.source.execute("INSERT INTO other VALUES (2); UPDATE more SET id = 2")
    assert run(publication).left_out == ["public.more"]
    assert published(tmp_path) == [("other", "r", 1), ("other", "c", 2)]
    lab.source.execute("UPDATE more SET m = NULL")
    assert run(publication).left_out == []
    assert published(tmp_path)[2:] == [("more", "r", 2)]


def test_an_entry_is_retried_with_another_value_and_then_gone(lab: Lab, publishing: Open, tmp_path: Path) -> None:
    publication = publishing()
    lab.source.execute(BOTH.format(n=1))
    run(publication)

    with pytest.raises(OperatorError, match="column 'm'"):
        list(publication.retry(["1"]))
    assert len(publication.errors().entries()) == 1
    mend = by_settings([read_place("2.after.m", None, option="--null")], ())
    (retried,) = publication.retry(["1"], mend=mend)

    assert (retried.outcome, list(retried.edits)) == (EntryOutcome.APPLIED, ["2.after.m"])
    assert publication.errors().entries() == []
    assert published(tmp_path) == [("good", "c", 1), ("bad", "c", 1)]
    lab.source.execute("INSERT INTO good VALUES (5)")
    run(publication)
    assert published(tmp_path)[2:] == [("good", "c", 5)]


def test_what_is_retried_is_applied_from_the_events_like_all_else(lab: Lab, publishing: Open, tmp_path: Path) -> None:
    publication = publishing()
    commit(lab, "INSERT INTO bad VALUES (0)", BOTH.format(n=1), "INSERT INTO good VALUES (2)")
    run(publication)
    lab.target.execute(TABLES)
    copy = consumer(tmp_path, lab)
    copy.setup()
    run(copy)
    assert (lab.rows("good"), lab.rows("bad")) == ([(2,)], [(0, None)])

    list(publication.retry(["1"], mend=by_settings([read_place("2.after.m", None, option="--null")], ())))
    run(copy)

    assert lab.rows("good") == [(1,), (2,)]
    assert lab.rows("bad") == [(0, None), (1, None)]


def test_an_entry_on_hold_is_neither_published_nor_deleted(lab: Lab, publishing: Open, tmp_path: Path) -> None:
    publication = publishing()
    commit(lab, BOTH.format(n=1), BOTH.format(n=2))
    run(publication)
    assert publication.errors().hold("1", note="ticket 4711") == [f"{lab.name}.1"]

    first, second = publishing().errors().entries()
    assert first.on_hold is not None
    assert (first.on_hold.note, second.on_hold) == ("ticket 4711", None)
    assert (publication.status().errors, publication.status().on_hold) == (2, 1)
    with pytest.raises(OnHoldError, match="is on hold"):
        list(publication.retry(["2", "1"]))
    with pytest.raises(OnHoldError, match="is on hold"):
        publication.errors().delete("2", "1")
    mend = by_settings([read_place("2.after.m", None, option="--null")], ())
    retried = publication.retry([first.id, second.id], mend=mend, skip_gone=True)
    assert [one.outcome for one in retried] == [EntryOutcome.ON_HOLD, EntryOutcome.APPLIED]
    assert publication.errors().delete(first.id, skip_gone=True) == []

    # A run that goes on keeps it as it is.
    lab.source.execute("INSERT INTO good VALUES (5)")
    run(publication)
    assert publication.errors().hold(first.id, note="others", skip_gone=True) == []
    assert publication.errors().release("1") == [first.id]
    (retried_again,) = publication.retry(["1"], mend=mend)

    assert retried_again.outcome is EntryOutcome.APPLIED
    found = [(table, number) for table, _, number in published(tmp_path)]
    assert found == [("good", 2), ("bad", 2), ("good", 5), ("good", 1), ("bad", 1)]


def test_a_deleted_entry_is_never_published(lab: Lab, publishing: Open, tmp_path: Path) -> None:
    publication = publishing()
    commit(lab, BOTH.format(n=1), BOTH.format(n=2))
    run(publication)
    publication.errors().delete("1")
    assert [entry.id for entry in publication.errors().entries()] == [f"{lab.name}.2"]

    with pytest.raises(OperatorError, match="there is no entry '1'"):
        publication.errors().delete("1")
    lab.source.execute(BOTH.format(n=3))
    run(publication)
    assert [entry.id for entry in publication.errors().entries()] == [f"{lab.name}.2", f"{lab.name}.3"]
    assert published(tmp_path) == []


def test_whatever_ends_a_run_a_transaction_is_put_aside_once(
    lab: Lab, publishing: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication = publishing()
    commit(lab, "INSERT INTO good VALUES (0)", BOTH.format(n=1), "INSERT INTO good VALUES (2)")
    create, calls = LocalStorage.create, []

    def dies(storage: LocalStorage, name: str, content: Any) -> None:
        calls.append(name)
        if len(calls) % 2:
            raise RetryableError("killed")
        create(storage, name, content)

    monkeypatch.setattr(LocalStorage, "create", dies)
    run(publication)

    assert len(publication.errors().entries()) == 1
    assert published(tmp_path) == [("good", "c", 0), ("good", "c", 2)]


def test_entries_that_another_session_takes_while_all_are_read_are_passed_by(lab: Lab, publishing: Open) -> None:
    publication = publishing()
    commit(lab, *(BOTH.format(n=n) for n in range(3)))
    run(publication)
    first, second, third = (entry.id for entry in publication.errors().entries())
    publication.errors().delete(first)

    with pytest.raises(NoEntryError):
        list(publication.retry([first, second]))
    mend = by_settings([read_place("2.after.m", None, option="--null")], ())
    retried = list(publication.retry([first, second], mend=mend, skip_gone=True))
    deleted = publication.errors().delete(first, second, third, skip_gone=True)

    assert [(one.entry_id, one.outcome) for one in retried] == [
        (first, EntryOutcome.GONE),
        (second, EntryOutcome.APPLIED),
    ]
    assert deleted == [third]
    assert publication.errors().entries() == []


def test_people_see_and_mend_the_queue_by_the_commands_that_they_know(
    lab: Lab, publishing: Open, tmp_path: Path
) -> None:
    commit(lab, BOTH.format(n=1), BOTH.format(n=2), BOTH.format(n=3))
    assert run(publishing()).in_queue == 3

    def errors(*words: str) -> Any:
        return CliRunner().invoke(app, ["errors", *words, "-f", str(tmp_path / "publish.yaml")])

    def told(*words: str) -> Any:
        return json.loads(errors(*words, "--json").stdout)

    assert [(one["id"], one["table"], one["error_type"]) for one in told("list")] == [
        (f"{lab.name}.{n}", "public.bad", "value") for n in (1, 2, 3)
    ]
    assert [change["after"] for change in told("show", "1")["changes"]] == [{"id": "1"}, {"id": "1", "m": "{$1.50}"}]
    assert "column 'm'" in str(errors("retry", "1").exception)
    assert told("edit", "1", "--null", "2.after.m", "--dry-run")["would_apply"] == [f"{lab.name}.1"]
    assert told("edit", "1", "--null", "2.after.m")["applied"] == [f"{lab.name}.1"]
    assert told("delete", "2") == {"deleted": [f"{lab.name}.2"], "on_hold": []}
    for refused in (["retry", "7"], ["retry", "3", "--as-me"], ["history"]):
        assert isinstance(errors(*refused).exception, OperatorError)
    assert [one["id"] for one in told("list")] == [f"{lab.name}.3"]
    assert published(tmp_path) == [("good", "c", 1), ("bad", "c", 1)]


def test_a_run_counts_what_it_publishes_and_nothing_that_it_leaves_out(lab: Lab, spark: object, tmp_path: Path) -> None:
    lab.source.execute(TABLES)
    for path, form in (("events", "format: debezium-json, debezium: {prefix: shop}"), ("archive", "format: changes")):
        file = tmp_path / "publish.yaml"
        text = FILE.format(name=f"{lab.name}_{path}", url=lab.source_url, on_bad_value="stop")
        head, _, _ = text.partition("publish:")
        more = "rules: {exclude: [public.bad], tables: {public.good: {rows: 'id < 100'}}}"
        file.write_text(f"{head}publish: {{to: files, path: {path}, max_age_s: 0, {form}}}\n{more}\n")
        publication = penstock.open(file)
        assert isinstance(publication, Publication)
        publication.setup()
        run(publication)
        commit(
            lab,
            *(f"INSERT INTO bad (id) VALUES ({ord(path[0])}{n})" for n in range(5)),
            *(f"INSERT INTO good VALUES ({ord(path[0])}{n})" for n in range(100, 105)),
            f"INSERT INTO good VALUES ({len(path)}), ({len(path)}0)",
        )

        progress = run(publication)

        assert (path, progress.transactions, progress.changes) == (path, 1, 2)
        good = TableName("public", "good"), "insert"
        assert (progress.tables.changes, progress.tables.transactions) == ({good: 2}, {good: 1})
        status = publication.status()
        assert (status.transactions, status.changes) == (1, 2)
