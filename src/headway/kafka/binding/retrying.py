"""Repeats requests to Kafka after transient errors, and defines which errors are transient."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import confluent_kafka as ck

from headway.errors import KafkaError
from headway.kafka.binding.error_causes import librdkafka_error
from headway.kafka.binding.time_limits import CALL_SLICE

T = TypeVar("T")

_PAUSE = 0.05

TRANSIENT: Mapping[int, str] = {
    # A broker is restarting, or cannot be reached for a moment. The first three errors are librdkafka's own.
    ck.KafkaError._TRANSPORT: "the connection broke",
    ck.KafkaError._TIMED_OUT: "the broker did not answer; another broker may answer",
    ck.KafkaError._ALL_BROKERS_DOWN: "no broker is connected, for example because the only broker restarts",
    ck.KafkaError.REQUEST_TIMED_OUT: "the other brokers did not answer the broker in time",
    ck.KafkaError.NETWORK_EXCEPTION: "the broker dropped the request because it was stopping",
    ck.KafkaError.BROKER_NOT_AVAILABLE: "the broker is not registered with its controller yet",
    # Another broker takes over a partition. The first error is librdkafka's own.
    ck.KafkaError._NOENT: "librdkafka has not found the leader yet",
    ck.KafkaError.LEADER_NOT_AVAILABLE: "the leader is being elected",
    ck.KafkaError.NOT_LEADER_FOR_PARTITION: "the leader has changed, and librdkafka's metadata are old",
    ck.KafkaError.FENCED_LEADER_EPOCH: "librdkafka's leader epoch is older than the broker's",
    ck.KafkaError.UNKNOWN_LEADER_EPOCH: "the broker's leader epoch is older than librdkafka's",
    ck.KafkaError.REPLICA_NOT_AVAILABLE: "the broker does not have its replica of the partition yet",
    ck.KafkaError.KAFKA_STORAGE_ERROR: "a disk of the broker failed, and another broker takes over its partitions",
    ck.KafkaError.OFFSET_NOT_AVAILABLE: "the new leader has not yet determined which offsets all replicas have",
    # Another broker becomes the coordinator of a group or a producer. The first error is librdkafka's own.
    ck.KafkaError._WAIT_COORD: "librdkafka is looking for the coordinator",
    ck.KafkaError.NOT_COORDINATOR: "another broker has become the coordinator",
    ck.KafkaError.COORDINATOR_NOT_AVAILABLE: "Kafka has not chosen the coordinator yet",
    ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS: "the new coordinator is loading its predecessor's state",
    ck.KafkaError.UNSTABLE_OFFSET_COMMIT: "a transaction that commits offsets of the group is still open",
}
"""The errors that may disappear when the same request is repeated, and the reason for each of them."""


def is_transient(error: ck.KafkaError) -> bool:
    """Return whether an error may disappear when the same request is repeated.

    For transactional calls, librdkafka itself decides this. An error that ends the transaction or the producer is never
    transient, whatever its error code is.
    """
    if error.fatal() or error.txn_requires_abort():
        return False
    return error.retriable() or error.code() in TRANSIENT


def retrying(
    call: Callable[[float], T],
    within: float,
    also: Collection[int] = (),
    *,
    is_over: Callable[[], bool] = lambda: False,
    pause: float = _PAUSE,
) -> T:
    """Call `call(seconds)` again and again while it raises a transient error, and return its result.

    `call` raises the binding's `KafkaException`, or an error of Headway whose `__cause__` is such an exception. The
    error codes in `also` are treated as transient, too.

    Raises the last error after `within` seconds, or when `is_over()` returns True. Other errors are raised at once.
    """
    deadline = time.monotonic() + within
    while True:
        try:
            return call(CALL_SLICE)
        except (ck.KafkaException, KafkaError) as error:
            cause = librdkafka_error(error)
            may_succeed = cause is not None and (is_transient(cause) or cause.code() in also)
            if not may_succeed or time.monotonic() > deadline or is_over():
                raise
        time.sleep(pause)
