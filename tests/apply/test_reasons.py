"""What the error queue says of a failure: the column that does not take its value, or the row in the way."""

from __future__ import annotations

import pytest

from penstock.apply.lane import ServerConfig
from penstock.errors import OperatorError
from tests.lab import Lab


@pytest.fixture(params=[True, False], ids=["set path", "row path"])
def config(request: pytest.FixtureRequest) -> ServerConfig:
    return ServerConfig(use_set_path=request.param)


UNFIT = {
    "a text that is too long": ("text", "varchar(5)", "'secret'", 12899, "character varying(5)"),
    "one with a length of its own": ("char(9)", "char(5)", "'secret'", 12899, "character(5)"),
    "texts in an array": ("text[]", "varchar(5)[]", "ARRAY['fits', 'secret']", 12899, "character varying(5)[]"),
    "no number": ("text", "int", "'secret'", 1722, "integer"),
    "a number out of range": ("int", "smallint", "40000", 1722, "smallint"),
    "too many digits": ("numeric", "numeric(4,2)", "123.45", 1722, "numeric(4,2)"),
    "no uuid": ("text", "uuid", "'secret'", 1722, "uuid"),
}


@pytest.mark.parametrize("unfit", UNFIT.values(), ids=UNFIT)
def test_the_column_that_does_not_take_its_value_is_named(
    lab: Lab, config: ServerConfig, unfit: tuple[str, str, str, int, str]
) -> None:
    at_source, at_target, value, number, named = unfit
    lab.setup(f'CREATE TABLE t (id int PRIMARY KEY, a text, "the %s" {at_source}, z text)')
    lab.target.execute(f'ALTER TABLE t ALTER "the %s" TYPE {at_target} USING NULL')
    lab.source.execute(f"INSERT INTO t VALUES (1, 'a', {value}, 'z')")
    lab.source.execute("INSERT INTO t VALUES (2, 'a', NULL, 'z')")
    lab.apply(config=config)
    lab.source.execute(f"UPDATE t SET \"the %s\" = {value}, z = 'y' WHERE id = 2")
    lab.apply(config=config)

    inserted, updated = lab.errors()
    for entry in (inserted, updated):
        assert entry.error_number == number
        assert entry.error_message.endswith(f": column 'the %s' is {named} at the target")
        assert "secret" not in entry.error_message
    assert lab.rows("t") == [(2, "a", None, "z")]


def test_a_column_is_named_again_when_a_retry_fails(lab: Lab) -> None:
    # Blanks at the end are cut off by the target, which is no reason to refuse them.
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, blank text, v text, w text)")
    lab.target.execute("ALTER TABLE t ALTER blank TYPE varchar(3), ALTER v TYPE varchar(3)")
    lab.source.execute("INSERT INTO t VALUES (1, 'a     ', 'secret', 'secret')")
    lab.apply()
    assert "column 'v'" in lab.errors()[0].error_message
    lab.target.execute("ALTER TABLE t ALTER v TYPE text, ALTER w TYPE varchar(4)")
    (entry,) = lab.errors()
    with pytest.raises(OperatorError, match=r"column 'w' is character varying\(4\) at the target"):
        lab.retry(entry.id)
    assert "column 'w'" in lab.errors()[0].error_message


@pytest.mark.parametrize(
    ("rule", "there"),
    [
        ("ALTER TABLE t ADD UNIQUE (code)", {"id": "7", "code": "x", "n": "8"}),
        ("ALTER TABLE t ADD UNIQUE (code) DEFERRABLE INITIALLY DEFERRED", {"id": "7", "code": "x", "n": "8"}),
        ("CREATE UNIQUE INDEX ON t (n, code)", {"id": "7", "code": "x", "n": "8"}),
        ("ALTER TABLE t ADD EXCLUDE USING btree (code WITH =)", {"id": "7", "code": "x", "n": "8"}),
        # Nobody can tell from the values which row it is.
        ("CREATE UNIQUE INDEX ON t (lower(code))", None),
    ],
    ids=["unique", "deferrable", "an index", "exclusion", "an expression"],
)
def test_the_row_that_stands_in_the_way_is_kept_with_the_error(
    lab: Lab, config: ServerConfig, rule: str, there: dict[str, str] | None
) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, code text, n int)")
    lab.source.execute("INSERT INTO t VALUES (1, 'a', 8)")
    lab.apply(config=config)
    lab.target.execute(f"{rule}; INSERT INTO t VALUES (7, 'x', 8)")
    lab.source.execute("INSERT INTO t VALUES (2, 'x', 8)")
    lab.source.execute("UPDATE t SET code = 'x' WHERE id = 1")
    lab.apply(config=config)

    assert [(entry.error_number, entry.found) for entry in lab.errors()] == [(1, there), (1, there)]


def test_the_row_that_has_the_key_is_kept_with_the_error_and_again_by_a_retry(lab: Lab, config: ServerConfig) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
    lab.target.execute("INSERT INTO t VALUES (1, 'secret')")
    lab.source.execute("INSERT INTO t VALUES (1, 'here')")
    lab.apply(config=config)
    (entry,) = lab.errors()
    assert entry.found == {"id": "1", "v": "secret"}
    assert "secret" not in entry.error_message

    lab.target.execute("UPDATE t SET v = 'another secret'")
    with pytest.raises(OperatorError) as caught:
        lab.retry(entry.id)
    assert "secret" not in str(caught.value)
    assert lab.errors()[0].found == {"id": "1", "v": "another secret"}


def test_a_row_of_a_partition_stands_in_the_way(lab: Lab, config: ServerConfig) -> None:
    lab.setup(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (10)"
    )
    lab.target.execute("INSERT INTO p VALUES (1, 'there')")
    lab.source.execute("INSERT INTO p VALUES (1, 'here')")
    lab.apply(config=config)
    assert [entry.found for entry in lab.errors()] == [{"id": "1", "v": "there"}]
