"""Which version of the ledger a target holds, and the steps that make one or bring it up to date (ADR 33)."""

from __future__ import annotations

import re

from penstock.database import SetupStep
from penstock.dialects.postgres.connection import Connection, label, literal
from penstock.dialects.postgres.ownership import schema_steps, seal_step
from penstock.dialects.postgres.resources import sql_text
from penstock.errors import OperatorError, PenstockError

SCHEMA = "penstock"

_ADDED = {
    2: "whose history is followed; what was truncated, adopted or repaired",
    3: "operations are checked",
    4: "rows of snapshots that came among changes",
    5: "which tables setup has made",
    6: "a log of conflicts that were resolved",
    7: "who could not apply an entry of the error queue, and what was done with it",
    8: "parameters that are set while a process runs",
    9: "transactions that wait behind others in the error queue",
    10: "views of it, and what the file of the last run said",
    11: "alterations of tables in the error queue",
    12: "messages in the error queue",
    13: "the handler of DDL in the view of processes",
    14: "a log of DDL that was carried out",
    15: "the error queue in commit order, page by page",
    16: "entries of the error queue that a person has put on hold",
    17: "how many changes runs have applied, by table and operation",
}
"""What each version adds to the one before it; its SQL is sql/ledger/upgrade_<version>.sql."""

VERSION = max(_ADDED)
"""The version that this program reads and writes; sql/ledger/tables.sql makes it."""

VIEWS = (
    "dba_apply",
    "dba_apply_parameters",
    "dba_apply_dml_handlers",
    "dba_streams_stmts",
    "dba_apply_conflict_columns",
    "dba_apply_key_columns",
    "dba_apply_table_columns",
    "dba_apply_value_dependencies",
    "dba_apply_object_dependencies",
    "dba_apply_instantiated_objects",
    "dba_apply_progress",
    "dba_apply_error",
    "dba_apply_error_messages",
    "v$streams_apply_coordinator",
    "v$streams_apply_server",
)
"""The views of the newest version, which sql/ledger/views.sql makes."""

_UNNUMBERED = 1
"""What a ledger counts as that was made before versions had numbers."""


def stamp(version: int) -> str:
    """What the comment on schema penstock says of a version."""
    return f"penstock: ledger {version}"


def exists(connection: Connection) -> bool:
    """Whether the database holds a ledger."""
    row = connection.execute("SELECT to_regclass('penstock.process') IS NOT NULL").fetchone()
    return bool(row and row[0])


def read_version(connection: Connection) -> int | None:
    """Return the version of the ledger in a database; None where there is none. Reads the catalogue only.

    Raises:
        OperatorError: There is a ledger, but nothing says of which version.
    """
    row = connection.execute(
        # to_regclass refuses a schema that the user has no right on.
        "SELECT EXISTS (SELECT FROM pg_class WHERE relname = 'process' AND relnamespace = to_regnamespace('penstock')),"
        " coalesce(obj_description(to_regnamespace('penstock'), 'pg_namespace'), '')"
    ).fetchone()
    assert row is not None
    is_there, comment = row
    if not is_there:
        return None
    numbered = re.fullmatch(r"penstock: ledger (\d+)", comment)
    if numbered is not None:
        return int(numbered[1])
    if comment.startswith("penstock: "):
        return _UNNUMBERED
    raise OperatorError(
        "nothing says of which version the ledger is: the comment on schema 'penstock' is gone",
        where=label(connection.info.dsn),
        do=f"give the schema the comment that it had: COMMENT ON SCHEMA {SCHEMA} IS {literal(stamp(VERSION))} for"
        f" version {VERSION}; a dump that holds comments has it",
    )


def newer_fault(connection: Connection) -> OperatorError | None:
    """Say that the ledger is of a version that this program does not know, if it is."""
    version = read_version(connection)
    if version is None or version <= VERSION:
        return None
    return OperatorError(
        f"the ledger is of version {version}, and this penstock knows versions up to {VERSION}",
        where=label(connection.info.dsn),
        do="install the version of penstock that made it, or a later one",
    )


def refuse_other_version(connection: Connection) -> None:
    """Make sure that the ledger, if there is one, is of the version that this program reads and writes.

    Raises:
        OperatorError: It is of an earlier one, or of a later one.
    """
    version = read_version(connection)
    if version is not None and version < VERSION:
        raise OperatorError(
            f"the ledger is of version {version}, and this penstock works with version {VERSION}",
            where=label(connection.info.dsn),
            do="run `penstock setup`, which upgrades it",
        )
    fault = newer_fault(connection)
    if fault is not None:
        raise fault


def upgrade_faults(connection: Connection) -> list[PenstockError]:
    """Say that the ledger cannot be upgraded now, if it has to be: a run of one of its processes is alive."""
    version = read_version(connection)
    if version is None or version >= VERSION:
        return []
    running = [name for (name,) in connection.execute(sql_text("ledger/running"))]
    if not running:
        return []
    names = ", ".join(map(repr, running))
    return [
        OperatorError(
            f"the ledger is to be upgraded from version {version} to {VERSION}, and runs use it: {names}",
            where=label(connection.info.dsn),
            do="stop these runs, of other pipelines too; afterwards start them with this version of penstock",
        )
    ]


def ledger_steps(connection: Connection) -> list[SetupStep]:
    """The steps that make the ledger or upgrade it, version by version; none where it is of this version.

    All belong into one transaction. An upgrade fails, and changes nothing, if a run of any of the ledger's processes
    is alive by then, or the ledger is not what it was when the steps were planned.
    """
    version = read_version(connection)
    if version is None:
        steps = [*schema_steps(connection, SCHEMA), SetupStep("the ledger", sql_text("ledger/tables")), _views_step()]
    elif version < VERSION:
        steps = [SetupStep("nobody uses the ledger while it is upgraded", _alone_script(connection))]
        for number in range(version + 1, VERSION + 1):
            summary = f"upgrade the ledger to version {number}: {_ADDED[number]}"
            steps.append(SetupStep(summary, sql_text(f"ledger/upgrade_{number}")))
        steps.append(_views_step())
        steps.append(SetupStep("the ledger's owner owns all of it", sql_text("ledger/owner")))
    else:
        return []
    noted = f"COMMENT ON SCHEMA {SCHEMA} IS {literal(stamp(VERSION))}"
    return [*steps, SetupStep("a note of the version of the ledger", noted), seal_step(SCHEMA)]


def named_views() -> str:
    """All views, as SQL names them."""
    return ", ".join(f'{SCHEMA}."{view}"' for view in VIEWS)


def _views_step() -> SetupStep:
    return SetupStep("views of the ledger", sql_text("ledger/views"))


def _alone_script(connection: Connection) -> str:
    row = connection.execute("SELECT obj_description(to_regnamespace('penstock'), 'pg_namespace')").fetchone()
    assert row is not None
    return sql_text("ledger/alone").format(found=literal(row[0]), running=sql_text("ledger/running").rstrip())
