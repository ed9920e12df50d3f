"""Spark that starts in the background: what is begun, and what is not."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.errors import OperatorError
from penstock.spark import java, starting
from penstock.spark.starting import Spark


def test_no_session_is_made_of_what_was_stopped_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_SESSION_AFTER_S", 0.2)
    context: Any = SimpleNamespace(_jsc=object())
    made: list[str] = []
    spark = Spark(lambda: context, lambda: made.append("a session"))  # type: ignore[arg-type, func-returns-value]
    assert spark.context is context

    context._jsc = None
    begun = spark._attempt
    assert begun is not None
    begun.thread.join()

    assert not made


def test_a_start_that_failed_is_tried_again_when_it_is_asked_for_again(spark: SparkSession) -> None:
    answers: list[Any] = [OperatorError("no Java"), spark.sparkContext]
    furnished: list[object] = []

    def start() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    once = Spark(start, lambda: spark, furnished.append)
    with pytest.raises(OperatorError, match="no Java"):
        _ = once.context

    assert once.context is spark.sparkContext
    assert once.session is spark
    _ = once.context
    assert furnished == [spark.sparkContext]


@pytest.mark.parametrize("text", ["spark: {master: local}", "publish: {format: xds}"])
def test_java_waits_for_a_file_that_may_have_a_say(tmp_path: Path, text: str) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    assert java.begin_for(file) is None


def test_a_file_that_comes_through_a_pipe_is_not_read_beforehand(tmp_path: Path) -> None:
    pipe = tmp_path / "pipeline.yaml"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        pipe_in = os.open(pipe, os.O_WRONLY)
        os.write(pipe_in, b"version: 1")
        os.close(pipe_in)
        assert java.begin_for(pipe) is None
        assert os.read(reader, 100) == b"version: 1"
    finally:
        os.close(reader)
