"""What goes wrong with a Kafka cluster is told by its cause, and no setting's value is repeated."""

import pytest

from penstock.errors import ConfigError
from penstock.sources.debezium.kafka import KafkaLog


@pytest.mark.parametrize("setting", ["sasl.passphrase", "security.protocol"])
def test_settings_that_are_not_taken_are_named_without_their_value(setting: str) -> None:
    log = KafkaLog({"bootstrap.servers": "127.0.0.1:1", setting: "hush"}, ("a.*",))
    with pytest.raises(ConfigError) as caught:
        log.extents()
    assert caught.value.where == f"setting {setting}"
    assert "hush" not in str(caught.value)
    assert "hush" not in repr(log)
