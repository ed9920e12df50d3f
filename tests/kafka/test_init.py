"""`penstock init` on a real broker: connectors and messages are found by what topics hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation

from penstock.errors import OperatorError, RetryableError
from penstock.init.answers import Answers, ChoiceError
from penstock.init.proposal import propose
from tests.formats.debezium.events import envelope, node, with_schema
from tests.kafka import jars
from tests.kafka.broker import KafkaBroker, Record
from tests.kafka.events import begin, end, event, record
from tests.lab import Lab
from tests.sources.dbwatcher.messages import CREATE

SASL = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=reader")


def test_init_finds_what_topics_hold(kafka_jars: Path, lab: Lab) -> None:
    """Starts a broker of its own, as all topics of a cluster are looked at."""
    with KafkaBroker(jars.broker_path(kafka_jars), users={"reader": "planted"}) as broker:
        place, guarded = f"kafka://{broker.address}", f"kafka://{broker.sasl_address}"
        with pytest.raises(OperatorError, match="the cluster has no topics"):
            propose(Answers(place, lab.target_url))

        broker.topic("notes")
        broker.produce([Record("notes", 0, 0, None, b"planted")])
        with pytest.raises(OperatorError, match=r"no topic holds events; there is 1 topic: notes"):
            propose(Answers(place, lab.target_url))

        row = {"id": 1, "name": "planted"}
        columns = {"id": node("int32", optional=False), "name": node("string")}
        for prefix in ("shop", "crm"):
            broker.topic(f"{prefix}.public.t", 3)
        broker.topic("shop.transaction")
        told = [record(begin(1, prefix="shop")), record(end(1, prefix="shop", t=1))]
        source = {"txId": 1, "schema": "public", "table": "t", "name": "shop", "sequence": '["100","101"]'}
        block = {"id": "1:1", "total_order": 1, "data_collection_order": 1}
        value = with_schema(envelope("c", after=row, source=source, transaction=block), columns)
        told.append(Record("shop.public.t", 2, 0, json.dumps({"id": 1}).encode(), value))
        told.append(record(event("c", "t", row, 1, 1, prefix="crm")))
        broker.produce(told)

        with pytest.raises(ChoiceError, match="there are events of several connectors") as choice:
            propose(Answers(place, lab.target_url))
        assert (choice.value.answer, choice.value.choices) == ("prefix", ["crm", "shop"])
        with pytest.raises(OperatorError, match=r"begin with 'nope'; there are connectors crm, shop"):
            propose(Answers(place, lab.target_url, prefix="nope"))

        shop = propose(Answers(place, lab.target_url, prefix="shop"))
        assert shop.config.name == "shop"
        assert shop.parts.capture.seen == [
            "connector shop of postgresql: 1 table, JSON with schemas, transaction topic shop.transaction"
        ]
        assert shop.plan.is_possible
        assert shop.to_json()["tables"] == [{"table": "public.t"}]
        crm = propose(Answers(place, lab.target_url, prefix="crm"))
        assert "1 table, JSON without schemas, no transaction topic" in crm.text
        assert "settle_s: 5" in crm.text
        assert "planted" not in shop.text + crm.text
        # There is one, as long as the first snapshot goes on, that holds nothing yet.
        broker.topic("crm.transaction")
        begun = propose(Answers(place, lab.target_url, prefix="crm"))
        assert begun.parts.capture.seen == [
            "connector crm of postgresql: 1 table, JSON without schemas, transaction topic crm.transaction"
        ]

        broker.topic("watched")
        broker.produce([Record("watched", 0, 0, None, CREATE.encode())])
        with pytest.raises(ChoiceError) as choice:
            propose(Answers(place, lab.target_url))
        assert choice.value.choices == ["debezium", "dbwatcher"]
        watched = propose(Answers(place, lab.target_url, capture="dbwatcher"))
        assert watched.config.capture.dbwatcher is not None
        assert watched.config.capture.dbwatcher.topic == "watched"
        assert watched.plan.is_possible
        with pytest.raises(OperatorError, match=r"there is no topic 'nope'; there are 6 topics"):
            propose(Answers(place, lab.target_url, topic="nope"))

        # A user sees what it may, and its password is in no file.
        with pytest.raises(OperatorError, match="it refuses the credentials"):
            propose(Answers(guarded, lab.target_url, kafka=(*SASL, "sasl.password=wrong")))
        with pytest.raises(OperatorError, match="the cluster has no topics, or none that this user may read"):
            propose(Answers(guarded, lab.target_url, kafka=(*SASL, "sasl.password=planted")))
        broker.allow("reader", "crm.", operations=[AclOperation.DESCRIBE])
        broker.allow("reader", "shop.")
        broker.allow("reader", "penstock", group=True)
        seen = propose(Answers(guarded, lab.target_url, kafka=(*SASL, "sasl.password=planted")))
        assert "planted" not in seen.text
        assert seen.variables == ["KAFKA_SASL_PASSWORD"]
        assert seen.config.name == "shop"


@pytest.mark.parametrize("form", ["debezium-json", "dbwatcher"])
def test_a_database_is_published_to_topics(kafka: KafkaBroker, lab: Lab, form: str) -> None:
    lab.source.execute('CREATE TABLE "a b" (id int PRIMARY KEY); CREATE TABLE a_b (id int PRIMARY KEY)')

    found = propose(Answers(lab.source_url, f"kafka://{kafka.address}", format=form, topic="mine"))

    assert found.plan.is_possible
    assert found.to_json()["publish"] == form
    # Two tables cannot have one topic; messages have one in any case.
    excluded = [one["table"] for one in found.to_json()["excluded"]]
    assert excluded == ([] if form == "dbwatcher" else ["public.a_b"])


def test_a_cluster_that_is_away_is_named(lab: Lab) -> None:
    with pytest.raises(RetryableError, match=r"Connection refused \(kafka 127\.0\.0\.1:1\)"):
        propose(Answers("kafka://127.0.0.1:1", lab.target_url))
