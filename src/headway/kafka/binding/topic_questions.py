"""A question about topics, asked over a member's own connection: each one's id, and how many partitions it has.

The binding asks such a question of an admin client only, which would be one more client, with its threads and
connections, for each member.
"""

from collections.abc import Collection
from ctypes import byref, c_char_p, c_size_t, create_string_buffer
from typing import NamedTuple

import confluent_kafka as ck

from headway.kafka.binding.capi import Client
from headway.kafka.binding.librdkafka import handle_of, handle_or_none, lib, milliseconds, refusal_of

_DESCRIBE_TOPICS = 19  # RD_KAFKA_ADMIN_OP_DESCRIBETOPICS
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # brokers before Kafka 2.8 have no ids


class KnownTopic(NamedTuple):
    """A topic as Kafka describes it: its id, None if the brokers give none, and the number of its partitions."""

    id: str | None
    partitions: int


class TopicQuestion:
    """A question about topics that was sent. `wake_fd` gets a byte when there is an answer.

    Let it go before its client is closed, and before the descriptor is.
    """

    def __init__(self, client: Client, topics: Collection[str], within: float, wake_fd: int | None = None) -> None:
        self._client = client
        handle = handle_of(client)
        self._queue: int | None = lib.rd_kafka_queue_new(handle)
        if wake_fd is not None:
            lib.rd_kafka_queue_io_event_enable(self._queue, wake_fd, b"\x01", 1)
        names = (c_char_p * len(topics))(*[topic.encode() for topic in topics])
        collection = lib.rd_kafka_TopicCollection_of_topic_names(names, len(topics))
        options = lib.rd_kafka_AdminOptions_new(handle, _DESCRIBE_TOPICS)
        reason = create_string_buffer(256)
        lib.rd_kafka_AdminOptions_set_request_timeout(options, milliseconds(within), reason, len(reason))
        lib.rd_kafka_DescribeTopics(handle, collection, options, self._queue)
        lib.rd_kafka_AdminOptions_destroy(options)
        lib.rd_kafka_TopicCollection_destroy(collection)

    def answer(self, timeout: float = 0) -> dict[str, KnownTopic | None] | None:
        """Return each topic's description, or None if there is no answer within so many seconds.

        A topic that Kafka lacks has None in place of a description. A topic of which the brokers say neither, for
        example for want of a right, is left out. Raises `KafkaError` if no broker has answered in time, and
        `ClosedError` if the client was closed.
        """
        handle_of(self._client)  # a queue must not be touched after its client's end
        event = lib.rd_kafka_queue_poll(self._queue, milliseconds(timeout))
        if not event:
            return None
        try:
            if code := lib.rd_kafka_event_error(event):
                raise refusal_of("The topics were not described", code, lib.rd_kafka_event_error_string(event))
            return _described(event)
        finally:
            lib.rd_kafka_event_destroy(event)
            self.forget()

    def forget(self) -> None:
        """Do not wait for the answer any longer."""
        queue, self._queue = self._queue, None
        if queue is not None and handle_or_none(self._client) is not None:
            lib.rd_kafka_queue_io_event_enable(queue, -1, None, 0)
            lib.rd_kafka_queue_destroy(queue)


def _described(event: int) -> dict[str, KnownTopic | None]:
    count = c_size_t()
    topics = lib.rd_kafka_DescribeTopics_result_topics(lib.rd_kafka_event_DescribeTopics_result(event), byref(count))
    found: dict[str, KnownTopic | None] = {}
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
