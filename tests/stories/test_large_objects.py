"""Large objects stay behind, and every command that could be taken to say otherwise names them."""

from __future__ import annotations

import subprocess
import threading

import pytest

from penstock.cli import cutover, verify
from penstock.demo.servers import EmbeddedPostgres
from tests.lab import Lab
from tests.stories.test_likeness import build_post_data

LOBS = """
CREATE DOMAIN lo AS oid;
CREATE TABLE lobs (id int PRIMARY KEY, doc oid, other lo);
INSERT INTO lobs VALUES (1, lo_from_bytea(0, '\\xdeadbeef'), lo_from_bytea(0, '\\x00'));
CREATE TABLE plain (id int PRIMARY KEY);
"""
STAYED = "2 large objects, to which column 'doc' of public.lobs, column 'other' of public.lobs may refer"


def copied(lab: Lab) -> None:
    lab.source.execute(LOBS)
    lab.pipeline().setup()
    lab.pipeline().run(threading.Event(), until_caught_up=True)


def test_large_objects_that_stay_behind_are_named_and_nothing_is_called_identical(
    lab: Lab, spark: object, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.source.execute(LOBS)
    (planned,) = [one for one in lab.pipeline().plan().target.differences if one.kind == "large object"]
    assert planned.what == STAYED
    assert "`pg_dump --data-only -b" in planned.reason
    lab.pipeline().setup()
    lab.pipeline().run(threading.Event(), until_caught_up=True)

    result = lab.pipeline().verify()
    verify.show(result)

    assert not result.is_identical
    said = capsys.readouterr().out.replace("\n", " ")
    assert f"not compared: {STAYED}, not at the target" in said
    assert "source and target identical" not in said
    # Of a table that refers to none nothing is said, nor of all once they are gone.
    assert lab.pipeline().verify(tables=["public.plain"]).is_identical
    assert not lab.pipeline().verify(tables=["public.lobs"]).is_identical
    lab.source.execute("SELECT lo_unlink(oid) FROM pg_largeobject_metadata")
    assert lab.pipeline().verify().is_identical


def test_a_cutover_goes_on_and_names_large_objects(lab: Lab, spark: object, capsys: pytest.CaptureFixture[str]) -> None:
    copied(lab)

    done = lab.pipeline().cutover(threading.Event(), lock=False, wait_s=30, is_dry=False)
    cutover.show(done)

    assert done.is_ready
    said = capsys.readouterr().out.replace("\n", " ")
    assert "but 1 thing is not copied" in said
    assert STAYED in said


def test_the_command_that_brings_large_objects_does(lab: Lab, spark: object, source_server: EmbeddedPostgres) -> None:
    copied(lab)
    (told,) = [one for one in build_post_data(lab.pipeline()) if one.kind == "large object"]
    command = told.reason.split("`")[1].replace("SOURCE", lab.source_url).replace("TARGET", lab.target_url)

    subprocess.run(["/bin/sh", "-c", command], env={"PATH": str(source_server.programs)}, check=True)

    assert lab.target.execute("SELECT lo_get(doc) FROM lobs").fetchone() == (b"\xde\xad\xbe\xef",)
    assert build_post_data(lab.pipeline()) == []
    result = lab.pipeline().verify()
    assert result.is_identical
    assert [str(one) for one in result.unseen] == [f"the contents of {STAYED}"]
