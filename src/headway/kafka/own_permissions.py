"""Asks the brokers which permissions this client has.

Any client can ask this, even if it is not permitted to read ACLs.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from enum import Enum
from typing import NamedTuple

import confluent_kafka as ck
from confluent_kafka import cimpl
from confluent_kafka.cimpl import NewTopic

from headway.core.permissions import Permission
from headway.errors import KafkaError
from headway.kafka.admin import Admin, describe
from headway.kafka.allowed_operations import Allowed, allowed_in, allowed_on_group, allows, ask_about_topics
from headway.kafka.binding import capi
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.retrying import retrying
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN
from headway.kafka.missing_permissions import is_refusal
from headway.settings.config import OWN_KEYS, Config

_PROBE = "headway-acls-check"
"""The suffix of the names that are used to test permissions on prefixes.

No topic with such a name is created, and no other producer uses such a transactional id.
"""

_NO_SUCH_TOPIC = "the topic does not exist, and brokers report permissions only for existing topics"
_NOT_TOLD = "the brokers do not report which operations are allowed"


# While permissions are tested, refusals are expected and need not be logged.
_silent = logging.Logger("headway.acls", logging.CRITICAL + 1)


class Presence(Enum):
    """Whether this client has a permission."""

    YES = "there"
    NO = "missing"
    UNKNOWN = "not known"


class Finding(NamedTuple):
    """The result for one permission. If the result is uncertain or negative, `reason` can explain it."""

    permission: Permission
    held: Presence
    reason: str = ""


class OwnPermissions:
    """Checks the permissions of the client with the settings `config`, without changing anything in Kafka.

    The permission to create a topic is tested with a request that the brokers only validate. The permission for
    transactional ids with a prefix is tested with an unused id that has this prefix. The permission for a single
    transactional id cannot be tested, because the test would fence off the producer that uses the id.

    Every method raises `KafkaError` if the brokers do not answer.
    """

    def __init__(self, config: Config) -> None:
        self._kafka = {key: value for key, value in config.items() if key not in OWN_KEYS}
        admin = Admin(config)
        self._visible = admin.topics()  # raises an error if the brokers refuse the login
        self._admin = admin.client

    def check(self, permissions: Iterable[Permission]) -> list[Finding]:
        """Check each of these permissions, and return one finding for each."""
        return [self._ask(permission) for permission in permissions]

    def _ask(self, permission: Permission) -> Finding:
        if permission.resource == "TransactionalId":
            return self._of_transactional_id(permission)
        if permission.resource == "Group":
            return self._answer(permission, self._of_group)
        if permission.operation == "Create":
            return self._of_creation(permission)
        if not permission.prefixed and permission.name != "*":
            return self._answer(permission, self._of_topic)
        return self._of_all_topics(permission)

    def _of_all_topics(self, permission: Permission) -> Finding:
        """Return the most negative of the findings for the existing topics with this prefix."""
        beginning = permission.name if permission.prefixed else ""
        found = [name for name in self._visible if name.startswith(beginning) and not name.startswith("__")]
        answers = [self._ask(Permission(permission.operation, permission.resource, name)) for name in found]
        for answer in answers:
            if answer.held is Presence.NO:
                return Finding(permission, Presence.NO, f"not for {answer.permission.name}")
        if not answers:
            return Finding(permission, Presence.UNKNOWN, "no topic with this prefix is visible to this client")
        return next(
            (Finding(permission, each.held, each.reason) for each in answers if each.held is Presence.UNKNOWN), None
        ) or (Finding(permission, Presence.YES))

    def _answer(self, permission: Permission, ask: Callable[[str], Allowed]) -> Finding:
        try:
            allowed = ask(permission.name)
        except ck.KafkaException as error:
            if error.args[0].code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
                return Finding(permission, Presence.UNKNOWN, _NO_SUCH_TOPIC)
            raise _not_answered(permission, error) from error
        if allowed is None:
            return Finding(permission, Presence.UNKNOWN, _NOT_TOLD)
        return Finding(permission, Presence.YES if allows(allowed, permission.operation) else Presence.NO)

    def _of_topic(self, name: str) -> Allowed:
        return allowed_in(ask_about_topics(self._admin, [name], BROKER_ANSWERS_WITHIN)[name], BROKER_ANSWERS_WITHIN)

    def _of_group(self, name: str) -> Allowed:
        try:
            return retrying(lambda _: allowed_on_group(self._kafka, name, BROKER_ANSWERS_WITHIN), BROKER_ANSWERS_WITHIN)
        except TimeoutError:
            raise KafkaError(
                f"The coordinator of the group {name} did not answer within {BROKER_ANSWERS_WITHIN:g} s. Check that "
                "the broker that coordinates the group is up, and try again."
            ) from None

    def _of_creation(self, permission: Permission) -> Finding:
        name = f"{permission.name}{_PROBE}" if permission.prefixed else permission.name
        asked: Mapping[str, Future[None]] = self._admin.create_topics(
            [NewTopic(name, 1)], validate_only=True, request_timeout=BROKER_ANSWERS_WITHIN
        )
        try:
            asked[name].result()
        except ck.KafkaException as error:
            if is_refusal(error.args[0]):
                return Finding(permission, Presence.NO)
            if error.args[0].code() != ck.KafkaError.TOPIC_ALREADY_EXISTS:
                raise _not_answered(permission, error) from error
        return Finding(permission, Presence.YES)

    def _of_transactional_id(self, permission: Permission) -> Finding:
        if not permission.prefixed:
            return Finding(
                permission,
                Presence.UNKNOWN,
                ("a test would end the open transaction of the producer that uses this id"),
            )
        own = {"transactional.id": f"{permission.name}{_PROBE}", "error_cb": lambda error: None, "logger": _silent}
        producer = make_client(cimpl.Producer, {**self._kafka, **own})
        try:
            # Without a connection, librdkafka searches for the coordinator only twice a second.
            capi.await_connection(producer, BROKER_ANSWERS_WITHIN)
            producer.init_transactions(BROKER_ANSWERS_WITHIN)
        except ck.KafkaException as error:
            if is_refusal(error.args[0]):
                return Finding(permission, Presence.NO)
            raise _not_answered(permission, error) from error
        finally:
            with contextlib.suppress(ck.KafkaException):  # closing the producer raises the same error again
                producer.close()
        return Finding(permission, Presence.YES)


def _not_answered(permission: Permission, error: ck.KafkaException) -> KafkaError:
    return KafkaError(
        f"Kafka did not report whether this client has the permission {permission}: {describe(error.args[0])}."
    )
