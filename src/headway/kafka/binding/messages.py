"""Takes records and events from a consumer's queue.

The optional C module `native_messages` does this with a third of the CPU time of the binding's `Consumer.consume`.
`IS_COMPILED` is False if this module was not compiled, or if the binding lacks a function that it calls.
"""

import ctypes
import itertools
from typing import Any, NamedTuple

import confluent_kafka as ck
from confluent_kafka import cimpl

from headway.core.record_size import RECORD_TAKES
from headway.kafka.binding.librdkafka import lib, milliseconds

_OF_THE_BINDING = ("Handle_common_enter", "Handle_common_exit", "CallState_begin", "CallState_end", "Message_new0")
_OF_LIBRDKAFKA = (
    "opaque",
    "queue_get_consumer",
    "queue_destroy",
    "consume_batch_queue",
    "message_destroy",
    "message_timestamp",
    "message_leader_epoch",
    "message_detach_headers",
    "headers_destroy",
    "header_get_all",
    "topic_name",
)

FetchedMessage = ck.Message
"""The class of the records that `take_messages` returns: the C module's class, or otherwise that of the binding."""

_error = ck.Message.error

try:
    from headway.kafka.binding import native_messages

    _names = (*_OF_THE_BINDING, *(f"rd_kafka_{name}" for name in _OF_LIBRDKAFKA))
    native_messages.bind(
        ck.cimpl.Consumer,
        tuple(ctypes.cast(getattr(lib, name), ctypes.c_void_p).value or 0 for name in _names),
    )
except (ImportError, AttributeError):
    IS_COMPILED = False
else:
    IS_COMPILED = True
    FetchedMessage = native_messages.Message  # type: ignore[misc]


def take_messages(consumer: cimpl.Consumer, count: int, timeout: float) -> tuple[list[ck.Message], list[ck.Message]]:
    """Take at most `count` messages from a consumer's queue, and return the records and the events among them.

    Waits for the first message for at most `timeout` seconds. Rebalance callbacks run within this call, which raises
    what they raise. Raises a `KafkaException` if librdkafka fails, and a `RuntimeError` if the consumer is closed.
    """
    if IS_COMPILED:
        return native_messages.take(consumer, count, milliseconds(timeout))
    messages = consumer.consume(count, timeout)
    if not any(map(_error, messages)):
        return messages, []
    return [each for each in messages if not each.error()], [each for each in messages if each.error()]


class FetchedColumns(NamedTuple):
    """The offsets of messages, and their sizes in memory without their headers.

    `ends` has, for each run of messages from one partition, the index after its last message. `may_have_headers` is
    False if no message has headers, as far as that is known.
    """

    offsets: list[int]
    sizes: list[int]
    ends: list[int]
    may_have_headers: bool = True


def fetched_columns(messages: list[Any]) -> FetchedColumns:
    """Return the offsets and sizes of messages that `take_messages` has returned, and the ends of their runs."""
    if IS_COMPILED:
        return FetchedColumns(*native_messages.columns(messages, RECORD_TAKES))
    offsets = list(map(FetchedMessage.offset, messages))
    sizes = [
        RECORD_TAKES + len(key or b"") + len(value or b"")
        for key, value in zip(map(FetchedMessage.key, messages), map(FetchedMessage.value, messages), strict=True)
    ]
    places = zip(map(FetchedMessage.partition, messages), map(FetchedMessage.topic, messages), strict=True)
    lengths = [len(list(run)) for _, run in itertools.groupby(places)]
    return FetchedColumns(offsets, sizes, list(itertools.accumulate(lengths)))  # type: ignore[arg-type]  # records have offsets
