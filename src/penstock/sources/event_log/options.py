"""Options of `format("penstock.event_log")`: those of the data source, and the settings of `capture.event_log`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pydantic

from penstock.config.parts import table_named
from penstock.errors import ConfigError
from penstock.patterns import TablePattern
from penstock.sources.event_log.config import EventLogConfig
from penstock.sources.event_log.source import Journal
from penstock.sources.event_log.spark_source import ReadOptions
from penstock.spark.options import refuse_unknown

OpenJournal = Callable[[str, str, str, EventLogConfig, Sequence[str]], Journal]
"""Opens a journal: by kind of database, url, name of the journal, settings, and patterns of tables."""

_FORMAT = "penstock.event_log"
_OWN = ("url", "type", "tables", "journal", "format", "source", "readPartitions")
_NOT_READ = ("create", "triggers", "batch_size")
"""What only `penstock setup`, and whoever writes documents, goes by."""


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


SETTINGS = {_camel(name): name for name in EventLogConfig.model_fields if name not in _NOT_READ}
"""The settings by what they are called as options."""

_JSON = {"columns": "a JSON object", "keys": "a JSON object", "post_poll": "a JSON array of texts"}
"""Settings that are written as JSON, and what they are."""

_LISTS = ("times_of_day",)


def read_log_options(options: Mapping[str, str], *, is_stream: bool, open_journal: OpenJournal) -> ReadOptions:
    """Say what options mean.

    Raises:
        ConfigError: One is missing, unknown, or of another form; values are not repeated.
    """
    refuse_unknown(options, (*_OWN, *SETTINGS), source=_FORMAT)
    given = {name.lower(): value for name, value in options.items()}
    needed = ("url", "table", "journal") if is_stream else ("url", "table")
    missing = [name for name in needed if not given.get(name, "").strip()]
    if missing:
        raise ConfigError(f"option {' and '.join(map(repr, missing))} of {_FORMAT} is missing")
    config = _config(given)
    journal = given.get("journal", "none")
    if re.fullmatch("[a-z][a-z0-9_]{0,35}", journal) is None:
        raise _malformed("journal", "lower-case letters, digits and underscores, at most 36, beginning with a letter")
    tables = [text.strip() for text in given.get("tables", "").split(",") if text.strip()]
    schema = config.tables_in or table_named(config.table).schema
    for text in tables:
        TablePattern.parse(text)
    form = given.get("format", "changes").lower()
    if form not in ("changes", "xds"):
        raise _malformed("format", "changes or xds")
    partitions = given.get("readpartitions", "1").strip()
    if not (partitions.isascii() and partitions.isdecimal() and int(partitions) > 0):
        raise _malformed("readPartitions", "a whole number, 1 or more")
    if form == "changes":
        # Written in full, and read again.
        config = config.model_copy(update={"time_syntax": 3})
    opened = open_journal(given.get("type", "postgres"), given["url"], journal, config, tables or [f'"{schema}".*'])
    return ReadOptions(opened, given.get("source", config.table), form == "xds", int(partitions))


def _config(given: Mapping[str, str]) -> EventLogConfig:
    settings: dict[str, Any] = {}
    for option, name in SETTINGS.items():
        if option.lower() not in given:
            continue
        text = given[option.lower()].strip()
        if name in _JSON:
            try:
                settings[name] = json.loads(text)
            except ValueError:
                raise _malformed(option, _JSON[name]) from None
        elif name in _LISTS:
            settings[name] = [part.strip() for part in text.split(",") if part.strip()]
        elif name == "time_syntax":
            settings[name] = int(text) if text in ("1", "2", "3") else text
        else:
            settings[name] = text
    try:
        return EventLogConfig.model_validate(settings)
    except pydantic.ValidationError as exc:
        first = exc.errors(include_input=False, include_url=False)[0]
        options = {name: option for option, name in SETTINGS.items()}
        where = options.get(str(first["loc"][0]), "") if first["loc"] else ""
        said = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        raise ConfigError(f"option {where!r} of {_FORMAT}: {said}" if where else f"{_FORMAT}: {said}") from None


def _malformed(option: str, form: str) -> ConfigError:
    return ConfigError(f"option {option!r} of {_FORMAT} must be {form}")
