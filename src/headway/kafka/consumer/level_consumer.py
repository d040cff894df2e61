"""Reads the records of one level, or of all levels that share a group.

Levels that share a group also share librdkafka's queue, which is emptied into a separate buffer for each level.
"""

import contextlib
import itertools
import threading
from collections.abc import Collection, Sequence
from typing import NamedTuple

import confluent_kafka as ck

from headway.core.levels.group_subscription import GroupSubscription
from headway.errors import KafkaError
from headway.kafka.binding import capi
from headway.kafka.binding.messages import FetchedMessage
from headway.kafka.consumer.fetch_turns import FetchTurns, TurnsOfLevels, size_of_fetched
from headway.kafka.consumer.group_client import Arrivals, GroupClient
from headway.kafka.consumer.membership import SERVE_EVERY, Membership, RebalanceListener
from headway.kafka.consumer.open_transactions import OpenTransactions
from headway.kafka.serialization import Read
from headway.records.record_types import ConsumerRecord, DeserializedRecord, RecordSource, TopicPartition
from headway.runtime.deferred_signals import defer_signals
from headway.settings.config import Config

# If a level has not been fetched for this many seconds, it is paused, so that a poll can run its callbacks without
# fetching records. Resuming the level means fetching records again, which takes about 10 ms if the broker is near.
_PARK_AFTER = 0.5
_MOST_AT_ONCE = 1_000_000  # the largest number of records that the binding returns in one call
# How often the queue's length is checked, in seconds, while librdkafka has more records than requested.
_CHECK_LENGTH_EVERY = 0.01
# How many records each partition may add to a buffer that is too full, for example because hundreds of partitions are
# flooded.
_OF_MANY = 64
# While a buffer is full, this many records at a time are moved to it. If a partition is given back because of the first
# of them, its other records are never made into Python objects.
_TAKEN_TOGETHER = 1000
_LIST_WITHIN = 1.0

_message_value = FetchedMessage.value


