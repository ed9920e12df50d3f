"""Handlers from the pipeline file to the target: planned, refused, carried out, and the example of docs/handlers.md."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest

from penstock.apply.handlers.settings import HandlerSettings
from penstock.change import Op, TableName
from penstock.errors import ConfigError, HandlerError, OperatorError
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.report import Report
from penstock.pipeline_file import parse
from penstock.wiring import open_pipeline
from tests.lab import Lab

PAGE = (Path(__file__).parents[2] / "docs" / "handlers.md").read_text(encoding="utf-8")

TABLES = """
CREATE TABLE emp (id int PRIMARY KEY, name text, job text, sal numeric(10,2));
CREATE TABLE acct (id int PRIMARY KEY, state text);
INSERT INTO emp VALUES (1, 'ann', 'A', 4400), (2, 'bob', 'B', 4000);
INSERT INTO acct VALUES (1, 'open'), (2, 'open');
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def pipeline(lab: Lab, folder: Path, text: str) -> Pipeline:
    environment = {"SHOP_URL": lab.source_url, "COPY_URL": lab.target_url}
    made = open_pipeline(parse(text, name=str(folder / "pipeline.yaml"), environment=environment, folder=folder))
    assert isinstance(made, Pipeline)
    return made


def run(made: Pipeline) -> None:
    made.run(threading.Event(), Report(), until_caught_up=True)


@pytest.fixture
def shop(lab: Lab) -> Lab:
    lab.name = "shop"
    lab.source.execute(TABLES)
    lab.target.execute("CREATE TABLE hist (emp_id int, job text); CREATE TABLE seen (source text, scn bigint)")
    lab.target.execute("CREATE TABLE letters (about text)")
    return lab


