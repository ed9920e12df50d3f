"""What setup does at a PostgreSQL target: the ledger, tables, partitions and types that are missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from penstock.change import TableName
from penstock.config.apply import TriggerFiring
from penstock.database import DatabasePlan, SetupStep, SourceTables, UncopiedRows
from penstock.dialects.postgres import ownership
from penstock.dialects.postgres.blueprint import (
    Blueprint,
    DdlPiece,
    lacking_labels,
    lacking_partitions,
    read_parts,
    reordered_labels,
)
from penstock.dialects.postgres.catalog import (
    computed_columns,
    current_user,
    is_superuser,
    list_tables,
    read_tables,
)
from penstock.dialects.postgres.checks import faults_of
from penstock.dialects.postgres.connection import Connection, label, quote
from penstock.dialects.postgres.from_schema import blueprint_of, completed, named_type, types_of
from penstock.dialects.postgres.needed import missing_needs
from penstock.dialects.postgres.post_data import PostData
from penstock.dialects.postgres.privileges import missing_target_grants, plain_role, plan_grants
from penstock.dialects.postgres.target import ledger_entries, ledger_version
from penstock.dialects.postgres.target.occupied import plan_rows
from penstock.dialects.postgres.target.post_data import plan_post_data
from penstock.dialects.postgres.target.setup_checks import (
    check_tables,
    check_types,
    computed_otherwise,
    long_names,
    refuse_finer_keys,
    taken_names,
)
from penstock.dialects.postgres.target.triggers import plan_triggers
from penstock.dialects.postgres.target.unchecked import unchecked
from penstock.errors import OperatorError, PenstockError
from penstock.schema import TableSchema


def plan_target(
    connection: Connection,
    url: str,
    *,
    process: str,
    tables: SourceTables,
    uncopied_rows: UncopiedRows,
    firing: Mapping[str, Mapping[str, TriggerFiring]],
    keyed: Collection[TableName],
) -> DatabasePlan:
    """Plan the ledger and the missing tables; check the tables that exist, without altering them.

    Args:
        tables: What another kind of database says of how to make them, and of post-data, is left aside.
        firing: For whose changes triggers fire, by pattern of tables and by name.
        keyed: Tables whose rows are found by a substitute key; they need none of their own.
    """
    plan = DatabasePlan(label(url), faults=_faults(connection, url))
    plan.preamble = ownership.preamble("penstock")
    if plan.faults:
        return plan
    newer = ledger_version.newer_fault(connection)
    if newer is not None:
        # A later version's ledger may mean something else by the same columns.
        plan.faults.append(newer)
        return plan
    source = tables.described
    blueprint, post_data = _forms_of(tables)
    existing = read_tables(connection, source)
    plan.faults += ledger_version.upgrade_faults(connection)
    plan.steps += ledger_version.ledger_steps(connection)
    plan.steps += ownership.dump_steps(connection, "penstock", list(source), is_new=bool(plan.steps))
    for name, error in long_names(connection, source, existing, plan.label):
        plan.refuse(name, error)
    # Whatever else is said of such a table would be about the names that are cut.
    source = {name: table for name, table in source.items() if name not in plan.table_faults}
    existing = {name: table for name, table in existing.items() if name in source}
    missing = [name for name in source if name not in existing]
    for name, error in taken_names(connection, missing, plan.label):
        plan.refuse(name, error)
    blueprint = completed(blueprint, [source[name] for name in missing], has_identities=post_data is not None)
    _refuse_no_types(connection, plan, blueprint, [source[name] for name in missing])
    plan.steps += _schema_steps(connection, missing, blueprint)
    _plan_types(connection, plan, blueprint, missing)
    check_types(connection, plan, blueprint, source)
    plan.notes += [note for name in missing for note in blueprint.notes.get(name, ())]
    there = set(list_tables(connection))
    refuse_finer_keys(plan, [source[name] for name in missing])
    copied = ledger_entries.copied_or_begun(connection, process)
    pieces = [piece for piece in blueprint.pieces if piece.root in missing]
    lost = _lost_foreign_keys(blueprint, existing, ledger_entries.made(connection, process) - copied)
    parents = _plan_pieces(plan, [*pieces, *lost], there | set(missing))
    types = [name for name, statement, _ in blueprint.types if statement]
    plan_post_data(connection, plan, post_data, process=process, missing=missing, existing=existing, types=types)
    plan_triggers(connection, plan, firing, source)
    has_parts = _plan_parts(connection, plan, blueprint, existing, there)
    adopted = ledger_entries.adopted(connection, process)
    check_tables(connection, plan, source, existing, defaults=_defaults(post_data), keyed=keyed)
    replaced = [name for name in existing if name in tables.replaced]
    plan.steps += [ledger_entries.forgetting(process, name) for name in replaced if name in copied]
    to_copy = [name for name in existing if name in replaced or name not in copied]
    if uncopied_rows is not UncopiedRows.KEPT:
        unknown = [name for name in to_copy if name not in adopted]
        plan_rows(connection, url, plan, unknown, process=process, adopt=uncopied_rows is UncopiedRows.ADOPTED)
    plan.notes += computed_otherwise(computed_columns(connection, existing), blueprint)
    plan.notes += unchecked(
        connection, source, existing, blueprint if isinstance(tables.blueprint, Blueprint) else None
    )
    plan.notes += ownership.hosted_code(connection, list(existing))
    if missing or has_parts:
        calls = [*blueprint.calls, *(("type", name) for name, _, _ in blueprint.types)]
        _refuse_calls(connection, plan, blueprint, calls, {*missing, *existing})
    old_parents = {parent: children for parent, children in parents.items() if parent in there}
    _plan_role(connection, plan, existing, missing, old_parents, process=process)
    return plan


def _forms_of(tables: SourceTables) -> tuple[Blueprint, PostData | None]:
    blueprint = tables.blueprint if isinstance(tables.blueprint, Blueprint) else blueprint_of(tables.described.values())
    return blueprint, tables.post_data if isinstance(tables.post_data, PostData) else None


def _plan_role(
    connection: Connection,
    plan: DatabasePlan,
    existing: Mapping[TableName, TableSchema],
    missing: Sequence[TableName],
    parents: Mapping[TableName, Collection[TableName]],
    *,
    process: str,
) -> None:
    """Say what the user lacks to apply; for a superuser, how to make a role that lacks nothing, and has no more."""
    if is_superuser(connection):
        made = ledger_entries.made(connection, process)
        plan.plain_role += plain_role(connection, existing, missing, parents, made=made)
    else:
        plan.role = current_user(connection)
        plan_grants(plan, missing_target_grants(connection, existing, missing, parents))


def _lost_foreign_keys(
    blueprint: Blueprint, existing: Mapping[TableName, TableSchema], empty: Collection[TableName]
) -> list[DdlPiece]:
    """The foreign keys that an earlier setup could not make: of tables that it made, and that hold no rows yet."""
    return [
        piece
        for piece in blueprint.pieces
        if piece.kind == "foreign key"
        and piece.root in empty
        and piece.root in existing
        and piece.name not in {key.name for key in existing[piece.root].foreign_keys}
        and piece.table == piece.root
    ]


def _refuse_calls(
    connection: Connection,
    plan: DatabasePlan,
    blueprint: Blueprint,
    calls: Collection[tuple[str, TableName]],
    tables: Collection[TableName],
) -> None:
    """Leave tables out that would run another role's code."""
    if not ownership.called_code(connection, calls):
        return
    users = {call: blueprint.needed_by(*call) for call in calls}
    plan.faults += ownership.called_code(connection, [call for call in calls if not users[call]])
    for table in sorted(tables):
        for fault in ownership.called_code(connection, [call for call in calls if table in users[call]]):
            plan.refuse(table, fault)


