"""What goes wrong with a Kafka cluster is told by its cause, and no setting's value is repeated."""

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.formats.debezium.declared import DeclaredModes
from penstock.formats.debezium.decode import BeforeImage
from penstock.pipeline_file import parse
from penstock.sources.debezium.kafka import KafkaLog
from penstock.wiring import open_events


@pytest.mark.parametrize("setting", ["sasl.passphrase", "security.protocol"])
def test_settings_that_are_not_taken_are_named_without_their_value(setting: str) -> None:
    log = KafkaLog({"bootstrap.servers": "127.0.0.1:1", setting: "hush"}, ("a.*",))
    with pytest.raises(ConfigError) as caught:
        log.extents()
    assert caught.value.where == f"setting {setting}"
    assert "hush" not in str(caught.value)
    assert "hush" not in repr(log)


def test_what_the_pipeline_file_says_of_a_connector_reaches_the_decoder() -> None:
    text = """
version: 1
name: shop
connections:
  events: {type: kafka, settings: {bootstrap.servers: "broker:9092"}}
  target: {type: postgres, url: "postgresql://target/shop"}
capture:
  source: debezium
  connection: events
  tables: ["public.*"]
  debezium: {prefix: shop, decimals: string, times: connect, binary: hex, before_image: full, placeholder: none}
apply: {connection: target}
"""
    log, settings = open_events(parse(text, name="pipeline.yaml", environment={}, folder=Path()))
    assert isinstance(log, KafkaLog)
    assert log.topics == ("shop.*", "shop.transaction")
    written = frozenset({"binary", "decimals"})
    assert settings.modes == DeclaredModes("string", "connect", "hex", arrays="postgres", written=written)
    assert (settings.before_image, settings.placeholder) == (BeforeImage.FULL, "none")
