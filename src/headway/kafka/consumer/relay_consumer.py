"""A relay's consumer, which is assigned the same partition numbers in all topics of a scheduler.

The consumer reads from the offsets that the relay has stored, not from those that the group has committed. So an
assignment does not start the reading; a call of `begin` does.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

import confluent_kafka as ck
from confluent_kafka import cimpl

from headway.core.permissions import Permission
from headway.errors import AuthorizationError, KafkaError
from headway.kafka.admin import Admin
from headway.kafka.binding.capi import Partition, committed, wake_on_events
from headway.kafka.binding.connection import Connection
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.statistics import Statistics
from headway.kafka.binding.unpacking import UNPACKS, Unpacking, is_not_unpacked
from headway.kafka.missing_permissions import is_refusal, why_refused
from headway.kafka.reading.log_bounds import fetched_end
from headway.runtime.background import in_background
from headway.runtime.wakeup import Wakeup
from headway.settings.config import Config

if TYPE_CHECKING:
    from confluent_kafka.admin._records import DeletedRecords

log = logging.getLogger(__name__)

_SETTINGS: Config = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "partition.assignment.strategy": "range",
}
_DEFAULTS: Config = {
    **UNPACKS,
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 1000,
    "fetch.queue.backoff.ms": 1,
    "queued.max.messages.kbytes": 16_384,
    # A record for which a window has no space is fetched again later, so each fetch is small.
    "fetch.message.max.bytes": 131_072,
    "fetch.wait.max.ms": 100,
}
_CLOSE_WITHIN = 10.0

NOT_DELETED = (
    "Records that are no longer needed in the delay topics are not deleted, so they take up disk space permanently."
)


class RelayConsumer:
    """A consumer of the delay topics. `rebalanced` is set to True when its partitions have changed."""

    def __init__(self, config: Config, wake: Wakeup) -> None:
        self._unpacking = Unpacking(config)
        self._wake = wake
        self._subscribe: Callable[[], None] = lambda: None
        self._paused: set[Partition] = set()
        self._member_id = ""  # this member's id at the last assignment
        self._config = config
        self.statistics = Statistics(config)
        self.assigned: set[Partition] = set()
        self.rebalanced = False
        self.refusal: AuthorizationError | None = None  # the missing permission; while it is set, nothing is read
        self.ends: dict[Partition, int] = {}  # the end offsets of the partitions that were fetched to their ends
        self._make_client()

    def _make_client(self) -> None:
        self._connection = Connection()
        settings = {**_DEFAULTS, **self._config, **self.statistics.settings, **_SETTINGS}
        self._consumer = make_client(cimpl.Consumer, settings, self._connection)
        wake_on_events(self._consumer, self._wake.fd)

    @property
    def group_metadata(self) -> bytes:
        """The group's metadata.

        If a producer sends offsets with this metadata, Kafka fences the producer off after a rebalance.
        """
        metadata: bytes = self._consumer.consumer_group_metadata()
        return metadata

    def subscribe(self, topics: list[str], before_leaving: Callable[[], None]) -> None:
        """Join the group to read these topics. If the member has joined already, change its topics.

        `before_leaving` is called before revoked partitions go to another member, but not for lost partitions.
        """

        def on_revoke(consumer: cimpl.Consumer, partitions: list[ck.TopicPartition]) -> None:
            before_leaving()
            # If `before_leaving` calls `assign`, even without partitions after a failure, the binding does not answer
            # the rebalance itself, and the group would wait forever. So this call releases the partitions.
            consumer.unassign()
            self._on_leave(consumer, partitions)

        self._subscribe = lambda: self._consumer.subscribe(
            topics, on_assign=self._on_assign, on_revoke=on_revoke, on_lost=self._on_leave
        )
        self._subscribe()

    def rejoin(self) -> None:
        """Leave the group and join it again after this member was expelled, unless librdkafka is already doing so."""
        if self._consumer.memberid() != self._member_id:
            return
        self.leave()
        self._subscribe()

    def renew(self) -> None:
        """Leave the group and join it with another client, because topics were deleted and created again.

        librdkafka reads nothing from a new topic whose leader epoch is lower than that of the deleted topic.
        """
        self.leave()
        wake_on_events(self._consumer, None)
        in_background(self._consumer.close)
        self.assigned = set()
        self._paused.clear()
        self.ends.clear()
        self._make_client()
        self._subscribe()

    def committed(self, partitions: Collection[Partition], within: float) -> dict[Partition, int]:
        """Return the offsets that the group has committed for these partitions. Raises `KafkaError`."""
        found = committed(self._consumer, list(partitions), within)
        return {partition: commit[0] for partition, commit in found.items() if commit is not None}

    def _on_assign(self, consumer: cimpl.Consumer, partitions: list[ck.TopicPartition]) -> None:
        consumer.assign([])
        self._member_id = consumer.memberid()
        self.assigned = {(each.topic, each.partition) for each in partitions}
        self.rebalanced = True

    def _on_leave(self, consumer: cimpl.Consumer, partitions: list[ck.TopicPartition]) -> None:
        self.assigned = set()
        self.rebalanced = True

    def begin(self, starts: Mapping[Partition, int]) -> None:
        """Read these partitions from these offsets on, and no other partitions."""
        self._paused.clear()
        self.ends.clear()
        self._consumer.assign([ck.TopicPartition(topic, number, offset) for (topic, number), offset in starts.items()])

    def fetch(self, most: int) -> list[ck.Message]:
        """Return at most `most` records that have arrived, without waiting.

        Rebalance callbacks run within this call.
        """
        try:
            messages = self._consumer.consume(most, 0)
        except ck.KafkaException as error:
            log.warning("Fetching failed, and will be tried again: %s", error.args[0].str())
            return []
        if self.rebalanced:  # these messages belong to the previous assignment
            return []
        records = [message for message in messages if message.error() is None]
        if len(records) < len(messages):
            self._note_events(messages)
            if len(messages) == most:
                self._wake.set()  # librdkafka does not signal again for records that remain in its queue
        return records

    def _note_events(self, messages: list[ck.Message]) -> None:
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == ck.KafkaError._PARTITION_EOF:
                self.ends[message.topic() or "", message.partition() or 0] = message.offset() or 0
            elif refusal := why_refused(
                error, "Read", self._config, topic=message.topic(), group=str(self._config["group.id"])
            ):
                self.refusal = refusal
            elif is_not_unpacked(error):
                if self._unpacking.is_due(message, time.monotonic()):
                    log.warning("%s", self._unpacking.sentence(message))
            else:
                log.warning("Fetching failed, and will be tried again: %s", error.str())

    def known_end(self, partition: Partition) -> int | None:
        """Return the end of a partition's log as of its last fetch, or None if it was not fetched from yet."""
        return fetched_end(self._consumer, partition)

    def check(self) -> None:
        """Raise `AuthenticationError` if the brokers refuse this member's login."""
        self._connection.check(self._consumer)

    def hold(self, partitions: Collection[Partition]) -> None:
        """Pause these partitions, and fetch from all others."""
        wanted = self._paused.difference(partitions)
        unwanted = set(partitions).difference(self._paused)
        if unwanted:
            self._consumer.pause([ck.TopicPartition(*each) for each in unwanted])
        if wanted:
            self._consumer.resume([ck.TopicPartition(*each) for each in wanted])
        self._paused = set(partitions)

    def close(self) -> None:
        """Leave the group, and close the consumer. This waits for the group's coordinator for at most 10 s."""
        until = time.monotonic() + _CLOSE_WITHIN
        self.leave()
        wake_on_events(self._consumer, None)
        closing = threading.Thread(target=self._consumer.close, name="headway-relay-close", daemon=True)
        closing.start()
        closing.join(max(0.0, until - time.monotonic()))

    def leave(self) -> None:
        """Leave the group. The member can join again with `subscribe`."""
        self._consumer.unsubscribe()
        deadline = time.monotonic() + _CLOSE_WITHIN
        while self.assigned and time.monotonic() < deadline:
            self._consumer.consume(100, 0.1)


