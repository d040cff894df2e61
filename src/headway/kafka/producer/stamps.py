"""Reads the brokers' time from the timestamps that brokers give to empty records.

Kafka has no request for the brokers' time.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka as ck

from headway.core.outgoing_record import OutgoingRecord
from headway.errors import KafkaError
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN
from headway.kafka.missing_permissions import raise_if_refused
from headway.kafka.producer.client import ProducerClient

# The number of records to write. The round trip of the first record includes connecting the client, which takes far
# longer than a broker's answer. So a second record is needed.
_RECORDS = 2
_SETTINGS: Mapping[str, Any] = {"acks": 1, "linger.ms": 0, "message.timeout.ms": int(BROKER_ANSWERS_WITHIN * 1000)}

Observe = Callable[[int, float, float], None]
"""A callback (timestamp in ms, monotonic time of the send, monotonic time of the acknowledgement)."""


def ask_for_stamps(connection: Mapping[str, Any], topic: str, observe: Observe) -> None:
    """Write empty records to a topic whose brokers set the timestamps, and call `observe` for each timestamp.

    Raises `KafkaError` if the records cannot be written, and `AuthorizationError` if the permission is missing.
    """
    client = ProducerClient({**connection, **_SETTINGS})
    try:
        for _ in range(_RECORDS):
            _ask(client, connection, topic, observe)
    finally:
        client.close(0)


def _ask(client: ProducerClient, connection: Mapping[str, Any], topic: str, observe: Observe) -> None:
    failures: list[ck.KafkaError] = []
    left = 1

    def stamped(error: ck.KafkaError | None, message: ck.Message) -> None:
        nonlocal left
        left = 0
        if error is None:
            observe(message.timestamp()[1], sent, time.monotonic())
        else:
            failures.append(error)

    sent = time.monotonic()
    client.produce(OutgoingRecord(topic, None, None), stamped)
    client.flush(2 * BROKER_ANSWERS_WITHIN)
    if left or failures:
        reason = failures[0].str().rstrip(".") if failures else "no answer came"
        failed = KafkaError(
            f"The brokers' time, on which delays are based, is not known, because no record can be written to {topic} "
            f"({reason}). Check that the brokers are up, and try again."
        )
        if failures:
            failed.__cause__ = ck.KafkaException(failures[0])
        raise_if_refused(failed, "Write", connection, topic=topic)
        raise failed
