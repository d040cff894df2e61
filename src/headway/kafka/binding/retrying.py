"""Repeats requests to Kafka after transient errors, and lists these errors."""

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
    # A broker restarts, or cannot be reached for a moment. The first three are librdkafka's own.
    ck.KafkaError._TRANSPORT: "the connection broke",
    ck.KafkaError._TIMED_OUT: "the broker did not answer; another one may",
    ck.KafkaError._ALL_BROKERS_DOWN: "no connection is up, for example while the only broker restarts",
    ck.KafkaError.REQUEST_TIMED_OUT: "the broker did not hear from the other brokers in time",
    ck.KafkaError.NETWORK_EXCEPTION: "the broker dropped the request as it stopped",
    ck.KafkaError.BROKER_NOT_AVAILABLE: "the broker has not registered with its controller yet",
    # Another broker takes a partition over. The first one is librdkafka's own.
    ck.KafkaError._NOENT: "librdkafka knows no leader at the moment",
    ck.KafkaError.LEADER_NOT_AVAILABLE: "the leader is being elected",
    ck.KafkaError.NOT_LEADER_FOR_PARTITION: "the leader has moved, and librdkafka has not heard of it",
    ck.KafkaError.FENCED_LEADER_EPOCH: "the broker has heard of an election that librdkafka has not heard of",
    ck.KafkaError.UNKNOWN_LEADER_EPOCH: "librdkafka has heard of an election that the broker has not heard of",
    ck.KafkaError.REPLICA_NOT_AVAILABLE: "the broker does not have its copy of the partition yet",
    ck.KafkaError.KAFKA_STORAGE_ERROR: "a disk of the broker failed, and another broker takes its partitions over",
    ck.KafkaError.OFFSET_NOT_AVAILABLE: "the new leader does not know yet how far the copies are",
    # Another broker becomes a group's or a producer's coordinator. The first one is librdkafka's own.
    ck.KafkaError._WAIT_COORD: "librdkafka looks for the coordinator",
    ck.KafkaError.NOT_COORDINATOR: "the coordinator has moved",
    ck.KafkaError.COORDINATOR_NOT_AVAILABLE: "Kafka chooses the coordinator",
    ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS: "the new coordinator reads what its predecessor has stored",
    ck.KafkaError.UNSTABLE_OFFSET_COMMIT: "a transaction with offsets of the group is about to end",
}
"""The errors that may disappear when the same request is repeated, each with its cause."""


def is_transient(error: ck.KafkaError) -> bool:
    """Return whether an error may disappear when the same request is repeated.

    For transactional calls, librdkafka itself decides that. An error that ends the transaction or the producer is never
    transient, whatever its code.
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
    """Call `call(seconds)` repeatedly while it raises a transient error.

    The call raises the binding's `KafkaException`, or a `KafkaError` of Headway with that as its cause. The error codes
    in `also` count as transient, too.

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
