"""The records of one level, or of all levels that have one group.

A thin driver of confluent_kafka's consumer, which turns error messages into `FetchError`s. The levels of one group
share librdkafka's queue, which is emptied into a buffer of each level.
"""

import contextlib
import itertools
import logging
import time
from collections.abc import Collection, Sequence

import confluent_kafka as ck

from headway.core.levels.group_subscription import GroupSubscription
from headway.core.rights import Right
from headway.errors import AuthorizationError, FetchError, KafkaError
from headway.kafka.binding import capi
from headway.kafka.binding.retrying import retrying
from headway.kafka.binding.unpacking import is_not_unpacked
from headway.kafka.consumer.fetch_turns import FetchTurns, size_of_fetched
from headway.kafka.consumer.group_member import SERVE_EVERY, GroupMember
from headway.kafka.consumer.missing_topics import deleted_topic, missing_topic
from headway.kafka.serialization import Read
from headway.records.record_types import ConsumerRecord, DeserializedRecord, RecordSource, TopicPartition
from headway.settings.config import Config

log = logging.getLogger(__name__)

# A level asked for no records this long is paused, so that its callbacks can be served without its records. Waking it
# costs a refetch, of about 10 ms if the broker is near.
_PARK_AFTER = 0.5
_MOST_AT_ONCE = 1_000_000  # records that the binding returns
_LOOK_EVERY = 0.01  # while librdkafka has more than it is asked for
_OF_MANY = 64  # records of a partition, while hundreds of partitions are flooded at once
_SEEK_WITHIN = 5.0
_LOOK_WITHIN = 1.0

_GROUP_REFUSED = "Group authorization failed"

# A new partition may still be stopping its last work, or a rebalance pauses it amid the seek.
_ANOTHER_CHANGE_FIRST = (ck.KafkaError._STATE, ck.KafkaError._OUTDATED, ck.KafkaError._PREV_IN_PROGRESS)

_message_error = ck.Message.error
_message_value = ck.Message.value


