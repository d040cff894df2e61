"""A consumer's membership in the group of one level, or of all levels: joining, leaving, and the assigned partitions.

No exception must leave a rebalance callback, because the binding would drop the records that the same call has fetched.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, KeysView, Mapping
from typing import Protocol

import confluent_kafka as ck
from confluent_kafka import cimpl

from headway.core.levels.assigned_partitions import AssignedPartitions, AssignmentState
from headway.core.levels.group_subscription import GroupSubscription
from headway.core.offsets.lost_place import RESETS, LostPlace, Reset
from headway.errors import FetchError, HeadwayError, KafkaError, OffsetError
from headway.kafka.binding import capi
from headway.kafka.consumer.addresses import Addresses
from headway.kafka.consumer.group_client import GroupClient
from headway.kafka.consumer.missing_topics import deleted_topic, look_for_missing, missing_topic
from headway.kafka.consumer.other_commits import OtherCommits
from headway.kafka.consumer.start_offsets import StartOffsets
from headway.kafka.consumer.start_questions import StartOffset
from headway.records.record_types import TopicPartition
from headway.runtime.background import in_background
from headway.runtime.deferred_signals import allow_signals, defer_signals
from headway.settings.config import Config

log = logging.getLogger(__name__)

SERVE_EVERY = 0.1
"""How often a member that fetches no records responds to its group, in seconds."""
_LEAVE_WITHIN = 10.0
_END_MEMBERSHIP_WITHIN = 1.0
_BOUNDS_ANSWERED_WITHIN = 1.0
_FIND_PLACES_AGAIN_AFTER = 0.5


class RebalanceListener(Protocol):
    """The methods of a listener are called when a member gains or loses partitions, while the member fetches."""

    def assigned(self, partitions: list[TopicPartition]) -> None: ...
    def revoked(self, partitions: list[TopicPartition]) -> None: ...
    def lost(self, partitions: list[TopicPartition]) -> None: ...


class _NoListener:
    """The listener before the first subscription, when the group cannot have given this member a partition."""

    def assigned(self, partitions: list[TopicPartition]) -> None: ...
    def revoked(self, partitions: list[TopicPartition]) -> None: ...
    def lost(self, partitions: list[TopicPartition]) -> None: ...


class PartitionReader(Protocol):
    """Reads the member's partitions, and keeps records and queues for them."""

    def begun(self, partitions: Collection[TopicPartition], restarted: Collection[TopicPartition]) -> None:
        """Note that the client now reads these partitions.

        The `restarted` partitions were assigned to librdkafka again, and continue from their start offsets.
        """

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the records and the state of partitions that this member loses."""

    def begin_again(self) -> None:
        """Drop the state that belongs to librdkafka's consumer, because another consumer is about to replace it."""


