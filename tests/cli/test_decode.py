"""`penstock decode debezium`: what a person, and a program, see of events, and what is odd about them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import PenstockError
from tests.kafka.events import Line, end, event, line


class Decoded:
    def __init__(self, folder: Path, lines: Sequence[Line | str], *options: str) -> None:
        text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
        (folder / "events.jsonl").write_text(text)
        done = CliRunner().invoke(app, ["decode", "debezium", str(folder / "events.jsonl"), *options])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        self.code, self.out = done.exit_code, done.stdout
        self.notes = [text.removeprefix("note: ") for text in done.stderr.splitlines()]

    @property
    def changes(self) -> list[tuple[str, str]]:
        rows = [json.loads(text) for text in self.out.splitlines()]
        return [(row["txn_id"], f"{row['op']} {row['table_name']} {row['key']['id']}") for row in rows]


def test_a_person_sees_transactions_in_the_order_of_their_commits(tmp_path: Path) -> None:
    lines = [
        event("c", "orders", {"id": 1, "note": "n"}, 8, 2),
        event("c", "customers", {"id": 7, "name": None}, 8, 1),
        event("d", "customers", {"id": 7, "name": "old"}, 9, 1),
        line("server1.public.customers", {"id": 7}, None),
        end(9, customers=1),
        end(8, customers=1, orders=1),
    ]
    decoded = Decoded(tmp_path, lines)

    assert decoded.code == 0
    assert decoded.out == (
        "position 1  transaction 9  1970-01-01 00:00:01 UTC\n"
        "  1 delete public.customers id='7'\n"
        "\n"
        "position 2  transaction 8  1970-01-01 00:00:01 UTC\n"
        "  1 insert public.customers id='7'\n"
        "      name: NULL\n"
        "  2 insert public.orders id='1'\n"
        "      note: 'n'\n"
    )
    assert decoded.notes == ["records that say nothing of rows: 1 tombstone"]


def test_a_program_gets_the_change_stream_and_no_part_of_a_transaction(tmp_path: Path) -> None:
    lines = [
        event("r", "t", {"id": 0}, 1, 1, transaction=None),
        event("c", "t", {"id": 1}, 8, 1),
        event("c", "t", {"id": 2}, 9, 1),
        event("c", "t", {"id": 3}, 9, 1),
        event("c", "t", {"id": 4}, 10, 1),
        end(8, t=2),
        end(10, t=1),
    ]
    decoded = Decoded(tmp_path, lines, "--json")

    assert decoded.changes == [("snapshot", "snapshot t 0"), ("10", "insert t 4")]
    assert "transaction 8 is incomplete: public.t 1 of 2" in decoded.notes
    assert "transaction 9 is incomplete: 1 event and no END" in decoded.notes
    assert "1 event came again, and was left out" in decoded.notes


def test_a_long_value_is_cut_for_a_person_unless_it_is_asked_for(tmp_path: Path) -> None:
    lines = [event("c", "t", {"id": 1, "doc": "d" * 1_000}, 8, 1), end(8, t=1)]
    cut, whole, program = (Decoded(tmp_path, lines, *options) for options in ([], ["--full"], ["--json"]))

    assert f"      doc: '{'d' * 200}'... (1,000 characters)\n" in cut.out
    assert cut.notes == ["long values are cut; --full prints them whole"]
    assert f"      doc: '{'d' * 1_000}'\n" in whole.out
    assert "d" * 1_000 in program.out
    assert not whole.notes + program.notes


def test_what_is_there_of_an_incomplete_transaction_is_shown_to_a_person(tmp_path: Path) -> None:
    decoded = Decoded(tmp_path, [event("c", "t", {"id": 1}, 8, 1), end(8, t=2)])

    assert decoded.out == (
        "incomplete, public.t 1 of 2  transaction 8  1970-01-01 00:00:01 UTC\n  1 insert public.t id='1'\n"
    )


def test_events_of_topics_that_are_not_among_them_are_not_missed(tmp_path: Path) -> None:
    decoded = Decoded(tmp_path, [event("c", "t", {"id": 1}, 8, 1), end(8, t=1, other=5)], "--json")

    assert decoded.changes == [("8", "insert t 1")]
    assert not decoded.notes


def test_without_ends_the_places_in_the_sources_log_order_transactions(tmp_path: Path) -> None:
    lines = [event("c", "t", {"id": 9}, 9, 1), event("c", "t", {"id": 8}, 8, 1)]
    decoded = Decoded(tmp_path, lines, "--json")

    assert decoded.changes == [("8", "insert t 8"), ("9", "insert t 9")]
    assert len(decoded.notes) == 1
    assert decoded.notes[0].startswith("no transaction topic was found")


def test_columns_whose_value_is_not_known_are_named(tmp_path: Path) -> None:
    lines = [
        event("c", "t", {"id": 1, "doc": "d"}, 8, 1),
        event("u", "t", {"id": 1, "doc": "__debezium_unavailable_value"}, 8, 2),
        end(8, t=2),
    ]
    decoded = Decoded(tmp_path, lines)

    assert "__debezium" not in decoded.out
    assert decoded.notes == [
        "public.t: column doc is missing in 1 event: the connector did not know its value, or the table has other"
        " columns there"
    ]


def test_what_cannot_be_read_is_named_with_its_place_and_the_rest_is_shown(tmp_path: Path) -> None:
    lines = [
        event("c", "t", {"id": 1}, 8, 1),
        "{",
        line("server1.public.t", None, {"op": "x", "source": {}, "after": {"id": "hush"}}),
        end(8, t=1),
    ]
    decoded = Decoded(tmp_path, lines, "--json")

    assert (decoded.code, decoded.changes) == (3, [("8", "insert t 1")])
    assert [note.split(": ")[0] for note in decoded.notes] == ["not read", "not read"]
    assert ["line 2)" in decoded.notes[0], "line 3)" in decoded.notes[1]] == [True, True]
    assert "hush" not in "".join(decoded.notes)


def test_two_changes_with_one_place_are_named_and_other_transactions_shown(tmp_path: Path) -> None:
    lines = [
        event("c", "t", {"id": 1}, 8, 1),
        event("c", "t", {"id": 2}, 8, 1),
        end(8, t=1),
        event("c", "t", {"id": 3}, 9, 1),
        end(9, t=1),
    ]
    decoded = Decoded(tmp_path, lines, "--json")

    assert (decoded.code, decoded.changes) == (3, [("9", "insert t 3")])
    assert "two different changes have the same place" in decoded.notes[-1]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--from", "1"], ["2", "3", "4"]),
        (["--from", "-2"], ["3", "4"]),
        (["--to", "2"], ["1", "2"]),
        (["--from", "1", "--limit", "2"], ["2", "3"]),
        (["--from", "9"], []),
    ],
)
def test_part_of_a_file_is_read(tmp_path: Path, options: list[str], ids: list[str]) -> None:
    lines = [event("c", "t", {"id": n}, n, 1) for n in (1, 2, 3, 4)]
    decoded = Decoded(tmp_path, lines, "--json", *options)

    assert [text.split()[-1] for _, text in decoded.changes] == ids
    assert any("read up to offset 3, as --limit says" in note for note in decoded.notes) == ("--limit" in options)


def test_events_come_from_standard_input_as_well() -> None:
    text = json.dumps(event("c", "t", {"id": 1}, 8, 1)) + "\n"
    done = CliRunner().invoke(app, ["decode", "debezium", "-", "--json"], input=text)
    assert json.loads(done.stdout)["txn_id"] == "8"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no file is named, and no cluster"),
        (["nowhere"], "cannot read 'nowhere': no such file or directory. A topic needs --bootstrap"),
        (["."], "cannot read '.': is a directory"),
        (["--bootstrap", "127.0.0.1:1"], "no topic is named"),
        (["t", "--bootstrap", "127.0.0.1:1", "-f", "p.yaml"], "--bootstrap names a cluster, and so does the pipeline"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_said(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["decode", "debezium", *arguments])
    assert isinstance(done.exception, PenstockError)
    assert str(done.exception).startswith(says)
