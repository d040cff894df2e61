"""Calls that confluent_kafka, the Python binding of librdkafka, lacks.

The functions in this module use the C API of the librdkafka that the binding ships.

The binding cuts off the metadata of a commit at the first NUL byte, whereas these functions keep all bytes.

The functions take a client of the binding, which no other thread must close during the call. None of them polls the
client's own queues, because the binding's callbacks work only inside the binding's own calls.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_END, KafkaException, cimpl
from confluent_kafka.admin import AdminClient

from headway.errors import KafkaError
from headway.kafka.binding.librdkafka import (
    CommitCallback,
    NativePartition,
    elements_of,
    group_metadata_of,
    handle_of,
    handle_or_none,
    lib,
    metadata_of,
    milliseconds,
    offset_list,
    partition_list,
    raise_if,
    refusal_of,
)

if TYPE_CHECKING:
    from headway.kafka.binding.librdkafka import ListPointer

Client = cimpl.Consumer | cimpl.Producer | AdminClient
Partition = tuple[str, int]  # the Kafka topic, and the partition's number
CommittedOffset = tuple[int, bytes]  # the offset to read next, and the commit's metadata
CommittedOffsets = Mapping[Partition, CommittedOffset]

_MEMBERSHIP_ENDS_WITHIN = 10.0
_CHECK_INTERVAL = 0.0001
_ASK_AGAIN_AFTER = 0.005
# The maximum number of partitions in one request. The time that librdkafka takes grows with the square of this number.
_IN_ONE_QUESTION = 500


def _answer(_client: int, code: int, answered: "ListPointer", answers: list[tuple[int, dict[Partition, int]]]) -> None:
    answers.append((code, {partition: element.err for partition, element in elements_of(answered)} if answered else {}))


_on_commit = CommitCallback(_answer)


Explain = Callable[[KafkaError, str], KafkaError]
"""A function that gets an error and the Kafka topic, and returns a clearer error."""


class PendingCommit:
    """A commit of offsets with exact metadata. The commit is sent at once, and its answer arrives later.

    `refused` waits for the answer. Before the consumer is closed, the answer must have been read, or `forget` must be
    called. `explain` is called with the error and the topic of each refused partition, and returns the error to report.

    Raises `KafkaError` if the commit cannot be sent, and `ClosedError` if the consumer is closed.
    """

    def __init__(
        self, consumer: cimpl.Consumer, offsets: CommittedOffsets, explain: Explain = lambda error, topic: error
    ) -> None:
        self.offsets = offsets
        self._consumer = consumer
        self._explain = explain
        self._refused: dict[Partition, KafkaError] | None = None
        self._answers: list[tuple[int, dict[Partition, int]]] = []
        handle = handle_of(consumer)
        # The answer arrives in a separate queue, so that waiting for it runs none of the binding's callbacks. It is
        # received by a callback, because librdkafka 2.16 leaks the memory of an answer that is polled as an event.
        self._queue: int | None = lib.rd_kafka_queue_new(handle)
        with offset_list(offsets) as commit_list:
            code = lib.rd_kafka_commit_queue(handle, commit_list, self._queue, _on_commit, self._answers)
        if code:
            self._close_queue()
            raise refusal_of("The commit was not sent", code)

    @property
    def is_open(self) -> bool:
        """True while the answer has been neither read nor abandoned."""
        return self._queue is not None

    def refused(self, timeout: float = 0) -> dict[Partition, KafkaError] | None:
        """Wait up to `timeout` seconds for the answer, and return the refused partitions with their errors.

        The result is empty if all partitions are committed, and None if there is no answer yet. Further calls return
        the same answer. If the broker refuses some partitions of a commit, librdkafka may report the same error for the
        others. Those partitions also count as refused, so the caller should commit them again.

        Raises:
            ClosedError: The consumer was closed before the answer was read, so the answer is unknown.
        """
        if self._queue is not None:
            # This call raises an error if the consumer is closed, because the queues of a closed consumer must not be
            # used.
            handle_of(self._consumer)
            lib.rd_kafka_queue_poll_callback(self._queue, milliseconds(timeout))
            if not self._answers:
                return None
            self._close_queue()
        if self._refused is None:
            self._refused = self._refusals(*self._answers[0])
        return self._refused

    def give_up(self, reason: str) -> None:
        """If there is no answer yet, treat all partitions as refused for this reason.

        Call this before closing the client.
        """
        if self._queue is not None and self.refused() is None:
            self.forget()
            self._refused = {
                (topic, number): KafkaError(f"Partition {number} of {topic} was not committed: {reason}")
                for topic, number in self.offsets
            }

    def forget(self) -> None:
        """Abandon the answer. librdkafka requires this before the consumer is closed."""
        if getattr(self, "_queue", None) is not None and handle_or_none(self._consumer) is not None:
            self._close_queue()

    __del__ = forget

    def _refusals(self, code: int, codes: dict[Partition, int]) -> dict[Partition, KafkaError]:
        if not any(codes.values()):  # if the whole commit failed, librdkafka does not set the error of each partition
            codes = dict.fromkeys(self.offsets, code)
        return {
            (topic, partition): self._explain(
                refusal_of(f"Partition {partition} of {topic} was not committed", code), topic
            )
            for (topic, partition), code in codes.items()
            if code
        }

    def _close_queue(self) -> None:
        queue, self._queue = self._queue, None
        lib.rd_kafka_queue_destroy(queue)


def committed(
    consumer: cimpl.Consumer, partitions: Sequence[Partition], timeout: float
) -> dict[Partition, tuple[int, bytes] | None]:
    """Return the group's committed offset and exact metadata of each partition, or None if there is no commit.

    Raises:
        KafkaError: The broker did not answer within `timeout` seconds, or refused to answer for a partition.
        ClosedError: The consumer is closed.
    """
    found: dict[Partition, tuple[int, bytes] | None] = {}
    for partition, answer in committed_each(consumer, partitions, timeout).items():
        if isinstance(answer, KafkaError):
            raise answer
        found[partition] = answer
    return found


def committed_each(
    consumer: cimpl.Consumer, partitions: Sequence[Partition], timeout: float
) -> dict[Partition, tuple[int, bytes] | KafkaError | None]:
    """Return committed offsets and metadata as `committed` does, but with an error for each refused partition.

    Raises:
        ClosedError: The consumer is closed.
    """
    handle = handle_of(consumer)
    with partition_list(partitions) as asked:
        code = lib.rd_kafka_committed(handle, asked, milliseconds(timeout))
        return {
            partition: _committed(partition, element, code or element.err) for partition, element in elements_of(asked)
        }


def _committed(partition: Partition, element: NativePartition, code: int) -> tuple[int, bytes] | KafkaError | None:
    if code:
        topic, number = partition
        return refusal_of(f"The committed offset of partition {number} of {topic} could not be read", code)
    return (element.offset, metadata_of(element)) if element.offset >= 0 else None


def await_online(client: Client, partitions: Sequence[Partition], timeout: float) -> None:
    """Wait until the leader of each partition is ready to accept records, or for at most `timeout` seconds.

    A new partition or a new leader appears in the cluster's metadata some milliseconds before the leader is ready. A
    leader that answers a request for offsets is ready.
    """
    deadline = time.monotonic() + timeout
    for begin in range(0, len(partitions), _IN_ONE_QUESTION):
        asked = partitions[begin : begin + _IN_ONE_QUESTION]
        while (left := deadline - time.monotonic()) > 0 and not _are_online(client, asked, left):
            time.sleep(_ASK_AGAIN_AFTER)


def _are_online(client: Client, partitions: Sequence[Partition], timeout: float) -> bool:
    with partition_list(partitions) as asked:
        for _, element in elements_of(asked):
            element.offset = OFFSET_END
        code = lib.rd_kafka_offsets_for_times(handle_of(client), asked, milliseconds(timeout))
        return not code and not any(element.err for _, element in elements_of(asked))


def send_offsets_to_transaction(
    producer: cimpl.Producer, offsets: CommittedOffsets, group_metadata: bytes, timeout: float
) -> None:
    """Add offsets with their exact metadata to the producer's open transaction.

    Args:
        producer: The producer, with an open transaction.
        offsets: The next offset to read of each partition, and the commit's metadata.
        group_metadata: The result of the consumer's `consumer_group_metadata()`.
        timeout: The longest wait for the answer, in seconds.

    Raises:
        KafkaError: The offsets were refused. The cause is the binding's `KafkaException`, which shows whether the call
            can be repeated (`args[0].retriable()`) or the transaction must be aborted
            (`args[0].txn_requires_abort()`).
        ClosedError: The producer is closed.
    """
    handle = handle_of(producer)
    with group_metadata_of(group_metadata) as group, offset_list(offsets) as sent:
        error = lib.rd_kafka_send_offsets_to_transaction(handle, sent, group, milliseconds(timeout))
    raise_if("The offsets were not added to the transaction", error)


def is_of_a_member(group_metadata: bytes) -> bool:
    """Return whether this group metadata comes from a consumer that is currently a member of its group.

    Kafka does not check transactional offsets that come from a non-member, so it would not fence off an earlier owner
    of the partitions.
    """
    with group_metadata_of(group_metadata) as group:
        member = lib.rd_kafka_consumer_group_metadata_member_id(group)
        generation: int = lib.rd_kafka_consumer_group_metadata_generation_id(group)
    return bool(member) and generation >= 0


def fatal_error(client: Client) -> cimpl.KafkaError | None:
    """Return the fatal error of a client, or None if it has none or is closed."""
    handle = handle_or_none(client)
    code = 0 if handle is None else lib.rd_kafka_fatal_error(handle, None, 0)
    return cimpl.KafkaError(code) if code else None


def was_connected(client: Client) -> bool:
    """Return whether any broker has ever answered this client's request for metadata. No request is sent."""
    handle = handle_of(client)
    cluster = lib.rd_kafka_clusterid(handle, 0)
    if cluster:
        lib.rd_kafka_mem_free(handle, cluster)
    return bool(cluster)


