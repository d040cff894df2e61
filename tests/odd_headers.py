"""Records with headers that only a client in C can send: Python's client sends names in UTF-8 alone."""

import ctypes
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_int32, c_size_t, c_ssize_t, c_void_p

import confluent_kafka as ck

from headway.kafka.binding.librdkafka import handle_of

_TOPIC, _PARTITION, _VALUE, _HEADERS, _END = (c_int(tag) for tag in (1, 3, 4, 10, 0))

LATIN_1 = b"gr\xfc\xdfe"
"""The name of a header that is not UTF-8."""


def send_with_headers(
    bootstrap_servers: str, topic: str, headers: Sequence[tuple[bytes, bytes]], value: bytes = b"v", partition: int = 0
) -> None:
    """Store a record with headers of any names."""
    librdkafka = ctypes.CDLL(ck.cimpl.__file__)
    producer = ck.Producer({"log_level": 0, "bootstrap.servers": bootstrap_servers})
    librdkafka.rd_kafka_headers_new.restype = c_void_p
    native = c_void_p(librdkafka.rd_kafka_headers_new(c_size_t(len(headers))))
    for name, content in headers:
        librdkafka.rd_kafka_header_add(
            native, c_char_p(name), c_ssize_t(-1), c_char_p(content), c_ssize_t(len(content))
        )
    assert not librdkafka.rd_kafka_producev(
        *(c_void_p(handle_of(producer)), _TOPIC, c_char_p(topic.encode())),
        *(_PARTITION, c_int32(partition), _VALUE, c_char_p(value), c_size_t(len(value))),
        *(_HEADERS, native, _END),
    )
    assert producer.flush(30) == 0
    producer.close()
