"""Calls that the Python binding lacks, through the C API of the librdkafka that it ships.

The binding ends commit metadata with a NUL byte and reads it back with `strlen`; here metadata is exact both ways.
Every function takes the binding's own client. Its handle is the first field after the Python object's header. Each call
checks the handle: librdkafka's opaque pointer has to lead back to the object we came from. A client must not be closed
in another thread during a call. ctypes releases the GIL while librdkafka works. Nothing here serves the client's own
queues, since the binding's callbacks only run inside the binding's own calls.
"""

import ctypes
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_void_p,
    py_object,
)
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, cimpl
from confluent_kafka.admin import AdminClient

from headway.errors import ClosedError, KafkaError

Client = Consumer | Producer | AdminClient
Partition = tuple[str, int]  # Kafka's topic, partition
Offsets = Mapping[Partition, tuple[int, bytes]]  # the offset to read next, and the commit's metadata


class _TopicPartition(Structure):
    _fields_ = [
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("err", c_int),
        ("_private", c_void_p),
    ]


class _TopicPartitionList(Structure):
    _fields_ = [("cnt", c_int), ("size", c_int), ("elems", POINTER(_TopicPartition))]


_List = POINTER(_TopicPartitionList)
_OnCommit = CFUNCTYPE(None, c_void_p, c_int, _List, py_object)

_MEMBERSHIP_ENDS_WITHIN = 10.0
_LOOK_AGAIN_AFTER = 0.0001

# The binding's module also finds the symbols of the librdkafka it is linked with, wherever that lies.
_lib = ctypes.CDLL(cimpl.__file__)


def _declare(name: str, result: Any, *arguments: Any) -> None:
    function = getattr(_lib, name)
    function.restype, function.argtypes = result, arguments


_declare("rd_kafka_opaque", c_void_p, c_void_p)
_declare("rd_kafka_clusterid", c_void_p, c_void_p, c_int)
_declare("rd_kafka_mem_free", None, c_void_p, c_void_p)
_declare("rd_kafka_metadata", c_int, c_void_p, c_int, c_void_p, POINTER(c_void_p), c_int)
_declare("rd_kafka_metadata_destroy", None, c_void_p)
_declare("rd_kafka_mem_malloc", c_void_p, c_void_p, c_size_t)
_declare("rd_kafka_err2str", c_char_p, c_int)
_declare("rd_kafka_topic_partition_list_new", _List, c_int)
_declare("rd_kafka_topic_partition_list_add", POINTER(_TopicPartition), _List, c_char_p, c_int32)
_declare("rd_kafka_topic_partition_list_destroy", None, _List)
_declare("rd_kafka_commit_queue", c_int, c_void_p, _List, c_void_p, _OnCommit, py_object)
_declare("rd_kafka_committed", c_int, c_void_p, _List, c_int)
_declare("rd_kafka_consumer_group_metadata_read", c_void_p, POINTER(c_void_p), c_char_p, c_size_t)
_declare("rd_kafka_consumer_group_metadata_destroy", None, c_void_p)
_declare("rd_kafka_consumer_group_metadata_member_id", c_char_p, c_void_p)
_declare("rd_kafka_consumer_group_metadata_generation_id", c_int32, c_void_p)
_declare("rd_kafka_send_offsets_to_transaction", c_void_p, c_void_p, _List, c_void_p, c_int)
_declare("rd_kafka_error_code", c_int, c_void_p)
_declare("rd_kafka_error_string", c_char_p, c_void_p)
_declare("rd_kafka_error_is_fatal", c_int, c_void_p)
_declare("rd_kafka_fatal_error", c_int, c_void_p, c_char_p, c_size_t)
_declare("rd_kafka_error_is_retriable", c_int, c_void_p)
_declare("rd_kafka_error_txn_requires_abort", c_int, c_void_p)
_declare("rd_kafka_error_destroy", None, c_void_p)
_declare("rd_kafka_queue_new", c_void_p, c_void_p)
_declare("rd_kafka_queue_get_consumer", c_void_p, c_void_p)
_declare("rd_kafka_queue_get_main", c_void_p, c_void_p)
_declare("rd_kafka_queue_io_event_enable", None, c_void_p, c_int, c_char_p, c_size_t)
_declare("rd_kafka_queue_poll_callback", c_int, c_void_p, c_int)
_declare("rd_kafka_queue_destroy", None, c_void_p)
_declare("rd_kafka_queue_forward", None, c_void_p, c_void_p)
_declare("rd_kafka_consumer_close_queue", c_void_p, c_void_p, c_void_p)
_declare("rd_kafka_consumer_closed", c_int, c_void_p)
_declare("rd_kafka_metadata", c_int, c_void_p, c_int, c_void_p, POINTER(c_void_p), c_int)
_declare("rd_kafka_metadata_destroy", None, c_void_p)
_declare("rd_kafka_topic_new", c_void_p, c_void_p, c_char_p, c_void_p)
_declare("rd_kafka_topic_destroy", None, c_void_p)
_declare("rd_kafka_consume_start_queue", c_int, c_void_p, c_int32, c_int64, c_void_p)
_declare("rd_kafka_consume_stop", c_int, c_void_p, c_int32)


