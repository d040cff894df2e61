"""Interprets librdkafka's errors for a producer: whether a call can be repeated, and whether the producer is usable.

If an error of Headway was caused by librdkafka, its `__cause__` is the binding's exception.
"""

import confluent_kafka as ck

from headway.errors import HeadwayError, KafkaError

NO_ANSWER = {
    ck.KafkaError._TRANSPORT,
    ck.KafkaError._TIMED_OUT,
    ck.KafkaError._MSG_TIMED_OUT,
    ck.KafkaError._ALL_BROKERS_DOWN,
}
"""The error codes that mean that no broker answered."""

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
    """Turn the binding's exception into an error of Headway."""
    return KafkaError(f"Kafka refused: {error.args[0].str()}{because}.")


def is_retriable(error: KafkaError) -> bool:
    """Return whether the same call may succeed when it is repeated."""
    cause = librdkafka_error(error)
    return cause is not None and bool(cause.retriable())


def is_unanswered(error: KafkaError) -> bool:
    """Return whether the call failed because no broker answered in time."""
    cause = librdkafka_error(error)
    return cause is not None and cause.code() in NO_ANSWER


def is_fatal(error: KafkaError) -> bool:
    """Return whether the producer has failed permanently."""
    cause = librdkafka_error(error)
    return cause is not None and bool(cause.fatal())


def is_fenced(error: KafkaError) -> bool:
    """Return whether a producer has failed permanently because its `transactional.id` has a newer epoch.

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
    """Return whether this error means that `produce` will refuse every further record.

    The transaction or the producer has then failed.
    """
    cause = librdkafka_error(error)
    return cause is not None and cause.code() in _NO_MORE_RECORDS


def error_name(error: HeadwayError) -> str:
    """Return librdkafka's name for the cause of an error, or an empty string if librdkafka did not cause it."""
    cause = librdkafka_error(error)
    return "" if cause is None else str(cause.name())


def librdkafka_error(error: HeadwayError | ck.KafkaException) -> ck.KafkaError | None:
    """Return the error of librdkafka that caused this exception, or None if librdkafka did not cause it."""
    exception = error.__cause__ if isinstance(error, HeadwayError) else error
    return exception.args[0] if isinstance(exception, ck.KafkaException) else None


def is_the_records_own(error: ck.KafkaError) -> bool:
    """Return whether Kafka permanently refuses this record, or another record of its batch."""
    return error.code() in _THE_RECORDS_OWN


def is_of_the_topic(error: ck.KafkaError) -> bool:
    """Return whether the topic is missing or cannot be written. If so, its other records would also be refused."""
    return error.code() in _THE_TOPICS


def is_purged(error: ck.KafkaError) -> bool:
    """Return whether a record was purged because of another record. The error does not name the other record."""
    return error.code() in (ck.KafkaError._PURGE_QUEUE, ck.KafkaError._PURGE_INFLIGHT)


def is_of_a_batch(error: ck.KafkaError) -> bool:
    """Return whether Kafka refused a whole batch because of one of its records, which need not be this one."""
    return is_too_large(error) or is_invalid(error)


def is_invalid(error: ck.KafkaError) -> bool:
    """Return whether the topic does not accept this record or its batch, for example because a key is missing."""
    return error.code() == ck.KafkaError.INVALID_RECORD


def is_too_large(error: ck.KafkaError) -> bool:
    """Return whether this record, or its batch, is too large for its topic."""
    return error.code() in (ck.KafkaError.MSG_SIZE_TOO_LARGE, ck.KafkaError.RECORD_LIST_TOO_LARGE)
