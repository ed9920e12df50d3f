"""The section `capture` of a first pipeline file: what a place turns out to be, and the settings that read it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from penstock.config.connections import ConnectionConfig, KafkaConfig
from penstock.errors import ConfigError, OperatorError
from penstock.init.answers import Answers, ChoiceError
from penstock.init.file_text import SOURCE, CapturePart, Entry
from penstock.init.folders import look_into
from penstock.init.places import registry_entry
from penstock.patterns import TablePattern
from penstock.sources.debezium.config import DebeziumConfig
from penstock.storage import Storage
from penstock.text import are, count
from penstock.wiring import examine_database, find_event_logs
from penstock.wiring.opening import not_installed

if TYPE_CHECKING:
    from penstock.init.topics import ConnectorFacts, RecordFacts

_TOPICS_NAMED = 8
_SAMPLED = 2_000
"""So many lines of a file of events are looked at."""


def from_database(connection: ConnectionConfig, answers: Answers) -> CapturePart:
    """Capture a database by triggers, or its event log.

    Raises:
        ChoiceError: It has an event log, or several, and nobody has said what to capture.
        OperatorError: No table matches, or there is no event log.
        PenstockError: The database cannot be looked at.
    """
    place = Entry("connection", SOURCE)
    logs = find_event_logs(connection)
    kind = answers.capture or ("event_log" if answers.event_log else None)
    if kind is None and logs:
        what = f"{logs[0]} is an event log, which other products' triggers fill"
        raise ChoiceError(what, answer="capture", choices=["trigger_queue", "event_log"], default="trigger_queue")
    if kind == "event_log":
        return _event_log(connection, answers, [TablePattern.exactly(log) for log in logs])
    _refuse_other(kind, "trigger_queue", "a database", also="event_log")
    facts = examine_database(connection, list(answers.patterns) or ["*.*"], is_source=True, sessions=1).facts
    if not facts.tables:
        wanted = ", ".join(map(repr, answers.patterns)) or "any pattern: there is none"
        do = "name tables that there are with --tables, as SCHEMA.*; names are taken as they stand in the catalogue"
        raise OperatorError(f"no table matches {wanted}", where=facts.label, do=do)
    schemas = sorted({table.name.schema for table in facts.tables})
    patterns = list(answers.patterns) or [TablePattern.all_of(schema) for schema in schemas]
    seen = [f"{log} is an event log: `penstock init --capture event_log` captures it instead." for log in logs]
    return CapturePart("trigger_queue", place, patterns, seen=seen, facts=facts)


def _event_log(connection: ConnectionConfig, answers: Answers, logs: Sequence[str]) -> CapturePart:
    facts = examine_database(connection, (), is_source=True, sessions=1).facts
    if answers.event_log is None and not logs:
        do = "name it: --event-log SCHEMA.TABLE; where there is none of the name, setup makes it"
        raise OperatorError("no table has the columns of an event log", where=facts.label, do=do)
    if answers.event_log is None and len(logs) > 1:
        raise ChoiceError("there are several event logs", answer="event_log", choices=logs)
    log = answers.event_log or logs[0]
    table = TablePattern.parse(log).table
    if table is None:
        raise ConfigError(f"{log!r} is not one table", where="--event-log", do="write SCHEMA.TABLE, without * and ?")
    entries = [Entry("table", log)]
    if log not in logs:
        entries += [
            Entry("create", True, ["There was no such table: setup makes it."]),
            Entry("triggers", [Entry(TablePattern.all_of(table.schema), "fields")], is_example=True),
        ]
    entries.append(Entry("polling_interval_s", 10, ["Seconds from a poll that found nothing to the next one."]))
    return CapturePart(
        "event_log",
        Entry("connection", SOURCE),
        list(answers.patterns) or [TablePattern.all_of(table.schema)],
        [Entry("event_log", entries)],
        [f"{log} is the event log; these are the tables that it may name."],
        facts,
    )


def from_cluster(connection: KafkaConfig, answers: Answers) -> CapturePart:
    """Capture a connector's topics, or a topic of DbWatcher's messages.

    Raises:
        ChoiceError: There are several.
        OperatorError: There is none, or not the one that was named.
        PenstockError: The cluster does not answer, or refuses.
    """
    try:
        from penstock.init.topics import look_at_topics
    except ImportError as exc:
        raise not_installed("a Kafka cluster", exc) from exc
    found = look_at_topics(connection.client_settings, _events(answers))
    kind = answers.capture or ("dbwatcher" if answers.topic else "debezium" if answers.prefix else None)
    if kind is None and found.connectors and found.messages:
        what = f"topics hold events of {', '.join(found.connectors)}, and {found.messages[0]} DbWatcher's messages"
        raise ChoiceError(what, answer="capture", choices=["debezium", "dbwatcher"])
    kind = kind or ("dbwatcher" if found.messages else "debezium")
    topics = len(found.topics)
    there = f"there {are(topics)} {count(topics, 'topic')}: {', '.join(found.topics[:_TOPICS_NAMED])}"
    place = Entry("connection", SOURCE)
    if kind == "dbwatcher":
        topic = _one(answers.topic, found.messages, "topic", "several topics hold DbWatcher's messages")
        if topic is None or topic not in found.topics:
            what = f"there is no topic {topic!r}" if topic else "no topic holds DbWatcher's messages"
            raise OperatorError(f"{what}; {there}", where=found.label, do="name another one with --topic")
        entries = [Entry("topic", topic)]
        return CapturePart(kind, place, _patterns(answers), [Entry("dbwatcher", [*entries, *_DBWATCHER])])
    _refuse_other(kind, "debezium", "a Kafka cluster", also="dbwatcher")
    connector = _connector(answers, found)
    if connector is None:
        named = f"no connector's events begin with {answers.prefix!r}" if answers.prefix else "no topic holds events"
        known = f"; there are connectors {', '.join(found.connectors)}" if found.connectors else f"; {there}"
        do = "start the connector, or name another one with --prefix"
        raise OperatorError(named + known, where=found.label, do=do)
    return CapturePart(kind, place, _patterns(answers), _debezium(connector, answers), _seen(connector))


def from_folder(storage: Storage, path: str, answers: Answers) -> CapturePart:
    """Capture what a folder holds.

    Args:
        path: As the file says it.

    Raises:
        ChoiceError: It holds events of several connectors.
        OperatorError: It holds nothing that can be read.
    """
    place = Entry("path", path)
    if answers.capture is not None and ":" in answers.capture:
        return CapturePart(answers.capture, place, _patterns(answers))
    found = look_into(storage)
    _refuse_other(answers.capture, found.kind, f"a folder with {found.seen}")
    patterns = list(answers.patterns or found.patterns)
    if found.kind == "dbwatcher":
        return CapturePart(found.kind, place, patterns, [Entry("dbwatcher", _DBWATCHER)], [found.seen])
    if found.kind != "debezium":
        return CapturePart(found.kind, place, patterns, seen=[found.seen])
    try:
        from penstock.init.topics import look_at_records
        from penstock.sources.debezium.files import LINES, FileLog
    except ImportError as exc:
        raise not_installed("files of events", exc) from exc
    log = FileLog(storage)
    records = islice(log.read(LINES, 0, log.extents()[LINES].end), _SAMPLED)
    connector = _connector(answers, look_at_records(records, DebeziumConfig()))
    if connector is None:
        what = f"no event{f' of connector {answers.prefix!r}' if answers.prefix else ''} is in the first lines"
        raise OperatorError(what, where=storage.label, do="name another folder, or another connector with --prefix")
    return CapturePart(found.kind, place, patterns, _debezium(connector, answers), [found.seen, *_seen(connector)])


_DBWATCHER = [
    Entry(
        "default_schema",
        "public",
        ["The schema of tables of which messages name none."],
    ),
    Entry(
        "on_malformed",
        "stop",
        ["At a message that cannot be read: stop, or put_aside puts its transaction into the error queue."],
    ),
]


def _patterns(answers: Answers) -> Sequence[str]:
    """Of all tables: what else there is belongs to other connectors, and is not read."""
    return list(answers.patterns) or ["*.*"]


def _events(answers: Answers) -> DebeziumConfig:
    """Where the schemas of events are."""
    if answers.registry is None:
        return DebeziumConfig()
    entry, secrets = registry_entry(answers.registry)
    assert not isinstance(entry.value, str | int)
    settings = {one.name: one.value for one in entry.value if isinstance(one, Entry)}
    if secrets:
        settings["password"] = next(iter(secrets.values()))
    return DebeziumConfig.model_validate({"registry": settings})


def _one(answer: str | None, found: Sequence[str], field: str, what: str) -> str | None:
    if answer is not None or len(found) < 2:
        return answer or next(iter(found), None)
    raise ChoiceError(what, answer=field, choices=list(found))


def _connector(answers: Answers, found: RecordFacts) -> ConnectorFacts | None:
    prefix = _one(answers.prefix, list(found.connectors), "prefix", "there are events of several connectors")
    return found.connectors.get(prefix or "")


def _seen(connector: ConnectorFacts) -> Sequence[str]:
    return [str(connector)]


def _debezium(connector: ConnectorFacts, answers: Answers) -> Sequence[Entry]:
    from penstock.init.topics import Form

    if connector.form is Form.AVRO and answers.registry is None:
        do = "name their schema registry: --registry https://HOST:PORT"
        raise ConfigError(f"events of connector {connector.prefix} are Avro, and have their schemas elsewhere", do=do)
    entries = [Entry("prefix", connector.prefix, ["The connector's topic.prefix."])]
    if connector.is_routed:
        topics = sorted({*connector.topics, *filter(None, [connector.transactions])})
        entries.append(
            Entry("topics", topics, ["Its topics are called otherwise; patterns with * and ? may stand here."])
        )
    if connector.transactions is None:
        entries.append(
            Entry(
                "settle_s",
                5,
                [
                    "No transaction topic was found: a transaction counts as complete when no event has come for so"
                    " many seconds. With provide.transaction.metadata=true the connector says when one is."
                ],
            )
        )
    elif connector.transactions != f"{connector.prefix}.transaction":
        entries.append(Entry("transaction_topic", connector.transactions))
    if connector.form is Form.WITHOUT_SCHEMAS:
        columns = [Entry("COLUMN", "decimal(10,2)")]
        types = [Entry(name, columns) for name in sorted(connector.tables)[:1]]
        comment = "Events say no types: write those that `plan` asks for, as the source's columns have them."
        entries.append(Entry("columns", types, [comment], is_example=True))
        comment = "Or have setup make columns text of which nothing tells the type."
        entries.append(Entry("untyped", "text", [comment], is_example=True))
    if answers.registry is not None:
        entries.append(registry_entry(answers.registry)[0])
    if connector.database == "postgresql":
        full = "full: all tables have REPLICA IDENTITY FULL, so deletes show whole rows, and conflicts are detected."
        entries.append(Entry("before_image", "auto", [full]))
    return [Entry("debezium", entries)]


def _refuse_other(wanted: str | None, found: str, place: str, *, also: str | None = None) -> None:
    """Raise a `ConfigError` where a kind of source was asked for that a place is not."""
    if wanted not in (None, found):
        do = f"leave it out, or say {f'{found} or {also}' if also else found}"
        raise ConfigError(f"--capture says {wanted}, and --source names {place}", do=do)
