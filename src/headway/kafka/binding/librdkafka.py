"""Declares the functions and types of librdkafka's C API, from the library that the Python binding ships.

The handle of a client is stored in the first field after the header of the binding's Python object. `handle_of` checks
this: librdkafka's opaque pointer must point back to the same object. ctypes releases the GIL during each call.
"""

import ctypes
import math
from collections.abc import Collection, Iterator, Mapping
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
from typing import TYPE_CHECKING, TypeAlias

from confluent_kafka import KafkaException, cimpl
from confluent_kafka.admin import AdminClient

from headway.errors import ClosedError, KafkaError


class NativePartition(Structure):
    """The C struct for a partition with an offset, the metadata of a commit, and an error."""

    topic: bytes
    partition: int
    offset: int
    metadata: int | None
    metadata_size: int
    err: int
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


class NativePartitions(Structure):
    """The C struct for a list of partitions."""

    cnt: int
    elems: "ctypes._Pointer[NativePartition]"
    _fields_ = [("cnt", c_int), ("size", c_int), ("elems", POINTER(NativePartition))]


if TYPE_CHECKING:
    ListPointer: TypeAlias = ctypes._Pointer[NativePartitions]

_List = POINTER(NativePartitions)
CommitCallback = CFUNCTYPE(None, c_void_p, c_int, _List, py_object)

# Symbols that the binding's module does not define itself are found in the librdkafka that it is linked with.
lib = ctypes.CDLL(cimpl.__file__)


def _declare(name: str, result: type | None, *arguments: type) -> None:
    function = getattr(lib, name)
    function.restype, function.argtypes = result, arguments


_declare("rd_kafka_opaque", c_void_p, c_void_p)
_declare("rd_kafka_clusterid", c_void_p, c_void_p, c_int)
_declare("rd_kafka_mem_free", None, c_void_p, c_void_p)
_declare("rd_kafka_metadata", c_int, c_void_p, c_int, c_void_p, POINTER(c_void_p), c_int)
_declare("rd_kafka_metadata_destroy", None, c_void_p)
_declare("rd_kafka_mem_malloc", c_void_p, c_void_p, c_size_t)
_declare("rd_kafka_err2str", c_char_p, c_int)
_declare("rd_kafka_topic_partition_list_new", _List, c_int)
_declare("rd_kafka_topic_partition_list_add", POINTER(NativePartition), _List, c_char_p, c_int32)
_declare("rd_kafka_topic_partition_list_destroy", None, _List)
_declare("rd_kafka_commit_queue", c_int, c_void_p, _List, c_void_p, CommitCallback, py_object)
_declare("rd_kafka_committed", c_int, c_void_p, _List, c_int)
_declare("rd_kafka_offsets_for_times", c_int, c_void_p, _List, c_int)
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
_declare("rd_kafka_queue_get_partition", c_void_p, c_void_p, c_char_p, c_int32)
_declare("rd_kafka_queue_get_main", c_void_p, c_void_p)
_declare("rd_kafka_queue_io_event_enable", None, c_void_p, c_int, c_char_p, c_size_t)
_declare("rd_kafka_queue_poll_callback", c_int, c_void_p, c_int)
_declare("rd_kafka_queue_destroy", None, c_void_p)
_declare("rd_kafka_queue_length", c_size_t, c_void_p)
_declare("rd_kafka_queue_forward", None, c_void_p, c_void_p)
_declare("rd_kafka_queue_poll", c_void_p, c_void_p, c_int)
_declare("rd_kafka_event_error", c_int, c_void_p)
_declare("rd_kafka_event_error_string", c_char_p, c_void_p)
_declare("rd_kafka_event_destroy", None, c_void_p)
_declare("rd_kafka_AdminOptions_new", c_void_p, c_void_p, c_int)
_declare("rd_kafka_AdminOptions_destroy", None, c_void_p)
_declare("rd_kafka_AdminOptions_set_request_timeout", c_int, c_void_p, c_int, c_char_p, c_size_t)
_declare("rd_kafka_AdminOptions_set_require_stable_offsets", c_void_p, c_void_p, c_int)
_declare("rd_kafka_AdminOptions_set_isolation_level", c_void_p, c_void_p, c_int)
_declare("rd_kafka_ListConsumerGroupOffsets_new", c_void_p, c_char_p, _List)
_declare("rd_kafka_ListConsumerGroupOffsets_destroy", None, c_void_p)
_declare("rd_kafka_ListConsumerGroupOffsets", None, c_void_p, POINTER(c_void_p), c_size_t, c_void_p, c_void_p)
_declare("rd_kafka_event_ListConsumerGroupOffsets_result", c_void_p, c_void_p)
_declare("rd_kafka_ListConsumerGroupOffsets_result_groups", POINTER(c_void_p), c_void_p, POINTER(c_size_t))
_declare("rd_kafka_group_result_error", c_void_p, c_void_p)
_declare("rd_kafka_group_result_partitions", _List, c_void_p)
_declare("rd_kafka_ListOffsets", None, c_void_p, _List, c_void_p, c_void_p)
_declare("rd_kafka_event_ListOffsets_result", c_void_p, c_void_p)
_declare("rd_kafka_ListOffsets_result_infos", POINTER(c_void_p), c_void_p, POINTER(c_size_t))
_declare("rd_kafka_ListOffsetsResultInfo_topic_partition", POINTER(NativePartition), c_void_p)
_declare("rd_kafka_consumer_close_queue", c_void_p, c_void_p, c_void_p)
_declare("rd_kafka_consumer_closed", c_int, c_void_p)
for _kind in ("rd_kafka_conf", "rd_kafka_topic_conf"):
    _declare(f"{_kind}_new", c_void_p)
    _declare(f"{_kind}_dump", POINTER(c_char_p), c_void_p, POINTER(c_size_t))
    _declare(f"{_kind}_destroy", None, c_void_p)
