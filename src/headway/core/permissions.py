"""The permissions (ACLs) that a client needs if Kafka requires authorization, and the errors if they are missing.

Operations and resources have the names that `kafka-acls` uses. Read, Write, Delete and Alter include Describe.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.errors import ConfigError

_INCLUDE_DESCRIBE = frozenset({"Read", "Write", "Delete", "Alter"})
_TOPIC = "TOPIC_AUTHORIZATION_FAILED"
_GROUP = "GROUP_AUTHORIZATION_FAILED"
_TRANSACTIONAL_ID = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
_CLUSTER = "CLUSTER_AUTHORIZATION_FAILED"

# Participles for error messages, such as "The topic orders cannot be read".
_DONE = {
    "Create": "created",
    "Delete": "deleted, and neither can its records",
    "Describe": "described",
    "Read": "read",
    "Write": "written",
}
_NAMES = {"Topic": "topic", "Group": "group", "TransactionalId": "transactional id", "Cluster": "cluster"}
_OPTIONS = {"Topic": "--topic", "Group": "--group", "TransactionalId": "--transactional-id"}
_PLACEHOLDER = "User:…"
# With these SASL mechanisms, the user name is also the name of the principal.
_WITH_USER_NAME = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True, order=True)
class Permission:
    """A permission for one operation on one resource, or on all resources whose names begin with `name`."""

    operation: str
    resource: str
    name: str
    prefixed: bool = False

    @classmethod
    def parse(cls, text: str) -> "Permission":
        """Return the permission that a text describes. A name that ends with `*` stands for all names with this prefix.

        >>> Permission.parse("Write Topic orders-*")
        Permission(operation='Write', resource='Topic', name='orders-', prefixed=True)
        """
        operation, resource, name = text.split(" ", 2)
        return cls(operation, resource, name.removesuffix("*") or "*", name.endswith("*") and name != "*")

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.shown_name}"

    @property
    def shown_name(self) -> str:
        """The name, followed by `*` if it is a prefix."""
        return self.name + "*" * self.prefixed

    def covers(self, other: "Permission") -> bool:
        """Return whether this permission includes another one.

        >>> Permission.parse("Read Topic orders-*").covers(Permission.parse("Describe Topic orders-1"))
        True
        """
        if self.resource != other.resource:
            return False
        named = (
            other.name.startswith(self.name)
            if self.prefixed
            else self.name == "*" or (self.name == other.name and not other.prefixed)
        )
        implied = other.operation == "Describe" and self.operation in _INCLUDE_DESCRIBE
        return named and (self.operation == other.operation or implied)

    def missing(self, config: Mapping[str, Any] | None = None) -> str:
        """Return an error text for a client that lacks this permission.

        The text names the resource, the principal that needs the permission, and the command that grants it.

        >>> print(Permission("Read", "Topic", "orders-0").missing())
        The topic orders-0 cannot be read: this client is not authorized. Grant Read on it to the principal of \
this client (kafka-acls --add --allow-principal 'User:…' --operation Read --topic orders-0).
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
            return f"{named} cannot be used: this client is not authorized"
        return f"{named} cannot be {_DONE.get(self.operation, self.operation)}: this client is not authorized"


def topic_permissions(operation: str, *topics: str) -> list[Permission]:
    """Return the permissions for an operation on each of these topics."""
    return [Permission(operation, "Topic", topic) for topic in topics]


def principal_of(config: Mapping[str, Any]) -> str | None:
    """Return the principal of a client, or None if the client's settings do not show it.

    A broker can be configured to map this principal to another one.

    >>> principal_of({"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "app"})
    'User:app'
    """
    mechanism = str(config.get("sasl.mechanism") or config.get("sasl.mechanisms") or "").upper()
    user = config.get("sasl.username")
    return f"User:{user}" if user and mechanism in _WITH_USER_NAME else None


def permission_for(
    error: str,
    operation: str,
    *,
    topic: str | None = None,
    group: str | None = None,
    transactional_id: str | None = None,
) -> Permission | None:
    """Return the permission that a client lacks, according to the name of Kafka's error.

    The result is None if the error is not an authorization error. `operation` is the operation on a topic. For a group,
    the permission is Describe or Read; for a transactional id, it is Write.

    >>> permission_for("GROUP_AUTHORIZATION_FAILED", "Read", group="billing")
    Permission(operation='Read', resource='Group', name='billing', prefixed=False)
    """
    if error == _TOPIC:
        return Permission(operation, "Topic", topic or "…")
    if error == _GROUP:
        return Permission("Describe" if operation == "Describe" else "Read", "Group", group or "…")
    if error == _TRANSACTIONAL_ID:
        return Permission("Write", "TransactionalId", transactional_id or "…")
    if error == _CLUSTER:
        return Permission(operation, "Cluster", "kafka-cluster")
    return None


def least(permissions: Iterable[Permission]) -> list[Permission]:
    """Return the permissions in the given order, without duplicates and without permissions that others include."""
    found = list(dict.fromkeys(permissions))
    return [each for each in found if not any(other.covers(each) for other in found if other != each)]


def kafka_acls(permissions: Iterable[Permission], principal: str) -> list[list[str]]:
    """Return the arguments of `kafka-acls --add` commands that grant these permissions, in as few commands as possible.

    >>> for line in kafka_acls([Permission("Read", "Topic", "a"), Permission("Read", "Topic", "b")], "User:app"):
    ...     print(*line)
    --add --allow-principal User:app --operation Read --topic a --topic b
    """
    operations: dict[tuple[str, str, bool], list[str]] = {}
    for permission in permissions:
        operations.setdefault((permission.resource, permission.name, permission.prefixed), []).append(
            permission.operation
        )
    alike: dict[tuple[str, bool, tuple[str, ...]], list[str]] = {}
    for (resource, name, prefixed), needed in operations.items():
        alike.setdefault((resource, prefixed, tuple(needed)), []).append(name)
    return [
        [
            *("--add", "--allow-principal", principal),
            *(word for operation in needed for word in ("--operation", operation)),
            *(word for name in names for word in (_OPTIONS[resource], name)),
            *(("--resource-pattern-type", "prefixed") if prefixed else ()),
        ]
        for (resource, prefixed, needed), names in alike.items()
    ]


def check_principal(principal: str) -> str:
    """Return the principal unchanged. Raises `ConfigError` if `kafka-acls` would not accept it."""
    kind, colon, name = principal.partition(":")
    if not (kind and colon and name):
        raise ConfigError(f"The principal is {principal!r}; write it like User:app.")
    return principal
