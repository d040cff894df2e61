"""The base of the priority consumer: its levels, what it has not returned yet, and places in the log.

Records in the buffers are not returned yet: positions and commits stop before them.
"""

import itertools
from collections import deque
from collections.abc import Callable, Collection, Mapping

from headway.core.levels.level_buffer import LevelBuffer
from headway.declarations import check_place, checked_timeout
from headway.errors import ClosedError
from headway.kafka.binding.capi import is_of_a_member
from headway.kafka.binding.forks import made_before_fork, tell_of_forks
from headway.kafka.consumer.level_consumers import LevelConsumers, MemberOffsets, Partitions, members_of
from headway.kafka.consumer.member_names import as_member
from headway.kafka.consumer.standing import not_a_member
from headway.kafka.serialization import key_reader, value_reader
from headway.records.record_types import ConsumerRecord, TopicPartition
from headway.runtime.wakeup import Wakeup
from headway.settings.config import ConsumerSettings

REQUEST_TIMEOUT = 30.0
"""The seconds that a call waits for Kafka by default."""


class BaseConsumer:
    """The consumers of all levels, with the records that were fetched and not returned yet."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self.wake = Wakeup()
        # While a callback may run, a record that was fetched and not handed out is in these, and nowhere else.
        self._buffers: list[LevelBuffer[ConsumerRecord]] = [LevelBuffer() for _ in range(settings.levels)]
        self._batch: deque[ConsumerRecord] = deque()  # an iteration's next records; changed, never replaced
        self._closed = self._is_forked = False
        tell_of_forks(self)
        readers = key_reader(settings.key_deserializer), value_reader(settings.value_deserializer)
        kafka = as_member(settings.kafka) | {"enable.auto.commit": False, "enable.auto.offset.store": False}
        per_level = settings.group_per_level
        self._levels = LevelConsumers(members_of(settings.group, settings.levels, kafka, readers, per_level=per_level))
        for member in self._levels:
            member.client.wake_with(self.wake)

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions of all levels that this member reads."""
        return self._levels.assignment()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with other credentials from now on, at once if a broker has refused the earlier ones.

        Open connections go on. May be called from any thread. Raises `ConfigError` for credentials that librdkafka does
        not take.
        """
        self._check_open()
        for member in self._levels:
            member.client.set_sasl_credentials(username, password)

    # Places in the log

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record of a partition that a poll returns."""
        self._check_open()
        self._levels.of(partition)
        known = self._returned_offsets().get(partition)
        return self._start(partition) if known is None else known

    def _start(self, partition: TopicPartition) -> int:
        committed = self.committed([partition])[partition]
        if committed is not None:
            return committed
        reset = str(self._settings.kafka.get("auto.offset.reset", "latest"))
        ends = self.beginning_offsets if reset in ("earliest", "smallest", "beginning") else self.end_offsets
        return ends([partition])[partition]

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Return records of an assigned partition from this offset on."""
        check_place("offset", offset)
        self._check_open()
        self._levels.of(partition).seek(partition, offset)
        self._discard(partition.level, lambda record: record.topic_partition == partition)

    def seek_to_beginning(self, partitions: Partitions | None = None) -> None:
        """Start again at the beginning of these partitions, or of all."""
        self._check_open()
        for partition in self.assignment() if partitions is None else partitions:
            self.seek(partition, self.beginning_offsets([partition])[partition])

    def seek_to_end(self, partitions: Partitions | None = None) -> None:
        """Skip the records that these partitions, or all, hold now."""
        self._check_open()
        for partition in self.assignment() if partitions is None else partitions:
            self.seek(partition, self.end_offsets([partition])[partition])

    def seek_to_time(self, timestamp: int, partitions: Partitions | None = None) -> None:
        """Go on with the first record of this time or later (milliseconds since the epoch), or else at the end."""
        check_place("timestamp", timestamp)
        chosen = list(self.assignment() if partitions is None else partitions)
        found = self.offsets_for_times(dict.fromkeys(chosen, timestamp))
        ends = self.end_offsets([partition for partition, offset in found.items() if offset is None])
        for partition, offset in found.items():
            self.seek(partition, ends[partition] if offset is None else offset)

    def pause(
        self, partitions: Partitions | None = None, *, topic: str | None = None, level: int | None = None
    ) -> None:
        """Return nothing from these partitions, from a topic, from a level, or from all, until they are resumed.

        It is about partitions that this member has now: one that comes again after a rebalance is not paused.
        """
        self._check_open()
        unreturned = self._first_unreturned()
        for member, chosen in self._levels.chosen(partitions, level, topic).items():
            member.pause(chosen)
            for partition in chosen & unreturned.keys():
                self.seek(partition, unreturned[partition])

    def resume(
        self, partitions: Partitions | None = None, *, topic: str | None = None, level: int | None = None
    ) -> None:
        """Return records from these partitions, from a topic, from a level, or from all again."""
        self._check_open()
        for member, chosen in self._levels.chosen(partitions, level, topic).items():
            member.resume(chosen)

    def paused(self) -> set[TopicPartition]:
        """Return the assigned partitions that are paused."""
        return self._levels.paused()

    # What Kafka has

    def committed(self, partitions: Partitions, timeout: float = REQUEST_TIMEOUT) -> dict[TopicPartition, int | None]:
        """Return the committed offset of each partition, None if it has none."""
        timeout = checked_timeout(timeout)
        self._check_open()
        return self._levels.committed(partitions, timeout)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float = REQUEST_TIMEOUT
    ) -> dict[TopicPartition, int | None]:
        """Return each partition's first offset at or after a time in milliseconds since the epoch, or None."""
        timeout = checked_timeout(timeout)
        for timestamp in times.values():
            check_place("timestamp", timestamp)
        self._check_open()
        return self._levels.offsets_for_times(times, timeout)

    def beginning_offsets(self, partitions: Partitions, timeout: float = REQUEST_TIMEOUT) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        timeout = checked_timeout(timeout)
        self._check_open()
        return {each: first for each, (first, _) in self._levels.bounds(partitions, timeout).items()}

    def end_offsets(self, partitions: Partitions, timeout: float = REQUEST_TIMEOUT) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition."""
        timeout = checked_timeout(timeout)
        self._check_open()
        return {each: end for each, (_, end) in self._levels.bounds(partitions, timeout).items()}

    def partitions_for(self, topic: str, timeout: float = REQUEST_TIMEOUT) -> list[TopicPartition]:
        """Return the partitions of a topic, of all levels that read it; none before `subscribe`."""
        timeout = checked_timeout(timeout)
        self._check_open()
        return self._levels.partitions_for(topic, timeout)

    def list_topics(self, timeout: float = REQUEST_TIMEOUT) -> dict[str, int]:
        """Return Kafka's topics and the number of partitions of each."""
        timeout = checked_timeout(timeout)
        self._check_open()
        return self._levels[0].client.topics(None, timeout)

    def transaction_offsets(self) -> list[MemberOffsets]:
        """Return each member's returned offsets, as a transactional producer commits them.

        Raises `KafkaError` for a member between two memberships: Kafka would take its offsets unfenced.
        """
        self._check_open()
        parts = self._levels.for_transaction({each: (offset, "") for each, offset in self._returned_offsets().items()})
        for part in parts:
            if not is_of_a_member(part.group_metadata):
                raise not_a_member(f"Level {min(part.levels)}")
        return parts

    # What was not returned

    def _returned_offsets(self, levels: Collection[int] | None = None) -> dict[TopicPartition, int]:
        unreturned = self._first_unreturned()
        positions = self._levels.positions(levels)
        return {partition: unreturned.get(partition, offset) for partition, offset in positions.items()}

    def _first_unreturned(self) -> dict[TopicPartition, int]:
        """Return the offset of the first record of each partition that was fetched and not handed out."""
        first: dict[TopicPartition, int] = {}
        for record in itertools.chain(self._batch, *self._buffers):
            first.setdefault(record.topic_partition, record.offset)
        return first

    def _discard(self, level: int, unwanted: Callable[[ConsumerRecord], bool]) -> None:
        self._buffers[level].discard(unwanted)
        kept = [record for record in self._batch if record.level != level or not unwanted(record)]
        self._batch.clear()
        self._batch.extend(kept)

    # Life

    def forked(self) -> None:
        """Do nothing any more: this object is the copy in a forked process, without threads."""
        self._closed = self._is_forked = True

    def _check_open(self) -> None:
        if self._is_forked:
            raise made_before_fork("consumer")
        if self._closed:
            raise ClosedError("The consumer is closed. Make a new one to go on.")
