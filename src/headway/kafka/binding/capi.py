"""Calls that the Python binding lacks, through the C API of the librdkafka that it ships.

The binding ends commit metadata with a NUL byte and reads it back with `strlen`; here metadata is exact both ways.
Every function takes the binding's own client, which must not be closed in another thread during a call. Nothing here
serves the client's own queues, since the binding's callbacks only run inside the binding's own calls.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Producer, cimpl
from confluent_kafka.admin import AdminClient

from headway.errors import KafkaError
from headway.kafka.binding.librdkafka import (
    NativePartition,
    OnCommit,
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

Client = Consumer | Producer | AdminClient
Partition = tuple[str, int]  # Kafka's topic, partition
Offsets = Mapping[Partition, tuple[int, bytes]]  # the offset to read next, and the commit's metadata

_MEMBERSHIP_ENDS_WITHIN = 10.0
_LOOK_AGAIN_AFTER = 0.0001
_ASK_AGAIN_AFTER = 0.005
_IN_ONE_QUESTION = 500  # for more librdkafka needs time with their square


def _answer(_client: int, code: int, answered: "ListPointer", answers: list[tuple[int, dict[Partition, int]]]) -> None:
    answers.append((code, {partition: element.err for partition, element in elements_of(answered)} if answered else {}))


_on_commit = OnCommit(_answer)


Explain = Callable[[KafkaError, str], KafkaError]
"""A function (error, topic) -> the error in other words."""


class PendingCommit:
    """A commit that was sent. It is done only once the broker acknowledges it.

    `explain` is called once for each partition that is refused, with the error and the topic, and returns the error in
    other words.
    """

    def __init__(self, consumer: Consumer, offsets: Offsets, explain: Explain = lambda error, topic: error) -> None:
        self.offsets = offsets
        self._consumer = consumer
        self._explain = explain
        self._refused: dict[Partition, KafkaError] | None = None
        self._answers: list[tuple[int, dict[Partition, int]]] = []
        handle = handle_of(consumer)
        # A queue for this answer alone, so that waiting for it serves none of the binding's callbacks. It uses a
        # callback, as librdkafka 2.16 does not free an answer that is polled as an event.
        self._queue: int | None = lib.rd_kafka_queue_new(handle)
        with offset_list(offsets) as commit_list:
            code = lib.rd_kafka_commit_queue(handle, commit_list, self._queue, _on_commit, self._answers)
        if code:
            self._close_queue()
            raise refusal_of("The commit was not sent", code)

    @property
    def is_open(self) -> bool:
        """True until the answer was seen, or nobody waits for it any more."""
        return self._queue is not None

    def refused(self, timeout: float = 0) -> dict[Partition, KafkaError] | None:
        """Return the refused partitions and why: empty if all is done, None while there is no answer.

        Waits up to `timeout` seconds. The answer stays the same once it is there. If the broker refuses some partitions
        of a commit, librdkafka may report the same for the others. They count as not done and are tried again.

        Raises:
            ClosedError: The consumer was closed before the answer was asked for; the answer is unknown.
        """
        if self._queue is not None:
            handle_of(self._consumer)  # a queue must not be touched after its client's end
            lib.rd_kafka_queue_poll_callback(self._queue, milliseconds(timeout))
            if not self._answers:
                return None
            self._close_queue()
        if self._refused is None:
            self._refused = self._refusals(*self._answers[0])
        return self._refused

    def give_up(self, reason: str) -> None:
        """Without an answer yet, count all partitions as refused for this reason; the client is closed next."""
        if self._queue is not None and self.refused() is None:
            self.forget()
            self._refused = {
                (topic, number): KafkaError(f"Partition {number} of {topic} was not committed: {reason}")
                for topic, number in self.offsets
            }

    def forget(self) -> None:
        """Stop waiting for the answer; librdkafka wants that before its consumer is closed."""
        if getattr(self, "_queue", None) is not None and handle_or_none(self._consumer) is not None:
            self._close_queue()

    __del__ = forget

    def _refusals(self, code: int, codes: dict[Partition, int]) -> dict[Partition, KafkaError]:
        if not any(codes.values()):  # a refusal of the whole need not be repeated for each partition
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


def commit(consumer: Consumer, offsets: Offsets, explain: Explain = lambda error, topic: error) -> PendingCommit:
    """Send a commit of offsets with their exact metadata, and return at once an object that tells its outcome.

    Ask it, or let it go, before the consumer is closed. To wait for it: `commit(...).refused(timeout)`.

    Raises:
        KafkaError: The commit could not be sent.
        ClosedError: The consumer is closed.
    """
    return PendingCommit(consumer, offsets, explain)


def committed(
    consumer: Consumer, partitions: Sequence[Partition], timeout: float
) -> dict[Partition, tuple[int, bytes] | None]:
    """Return each partition's committed offset of the group with its exact metadata, None if it has none.

    Raises:
        KafkaError: The broker did not answer within `timeout` seconds, or refused for a partition.
        ClosedError: The consumer is closed.
    """
    found: dict[Partition, tuple[int, bytes] | None] = {}
    for partition, answer in committed_each(consumer, partitions, timeout).items():
        if isinstance(answer, KafkaError):
            raise answer
        found[partition] = answer
    return found


def committed_each(
    consumer: Consumer, partitions: Sequence[Partition], timeout: float
) -> dict[Partition, tuple[int, bytes] | KafkaError | None]:
    """Return the same as `committed`, with the error in place of the offset for each refused partition.

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
        return refusal_of(f"The committed offset of partition {number} of {topic} is not known", code)
    return (element.offset, metadata_of(element)) if element.offset >= 0 else None


