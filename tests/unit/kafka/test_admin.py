"""What Kafka's errors are in words."""

import confluent_kafka as ck
import pytest

from headway.kafka.admin import describe


@pytest.mark.parametrize(
    "counters",
    ["", " (after 0ms in state CONNECT)", " (after 12ms in state CONNECT, 5 identical error(s) suppressed)"],
)
def test_an_error_of_a_connection_is_told_without_counters(counters: str) -> None:
    said = "localhost:9092: Connect to ipv4#127.0.0.1:9092 failed: Connection refused"
    assert describe(ck.KafkaError(ck.KafkaError._TRANSPORT, said + counters)) == said
