"""Which records Kafka must refuse like one that it has refused: to find each by a try of its own takes too long."""

from itertools import chain

from headway.delay.records import OutgoingRecord

# By what librdkafka calls them. Of the other errors nobody knows what else they would be said of.
_OF_THE_TOPIC = {"TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION", "_UNKNOWN_TOPIC"}
_OF_THE_PLACE = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION"}
_OF_THE_SIZE = "MSG_SIZE_TOO_LARGE"
_WITHOUT_A_KEY = "INVALID_RECORD"  # by a compacted topic


def is_refused_likewise(error: str, refused: OutgoingRecord, other: OutgoingRecord) -> bool:
    """Whether Kafka, which has refused one delivery alone with this error, must refuse another one, too."""
    if error in _OF_THE_TOPIC and other.topic == refused.topic:
        return True
    if other.source is None or (other.topic, other.partition) != (refused.topic, refused.partition):
        return False
    if error == _OF_THE_SIZE:
        return _size(other) >= _size(refused)
    return error in _OF_THE_PLACE or (error == _WITHOUT_A_KEY and refused.key is None and other.key is None)


def _size(out: OutgoingRecord) -> int:
    """How many bytes it has in a batch of its own, but for those that all have: of each field itself and its length."""
    fields = (out.key, out.value, *chain.from_iterable(out.headers or ()))
    lengths = [len(field.encode() if isinstance(field, str) else field or b"") for field in fields]
    return sum(length + (length.bit_length() + 7) // 7 for length in lengths)
