"""One level's records: a thin driver of confluent_kafka's consumer, which turns error messages into `FetchError`s."""

import contextlib
import itertools
import logging
from collections.abc import Collection

import confluent_kafka as ck

from headway.config import Config
from headway.core.rights import Right
from headway.errors import AuthorizationError, FetchError, KafkaError
from headway.kafka.binding.retrying import retrying
from headway.kafka.consumer.group_member import SERVE_EVERY, GroupMember
from headway.kafka.serialization import Read
from headway.records import ConsumerRecord, DeserializedRecord, RecordSource, TopicPartition

log = logging.getLogger(__name__)

# A level asked for no records this long is paused, so that its callbacks can be served without its records. Waking it
# costs a refetch, of about 10 ms if the broker is near.
_PARK_AFTER = 0.5
_MOST_AT_ONCE = 1_000_000  # records that the binding returns
_SEEK_WITHIN = 5.0
_LOOK_WITHIN = 1.0

_GROUP_REFUSED = "Group authorization failed"

# A new partition may still be stopping its last work, or a rebalance pauses it amid the seek.
_ANOTHER_CHANGE_FIRST = (ck.KafkaError._STATE, ck.KafkaError._OUTDATED, ck.KafkaError._PREV_IN_PROGRESS)

_message_error = ck.Message.error
_message_value = ck.Message.value


