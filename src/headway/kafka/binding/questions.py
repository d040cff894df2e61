"""Sends requests to Kafka without blocking, and reports a result or an error for each item.

Each blocking call of librdkafka has a time limit. If a broker takes longer than that, a caller that repeats the call
never gets an answer, and only adds requests to the broker's queue. In addition, `rd_kafka_committed` returns nothing at
all while one of the partitions has an open transaction. The admin API has neither problem. The admin API also works
with a consumer's client, so members do not need an additional admin client, with its threads and connections.
"""

import ctypes
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_size_t, c_void_p
from typing import Generic, NamedTuple, TypeVar

import confluent_kafka as ck
from confluent_kafka import cimpl

from headway.errors import KafkaError
from headway.kafka.binding.capi import Client, CommittedOffset, Partition
from headway.kafka.binding.librdkafka import (
    NativePartition,
    elements_of,
    handle_of,
    handle_or_none,
    lib,
    metadata_of,
    milliseconds,
    partition_list,
    raise_if,
    refusal_of,
)

T = TypeVar("T")

OFFSET_BEGINNING, OFFSET_END = ck.OFFSET_BEGINNING, ck.OFFSET_END
_LIST_COMMITTED, _DESCRIBE_TOPICS, _LIST_OFFSETS = 14, 19, 21  # RD_KAFKA_ADMIN_OP_…
# The longest time-out that librdkafka accepts. A shorter time-out could expire while the coordinator's broker is away,
# and librdkafka would then abort the process: see docs/design/librdkafka.md.
_ENDLESS = 3600.0
_READ_COMMITTED = {"read_uncommitted": 0, "read_committed": 1}
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # the id that brokers before Kafka 2.8 send, because they do not support topic ids


class Question(Generic[T]):
    """A request that was sent to Kafka. When its answer arrives, a byte is written to `wake_fd`.

    Call `forget` before the client or the descriptor is closed.
    """

    def __init__(
        self,
        client: Client,
        wake_fd: int | None,
        send: Callable[[int, int], None],
        read: Callable[[int], T],
    ) -> None:
        self.client = client
        self._read = read
        handle = handle_of(client)
        self._queue: int | None = lib.rd_kafka_queue_new(handle)
        if wake_fd is not None:
            lib.rd_kafka_queue_io_event_enable(self._queue, wake_fd, b"\x01", 1)
        try:
            send(handle, self._queue)
        except BaseException:
            self.forget()
            raise

    def answer(self, timeout: float = 0) -> T | None:
        """Wait up to `timeout` seconds for the answer, and return it, or None if it has not arrived.

        Raises `KafkaError` if the whole request failed, and `ClosedError` if the client was closed.
        """
        # Raises an error if the client is closed, because the queues of a closed client must not be used.
        handle_of(self.client)
        event = lib.rd_kafka_queue_poll(self._queue, milliseconds(timeout))
        if not event:
            return None
        try:
            if code := lib.rd_kafka_event_error(event):
                raise refusal_of("Kafka did not answer a request", code, lib.rd_kafka_event_error_string(event))
            return self._read(event)
        finally:
            lib.rd_kafka_event_destroy(event)
            self.forget()

    def forget(self) -> None:
        """Abandon the request."""
        queue, self._queue = self._queue, None
        if queue is not None and handle_or_none(self.client) is not None:
            lib.rd_kafka_queue_io_event_enable(queue, -1, None, 0)
            lib.rd_kafka_queue_destroy(queue)


FoundCommits = dict[Partition, CommittedOffset | KafkaError | None]
"""The committed offset and metadata of each partition.

The value is None if the partition has no commit, or the error that Kafka returned for it.
"""

FoundOffsets = dict[Partition, int | KafkaError]
"""The offset of each partition, or the error that Kafka returned for it."""


class KnownTopic(NamedTuple):
    """A topic as Kafka describes it.

    The id is None if the brokers do not support topic ids. `partitions` is the number of partitions.
    """

    id: str | None
    partitions: int


FoundTopics = dict[str, KnownTopic | None]
"""The description of each topic, or None if the topic does not exist.

A topic is left out if Kafka returned another error for it.
"""


def ask_committed(
    client: cimpl.Consumer, group: str, partitions: Collection[Partition], wake_fd: int | None
) -> Question[FoundCommits]:
    """Request committed offsets.

    The answer is an error for a partition whose offset is part of an open transaction.
    """

    def send(handle: int, queue: int) -> None:
        with _options(handle, _LIST_COMMITTED, _ENDLESS) as options, partition_list(partitions) as asked:
            raise_if("The request was not sent", lib.rd_kafka_AdminOptions_set_require_stable_offsets(options, 1))
            about = c_void_p(lib.rd_kafka_ListConsumerGroupOffsets_new(group.encode(), asked))
            try:
                lib.rd_kafka_ListConsumerGroupOffsets(handle, byref(about), 1, options, queue)
            finally:
                lib.rd_kafka_ListConsumerGroupOffsets_destroy(about)

    return Question(client, wake_fd, send, _committed)