def await_online(client: Client, partitions: Sequence[Partition], timeout: float) -> None:
    """Wait until the leader of each partition answers for it, as it does from when it takes records, or the time is up.

    Metadata tell of a new partition, or of a new leader, some milliseconds before.
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


def send_offsets_to_transaction(producer: Producer, offsets: Offsets, group_metadata: bytes, timeout: float) -> None:
    """Make offsets with their exact metadata a part of the producer's open transaction.

    Args:
        producer: The producer, with an open transaction.
        offsets: The next offset to read of each partition, with its metadata.
        group_metadata: The result of the consumer's `consumer_group_metadata()`.
        timeout: In seconds.

    Raises:
        KafkaError: The offsets were refused. Its cause is the binding's `KafkaException`, which knows whether the call
            may be tried again (`args[0].retriable()`) or the transaction has to be aborted
            (`args[0].txn_requires_abort()`).
        ClosedError: The producer is closed.
    """
    handle = handle_of(producer)
    with group_metadata_of(group_metadata) as group, offset_list(offsets) as sent:
        error = lib.rd_kafka_send_offsets_to_transaction(handle, sent, group, milliseconds(timeout))
    raise_if("The offsets were not added to the transaction", error)


def is_of_a_member(group_metadata: bytes) -> bool:
    """Return whether this metadata is of a consumer that is a member of its group now.

    Kafka accepts transaction offsets of a non-member without a check, so nothing would be fenced off.
    """
    with group_metadata_of(group_metadata) as group:
        member = lib.rd_kafka_consumer_group_metadata_member_id(group)
        generation: int = lib.rd_kafka_consumer_group_metadata_generation_id(group)
    return bool(member) and generation >= 0


def fatal_error(client: Client) -> cimpl.KafkaError | None:
    """Return the error after which librdkafka's client does nothing any more, None if it has met none or is closed."""
    handle = handle_or_none(client)
    code = 0 if handle is None else lib.rd_kafka_fatal_error(handle, None, 0)
    return cimpl.KafkaError(code) if code else None


def was_connected(client: Client) -> bool:
    """Return whether any broker has ever answered the client about the cluster, without a request."""
    handle = handle_of(client)
    cluster = lib.rd_kafka_clusterid(handle, 0)
    if cluster:
        lib.rd_kafka_mem_free(handle, cluster)
    return bool(cluster)


def is_answered(client: Client, timeout: float) -> bool:
    """Ask any broker about the topics that the client knows, and return whether one answers in so many seconds."""
    return _ask(client, timeout) == 0


def _ask(client: Client, timeout: float) -> int:
    metadata = c_void_p()
    code: int = lib.rd_kafka_metadata(handle_of(client), 0, None, byref(metadata), milliseconds(timeout))
    if metadata:
        lib.rd_kafka_metadata_destroy(metadata)
    return code


def wake_on_events(client: Client, fd: int | None) -> None:
    """Write one byte to `fd` whenever the client's empty queue gets something to poll; None ends that.

    A consumer's queue gets records, rebalances and errors; a producer's gets delivery reports and errors. `fd` is the
    non-blocking write end of a pipe or socket. The caller keeps it open until it has passed None or closed the client.
    The signal is an edge: read the pipe empty, poll until a poll returns nothing, and only then wait again. Source:
    `rd_kafka_queue_io_event_enable`.
    """
    of_client = lib.rd_kafka_queue_get_consumer if isinstance(client, Consumer) else lib.rd_kafka_queue_get_main
    queue = of_client(handle_of(client))
    if queue is None:
        raise KafkaError("The consumer has no queue to wait on, since it has no group.id.")
    lib.rd_kafka_queue_io_event_enable(queue, -1 if fd is None else fd, b"\x01", 1)
    lib.rd_kafka_queue_destroy(queue)  # gives back our reference only; the client keeps its queue and the event


def await_connection(client: Client, timeout: float) -> None:
    """Wait until a broker has answered a request for no topic, which needs no right.

    Raises:
        KafkaException: The binding's, if no broker answered within `timeout` seconds.
    """
    if code := _ask(client, timeout):
        raise KafkaException(cimpl.KafkaError(code))