@pytest.mark.rule("A-105", "A-109", "A-113", "A-118", "A-119")
def test_the_example_of_the_page_runs(shop: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another test may have had the page's module from a folder of its own.
    monkeypatch.delitem(sys.modules, "shop_handlers", raising=False)
    (yaml,), (module, _) = blocks("yaml"), blocks("python")
    (tmp_path / "shop_handlers.py").write_text(module)
    made = pipeline(shop, tmp_path, yaml)
    made.setup()
    run(made)
    shop.target.execute("INSERT INTO emp VALUES (3, 'here', 'X', 1)")
    with shop.source.transaction():
        shop.source.execute("UPDATE emp SET job = 'C' WHERE id = 1")
        shop.source.execute("SELECT penstock_shop.emit_message('promoted', 'ann')")
    shop.source.execute("UPDATE emp SET sal = 1 WHERE id = 2")
    shop.source.execute("DELETE FROM acct WHERE id = 2")
    shop.source.execute("INSERT INTO emp VALUES (3, 'cy', 'A', 2)")

    run(made)

    assert made.errors().entries() == []
    assert shop.rows("hist") == [(1, "A")]
    assert shop.target.execute("SELECT id, job, sal::int FROM emp ORDER BY 1").fetchall() == [
        (1, "C", 4400),
        (2, "B", 1),
        (3, "X", 1),
        (1003, "A", 2),
    ]
    assert shop.rows("acct") == [(1, "open"), (2, "closed")]
    assert shop.rows("letters") == [("ann",)]
    assert shop.target.execute("SELECT source, count(*) FROM seen GROUP BY 1").fetchall() == [("shop", 4)]

    # One that is lost stops the process, and is no error of a transaction; once it is back, all goes on.
    broken = pipeline(shop, tmp_path, yaml.replace("shop_handlers:close", "shop_handlers:shut"))
    shop.source.execute("DELETE FROM acct WHERE id = 1")
    (fault,) = broken.plan().target.faults
    assert str(fault).startswith(
        "apply.tables.public.acct.handlers.delete.procedure: cannot load 'shop_handlers:shut': AttributeError: "
    )
    with pytest.raises(HandlerError, match="cannot load 'shop_handlers:shut'"):
        run(broken)
    status = made.status()
    assert (status.state, status.errors) == ("aborted", 0)
    assert "cannot load 'shop_handlers:shut'" in (status.reason or "")
    run(made)
    assert shop.rows("acct") == [(1, "closed"), (2, "closed")]
    assert made.status().state == "stopped"


@pytest.mark.rule("A-109")
def test_sql_that_the_target_cannot_run_is_refused_when_a_run_begins(shop: Lab, tmp_path: Path) -> None:
    pipeline(shop, tmp_path, HEAD).setup()
    text = said("{update: {statements: {h: ['INSERT INTO hist VALUES (:new.id)', 'DELETE FROM public.hist WHERE']}}}")

    with pytest.raises(OperatorError) as error:
        run(pipeline(shop, tmp_path, text))

    place = "apply.tables.public.emp.handlers.update.statements.h"
    assert f'{place}, statement 1: the target refuses it: relation "hist" does not exist' in str(error.value)
    assert f"{place}, statement 2: the target refuses it: syntax error at end of input" in str(error.value)


HEAD = """\
version: 1
name: shop
connections:
  shop: {type: postgres, url: "${env:SHOP_URL}"}
  copy: {type: postgres, url: "${env:COPY_URL}"}
capture: {source: trigger_queue, connection: shop, tables: ["public.*"]}
apply:
  connection: copy
"""

UNKNOWN = """\
  tables:
    public.emp:
      handlers:
        update:
          statements:
            notes:
              - ":lcr.rename_column sal salary"
              - ":lcr.delete_column(salary, )"
              - ":lcr.keep_columns id, jop"
              - "INSERT INTO public.hist VALUES (:new.id, :old.salry)"
    public.empl: {handlers: {default: {procedure: "operator:add"}}}
"""


@pytest.mark.rule("A-106", "A-107")
def test_tables_and_columns_that_are_not_there_are_told_before_anything_is_done(shop: Lab, tmp_path: Path) -> None:
    faults = pipeline(shop, tmp_path, HEAD + UNKNOWN).plan().target.faults

    place = "apply.tables.public.emp.handlers.update.statements.notes"
    assert [fault.what for fault in faults] == [
        f"{place}, statement 3: changes have no column 'jop'; did you mean 'job'?",
        f"{place}, statement 4: changes have no column 'salry'; did you mean 'sal'?",
        "apply.tables.public.empl: the pipeline has no such table; did you mean 'public.emp'?",
    ]
    with pytest.raises(OperatorError, match="changes have no column 'jop'"):
        pipeline(shop, tmp_path, HEAD + UNKNOWN).setup()


def said(handlers: str) -> str:
    return f"{HEAD}  tables:\n    public.emp:\n      handlers: {handlers}\n"


WRONG = {
    'update: {statements: {h: [":lcr.execute"]}}': "':lcr.execute': :lcr.execute says TRUE or FALSE",
    'update: {statements: {h: [":lcr.execute maybe"]}}': ":lcr.execute says TRUE or FALSE",
    'update: {statements: {h: [":lcr.run TRUE"]}}': "there is no call 'run'",
    'update: {statements: {h: ["INSERT INTO t VALUES (:nwe.id)"]}}': "':nwe.id' is not a value of a change",
    'update: {statements: {h: ["INSERT INTO t VALUES (:new)"]}}': "':new' is not a value of a change",
    'update: {statements: {h: ["COMMIT"]}}': "'COMMIT' is not for a handler: it commits",
    'update: {statements: {h: ["DELETE FROM t; COMMIT"]}}': "it is more than one statement",
    'update: {statements: {h: ["SELECT 1"]}}': "'SELECT 1' is not an INSERT, UPDATE, DELETE or MERGE",
    'default: {statements: {h: ["DELETE FROM t"]}}': "default takes no statements",
    "update: {procedure: 'a:b', error: 'a:c'}": "update has a procedure, 'a:b', and an error handler, 'a:c'",
    "{default: {procedure: 'a:b'}, insert: {error: 'a:c'}": "insert has a procedure, 'a:b', and an error",
    "update: {procedure: 'a b'}": "must be module:function, or the name of an entry point, not 'a b'",
    "update: {}": "names no handler: give statements, procedure or error",
    "upsert: {procedure: 'a:b'}": "must be 'insert', 'update', 'delete' or 'default'",
}


@pytest.mark.rule("A-109", "A-113", "A-115")
@pytest.mark.parametrize("handlers", WRONG)
def test_what_is_no_handler_is_refused_with_its_line(handlers: str) -> None:
    text = said("{" + handlers.lstrip("{") + "}")

    with pytest.raises(ConfigError) as error:
        parse(text, name="pipeline.yaml", environment={"SHOP_URL": "postgresql://a", "COPY_URL": "postgresql://b"})

    assert WRONG[handlers] in str(error.value)
    assert re.search(r"pipeline\.yaml:1[01]: apply\.tables\.public\.emp\.handlers", str(error.value))


def settings_of(handlers: str) -> HandlerSettings:
    environment = {"SHOP_URL": "postgresql://a", "COPY_URL": "postgresql://b"}
    return parse(said(handlers), name="pipeline.yaml", environment=environment).handlers


EMP = TableName("public", "emp")


@pytest.mark.rule("A-113")
def test_s58_statements_go_with_an_error_handler_and_a_procedure_does_not() -> None:
    with pytest.raises(ConfigError, match="update has a procedure, 'a:b', and an error handler, 'a:c'"):
        settings_of("{update: {procedure: 'a:b', error: 'a:c'}}")

    found = settings_of("{update: {statements: {h: ['DELETE FROM t']}, error: 'a:c'}}").of(EMP, Op.UPDATE)

    assert found is not None
    assert (len(found.statements), found.error and found.error.name) == (1, "a:c")


@pytest.mark.rule("A-107")
def test_s61_a_function_of_the_operation_comes_before_the_default() -> None:
    settings = settings_of("{default: {procedure: 'a:rest'}, update: {procedure: 'a:own'}}")

    found = {op: settings.of(EMP, op) for op in (Op.INSERT, Op.UPDATE, Op.DELETE)}
    assert {op: one.procedure.name for op, one in found.items() if one and one.procedure} == {
        Op.INSERT: "a:rest",
        Op.UPDATE: "a:own",
        Op.DELETE: "a:rest",
    }
    assert settings.of(TableName("public", "acct"), Op.UPDATE) is None
