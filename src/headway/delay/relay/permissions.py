"""A relay's permissions. A relay checks them before it starts, and waits if one of them is revoked later."""

import logging
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any

from headway.core.delay.ladder import MEMORY
from headway.core.permissions import Permission
from headway.delay.relay.producers import fenced, ids_begin_with, new_id
from headway.delay.topic_names import TopicNames
from headway.errors import AuthorizationError, HeadwayError, KafkaError
from headway.kafka.admin import Admin
from headway.kafka.binding.error_causes import librdkafka_error
from headway.kafka.binding.time_limits import PERMISSIONS_ASKED_FOR_EVERY
from headway.kafka.consumer.relay_consumer import NOT_DELETED
from headway.kafka.missing_permissions import why_refused
from headway.runtime.background import in_background

log = logging.getLogger(__name__)

_WARN_EVERY = 10.0
_CLOSE_WITHIN = 0.1


def permissions_to_work(names: TopicNames, delay_topics: Collection[int]) -> list[Permission]:
    """Return the permissions on topics that a relay needs to work."""
    both = [names.state, *(names.delay_topic(delay_topic) for delay_topic in sorted({MEMORY, *delay_topics}))]
    read = [Permission("Read", "Topic", topic) for topic in (*both, names.commands, names.ladder)]
    return read + [Permission("Write", "Topic", topic) for topic in both]


def permissions_to_delete(names: TopicNames, delay_topics: Collection[int]) -> list[Permission]:
    """Return the permissions to delete records that relays have handled."""
    return [
        Permission("Delete", "Topic", topic)
        for topic in (*map(names.delay_topic, sorted({MEMORY, *delay_topics})), names.commands)
    ]


def require_permissions(
    admin: Admin, names: TopicNames, delay_topics: Collection[int], connection: Mapping[str, Any]
) -> None:
    """Raise `AuthorizationError` if the relay lacks a permission that it needs.

    If no broker answers, only log a message.
    """
    try:
        admin.require(permissions_to_work(names, delay_topics))
        missing = admin.missing(permissions_to_delete(names, delay_topics))
    except AuthorizationError:
        raise
    except KafkaError as unknown:
        log.info("Could not check whether the relay has the permissions that it needs: %s", unknown)
    else:
        if missing:
            log.warning("%s %s", NOT_DELETED, missing.missing(connection))


class LostPermissions:
    """Checks without blocking whether missing permissions have been granted again. Logs a warning from time to time.

    Args:
        config: The settings of the relay's producers.
        names: The names of the scheduler's topics.
        group: The relays' consumer group.
    """

    def __init__(self, config: Mapping[str, Any], names: TopicNames, group: str) -> None:
        self._config = config
        self._names = names
        self._group = group
        self._permissions: list[Permission] = []
        self._asked: Future[Permission | None] | None = None
        self._look_at = 0.0
        self._warned_at: float | None = None
        self.reason: str | None = None

    def explain(self, error: KafkaError) -> KafkaError:
        """If a missing permission has caused this error, return an error that names the permission.

        Otherwise return this error.
        """
        if isinstance(error, AuthorizationError):
            return error
        cause = librdkafka_error(error)
        ids = ids_begin_with(self._names)
        missing = cause and why_refused(cause, "Write", self._config, group=self._group, transactional_id=ids)
        return missing or error

    def wait_for(self, permissions: Collection[Permission], reason: str) -> None:
        """Start to wait for these permissions. At least one of them is missing."""
        self._permissions = [*permissions, Permission("Read", "Group", self._group)]
        self.reason = reason
        self._look_at = time.monotonic() + PERMISSIONS_ASKED_FOR_EVERY
        self._warn()

    def are_granted(self) -> bool:
        """Return whether all permissions are granted. A thread checks them once a second."""
        if self.reason is None:
            return True
        now = time.monotonic()
        if self._asked is None:
            if now >= self._look_at:
                self._asked = in_background(self._ask)
        elif self._asked.done():
            asked, self._asked = self._asked, None
            self._look_at = now + PERMISSIONS_ASKED_FOR_EVERY
            self._note(asked)
        self._warn()
        return self.reason is None

    def _ask(self) -> Permission | None:
        reach = {key: value for key, value in self._config.items() if not key.startswith("transaction")}
        missing = Admin(reach).missing(self._permissions)
        if missing is None:  # no request returns the permissions for a transactional id, so try to use such an id
            fenced(self._config, new_id(self._names), self._names.state).close(_CLOSE_WITHIN)
        return missing

    def _note(self, asked: "Future[Permission | None]") -> None:
        try:
            missing = asked.result()
        except HeadwayError as error:
            log.debug("Cannot find out yet whether the permission is granted: %s", error)
            return
        if missing is None:
            log.info("The relay of %s has its permissions again.", self._names.name)
        self.reason = missing.missing(self._config) if missing else None

    def _warn(self) -> None:
        now = time.monotonic()
        if self.reason and (self._warned_at is None or now - self._warned_at >= _WARN_EVERY):
            self._warned_at = now
            log.warning(
                "The relay of %s delivers nothing until a permission is granted. %s", self._names.name, self.reason
            )