def _refuse_users(
    plan: DatabasePlan,
    blueprint: Blueprint,
    what: tuple[str, TableName],
    tables: Collection[TableName],
    fault: PenstockError,
) -> None:
    """Leave out those of the tables that need something; where it is not known which do, nothing can be set up."""
    users = blueprint.needed_by(*what)
    if not users:
        plan.faults.append(fault)
    for table in sorted(users & set(tables)):
        plan.refuse(table, fault)


def _defaults(post_data: PostData | None) -> dict[tuple[TableName, str], str]:
    """The end of the statements that add columns with the source's defaults, by table and column."""
    pieces = () if post_data is None else post_data.pieces
    return {(piece.table, piece.name): f" DEFAULT {piece.definition}" for piece in pieces if piece.kind == "default"}


def _faults(connection: Connection, url: str) -> list[PenstockError]:
    try:
        ledger_version.read_version(connection)
    except OperatorError as exc:
        # A ledger whose schema has lost its comment looks like a schema of somebody else's, which may be renamed.
        return [exc, *ownership.schema_faults(connection, "penstock")]
    return faults_of(connection, url, "penstock")


def _make_it(name: TableName) -> str:
    return f"create {name} at the target yourself, or take it out of capture.tables"


def _schema_steps(connection: Connection, missing: Iterable[TableName], blueprint: Blueprint) -> list[SetupStep]:
    if not missing:
        return []
    wanted: dict[str, set[TableName]] = {}
    for name in missing:
        wanted.setdefault(name.schema, set()).add(name)
    for name, statement, _ in blueprint.types:
        if statement:
            wanted.setdefault(name.schema, set()).update(blueprint.needed_by("type", name) & set(missing))
    found = {row[0] for row in connection.execute("SELECT nspname FROM pg_namespace")}
    return [
        SetupStep(f"schema {name}", f"CREATE SCHEMA {quote(name)}", tables=frozenset(tables))
        for name, tables in sorted(wanted.items())
        if name not in found
    ]


