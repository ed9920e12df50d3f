"""The benchmarks' own work: what they time has to be right."""

from __future__ import annotations

import pytest
from bench import debezium


@pytest.mark.parametrize("with_schemas", [False, True])
def test_events_that_decoding_is_timed_with_are_all_placed_and_decoded(
    monkeypatch: pytest.MonkeyPatch, with_schemas: bool
) -> None:
    monkeypatch.setattr(debezium, "_ROWS", 50)
    monkeypatch.setattr(debezium, "_EVENTS", 50)

    for work in (debezium._place, debezium._decode):
        assert debezium._run(work, with_schemas) > 0
