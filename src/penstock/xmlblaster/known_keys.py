"""Properties that have no counterpart in a pipeline file: why, and what to do instead.

`convert.py` takes the keys that have one before it asks here; some of those are here for files of the other side.
docs/from-xmlblaster.md lists all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.xmlblaster.old_file import Half


@dataclass(frozen=True)
class KnownKey:
    """A key, or all keys that begin alike.

    Attributes:
        pattern: The key; with a `*` at its end, what it begins with.
        half: Who reads it; None for both.
        why: Why there is no counterpart, and what to do.
        is_checked: Something that worked before does not come along by itself.
    """

    pattern: str
    half: Half | None
    why: str
    is_checked: bool = False

    def matches(self, key: str) -> bool:
        """Whether the key is meant."""
        return key.startswith(self.pattern[:-1]) if self.pattern.endswith("*") else key == self.pattern


_SOURCE, _SINK = Half.WATCHER, Half.WRITER

_NO_BROKER = "Penstock talks to no xmlBlaster; remove the session when the move is done"
_NO_DUMP = "no dump is made: the first run copies the tables from a snapshot, while changes go on"
_NO_QUERY = "the log is read between two snapshots, whole transactions in commit order; there is no query to write"
_NO_SCRIPT = "`penstock setup` installs what capture needs, and `penstock plan --print-sql` prints it"
_ONE_TRANSACTION = "a transaction is never split or merged; a run finds the size of its batches by itself"
_NO_CLASS = "the class is chosen by the kind of source, format or target"
_NO_POOL = "a run opens the sessions that it needs; apply.parallelism says how many write at once"
_NO_MONITOR = "`penstock status` shows each pipeline, and `penstock status --check` tells a monitor"
_DDL = "apply.ddl says what becomes of DDL"
_ORACLE = "only Oracle's resources read it"
_OWN_CODE = "write it anew as a handler or a rule: docs/handlers.md, docs/transformations.md"

KNOWN_KEYS: tuple[KnownKey, ...] = (
    KnownKey("jdbc.drivers", None, "PostgreSQL is reached through libpq, which needs no driver class"),
    KnownKey("dbPool.class", None, _NO_POOL),
    KnownKey("db.maxInstances", None, _NO_POOL),
    KnownKey("db.busyToIdleTimeout", None, _NO_POOL),
    KnownKey("db.idleToEraseTimeout", None, _NO_POOL),
    KnownKey("db.maxResourceExhaustRetries", None, _NO_POOL),
    KnownKey("db.resourceExhaustSleepGap", None, _NO_POOL),
    KnownKey("db.createInterceptor.class", _SINK, "applied changes carry a mark without it: apply.tag"),
    KnownKey("dbinfo.*", _SOURCE, "the position is kept beside the applied rows; drop DBINFO after the move"),
    KnownKey("db.queryMeatStatement", _SOURCE, _NO_QUERY),
    KnownKey("changeDetector.ignoreExistingDataOnStartup", _SOURCE, "nothing that was captured is passed over"),
    KnownKey("changeDetector.*", _SOURCE, _NO_QUERY),
    KnownKey("alertScheduler.*", _SOURCE, "a commit wakes the run; there is no interval"),
    KnownKey("alertProducer.*", _SOURCE, "a commit wakes the run; there is no scheduler"),
    KnownKey("converter.*", _SOURCE, _NO_CLASS),
    KnownKey("transformer.class", _SOURCE, f"a transformer of attributes: {_OWN_CODE}", is_checked=True),
    KnownKey("parser.class", None, _NO_CLASS),
    KnownKey("replication.prefixGroup", _SOURCE, "a label of the monitor; `penstock status` shows the pipeline's name"),
    KnownKey("replication.version", None, "a label; capture keeps every version of a table's definition by itself"),
    KnownKey("replication.dbSpecific.class", None, _NO_CLASS),
    KnownKey("replication.bootstrap*", _SOURCE, _NO_SCRIPT),
    KnownKey("replication.doBootstrap", _SOURCE, _NO_SCRIPT),
    KnownKey("replication.cleanupFile", _SOURCE, "`penstock teardown` removes what `penstock setup` has installed"),
    KnownKey("replication.createDropAlterFile", _SOURCE, _NO_SCRIPT),
    KnownKey("replication.charWidth", _SOURCE, "names have the length that PostgreSQL allows"),
    KnownKey("replication.charWidthSmall", _SOURCE, "names have the length that PostgreSQL allows"),
    KnownKey("replication.maxRowsOnCreate", _SOURCE, "the first copy measures the size of its chunks"),
    KnownKey("maxRowsOnCreate", _SOURCE, "the first copy measures the size of its chunks"),
    KnownKey("replication.initialCmd", None, _NO_DUMP),
    KnownKey("replication.initialCmdPre", None, f"{_NO_DUMP}; run by hand what it prepared", is_checked=True),
    KnownKey("replication.initialCmdStop", None, _NO_DUMP),
    KnownKey("replication.path", None, _NO_DUMP),
    KnownKey("replication.keepDumpFiles", None, _NO_DUMP),
    KnownKey("replication.initialDump*", _SOURCE, _NO_DUMP),
    KnownKey("replication.initialDataTopic", _SOURCE, _NO_DUMP),
    KnownKey("replication.importLocation*", _SINK, _NO_DUMP),
    KnownKey("replication.forceNewSubscription", None, _NO_DUMP),
    KnownKey(
        "replication.writer.schemaToWipeout",
        _SINK,
        "no schema is emptied; `penstock setup --adopt` compares the rows that are there with the source's",
    ),
    KnownKey(
        "replication.sendUnchangedUpdates",
        _SOURCE,
        "an update that changes no value is captured, and leaves the row as it is",
    ),
    KnownKey("replication.maxRowsInTx", _SOURCE, f"{_ONE_TRANSACTION}; a large one is applied piece by piece, at once"),
    KnownKey("dbWatcher.maxCollectedStatements", _SOURCE, _ONE_TRANSACTION),
    KnownKey("dbWatcher.maxMessageSize", _SOURCE, f"{_ONE_TRANSACTION} (the original did not honour it either)"),
    KnownKey(
        "mom.dispatcherPlugin", _SINK, "each reader has its own place in the source's log, without a slave object"
    ),
    KnownKey("mom.compressSize", _SOURCE, "compression.type among the settings of a Kafka connection compresses"),
    KnownKey("mom.publishQos", _SOURCE, "what is published is durable before the log is freed"),
    KnownKey("mom.*", None, _NO_BROKER),
    KnownKey("dispatch/*", None, _NO_BROKER),
    KnownKey("$_{xmlBlaster_uniqueId}", None, "a pipeline has a name"),
    KnownKey("useReaderCharset", None, "text is UTF-8"),
    KnownKey("charSet", None, "text is UTF-8"),
    KnownKey(
        "replication.catchExceptions",
        _SOURCE,
        "a change that cannot be captured leaves a gap, which is in the error queue with its reason",
    ),
    KnownKey("replication.createDropAlterDetection", _SOURCE, _DDL),
    KnownKey("replication.sendInitialTableContent", _SOURCE, "the first run copies each table from a snapshot"),
    KnownKey("replication.blockLoop", _SOURCE, "capture.changes_of says whose changes are captured"),
    KnownKey("replication.oracle.*", _SOURCE, _ORACLE),
    KnownKey("replication.plsql.debug", _SOURCE, _ORACLE),
    KnownKey("dbWriter.caseSensitive", _SINK, "names are those of the catalogue, and are quoted"),
    KnownKey("dbWriter.quoteColumnNames", _SINK, "names are those of the catalogue, and are quoted"),
    KnownKey(
        "dbWriter.queryImportedKeys", _SINK, "foreign keys are read from the target's catalogue, and are honoured"
    ),
    KnownKey(
        "dbWriter.xslTransformerName",
        _SINK,
        "messages are not transformed by XSLT: write rules, docs/transformations.md",
        is_checked=True,
    ),
    KnownKey(
        "dbWriter.prePostStatement.class",
        _SINK,
        "apply.tables.<table>.handlers has statements and functions that run for a change: docs/handlers.md",
        is_checked=True,
    ),
    KnownKey(
        "dbWriter.sqlPrePostStatement.*",
        _SINK,
        "write the SQL as a handler, docs/handlers.md; hooks of updates and deletes never ran in the original",
        is_checked=True,
    ),
    KnownKey(
        "replication.statements",
        _SINK,
        "no statement is broadcast: run it at the source, and the rows that it changes follow",
    ),
    KnownKey("replication.sqlTopic", None, "no statement is broadcast"),
    KnownKey("replication.sqlMaxEntries", None, "no statement is broadcast"),
    KnownKey(
        "replication.overwriteTables",
        _SINK,
        "no table with rows is emptied: `penstock setup` refuses it, and with --adopt has its rows compared",
    ),
    KnownKey(
        "replication.recreateTables",
        _SINK,
        "a table is not dropped to be made anew: `penstock setup` says how it differs from the source's",
    ),
    KnownKey(
        "replication.description.allowDoubleInserts",
        _SINK,
        "a row that is there already is a conflict, which a resolver may decide: docs/conflicts.md",
        is_checked=True,
    ),
    KnownKey("replication.maxEntries", None, "a run finds the size of its batches by itself"),
    KnownKey("replication.prioDeliveryOnInitial", None, "the first copy and changes have no priorities"),
    KnownKey("replication.countSingleMsg", None, _NO_MONITOR),
    KnownKey("replication.monitor.*", None, _NO_MONITOR),
    KnownKey("replication.creates", _SINK, _DDL),
    KnownKey("replication.drops", _SINK, _DDL),
    KnownKey("replication.alters", _SINK, _DDL),
    KnownKey("replication.nirvanaClient", _SINK, "changes are applied"),
    KnownKey("replication.debugFile", _SINK, "the log of `penstock run` says what is done, without row values"),
)


def known_key(key: str) -> KnownKey | None:
    """The entry for a key; None for a key that xmlBlaster's replication does not have."""
    return next((known for known in KNOWN_KEYS if known.matches(key)), None)
