"""Places in a partition's log from which a consumer is to go on."""

from typing import Literal, NamedTuple

from headway.kafka.consumer.level_consumer import LevelConsumer
from headway.records import TopicPartition


class Place(NamedTuple):
    """A place: an offset, the beginning, the end, or the first record since a time in milliseconds since the epoch."""

    what: Literal["offset", "beginning", "end", "time"]
    value: int = 0

    def __str__(self) -> str:
        return f"{self.what} {self.value}" if self.what in ("offset", "time") else f"its {self.what}"

    def offset(self, level: LevelConsumer, partition: TopicPartition, timeout: float) -> int:
        """Return its offset, the end for a time that no record has; raises `KafkaError` if Kafka does not tell."""
        first, end = level.bounds(partition, timeout)
        if self.what == "beginning":
            return first
        if self.what == "end":
            return end
        if self.what == "offset":
            return max(first, min(self.value, end))
        found = level.offsets_for_times({partition: self.value}, timeout)[partition]
        return end if found is None else found
