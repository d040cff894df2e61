"""Manages the security settings of a Kafka cluster: ACLs and SCRAM users."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import confluent_kafka as ck
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headway.errors import ConfigError, KafkaError
from headway.kafka.admin import describe
from headway.kafka.allowed_operations import plain
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN
from headway.settings.config import Config

_ASK_AGAIN_AFTER = 0.02  # seconds between checks whether a broker has applied a change
_ITERATIONS = 4096  # the smallest iteration count that Kafka accepts, which is enough for random passwords

_OPERATIONS = [each for each in AclOperation if each not in (AclOperation.UNKNOWN, AclOperation.ANY)]
# librdkafka's name for the cluster as a resource is BROKER.
_RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactionalid": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Acl:
    """One permission of one user, from any host, in the terms of the `kafka-acls` tool."""

    user: str
    operation: str
    resource: str
    name: str
    prefixed: bool = False

    def binding(self, kind: type[AclBinding] = AclBinding) -> AclBinding:
        """Return this ACL in the admin client's type. Raises `ConfigError` for a term that Kafka does not define."""
        return kind(
            _known("resource", self.resource, _RESOURCES),
            self.name,
            ResourcePatternType.PREFIXED if self.prefixed else ResourcePatternType.LITERAL,
            f"User:{self.user}",
            "*",
            _known("operation", self.operation, {plain(each.name): each for each in _OPERATIONS}),
            AclPermissionType.ALLOW,
        )

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.name}{'*' * self.prefixed} for User:{self.user}"


class SecurityAdmin:
    """Creates users, grants them permissions, and waits until the brokers apply each change.

    `nodes` are the addresses of all brokers.
    """

    def __init__(self, config: Config, nodes: Sequence[str]) -> None:
        self._config = dict(config)
        self._nodes = nodes

    def grant(self, acl: Acl) -> None:
        """Create an ACL. Raises `KafkaError` if Kafka refuses it."""
        # The variable keeps the client alive, because a client's requests fail when it is destroyed.
        client = self._client()
        for future in client.create_acls([acl.binding()], request_timeout=BROKER_ANSWERS_WITHIN).values():
            _result(future, f"grant {acl}")
        self._wait_until(lambda client: _has(client, acl), f"{acl} was granted")

    def revoke(self, acl: Acl) -> None:
        """Delete an ACL. Raises `KafkaError` if the ACL does not exist, or if Kafka refuses to delete it."""
        pattern = acl.binding(AclBindingFilter)
        client = self._client()
        for future in client.delete_acls([pattern], request_timeout=BROKER_ANSWERS_WITHIN).values():  # type: ignore[list-item]
            if not _result(future, f"revoke {acl}"):
                raise KafkaError(
                    f"Nothing was revoked, because there is no ACL {acl}. Name it exactly as it was granted."
                )
        self._wait_until(lambda client: not _has(client, acl), f"{acl} was revoked")

    def add_user(self, user: str, password: str) -> None:
        """Create a user, or change an existing user's password, for logins with SCRAM-SHA-512."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS)
        made = UserScramCredentialUpsertion(user, info, password.encode())
        client = self._client()
        for future in client.alter_user_scram_credentials([made], request_timeout=BROKER_ANSWERS_WITHIN).values():
            _result(future, f"add the user {user}")
        self._wait_until(lambda client: _knows(client, user), f"the user {user} was added")

    def _wait_until(self, holds: Callable[[AdminClient], bool], what: str) -> None:
        """Wait until each broker has applied a change, which happens a little after the controller has made it.

        Each broker is asked by a separate client, because a client with several brokers would choose one of them
        itself.
        """
        deadline = time.monotonic() + BROKER_ANSWERS_WITHIN
        for node in self._nodes:
            while not holds(self._client(node)):
                if time.monotonic() > deadline:
                    raise KafkaError(
                        f"The broker at {node} does not apply the change within {BROKER_ANSWERS_WITHIN:.0f} s: {what}."
                    )
                time.sleep(_ASK_AGAIN_AFTER)

    def _client(self, node: str | None = None) -> AdminClient:
        servers = {"bootstrap.servers": node} if node else {}
        return make_client(AdminClient, {"log_level": 2, **self._config, **servers})


def _has(client: AdminClient, acl: Acl) -> bool:
    found = client.describe_acls(acl.binding(AclBindingFilter), request_timeout=BROKER_ANSWERS_WITHIN)  # type: ignore[arg-type]
    return bool(_result(found, f"describe {acl}"))


def _knows(client: AdminClient, user: str) -> bool:
    answers: Any = client.describe_user_scram_credentials([user], request_timeout=BROKER_ANSWERS_WITHIN)
    try:
        return bool(answers[user].result().scram_credential_infos)
    except ck.KafkaException as error:
        if error.args[0].code() == ck.KafkaError.RESOURCE_NOT_FOUND:
            return False
        raise KafkaError(f"Kafka did not describe the user {user}: {describe(error.args[0])}.") from error


def _result(future: Future[T], what: str) -> T:
    try:
        return future.result()
    except ck.KafkaException as error:
        raise KafkaError(f"Kafka did not {what}: {describe(error.args[0])}.") from error


def _known(what: str, word: str, words: Mapping[str, Enum]) -> Any:
    if (found := words.get(plain(word))) is None:
        raise ConfigError(f"The {what} of an ACL cannot be {word!r}. Choose one of {', '.join(words)}.")
    return found
