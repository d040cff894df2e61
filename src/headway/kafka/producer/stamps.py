"""The brokers' time: empty records that brokers stamp, since Kafka answers no question about its clock."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka as ck

from headway.core.outgoing_record import ANY_PARTITION, NOW
from headway.errors import KafkaError
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN
from headway.kafka.missing_rights import raise_if_refused
from headway.kafka.producer.client import ProducerClient

# The first record connects the client, which takes far longer than a broker takes to answer.
_RECORDS = 2
_SETTINGS: Mapping[str, Any] = {"acks": 1, "linger.ms": 0, "message.timeout.ms": int(BROKER_ANSWERS_WITHIN * 1000)}

Observe = Callable[[int, float, float], None]
"""(timestamp in ms, monotonic time of the sending, that of the acknowledgement)"""


def ask_for_stamps(connection: Mapping[str, Any], topic: str, observe: Observe) -> None:
    """Write records without header, key and value to a topic that brokers stamp, and report each stamp.

    Raises `KafkaError` if they cannot be written, as `AuthorizationError` for want of the right to do so.
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
    client.produce(topic, None, None, ANY_PARTITION, stamped, NOW, None)
    client.flush(2 * BROKER_ANSWERS_WITHIN)
    if left or failures:
        reason = failures[0].str().rstrip(".") if failures else "no answer came"
        failed = KafkaError(
            f"The brokers' time is not known, by which delays count: nothing can be written to {topic} ({reason}). "
            "Check that brokers are up, and try again."
        )
        if failures:
            failed.__cause__ = ck.KafkaException(failures[0])
        raise_if_refused(failed, "Write", connection, topic=topic)
        raise failed
