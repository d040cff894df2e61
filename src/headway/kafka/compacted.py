"""Reading all that a compacted topic says, up to the very end."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from headway.errors import KafkaError
from headway.kafka.making import make_client
from headway.kafka.patience import patiently

_ASK_FOR = 10.0
_AT_ONCE = 1000
_STUCK_AFTER = 1.0
_SLICE = 0.1
_SETTINGS: Mapping[str, Any] = {
    "group.id": "headway-reads-without-a-group",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 1,
}


def read_compacted(
    config: Mapping[str, Any],
    topic: str,
    partitions: Collection[int],
    within: float,
    when_stuck: Callable[[dict[int, dict[str, bytes]]], None] = lambda values: None,
) -> dict[int, dict[str, bytes]]:
    """Of each partition the latest value of each key; keys whose latest value is none are left out.

    Transactions that are open now are waited for: what they have written is read if they are committed. After a second
    of that `when_stuck` is called with what was read before them, to end those that nobody will.

    Raises:
        KafkaError: The end was not reached within so many seconds.
    """
    values: dict[int, dict[str, bytes]] = {partition: {} for partition in partitions}
    ends = _ends(config, topic, partitions)
    # Partitions with all that they will have said; the others are read until they have.
    missing = {partition for partition, end in ends.items() if end > 0}
    consumer = make_client(ck.Consumer, {**config, **_SETTINGS})
    try:
        consumer.assign([ck.TopicPartition(topic, partition, ck.OFFSET_BEGINNING) for partition in missing])
        began = time.monotonic()
        deadline, stuck_at = began + within, began + _STUCK_AFTER
        while missing:
            for message in consumer.consume(_AT_ONCE, _SLICE if len(missing) > 1 else _SLICE / 10):
                if _reaches(message, ends, values):
                    missing.discard(message.partition())
            if missing and time.monotonic() > stuck_at:
                stuck_at = deadline
                when_stuck(values)
            if time.monotonic() > deadline:
                raise KafkaError(
                    f"{topic} could not be read to its end within {within:g} s: partitions {sorted(missing)} hold an "
                    "open transaction, or their broker does not answer. `kafka-transactions.sh find-hanging` shows a "
                    "transaction that its coordinator has forgotten, and `abort` ends it."
                )
    finally:
        consumer.close()
    return values


def _reaches(message: Any, ends: Mapping[int, int], values: dict[int, dict[str, bytes]]) -> bool:
    """Take in a record, or the event of an end; whether that partition has said all."""
    partition, error = message.partition(), message.error()
    if error is None:
        key, value = message.key().decode(), message.value()
        if value is None:
            values[partition].pop(key, None)
        else:
            values[partition][key] = value
        return bool(message.offset() + 1 >= ends[partition])
    if error.code() == ck.KafkaError._PARTITION_EOF:  # only as far as transactions are decided
        return bool(message.offset() >= ends[partition])
    return False


def _ends(config: Mapping[str, Any], topic: str, partitions: Collection[int]) -> dict[int, int]:
    """Where the logs end, open transactions included."""
    admin = make_client(AdminClient, {"log_level": 2, **config})
    asked = {ck.TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}  # type: ignore[no-untyped-call]

    def ask(timeout: float) -> dict[int, int]:
        answers = admin.list_offsets(asked, request_timeout=timeout)
        return {each.partition: answer.result().offset for each, answer in answers.items()}

    try:
        admin.list_topics(topic, timeout=_ASK_FOR)
        return patiently(ask, _ASK_FOR)
    except ck.KafkaException as error:
        raise KafkaError(f"The end of {topic} cannot be asked for: {error.args[0].str().rstrip('.')}.") from error
