"""Rules from the file to the target: first copy, changes, error queue, comparison and repair, by the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import Lab
from tests.program import Program

RULES = """
rules:
  exclude: ["public.audit_*"]
  tables:
    public.customer:
      to: sales.client
      rename: {name: full_name}
      drop: [ssn]
      add: {origin: "'shop'", total: "net + tax"}
      rows: "region = 'EU'"
    public.purchase:
      to: sales.purchase
      rename: {customer: client}
      rows: "region = 'EU'"
"""

TABLES = """
CREATE TYPE mood AS ENUM ('calm', 'cross');
CREATE TABLE customer (
  id int PRIMARY KEY, name text NOT NULL, ssn text, region text, net numeric(12,2), tax numeric(12,2), mood mood
);
CREATE TABLE purchase (id int PRIMARY KEY, customer int REFERENCES customer ON UPDATE CASCADE, region text);
CREATE TABLE note (id int PRIMARY KEY, customer int, body text DEFAULT 'none');
CREATE TABLE audit_log (id int PRIMARY KEY);
INSERT INTO customer SELECT n, 'name ' || n, 's' || n, CASE n % 3 WHEN 0 THEN 'EU' WHEN 1 THEN 'US' END, n, n / 10.0,
  'calm' FROM generate_series(1, 300) n;
INSERT INTO purchase SELECT n, n, CASE n % 3 WHEN 0 THEN 'EU' WHEN 1 THEN 'US' END FROM generate_series(1, 300) n;
INSERT INTO note SELECT n, n FROM generate_series(1, 20) n;
INSERT INTO audit_log VALUES (1);
"""

WANTED = """
SELECT id, name AS full_name, region, net, tax, mood::text, 'shop' AS origin, net + tax AS total FROM customer
WHERE region = 'EU' ORDER BY id
"""
FOUND = "SELECT id, full_name, region, net, tax, mood::text, origin, total FROM sales.client ORDER BY id"


class Ruled(Program):
    def __init__(self, folder: Path, lab: Lab, rules: str = RULES) -> None:
        super().__init__(folder, lab.source_url, lab.target_url, name=lab.name)
        with (folder / "pipeline.yaml").open("a") as file:
            file.write(rules)

    def do(self, *arguments: str, code: int = 0) -> str:
        done = self(*arguments)
        assert done.code == code, done.out + done.err
        return done.out


@pytest.fixture
def ruled(lab: Lab, tmp_path: Path) -> Ruled:
    return Ruled(tmp_path, lab)


def assert_as_the_rules_say(lab: Lab) -> None:
    assert lab.target.execute(FOUND).fetchall() == lab.source.execute(WANTED).fetchall()
    purchases = "SELECT id, {} FROM {} WHERE region = 'EU' ORDER BY id"
    assert (
        lab.target.execute(purchases.format("client", "sales.purchase")).fetchall()
        == lab.source.execute(purchases.format("customer", "purchase")).fetchall()
    )


def test_tables_are_renamed_cut_and_computed_from_the_first_row_to_the_last_change(ruled: Ruled, lab: Lab) -> None:
    lab.source.execute(TABLES)

    planned = ruled.do("plan")
    assert "public.customer -> sales.client: name -> full_name; without ssn; with origin, total" in planned
    ruled.do("setup")
    assert "everything is in place: 3 tables" in ruled.do("setup")
    ruled.do("run", "--until-caught-up")
    assert_as_the_rules_say(lab)
    assert lab.target.execute("SELECT to_regclass('audit_log'), to_regclass('customer')").fetchone() == (None, None)

    for statement in (
        "UPDATE customer SET name = 'other', ssn = 'x' WHERE id < 10",
        "UPDATE customer SET ssn = 'y' WHERE id = 12",
        "UPDATE customer SET region = 'EU' WHERE id = 1",
        "UPDATE customer SET region = NULL WHERE id = 9; UPDATE purchase SET region = NULL WHERE id = 9",
        "UPDATE customer SET id = id + 1000, tax = 7 WHERE id = 2 OR id = 300",
        "DELETE FROM purchase WHERE id BETWEEN 20 AND 30; DELETE FROM customer WHERE id BETWEEN 20 AND 30",
        "INSERT INTO customer VALUES (400, 'new', NULL, 'EU', 1, NULL, 'cross')",
        "INSERT INTO customer VALUES (401, 'far', NULL, 'US', 1, 1, 'calm')",
        "INSERT INTO audit_log VALUES (2)",
        "UPDATE note SET body = 'read'",
    ):
        lab.source.execute(statement)
    ruled.do("run", "--until-caught-up")

    assert_as_the_rules_say(lab)
    lab.assert_identical_text("note")
    assert lab.errors() == []
    assert "identical" in ruled.do("verify")


@pytest.mark.rule("A-132", "S-70")
def test_what_fails_is_named_on_both_sides_and_what_differs_is_found_and_brought(ruled: Ruled, lab: Lab) -> None:
    lab.source.execute(TABLES)
    ruled.do("setup")
    ruled.do("run", "--until-caught-up")
    lab.target.execute("ALTER TABLE sales.client ADD CHECK (net <> 5)")
    with lab.source.transaction():
        lab.source.execute("INSERT INTO audit_log VALUES (2)")
        lab.source.execute("UPDATE customer SET net = 5, ssn = 'secret' WHERE id = 6")
    ruled.do("run", "--until-caught-up", code=5)

    (entry,) = ruled("errors", "list", "--json").json
    assert (entry["table"], entry["source_table"]) == ("sales.client", "public.customer")
    # The excluded table's change is none of its changes.
    assert (entry["message_number"], entry["message_count"]) == (1, 1)
    assert [one["id"] for one in ruled("errors", "list", "--json", "--table", "public.cust*").json] == [entry["id"]]
    shown = ruled.do("errors", "show", entry["id"])
    assert "sales.client (public.customer at the source)" in shown
    assert "full_name" in shown
    assert "secret" not in shown
    lab.target.execute("ALTER TABLE sales.client DROP CONSTRAINT client_net_check")
    ruled.do("errors", "retry", "--all")
    assert_as_the_rules_say(lab)

    lab.target.execute(
        "UPDATE sales.client SET total = 0 WHERE id = 9; DELETE FROM sales.purchase WHERE id = 12;"
        " INSERT INTO sales.client (id, full_name) VALUES (1, 'of the US')"
    )
    compared = ruled("verify", "--json", "--table", "public.customer")
    assert compared.code == 1
    (table,) = compared.json["tables"]
    assert table["table"] == "sales.client"
    assert sorted((d["kind"], d["key"]["id"]) for d in table["differences"]) == [("different", "9"), ("extra", "1")]
    repaired = ruled.do("verify", "--repair")
    assert "3 rows" in repaired or "repaired" in repaired
    assert_as_the_rules_say(lab)
    assert "identical" in ruled.do("verify")
