"""The way from a caller's `send` to librdkafka: at once if no record is overtaken, else by the accumulator.

A record passes one queue, librdkafka's, unless it has to wait. The thread that serves the delivery reports hands over
the records for which they made room. A thread of its own only serialises, and gives up records that waited too long.
All is under one lock, which no thread holds while user code runs or while it waits for anything. A queue with credit
needs no lock.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from headway.core.producer.accumulator import Accumulator
from headway.core.producer.queues import Batch, Queue, TopicQueues
from headway.core.record_size import bytes_of
from headway.errors import ClosedError, DeliveryError, HeadwayError
from headway.kafka.producer.client import ProducerClient, closed_in_callback
from headway.kafka.producer.delivery import Destination, is_missing, of_missing_topic
from headway.kafka.producer.metadata_watch import MetadataWatch
from headway.kafka.producer.partitioner import DEFAULT, PARTITIONER, Place, partitioner
from headway.kafka.producer.raw_records import RawRecords
from headway.kafka.producer.sendable import (
    Failed,
    Field,
    Offered,
    Prepare,
    Sendable,
    is_partition,
    no_partition,
    no_such_partition,
    not_delivered,
    size_of_rest,
    too_large,
)
from headway.records.record_types import Header
from headway.runtime.deferred_signals import defer_signals
from headway.runtime.flag import Nudge
from headway.settings.config import Config, whole_number

if TYPE_CHECKING:
    from confluent_kafka import ThrottleEvent

log = logging.getLogger(__name__)

# The bytes and records handed over, or sorted, before other threads have their turn.
_BITE_BYTES = 512 * 1024
_BITE_RECORDS = 500
_A_MOMENT = 0.01
_SLICE = 0.005  # of a flush: other sending threads take reports in between
# The accumulator bounds the records that librdkafka holds; these are librdkafka's largest values.
_NO_LIMITS = {"queue.buffering.max.messages": 0, "queue.buffering.max.kbytes": 2_147_483_647}

_LARGEST = 1_000_000  # bytes: librdkafka's message.max.bytes


class Sender:
    """An accumulator before librdkafka; `serialises` if records of raw destinations wait for its thread.

    Args:
        overhead: The bytes that a record counts for besides its own.
        least: The bytes that any record counts for at least.
        prepare: None if key and value are bytes already.
        after_reports: Called after each batch of reports, on the thread that took them.
        place: The user's function for the partition of a key, called on the thread that serialises; or None.
    """

    def __init__(
        self,
        config: Config,
        accumulator: Accumulator[Sendable],
        overhead: int,
        least: int,
        prepare: Prepare | None,
        after_reports: Callable[[], None],
        place: Place | None = None,
    ) -> None:
        self._accumulator = accumulator
        self._overhead = overhead
        self._least = least
        self._largest = whole_number("message.max.bytes", config.get("message.max.bytes", _LARGEST))
        self._after_reports = after_reports
        self._lock = threading.Lock()
        self._waits = False  # True if any record waits
        self._stirred = Nudge()
        self._stopped = False
        self._partition_of = of_key = partitioner(config)
        self._raw = RawRecords(prepare or _nothing, of_key, place, overhead, least, self._largest)
        self.serialises = prepare is not None or place is not None
        ours = {**_NO_LIMITS, "throttle_cb": partial(self._throttled, config.get("throttle_cb"))}
        self.client = ProducerClient({PARTITIONER: DEFAULT, **config, **ours}, self._settle, self._give_all_up)
        self._watch = MetadataWatch(self.client, config, self._learn, self._refuse)
        self._thread = threading.Thread(target=self._run, name="headway-sender", daemon=True)
        self._thread.start()

    def topic(self, kafka_topic: str, level: int) -> TopicQueues[Sendable]:
        """Return the queues of a topic, whose partitions are asked for from now on."""
        with self._lock:
            queues = self._accumulator.topic(kafka_topic, level)
        self._watch.add(queues)
        return queues

    # In

    def offer(  # noqa: PLR0912 - in one piece, as every record pays for it
        self,
        record: Sendable,
        destination: Destination,
        value: Field,
        key: Field,
        partition: int | None,
        timestamp: int | None,
        headers: list[Header] | None,
    ) -> bool:
        """Take a record, or return False without room; then nothing is kept. This neither waits nor does I/O."""
        if destination.is_raw:
            return self._offer_raw(record, destination, value, key, partition, timestamp, headers)
        try:
            size = self._overhead + (0 if value is None else len(value)) + (0 if key is None else len(key))
            # Text of more bytes than characters; a call of `bytes_of` for each field would cost every record too much.
            if (value.__class__ is str and not value.isascii()) or (key.__class__ is str and not key.isascii()):
                size = self._overhead + bytes_of(value) + bytes_of(key)
            if headers is not None or timestamp is not None:
                size += size_of_rest(headers, timestamp, destination.kafka_topic)
        except (TypeError, ValueError):  # neither bytes nor strings: librdkafka refuses it
            size = self._overhead
        except HeadwayError as error:
            return self._refuse_at_once(record, destination, error)
        if size < self._least:  # noqa: PLR1730 - half the cost of max()
            size = self._least
        topic: TopicQueues[Sendable] = destination.queues
        if partition is None:
            queue = topic.unplaced if key is not None else topic.sticky or topic.undesignated
        elif not is_partition(partition):
            return self._refuse_at_once(record, destination, no_partition(partition, destination.kafka_topic))
        else:
            with self._lock:
                queue = topic.queue(partition)
        while queue.credit < size:
            if size > self._largest and (refused := too_large(value, key, destination.kafka_topic, self._largest)):
                return self._refuse_at_once(record, destination, refused)
            if queue.in_flight > 0:  # a whole credit is used up before its first record was reported: a stream
                self.client.reports.serve_in_stream()
            with self._lock:
                queue, admitted = self._accumulator.choose(
                    queue, key, size, partition is not None, time.monotonic(), self._partition_of
                )
                if not admitted or self._stopped:
                    return self._wait(record, destination, queue, size, value, key, partition, timestamp, headers)
        # Without the lock, which takes a fifth of a send: between the comparison and librdkafka nothing is called, so
        # no other thread and no signal comes in. A record with credit overtakes no other: a waiting record has taken
        # the credit away.
        queue.credit -= size
        record.tally = tally = destination.tally
        tally.sent += 1
        record.queue = queue
        record.size = size
        producer = self.client.producer
        try:
            # By position and no more than needed, which is quicker; None is the callback by its second name.
            if headers is None and timestamp is None:
                producer.produce(topic.kafka_topic, value, key, queue.partition, record)
            else:
                producer.produce(topic.kafka_topic, value, key, queue.partition, record, None, timestamp or 0, headers)
        except Exception as error:
            with self._lock:
                self._accumulator.take_back(queue, size)
            self._fail([(record, self.client.refusal(topic.kafka_topic, error))])
        return True

    def _wait(
        self,
        record: Sendable,
        destination: Destination,
        queue: Queue[Sendable],
        size: int,
        value: object,
        key: object,
        partition: int | None,
        timestamp: int | None,
        headers: list[Header] | None,
    ) -> bool:
        """Let a record wait, with the lock held."""
        if self._stopped:
            raise ClosedError("The producer is closed. Make a new one to go on.")
        record.value, record.key, record.headers = value, key, headers
        record.partition = partition
        record.timestamp = timestamp or int(time.time() * 1000)
        record.since = time.monotonic()
        record.size = size
        if queue is queue.topic.unplaced or not self._accumulator.put(queue, record, raw=queue is queue.topic.raw):
            return False
        record.tally = tally = destination.tally
        tally.sent += 1
        if not (self._waits and queue.in_flight):  # else the next report hands it over
            self._waits = True
            self._stirred.set()
        return True

    def _refuse_at_once(self, record: Sendable, destination: Destination, error: HeadwayError) -> bool:
        """Fail a record that cannot be sent, and return that it needs no room."""
        record.tally = destination.count_unsent()
        self._fail([(record, error)])
        return True

    def _offer_raw(
        self,
        record: Sendable,
        destination: Destination,
        value: object,
        key: object,
        partition: int | None,
        timestamp: int | None,
        headers: list[Header] | None,
    ) -> bool:
        """Let a record wait for the thread that serialises it."""
        topic = destination.queues
        try:
            size_of_rest(headers, timestamp, topic.kafka_topic)
            if partition is not None and not is_partition(partition):
                raise no_partition(partition, topic.kafka_topic)
        except HeadwayError as error:
            return self._refuse_at_once(record, destination, error)
        raw_records = self._raw
        size = raw_records.guesses.get(topic.kafka_topic, raw_records.first_guess)
        with self._lock:
            taken = self._wait(record, destination, topic.raw, size, value, key, partition, timestamp, headers)
        if taken:
            self._stirred.set()
        return taken

    @property
    def queued_bytes(self) -> int:
        """The bytes of the records that are not reported on yet."""
        return self._accumulator.used

    def offer_patiently(self, timeout: float, *record: *Offered) -> bool:
        """Take a record, as `offer` does, as soon as there is room within `timeout` seconds."""
        if self.calls_back_here:
            return False  # a callback that sends: no other thread would make room
        deadline = time.monotonic() + timeout
        while not self.offer(*record):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.client.reports.serve(min(_A_MOMENT, left))
        return True

    # Out

    def _settle(self) -> None:
        """Take a batch of reports and hand over the records that now have room, on the thread that took them."""
        failed = Failed()
        with self._lock:
            self._accumulator.settle(time.monotonic())
            if self._waits:
                failed = self._hand_over()
        self._fail(failed)
        self._tell()

    def _throttled(self, users: "Callable[[ThrottleEvent], object] | None", event: "ThrottleEvent") -> None:
        """Note that a broker throttles the client, on the thread that takes the reports; then tell the user's own."""
        if event.throttle_time > 0:
            with self._lock:
                self._accumulator.throttled(event.throttle_time, time.monotonic())
            self._stirred.set()  # from now on the sender's thread keeps the pace
        if users:
            users(event)

    def _tell(self) -> None:
        try:
            self._after_reports()
        except BaseException:  # the thread that takes the reports goes on
            log.exception("The after_reports of a producer raised.")

    def _hand_over(self) -> Failed:
        """Hand over records that may go now, with the lock held; return the refused and the late ones."""
        now = time.monotonic()
        batches = self._accumulator.drain(_BITE_BYTES, now)
        if sum(batch.size for batch in batches) >= _BITE_BYTES:
            self._stirred.set()  # more may be waiting
        late = f"it waited longer than delivery.timeout.ms{self.client.because()}"
        failed: Failed = [(each, _why_not(each, late)) for each in self._accumulator.expired(now)]
        for batch in batches:
            failed += self._produce_all(batch)
        self._waits = self._accumulator.waiting > 0
        return failed

    def _produce_all(self, batch: Batch[Sendable]) -> Failed:
        topic, partition, produce = batch.queue.topic.kafka_topic, batch.queue.partition, self.client.producer.produce
        refused = Failed()
        for record in batch.records:
            try:
                produce(topic, record.value, record.key, partition, record, None, record.timestamp, record.headers)
            except Exception as error:
                self._accumulator.take_back(batch.queue, record.size)
                refused.append((record, self.client.refusal(topic, error)))
            record.value = record.key = record.headers = None
        return refused

    def _fail(self, records: Failed) -> None:
        """Fail records, without the lock, since callbacks may send."""
        if records:
            with defer_signals():  # within a callback a signal would count as the callback's error
                for record, reason in records:
                    record.fail(reason)
                self._tell()

    def _give_up(self, records: list[Sendable], why: str, kind: type[DeliveryError] = DeliveryError) -> None:
        self._fail([(each, not_delivered(each, why, kind) if why else _why_not(each, why)) for each in records])

    # Waiting, and giving up

    @property
    def calls_back_here(self) -> bool:
        """True if called from a callback on a thread that the producer cannot do without."""
        here = threading.current_thread()
        return self.client.reports.serves_here or here is self._thread or here is self._watch.thread

    def check_may_close(self) -> None:
        """Raise `HeadwayError` in a callback, whose thread a close would wait for."""
        if self.calls_back_here:
            raise closed_in_callback("producer")

    def flush(self, waiting: Callable[[], int], timeout: float | None) -> int:
        """Wait until `waiting` returns 0 or the time is up; return its last value."""
        if self.calls_back_here:
            return waiting()  # no other thread would take the next reports, or serialise the waiting records
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        # Can be negative: Ctrl-C may strike after a record is kept and before it is counted.
        while (left := waiting()) > 0 and (seconds := deadline - time.monotonic()) > 0:
            if self._waits or not self.client.queued():  # here, or on its way to librdkafka or back
                self.client.reports.serve(min(_A_MOMENT, seconds))
            else:
                self.client.flush(min(_SLICE, seconds))
        return left

    def hand_all_over(self, timeout: float) -> int:
        """Wait until librdkafka has all records sent; return how many it has not."""
        return self.flush(self._waiting, timeout)

    def _waiting(self) -> int:
        with self._lock:
            return self._accumulator.waiting

    def purge(self, topics: list[TopicQueues[Sendable]], why: str, kind: type[DeliveryError] = DeliveryError) -> int:
        """Fail the waiting records of some topics that were not handed over; return how many."""
        with defer_signals():  # a signal would leave some that are forgotten here and not failed
            with self._lock:
                purged = self._accumulator.purge(topics)
            self._give_up(purged, why, kind)
        return len(purged)

    def _give_all_up(self, why: str) -> None:
        """Fail the waiting records, as no broker lets this client in: they would wait for ever."""
        self.purge(self._accumulator.topics, why)

    def close(self, waiting: Callable[[], int], timeout: float | None, topics: list[TopicQueues[Sendable]]) -> int:
        """Send the waiting records, fail those left, and stop; return how many were not delivered."""
        try:
            return self.flush(waiting, timeout)
        finally:  # after Ctrl-C, too
            with self._lock:  # no record begins to wait from here on, or is handed over: it would not be reported
                self._stopped = True
                self._accumulator.revoke_all()
            self._stirred.set()
            self._thread.join()
            self._watch.stop()
            self.purge(topics, "the producer was closed")
            self.client.close(0)

    # On the sender's thread

    def _run(self) -> None:
        while not self._stopped:
            until = math.inf
            if self._waits:
                until = min(self._accumulator.next_expiry(), self._accumulator.next_room)
            self._stirred.wait(max(_A_MOMENT, until - time.monotonic()))
            try:
                while self._sort():
                    pass
                with self._lock:
                    failed = self._hand_over()
                self._fail(failed)
            except Exception:
                log.exception("A producer met an error that it does not know, and goes on.")

    def _sort(self) -> int:
        """Serialise raw records, and find their partitions."""
        with self._lock:
            raw = self._accumulator.take_raw(_BITE_RECORDS)
        ready, refused = self._raw.serialise(raw)
        with self._lock:
            for record, partition, size in ready:
                self._accumulator.sort(record, partition, size)
            # Records that were purged meanwhile have failed already.
            refused = [(record, error) for record, error in refused if self._accumulator.drop(record)]
            refused += self._hand_over()
        self._fail(refused)
        return len(raw)

    # On the thread that asks for metadata

    def _learn(self, topic: TopicQueues[Sendable], count: int, leaders: list[int]) -> None:
        with self._lock:
            missing = self._accumulator.learn(topic, count, leaders)
        for record in missing:
            self._give_up([record], no_such_partition(record.queue.partition, count))
        self._stirred.set()

    def _refuse(self, topic: TopicQueues[Sendable], why: str, kind: type[DeliveryError]) -> None:
        self.purge([topic], why, kind)


def _why_not(record: Sendable, late: str) -> DeliveryError:
    """Return the error for a record that is given up: its topic is missing, or it was late."""
    destination = record.tally.destination
    return of_missing_topic(destination) if is_missing(destination) or not late else not_delivered(record, late)


def _nothing(record: Sendable) -> None:
    """Leave a record as it is, whose key and value are bytes already."""
