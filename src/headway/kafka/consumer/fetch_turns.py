"""Fetches fairly: topics and partitions of a level take turns, so that a flooded partition does not delay the others.

librdkafka has one queue for all partitions of a consumer, in which the records of a flooded partition precede those of
all others. So Headway empties that queue into a buffer, and takes records from the topics and partitions in the buffer
by turns. If a partition floods the buffer, it is diverted: librdkafka collects its further records in a second queue,
which is limited in size like the first. When the buffer has space again, the second queue is appended to the first.
"""

from collections.abc import Iterable, Sequence

from headway.core.levels.fetch_buffer import FetchBuffer
from headway.core.record_size import size_of
from headway.kafka.binding import capi
from headway.kafka.consumer.group_client import GroupClient
from headway.records.record_types import ConsumerRecord, Message, TopicPartition, headers_of

_LEAST = 1024 * 1024  # even if the caller takes records slowly, the buffer may hold this many bytes
# At the caller's pace, the buffered records should last for this many times the longest wait for a fetch. The buffer is
# refilled when it is half empty.
_WAITS = 4
_PACE_OVER = 0.02  # seconds over which the caller's pace is measured
_SOON = 0.03  # seconds that a record may spend in librdkafka's queue


class FetchTurns:
    """The buffered records of one level, and the partitions that are diverted to a second queue. Not thread-safe."""

    def __init__(self, client: GroupClient) -> None:
        self._client = client
        least_time = _WAITS * client.fetch_wait
        self._buffer: FetchBuffer[TopicPartition, ConsumerRecord] = FetchBuffer(_LEAST, client.buffer_size, least_time)
        self._side: capi.SideQueue | None = None
        # Partitions whose queues were forwarded before. If such a partition is assigned again, librdkafka does not
        # forward its queue, so Headway must forward it.
        self._touched: set[capi.Partition] = set()
        # The partitions among these that were assigned again, and whose queues must still be forwarded.
        self._starting: set[TopicPartition] = set()

        self._pace = 0.0  # the caller's pace, in records per second
        self._given = 0
        self._given_since = 0.0

    def __len__(self) -> int:
        return len(self._buffer)

    @property
    def keeps_apart(self) -> bool:
        """True while any partition is diverted to the second queue."""
        return bool(self._buffer.held)

    @property
    def has_starting(self) -> bool:
        """True while any partition that was assigned again still needs its queue forwarded."""
        return bool(self._starting)

    @property
    def is_overfull(self) -> bool:
        """True if the buffer is so full that each of its many partitions should be fetched only in small amounts."""
        return self._buffer.is_overfull

    @property
    def is_full(self) -> bool:
        """True if the buffered records exceed the limit of the buffer."""
        return self._buffer.is_full

    def put(self, topic: str, partition: TopicPartition, records: list[ConsumerRecord], size: int) -> None:
        """Add the next records of a partition to the buffer. `size` is their total size in bytes."""
        self._buffer.put(topic, partition, records, size)

    def take(self, count: int) -> list[ConsumerRecord]:
        """Return at most `count` records from the buffer, taking turns between topics and partitions."""
        return self._buffer.take(count)

    def take_quiet(self, count: int) -> list[ConsumerRecord]:
        """Return at most `count` records of quiet partitions.

        These are the partitions that had no records in the buffer before, and have few now (see `FetchBuffer`).
        """
        return self._buffer.take_quiet(count)

    def has(self, partition: TopicPartition) -> bool:
        """Return whether the buffer holds records of a partition."""
        return self._buffer.first(partition) is not None

    def first_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the first buffered record of each partition that has one."""
        firsts = ((partition, self._buffer.first(partition)) for partition in partitions)
        return {partition: record.offset for partition, record in firsts if record is not None}

    def give(self, count: int, now: float) -> None:
        """Note that `count` records were returned to the caller, whether from the buffer or directly."""
        self._given += count
        if now - self._given_since >= _PACE_OVER:
            self._pace = self._given / (now - self._given_since)
            self._buffer.keep_pace(self._pace)
            self._given, self._given_since = 0, now

    def rest(self, now: float) -> None:
        """Note that no records are left.

        The time until the next record then does not count towards the caller's pace.
        """
        self._given, self._given_since = 0, now

    def is_long(self) -> bool:
        """Return whether a new record would wait too long in librdkafka's queue at the caller's current pace."""
        return capi.queue_length(self._client.consumer) > self._pace * _SOON

    def pour(self) -> bool:
        """If the buffer has space, move the records of the second queue to the common queue.

        Returns whether the records were moved. If so, partitions without buffered records are no longer diverted.
        """
        if not (self._side and self._buffer.wants_more):
            return False
        self._side.pour(self._client.addresses.names(self._buffer.release()))
        return True

    def keep_apart(self) -> None:
        """Divert the partitions that flood the buffer to the second queue."""
        for partition in self._buffer.hold():
            self._collect(partition)

    def divert(self, partition: TopicPartition) -> None:
        """Divert a partition to the second queue, before a seek gives its surplus records back.

        If the partition were diverted after the seek, librdkafka would at once fetch a megabyte for the common queue,
        and then put it into the second queue, however full that is. With hundreds of partitions, this would take
        hundreds of megabytes.
        """
        if self._buffer.hold_one(partition):
            self._collect(partition)

    def _collect(self, partition: TopicPartition) -> None:
        self._side = self._side or capi.SideQueue(self._client.consumer)
        name = self._client.addresses.name(partition)
        self._touched.add(name)
        self._side.collect(name)

    def close(self) -> None:
        """Release the second queue. This must happen before the consumer is closed."""
        if self._side:
            self._side.close()
            self._side = None

    def drop(self, partition: TopicPartition) -> None:
        """Drop the buffered records of a partition after a seek, and let its further records go to the common queue."""
        if self._side and partition in self._buffer.held:
            # librdkafka itself drops the records that were collected before the seek. The records that were collected
            # after the seek must precede later records of the partition in the common queue.
            self._side.pour([self._client.addresses.name(partition)])
        self._buffer.drop(partition)

    def forget(self, partition: TopicPartition) -> None:
        """Drop the buffered records of a partition that is taken from this member."""
        self._starting.discard(partition)
        self._buffer.forget(partition)

    def set_aside(self, partitions: Iterable[TopicPartition]) -> bool:
        """Hold back the buffered records of these partitions until `restore` is called.

        Returns whether the records that are held back take too much memory.
        """
        for partition in partitions:
            self._buffer.set_aside(partition)
        return self._buffer.is_full_aside

    def restore(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop holding back the buffered records of these partitions."""
        for partition in partitions:
            self._buffer.restore(partition)

    def started(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that these partitions were assigned to librdkafka again."""
        self._starting.update(each for each in partitions if self._client.addresses.name(each) in self._touched)

    def starting(self) -> list[TopicPartition]:
        """Return the partitions whose queues must be forwarded again.

        The caller seeks each of them to its current position, and then calls `route`. librdkafka refuses the seek until
        it has started the partition. If the queue were forwarded earlier, librdkafka would undo the forwarding when it
        ends the previous use of the partition.
        """
        return list(self._starting)

    def route(self, partition: TopicPartition) -> None:
        """Forward a partition's queue: to the second queue if the partition is diverted, otherwise to the common queue.

        Call this after librdkafka has started the partition again.
        """
        self._starting.discard(partition)
        if partition in self._buffer.held:
            self._collect(partition)
        else:
            capi.use_common_queue(self._client.consumer, self._client.addresses.name(partition))


class TurnsOfLevels:
    """The buffers of all levels that one client reads, so that a flood on one level does not use the space of another.

    All levels share librdkafka's common queue, which is emptied into their buffers. Each level has a second queue of
    its own for its diverted partitions.
    """

    def __init__(self, client: GroupClient) -> None:
        self._turns = {level: FetchTurns(client) for level in client.levels}
        self._all = list(self._turns.values())

    def __getitem__(self, level: int) -> FetchTurns:
        return self._turns[level]

    @property
    def has_starting(self) -> bool:
        """True while any partition that was assigned again still needs its queue forwarded."""
        return any(turns.has_starting for turns in self._all)

    @property
    def is_full(self) -> bool:
        """True if the buffered records of any level exceed the limit of their buffer."""
        return any(turns.is_full for turns in self._all)

    def keep_apart(self) -> None:
        """For each level, divert the partitions that flood the level's buffer."""
        for turns in self._all:
            turns.keep_apart()

    def has(self, partition: TopicPartition) -> bool:
        """Return whether the buffer holds records of a partition."""
        return self._turns[partition.level].has(partition)

    def first_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the first buffered record of each partition that has one."""
        found: dict[TopicPartition, int] = {}
        for turns, of_level in self._by_level(partitions):
            found |= turns.first_offsets(of_level)
        return found

    def drop(self, partition: TopicPartition) -> None:
        """Drop the buffered records of a partition after a seek, and let its further records go to the common queue."""
        self._turns[partition.level].drop(partition)

    def forget(self, partition: TopicPartition) -> None:
        """Drop the buffered records of a partition that is taken from this member."""
        self._turns[partition.level].forget(partition)

    def set_aside(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Hold back the buffered records of these partitions until `restore` is called.

        Returns those partitions on whose levels too many records are held back.
        """
        parts = self._by_level(partitions)
        return [each for turns, of_level in parts if turns.set_aside(of_level) for each in of_level]

    def restore(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop holding back the buffered records of these partitions."""
        for turns, of_level in self._by_level(partitions):
            turns.restore(of_level)

    def started(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that these partitions were assigned to librdkafka again."""
        for turns, of_level in self._by_level(partitions):
            turns.started(of_level)

    def starting(self) -> list[TopicPartition]:
        """Return the partitions of all levels whose queues must be forwarded again, as `FetchTurns.starting` does."""
        return [partition for turns in self._all for partition in turns.starting()]

    def route(self, partition: TopicPartition) -> None:
        """Forward a partition's queue: to the second queue if the partition is diverted, otherwise to the common queue.

        Call this after librdkafka has started the partition again.
        """
        self._turns[partition.level].route(partition)

    def close(self) -> None:
        """Release the second queues. This must happen before the consumer is closed."""
        for turns in self._all:
            turns.close()

    def _by_level(self, partitions: Iterable[TopicPartition]) -> list[tuple[FetchTurns, list[TopicPartition]]]:
        by_level: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            by_level.setdefault(partition.level, []).append(partition)
        return [(self._turns[level], of_level) for level, of_level in by_level.items()]


def size_of_fetched(messages: Sequence[Message]) -> int:
    """Estimate the total size of messages of one partition from a sample of at most a hundred of them."""
    some = messages[:: 1 + len(messages) // 100]
    return sum([size_of(each.value(), each.key(), headers_of(each)) for each in some]) * len(messages) // len(some)
