"""Calls to Kafka that are made again while a broker restarts."""

import time
from collections.abc import Callable, Collection
from typing import TypeVar

import confluent_kafka as ck

T = TypeVar("T")

_SLICE = 0.5  # the longest wait inside librdkafka, where Ctrl-C is not seen
_AGAIN_AFTER = 0.05
_NOT_NOW = {
    ck.KafkaError._TRANSPORT,
    ck.KafkaError._TIMED_OUT,
    ck.KafkaError._ALL_BROKERS_DOWN,
    # librdkafka's and the brokers' knowledge of leaders may be of different moments.
    ck.KafkaError._NOENT,
    ck.KafkaError.LEADER_NOT_AVAILABLE,
    ck.KafkaError.NOT_LEADER_FOR_PARTITION,
    ck.KafkaError.FENCED_LEADER_EPOCH,
    ck.KafkaError.UNKNOWN_LEADER_EPOCH,
    ck.KafkaError.OFFSET_NOT_AVAILABLE,
}


COORDINATOR_MOVES = {
    ck.KafkaError._WAIT_COORD,
    ck.KafkaError.NOT_COORDINATOR,
    ck.KafkaError.COORDINATOR_NOT_AVAILABLE,
    ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    ck.KafkaError.UNSTABLE_OFFSET_COMMIT,
}


def passes(error: ck.KafkaError) -> bool:
    """Return whether an error may be gone if the request is repeated: a broker restarts, or another takes over."""
    return error.retriable() or error.code() in _NOT_NOW or error.code() in COORDINATOR_MOVES


def retrying(call: Callable[[float], T], within: float, not_now: Collection[int] = ()) -> T:
    """Call `call(seconds)` again and again while there is no answer, or one that allows another call.

    The error codes `not_now` allow another call, too.

    Raises the last `KafkaException` once `within` seconds are over, and any other at once.
    """
    deadline = time.monotonic() + within
    while True:
        try:
            return call(_SLICE)
        except ck.KafkaException as error:
            code = error.args[0].code()
            again = error.args[0].retriable() or code in _NOT_NOW or code in not_now
            if not again or time.monotonic() > deadline:
                raise
        time.sleep(_AGAIN_AFTER)
