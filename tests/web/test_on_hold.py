"""Entries of the error queue put on hold and released on the page."""

from __future__ import annotations

from tests.lab import Lab
from tests.program import await_true
from tests.web.conftest import Serve, break_a_row, client, config_of
from tests.web.test_access import form_token
from tests.web.test_queue import act

HOSTILE = "<script>alert(1)</script> ticket 4711"


def test_an_entry_on_hold_is_shown_as_such_and_only_tried_until_it_is_released(shop: Lab, serve: Serve) -> None:
    break_a_row(shop)
    person = client(serve(config_of(shop)))
    page, list_ = "/p/lab/errors/1", "/p/lab/errors"
    form = {"form_token": form_token(person.get(page).text)}
    assert "must say why it is on hold" in person.post(f"{page}/hold", data=form).text

    done = act(person, f"{page}/hold", page, note=HOSTILE)

    assert "On hold 1" in done
    shown, listed = person.get(page).text, person.get(list_).text
    for text in (shown, listed, person.get(f"{list_}/history").text):
        assert "&lt;script&gt;alert(1)&lt;/script&gt; ticket 4711" in text
        assert "<script>alert" not in text
    assert 'formaction="/p/lab/errors/lab.1/delete"' not in shown
    assert ">Retry<" not in shown
    assert 'class="tag hold"' in listed
    assert person.get(list_, params={"on_hold": "no"}).text.count("No entry of the error queue fits") == 1
    assert person.get(list_, params={"on_hold": "yes"}).text.count('class="tag hold"') == 1
    await_true(lambda: " 1 on hold</small>" in person.get("/p/lab").text, 30)
    # A page that was loaded before has the buttons still.
    assert "is on hold" in act(person, f"{page}/retry", page)
    assert "is on hold" in act(person, f"{page}/delete", page, confirmed="1")
    assert "would fail 1" in act(person, f"{page}/retry", page, dry="1").lower()

    assert "Released 1" in act(person, f"{page}/release", page)
    assert shop.errors()[0].on_hold is None
    assert 'formaction="/p/lab/errors/lab.1/delete"' in person.get(page).text


def test_all_but_those_on_hold_are_retried_and_deleted_and_the_number_is_said_first(shop: Lab, serve: Serve) -> None:
    shop.target.execute("INSERT INTO customer SELECT n, 'in the way' FROM generate_series(100, 103) n")
    for n in range(100, 104):
        shop.source.execute("INSERT INTO customer VALUES (%s, 'x')", [n])
    shop.apply()
    person = client(serve(config_of(shop)))
    page = "/p/lab/errors"
    act(person, f"{page}/2/hold", f"{page}/2", note="first")

    asked = act(person, f"{page}/all/hold", page, note="all", error="1")
    assert "Put 3 transactions on hold?" in asked
    assert "1 transaction more is on hold already, and is skipped" in asked
    assert "On hold 3" in act(person, f"{page}/all/hold", page, note="all", confirmed="99")
    assert [entry.on_hold and entry.on_hold.note for entry in shop.errors()] == ["all", "first", "all", "all"]
    assert "Release 4 transactions?" in act(person, f"{page}/all/release", page)
    act(person, f"{page}/3/release", f"{page}/3")
    act(person, f"{page}/4/release", f"{page}/4")

    shop.target.execute("DELETE FROM customer WHERE id IN (100, 101, 102)")
    asked = act(person, f"{page}/all/retry", page, go_on="1")
    assert "Retry 2 transactions?" in asked
    assert "2 transactions more are on hold, and are skipped" in asked
    done = act(person, f"{page}/all/retry", page, go_on="1", confirmed="99")
    assert ("Applied 1" in done, "Failed 1" in done, "Skipped, on hold 2" in done) == (True, True, True)
    deleted = act(person, f"{page}/all/delete", page, confirmed="99")
    assert ("Deleted 1" in deleted, "Skipped, on hold 2" in deleted) == (True, True)
    assert [entry.id for entry in shop.errors()] == ["lab.1", "lab.2"]
    assert "Released 2" in act(person, f"{page}/all/release", page, confirmed="99")
