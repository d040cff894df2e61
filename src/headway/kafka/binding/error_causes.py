"""The meaning of librdkafka's errors for a sender: which calls can be repeated, and which errors end the producer.

If one of Headway's errors stems from librdkafka, its cause is librdkafka's error.
"""

import confluent_kafka as ck

from headway.errors import HeadwayError, KafkaError

NO_ANSWER = {
    ck.KafkaError._TRANSPORT,
    ck.KafkaError._TIMED_OUT,
    ck.KafkaError._MSG_TIMED_OUT,
    ck.KafkaError._ALL_BROKERS_DOWN,
}
"""The codes of the errors that mean that no broker answered."""

_NO_MORE_RECORDS = {ck.KafkaError._STATE, ck.KafkaError._FATAL}

_TAKEN_OVER = {ck.KafkaError._FENCED, ck.KafkaError.INVALID_PRODUCER_EPOCH, ck.KafkaError.PRODUCER_FENCED}

_THE_TOPICS = {
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ck.KafkaError._UNKNOWN_TOPIC,
    ck.KafkaError._UNKNOWN_PARTITION,
}

_THE_RECORDS_OWN = {
    ck.KafkaError.INVALID_MSG,
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    ck.KafkaError.MSG_SIZE_TOO_LARGE,
    ck.KafkaError.TOPIC_EXCEPTION,
    ck.KafkaError.RECORD_LIST_TOO_LARGE,
    ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ck.KafkaError.INVALID_TIMESTAMP,
    ck.KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ck.KafkaError.POLICY_VIOLATION,
    ck.KafkaError.INVALID_RECORD,
    ck.KafkaError._UNKNOWN_TOPIC,
    ck.KafkaError._UNKNOWN_PARTITION,
}


def refused(error: ck.KafkaException, because: str = "") -> KafkaError:
    """Return Headway's error for an error of librdkafka."""
    return KafkaError(f"Kafka refused: {error.args[0].str()}{because}.")


def is_retriable(error: KafkaError) -> bool:
    """Return whether the same call may succeed if it is repeated."""
    cause = librdkafka_error(error)
    return cause is not None and bool(cause.retriable())


def is_unanswered(error: KafkaError) -> bool:
    """Return whether no broker answered in time."""
    cause = librdkafka_error(error)
    return cause is not None and cause.code() in NO_ANSWER


def is_fatal(error: KafkaError) -> bool:
    """Return whether the producer cannot go on."""
    cause = librdkafka_error(error)
    return cause is not None and bool(cause.fatal())


def is_fenced(error: KafkaError) -> bool:
    """Return whether a producer cannot go on because its `transactional.id` has a newer epoch.

    Either another producer has taken over the id, or Kafka has aborted a transaction that was open for longer than
    `transaction.timeout.ms`. Other fatal errors have other causes.
    """
    cause = librdkafka_error(error)
    return cause is not None and bool(cause.fatal()) and is_takeover(cause)


def is_takeover(error: ck.KafkaError) -> bool:
    """Return whether this error, fatal or not, means that the `transactional.id` has a newer epoch."""
    return error.code() in _TAKEN_OVER


def is_out_of_place(error: KafkaError) -> bool:
    """Return whether the call failed because no transaction is open."""
    cause = librdkafka_error(error)
    return cause is not None and cause.code() == ck.KafkaError._STATE


def refuses_all(error: HeadwayError) -> bool:
    """Return whether `produce` would refuse every record, because the transaction or the producer cannot go on."""
    cause = librdkafka_error(error)
    return cause is not None and cause.code() in _NO_MORE_RECORDS


def error_name(error: HeadwayError) -> str:
    """Return librdkafka's name for the cause of an error, or an empty string."""
    cause = librdkafka_error(error)
    return "" if cause is None else str(cause.name())


def librdkafka_error(error: HeadwayError | ck.KafkaException) -> ck.KafkaError | None:
    """Return librdkafka's error behind an error of Headway or of the binding, if there is one."""
    exception = error.__cause__ if isinstance(error, HeadwayError) else error
    return exception.args[0] if isinstance(exception, ck.KafkaException) else None


def is_the_records_own(error: ck.KafkaError) -> bool:
    """Return whether Kafka permanently refuses this record, or another record of its batch."""
    return error.code() in _THE_RECORDS_OWN


def is_of_the_topic(error: ck.KafkaError) -> bool:
    """Return whether the topic is missing or cannot be written, so that other records for it would be refused, too."""
    return error.code() in _THE_TOPICS


def is_purged(error: ck.KafkaError) -> bool:
    """Return whether a record was purged because of another one. The error does not name the cause."""
    return error.code() in (ck.KafkaError._PURGE_QUEUE, ck.KafkaError._PURGE_INFLIGHT)


def is_of_a_batch(error: ck.KafkaError) -> bool:
    """Return whether Kafka refused a whole batch because of one of its records, which can be another record."""
    return is_too_large(error) or is_invalid(error)


def is_invalid(error: ck.KafkaError) -> bool:
    """Return whether a topic does not accept this record or its batch, such as a compacted topic a missing key."""
    return error.code() == ck.KafkaError.INVALID_RECORD


def is_too_large(error: ck.KafkaError) -> bool:
    """Return whether this record, or its batch, is too large for its topic."""
    return error.code() in (ck.KafkaError.MSG_SIZE_TOO_LARGE, ck.KafkaError.RECORD_LIST_TOO_LARGE)