class Deletion:
    """Deletes records that a delay topic no longer needs. These are at the beginning of each partition.

    `refused` is the permission that was missing according to the latest answers, or None.
    """

    def __init__(self) -> None:
        self._deleted: dict[Partition, int] = {}
        self._asked: dict[Partition, Future[DeletedRecords]] = {}
        self.refused: Permission | None = None

    def delete_before(self, offsets: Mapping[Partition, int], admin: Admin) -> None:
        """Request a deletion of the records before these offsets, without waiting.

        A deletion that was refused is requested again by the next call. Raises `KafkaError`.
        """
        self._take_answers()
        fresh = {each: offset for each, offset in offsets.items() if offset > self._deleted.get(each, 0)}
        if not fresh:
            return
        asked = [ck.TopicPartition(*each, offset) for each, offset in fresh.items()]
        try:
            answers = admin.client.delete_records(asked)
        except ck.KafkaException as error:
            raise KafkaError(
                f"Records that are no longer needed could not be deleted from the scheduler's topics: "
                f"{error.args[0].str()}."
            ) from error
        self._asked |= {(each.topic, each.partition): answer for each, answer in answers.items()}
        self._deleted.update(fresh)

    def _take_answers(self) -> None:
        self.refused = None
        for place, answer in list(self._asked.items()):
            if not answer.done():
                continue
            del self._asked[place]
            if isinstance(error := answer.exception(), ck.KafkaException) and is_refusal(error.args[0]):
                self._deleted.pop(place, None)
                self.refused = Permission("Delete", "Topic", place[0])
