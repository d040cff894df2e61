"""Finds records that Kafka must refuse for the same reason as a refused record.

Trying each of them would take too long.
"""

from itertools import chain

from headway.delay.records import RelayRecord

# librdkafka's names of errors that can concern several records. Other errors may concern only the refused record.
_OF_THE_TOPIC = {"TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION", "_UNKNOWN_TOPIC"}
_OF_THE_PARTITION = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION"}
_OF_THE_SIZE = "MSG_SIZE_TOO_LARGE"
_WITHOUT_A_KEY = "INVALID_RECORD"  # the error of a compacted topic for records without a key


def is_refused_too(error: str, refused: RelayRecord, other: RelayRecord) -> bool:
    """Return whether Kafka is bound to refuse `other` too.

    Kafka has refused the record `refused` with this error when that record was sent alone.
    """
    if error in _OF_THE_TOPIC and other.topic == refused.topic:
        return True
    if other.source is None or (other.topic, other.partition) != (refused.topic, refused.partition):
        return False
    if error == _OF_THE_SIZE:
        return _size(other) >= _size(refused)
    return error in _OF_THE_PARTITION or (error == _WITHOUT_A_KEY and refused.key is None and other.key is None)


def _size(out: RelayRecord) -> int:
    """Return the size that a record adds to a batch. Parts that all records have are not counted."""
    fields = (out.key, out.value, *chain.from_iterable(out.headers or ()))
    lengths = [len(field.encode() if isinstance(field, str) else field or b"") for field in fields]
    return sum(length + (length.bit_length() + 7) // 7 for length in lengths)