class Membership:
    """A membership in a group, with the assigned partitions and the offsets at which they begin.

    Not thread-safe: the rebalance callbacks run within calls on one thread. `callback_errors` gets the errors that the
    listener's methods raise. `base_group` is the group's name without the number of a level. Without `base_group`, the
    commits of other groups are not checked.
    """

    def __init__(self, client: GroupClient, reader: PartitionReader, base_group: str | None) -> None:
        self._client = client
        self._reader = reader
        self._listener: RebalanceListener = _NoListener()
        self._partitions: AssignedPartitions[TopicPartition] = AssignedPartitions()
        # The start offsets that Kafka has returned, by partition.
        self._found: dict[TopicPartition, StartOffset] = {}
        # For each partition with records that were dropped while leaving the group, the offset of the first of them.
        self._unwanted: dict[TopicPartition, int] = {}
        self._find_places_at = 0.0
        self._reset = RESETS.get(str(client.config.get("auto.offset.reset", "latest")).lower(), Reset.LATEST)
        self.callback_errors: deque[BaseException] = deque()
        self.deleted_unread = dict.fromkeys(client.levels, 0)
        """The number of records on each level that Kafka had deleted before they were read."""
        self._has_met = False  # True if the group has rebalanced since the last fetch
        self._rejoining = False
        self._member_id = ""  # this member's id at the last assignment
        self._is_incremental = _is_incremental(client.config)
        self._is_classic = client.config.get("group.protocol", "classic") != "consumer"
        self.is_static = "group.instance.id" in client.config
        """True for a static member.

        A static member does not leave the group when it closes, so that its partitions stay reserved until it returns.
        """
        self._has_stepped_aside = False
        self._others = OtherCommits(client, base_group) if base_group else None
        self._starts = StartOffsets(client, self._others)

    @property
    def assigned(self) -> KeysView[TopicPartition]:
        """The partitions of this member, as a view that reflects later changes."""
        return self._partitions.all

    @property
    def was_member(self) -> bool:
        """True if the group has ever given this member an assignment, even an empty one."""
        return bool(self._member_id)

    @property
    def _addresses(self) -> Addresses:
        return self._client.addresses

    # Joining and leaving

    def subscribe(self, subscription: GroupSubscription, listener: RebalanceListener) -> None:
        """Join the group to read these topics, which replace the earlier ones. Without topics, leave the group."""
        had = self._addresses.subscription
        # The Kafka names of partitions must not change while they are read, so the member leaves the group first.
        if had.topics and not (subscription.topics and subscription.keeps_addresses_of(had)):
            self._leave()
            self.forget_group()
        if not subscription.topics:
            return
        self._client.addresses = Addresses(self._client.levels, subscription)
        self._listener = listener
        self._join()
        if not self._is_classic:
            look_for_missing(subscription.topics, self._client.config, self._report_missing)

    def _join(self) -> None:
        self._client.consumer.subscribe(
            self._addresses.subscription.topics,
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _report_missing(self, topic: str) -> None:
        if topic in self._addresses.subscription.topics:
            self._client.report_failure(missing_topic(topic), topic)

    def rejoin(self) -> None:
        """Give up all partitions as lost, and then leave the group and join it again, without waiting.

        The listener is called. Records of these partitions that are still being fetched are dropped. If librdkafka
        itself has noticed the loss, it is already joining again, and the next fetch will call the listener.
        """
        consumer = self._client.consumer
        if not self._addresses.subscription.topics or consumer.memberid() != self._member_id:
            return
        lost = list(self.assigned)
        self._rejoining = self._has_met = True
        self._guard(self._listener.lost, lost)
        self._forget(lost)
        consumer.unsubscribe()
        self._join()

    def _leave(self) -> None:
        self.begin_to_leave()
        began = time.monotonic()
        while (waited := time.monotonic() - began) < _LEAVE_WITHIN and not self.has_left(waited):
            pass
        self._forget(list(self.assigned))

    def begin_to_leave(self) -> None:
        """Begin to leave the group. Call `has_left` until it returns True, and then call `forget_group`."""
        self._client.consumer.unsubscribe()

    def has_left(self, waited: float, patience: float = SERVE_EVERY) -> bool:
        """Process one event of librdkafka's queue, and return whether the member has left the group.

        The queue may still contain an assignment, which is followed by its revocation. The assignment can be empty, so
        a member without partitions has not necessarily left. A member of a classic group has an id until it has left.
        But while the group waits for other members to join, the member cannot leave, and the queue stays empty. So the
        id is checked only for the first second.
        """
        may_be_member = self._is_classic and waited < _END_MEMBERSHIP_WITHIN
        is_member = bool(self.assigned or (may_be_member and self._client.consumer.memberid()))
        # A rebalance that is interrupted would never be answered, and the member would never leave.
        with defer_signals():
            has_come = self._drop_one(patience if is_member else 0)
        return not has_come and not is_member

    def forget_group(self) -> None:
        """Drop the partitions and the topics of a group that the member has left."""
        self._forget(list(self.assigned))
        self._client.addresses = Addresses(self._client.levels)

    def step_aside(self, until: float) -> None:
        """Give up the partitions without leaving the group (KIP-345).

        The partitions stay reserved for this member until its session times out.
        """
        # After this call, the queue receives only rebalances.
        self._client.consumer.pause(self._addresses.to_kafka(self._partitions.begun()))
        with defer_signals():
            while self._drop_one(0) and time.monotonic() < until:
                pass
        self._has_stepped_aside = True
        self._guard(self._listener.revoked, list(self.assigned))
        self._forget(list(self.assigned))

    def _drop_one(self, timeout: float) -> bool:
        """Drop the next record of the queue, and limit commits to the offsets before it.

        Returns whether there was a record.
        """
        messages = self._client.fetch(1, timeout).messages
        for message in messages:
            partition = self._addresses.of(message.topic(), message.partition())
            if partition in self.assigned:
                self._unwanted.setdefault(partition, message.offset() or 0)
        return bool(messages)

    def close(self) -> None:
        """Wait until no thread uses the client any longer, so that it can be closed."""
        self._starts.close()

    # Work before each fetch

    def advance(self, now: float) -> None:
        """Start partitions with known start offsets, check the topics, and find new positions for lost partitions."""
        if found := self._starts.take():
            self._locate(found)
        if self._client.ids.is_due(now):
            self._look_at_topics(now)
        if self._partitions.adrift:
            self._find_places(now)
        if self._partitions.ready and self._client.ids.is_settled(now):
            self._begin()
        if self._client.watch.is_on and self._has_fallen_behind(now):
            log.warning(
                "%s has missed an assignment of its group, so it leaves the group and joins it again.", self._client.who
            )
            self.rejoin()

    def _has_fallen_behind(self, now: float) -> bool:
        ours = self._addresses.names(self.assigned)
        return self._client.watch.finds_behind(self._client.consumer.memberid(), ours, now)

    def has_met(self) -> bool:
        """Return whether the group has rebalanced since the last call.

        If so, some fetched records may be of lost partitions.
        """
        has_met, self._has_met = self._has_met, self._rejoining
        return has_met

    # Rebalances

    def _on_assign(self, _: cimpl.Consumer, kafka_partitions: list[ck.TopicPartition]) -> None:
        partitions = self._addresses.from_kafka(kafka_partitions)
        self._has_met, self._rejoining = True, False
        self._member_id = self._client.consumer.memberid()
        # Answer at once, so that the group does not have to wait until the start offsets are known.
        self._answer(self._assign, [])
        self._partitions.assign(partitions)
        self._guard(self._listener.assigned, partitions)  # the listener may choose a start offset
        # Ids are also requested for topics without an assigned partition, so that partitions that are added later are
        # recognised.
        topics = {topic for topic in self._addresses.subscription.topics if not topic.startswith("^")}
        topics |= self._addresses.topics(self.assigned - set(self._partitions.begun()))
        self._client.ids.ask_before_start(topics, time.monotonic(), self._client.wake_fd)
        self._starts.ask(self._addresses.names(self._partitions.without_start()))

    def _on_revoke(self, _: cimpl.Consumer, kafka_partitions: list[ck.TopicPartition]) -> None:
        leaving = self._leaving(kafka_partitions)
        recreated = self._client.ids.recreated(self._addresses.topics(leaving))
        self._let_go(kafka_partitions, self._without_recreated(leaving, recreated), self._listener.revoked)

    def _on_lost(self, _: cimpl.Consumer, kafka_partitions: list[ck.TopicPartition]) -> None:
        self._let_go(kafka_partitions, self._leaving(kafka_partitions), self._listener.lost)

    def _leaving(self, kafka_partitions: list[ck.TopicPartition]) -> list[TopicPartition]:
        self._has_met = True
        return [each for each in self._addresses.from_kafka(kafka_partitions) if each in self.assigned]

    def _let_go(
        self,
        kafka_partitions: list[ck.TopicPartition],
        partitions: list[TopicPartition],
        tell: Callable[[list[TopicPartition]], None],
    ) -> None:
        # The listener was already called for partitions that were given up as lost or by `step_aside`.
        if partitions and not self._has_stepped_aside:
            self._guard(tell, partitions)
        self._answer(self._unassign, kafka_partitions)
        self._forget(partitions)

    def _answer(self, call: Callable[[list[ck.TopicPartition]], None], partitions: list[ck.TopicPartition]) -> None:
        """Answer a rebalance. An error of librdkafka is reported instead of raised.

        librdkafka refuses the answer of a client with a fatal error, and also reports the fatal error itself.
        """
        try:
            call(partitions)
        except ck.KafkaException as error:
            reason = f"a rebalance could not be answered: {error.args[0].str()}"
            self._client.errors.append(FetchError(self._addresses.level_of(None), reason))

    def _assign(self, partitions: list[ck.TopicPartition]) -> None:
        consumer = self._client.consumer
        (consumer.incremental_assign if self._is_incremental else consumer.assign)(partitions)

    def _unassign(self, kafka_partitions: list[ck.TopicPartition]) -> None:
        """Unassign partitions, except those that were not assigned to librdkafka, because it would refuse these."""
        consumer = self._client.consumer
        if not self._is_incremental:
            consumer.unassign()
            return
        read = {(each.topic, each.partition) for each in consumer.assignment()}
        consumer.incremental_unassign([each for each in kafka_partitions if (each.topic, each.partition) in read])

    def _guard(self, tell: Callable[[list[TopicPartition]], None], partitions: list[TopicPartition]) -> None:
        try:
            with allow_signals():
                tell(partitions)
        except BaseException as error:
            self.callback_errors.append(error)

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        self._reader.forget(partitions)
        self._starts.forget(self._addresses.names(partitions))
        self._partitions.end(partitions)
        for partition in partitions:
            self._found.pop(partition, None)
            self._unwanted.pop(partition, None)

    # Start offsets

    def _locate(self, found: Mapping[capi.Partition, StartOffset]) -> None:
        starts = {self._addresses.of(*name): start for name, start in found.items()}
        for partition in self._partitions.locate({each: start.offset for each, start in starts.items()}):
            self._found[partition] = starts[partition]

    def start_of(self, partition: TopicPartition) -> StartOffset | None:
        """Return the start of an assigned partition, or None if Kafka has not returned the start yet."""
        return self._found.get(partition)

    def _begin(self) -> None:
        """Assign those partitions to librdkafka whose start offsets are known."""
        new = set(self._partitions.ready)
        restarted = new
        # Without incremental rebalances, the call replaces the whole assignment, so it has to name all partitions
        # again.
        if not self._is_incremental:
            before = self._partitions.begun()
            self._partitions.note_starts(self.read_to(before))
            restarted = new.union(before)
        self._partitions.begin(new)
        starts = self._partitions.starts(restarted)
        self._answer(self._assign, self._addresses.places(starts))
        self._reader.begun(new, restarted)

    # Positions in the logs

    def begun(self, among: Collection[TopicPartition] | None = None) -> list[TopicPartition]:
        """Return the partitions that librdkafka reads, among the given partitions or among all."""
        return self._partitions.begun(among)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Start or continue a partition at this offset. Raises `KafkaError` if the client cannot seek."""
        before, state = self._partitions.starts([partition]), self._partitions.state_of(partition)
        self._partitions.seek(partition, offset)
        if state is AssignmentState.READING:
            try:
                self._client.seek(partition, offset)
            except KafkaError:
                self._partitions.note_starts(before)
                raise
            return
        if state is AssignmentState.ADRIFT:
            self._stop_reading(partition)
        self._starts.forget([self._addresses.name(partition)])
        self._client.wake()

    def read_from(self, partition: TopicPartition, offset: int) -> None:
        """Let librdkafka continue a partition at its current position or at an earlier offset.

        Raises `KafkaException`.
        """
        # After a seek, librdkafka no longer reports the partition's earlier position.
        self._partitions.note_starts({partition: offset})
        self._client.consumer.seek(ck.TopicPartition(*self._addresses.name(partition), offset))

    def read_to(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the next offset of each partition.

        This is librdkafka's position, or the start offset if no record has arrived.
        """
        known = self._partitions.starts(partitions)
        begun = self._partitions.begun(partitions)
        for place in self._client.consumer.position(self._addresses.to_kafka(begun)) if begun else ():
            if place.offset >= 0:
                known[self._addresses.of(place.topic, place.partition)] = place.offset
        return known

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition.

        A partition's position stops before the first record that was dropped while leaving the group.
        """
        return self.read_to(self.assigned) | self._unwanted

    # Positions that a log does not have

    def lose_places(self, places: Mapping[TopicPartition, int]) -> None:
        """Note that the logs do not have these offsets. `advance` will find other offsets at which to continue."""
        self._partitions.lose_places(places)
        if self._partitions.adrift:
            self._client.wake()

    def _find_places(self, now: float) -> None:
        if now < self._find_places_at:
            return
        self._find_places_at = now + _FIND_PLACES_AGAIN_AFTER
        adrift = dict(self._partitions.adrift)
        if recreated := self._client.ids.recreated(self._addresses.topics(adrift)):
            self._renew(recreated)
            return
        for partition, offset in adrift.items():
            try:
                lost = LostPlace(offset, *self._client.bounds(partition, _BOUNDS_ANSWERED_WITHIN))
            except KafkaError as error:
                log.debug("The offset at which to continue is not known yet: %s", error)
                return
            self._read_on(partition, lost)

    def _read_on(self, partition: TopicPartition, lost: LostPlace) -> None:
        start = lost.start(self._reset)
        if not lost.is_valid:
            sentence = lost.sentence(self._addresses.topic(partition), partition.partition, self._reset)
            self.deleted_unread[partition.level] += lost.deleted
            if start is None:
                self._client.report(OffsetError(sentence))
            else:
                log.error("%s", sentence)
        self._stop_reading(partition)
        if start is None:
            self._partitions.place(partition, None)
        elif start < lost.offset:  # the partition's state belongs to offsets that the log no longer has
            self._guard(self._listener.lost, [partition])
            self._found[partition] = StartOffset(start, b"")
            self._partitions.place(partition, start)
            self._guard(self._listener.assigned, [partition])
        else:
            self._partitions.place(partition, start)

    def _stop_reading(self, partition: TopicPartition) -> None:
        if self._is_incremental:  # librdkafka continues a stopped partition only if it is assigned again
            self._answer(self._unassign, self._addresses.to_kafka([partition]))

    # Topics that were deleted and created again

    def _look_at_topics(self, now: float) -> None:
        """Check whether topics were deleted or created again. If a topic was created again, replace the client."""
        ids = self._client.ids
        topics = self._addresses.topics(self.assigned) | (ids.known & set(self._addresses.subscription.topics))
        changes = ids.look(topics, now, self._client.wake_fd)
        for topic in sorted(changes.deleted):
            self._client.report(FetchError(self._addresses.level_of(topic), deleted_topic(topic)))
        if changes.recreated:
            self._renew(changes.recreated)

    def _renew(self, recreated: Collection[str]) -> None:
        """Leave the group and join it again with another client, because these topics were deleted and created again.

        librdkafka keeps the metadata of the deleted topics. If a new topic has a lower leader epoch, for example after
        a restart of its broker, librdkafka ignores all metadata of the new topic, and never reads it.
        """
        try:
            replacement = self._client.make()  # if this fails, the old client stays in use
        except HeadwayError as error:
            self._client.errors.append(error)
            return
        self._has_met = True
        if others := self._without_recreated(list(self.assigned), recreated):
            self._guard(self._listener.revoked, others)
        self._leave()
        with defer_signals():  # an interrupt within this block would leave the member without a client
            self._reader.begin_again()
            before, starts = self._client.replace(*replacement), self._starts
            self._starts = StartOffsets(self._client, self._others)
            in_background(lambda: _close(starts, before))
        self._join()

    def _without_recreated(self, leaving: list[TopicPartition], recreated: Collection[str]) -> list[TopicPartition]:
        """Give up the partitions of topics that were created again, before their old positions are committed.

        Returns the other partitions. The group will continue at the beginning of the new topics.
        """
        gone = [partition for partition in leaving if self._addresses.topic(partition) in recreated]
        if not gone:
            return leaving
        log.warning(
            "%s was deleted and created again, with another id. %s continues at the beginning of the new topic. "
            "Records of the old topic that were not handled are lost, and those that are being handled will not be "
            "committed.",
            *(" and ".join(sorted(recreated)), self._client.who),
        )
        self._guard(self._listener.lost, gone)
        self._forget(gone)
        # Positions in the old topic may have been committed after the new topic was created.
        self._commit_beginnings(gone)
        return [partition for partition in leaving if partition not in gone]

    def _commit_beginnings(self, partitions: Collection[TopicPartition]) -> None:
        refusals = self._client.commit_at_once(dict.fromkeys(partitions, 0))
        if refusals is not None and not refusals:
            return
        topic, number = self._addresses.name(next(iter(partitions)))
        group = self._client.group
        log.error(
            "The start of partition %d of %s could not be committed in the group %s. If the group still has a commit "
            "of the old topic for this partition, it may skip records of the new topic: see `headway offsets show "
            "%s`. The commit failed because of: %s",
            *(number, topic, group, group, next(iter(refusals.values())) if refusals else "no answer."),
        )


def _close(starts: StartOffsets, consumer: cimpl.Consumer) -> None:
    """Close a client that was replaced, after no thread uses it any longer.

    This can take a long time if the group's coordinator cannot be reached.
    """
    starts.close()
    consumer.close()


def _is_incremental(config: Config) -> bool:
    """Return whether rebalances add and remove individual partitions (KIP-429, KIP-848)."""
    strategy = str(config.get("partition.assignment.strategy", ""))
    return "cooperative" in strategy or config.get("group.protocol") == "consumer"
