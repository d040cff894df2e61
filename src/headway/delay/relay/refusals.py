"""Finds records that Kafka will certainly refuse for the same reason as a refused record.

These records are not sent, because it would take too long to try each of them.
"""

from itertools import chain

from headway.delay.records import RelayRecord

# librdkafka's names of errors that can concern several records. Other errors might concern only the refused record.
_OF_THE_TOPIC = {"TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION", "_UNKNOWN_TOPIC"}
_OF_THE_PARTITION = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION"}
_OF_THE_SIZE = "MSG_SIZE_TOO_LARGE"
_WITHOUT_A_KEY = "INVALID_RECORD"  # the error with which a compacted topic refuses records without a key


def is_refused_too(error: str, refused: RelayRecord, other: RelayRecord) -> bool:
    """Return whether Kafka will certainly refuse `other` too.

    `error` is the error with which Kafka refused the record `refused` when that record was sent alone.
    """
    if error in _OF_THE_TOPIC and other.topic == refused.topic:
        return True
    if other.source is None or (other.topic, other.partition) != (refused.topic, refused.partition):
        return False
    if error == _OF_THE_SIZE:
        return _size(other) >= _size(refused)
    return error in _OF_THE_PARTITION or (error == _WITHOUT_A_KEY and refused.key is None and other.key is None)


def _size(out: RelayRecord) -> int:
    """Return how many bytes a record adds to a batch. Fields that every record has are not counted."""
    fields = (out.key, out.value, *chain.from_iterable(out.headers or ()))
    lengths = [len(field.encode() if isinstance(field, str) else field or b"") for field in fields]
    return sum(length + (length.bit_length() + 7) // 7 for length in lengths)
