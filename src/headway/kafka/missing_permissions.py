"""Turns errors of Kafka about a missing permission into an `AuthorizationError` that names the permission."""

import confluent_kafka as ck

from headway.core.permissions import permission_for
from headway.errors import AuthorizationError, HeadwayError
from headway.settings.config import Config

_THE_TOPIC = ck.KafkaError.TOPIC_AUTHORIZATION_FAILED


def is_refusal(error: ck.KafkaError | None) -> bool:
    """Return whether this error code of Kafka means that a permission is missing."""
    return error is not None and permission_for(error.name(), "") is not None


def lacks_a_permission(error: BaseException) -> bool:
    """Return whether this error, or one of its causes, means that a permission is missing.

    The error can be one of Headway's or one of the binding's.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AuthorizationError):
            return True
        if isinstance(cause, ck.KafkaException) and is_refusal(cause.args[0]):
            return True
        cause = cause.__cause__
    return False


def is_of_the_group(error: BaseException) -> bool:
    """Return whether this error means that the client is not permitted to use the group."""
    cause = error.__cause__
    return isinstance(cause, ck.KafkaException) and cause.args[0].code() == ck.KafkaError.GROUP_AUTHORIZATION_FAILED


def why_refused(
    error: ck.KafkaError, operation: str, config: Config | None = None, **names: str | None
) -> AuthorizationError | None:
    """Return an error that names the missing permission, or None if `error` has another cause.

    `names` are the keyword arguments of `permission_for`.
    """
    permission = permission_for(error.name(), operation, **names)
    if permission is None:
        return None
    refused = AuthorizationError(permission.missing(config))
    refused.__cause__ = ck.KafkaException(error)
    return refused


def why_not_readable(error: ck.KafkaError, topic: str, config: Config | None = None) -> AuthorizationError | None:
    """Return an error if the client is not permitted to read the topic, or None if `error` has another cause.

    A consumer that reads by offset needs no group, so errors about a permission on its group do not matter.
    """
    return why_refused(error, "Read", config, topic=topic) if error.code() == _THE_TOPIC else None


def raise_if_refused(error: HeadwayError, operation: str, config: Config | None = None, **names: str | None) -> None:
    """Raise `AuthorizationError` if this error was caused by a missing permission."""
    cause = error.__cause__
    if isinstance(cause, ck.KafkaException) and (refused := why_refused(cause.args[0], operation, config, **names)):
        raise refused from error