class LevelConsumer:
    """Fetches the records of one or more levels as a member of their group. Not thread-safe.

    `client` sends requests to Kafka. `membership` handles the group and the assigned partitions.
    """

    def __init__(
        self, levels: Sequence[int], config: Config, readers: tuple[Read, Read], base_group: str | None = None
    ) -> None:
        self.levels = levels
        self.client = GroupClient(levels, config)
        self.membership = Membership(self.client, self, base_group)
        self.paused: set[TopicPartition] = set()
        # The end offsets that the caller has reached, if enable.partition.eof is set.
        self.ends: dict[TopicPartition, int] = {}
        # End offsets that were fetched, but that the caller has not reached, because earlier records are still in the
        # buffer.
        self._reached: dict[TopicPartition, int] = {}
        self._readers = readers
        self._record = ConsumerRecord if readers[1] is _message_value else DeserializedRecord
        self._sources: dict[int, RecordSource] = {}
        self.is_parked = False
        """True while fetching is paused, because the caller has not asked for records for some time."""
        self._asked_at = 0.0
        self._served_at = 0.0
        self._left_since: float | None = None  # the time since which librdkafka has had more records than requested
        self._closer: threading.Thread | None = None
        self._make_parts()

    def _make_parts(self) -> None:
        """Create the objects that belong to a single consumer of librdkafka."""
        self._transactions = OpenTransactions(self.client.ask_offset)
        self._turns = TurnsOfLevels(self.client)

    def subscribe(self, subscription: GroupSubscription, listener: RebalanceListener) -> None:
        """Join the group to read these topics, which replace the earlier ones. Without topics, leave the group."""
        self._sources = {
            level: RecordSource(level, subscription.kafka_topic("", level), *self._readers) for level in self.levels
        }
        self.membership.subscribe(subscription, listener)

    # Records

    def fetch(self, level: int, count: int, now: float) -> list[ConsumerRecord]:
        """Return at most `count` records of a level that have arrived, without waiting. `count` is at least 1.

        Topics and partitions take turns. Rebalance callbacks run within this call, and errors are added to the client's
        `errors`. If this returns fewer than `count` records, either no more have arrived, or this method has called
        `client.wake()`, so that the caller fetches again.
        """
        if not self._prepare(now):
            return []
        count = min(count, _MOST_AT_ONCE)
        fetch = self._fetch_in_turns if len(self.levels) == 1 else self._fetch_of_levels
        records = fetch(self._turns[level], level, count, now)
        self._note_reached()
        return records

    def fetch_quiet(self, level: int, count: int, now: float) -> list[ConsumerRecord]:
        """Return at most `count` records of partitions that had no records until now.

        In all other respects, this is the same as `fetch`.
        """
        if not self._prepare(now):
            return []
        turns = self._turns[level]
        turns.pour()
        came = self._take_ahead()
        self._left_since = now
        records = turns.take_quiet(count)
        self._keep_apart(turns, level, len(records), came, now)
        self._note_reached()
        return records

    def serve(self, now: float) -> None:
        """Answer rebalances while the caller wants no records.

        Each member has to answer, because its group waits for it.
        """
        if not self._advance(now):
            return
        # While no partition is assigned, the only event that can arrive is an assignment. It is answered at once,
        # because the group waits for the answer.
        if self.membership.assigned:
            if now - self._asked_at < _PARK_AFTER or now - self._served_at < SERVE_EVERY:
                return
            self._served_at = now
            if not self.is_parked:
                self.is_parked = True
                self.client.consumer.pause(self.client.addresses.to_kafka(self.membership.begun()))
        # A record whose fetch was under way when the level was paused may still arrive.
        self._put(self._fetched(1).messages)

    def _prepare(self, now: float) -> bool:
        """Do what must happen before a fetch. Returns False if the level has no topics."""
        if not self._advance(now):
            return False
        if self.is_parked:
            self._resume_parked()
        if now >= self._transactions.look_at:
            reading = set(self.membership.begun()) - self.paused
            self._transactions.look(self.membership.read_to(reading), self.client.known_end, now)
        self._asked_at = now
        return True

    def _advance(self, now: float) -> bool:
        if not self.client.addresses.subscription.topics:
            return False
        self.membership.advance(now)
        if self.client.lacks_a_permission and self.client.is_granted(now):
            self._use_granted_permission()
        if self._turns.has_starting:
            self._route_started()
        return True

    def _use_granted_permission(self) -> None:
        """Look for topics or fetch again immediately, because a missing permission was granted.

        librdkafka itself would do so only seconds later, or minutes later for topics that it was not permitted to see.
        """
        if not self.membership.assigned:
            with contextlib.suppress(ck.KafkaException):
                # After a listing of all topics, librdkafka subscribes again.
                self.client.consumer.list_topics(timeout=_LIST_WITHIN)
        elif not self.is_parked:
            self._fetch_again(set(self.membership.begun()) - self.paused)

    def _route_started(self) -> None:
        for partition in self._turns.starting():
            with contextlib.suppress(ck.KafkaException):
                self._read_from_here(partition)
                self._turns.route(partition)

    def _fetch_of_levels(self, turns: FetchTurns, level: int, count: int, now: float) -> list[ConsumerRecord]:
        """Return records of one level by turns, after emptying librdkafka's queue into the buffers of all levels."""
        turns.pour()
        came = self._take_ahead()
        records = turns.take(count)
        self._keep_apart(turns, level, len(records), came, now)
        return records

    def _fetch_in_turns(self, turns: FetchTurns, level: int, count: int, now: float) -> list[ConsumerRecord]:
        """Return records of the only level by turns.

        The records come directly from librdkafka's queue as long as the queue is short. If a record at the end of that
        queue would have to wait long, the whole queue is first emptied into the buffer.
        """
        has_more, is_long = False, self._is_long(turns, now)
        if not turns and not turns.keeps_apart and not is_long:
            fetched = self._fetched(count)
            records = self._records_of(fetched.messages, self._sources[level]) if fetched.messages else []
            has_more = fetched.has_more
            if not has_more:
                self._left_since = None
                turns.rest(now)
            elif self._left_since is None:
                self._left_since = now
        else:
            if turns.pour() or is_long or turns.keeps_apart or len(turns) < count:
                has_more = self._take_ahead().has_more
                self._left_since = now
            records = turns.take(count)
            turns.keep_apart()
        turns.give(len(records), now)
        if has_more and (len(records) < count or count == _MOST_AT_ONCE):
            self.client.wake()  # librdkafka does not signal again for records that remain in its queue
        return records

    def _keep_apart(self, turns: FetchTurns, level: int, given: int, came: "_TakenAhead", now: float) -> None:
        """Note how many records were returned, divert flooded partitions, and wake the caller if records are left."""
        self._turns.keep_apart()
        # With only one level, the direct fetch calls `rest`, and another call here would cost 13 % of the throughput.
        if not turns and len(self.levels) > 1:
            turns.rest(now)
        turns.give(given, now)
        # Higher levels were fetched before this one, and librdkafka does not signal again for records that remain.
        if came.has_more or any(each > level for each in came.levels):
            self.client.wake()

    def _is_long(self, turns: FetchTurns, now: float) -> bool:
        """Return whether a record at the end of librdkafka's queue would have to wait too long."""
        if self._left_since is None or now - self._left_since < _CHECK_LENGTH_EVERY:
            return False
        self._left_since = now
        return turns.is_long()

    def _take_ahead(self) -> "_TakenAhead":
        """Move all records from librdkafka's queue to the buffers."""
        levels = set[int]()
        left = 0  # how many of the records that were in the queue at the last check are still in it
        while True:
            left = left or capi.queue_length(self.client.consumer) + 1
            count = min(left, _TAKEN_TOGETHER) if self._turns.is_full else left
            left -= count
            fetched = self._fetched(count)
            levels |= self._put(fetched.messages)
            if not fetched.has_more or (self._turns.is_full and not left):
                return _TakenAhead(fetched.has_more, levels)

    def _put(self, messages: list[ck.Message]) -> set[int]:
        given_back, came = set[TopicPartition](), set[int]()
        for _, of_number in itertools.groupby(messages, FetchedMessage.partition):
            for topic, group in itertools.groupby(of_number, FetchedMessage.topic):
                of_one = list(group)
                partition = self._partition_of(of_one[0])
                if partition in given_back or partition not in self.membership.assigned:
                    continue
                turns = self._turns[partition.level]
                if turns.is_overfull and len(of_one) > _OF_MANY:
                    turns.divert(partition)
                    if self._give_back(partition, of_one[_OF_MANY]):
                        given_back.add(partition)
                        del of_one[_OF_MANY:]
                records = self._records_of(of_one, self._sources[partition.level])
                turns.put(str(topic), partition, records, size_of_fetched(of_one))
                came.add(partition.level)
        return came

    def _give_back(self, partition: TopicPartition, message: ck.Message) -> bool:
        """Seek back to this message, so that it and all later messages are fetched again.

        Returns whether that succeeded.
        """
        try:
            self.membership.read_from(partition, message.offset() or 0)
        except ck.KafkaException:  # the partition is about to be revoked
            return False
        self._reached.pop(partition, None)
        return True

    def _records_of(self, messages: list[ck.Message], source: RecordSource) -> list[ConsumerRecord]:
        return list(map(self._record, messages, itertools.repeat(source), map(_message_value, messages)))

    def _fetched(self, count: int) -> Arrivals:
        """Take messages from librdkafka, without those of partitions that were revoked within the same call."""
        fetched = self.client.fetch(count)
        if fetched.ends:
            self._reached |= fetched.ends
        if fetched.lost_places:
            self.membership.lose_places(fetched.lost_places)
        if self.membership.has_met():
            if self.is_parked:  # resume now, because librdkafka is slow to resume a partition that was never fetched
                self._resume_parked()
            ours = [each for each in fetched.messages if self._partition_of(each) in self.membership.assigned]
            return fetched._replace(messages=ours)
        return fetched

    def _note_reached(self) -> None:
        for partition in [each for each in self._reached if not self._turns.has(each)]:
            self.ends[partition] = self._reached.pop(partition)

    def _partition_of(self, message: ck.Message) -> TopicPartition:
        return self.client.addresses.of(message.topic(), message.partition())

    # Positions in the logs

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching from these partitions until `resume` is called."""
        self.paused.update(partitions)
        self.client.consumer.pause(self.client.addresses.to_kafka(self.membership.begun(partitions)))
        # If the buffer holds too many records of these partitions, it drops the records. A seek fetches them again.
        too_much = self._turns.set_aside(partitions)
        for partition, offset in self._turns.first_offsets(too_much).items():
            with contextlib.suppress(KafkaError):
                self.seek(partition, offset)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Start to fetch from these partitions again."""
        self.paused.difference_update(partitions)
        self._turns.restore(partitions)
        if not self.is_parked:
            self._fetch_again(self.membership.begun(partitions))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue a partition at this offset, which may be one of librdkafka's logical offsets (beginning, end)."""
        self.ends.pop(partition, None)
        self._reached.pop(partition, None)
        self.membership.seek(partition, offset)
        self._turns.drop(partition)

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset that `fetch` will return of each assigned partition whose start is known."""
        positions = self.membership.positions() | self._turns.first_offsets(self.membership.assigned)
        return {partition: offset for partition, offset in positions.items() if offset >= 0}

    def _resume_parked(self) -> None:
        self.is_parked = False
        self._fetch_again(set(self.membership.begun()) - self.paused)

    def _fetch_again(self, partitions: Collection[TopicPartition]) -> None:
        """Resume partitions, and seek each of them to its current position.

        If a thread of librdkafka has nothing to fetch from its broker, it sleeps for up to a second, and only a seek
        wakes it.
        """
        self.client.consumer.resume(self.client.addresses.to_kafka(partitions))
        for partition, offset in self.membership.read_to(partitions).items():
            with contextlib.suppress(ck.KafkaException):  # the partition is about to be revoked
                self.membership.read_from(partition, offset)

    def _read_from_here(self, partition: TopicPartition) -> None:
        self.membership.read_from(partition, self.membership.read_to([partition])[partition])

    # Methods that the membership calls

    def begun(self, partitions: Collection[TopicPartition], restarted: Collection[TopicPartition]) -> None:
        """Note that the client now reads these partitions.

        The `restarted` partitions were assigned to librdkafka again, and continue from their start offsets.
        """
        self._turns.started(restarted)
        if self.is_parked:  # resume now, because librdkafka is slow to resume a partition that was never fetched
            self._resume_parked()
        if paused := self.paused.intersection(partitions):
            self.client.consumer.pause(self.client.addresses.to_kafka(paused))

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the records and the state of partitions that are taken from this member."""
        # Otherwise librdkafka would keep a partition paused when it is assigned again.
        held = self.membership.begun(partitions) if self.is_parked else self.paused.intersection(partitions)
        if held:
            self.client.consumer.resume(self.client.addresses.to_kafka(held))
        self.paused.difference_update(partitions)
        for partition in partitions:
            self.ends.pop(partition, None)
            self._reached.pop(partition, None)
            self._turns.forget(partition)

    def begin_again(self) -> None:
        """Drop the state that belongs to librdkafka's consumer, because another consumer is about to replace it."""
        self._let_go()
        self.is_parked = False
        self._make_parts()

    def _let_go(self) -> None:
        self._turns.close()
        self._transactions.forget()

    # Closing

    @property
    def is_closing(self) -> bool:
        """True after `close` was called."""
        return self._closer is not None

    def close(self) -> threading.Thread:
        """After the group was left, close everything in a background thread, and return the thread.

        The thread may take a long time if the group's coordinator cannot be reached. Ctrl-C can only interrupt a `join`
        of the thread.
        """
        # After leaving a group, librdkafka 2.16 closes without polling its queue. If the queue still holds a rebalance,
        # nobody answers it: the binding's callback waits forever, and holds the GIL. So `Membership.has_left` or
        # `Membership.step_aside` must have emptied the queue before.
        with defer_signals():  # after an interrupt, this method is called again
            if self._closer is None:
                self.client.forget_commits()  # librdkafka would wait for the commits of an interrupted call
                self._closer = threading.Thread(target=self._close, name="headway-close", daemon=True)
                self._closer.start()
        return self._closer

    def _close(self) -> None:
        self.membership.close()
        self._let_go()
        self.client.close()


class _TakenAhead(NamedTuple):
    """Whether librdkafka may have more records, and the levels whose records were moved to the buffers."""

    has_more: bool
    levels: set[int]
