"""Rights on a Kafka that denies access by default, as `kafka-acls` names them, and the errors for missing ones.

Read, Write, Delete and Alter include Describe.
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

# Participles for error messages: "The topic orders cannot be read".
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
# The mechanisms whose principal is the user name.
_WITH_USER_NAME = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One operation on one resource, or on all resources whose names begin with `name`."""

    operation: str
    resource: str
    name: str
    prefixed: bool = False

    @classmethod
    def parse(cls, text: str) -> "Right":
        """Return the right that a text names; a name that ends with `*` stands for all names with that beginning.

        >>> Right.parse("Write Topic orders-*")
        Right(operation='Write', resource='Topic', name='orders-', prefixed=True)
        """
        operation, resource, name = text.split(" ", 2)
        return cls(operation, resource, name.removesuffix("*") or "*", name.endswith("*") and name != "*")

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.shown_name}"

    @property
    def shown_name(self) -> str:
        """The name, followed by `*` if it is the beginning of names."""
        return self.name + "*" * self.prefixed

    def covers(self, other: "Right") -> bool:
        """Return whether this right includes the other one.

        >>> Right.parse("Read Topic orders-*").covers(Right.parse("Describe Topic orders-1"))
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
        """Return an error text that names this missing right, the principal that needs it, and the command to grant it.

        >>> print(Right("Read", "Topic", "orders-0").missing())
        The topic orders-0 cannot be read: this client lacks the right. Grant Read on it to the principal of \
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
            return f"{named} cannot be used: this client lacks the right"
        return f"{named} cannot be {_DONE.get(self.operation, self.operation)}: this client lacks the right"


def topic_rights(operation: str, *topics: str) -> list[Right]:
    """Return the same right on each of these topics."""
    return [Right(operation, "Topic", topic) for topic in topics]


def principal_of(config: Mapping[str, Any]) -> str | None:
    """Return the principal of a client, if its settings show it. A broker's own mapping can change it.

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
    """Return the right that is missing, from the name of Kafka's error; None if the error is not about a right.

    `operation` is the one on the topic. For a group the right is Describe or Read, for a transactional id Write.

    >>> right_for("GROUP_AUTHORIZATION_FAILED", "Read", group="billing")
    Right(operation='Read', resource='Group', name='billing', prefixed=False)
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


def least(rights: Iterable[Right]) -> list[Right]:
    """Return the rights in their order, each once, without those that others include."""
    found = list(dict.fromkeys(rights))
    return [each for each in found if not any(other.covers(each) for other in found if other != each)]


def kafka_acls(rights: Iterable[Right], principal: str) -> list[list[str]]:
    """Return the arguments of `kafka-acls --add` that grant these rights, in as few commands as possible.

    >>> for line in kafka_acls([Right("Read", "Topic", "a"), Right("Read", "Topic", "b")], "User:app"):
    ...     print(*line)
    --add --allow-principal User:app --operation Read --topic a --topic b
    """
    operations: dict[tuple[str, str, bool], list[str]] = {}
    for right in rights:
        operations.setdefault((right.resource, right.name, right.prefixed), []).append(right.operation)
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
    """Return a principal unchanged. Raises `ConfigError` for one that `kafka-acls` does not accept."""
    kind, colon, name = principal.partition(":")
    if not (kind and colon and name):
        raise ConfigError(f"The principal is {principal!r}; write it like User:app.")
    return principal