def ask_all_committed(client: Client, group: str) -> Question[FoundCommits]:
    """Request all committed offsets of a group, those in an open transaction as of before the transaction.

    The binding has this request as well, but it reads the metadata beyond their end.
    """

    def send(handle: int, queue: int) -> None:
        with _options(handle, _LIST_COMMITTED, _ENDLESS) as options:
            about = c_void_p(lib.rd_kafka_ListConsumerGroupOffsets_new(group.encode(), None))
            try:
                lib.rd_kafka_ListConsumerGroupOffsets(handle, byref(about), 1, options, queue)
            finally:
                lib.rd_kafka_ListConsumerGroupOffsets_destroy(about)

    return Question(client, None, send, _committed)


def ask_offsets(
    client: cimpl.Consumer, places: Mapping[Partition, int], isolation: str, within: float, wake_fd: int | None
) -> Question[FoundOffsets]:
    """Request offsets from the partitions' leaders.

    For each partition, `places` has `OFFSET_BEGINNING`, `OFFSET_END`, or a time. The answer to a time is the offset of
    the first record at or after it, or -1 if there is no such record. Any other negative offset in an answer means that
    the offset is unknown.
    """

    def send(handle: int, queue: int) -> None:
        with _options(handle, _LIST_OFFSETS, within) as options, partition_list(places) as asked:
            level = _READ_COMMITTED.get(isolation, 1)
            raise_if("The request was not sent", lib.rd_kafka_AdminOptions_set_isolation_level(options, level))
            for partition, element in elements_of(asked):
                element.offset = places[partition]
            lib.rd_kafka_ListOffsets(handle, asked, options, queue)

    return Question(client, wake_fd, send, _offsets)


def ask_topics(
    client: Client, topics: Collection[str], within: float, wake_fd: int | None = None
) -> Question[FoundTopics]:
    """Request the topics' ids and numbers of partitions.

    The binding supports this request only for its admin client; this function sends it with any client.
    """

    def send(handle: int, queue: int) -> None:
        names = (c_char_p * len(topics))(*[topic.encode() for topic in topics])
        collection = lib.rd_kafka_TopicCollection_of_topic_names(names, len(topics))
        try:
            with _options(handle, _DESCRIBE_TOPICS, within) as options:
                lib.rd_kafka_DescribeTopics(handle, collection, options, queue)
        finally:
            lib.rd_kafka_TopicCollection_destroy(collection)

    return Question(client, wake_fd, send, _described)


def _committed(event: int) -> FoundCommits:
    count = c_size_t()
    groups = lib.rd_kafka_ListConsumerGroupOffsets_result_groups(
        lib.rd_kafka_event_ListConsumerGroupOffsets_result(event), byref(count)
    )
    if error := lib.rd_kafka_group_result_error(groups[0]):  # the error object belongs to the event
        raise refusal_of(
            "Kafka did not answer a request", lib.rd_kafka_error_code(error), lib.rd_kafka_error_string(error)
        )
    found = lib.rd_kafka_group_result_partitions(groups[0])
    return {partition: _commit(partition, element) for partition, element in elements_of(found)}


def _commit(partition: Partition, element: NativePartition) -> CommittedOffset | KafkaError | None:
    if element.err:
        topic, number = partition
        return refusal_of(f"The committed offset of partition {number} of {topic} could not be read", element.err)
    return (element.offset, metadata_of(element)) if element.offset >= 0 else None


def _offsets(event: int) -> FoundOffsets:
    count = c_size_t()
    result = lib.rd_kafka_event_ListOffsets_result(event)
    infos = lib.rd_kafka_ListOffsets_result_infos(result, byref(count))
    found: FoundOffsets = {}
    for index in range(count.value):
        native = lib.rd_kafka_ListOffsetsResultInfo_topic_partition(infos[index]).contents
        topic, number = native.topic.decode(), native.partition
        what = f"The offset at which partition {number} of {topic} begins or ends could not be read"
        found[topic, number] = refusal_of(what, native.err) if native.err else native.offset
    return found


def _described(event: int) -> FoundTopics:
    count = c_size_t()
    topics = lib.rd_kafka_DescribeTopics_result_topics(lib.rd_kafka_event_DescribeTopics_result(event), byref(count))
    found: FoundTopics = {}
    for index in range(count.value):
        topic = topics[index]
        name = lib.rd_kafka_TopicDescription_name(topic).decode()
        error = lib.rd_kafka_TopicDescription_error(topic)
        code = lib.rd_kafka_error_code(error) if error else 0
        if code == ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
            found[name] = None
        elif not code:
            id_ = lib.rd_kafka_Uuid_base64str(lib.rd_kafka_TopicDescription_topic_id(topic)).decode()
            partitions = c_size_t()
            lib.rd_kafka_TopicDescription_partitions(topic, byref(partitions))
            found[name] = KnownTopic(None if id_ == _NO_ID else id_, partitions.value)
    return found


@contextmanager
def _options(handle: int, operation: int, within: float) -> Iterator[c_void_p]:
    options = c_void_p(lib.rd_kafka_AdminOptions_new(handle, operation))
    try:
        reason = ctypes.create_string_buffer(256)
        if code := lib.rd_kafka_AdminOptions_set_request_timeout(options, milliseconds(within), reason, len(reason)):
            raise refusal_of("The request was not sent", code, reason.value)
        yield options
    finally:
        lib.rd_kafka_AdminOptions_destroy(options)
