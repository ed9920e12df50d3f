"""Schemas of the DataFrames that Penstock hands out."""

from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock import change
from penstock.apply.task import PACKED_SCHEMA

CHANGES: StructType = from_arrow_schema(change.ARROW_SCHEMA)
"""The change stream: what every source yields and every consumer takes."""

PACKED: StructType = from_arrow_schema(PACKED_SCHEMA)
"""Changes on their way to the apply servers, in runs, each with its lane."""
