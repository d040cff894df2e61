"""The member of a group of one level, or of all: it joins and leaves, and takes the partitions that it is given.

It lets no exception out of a rebalance callback: the binding would drop the records that the same call has fetched.
"""

import contextlib
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import confluent_kafka as ck

from headway.core.levels.group_subscription import GroupSubscription
from headway.core.offsets.lost_place import LostPlace, Reset
from headway.errors import FetchError, HeadwayError, KafkaError, OffsetError
from headway.kafka.binding import capi
from headway.kafka.binding.connection import change_credentials
from headway.kafka.binding.mock_cluster import mock_at
from headway.kafka.binding.questions import Question, ask_offsets
from headway.kafka.consumer.fetch_turns import FetchTurns, TurnsOfLevels
from headway.kafka.consumer.group_watch import GroupWatch
from headway.kafka.consumer.missing_topics import look_for_missing, missing_topic
from headway.kafka.consumer.open_transactions import OpenTransactions
from headway.kafka.consumer.other_commits import OtherCommits
from headway.kafka.consumer.partition_queries import PartitionQueries
from headway.kafka.consumer.start_offsets import StartOffsets
from headway.kafka.consumer.start_questions import Start
from headway.kafka.reading.topic_ids import TopicIds
from headway.records.record_types import ConsumerRecord, TopicPartition
from headway.runtime.background import in_background
from headway.runtime.deferred_signals import allow_signals, defer_signals
from headway.runtime.wakeup import Wakeup
from headway.settings.config import Config

log = logging.getLogger(__name__)

SERVE_EVERY = 0.1
"""The seconds after which a member that gets no records answers its group again."""
_LEAVE_WITHIN = 10.0
_END_MEMBERSHIP_WITHIN = 1.0
_START_COMMITTED_WITHIN = 2.0
_COMMIT_AGAIN_AFTER = 0.1
_BOUNDS_TOLD_WITHIN = 1.0
_LOOK_FOR_PLACES_AGAIN_AFTER = 0.5

# The wake-ups of consumers that are not closed yet. A collector could close the sockets before librdkafka has let go of
# them, and librdkafka would write to the next owner of their numbers.
_wakes: dict[int, Wakeup] = {}


class RebalanceListener(Protocol):
    """The receiver of a member's gained and lost partitions, told during `fetch`."""

    def assigned(self, partitions: list[TopicPartition]) -> None: ...
    def revoked(self, partitions: list[TopicPartition]) -> None: ...
    def lost(self, partitions: list[TopicPartition]) -> None: ...