def _answer(_handle: int, code: int, answered: Any, answers: list[tuple[int, dict[Partition, int]]]) -> None:
    answers.append((code, {partition: element.err for partition, element in _elements(answered)} if answered else {}))


_on_commit = _OnCommit(_answer)


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
        handle = _handle(consumer)
        # A queue for this answer alone, so that waiting for it serves none of the binding's callbacks. It uses a
        # callback, as librdkafka 2.16 does not free an answer that is polled as an event.
        self._queue: int | None = _lib.rd_kafka_queue_new(handle)
        with _offset_list(offsets) as commit_list:
            code = _lib.rd_kafka_commit_queue(handle, commit_list, self._queue, _on_commit, self._answers)
        if code:
            self._close_queue()
            raise _refusal("The commit was not sent", code)

    def refused(self, timeout: float = 0) -> dict[Partition, KafkaError] | None:
        """Return the refused partitions and why: empty if all is done, None while there is no answer.

        Waits up to `timeout` seconds. The answer stays the same once it is there. If the broker refuses some partitions
        of a commit, librdkafka may report the same for the others. They count as not done and are tried again.

        Raises:
            ClosedError: The consumer was closed before the answer was asked for; the answer is unknown.
        """
        if self._queue is not None:
            _handle(self._consumer)  # a queue must not be touched after its client's end
            _lib.rd_kafka_queue_poll_callback(self._queue, _milliseconds(timeout))
            if not self._answers:
                return None
            self._close_queue()
        if self._refused is None:
            self._refused = self._refusals(*self._answers[0])
        return self._refused

    def forget(self) -> None:
        """Stop waiting for the answer; librdkafka wants that before its consumer is closed."""
        if getattr(self, "_queue", None) is not None and _handle_or_none(self._consumer) is not None:
            self._close_queue()

    __del__ = forget

    def _refusals(self, code: int, codes: dict[Partition, int]) -> dict[Partition, KafkaError]:
        if not any(codes.values()):  # a refusal of the whole need not be repeated for each partition
            codes = dict.fromkeys(self.offsets, code)
        return {
            (topic, partition): self._explain(_refusal(f"{topic}-{partition} was not committed", code), topic)
            for (topic, partition), code in codes.items()
            if code
        }

    def _close_queue(self) -> None:
        queue, self._queue = self._queue, None
        _lib.rd_kafka_queue_destroy(queue)


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
    handle = _handle(consumer)
    with _partition_list(partitions) as asked:
        code = _lib.rd_kafka_committed(handle, asked, _milliseconds(timeout))
        return {
            partition: _committed(partition, element, code or element.err) for partition, element in _elements(asked)
        }


def _committed(partition: Partition, element: Any, code: int) -> tuple[int, bytes] | KafkaError | None:
    if code:
        topic, number = partition
        return _refusal(f"The committed offset of {topic}-{number} is not known", code)
    return (element.offset, _metadata(element)) if element.offset >= 0 else None


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
    handle = _handle(producer)
    with _group_metadata(group_metadata) as group, _offset_list(offsets) as sent:
        error = _lib.rd_kafka_send_offsets_to_transaction(handle, sent, group, _milliseconds(timeout))
    _raise_if("The offsets were not added to the transaction", error)


def is_of_a_member(group_metadata: bytes) -> bool:
    """Return whether this metadata is of a consumer that is a member of its group now.

    Kafka accepts transaction offsets of a non-member without a check, so nothing would be fenced off.
    """
    with _group_metadata(group_metadata) as group:
        member = _lib.rd_kafka_consumer_group_metadata_member_id(group)
        generation: int = _lib.rd_kafka_consumer_group_metadata_generation_id(group)
    return bool(member) and generation >= 0


