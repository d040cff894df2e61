"""The rights that Kafka asks for, and the one sentence that says which of them is missing."""

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

_TOPIC = "TOPIC_AUTHORIZATION_FAILED"
_GROUP = "GROUP_AUTHORIZATION_FAILED"
_TRANSACTIONAL_ID = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
_CLUSTER = "CLUSTER_AUTHORIZATION_FAILED"

# What an operation is called in a sentence about its resource.
_DONE = {
    "Create": "created",
    "Delete": "deleted, nor records of it",
    "Describe": "described",
    "Read": "read",
    "Write": "written",
}
_NAMES = {"Topic": "topic", "Group": "group", "TransactionalId": "transactional id", "Cluster": "cluster"}
_OPTIONS = {"Topic": "--topic", "Group": "--group", "TransactionalId": "--transactional-id"}
_PLACEHOLDER = "User:…"
# Mechanisms whose principal is the user name.
_WITH_USER_NAME = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class Right(NamedTuple):
    """An operation on a resource, in the words of `kafka-acls`."""

    operation: str
    resource: str
    name: str

    def missing(self, config: Mapping[str, Any] | None = None) -> str:
        """Return the sentences that say that this right is missing, whom to give it to, and how.

        >>> print(Right("Read", "Topic", "orders-0").missing())
        The topic orders-0 may not be read. Grant Read on it to the principal of this client \
(kafka-acls --add --allow-principal 'User:…' --operation Read --topic orders-0).
        """
        user = principal_of(config or {})
        whom = user or "the principal of this client"
        option = _OPTIONS.get(self.resource)
        where = f"{option} {shlex.quote(self.name)}" if option else "--cluster"
        how = f"kafka-acls --add --allow-principal {shlex.quote(user or _PLACEHOLDER)} --operation {self.operation}"
        return f"{self._forbidden()}. Grant {self.operation} on it to {whom} ({how} {where})."

    def _forbidden(self) -> str:
        named = f"The {_NAMES[self.resource]} {self.name}"
        if self.resource in ("Group", "TransactionalId") and self.operation != "Describe":
            return f"{named} may not be used"
        return f"{named} may not be {_DONE.get(self.operation, self.operation)}"


def topic_rights(operation: str, *topics: str) -> list[Right]:
    """Return the same right on each of these topics."""
    return [Right(operation, "Topic", topic) for topic in topics]


def principal_of(config: Mapping[str, Any]) -> str | None:
    """Return the name that brokers know a client by, as far as its settings tell: an own mapping may change it.

    >>> principal_of({"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "app"})
    'User:app'
    """
    mechanism = str(config.get("sasl.mechanism") or config.get("sasl.mechanisms") or "").upper()
    user = config.get("sasl.username")
    return f"User:{user}" if user and mechanism in _WITH_USER_NAME else None


def right_for(
    error: str,
    operation: str,
    *,
    topic: str | None = None,
    group: str | None = None,
    transactional_id: str | None = None,
) -> Right | None:
    """Return the right that is missing by the name of Kafka's error, None if it says no such thing.

    The operation is that on the topic. On a group it is Describe or Read, on a transactional id Write.

    >>> right_for("GROUP_AUTHORIZATION_FAILED", "Read", group="billing")
    Right(operation='Read', resource='Group', name='billing')
    """
    if error == _TOPIC:
        return Right(operation, "Topic", topic or "…")
    if error == _GROUP:
        return Right("Describe" if operation == "Describe" else "Read", "Group", group or "…")
    if error == _TRANSACTIONAL_ID:
        return Right("Write", "TransactionalId", transactional_id or "…")
    if error == _CLUSTER:
        return Right(operation, "Cluster", "kafka-cluster")
    return None
