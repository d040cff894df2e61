"""An outgoing record given to a producer's client, whose report says what became of it."""

from headway.core.outgoing_record import OutgoingRecord
from headway.kafka.producer.client import OnReport, ProducerClient

_ROOM_WITHIN = 0.1  # seconds; reports make room


def hand_over(client: ProducerClient, record: OutgoingRecord, report: OnReport) -> None:
    """Queue a record; raises as `ProducerClient.produce` does, `BufferError` if there is no room."""
    client.produce(record.topic, record.value, record.key, record.partition, report, record.timestamp, record.headers)


def send(client: ProducerClient, record: OutgoingRecord, report: OnReport) -> None:
    """Queue a record, and wait while there is no room."""
    while True:
        try:
            hand_over(client, record, report)
            return
        except BufferError:
            client.reports.serve(_ROOM_WITHIN)
