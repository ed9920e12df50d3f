"""The error queue on the page: the same as `penstock errors`, and as quick with 100,000 entries as with one."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import ExitStack

import httpx
import psycopg
import pytest

from penstock.apply import entry_rows
from penstock.change import Change, Op, TableName, Transaction
from penstock.errors import ConfigError
from penstock.position import Scn
from penstock.web.edits import read_edit
from penstock.web.threads import _slots
from tests.dialects.postgres.test_error_pages import ENTRIES, fill
from tests.lab import Lab
from tests.program import await_true
from tests.web.conftest import Serve, break_a_row, client, config_of
from tests.web.test_access import form_token


def act(person: httpx.Client, path: str, page: str, **fields: str) -> str:
    """Send a form of a page, and return what came of it."""
    form = {"form_token": form_token(person.get(page).text), **fields}
    answer = person.post(path, data=form, follow_redirects=True)
    while 'http-equiv="refresh"' in answer.text:
        answer = person.get(str(answer.url))
    assert answer.status_code == 200, answer.text
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text.partition("<main")[2].partition("</main>")[0]))


def test_an_entry_is_shown_with_old_new_and_found_values_and_retried_with_others(shop: Lab, serve: Serve) -> None:
    break_a_row(shop)
    person = client(serve(config_of(shop)))
    listed = person.get("/p/lab/errors").text
    assert 'href="/p/lab/errors/lab.1"' in listed
    shown = person.get("/p/lab/errors/1").text
    for text in ("Ada", "Bob", "by hand", "differs", "26786", "this one failed"):
        assert text in shown, text

    page = "/p/lab/errors/1?edit=1"
    refused = act(person, "/p/lab/errors/1/retry", page, dry="1", who="recipient")
    assert "would fail 1" in refused.lower()
    edits = {"as.2.before.name": "text", "value.2.before.name": "by hand", "edited": "1", "who": "me"}
    edits |= {"as.2.before.note": "absent", "as.2.after.name": "text", "value.2.after.name": "Bob"}
    dry = act(person, "/p/lab/errors/1/retry", page, dry="1", **edits)
    assert "would apply 1" in dry.lower()
    assert "2.before.name" in dry
    assert "2.after.name" not in dry, "it is what the source committed"
    assert len(shop.errors()) == 1
    done = act(person, "/p/lab/errors/1/retry", page, **edits)
    assert "Applied 1" in done
    assert shop.errors() == []
    assert shop.rows("customer") == [(1, "Bob", "of the target")]
    assert len(shop.rows("orders")) == 1
    history = person.get("/p/lab/errors/history").text
    assert history.index("applied") < history.index("would apply") < history.index("would fail")


def test_of_a_large_transaction_only_the_changes_on_the_page_are_looked_up(
    shop: Lab, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.source.execute("INSERT INTO customer SELECT i, 'c' FROM generate_series(2, 130) i")
    shop.apply()
    shop.target.execute("UPDATE customer SET name = 'by hand' WHERE id = 70")
    shop.source.execute("UPDATE customer SET note = name WHERE id > 1")
    shop.source.execute("UPDATE customer SET name = 'd' WHERE id > 1")
    shop.apply()
    looked_up: list[Change] = []
    look_up = entry_rows._current_row
    monkeypatch.setattr(
        entry_rows,
        "_current_row",
        lambda session, change, *more: (looked_up.append(change), look_up(session, change, *more))[1],
    )
    person = client(serve(config_of(shop)))

    shown = person.get("/p/lab/errors/1").text
    assert len(looked_up) == 50
    assert re.findall(r'id="change-(\d+)"', shown) == [str(number) for number in range(51, 101)]
    assert ('href="?change=1"' in shown, 'href="?change=101"' in shown) == (True, True)
    last = person.get("/p/lab/errors/1", params={"change": "129"}).text
    assert re.findall(r'id="change-(\d+)"', last) == [str(number) for number in range(101, 130)]
    assert ('href="?change=51"' in last, 'rel="next"' in last) == (True, False)


def test_a_retry_as_a_role_that_is_not_there_says_so(shop: Lab, serve: Serve) -> None:
    break_a_row(shop)
    person = client(serve(config_of(shop)))
    said = act(person, "/p/lab/errors/1/retry", "/p/lab/errors/1", who="role", role="nobody's")
    assert "failed" in said
    assert "nobody's" in said.replace("&#39;", "'")
    form = {"form_token": form_token(person.get("/p/lab/errors/1").text), "who": "role"}
    assert "No role is named" in person.post("/p/lab/errors/1/retry", data=form).text


def test_entries_that_fit_are_retried_and_deleted_together_once_that_was_confirmed(shop: Lab, serve: Serve) -> None:
    shop.target.execute("INSERT INTO customer SELECT n, 'in the way' FROM generate_series(100, 105) n")
    for n in range(100, 106):
        shop.source.execute("INSERT INTO customer VALUES (%s, 'x')", [n])
    break_a_row(shop)
    assert len(shop.errors()) == 7
    shop.target.execute("DELETE FROM customer WHERE id IN (100, 101, 102)")
    person = client(serve(config_of(shop)))
    wanted = {"error": "1"}
    page = "/p/lab/errors?error=1"
    form = {"form_token": form_token(person.get(page).text), **wanted, "go_on": "1"}
    asked = person.post("/p/lab/errors/all/retry", data=form).text
    assert "Retry 6 transactions?" in asked
    tried = act(person, "/p/lab/errors/all/retry", page, **wanted, dry="1")
    assert "Dry run of 6 transactions? " + ", ".join(f"{name} {value}" for name, value in wanted.items()) in tried
    assert "stay locked" in tried
    assert len(shop.errors()) == 7
    confirmed = re.findall(r'name="confirmed" value="(\d+)"', asked)[0]
    # This one fails behind the question.
    shop.target.execute("INSERT INTO customer VALUES (106, 'in the way')")
    shop.source.execute("INSERT INTO customer VALUES (106, 'x')")
    shop.apply()

    done = act(person, "/p/lab/errors/all/retry", page, **wanted, go_on="1", confirmed=confirmed)
    assert "Applied 3" in done
    assert "Failed 3" in done
    assert "Failed: all: error 1" in done
    deleted = act(person, "/p/lab/errors/all/delete", page, **wanted, confirmed=confirmed)
    assert "Deleted 3" in deleted
    assert [entry.error_number for entry in shop.errors()] == [26786, 1]
    assert person.get("/p/lab/errors", params={"table": "public.none"}).text.count("No entry of the error queue fits")


def test_what_waits_behind_an_entry_is_shown_as_such_and_goes_on_with_it(shop: Lab, serve: Serve) -> None:
    from penstock.apply.lane import ServerConfig

    shop.target.execute("UPDATE customer SET name = 'by hand' WHERE id = 1")
    shop.source.execute("UPDATE customer SET name = 'Bob' WHERE id = 1")
    shop.source.execute("UPDATE customer SET name = 'Cleo' WHERE id = 1")
    shop.apply(config=ServerConfig(hold_dependents=True))
    person = client(serve(config_of(shop, hold_dependents="true")))
    assert "waits behind lab.1" in person.get("/p/lab/errors").text
    waiting = person.get("/p/lab/errors/2").text
    assert 'It waits for <a href="/p/lab/errors/lab.1">lab.1</a>' in waiting

    shop.target.execute("UPDATE customer SET name = 'Ada' WHERE id = 1")
    done = act(person, "/p/lab/errors/1/retry", "/p/lab/errors/1")
    assert "lab.2, which had waited: applied" in done
    assert shop.errors() == []
    shop.assert_identical("customer")


def test_a_hundred_thousand_entries_page_in_a_fifth_of_a_second(shop: Lab, serve: Serve) -> None:
    fill(shop, ENTRIES)
    person = client(serve(config_of(shop)))
    path, number = "/p/lab/errors", 0
    person.get(path)
    while number < 3:
        # Others use the machine, too: the best of some tries is what the page takes.
        tries = []
        for _ in range(4):
            began = time.perf_counter()
            page = person.get(path)
            tries.append(time.perf_counter() - began)
        took = min(tries)
        assert page.status_code == 200
        assert took < 0.2, f"{path}: {took:.3f} s"
        assert page.text.count('<tr><th scope="row">') == 50
        (path,) = re.findall(r'rel="next" href="([^"]+)"', page.text)
        path, number = path.replace("&amp;", "&"), number + 1
    assert "100,000 transactions" in page.text


CHANGE = Change(1, Op.UPDATE, TableName("public", "t"), 1, {"id": "1", "a": "x\r\ny", "n": None}, {"a": "z"})
WHOLE = Transaction(Scn(1), "1", None, [CHANGE])


@pytest.mark.parametrize(
    "form",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"as.1.before.id": "text", "value.1.before.id": "1"}, id="the same text"),
        pytest.param({"as.1.before.a": "text", "value.1.before.a": "x\r\ny"}, id="line ends as a browser sends them"),
        pytest.param({"as.1.before.n": "null", "value.1.before.n": "typed"}, id="still NULL"),
        pytest.param({"as.1.after.id": "absent", "value.1.after.id": ""}, id="still not said"),
    ],
)
def test_what_is_as_the_source_committed_it_is_no_edit(form: Mapping[str, str]) -> None:
    assert read_edit(form, WHOLE) is None


def test_a_value_with_a_line_end_of_any_kind_is_edited_in_more_than_one_line(shop: Lab, serve: Serve) -> None:
    """A field of one line would lose it, and the entry would be applied with another value than it has."""
    break_a_row(shop, "Bob\rthe second")
    page = client(serve(config_of(shop))).get("/p/lab/errors/1", params={"edit": "1"}).text
    assert '<textarea name="value.2.after.name"' in page


def test_a_column_with_a_line_end_in_its_name_can_be_edited(lab: Lab, serve: Serve) -> None:
    lab.setup('CREATE TABLE t (id int PRIMARY KEY, "a\nb" text)')
    lab.source.execute("INSERT INTO t VALUES (1, 'x')")
    lab.apply()
    lab.target.execute("UPDATE t SET \"a\nb\" = 'by hand'")
    lab.source.execute("UPDATE t SET \"a\nb\" = 'new'")
    lab.apply()
    person = client(serve(config_of(lab)))
    # As browsers send it.
    fields = {"edited": "1", "as.1.before.a\r\nb": "text", "value.1.before.a\r\nb": "by hand"}
    assert "lab.1: applied" in act(person, "/p/lab/errors/1/retry", "/p/lab/errors/1", **fields)
    lab.assert_identical("t")


def test_the_form_of_an_entry_edits_no_other_one_of_its_number(shop: Lab, serve: Serve) -> None:
    break_a_row(shop)
    person = client(serve(config_of(shop)))
    page = person.get("/p/lab/errors/1?edit=1").text
    failed_at = re.findall(r'name="failed_at" value="([^"]+)"', page)
    edits = {"as.2.after.name": "text", "value.2.after.name": "Bea", "edited": "1"}
    form = {"form_token": form_token(page), "failed_at": failed_at[0], **edits}
    # As where the pipeline was torn down and set up anew.
    shop.target.execute("UPDATE penstock.error SET created_at = created_at + interval '1 hour'")
    answer = person.post("/p/lab/errors/1/retry", data=form)
    assert answer.status_code == 400
    assert "the form is of an earlier entry with this number" in answer.text.replace("The form", "the form")


def test_of_two_columns_that_are_sent_as_one_none_is_taken_for_the_other() -> None:
    change = Change(1, Op.INSERT, TableName("public", "t"), 1, None, {"x\ny": "3", "x\ry": "4", "c\r": "5"})
    whole = Transaction(Scn(1), "1", None, [change])
    # Neither has another value, as far as the form can tell.
    assert read_edit({"as.1.after.x\r\ny": "text", "value.1.after.x\r\ny": "3"}, whole) is not None
    assert read_edit({"as.1.after.c\r\n": "text", "value.1.after.c\r\n": "5"}, whole) is None


def test_an_action_that_was_taken_on_is_not_said_to_have_failed(shop: Lab, serve: Serve) -> None:
    break_a_row(shop)
    person = client(serve(config_of(shop)))
    form = {"form_token": form_token(person.get("/p/lab/errors/1").text), "confirmed": "1"}
    with ExitStack() as stack:
        while _slots.acquire(blocking=False):
            stack.callback(_slots.release)
        assert person.get("/p/lab/errors").status_code == 503
        answer = person.post("/p/lab/errors/1/delete", data=form)
    assert answer.headers["location"] == "/p/lab/actions/1"
    await_true(lambda: shop.errors() == [], 30)


def test_a_field_that_is_no_field_of_the_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="the form takes the number of a change"):
        read_edit({"as.1.middle.id": "text"}, WHOLE)
    # What does not fit is refused by the edit itself, when it is tried.
    assert read_edit({"skip.7": "1"}, WHOLE) is not None
    assert read_edit({"as.9.before.id": "text"}, WHOLE) is not None


def test_a_row_that_somebody_holds_keeps_one_action_waiting_and_no_page(shop: Lab, serve: Serve) -> None:
    break_a_row(shop)
    shop.target.execute("UPDATE customer SET name = 'Ada', note = 'first' WHERE id = 1")
    server = serve(config_of(shop))
    person = client(server)
    form = {"form_token": form_token(person.get("/p/lab/errors/1").text)}
    with psycopg.connect(shop.target_url) as other:
        other.execute("UPDATE customer SET note = 'held' WHERE id = 1")
        going = person.post("/p/lab/errors/1/retry", data=form, follow_redirects=True)
        assert "at work" in going.text
        assert person.get("/p/lab/errors").status_code == 200
        assert person.get("/").status_code == 200
        await_true(lambda: "is in the way" in person.get(str(going.url)).text, 30)
        other.rollback()
    await_true(lambda: "Applied" in person.get(str(going.url)).text, 30)
    assert shop.errors() == []
