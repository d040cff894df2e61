"""The records of one level, or of all levels that have one group.

The levels of one group share librdkafka's queue, which is emptied into a buffer of each level.
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
from headway.kafka.consumer.fetch_turns import FetchTurns, TurnsOfLevels, size_of_fetched
from headway.kafka.consumer.group_client import Arrivals, GroupClient
from headway.kafka.consumer.membership import SERVE_EVERY, Membership, RebalanceListener
from headway.kafka.consumer.open_transactions import OpenTransactions
from headway.kafka.serialization import Read
from headway.records.record_types import ConsumerRecord, DeserializedRecord, RecordSource, TopicPartition
from headway.runtime.deferred_signals import defer_signals
from headway.settings.config import Config

# A level asked for no records this long is paused, so that its callbacks can be served without its records. Waking it
# costs a refetch, of about 10 ms if the broker is near.
_PARK_AFTER = 0.5
_MOST_AT_ONCE = 1_000_000  # records that the binding returns
_LOOK_EVERY = 0.01  # while librdkafka has more than it is asked for
_OF_MANY = 64  # records of a partition, while hundreds of partitions are flooded at once
_LOOK_WITHIN = 1.0

_message_value = ck.Message.value


class LevelConsumer:
    """The consumer of the records of one or more levels; not thread-safe, like the client that it drives.

    Kafka is asked through its `client`. The group, and the partitions that it has given, are in its `membership`.
    """

    def __init__(
        self, levels: Sequence[int], config: Config, readers: tuple[Read, Read], base_group: str | None = None
    ) -> None:
        self.levels = levels
        self.client = GroupClient(levels, config)
        self.membership = Membership(self.client, self, base_group)
        self.paused: set[TopicPartition] = set()
        self.ends: dict[TopicPartition, int] = {}  # the log's end when it was reached, if asked for
        self._reached: dict[TopicPartition, int] = {}  # such an end, while records before it wait
        self._readers = readers
        self._record = ConsumerRecord if readers[1] is _message_value else DeserializedRecord
        self._sources: dict[int, RecordSource] = {}
        self.is_parked = False
        """True while nothing has been asked of it for so long that it is paused."""
        self._asked_at = 0.0
        self._served_at = 0.0
        self._left_since: float | None = None  # since when librdkafka has had more than it was asked for
        self._closer: threading.Thread | None = None
        self._make_parts()

    def _make_parts(self) -> None:
        """Make what belongs to one client of librdkafka."""
        self._transactions = OpenTransactions(self.client.ask_offset)
        self._turns = TurnsOfLevels(self.client)

    def subscribe(self, subscription: GroupSubscription, listener: RebalanceListener) -> None:
        """Join the group for these topics, in place of those before; without topics, leave it."""
        self._sources = {
            level: RecordSource(level, subscription.kafka_topic("", level), *self._readers) for level in self.levels
        }
        self.membership.subscribe(subscription, listener)

    # Records

    def fetch(self, level: int, count: int, now: float) -> list[ConsumerRecord]:
        """Return records of a level that have arrived, at most `count`, which is at least 1; never waits.

        Topics and partitions take turns. Rebalance callbacks run in this call, and errors go to the client's `errors`.
        If it returns fewer than `count`, either nothing more has arrived or the wake-up is set.
        """
        if not self._prepare(now):
            return []
        count = min(count, _MOST_AT_ONCE)
        fetch = self._fetch_in_turns if len(self.levels) == 1 else self._fetch_of_levels
        records = fetch(self._turns[level], level, count, now)
        self._note_reached()
        return records

    def fetch_quiet(self, level: int, count: int, now: float) -> list[ConsumerRecord]:
        """Return at most `count` records of partitions that had none until now; otherwise the same as `fetch`."""
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
        """Serve rebalances while no records are wanted: a group waits for a member that does not answer."""
        if not self._advance(now):
            return
        if self.membership.assigned:  # otherwise only an assignment can come, and the group waits for its answer
            if now - self._asked_at < _PARK_AFTER or now - self._served_at < SERVE_EVERY:
                return
            self._served_at = now
            if not self.is_parked:
                self.is_parked = True
                self.client.consumer.pause(self.client.addresses.to_kafka(self.membership.begun()))
        # A record that was on its way when the level was paused may still come.
        self._put(self._fetched(1).messages)

    def _prepare(self, now: float) -> bool:
        """Do what is due before records are fetched; return False if there is nothing to read."""
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
        if self.client.lacks_a_right and self.client.is_granted(now):
            self._look_again()
        if self._turns.has_starting:
            self._route_started()
        return True

    def _look_again(self) -> None:
        """Look for topics, or fetch, now that a missing right was granted.

        librdkafka itself would do so some seconds later, and minutes later for topics that it could not see.
        """
        if not self.membership.assigned:
            with contextlib.suppress(ck.KafkaException):
                self.client.consumer.list_topics(timeout=_LOOK_WITHIN)  # a list of all topics makes it subscribe again
        elif not self.is_parked:
            self._fetch_again(set(self.membership.begun()) - self.paused)

    def _route_started(self) -> None:
        for partition in self._turns.starting():
            with contextlib.suppress(ck.KafkaException):
                self._read_from_here(partition)
                self._turns.route(partition)

    def _fetch_of_levels(self, turns: FetchTurns, level: int, count: int, now: float) -> list[ConsumerRecord]:
        """Return records of one level in turns: what librdkafka has of all levels goes to their buffers first."""
        turns.pour()
        came = self._take_ahead()
        records = turns.take(count)
        self._keep_apart(turns, level, len(records), came, now)
        return records

    def _fetch_in_turns(self, turns: FetchTurns, level: int, count: int, now: float) -> list[ConsumerRecord]:
        """Return records in turns: of librdkafka's queue what is wanted, or all if some would wait long in it."""
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
            self.client.wake()  # librdkafka does not report the records that are still there
        return records

    def _keep_apart(self, turns: FetchTurns, level: int, given: int, came: "_TakenAhead", now: float) -> None:
        """Note what was given of a level, and wake the caller for what is left."""
        self._turns.keep_apart()
        if not turns and len(self.levels) > 1:  # for one level the direct fetch does so: here it would cost 13 %
            turns.rest(now)
        turns.give(given, now)
        # Levels above have had their turn already, and librdkafka does not report the records that are still there.
        if came.has_more or any(each > level for each in came.levels):
            self.client.wake()

    def _is_long(self, turns: FetchTurns, now: float) -> bool:
        """Return whether there is so much in librdkafka's queue that a record at its end would wait long."""
        if self._left_since is None or now - self._left_since < _LOOK_EVERY:
            return False
        self._left_since = now
        return turns.is_long()

    def _take_ahead(self) -> "_TakenAhead":
        """Empty librdkafka's queue into the buffers."""
        levels = set[int]()
        while True:
            fetched = self._fetched(capi.queue_length(self.client.consumer) + 1)
            levels |= self._put(fetched.messages)
            if not fetched.has_more or self._turns.is_full:
                return _TakenAhead(fetched.has_more, levels)

    def _put(self, messages: list[ck.Message]) -> set[int]:
        given_back, came = set[TopicPartition](), set[int]()
        for _, of_number in itertools.groupby(messages, ck.Message.partition):
            for topic, group in itertools.groupby(of_number, ck.Message.topic):
                of_one = list(group)
                partition = self._partition_of(of_one[0])
                if partition in given_back or partition not in self.membership.assigned:
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
        try:
            self.membership.read_from(partition, message.offset() or 0)
        except ck.KafkaException:  # the partition is about to be taken away
            return False
        self._reached.pop(partition, None)
        return True

    def _records_of(self, messages: list[ck.Message], source: RecordSource) -> list[ConsumerRecord]:
        return list(map(self._record, messages, itertools.repeat(source), map(_message_value, messages)))

    def _fetched(self, count: int) -> Arrivals:
        """Take messages from librdkafka, and drop those of partitions that the same call took away."""
        fetched = self.client.fetch(count)
        if fetched.ends:
            self._reached |= fetched.ends
        if fetched.lost_places:
            self.membership.lose_places(fetched.lost_places)
        if self.membership.has_met():
            if self.is_parked:  # until it is served again: a partition never fetched from is slow to be resumed
                self._resume_parked()
            ours = [each for each in fetched.messages if self._partition_of(each) in self.membership.assigned]
            return fetched._replace(messages=ours)
        return fetched

    def _note_reached(self) -> None:
        for partition in [each for each in self._reached if not self._turns.has(each)]:
            self.ends[partition] = self._reached.pop(partition)

    def _partition_of(self, message: ck.Message) -> TopicPartition:
        return self.client.addresses.of(message.topic(), message.partition())

    # Places in the log

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch nothing from these partitions until they are resumed."""
        self.paused.update(partitions)
        self.client.consumer.pause(self.client.addresses.to_kafka(self.membership.begun(partitions)))
        too_much = self._turns.set_aside(partitions)  # librdkafka keeps what waits for less, and fetches it again
        for partition, offset in self._turns.first_offsets(too_much).items():
            with contextlib.suppress(KafkaError):
                self.seek(partition, offset)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch from these partitions again."""
        self.paused.difference_update(partitions)
        self._turns.restore(partitions)
        if not self.is_parked:
            self._fetch_again(self.membership.begun(partitions))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Fetch from this offset on; logical offsets (beginning, end) have librdkafka's numbers."""
        self.ends.pop(partition, None)
        self._reached.pop(partition, None)
        self.membership.seek(partition, offset)
        self._turns.drop(partition)

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset that a fetch returns of each assigned partition whose start is known."""
        positions = self.membership.positions() | self._turns.first_offsets(self.membership.assigned)
        return {partition: offset for partition, offset in positions.items() if offset >= 0}

    def _resume_parked(self) -> None:
        self.is_parked = False
        self._fetch_again(set(self.membership.begun()) - self.paused)

    def _fetch_again(self, partitions: Collection[TopicPartition]) -> None:
        """Resume partitions, and seek to the offset at which they are anyway.

        librdkafka's thread for a broker that has nothing to fetch sleeps for up to a second, and only a seek wakes it.
        """
        self.client.consumer.resume(self.client.addresses.to_kafka(partitions))
        for partition, offset in self.membership.read_to(partitions).items():
            with contextlib.suppress(ck.KafkaException):  # the partition is about to be taken away
                self.membership.read_from(partition, offset)

    def _read_from_here(self, partition: TopicPartition) -> None:
        self.membership.read_from(partition, self.membership.read_to([partition])[partition])

    # What the membership tells

    def begun(self, partitions: Collection[TopicPartition], restarted: Collection[TopicPartition]) -> None:
        """Note that the client reads these partitions from now on, and `restarted` from their starts again."""
        self._turns.started(restarted)
        if self.is_parked:  # a partition that was never fetched from is slow to be resumed
            self._resume_parked()
        if paused := self.paused.intersection(partitions):
            self.client.consumer.pause(self.client.addresses.to_kafka(paused))

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Let go of partitions that leave this member."""
        # librdkafka would keep a partition paused when it comes back.
        held = self.membership.begun(partitions) if self.is_parked else self.paused.intersection(partitions)
        if held:
            self.client.consumer.resume(self.client.addresses.to_kafka(held))
        self.paused.difference_update(partitions)
        for partition in partitions:
            self.ends.pop(partition, None)
            self._reached.pop(partition, None)
            self._turns.forget(partition)

    def begin_again(self) -> None:
        """Let go of what belongs to the client of librdkafka, which is replaced."""
        self._let_go()
        self.is_parked = False
        self._make_parts()

    def _let_go(self) -> None:
        self._turns.close()
        self._transactions.forget()

    # Life

    @property
    def is_closing(self) -> bool:
        """True once `close` was called."""
        return self._closer is not None

    def close(self) -> threading.Thread:
        """Let go of everything, once the group was left; return the thread in which the client closes.

        It may wait long for a group that cannot be reached, and Ctrl-C ends only a `join`.
        """
        # librdkafka 2.16 ends a group that has been left without looking at its queue. A rebalance that is still queued
        # is then never answered: the binding's callback waits forever, and keeps the GIL. The queue is therefore
        # emptied first, by `Membership.has_left` or `Membership.step_aside`.
        with defer_signals():  # an interrupted end calls this again
            if self._closer is None:
                self.client.forget_commits()  # the client would wait for one that an interrupted call has left
                self._closer = threading.Thread(target=self._close, name="headway-close", daemon=True)
                self._closer.start()
        return self._closer

    def _close(self) -> None:
        self.membership.close()
        self._let_go()
        self.client.close()


class _TakenAhead(NamedTuple):
    """What was taken into the buffers: records of these levels, and librdkafka may have more."""

    has_more: bool
    levels: set[int]