class LevelConsumer(GroupMember):
    """The consumer of one level's records; not thread-safe, like the client that it drives."""

    def __init__(self, level: int, config: Config, readers: tuple[Read, Read]) -> None:
        self._readers = readers
        self._record = ConsumerRecord if readers[1] is _message_value else DeserializedRecord
        self._source = RecordSource(level, "", *readers)
        self._asked_at = 0.0
        self._served_at = 0.0
        super().__init__(level, config)

    def _read_suffix(self, suffix: str) -> None:
        self._source = RecordSource(self.level, suffix, *self._readers)

    # Records

    def fetch(self, count: int, now: float) -> list[ConsumerRecord]:
        """Return the records that have arrived, at most `count`; never waits.

        Callbacks run in here, and errors go to `errors`. If it returns fewer, all that has arrived is fetched, or the
        wake-up is set.
        """
        if not self._subscription.topics:
            return []
        if found := self._starts.take():
            self._note_starts(found)
        if self._can_begin:
            self._begin()
        if self._watch.is_on and self._has_fallen_behind(now):
            log.warning("Level %d has missed what its group was told, and joins it anew.", self.level)
            self.rejoin()
        if self._access.is_on:
            self._look_at_access(now)
        if count == 0:
            return self._fetch_nothing(now)
        if self._parked:
            self._resume_parked()
        self._asked_at = now
        return self._consume(min(count, _MOST_AT_ONCE))

    def _has_fallen_behind(self, now: float) -> bool:
        ours = [self._name(partition) for partition in self.assigned]
        return self._watch.finds_behind(self._consumer.memberid(), ours, now)

    def _look_at_access(self, now: float) -> None:
        self._say_refused(self._access.look(now))
        if self._access.is_on:
            return
        # librdkafka itself would ask again some seconds later, and minutes later for topics that it could not see.
        if not self.assigned and self._listener and self._subscription.topics:
            with contextlib.suppress(ck.KafkaException):
                self._consumer.list_topics(timeout=_LOOK_WITHIN)  # only a list of all topics makes it subscribe anew
        elif not self._parked:
            self._fetch_again(self._begun - self.paused)

    def _fetch_nothing(self, now: float) -> list[ConsumerRecord]:
        """Serve rebalances while no records are wanted: a group waits for a member that does not answer."""
        if not self.assigned:  # only an assignment can come, and the rest of the group waits for its answer
            return self._consume(1)
        if now - self._asked_at < _PARK_AFTER or now - self._served_at < SERVE_EVERY:
            return []
        self._served_at = now
        if not self._parked:
            self._parked = True
            self._consumer.pause(self._to_kafka(self._begun))
        return self._consume(1)  # a record that was on its way when the level was paused may still come

    def _resume_parked(self) -> None:
        self._parked = False
        self._fetch_again(self._begun - self.paused)

    def _fetch_again(self, partitions: Collection[TopicPartition]) -> None:
        """Resume partitions, and seek to the offset at which they are anyway.

        librdkafka's thread for a broker that has nothing to fetch sleeps for up to a second, and only a seek wakes it.
        """
        self._consumer.resume(self._to_kafka(partitions))
        for partition, offset in self._read_to(partitions).items():
            self._start[partition] = offset  # librdkafka forgets its own position in a seek
            with contextlib.suppress(ck.KafkaException):  # the partition is about to be taken away
                self._consumer.seek(self._starting_at(partition, offset))

    def _consume(self, count: int, timeout: float = 0) -> list[ConsumerRecord]:
        try:
            messages = self._consumer.consume(count, timeout)
        except ck.KafkaException as failure:
            self.errors.append(FetchError(self.level, str(failure)))
            return []
        if error := self._connection.refusal(self._consumer):
            self.errors.append(error)
            self._set_wake()
        there_may_be_more = len(messages) == count
        if any(map(_message_error, messages)):
            messages = self._without_errors(messages)
        records = list(map(self._record, messages, itertools.repeat(self._source), map(_message_value, messages)))
        if self._rebalanced:
            records = self._after_rebalance(records)
        if there_may_be_more and (len(records) < count or count == _MOST_AT_ONCE) and self._wake:
            self._wake.set()  # librdkafka does not report the records that are still there
        return records

    def _without_errors(self, messages: list[ck.Message]) -> list[ck.Message]:
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == ck.KafkaError._PARTITION_EOF:
                self.ends[self._ours(_place(message))] = _place(message).offset
            elif error.code() == ck.KafkaError._FATAL:  # reported once, and nothing is fetched any more
                self.errors.append(self._cannot_go_on(error))
            elif not self._is_refused(message.topic(), error):
                self.errors.append(FetchError(self.level, error.str()))
        return [message for message in messages if message.error() is None]

    def _cannot_go_on(self, error: ck.KafkaError) -> KafkaError:
        ended = f"Level {self.level} cannot go on"
        if _GROUP_REFUSED in error.str():  # librdkafka takes that for fatal in a group of KIP-848
            right = Right("Read", "Group", self._group)
            return AuthorizationError(f"{ended}: {right.missing(self._config)} Then make a new consumer.")
        return KafkaError(
            f"{ended}: {error.str()}. Make a new consumer; if another one has the same group.instance.id, give each "
            "its own."
        )

    def _after_rebalance(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Drop records of partitions that were taken away in the same call."""
        self._rebalanced = self._rejoining
        if self._parked:  # until it is served again: a partition never fetched from is slow to be resumed
            self._resume_parked()
        return [record for record in records if record.topic_partition in self.assigned]

    # Places in the log

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch nothing from these partitions until they are resumed."""
        self.paused.update(partitions)
        self._consumer.pause(self._to_kafka(self._begun.intersection(partitions)))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch from these partitions again."""
        self.paused.difference_update(partitions)
        if not self._parked:
            self._fetch_again(self._begun.intersection(partitions))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Fetch from this offset on; logical offsets (beginning, end) have librdkafka's numbers."""
        self.ends.pop(partition, None)
        before = self._start.get(partition)
        self._start[partition] = offset
        if partition not in self._begun:
            self._starts.forget([self._name(partition)])
            self._can_begin = True
            self._set_wake()
            return
        place = self._starting_at(partition, offset)
        try:
            self._call(retrying, lambda _: self._consumer.seek(place), _SEEK_WITHIN, _ANOTHER_CHANGE_FIRST)
        except KafkaError:
            if before is not None:
                self._start[partition] = before
            raise

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset to fetch of each assigned partition whose start is known."""
        positions = self._read_to(self.assigned) | self._unwanted
        return {partition: offset for partition, offset in positions.items() if offset >= 0}


def _place(message: ck.Message) -> ck.TopicPartition:
    return ck.TopicPartition(message.topic(), message.partition(), message.offset())  # type: ignore[arg-type]  # a fetched message has them