def is_answered(client: Client, timeout: float) -> bool:
    """Send a metadata request, and return whether a broker answers it within `timeout` seconds."""
    return _ask(client, timeout) == 0


def _ask(client: Client, timeout: float) -> int:
    metadata = c_void_p()
    code: int = lib.rd_kafka_metadata(handle_of(client), 0, None, byref(metadata), milliseconds(timeout))
    if metadata:
        lib.rd_kafka_metadata_destroy(metadata)
    return code


def wake_on_events(client: Client, fd: int | None) -> None:
    """Write one byte to `fd` whenever an event arrives in the client's empty queue. Pass None to stop this.

    The events of a consumer are records, rebalances and errors; those of a producer are delivery reports and errors.
    `fd` is the non-blocking write end of a pipe or socket, which must stay open until None has been passed or the
    client is closed. The signal is edge-triggered: after each wait, empty the pipe, and then poll the client until it
    returns nothing. See `rd_kafka_queue_io_event_enable`.
    """
    of_client = lib.rd_kafka_queue_get_consumer if isinstance(client, cimpl.Consumer) else lib.rd_kafka_queue_get_main
    queue = of_client(handle_of(client))
    if queue is None:
        raise KafkaError("The consumer has no queue to wait on, because it has no group.id. Set group.id.")
    lib.rd_kafka_queue_io_event_enable(queue, -1 if fd is None else fd, b"\x01", 1)
    lib.rd_kafka_queue_destroy(queue)  # this call releases only this function's reference to the queue