def _plan_pieces(
    plan: DatabasePlan, pieces: Iterable[DdlPiece], known: Collection[TableName]
) -> dict[TableName, set[TableName]]:
    """Plan to make tables that are missing; returns those that they will refer to, and which will."""
    parents: dict[TableName, set[TableName]] = {}
    for piece in pieces:
        is_between = piece.kind == "foreign key" and piece.other != piece.root
        if is_between:
            assert piece.other is not None
            if piece.other not in known:
                plan.notes.append(f"{piece.summary} is left out: {piece.other} is neither captured nor at the target")
                continue
            parents.setdefault(piece.other, set()).add(piece.root)
        plan.steps.append(
            SetupStep(
                piece.summary,
                piece.sql,
                remedy=_make_it(piece.root),
                tables=frozenset({piece.root}),
                # Once it is known that both tables are captured: rows of one alone would break it.
                is_apart=is_between,
                refers=piece.other if is_between else None,
            )
        )
    return parents


def _plan_parts(
    connection: Connection,
    plan: DatabasePlan,
    blueprint: Blueprint,
    existing: Iterable[TableName],
    there: Collection[TableName],
) -> bool:
    """Plan what tables that exist lack of the source's partitions, and types of its enum labels.

    Returns:
        Whether there are partitions to be made.
    """
    at_target = read_parts(connection, existing, blueprint.parts.labels)
    own = _owned(connection, {*at_target.labels, *at_target.keys})
    for lack in lacking_labels(blueprint.parts, at_target):
        if lack.lost:
            lost = ", ".join(map(repr, lack.lost))
            fault = OperatorError(
                f"{lack} at the target, and has {lost}, which the source has not",
                where=plan.label,
                do=f"where the source has renamed a label, ALTER TYPE {quote(lack.type.schema, lack.type.name)}"
                f" RENAME VALUE ...; where not, {'; '.join(lack.statements)}",
            )
            _refuse_users(plan, blueprint, ("type", lack.type), set(existing), fault)
            continue
        if lack.type not in own:
            plan.notes.append(f"{lack} at the target; only its owner can add that: {'; '.join(lack.statements)}")
            continue
        # Not apart: a partition's bound may name a label, which has to be committed by then.
        plan.steps += [
            SetupStep(
                f"label {label!r} of type {lack.type}",
                sql,
                remedy="add the label at the target yourself",
                tables=blueprint.needed_by("type", lack.type) & frozenset(existing),
            )
            for label, sql in zip(lack.labels, lack.statements, strict=True)
        ]
    plan.notes += [
        f"the labels of type {name} stand in another order than at the source: its values are sorted otherwise"
        for name in reordered_labels(blueprint.parts, at_target)
    ]
    wanted, differing = lacking_partitions(blueprint.parts, at_target)
    has_some = False
    new = {*wanted, *differing}
    for piece in blueprint.pieces:
        if piece.table not in new or piece.is_part:
            continue
        why_not = None
        if piece.table in there:
            why_not = f"where {piece.table} is another table: unless another partition takes its rows"
        elif piece.table in differing:
            why_not = "where the others are not the same: unless another one takes its rows"
        elif piece.root not in own:
            why_not = f"where only the owner of {piece.root} can make it"
        if why_not is None and (piece.kind != "foreign key" or piece.other in there):
            # It locks its parent, which is written to.
            remedy = f"make the partitions of {piece.root} at the target yourself"
            plan.steps.append(
                SetupStep(piece.summary, piece.sql, is_apart=True, remedy=remedy, tables=frozenset({piece.root}))
            )
            has_some = True
        elif why_not is None:
            plan.notes.append(f"{piece.summary} is left out: {piece.other} is not at the target")
        elif piece.kind == "partition":
            plan.notes.append(f"{piece.summary} is missing at the target, {why_not}: {piece.sql}")
    return has_some


