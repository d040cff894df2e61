"""A relay's member of its group: reads the partitions of one number of all of a scheduler's topics.

The start is the offset that the relay has stored, not the one that the group has committed. An assignment is therefore
only noted, and read once `begin` gives the starts.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

import confluent_kafka as ck

from headway.core.rights import Right
from headway.errors import AuthorizationError, KafkaError
from headway.kafka.admin import Admin
from headway.kafka.binding.capi import Partition, committed, wake_on_events
from headway.kafka.binding.connection import Connection
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.unpacking import UNPACKS, Unpacking, is_not_unpacked
from headway.kafka.missing_rights import is_refusal, why_refused
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
    # Records that find no room in a window are fetched again, so only little at a time.
    "fetch.message.max.bytes": 131_072,
    "fetch.wait.max.ms": 100,
}
_CLOSE_WITHIN = 10.0

NOT_DELETED = "Records that have left the delay lines are not deleted, and take up space forever."


class RelayConsumer:
    """A consumer of the lines, which also tells when its own partitions have changed."""

    def __init__(self, config: Config, wake: Wakeup) -> None:
        self._unpacking = Unpacking(config)
        self._wake = wake
        self._subscribe: Callable[[], None] = lambda: None
        self._paused: set[Partition] = set()
        self._member_id = ""  # as it was at the last assignment
        self._config = config
        self.assigned: set[Partition] = set()
        self.rebalanced = False
        self.refusal: AuthorizationError | None = None  # a missing right: nothing is read until it is set to None
        self.ends: dict[Partition, int] = {}  # partitions that were fetched to their ends, with these end offsets
        self._make_client()

    def _make_client(self) -> None:
        self._connection = Connection()
        self._consumer = make_client(ck.Consumer, {**_DEFAULTS, **self._config, **_SETTINGS}, self._connection)
        wake_on_events(self._consumer, self._wake.fd)

    @property
    def group_metadata(self) -> bytes:
        """The group's metadata, which fences a transactional producer with this member."""
        metadata: bytes = self._consumer.consumer_group_metadata()
        return metadata

    def subscribe(self, topics: list[str], before_leaving: Callable[[], None]) -> None:
        """Join the group for these topics, or change them.

        `before_leaving` is called while revoked partitions are still ours; not if they are lost already.
        """

        def on_revoke(consumer: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
            before_leaving()
            # An assignment within this callback, as to read nothing after a failure, keeps the binding from giving
            # leave. The group would then wait forever, so the partitions are given up here.
            consumer.unassign()
            self._on_leave(consumer, partitions)

        self._subscribe = lambda: self._consumer.subscribe(
            topics, on_assign=self._on_assign, on_revoke=on_revoke, on_lost=self._on_leave
        )
        self._subscribe()

    def leave(self) -> None:
        """Leave the group, until `subscribe` is called again."""
        self._leave()

    def rejoin(self) -> None:
        """Leave the group, which has expelled this member, and join it again, unless librdkafka does so already."""
        if self._consumer.memberid() != self._member_id:
            return
        self._leave()
        self._subscribe()

    def renew(self) -> None:
        """Leave the group, and join it with another client, since topics were deleted and created again.

        librdkafka reads nothing of such a topic if its leader epoch is lower than that of the one before.
        """
        self._leave()
        wake_on_events(self._consumer, None)
        in_background(self._consumer.close)
        self.assigned = set()
        self._paused.clear()
        self.ends.clear()
        self._make_client()
        self._subscribe()

    def committed(self, partitions: Collection[Partition], within: float) -> dict[Partition, int]:
        """Return the offsets that the group has committed of these partitions; raises `KafkaError`."""
        found = committed(self._consumer, list(partitions), within)
        return {partition: commit[0] for partition, commit in found.items() if commit is not None}

    def _on_assign(self, consumer: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        consumer.assign([])
        self._member_id = consumer.memberid()
        self.assigned = {(each.topic, each.partition) for each in partitions}
        self.rebalanced = True

    def _on_leave(self, consumer: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        self.assigned = set()
        self.rebalanced = True

    def begin(self, starts: Mapping[Partition, int]) -> None:
        """Read assigned partitions from these offsets on, and no others."""
        self._paused.clear()
        self.ends.clear()
        self._consumer.assign([ck.TopicPartition(topic, number, offset) for (topic, number), offset in starts.items()])

    def fetch(self, most: int) -> list[ck.Message]:
        """Return the records that have come; never waits. Rebalances happen in here."""
        try:
            messages = self._consumer.consume(most, 0)
        except ck.KafkaException as error:
            log.warning("Fetching failed, and goes on: %s", error.args[0].str())
            return []
        if self.rebalanced:  # these messages are of the assignment before
            return []
        records = [message for message in messages if message.error() is None]
        if len(records) < len(messages):
            self._note_events(messages)
            if len(messages) == most:
                self._wake.set()  # librdkafka does not report the records that are still there
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
                log.warning("Fetching failed, and goes on: %s", error.str())

    def check(self) -> None:
        """Raise `AuthenticationError` if no broker lets this member in, or none does any more."""
        self._connection.check(self._consumer)

    def hold(self, partitions: Collection[Partition]) -> None:
        """Fetch nothing from these partitions, and from all others again."""
        wanted = self._paused.difference(partitions)
        unwanted = set(partitions).difference(self._paused)
        if unwanted:
            self._consumer.pause([ck.TopicPartition(*each) for each in unwanted])
        if wanted:
            self._consumer.resume([ck.TopicPartition(*each) for each in wanted])
        self._paused = set(partitions)

    def close(self) -> None:
        """Leave the group; waits for its coordinator 10 s in all."""
        until = time.monotonic() + _CLOSE_WITHIN
        self._leave()
        wake_on_events(self._consumer, None)
        closing = threading.Thread(target=self._consumer.close, name="headway-relay-close", daemon=True)
        closing.start()
        closing.join(max(0.0, until - time.monotonic()))

    def _leave(self) -> None:
        self._consumer.unsubscribe()
        deadline = time.monotonic() + _CLOSE_WITHIN
        while self.assigned and time.monotonic() < deadline:
            self._consumer.consume(100, 0.1)


class Deletion:
    """The deletion of the beginnings of partitions, so that records that have left a line take no room.

    `refused` is the right that was missing by the latest answers, None if none was.
    """

    def __init__(self) -> None:
        self._deleted: dict[Partition, int] = {}
        self._asked: dict[Partition, Future[DeletedRecords]] = {}
        self.refused: Right | None = None

    def delete_before(self, offsets: Mapping[Partition, int], admin: Admin) -> None:
        """Ask for a deletion without waiting: a refused one is asked for again with the next. Raises `KafkaError`."""
        self._take_answers()
        fresh = {each: offset for each, offset in offsets.items() if offset > self._deleted.get(each, 0)}
        if not fresh:
            return
        asked = [ck.TopicPartition(*each, offset) for each, offset in fresh.items()]
        try:
            answers = admin.client.delete_records(asked)
        except ck.KafkaException as error:
            raise KafkaError(f"What has left the lines cannot be deleted: {error.args[0].str()}.") from error
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
                self.refused = Right("Delete", "Topic", place[0])
