"""Fair fetching: the topics and partitions of a level take turns, so that a flooded partition delays no other.

librdkafka has one queue for all partitions of a consumer, in which the records of a flooded partition come before all
others. So that queue is emptied into a buffer, from which topics and partitions take turns. Partitions that flood the
buffer are kept apart: librdkafka collects their records in a second queue, which is bounded like the first. When the
buffer has space again, the second queue is appended to the first.
"""

from collections.abc import Iterable, Sequence

from headway.core.levels.fetch_buffer import FetchBuffer
from headway.core.record_size import size_of
from headway.kafka.binding import capi
from headway.kafka.consumer.group_client import GroupClient
from headway.records.record_types import ConsumerRecord, Message, TopicPartition, headers_of

_LEAST = 1024 * 1024  # bytes that may wait, however slowly they are taken
_WAITS = 4  # the number of waits for a fetch that the buffer should cover, because it is refilled when it is half empty
_PACE_OVER = 0.02  # seconds over which the pace is measured
_SOON = 0.03  # seconds that a record may wait in librdkafka's queue


class FetchTurns:
    """The buffered records of one level, and the partitions that are kept apart. Not thread-safe."""

    def __init__(self, client: GroupClient) -> None:
        self._client = client
        least_time = _WAITS * client.fetch_wait
        self._buffer: FetchBuffer[TopicPartition, ConsumerRecord] = FetchBuffer(_LEAST, client.buffer_size, least_time)
        self._side: capi.SideQueue | None = None
        # Once a partition's queue was forwarded, librdkafka does not forward it when the partition is assigned again.
        self._touched: set[capi.Partition] = set()
        self._starting: set[TopicPartition] = set()  # touched partitions that were assigned again

        self._pace = 0.0  # records per second
        self._given = 0
        self._given_since = 0.0

    def __len__(self) -> int:
        return len(self._buffer)

    @property
    def keeps_apart(self) -> bool:
        """True while a partition is kept apart."""
        return bool(self._buffer.held)

    @property
    def has_starting(self) -> bool:
        """True while partitions that were assigned again still need their queues forwarded."""
        return bool(self._starting)

    @property
    def is_overfull(self) -> bool:
        """True if the buffer is so full that a partition with records in it should not add more."""
        return self._buffer.is_overfull

    @property
    def is_full(self) -> bool:
        """True if the buffer has more than it should hold."""
        return self._buffer.is_full

    def put(self, topic: str, partition: TopicPartition, records: list[ConsumerRecord], size: int) -> None:
        """Add the next records of a partition, which have `size` bytes."""
        self._buffer.put(topic, partition, records, size)

    def take(self, count: int) -> list[ConsumerRecord]:
        """Return the next records, for which topics and partitions take turns."""
        return self._buffer.take(count)

    def take_quiet(self, count: int) -> list[ConsumerRecord]:
        """Return the next records of partitions that had no records until now."""
        return self._buffer.take_quiet(count)

    def has(self, partition: TopicPartition) -> bool:
        """Return whether the buffer has records of a partition."""
        return self._buffer.first(partition) is not None

    def first_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of each partition's first buffered record, for the partitions that have one."""
        firsts = ((partition, self._buffer.first(partition)) for partition in partitions)
        return {partition: record.offset for partition, record in firsts if record is not None}

    def give(self, count: int, now: float) -> None:
        """Record that this many records were returned to the caller, from the buffer or directly."""
        self._given += count
        if now - self._given_since >= _PACE_OVER:
            self._pace = self._given / (now - self._given_since)
            self._buffer.keep_pace(self._pace)
            self._given, self._given_since = 0, now

    def rest(self, now: float) -> None:
        """Record that no records are left, so that the time until the next record does not count towards the pace."""
        self._given, self._given_since = 0, now

    def is_long(self) -> bool:
        """Return whether a record that arrived now would wait long in librdkafka's queue, at the current pace."""
        return capi.queue_length(self._client.consumer) > self._pace * _SOON

    def pour(self) -> bool:
        """If the buffer has space, move the records of partitions kept apart to the common queue.

        Returns whether they were moved. Partitions without buffered records are no longer kept apart.
        """
        if not (self._side and self._buffer.wants_more):
            return False
        self._side.pour(self._client.addresses.names(self._buffer.release()))
        return True

    def keep_apart(self) -> None:
        """Keep partitions apart that flood the buffer."""
        for partition in self._buffer.hold():
            self._collect(partition)

    def _collect(self, partition: TopicPartition) -> None:
        self._side = self._side or capi.SideQueue(self._client.consumer)
        name = self._client.addresses.name(partition)
        self._touched.add(name)
        self._side.collect(name)

    def close(self) -> None:
        """Release librdkafka's queues, before the consumer is closed."""
        if self._side:
            self._side.close()
            self._side = None

    def drop(self, partition: TopicPartition) -> None:
        """Drop the buffered records of a partition after a seek, and return it to the common queue."""
        if self._side and partition in self._buffer.held:
            # librdkafka drops the collected records from before the seek. Those from after it must come first.
            self._side.pour([self._client.addresses.name(partition)])
        self._buffer.drop(partition)

    def forget(self, partition: TopicPartition) -> None:
        """Drop the buffered records of a partition that leaves this member."""
        self._starting.discard(partition)
        self._buffer.forget(partition)

    def set_aside(self, partitions: Iterable[TopicPartition]) -> bool:
        """Hold back these partitions' records until they are restored. Returns whether they take too much memory."""
        for partition in partitions:
            self._buffer.set_aside(partition)
        return self._buffer.is_full_aside

    def restore(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop holding back the records of these partitions."""
        for partition in partitions:
            self._buffer.restore(partition)

    def started(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that these partitions were assigned to librdkafka again."""
        self._starting.update(each for each in partitions if self._client.addresses.name(each) in self._touched)

    def starting(self) -> list[TopicPartition]:
        """Return the partitions to seek to their own positions, and then to `route`.

        librdkafka refuses that seek until it has started the partition. A queue that is forwarded earlier does not stay
        so, because librdkafka undoes it when it ends its previous use of the partition.
        """
        return list(self._starting)

    def route(self, partition: TopicPartition) -> None:
        """Forward the queue of a partition that librdkafka has started again."""
        self._starting.discard(partition)
        if partition in self._buffer.held:
            self._collect(partition)
        else:
            capi.use_common_queue(self._client.consumer, self._client.addresses.name(partition))


class TurnsOfLevels:
    """The buffers of all levels that one client reads, so that a flood on one level takes no space of another.

    The levels share librdkafka's queue, which is emptied into their buffers. Each level has its own queue for the
    partitions that are kept apart.
    """

    def __init__(self, client: GroupClient) -> None:
        self._turns = {level: FetchTurns(client) for level in client.levels}
        self._all = list(self._turns.values())

    def __getitem__(self, level: int) -> FetchTurns:
        return self._turns[level]

    @property
    def has_starting(self) -> bool:
        """True while partitions that were assigned again still need their queues forwarded."""
        return any(turns.has_starting for turns in self._all)

    @property
    def is_full(self) -> bool:
        """True if the buffer of any level has more than it should."""
        return any(turns.is_full for turns in self._all)

    def keep_apart(self) -> None:
        """Keep partitions apart that flood their level's buffer."""
        for turns in self._all:
            turns.keep_apart()

    def has(self, partition: TopicPartition) -> bool:
        """Return whether the buffer has records of a partition."""
        return self._turns[partition.level].has(partition)

    def first_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of each partition's first buffered record, for the partitions that have one."""
        found: dict[TopicPartition, int] = {}
        for turns, of_level in self._by_level(partitions):
            found |= turns.first_offsets(of_level)
        return found

    def drop(self, partition: TopicPartition) -> None:
        """Drop the buffered records of a partition after a seek, and return it to the common queue."""
        self._turns[partition.level].drop(partition)

    def forget(self, partition: TopicPartition) -> None:
        """Drop the buffered records of a partition that leaves this member."""
        self._turns[partition.level].forget(partition)

    def set_aside(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Hold back the records of these partitions until they are restored. Returns the partitions with too many."""
        parts = self._by_level(partitions)
        return [each for turns, of_level in parts if turns.set_aside(of_level) for each in of_level]

    def restore(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop holding back the records of these partitions."""
        for turns, of_level in self._by_level(partitions):
            turns.restore(of_level)

    def started(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that these partitions were assigned to librdkafka again."""
        for turns, of_level in self._by_level(partitions):
            turns.started(of_level)

    def starting(self) -> list[TopicPartition]:
        """Return the partitions of all levels to seek to their own positions, and then to `route`."""
        return [partition for turns in self._all for partition in turns.starting()]

    def route(self, partition: TopicPartition) -> None:
        """Forward the queue of a partition that librdkafka has started again."""
        self._turns[partition.level].route(partition)

    def close(self) -> None:
        """Release librdkafka's queues, before the consumer is closed."""
        for turns in self._all:
            turns.close()

    def _by_level(self, partitions: Iterable[TopicPartition]) -> list[tuple[FetchTurns, list[TopicPartition]]]:
        by_level: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            by_level.setdefault(partition.level, []).append(partition)
        return [(self._turns[level], of_level) for level, of_level in by_level.items()]


def size_of_fetched(messages: Sequence[Message]) -> int:
    """Return the approximate size of messages of one partition, estimated from at most a hundred of them."""
    some = messages[:: 1 + len(messages) // 100]
    return sum([size_of(each.value(), each.key(), headers_of(each)) for each in some]) * len(messages) // len(some)