_declare("rd_kafka_conf_set", c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)
_declare("rd_kafka_conf_dump_free", None, POINTER(c_char_p), c_size_t)
_declare("rd_kafka_topic_new", c_void_p, c_void_p, c_char_p, c_void_p)
_declare("rd_kafka_topic_destroy", None, c_void_p)
_declare("rd_kafka_consume_start_queue", c_int, c_void_p, c_int32, c_int64, c_void_p)
_declare("rd_kafka_consume_stop", c_int, c_void_p, c_int32)
_declare("rd_kafka_TopicCollection_of_topic_names", c_void_p, POINTER(c_char_p), c_size_t)
_declare("rd_kafka_TopicCollection_destroy", None, c_void_p)
_declare("rd_kafka_DescribeTopics", None, c_void_p, c_void_p, c_void_p, c_void_p)
_declare("rd_kafka_event_DescribeTopics_result", c_void_p, c_void_p)
_declare("rd_kafka_DescribeTopics_result_topics", POINTER(c_void_p), c_void_p, POINTER(c_size_t))
_declare("rd_kafka_TopicDescription_name", c_char_p, c_void_p)
_declare("rd_kafka_TopicDescription_error", c_void_p, c_void_p)
_declare("rd_kafka_TopicDescription_topic_id", c_void_p, c_void_p)
_declare("rd_kafka_TopicDescription_partitions", c_void_p, c_void_p, POINTER(c_size_t))
_declare("rd_kafka_Uuid_base64str", c_char_p, c_void_p)
_declare("rd_kafka_handle_mock_cluster", c_void_p, c_void_p)
_declare("rd_kafka_mock_topic_create", c_int, c_void_p, c_char_p, c_int, c_int)
_declare("rd_kafka_mock_group_initial_rebalance_delay_ms", None, c_void_p, c_int32)


def handle_of(client: object) -> int:
    """Return the `rd_kafka_t *` of a client. Raises `ClosedError` if the client is closed.

    Raises `KafkaError` if the binding does not store the handle in the expected place.
    """
    handle = handle_or_none(client)
    if handle is None:
        raise ClosedError("The client is closed.")
    if lib.rd_kafka_opaque(handle) != id(client):
        raise KafkaError(
            "The client objects of the installed version of confluent-kafka have a different memory layout from the "
            "versions that Headway was tested with. Install one of the versions that Headway's package metadata "
            "allows."
        )
    return handle


