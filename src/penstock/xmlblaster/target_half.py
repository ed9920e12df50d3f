"""The target half: where a DbWriter's messages come from, and how they are applied."""

from __future__ import annotations

from typing import Any

from penstock.xmlblaster.connection import write_connection
from penstock.xmlblaster.draft import Draft
from penstock.xmlblaster.mapper import PREFIX, Names, read_names, search_keys, table_rules
from penstock.xmlblaster.old_file import OldFile
from penstock.xmlblaster.source_half import MESSAGES, Options, SourceHalf, write_cluster

_WRITER = "org.xmlBlaster.contrib.replication.ReplicationWriter"

_MAPPER = "org.xmlBlaster.contrib.replication.impl.DefaultMapper"

_DDL = ("replication.creates", "replication.drops", "replication.alters")


class TargetHalf:
    """A DbWriter's file, read."""

    def __init__(self, draft: Draft, file: OldFile, options: Options) -> None:
        """Write the connection."""
        self._draft, self._file, self._options = draft, file, options
        self._database = write_connection(draft, file, "target")
        self._names = Names()

    @property
    def has_names(self) -> bool:
        """Whether tables or columns are called otherwise at the target, or are left out."""
        names = self._names
        return bool(names.schemas or names.tables or names.columns or names.excluded)

    def read_names(self, source: SourceHalf | None) -> None:
        """Read the mapper's properties; without the DbWatcher's file, write where messages come from."""
        file = self._file
        mapper = file.take("replication.mapper.class")
        if mapper not in (None, "", _MAPPER):
            self._check("replication.mapper.class", "a mapper of your own: write what it does as rules")
        elif mapper is not None:
            file_remark = "rules do the same: rules.tables"
            self._draft.remark(file.name, "replication.mapper.class", file_remark)
        dead = file.take("replication.mapper.tables")
        properties = file.take_below(PREFIX)
        if dead is not None:
            self._check("replication.mapper.tables", "the original does not read it: write `to` in rules.tables")
        self._names = read_names(properties)
        self._draft.count(
            file.name, *(PREFIX + rest for rest in properties if PREFIX + rest not in self._names.refused)
        )
        self._report_refused()
        if source is not None:
            self._names.operations = source.operations
            return
        self._read_messages()
        if any(rest != rest.lower() for rest in properties):
            self._draft.checks.append(
                f"names of replication.mapper.* ({file.name}) are written in lower case, as PostgreSQL folds them;"
                " write them as they stand in the messages if those come from another database"
            )

    def rules(self) -> dict[str, dict[str, Any]]:
        """The part `rules.tables`."""
        return table_rules(self._names)

    def apply(self, source: SourceHalf | None) -> None:
        """Write the part `apply`."""
        draft, file = self._draft, self._file
        comment = "triggers of the target do not fire for what is applied, unless apply.tables.<table>.triggers says so"
        draft.set(("apply", "connection"), "target", comment)
        self._writer_class()
        self._ddl(source)
        properties = file.take_below("replication.searchable.")
        watched = [] if source is None else [table for table in source.tables if table[1] != "*"]
        keys = search_keys(properties, self._names, watched, self._database.schema)
        draft.count(
            file.name,
            *(key for rest in properties if (key := f"replication.searchable.{rest}") not in self._names.refused),
        )
        self._report_refused()
        for table, columns in keys.items():
            draft.set(("apply", "tables", table, "key"), columns)
        if keys:
            draft.comment(
                ("apply", "tables"),
                "replication.searchable.*; the original changed every row that it found, and Penstock only equal rows",
            )
        key = "replication.nirvanaClient"
        discards = file.take_flag(key)
        if discards:
            self._check(key, "this DbWriter discards what it reads, and the pipeline applies it")
        elif discards is not None:
            draft.remark(file.name, key, "changes are applied")

    def _report_refused(self) -> None:
        for key, why in self._names.refused.items():
            if why:
                self._check(key, why)
            else:
                self._draft.leave(self._file.name, key)
        self._names.refused.clear()

    def _check(self, key: str, why: str) -> None:
        self._draft.remark(self._file.name, key, why)
        self._draft.checks.append(f"{key} ({self._file.name}): {why}")

    def _read_messages(self) -> None:
        draft = self._draft
        draft.set(("capture", "source"), "dbwatcher")
        if self._options.kafka is None:
            comment = "where the source half publishes; for topics of Kafka: import-xmlblaster --kafka HOST:PORT"
            draft.set(("capture", "path"), MESSAGES, comment)
        else:
            draft.set(("capture", "connection"), MESSAGES)
            topic = "the topic that the source half publishes to: mom.topicName of the DbWatcher"
            draft.set(("capture", "dbwatcher", "topic"), MESSAGES, topic)
            draft.checks.append(f"capture.dbwatcher.topic is {MESSAGES}: write {topic}")
            write_cluster(draft, self._options.kafka)
        draft.set(("capture", "tables"), ["*.*"], "a DbWriter applies every table that messages name")

    def _writer_class(self) -> None:
        key = "dbWriter.writer.class"
        writer = self._file.take(key)
        if writer == _WRITER:
            self._draft.remark(self._file.name, key, "apply writes the rows")
        elif writer is not None:
            self._check(key, "a writer other than ReplicationWriter: apply writes rows, and a handler what else it did")

    def _ddl(self, source: SourceHalf | None) -> None:
        """Write `apply.ddl`: the DbWriter follows DDL unless a property says otherwise."""
        draft, file = self._draft, self._file
        flags = {key: file.take_flag(key) for key in _DDL}
        given = [key for key, flag in flags.items() if flag is not None]
        draft.count(file.name, *given)
        is_noticed = source is None or source.takes_ddl()
        follows = [key for key, flag in flags.items() if flag is not False]
        said = ", ".join(f"{key}={str(flag is not False).lower()}" for key, flag in flags.items())
        policy = "apply" if is_noticed and len(follows) == len(_DDL) else "ignore"
        draft.set(("apply", "ddl"), policy, said if is_noticed else "replication.createDropAlterDetection=false")
        if is_noticed and follows and policy == "ignore":
            draft.checks.append(
                f"only {' and '.join(follows)} ({file.name}) let DDL through, and apply.ddl is for all of it: set it to"
                " apply, or leave the tables as they are (ignore, as written)"
            )