def fatal_error(client: Client) -> cimpl.KafkaError | None:
    """Return the error after which librdkafka's client does nothing any more, None if it has met none or is closed."""
    handle = _handle_or_none(client)
    code = 0 if handle is None else _lib.rd_kafka_fatal_error(handle, None, 0)
    return cimpl.KafkaError(code) if code else None


def was_connected(client: Client) -> bool:
    """Return whether any broker has ever answered the client about the cluster, without a request."""
    handle = _handle(client)
    cluster = _lib.rd_kafka_clusterid(handle, 0)
    if cluster:
        _lib.rd_kafka_mem_free(handle, cluster)
    return bool(cluster)


def is_answered(client: Client, timeout: float) -> bool:
    """Ask any broker about the topics that the client knows, and return whether one answers in so many seconds."""
    metadata = c_void_p()
    code: int = _lib.rd_kafka_metadata(_handle(client), 0, None, byref(metadata), _milliseconds(timeout))
    if metadata:
        _lib.rd_kafka_metadata_destroy(metadata)
    return code == 0


def wake_on_events(client: Client, fd: int | None) -> None:
    """Write one byte to `fd` whenever the client's empty queue gets something to poll; None ends that.

    A consumer's queue gets records, rebalances and errors; a producer's gets delivery reports and errors. `fd` is the
    non-blocking write end of a pipe or socket. The caller keeps it open until it has passed None or closed the client.
    The signal is an edge: read the pipe empty, poll until a poll returns nothing, and only then wait again. Source:
    `rd_kafka_queue_io_event_enable`.
    """
    of_client = _lib.rd_kafka_queue_get_consumer if isinstance(client, Consumer) else _lib.rd_kafka_queue_get_main
    queue = of_client(_handle(client))
    if queue is None:
        raise KafkaError("The consumer has no queue to wait on, since it has no group.id.")
    _lib.rd_kafka_queue_io_event_enable(queue, -1 if fd is None else fd, b"\x01", 1)
    _lib.rd_kafka_queue_destroy(queue)  # gives back our reference only; the client keeps its queue and the event


def await_connection(client: Client, timeout: float) -> None:
    """Wait until a broker has answered a request for no topic, which needs no right.

    Raises:
        KafkaException: The binding's, if no broker answered within `timeout` seconds.
    """
    found = c_void_p()
    code = _lib.rd_kafka_metadata(_handle(client), 0, None, byref(found), _milliseconds(timeout))
    if code:
        raise KafkaException(cimpl.KafkaError(code))
    _lib.rd_kafka_metadata_destroy(found)


def close_membership(consumer: Consumer) -> None:
    """End the group membership in a consumer that was just made; the client itself goes on.

    From then on librdkafka asks for no coordinator, and refuses to subscribe, assign and commit.

    Raises:
        KafkaError: The membership did not end.
    """
    handle = _handle(consumer)
    queue = _lib.rd_kafka_queue_new(handle)
    try:
        _raise_if("The consumer could not be made", _lib.rd_kafka_consumer_close_queue(handle, queue))
        # Not by polling the queue: that would call the binding's callbacks outside of the binding's calls.
        deadline = time.monotonic() + _MEMBERSHIP_ENDS_WITHIN
        while not _lib.rd_kafka_consumer_closed(handle):
            if time.monotonic() > deadline:
                raise KafkaError(f"The consumer was not ready within {_MEMBERSHIP_ENDS_WITHIN:g} s.")
            time.sleep(_LOOK_AGAIN_AFTER)
        # Until now the client's errors went to this queue; from here they go to the queue that the binding serves.
        with _consumer_queue(handle) as served:
            _lib.rd_kafka_queue_forward(queue, served)
    finally:
        _lib.rd_kafka_queue_destroy(queue)


def start_reading(consumer: Consumer, partition: Partition, offset: int) -> bool:
    """Let an unjoined consumer fetch a partition from an offset on; return whether that offset is possible."""
    handle = _handle(consumer)
    with _topic(handle, partition[0]) as topic, _consumer_queue(handle) as queue:
        return bool(_lib.rd_kafka_consume_start_queue(topic, partition[1], offset, queue) == 0)


