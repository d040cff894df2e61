"""The security of a secured local broker: certificates and passwords, and the settings of its nodes and clients."""

import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.broker.certificates import Authority, write_private
from headway.broker.ports import HOST
from headway.errors import ConfigError, LocalBrokerError

ADMIN = "admin"
APP = "app"

_NODES = "headway-broker"  # the user name with which the nodes log in to each other
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
_MECHANISM = "SCRAM-SHA-512"
_PASSWORD_BYTES = 24


class Security:
    """The certificate authority, the users and their passwords, stored in `directory`.

    `make` creates them for a new cluster. Only the owner can read the files. A user has the same principal, and so the
    same permissions, with a password (SCRAM) and with a certificate.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)

    def make(self) -> None:
        """Create the authority and the users `admin` and `app`, but keep all files of an interrupted start."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self.authority.make()
        for user in (ADMIN, APP):
            if not self._password_file(user).exists():
                self.keep_password(user, new_password())

    @property
    def users(self) -> list[str]:
        """The names of all users."""
        return sorted(file.stem for file in self.directory.glob("*.password"))

    def renew(self, servers: str, tls_servers: str) -> None:
        """Write new certificates for the nodes and the users, and write new settings files for the users."""
        if not (self.users and self.authority.complete):
            raise LocalBrokerError(
                f"The certificate authority or the passwords in {self.directory} are missing. Restore "
                f"{self.directory.parent} from a backup, or delete it to start without its records."
            )
        self.authority.issue(_NODES, self._certificate_of(_NODES), hosts=[HOST, "localhost"])
        for user in self.users:
            self.write_client_files(user, servers, tls_servers)

    def write_client_files(self, user: str, servers: str, tls_servers: str) -> None:
        """Write a user's certificate, and the user's two settings files for `--config-file`."""
        self.authority.issue(user, self._certificate_of(user))
        self._write_properties(self.properties_file(user), self.client_config(user, servers))
        mutual = self.directory / f"{user}.mtls.properties"
        self._write_properties(mutual, self.certificate_config(user, tls_servers))

    def properties_file(self, user: str) -> Path:
        """Return the settings file with which `user` logs in by password."""
        return self.directory / f"{user}.properties"

    def client_config(self, user: str, servers: str) -> dict[str, Any]:
        """Return librdkafka's settings for a client that logs in with a password."""
        return {
            "bootstrap.servers": servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "sasl.mechanism": _MECHANISM,
            "sasl.username": user,
            "sasl.password": self._password(user),
        }

    def certificate_config(self, user: str, servers: str) -> dict[str, Any]:
        """Return librdkafka's settings for a client that logs in with a certificate (mutual TLS)."""
        self._password(user)
        certificate = str(self._certificate_of(user))
        return {
            "bootstrap.servers": servers,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "ssl.certificate.location": certificate,
            "ssl.key.location": certificate,
        }

    def require_new(self, user: str) -> None:
        """Raise an error if the name is taken, or if it cannot be used for a file, a certificate and a principal."""
        if not _NAME.fullmatch(user):
            raise ConfigError(
                f"The user's name is {user!r}; it must be 1 to 60 letters, digits, - and _, starting with a letter or "
                "digit."
            )
        if user in self.users or user == _NODES:
            raise LocalBrokerError(f"The local broker already has a user {user!r}. Choose another name.")

    def keep_password(self, user: str, password: str) -> None:
        """Write a user's password to its file."""
        write_private(self._password_file(user), password.encode())

    def server_properties(self) -> dict[str, str]:
        """Return the security properties, which are the same for all nodes, and contain no passwords or keys."""
        return {
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._certificate_of(_NODES)),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            # A certificate with CN=app gives the principal User:app, as does a login with the password of `app`.
            "ssl.principal.mapping.rules": "RULE:^CN=([A-Za-z0-9_-]+)$/$1/",
            "sasl.enabled.mechanisms": _MECHANISM,
            f"listener.name.sasl_ssl.{_MECHANISM.lower()}.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": f"User:{ADMIN};User:{_NODES}",
        }

    @property
    def format_file(self) -> Path:
        """The path of the file that `format_arguments` writes."""
        return self.directory / "format.arguments"

    @contextmanager
    def format_arguments(self) -> Iterator[None]:
        """While the `with` block lasts, keep the storage tool's arguments for creating the users in a file.

        The arguments contain passwords, and other users can see the command line of a process.
        """
        users = ((user, self._password(user)) for user in self.users)
        lines = (f"--add-scram\n{_MECHANISM}=[name={user},password={password}]\n" for user, password in users)
        write_private(self.format_file, "".join(lines).encode())
        try:
            yield
        finally:
            self.format_file.unlink(missing_ok=True)

    def _certificate_of(self, user: str) -> Path:
        return self.directory / f"{user}.pem"

    def _password_file(self, user: str) -> Path:
        return self.directory / f"{user}.password"

    def _password(self, user: str) -> str:
        if user not in self.users:
            raise LocalBrokerError(
                f"The local broker has no user {user!r}, only {', '.join(self.users)}. Create it with add_user()."
            )
        return self._password_file(user).read_text(encoding="utf-8")

    @staticmethod
    def _write_properties(file: Path, settings: Mapping[str, Any]) -> None:
        write_private(file, "".join(f"{key}={value}\n" for key, value in settings.items()).encode())


def new_password() -> str:
    """Return a random password."""
    return secrets.token_urlsafe(_PASSWORD_BYTES)
