"""Rules and tables for tests, made without a file or a database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock import change as c
from penstock.change import TableName
from penstock.config.rules import RulesConfig
from penstock.rules.ruleset import RuleSet
from penstock.rules.stream import StreamRules
from penstock.rules.table_rule import TableRule
from penstock.schema import Column, TableSchema, Unique
from tests.hand_made import Txn, as_batch

CUSTOMERS = TableName("public", "customers")


def rule_set(rules: Mapping[str, Any], *, captured: Sequence[str] = ("*.*",), folder: Path = Path()) -> RuleSet:
    """The rules of a pipeline file with these."""
    return RuleSet.of(RulesConfig.model_validate(rules), captured, folder)


def schema(types: Mapping[str, str], name: TableName = CUSTOMERS, **more: Any) -> TableSchema:
    """A table with these columns, whose key is the first."""
    columns = tuple(Column(n, kind, kind.partition("(")[0]) for n, kind in types.items())
    key = (columns[0].name,)
    return TableSchema(name, columns, **{"primary_key": Unique(f"{name.name}_pkey", key, key), **more})


TYPES = {
    "id": "integer",
    "name": "text",
    "ssn": "text",
    "net": "numeric(10,2)",
    "tax": "numeric(10,2)",
    "region": "text",
}


def rule_of(table: TableSchema, folder: Path = Path(), **settings: Any) -> TableRule:
    """The rule that these settings make for a table."""
    rule = rule_set({"tables": {str(table.name): settings}}, folder=folder).rule(table, table)
    assert rule is not None
    return rule


def put_through(rule: TableRule, *transactions: Txn) -> list[tuple[str, Any, Any]]:
    """What becomes of changes of the rule's table: (operation, before, after)."""
    stream = StreamRules({(rule.source.name, rule.source.version): rule})
    return as_seen(stream.apply([as_batch(transactions)]))


def as_seen(batches: Iterable[pa.RecordBatch]) -> list[tuple[str, Any, Any]]:
    """(operation, before, after) of each change."""
    return [
        (row[c.OP], *(None if row[name] is None else json.loads(row[name]) for name in (c.BEFORE, c.AFTER)))
        for batch in batches
        for row in batch.to_pylist()
    ]
