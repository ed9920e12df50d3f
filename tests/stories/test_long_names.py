"""Names that the target would cut are refused with the rule that shortens them, before and while a pipeline runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.apply.apply_errors import DDL_NOT_CARRIED_OUT
from penstock.errors import PenstockError
from penstock.pipeline.pipeline import Pipeline
from tests.lab import Lab
from tests.stories.test_event_types import PIPELINE, an_event, copied, opened
from tests.stories.test_rules_whole import catch_up
from tests.stories.test_rules_whole import opened as ruled

LONG = "quantity_of_items_that_were_returned_by_the_customer_before_the_end_of_the_period"
CYRILLIC = "количество_возвращённых_товаров_клиента"


def with_rule(folder: Path, lab: Lab, said: str, shorter: str) -> Pipeline:
    """The same pipeline with the rule that a message names."""
    rule = said.partition("at the source: ")[2].replace("SHORTER.NAME", shorter).replace("SHORTER", shorter)
    told = "{prefix: shop, settle_s: 0.1, columns: {'inv.*': {id: int, v: text}}}"
    text = PIPELINE.format(name=lab.name, url=lab.target_url, debezium=told)
    (folder / "copy.yaml").write_text(f"{text}\n{rule}\n")
    pipeline = penstock.open(folder / "copy.yaml")
    assert isinstance(pipeline, Pipeline)
    return pipeline


def test_a_column_whose_name_would_be_cut_is_refused_and_the_rule_that_is_named_leads_on(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    pipeline = opened(tmp_path, lab, "long-column-name")

    (fault,) = pipeline.plan().target.faults

    assert f"the name '{LONG}' has 81 bytes, and PostgreSQL cuts names after 63" in str(fault)
    with pytest.raises(PenstockError, match="81 bytes"):
        pipeline.setup()
    copied(with_rule(tmp_path, lab, fault.do, "qty"))
    assert lab.target.execute("SELECT qty FROM dbo.t").fetchall() != []


@pytest.mark.parametrize("name", [CYRILLIC, "t" * 64], ids=["of several bytes each", "one too long"])
def test_a_table_whose_name_would_be_cut_is_refused_and_the_rule_that_is_named_leads_on(
    lab: Lab, tmp_path: Path, spark: object, name: str
) -> None:
    event = an_event("postgresql", {"id": 1, "v": "x"})
    event["value"]["source"]["table"] = name

    (fault,) = opened(tmp_path, lab, [event], columns={"inv.*": {"id": "int", "v": "text"}}).plan().target.faults

    assert f"has {len(name.encode())} bytes" in str(fault)
    copied(with_rule(tmp_path, lab, fault.do, "inv.short"))
    assert lab.target.execute("SELECT count(*) FROM inv.short").fetchone() == (1,)


def test_a_key_whose_own_name_would_be_cut_gets_one_from_the_server(lab: Lab, tmp_path: Path, spark: object) -> None:
    event = an_event("postgresql", {"id": 1})
    event["value"]["source"]["table"] = "t" * 61

    copied(opened(tmp_path, lab, [event], columns={"inv.*": {"id": "int"}}))

    assert opened(tmp_path, lab, [event], columns={"inv.*": {"id": "int"}}).plan().is_done


def test_a_rule_that_makes_a_name_too_long_is_refused(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    rules = f'rules: {{tables: {{"public.t": {{to: "public.{LONG}_*", rename: {{v: "{CYRILLIC}"}}}}}}}}'

    said = "\n".join(map(str, ruled(lab, rules).plan().target.faults))

    assert "has 83 bytes" in said
    assert f"has {len(CYRILLIC.encode())} bytes" in said


def test_a_table_that_is_renamed_to_a_name_that_would_be_cut_waits_in_the_error_queue(lab: Lab, spark: object) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    text = '  ddl: apply\nrules: {tables: {"public.*": {to: "public.a_table_of_the_archive_called_*"}}}'
    ruled(lab, text).setup()
    catch_up(ruled(lab, text))
    lab.source.execute(f"ALTER TABLE t RENAME TO {LONG[:40]}; INSERT INTO {LONG[:40]} VALUES (1)")

    catch_up(ruled(lab, text))

    (entry, *_) = lab.errors()
    assert (entry.op, entry.error_number) == ("ddl", DDL_NOT_CARRIED_OUT)
    assert "has 70 bytes, and PostgreSQL cuts names after 63" in entry.error_message


def test_a_table_that_is_made_later_by_a_name_that_would_be_cut_is_told_and_the_others_flow_on(
    lab: Lab, spark: object, caplog: pytest.LogCaptureFixture
) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    text = '  ddl: apply\nrules: {tables: {"public.*": {to: "public.a_table_of_the_archive_called_*"}}}'
    ruled(lab, text).setup()
    catch_up(ruled(lab, text))
    lab.source.execute(f"CREATE TABLE {LONG[:40]} (id int PRIMARY KEY); INSERT INTO t VALUES (1)")

    catch_up(ruled(lab, text))

    assert lab.target.execute("SELECT count(*) FROM a_table_of_the_archive_called_t").fetchone() == (1,)
    assert "70 bytes" in "\n".join(str(e) for errors in ruled(lab, text).plan().left_out.values() for e in errors)