def handle_or_none(client: object) -> int | None:
    """Return the `rd_kafka_t *` of a client, or None if the client is closed."""
    if not isinstance(client, (cimpl.Consumer, cimpl.Producer, AdminClient)):
        raise TypeError(f"{type(client).__name__} is not a client of confluent_kafka.")
    return c_void_p.from_address(id(client) + object.__basicsize__).value


def milliseconds(timeout: float) -> int:
    """Convert seconds to milliseconds, the unit of librdkafka's time-outs."""
    return math.ceil(timeout * 1000)  # rounded up, because librdkafka would not wait at all with 0


@contextmanager
def partition_list(partitions: Collection[tuple[str, int]]) -> "Iterator[ListPointer]":
    """Create a list of partitions for librdkafka, and free it at the end of the block."""
    created = lib.rd_kafka_topic_partition_list_new(len(partitions))
    try:
        for topic, partition in partitions:
            lib.rd_kafka_topic_partition_list_add(created, topic.encode(), partition)
        yield created
    finally:
        lib.rd_kafka_topic_partition_list_destroy(created)


@contextmanager
def offset_list(offsets: Mapping[tuple[str, int], tuple[int, bytes]]) -> "Iterator[ListPointer]":
    """Create a list of offsets with their exact metadata for librdkafka, and free it at the end of the block."""
    with partition_list(offsets) as created:
        for partition, element in elements_of(created):
            element.offset, metadata = offsets[partition]
            if metadata:  # without metadata, librdkafka itself sends an empty string
                # librdkafka frees this memory together with the list.
                element.metadata = lib.rd_kafka_mem_malloc(None, len(metadata))
                element.metadata_size = len(metadata)
                ctypes.memmove(element.metadata, metadata, len(metadata))
        yield created


@contextmanager
def group_metadata_of(serialised: bytes) -> Iterator[c_void_p]:
    """Create librdkafka's object for the metadata of a consumer group, and free it at the end of the block."""
    group = c_void_p()
    error = lib.rd_kafka_consumer_group_metadata_read(byref(group), serialised, len(serialised))
    raise_if("The consumer group's metadata cannot be read", error)
    try:
        yield group
    finally:
        lib.rd_kafka_consumer_group_metadata_destroy(group)


def elements_of(of_list: "ListPointer") -> Iterator[tuple[tuple[str, int], NativePartition]]:
    """Yield each element of a list of partitions, together with its topic and partition number."""
    for index in range(of_list.contents.cnt):
        element = of_list.contents.elems[index]
        yield (element.topic.decode(), element.partition), element


def metadata_of(element: NativePartition) -> bytes:
    """Return the commit metadata of an element of the list."""
    return ctypes.string_at(element.metadata, element.metadata_size) if element.metadata else b""


def refusal_of(what: str, code: int, reason: bytes | None = None, *flags: bool) -> KafkaError:
    """Return an error of Headway whose cause is the binding's `KafkaException` with this code."""
    sentence = (reason or lib.rd_kafka_err2str(code)).decode()
    error = KafkaError(f"{what}: {sentence.removesuffix('.')}.")
    error.__cause__ = KafkaException(cimpl.KafkaError(code, sentence, *flags))
    return error


def raise_if(what: str, error: int | None) -> None:
    """Raise an error of Headway if `error` is not None, and free librdkafka's error object."""
    if error is None:
        return
    try:
        raise refusal_of(
            what,
            lib.rd_kafka_error_code(error),
            lib.rd_kafka_error_string(error),
            bool(lib.rd_kafka_error_is_fatal(error)),
            bool(lib.rd_kafka_error_is_retriable(error)),
            bool(lib.rd_kafka_error_txn_requires_abort(error)),
        )
    finally:
        lib.rd_kafka_error_destroy(error)