def plan_parts(connection: Connection, plan: DatabasePlan, blueprint: Blueprint, tables: Sequence[TableName]) -> None:
    """Plan what tables that exist lack of the source's partitions, and types of its enum labels."""
    there = set(list_tables(connection))
    if _plan_parts(connection, plan, blueprint, [name for name in tables if name in there], there):
        _refuse_calls(connection, plan, blueprint, blueprint.calls, tables)


def _owned(connection: Connection, names: Collection[TableName]) -> set[TableName]:
    """The types and tables among `names` whose owner the user is; a table is also the type of its rows."""
    rows = connection.execute(
        "SELECT n.nspname, t.typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace"
        " WHERE (n.nspname, t.typname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))"
        " AND pg_has_role(t.typowner, 'USAGE')",
        [[name.schema for name in names], [name.name for name in names]],
    )
    return {TableName(schema, name) for schema, name in rows}


def _plan_types(connection: Connection, plan: DatabasePlan, blueprint: Blueprint, missing: Sequence[TableName]) -> None:
    if not missing:
        return
    rows = connection.execute(
        "SELECT n.nspname, t.typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace"
    )
    found = {TableName(schema, name) for schema, name in rows}
    _plan_needed(connection, plan, blueprint, missing)
    for name, statement, extension in blueprint.types:
        users = blueprint.needed_by("type", name)
        tables = users & frozenset(missing)
        if name in found or (users and not tables):
            continue
        if statement is not None:
            remedy = "create the type at the target yourself"
            plan.steps.append(SetupStep(f"type {name}", statement, remedy=remedy, tables=tables))
        elif extension is not None:
            fault = OperatorError(
                f"type {name} is missing at the target",
                where=plan.label,
                do=f"install the extension it belongs to: CREATE EXTENSION {quote(extension)}",
            )
            _refuse_users(plan, blueprint, ("type", name), missing, fault)
        else:
            fault = OperatorError(
                f"type {name} is missing at the target and cannot be made from its definition",
                where=plan.label,
                do="create it there, then run setup again",
            )
            _refuse_users(plan, blueprint, ("type", name), missing, fault)


def _refuse_no_types(
    connection: Connection, plan: DatabasePlan, blueprint: Blueprint, tables: Iterable[TableSchema]
) -> None:
    """Refuse tables where what a schema calls a type is not the name of one: in a statement it could do anything."""
    types = {table.name: types_of(table) for table in tables}
    unknown = ownership.unknown_names(connection, "type", {type_ for of in types.values() for type_ in of.values()})
    coming = {name for name, statement, _ in blueprint.types if statement}
    asked = {name for name, statement, _ in blueprint.types if not statement}
    for name, of in types.items():
        for column, type_ in of.items():
            named = named_type(type_)
            # Setup makes it before the table; or says that it is missing.
            if type_ in unknown and named not in coming and named not in asked:
                what = f"table {name} cannot be made: {type_!r} of column {column!r} is the name of no type here"
                plan.refuse(name, OperatorError(what, where=plan.label, do="make the table at the target yourself"))


def _plan_needed(
    connection: Connection, plan: DatabasePlan, blueprint: Blueprint, missing: Collection[TableName]
) -> None:
    """Say what tables that are to be made need, and the target lacks."""
    # Types, and with them collations, are also made of tables that rules make others of.
    needed = [one for one in blueprint.needed if one.root in missing or one.kind == "collation"]
    if not any(missing_needs(connection, needed, where=plan.label)):
        return
    for root in sorted({one.root for one in needed}):
        for fault in missing_needs(connection, [one for one in needed if one.root == root], where=plan.label):
            if root in missing:
                plan.refuse(root, fault)
            else:
                plan.faults.append(fault)
