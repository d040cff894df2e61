"""Turns refusals by Kafka and librdkafka for a missing right into an `AuthorizationError` that names the right."""

import confluent_kafka as ck

from headway.core.rights import right_for
from headway.errors import AuthorizationError, HeadwayError
from headway.settings.config import Config

_THE_TOPIC = ck.KafkaError.TOPIC_AUTHORIZATION_FAILED


def is_refusal(error: ck.KafkaError | None) -> bool:
    """Return whether this error of Kafka's reports a missing right."""
    return error is not None and right_for(error.name(), "") is not None


def lacks_a_right(error: BaseException) -> bool:
    """Return whether this error, Headway's or the binding's, or one of its causes, reports a missing right."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AuthorizationError):
            return True
        if isinstance(cause, ck.KafkaException) and is_refusal(cause.args[0]):
            return True
        cause = cause.__cause__
    return False


def is_of_the_group(error: BaseException) -> bool:
    """Return whether this error is a refusal to use a group."""
    cause = error.__cause__
    return isinstance(cause, ck.KafkaException) and cause.args[0].code() == ck.KafkaError.GROUP_AUTHORIZATION_FAILED


def why_refused(
    error: ck.KafkaError, operation: str, config: Config | None = None, **names: str | None
) -> AuthorizationError | None:
    """Return the error that names the missing right, if Kafka reports one; `names` are as for `right_for`."""
    right = right_for(error.name(), operation, **names)
    if right is None:
        return None
    refused = AuthorizationError(right.missing(config))
    refused.__cause__ = ck.KafkaException(error)
    return refused


def why_not_readable(error: ck.KafkaError, topic: str, config: Config | None = None) -> AuthorizationError | None:
    """Return the error that says that the right to read a topic is missing, if Kafka reports that.

    A consumer that reads by offset needs no group, so it does not end because a right on its own group is missing.
    """
    return why_refused(error, "Read", config, topic=topic) if error.code() == _THE_TOPIC else None


def raise_if_refused(error: HeadwayError, operation: str, config: Config | None = None, **names: str | None) -> None:
    """Raise `AuthorizationError` if the cause of this error is a missing right."""
    cause = error.__cause__
    if isinstance(cause, ck.KafkaException) and (refused := why_refused(cause.args[0], operation, config, **names)):
        raise refused from error
