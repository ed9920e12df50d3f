"""PostgreSQL -> Penstock -> files of change events -> Penstock -> PostgreSQL."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.formats.debezium.writer import EventSettings, JsonPacking
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.publication import Publication
from penstock.sinks.events.files import Folder
from penstock.sinks.events.sink import EventFileSink
from penstock.storage import LocalStorage
from tests.lab import Lab

PUBLISHING = """
version: 1
name: {name}
connections: {{shop: {{type: postgres, url: "{url}"}}}}
capture: {{source: trigger_queue, connection: shop, tables: ["public.*"]}}
publish: {{to: files, path: events, format: debezium-json, max_age_s: 0, debezium: {events}}}
"""

CONSUMING = """
version: 1
name: copy
connections: {{copy: {{type: postgres, url: "{url}"}}}}
capture: {{source: debezium, path: events, tables: ["public.*"], debezium: {{prefix: shop, settle_s: 0.1}}}}
apply: {{connection: copy}}
"""

# Connectors tell bit(1) as a boolean, oid as a bigint, and intervals and money as numbers.
TYPES = r"""
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN posint AS int CHECK (value > 0);
CREATE TYPE pair AS (a int, b text);
CREATE TABLE kinds (
  id bigint PRIMARY KEY, b boolean, s smallint, i integer, r real, d double precision, n numeric, p numeric(12,3),
  t text, v varchar(20), c character(7), y bytea, da date, ti time, tt time(3), ts timestamp, ts3 timestamp(3),
  tz timestamptz, j json, jb jsonb, u uuid, bi bit(9), bv bit varying(12), a int[], ta text[],
  ip inet, m mood, ps posint, pr pair, na numeric(5,-2),
  ab bool[], si smallint[], bia bigint[], ra real[], dda double precision[], na2 numeric[], na3 numeric(12,3)[],
  va varchar(20)[], ya bytea[], dta date[], tia time[], tta time(3)[], tsa timestamp[], ts3a timestamp(3)[],
  tza timestamptz[], ja json[], jba jsonb[], ua uuid[], bia9 bit(9)[],
  ipa inet[], ma mood[], pa posint[], pra pair[], ra4 int4range[]
);
INSERT INTO kinds VALUES (
  1, true, -32768, 2147483647, 1.5, 1e-7, 3.10, 123456789.125, E'a"\\\n\u0001\U0001F600é', 'v', 'ab', '\xdeadbeef00',
  '2024-02-29', '24:00', '13:45:59.123', '2024-02-29 13:45:59.123456', '2024-02-29 13:45:59.12',
  '2024-02-29 13:45:59.1+02', '{"b": null}', '{"b": [1, "x"]}', 'b68a35a7-17ad-35b3-af2a-ae46edb4545a',
  B'101010101', B'0011', '{1,NULL,-3}', '{a,"b,\"c",NULL,""}', '10.0.0.1/8', 'ok', 5, '(1,"x y")', 12345,
  '{t,f,NULL}', '{1,-32768}', '{9223372036854775807}', '{1.5,NaN}', '{1e-7,Infinity}', '{3.10,NULL,0}', '{1.125,-7}',
  '{v," w"}', '{"\\xdead",NULL}', '{2024-02-29,"0044-03-15 BC"}', '{24:00,00:00:00.000001}', '{13:45:59.123}',
  '{"2024-02-29 13:45:59.123456"}', '{"2024-02-29 13:45:59.12"}', '{"2024-02-29 13:45:59.1+02"}',
  ARRAY['{"b": null}'::json], ARRAY['{"b": [1]}'::jsonb], '{b68a35a7-17ad-35b3-af2a-ae46edb4545a}', '{101010101}',
  '{10.0.0.1/8,NULL}', '{ok,sad}', '{5,6}', ARRAY['(1,"x y")'::pair], '{"[1,5)"}'
);
INSERT INTO kinds (id, r, d, n, p, t, v, c, y, da, ti, tt, ts, ts3, tz, a, ta) VALUES (
  2, 'NaN', '-Infinity', 12345678901234567890.123456789, -0.001, '', '', '', '', '0044-03-15 BC', '00:00:00.000001',
  '00:00', 'infinity', '1970-01-01', 'infinity', '{}', '{}'
);
INSERT INTO kinds (id) VALUES (3);
"""

CHANGES = r"""
UPDATE kinds SET id = id + 10, i = 4 WHERE id = 1;
UPDATE kinds SET t = 'x', y = '\x00' WHERE id = 3;
INSERT INTO kinds SELECT (jsonb_populate_record(k, '{"id": 20}')).* FROM kinds k WHERE id = 11;
DELETE FROM kinds WHERE id = 2;
INSERT INTO kinds (id, p) VALUES (2, 0);
"""


def opened(folder: Path, lab: Lab, **events: object) -> Publication:
    path = folder / "publish.yaml"
    given = json.dumps({"prefix": "shop", **events})
    path.write_text(PUBLISHING.format(name=lab.name, url=lab.source_url, events=given))
    publication = penstock.open(path)
    assert isinstance(publication, Publication)
    return publication


def consumer(folder: Path, lab: Lab) -> Pipeline:
    path = folder / "copy.yaml"
    path.write_text(CONSUMING.format(url=lab.target_url))
    pipeline = penstock.open(path)
    assert isinstance(pipeline, Pipeline)
    return pipeline


def run(pipeline: Publication | Pipeline) -> Any:
    return pipeline.run(threading.Event(), until_caught_up=True)


def lines(folder: Path) -> Iterator[Any]:
    for file in sorted((folder / "events").glob("*.jsonl")):
        yield from map(json.loads, file.read_text().splitlines())


@pytest.mark.parametrize("with_schemas", [True, False], ids=["with schemas", "without"])
def test_every_type_comes_out_as_it_went_in(lab: Lab, tmp_path: Path, spark: object, with_schemas: bool) -> None:
    lab.source.execute(TYPES)
    lab.target.execute(TYPES + "; DELETE FROM kinds")
    publication = opened(tmp_path, lab, schemas=with_schemas)
    publication.setup()
    run(publication)
    lab.source.execute(CHANGES)
    run(publication)

    copy = consumer(tmp_path, lab)
    copy.setup()
    progress = run(copy)

    assert (progress.errors, progress.conflicts) == (0, 0)
    lab.assert_identical_text("kinds")


def test_files_hold_what_the_topics_would_and_a_run_goes_on_behind_them(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    publication = opened(tmp_path, lab, schemas=False, tombstones_on_delete=False, skipped_operations=["t"])
    assert [step.summary for step in publication.plan().target.steps] == ["a folder of change events"]
    publication.setup()
    assert publication.plan().is_done
    run(publication)
    with lab.session() as session:
        session.execute("INSERT INTO t VALUES (2, 'b')")
        session.execute("DELETE FROM t WHERE id = 1")
        session.execute("TRUNCATE t")
    run(publication)
    status = publication.status()
    files = sorted(file.name for file in (tmp_path / "events").iterdir())
    run(publication)

    told = [(line["topic"].removeprefix("shop."), (line["value"] or {}).get("op")) for line in lines(tmp_path)]
    assert [each for each in told if not each[0].startswith("penstock.")] == [
        ("public.t", "r"),
        ("transaction", None),
        ("public.t", "c"),
        ("public.t", "d"),
        ("transaction", None),
    ]
    assert files == [f"{number:020}.jsonl" for number in range(1, len(files) + 1)]
    assert (status.transactions, status.changes, status.copied, status.to_copy) == (1, 3, 1, 0)
    assert status.publishes_to == str(tmp_path / "events")


def test_what_another_program_wrote_last_is_not_taken_for_the_position(lab: Lab, tmp_path: Path) -> None:
    place = EventFileSink(
        Folder(LocalStorage(tmp_path), "shop"), EventSettings("shop", "db", packing=JsonPacking()), max_age_s=0
    )
    place.make("shop", [])
    (tmp_path / f"{2:020}.jsonl").write_text('{"topic": "shop.public.t", "key": null, "value": null}\n')

    (fault,) = place.faults("shop", [])

    assert "does not end with the position of this pipeline" in str(fault)
    (other,) = EventFileSink(Folder(LocalStorage(tmp_path), "bank"), place._settings, max_age_s=0).faults("bank", [])
    assert "give the pipeline the name that it had" in str(other)
