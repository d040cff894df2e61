"""What the Python binding cannot do, through the C API of the librdkafka that it ships.

The binding ends commit metadata with a NUL byte and reads it back with `strlen`; here metadata is exact both
ways. Every function takes the binding's own client. Its handle is the first field after the Python object's
header, checked at each call: librdkafka's opaque pointer has to lead back to the object we came from. A client
must not be closed in another thread during a call. ctypes releases the GIL while librdkafka works.
"""

import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_void_p

from confluent_kafka import Consumer, Producer, cimpl

from headway.errors import ClosedError, KafkaError

Client = Consumer | Producer

# The binding's module also finds the symbols of the librdkafka it is linked with, wherever that lies.
_lib = ctypes.CDLL(cimpl.__file__)


def _declare(name: str, result: type | None, *arguments: type) -> None:
    function = getattr(_lib, name)
    function.restype, function.argtypes = result, arguments


_declare("rd_kafka_opaque", c_void_p, c_void_p)
_declare("rd_kafka_queue_get_consumer", c_void_p, c_void_p)
_declare("rd_kafka_queue_io_event_enable", None, c_void_p, c_int, c_char_p, c_size_t)
_declare("rd_kafka_queue_destroy", None, c_void_p)


def wake_on_records(consumer: Consumer, fd: int | None) -> None:
    """Write one byte to `fd` whenever the consumer's empty queue gets something to poll; None ends that.

    `fd` is the non-blocking write end of a pipe or socket; the caller keeps it open until it has passed None
    or closed the consumer. The signal is an edge: read the pipe empty, poll until a poll returns nothing, and
    only then wait again. It can also mean a rebalance or an error, so a poll may still return no record.
    Source: `rd_kafka_queue_io_event_enable`.
    """
    queue = _lib.rd_kafka_queue_get_consumer(_handle(consumer))
    if queue is None:
        raise KafkaError("The consumer has no queue to wait on, since it has no group.id.")
    _lib.rd_kafka_queue_io_event_enable(queue, -1 if fd is None else fd, b"\x01", 1)
    _lib.rd_kafka_queue_destroy(queue)  # gives back our reference only; the consumer keeps its queue and the event


def _handle(client: Client) -> int:
    """The `rd_kafka_t *` of a client, checked before it is used."""
    if not isinstance(client, (Consumer, Producer)):
        raise TypeError(f"{type(client).__name__} is not a client of confluent_kafka.")
    handle = c_void_p.from_address(id(client) + object.__basicsize__).value
    if handle is None:
        raise ClosedError("The client is closed.")
    if _lib.rd_kafka_opaque(handle) != id(client):
        raise KafkaError(
            "This confluent-kafka lays its objects out differently from those Headway was tested with; "
            "install a version within the bounds that Headway declares."
        )
    return handle
