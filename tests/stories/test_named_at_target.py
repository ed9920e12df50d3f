"""Keys and dependencies that the pipeline file names: the target has to have them before anything is applied."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import OperatorError
from tests.lab import Lab

TABLES = """
CREATE TABLE emp (id int PRIMARY KEY, name text, doc json);
CREATE TABLE hist (emp_id bigint, job text, at date);
"""


def depending(values: str = "{}", objects: str = "[]", keys: str = "{}") -> str:
    return f"  tables: {keys}\n  dependencies:\n    values: {values}\n    objects: {objects}\n"


@pytest.mark.rule("A-49", "A-52", "A-68")
@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        pytest.param(
            depending("{v: {public.emp: [id], public.gone: [x]}}"),
            "value dependency 'v': table public.gone does not exist",
            id="a table of a value dependency",
        ),
        pytest.param(
            depending("{v: {public.emp: [id], public.hist: [employee]}}"),
            "value dependency 'v': table public.hist has no column 'employee'",
            id="a column of one",
        ),
        pytest.param(
            depending("{v: {public.emp: [id], public.hist: [job]}}"),
            "value dependency 'v': column 'id' of public.emp is integer, and 'job' of public.hist is text, which cannot"
            " be compared",
            id="types that are never equal",
        ),
        pytest.param(
            depending("{v: {public.emp: [doc]}}"),
            "value dependency 'v': column 'doc' of public.emp is json, which cannot be compared",
            id="a type without equality",
        ),
        pytest.param(
            depending(objects="[{table: public.hist, after: public.staff}]"),
            "object dependency of public.hist after public.staff: table public.staff does not exist",
            id="a table of an object dependency",
        ),
        pytest.param(
            depending(keys="{public.staff: {key: [id]}}"),
            "key of public.staff: the table does not exist",
            id="a table with a key",
        ),
        pytest.param(
            depending(keys="{public.emp: {key: [name, number]}}"),
            "key of public.emp: there is no column 'number'",
            id="a column of a key",
        ),
        pytest.param(
            depending(keys="{public.emp: {key: [doc]}}"),
            "key of public.emp: column 'doc' is json, which cannot be part of a key",
            id="a type that no key may have",
        ),
    ],
)
def test_what_the_target_does_not_have_is_refused_by_plan_setup_and_run(lab: Lab, settings: str, fault: str) -> None:
    lab.source.execute(TABLES)
    sound = lab.apply_settings
    lab.apply_settings = settings

    assert [str(found).split(" (")[0] for found in lab.pipeline().plan().target.faults] == [fault]
    with pytest.raises(OperatorError, match=r"(?s).*Correct `apply` in the pipeline file"):
        lab.pipeline().setup()
    assert lab.target.execute("SELECT to_regnamespace('penstock')").fetchone() == (None,)
    lab.apply_settings = sound
    lab.pipeline().setup()
    lab.apply_settings = settings
    with pytest.raises(OperatorError) as caught:
        lab.pipeline().run(threading.Event(), until_caught_up=True)
    assert fault in str(caught.value)


@pytest.mark.rule("A-49", "A-52", "A-68")
def test_what_is_only_made_by_setup_is_there(lab: Lab) -> None:
    lab.source.execute(TABLES)
    lab.apply_settings = depending(
        "{v: {public.emp: [id], public.hist: [emp_id]}, days: {public.hist: [at]}}",
        "[{table: public.hist, after: public.emp}]",
        "{public.hist: {key: [emp_id, at]}}",
    )

    plan = lab.pipeline().setup()

    assert not plan.target.faults
    assert not lab.pipeline().plan().target.faults


@pytest.mark.rule("A-68")
def test_a_table_with_a_substitute_key_needs_none_of_its_own(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    lab.target.execute("CREATE TABLE t (id int)")
    assert "has no primary or unique key" in str(lab.pipeline().plan().target.faults)

    lab.apply_settings = depending(keys="{public.t: {key: [id]}}")

    assert not lab.pipeline().plan().target.faults
