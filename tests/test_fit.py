"""Which types take all values of which others, and what becomes of values otherwise."""

from __future__ import annotations

import pytest

from penstock.fit import Fit, fit, is_whole
from penstock.logical import LogicalType


@pytest.mark.parametrize(
    ("told", "there", "found"),
    [
        ("integer(32)", "integer(64)", Fit.WHOLE),
        ("integer(64)", "integer(32)", Fit.REFUSED),
        ("integer(64)", "decimal(20,0)", Fit.WHOLE),
        ("integer(64)", "decimal(18,0)", Fit.REFUSED),
        ("integer(32)", "decimal(12,2)", Fit.WHOLE),
        ("integer(32)", "decimal(12,-2)", Fit.CUT),
        ("decimal(20,0)", "integer(64)", Fit.REFUSED),
        ("decimal(9,0)", "integer(32)", Fit.WHOLE),
        ("decimal(9,2)", "integer(64)", Fit.NONE),
        ("decimal", "integer(64)", Fit.NONE),
        ("decimal(12,4)", "decimal(9,2)", Fit.CUT),
        ("decimal(9,2)", "decimal(8,2)", Fit.REFUSED),
        ("decimal(9,2)", "decimal(10,4)", Fit.REFUSED),
        ("decimal(9,2)", "decimal(12,4)", Fit.WHOLE),
        ("decimal", "decimal(38,10)", Fit.CUT),
        ("decimal(9,2)", "decimal", Fit.WHOLE),
        ("decimal", "decimal", Fit.WHOLE),
        ("float(32)", "float(64)", Fit.WHOLE),
        ("float(64)", "float(32)", Fit.CUT),
        ("float(64)", "decimal", Fit.NONE),
        ("string(10)", "string(20)", Fit.WHOLE),
        ("string(20)", "string(10)", Fit.REFUSED),
        ("string", "string(10)", Fit.REFUSED),
        ("string(10,padded)", "string", Fit.WHOLE),
        ("string", "string(10,padded)", Fit.CUT),
        ("enum('a','long')", "string(4)", Fit.WHOLE),
        ("enum('a','long')", "string(3)", Fit.REFUSED),
        ("enum('a')", "enum('b','a')", Fit.WHOLE),
        ("enum('a','b')", "enum('a')", Fit.REFUSED),
        ("timestamp(3)", "timestamp", Fit.WHOLE),
        ("timestamp", "timestamp(3)", Fit.CUT),
        ("timestamp(9)", "timestamp", Fit.CUT),
        ("timestamp(9)", "string", Fit.WHOLE),
        ("timestamp(9)", "string(40)", Fit.NONE),
        ("timestamp(6)", "string", Fit.NONE),
        ("timestamptz", "timestamp", Fit.NONE),
        ("time(7)", "time(6)", Fit.CUT),
        ("time(6)", "interval", Fit.WHOLE),
        ("interval", "time", Fit.NONE),
        ("bits(8)", "bits", Fit.WHOLE),
        ("bits", "bits(8)", Fit.REFUSED),
        ("array(integer(32))", "array(integer(64))", Fit.WHOLE),
        ("array(timestamp)", "array(timestamp(0))", Fit.CUT),
        ("string", "other('inet')", Fit.REFUSED),
        ("other('inet')", "string", Fit.NONE),
        ("date", "timestamp", Fit.NONE),
        ("json", "json", Fit.WHOLE),
    ],
)
def test_what_becomes_of_values_in_a_column_of_another_type(told: str, there: str, found: Fit) -> None:
    assert fit(LogicalType.parse(there), LogicalType.parse(told)) is found


@pytest.mark.parametrize(
    ("there", "value", "found"),
    [
        ("decimal(4,2)", "123.45", True),
        ("decimal(4,2)", "1.2300", True),
        ("decimal(4,2)", "1.234", False),
        ("decimal(4,2)", "-0.001", False),
        ("decimal(4,0)", "7", True),
        ("decimal(4,0)", "7.5", False),
        ("decimal(4,2)", "NaN", True),
        ("decimal(4,2)", "1E-3", False),
        ("timestamp(3)", "2024-01-02T03:04:05.678", True),
        ("timestamp(3)", "2024-01-02T03:04:05.678900", False),
        ("timestamptz(0)", "2024-01-02T03:04:05.000000+00:00", True),
        ("timestamptz(0)", "2024-01-02T03:04:05.600000+00:00", False),
        ("time", "03:04:05.123456", True),
        ("time", "03:04:05.1234567", False),
        ("array(timestamp(0))", "{}", False),
    ],
)
def test_one_value_keeps_all_its_decimals_or_not(there: str, value: str, *, found: bool) -> None:
    assert is_whole(LogicalType.parse(there), value) is found
