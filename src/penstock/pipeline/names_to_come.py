"""Names that copied tables get once a run applies the change that renames them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.apply.ddl import DdlPolicy, DdlRules
from penstock.change import TableName
from penstock.stream import TableVersion, renamed_since


def names_to_come(
    versions: Sequence[TableVersion], copied: Collection[TableName], ddl: DdlRules
) -> Collection[TableName]:
    """Return every name of copied tables that were renamed since, where the run follows the change that says so."""
    waiting = renamed_since(versions, copied)
    followed = {id_ for id_, name in waiting.items() if ddl.of(name) is not DdlPolicy.IGNORE}
    return {version.table.name for version in versions if version.id in followed}
