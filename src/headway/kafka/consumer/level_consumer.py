"""One level's member of its consumer group: a thin driver of confluent_kafka's consumer.

It speaks Headway's addresses and turns errors that Kafka hands over as messages into `FetchError`s. It lets no
exception out of a rebalance callback: the binding would drop the records that the same call has fetched.
"""

import contextlib
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

import confluent_kafka as ck

from headway.core.levels.naming import LevelSubscription
from headway.core.rights import Right, right_for
from headway.errors import AuthorizationError, FetchError, FetchRefusedError, KafkaError
from headway.kafka.binding import capi
from headway.kafka.binding.capi import PendingCommit
from headway.kafka.binding.connection import Connection
from headway.kafka.binding.error_causes import cause_of
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.retrying import retrying
from headway.kafka.consumer.access_watch import AccessWatch
from headway.kafka.consumer.group_watch import GroupWatch
from headway.kafka.consumer.start_offsets import StartOffsets
from headway.kafka.missing_rights import is_of_the_group, why_refused
from headway.kafka.reading.log_bounds import NONE_THAT_LATE, fetched_end, watermarks
from headway.records import ConsumerRecord, DeserializedRecord, RecordSource, TopicPartition
from headway.runtime.deferred_signals import allow_signals
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

# librdkafka checks a full queue for room again after this time; at its default of a second a small queue starves. With
# 1 ms a small queue is as fast as one of 64 MB. But the queue must hold about a fetch of 1 MB for each partition. Else
# the partition that answers first fills it again and again, and others get nothing (seen with 2 MB and 6 partitions).
_FETCH_DEFAULTS = {"fetch.queue.backoff.ms": 1, "queued.max.messages.kbytes": 16_384}

# A level asked for no records this long is paused, so that its callbacks can be served without its records. Waking it
# costs a refetch, of about 10 ms if the broker is near.
_PARK_AFTER = 0.5
_MOST_AT_ONCE = 1_000_000  # records that the binding returns
_SERVE_EVERY = 0.1
_LEAVE_WITHIN = 10.0
_END_MEMBERSHIP_WITHIN = 1.0
_CLOSE_WITHIN = 30.0
_SEEK_WITHIN = 5.0
_LOOK_WITHIN = 1.0

_GROUP_REFUSED = "Group authorization failed"

# A new partition may still be stopping its last work, or a rebalance pauses it amid the seek.
_ANOTHER_CHANGE_FIRST = (ck.KafkaError._STATE, ck.KafkaError._OUTDATED, ck.KafkaError._PREV_IN_PROGRESS)

# The wake-ups of consumers that are not closed yet. A collector could close the sockets before librdkafka has let go of
# them, and librdkafka would write to the next owner of their numbers.
_wakes: dict[int, Wakeup] = {}

_message_error = ck.Message.error
_message_value = ck.Message.value


class RebalanceListener(Protocol):
    """The receiver of a level's gained and lost partitions, told during `fetch`."""

    def assigned(self, partitions: list[TopicPartition]) -> None: ...
    def revoked(self, partitions: list[TopicPartition]) -> None: ...
    def lost(self, partitions: list[TopicPartition]) -> None: ...


