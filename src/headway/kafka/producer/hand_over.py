"""An outgoing record given to a producer's client, whose report says what became of it."""

from collections.abc import Callable
from typing import Any

from headway.core.outgoing_record import OutgoingRecord
from headway.kafka.producer.client import ProducerClient

Report = Callable[[Any, Any], None]
"""The callback for a record's report: (error or None, message)."""

_ROOM_WITHIN = 0.1  # seconds; reports make room


def hand_over(client: ProducerClient, record: OutgoingRecord, report: Report) -> None:
    """Queue a record; raises as `ProducerClient.produce` does, `BufferError` if there is no room."""
    client.produce(record.topic, record.value, record.key, record.partition, report, record.timestamp, record.headers)


def send(client: ProducerClient, record: OutgoingRecord, report: Report) -> None:
    """Queue a record, and wait while there is no room."""
    while True:
        try:
            hand_over(client, record, report)
            return
        except BufferError:
            client.serve(_ROOM_WITHIN)