class LevelConsumer(GroupMember):
    """The consumer of the records of one or more levels; not thread-safe, like the client that it drives.

    `base_group` is the group's name before that of a level; without it no other group's commits are looked at.
    """

    def __init__(
        self, levels: Sequence[int], config: Config, readers: tuple[Read, Read], base_group: str | None = None
    ) -> None:
        self._readers = readers
        self._record = ConsumerRecord if readers[1] is _message_value else DeserializedRecord
        self._sources: dict[int, RecordSource] = {}
        self._asked_at = 0.0
        self._served_at = 0.0
        self._has_more = False  # whether librdkafka may have more than the last call returned
        self._left_since: float | None = None  # since when librdkafka has had more than it was asked for
        super().__init__(levels, config, base_group)

    def _read(self, subscription: GroupSubscription) -> None:
        self._sources = {
            level: RecordSource(level, subscription.kafka_topic("", level), *self._readers) for level in self.levels
        }

    # Records

    def fetch(self, count: int, now: float, of_quiet: int = 0, level: int | None = None) -> list[ConsumerRecord]:
        """Return the records of a level that have arrived, at most `count`, by turns of partitions and topics.

        It never waits. Callbacks run in here, and errors go to `errors`. If it returns fewer, all that has arrived is
        fetched, or the wake-up is set. With a `count` of 0 it returns up to `of_quiet` records of partitions that had
        none until now. Without a `level` it is about the lowest one.
        """
        if not self._subscription.topics:
            return []
        if found := self._starts.take():
            self._note_starts(found)
        if self._ids.is_due(now):
            self._look_at_topics(now)
        if self._lost_places:
            self._find_places(now)
        if self._can_begin and self._ids.is_settled(now):
            self._begin()
        if self._watch.is_on and self._has_fallen_behind(now):
            log.warning("%s has missed what its group was told, and joins it anew.", self._who)
            self.rejoin()
        if self._access.is_on:
            self._look_at_access(now)
        if self._turns.has_starting:
            self._turns.route_started(self._seek_to_where_it_is)
        if count == 0 and of_quiet == 0:
            self._serve_callbacks(now)
            return []
        if self._parked:
            self._resume_parked()
        if now >= self._transactions.look_at:
            positions = self._read_to(self._begun - self.paused)
            self._transactions.look(positions, self.known_end, now)
        self._asked_at = now
        fetch = self._fetch_in_turns if len(self.levels) == 1 else self._fetch_of_levels
        records = fetch(self.levels[0] if level is None else level, min(count, _MOST_AT_ONCE), now, of_quiet)
        for partition in [each for each in self._reached if not self._turns.has(each)]:
            self.ends[partition] = self._reached.pop(partition)
        return records

    def _fetch_of_levels(self, level: int, count: int, now: float, of_quiet: int) -> list[ConsumerRecord]:
        """Return records of one level in turns: what librdkafka has of all levels goes to their buffers first."""
        turns = self._turns[level]
        turns.pour()
        came = self._take_ahead()
        records = turns.take(count) if count else turns.take_quiet(of_quiet)
        self._turns.keep_apart()
        if not turns:
            turns.rest(now)
        turns.give(len(records), now)
        # Levels above have had their turn already, and librdkafka does not report the records that are still there.
        if self._has_more or any(each > level for each in came):
            self._set_wake()
        return records

    def _fetch_in_turns(self, level: int, count: int, now: float, of_quiet: int) -> list[ConsumerRecord]:
        """Return records in turns: of librdkafka's queue what is wanted, or all if some would wait long in it."""
        turns = self._turns[level]
        is_long = self._is_long(turns, now)
        if count and not turns and not turns.keeps_apart and not is_long:
            records = self._consume(count)
            if not self._has_more:
                self._left_since = None
                turns.rest(now)
            elif self._left_since is None:
                self._left_since = now
        else:
            if turns.pour() or is_long or turns.keeps_apart or len(turns) < count or not count:
                self._take_ahead()
                self._left_since = now
            records = turns.take(count) if count else turns.take_quiet(of_quiet)
            turns.keep_apart()
        turns.give(len(records), now)
        if self._has_more and (len(records) < count or count in (0, _MOST_AT_ONCE)):
            self._set_wake()  # librdkafka does not report the records that are still there
        return records

    def _is_long(self, turns: FetchTurns, now: float) -> bool:
        """Return whether there is so much in librdkafka's queue that a record at its end would wait long."""
        if self._left_since is None or now - self._left_since < _LOOK_EVERY:
            return False
        self._left_since = now
        return turns.is_long()

    def _take_ahead(self) -> set[int]:
        """Empty librdkafka's queue into the buffers; return the levels of which records came."""
        has_more, came = True, set[int]()
        while has_more:
            came |= self._put(self._consume_messages(capi.queue_length(self._consumer) + 1))
            has_more = self._has_more and not self._turns.is_full
        return came

    def _put(self, messages: list[ck.Message]) -> set[int]:
        given_back, came = set[TopicPartition](), set[int]()
        for _, of_number in itertools.groupby(messages, ck.Message.partition):
            for topic, group in itertools.groupby(of_number, ck.Message.topic):
                of_one = list(group)
                partition = self._ours(_place(of_one[0]))
                if partition in given_back or partition not in self.assigned:
                    continue
                turns = self._turns[partition.level]
                if turns.is_overfull and len(of_one) > _OF_MANY and self._give_back(partition, of_one[_OF_MANY]):
                    given_back.add(partition)
                    del of_one[_OF_MANY:]
                records = self._records_of(of_one, self._sources[partition.level])
                turns.put(str(topic), partition, records, size_of_fetched(of_one))
                came.add(partition.level)
        return came

    def _give_back(self, partition: TopicPartition, message: ck.Message) -> bool:
        """Have this message of a partition and those behind it come again later; return whether they will."""
        place = _place(message)
        try:
            self._consumer.seek(place)
        except ck.KafkaException:  # the partition is about to be taken away
            return False
        self._start[partition] = place.offset  # librdkafka forgets its own position in a seek
        self._reached.pop(partition, None)
        return True

    def _has_fallen_behind(self, now: float) -> bool:
        ours = [self._name(partition) for partition in self.assigned]
        return self._watch.finds_behind(self._consumer.memberid(), ours, now)

    def _look_at_topics(self, now: float) -> None:
        """Find out whether topics were deleted or created again; if one was created again, begin anew."""
        read = {self.kafka_topic(partition) for partition in self.assigned}
        changes = self._ids.look(read.union(self._ids.known & set(self._subscription.topics)), now, self._wake_fd)
        for topic in sorted(changes.deleted):
            self.errors.append(FetchError(self._level_of(topic), deleted_topic(topic)))
            self._set_wake()
        if changes.recreated:
            self._renew(changes.recreated)

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

    def _serve_callbacks(self, now: float) -> None:
        """Serve rebalances while no records are wanted: a group waits for a member that does not answer."""
        if self.assigned:  # otherwise only an assignment can come, and the rest of the group waits for its answer
            if now - self._asked_at < _PARK_AFTER or now - self._served_at < SERVE_EVERY:
                return
            self._served_at = now
            if not self._parked:
                self._parked = True
                self._consumer.pause(self._to_kafka(self._begun))
        self._put(self._consume_messages(1))  # a record that was on its way when the level was paused may still come

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

    def _seek_to_where_it_is(self, partition: TopicPartition) -> None:
        offset = self._read_to([partition])[partition]
        self._start[partition] = offset  # librdkafka forgets its own position in a seek
        self._consumer.seek(self._starting_at(partition, offset))

    def _consume(self, count: int, timeout: float = 0) -> list[ConsumerRecord]:
        messages = self._consume_messages(count, timeout)
        if len(self.levels) == 1:
            return self._records_of(messages, self._sources[self.levels[0]]) if messages else []
        sources = [self._sources[self._ours(_place(message)).level] for message in messages]
        return list(map(self._record, messages, sources, map(_message_value, messages)))

    def _records_of(self, messages: list[ck.Message], source: RecordSource) -> list[ConsumerRecord]:
        return list(map(self._record, messages, itertools.repeat(source), map(_message_value, messages)))

    def _consume_messages(self, count: int, timeout: float = 0) -> list[ck.Message]:
        self._has_more = False
        try:
            messages = self._consumer.consume(count, timeout)
        except ck.KafkaException as failure:
            self.errors.append(FetchError(self._level_of(None), str(failure)))
            return []
        if error := self._connection.refusal(self._consumer):
            self.errors.append(error)
            self._set_wake()
        self._has_more = len(messages) == count
        if any(map(_message_error, messages)):
            messages = self._without_errors(messages)
        if self._rebalanced:
            messages = self._after_rebalance(messages)
        return messages

    def _without_errors(self, messages: list[ck.Message]) -> list[ck.Message]:
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == ck.KafkaError._PARTITION_EOF:
                self._reached[self._ours(_place(message))] = _place(message).offset
            elif error.code() == ck.KafkaError._AUTO_OFFSET_RESET and message.offset() is not None:
                if (partition := self._ours(_place(message))) in self._begun:
                    self._lost_places[partition] = _place(message).offset
                    self._set_wake()
            elif error.code() == ck.KafkaError._FATAL:  # reported once, and nothing is fetched any more
                self.errors.append(self._cannot_go_on(error))
            elif is_not_unpacked(error):
                if self._unpacking.is_due(message, time.monotonic()):
                    self.errors.append(FetchError(self._level_of(message.topic()), self._unpacking.sentence(message)))
            elif not self._is_refused(message.topic(), error):
                reason = missing_topic(message.topic()) if _lacks_topic(message, error) else error.str()
                self.errors.append(FetchError(self._level_of(message.topic()), reason))
        return [message for message in messages if message.error() is None]

    def _cannot_go_on(self, error: ck.KafkaError) -> KafkaError:
        ended = f"{self._who} cannot go on"
        if _GROUP_REFUSED in error.str():  # librdkafka takes that for fatal in a group of KIP-848
            right = Right("Read", "Group", self._group)
            return AuthorizationError(f"{ended}: {right.missing(self._config)} Then make a new consumer.")
        return KafkaError(
            f"{ended}: {error.str()}. Make a new consumer; if another one has the same group.instance.id, give each "
            "its own."
        )

    def _after_rebalance(self, messages: list[ck.Message]) -> list[ck.Message]:
        """Drop messages of partitions that were taken away in the same call."""
        self._rebalanced = self._rejoining
        if self._parked:  # until it is served again: a partition never fetched from is slow to be resumed
            self._resume_parked()
        return [message for message in messages if self._ours(_place(message)) in self.assigned]

    # Places in the log

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch nothing from these partitions until they are resumed."""
        self.paused.update(partitions)
        self._consumer.pause(self._to_kafka(self._begun.intersection(partitions)))
        too_much = self._turns.set_aside(partitions)  # librdkafka keeps what waits for less, and fetches it again
        for partition, offset in self._turns.first_offsets(too_much).items():
            with contextlib.suppress(KafkaError):
                self.seek(partition, offset)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch from these partitions again."""
        self.paused.difference_update(partitions)
        self._turns.restore(partitions)
        if not self._parked:
            self._fetch_again(self._begun.intersection(partitions))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Fetch from this offset on; logical offsets (beginning, end) have librdkafka's numbers."""
        self.ends.pop(partition, None)
        self._reached.pop(partition, None)
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
        self._turns.drop(partition)

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset that `fetch` returns of each assigned partition whose start is known."""
        positions = self._read_to(self.assigned) | self._unwanted | self._turns.first_offsets(self.assigned)
        return {partition: offset for partition, offset in positions.items() if offset >= 0}


def _lacks_topic(message: ck.Message, error: ck.KafkaError) -> bool:
    return error.code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART and message.topic() is not None


def _place(message: ck.Message) -> ck.TopicPartition:
    return ck.TopicPartition(message.topic(), message.partition(), message.offset())  # type: ignore[arg-type]  # a fetched message has them