def close_membership(consumer: Consumer) -> None:
    """End the group membership in a consumer that was just made; the client itself goes on.

    From then on librdkafka asks for no coordinator, and refuses to subscribe, assign and commit.

    Raises:
        KafkaError: The membership did not end.
    """
    handle = handle_of(consumer)
    queue = lib.rd_kafka_queue_new(handle)
    try:
        raise_if("The consumer could not be made", lib.rd_kafka_consumer_close_queue(handle, queue))
        # Not by polling the queue: that would call the binding's callbacks outside of the binding's calls.
        deadline = time.monotonic() + _MEMBERSHIP_ENDS_WITHIN
        while not lib.rd_kafka_consumer_closed(handle):
            if time.monotonic() > deadline:
                raise KafkaError(f"The consumer was not ready within {_MEMBERSHIP_ENDS_WITHIN:g} s.")
            time.sleep(_LOOK_AGAIN_AFTER)
        # Until now the client's errors went to this queue; from here they go to the queue that the binding serves.
        with _consumer_queue(handle) as served:
            forward_back(queue, served)
    finally:
        lib.rd_kafka_queue_destroy(queue)


def forward_back(queue: object, served: object) -> None:
    """Forward a queue to the one that librdkafka may still forward to it.

    A consumer says that it has closed a moment before librdkafka takes its own forwarding back. Meanwhile a forwarding
    in the other direction would wait for its own lock, for ever.
    """
    lib.rd_kafka_queue_forward(served, None)
    lib.rd_kafka_queue_forward(queue, served)


def start_reading(consumer: Consumer, partition: Partition, offset: int) -> bool:
    """Let an unjoined consumer fetch a partition from an offset on; return whether that offset is possible."""
    handle = handle_of(consumer)
    with _topic(handle, partition[0]) as topic, _consumer_queue(handle) as queue:
        return bool(lib.rd_kafka_consume_start_queue(topic, partition[1], offset, queue) == 0)


def stop_reading(consumer: Consumer, partition: Partition) -> None:
    """End the reading that `start_reading` began: no fetched record of the partition comes any more."""
    with _topic(handle_of(consumer), partition[0]) as topic:
        lib.rd_kafka_consume_stop(topic, partition[1])  # refused if it was not begun


def queue_length(consumer: Consumer) -> int:
    """Return how many records and events wait in the queue that `consume` polls."""
    with _consumer_queue(handle_of(consumer)) as queue:
        length: int = lib.rd_kafka_queue_length(queue)
    return length


class SideQueue:
    """A queue of a consumer that nothing polls, for some of its partitions; to be closed before the consumer.

    librdkafka bounds it as it bounds the queue that `consume` polls, and for both tells by themselves whether to fetch.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._queue: int | None = lib.rd_kafka_queue_new(handle_of(consumer))

    def collect(self, partition: Partition) -> None:
        """Take what comes of a partition from now on; what is in the common queue already stays there."""
        with _partition_queue(handle_of(self._consumer), partition) as queue:
            lib.rd_kafka_queue_forward(queue, self._queue)

    def pour(self, leaving: Collection[Partition]) -> None:
        """Move all to the end of the common queue; what comes of these partitions goes there from now on."""
        with _consumer_queue(handle_of(self._consumer)) as common:
            lib.rd_kafka_queue_forward(self._queue, common)  # until they are let go, or newer records would overtake
            for partition in leaving:
                let_go(self._consumer, partition)
            lib.rd_kafka_queue_forward(self._queue, None)

    def close(self) -> None:
        """Let go of the queue, unless the consumer is closed."""
        queue, self._queue = self._queue, None
        if queue is not None and handle_or_none(self._consumer) is not None:
            lib.rd_kafka_queue_destroy(queue)


def let_go(consumer: Consumer, partition: Partition) -> None:
    """Have what comes of a partition go to the queue that `consume` polls."""
    handle = handle_of(consumer)
    with _partition_queue(handle, partition) as queue, _consumer_queue(handle) as common:
        lib.rd_kafka_queue_forward(queue, common)


@contextmanager
def _partition_queue(handle: int, partition: Partition) -> Iterator[int]:
    """Hold a reference to a partition's own queue."""
    topic, number = partition
    queue = lib.rd_kafka_queue_get_partition(handle, topic.encode(), number)
    if queue is None:
        raise KafkaError(f"Partition {number} of {topic} is not known.")
    try:
        yield queue
    finally:
        lib.rd_kafka_queue_destroy(queue)


@contextmanager
def _consumer_queue(handle: int) -> Iterator[int]:
    """Hold a reference to the queue that a consumer's `consume` polls."""
    queue = lib.rd_kafka_queue_get_consumer(handle)
    try:
        yield queue
    finally:
        lib.rd_kafka_queue_destroy(queue)


@contextmanager
def _topic(handle: int, name: str) -> Iterator[int]:
    """Hold librdkafka's object for a topic; a partition being read holds another reference."""
    topic = lib.rd_kafka_topic_new(handle, name.encode(), None)
    if topic is None:
        raise KafkaError(f"{name!r} is no name of a topic.")
    try:
        yield topic
    finally:
        lib.rd_kafka_topic_destroy(topic)