def await_connection(client: Client, timeout: float) -> None:
    """Wait until a broker has answered a metadata request.

    This needs no permission, because the request names no topics.

    Raises:
        KafkaException: No broker answered within `timeout` seconds. This is the binding's own exception.
    """
    if code := _ask(client, timeout):
        raise KafkaException(cimpl.KafkaError(code))


def close_membership(consumer: cimpl.Consumer) -> None:
    """End the group membership of a consumer that was just created. The client itself stays usable.

    Afterwards, librdkafka does not search for the group's coordinator, and refuses to subscribe, assign and commit.

    Raises:
        KafkaError: librdkafka could not end the membership.
    """
    handle = handle_of(consumer)
    queue = lib.rd_kafka_queue_new(handle)
    try:
        raise_if(
            "The group membership of a new consumer could not be ended",
            lib.rd_kafka_consumer_close_queue(handle, queue),
        )
        # Polling the queue would be simpler, but would run the binding's callbacks outside of the binding's own calls.
        deadline = time.monotonic() + _MEMBERSHIP_ENDS_WITHIN
        while not lib.rd_kafka_consumer_closed(handle):
            if time.monotonic() > deadline:
                raise KafkaError(
                    f"The group membership of a new consumer did not end within {_MEMBERSHIP_ENDS_WITHIN:g} s. Try "
                    "again."
                )
            time.sleep(_CHECK_INTERVAL)
        # So far the client's errors arrived in this queue. From now on they must arrive in the queue that the binding
        # polls.
        with _consumer_queue(handle) as served:
            forward_back(queue, served)
    finally:
        lib.rd_kafka_queue_destroy(queue)


