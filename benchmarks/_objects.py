"""confluent-kafka with an object for each record that keeps where it is: the least that a future can be."""

import time
from collections import deque
from collections.abc import Sequence

import confluent_kafka as ck


class Place:
    """Where a record is."""

    __slots__ = ("offset", "partition", "timestamp")

    def __call__(self, error: ck.KafkaError | None, message: ck.Message) -> None:
        """Take the report."""
        assert error is None
        self.partition, self.offset, self.timestamp = message.partition(), message.offset(), message.timestamp()[1]


def produce(producer: ck.Producer, topics: Sequence[str], value: bytes, count: int, kept: int) -> float:
    """Send to each topic in turn, and keep the last so many objects; records per second."""
    places: deque[Place] = deque(maxlen=kept)
    started = time.perf_counter()
    for i in range(count):
        place = Place()
        places.append(place)
        producer.produce(topics[i % len(topics)], value, str(i), on_delivery=place)
        if i % 100 == 0:
            producer.poll(0)
    producer.flush()
    rate = count / (time.perf_counter() - started)
    assert all(place.offset is not None and place.offset >= 0 for place in places)
    return rate