class LevelConsumer:
    """The consumer of one level's records; not thread-safe, like the client that it drives."""

    def __init__(
        self,
        level: int,
        config: Mapping[str, Any],
        readers: tuple[Callable[[Any], Any], Callable[[Any], Any]],
    ) -> None:
        self.level = level
        self._process = os.getpid()
        self.errors: deque[BaseException] = deque()
        self.assigned: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()
        self.ends: dict[TopicPartition, int] = {}  # the log's end when it was reached, if asked for
        self._readers = readers
        self._record = ConsumerRecord if readers[1] is _message_value else DeserializedRecord
        self._source = RecordSource(level, "", *readers)
        self._subscription = LevelSubscription([], "")
        self._begun: set[TopicPartition] = set()  # the partitions of `assigned` that librdkafka reads
        self._start: dict[TopicPartition, int] = {}  # the offset at which each began, or was sought last
        self._unwanted: dict[TopicPartition, int] = {}  # the first record of each that came while leaving
        self._can_begin = False  # True if librdkafka does not read a partition yet whose start is known
        self._rebalanced = False
        self._rejoining = False
        self._member_id = ""  # as it was at the last assignment
        self._parked = False
        self._asked_at = 0.0
        self._served_at = 0.0
        self._incremental = _is_incremental(config)
        self._is_classic = config.get("group.protocol", "classic") != "consumer"
        self._is_static = "group.instance.id" in config
        self._closing = False
        self._wake: Wakeup | None = None
        self._listener: RebalanceListener | None = None
        self._watch = GroupWatch(config)
        self._access = AccessWatch(config)
        self._config = config
        self._group = str(config["group.id"])
        self._connection = Connection(self._watch.suspect)
        self._consumer = make_client(ck.Consumer, {**_FETCH_DEFAULTS, **config}, self._connection)
        reset = str(config.get("auto.offset.reset", "latest"))
        self._starts = StartOffsets(self._consumer, reset, self._set_wake, self._cannot_start)

    @property
    def group_metadata(self) -> bytes:
        """The group's metadata, which a transactional producer needs to commit this level's offsets."""
        metadata: bytes = self._consumer.consumer_group_metadata()
        return metadata

    def wake(self, wake: Wakeup | None) -> None:
        """Set the wake-up that is set whenever records or events arrive; None ends that."""
        self._wake = wake
        capi.wake_on_events(self._consumer, wake.fd if wake else None)
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

    def _set_wake(self) -> None:
        if wake := self._wake:
            wake.set()

    def _cannot_start(self, reason: str, topic: str | None, cause: ck.KafkaError | None) -> None:
        if not self._is_refused(topic, cause):
            self.errors.append(FetchError(self.level, reason))
        self._set_wake()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with other credentials from now on; from any thread.

        Raises `ConfigError` for credentials that librdkafka does not take.
        """
        self._connection.set_credentials(self._consumer, username, password)
        self._watch.set_sasl_credentials(username, password)

    def _is_refused(self, topic: str | None, error: ck.KafkaError | None) -> bool:
        """Return whether this error says that a right is missing; if so, report it when due."""
        right = error and right_for(error.name(), "Read", topic=topic, group=self._group)
        if not right:
            return False
        self._say_refused(self._access.refused(right, time.monotonic()))
        return True

    def _say_refused(self, sentence: str | None) -> None:
        if sentence:
            self.errors.append(FetchRefusedError(self.level, sentence))

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

    @property
    def refused(self) -> str | None:
        """The missing right and what to do, as a sentence; None if nothing is refused."""
        return self._access.sentence()

    @property
    def was_member(self) -> bool:
        """True if its group has ever given it an assignment, even an empty one."""
        return bool(self._member_id)

    def rights(self) -> list[Right]:
        """Return the rights that it needs for its subscription, except for patterns."""
        topics = [topic for topic in self._subscription.topics if not topic.startswith("^")]
        return [Right("Read", "Topic", topic) for topic in topics] + [Right("Read", "Group", self._group)]

    # Subscription

    def subscribe(self, subscription: LevelSubscription, listener: RebalanceListener) -> None:
        """Join the group for this level's topics, in place of those before; without topics, leave it."""
        had = self._subscription
        # While partitions are read under one suffix, they cannot be named by another.
        if had.topics and (not subscription.topics or had.suffix != subscription.suffix):
            self.unsubscribe()
        if not subscription.topics:
            return
        self._subscription = subscription
        self._listener = listener
        self._source = RecordSource(self.level, subscription.suffix, *self._readers)
        self._join(listener)

    def _join(self, listener: RebalanceListener) -> None:
        self._consumer.subscribe(
            self._subscription.topics,
            on_assign=lambda _, partitions: self._on_assign(partitions, listener),
            on_revoke=lambda _, partitions: self._on_leave(partitions, listener.revoked),
            on_lost=lambda _, partitions: self._on_leave(partitions, listener.lost),
        )

    def rejoin(self) -> None:
        """Give this level's partitions up as lost: tell the listener, leave the group and join it again.

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
        self._consumer.unsubscribe()
        began = time.monotonic()
        while (waited := time.monotonic() - began) < _LEAVE_WITHIN and not self._has_left(waited):
            pass
        self._forget(list(self.assigned))
        self._subscription = LevelSubscription([], "")

    def _has_left(self, waited: float) -> bool:
        """Serve the queue: an assignment from before we left may still be there, and its revocation then follows.

        An assignment may be empty, so having no partitions is not enough: a member of a classic group has an id until
        it has left. But if the group waits for others to join, leaving would wait, too, and then nothing is queued.
        """
        may_be_member = self._is_classic and waited < _END_MEMBERSHIP_WITHIN
        is_member = bool(self.assigned or (may_be_member and self._consumer.memberid()))
        return not self._note_unwanted(self._consume(1, _SERVE_EVERY if is_member else 0)) and not is_member

    def _note_unwanted(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Note records that came while leaving and are not wanted: commits must stop before them."""
        for record in records:
            self._unwanted.setdefault(record.topic_partition, record.offset)
        return records

    def close(self) -> None:
        """Leave the group and let go of everything."""
        # librdkafka 2.16 ends a group that has been left without looking at its queue. A rebalance that is still queued
        # is then never answered: the binding's callback waits for ever, and keeps the GIL. The queue is therefore
        # emptied first.
        if self._is_static:
            self._step_aside()
        else:
            self.unsubscribe()
        # On a thread, since librdkafka may wait long for a group it cannot reach, and Ctrl-C ends only a `join`.
        closing = threading.Thread(target=self._close, name="headway-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_WITHIN)
        if closing.is_alive():
            log.warning(
                "The consumer of level %d did not close within %g s; its group notices when this process ends.",
                self.level,
                _CLOSE_WITHIN,
            )

    def _close(self) -> None:
        if asking := self._starts.close():
            asking.join()
        self._consumer.close()

    def _step_aside(self) -> None:
        """Let go of the partitions, which wait for this member to come back within the session timeout (KIP-345)."""
        self._consumer.pause(self._to_kafka(self._begun))  # the queue then only gets rebalances
        deadline = time.monotonic() + _LEAVE_WITHIN
        while self._note_unwanted(self._consume(1, 0)) and time.monotonic() < deadline:
            pass
        self._closing = True
        if self._listener:
            self._guard(self._listener.revoked, list(self.assigned))
        self._forget(list(self.assigned))

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

    def _fetch_nothing(self, now: float) -> list[ConsumerRecord]:
        """Serve rebalances while no records are wanted: a group waits for a member that does not answer."""
        if not self.assigned:  # only an assignment can come, and the rest of the group waits for its answer
            return self._consume(1)
        if now - self._asked_at < _PARK_AFTER or now - self._served_at < _SERVE_EVERY:
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

    # Rebalance

    def _on_assign(self, kafka_partitions: list[ck.TopicPartition], listener: RebalanceListener) -> None:
        partitions = self._from_kafka(kafka_partitions)
        self._rebalanced, self._rejoining = True, False
        self._member_id = self._consumer.memberid()
        self._answer(self._assign, [])  # the group need not wait; the partitions begin when their starts are known
        self.assigned.update(partitions)
        self._guard(listener.assigned, partitions)  # the listener may set a start
        self._starts.ask([self._name(partition) for partition in self.assigned - self._start.keys()])

    def _note_starts(self, found: Mapping[capi.Partition, int]) -> None:
        places = {self._ours(ck.TopicPartition(*name)): offset for name, offset in found.items()}
        self._start |= {each: offset for each, offset in places.items() if each in self.assigned - self._begun}
        self._can_begin = True

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
        self._answer(self._assign, [self._starting_at(partition, offset) for partition, offset in starts.items()])
        if self._parked:  # a partition that was never fetched from is slow to be resumed
            self._resume_parked()
        if paused := self.paused.intersection(partitions):
            self._consumer.pause(self._to_kafka(paused))

    def _assign(self, partitions: list[ck.TopicPartition]) -> None:
        (self._consumer.incremental_assign if self._incremental else self._consumer.assign)(partitions)

    def _starting_at(self, partition: TopicPartition, offset: int) -> ck.TopicPartition:
        return ck.TopicPartition(self.kafka_topic(partition.topic), partition.partition, offset)

    def _on_leave(
        self, kafka_partitions: list[ck.TopicPartition], tell: Callable[[list[TopicPartition]], None]
    ) -> None:
        partitions = [each for each in self._from_kafka(kafka_partitions) if each in self.assigned]
        self._rebalanced = True
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
            self.errors.append(FetchError(self.level, f"a rebalance was not answered: {error.args[0].str()}"))

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
            self.errors.append(error)

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
            self._unwanted.pop(partition, None)
            self.ends.pop(partition, None)

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

    def _read_to(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset to which each was read: librdkafka's, or its start if nothing came since."""
        known = {each: self._start[each] for each in partitions if each in self._start}
        begun = self._begun.intersection(partitions)
        for place in self._consumer.position(self._to_kafka(begun)) if begun else ():
            if place.offset >= 0:
                known[self._ours(place)] = place.offset
        return known

    # Offsets in Kafka

    def commit(self, offsets: Mapping[TopicPartition, int]) -> PendingCommit:
        """Send a commit of the next offset to read of each partition."""
        return self.commit_with_metadata({partition: (offset, "") for partition, offset in offsets.items()})

    def commit_with_metadata(self, commits: Mapping[TopicPartition, tuple[int, str]]) -> PendingCommit:
        """Send a commit of each partition's next offset to read with its exact metadata."""
        return capi.commit(self._consumer, self.as_native(commits), self._explain)

    def hear_refusal(self, error: KafkaError) -> None:
        """Take in why a producer's offsets were refused: the group's refusal may reach this member much later."""
        if is_of_the_group(error):
            self._is_refused(None, cause_of(error))

    def _explain(self, error: KafkaError, topic: str) -> KafkaError:
        """Return why a commit was refused; a missing right is reported, and asked for until it is granted."""
        cause = cause_of(error)
        if cause is None or not self._is_refused(topic, cause):
            return error
        return why_refused(cause, "Read", self._config, topic=topic, group=self._group) or error

    def committed_with_metadata(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> dict[TopicPartition, tuple[int, bytes] | None]:
        """Return the committed offset of each partition with its exact metadata, None if it has none."""
        names = {(self.kafka_topic(each.topic), each.partition): each for each in partitions}
        answers = capi.committed(self._consumer, list(names), timeout)
        return {names[name]: answer for name, answer in answers.items()}

    def committed(self, partitions: Collection[TopicPartition], timeout: float) -> dict[TopicPartition, int | None]:
        """Return the committed offset of each partition, None if it has none."""
        return self._offsets(self._call(self._consumer.committed, self._to_kafka(partitions), timeout))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, int | None]:
        """Return each first offset at or after a time in milliseconds since the epoch, None if there is none.

        Raises `KafkaError` if Kafka does not answer: below `NONE_THAT_LATE` an offset is not known.
        """
        found = self._call(self._consumer.offsets_for_times, self.at_offsets(times), timeout)
        for each in found:
            if each.error or each.offset < NONE_THAT_LATE:
                reason = each.error.str() if each.error else "its leader does not answer"
                raise KafkaError(
                    f"Kafka did not say which offset partition {each.partition} of {each.topic} had then: {reason}. "
                    "Try again."
                )
        return self._offsets(found)

    def bounds(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        """Return the first offset and the one after the last; raises `KafkaError` if they are not known in time."""
        return watermarks(self._consumer, self._name(partition), timeout)

    def known_end(self, partition: TopicPartition) -> int | None:
        """Return the offset after the last, as in the latest fetch, without a request; None if that had none."""
        return fetched_end(self._consumer, self._name(partition))

    def topics(self, topic: str | None, timeout: float) -> dict[str, int]:
        """Return the topics in Kafka and the number of partitions of each."""
        metadata = self._call(self._consumer.list_topics, topic, timeout)
        return {name: len(about.partitions) for name, about in metadata.topics.items() if about.error is None}

    def partition_count(self, topic: str, timeout: float) -> int:
        """Return the number of partitions of this level of a topic; 0 if it does not exist or is another level's."""
        if not self.reads(topic):
            return 0
        name = self.kafka_topic(topic)
        return self.topics(name, timeout).get(name, 0)

    def reads(self, topic: str) -> bool:
        """Return whether a topic can be this level's, by its subscription."""
        return self._subscription.reads(topic)

    def kafka_topic(self, topic: str) -> str:
        """Return the Kafka topic that holds this level of a topic."""
        return self._subscription.kafka_topic(topic)

    def at_offsets(self, offsets: Mapping[TopicPartition, int]) -> list[ck.TopicPartition]:
        """Return offsets as the binding takes them."""
        return [
            ck.TopicPartition(self.kafka_topic(topic), partition, offset)
            for (topic, partition, _), offset in offsets.items()
        ]

    # Addresses

    def as_native(self, commits: Mapping[TopicPartition, tuple[int, str]]) -> capi.Offsets:
        """Return offsets and metadata under the names that Kafka knows."""
        return {
            (self.kafka_topic(topic), partition): (offset, metadata.encode())
            for (topic, partition, _), (offset, metadata) in commits.items()
        }

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except ck.KafkaException as error:
            topic = next(iter(self._subscription.topics), None)
            if refused := why_refused(error.args[0], "Read", self._config, topic=topic, group=self._group):
                raise refused from error
            raise self._refused(error) from error

    def _refused(self, error: ck.KafkaException) -> KafkaError:
        return KafkaError(f"Level {self.level}: {error.args[0].str()}{self._connection.because()}")

    def _to_kafka(self, partitions: Iterable[TopicPartition]) -> list[ck.TopicPartition]:
        return [ck.TopicPartition(self.kafka_topic(topic), partition) for topic, partition, _ in partitions]

    def _name(self, partition: TopicPartition) -> capi.Partition:
        return self.kafka_topic(partition.topic), partition.partition

    def _ours(self, partition: ck.TopicPartition) -> TopicPartition:
        return TopicPartition(partition.topic.removesuffix(self._subscription.suffix), partition.partition, self.level)

    def _from_kafka(self, partitions: Iterable[ck.TopicPartition]) -> list[TopicPartition]:
        return [self._ours(partition) for partition in partitions]

    def _offsets(self, partitions: Iterable[ck.TopicPartition]) -> dict[TopicPartition, int | None]:
        return {self._ours(partition): partition.offset if partition.offset >= 0 else None for partition in partitions}


def _place(message: Any) -> ck.TopicPartition:
    return ck.TopicPartition(message.topic(), message.partition(), message.offset())


def _is_incremental(config: Mapping[str, Any]) -> bool:
    """Return whether assignments come as differences (KIP-429, KIP-848)."""
    strategy = str(config.get("partition.assignment.strategy", ""))
    return "cooperative" in strategy or config.get("group.protocol") == "consumer"
