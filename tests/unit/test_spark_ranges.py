"""Reading by offset when there is no broker to read from."""

import pytest

from headway.errors import KafkaError
from headway.kafka import ranges


def test_without_a_broker_the_error_names_the_address_and_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "REQUEST_TIMEOUT_S", 0.5)
    nobody = "127.0.0.1:1"
    with (
        ranges.RangeReader({"bootstrap.servers": nobody}) as reader,
        pytest.raises(KafkaError, match=rf"Connection refused.*Check that a broker runs at bootstrap.servers={nobody}"),
    ):
        reader.partitions(["orders"], levels=1)
