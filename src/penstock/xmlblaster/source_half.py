"""The source half: what a DbWatcher captures, and where its messages go."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from penstock.errors import ConfigError
from penstock.xmlblaster.connection import write_connection
from penstock.xmlblaster.draft import Draft
from penstock.xmlblaster.mapper import Names, Table, table_rules
from penstock.xmlblaster.old_file import OldFile
from penstock.xmlblaster.tables import OPERATIONS, WatchedTable, pattern, resources_in, watched_table

MESSAGES = "messages"
"""The folder of messages, or the connection to the cluster that carries them."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True)
class Options:
    """What no property says.

    Attributes:
        documented: Whether the capture keeps the documented tables (ITEMS, TABLES and the others).
        kafka: Brokers of the cluster that carries messages, `host:port`; None: messages are files.
    """

    documented: bool = False
    kafka: str | None = None


class SourceHalf:
    """A DbWatcher's file, read.

    Attributes:
        tables: Schema and name of each captured table; `*` stands for all of a schema.
        operations: The changes that a table's triggers fired for, by table, where it is not all of them.
    """

    def __init__(self, draft: Draft, file: OldFile, prefix: str, options: Options) -> None:
        """Write the connection."""
        self._draft, self._file, self._prefix, self._options = draft, file, prefix, options
        self._database = write_connection(draft, file, "source")
        self.tables: list[Table] = []
        self.operations: dict[Table, list[str]] = {}

    def capture(self) -> None:
        """Write the part `capture`.

        Raises:
            ConfigError: A property names no table, or none does at all.
        """
        watched = self._watched()
        self._draft.set(("capture", "source"), "trigger_queue")
        self._draft.set(("capture", "connection"), "source")
        if self._options.documented:
            self._write_documented()
        for table in watched:
            self._add(table)
        if not self.tables:
            raise ConfigError(
                "no property names a table to capture",
                where=self._file.name,
                do=f"write table.<schema>.<table>= for each row of {self._prefix}TABLES",
            )
        self._draft.set(("capture", "tables"), [pattern(*table) for table in dict.fromkeys(self.tables)], "table.*")
        if any(table.key != table.key.lower() for table in watched):
            self._draft.comment(("capture", "tables"), "names are in lower case, as PostgreSQL folds them")
        if any(table.trigger or table.sequence for table in watched):
            self._draft.comment(
                ("capture", "tables"),
                "trigger= and sequence= have no counterpart: Penstock names its triggers, and follows foreign keys",
            )
        if not self._options.documented:
            self._draft.comment(
                ("capture", "tables"),
                f"other programs that read {self._prefix}ITEMS or {self._prefix}TABLES need"
                f" documented: {{prefix: {self._prefix}}} here (import-xmlblaster --documented)",
            )
        self._write_origins()
        self._first_copy()

    def publish(self) -> None:
        """Write the part `publish`: messages as the DbWatcher sends them."""
        file, draft, topic = self._file, self._draft, self._file.take("mom.topicName")
        if self._options.kafka is None:
            comment = "a folder beside this file; for topics of Kafka: import-xmlblaster --kafka HOST:PORT"
            draft.set(("publish", "to"), "files")
            draft.set(("publish", "path"), MESSAGES, comment)
        else:
            draft.set(("publish", "to"), "kafka")
            draft.set(("publish", "connection"), MESSAGES)
            write_cluster(draft, self._options.kafka)
        draft.set(("publish", "format"), "dbwatcher")
        self._write_messages()
        if topic is not None and self._options.kafka is not None and _TOPIC.fullmatch(topic):
            draft.set(("publish", "topic"), topic, "mom.topicName")
            draft.count(file.name, "mom.topicName")
        elif topic is not None:
            draft.remark(file.name, "mom.topicName", "messages go to the place that `publish` names")
        if self._file.take_flag("replication.createDropAlterDetection") is not None:
            draft.remark(
                file.name, "replication.createDropAlterDetection", "DDL is always captured; apply.ddl says what it does"
            )

    def _write_messages(self) -> None:
        """Write the part `publish.dbwatcher`: how transactions become messages."""
        file = self._file
        collected = file.take_number("dbWatcher.maxCollectedStatements")
        found: dict[str, tuple[str, object]] = {
            "replication.version": ("version", self._version),
            "replication.maxRowsInTx": ("max_rows", file.take_number("replication.maxRowsInTx")),
            # There, 0 and 1 collect nothing.
            "dbWatcher.maxCollectedStatements": (
                "collect_transactions",
                None if collected is None else max(collected, 1),
            ),
            "replication.sendUnchangedUpdates": (
                "send_unchanged_updates",
                file.take_flag("replication.sendUnchangedUpdates"),
            ),
            "replication.maxRowsOnCreate": ("content_rows", file.take_number("replication.maxRowsOnCreate")),
        }
        if self._options.kafka is not None:
            found["mom.compressSize"] = ("compress_size", file.take_number("mom.compressSize"))
        for key, (setting, value) in found.items():
            if value is not None:
                self._draft.set(("publish", "dbwatcher", setting), value, key)
                self._draft.count(file.name, key)

    def excluded(self) -> list[str]:
        """The tables that a schema's pattern must not mean."""
        schemas = [schema for schema, name in self.tables if name == "*"]
        return [one for schema in dict.fromkeys(schemas) for one in resources_in(schema, self._prefix)]

    def rules(self) -> dict[str, dict[str, Any]]:
        """The part `rules.tables`, where no DbWriter gives tables other names."""
        return table_rules(Names(operations=self.operations))

    def takes_ddl(self) -> bool:
        """Whether the DbWatcher's resources noticed DDL; takes the property."""
        is_detected = self._file.take_flag("replication.createDropAlterDetection")
        if is_detected is not None:
            self._draft.count(self._file.name, "replication.createDropAlterDetection")
        return is_detected is not False

    def _watched(self) -> list[WatchedTable]:
        """The tables in the order of the file; keys that name none are reported."""
        file, found = self._file, []
        for prefix in ("table.", "tables."):
            for rest, value in file.take_below(prefix).items():
                table = watched_table(prefix, rest, value, file.name)
                if table is None:
                    self._draft.leave(file.name, prefix + rest, "it does not name a table, as [schema.]table")
                    continue
                found.append(table)
                for part in table.unknown:
                    self._draft.leave(file.name, table.key, f"a part of its value, {part!r}")
        if any(table.key.startswith("tables.") for table in found):
            self._draft.checks.append(
                f"{file.name} has tables.*, as the guide writes it; the original reads table.* only, so it may not have"
                " watched these tables"
            )
        return found

    def _add(self, table: WatchedTable) -> None:
        draft, key = self._draft, table.key
        schema, name = table.schema.lower() or self._database.schema, table.name.lower()
        if not table.schema:
            draft.comment(("capture", "tables"), f"{key} names no schema: {schema}, from db.url or PostgreSQL's own")
        if table.catalog and self._database.name and table.catalog.lower() != self._database.name.lower():
            draft.checks.append(
                f"{key} has a catalog that is not the database of db.url; the table is taken from that one"
            )
        if not table.actions:
            why = "it has no actions, so it was sent with an initial update only, and is not captured"
            draft.remark(self._file.name, key, why)
            draft.checks.append(f"{key}: {why}; copy it by other means, or give it actions")
            return
        draft.count(self._file.name, key)
        self.tables.append((schema, name))
        if len(table.actions) < len(OPERATIONS):
            self.operations[schema, name] = [OPERATIONS[letter] for letter in table.actions]
            draft.checks.append(
                f"{key} has actions={table.actions} only: setup --adopt and verify --repair make the"
                " target's rows those of the source, and delete what the source has deleted"
            )

    @cached_property
    def _version(self) -> str | None:
        """What both the documented tables and the messages have."""
        return self._file.take("replication.version")

    def _write_documented(self) -> None:
        path = ("capture", "documented")
        self._draft.set((*path, "prefix"), self._prefix)
        if self._database.schema != "public":
            self._draft.set((*path, "schema"), self._database.schema)
        if self._version is not None:
            self._draft.set((*path, "version"), self._version, "replication.version")
        self._draft.comment(
            path, f"replication.prefix; the log is kept until a reader has deleted from {self._prefix}ITEMS"
        )

    def _write_origins(self) -> None:
        blocks = self._file.take_flag("replication.blockLoop")
        if blocks is None:
            return
        self._draft.count(self._file.name, "replication.blockLoop")
        self._draft.set(
            ("capture", "changes_of"),
            "users" if blocks else "everything",
            f"replication.blockLoop={str(blocks).lower()}",
        )

    def _first_copy(self) -> None:
        key = "replication.sendInitialTableContent"
        is_sent = self._file.take_flag(key)
        if is_sent is None:
            return
        self._draft.remark(self._file.name, key, "the first run copies each table from a snapshot")
        if not is_sent:
            self._draft.checks.append(
                f"{key}=false: the first run copies the tables nevertheless; if the target has the rows already,"
                " `penstock setup --adopt` has them compared instead"
            )


def write_cluster(draft: Draft, brokers: str) -> None:
    """Write the connection to the cluster that carries messages."""
    draft.set(("connections", MESSAGES, "type"), "kafka")
    draft.set(("connections", MESSAGES, "settings"), {"bootstrap.servers": brokers}, "--kafka")
