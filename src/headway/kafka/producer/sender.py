"""Passes a caller's records to librdkafka: directly if no earlier record is waiting, otherwise via the accumulator.

A record that does not have to wait passes through only one queue, which is librdkafka's. Each delivery report frees
space, and the thread that takes the reports passes waiting records on to librdkafka. A thread of the sender serialises
records, and fails records that have waited too long. One lock protects all shared data, and no thread holds it while it
runs user code or waits. A send to a queue with credit needs no lock.
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
from headway.core.record_size import Field, bytes_of
from headway.errors import ClosedError, DeliveryError, HeadwayError
from headway.kafka.producer.client import ClientOwner, ProducerClient, closed_in_callback
from headway.kafka.producer.delivery import Destination, topic_missing
from headway.kafka.producer.metadata_watch import MetadataWatch
from headway.kafka.producer.partitioner import DEFAULT, PARTITIONER, KeyPartitioner, PartitionFunction
from headway.kafka.producer.raw_records import RawRecords
from headway.kafka.producer.sendable import (
    Failed,
    Offered,
    Sendable,
    is_partition,
    no_partition,
    no_such_partition,
    not_sent,
    size_of_rest,
    too_large,
)
from headway.kafka.serialization import FieldWriter
from headway.records.record_types import Header
from headway.runtime.deferred_signals import defer_signals
from headway.runtime.flag import Nudge
from headway.settings.config import Config, whole_number

if TYPE_CHECKING:
    from confluent_kafka import ThrottleEvent

log = logging.getLogger(__name__)

# How much is passed on or serialised before other threads can acquire the lock: bytes and records.
_BITE_BYTES = 512 * 1024
_BITE_RECORDS = 500
_A_MOMENT = 0.01
# The flush is divided into parts of this many seconds, so that other sending threads can take reports in between.
_SLICE = 0.005
# The accumulator limits the records that librdkafka holds, so librdkafka's own limits are set to the largest values.
_NO_LIMITS = {"queue.buffering.max.messages": 0, "queue.buffering.max.kbytes": 2_147_483_647}

_LARGEST = 1_000_000  # bytes; the default of librdkafka's message.max.bytes


class Sender(ClientOwner):
    """Passes records to librdkafka through an accumulator.

    `serialises` is True if raw records wait for the sender's thread.

    Args:
        overhead: The bytes that are counted for a record in addition to its own size.
        least: The smallest size that is counted for a record, in bytes.
        write_key: Serialises a key, on the sender's thread. None if keys are bytes or strings already.
        write_value: Serialises a value, on the sender's thread. None if values are bytes or strings already.
        after_reports: Called after each batch of reports, on the thread that took them.
        place: The user's function that returns the partition for a key, or None. It is called on the sender's thread.
    """

    def __init__(
        self,
        config: Config,
        accumulator: Accumulator[Sendable],
        overhead: int,
        least: int,
        write_key: FieldWriter | None,
        write_value: FieldWriter | None,
        after_reports: Callable[[], None],
        place: PartitionFunction | None = None,
    ) -> None:
        self._accumulator = accumulator
        self._overhead = overhead
        self._least = least
        self._largest = whole_number("message.max.bytes", config.get("message.max.bytes", _LARGEST))
        self._after_reports = after_reports
        self._lock = threading.Lock()
        self._waits = False  # True if any record is waiting
        self._stirred = Nudge()
        self._stopped = False
        self._partitioner = KeyPartitioner(config)
        self._raw = RawRecords(write_key, write_value, self._partitioner, place, overhead, least, self._largest)
        self.serialises = write_key is not None or write_value is not None or place is not None
        ours = {**_NO_LIMITS, "throttle_cb": partial(self._throttled, config.get("throttle_cb"))}
        self.client = ProducerClient({PARTITIONER: DEFAULT, **config, **ours}, self)
        self._watch = MetadataWatch(self.client, config, self)
        self._thread = threading.Thread(target=self._run, name="headway-sender", daemon=True)
        self._thread.start()

    def topic(self, kafka_topic: str, level: int) -> TopicQueues[Sendable]:
        """Return the queues of a topic, and start to look up the topic's partitions."""
        with self._lock:
            queues = self._accumulator.topic(kafka_topic, level)
        self._watch.add(queues)
        return queues

    # Accepting records

    def offer(  # noqa: PLR0912 - one long function, because a call would slow down every record
        self,
        record: Sendable,
        destination: Destination,
        value: Field,
        key: Field,
        partition: int | None,
        timestamp: int | None,
        headers: list[Header] | None,
    ) -> bool:
        """Accept a record and return True, or return False if there is no space for it.

        This method neither waits nor does any I/O.
        """
        if destination.is_raw:
            return self._offer_raw((record, destination, value, key, partition, timestamp, headers))
        try:
            size = self._overhead + (0 if value is None else len(value)) + (0 if key is None else len(key))
            # Only text that is not ASCII needs `bytes_of`, because its call for each field would slow down every record
            # too much.
            if (value.__class__ is str and not value.isascii()) or (key.__class__ is str and not key.isascii()):
                size = self._overhead + bytes_of(value) + bytes_of(key)
            if headers is not None or timestamp is not None:
                size += size_of_rest(headers, timestamp, destination.kafka_topic)
        except (TypeError, ValueError):  # a field is neither bytes nor a string, so librdkafka will refuse the record
            size = self._overhead
        except HeadwayError as error:
            return self._refuse_at_once(record, destination, error)
        if size < self._least:  # noqa: PLR1730 - takes half the time of max()
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
            # The credit was used up before the first record was reported, so this thread is sending a stream.
            if queue.in_flight > 0:
                self.client.reports.serve_in_stream()
            with self._lock:
                queue, admitted = self._accumulator.choose(
                    queue, key, size, partition is not None, time.monotonic(), self._partitioner
                )
                if not admitted or self._stopped:
                    offered = record, destination, value, key, partition, timestamp, headers
                    return self._wait(offered, queue, size)
        # No lock is held here, because acquiring one would take a fifth of the time of a send. Between the comparison
        # of the credit and the call of librdkafka, no function is called, so no other thread and no signal handler can
        # intervene. A record with credit overtakes no other record, because a record that has to wait revokes the
        # credit of its queue.
        queue.credit -= size
        record.tally = tally = destination.tally
        tally.sent += 1
        record.queue = queue
        record.size = size
        producer = self.client.producer
        try:
            # A call with few positional arguments is faster. The None takes the place of the binding's second name for
            # a callback.
            if headers is None and timestamp is None:
                producer.produce(topic.kafka_topic, value, key, queue.partition, record)
            else:
                producer.produce(topic.kafka_topic, value, key, queue.partition, record, None, timestamp or 0, headers)
        except Exception as error:
            with self._lock:
                self._accumulator.take_back(queue, size)
            self._fail([(record, self.client.refusal(topic.kafka_topic, error))])
        return True

    def _wait(self, offered: Offered, queue: Queue[Sendable], size: int) -> bool:
        """Let a record wait in a queue, and return True, or return False if there is no space.

        The caller holds the lock.
        """
        if self._stopped:
            raise ClosedError("The producer is closed. Create a new one.")
        record, destination, value, key, partition, timestamp, headers = offered
        record.value, record.key, record.headers, record.partition = value, key, headers, partition
        record.timestamp = timestamp or int(time.time() * 1000)
        record.since = time.monotonic()
        record.size = size
        if queue is queue.topic.unplaced or not self._accumulator.put(queue, record, raw=queue is queue.topic.raw):
            return False
        record.tally = tally = destination.tally
        tally.sent += 1
        if not (self._waits and queue.in_flight):  # if records are in flight, the next report hands this record over
            self._waits = True
            self._stirred.set()
        return True

    def _refuse_at_once(self, record: Sendable, destination: Destination, error: HeadwayError) -> bool:
        """Fail a record that cannot be sent, and return True, because it needs no space."""
        record.tally = destination.count_unsent()
        self._fail([(record, error)])
        return True

    def _offer_raw(self, offered: Offered) -> bool:
        """Let a record wait for the sender's thread, which serialises it."""
        record, destination, _, _, partition, timestamp, headers = offered
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
            taken = self._wait(offered, topic.raw, size)
        if taken:
            self._stirred.set()
        return taken

    @property
    def queued_bytes(self) -> int:
        """The total size in bytes of all records without a delivery report."""
        return self._accumulator.used

    def offer_patiently(self, timeout: float, offered: Offered) -> bool:
        """Accept a record as `offer` does, but wait up to `timeout` seconds for space."""
        if self.calls_back_here:
            return False  # do not wait, because no other thread can free space until this callback returns
        deadline = time.monotonic() + timeout
        while not self.offer(*offered):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.client.reports.serve(min(_A_MOMENT, left))
        return True

    # Passing records on

    def reports_taken(self) -> None:
        """Count a batch of reports, and pass on the waiting records that now have space."""
        failed = Failed()
        with self._lock:
            self._accumulator.settle(time.monotonic())
            if self._waits:
                failed = self._hand_over()
        self._fail(failed)
        self._call_after_reports()

    def _throttled(self, users: "Callable[[ThrottleEvent], object] | None", event: "ThrottleEvent") -> None:
        """Note that a broker throttles the client, and call the user's callback.

        Runs on the thread that takes reports.
        """
        if event.throttle_time > 0:
            with self._lock:
                self._accumulator.throttled(event.throttle_time, time.monotonic())
            self._stirred.set()  # from now on, the sender's thread passes records on at the permitted rate
        if users:
            users(event)

    def _call_after_reports(self) -> None:
        try:
            self._after_reports()
        except BaseException:  # the thread that takes the reports must continue
            log.exception("The after_reports callback of a producer raised an error.")

    def _hand_over(self) -> Failed:
        """Pass on the records that can be sent now. The caller holds the lock.

        Returns the records that were refused or have waited too long.
        """
        now = time.monotonic()
        batches = self._accumulator.drain(_BITE_BYTES, now)
        if sum(batch.size for batch in batches) >= _BITE_BYTES:
            self._stirred.set()  # more records may be waiting
        late = f"it waited longer than delivery.timeout.ms{self.client.because()}"
        expired = self._accumulator.expired(now)
        for each in expired:
            each.tally.destination.count_expired()
        failed: Failed = [(each, _why_not(each, late)) for each in expired]
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
        """Fail records with their errors. The caller must not hold the lock, because callbacks may send records."""
        if records:
            # Without this, an interrupt in a callback would be logged as an error of the callback.
            with defer_signals():
                for record, reason in records:
                    record.fail(reason)
                self._call_after_reports()

    def _give_up(self, records: list[Sendable], why: str, kind: type[DeliveryError] = DeliveryError) -> None:
        self._fail([(each, not_sent(each, why, kind) if why else _why_not(each, why)) for each in records])

    # Waiting for records to be sent, and giving them up

    @property
    def calls_back_here(self) -> bool:
        """True if the caller is a callback on a thread that the producer needs to make progress."""
        here = threading.current_thread()
        return self.client.reports.serves_here or here is self._thread or here is self._watch.thread

    def check_may_close(self) -> None:
        """Raise `HeadwayError` if the caller is a callback. Closing would wait for the callback's own thread."""
        if self.calls_back_here:
            raise closed_in_callback("producer")

    def flush(self, waiting: Callable[[], int], timeout: float | None) -> int:
        """Wait until `waiting` returns 0, for at most `timeout` seconds. Returns the last value of `waiting`."""
        if self.calls_back_here:
            # Do not wait, because no other thread takes reports or serialises records until this callback returns.
            return waiting()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        # The number can be negative: Ctrl-C can interrupt a send after the record is stored, but before it is counted.
        while (left := waiting()) > 0 and (seconds := deadline - time.monotonic()) > 0:
            if self._waits or not self.client.queued():  # records are waiting, or are on their way to librdkafka
                self.client.reports.serve(min(_A_MOMENT, seconds))
            else:
                self.client.flush(min(_SLICE, seconds))
        return left

    def hand_all_over(self, timeout: float) -> int:
        """Wait until all sent records were passed on to librdkafka. Returns the number of records that were not."""
        return self.flush(self._waiting, timeout)

    def _waiting(self) -> int:
        with self._lock:
            return self._accumulator.waiting

    def purge(self, topics: list[TopicQueues[Sendable]], why: str, kind: type[DeliveryError] = DeliveryError) -> int:
        """Fail the waiting records of some topics, and return the number of these records."""
        # An interrupt could lose records that have been removed from the queues, but have not failed yet.
        with defer_signals():
            with self._lock:
                purged = self._accumulator.purge(topics)
            self._give_up(purged, why, kind)
        return len(purged)

    def login_refused(self, reason: str) -> None:
        """Fail all waiting records, because they would otherwise wait forever."""
        self.purge(self._accumulator.topics, reason)

    def close(self, waiting: Callable[[], int], timeout: float | None, topics: list[TopicQueues[Sendable]]) -> int:
        """Send the waiting records, fail those that are left, and close. Returns the number of undelivered records."""
        try:
            return self.flush(waiting, timeout)
        finally:  # this must happen even after Ctrl-C
            with self._lock:  # a record that is accepted after this point would never be reported
                self._stopped = True
                self._accumulator.revoke_all()
            self._stirred.set()
            self._thread.join()
            self._watch.stop()
            self.purge(topics, "the producer was closed")
            self.client.close(0)

    # Methods that run in the sender's thread

    def _run(self) -> None:
        while not self._stopped:
            until = math.inf
            if self._waits:
                until = min(self._accumulator.next_expiry(), self._accumulator.next_permit)
            self._stirred.wait(max(_A_MOMENT, until - time.monotonic()))
            try:
                while self._sort():
                    pass
                with self._lock:
                    failed = self._hand_over()
                self._fail(failed)
            except Exception:
                log.exception("The thread of a producer met an unexpected error, and continues.")

    def _sort(self) -> int:
        """Serialise raw records, and put them into the queues of their partitions. Returns the number of records."""
        with self._lock:
            raw = self._accumulator.take_raw(_BITE_RECORDS)
        ready, refused = self._raw.serialise(raw)
        with self._lock:
            for record, partition, size in ready:
                self._accumulator.sort(record, partition, size)
            # Records that were purged in the meantime have already failed.
            refused = [(record, error) for record, error in refused if self._accumulator.drop(record)]
            refused += self._hand_over()
        self._fail(refused)
        return len(raw)

    # Methods that run in the thread of the metadata watch

    def topic_found(self, topic: TopicQueues[Sendable], count: int, leaders: list[int]) -> None:
        """Let waiting records for the topic's partitions be sent, and fail those for partitions that do not exist."""
        with self._lock:
            missing = self._accumulator.learn(topic, count, leaders)
        for record in missing:
            self._give_up([record], no_such_partition(record.queue.partition, count))
        self._stirred.set()

    def topic_refused(self, topic: TopicQueues[Sendable], why: str, kind: type[DeliveryError]) -> None:
        """Fail the waiting records of a topic."""
        self.purge([topic], why, kind)


def _why_not(record: Sendable, late: str) -> DeliveryError:
    """Return the error for a record that fails because its topic is missing, or because it has waited too long."""
    destination = record.tally.destination
    if not late or destination.client.is_missing(destination.kafka_topic):
        return topic_missing(destination)
    return not_sent(record, late)
