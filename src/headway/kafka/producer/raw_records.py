"""Serialises waiting records, finds the partitions for their keys, and estimates the sizes of later records."""

from operator import index

from headway.core.record_size import bytes_of
from headway.errors import HeadwayError
from headway.kafka.producer.client import refusal
from headway.kafka.producer.partitioner import KeyPartitioner, PartitionFunction, partition_by
from headway.kafka.producer.sendable import (
    Failed,
    Sendable,
    no_such_partition,
    not_sent,
    not_serialised,
    size_of_rest,
    too_large,
)
from headway.kafka.serialization import FieldWriter

_FIRST_GUESS = 1024  # the size in bytes that is assumed for a record before any record was serialised


Serialised = tuple[Sendable, int | None, int]
"""A record, its partition (None if any partition is possible), and the size in bytes that is counted for it."""


class RawRecords:
    """Serialises records on the sender's thread, without holding the sender's lock.

    `guesses` holds the estimated size of the next record of each topic. Before a topic's first record, the estimate is
    `first_guess`. Any thread may read `guesses` and `first_guess`.

    Args:
        write_key: Calls the user's serialiser for keys. None if keys are bytes or strings already.
        write_value: Calls the user's serialiser for values. None if values are bytes or strings already.
        partitioner: Chooses the partitions for keys.
        place: The user's function that returns the partition for a key, or None.
        overhead: The bytes that are counted for a record in addition to its own size.
        least: The smallest size that is counted for a record, in bytes.
        largest: The maximum total size of a key and a value, in bytes.
    """

    def __init__(
        self,
        write_key: FieldWriter | None,
        write_value: FieldWriter | None,
        partitioner: KeyPartitioner,
        place: PartitionFunction | None,
        overhead: int,
        least: int,
        largest: int,
    ) -> None:
        self._write_key = write_key
        self._write_value = write_value
        self._partitioner = partitioner
        self._place = place
        self._overhead = overhead
        self._least = least
        self._largest = largest
        self._mean_sizes: dict[str, float] = {}
        self.guesses: dict[str, int] = {}
        self.first_guess = max(least, _FIRST_GUESS)

    def serialise(self, raw: list[Sendable]) -> tuple[list[Serialised], Failed]:
        """Serialise records and find their partitions.

        Returns the records that can be sent, and the other records with their errors.
        """
        ready, refused = list[Serialised](), Failed()
        for record in raw:
            try:
                self._serialise_one(record)
                ready.append((record, self._place_of(record), self._measure(record)))
            except HeadwayError as error:
                refused.append((record, error))
            except Exception as error:
                refused.append((record, refusal(record.queue.topic.kafka_topic, error)))
            except BaseException as error:  # a SystemExit in a serialiser must not stop this thread
                refused.append((record, not_serialised(record, error)))
        return ready, refused

    def _serialise_one(self, record: Sendable) -> None:
        if self._write_key is None and self._write_value is None:
            return
        topic, headers = record.queue.topic.kafka_topic, list(record.headers or ())
        if self._write_key is not None:
            record.key = self._write_key(record.key, topic, headers)
        if self._write_value is not None:
            record.value = self._write_value(record.value, topic, headers)
        record.headers = headers  # serialisers for a schema registry can append to the headers

    def _place_of(self, record: Sendable) -> int | None:
        topic, partition = record.queue.topic, record.partition
        if partition is not None and (number := index(partition)) >= 0:
            if number >= topic.partition_count:
                raise not_sent(record, no_such_partition(number, topic.partition_count))
            return number
        if record.key is None:
            return None
        if self._place is not None:
            return partition_by(self._place, topic.kafka_topic, record.key, topic.partition_count)
        return self._partitioner.partition_of(record.key, topic.partition_count)

    def _measure(self, record: Sendable) -> int:
        """Return the size to count for a record, and update the estimate for later records of its topic."""
        topic = record.queue.topic.kafka_topic
        if refused := too_large(record.value, record.key, topic, self._largest):
            raise refused
        size = self._overhead + bytes_of(record.value) + bytes_of(record.key)
        size += size_of_rest(record.headers, record.timestamp, topic)  # the serialisers may have added headers
        mean = self._mean_sizes.get(topic, size)
        self._mean_sizes[topic] = mean = mean + (size - mean) / 8
        least = self._least
        self.guesses[topic] = int(mean) if mean > least else least
        return size if size > least else least  # takes half the time of max()