def stop_reading(consumer: Consumer, partition: Partition) -> None:
    """End the reading that `start_reading` began: no fetched record of the partition comes any more."""
    with _topic(_handle(consumer), partition[0]) as topic:
        _lib.rd_kafka_consume_stop(topic, partition[1])  # refused if it was not begun


def _handle(client: Client) -> int:
    """Return the `rd_kafka_t *` of a client, checked before it is used."""
    handle = _handle_or_none(client)
    if handle is None:
        raise ClosedError("The client is closed.")
    if _lib.rd_kafka_opaque(handle) != id(client):
        raise KafkaError(
            "This confluent-kafka lays its objects out differently from those Headway was tested with; "
            "install a version within the bounds that Headway declares."
        )
    return handle


def _handle_or_none(client: Client) -> int | None:
    if not isinstance(client, (Consumer, Producer, AdminClient)):
        raise TypeError(f"{type(client).__name__} is not a client of confluent_kafka.")
    return c_void_p.from_address(id(client) + object.__basicsize__).value


def _milliseconds(timeout: float) -> int:
    return math.ceil(timeout * 1000)  # never 0, which means not to wait, for a short time


@contextmanager
def _consumer_queue(handle: int) -> Iterator[Any]:
    """Hold a reference to the queue that a consumer's `consume` polls."""
    queue = _lib.rd_kafka_queue_get_consumer(handle)
    try:
        yield queue
    finally:
        _lib.rd_kafka_queue_destroy(queue)


@contextmanager
def _topic(handle: int, name: str) -> Iterator[Any]:
    """Hold librdkafka's object for a topic; a partition being read holds another reference."""
    topic = _lib.rd_kafka_topic_new(handle, name.encode(), None)
    if topic is None:
        raise KafkaError(f"{name!r} is no name of a topic.")
    try:
        yield topic
    finally:
        _lib.rd_kafka_topic_destroy(topic)


@contextmanager
def _partition_list(partitions: Sequence[Partition]) -> Iterator[Any]:
    """Make a list of librdkafka's own, and free it at the end."""
    created = _lib.rd_kafka_topic_partition_list_new(len(partitions))
    try:
        for topic, partition in partitions:
            _lib.rd_kafka_topic_partition_list_add(created, topic.encode(), partition)
        yield created
    finally:
        _lib.rd_kafka_topic_partition_list_destroy(created)


@contextmanager
def _offset_list(offsets: Offsets) -> Iterator[Any]:
    with _partition_list(list(offsets)) as created:
        for partition, element in _elements(created):
            element.offset, metadata = offsets[partition]
            if metadata:  # librdkafka sends none as an empty string
                element.metadata = _lib.rd_kafka_mem_malloc(None, len(metadata))  # the list frees it
                element.metadata_size = len(metadata)
                ctypes.memmove(element.metadata, metadata, len(metadata))
        yield created


@contextmanager
def _group_metadata(serialised: bytes) -> Iterator[c_void_p]:
    group = c_void_p()
    error = _lib.rd_kafka_consumer_group_metadata_read(byref(group), serialised, len(serialised))
    _raise_if("The consumer group's metadata cannot be read", error)
    try:
        yield group
    finally:
        _lib.rd_kafka_consumer_group_metadata_destroy(group)


def _elements(of_list: Any) -> Iterator[tuple[Partition, Any]]:
    for index in range(of_list.contents.cnt):
        element = of_list.contents.elems[index]
        yield (element.topic.decode(), element.partition), element


def _metadata(element: Any) -> bytes:
    return ctypes.string_at(element.metadata, element.metadata_size) if element.metadata else b""


def _refusal(what: str, code: int, reason: bytes | None = None, *flags: bool) -> KafkaError:
    """Return our error, with the binding's as its cause, as if the binding had raised it."""
    sentence = (reason or _lib.rd_kafka_err2str(code)).decode()
    error = KafkaError(f"{what}: {sentence.removesuffix('.')}.")
    error.__cause__ = KafkaException(cimpl.KafkaError(code, sentence, *flags))
    return error


def _raise_if(what: str, error: int | None) -> None:
    if error is None:
        return
    try:
        raise _refusal(
            what,
            _lib.rd_kafka_error_code(error),
            _lib.rd_kafka_error_string(error),
            bool(_lib.rd_kafka_error_is_fatal(error)),
            bool(_lib.rd_kafka_error_is_retriable(error)),
            bool(_lib.rd_kafka_error_txn_requires_abort(error)),
        )
    finally:
        _lib.rd_kafka_error_destroy(error)
