"""Streams that take what there is, and end."""

from __future__ import annotations

from pyspark.sql import DataFrame


def take_what_is_there(frame: DataFrame, *, sink: str, checkpoint: str) -> None:
    """Go on from a checkpoint up to what is there now, and write it to Parquet files."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
