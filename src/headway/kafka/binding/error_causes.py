"""The meaning of librdkafka's errors for a sender: which may be tried again, and which end the producer.

An error of ours has librdkafka's as its cause, if it came from there.
"""

import confluent_kafka as ck

from headway.errors import HeadwayError, KafkaError

NO_ANSWER = {
    ck.KafkaError._TRANSPORT,
    ck.KafkaError._TIMED_OUT,
    ck.KafkaError._MSG_TIMED_OUT,
    ck.KafkaError._ALL_BROKERS_DOWN,
}
"""The codes of errors that say that no broker answered."""

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
    """Return librdkafka's error in our words."""
    return KafkaError(f"Kafka refused: {error.args[0].str()}{because}.")


def is_retriable(error: KafkaError) -> bool:
    """Return whether the same call may succeed if it is made again."""
    cause = cause_of(error)
    return cause is not None and bool(cause.retriable())


def is_unanswered(error: KafkaError) -> bool:
    """Return whether no broker answered in time."""
    cause = cause_of(error)
    return cause is not None and cause.code() in NO_ANSWER


def is_fatal(error: KafkaError) -> bool:
    """Return whether the producer cannot go on."""
    cause = cause_of(error)
    return cause is not None and bool(cause.fatal())


def is_fenced(error: KafkaError) -> bool:
    """Return whether a producer cannot go on because its `transactional.id` has a newer epoch.

    Another producer has taken the id over then, or Kafka has aborted a transaction that was open for longer than
    `transaction.timeout.ms`. No other fatal error says so.
    """
    cause = cause_of(error)
    return cause is not None and bool(cause.fatal()) and is_takeover(cause)


def is_takeover(error: ck.KafkaError) -> bool:
    """Return whether this error, fatal or not, says that the `transactional.id` has a newer epoch."""
    return error.code() in _TAKEN_OVER


def is_out_of_place(error: KafkaError) -> bool:
    """Return whether no transaction is open that the call could be about."""
    cause = cause_of(error)
    return cause is not None and cause.code() == ck.KafkaError._STATE


def refuses_all(error: HeadwayError) -> bool:
    """Return whether `produce` would refuse any record: the transaction or the producer cannot go on."""
    cause = cause_of(error)
    return cause is not None and cause.code() in _NO_MORE_RECORDS


def error_name(error: HeadwayError) -> str:
    """Return librdkafka's name for the error that was the cause, or an empty string."""
    cause = cause_of(error)
    return "" if cause is None else str(cause.name())


def cause_of(error: HeadwayError) -> ck.KafkaError | None:
    """Return librdkafka's error behind ours, if there is one."""
    cause = error.__cause__
    return cause.args[0] if isinstance(cause, ck.KafkaException) else None


def is_the_records_own(error: ck.KafkaError) -> bool:
    """Return whether Kafka refuses this very record, or one of its batch, now and later."""
    return error.code() in _THE_RECORDS_OWN


def is_of_the_topic(error: ck.KafkaError) -> bool:
    """Return whether a topic is missing or may not be written: another record would be refused, too."""
    return error.code() in _THE_TOPICS


def is_purged(error: ck.KafkaError) -> bool:
    """Return whether a record was given up because of another: this report does not name the cause."""
    return error.code() in (ck.KafkaError._PURGE_QUEUE, ck.KafkaError._PURGE_INFLIGHT)


def is_of_a_batch(error: ck.KafkaError) -> bool:
    """Return whether Kafka refused a whole batch for one of its records, which can be another one than this."""
    return is_too_large(error) or is_invalid(error)


def is_invalid(error: ck.KafkaError) -> bool:
    """Return whether a topic refuses this record, or its batch, for what it is: as a compacted one without a key."""
    return error.code() == ck.KafkaError.INVALID_RECORD


def is_too_large(error: ck.KafkaError) -> bool:
    """Return whether this record, or its batch, is larger than its topic takes."""
    return error.code() in (ck.KafkaError.MSG_SIZE_TOO_LARGE, ck.KafkaError.RECORD_LIST_TOO_LARGE)
