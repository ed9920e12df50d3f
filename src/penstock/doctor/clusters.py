"""Looks at Kafka clusters: whether a broker answers, and takes the credentials."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.config.connections import KafkaConfig
from penstock.doctor.looks import Look
from penstock.examination import Finding, Severity
from penstock.kafka import QUIET, SILENT, Answering, ConnectionErrors, bad_settings
from penstock.text import count

_ANSWER_S = 6.0


def look_at(name: str, connection: KafkaConfig) -> Look:
    """Return a look at the cluster that a pipeline file calls `name`."""
    where = f"connections.{name}, {connection.client_settings['bootstrap.servers']}"
    return Look("kafka", where, lambda: _ask(connection, where))


def _ask(connection: KafkaConfig, where: str) -> Iterator[Finding]:
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
    except ImportError:
        # What extras are missing is looked at already.
        return
    heard = ConnectionErrors()
    settings: dict[str, Any] = {**QUIET, **connection.client_settings, "error_cb": heard}
    try:
        client = AdminClient(settings, logger=SILENT)
    except (KafkaException, TypeError, ValueError) as exc:
        raise bad_settings(exc) from exc
    with Answering(where, "list the brokers", heard):
        try:
            found = client.list_topics(timeout=_ANSWER_S)
        finally:
            # Calls its error callback, which has the reason where no broker answers.
            client.poll(0)
    what = f"{count(len(found.brokers), 'broker')}, {count(len(found.topics), 'topic')}"
    yield Finding(Severity.OK, "kafka", what, where)
