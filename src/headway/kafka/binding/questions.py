"""Questions to Kafka that wait for their answer without a thread, and are answered for each partition by itself.

librdkafka's blocking calls have a time limit each. A caller who asks again after it gets no answer at all from a broker
that takes longer, and fills that broker's queue. `rd_kafka_committed` also keeps the answer back while one of its
partitions is in an open transaction. The admin API has neither fault, and takes the client of a consumer as well.
"""

import ctypes
from collections.abc import Callable, Collection, Mapping
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_void_p
from typing import TYPE_CHECKING, Generic, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer

from headway.errors import KafkaError
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

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["OFFSET_BEGINNING", "OFFSET_END", "Commit", "Partition", "Question", "ask_committed", "ask_offsets"]

T = TypeVar("T")
Partition = tuple[str, int]  # Kafka's topic, partition

_LIST_COMMITTED, _LIST_OFFSETS = 14, 21  # RD_KAFKA_ADMIN_OP_…
# The longest that librdkafka takes. A request to a coordinator whose time ends while that broker is away aborts the
# process: see docs/design/librdkafka.md.
_ENDLESS = 3600.0
_READ_COMMITTED = {"read_uncommitted": 0, "read_committed": 1}


class Question(Generic[T]):
    """A question on its way to Kafka. `wake_fd` gets a byte when there is an answer.

    Let it go before its client is closed, and before the descriptor is.
    """

    def __init__(
        self,
        client: Consumer,
        wake_fd: int | None,
        send: Callable[[int, int], None],
        read: Callable[[int], dict[Partition, T | KafkaError]],
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

    def answer(self) -> dict[Partition, T | KafkaError] | KafkaError | None:
        """Return what Kafka says of each partition, or why it says nothing of any; None while there is no answer.

        Raises `ClosedError` if the client was closed.
        """
        handle_of(self.client)  # a queue must not be touched after its client's end
        event = lib.rd_kafka_queue_poll(self._queue, 0)
        if not event:
            return None
        try:
            if code := lib.rd_kafka_event_error(event):
                return refusal_of("Kafka did not answer", code, lib.rd_kafka_event_error_string(event))
            return self._read(event)
        except KafkaError as error:
            return error
        finally:
            lib.rd_kafka_event_destroy(event)
            self.forget()

    def forget(self) -> None:
        """Do not wait for the answer any longer."""
        queue, self._queue = self._queue, None
        if queue is not None and handle_or_none(self.client) is not None:
            lib.rd_kafka_queue_io_event_enable(queue, -1, None, 0)
            lib.rd_kafka_queue_destroy(queue)


Commit = tuple[int, bytes]
"""A committed offset, and the commit's exact metadata."""


def ask_committed(
    client: Consumer, group: str, partitions: Collection[Partition], wake_fd: int | None
) -> Question[Commit | None]:
    """Ask for committed offsets, None where there is none; a partition in an open transaction is refused."""

    def send(handle: int, queue: int) -> None:
        with _options(handle, _LIST_COMMITTED, _ENDLESS) as options, partition_list(partitions) as asked:
            raise_if("The question was not sent", lib.rd_kafka_AdminOptions_set_require_stable_offsets(options, 1))
            about = c_void_p(lib.rd_kafka_ListConsumerGroupOffsets_new(group.encode(), asked))
            try:
                lib.rd_kafka_ListConsumerGroupOffsets(handle, byref(about), 1, options, queue)
            finally:
                lib.rd_kafka_ListConsumerGroupOffsets_destroy(about)

    return Question(client, wake_fd, send, _committed)


def ask_offsets(
    client: Consumer, places: Mapping[Partition, int], isolation: str, within: float, wake_fd: int | None
) -> Question[int]:
    """Ask the leaders for offsets: `OFFSET_BEGINNING`, `OFFSET_END`, or that of the first record since a time.

    An offset below 0 is not known, except for -1 in answer to a time that no record has.
    """

    def send(handle: int, queue: int) -> None:
        with _options(handle, _LIST_OFFSETS, within) as options, partition_list(places) as asked:
            level = _READ_COMMITTED.get(isolation, 1)
            raise_if("The question was not sent", lib.rd_kafka_AdminOptions_set_isolation_level(options, level))
            for partition, element in elements_of(asked):
                element.offset = places[partition]
            lib.rd_kafka_ListOffsets(handle, asked, options, queue)

    return Question(client, wake_fd, send, _offsets)


def _committed(event: int) -> dict[Partition, Commit | KafkaError | None]:
    count = c_size_t()
    groups = lib.rd_kafka_ListConsumerGroupOffsets_result_groups(
        lib.rd_kafka_event_ListConsumerGroupOffsets_result(event), byref(count)
    )
    if error := lib.rd_kafka_group_result_error(groups[0]):  # it belongs to the event
        raise refusal_of("Kafka did not answer", lib.rd_kafka_error_code(error), lib.rd_kafka_error_string(error))
    found = lib.rd_kafka_group_result_partitions(groups[0])
    return {partition: _commit(partition, element) for partition, element in elements_of(found)}


def _commit(partition: Partition, element: NativePartition) -> Commit | KafkaError | None:
    if element.err:
        topic, number = partition
        return refusal_of(f"The committed offset of partition {number} of {topic} is not known", element.err)
    return (element.offset, metadata_of(element)) if element.offset >= 0 else None


def _offsets(event: int) -> dict[Partition, int | KafkaError]:
    count = c_size_t()
    result = lib.rd_kafka_event_ListOffsets_result(event)
    infos = lib.rd_kafka_ListOffsets_result_infos(result, byref(count))
    found: dict[Partition, int | KafkaError] = {}
    for index in range(count.value):
        native = lib.rd_kafka_ListOffsetsResultInfo_topic_partition(infos[index]).contents
        topic, number = native.topic.decode(), native.partition
        what = f"The offset at which partition {number} of {topic} begins or ends is not known"
        found[topic, number] = refusal_of(what, native.err) if native.err else native.offset
    return found


@contextmanager
def _options(handle: int, operation: int, within: float) -> "Iterator[c_void_p]":
    options = c_void_p(lib.rd_kafka_AdminOptions_new(handle, operation))
    try:
        reason = ctypes.create_string_buffer(256)
        if code := lib.rd_kafka_AdminOptions_set_request_timeout(options, milliseconds(within), reason, len(reason)):
            raise refusal_of("The question was not sent", code, reason.value)
        yield options
    finally:
        lib.rd_kafka_AdminOptions_destroy(options)