class GroupMember(PartitionQueries, ABC):
    """A member of a group, with the partitions that it has and where each begins.

    For one thread at a time, in whose calls the rebalance callbacks run. Three others come in: `StartOffsets` calls
    `_cannot_start` and `_set_wake` in its thread, librdkafka writes to the wake-up, and a close closes in a thread.
    """

    def __init__(self, levels: Sequence[int], config: Config, base_group: str | None = None) -> None:
        self._watch = GroupWatch(config)
        super().__init__(levels, config, self._watch.suspect)
        self._process = os.getpid()
        self.assigned: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()
        self.ends: dict[TopicPartition, int] = {}  # the log's end when it was reached, if asked for
        self._reached: dict[TopicPartition, int] = {}  # such an end, while records before it wait
        self._begun: set[TopicPartition] = set()  # the partitions of `assigned` that librdkafka reads
        self._start: dict[TopicPartition, int] = {}  # the offset at which each began, or was sought last
        self._found: dict[TopicPartition, Start] = {}  # what Kafka said of where they begin
        self._unwanted: dict[TopicPartition, int] = {}  # the first record of each that came while leaving
        self._lost_places: dict[TopicPartition, int] = {}  # offsets that were to be read, and that the log lacks
        self._look_for_places_at = 0.0
        self.deleted_unread = dict.fromkeys(levels, 0)  # records of each level that were deleted before they were read
        self._can_begin = False  # True if librdkafka does not read a partition yet whose start is known
        self._rebalanced = False
        self._rejoining = False
        self._member_id = ""  # as it was at the last assignment
        self._parked = False
        self._incremental = _is_incremental(config)
        self._is_classic = config.get("group.protocol", "classic") != "consumer"
        self._is_static = "group.instance.id" in config
        self._closing = False
        self._closer: threading.Thread | None = None
        self._wake: Wakeup | None = None
        self._listener: RebalanceListener | None = None
        others = base_group and OtherCommits(
            config, base_group, per_level=self._group != base_group, subscription=lambda: self._subscription
        )
        self._others = others or None
        self._make_parts()

    def _make_parts(self) -> None:
        """Make what belongs to one client of librdkafka."""
        self._ids = TopicIds(None if mock_at(self._config.get("bootstrap.servers")) else self._consumer)
        self._transactions = OpenTransactions(self.ask_offset)
        self._turns = TurnsOfLevels(
            {level: FetchTurns(self._consumer, self._name, self._room, self._fetch_wait) for level in self.levels}
        )
        self._starts = StartOffsets(
            self._consumer,
            self._config,
            self._ids.is_new,
            self._set_wake,
            self._cannot_start,
            self._must_not_start,
            self._others,
        )

    @abstractmethod
    def _consume(self, count: int, timeout: float = 0) -> list[ConsumerRecord]:
        """Serve rebalances, and return the records that came."""

    @abstractmethod
    def _read(self, subscription: GroupSubscription) -> None:
        """Make the records to come those of this subscription's topics."""

    @abstractmethod
    def _resume_parked(self) -> None:
        """Fetch again from the partitions of a member that was asked for nothing."""

    def wake(self, wake: Wakeup | None) -> None:
        """Set the wake-up that is set whenever records or events arrive; None ends that."""
        self._wake = wake
        capi.wake_on_events(self._consumer, self._wake_fd)
        self._ids.close()  # its question may wake
        if wake:
            _wakes[id(self)] = wake
        else:
            _wakes.pop(id(self), None)

    def __del__(self) -> None:
        # In a forked process librdkafka's locks may be held for ever, and it writes nothing.
        if _wakes.get(id(self)) and self._process == os.getpid():
            with contextlib.suppress(Exception):  # it may be half made
                self.wake(None)
        _wakes.pop(id(self), None)

    @property
    def _wake_fd(self) -> int | None:
        return self._wake.fd if self._wake else None

    def _set_wake(self) -> None:
        if wake := self._wake:
            wake.set()

    def _cannot_start(self, reason: str, topic: str | None, cause: ck.KafkaError | None) -> None:
        if not self._is_refused(topic, cause):
            self.errors.append(FetchError(self._level_of(topic), reason))
        self._set_wake()

    def _tell_of_missing(self, topic: str) -> None:
        if topic in self._subscription.topics:
            self._cannot_start(missing_topic(topic), topic, None)

    def _must_not_start(self, refusal: HeadwayError) -> None:
        self.errors.append(refusal)
        self._set_wake()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with other credentials from now on; from any thread.

        Raises `ConfigError` for credentials that librdkafka does not take.
        """
        self._connection.set_credentials(self._consumer, username, password)
        change_credentials(self._config, username, password)
        self._watch.set_sasl_credentials(username, password)

    def topic_id(self, partition: TopicPartition) -> str | None:
        """Return Kafka's id of the topic that a partition is read of, None if the brokers have not told it.

        It is never newer than the partition's position: if the topic was deleted and created again, it is the old id
        until the partition begins in the new topic.
        """
        return self._ids.of(self.kafka_topic(partition))

    def has_topic_ids(self, now: float) -> bool:
        """Return whether the ids of the topics that begin are known, or do not come soon."""
        return self._ids.is_settled(now)

    @property
    def parked(self) -> bool:
        """True while nothing is asked of it for so long that it is paused."""
        return self._parked

    @property
    def was_member(self) -> bool:
        """True if its group has ever given it an assignment, even an empty one."""
        return bool(self._member_id)

    # Subscription

    def subscribe(self, subscription: GroupSubscription, listener: RebalanceListener) -> None:
        """Join the group for these topics, in place of those before; without topics, leave it."""
        had = self._subscription
        # While partitions are read under one address, they cannot have another.
        if had.topics and not (subscription.topics and subscription.keeps_addresses_of(had)):
            self.unsubscribe()
        if not subscription.topics:
            return
        self._subscription = subscription
        self._listener = listener
        self._read(subscription)
        self._join(listener)
        if not self._is_classic:
            look_for_missing(subscription.topics, self._config, self._tell_of_missing)

    def _join(self, listener: RebalanceListener) -> None:
        self._consumer.subscribe(
            self._subscription.topics,
            on_assign=lambda _, partitions: self._on_assign(partitions, listener),
            on_revoke=lambda _, partitions: self._on_leave(partitions, listener.revoked),
            on_lost=lambda _, partitions: self._on_leave(partitions, listener.lost, is_lost=True),
        )

    def rejoin(self) -> None:
        """Give all partitions up as lost: tell the listener, leave the group and join it again.

        It waits for neither; records on their way for these partitions are dropped. If librdkafka has heard of the loss
        itself, it is joining again already, and the next fetch tells the listener.
        """
        if self._listener is None or not self._subscription.topics or self._consumer.memberid() != self._member_id:
            return
        lost = list(self.assigned)
        self._rejoining = self._rebalanced = True
        self._guard(self._listener.lost, lost)
        self._forget(lost)
        self._consumer.unsubscribe()
        self._join(self._listener)

    def unsubscribe(self) -> None:
        """Leave the group, and wait until the listener was told."""
        self._leave()
        self.forget_group()

    def _leave(self) -> None:
        self.begin_to_leave()
        began = time.monotonic()
        while (waited := time.monotonic() - began) < _LEAVE_WITHIN and not self.has_left(waited):
            pass
        self._forget(list(self.assigned))

    def begin_to_leave(self) -> None:
        """Leave the group; call `has_left` until it is true, and then `forget_group`."""
        self._consumer.unsubscribe()

    def has_left(self, waited: float, patience: float = SERVE_EVERY) -> bool:
        """Serve the queue: an assignment from before we left may still be there, and its revocation then follows.

        An assignment may be empty, so having no partitions is not enough: a member of a classic group has an id until
        it has left. But if the group waits for others to join, leaving would wait, too, and then nothing is queued.
        """
        may_be_member = self._is_classic and waited < _END_MEMBERSHIP_WITHIN
        is_member = bool(self.assigned or (may_be_member and self._consumer.memberid()))
        with defer_signals():  # an interrupted rebalance is never answered, and the group is never left
            came = self._note_unwanted(self._consume(1, patience if is_member else 0))
        return not came and not is_member

    def forget_group(self) -> None:
        """Let go of the partitions and topics of a group that was left."""
        self._forget(list(self.assigned))
        self._subscription = GroupSubscription.nothing(self.levels)

    def _note_unwanted(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Note records that came while leaving and are not wanted: commits must stop before them."""
        for record in records:
            self._unwanted.setdefault(record.topic_partition, record.offset)
        return records

    @property
    def is_static(self) -> bool:
        """True if its partitions wait for it to come back: it steps aside at its end, and does not leave."""
        return self._is_static

    @property
    def is_closing(self) -> bool:
        """True once `close` was called."""
        return self._closer is not None

    def close(self) -> threading.Thread:
        """Let go of everything, after `has_left` or `step_aside`; return the thread in which the client closes.

        It may wait long for a group that cannot be reached, and Ctrl-C ends only a `join`.
        """
        # librdkafka 2.16 ends a group that has been left without looking at its queue. A rebalance that is still queued
        # is then never answered: the binding's callback waits for ever, and keeps the GIL. The queue is therefore
        # emptied first.
        with defer_signals():  # an interrupted end calls this again
            if self._closer is None:
                for sent in self._commits:  # the client would wait for one that an interrupted call has left
                    sent.forget()
                self._closer = threading.Thread(target=self._close, name="headway-close", daemon=True)
                self._closer.start()
        return self._closer

    def _close(self) -> None:
        _close_client(self._consumer, self._starts, self._ids, self._turns, self._transactions)

    def step_aside(self, until: float) -> None:
        """Let go of the partitions, which wait for this member to come back within the session timeout (KIP-345)."""
        self._consumer.pause(self._to_kafka(self._begun))  # the queue then only gets rebalances
        with defer_signals():
            while self._note_unwanted(self._consume(1, 0)) and time.monotonic() < until:
                pass
        self._closing = True
        if self._listener:
            self._guard(self._listener.revoked, list(self.assigned))
        self._forget(list(self.assigned))

    # Rebalance

    def _on_assign(self, kafka_partitions: list[ck.TopicPartition], listener: RebalanceListener) -> None:
        partitions = self._from_kafka(kafka_partitions)
        self._rebalanced, self._rejoining = True, False
        self._member_id = self._consumer.memberid()
        self._answer(self._assign, [])  # the group need not wait; the partitions begin when their starts are known
        self.assigned.update(partitions)
        self._guard(listener.assigned, partitions)  # the listener may set a start
        # Also those of which it has no partition yet: so it knows which partitions are new when they come.
        topics = {topic for topic in self._subscription.topics if not topic.startswith("^")}
        topics |= {self.kafka_topic(each) for each in self.assigned - self._begun}
        self._ids.ask_before_start(topics, time.monotonic(), self._wake_fd)
        self._starts.ask([self._name(partition) for partition in self.assigned - self._start.keys()])

    def _note_starts(self, found: Mapping[capi.Partition, Start]) -> None:
        starts = {self._ours(ck.TopicPartition(*name)): start for name, start in found.items()}
        starts = {each: start for each, start in starts.items() if each in self.assigned - self._begun}
        self._found |= starts
        self._start |= {each: start.offset for each, start in starts.items()}
        self._can_begin = True

    def is_new(self, partition: TopicPartition) -> bool:
        """Return whether a partition was added to its topic while this member has read it."""
        return self._ids.is_new(*self._name(partition))

    def start_of(self, partition: TopicPartition) -> Start | None:
        """Return where Kafka said that a partition begins when it was assigned, None if it has not said that yet."""
        return self._found.get(partition)

    def ask_offset(
        self, partition: TopicPartition, place: int, within: float, isolation: str | None = None
    ) -> Question[int]:
        """Ask for the offset of a place in a partition, as `ask_offsets` does; the answer sets the wake-up."""
        isolation = isolation or str(self._config.get("isolation.level", "read_committed"))
        return ask_offsets(self._consumer, {self._name(partition): place}, isolation, within, self._wake_fd)

    def _begin(self) -> None:
        """Have librdkafka read the partitions whose start is known."""
        self._can_begin = False
        partitions = self.assigned & self._start.keys() - self._begun
        if not partitions:
            return
        if self._incremental:
            starts = {partition: self._start[partition] for partition in partitions}
        else:  # all of them anew: the call names the whole assignment
            self._start |= self._read_to(self._begun)
            starts = {partition: self._start[partition] for partition in (*self._begun, *partitions)}
        self._begun.update(partitions)
        self._turns.started(starts)
        self._answer(self._assign, [self._starting_at(partition, offset) for partition, offset in starts.items()])
        if self._parked:  # a partition that was never fetched from is slow to be resumed
            self._resume_parked()
        if paused := self.paused.intersection(partitions):
            self._consumer.pause(self._to_kafka(paused))

    def _assign(self, partitions: list[ck.TopicPartition]) -> None:
        (self._consumer.incremental_assign if self._incremental else self._consumer.assign)(partitions)

    def _starting_at(self, partition: TopicPartition, offset: int) -> ck.TopicPartition:
        return ck.TopicPartition(self.kafka_topic(partition), partition.partition, offset)

    def _on_leave(
        self,
        kafka_partitions: list[ck.TopicPartition],
        tell: Callable[[list[TopicPartition]], None],
        *,
        is_lost: bool = False,
    ) -> None:
        partitions = [each for each in self._from_kafka(kafka_partitions) if each in self.assigned]
        self._rebalanced = True
        if not is_lost:
            partitions = self._without_recreated(partitions)
        # While it closes, on another thread, the listener knows already; it also knows of partitions given up as lost.
        if partitions and not self._closing:
            self._guard(tell, partitions)
        self._answer(self._unassign, kafka_partitions)
        self._forget(partitions)

    def _answer(self, call: Callable[[list[ck.TopicPartition]], None], partitions: list[ck.TopicPartition]) -> None:
        """Answer a rebalance; an error of librdkafka does not leave the callback.

        librdkafka refuses the answer of a client that cannot go on at all, and reports that as well.
        """
        try:
            call(partitions)
        except ck.KafkaException as error:
            self.errors.append(FetchError(self._level_of(None), f"a rebalance was not answered: {error.args[0].str()}"))

    def _unassign(self, kafka_partitions: list[ck.TopicPartition]) -> None:
        """Let go of partitions; librdkafka takes only those that it was given."""
        if not self._incremental:
            self._consumer.unassign()
            return
        read = {(each.topic, each.partition) for each in self._consumer.assignment()}
        self._consumer.incremental_unassign([each for each in kafka_partitions if (each.topic, each.partition) in read])

    def _guard(self, tell: Callable[[list[TopicPartition]], None], partitions: list[TopicPartition]) -> None:
        try:
            with allow_signals():
                tell(partitions)
        except BaseException as error:
            self.callback_errors.append(error)

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        # librdkafka would keep a partition paused when it comes back.
        if held := self._begun.intersection(partitions) if self._parked else self.paused.intersection(partitions):
            self._consumer.resume(self._to_kafka(held))
        self._starts.forget([self._name(partition) for partition in partitions])
        self.assigned.difference_update(partitions)
        self._begun.difference_update(partitions)
        self.paused.difference_update(partitions)
        for partition in partitions:
            self._start.pop(partition, None)
            self._lost_places.pop(partition, None)
            self._found.pop(partition, None)
            self._unwanted.pop(partition, None)
            self.ends.pop(partition, None)
            self._reached.pop(partition, None)
            self._turns.forget(partition)

    # A topic that was created again

    def _renew(self, recreated: Collection[str]) -> None:
        """Leave the group, and join it with another client, since these topics were deleted and created again.

        librdkafka keeps what it knows of the topics that are gone. If a new one has a lower leader epoch, as after a
        restart of its broker, it ignores all that is said of the new one, and reads nothing for good.
        """
        if self._listener is None:
            return
        try:
            client, connection = self._make_client()  # first: while it cannot be made, the old one goes on
        except HeadwayError as error:
            self.errors.append(error)
            return
        self._rebalanced = True
        if others := self._without_recreated(list(self.assigned), recreated):
            self._guard(self._listener.revoked, others)
        self._leave()
        with defer_signals():  # the member has one client or the other, and never none
            for sent in self._commits:
                sent.give_up("the consumer was replaced, since a topic was created again.")
            parts = self._consumer, self._starts, self._ids, self._turns, self._transactions
            self._consumer, self._connection = client, connection
            self._parked = False
            self._make_parts()
            capi.wake_on_events(self._consumer, self._wake_fd)
            in_background(lambda: _close_client(*parts))
        self._join(self._listener)

    def _without_recreated(
        self, leaving: list[TopicPartition], recreated: Collection[str] | None = None
    ) -> list[TopicPartition]:
        """Give up the partitions of topics that were created again, before their positions are committed.

        Return the other partitions. The group goes on at the beginning of the new topics.
        """
        if recreated is None:
            recreated = self._ids.recreated({self.kafka_topic(partition) for partition in leaving})
        gone = [partition for partition in leaving if self.kafka_topic(partition) in recreated]
        if not gone or self._listener is None:
            return leaving
        log.warning(
            "%s was deleted and created again, with another id: %s goes on at the beginning of the new topic. What was "
            "not handled of the old one is gone, and results of its records that still run are not committed.",
            *(" and ".join(sorted(recreated)), self._who),
        )
        self._guard(self._listener.lost, gone)
        self._forget(gone)
        # Since the topic was created, positions of the old one may have been committed.
        self._commit_starts(dict.fromkeys(gone, 0))
        return [partition for partition in leaving if partition not in gone]

    def _commit_starts(self, starts: Mapping[TopicPartition, int]) -> None:
        """Commit where partitions are read on, in place of offsets that their logs do not have."""
        commits = {self._name(partition): (offset, b"") for partition, offset in starts.items()}
        deadline = time.monotonic() + _START_COMMITTED_WITHIN
        refusals: Mapping[capi.Partition, KafkaError] | None = None
        while time.monotonic() < deadline:
            sent = capi.commit(self._consumer, commits)
            refusals = sent.refused(max(0.0, deadline - time.monotonic()))
            sent.forget()
            if refusals is not None and not refusals:
                return
            time.sleep(_COMMIT_AGAIN_AFTER)
        topic, number = next(iter(commits))
        log.error(
            "The start of partition %d of %s could not be committed in the group %s, which may pass over records if it "
            "has an offset there that the log did not have. Look at `headway offsets show %s`. The reason: %s",
            *(number, topic, self._group, self._group, next(iter(refusals.values())) if refusals else "no answer."),
        )

    # An offset that the log lacks

    def _find_places(self, now: float) -> None:
        """Find out where to read on in the partitions whose logs lack the offset that is next to be read."""
        if now < self._look_for_places_at:
            return
        self._look_for_places_at = now + _LOOK_FOR_PLACES_AGAIN_AFTER
        if recreated := self._ids.recreated({self.kafka_topic(partition) for partition in self._lost_places}):
            self._renew(recreated)
            return
        for partition, offset in list(self._lost_places.items()):
            try:
                lost = LostPlace(offset, *self.bounds(partition, _BOUNDS_TOLD_WITHIN))
            except KafkaError as error:
                log.debug("Where to read on is not known yet: %s", error)
                return
            del self._lost_places[partition]
            self._read_on(partition, lost)

    def _read_on(self, partition: TopicPartition, lost: LostPlace) -> None:
        start = lost.start(self._reset or Reset.LATEST)
        if not lost.is_valid:
            sentence = lost.sentence(self.kafka_topic(partition), partition.partition, self._reset or Reset.LATEST)
            self.deleted_unread[partition.level] += lost.deleted
            if start is None:
                self.errors.append(OffsetError(sentence))
                self._set_wake()
            else:
                log.error("%s", sentence)
        self._begun.discard(partition)
        if self._incremental:  # librdkafka takes a stopped partition up again only if it is assigned anew
            self._answer(self._unassign, self._to_kafka([partition]))
        if start is None or self._listener is None:
            self._start.pop(partition, None)  # it begins again with a seek
            return
        if start < lost.offset:  # what is known of the partition is of offsets that the log does not have
            self._guard(self._listener.lost, [partition])
            self._found[partition] = Start(start, b"")
        self._start[partition] = start
        self._can_begin = True
        if start < lost.offset:
            self._guard(self._listener.assigned, [partition])

    def _read_to(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset to which each was read: librdkafka's, or its start if nothing came since."""
        known = {each: self._start[each] for each in partitions if each in self._start}
        begun = self._begun.intersection(partitions)
        for place in self._consumer.position(self._to_kafka(begun)) if begun else ():
            if place.offset >= 0:
                known[self._ours(place)] = place.offset
        return known


def _close_client(
    consumer: ck.Consumer, starts: StartOffsets, ids: TopicIds, turns: TurnsOfLevels, transactions: OpenTransactions
) -> None:
    """Close a client with what belongs to it; it may wait for a group that cannot be reached."""
    if asking := starts.close():
        asking.join()
    ids.close()
    turns.close()
    transactions.forget()
    consumer.close()


def _is_incremental(config: Config) -> bool:
    """Return whether assignments come as differences (KIP-429, KIP-848)."""
    strategy = str(config.get("partition.assignment.strategy", ""))
    return "cooperative" in strategy or config.get("group.protocol") == "consumer"