def forward_back(queue: object, served: object) -> None:
    """Forward `queue` to `served`, although librdkafka may still be forwarding `served` to `queue`.

    A consumer reports that it is closed a moment before librdkafka stops forwarding its queue. To forward in the
    opposite direction at that moment would deadlock, so this function first ends librdkafka's forwarding.
    """
    lib.rd_kafka_queue_forward(served, None)
    lib.rd_kafka_queue_forward(queue, served)


def start_reading(consumer: cimpl.Consumer, partition: Partition, offset: int, queue: int | None = None) -> bool:
    """Start to fetch a partition at this offset, with a consumer that is not a member of a group.

    The messages arrive in `queue`, or by default in the consumer's common queue. Returns False if librdkafka does not
    accept the offset.
    """
    handle = handle_of(consumer)
    with _topic(handle, partition[0]) as topic, _consumer_queue(handle) as common:
        return bool(lib.rd_kafka_consume_start_queue(topic, partition[1], offset, queue or common) == 0)


def stop_reading(consumer: cimpl.Consumer, partition: Partition) -> None:
    """Stop fetching a partition that `start_reading` has started. The partition's fetched records are dropped."""
    with _topic(handle_of(consumer), partition[0]) as topic:
        lib.rd_kafka_consume_stop(topic, partition[1])  # librdkafka returns an error if reading was not started


def queue_length(consumer: cimpl.Consumer) -> int:
    """Return the number of records and events in the queue from which `consume` returns records."""
    with _consumer_queue(handle_of(consumer)) as queue:
        length: int = lib.rd_kafka_queue_length(queue)
    return length


class SideQueue:
    """A second queue of a consumer, which holds back the records of some partitions.

    Close the second queue before the consumer.

    `consume` returns records only from the consumer's common queue. librdkafka limits the size of each queue
    separately, and stops fetching only for a queue that is full.
    """

    def __init__(self, consumer: cimpl.Consumer) -> None:
        self._consumer = consumer
        self._queue: int | None = lib.rd_kafka_queue_new(handle_of(consumer))

    def collect(self, partition: Partition) -> None:
        """Put the records of a partition that arrive from now on into this queue.

        Records that have already arrived stay in the common queue.
        """
        with _partition_queue(handle_of(self._consumer), partition) as queue:
            lib.rd_kafka_queue_forward(queue, self._queue)

    def pour(self, leaving: Collection[Partition]) -> None:
        """Move all records of this queue to the end of the common queue.

        Later records of the `leaving` partitions also go to the common queue.
        """
        with _consumer_queue(handle_of(self._consumer)) as common:
            # Forward this queue to the common one until the partitions do the same, so that no record overtakes an
            # older one.
            lib.rd_kafka_queue_forward(self._queue, common)
            for partition in leaving:
                use_common_queue(self._consumer, partition)
            lib.rd_kafka_queue_forward(self._queue, None)

    def close(self) -> None:
        """Release the queue, unless the consumer is closed already."""
        queue, self._queue = self._queue, None
        if queue is not None and handle_or_none(self._consumer) is not None:
            lib.rd_kafka_queue_destroy(queue)


def use_common_queue(consumer: cimpl.Consumer, partition: Partition) -> None:
    """Put the records of a partition into the queue from which `consume` returns records."""
    handle = handle_of(consumer)
    with _partition_queue(handle, partition) as queue, _consumer_queue(handle) as common:
        lib.rd_kafka_queue_forward(queue, common)


@contextmanager
def _partition_queue(handle: int, partition: Partition) -> Iterator[int]:
    """Hold a reference to the queue of a single partition during the block."""
    topic, number = partition
    queue = lib.rd_kafka_queue_get_partition(handle, topic.encode(), number)
    if queue is None:
        raise KafkaError(f"librdkafka has no queue for partition {number} of {topic}.")
    try:
        yield queue
    finally:
        lib.rd_kafka_queue_destroy(queue)


@contextmanager
def _consumer_queue(handle: int) -> Iterator[int]:
    """Hold a reference to the consumer's common queue during the block."""
    queue = lib.rd_kafka_queue_get_consumer(handle)
    try:
        yield queue
    finally:
        lib.rd_kafka_queue_destroy(queue)


@contextmanager
def _topic(handle: int, name: str) -> Iterator[int]:
    """Hold a reference to librdkafka's topic object during the block.

    While a partition of the topic is read, librdkafka holds a further reference.
    """
    topic = lib.rd_kafka_topic_new(handle, name.encode(), None)
    if topic is None:
        raise KafkaError(f"{name!r} is not a valid topic name. Correct the name.")
    try:
        yield topic
    finally:
        lib.rd_kafka_topic_destroy(topic)
