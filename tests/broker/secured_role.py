"""Users of a secured broker who have the rights of a role and no others, and what the broker has denied them."""

import re
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headway.broker import LocalBroker
from headway.broker.certificates import Authority
from headway.core.permissions import Permission
from headway.kafka.acls import Acl
from headway.kafka.admin import Admin
from headway.kafka.reading.unjoined_consumer import OURS

AUDITED = ["-Dorg.slf4j.simpleLogger.log.kafka.authorizer.logger=info"]
"""Options with which a broker logs what it denies."""

_DENIED = re.compile(r"Principal = User:(\S+) is Denied (?P<what>operation = .*? for request = \S+)")


@dataclass(frozen=True)
class SecuredUser:
    """A user, and the settings of its clients."""

    broker: LocalBroker
    name: str
    config: Mapping[str, Any]

    @property
    def config_file(self) -> Path:
        """The file for `--config-file`."""
        return self.broker.config_file(self.name)

    def revoke(self, permission: Permission) -> None:
        """Take a right away."""
        self.broker.revoke(
            self.name, permission.operation, permission.resource, permission.name, prefixed=permission.prefixed
        )

    def grant(self, *permissions: Permission) -> None:
        """Give rights."""
        *first, last = permissions
        acls = [Acl(self.name, each.operation, each.resource, each.name, each.prefixed).binding() for each in first]
        if acls:
            # Kept: what a client that is gone was asked fails.
            client = AdminClient({"log_level": 0, **self.broker.admin_config})
            for created in client.create_acls(acls).values():
                created.result(30)
        # When the broker knows of the last one, it knows of all.
        self.broker.grant(self.name, last.operation, last.resource, last.name, prefixed=last.prefixed)

    def denied(self) -> list[str]:
        """What the broker has denied it.

        On a busy machine a reader by offset may ask for the coordinator of the group that it needs for the binding,
        before its membership is closed.
        """
        log = "".join(node.log_file.read_text(errors="replace") for node in self.broker.nodes)
        denied = [found["what"] for found in _DENIED.finditer(log) if found[1] == self.name]
        return [what for what in denied if f"Group:LITERAL:{OURS['group.id']} " not in what]


def user_with(broker: LocalBroker, permissions: Iterable[Permission]) -> SecuredUser:
    """Make a user that has these rights and no others."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    user = SecuredUser(broker, name, broker.add_user(name))
    user.grant(*permissions)
    return user


def create(broker: LocalBroker, *topics: str, partitions: int = 1) -> None:
    """Create topics, as the admin."""
    Admin(broker.admin_config).create(topics, partitions)


def change_password(broker: LocalBroker, user: str, password: str) -> None:
    """Give a user another password; what is connected with the old one is refused when it logs in again."""
    how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    admin = AdminClient({"log_level": 0, **broker.admin_config})  # kept: what a client that is gone was asked fails
    [done] = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, how, password.encode())]).values()
    done.result(60)


class Certificate:
    """The superuser's client certificate in a file of its own, which can end and be renewed."""

    def __init__(self, broker: LocalBroker, directory: Path) -> None:
        self._authority = Authority(broker.config_file().parent)
        self._file = directory / "admin.pem"
        files = {"ssl.certificate.location": str(self._file), "ssl.key.location": str(self._file)}
        self.config: dict[str, Any] = {**broker.client_config("admin", certificate=True), **files}

    def issue(self, lifetime: timedelta = timedelta(days=1)) -> float:
        """Write it anew; when it will have ended, by the monotonic clock."""
        self._authority.issue("admin", self._file, lifetime=lifetime)
        return time.monotonic() + lifetime.total_seconds() + 1


def start_again(broker: LocalBroker) -> None:
    """Have all connections made anew: a broker looks at certificates when a client connects."""
    broker.nodes[0].kill()
    broker.nodes[0].stop()
    broker.nodes[0].spawn()
    broker.nodes[0].wait_until_ready(time.monotonic() + 120)
