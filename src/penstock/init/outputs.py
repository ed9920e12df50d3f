"""The section `apply` or `publish` of a first pipeline file."""

from __future__ import annotations

from typing import get_args

from penstock.config.capture import kind_of_source
from penstock.config.publish import FilesFormat, KafkaFormat
from penstock.errors import ConfigError
from penstock.init.answers import Answers, ChoiceError
from penstock.init.file_text import TARGET, Entry, OutputPart
from penstock.init.places import ClusterPlace, DatabasePlace, Place, registry_entry

_PUBLISHED = ("trigger_queue", "event_log")
"""Sources whose changes can be published."""


def output_of(place: Place, capture: str, answers: Answers, name: str) -> OutputPart:
    """Apply to a database, or publish.

    Args:
        capture: The kind of source.
        name: Of the pipeline.

    Raises:
        ChoiceError: There are several formats.
        ConfigError: What is captured cannot be published there, or not in this format.
    """
    if isinstance(place, DatabasePlace):
        return _apply(capture)
    if capture not in _PUBLISHED:
        do = "name a database: --target postgresql://USER@HOST/DATABASE"
        raise ConfigError(f"what comes from {capture} can be applied to a database, and not be published", do=do)
    known = get_args(KafkaFormat) if isinstance(place, ClusterPlace) else get_args(FilesFormat)
    formats = [form for form in known if (form == "xds") == (capture == "event_log")]
    form = answers.format or formats[0]
    if answers.format is None and formats[1:]:
        raise ChoiceError("changes are published", answer="format", choices=formats, default=form)
    if form not in formats:
        what = f"{capture} cannot be published there as {form}"
        raise ConfigError(what, where="--format", do=f"choose one of {', '.join(formats)}")
    entries = _to_cluster(form, answers) if isinstance(place, ClusterPlace) else _to_folder(form, place.path)
    others = [f"One of {', '.join(formats)}."] if formats[1:] else []
    return OutputPart("publish", [*entries, Entry("format", form, others), *_details(form, answers, name)])


def _apply(capture: str) -> OutputPart:
    kind = kind_of_source(capture)
    comment = "How many transactions may be applied at once; Penstock measures how many pay."
    entries = [Entry("connection", TARGET), Entry("parallelism", 2, [comment])]
    if kind is not None and kind.tells_ddl:
        what = "apply: the target's tables follow ALTER TABLE, CREATE TABLE and DROP TABLE at the source."
        entries.append(Entry("ddl", "apply", [what], is_example=True))
    return OutputPart("apply", entries)


def _to_folder(form: str, path: str) -> list[Entry]:
    comment = "Changes wait so many seconds at most for others that go into the same file."
    # A document is written at once.
    waits = [] if form == "xds" else [Entry("max_age_s", 10, [comment])]
    return [Entry("to", "files"), Entry("path", path), *waits]


def _to_cluster(form: str, answers: Answers) -> list[Entry]:
    entries = [Entry("to", "kafka"), Entry("connection", TARGET)]
    if form in ("xds", "dbwatcher") and answers.topic is not None:
        entries.append(Entry("topic", answers.topic))
    return entries


def _details(form: str, answers: Answers, name: str) -> list[Entry]:
    if form == "dbwatcher":
        rows = Entry("max_rows", 0, ["A message that holds more rows is continued by another one; 0: never."])
        return [Entry("dbwatcher", [rows])]
    if not form.startswith("debezium"):
        return []
    prefix = Entry("prefix", answers.prefix or name, ["Topics and schemas begin with it and a dot."])
    entries = [prefix]
    if form == "debezium-avro":
        if answers.registry is None:
            do = "name one: --registry https://HOST:PORT"
            raise ConfigError("debezium-avro needs a schema registry", where="--format", do=do)
        entries.append(registry_entry(answers.registry)[0])
    else:
        comment = "Each event has its schema with it; false makes events a quarter as large."
        entries.append(Entry("schemas", True, [comment]))
    return [Entry("debezium", entries)]
