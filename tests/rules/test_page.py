"""docs/transformations.md says what is so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config.rules import TableRuleConfig
from penstock.pipeline_file import parse
from penstock.rules.ruleset import RuleSet
from tests.hand_made import Lcr, T
from tests.rules.made import CUSTOMERS, TYPES, put_through, schema
from tests.test_config import GOOD

PAGE = (Path(__file__).parents[2] / "docs" / "transformations.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(rules:\n.*?)```(.*?)(?=```yaml|\n## |\Z)", PAGE, re.S)
ROW = re.compile(r"^\| `(.*)` \| `(.*)` \|$", re.M)


def read(cell: str) -> tuple[str, Any, Any]:
    """`update {...} {...}` as operation, old and new image."""
    op, _, rest = cell.partition(" ")
    images = [json.loads(text) for text in re.findall(r"\{.*?\}", rest)]
    if op == "insert":
        return op, None, images[0]
    return (op, *images, None, None)[:3]


@pytest.mark.parametrize(("rules", "below"), EXAMPLES, ids=[f"example {n}" for n in range(len(EXAMPLES))])
def test_an_example_says_what_becomes_of_its_changes(rules: str, below: str, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (tmp_path / "my_rules.py").write_text(code)
    config = parse(GOOD + rules, name="p.yaml", environment={})
    assert config.rules is not None
    table = schema(TYPES)
    rule = RuleSet.of(config.rules, config.capture.tables, tmp_path).rule(table, table)
    assert rule is not None
    cases = ROW.findall(below)
    assert cases

    for given, expected in cases:
        op, before, after = read(given)
        made = put_through(rule, T(1, Lcr(op, CUSTOMERS.name, before, after)))
        assert made == ([] if expected == "nothing" else [read(expected)]), given


def test_every_setting_is_on_the_page() -> None:
    assert len(EXAMPLES) == PAGE.count("| at the source |")
    shown = {
        name for rules, _ in EXAMPLES for rule in yaml.safe_load(rules)["rules"]["tables"].values() for name in rule
    }
    assert shown == set(TableRuleConfig.model_fields)
